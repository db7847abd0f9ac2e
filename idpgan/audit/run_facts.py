"""What the case of a run's release is made from, besides its config: public facts, and no image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from idpgan.errors import InputError
from idpgan.models.perturbed import ImageShape
from idpgan.privacy.guarantee import Guarantee

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunFacts:
    """What is public about a run, and the file of what its `prepare` released.

    Attributes:
        image_shape: (C, H, W).
        num_private: N.
        delta: Where the run states its epsilon.
        claimed: What its release claims; None if it claims nothing, or is not written yet.
        prepared: state/prepared.safetensors. It holds noisy values only, which were charged as they were written.
    """

    image_shape: ImageShape
    num_classes: int
    num_private: int
    delta: float
    claimed: Guarantee | None
    prepared: Path

    def prepared_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that `prepare` released.

        Raises:
            InputError: If nothing is released yet, or the file is damaged.
        """
        return self._read(lambda tensors: tuple(tensors.get_slice(name).get_shape()))

    def prepared_tensor(self, name: str) -> Tensor:
        """Return a tensor that `prepare` released; raise as `prepared_shape`."""
        return self._read(lambda tensors: tensors.get_tensor(name))

    def _read(self, read: Callable[[Any], _T]) -> _T:
        if not self.prepared.is_file():
            raise InputError(f"{self.prepared} is missing: the run has released nothing yet. Let it start training.")
        try:
            with safe_open(self.prepared, framework="pt") as tensors:
                return read(tensors)
        except SafetensorError as error:
            raise InputError(f"{self.prepared} is damaged ({error}). Restore it from a copy.") from error
