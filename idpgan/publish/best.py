"""The meaning of ``--method best``: the publisher with the least error on drawn faces, by unit and epsilon.

The choice uses no private images, so it costs no privacy. The measure is the mean squared error of the clipped bytes,
at 112 x 92 and delta = 0; recognition of people is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from idpgan.errors import InputError

UNITS = ("pixel", "column", "image")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
# made by python benchmarks/best_publisher.py
_BEST: Mapping[str, Sequence[str]] = {
    "pixel": ["eigenfaces", "pix", "pix", "pix", "pix", "lap-shrink", "lap", "lap"],
    "column": ["dct", "dct", "eigenfaces", "eigenfaces", "eigenfaces", "eigenfaces", "pix", "pix"],
    "image": ["pix", "eigenfaces", "eigenfaces", "eigenfaces", "codebook", "codebook", "eigenfaces", "eigenfaces"],
}


def best_method(unit: str, epsilon: float) -> str:
    """Return the name of the best sound publisher for a unit, at the table's epsilon that is nearest by ratio.

    Raises:
        InputError: If the unit is not in the table, or epsilon is not positive and finite.
    """
    if unit not in _BEST:
        raise InputError(f"unit = '{unit}' is not known to method 'best'; known: {', '.join(_BEST)}.")
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon} must be positive and finite; small is strict, 1 is usual.")
    nearest = min(range(len(EPSILONS)), key=lambda index: abs(math.log(epsilon / EPSILONS[index])))
    return _BEST[unit][nearest]
