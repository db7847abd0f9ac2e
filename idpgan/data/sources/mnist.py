"""`mnist`: LeCun's digits, 28 x 28 or padded to 32 x 32, in four IDX files; so is the set of `fashion_mnist.py`.

The files, gzipped or not, lie in the data root, in its folder of the source's name, or where torchvision puts them
(``MNIST/raw``). If none is there, torchvision downloads them. The root may be read-only: files
are unpacked in memory. Nothing is written beside them or into the temporary folder, where private images would remain
if the process is killed.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import math
import socket
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from idpgan.data.config import DataConfig
from idpgan.data.source import DataSet, PublicFacts, Read, Refused, Source, labeled, warn_of_null
from idpgan.device import check_memory
from idpgan.errors import DataError
from idpgan.host import Shared

SIDE, PADDED = 28, 32  # px; padded with black to every side, as LeCun and, with him, Shokri and Shmatikov feed networks
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
DOWNLOAD_TIMEOUT = 30  # seconds without a response


class IdxFiles(NamedTuple):
    """A set of the four files.

    Attributes:
        name: The source.
        downloaded: torchvision's class, which is its folder's name too.
        classes: Names, in the order of the labels.
    """

    name: str
    downloaded: str
    classes: tuple[str, ...]

    def find(self, config: DataConfig) -> DataSet:
        """Return the counts in the files' headers; before a download, which loading begins with, the published ones."""
        side = PADDED if config.sides == (PADDED, PADDED) else SIDE  # others are refused as of any source
        root, files = config.data_root, self._located(config.data_root)
        train, test = 60_000, 10_000
        if files is not None:
            train, test = (_shape(files[part[0]], ndim=3)[0] for part in (TRAIN, TEST))
        facts = PublicFacts(train, test, (1, side, side), self.classes)
        return DataSet(facts, lambda progress: self._load(files or self._download(root), side))

    def _load(self, files: Mapping[str, Path], side: int) -> Read:
        """Return the training and the test images, uint8 (N, 1, side, side).

        Raises:
            DataError: If a file is truncated, not IDX, or of another shape, or if images and labels differ in number.
                An image whose label is out of range stands as a null record.
        """
        parts, refused = [], list[Refused]()
        for names in (TRAIN, TEST):
            image_file, label_file = (files[name] for name in names)
            images, labels = _read_idx(image_file, ndim=3), _read_idx(label_file, ndim=1).long()
            if len(images) != len(labels):
                raise DataError(f"{image_file} holds {len(images)} images, but {label_file} {len(labels)} labels.")
            around = [(side - SIDE) // 2] * 4
            padded = torch.nn.functional.pad(images.unsqueeze(1), around)
            part, wrong = labeled(padded, labels, self.classes, label_file)
            parts.append(part)
            refused += wrong
        warn_of_null(refused, sum(map(len, parts)))
        return Read(parts[0], parts[1], tuple(refused))

    def _located(self, root: Path) -> dict[str, Path] | None:
        """Return the four files by their unpacked names; None if no place holds any of them."""
        raw = f"{self.downloaded}/raw"
        for folder in (".", self.name, raw, f"{self.name}/{raw}"):
            place = root / folder
            candidates = {name: (place / name, place / f"{name}.gz") for name in TRAIN + TEST}
            files = {name: next(filter(Path.is_file, paths), None) for name, paths in candidates.items()}
            missing = [name for name, path in files.items() if path is None]
            if not missing:
                return {name: path for name, path in files.items() if path is not None}
            if len(missing) < len(files):
                raise DataError(
                    f"{place} holds files of {self.name}, but not {', '.join(missing)} (or .gz). Put them there too."
                )
        return None

    def _download(self, root: Path) -> dict[str, Path]:
        """Let torchvision download the set below the root, whole or not at all; return the files like `_located`."""
        from torchvision import datasets

        is_new = not root.exists()
        try:
            root.mkdir(parents=True, exist_ok=True)
            with _PATIENT, tempfile.TemporaryDirectory(dir=root) as scratch:
                getattr(datasets, self.downloaded)(scratch, download=True)
                (Path(scratch) / self.downloaded).rename(root / self.downloaded)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            if is_new:
                with contextlib.suppress(OSError):
                    root.rmdir()
            names = ", ".join(f"{name}.gz" for name in TRAIN + TEST)
            raise DataError(
                f"There are no files of {self.name} in {root}, and downloading them failed "
                f"({' '.join(str(error).split())}). Put {names} there, or say where they are: --data-root DIR, "
                "data.root or IDPGAN_DATA."
            ) from error
        return {file: root / self.downloaded / "raw" / file for file in TRAIN + TEST}


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Give connections a timeout: torchvision sets none, and would hang behind a firewall."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(timeout)


_PATIENT = Shared(_patient)


def _shape(path: Path, ndim: int) -> tuple[int, ...]:
    """Read and check an IDX header: magic 0x0800 + dimensions (uint8 data), then one big-endian size for each."""
    with _opened(path) as file:
        header = file.read(4 * (1 + ndim))
    if len(header) < 4 * (1 + ndim) or int.from_bytes(header[:4], "big") != 0x0800 + ndim:
        raise DataError(
            f"{path} has no IDX header of {ndim}-dimensional uint8 data: it must begin with {0x0800 + ndim:08x}, "
            f"but begins with {header[:4].hex() or 'nothing'}. Replace the file by the original."
        )
    shape = struct.unpack(f">{ndim}I", header[4:])
    if shape[0] == 0 or shape[1:] != (SIDE, SIDE)[: ndim - 1]:
        raise DataError(f"{path} declares the shape {shape}, expected N > 0 images of {SIDE} x {SIDE} pixels.")
    return shape


def _read_idx(path: Path, ndim: int) -> Tensor:
    """Read one IDX file of uint8 data: a header, then the numbers in row-major order."""
    shape, header = _shape(path, ndim), 4 * (1 + ndim)
    expected = header + math.prod(shape)
    check_memory(2 * expected, f"{path}, whose header declares {shape},", "Replace the file by the original.")
    with _opened(path) as file:
        content = file.read(expected + 1)  # one byte past the expected end, so that gzip verifies its checksum
    if len(content) != expected:
        problem = "is truncated" if len(content) < expected else "is too long"
        raise DataError(f"{path} {problem}: its header declares {shape}, {expected} bytes. Replace the file.")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file and unpack .gz; errors while reading name the file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Cannot read {path}: {error}. Replace the file by the original.") from error


SOURCE = Source(IdxFiles("mnist", "MNIST", tuple("0123456789")).find)
