"""Attacks on a model that somebody was given, or trained in a loop of their own: no run is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from idpgan.attacks.attack import Knowledge, Membership, Outcome, draw, run_attack
from idpgan.attacks.independence import check_independent
from idpgan.attacks.losses import LEAST_REFERENCE
from idpgan.attacks.registry import select_attacks
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.progress import Progress, silent


@own_state()
def attack_model(
    model: Generator | PrivateClassifier,
    members: Images,
    others: Images,
    reference: Images | None = None,
    *,
    attacks: Sequence[str] = ("all",),
    samples: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Outcome, ...]:
    """Ask who was in a model's training data, by every attack that needs no more than the model; curator only.

    Args:
        model: As `idpgan.load_generator`, `idpgan.load_classifier` or `idpgan.release.load_model` return it.
        members: Images that it was trained on, uint8.
        others: As many images of the same distribution that it was not trained on. Exact copies on a side are left out,
            each image being one draw.
        reference: Further such images that the attacker knows; None = none.
        attacks: Names, or "all".
        samples: Images that are drawn from a generator.

    Raises:
        InputError: If members and others are not equally many, two at least, or are not independent draws
            (`independence.check_independent`) and have no people.
    """
    if len(members) != len(others) or len(members) < 2:
        raise InputError(f"{len(members)} members and {len(others)} others: give as many of both, two at least.")
    members, others = members.distinct(), others.distinct()
    fewer, nobody = torch.arange(min(len(members), len(others))), members.select(torch.arange(0))
    members, others = members.select(fewer), others.select(fewer)
    known = None if reference is None or len(reference) < LEAST_REFERENCE else reference
    if isinstance(model, PrivateClassifier):
        knowledge = Knowledge(classifier=model.logits, reference=known, seed=seed)
    else:
        drawn = draw(model, samples, seed, progress, "generated images")
        knowledge = Knowledge(samples=drawn, generator=model, reference=known, seed=seed)
    kind = "classifier" if isinstance(model, PrivateClassifier) else "generator"
    images = Membership(members, others, nobody if reference is None else reference)
    if images.people is None:
        check_independent(members.images, others.images, seed=seed)
    return tuple(run_attack(attack, knowledge, images, progress=progress) for attack in select_attacks(attacks, kind))
