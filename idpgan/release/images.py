"""Images as an artifact: 8-bit PNG files, one per private image, in the order of the private images."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pydantic

from idpgan.config import Section, build
from idpgan.data.images import grid_pixels, make_grid, png_bytes
from idpgan.device import check_memory
from idpgan.errors import InputError
from idpgan.files import MOST_TEXT_BYTES, printable, write_bytes_atomic
from idpgan.lazy import torch
from idpgan.release.mark import SAMPLES, most_png_bytes, png_pixels

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "images"
MOST_IMAGES = 100_000  # most images: each is hashed in privacy.json
_MOST_PIXELS = 1 << 34
_LONGEST_NAME, _MOST_FOLDERS = 200, 8  # most bytes in the name of a folder or file; most folders above a file
_BYTES_PER_NAME = 120  # bytes in privacy.json for each image, beside its name
_SHOWN = 64  # first images that the picture shows
_COLUMNS = 8


class _Described(Section):
    """The entry "images" of config.json."""

    num: int = pydantic.Field(ge=1, le=MOST_IMAGES)
    image_shape: list[int] = pydantic.Field(min_length=3, max_length=3)
    names: list[str] | None = pydantic.Field(default=None, max_length=MOST_IMAGES)


class ImagesArtifact:
    """Images, one for each private one; an `idpgan.release.artifact.Artifact`.

    Attributes:
        num: Number of images.
        image_shape: (C, H, W), C = 1 or 3.
        names: Of the files below ``images/``, in the order of the images; None = six digits.
    """

    kind: ClassVar[str] = "images"
    card: ClassVar[str] = "images"

    def __init__(
        self,
        num: int,
        image_shape: tuple[int, int, int],
        images: Tensor | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        channels, height, width = image_shape
        if channels not in (1, 3) or min(height, width) < 1 or num * height * width > _MOST_PIXELS:
            raise InputError(f"{num:,} images of shape {list(image_shape)} cannot be released as PNG files.")
        if not 1 <= num <= MOST_IMAGES:
            raise InputError(f"{num:,} images are released, but at most {MOST_IMAGES:,} fit into one folder.")
        self.num, self.image_shape = num, image_shape
        self._pixels = None if images is None else images.numpy()  # no tensor: `verify` needs none
        self.names = None if names is None else tuple(names)
        if self.names is not None:
            _check_names(self.names, num)

    @property
    def images(self) -> Tensor | None:
        """The images, uint8 (N, C, H, W) on the CPU; None until `read`."""
        return None if self._pixels is None else torch.from_numpy(self._pixels)

    @classmethod
    def of(cls, images: Tensor, names: Sequence[str] | None = None) -> Self:
        """Return the artifact of images, uint8 (N, C, H, W), and of their files' names.

        Raises:
            InputError: If the images have another type or shape, a name cannot be used, or there are too many of them.
        """
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise InputError(f"images to give away are uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}.")
        num, channels, height, width = images.shape
        return cls(num, (channels, height, width), images.cpu(), names)

    def files(self) -> Mapping[str, int]:
        """Return one PNG file per image, and the picture of the first ones, each with the most bytes it can have."""
        most = most_png_bytes(self.image_shape)
        num_shown = min(self.num, _SHOWN)
        rows, columns = -(-num_shown // _COLUMNS), min(num_shown, _COLUMNS)
        channels, height, width = self.image_shape
        grid = most_png_bytes((channels, rows * (height + 2), columns * (width + 2)))
        return {**{self._name(index): most for index in range(self.num)}, SAMPLES: grid}

    def _name(self, index: int) -> str:
        return f"{FOLDER}/{index:06d}.png" if self.names is None else f"{FOLDER}/{self.names[index]}"

    def describe(self) -> dict[str, Any]:
        """Return number and shape, and the names of the files where they have names."""
        described: dict[str, Any] = {"num": self.num, "image_shape": list(self.image_shape)}
        return described if self.names is None else {**described, "names": list(self.names)}

    def write(self, folder: Path) -> None:
        """Write the images and the picture."""
        images = self.images
        if images is None:
            raise ValueError("these images are described, not read.")
        for index, image in enumerate(images):
            path = folder / self._name(index)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png_bytes(image))  # the folder is durable or absent as a whole
        write_bytes_atomic(folder / SAMPLES, png_bytes(make_grid(images[:_SHOWN], self._columns)))

    @property
    def _columns(self) -> int:
        return min(self.num, _COLUMNS)

    @classmethod
    def from_description(cls, described: Any) -> Self:
        """Check number, shape and names; the images are None until `read`."""
        checked = build(_Described, described, "images of config.json")
        channels, height, width = checked.image_shape
        return cls(checked.num, (channels, height, width), names=checked.names)

    def read(self, files: Mapping[str, bytes]) -> list[str]:
        """Check that every file holds the pixels of one image and nothing else, and that the picture shows them."""
        check_memory(
            self.num * math.prod(self.image_shape), "the images that config.json describes", "It may be forged."
        )
        images = np.empty((self.num, *self.image_shape), dtype=np.uint8)
        name = SAMPLES
        try:
            for index in range(self.num):
                name = self._name(index)
                images[index] = png_pixels(files[name], self.image_shape)
            self._pixels, expected, name = images, grid_pixels(images[:_SHOWN], self._columns), SAMPLES
            picture = png_pixels(files[name], (expected.shape[0], expected.shape[1], expected.shape[2]))
        except ValueError as error:
            return [f"{name} {error}."]
        return [] if np.array_equal(picture, expected) else [f"{SAMPLES} does not show the images of the release."]


class ObfuscatedImages(ImagesArtifact):
    """Images that went through an obfuscator, as versions before 0.4.0 called them; they are `ImagesArtifact` now."""

    kind: ClassVar[str] = "obfuscated"


def _check_names(names: Sequence[str], num: int) -> None:
    """Refuse names that are not plain relative paths, and a name that stands for two files."""
    if len(names) != num or len(set(names)) < num:
        raise InputError(f"{num:,} images need {num:,} different names of files, got {len(set(names)):,}.")
    folders: set[str] = set()
    for name in names:
        parts = name.split("/")
        plain = printable(name) and "\\" not in name and name.endswith(".png") and len(parts) <= _MOST_FOLDERS
        if not plain or not all(part and part[0] != "." and len(part.encode()) <= _LONGEST_NAME for part in parts):
            raise InputError(
                f"{name[:80]!a} is not a name for a file of a release: FOLDER/NAME.png, one printable line."
            )
        folders.update(str(parent) for parent in PurePosixPath(name).parents)
    clashes = folders & set(names)
    if clashes:
        raise InputError(f"{min(clashes)!a} would be a file and a folder. Rename one of them.")
    if sum(len(json.dumps(name)) + _BYTES_PER_NAME for name in names) > MOST_TEXT_BYTES:
        raise InputError(f"the names of {num:,} files do not fit into a release. Make them shorter, or leave them out.")
