"""`svhn`: street view house numbers (Netzer et al. 2011), 32 x 32 in color, in the two MATLAB files of the set.

``train_32x32.mat`` and ``test_32x32.mat`` lie in the data root or in its folder ``svhn``, and are never downloaded. The
files call the digit 0 by 10.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.source import DataSet, PublicFacts, Read, Refused, Source, labeled, warn_of_null
from idpgan.device import check_memory
from idpgan.errors import DataError
from idpgan.progress import Progress

CLASSES = tuple("0123456789")
SHAPE = (3, 32, 32)  # (C, H, W)
FOLDERS = (".", "svhn", "SVHN")
TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


def find(config: DataConfig) -> DataSet | None:
    """Count the images by the files' headers; None if the files are missing."""
    files = _locate(config.data_root)
    if files is None:
        return None
    train, test = files
    return DataSet(PublicFacts(_count(train), _count(test), SHAPE, CLASSES), lambda progress: _load(files, progress))


def _load(files: tuple[Path, Path], progress: Progress) -> Read:
    """Return the training and the test images, uint8 (N, 3, 32, 32).

    Raises:
        DataError: If a file is damaged or of another shape. An image whose label is none of 1 to 10 stands as a null
            record.
    """
    (images, wrong), (test, wrong_of_test) = map(_read, files)
    refused = (*wrong, *wrong_of_test)
    warn_of_null(refused, len(images) + len(test))
    return Read(images, test, refused)


def _locate(root: Path) -> tuple[Path, Path] | None:
    """Return the two files; None if no place holds either of them."""
    for folder in FOLDERS:
        train, test = root / folder / TRAIN, root / folder / TEST
        if train.is_file() and test.is_file():
            return train, test
        if train.is_file() or test.is_file():
            lacks = test if train.is_file() else train
            raise DataError(f"{lacks.parent} holds SVHN files, but not {lacks.name}. Put it there too.")
    return None


def _count(path: Path) -> int:
    """Return the number of images that a file declares: X uint8 (32, 32, 3, N) and y (N, 1)."""
    from scipy.io import whosmat

    with _named(path):
        declared = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    shape, kind = declared.get("X", ((), ""))
    if len(shape) != 4 or shape[:3] != (32, 32, 3) or shape[3] == 0 or kind != "uint8":
        raise DataError(f"{path} must hold X, uint8 32 x 32 x 3 x N, but has {declared}. Replace it by the original.")
    if declared.get("y", ((), ""))[0] != (shape[3], 1):
        raise DataError(f"{path} holds {shape[3]} images, but not as many labels y: {declared}. Replace the file.")
    return int(shape[3])


def _read(path: Path) -> tuple[Images, list[Refused]]:
    from scipy.io import loadmat

    num = _count(path)
    check_memory(3 * num * 32 * 32 * 3, f"{path} with {num:,} images", "Replace the file by the original.")
    with _named(path):
        content: dict[str, Any] = loadmat(path, variable_names=("X", "y"))
        images = torch.from_numpy(content["X"].transpose(3, 2, 0, 1).copy())
        labels = torch.from_numpy(content["y"][:, 0].astype("int64"))
    return labeled(images, torch.where(labels == 10, 0, torch.where(labels == 0, 10, labels)), CLASSES, path)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors while reading name the file; scipy raises many kinds of them, and some without a word."""
    from scipy.io.matlab import MatReadError

    damaged = (ArithmeticError, LookupError, MatReadError, NotImplementedError, TypeError, ValueError, zlib.error)
    try:
        yield
    except (OSError, *damaged) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"Cannot read {path} as a MATLAB file: {why}. Replace it by the original.") from error


SOURCE = Source(
    find,
    f"There is no {TRAIN} in {{root}} or its folder svhn. SVHN is not downloaded: put {TRAIN} and {TEST} there, or say "
    "where they are: --data-root DIR, data.root or IDPGAN_DATA.",
)
