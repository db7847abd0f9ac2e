"""`arrays`: images that were in memory, as `idpgan.fit` takes them, kept in one file of tensors for a run to read.

    images   uint8 (N, C, H, W)
    labels   int64 (N,), positions in `data.classes`; absent where these are []
    people   int64 (N,), who is on each image; absent where nobody said so
    null     bool (N,), positions that hold the null record; absent where none does

`gathered` makes `Images` of an array, a tensor or a torch data set. Whatever is public is declared by the caller:
number and shape by the arrays themselves, the classes by the labels or by name, the range of numbers that are not
bytes. An image with a number that is not finite or not in the declared range, or with a label that is none of the
classes, stands as a null record: an error would tell of that image. All images are for training; the set brings no
test images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from idpgan.checks import described
from idpgan.data.config import DataConfig
from idpgan.data.declared import own_root, shown, warn_of_spellings, warn_once
from idpgan.data.images import Images
from idpgan.data.labels import NONE, are_ambiguous, in_order, places, spelled
from idpgan.data.metadata import MOST_CLASSES
from idpgan.data.source import Found, Read
from idpgan.errors import ConfigError, DataError
from idpgan.files import PRIVATE_FILE
from idpgan.progress import Progress, silent

SUFFIX = ".safetensors"
RANGES = {"bytes": (0.0, 255.0), "unit": (0.0, 1.0), "symmetric": (-1.0, 1.0)}
_TOLERANCE = 1e-3  # of the range: rounding that lies beyond its ends
_ROWS = 4096  # converted at once
Range = str | tuple[float, float] | None


# A file of tensors as a data set -----------------------------------------------------------------------------------


def describe(config: DataConfig) -> Found | None:
    """Compare the declared keys with the file's header; return None if the file is missing. No pixel is read."""
    path = own_root(config, "tensors")
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            num, channels, height, width = file.get_slice("images").get_shape()
            people = file.get_tensor("people") if "people" in file.keys() else None  # noqa: SIM118  # not a mapping
            labeled = "labels" in file.keys()  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is not a file of images as idpgan.fit writes it ({error}). Name another.") from error
    counts = () if people is None else tuple(torch.unique(people, return_counts=True)[1].tolist())
    found: dict[str, object] = {"num_images": num, "channels": channels}
    found |= {"num_people": len(counts)} if counts else {}
    for key, there in found.items():
        if getattr(config, key) != there:
            said = getattr(config, key)
            raise DataError(
                f"data.{key} = {shown(said) if said is not None else 'nothing'}, but {path} holds {there}. Declare "
                f"data.{key} = {there}, if that is right."
            )
    if config.classes is None or bool(config.classes) != labeled:
        raise ConfigError(
            f"data.classes must be declared for data.name = 'arrays', and {path} has {'' if labeled else 'no '}labels: "
            "name the classes in the order of the labels, or set []."
        )
    return Found(num, 0, (channels, height, width), config.classes, people=counts)


def read(config: DataConfig, progress: Progress = silent) -> Read:
    """Return all images, and an empty set of test images; raises `DataError` as `describe`."""
    images = read_file(config.data_root, config.classes or ())
    return Read(images, images.select(torch.arange(0)))


def read_file(path: Path, classes: Sequence[str]) -> Images:
    """Return the images of a file; a label that is none of the classes makes a null record."""
    try:
        found = load_file(path)
        labels = found.get("labels") if classes else None
        outside = None if labels is None else (labels < 0) | (labels >= len(classes))
        labels = labels if labels is None or outside is None else labels.masked_fill(outside, 0)
        images = Images(found["images"], labels, tuple(classes) if labels is not None else (), found.get("people"))
    except (SafetensorError, OSError, KeyError) as error:
        raise DataError(f"{path} is not a file of images as idpgan.fit writes it ({error}). Name another.") from error
    nulls = [null for null in (outside, found.get("null")) if null is not None]
    return images.zeroed_out(torch.stack(nulls).any(0)) if nulls and bool(torch.stack(nulls).any()) else images


def read_public(path: Path) -> Images:
    """Return public images and their classes; their null records are left out."""
    return read_file(path, classes_of(path)).existing(least=1)


def classes_of(path: Path) -> tuple[str, ...]:
    """Return the names of the classes that a file says, none for unlabeled images."""
    try:
        with safe_open(path, "pt") as file:
            said = (file.metadata() or {}).get("classes", "[]")
        return tuple(map(str, json.loads(said)))
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is not a file of images as idpgan.fit writes it ({error}). Name another.") from error


def write(path: Path, images: Images) -> None:
    """Write images to a new file that only its owner can read."""
    tensors = {"images": images.images, "labels": images.labels, "people": images.identities, "null": images.null}
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, path, metadata={"classes": json.dumps(images.classes)})
    path.chmod(PRIVATE_FILE)


# Arrays, tensors and torch data sets as images ---------------------------------------------------------------------


def gathered(
    images: Any,
    labels: Any = None,
    *,
    people: Any = None,
    classes: Sequence[str] | None = None,
    pixel_range: Range = None,
    what: str = "images",
    progress: Progress = silent,
) -> Images:
    """Return images from memory as `Images`, on the CPU.

    Args:
        images: A NumPy array or a tensor (N, H, W), (N, H, W, C) or (N, C, H, W), C = 1 or 3; a list of such images or
            of PIL pictures; or a torch data set of images or of pairs (image, label).
        labels: N whole numbers or texts; None takes those of a data set, or makes the images unlabeled.
        people: Who is on each image, N whole numbers or texts.
        classes: Names of the classes, which labels mean as `idpgan.data.labels` says. None: the values that the labels
            have, in order; or the names that a data set brings, whose labels are then positions.
        pixel_range: What black and white are in numbers that are not bytes: "unit" [0, 1], "symmetric" [-1, 1],
            "bytes" [0, 255], or two numbers. It is never taken from the images.
        what: Name of the argument, for errors.

    Raises:
        DataError: If shape or type cannot be images, the range is not said, or labels and people are not N.
    """
    own = None  # names that a data set brings, in the order of its labels
    if hasattr(images, "__getitem__") and not hasattr(images, "shape") and not isinstance(images, str | bytes):
        own = getattr(images, "classes", None) or None if labels is None else None
        images, found = _items(images, what, progress)
        labels = found if labels is None else labels
    pixels = _channels_first(_array(images, what), isinstance(images, Tensor), what)
    values, bad = _bytes(pixels, _range(pixels, pixel_range, what))
    numbers, names, unlabeled = (None, (), None) if labels is None else _labels(labels, classes, own, len(values), what)
    who = None
    if people is not None:
        who, named = _numbered(people, len(values), "people")
        warn_of_spellings(map(str, named), "people")
    null = bad if unlabeled is None else bad | unlabeled
    made = Images(values, numbers, names, who)
    if not bool(null.any()):
        return made
    half = " Are range and classes right?" if 2 * int(null.sum()) > len(null) else ""
    warn_once(
        f"{int(null.sum())} of {len(null)} {what} have numbers outside the declared range or none of the classes and "
        f"stand as null records: they keep their positions and count in N.{half}"
    )
    return made.zeroed_out(null)


def _items(source: Any, what: str, progress: Progress) -> tuple[np.ndarray[Any, Any], list[Any] | None]:
    """Return all images of a sequence, stacked, and their labels where its items are pairs."""
    try:
        num = len(source)
    except TypeError as error:
        raise DataError(
            f"{what} is a {type(source).__name__} without a length. Give a data set that has one."
        ) from error
    pictures: list[np.ndarray[Any, Any]] = []
    labels: list[Any] = []
    for index in range(num):
        item = source[index]
        if isinstance(item, tuple) and len(item) == 1:  # of a TensorDataset without labels
            item = item[0]
        elif isinstance(item, tuple | list) and len(item) == 2:
            item, label = item
            labels.append(label)
        pictures.append(np.asarray(item))
        if pictures[-1].shape != pictures[0].shape or pictures[-1].dtype != pictures[0].dtype:
            raise DataError(
                f"{what}[{index}] is {described(pictures[-1])}, and the first is {described(pictures[0])}: all must be "
                "alike. Resize or convert them."
            )
        progress("read images", index + 1, num)
    if not pictures:
        raise DataError(f"{what} holds no images. Give at least one.")
    stacked = np.stack(pictures)
    if stacked.ndim == 4 and stacked.shape[1] in (1, 3) and stacked.shape[3] not in (1, 3):
        stacked = stacked.transpose(0, 2, 3, 1)
    return stacked, labels if len(labels) == num else None


def _array(images: Any, what: str) -> np.ndarray[Any, Any]:
    """Return an array of numbers, whatever held it."""
    if isinstance(images, Tensor):
        images = images.detach().cpu().numpy()
    if not isinstance(images, np.ndarray) or images.dtype.kind not in "uif":
        raise DataError(
            f"{what} must be a folder, an array or a tensor of numbers, or a torch data set, got {described(images)}."
        )
    return images


def _channels_first(images: np.ndarray[Any, Any], tensor: bool, what: str) -> np.ndarray[Any, Any]:
    """Return (N, C, H, W); where both could be the channels, those of a tensor come first, those of an array last."""
    if images.shape[:1] == (0,):
        raise DataError(f"{what} holds no images. Give at least one.")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4:
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if last and not (first and tensor):
            images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise DataError(
            f"{what} have the shape {tuple(images.shape)}, expected (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 "
            "grey or 3 colors. Reshape rows of pixels, and drop an alpha channel."
        )
    return images


def _range(pixels: np.ndarray[Any, Any], said: Range, what: str) -> tuple[float, float]:
    """Return what black and white are, as declared; bytes need no word."""
    if said is None and pixels.dtype == np.uint8:
        return RANGES["bytes"]
    if said is None:
        raise DataError(
            f"{what} are {pixels.dtype}, and what is black and what is white in them is not said: it is never taken "
            'from the images. Give pixel_range="unit" for [0, 1], "symmetric" for [-1, 1], "bytes" for [0, 255], or '
            "two numbers such as (0, 16)."
        )
    if isinstance(said, str):
        if said not in RANGES:
            raise DataError(f"pixel_range = '{said}' is unknown. Known: {', '.join(RANGES)}, or two numbers.")
        return RANGES[said]
    try:
        low, high = map(float, said)
    except (TypeError, ValueError) as error:
        raise DataError(f"pixel_range = {said!r} must be two numbers, black and white.") from error
    if not (np.isfinite([low, high]).all() and low < high):
        raise DataError(f"pixel_range = ({low:g}, {high:g}) must be two finite numbers, the first below the second.")
    return low, high


def _bytes(pixels: np.ndarray[Any, Any], limits: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return uint8 pixels, and which images have a number that is not finite or beyond the limits."""
    low, high = limits
    bad = torch.zeros(len(pixels), dtype=torch.bool)
    if pixels.dtype == np.uint8 and limits == RANGES["bytes"]:
        return torch.from_numpy(np.array(pixels, order="C")), bad
    made = torch.empty(pixels.shape, dtype=torch.uint8)
    slack = _TOLERANCE * (high - low)
    for start in range(0, len(pixels), _ROWS):
        part = torch.from_numpy(np.ascontiguousarray(pixels[start : start + _ROWS], dtype=np.float64))
        inside = (part >= low - slack) & (part <= high + slack)  # false for NaN
        bad[start : start + _ROWS] = ~inside.flatten(1).all(1)
        scaled = ((part.nan_to_num(nan=low).clamp(low, high) - low) * (255.0 / (high - low)) + 0.5).floor()
        made[start : start + _ROWS] = scaled.to(torch.uint8)
    return made, bad


def _labels(
    labels: Any, classes: Sequence[str] | None, own: Sequence[str] | None, num: int, what: str
) -> tuple[Tensor, tuple[str, ...], Tensor | None]:
    """Return positions in the classes, their names, and which images have none of them.

    Raises:
        DataError: If the labels cannot be classes, or no image at all has one.
    """
    numbers, values = _numbered(labels, num, "labels", floats=True)
    names = tuple(map(str, own if classes is None and own is not None else classes or ()))
    whole = all(isinstance(value, int) or value == "" for value in values)
    if own is not None and whole and NONE not in places(own, names):
        values = [str(own[value]) if value != "" and 0 <= value < len(own) else "" for value in values]
    elif names and whole and are_ambiguous(names):
        raise DataError(
            f"classes are {', '.join(names[:20])}: a number could be the name of one and the position of another. Give "
            "the names of the classes as labels, as texts."
        )
    if not names:
        names = tuple(in_order({spelled(value) for value in values} - {""}))
        if len(names) > min(MOST_CLASSES, max(num // 2, 2)):
            raise DataError(
                f"labels have {len(names):,} values for {num:,} {what}, too many to be classes. Name the classes "
                "(classes=[...]), or leave the labels out."
            )
    found = torch.tensor(places(values, names), dtype=torch.int64)[numbers]
    if bool((found == NONE).all()):
        raise DataError(
            f"none of the {num:,} labels is one of the classes ({', '.join(names[:20]) or 'labels are blank'}). Name "
            "the classes as the labels do (classes=[...])."
        )
    return found.clamp(min=0), names, found == NONE


def _numbered(values: Any, num: int, what: str, floats: bool = False) -> tuple[Tensor, list[Any]]:
    """Return the place of each value among the sorted distinct ones, and these; whole numbers or texts.

    With ``floats`` whole numbers may be floating point ones, and values may be missing, as pandas has them: a blank.
    """
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.ravel()):
        array = array.astype(str)
    listed = array.tolist() if floats and array.ndim == 1 and array.dtype.kind in "fO" else []
    if listed and all(isinstance(value, str | int | float) or not spelled(value) for value in listed):
        array = np.array([spelled(value) for value in listed])
    if array.shape != (num,) or array.dtype.kind not in "biuU":
        one_hot = " Give the number of the class, not a row of zeros and a one." if array.ndim == 2 else ""
        raise DataError(
            f"{what} must be {num:,} whole numbers or texts, one for each image, got {array.dtype} {array.shape}."
            f"{one_hot}"
        )
    distinct, order = np.unique(array, return_inverse=True)
    found = distinct.tolist()
    if listed and not any(isinstance(value, str) for value in listed):
        found = [int(text) if text.lstrip("-").isdecimal() else text for text in found]
    return torch.from_numpy(order.reshape(-1).astype(np.int64)), found
