"""Membership of a person: all images of one person are judged as one set."""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError


@typed
def closeness(scores: Tensor) -> Tensor:
    """Return minus the logarithm of squared distances, given as scores (n,) at most 0; a distance of 0 stays finite.

    One copied image among many of a person raises the mean of logarithms a lot, and that of distances little.
    """
    distances = -scores.double()
    return -(distances + 1e-3 * distances.median().clamp(min=1e-12)).log().float()


@typed
def mean_of_people(scores: Tensor, people: Tensor) -> Tensor:
    """Return the mean score of each person, (P,), in the order in which people first appear in ``people`` (n,).

    Raises:
        InputError: If there is not one person per score.
    """
    if scores.ndim != 1 or people.shape != scores.shape:
        raise InputError(f"{tuple(scores.shape)} scores need as many people, got {tuple(people.shape)}.")
    numbers = {person: place for place, person in enumerate(dict.fromkeys(people.tolist()))}
    index = torch.tensor([numbers[person] for person in people.tolist()])
    total = torch.zeros(len(numbers), dtype=torch.float64).index_add_(0, index, scores.double().cpu())
    return (total / torch.bincount(index, minlength=len(numbers))).float()
