"""Metrics of generated images: pure functions on tensors, independent of any method.

All numbers of this package are computed with real, private images: they stay with the curator, and no epsilon covers
them. The names below are loaded on first use, so that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names

if TYPE_CHECKING:
    from idpgan.metrics.evaluation import evaluate_images as evaluate_images
    from idpgan.metrics.inception import inception_score as inception_score
    from idpgan.metrics.utility import measure_utility as measure_utility

__getattr__ = lazy_names(
    __name__,
    {
        "evaluate_images": "evaluation",
        "inception_score": "inception",
        "measure_utility": "utility",
    },
)
