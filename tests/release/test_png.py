"""A PNG that somebody else made: pixels and nothing else, or one reason why not."""

import struct
import zlib

import pytest
import torch

from idpgan.data.images import notebook_png, png_bytes
from idpgan.release.mark import decode_png

IMAGE = torch.arange(3 * 4 * 5, dtype=torch.uint8).view(3, 4, 5) * 4
ROWS = b"".join(b"\0" + bytes(IMAGE.permute(1, 2, 0)[row].flatten().tolist()) for row in range(4))


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(*chunks, start=b"\x89PNG\r\n\x1a\n"):
    return start + b"".join(chunks)


def head(width=5, height=4, depth=8, color=2, interlaced=0):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))


DATA, END = chunk(b"IDAT", zlib.compress(ROWS)), chunk(b"IEND", b"")
REFUSED = {
    "a text": (png(head(), chunk(b"tEXt", b"Title\0Anna"), DATA, END), "more than pixels"),
    "two heads": (png(head(), head(), DATA, END), "more than pixels"),
    "two ends": (png(head(), DATA, END, END), "more than pixels"),
    "an end with a body": (png(head(), DATA, chunk(b"IEND", b"Anna")), "more than pixels"),
    "no end": (png(head(), DATA), "more than pixels"),
    "bytes behind the end": (png(head(), DATA, END) + b"Anna", "more than pixels"),
    "another start": (png(head(), DATA, END, start=b"\x89PNX\r\n\x1a\n"), "more than pixels"),
    "grey": (png(head(color=0), DATA, END), "3 channels"),
    "another size": (png(head(width=6), DATA, END), "not an 8-bit picture of 4 x 5"),
    "interlaced": (png(head(interlaced=1), DATA, END), "not an 8-bit picture"),
    "more rows": (png(head(), chunk(b"IDAT", zlib.compress(ROWS * 2)), END), "more than pixels"),
    "fewer rows": (png(head(), chunk(b"IDAT", zlib.compress(ROWS[:-1])), END), "more than pixels"),
    "bytes behind the packed pixels": (png(head(), chunk(b"IDAT", zlib.compress(ROWS) + b"Anna"), END), "more than"),
    "no packed pixels": (png(head(), chunk(b"IDAT", b"Anna"), END), "is damaged"),
    "a row of no known kind": (png(head(), chunk(b"IDAT", zlib.compress(b"\x09" + ROWS[1:])), END), "is damaged"),
    "a wrong checksum": (png(head(), DATA[:-4] + b"Anna", END), "is damaged"),
}


def test_pixels_come_back():
    assert torch.equal(decode_png(png(head(), DATA, END), (3, 4, 5)), IMAGE)
    assert torch.equal(decode_png(png_bytes(IMAGE), (3, 4, 5)), IMAGE)
    assert torch.equal(decode_png(png_bytes(IMAGE[:1]), (1, 4, 5)), IMAGE[:1])
    assert torch.equal(decode_png(notebook_png(IMAGE[None]), (3, 4, 5)), IMAGE)


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_carry_more_than_pixels_is_refused(name):
    content, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        decode_png(content, (3, 4, 5))
