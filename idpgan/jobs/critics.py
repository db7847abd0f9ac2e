"""The critic of a finished run, as a function that scores images: what an attacker inside the curator's walls has."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from idpgan import synthesis
from idpgan.attacks.membership import CriticScores
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.privacy.ledger import Ledger
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig
from idpgan.training.method import Method

_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError)


class NoCriticError(InputError):
    """The run has no critic that scores images; the message is a clause that says why."""


def saved_state(run: RunFolder) -> dict[str, Any] | None:
    """Read a run's state, tensors on the CPU; None where it has none (a copy without state/).

    Raises:
        InputError: If it is damaged.
    """
    if not run.state.is_file():
        return None
    try:
        content = torch.load(run.state, map_location="cpu", weights_only=True)
        state, fingerprint = dict(content["method"]), content["fingerprint"]
        if content["prepared"] is not None:
            from safetensors.torch import load_file

            state["prepared"] = load_file(run.prepared)
    except _UNREADABLE as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(f"{run.state_dir} cannot be read ({reason}). Restore it from a copy, or remove it.") from error
    return {"method": state, "fingerprint": fingerprint}


def critic_of_run(config: RunConfig, split: Split, state: dict[str, Any] | None, device: torch.device) -> CriticScores:
    """Return the scores of a run's trained critic.

    Args:
        config: Of the run.
        split: Its data; a method that is built again wants to see their shapes.
        state: What `saved_state` returned.
        device: Where the critic computes.

    Raises:
        NoCriticError: If there is no such critic.
    """
    if state is None:
        raise NoCriticError("the run's state/ is not there, which holds the critic")
    method: Method = synthesis.load_method(config.method.name).Method(
        config, split, ledger=Ledger(*config.ledger_terms()), device=device
    )
    try:
        method.load_state(state["method"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise NoCriticError("the run's state/ was written by another version of idpgan") from error
    return critic_of(method)


def critic_of(method: Method) -> CriticScores:
    """Return how real a method's critic finds images; higher = more real.

    The images go in as they are, without the noise that a method adds in training: the least that an attacker would do.

    Raises:
        NoCriticError: If the critic does not see images.
    """
    from idpgan.synthesis.aggregate.method import IdpAggregate
    from idpgan.synthesis.local.method import IdpLocal
    from idpgan.synthesis.published.method import IdpPublished
    from idpgan.synthesis.wgan_gp.method import WganGp

    own = getattr(method, "critic_scores", None)
    if callable(own):
        scores: CriticScores = own
        return scores
    if isinstance(method, IdpLocal):
        return lambda images, labels: method.critic(
            method.channel.decode(method.channel.encode(images)), labels if method.newest.num_classes else None
        )
    if isinstance(method, WganGp):
        return lambda images, labels: method.critic(images, labels if method.newest.num_classes else None)
    if isinstance(method, IdpPublished):
        given = method.critic.label_embedding is not None
        return lambda images, labels: method.critic(images, labels if given else None)[:, 0]
    if isinstance(method, IdpAggregate):
        return _witness(method)
    raise NoCriticError("this method's critic does not score images")


def _witness(method: Any) -> CriticScores:
    """Return the linear critic of the aggregate form on single images: the released sums, minus the generator's."""
    from idpgan.synthesis.aggregate.critic import LinearCritic

    critic = method.critic
    if not isinstance(critic, LinearCritic) or critic.target.shape[1] != 1:
        raise NoCriticError("its critic sees groups or clusters of images, never one")
    direction = critic.target[:, 0] - critic.average[:, 0]  # (rows, D)
    direction = direction if critic.metric is None else direction @ critic.metric

    def scores(images: Tensor, labels: Tensor | None) -> Tensor:
        rows = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        rows = labels if method.classes and labels is not None else rows
        vectors = method.features(images, rows if method.classes else None)[:, :-1]
        return (vectors * direction[rows]).sum(1)

    return scores
