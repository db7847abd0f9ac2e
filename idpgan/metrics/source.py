"""Read the images under test, whoever made them: a generator, a folder of images, or an npz file."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data import folder
from idpgan.data.images import Images, numbered_by, to_uint8
from idpgan.errors import DataError, InputError
from idpgan.memory import check_memory
from idpgan.models.checkpoint import WEIGHTS
from idpgan.models.generator import Generator
from idpgan.progress import Progress, silent

Kind = Literal["generator", "folder", "npz"]
PIXEL_RANGES = ("auto", "unit", "symmetric")
_DAMAGE = (  # what NumPy and zipfile raise on files that are not archives; encrypted parts are a RuntimeError
    OSError, ValueError, EOFError, LookupError, TypeError, SyntaxError, ArithmeticError, AttributeError, RuntimeError,
    MemoryError, struct.error, tokenize.TokenError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
_NAMES = {  # of an array, as the tools write it: ours, DPImageBench's, and those of numpy.savez without names
    "images": ("images", "x", "samples", "arr_0"),
    "labels": ("labels", "y", "arr_1"),
    "classes": ("classes",),
}
_ARRAYS = [name for names in _NAMES.values() for name in names]


def kind_of(path: Path) -> Kind:
    """Tell what lies at a path, without reading it.

    Raises:
        InputError: If nothing is there, or a file of another kind.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist. Name a run, a release, a folder of images or an npz file.")
    if path.is_dir():
        is_run = (path / "config.toml").is_file() or (path / "release").is_dir()
        return "generator" if is_run or (path / WEIGHTS).is_file() else "folder"
    if not path.is_file():
        raise InputError(
            f"{path} is a pipe, socket or device. Name a run, a release, a folder of images or an npz file."
        )
    if path.suffix == ".npz":
        return "npz"
    if path.name == WEIGHTS:
        return "generator"
    raise InputError(f"{path} is not an npz file. Name a run, a release, a folder of images or an npz file.")


@typed
def read_images(
    path: Path | Generator,
    image_shape: tuple[int, int, int],
    classes: tuple[str, ...],
    *,
    num: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    pixel_range: str = "auto",
    progress: Progress = silent,
) -> Images:
    """Read the images under test, and make sure that they can be compared with a data set.

    Args:
        path: A generator: images are drawn, the classes in turn. Or a folder with one folder of images per class,
            named like the class, or of unlabeled images. Or an npz file with ``images`` (N, H, W),
            (N, H, W, C) or (N, C, H, W), uint8 or floating point, perhaps ``labels`` (N,), integers, and perhaps
            ``classes``, names in the order of the labels. Pickled objects are never loaded.
        image_shape: (C, H, W) of the data set.
        classes: Classes of the data set; none drops all labels.
        num: Images to draw from a generator.
        pixel_range: Of floating point images: "unit" [0, 1], "symmetric" [-1, 1]; "auto" finds out, and refuses what
            could be either.

    Returns:
        The images, on the CPU, with the labels and classes of the data set, or unlabeled.

    Raises:
        InputError: If nothing can be read, or images or labels do not fit the data set. The message names the file.
    """
    if pixel_range not in PIXEL_RANGES:
        raise InputError(f"The pixel range '{pixel_range}' is unknown. {nearest_hint(pixel_range, PIXEL_RANGES)}")
    source = "the generator" if isinstance(path, Generator) else path
    if isinstance(path, Generator):
        images = _sample(path, num, seed, device, progress)
    elif _kind_of_images(path) == "folder":
        images = folder.read_all(path, None, progress)
    else:
        images = _read_npz(path, image_shape, classes, pixel_range)
    if images.image_shape != image_shape:
        raise DataError(
            f"{source}: images have the shape (C, H, W) = {images.image_shape}, but the data set has {image_shape}. "
            "Nothing is resized or converted here."
        )
    if images.labels is None or not classes:
        return Images(images.images)
    unknown = sorted(set(images.classes) - set(classes))
    if unknown:
        raise DataError(
            f"{source} has the class '{unknown[0]}', which is none of the data set's ({', '.join(classes)}). "
            "Name the classes alike."
        )
    return numbered_by(images, classes)  # as the data set does, by the names of the classes


@typed
def read_foreign(
    path: Path | Generator,
    *,
    num: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    pixel_range: str = "auto",
    progress: Progress = silent,
) -> Images:
    """Read images of any shape that another tool has made, and its labels; arguments and errors as of `read_images`.

    Without class names in the file classes are called by their numbers. People are those of a folder's metadata.csv.
    """
    if isinstance(path, Generator):
        return _sample(path, num, seed, device, progress)
    if _kind_of_images(path) == "folder":
        return folder.read_all(path, None, progress)
    return images_of(load_arrays(path), path, pixel_range)


def images_of(arrays: Mapping[str, np.ndarray[Any, Any]], source: Path | str, pixel_range: str = "auto") -> Images:
    """Return the images of an array "images" of any shape and layout, with the labels and classes beside it.

    Raises:
        InputError: If they do not fit together; the message names the ``source``.
    """
    if "images" not in arrays:
        raise DataError(f"{source} holds no array 'images', x, samples or arr_0. Save images=... with numpy.savez.")
    shape, labels = _shape_of(arrays["images"], source), arrays.get("labels")
    if labels is None or labels.dtype.kind not in "iu" or not labels.size:
        return _fitted(arrays, shape, (), pixel_range, source)
    return _fitted(arrays, shape, tuple(map(str, range(int(labels.max()) + 1))), pixel_range, source)


def _shape_of(images: np.ndarray[Any, Any], source: Path | str) -> tuple[int, int, int]:
    """Return (C, H, W) of an array (N, H, W), (N, C, H, W) or (N, H, W, C), C = 1 or 3; the last two in this order."""
    if images.ndim == 3:
        return (1, int(images.shape[1]), int(images.shape[2]))
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return (int(images.shape[3]), int(images.shape[1]), int(images.shape[2]))
    raise DataError(
        f"{source}: images have the shape {images.shape}, expected (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 "
        "(grey) or 3 (RGB)."
    )


def _kind_of_images(path: Path) -> Kind:
    """Tell whether a path is a folder or an npz file; a release is checked where it is loaded, and not loaded here."""
    kind = kind_of(path)
    if kind == "generator":
        raise InputError(f"{path} holds a generator: load it with idpgan.load_generator, and give that.")
    return kind


def _sample(generator: Generator, num: int, seed: int, device: torch.device | str, progress: Progress) -> Images:
    if num < 1:
        raise InputError(f"{num} images are too few to judge a generator by. Ask for more with --num.")
    return generator.to(device).sample_images(num, seed=seed, progress=progress)


def _read_npz(path: Path, image_shape: tuple[int, int, int], classes: tuple[str, ...], pixel_range: str) -> Images:
    """Read an npz file, its own class names included if it has some."""
    arrays = load_arrays(path)
    if "images" not in arrays:
        raise DataError(f"{path} holds no array 'images'. Save images=... and labels=... with numpy.savez.")
    return _fitted(arrays, image_shape, classes, pixel_range, path)


def _fitted(
    arrays: Mapping[str, np.ndarray[Any, Any]],
    image_shape: tuple[int, int, int],
    classes: tuple[str, ...],
    pixel_range: str,
    path: Path | str,
) -> Images:
    """Return arrays as images of that shape, with labels if there are classes; the arrays' own names come first."""
    pixels = _pixels(_channels_first(arrays["images"], image_shape, path), pixel_range, path)
    if "labels" not in arrays or not classes:
        return Images(pixels)
    names = classes
    if "classes" in arrays:
        texts = arrays["classes"]
        if texts.ndim != 1 or texts.dtype.kind not in "US":
            raise DataError(
                f"{path}: classes are {texts.dtype} {texts.shape}, expected texts in one row, one per class."
            )
        try:
            names = tuple(texts.astype(str).tolist())
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: a class name is not ASCII text ({error}). Save the names as texts, not bytes."
            ) from error
    if len(set(names)) < len(names):
        raise DataError(f"{path}: classes are {', '.join(names)}: one name stands twice.")
    return Images(pixels, _labels(arrays["labels"], len(pixels), len(names), path), names)


def load_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read images, labels and classes of an npz file under one of their `_NAMES`, as plain numbers and texts only."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(
                item.file_size for item in archive.infolist() if item.filename.removesuffix(".npy") in _ARRAYS
            )
        check_memory(2 * unpacked, f"{path}, unpacked,", "Save fewer images at once.")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            chosen = {
                name: next((each for each in names if each in arrays.files), "") for name, names in _NAMES.items()
            }
            read = {name: arrays[each] for name, each in chosen.items() if each}
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path} cannot be read as an npz file of plain arrays ({reason}). Pickled objects are refused, because "
            "loading them runs code: save numbers with numpy.savez."
        ) from error
    for name, array in read.items():
        if not isinstance(array, np.ndarray):  # an entry without an array header is read as bytes
            raise DataError(f"{path}: '{name}' is not an array. Save numbers with numpy.savez.")
    return read


def _channels_first(images: np.ndarray[Any, Any], image_shape: tuple[int, int, int], path: Path | str) -> Tensor:
    """Return the array as (N, C, H, W), whichever of the three layouts it has."""
    channels, height, width = image_shape
    if images.dtype.kind not in "fu" or (images.dtype.kind == "u" and images.dtype.itemsize > 1):
        raise DataError(f"{path}: images are {images.dtype}, expected uint8 or floating point.")
    if images.ndim == 3 and channels == 1:
        images = images[:, None]
    orders = {(channels, height, width): (0, 1, 2, 3), (height, width, channels): (0, 3, 1, 2)}
    if images.shape[1:] not in orders:
        grey = "(N, H, W), " if channels == 1 else ""
        raise DataError(
            f"{path}: images have the shape {images.shape}, expected {grey}(N, H, W, C) or (N, C, H, W) with "
            f"C = {channels}, H = {height}, W = {width} as in the data set. Nothing is resized or converted here."
        )
    if len(images) == 0:
        raise DataError(f"{path} holds no images.")
    dtype = np.uint8 if images.dtype.kind == "u" else np.float32  # in the byte order of this machine
    with np.errstate(over="ignore"):  # infinity is refused later
        return torch.from_numpy(np.ascontiguousarray(images.transpose(orders[images.shape[1:]]), dtype=dtype))


def _pixels(images: Tensor, pixel_range: str, path: Path | str) -> Tensor:
    """Return images as uint8, or refuse those that are not in the range."""
    if images.dtype == torch.uint8:
        return images
    if not bool(images.isfinite().all()):
        raise DataError(f"{path}: images hold NaN or infinity. Remove such images, or mend what made them.")
    low, high = images.min().item(), images.max().item()
    chosen = pixel_range
    if pixel_range == "auto":  # by the darkest and the brightest pixel; what could be either is refused
        if low < -1 or high > 1:
            raise DataError(
                f"{path}: images are in [{low:g}, {high:g}], but floating point images must be in [0, 1] or [-1, 1]. "
                "Clip them, or save uint8 [0, 255]."
            )
        if not (0 <= low <= 0.05 and high > 0.5) and low > -0.5:
            raise DataError(
                f"{path}: images are in [{low:g}, {high:g}], which could be meant as [0, 1] or as [-1, 1]. "
                "Say which with --range unit or --range symmetric."
            )
        chosen = "unit" if low >= 0 else "symmetric"
    limit = 0.0 if chosen == "unit" else -1.0
    if low < limit or high > 1:
        raise DataError(
            f"{path}: images are in [{low:g}, {high:g}], outside of [{limit:g}, 1]. Clip them, or save uint8 [0, 255]."
        )
    return to_uint8(images * 2 - 1 if chosen == "unit" else images)


def _labels(labels: np.ndarray[Any, Any], num: int, num_classes: int, path: Path | str) -> Tensor:
    if labels.shape != (num,) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: labels are {labels.dtype} of the shape {labels.shape}, expected integers of the shape ({num},): "
            "one for each image."
        )
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(
            f"{path}: labels are in [{labels.min()}, {labels.max()}], but {num_classes} classes are known: labels must "
            f"be in [0, {num_classes - 1}]."
        )
    return torch.from_numpy(labels.astype(np.int64))
