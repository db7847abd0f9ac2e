"""The files and outputs of a command as named values, equal for two versions of the code that behave the same."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Entries = dict[str, Any]
LEFT_OUT = re.compile(r"seconds|.*_per_second|date|git|python|versions|environment|idpgan")  # keys: time and machine
OF_THE_CODE = re.compile(r"checksum|code|state|sha256")  # keys of a ledger: hashes of the code and of containers
UNREAD = re.compile(r".*\.(html|lock|log)|log\.txt|environment\.json|lock|events\.out\.tfevents.*|ledger\.json\.key")
STATE = "state"  # a run's private folder: only its tensors are compared, whatever their place
LONG_LIST = 12  # longer lists of numbers become one digest


class Reader:
    """Reads files and outputs, without the paths of this recording.

    Args:
        paths: The placeholder for each folder's path.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.paths = sorted(paths.items(), key=lambda pair: -len(pair[0]))

    def plain(self, text: str) -> str:
        """Return a text without the paths of this recording."""
        for path, name in self.paths:
            text = text.replace(path, name)
        return text

    def flat(self, value: Any, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of JSON values, without file hashes, since each file is recorded under its own name."""
        if isinstance(value, Mapping):
            if not value:
                yield name, {}
            for key, inner in value.items():
                if key == "files" and isinstance(inner, Mapping):
                    yield f"{name}.files", sorted(inner)
                elif not LEFT_OUT.fullmatch(str(key)) and not (
                    "ledger.json" in name and OF_THE_CODE.fullmatch(str(key))
                ):
                    yield from self.flat(inner, f"{name}.{key}")
        elif isinstance(value, list | tuple):
            if len(value) > LONG_LIST and numeric(value):
                yield name, f"{len(value)} numbers {digest(json.dumps(value).encode())}"
                return
            if not value:
                yield name, []
            for index, inner in enumerate(value):
                yield from self.flat(inner, f"{name}[{index}]")
        else:
            yield name, self.plain(value) if isinstance(value, str) else value

    def folder(self, root: Path, name: str) -> Entries:
        """Return the files in a folder and the content of each."""
        found: Entries = {}
        paths = [path for path in sorted(root.rglob("*")) if path.is_file() and not hidden(path.relative_to(root))]
        held = [path for path in paths if STATE in path.relative_to(root).parts[:-1]]
        found[f"{name}#files"] = [path.relative_to(root).as_posix() for path in paths if path not in held]
        for path in paths:
            below = path.relative_to(root).as_posix()
            if not UNREAD.fullmatch(path.name) and (path not in held or path.suffix == ".json"):
                found.update(self.file(path, f"{name}/{below}"))
        for state in sorted({path.parent for path in held}):
            below = state.relative_to(root).as_posix()
            found[f"{name}/{below}#tensors"] = multiset(path for path in held if path.parent == state)
        return found

    def file(self, path: Path, name: str) -> Entries:
        """Return the content of one file, by its kind."""
        try:
            return dict(self._file(path, name))
        except (ValueError, OSError) as error:
            return {f"{name}#unreadable": self.plain(f"{type(error).__name__}: {error}")}

    def _file(self, path: Path, name: str) -> Iterator[tuple[str, Any]]:
        kind = path.suffix
        if kind == ".json":
            yield from self.flat(json.loads(path.read_text(encoding="utf-8")), name)
        elif kind == ".jsonl":
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            yield from self.flat(rows, name)
        elif kind == ".toml":
            yield from self.flat(tomllib.loads(path.read_text(encoding="utf-8")), name)
        elif kind in (".png", ".jpg"):
            yield name, pixels(path)
        elif kind in (".safetensors", ".npz", ".pt"):
            yield from ((f"{name}#{key}", described(value)) for key, value in tensors(path))
        else:
            content = path.read_bytes()
            try:
                yield name, self.plain(content.decode("utf-8"))
            except UnicodeDecodeError:
                yield name, f"{len(content)} bytes {digest(content)}"


def numeric(value: Any) -> bool:
    """Whether nested lists contain only numbers."""
    return all(map(numeric, value)) if isinstance(value, list | tuple) else isinstance(value, int | float)


def hidden(path: Path) -> bool:
    """Whether a file is a lock or lies in a folder that is not recorded."""
    return any(part.startswith(".") or part == "tensorboard" for part in path.parts)


def digest(content: bytes) -> str:
    """Return the beginning of the SHA-256 (hex)."""
    return hashlib.sha256(content).hexdigest()[:16]


def pixels(path: Path) -> str:
    """Return size, mode and a digest of decoded pixels."""
    from PIL import Image

    with Image.open(path) as image:
        return f"{image.mode} {image.size} {digest(np.asarray(image).tobytes())}"


def described(value: np.ndarray) -> str:
    """Return type, shape and a digest of an array."""
    return f"{value.dtype} {value.shape} {digest(np.ascontiguousarray(value).tobytes())}"


def tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every array of a file, with its name there; texts of an .npz are arrays too."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            yield from ((name, archive[name]) for name in archive.files)
        return
    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load

        content: Any = load(path.read_bytes())
    else:
        content = torch.load(path, weights_only=True, map_location="cpu")
    yield from inner_tensors(content, "")


def inner_tensors(value: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors within mappings and lists."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name.removeprefix("."), value.detach().contiguous().numpy()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from inner_tensors(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from inner_tensors(inner, f"{name}[{index}]")


def multiset(paths: Iterator[Path]) -> str:
    """Return the number of tensors in some files, and a digest that ignores their order and names."""
    found = sorted(
        described(value) for path in paths if path.suffix in (".pt", ".safetensors") for _, value in tensors(path)
    )
    return f"{len(found)} tensors {digest(chr(10).join(found).encode())}"
