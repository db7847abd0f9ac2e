"""`folder`: any folder of images, laid out as torchvision's `ImageFolder` wants it.

    root/CLASS/*.png           one folder a class, searched to any depth; labels follow the sorted class names
    root/train/..., root/test/...    the set brings its own test images; both sides have the same classes
    root/*.png                 no classes: the images are unlabelled

Formats are those of torchvision (`EXTENSIONS`), 8 bits a channel, grey or RGB; other modes only where `data.channels`
says what to convert to. All images have one size. Only hidden files and folders are left out: ``.DS_Store`` and
whatever else begins with a dot, ``Thumbs.db``, ``desktop.ini``, and what `idpgan sample` writes beside its images
(`EXPORTED`). Any other file that is no image is an error naming it.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.source import Found, Progress
from idpgan.errors import ConfigError, DataError
from idpgan.memory import check_memory

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
HIDDEN = ("thumbs.db", "desktop.ini")
EXPORTED = ("manifest.json", "model_card.md", "privacy.json")  # what `idpgan sample` puts beside its class folders
CHANNELS = {"L": 1, "RGB": 3}
MODES = {1: "L", 3: "RGB"}
CONVERTIBLE = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # 8 bits a channel: Pillow would cut 16 bits off at 255
DAMAGE = (  # what Pillow's decoders raise on files that are no whole image
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError,
    RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)  # 89 million pixels are refused, not drawn
CHUNK = 64  # images a task of a thread
Decoder = Callable[[Path, int | None], np.ndarray]


class Files(NamedTuple):
    """Image files in a fixed order, with their labels."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]  # empty where there are no classes
    classes: tuple[str, ...]


def describe(config: DataConfig) -> Found | None:
    """Count the files, and take the size from the header of the first; None where the folder is not there."""
    if not _root(config).is_dir():
        return None
    train, test = scan(_root(config))
    image, mode = open_image(train.paths[0], config.channels)
    num_test = None if test is None else len(test.paths)
    return Found(len(train.paths), num_test, (CHANNELS[mode], image.height, image.width), train.classes)


def read(config: DataConfig, progress: Progress | None = None) -> tuple[Images, Images | None]:
    """Decode every image once; the second set is that of ``test/``, where there is one.

    Raises:
        DataError: If there are no images, a file is no whole image or is not like the first one, or train/ and test/
            have different classes.
    """
    train, test = scan(_root(config))
    if test is None:
        return read_files(train, config.channels, progress), None
    images = read_files(_joined(train, test), config.channels, progress)
    order = torch.arange(len(images))  # by index, since slices would keep each other's memory alive
    return images.select(order[: len(train.paths)]), images.select(order[len(train.paths) :])


def read_all(root: Path, channels: int | None, progress: Progress | None = None) -> Images:
    """Read a folder as one set, train/ and test/ together where it has them. Raises like `read`."""
    train, test = scan(root)
    return read_files(train if test is None else _joined(train, test), channels, progress)


def count(root: Path) -> int | None:
    """Count the images of a folder without opening one; None where it is not there."""
    return sum(len(files.paths) for files in scan(root) if files is not None) if root.is_dir() else None


def scan(root: Path) -> tuple[Files, Files | None]:
    """List the images of a folder, and those of its ``test/`` where it holds ``train/`` and ``test/``.

    Raises:
        DataError: If there is a file that is no image, no image at all, or a class without images.
    """
    if not root.is_dir():
        raise DataError(
            f"There is no folder {root}. Name the folder of images: data.root, --data-root, or public_root."
        )
    names = {path.name for path in entries(root)}
    if not names & {"train", "test"}:
        return _scan_classes(root), None
    if names != {"train", "test"}:
        raise DataError(
            f"{root} holds {', '.join(sorted(names))}: a folder with train/ or test/ must hold both and nothing else. "
            "Move the rest away, or name one of the folders itself."
        )
    train, test = _scan_classes(root / "train"), _scan_classes(root / "test")
    if train.classes != test.classes:
        different = ", ".join(sorted(set(train.classes) ^ set(test.classes)))
        raise DataError(f"{root}: train/ and test/ must have the same classes, but only one of them has {different}.")
    return train, test


def read_files(
    files: Files, channels: int | None, progress: Progress | None = None, decoder: Decoder | None = None
) -> Images:
    """Decode every file once, on all cores, into one tensor.

    Args:
        files: At least one; the first says what shape all of them must have.
        channels: 1 converts to grey, 3 to RGB, None wants all grey or all RGB.
        progress: Called now and then, from this thread.
        decoder: What makes uint8 (C, H, W) of a path and ``channels``; None is `decode`.

    Raises:
        DataError: For the first file that is damaged or has another shape.
    """
    decoder = decoder or decode
    paths, first = files.paths, decoder(files.paths[0], channels)
    check_memory(
        2 * len(paths) * first.size,  # as they are read, and once more as they are dealt out
        f"{len(paths):,} images of {_shown(first.shape)}, like {paths[0]},",
        "Take fewer, or make them smaller.",
    )
    pixels = np.empty((len(paths), *first.shape), dtype=np.uint8)  # (N, C, H, W)

    def fill(start: int) -> int:
        stop = min(start + CHUNK, len(paths))
        for index in range(start, stop):
            image = decoder(paths[index], channels)
            if image.shape != first.shape:
                raise DataError(
                    f"{paths[index]} is {_shown(image.shape)}, but {paths[0]} is {_shown(first.shape)}: all images "
                    "must have one size and one kind of colour. Crop or resize them; data.channels converts colours."
                )
            pixels[index] = image
        return stop

    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
        for done in pool.map(fill, range(0, len(paths), CHUNK)):
            if progress is not None:
                progress(done, len(paths))
    labels = torch.tensor(files.labels, dtype=torch.int64) if files.classes else None
    return Images(torch.from_numpy(pixels), labels, files.classes)


def _root(config: DataConfig) -> Path:
    """Return the folder of images, which no default stands for."""
    if config.root is None:
        raise ConfigError("data.root is missing: with data.name = 'folder' it names the folder of images.")
    return config.data_root


def _joined(train: Files, test: Files) -> Files:
    """Put two lists with the same classes together."""
    return Files(train.paths + test.paths, train.labels + test.labels, train.classes)


def _scan_classes(root: Path) -> Files:
    """List the images of a folder in the order of torchvision's `ImageFolder`, which is by class, folder and name."""
    members_of_root = entries(root)
    folders = [path for path in members_of_root if path.is_dir()]
    if not folders:
        return Files(_images_among(members_of_root, root), (), ())
    if len(folders) < len(members_of_root):
        stray = next(path for path in members_of_root if not path.is_dir())
        raise DataError(f"{stray} lies beside class folders: move it into one of them, or away.")
    members = [_images_among(walk(folder), folder) for folder in folders]
    labels = [label for label, paths in enumerate(members) for _ in paths]
    return Files(tuple(itertools.chain(*members)), tuple(labels), tuple(folder.name for folder in folders))


def _images_among(paths: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Return the paths if there are any, and if all of them are named like images."""
    for path in paths:
        if path.suffix.lower() not in EXTENSIONS:
            raise DataError(f"{path} is no image (known: {' '.join(EXTENSIONS)}). Convert it, or move it away.")
    if not paths:
        raise DataError(f"{folder} holds no images. Put some there, or name another folder.")
    return tuple(paths)


def walk(folder: Path) -> list[Path]:
    """List all files below a folder, by folder and name."""
    files: list[str] = []
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        found = os.stat(place)
        if (found.st_dev, found.st_ino) in seen:
            raise DataError(f"{place} leads to a folder that is read already: remove the link.")
        seen.add((found.st_dev, found.st_ino))
        folders[:] = filter(_is_visible, folders)
        files += [os.path.join(place, name) for name in filter(_is_visible, names)]
    return [Path(file) for file in sorted(files, key=os.path.split)]


def _unreadable(error: OSError) -> None:
    """Refuse a folder that cannot be listed, which `os.walk` would leave out."""
    raise DataError(f"Cannot list the folder {error.filename}: {error.strerror}.") from error


def entries(folder: Path) -> list[Path]:
    """List a folder, sorted by name, without what is hidden."""
    return [folder / name for name in sorted(os.listdir(folder)) if _is_visible(name)]


def _is_visible(name: str) -> bool:
    """Tell files and folders that people put there from what systems leave behind."""
    return not name.startswith(".") and name.lower() not in (*HIDDEN, *EXPORTED)


def decode(path: Path, channels: int | None) -> np.ndarray:
    """Decode one image to uint8 (C, H, W). Raises like `read`."""
    image, mode = open_image(path, channels, decode=True)
    pixels = np.asarray(image.convert(mode))  # (H, W) or (H, W, 3)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def open_image(path: Path, channels: int | None, decode: bool = False) -> tuple[Image.Image, str]:
    """Read an image's header, or all of it; return it with the mode that it is to have."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise DataError(f"{path} has an image's name, but is a folder, pipe, socket or device. Move it away.")
        with Image.open(path) as image:
            # The second picture of an MPO photograph is a preview of the first.
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
            kind = next((str(tile.args) for tile in image.tile if ";16" in str(tile.args)), image.mode)
            if decode:
                image.load()
    except DataError:
        raise
    except DAMAGE as error:
        raise DataError(f"Cannot read the image {path}: {error}. Replace it, or move it away.") from error
    if frames > 1:
        raise DataError(f"{path} holds {frames} images. Save each as a file of its own.")
    if kind not in (CHANNELS if channels is None else CONVERTIBLE):
        raise DataError(
            f"{path} has the mode {kind}, expected 8-bit grey (L) or RGB. "
            + ("Convert it." if kind not in CONVERTIBLE else "Set data.channels to 1 (grey) or 3 (RGB) to convert.")
        )
    return image, image.mode if channels is None else MODES[channels]


def _shown(shape: tuple[int, ...]) -> str:
    """Show (C, H, W) the way people write sizes."""
    return f"{shape[2]} x {shape[1]} {MODES[shape[0]]}"
