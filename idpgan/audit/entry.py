"""Requests for audits, and entries, by which a method makes its case. This module imports nothing heavy.

A *request* says what to audit: an epsilon and optional choices. An *entry* turns it into a *case*
(`idpgan.audit.cases`), one game to play; for a run it also needs the config and public facts, but no image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idpgan.errors import InputError
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, check_budget

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.data.load import DataShape
    from idpgan.models.perturbed import ImageShape

USUAL_RUNS = 100_000  # of a case, per side


@dataclass(frozen=True)
class Request:
    """What to audit; None = the method's default.

    Attributes:
        epsilon: The epsilon requested from the method, > 0.
        unit: What one neighbor changes.
        pair: A name of `neighbors.PAIRS`.
        law: Of the noise.
        draw: When noise is drawn.
    """

    epsilon: float
    delta: float | None = None
    unit: Unit | None = None
    relation: Relation | None = None
    pair: str | None = None
    law: str | None = None
    draw: str | None = None


@dataclass(frozen=True)
class RunFacts:
    """The public facts of a run, and the file that its `prepare` released.

    Attributes:
        image_shape: (C, H, W).
        num_private: N.
        delta: The delta at which the run states its epsilon.
        claimed: The claim of its release; None if it has no claim, or is not written yet.
        prepared: state/prepared.safetensors. It holds only noisy values, which were charged when they were written.
    """

    image_shape: ImageShape
    num_classes: int
    num_private: int
    delta: float
    claimed: Guarantee | None
    prepared: Path

    @property
    def shape(self) -> DataShape:
        """What is public about the private images; no other part is known."""
        from idpgan.data.load import DataShape, Sizes

        classes = tuple(map(str, range(self.num_classes)))
        return DataShape(Sizes(0, self.num_private, 0, 0), self.image_shape, classes)

    def prepared_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that `prepare` released.

        Raises:
            InputError: If nothing has been released yet, or the file is damaged.
        """
        return tuple(self.prepared_tensor(name).shape)

    def prepared_tensor(self, name: str) -> Tensor:
        """Return a tensor that `prepare` released; raise as `prepared_shape`."""
        from safetensors import SafetensorError, safe_open

        if not self.prepared.is_file():
            raise InputError(f"{self.prepared} is missing: the run has released nothing yet. Let it start training.")
        try:
            with safe_open(self.prepared, framework="pt") as tensors:
                tensor: Tensor = tensors.get_tensor(name)
        except SafetensorError as error:
            raise InputError(f"{self.prepared} is damaged ({error}). Restore it from a copy.") from error
        return tensor


@dataclass(frozen=True)
class Entry:
    """How to make a case by name.

    Attributes:
        build: Makes the case, an `idpgan.audit.cases.AuditCase`, from a request with all defaults filled in.
        units: Possible units, the default first; empty = any.
        relations: Possible relations, the default first; empty = any.
        delta: Default.
        options: Further fields of `Request` that the method accepts, with their possible values, the default first.
        pure: Values of ``law`` for which the default delta is 0.
        of_run: Makes the case of what a run has released, from its config and the public facts of its data; None for
            what is not a run.
    """

    build: Callable[[Request], Any]
    units: tuple[Unit, ...] = ()
    relations: tuple[Relation, ...] = ()
    delta: float = 0.0
    options: Mapping[str, tuple[str, ...]] | None = None
    pure: tuple[str, ...] = ()
    of_run: Callable[[Any, RunFacts], Any] | None = None

    def case(self, name: str, request: Request) -> Any:
        """Fill in defaults and make the case.

        Raises:
            InputError: If the request holds an option or value that the method does not accept.
        """
        for what, value in (("epsilon", request.epsilon), ("delta", request.delta)):
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise InputError(f"{what} = {value!r} must be a number.")
        check_budget(request.epsilon, request.delta or 0.0)
        if math.isinf(request.epsilon):
            raise InputError("--epsilon inf asks for no protection; there is nothing to audit.")
        chosen: dict[str, Any] = {
            "epsilon": request.epsilon,
            "unit": _pick(name, "unit", request.unit, self.units or tuple(Unit)),
            "relation": _pick(name, "relation", request.relation, self.relations or tuple(Relation)),
        }
        options = self.options or {}
        for field in ("pair", "law", "draw"):
            value = getattr(request, field)
            if field in options:
                chosen[field] = _pick(name, field, value, options[field])
            elif value is not None:
                raise InputError(f"'{name}' has no choice of {field}; leave {value} out.")
        default = 0.0 if chosen.get("law") in self.pure else self.delta
        return self.build(Request(**chosen, delta=default if request.delta is None else request.delta))


def _pick(name: str, what: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value is None:
        return known[0]
    if value not in known:
        raise InputError(f"'{name}' has no {what} {value}; known: {', '.join(known)}.")
    return value
