"""The public doors: names that are loaded on first use, and checks of the arguments of what is exported.

Each refusal is one line that names argument, wanted and given type.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import importlib
import inspect
import math
import numbers
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.removed import gone


def public(module: str, name: str) -> Any:
    """Return what a module defines as a user may call it: a function with its checks."""
    value = getattr(importlib.import_module(module), name)
    return _checked(value) if inspect.isfunction(value) else value


@functools.cache
def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    return typed(function)


def lazy_names(package: str, modules: Mapping[str, str], *, checked: bool = True) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, and let ``dir`` list the names.

    ``modules`` maps a public name to its module: of the package, or of another room by its full name. ``checked`` says
    whether functions get their checks (`public`): those that loops of ours call have none.
    """

    def import_name(name: str) -> Any:
        if line := gone(f"{package}.{name}"):
            raise ImportError(line)  # in place of an AttributeError ``from package import name`` says a line of its own
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules[name] if "." in modules[name] else f"{package}.{modules[name]}"
        return public(module, name) if checked else getattr(importlib.import_module(module), name)

    namespace = vars(sys.modules[package])
    namespace["__dir__"] = lambda: sorted({*namespace, *modules})
    return import_name


P = ParamSpec("P")
R = TypeVar("R")
_MOST = (1 << 63) - 1  # whole numbers beyond 64 bits are not counts
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_TENSOR = "a tensor or a NumPy array of numbers"


class _UnfitError(Exception):
    """A value that an annotation does not admit."""


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Check a public function's arguments by its own annotations: what they do not admit is an `InputError`.

    `public` does so for every function that a room exports; methods of exported classes have it as a decorator.

    Strict as the config is: True, "1" and NaN are not numbers, 1.0 is not a whole number. Accepted are also
    NumPy arrays for tensors, NumPy's numbers, the names of units and relations, and texts for paths. What the host has
    set does not reach the function (`own_state`).
    """
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return typing.get_type_hints(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        with own_state():
            for name, value in bound.arguments.items():
                if name in hints() and signature.parameters[name].kind not in _VARIABLE:
                    bound.arguments[name] = fit(value, hints()[name], name)
            return function(*bound.args, **bound.kwargs)

    return checked


def fit(value: Any, hint: Any, name: str) -> Any:
    """Return a value as an annotation wants it, or raise an `InputError` with argument, wanted and given type."""
    try:
        return _fit(value, hint)
    except _UnfitError as error:
        detail = f" ({error})" if str(error) else ""
        text = repr(value) if isinstance(value, bool | int | float | str | bytes | None) else ""
        shown = f" = {text}" if 0 < len(text) <= 40 else ""
        raise InputError(f"{name}{shown} must be {_words(hint)}, got {described(value)}{detail}.") from None


def whole(value: Any, name: str, least: int = 0, most: int = 1 << 63) -> int:
    """Return a whole number in [least, most], or refuse it."""
    number: int = fit(value, int, name)
    if not least <= number <= most:
        limit = f"at least {least}" if number < least else f"at most {most:,}"
        raise InputError(f"{name} = {number} must be {limit}.")
    return number


def described(value: Any) -> str:
    """Describe a refused value by its type, an array also by its numbers and shape."""
    name = type(value).__name__
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return name
    return f"{name} of {value.dtype} {tuple(value.shape)}{' on meta' if getattr(value, 'is_meta', False) else ''}"


def _fit(value: Any, hint: Any) -> Any:
    """Return a value as a hint wants it, or raise `_UnfitError`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return value
    if origin is typing.Annotated:
        return _fit(value, inner[0])
    if origin in (typing.Union, types.UnionType, typing.Literal):  # the function checks the words itself
        reasons = []
        for kind in dict.fromkeys(map(type, inner)) if origin is typing.Literal else inner:
            try:
                return _fit(value, kind)
            except _UnfitError as error:
                reasons.append(str(error))
        raise _UnfitError(next(filter(None, reasons), ""))
    if origin is collections.abc.Callable:
        if not callable(value):
            raise _UnfitError
        return value
    if origin is tuple and Ellipsis not in inner:
        if not isinstance(value, tuple | list) or len(value) != len(inner):
            raise _UnfitError
        return tuple(map(_fit, value, inner))
    if isinstance(origin, type):
        if not isinstance(value, origin) or isinstance(value, str | bytes):
            raise _UnfitError
        if inner and typing.get_origin(inner[0]) is tuple and issubclass(origin, collections.abc.Sequence):
            return [_fit(item, inner[0]) for item in typing.cast(Any, value)]
        return value  # the function itself checks other content
    return _fit_type(value, hint)


def _fit_type(value: Any, kind: Any) -> Any:
    if kind in (None, type(None)):
        if value is not None:
            raise _UnfitError
        return value
    if not isinstance(kind, type):
        return value  # a hint that is not a type: the function checks the value itself
    if kind.__name__ == "Tensor":
        return _tensor(value)
    if kind in (int, float):
        return _number(value, kind)
    if issubclass(kind, enum.Enum) and isinstance(value, str) and value in [member.value for member in kind]:
        return kind(value)
    if issubclass(kind, Path) and isinstance(value, str | os.PathLike) and "\0" not in os.fspath(value):
        return Path(value)
    try:
        if isinstance(value, kind):
            return value
    except TypeError:  # a protocol that isinstance cannot check
        return value
    raise _UnfitError


def _number(value: Any, kind: type) -> Any:
    """Return a number of a kind; NumPy's are converted."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral if kind is int else numbers.Real):
        raise _UnfitError
    if isinstance(value, int | float):
        number: int | float = value
    else:
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
    if math.isnan(number):
        raise _UnfitError
    if isinstance(number, int) and not -_MOST <= number <= _MOST:
        raise _UnfitError("whole numbers have at most 63 bits here")
    return number


def _tensor(value: Any) -> Any:
    """Return a tensor of numbers; an array is converted whatever its byte order and strides."""
    import numpy as np
    import torch

    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        native = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        try:
            return torch.from_numpy(native if native.flags.writeable else native.copy()).reshape(value.shape)
        except TypeError as error:  # of a kind that torch lacks, such as long double
            raise _UnfitError("torch has no such numbers") from error
    if not isinstance(value, torch.Tensor) or value.is_complex() or value.layout is not torch.strided:
        raise _UnfitError
    if value.is_quantized or value.is_meta:
        raise _UnfitError("it holds no numbers")
    return value


def _words(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(item) for item in inner))
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin is collections.abc.Callable:
        return "a function"
    if origin is tuple and Ellipsis not in inner:
        return f"pairs of {' and '.join(map(_words, inner))}" if len(inner) == 2 else f"groups of {len(inner)}"
    if isinstance(origin, type) and inner and typing.get_origin(inner[0]) is tuple:
        return f"a {origin.__name__.lower()} of {_words(inner[0])}"
    if isinstance(origin, type):
        return f"a {origin.__name__.lower()}" + (
            f" with {_words(inner[0])} each" if inner and inner[0] in _WORDS else ""
        )
    if isinstance(hint, type) and hint.__name__ == "Tensor":
        return _TENSOR
    if isinstance(hint, enum.EnumType):
        return f"one of {', '.join(hint.__members__.values())}"
    return _WORDS.get(hint) or (f"a {hint.__name__}" if isinstance(hint, type) else str(hint))
