"""Names that are imported on first use (PEP 562), so that the command line starts fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from idpgan.removed import gone


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
        return getattr(importlib.import_module(module if "." in module else f"{package}.{module}"), name)

    namespace = vars(sys.modules[package])
    namespace["__dir__"] = lambda: sorted({*namespace, *modules})
    return import_name
