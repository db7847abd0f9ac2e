"""Clipped sums of given records, in the unit of the gradient: for tests of what a step adds up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.privacy import DPSGDPlan
from idpgan.privacy.captured_gradients import NotCapturedError
from idpgan.privacy.tiles import Tiles, Way, tiled


@dataclass(frozen=True)
class Clipped:
    """A `ClippedSum` of B records in the unit of the gradient, and the way on which it was found."""

    sums: dict[str, Tensor]
    losses: Tensor
    norms: Tensor
    way: Way


def clipped(
    plan: DPSGDPlan,
    loss: Any,
    weights: Any,
    records: Sequence[Tensor],
    *,
    physical_batch: int = 64,
    null: Tensor | None = None,
    way: Way = "capture",
) -> Clipped:
    """Sum records in tiles of so many rows; where a loss cannot be captured, by vmap."""
    try:
        found = plan.clipped_sum(loss, weights, tiled(records, physical_batch, null), Tiles.fixed(physical_batch, way))
    except NotCapturedError:
        way = "vmap"
        found = plan.clipped_sum(loss, weights, tiled(records, physical_batch, null), Tiles.fixed(physical_batch, way))
    assert all(bool((total == total.trunc()).all()) for total in found.sums.values())
    sums, num = {name: total * plan.step for name, total in found.sums.items()}, len(records[0])
    return Clipped(sums, found.losses[:num], found.norms[:num], way)


def flat(sums: dict[str, Tensor]) -> Tensor:
    """Return all numbers of a sum, float64 (P,)."""
    return torch.cat([part.flatten() for part in sums.values()]).double()
