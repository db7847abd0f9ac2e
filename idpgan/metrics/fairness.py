"""How fairly binary decisions treat two groups.

Edwards and Storkey, "Censoring representations with an adversary" (ICLR 2016), arXiv:1511.05897, after Zemel et al.,
"Learning fair representations" (ICML 2013): decisions are fair if ``P(decided 1 | S = 1) = P(decided 1 | S = 0)``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError


@dataclasses.dataclass(frozen=True)
class Fairness:
    """What decisions are worth, and how much they depend on the group. Curator only where the data are private.

    Attributes:
        accuracy: Share of decisions that are right, in [0, 1].
        discrimination: |P(decided 1 | S = 1) - P(decided 1 | S = 0)|, in [0, 1]; 0 is fair (statistical parity).
    """

    accuracy: float
    discrimination: float

    @property
    def delta(self) -> float:
        """Accuracy less discrimination, in [-1, 1]: what the paper chooses models by."""
        return self.accuracy - self.discrimination

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**dataclasses.asdict(self), "delta": self.delta}


@typed
def measure_fairness(decided: Tensor, truth: Tensor, groups: Tensor) -> Fairness:
    """Compare decisions about two groups.

    Args:
        decided: int64 (N,), 0 or 1.
        truth: int64 (N,), 0 or 1: the right decisions.
        groups: int64 (N,), 0 or 1: the sensitive S; both occur.

    Raises:
        InputError: If shapes, types or values differ from these, or a group is empty.

    Example:
        >>> decided, groups = torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 1, 1])
        >>> measure_fairness(decided, decided, groups).to_json()
        {'accuracy': 1.0, 'discrimination': 0.5, 'delta': 0.5}
    """
    for name, values in (("decided", decided), ("truth", truth), ("groups", groups)):
        if values.dtype != torch.int64 or values.ndim != 1 or values.shape != groups.shape or len(values) == 0:
            found = f"{values.dtype} {tuple(values.shape)}"
            raise InputError(f"decided, truth and groups must be int64 of one shape (N,), N >= 1; {name} is {found}.")
        if int(values.min()) < 0 or int(values.max()) > 1:
            raise InputError(f"{name} must hold 0 and 1, found {int(values.min())} to {int(values.max())}.")
    sizes = torch.bincount(groups, minlength=2)
    if int(sizes.min()) == 0:
        raise InputError("groups holds one group only: there is nobody to be treated differently. Give both.")
    rates = [float(decided[groups == group].double().mean()) for group in (0, 1)]
    return Fairness(float((decided == truth).double().mean()), abs(rates[1] - rates[0]))
