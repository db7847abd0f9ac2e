"""The critic of a finished run, as a function that scores images: what an attacker inside the curator's walls has."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from idpgan.attacks import nearest_sample
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.models.generator import Generator
from idpgan.privacy.ledger import Ledger
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig, load_method
from idpgan.training.method import CriticScores, HasCritic, Method, NoCriticError

__all__ = ["NoCriticError", "by_critic", "by_nearest_sample", "critic_of", "critic_of_run", "saved_state"]

_SAMPLES = 5000  # that the nearest one is looked for among
_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError)


def saved_state(run: RunFolder) -> dict[str, Any] | None:
    """Read a run's state, tensors on the CPU; None for a copy without state/. A damaged one is refused."""
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

    ``state`` is what `saved_state` returned; a method that is built again wants to see the shapes of ``split``.

    Raises:
        NoCriticError: If there is no such critic.
    """
    if state is None:
        raise NoCriticError("the run's state/ is not there, which holds the critic")
    method: Method = load_method(config.method.name)(
        config, split, ledger=Ledger(*config.ledger_terms()), device=device
    )
    try:
        method.load_state(state["method"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise NoCriticError("the run's state/ was written by another version of idpgan") from error
    return critic_of(method)


def critic_of(method: Method) -> CriticScores:
    """Return how real a method's critic finds images; `NoCriticError` if the critic does not see single images."""
    if not isinstance(method, HasCritic):
        raise NoCriticError("this method's critic does not score images")
    return method.critic_scores


def by_critic(method: Method, images: Images) -> Tensor:
    """Score images by the trained critic, (n,); a critic that sees no single image knows nothing of any: all 0."""
    try:
        critic = critic_of(method)
    except NoCriticError:
        return torch.zeros(len(images))
    device = next(method.product.parameters()).device
    labels = None if images.labels is None else images.labels.to(device)
    with torch.no_grad():
        return critic(to_float(images.images).to(device), labels).cpu()


def by_nearest_sample(method: Method, images: Images) -> Tensor:
    """Score images by how near the nearest generated image comes, (n,); a classifier draws nothing: all 0."""
    generator: Any = method.product
    if not isinstance(generator, Generator):
        return torch.zeros(len(images))
    samples = generator.sample(_SAMPLES, seed=0)
    samples = samples[0] if isinstance(samples, tuple) else samples
    return nearest_sample(to_float(images.images), samples.cpu())
