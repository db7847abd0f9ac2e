"""What a participant uploads of its changes, and what that costs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.privacy import DiscreteLaplace, Event, Noise, Relation, SparseVector, Unit
from idpgan.privacy.collaborative import SharingScales, sharing_epsilon, sharing_scales

_STEPS = 1 << 16  # grid steps of the bound
_ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)


@dataclass(frozen=True)
class Sharing:
    """Selective upload of changes.

    Without noise: the largest c, or a random c of those above the threshold. With noise (Shokri and Shmatikov 2015,
    figure 12): changes are clipped to [-bound, bound] and rounded to a grid, and the parameters are dealt to c random
    blocks, whatever the data. In each block a sparse vector with a threshold of its own names the first |change| above
    it, and that change is uploaded with Laplace noise, clipped again. Blocks are ours (the paper goes on from one
    upload to the next in one list): at most c uploads at the same price, but c comparisons run at once.

    Formal guarantee (with noise): other images of the participant move each of its clipped changes by at most 2 bound,
    whatever the local training does, and its absolute value by less. So each block costs a `SparseVector` of one
    positive and a `DiscreteLaplace`, and the c blocks add up (`collaborative.sharing_epsilon`).

    Attributes:
        parameters: d.
        uploads: c <= d, at most so many a round.
        bound: gamma.
        threshold: tau.
        largest: How to choose without noise.
        epsilon: Of a round; None = no noise.
    """

    parameters: int
    uploads: int
    bound: float
    threshold: float
    largest: bool
    epsilon: float | None

    @functools.cached_property
    def scales(self) -> tuple[int, int, int]:
        """Scales of the noise in grid steps: threshold, comparison, value; those of the paper, rounded up."""
        if self.epsilon is None:
            raise ValueError("without an epsilon there is no noise.")
        paper = sharing_scales(self.epsilon * (1 - 2.0**-40), self.uploads, float(_STEPS))
        return math.ceil(paper.threshold), math.ceil(paper.comparison), math.ceil(paper.value)

    @property
    def event(self) -> Event | None:
        """The price of a round; None without noise."""
        if self.epsilon is None:
            return None
        scales = SharingScales(*map(float, self.scales))
        return Event("pure", *_ADJACENCY, pure_epsilon=sharing_epsilon(scales, self.uploads, float(_STEPS), 1))

    def select(self, change: Tensor, rng: torch.Generator) -> Tensor:
        """Return what is uploaded of changes (d,) without noise, the rest 0; ``rng`` makes the random choice."""
        size = change.abs()
        score = size if self.largest else torch.rand(len(size), generator=rng) * (size > self.threshold)
        chosen = score.topk(self.uploads).indices
        chosen = chosen[score[chosen] > 0]
        kept = torch.zeros_like(change)
        kept[chosen] = change[chosen].clamp(-self.bound, self.bound)
        return kept

    def release(self, changes: Tensor, noise: Noise) -> Tensor:
        """Return what is uploaded of changes (R, d), float, R independent participants: (R, d), the rest 0.

        A change that is not finite counts as 0, so that an answer is given whatever the images are.
        """
        finite = torch.where(changes.isfinite(), changes.double(), 0.0)
        steps = (finite.clamp(-self.bound, self.bound) / self.bound * _STEPS).round().long()
        threshold, comparison, value = self.scales
        rows, block = len(steps), -(-self.parameters // self.uploads)
        order = torch.stack([noise.uniform((self.parameters,)).argsort() for _ in range(rows)])
        places = torch.full((rows, self.uploads * block), -1)  # -1: a place that no parameter fills
        places[:, : self.parameters] = order
        places = places.reshape(rows, block, self.uploads).mT.reshape(rows * self.uploads, block)
        owner = torch.arange(rows).repeat_interleave(self.uploads)
        there = places >= 0
        sizes = torch.where(there, steps.abs()[owner[:, None], places.clamp(min=0)], 0)
        vector = SparseVector(2 * _STEPS, threshold, comparison, 1, *_ADJACENCY)
        above = vector(sizes, noise, round(self.threshold / self.bound * _STEPS)) == 1
        hit, first = (above & there).any(1), (above & there).long().argmax(1)
        named = places[torch.arange(len(places)), first]
        values = DiscreteLaplace(2 * _STEPS, value, *_ADJACENCY)(steps[owner, named.clamp(min=0)], noise)
        released = values.clamp(-_STEPS, _STEPS).double() / _STEPS * self.bound
        found = torch.zeros(changes.shape, dtype=torch.float64)
        found[owner[hit], named[hit]] = released[hit]
        return found.to(changes.dtype)
