"""Audit cases of the published algorithms, through their own code, on small constructed images: data-free.

They are attacked where they leak for certain: by the column space of the output (its singular vectors, or its left
factor, carry no noise), by its rank, or by the scale of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import PAIRS
from idpgan.audit.statistics import Maker, Statistic, SubspaceDistance
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.publish.plan import Options, Shape

CLAIM = "Zhang, Fu and Meng (2020), theorem 7"
SHAPE = (8, 6)  # more rows than columns, so that the column space is not everything
SCALE_SHAPE = (28, 20)  # enough numbers to see the scale of their noise


def column_space(data: Tensor, neighbor: Tensor) -> Statistic:
    """Return the subspace test for the whole column space."""
    return SubspaceDistance(data, neighbor, rank=min(data.shape[-2:]))


class RowSpace(SubspaceDistance):
    """The subspace test for the whole row space."""

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        super().__init__(data.mT, neighbor.mT, rank=min(data.shape[-2:]))
        self.name = "row " + self.name

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        return super().__call__(outputs.mT)


def entry(
    name: str,
    algorithm: Callable[[Tensor, float, Any, Noise], Tensor],
    settings: Options,
    makers: Sequence[Maker],
    *,
    pair: str,
    shape: Shape,
) -> Entry:
    """Return the entry of a published algorithm, which maps images, epsilon, options and noise to what is released.

    ``settings`` are its options, ``pair`` names the neighbors where none are asked for.
    """

    def build(request: Request) -> AuditCase:
        def release(values: Tensor, noise: Noise) -> Tensor:
            return algorithm(values, request.epsilon, settings, noise)

        adjacency = (Unit.COLUMN, Relation.REPLACE_ONE)
        claimed = Guarantee(request.epsilon, 0.0, *adjacency, CLAIM)
        proven = Guarantee(float("inf"), 0.0, *adjacency, "nothing is proven")
        notes: tuple[str, ...] = (f"an image of {shape[0]} x {shape[1]} pixels",)
        if settings != type(settings)():
            fewer = ", ".join(f"{key} = {value}" for key, value in settings.model_dump(exclude_defaults=True).items())
            notes += (f"{fewer} instead of the default: what is attacked, rank and column space, is the same",)
        neighbors = PAIRS[request.pair or pair](shape, Unit.COLUMN)
        return AuditCase(name, neighbors, claimed, proven, release, tuple(makers), notes=notes)

    pairs = (pair, *(other for other in PAIRS if other != pair))
    return Entry(build, (Unit.COLUMN,), (Relation.REPLACE_ONE,), options={"pair": pairs})
