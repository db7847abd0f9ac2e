"""Isotonic refinement of a finished series of counts, which never decrease."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from idpgan.host import own_state


@own_state()
def isotonic(answers: Any, *, nonnegative: bool = True, weights: Tensor | None = None) -> Tensor:
    """Return the nearest non-decreasing series, for counts that never decrease.

    Least squares (pool adjacent violators). Every number of the result depends on the whole series, so apply the
    function to a finished series.

    Args:
        answers: Noisy running counts (..., T).
        nonnegative: Whether to raise numbers below 0 to 0, which keeps the order.
        weights: (T,), positive: 1 / `ContinualCounter.variance`; None = equal.

    Returns:
        float64 (..., T), on the device of ``answers``.

    Example:
        >>> isotonic([-3, 10, 14, 9]).tolist()
        [0.0, 10.0, 11.5, 11.5]
    """
    from scipy.optimize import isotonic_regression  # half a second to import

    answers = torch.as_tensor(answers)
    rows = answers.double().cpu().reshape(-1, answers.shape[-1]).numpy()
    weight = None if weights is None else weights.double().cpu().numpy()
    fitted = np.stack([isotonic_regression(row, weights=weight).x for row in rows])
    result = torch.from_numpy(fitted).reshape(answers.shape).to(answers.device)
    return result.clamp_(min=0) if nonnegative else result
