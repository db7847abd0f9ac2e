"""What is public about a folder of images is declared in the config, and checked here; it is never derived.

A count, a size or a list of classes that is taken from private files changes when one of the files goes. So the config
alone states them. A folder that contradicts the config is an error; its message shows what was found, for the user to
confirm and copy.
"""

from __future__ import annotations

import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from idpgan.data.config import DataConfig
from idpgan.data.labels import check_class_names
from idpgan.errors import DataError

_LOG = logging.getLogger(__name__)
_PROBES = 100  # headers that are read, spread over the folder
Header = Callable[[Path], tuple[int, int, int]]  # (C, H, W) of a file as it lies there; a `DataError` if it has none


def declared_shape(
    config: DataConfig, root: Path, paths: Sequence[Path], counted: Mapping[str, Any], header: Header, hint: str = ""
) -> tuple[int, int, int]:
    """Return the declared (C, H, W), after every declared key was compared with the folder.

    Args:
        config: Declares every key of ``counted``, image_size and channels.
        root: The folder, for messages.
        paths: Its image files, at least one; a few headers are read.
        counted: What was found by names alone: num_images, num_people, classes.
        hint: What else to say if a key is not declared.

    Raises:
        DataError: If keys are missing (all of them are named, with what was found), if a number is another, or if most
            files cannot be what is declared.
    """
    missing = [key for key in (*counted, "image_size", "channels") if getattr(config, key) is None]
    shapes, first_error = probed(paths, header)
    found = {**counted, **looks(shapes)}
    if missing:
        check_class_names(found.get("classes", ()))
        raise DataError(
            f"{', '.join(f'data.{key}' for key in missing)} must be declared for data.name = '{config.name}': what is "
            f"public about a folder is never derived from its images (docs/neighbors.md).{hint} Found in {root}: "
            f"{', '.join(f'data.{key} = {shown(found.get(key))}' for key in missing)}. Set these if you mean them."
        )
    if "classes" in counted:
        _warn_of_classes(config.classes or (), tuple(counted["classes"]), root)
    for key, value in counted.items():
        declared = getattr(config, key)
        if key != "classes" and declared != value:
            raise DataError(f"data.{key} = {declared}, but {root} holds {value}. {_way_out(key, declared, value)}")
    if config.sides is None or config.channels is None:
        raise RuntimeError("missing keys were refused above.")
    wrong = [shape for shape in shapes if shape is None or shape[1:] != config.sides]
    if first_error is not None and not any(shapes):
        raise first_error
    if 2 * len(wrong) > len(shapes):
        most = found["image_size"]
        raise DataError(
            f"data.image_size = {shown(config.image_size)}, but {len(wrong)} of {len(shapes)} images looked at in "
            f"{root} are of another size or cannot be read, and images are not resized. "
            + (
                "Replace the files, or name the right folder."
                if most == _written(*config.sides)
                else f"Resize the files, or set data.image_size = {shown(most)}, the size that most of them have."
            )
        )
    return config.channels, *config.sides


def _way_out(key: str, declared: int, found: int) -> str:
    """Say what to do about a number that contradicts the declared one."""
    if found > declared:
        return f"If files were added, take them out again; if {found} is right, set data.{key} to it."
    return (
        "If files were lost, put them back, or empty files of their names, which keep their positions as null records. "
        f"Set data.{key} = {found} only if there never were more: a file less moves all files behind it."
    )


@functools.cache  # once a folder, although it is described by several rooms
def _warn_of_classes(declared: tuple[str, ...], found: tuple[str, ...], root: Path) -> None:
    """Warn of class names on one side only: a misspelled class would make null records of all its files."""
    empty, unwanted = sorted(set(declared) - set(found)), sorted(set(found) - set(declared))
    if declared and found and (empty or unwanted):  # without classes all folders are alike
        _LOG.warning(
            "data.classes and what %s holds do not meet. Declared, but not there: %s. There, but not declared, so that "
            "all images of it stand as null records: %s.",
            root, ", ".join(empty) or "none", ", ".join(unwanted) or "none",
        )  # fmt: skip


def shown(value: Any) -> str:
    """Show a value as TOML has it, "?" where nothing is known."""
    return "?" if value is None else json.dumps(value, ensure_ascii=False)


def probed(paths: Sequence[Path], header: Header) -> tuple[list[tuple[int, int, int] | None], DataError | None]:
    """Read some headers, spread over the folder, None for an unreadable one; and the first error."""
    step = -(-len(paths) // _PROBES)
    shapes: list[tuple[int, int, int] | None] = []
    first = None
    for path in paths[::step]:
        try:
            shapes.append(header(path))
        except DataError as error:
            shapes.append(None)
            first = first or error
    return shapes, first


def looks(shapes: Sequence[tuple[int, int, int] | None]) -> dict[str, Any]:
    """Return the size and the channels that most files have, as the config writes them."""
    known = Counter(shape for shape in shapes if shape is not None)
    if not known:
        return {}
    channels, height, width = known.most_common(1)[0][0]
    return {"image_size": _written(height, width), "channels": channels}


def _written(height: int, width: int) -> int | list[int]:
    return height if height == width else [height, width]
