"""Running counts of a growing collection, released after every step: the weighted Fenwick tree and its competitors.

`ContinualCounter` releases counts, and `SumsStream` sums of vectors. `fast_diagonal` is the optimization behind the
counts. Names are loaded on first use, so that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.continual.fenwick import fast_diagonal as fast_diagonal
    from idpgan.continual.refinement import isotonic as isotonic
    from idpgan.continual.running_sums import RunningSums as RunningSums
    from idpgan.continual.running_sums import SumsStream as SumsStream
    from idpgan.continual.stream import ContinualCounter as ContinualCounter

__getattr__ = lazy_names(
    __name__,
    {
        "ContinualCounter": "stream",
        "RunningSums": "running_sums",
        "SumsStream": "running_sums",
        "fast_diagonal": "fenwick",
        "isotonic": "refinement",
    },
)
