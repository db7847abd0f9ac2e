"""Candidates of every class, and how noisy votes turn them into those of the next iteration: post-processing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from idpgan.errors import ConfigError
from idpgan.models.simulators import OwnSimulator, PhotoSimulator, Simulator

_DRAWN_AT_ONCE = 4096  # vectors, of which those with the look of a class are taken
_MOST_TRIES = 500
_KEPT = 0.5  # at most this share of the candidates survives unchanged; the others make room for children


def first_candidates(
    simulator: Simulator,
    num: int,
    classes: Sequence[str],
    looks: Mapping[str, str],
    labels: Tensor | None,
    rng: torch.Generator,
) -> Tensor:
    """Draw the candidates of the first iteration, (rows, num, numbers).

    A class whose look the simulator knows begins with images of it, any other with all kinds of images; a simulator of
    the user is told the class.

    Args:
        classes: Names of the rows; empty for one row of any images.
        looks: Class -> look, of those that have one.
        labels: Labels of the photos of a `PhotoSimulator`, with which their class begins; or None.

    Raises:
        ConfigError: If there is no image of a class.
    """
    if isinstance(simulator, OwnSimulator):
        return torch.stack([simulator.start(num, row, rng) for row in range(max(len(classes), 1))])
    if isinstance(simulator, PhotoSimulator) and labels is not None and classes:
        return torch.stack([_photos(simulator, num, torch.nonzero(labels == row)[:, 0], name, rng)
                            for row, name in enumerate(classes)])  # fmt: skip
    return torch.stack([_of_look(simulator, num, looks.get(name), rng) for name in classes or ("",)])


def _photos(simulator: PhotoSimulator, num: int, index: Tensor, name: str, rng: torch.Generator) -> Tensor:
    if not len(index):
        raise ConfigError(f"the public images hold none of class '{name}'. Add some, or leave their labels out.")
    z = torch.randn(num, simulator.numbers, generator=rng)
    order = index[torch.randperm(len(index), generator=rng)]
    z[:, 0] = simulator.choosing(order[torch.arange(num) % len(order)])
    return z


def _of_look(simulator: Simulator, num: int, look: str | None, rng: torch.Generator) -> Tensor:
    if look is None:
        return torch.randn(num, simulator.numbers, generator=rng)
    found, total = [], 0
    for _ in range(_MOST_TRIES):
        z = torch.randn(_DRAWN_AT_ONCE, simulator.numbers, generator=rng)
        z = z[simulator.has_look(z, look)]
        found.append(z)
        total += len(z)
        if total >= num:
            return torch.cat(found)[:num]
    raise ConfigError(f"the simulator draws hardly any image that is '{look}'. Give the class another name.")


def thresholded(counts: Tensor, threshold: float) -> Tensor:
    """Return noisy counts (rows, M) with those below the threshold set to 0; rows that are then all 0 become uniform.

    Most counts of empty candidates fall below a threshold of some standard deviations of the noise; what passes is the
    count itself, as in Lin et al. 2024, Algorithm 2.
    """
    kept = torch.where(counts >= threshold, counts, 0.0).clamp(min=0)
    return torch.where(kept.sum(1, keepdim=True) > 0, kept, torch.ones_like(kept))


def next_candidates(
    simulator: Simulator, members: Tensor, counts: Tensor, strength: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Keep the candidates with the most votes, and fill up with their children.

    Args:
        members: (M, numbers) of one class.
        counts: (M,) at least 0, some above.
        strength: Of the children's variation.

    Returns:
        The new candidates (M, numbers), and where each was among the old ones, (M,); -1 for children.
    """
    num = len(members)
    order = counts.argsort(descending=True, stable=True)
    kept = order[: min(int((counts > 0).sum()), int(_KEPT * num))]
    parents = _parents(counts, num - len(kept), rng)
    fresh = torch.randn(len(parents), members.shape[1], generator=rng)
    children = simulator.vary(members[parents], fresh, strength)
    origin = torch.cat([kept, torch.full((len(children),), -1)])
    return torch.cat([members[kept], children]), origin


def _parents(counts: Tensor, num: int, rng: torch.Generator) -> Tensor:
    """Return members in their order, each as often as its share says, rounded up or down by one common coin, (num,)."""
    heights = counts.double().cumsum(0)
    places = (torch.arange(num) + torch.rand((), generator=rng, dtype=torch.float64)) / max(num, 1) * heights[-1]
    return torch.searchsorted(heights, places, right=True).clamp(max=len(counts) - 1)
