"""The one way in for images that a caller holds: arrays, tensors, lists, paths, data sets, npz files and folders.

`gathered` makes `Images` of them, by one set of rules:

    layout    (N, H, W), (N, H, W, C) or (N, C, H, W), C = 1 or 3; where both ends could be the channels, those of
              tensors come first, those of arrays last
    range     bytes and truth values need no word; what black and white are in other numbers is declared
    pictures  of PIL stand upright (EXIF), transparent pixels lie on white, colors are RGB
    faults    an image with a number that is not finite or not in the range, or with a label that is none of the
              classes: a null record where something is released, because an error would tell of that image; refused
              where something is measured

Number and shape are those of the images themselves; the classes are declared by name, or else taken from the labels.
"""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from idpgan.checks import described
from idpgan.config import nearest_hint
from idpgan.data import cells, declared, image_files, names_of
from idpgan.data.images import Images, check_class_names
from idpgan.data.labels import Meaning, resolved
from idpgan.data.source import warn_once
from idpgan.data.sources import folder
from idpgan.device import check_memory
from idpgan.errors import DataError, InputError
from idpgan.progress import Progress, silent

RANGES = {"bytes": (0.0, 255.0), "unit": (0.0, 1.0), "symmetric": (-1.0, 1.0)}
AUTO = "auto"  # of images that are measured: found by the darkest and the brightest pixel, or refused
Range = str | Sequence[float] | None
NAMES = {  # of an array or a column: ours, DPImageBench's, those of numpy.savez without names, scikit-learn's, others'
    "images": ("images", "image", "img", "pixel_values", "x", "samples", "arr_0"),
    "labels": ("labels", "label", "y", "target", "targets", "arr_1"),
    "classes": ("classes", "target_names"),
    "positions": ("positions",),
}
_NO_ARCHIVE = (  # what NumPy and zipfile raise on files that are not archives; encrypted parts are a RuntimeError
    OSError, ValueError, EOFError, LookupError, TypeError, SyntaxError, ArithmeticError, AttributeError, RuntimeError,
    MemoryError, struct.error, tokenize.TokenError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
_TOLERANCE = 1e-3  # of the range: rounding that lies beyond its ends
_VALUES = 1 << 22  # converted at once


class _Contents(NamedTuple):
    """What a source holds."""

    pixels: np.ndarray[Any, Any]
    channels_first: bool  # where both ends could be the channels
    labels: Any = None
    classes: Sequence[str] | None = None  # names that a data set or a file brings
    meaning: Meaning = "names"
    null: Tensor | None = None  # files that cannot be used


def gathered(
    images: Any,
    labels: Any = None,
    *,
    people: Any = None,
    classes: Sequence[str] | None = None,
    pixel_range: Range = None,
    what: str = "images",
    private: bool = True,
    labeled: bool = True,
    progress: Progress = silent,
) -> Images:
    """Return images of any source as `Images`, on the CPU.

    Args:
        images: A NumPy array or a tensor; a list of images, PIL pictures or paths of pictures, of pairs (image, label),
            or of mappings with such fields; a torch or Hugging Face data set, or the only one of a `DatasetDict`; a
            torch DataLoader, of which the whole data set is taken; a mapping of arrays or an npz file (its path) with
            ``images``, perhaps ``labels`` and ``classes``; a folder (its path); or a pair of images and labels.
        labels: N whole numbers or texts, or the name of a column of the source; None takes those of the source, or
            makes the images unlabeled.
        people: Who is on each image, N whole numbers or texts, or the name of a column.
        classes: Names of the classes, which labels mean as `idpgan.data.labels` says; those in an npz file come first.
            None: the values that the labels have, in order; or the names that a data set brings, whose labels are then
            positions.
        pixel_range: What black and white are in numbers that are not bytes: "unit" [0, 1], "symmetric" [-1, 1],
            "bytes" [0, 255], or two numbers. It is never taken from private images; "auto" takes it from images that
            are measured, if it is clear, and is the default of npz files among these.
        what: Name of the argument, for errors.
        private: Whether something is released, so that an image that cannot be used becomes a null record; else all
            images are measured, and it is refused.
        labeled: Whether labels of the source are wanted.

    Raises:
        InputError: If shape or type cannot be images, the range is not said, or labels and people are not N.
    """
    if labels is None and isinstance(images, tuple) and len(images) == 2:
        images, labels = images
    images = _unwrapped(images)
    if hasattr(images, "as_images"):
        images = images.as_images()
    if isinstance(images, str | os.PathLike):
        what, path = f"{what} ({images})", Path(images)
        if not path.is_dir() and not (is_npz(path) and path.is_file()):
            raise InputError(f"{what}: there is neither a folder nor an npz file. Name one, or give images in memory.")
        pixel_range = AUTO if pixel_range is None and not private else pixel_range
        images = folder.read_all(path, None, progress) if path.is_dir() else read_npz(path)
    if isinstance(images, Images):
        if labels is not None or people is not None:
            raise InputError(f"{what}: labels and people are for arrays; this source says them itself. Leave them out.")
        return images if private else images.existing()
    if isinstance(labels, np.ma.MaskedArray) or isinstance(people, np.ma.MaskedArray):
        raise DataError(f"{what}: labels or people are a masked array. Give texts, and blanks where nothing is known.")
    column_classes = None
    if isinstance(labels, str):
        labels, column_classes = _column(images, labels, what)
    if isinstance(people, str):
        people, _ = _column(images, people, what)
    contents = _contents(images, what, labeled and labels is None, private, progress)
    contents = contents if column_classes is None else contents._replace(classes=column_classes, meaning="positions")
    pixels = _channels_first(contents.pixels, contents.channels_first, what)
    limits = _limits(pixels, pixel_range, what, private)
    values, outside = _bytes(pixels, limits)
    numbers, names, unlabeled = None, tuple[str, ...](), None
    if labeled and (labels is not None or contents.labels is not None):
        labels = contents.labels if labels is None else labels
        classes = None if isinstance(images, Mapping) and contents.classes is not None else classes
        numbers, names, unlabeled = resolved(
            labels, len(values), what, classes=classes, source_classes=contents.classes, meaning=contents.meaning
        )
        if private and classes is None and contents.classes is not None and not isinstance(images, Mapping):
            numbers, names = names_of.without_empty(numbers, names, unlabeled, what)
        if contents.classes is None or private:  # of what was made before, names stand
            cells.check_names(names, f"{what}: the class")
    identities = None
    if people is not None:
        identities = names_of.people(people, len(values))
    made = _without_faults(Images(values, numbers, names, identities), outside, unlabeled, limits, what, private)
    return made if contents.null is None else made.zeroed_out(contents.null)


def _without_faults(
    images: Images, outside: Tensor, unlabeled: Tensor | None, limits: tuple[float, float], what: str, private: bool
) -> Images:
    """Return images in which those at fault are null records; refuse any where nothing is released."""
    null = outside if unlabeled is None else outside | unlabeled
    if not bool(null.any()):
        return images
    if not private:
        bad, fault = null, f"none of the {len(images.classes)} classes"
        if bool(outside.any()):
            bad, fault = outside, f"numbers that are not finite or outside of [{limits[0]:g}, {limits[1]:g}]"
        raise DataError(
            f"{what}: {int(bad.sum()):,} of {len(bad):,} images, the first in position {int(bad.int().argmax())}, have "
            f"{fault}. Leave them out, or mend them or what is declared."
        )
    half = " Are range and classes right?" if 2 * int(null.sum()) > len(null) else ""
    warn_once(
        f"{int(null.sum())} of {len(null)} {what} have numbers outside the declared range or none of the classes and "
        f"stand as null records: they keep their positions and count in N.{half}"
    )
    return images.zeroed_out(null)


# What holds the images ---------------------------------------------------------------------------------------------


def _unwrapped(images: Any) -> Any:
    """Return the data set of a loader, and the only part of a mapping of data sets."""
    if hasattr(images, "dataset") and not hasattr(images, "__getitem__"):
        warn_once(
            f"Of the {type(images).__name__} the whole data set is taken, each image once: what it draws, and how "
            "often, is not its images."
        )
        images = images.dataset
    if isinstance(images, Mapping) and len(images) == 1 and hasattr(next(iter(images.values())), "features"):
        images = next(iter(images.values()))
    return images


def _column(source: Any, name: str, what: str) -> tuple[list[Any], Sequence[str] | None]:
    """Return a column of a data set or a mapping, and the names of its classes, if it has any."""
    known = list(source) if isinstance(source, Mapping) else list(getattr(source, "column_names", None) or ())
    if name not in known:
        has = f"the columns {', '.join(map(str, known))}" if known else "no columns with names"
        raise DataError(f"{what} has no column '{name}': it has {has}. Name one, or give one value for each image.")
    names = getattr((getattr(source, "features", None) or {}).get(name), "names", None)
    return list(source[name]), names


def _pictures(paths: Sequence[Any], what: str, private: bool, progress: Progress) -> _Contents:
    """Read files: in the size and the colors that most have; one that cannot be used is a null record, or refused."""
    files = image_files.Files(tuple(map(Path, paths)))
    shapes, error = declared.probed(files.paths, None)
    times = Counter(shape for shape in shapes if shape is not None)
    if not times:
        raise DataError(f"{what}: no header looked at can be read. {error}")
    made, refused = image_files.read_files(files, times.most_common(1)[0][0], progress=progress, private=private)
    if refused and not private:
        raise DataError(refused[0].reason)
    return _Contents(made.images.numpy(), True, null=made.is_null)


def _contents(images: Any, what: str, labeled: bool, private: bool, progress: Progress) -> _Contents:
    """Return what a source in memory holds."""
    if isinstance(images, list | tuple) and images and all(isinstance(item, str | os.PathLike) for item in images):
        return _pictures(images, what, private, progress)
    if isinstance(images, Mapping):
        parts = named(images)
        if "images" not in parts:
            raise DataError(
                f"{what} has the parts {', '.join(map(str, images))}, and none of them is called "
                f"{', '.join(NAMES['images'])}. Give one of them: {what}[{next(iter(images), '')!r}]."
            )
        contents = _contents(parts["images"], what, False, private, progress)
        fields = {kind: np.asarray(item) for kind, item in parts.items() if kind != "images"} if labeled else {}
        classes = fields["classes"].tolist() if "classes" in fields else None
        if "positions" not in fields:
            meaning: Meaning = "either" if classes else "names"
            return contents._replace(labels=fields.get("labels"), classes=classes, meaning=meaning)
        if fields["positions"].dtype.kind not in "iu":
            raise DataError(f"{what}: positions are {fields['positions'].dtype}, expected whole numbers.")
        return contents._replace(labels=fields["positions"], classes=classes, meaning="positions")
    if isinstance(images, Tensor | np.ndarray | Image.Image) or hasattr(images, "__array__"):
        pixels = _numbers(images, what, whole=True)
        if pixels.dtype == object:
            return _items(pixels, what, labeled, progress)
        return _Contents(pixels, isinstance(images, Tensor))
    if not hasattr(images, "__getitem__") or isinstance(images, bytes):
        raise DataError(
            f"{what} must be a folder, an npz file, an array or a tensor of numbers, a list of images, or a data set "
            f"with a length, got {described(images)}."
        )
    return _items(images, what, labeled, progress)


def _items(source: Any, what: str, labeled: bool, progress: Progress) -> _Contents:
    """Return all images of a sequence, stacked, and their labels where its items have some."""
    try:
        num = len(source)
    except TypeError as error:
        raise DataError(f"{what}: a {type(source).__name__} without a length. Give a data set with one.") from error
    pixels: list[np.ndarray[Any, Any]] = []
    labels: list[Any] = []
    fields: tuple[str, str | None] | None = None
    features, tensors = getattr(source, "features", None), False  # of Hugging Face; others call their inputs so
    features = features if isinstance(features, Mapping) else {}
    for index in range(num):
        place, item = f"{what}[{index}]", source[index]
        if isinstance(item, tuple) and len(item) > 2 and hasattr(item, "_asdict"):
            item = item._asdict()
        if isinstance(item, Mapping):
            fields = fields or _fields(item, features, what, labeled)
            item = tuple(item.get(field) for field in fields if field is not None)
        if isinstance(item, tuple) and len(item) not in (1, 2):
            raise DataError(f"{place} is a tuple of {len(item)}. Make each item an image, or a pair (image, label).")
        if isinstance(item, tuple) or (isinstance(item, list) and len(item) == 2 and not isinstance(item[0], list)):
            item, *label = item
            labels += label
        tensors = isinstance(item, Tensor) if index == 0 else tensors
        pixels.append(_numbers(item, place))
        if pixels[-1].shape != pixels[0].shape or pixels[-1].dtype != pixels[0].dtype:
            raise DataError(
                f"{place} is {described(pixels[-1])}, and the first is {described(pixels[0])}: all must be alike. "
                "Resize or convert them."
            )
        progress("read images", index + 1, num)
    if not pixels:
        raise DataError(f"{what} holds no images. Give at least one.")
    if labeled and labels and len(labels) < num:
        raise DataError(f"{what} has a label for {len(labels):,} of {num:,} images. Give one for each, or for none.")
    names = getattr(features.get(fields[1]), "names", None) if fields else None
    if labeled and labels and not fields:
        labels, names = names_of.classes(source, labels, what)
    names = [*map(cells.read, names)] if isinstance(names, list | tuple) else None
    return _Contents(
        np.stack(pixels),
        tensors,
        labels if labeled and labels else None,
        names or None,
        "positions" if names else "names",
    )


def _fields(item: Mapping[str, Any], features: Mapping[str, Any], what: str, labeled: bool) -> tuple[str, str | None]:
    """Choose the fields of image and label among those of a data set's first item."""

    def is_image(value: Any) -> bool:
        nested = isinstance(value, list) and bool(value) and isinstance(value[0], list)
        return isinstance(value, Image.Image) or getattr(value, "ndim", 0) >= 2 or nested

    images = [field for field, value in item.items() if is_image(value)]
    images = [field for field in images if field in NAMES["images"]] or images
    labels = [field for field in item if field in NAMES["labels"] or hasattr(features.get(field), "names")]
    for kind, candidates, wanted in (("image", images, 1), ("label", labels, len(labels[:1]))):
        if len(candidates) != wanted and (kind == "image" or labeled):
            raise DataError(
                f"{what} has the fields {', '.join(map(str, item))}, and which one is the {kind} is not clear. "
                + ("Name it: labels=FIELD. Or give " if kind == "label" else "Give ")
                + f"images and labels as lists: [item[FIELD] for item in {what}]."
            )
    return images[0], labels[0] if labeled and labels else None


# Files of arrays, as numpy.savez writes them ---------------------------------------------------------------------


def named(source: Mapping[str, Any], known: Mapping[str, Sequence[str]] = NAMES) -> dict[str, Any]:
    """Return images, labels and classes under one of their `NAMES`, or other things under theirs."""
    chosen = {kind: next((name for name in names if name in source), None) for kind, names in known.items()}
    return {kind: source[name] for kind, name in chosen.items() if name is not None}


def is_npz(path: str | os.PathLike[str]) -> bool:
    """Tell by its name whether a path means an npz file; a folder may be called so, too."""
    return os.fspath(path).endswith(".npz") and not os.path.isdir(path)


def npz_arrays(path: Path, known: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray[Any, Any]]:
    """Read things of these names in an npz file; raises `InputError`, and never loads pickled objects."""
    every = {name for names in known.values() for name in names}
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [item.file_size for item in archive.infolist() if item.filename.removesuffix(".npy") in every]
        check_memory(2 * sum(sizes), f"{path}, unpacked,", "Save fewer images at once.")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            parts = named(arrays, known)
    except InputError:
        raise
    except _NO_ARCHIVE as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path} cannot be read as an npz file of plain arrays ({reason}). Pickled objects are refused, because "
            "loading them runs code: save numbers with numpy.savez."
        ) from error
    for name, array in parts.items():
        if not isinstance(array, np.ndarray):  # an entry without an array header is read as bytes
            raise DataError(f"{path}: '{name}' is not an array. Save numbers with numpy.savez.")
    return parts


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read images, labels and classes; errors as of `npz_arrays`, and if there are no images."""
    parts = npz_arrays(path, NAMES)
    if "classes" in parts:
        names = parts["classes"]
        if names.ndim != 1 or names.dtype.kind not in "US":
            raise DataError(f"{path}: classes are {names.dtype} {names.shape}, expected texts in one row.")
        try:
            parts["classes"] = names.astype(str)
            check_class_names(parts["classes"].tolist())
        except (UnicodeDecodeError, DataError) as error:
            raise DataError(f"{path}: {error}") from error
    if "images" not in parts:
        raise DataError(f"{path} holds no array 'images', x, samples or arr_0. Save images=... with numpy.savez.")
    return parts


# Numbers -----------------------------------------------------------------------------------------------------------


def _numbers(image: Any, what: str, whole: bool = False) -> np.ndarray[Any, Any]:
    """Return an array of numbers, whatever held it; a whole source may be a row of objects."""
    if isinstance(image, str | os.PathLike):
        raise DataError(
            f"{what} is a path among other things. Give a list of paths, the folder that holds the images, or pictures."
        )
    if isinstance(image, np.ma.MaskedArray):
        raise DataError(
            f"{what} is a masked array, and what a masked pixel looks like is not said. Give .filled(VALUE), or leave "
            "out what is masked."
        )
    try:
        if isinstance(image, Image.Image):
            array = np.asarray(_upright(image, what))
        elif isinstance(image, Tensor):
            array = _strided(image).numpy()
        else:
            array = np.asarray(image)
    except InputError:
        raise
    except image_files.DAMAGE as error:  # of a picture; or a ragged list, or a tensor without numbers
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{what} is {described(image)}, which holds no image that can be read ({reason}).") from error
    if array.dtype.kind in "buif" or (whole and array.dtype == object and array.ndim == 1):
        return array
    raise DataError(
        f"{what} must be a folder, an npz file, an array or a tensor of numbers, a list of images, or a data set, got "
        f"{described(image)}. Pixels are whole or floating point numbers."
    )


def _strided(tensor: Tensor) -> Tensor:
    """Return a tensor of any kind as plain numbers on the CPU, of a kind that NumPy has."""
    tensor = tensor.detach()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    known = not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.float32, torch.float64)
    return (tensor if known else tensor.float()).cpu().resolve_neg()


def _upright(picture: Image.Image, what: str) -> Image.Image:
    """Return a picture as it is meant to be seen, L or RGB; one of other than bytes keeps its numbers."""
    if picture.format != "MPO" and getattr(picture, "n_frames", 1) > 1:
        raise DataError(f"{what} holds {getattr(picture, 'n_frames', 0)} pictures. Give each by itself.")
    if picture.mode in ("F", "I") or picture.mode.startswith("I;16"):
        return ImageOps.exif_transpose(picture)  # what is black and what is white is declared, as of an array
    try:
        return image_files.decoded(picture)
    except DataError as error:
        raise DataError(f"{what} {error}.") from error


def _channels_first(images: np.ndarray[Any, Any], first_if_both: bool, what: str) -> np.ndarray[Any, Any]:
    """Return (N, C, H, W)."""
    shape = images.shape
    if shape[:1] == (0,):
        raise DataError(f"{what} holds no images. Give at least one.")
    color = images.ndim == 3 and shape[2] in (3, 4) and min(shape[:2]) > 4
    if images.ndim == 3 and not color:
        images = images[:, None]
    elif images.ndim == 4 and shape[3] in (1, 3) and not (first_if_both and shape[1] in (1, 3)):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] in (1, 3) and 0 not in shape:
        return images
    way_out = "Reshape rows of pixels."
    if color:
        way_out = "Give one color image in a list, and N grey ones of that width as (N, 1, H, W)."
    elif len(shape) == 4 and {shape[1], shape[-1]} & {2, 4}:
        way_out = "Pictures of PIL with an alpha channel are taken, and lie on white: [PIL.Image.fromarray(each), ...]."
    raise DataError(
        f"{what} have the shape {tuple(shape)}, expected (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 grey or 3 "
        f"colors. {way_out}"
    )


def _limits(pixels: np.ndarray[Any, Any], given: Range, what: str, private: bool) -> tuple[float, float]:
    """Return what black and white are, as declared; bytes and truth values need no word."""
    default = {np.dtype(np.uint8): "bytes", np.dtype(bool): "unit"}.get(pixels.dtype)
    if isinstance(given, str) and given not in RANGES and (private or given != AUTO):
        known = RANGES if private else (*RANGES, AUTO)
        raise InputError(f"The pixel range '{given}' is unknown. {nearest_hint(given, known)} Or give two numbers.")
    if default and (given is None or (isinstance(given, str) and not private)):  # bytes stay bytes beside floats
        return RANGES[default]
    ways_out = 'pixel_range="unit" for [0, 1], "symmetric" for [-1, 1], "bytes" for [0, 255] (--range)'
    if given is None or (given == AUTO and pixels.dtype.kind != "f"):
        raise DataError(
            f"{what} are {pixels.dtype}, and what is black and what is white in them is not said: it is never taken "
            f"from the images. Give {ways_out}, or two numbers such as (0, 16)."
        )
    if given == AUTO:
        finite = pixels[np.isfinite(pixels)]
        if not finite.size:
            raise DataError(f"{what}: none of the numbers is finite, all are NaN or infinite. Give pixels.")
        low, high = float(finite.min()), float(finite.max())
        if 0 <= low <= 0.05 and 0.5 < high <= 1:
            return RANGES["unit"]
        if -1 <= low <= -0.5 and high <= 1:
            return RANGES["symmetric"]
        raise DataError(
            f"{what} are in [{low:g}, {high:g}], and what is black and what is white in them is not clear. Give "
            f"{ways_out}; clip what lies outside."
        )
    if isinstance(given, str):
        return RANGES[given]
    try:
        low, high = map(float, given)
    except (TypeError, ValueError) as error:
        raise DataError(f"pixel_range = {given!r} must be two numbers, black and white.") from error
    if not (np.isfinite([low, high]).all() and low < high):
        raise DataError(f"pixel_range = ({low:g}, {high:g}) must be two finite numbers, the first below the second.")
    return low, high


def _bytes(pixels: np.ndarray[Any, Any], limits: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return uint8 pixels, and which images have a number that is not finite or beyond the limits; all are copies."""
    low, high = limits
    bad = np.zeros(len(pixels), dtype=bool)
    if pixels.dtype == np.uint8 and limits == RANGES["bytes"]:
        return torch.from_numpy(np.array(pixels, order="C")), torch.from_numpy(bad)
    made = np.empty(pixels.shape, dtype=np.uint8)
    slack = _TOLERANCE * (high - low)
    count = max(1, _VALUES // pixels[0].size)
    for start in range(0, len(pixels), count):
        part = pixels[start : start + count].astype(np.float64)
        bad[start : start + count] = ~((part >= low - slack) & (part <= high + slack)).all((1, 2, 3))  # NaN is neither
        part = np.nan_to_num(part, copy=False, nan=low).clip(low, high)
        made[start : start + count] = np.floor((part - low) * (255.0 / (high - low)) + 0.5)
    return torch.from_numpy(made), torch.from_numpy(bad)
