"""A limit on what is ever spent on the images of a folder: it stands on the folder's ledger, which asks it.

A limit is the curator's rule for whoever works with the images: it stops mistakes. Whoever can write the ledger can
write another limit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from idpgan.data.image_files import LEDGER
from idpgan.errors import InputError
from idpgan.files import pasted
from idpgan.privacy import totals
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, check_budget, parse_unit
from idpgan.privacy.totals import Part

_ROUNDING = 1e-9  # relative: prices that add up to the limit on paper may exceed it in the last digits
_SHARES = range(1, 9)  # of delta: what group privacy carries over adds deltas of its own


class LimitError(InputError):
    """A charge that a limit leaves no room for."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """At most epsilon at delta for one unit, zero-out-one: what holds for replace-one holds for it.

    Attributes:
        epsilon: Finite, above 0.
        delta: In [0, 1).
        date: Day and time when it was set, ISO 8601.
        reason: Why it was raised; "" for one that was not.
    """

    epsilon: float
    delta: float
    unit: Unit
    date: str
    reason: str = ""

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        if not math.isfinite(self.epsilon):
            raise InputError("a limit is a finite epsilon.")

    @property
    def guarantee(self) -> Guarantee:
        """What it promises of everything together."""
        return Guarantee(self.epsilon, self.delta, self.unit, Relation.ZERO_OUT, "a limit")

    def allows(self, later: Limit) -> bool:
        """Whether another limit is no looser."""
        return later.unit is self.unit and later.epsilon <= self.epsilon and later.delta <= self.delta

    def cost(self, parts: Sequence[Part]) -> Guarantee:
        """Return what the parts of one history cost the unit: infinite where one bounds nothing of it.

        It is stated at the limit's delta, or below where charges that group privacy carries over bring their own.
        """
        for share in _SHARES:
            cost = totals.total([parts], self.unit, Relation.ZERO_OUT, delta=self.delta / share).whole
            if cost.delta <= self.delta:
                return cost
        return dataclasses.replace(cost, epsilon=math.inf, delta=0.0)

    def refuse_beyond(self, before: Sequence[Part], charges: Sequence[Part], ledger: Path) -> None:
        """Refuse charges with which a history would cost more; ``ledger`` is the one that the limit stands on.

        Raises:
            LimitError: Naming what was spent, what is asked, and the limit.
        """
        after = self.cost([*before, *charges])
        if after.epsilon <= self.epsilon * (1 + _ROUNDING):
            return
        words, folder = " and ".join(str(part.proven) for part in charges), ledger.name.removesuffix(LEDGER)
        raise LimitError(
            f"the limit on {ledger}, {self.guarantee}, leaves no room: spent is {_words(self.cost(before))}, asked "
            f"{words}, together {_words(after)}. Nothing was read or charged. Ask for less, or raise the limit: idpgan "
            f"ledger {pasted(ledger.with_name(folder))} --limit EPSILON --reason TEXT."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {**vars(self), "unit": str(self.unit)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`; raises all sorts of errors on anything else."""
        kinds = {"epsilon": float, "delta": float, "unit": str, "date": str, "reason": str}
        if set(data) != set(kinds) or any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise TypeError("a limit has other entries")
        return cls(**{**data, "unit": parse_unit(data["unit"])})


def _words(cost: Guarantee) -> str:
    """Say what was spent; infinite is also what bounds nothing of the unit."""
    return f"epsilon = {cost.epsilon:.4g}" if cost.finite else f"infinite or of units that bound no {cost.unit}"
