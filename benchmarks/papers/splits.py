"""Ways to split pictures of people, into those that are known and those that are asked about, beside `halves`."""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError
from idpgan.metrics.recognition import people_of, place_of
from idpgan.models.initialize import torch_seed


@typed
def first_images(identities: Tensor, num: int = 5) -> tuple[Tensor, Tensor]:
    """Split a set within each person: ``num`` images to train on, the rest to test (Liu et al. 2021, section 4.3).

    Args:
        identities: int64 (N,), a number per person, in the order of the images.
        num: At least 1, and fewer than anybody has.

    Returns:
        Indices of training and of test images, int64, each in ascending order.

    Raises:
        InputError: If there are fewer than two people, or a person has too few images.
    """
    people, inverse, counts = people_of(identities)
    if not 1 <= num < int(counts.min()):
        least = int(counts.argmin())
        raise InputError(
            f"num = {num} images of each person to train on: at least 1, and fewer than the {int(counts[least])} of "
            f"person {int(people[least])}. Ask for fewer, or leave such people out."
        )
    first = place_of(inverse, counts) < num
    return first.nonzero().flatten(), (~first).nonzero().flatten()


@typed
def random_images(identities: Tensor, num: int = 5, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split as `first_images` does, with ``num`` images of each person that are drawn."""
    order = torch.randperm(len(identities), generator=torch.Generator().manual_seed(torch_seed(seed)))
    train, test = first_images(identities[order], num)
    return order[train].sort().values, order[test].sort().values


@typed
def picture_disjoint(identities: Tensor, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """Split within each person, evenly in order: both parts show the same people on different pictures.

    Args:
        identities: int64 (N,).
        share: Share of a person's pictures in the first part, in (0, 1); each part gets at least one.

    Returns:
        Positions of both parts, int64, ascending.

    Raises:
        InputError: If somebody has a single picture.
    """
    _check_share(share)
    people, inverse, counts = identities.cpu().unique(return_inverse=True, return_counts=True)
    if int(counts.min()) < 2:
        alone = int(people[counts.argmin()])
        raise InputError(f"person {alone} has one picture: one to know and one to ask about are needed. Leave it out.")
    place = place_of(inverse, counts)
    first = ((place + 1) * share).floor() > (place * share).floor()  # evenly among a person's pictures
    taken = torch.zeros(len(people)).index_add_(0, inverse, first.float())
    first[(place == 0) & (taken[inverse] == 0)] = True
    first[(place == 0) & (taken[inverse] == counts[inverse])] = False
    return first.nonzero().flatten(), (~first).nonzero().flatten()


@typed
def person_disjoint(identities: Tensor, share: float = 0.5, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split by person: each person is in one part only.

    Returns:
        Positions of both parts, int64, ascending; the first has ``share`` of the people, rounded, at least one.

    Raises:
        InputError: If there are fewer than two people.
    """
    _check_share(share)
    people, inverse = identities.cpu().unique(return_inverse=True)
    if len(people) < 2:
        raise InputError("one person cannot be dealt to two parts. Give images of at least 2 people.")
    order = torch.randperm(len(people), generator=torch.Generator().manual_seed(torch_seed(seed)))
    chosen = order[: min(max(1, round(share * len(people))), len(people) - 1)]
    first = torch.isin(inverse, chosen)
    return first.nonzero().flatten(), (~first).nonzero().flatten()


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise InputError(f"share = {share} must lie in (0, 1).")
