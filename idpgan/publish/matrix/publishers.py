"""What the six published algorithms are asked for, and what they are charged: an unprotected read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from idpgan.audit.statistics import Maker, Nearness, NoiseScale, OutputRank
from idpgan.errors import InputError
from idpgan.methods import METHODS
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.noise import Noise
from idpgan.publish.matrix import algorithms, audits
from idpgan.publish.matrix.audits import CLAIM, RowSpace, column_space
from idpgan.publish.plan import Options, Plan, Publisher, Shape

Algorithm = Callable[[Tensor, float, Any, Noise], Tensor]


def black_images(images: Tensor) -> tuple[str, ...]:
    """Say how many images get no noise because they are black."""
    black = int((images.flatten(1).amax(1) == 0).sum())
    if not black:
        return ()
    return (f"{black} of {len(images)} images are black and were released exactly, without any noise.",)


def _publisher(
    name: str,
    algorithm: Algorithm,
    options: type[Options],
    *makers: Maker,
    pair: str,
    shape: Shape = audits.SHAPE,
    fewer: Options | None = None,
) -> Publisher:
    """Return a publisher of the paper; ``algorithm`` maps images, epsilon, options and noise to what is released.

    ``makers``, ``pair`` and ``shape`` are of its audit, and so is ``fewer``: options for an audit where the usual ones
    take long and change nothing of what is attacked.
    """

    def plan(shape: Shape, unit: Unit, epsilon: float, delta: float, settings: Options) -> Plan:
        if delta > 0:
            raise InputError(f"delta = {delta}: '{name}' claims pure privacy; leave delta out.")
        event = Event.non_private(METHODS[name].reason, unit, Relation.REPLACE_ONE)
        return Plan((event,), lambda images, noise: algorithm(images, epsilon, settings, noise), CLAIM, black_images)

    audit = audits.entry(name, algorithm, fewer or options(), makers, pair=pair, shape=shape)
    return Publisher(options, plan, audit)


PUBLISHERS = {
    "lap-published": _publisher(
        "lap-published",
        algorithms.lap_published,
        Options,
        NoiseScale,
        Nearness,
        pair="brighter",
        shape=audits.SCALE_SHAPE,
    ),
    "lra": _publisher(
        "lra",
        algorithms.lra,
        algorithms.LraOptions,
        OutputRank,
        NoiseScale,
        pair="low-rank",
        fewer=algorithms.LraOptions(sweeps=10),
    ),
    "sra": _publisher(
        "sra", algorithms.sra, algorithms.SraOptions, column_space, RowSpace, OutputRank, pair="full-rank"
    ),
    "esra": _publisher(
        "esra", algorithms.esra, algorithms.EsraOptions, column_space, RowSpace, OutputRank, pair="full-rank"
    ),
    "lrm": _publisher(
        "lrm",
        algorithms.lrm,
        algorithms.LrmOptions,
        column_space,
        OutputRank,
        pair="full-rank",
        fewer=algorithms.LrmOptions(iterations=3),
    ),
    "mm": _publisher("mm", algorithms.mm, Options, column_space, OutputRank, pair="full-rank"),
}
