"""Checks of what callers of the public functions hand in: one line that names argument, wanted and given type."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idpgan.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def whole(value: Any, name: str, least: int = 0, most: int | None = None) -> int:
    """Return a whole number in [least, most], or refuse it; True, 1.0 and "1" are none.

    Raises:
        InputError: Naming the argument.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InputError(f"{name} must be a whole number, got {described(value)}.")
    number = int(value)
    if number < least or (most is not None and number > most):
        limit = f"at least {least}" if most is None else f"in [{least}, {most}]"
        raise InputError(f"{name} = {number} must be {limit}.")
    return number


def real(value: Any, name: str, low: float, high: float, *, open_ends: bool = False) -> float:
    """Return a number in [low, high] (or strictly between them), or refuse it; NaN, True and "1" are none.

    Raises:
        InputError: Naming the argument.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{name} must be a number, got {described(value)}.")
    number = float(value)
    inside = low < number < high if open_ends else low <= number <= high
    if math.isnan(number) or not inside:
        limit = f"({low:g}, {high:g})" if open_ends else f"[{low:g}, {high:g}]"
        raise InputError(f"{name} = {number:g} must be in {limit}.")
    return number


def one_of(value: Any, name: str, options: Iterable[str]) -> str:
    """Return one of some words, or refuse the value."""
    known = list(options)
    if not isinstance(value, str) or value not in known:
        shown = repr(value) if isinstance(value, str) else described(value)
        raise InputError(f"{name} must be one of {', '.join(known)}, got {shown}.")
    return value


def tensor(value: Any, name: str, dimensions: str = "") -> Tensor:
    """Return a tensor of numbers: a tensor as it is, a NumPy array converted whatever its byte order and strides.

    Args:
        value: What was handed in.
        name: Of the argument.
        dimensions: Its shape in words, such as "(N, C, H, W)"; the number of commas is checked. Empty: any.

    Raises:
        InputError: If it is neither, or holds something else than numbers.
    """
    import numpy as np
    import torch

    wanted = f"a tensor or a NumPy array of numbers{f' of the shape {dimensions}' if dimensions else ''}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        native = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        try:
            value = torch.from_numpy(native.copy() if not native.flags.writeable else native)
        except TypeError as error:  # of a kind that torch lacks, such as long double
            raise InputError(f"{name} must be {wanted}, got {described(value)}.") from error
    if not isinstance(value, torch.Tensor) or value.is_complex() or value.layout is not torch.strided:
        raise InputError(f"{name} must be {wanted}, got {described(value)}.")
    if dimensions and value.ndim != len([part for part in dimensions.strip("()").split(",") if part.strip()]):
        raise InputError(f"{name} must have the shape {dimensions}, got {tuple(value.shape)}.")
    return value


def path(value: Any, name: str) -> Path:
    """Return the name of a file or folder as a path, or refuse it."""
    if not isinstance(value, str | os.PathLike) or "\0" in os.fspath(value):
        raise InputError(f"{name} must be the name of a file or folder, got {described(value)}.")
    return Path(value)


def instance(value: Any, name: str, kind: type) -> None:
    """Refuse what is not of a kind."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be of the type {kind.__name__}, got {described(value)}.")


def described(value: Any) -> str:
    """Describe a refused value by its type, and its content where that is short."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"{type(value).__name__} of {value.dtype} {tuple(shape)}"
    text = repr(value) if isinstance(value, bool | int | float | str | bytes | None) else ""
    return f"{type(value).__name__} {text}".strip() if len(text) <= 40 else type(value).__name__
