"""Running counts of a growing collection, released after every step: the weighted Fenwick tree.

`ContinualCounter` releases counts; `fast_diagonal` is the optimization behind them. Names are loaded on first use, so
that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names

if TYPE_CHECKING:
    from idpgan.continual.fenwick import fast_diagonal as fast_diagonal
    from idpgan.continual.fenwick import isotonic as isotonic
    from idpgan.continual.stream import ContinualCounter as ContinualCounter

__getattr__ = lazy_names(
    __name__,
    {
        "ContinualCounter": "stream",
        "fast_diagonal": "fenwick",
        "isotonic": "fenwick",
    },
)
