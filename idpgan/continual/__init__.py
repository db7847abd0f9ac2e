"""Running counts of a growing collection, released after every step: Fenwick tree, its best weights, and what competes.

`ContinualCounter` releases; `fast_diagonal` is the optimization behind it; `factorizations` compares mechanisms.
Names are loaded on first use, so that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.continual.fenwick import fast_diagonal
    from idpgan.continual.postprocess import isotonic
    from idpgan.continual.stream import ContinualCounter

__all__ = ["ContinualCounter", "fast_diagonal", "isotonic"]

__getattr__ = lazy_names(
    __name__, {"ContinualCounter": "stream", "fast_diagonal": "fenwick", "isotonic": "postprocess"}
)
