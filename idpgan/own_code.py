"""Code of the user that a config names: "package.module:name", a class, a function or an object.

Whoever writes a config decides what runs, as with a script: the code that it names is imported where a run begins or
goes on. A release is somebody else's word, and what it names is never imported because of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from idpgan.errors import ConfigError

PLUGINS = "idpgan.simulators"  # group of entry points: "idpgan.simulators:NAME" is what an installed package offers
_NAME = r"[A-Za-z_]\w*"
_PATH = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}([.-]\w+)*", re.ASCII)
_LONGEST = 200
_OURS = ("idpgan", "torch")  # `training.state` compares them by itself
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def is_own_code(name: str) -> bool:
    """Tell whether a value of a config names code of the user, as "package.module:name"."""
    return len(name) <= _LONGEST and _PATH.fullmatch(name) is not None


def path_of(given: Any) -> Any:
    """Return the path of a class, function or object that is bound to a name in a module; a value of TOML stays.

    Raises:
        ConfigError: If it has no such name, so that no other process could find it.
    """
    if given is None or isinstance(given, str | int | float | list | tuple | dict):  # a value of a config file
        return given
    names = [f"{getattr(given, '__module__', '')}:{getattr(given, '__qualname__', '')}"]
    for module in (type(given).__module__, "__main__"):
        content = vars(sys.modules[module]) if module in sys.modules else {}
        names += [f"{module}:{name}" for name, value in content.items() if value is given]
    for name in names:
        with contextlib.suppress(ImportError, AttributeError, ValueError):
            if _found(name) is given:
                return name
    raise ConfigError(
        f"{str(given)[:80]!a} has no name at the top of a module, so that a resumed run could not find it. Define it "
        "there, or give its path as 'package.module:name'."
    )


def resolve(path: str, key: str) -> Any:
    """Import what a config names; the current folder is searched too.

    Args:
        key: The key of the config, for messages.

    Raises:
        ConfigError: In one line, if there is nothing of that name, or importing it raises anything.
    """
    if (here := os.getcwd()) not in sys.path:  # a console script has its own folder there instead
        sys.path.append(here)
    try:
        return _found(path)
    except (Exception, SystemExit) as error:  # code of the user may raise anything
        raise ConfigError(
            f"{key} = '{path}' cannot be imported: {error_line(error)}. Correct it, or its path."
        ) from error


def error_line(error: BaseException) -> str:
    """Return an error of the user's code as one short line."""
    text = " ".join(str(error).split()).removesuffix(".")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _found(path: str) -> Any:
    module, _, name = path.partition(":")
    if not is_own_code(path):
        raise ValueError("a path is written 'package.module:name'")
    if module == PLUGINS:
        offered = {point.name: point for point in importlib.metadata.entry_points(group=PLUGINS)}
        if name not in offered:
            raise LookupError(f"no installed package offers it; offered: {', '.join(sorted(offered)) or 'none'}")
        return offered[name].load()
    value: Any = importlib.import_module(module)
    for attribute in name.split("."):
        value = getattr(value, attribute)
    return value


def source_digest(paths: Sequence[str]) -> str | None:
    """Return the SHA-256 (hex) of the code that paths lead to; None where some of it has no file.

    That is the content of the module files that hold them, and of all modules that these use by a name of theirs;
    Python's own are left out, and an installed package is its version. A module that is imported inside a function is
    not seen, nor is what code reads besides its arguments.
    """
    sha = hashlib.sha256()
    for name, content in sorted(_sources(paths)):
        if content is None:
            return None
        sha.update(f"{name} {len(content)}\n".encode() + content)
    return sha.hexdigest()


def _sources(paths: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
    """Yield the name and the content of every module that counts; None where there is no file."""
    ahead, seen = [], set()
    for path in paths:
        code = resolve(path, "a key")
        ahead += [getattr(code, "__module__", None) or type(code).__module__]
        ahead += [path.partition(":")[0]] if not path.startswith(f"{PLUGINS}:") else []
    while ahead:
        name = ahead.pop()
        top, module = name.partition(".")[0], sys.modules.get(name)
        if name in seen or top in _OURS or (top in sys.stdlib_module_names and top != "__main__"):
            continue
        seen.add(name)
        file = getattr(module, "__file__", None)
        if module is None or file is None or not Path(file).is_file():
            yield name, None
        elif file.startswith(_INSTALLED):
            version = getattr(sys.modules.get(top), "__version__", None)
            yield (top, str(version).encode()) if version else (name, Path(file).read_bytes())
        else:
            yield name, Path(file).read_bytes()
            for value in list(vars(module).values()):  # the modules that its values come from
                home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                home = home if isinstance(home, str) else type(value).__module__  # a lazy object answers with anything
                ahead += [home] if home in sys.modules else []
