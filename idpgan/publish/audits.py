"""Audit cases of the publishers, through their own code, on small constructed images: data-free.

The published algorithms are attacked where they leak for certain: by the column space of the output (its singular
vectors, or its left factor, carry no noise), by its rank, or by the scale of the noise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from torch import Tensor

from idpgan.audit.cases import CASES, IMAGE_SHAPE, AuditCase, Entry, Request, guarantees
from idpgan.audit.neighbors import PAIRS
from idpgan.audit.statistics import Maker, Nearness, NoiseScale, OutputRank, Statistic, SubspaceDistance
from idpgan.privacy import DiscreteLaplace, Guarantee, Noise, Relation, Unit
from idpgan.publish.publisher import PUBLISHED
from idpgan.publish.sound import Law, calibrate_pixels

_SHAPE = (8, 6)  # more rows than columns, so that the column space is not everything
_SCALE_SHAPE = (28, 20)  # enough numbers to see the scale of their noise
_FEWER = {"lra": {"sweeps": 10}, "lrm": {"iterations": 3}}  # more of them change neither rank nor column space
_LAWS = {"discrete-laplace": "laplace", "rounded-gaussian": "gaussian"}


def _column_space(data: Tensor, neighbor: Tensor) -> Statistic:
    """Return the subspace test for the whole column space."""
    return SubspaceDistance(data, neighbor, rank=min(data.shape[-2:]))


class _RowSpace(SubspaceDistance):
    """The subspace test for the whole row space."""

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        super().__init__(data.mT, neighbor.mT, rank=min(data.shape[-2:]))
        self.name = "row " + self.name

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        return super().__call__(outputs.mT)


def published_case(name: str, makers: Sequence[Maker], shape: tuple[int, int], request: Request) -> AuditCase:
    """Return the case of one of the six published algorithms.

    Args:
        name: In `PUBLISHED`.
        makers: Statistics to choose from.
        shape: Of the image.
        request: What is claimed, and the neighbors.
    """
    publish, options = PUBLISHED[name]
    settings = options(**_FEWER.get(name, {}))
    pair = PAIRS[request.pair or "extremes"](shape, Unit.COLUMN)

    def release(values: Tensor, noise: Noise) -> Tensor:
        return publish(values, request.epsilon, settings, noise)

    terms = (Unit.COLUMN, Relation.REPLACE_ONE)
    claimed = Guarantee(request.epsilon, 0.0, *terms, "Zhang, Fu and Meng (2020), theorem 7")
    proven = Guarantee(float("inf"), 0.0, *terms, "nothing is proven")
    notes: tuple[str, ...] = (f"an image of {shape[0]} x {shape[1]} pixels",)
    if name in _FEWER:
        fewer = ", ".join(f"{value} {key}" for key, value in _FEWER[name].items())
        notes += (f"{fewer} instead of {options()}: what is attacked, rank and column space, is the same",)
    return AuditCase(name, pair, claimed, proven, release, tuple(makers), notes=notes)


def lap_case(request: Request) -> AuditCase:
    """Return the case of ``lap`` on an image of ORL's size; law "laplace" is the continuous one of `audit.cases`."""
    if request.law == "laplace":
        return CASES["lap"].build(request)
    unit, delta = request.unit or Unit.PIXEL, request.delta or 0.0
    law = cast(Law, _LAWS[request.law or "discrete-laplace"])
    lap = calibrate_pixels(IMAGE_SHAPE, unit, law, epsilon=request.epsilon, delta=delta)

    def exact(data: Tensor, neighbor: Tensor) -> Statistic:
        laplace = isinstance(lap.mechanism, DiscreteLaplace)
        statistic = Nearness(data, neighbor, order=1 if laplace else 2, unit=lap.scale if laplace else 2 * lap.scale**2)
        statistic.name = "exact log-likelihood ratio"
        return statistic

    pair = PAIRS[request.pair or "extremes"](IMAGE_SHAPE, unit)
    claimed, proven = guarantees(request, lap.event)
    notes = ("pixels that do not differ are independent of everything and were not simulated",)
    return AuditCase("lap", pair, claimed, proven, lap, (exact,), entrywise=True, notes=notes, events=(lap.event,))


def _published(name: str, *makers: Maker, pair: str, shape: tuple[int, int] = _SHAPE) -> Entry:
    pairs = (pair, *(other for other in PAIRS if other != pair))
    build = functools.partial(published_case, name, makers, shape)
    return Entry(build, (Unit.COLUMN,), (Relation.REPLACE_ONE,), options={"pair": pairs})


PUBLISHER_CASES: dict[str, Entry] = {
    "lap": Entry(
        lap_case,
        (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE),
        (Relation.REPLACE_ONE,),
        delta=1e-5,
        options={"pair": tuple(PAIRS), "law": ("discrete-laplace", "rounded-gaussian", "laplace")},
        pure=("discrete-laplace", "laplace"),
    ),
    "lap-published": _published("lap-published", NoiseScale, Nearness, pair="brighter", shape=_SCALE_SHAPE),
    "lra": _published("lra", OutputRank, NoiseScale, pair="low-rank"),
    "sra": _published("sra", _column_space, _RowSpace, OutputRank, pair="full-rank"),
    "esra": _published("esra", _column_space, _RowSpace, OutputRank, pair="full-rank"),
    "lrm": _published("lrm", _column_space, OutputRank, pair="full-rank"),
    "mm": _published("mm", _column_space, OutputRank, pair="full-rank"),
}
