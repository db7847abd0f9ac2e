"""How one budget is split between the releases of a method: shares of the squared signal, which add up to 1.

Gaussian releases of noise multipliers ``m / sqrt(s_i)`` together are as private as one of m if the shares s_i add up to
1 (Dong, Roth and Su, "Gaussian differential privacy", 2022, corollary 3.3), and T releases of ``m sqrt(T / s)`` as one
of ``m / sqrt(s)``. Steps that draw each record by a coin of chance q take ``1 / sqrt(ln(1 + s / (q^2 T m^2)))``, which
in the limit of many steps is as private (Bu, Dong, Long and Su, "Deep learning with Gaussian differential privacy",
2020, theorem 5). The ledger charges the events, not this rule, and m is the least with which all of them together stay
within (epsilon, delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Shares:
    """Shares of the squared signal; what is left is that of the sums.

    Attributes:
        template: Of all rounds of the template that images are registered to.
        teacher: Of the steps of the classifier that chooses among what is drawn.
        steps: Of all steps of DP-SGD on the network that is released.
    """

    template: float = 0.0
    teacher: float = 0.0
    steps: float = 0.0

    @property
    def sums(self) -> float:
        """The share of the sums."""
        return 1 - self.teacher - (self.template + self.steps)


def noise_on(share: float, multiplier: float, count: int = 1, rate: float = 1.0) -> float:
    """Return the noise multiplier of each of so many equal releases on a share of the budget.

    Args:
        share: s in (0, 1], of all of them together.
        multiplier: m, of everything together.
        count: T.
        rate: q, the chance of each record to be in a release.
    """
    if rate == 1:
        return multiplier * math.sqrt(count / share)
    return 1 / math.sqrt(math.log1p(share / (rate**2 * count * multiplier**2)))
