"""Files of arrays as numpy.savez writes them: images, and what stands beside them, by the names that tools use."""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from idpgan.data.images import check_class_names
from idpgan.errors import DataError, InputError
from idpgan.memory import check_memory

NAMES = {  # of an array or a column: ours, DPImageBench's, those of numpy.savez without names, scikit-learn's, others'
    "images": ("images", "image", "img", "pixel_values", "x", "samples", "arr_0"),
    "labels": ("labels", "label", "y", "target", "targets", "arr_1"),
    "classes": ("classes", "target_names"),
    "positions": ("positions",),
}
_DAMAGE = (  # what NumPy and zipfile raise on files that are not archives; encrypted parts are a RuntimeError
    OSError, ValueError, EOFError, LookupError, TypeError, SyntaxError, ArithmeticError, AttributeError, RuntimeError,
    MemoryError, struct.error, tokenize.TokenError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


def named(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return images, labels and classes under one of their `NAMES`."""
    chosen = {kind: next((name for name in names if name in source), None) for kind, names in NAMES.items()}
    return {kind: source[name] for kind, name in chosen.items() if name is not None}


def is_npz(path: str | os.PathLike[str]) -> bool:
    """Tell by its name whether a path means an npz file; a folder may be called so, too."""
    return os.fspath(path).endswith(".npz") and not os.path.isdir(path)


def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read images, labels and classes of an npz file, as plain numbers and texts only.

    Raises:
        InputError: If it is no such file, or holds no images. Pickled objects are never loaded.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            known = {name for names in NAMES.values() for name in names}
            sizes = [item.file_size for item in archive.infolist() if item.filename.removesuffix(".npy") in known]
        check_memory(2 * sum(sizes), f"{path}, unpacked,", "Save fewer images at once.")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = named(arrays)
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path} cannot be read as an npz file of plain arrays ({reason}). Pickled objects are refused, because "
            "loading them runs code: save numbers with numpy.savez."
        ) from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # an entry without an array header is read as bytes
            raise DataError(f"{path}: '{name}' is not an array. Save numbers with numpy.savez.")
    if "classes" in found:
        names = found["classes"]
        if names.ndim != 1 or names.dtype.kind not in "US":
            raise DataError(f"{path}: classes are {names.dtype} {names.shape}, expected texts in one row.")
        try:
            found["classes"] = names.astype(str)
            check_class_names(found["classes"].tolist())
        except (UnicodeDecodeError, DataError) as error:
            raise DataError(f"{path}: {error}") from error
    if "images" not in found:
        raise DataError(f"{path} holds no array 'images', x, samples or arr_0. Save images=... with numpy.savez.")
    return found
