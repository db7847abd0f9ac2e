"""Options, audits and charges of the six published algorithms: each is charged as an unprotected read.

The audits attack a certain leak: the column space of the output (its singular vectors, or its left factor, carry no
noise), its rank, or the scale of the noise.
"""

from __future__ import annotations

from torch import Tensor

from idpgan.audit.statistics import Maker, Nearness, NoiseScale, OutputRank, Statistic, SubspaceDistance
from idpgan.privacy.guarantee import Unit
from idpgan.publish.audits import publisher_entry
from idpgan.publish.matrix import algorithms
from idpgan.publish.matrix.algorithms import EsraOptions, LraOptions, LrmOptions, SraOptions
from idpgan.publish.plan import Algorithm, Options, Publisher, Shape, as_published

_CLAIM = "Zhang, Fu and Meng (2020), theorem 7"
_SCALE_SHAPE = (28, 20)  # enough numbers to estimate the scale of their noise


def column_space(data: Tensor, neighbor: Tensor) -> Statistic:
    """Return the subspace test for the whole column space."""
    return SubspaceDistance(data, neighbor, rank=min(data.shape[-2:]))


class RowSpace(SubspaceDistance):
    """The subspace test for the whole row space."""

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        super().__init__(data.mT, neighbor.mT, rank=min(data.shape[-2:]))
        self.name = "row " + self.name

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return the scores (R,) of outputs (R, m, n)."""
        return super().__call__(outputs.mT)


def black_images(images: Tensor) -> tuple[str, ...]:
    """Return a note of how many images get no noise because they are black."""
    black = int((images.flatten(1).amax(1) == 0).sum())
    if not black:
        return ()
    return (f"{black} of {len(images)} images are black and were released exactly, without any noise.",)


def _publisher(
    name: str, algorithm: Algorithm, audited: Options, *makers: Maker, pair: str = "full-rank", shape: Shape = (8, 6)
) -> Publisher:
    """Return a publisher of the paper; ``audited`` are the options of its audit.

    These options differ from the defaults where the defaults take long and do not affect the attacked leak.
    """
    plan = as_published(name, algorithm, _CLAIM, black_images)
    audit = publisher_entry(name, plan, audited, *makers, units=(Unit.COLUMN,), pair=pair, shape=shape)
    return Publisher(type(audited), plan, audit)


_LAP = _publisher(
    "lap-published", algorithms.lap_published, Options(), NoiseScale, Nearness, pair="brighter", shape=_SCALE_SHAPE
)
_SPACES = (column_space, RowSpace, OutputRank)
PUBLISHERS = {
    "lap-published": _LAP,
    "lra": _publisher("lra", algorithms.lra, LraOptions(sweeps=10), OutputRank, NoiseScale, pair="low-rank"),
    "sra": _publisher("sra", algorithms.sra, SraOptions(), *_SPACES),
    "esra": _publisher("esra", algorithms.esra, EsraOptions(), *_SPACES),
    "lrm": _publisher("lrm", algorithms.lrm, LrmOptions(iterations=3), column_space, OutputRank),
    "mm": _publisher("mm", algorithms.mm, Options(), column_space, OutputRank),
}
