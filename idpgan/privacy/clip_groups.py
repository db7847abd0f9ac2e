"""Groups of weights whose gradients are clipped by themselves, each to a public bound, and priced as one vector.

Zhang, Ji, Wang (2018), "Differentially private releasing via deep generative model", arXiv:1801.01594, section 4:
weights whose gradients are of one size on public images are clipped together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from idpgan.errors import InputError

CLIP_NORMS = 1e-6, 1e6  # where part 2 of the proof of `idpgan.privacy.dpsgd` holds in float32


@dataclass(frozen=True)
class ClipGroups:
    r"""Which weights are clipped together, and to what.

    Sensitivity, L2, zero-out-one: a record's gradient in group k has norm at most b_k. Divided by ``b_k sqrt(G) / C``
    the G groups together are one vector of norm at most C, so that one Gaussian release of sensitivity C prices all of
    them: noise of standard deviation ``sigma sqrt(G) b_k`` on every number of group k has the multiplier sigma.

    Attributes:
        names: Of the weights of each group; every weight is in exactly one.
        bounds: b_k, in the unit of the gradient: constants, or computed from public images and released weights alone.
    """

    names: tuple[tuple[str, ...], ...]
    bounds: tuple[float, ...]

    def __post_init__(self) -> None:
        least, most = CLIP_NORMS
        if len(self.names) != len(self.bounds) or not all(least <= bound <= most for bound in self.bounds):
            raise InputError(f"each of {len(self.names)} groups needs a bound in {least:g} .. {most:g}: {self.bounds}.")

    @property
    def apart(self) -> ClipGroups:
        """Every weight a group of its own, with the bound that it had with others: what the paper's code clips."""
        pairs = [(name, bound) for own, bound in zip(self.names, self.bounds, strict=True) for name in own]
        return ClipGroups(tuple((name,) for name, _ in pairs), tuple(bound for _, bound in pairs))

    def places(self, weights: Iterable[str]) -> list[list[int]]:
        """Return the positions of each group's weights among these, which may be some of all.

        Raises:
            ValueError: If a weight is in no group, or in two.
        """
        order = {name: place for place, name in enumerate(weights)}
        every = [name for own in self.names for name in own]
        if not {*order} <= {*every} or len(every) != len({*every}):
            raise ValueError("every weight is in exactly one group.")
        return [[order[name] for name in own if name in order] for own in self.names]

    def stretch(self, weight: str, clip_norm: float) -> float:
        """Return ``b_k sqrt(G) / C`` of a weight: how much longer its gradient is than its share of the vector."""
        place = next(place for place, own in enumerate(self.names) if weight in own)
        return self.bounds[place] * math.sqrt(len(self.bounds)) / clip_norm


def group_by_norm(lengths: Mapping[str, float], count: int) -> ClipGroups:
    """Merge weights of like norm until ``count`` groups are left, as the code of Zhang, Ji and Wang does.

    The two groups come together whose bounds have the smallest ratio; the bound of both is the root of the sum of
    squares. A weight without a gradient (the last bias of a Wasserstein critic, which cancels) fits any group.

    Args:
        lengths: Of each weight's gradient, >= 0; lifted to the least possible bound.
        count: At least 1, at most the number of weights.
    """
    least, most = CLIP_NORMS
    groups: dict[tuple[str, ...], float] = {(name,): min(max(length, least), most) for name, length in lengths.items()}

    def ratio(pair: tuple[tuple[str, ...], ...]) -> float:
        one, other = sorted(groups[names] for names in pair)
        return other / one if one > least else 1.0

    while len(groups) > count:
        one, other = min(combinations(groups, 2), key=ratio)
        groups[one + other] = min(math.hypot(groups.pop(one), groups.pop(other)), most)
    return ClipGroups(tuple(groups), tuple(groups.values()))
