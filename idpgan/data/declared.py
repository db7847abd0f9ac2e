"""What is public about a folder of images is declared in the config, and checked here; it is never derived.

A count, a size or a list of classes that is derived from private files changes when a file is removed. So only the
config states them. A folder whose file names contradict the config is an error; the message shows what was found, so
that the user can confirm and copy it.

The *content* of the files never ends a run, however many files are unusable: an error would distinguish the folder from
its neighbor with one more usable file. An unusable file becomes a null record, and the terminal warns the curator.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from idpgan.config import apply_overrides
from idpgan.data.cells import BLANKS, spellings
from idpgan.data.config import DataConfig
from idpgan.data.image_files import Shape, header, in_folders, leftovers
from idpgan.data.images import check_class_names
from idpgan.data.labels import NONE, positions_of
from idpgan.data.source import warn_once
from idpgan.errors import ConfigError, DataError

_PROBES = 100  # number of headers that are read, spread over the folder


def own_root(config: DataConfig, what: str) -> Path:
    """Return the folder of a source whose config has to name it; ``what`` is in it."""
    if config.root is None:
        raise ConfigError(f"data.root is missing: with data.name = '{config.name}' it names the folder of {what}.")
    return config.data_root


def declared_shape(
    config: DataConfig, root: Path, paths: Sequence[Path], counted: Mapping[str, Any], hint: str = ""
) -> Shape:
    """Compare every declared key with the folder, and return the declared (C, H, W).

    Args:
        config: Declares every key of ``counted``, image_size and channels.
        root: The folder, for messages.
        paths: Its image files, at least one; a few headers are read, for messages and warnings alone.
        counted: Values found from file names alone: num_images, num_people, classes.
        hint: What else to say if a key is not declared.

    Raises:
        DataError: If keys are missing (the message names all of them, with the values found), or if a number differs.
    """
    missing = [key for key in (*counted, "image_size", "channels") if getattr(config, key) is None]
    shapes, _ = probed(paths, config.channels)
    if config.sides is None or config.channels is None or missing:
        values = {**counted, **looks(shapes)}
        check_class_names(values.get("classes", ()))
        raise DataError(
            f"{', '.join(f'data.{key}' for key in missing)} must be declared for data.name = '{config.name}': what is "
            f"public about a folder is never derived from its images (docs/reference/neighbors.md).{hint} "
            f"Found in {root}: "
            f"{', '.join(f'data.{key} = {shown(values.get(key))}' for key in missing)}. Set these if you mean them."
        )
    if "classes" in counted:
        _warn_of_classes(config.classes or (), counted["classes"], root, of_table=bool(config.label))
    for key, actual in counted.items():
        declared = getattr(config, key)
        if key == "classes":
            continue
        if declared < actual:
            raise DataError(
                f"data.{key} = {declared}, but {root} holds {actual}. If files were added, take them out again; if "
                f"{actual} is right, set data.{key} to it."
            )
        if declared > actual:
            raise DataError(
                f"data.{key} = {declared}, but {root} holds {actual}. If files were lost, put them back, or empty "
                "files of their names, which keep their positions as null records. "
                f"Set data.{key} = {actual} only if there never were more: a file less moves all files behind it."
            )
    _warn_of_size(config.sides, shapes, root)
    return config.channels, *config.sides


def _warn_of_classes(declared: Sequence[str], actual: Sequence[str], root: Path, *, of_table: bool) -> None:
    """Warn of class names that are only declared or only found: a misspelled class makes all its files null records.

    Rows of a table whose value is not declared are counted where it is read.
    """
    meant = positions_of(actual, declared)
    present = set(meant)
    empty = sorted(name for place, name in enumerate(declared) if place not in present)
    unwanted = sorted(name for place, name in zip(meant, actual, strict=True) if place == NONE and not of_table)
    if declared and actual and (empty or unwanted):  # without classes, folder names do not matter
        warn_once(
            f"data.classes and what {root} holds do not meet. Declared, but not there: {', '.join(empty) or 'none'}. "
            "There, but not declared, so that all images of it stand as null records: "
            f"{', '.join(unwanted) or 'none'}."
        )


def shape_of_most(
    root: Path, paths: Sequence[Path], channels: int, size: tuple[int, int] | None = None, way_out: str = ""
) -> Shape:
    """Return the declared channels and size; without a declared size, (H, W) is the commonest in the sampled headers.

    Args:
        way_out: How the caller's user keeps colors.

    Raises:
        DataError: If no size is declared and none of these headers can be read.
    """
    shapes, first_error = probed(paths, None)
    sizes = Counter(shape[1:] for shape in shapes if shape is not None)
    if size is None and not sizes:
        raise DataError(f"No size is declared (publish: --size HxW), and no header looked at tells it. {first_error}")
    sides = size or sizes.most_common(1)[0][0]
    _warn_of_size(sides, shapes, root)
    colored = sum(shape is not None and shape[0] > channels for shape in shapes)
    if colored:
        warn_once(f"{colored} of {len(shapes)} images looked at in {root} have colors and become grey.{way_out}")
    return channels, *sides


def _warn_of_size(sides: tuple[int, int], shapes: Sequence[Shape | None], root: Path) -> None:
    """Warn of headers that differ from the declaration: a dry run learns of null records only from headers."""
    wrong = sum(shape is None or shape[1:] != sides for shape in shapes)
    if wrong:
        most, declared = looks(shapes).get("image_size"), _written(*sides)
        way_out = (
            "" if most in (None, declared) else f" Resize the files, or declare {shown(most)}, as most of them are."
        )
        warn_once(
            f"The image size is {shown(declared)}, but {wrong} of {len(shapes)} images looked at in {root} are of "
            f"another size or cannot be read. These stand as null records.{way_out}"
        )


def probed(paths: Sequence[Path], channels: int | None) -> tuple[list[Shape | None], DataError | None]:
    """Read some headers, spread over the folder, None for an unreadable one; and the first error."""
    shapes: list[Shape | None] = []
    first = None
    for path in paths[:: -(-len(paths) // _PROBES)]:
        try:
            shapes.append(header(path, channels))
        except DataError as error:
            shapes.append(None)
            first = first or error
    return shapes, first


def looks(shapes: Sequence[Shape | None]) -> dict[str, Any]:
    """Return the size and the channels that most files have, as the config writes them."""
    known = Counter(shape for shape in shapes if shape is not None)
    if not known:
        return {}
    channels, height, width = known.most_common(1)[0][0]
    return {"image_size": _written(height, width), "channels": channels}


def _written(height: int, width: int) -> int | list[int]:
    return height if height == width else [height, width]


def shown(value: Any) -> str:
    """Return a value in TOML notation, or "?" if it is unknown."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{shown(key)} = {shown(item)}' for key, item in value.items())}}}"
    return "?" if value is None else json.dumps(value, ensure_ascii=False)


def doubtful_people(people: Iterable[str]) -> list[str]:
    """List names of people who may be one, or nobody."""
    people = list(people)
    nobody = [shown(name) for name in sorted(BLANKS & set(people) - {""})]
    return [" = ".join(map(shown, group)) for group in spellings(people)] + nobody


def warn_of_spellings(people: Iterable[str], where: str) -> None:
    """Warn of people who may be one, written in several ways, or nobody: each spelling is a person of its own."""
    if doubtful := doubtful_people(people):
        warn_once(
            f"{where}: people written {'; '.join(doubtful[:10])}{'; ...' * (len(doubtful) > 10)} are taken as they are "
            "written, each spelling as a person of its own. If some are one person, write the name in one way; if one "
            "stands for nobody known, name a person of its own in each row."
        )


#: Key of [data] that `idpgan.fit` may leave undeclared -> what is then taken from the images, and the argument for it.
_TAKEN = {"label": "label column", "classes": "classes", "image_size": "size", "channels": "channels"}
_ARGUMENTS = {"label": "labels=COLUMN", "classes": "classes=[...]"}


def declared_by(settings: Sequence[str], classes: Sequence[str] | None, labels: Any) -> dict[str, Any]:
    """Return the keys of [data] that a call of `idpgan.fit` declares, ``label`` only where it is one column."""
    data = apply_overrides({}, settings).get("data")
    declared = dict(data) if isinstance(data, dict) else {}
    declared |= {} if classes is None else {"classes": list(classes)}
    column = labels if isinstance(labels, str) else declared.pop("label", None)
    return declared | ({"label": column} if isinstance(column, str) else {})


def say_taken(found: Collection[str]) -> dict[str, Any]:
    """Say which keys, of `_TAKEN`, were taken from the images, and what would declare them; return that for [data]."""
    keys = [key for key in _TAKEN if key in found]
    if not keys:
        return {}
    ways = [_ARGUMENTS[key] for key in keys if key in _ARGUMENTS]
    settings = ", ".join(f'"data.{key}=..."' for key in keys if key not in _ARGUMENTS)
    ways += [f"settings=[{settings}]"] if settings else []
    taken = {"taken": [_TAKEN[key] for key in keys]}
    said = DataConfig.model_validate(taken).as_found
    warn_once(f"{said[:1].upper()}{said[1:]}. To declare them: {', '.join(ways)}.")
    return taken


def warn_of_leftovers(root: Path) -> None:
    """Name the folders whose images are left out, because systems make folders of such names."""
    if counts := leftovers(root):
        warn_once(
            f"Left out of {root}, in hidden folders and what systems leave behind: {in_folders(counts)} image files. "
            "If they are yours, move them into a folder of another name."
        )
