"""`folder`: any folder of images, laid out as torchvision's `ImageFolder` wants it.

    root/CLASS/*.png           one folder a class, searched to any depth; labels are positions in `data.classes`
    root/train/..., root/test/...    the set brings its own test images
    root/*.png                 no classes: the images are unlabeled
    root/metadata.csv          one row an image: file_name, columns of labels, person (`idpgan prepare` and
                               `idpgan sample` write it)

Formats are those of torchvision (`EXTENSIONS`), 8 bits a channel, converted as `data.channels` says. Only hidden files
and folders are left out: every name that begins with a dot, ``Thumbs.db``, ``desktop.ini``, what `idpgan sample`
writes beside its images (`EXPORTED`), and ledgers of folders (`LEDGER`). Any other file without an image's name is an
error naming it.

A position is a file, ordered by class folder, folder below it and file name; or a row of metadata.csv, in the order of
the rows. A file that is empty, damaged, of another size (a row's: or missing), or of a class that is not in
`data.classes` keeps its position as a null record, so that nobody else's position depends on it. Files that
metadata.csv does not name are not read. Numbers, size, channels and classes are declared (`declared`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import stat
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from idpgan.data.config import DataConfig
from idpgan.data.declared import declared_shape, shown, warn_of_equal, warn_of_null, warn_once
from idpgan.data.images import Images
from idpgan.data.labels import attribute_classes
from idpgan.data.metadata import LABEL, METADATA, MOST_CLASSES, Rows, bits, class_values, read_rows
from idpgan.data.source import Found, Read, Refused
from idpgan.errors import ConfigError, DataError
from idpgan.memory import check_memory
from idpgan.progress import Progress, silent

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
HIDDEN = ("thumbs.db", "desktop.ini")
EXPORTED = ("manifest.json", "readme.md", "privacy.json")  # what `idpgan sample` puts beside its class folders
LEDGER = ".ledger.json"  # behind a folder's name: the file beside it that lists its publications
CHANNELS = {"L": 1, "RGB": 3}
MODES = {1: "L", 3: "RGB"}
CONVERTIBLE = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # 8 bits a channel: Pillow would cut 16 bits off at 255
DAMAGE = (  # what Pillow's decoders raise on files that are no whole image
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError,
    RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)  # 89 million pixels are refused, not drawn
CHUNK = 64  # images a task of a thread
Decoder = Callable[[Path], np.ndarray]  # uint8 (C, H, W), or a `DataError`
Shape = tuple[int, int, int]  # (C, H, W)
_PERSON_FILE = re.compile(r"(?P<name>[A-Z][^_/]*(_[A-Z][^_/]*)+)/(?P=name)_\d+$")  # Ada_King/Ada_King_01.jpg
UNWANTED = -1  # label of a file whose class is not on the list


class Files(NamedTuple):
    """Image files in a fixed order, with their labels."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...] = ()  # empty where there are no classes
    classes: tuple[str, ...] = ()
    unwanted: str = "lies in a folder that is none of data.classes"  # what is said of a label UNWANTED


def describe(config: DataConfig) -> Found | None:
    """Compare what is declared with the files' names and some headers; None if the folder is missing."""
    if not _root(config).is_dir():
        return None
    if _has_metadata(config):
        files, rows, shape = _declared_rows(config)
        people = torch.bincount(torch.tensor(rows.people)).tolist() if rows.people else ()
        return Found(len(files.paths), None, shape, files.classes, rows.columns, tuple(people), rows.person_names)
    train, test, shape = _declared(config)
    root = _root(config)
    names = _people_of_a_known_layout(root if test is None else root / "train") or _people_of_file_names(train)
    return Found(len(train.paths), None if test is None else len(test.paths), shape, train.classes, person_names=names)


def _people_of_a_known_layout(root: Path) -> tuple[str, ...]:
    """Return the class folders of a face database, each of which is a person."""
    from idpgan.data import face_folder  # here: it is built on this module

    try:
        return tuple(_class_names(root)) if face_folder.recognize(root) in face_folder.OF_PEOPLE else ()
    except DataError:  # no layout that is known
        return ()


def _people_of_file_names(files: Files) -> tuple[str, ...]:
    """Return the folders that are called like people and whose files repeat that, as LFW's do; see `_PERSON_FILE`."""
    ours = {path.parent.name for path in files.paths if _PERSON_FILE.match(f"{path.parent.name}/{path.stem}")}
    return tuple(sorted(ours))


def read(config: DataConfig, progress: Progress = silent) -> Read:
    """Decode every image once; the second set is that of ``test/``, if there is one.

    Raises:
        DataError: If there are no images, or the folder contradicts what is declared.
    """
    if _has_metadata(config):
        return _read_rows(config, progress)
    train, test, shape = _declared(config)

    def decoder(path: Path) -> np.ndarray:
        return decode(path, config.channels, shape[1:])

    if test is None:
        images, refused = read_files(train, shape, decoder, progress)
        return Read(images, refused=refused)
    images, refused = read_files(_joined(train, test), shape, decoder, progress)
    order = torch.arange(len(images))  # by index, since slices would keep each other's memory alive
    num = len(train.paths)
    return Read(images.select(order[:num]), images.select(order[num:]), refused)


def _has_metadata(config: DataConfig) -> bool:
    """Tell whether the rows of a metadata.csv are the positions."""
    return (_root(config) / METADATA).is_file()


def _read_rows(config: DataConfig, progress: Progress) -> Read:
    """Read the images that metadata.csv names, with their people and attributes."""
    files, rows, shape = _declared_rows(config)
    images, refused = read_files(files, shape, lambda path: decode(path, config.channels, shape[1:]), progress)
    if rows.people is not None:
        images = dataclasses.replace(images, identities=torch.tensor(rows.people))
    if config.attributes:
        columns = [[bit or 0 for bit in bits(values)] for values in rows.values]
        attributes = torch.tensor(columns, dtype=torch.uint8).T.contiguous()
        images = dataclasses.replace(images, attributes=attributes, attribute_names=config.attributes)
        images = images if images.null is None else images.zeroed_out(images.null)
    return Read(images, refused=refused)


def _declared_rows(config: DataConfig) -> tuple[Files, Rows, Shape]:
    """List the rows of metadata.csv, and check all declared keys."""
    root = _root(config)
    label, rows = _rows_of(root, config)
    if not rows.paths:
        raise DataError(f"{root / METADATA} names no images. Give it a row for each.")
    if config.num_people is not None and rows.people is None:
        raise DataError(
            f"data.num_people = {config.num_people}, but {root / METADATA} has no column 'person'. Leave num_people "
            "out, or add the column."
        )
    if config.classes and not label:
        raise DataError(
            f"data.classes = {shown(config.classes)}, but data.label does not say which column of {root / METADATA} "
            f"holds them: {', '.join(rows.columns) or 'it has none'}. Set data.label, or data.classes = []."
        )
    counted: dict[str, object] = {"num_images": len(rows.paths)}
    counted |= {} if rows.people is None else {"num_people": rows.num_people}
    found, hint = [], ""
    if config.classes or label != config.label:
        found = class_values(rows.values[0])
        counted["classes"] = found[:MOST_CLASSES]
    elif not label:
        counted["classes"] = found
        hint = f" Columns of labels: {', '.join(rows.columns)} (data.label)." if rows.columns else ""
    elif any(None in bits(values) for values in rows.values):
        hint = f" Classes of '{label[0]}' (data.classes): {_first(class_values(rows.values[0]))}."
    shape = declared_shape(config, root, rows.paths, counted, lambda path: header(path, config.channels), hint)
    files = _labeled_rows(label, config.classes or (), rows)
    if unwanted := files.labels.count(UNWANTED):
        wanted = (
            f"data.classes = {shown(config.classes)}"
            if config.classes
            else f"data.label = {shown(label)} without data.classes, which asks for columns of 1 and 0"
        )
        warn_once(
            f"{wanted}, but {unwanted} of {len(rows.paths)} rows of {root / METADATA} have other values and stand as "
            f"null records. Column '{label[0]}' has {_first(class_values(rows.values[0]))}: are data.classes right?"
        )
    return files, rows, shape


def _rows_of(root: Path, config: DataConfig | None) -> tuple[tuple[str, ...], Rows]:
    """Return the columns of labels and the rows: where none is named, classes stand in the column ``label``."""
    label = config.label if config else ()
    rows = read_rows(root, label)
    if LABEL in rows.columns and not label and (config is None or config.classes != ()):
        label = (LABEL,)
        rows = read_rows(root, label)
    return label, rows


def _first(values: Sequence[str]) -> str:
    return ", ".join(map(shown, values[:20])) + ", ..." * (len(values) > 20)


def _labeled_rows(label: Sequence[str], classes: Sequence[str], rows: Rows) -> Files:
    """Label rows by one column with declared classes, or find those that lack an attribute."""
    if classes:
        numbers = {name: number for number, name in enumerate(classes)}
        labels = tuple(numbers.get(value, UNWANTED) for value in rows.values[0])
        return Files(rows.paths, labels, tuple(classes), f"has none of data.classes in the column {label[0]}")
    each = zip(*(bits(values) for values in rows.values), strict=True)
    labels = tuple(UNWANTED if None in bits_of_row else 0 for bits_of_row in each)
    return Files(rows.paths, labels, (), f"has neither 1 nor 0 in a column of {', '.join(label)}")


def _public_rows(root: Path, config: DataConfig | None) -> Files:
    """List public images by their metadata.csv; those of other classes are left out."""
    label, rows = _rows_of(root, config)
    named = config.classes or () if config else class_values(rows.values[0]) if label else ()
    files = _labeled_rows(label, named, rows)
    keep = [index for index in range(len(rows.paths)) if not files.labels or files.labels[index] != UNWANTED]
    if not keep:
        raise DataError(f"{root / METADATA} names no image of data.classes. Name another folder of public images.")
    labels, classes = files.labels, files.classes
    if config and config.attributes:
        columns = [[bit or 0 for bit in bits(values)] for values in rows.values]
        labels = tuple(sum(bit << j for j, bit in enumerate(row)) for row in zip(*columns, strict=True))
        classes = attribute_classes(config.attributes)
    return Files(tuple(rows.paths[i] for i in keep), tuple(labels[i] for i in keep) if classes else (), classes)


def read_all(root: Path, channels: int | None, progress: Progress = silent, config: DataConfig | None = None) -> Images:
    """Read a folder that protects nobody, train/ and test/ together if it has them.

    Its classes are its folders; with a metadata.csv they are those of ``config`` or, without one, the values of its
    column ``label``.

    Raises:
        DataError: If there are no images, or for the first file that is damaged or unlike the first one.
    """
    files = scanned(root, config)
    shape = decode(files.paths[0], channels).shape

    def decoder(path: Path) -> np.ndarray:
        image = decode(path, channels)
        if image.shape != shape:
            raise DataError(
                f"{path} is {_shown(image.shape)}, but {files.paths[0]} is {_shown(shape)}: all images must have one "
                "size and one kind of color. Crop or resize them; data.channels converts colors."
            )
        return image

    images, refused = read_files(files, shape, decoder, progress, private=False)
    for file in refused:
        raise DataError(file.reason)
    return images


def scanned(root: Path, config: DataConfig | None = None) -> Files:
    """List what `read_all` reads, without opening an image; raises like `scan`."""
    if (root / METADATA).is_file():
        return _public_rows(root, config)
    train, test = scan(root)
    return train if test is None else _joined(train, test)


def _declared(config: DataConfig) -> tuple[Files, Files | None, Shape]:
    """List the files, and check all declared keys."""
    root = _root(config)
    if config.label:
        raise DataError(
            f"data.label = {', '.join(config.label)}, but {root} has no {METADATA} with such columns. Leave data.label "
            "out, or write one (idpgan prepare)."
        )
    train, test = scan(root, config.classes)
    if not train.paths:
        raise DataError(f"{root} holds no images. Put some there, or name another folder.")
    found = _class_names(root / "train" if test is not None else root)
    counted = {"num_images": len(train.paths), "classes": found}
    shape = declared_shape(config, root, train.paths, counted, lambda path: header(path, config.channels))
    if config.classes and not set(config.classes) & set(found):  # by names alone, and however many files are in them
        raise DataError(
            f"data.classes = {shown(config.classes)}, but {root} holds no such class folder. Set data.classes = "
            f"{shown(found)}, the folders that are there, or [] for no classes."
        )
    return train, test, shape


def _class_names(root: Path) -> list[str]:
    return [path.name for path in entries(root) if path.is_dir()]


def scan(root: Path, classes: Sequence[str] | None = None) -> tuple[Files, Files | None]:
    """List the images of a folder, and those of its ``test/`` if it holds ``train/`` and ``test/``.

    Args:
        classes: Declared names of class folders; none makes all images unlabeled. None takes the folders that are
            there, each of which must hold images.

    Raises:
        DataError: If a file has no image's name, or, without declared classes, if there is no image or a class without
            images.
    """
    if not root.is_dir():
        raise DataError(
            f"There is no folder {root}. Name the folder of images: data.root, --data-root, or public_root."
        )
    names = {path.name for path in entries(root)}
    if not names & {"train", "test"}:
        return _scan_classes(root, classes), None
    if names != {"train", "test"}:
        raise DataError(
            f"{root} holds {', '.join(sorted(names))}: a folder with train/ or test/ must hold both and nothing else. "
            "Move the rest away, or name one of the folders itself."
        )
    train, test = _scan_classes(root / "train", classes), _scan_classes(root / "test", classes)
    if train.classes != test.classes:
        different = ", ".join(sorted(set(train.classes) ^ set(test.classes)))
        raise DataError(f"{root}: train/ and test/ must have the same classes, but only one of them has {different}.")
    return train, test


def read_files(
    files: Files, shape: Shape, decoder: Decoder, progress: Progress = silent, *, private: bool = True
) -> tuple[Images, tuple[Refused, ...]]:
    """Decode every file once, on all cores, into one tensor; what cannot be used becomes a null record.

    The curator is told of null records and of copies among private images, on the terminal alone.

    Returns:
        One image of ``shape`` = (C, H, W) for each file, in their order, and the null records among them.
    """
    paths, labels = files.paths, torch.tensor(files.labels, dtype=torch.int64)
    check_memory(
        2 * len(paths) * math.prod(shape),  # as they are read, and once more as they are dealt out
        f"{len(paths):,} images of {_shown(shape)}",
        "Take fewer, or make them smaller.",
    )
    pixels = np.zeros((len(paths), *shape), dtype=np.uint8)  # (N, C, H, W)
    null = torch.zeros(len(paths), dtype=torch.bool)

    def fill(start: int) -> list[Refused]:
        refused = []
        for index in range(start, min(start + CHUNK, len(paths))):
            try:
                if files.labels and files.labels[index] == UNWANTED:
                    raise DataError(f"{paths[index]} {files.unwanted}.")
                pixels[index] = decoder(paths[index])
            except DataError as error:
                null[index] = True
                refused.append(Refused(paths[index], str(error)))
        return refused

    refused: list[Refused] = []
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
        for done, part in enumerate(pool.map(fill, range(0, len(paths), CHUNK)), start=1):
            refused += part
            progress("read images", min(done * CHUNK, len(paths)), len(paths))
    images = Images(torch.from_numpy(pixels), labels if files.classes else None, files.classes)
    images = images.zeroed_out(null) if refused else images
    if private:
        warn_of_null(refused, len(paths))
        warn_of_equal(paths, images)
    return images, tuple(refused)


def _root(config: DataConfig) -> Path:
    if config.root is None:
        raise ConfigError("data.root is missing: with data.name = 'folder' it names the folder of images.")
    return config.data_root


def _joined(train: Files, test: Files) -> Files:
    return Files(train.paths + test.paths, train.labels + test.labels, train.classes)


def _scan_classes(root: Path, classes: Sequence[str] | None) -> Files:
    """List the images of a folder in the order of torchvision's `ImageFolder`, which is by class, folder and name."""
    members_of_root = entries(root)
    folders = [path for path in members_of_root if path.is_dir()]
    if not folders:
        if classes:
            raise DataError(
                f"data.classes = {shown(classes)}, but {root} holds no class folders. Set data.classes = [], or make a "
                "folder for each class."
            )
        return Files(_images_among(members_of_root, root))
    if len(folders) < len(members_of_root):
        stray = next(path for path in members_of_root if not path.is_dir())
        raise DataError(f"{stray} lies beside class folders: move it into one of them, or away.")
    names = [folder.name for folder in folders] if classes is None else list(classes)
    members = [_images_among(walk(folder), folder, may_be_empty=classes is not None) for folder in folders]
    labels: Iterator[int] = (
        names.index(folder.name) if folder.name in names else UNWANTED
        for folder, paths in zip(folders, members, strict=True)
        for _ in paths
    )
    return Files(tuple(itertools.chain(*members)), tuple(labels) if names else (), tuple(names))


def _images_among(paths: Sequence[Path], folder: Path, may_be_empty: bool = False) -> tuple[Path, ...]:
    """Return the paths; refuse none at all, or a name that is not an image's."""
    for path in paths:
        if path.suffix.lower() not in EXTENSIONS:
            raise DataError(f"{path} is no image (known: {' '.join(EXTENSIONS)}). Convert it, or move it away.")
    if not paths and not may_be_empty:
        raise DataError(f"{folder} holds no images. Put some there, or name another folder.")
    return tuple(paths)


def walk(folder: Path, *, ledgers: bool = False) -> list[Path]:
    """List all files below a folder, by folder and name; or instead of them the ledgers of its folders."""
    files: list[str] = []
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        found = os.stat(place)
        if (found.st_dev, found.st_ino) in seen:
            raise DataError(f"{place} leads to a folder that is read already: remove the link.")
        seen.add((found.st_dev, found.st_ino))
        folders[:] = filter(_is_visible, folders)
        wanted = [name for name in filter(_is_visible, names) if name.endswith(LEDGER) == ledgers]
        files += [os.path.join(place, name) for name in wanted]
    return [Path(file) for file in sorted(files, key=os.path.split)]


def _unreadable(error: OSError) -> None:
    """Refuse a folder that cannot be listed; `os.walk` would leave it out."""
    raise DataError(f"Cannot list the folder {error.filename}: {error.strerror}.") from error


def entries(folder: Path) -> list[Path]:
    """List a folder, sorted by name, without what is hidden and the ledgers of its folders."""
    found = [folder / name for name in sorted(os.listdir(folder)) if _is_visible(name)]
    return [path for path in found if not path.name.endswith(LEDGER) or path.is_dir()]


def _is_visible(name: str) -> bool:
    """Tell the user's files and folders from those that systems leave behind."""
    return not name.startswith(".") and name.lower() not in (*HIDDEN, *EXPORTED)


def decode(path: Path, channels: int | None, size: tuple[int, int] | None = None) -> np.ndarray:
    """Decode one image to uint8 (C, H, W); None takes its own channels or size.

    Raises:
        DataError: If it is no whole image of 8 bits a channel, or not of the size (H, W).
    """
    image, mode = open_image(path, channels, decode=True, size=size)
    pixels = np.asarray(image.convert(mode))  # (H, W) or (H, W, 3)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def header(path: Path, channels: int | None) -> Shape:
    """Read (C, H, W) from a file's header; grey and what can only be grey has one channel. Raises like `decode`."""
    image, mode = open_image(path, channels or 3)
    grey = image.mode in ("1", "L", "LA") if channels is None else mode == "L"
    return 1 if grey else 3, image.height, image.width


def _reason(error: BaseException) -> str:
    """Return what the system says of a file, without the file's name, which stands before it."""
    return getattr(error, "strerror", None) or str(error)


def open_image(
    path: Path, channels: int | None, decode: bool = False, size: tuple[int, int] | None = None
) -> tuple[Image.Image, str]:
    """Read an image's header, or all of it, and return it with its target mode; refuses a wrong size (H, W) first."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise DataError(f"{path} has an image's name, but is a folder, pipe, socket or device. Replace it.")
        with Image.open(path) as image:
            # The second picture of an MPO photograph is a preview of the first.
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
            kind = next((str(tile.args) for tile in image.tile if ";16" in str(tile.args)), image.mode)
            if decode and size in (None, (image.height, image.width)):
                image.load()
    except DataError:
        raise
    except DAMAGE as error:
        raise DataError(f"Cannot read the image {path}: {_reason(error)}. Replace it.") from error
    if size not in (None, (image.height, image.width)):
        raise DataError(f"{path} is {image.width} x {image.height}, expected {size[1]} x {size[0]}.")
    if frames > 1:
        raise DataError(f"{path} holds {frames} images. Save each as a file of its own.")
    if kind not in (CHANNELS if channels is None else CONVERTIBLE):
        raise DataError(
            f"{path} has the mode {kind}, expected 8-bit grey (L) or RGB. "
            + ("Convert it." if kind not in CONVERTIBLE else "Set data.channels to 1 (grey) or 3 (RGB) to convert.")
        )
    return image, image.mode if channels is None else MODES[channels]


def _shown(shape: tuple[int, ...]) -> str:
    return f"{shape[2]} x {shape[1]} {MODES[shape[0]]}"
