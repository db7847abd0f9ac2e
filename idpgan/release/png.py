"""PNG files that hold pixels and nothing else, written into releases and read from releases that others made."""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

SAMPLES = "samples.png"  # the picture of a release: images that it draws or holds
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MODES = {1: ("L", 0), 3: ("RGB", 2)}  # channels -> Pillow's word, PNG's color type


def most_png_bytes(shape: tuple[int, int, int]) -> int:
    """Return the most bytes that the file of an image (C, H, W) can have, however badly it is packed."""
    channels, height, width = shape
    return 2 * height * (1 + channels * width) + (1 << 16)


def decode_png(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Return `png_pixels` as a tensor."""
    return torch.from_numpy(png_pixels(content, shape))


def png_pixels(content: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the pixels of an 8-bit PNG that somebody else made, uint8 (C, H, W).

    Anything that could carry other content is refused: chunks other than head, pixels and end, bytes behind the end or
    behind the packed pixels, a wrong checksum, an interlaced or indexed picture. Nothing larger than ``shape`` is
    unpacked.

    Raises:
        ValueError: Completes a sentence that begins with the file's name.
    """
    mode, color = _MODES[shape[0]]
    packed = _packed_pixels(content, struct.pack(">IIBBBBB", shape[2], shape[1], 8, color, 0, 0, 0), shape)
    if packed != shape[1] * (1 + shape[0] * shape[2]):
        raise ValueError("is damaged, or holds more than pixels")
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.mode != mode:
                raise ValueError("is damaged, or holds more than pixels")
            pixels = np.array(picture)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"is damaged ({error})") from error
    return pixels.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1)


def _packed_pixels(content: bytes, head: bytes, shape: tuple[int, int, int]) -> int:
    """Return the number of bytes that the pixels unpack to; if they exceed the shape, one more than the shape has."""
    kinds, data, offset = [], [], 8
    while offset + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, offset)
        body = content[offset + 8 : offset + 8 + length]
        kinds.append(kind)
        data += [body] if kind == b"IDAT" else []
        if content[offset + 8 + length : offset + 12 + length] != struct.pack(">I", zlib.crc32(kind + body)):
            raise ValueError("is damaged, or holds more than pixels")
        if (kind == b"IHDR" and len(kinds) > 1) or (kind == b"IEND" and length):
            break
        offset += 12 + length
    whole = offset == len(content) and set(kinds) == {b"IHDR", b"IDAT", b"IEND"} and kinds[-1:] == [b"IEND"]
    if not whole or kinds[0] != b"IHDR" or kinds.count(b"IEND") > 1 or not content.startswith(_SIGNATURE):
        raise ValueError("is damaged, or holds more than pixels")
    if content[16 : 16 + len(head)] != head or struct.unpack_from(">I", content, 8)[0] != len(head):
        raise ValueError(f"is not an 8-bit picture of {shape[1]} x {shape[2]} pixels with {shape[0]} channels")
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(b"".join(data), shape[1] * (1 + shape[0] * shape[2]) + 1)
    except zlib.error as error:
        raise ValueError(f"is damaged ({error})") from error
    if not unpacker.eof or unpacker.unused_data or unpacker.unconsumed_tail:
        raise ValueError("is damaged, or holds more than pixels")
    return len(rows)
