"""One photo of any size and format becomes pixels of one size. No face is looked for: a face must fill the middle.

A photo is turned as its EXIF orientation says; 16 bits a channel are divided by 257; transparency is laid on white;
Pillow converts palettes, CMYK and the like. It is then cut to the middle and resized by Lanczos, which averages over
all pixels that fall into one. Color profiles are not applied. Place, date and preview are dropped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from idpgan.data.folder import DAMAGE, EXTENSIONS
from idpgan.errors import DataError

Crop = Literal["center", "none"]
SUFFIXES = (  # by their names alone files are photos, so that an unreadable one keeps its place
    *EXTENSIONS,
    *(".avif", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpx", ".mpo", ".pbm", ".pnm", ".psd", ".tga"),
    *(".arw", ".cr2", ".dng", ".heic", ".heif", ".nef"),  # not read here; refused one by one, with the way out
)
MOST_PIXELS = 250_000_000  # of a photo; 16 bytes each at worst
_DRAFT = 2  # times the wanted size: what a JPEG is decoded to at least
_GAP = 3.0  # of Pillow's two-step resize: quality like one step


@contextmanager
def large_photos() -> Iterator[None]:
    """Admit photos of up to `MOST_PIXELS` inside the block; Pillow refuses those of a good telephone."""
    most = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = most


def photo_pixels(path: Path, channels: int, size: tuple[int, int], crop: Crop) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode, turn, cut and resize one photo.

    Args:
        size: (H, W) of the result in px.
        crop: "center" cuts the largest part of that shape from the middle; "none" squeezes the whole photo into it.

    Returns:
        uint8 (H, W) or (H, W, 3), and height and width of the part that was resized.

    Raises:
        DataError: Why the file cannot be used; the sentence continues its name.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise DataError("is no plain file")
        if not os.path.getsize(path):
            raise DataError("is empty")
        with Image.open(path) as opened:
            if opened.format != "MPO" and getattr(opened, "n_frames", 1) > 1:
                raise DataError(f"holds {getattr(opened, 'n_frames', 0)} pictures; save one as a file of its own")
            opened.draft(None, (_DRAFT * max(size), _DRAFT * max(size)))  # a large JPEG is read at a fraction of it
            opened.load()
            form = opened.format
            image = _eight_bits(ImageOps.exif_transpose(opened), form)
    except DataError:
        raise
    except Image.UnidentifiedImageError:
        raise DataError("is no picture that can be read here; convert it to JPEG or PNG") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"has more than {MOST_PIXELS:,} pixels; make it smaller") from None
    except DAMAGE as error:
        reason = getattr(error, "strerror", None) or str(error)  # of the system, without the name that stands before
        raise DataError(f"cannot be decoded: {' '.join(reason.split())[:200]}") from error
    box = _middle(image.size, size) if crop == "center" else (0.0, 0.0, float(image.width), float(image.height))
    wanted = image.convert("L" if channels == 1 else "RGB")
    resized = wanted.resize((size[1], size[0]), Image.Resampling.LANCZOS, box=box, reducing_gap=_GAP)
    return np.asarray(resized), (round(box[3] - box[1]), round(box[2] - box[0]))


def is_grey(pixels: np.ndarray) -> bool:
    """Tell whether pixels (H, W, 3) have no color."""
    return bool((pixels == pixels[..., :1]).all())


def _eight_bits(image: Image.Image, form: str | None) -> Image.Image:
    """Return a picture of 8 bits a channel without transparency."""
    mode = image.mode
    if mode == "F" or (mode == "I" and form not in ("PNG", "PPM")):  # these two: 16 bits, as old Pillows have them
        raise DataError(f"has pixels of mode {mode}, whose range nothing says; save it with 8 or 16 bits a channel")
    if mode == "I" or mode.startswith("I;16"):
        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        above = image.convert("RGBA")
        below = Image.new("RGBA", above.size, "white")
        below.alpha_composite(above)
        return below.convert("RGB")
    return image if mode in ("L", "RGB") else image.convert("RGB")


def _middle(found: tuple[int, int], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the largest box of the shape (H, W) in the middle of (width, height)."""
    scale = min(found[0] / size[1], found[1] / size[0])
    left, top = ((side - scale * wanted) / 2 for side, wanted in zip(found, size[::-1], strict=True))
    return left, top, found[0] - left, found[1] - top
