"""The public doors: names that are imported on first use (PEP 562), so that the command line starts fast.

A function that is taken from here checks its arguments (`checks.typed`), once: the package's own code takes it from the
module that defines it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from idpgan.checks import typed
from idpgan.removed import gone

_checked = functools.cache(typed)


def public(module: str, name: str) -> Any:
    """Return what a module defines as a user may call it: a function with its checks."""
    value = getattr(importlib.import_module(module), name)
    return _checked(value) if inspect.isfunction(value) else value


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, and let ``dir`` list the names.

    ``modules`` maps a public name to its module: of the package, or of another room by its full name.
    """

    def import_name(name: str) -> Any:
        if line := gone(f"{package}.{name}"):
            raise ImportError(line)  # in place of an AttributeError ``from package import name`` says a line of its own
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules[name]
        return public(module if "." in module else f"{package}.{module}", name)

    namespace = vars(sys.modules[package])
    namespace["__dir__"] = lambda: sorted({*namespace, *modules})
    return import_name
