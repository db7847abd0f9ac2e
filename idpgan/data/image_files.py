"""Image files: listing them below a folder, reading their headers, and decoding their pixels.

Formats are those of torchvision (`EXTENSIONS`), 8 bits a channel. Only hidden files and folders are left out: every
name that begins with a dot, ``Thumbs.db``, ``desktop.ini``, what `idpgan sample` writes beside its images (`EXPORTED`),
and ledgers of folders (`LEDGER`).
"""

from __future__ import annotations

import logging
import math
import os
import stat
import struct
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from idpgan.data.images import Images
from idpgan.data.labels import NONE
from idpgan.data.source import Refused, warn_of_null
from idpgan.errors import DataError
from idpgan.memory import check_room, let_go, zeros
from idpgan.progress import Progress, silent

_LOG = logging.getLogger(__name__)
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # those of torchvision
EXPORTED = ("manifest.json", "readme.md", "privacy.json")  # what `idpgan sample` puts beside its class folders
HIDDEN = ("thumbs.db", "desktop.ini", *EXPORTED)
LEDGER = ".ledger.json"  # suffix to a folder's name: the file beside it that lists its publications
MODES = {1: "L", 3: "RGB"}
CONVERTIBLE = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # 8 bits a channel: Pillow would clip 16 bits at 255
DAMAGE = (  # exceptions of Pillow's decoders for incomplete images
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError,
    RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)  # refuses over 89 million pixels
CHUNK = 64  # images per task of a thread
Shape = tuple[int, int, int]  # (C, H, W)
UNWANTED = NONE  # label of a file whose class is not on the list


class Files(NamedTuple):
    """Image files in a fixed order, and what is known about each before it is opened."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...] = ()  # empty where there are no classes
    classes: tuple[str, ...] = ()
    unwanted: str = "lies in a folder that is none of data.classes"  # reason given for a label UNWANTED
    people: tuple[int, ...] = ()  # person on each image; empty if unknown
    attributes: tuple[tuple[int, ...], ...] = ()  # attribute bits of each image
    attribute_names: tuple[str, ...] = ()


def walk(folder: Path, *, ledgers: bool = False) -> list[Path]:
    """List all files below a folder, by folder and name; or list the ledgers of its folders instead."""

    def refuse(error: OSError) -> None:  # `os.walk` would silently skip the folder
        raise DataError(f"Cannot list the folder {error.filename}: {error.strerror}.") from error

    files: list[str] = []
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        found = os.stat(place)
        if (found.st_dev, found.st_ino) in seen:
            raise DataError(f"{place} leads to a folder that is read already: remove the link.")
        seen.add((found.st_dev, found.st_ino))
        folders[:] = filter(_is_visible, folders)
        wanted = [name for name in filter(_is_visible, names) if name.endswith(LEDGER) == ledgers]
        files += [os.path.join(place, name) for name in wanted]
    return [Path(file) for file in sorted(files, key=os.path.split)]


def entries(folder: Path) -> list[Path]:
    """List a folder, sorted by name, without hidden entries and without the ledgers of its folders."""
    found = [folder / name for name in sorted(os.listdir(folder)) if _is_visible(name)]
    return [path for path in found if not path.name.endswith(LEDGER) or path.is_dir()]


def _is_visible(name: str) -> bool:
    """Distinguish the user's files and folders from those that operating systems create."""
    return not name.startswith(".") and name.lower() not in HIDDEN


def open_image(
    path: Path, channels: int | None, decode: bool = False, size: tuple[int, int] | None = None
) -> tuple[Image.Image, str]:
    """Open an image, decoded or not, and return it with its target mode; a wrong size (H, W) is refused first."""
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
        reason = getattr(error, "strerror", None) or str(error)  # the system's message without the file name
        raise DataError(f"Cannot read the image {path}: {reason}. Replace it.") from error
    if size not in (None, (image.height, image.width)):
        raise DataError(f"{path} is {image.width} x {image.height}, expected {size[1]} x {size[0]}.")
    if frames > 1:
        raise DataError(f"{path} holds {frames} images. Save each as a file of its own.")
    if kind not in (MODES.values() if channels is None else CONVERTIBLE):
        raise DataError(
            f"{path} has the mode {kind}, expected 8-bit grey (L) or RGB. "
            + ("Convert it." if kind not in CONVERTIBLE else "Set data.channels to 1 (grey) or 3 (RGB) to convert.")
        )
    return image, image.mode if channels is None else MODES[channels]


def header(path: Path, channels: int | None) -> Shape:
    """Read (C, H, W) from a file's header; grey and black-and-white images have one channel. Raises like `decode`."""
    image, mode = open_image(path, channels or 3)
    grey = image.mode in ("1", "L", "LA") if channels is None else mode == "L"
    return 1 if grey else 3, image.height, image.width


def decode(path: Path, channels: int | None, size: tuple[int, int] | None = None) -> np.ndarray:
    """Decode one image to uint8 (C, H, W); None keeps the image's own channels or size.

    Raises:
        DataError: If it is not a whole image of 8 bits a channel, or not of the size (H, W).
    """
    image, mode = open_image(path, channels, decode=True, size=size)
    return planes(image.convert(mode))


def planes(image: Image.Image) -> np.ndarray:
    """Return a grey or RGB picture as uint8 (C, H, W)."""
    pixels = np.asarray(image)  # (H, W) or (H, W, 3)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def read_files(
    files: Files,
    shape: Shape,
    decoder: Callable[[Path], np.ndarray] | None = None,
    progress: Progress = silent,
    *,
    private: bool = True,
) -> tuple[Images, tuple[Refused, ...]]:
    """Decode every file once, on all cores, into one tensor; an unusable file becomes a null record.

    Null records, and copies among private images, are reported on the terminal only, to the curator.

    Args:
        shape: (C, H, W) of each image.
        decoder: Returns uint8 (C, H, W), or raises a `DataError`; None is `decode`.

    Returns:
        One image for each file, in their order, and the null records among them.
    """
    paths = files.paths
    check_room(
        len(paths) * math.prod(shape),
        2,  # once as read, and once more when they are split
        f"{len(paths):,} images of {in_words(shape)}",
        "Take fewer, or make them smaller.",
    )
    stored = zeros((len(paths), *shape), torch.uint8)
    pixels = stored.numpy()  # (N, C, H, W)
    null = torch.zeros(len(paths), dtype=torch.bool)

    def fill(start: int) -> list[Refused]:
        refused = []
        for index in range(start, min(start + CHUNK, len(paths))):
            try:
                if files.labels and files.labels[index] == UNWANTED:
                    raise DataError(f"{paths[index]} {files.unwanted}.")
                pixels[index] = decode(paths[index], shape[0], shape[1:]) if decoder is None else decoder(paths[index])
            except DataError as error:
                null[index] = True
                refused.append(Refused(paths[index], str(error)))
        return refused

    refused: list[Refused] = []
    with ThreadPoolExecutor() as pool:  # Pillow releases the interpreter lock while it decodes
        for done, part in enumerate(pool.map(fill, range(0, len(paths), CHUNK)), start=1):
            refused += part
            let_go(stored)
            progress("read images", min(done * CHUNK, len(paths)), len(paths))
    images = Images(
        stored,
        torch.tensor(files.labels, dtype=torch.int64) if files.classes else None,
        files.classes,
        torch.tensor(files.people) if files.people else None,
        torch.tensor(files.attributes, dtype=torch.uint8) if files.attribute_names else None,
        files.attribute_names,
    )
    images = images.zeroed_out(null) if refused else images
    if private:
        warn_of_null(refused, len(paths))
        _warn_of_equal(paths, images)
    return images, tuple(refused)


def _warn_of_equal(paths: Sequence[Path], images: Images) -> None:
    """Report duplicate pictures on the terminal: each copy is a separate record, and is protected as one."""
    places = defaultdict(list)
    for path, digest, is_null in zip(paths, images.digests(), images.is_null.tolist(), strict=True):
        if not is_null:
            places[digest].append(path)
    copied = [same for same in places.values() if len(same) > 1]
    if copied:
        _LOG.warning(
            "Exact copies of other pictures: %d, as %s = %s. Each is a record of its own: with unit image, whoever is "
            "on k of them has k epsilon.",
            sum(map(len, copied)) - len(copied), *copied[0][:2],
        )  # fmt: skip


def in_words(shape: tuple[int, ...]) -> str:
    """Return (C, H, W) in words: 48 x 48 RGB."""
    return f"{shape[2]} x {shape[1]} {MODES[shape[0]]}"
