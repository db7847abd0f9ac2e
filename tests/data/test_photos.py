"""Photos of every kind come out upright, with 8 bits a channel, on white, and without anything but pixels."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from idpgan.data.image_files import decode, header
from idpgan.data.photos import photo_pixels
from idpgan.errors import DataError

TURN = {  # EXIF orientation -> what a camera held so writes for the upright picture
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def scene(width=60, height=40):
    """A dark picture with a red corner at the top left and a green one at the top right."""
    pixels = np.full((height, width, 3), 40, np.uint8)
    pixels[: height // 2, : width // 2] = (250, 10, 10)
    pixels[: height // 2, width // 2 :] = (10, 250, 10)
    return Image.fromarray(pixels)


def made(path, channels=3, size=(40, 60), crop="none"):
    return photo_pixels(path, channels, size, crop)[0].astype(int)


@pytest.mark.parametrize("orientation", TURN)
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_cameras_that_were_turned(tmp_path, orientation, suffix):
    turned = scene() if TURN[orientation] is None else scene().transpose(TURN[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if suffix in (".jpg", ".webp") else {}
    turned.save(tmp_path / f"a{suffix}", exif=exif, **options)
    found = made(tmp_path / f"a{suffix}")
    assert abs(found - np.asarray(scene()).astype(int)).mean() < 6


GREY = np.tile(np.linspace(0, 255, 60).astype(np.uint8), (40, 1))
KINDS = {
    "L.png": lambda: Image.fromarray(GREY),
    "1.png": lambda: Image.fromarray(GREY).convert("1", dither=Image.Dither.NONE),
    "I;16.png": lambda: Image.fromarray(GREY.astype(np.uint16) * 257),
    "I;16.tif": lambda: Image.fromarray(GREY.astype(np.uint16) * 257),
    "16.pgm": lambda: Image.fromarray(GREY.astype(np.uint16) * 257),
    "P.gif": lambda: Image.fromarray(GREY).convert("P"),
    "P.png": lambda: Image.fromarray(GREY).convert("RGB").quantize(256),
    "CMYK.jpg": lambda: Image.fromarray(GREY).convert("RGB").convert("CMYK"),
    "CMYK.tif": lambda: Image.fromarray(GREY).convert("RGB").convert("CMYK"),
    "YCbCr.tif": lambda: Image.fromarray(GREY).convert("YCbCr"),
    "RGBA.png": lambda: Image.fromarray(GREY).convert("RGBA"),
    "LA.png": lambda: Image.fromarray(GREY).convert("LA"),
    "RGB.bmp": lambda: Image.fromarray(GREY).convert("RGB"),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_pixels(tmp_path, name, channels):
    KINDS[name]().save(tmp_path / name)
    found = made(tmp_path / name, channels)
    expected = np.where(GREY > 127, 255, 0) if name == "1.png" else GREY.astype(int)
    assert found.shape == ((40, 60) if channels == 1 else (40, 60, 3))
    assert abs(found - (expected if channels == 1 else expected[..., None])).max() <= 6


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.bmp", "a.tif"])
@pytest.mark.parametrize("colored", [False, True])
def test_a_palette_of_greys_is_no_color(tmp_path, name, colored):
    """As in the GIFs of Yale: neither its header nor its pixels say so, and its values stay."""
    shades = [10, 90, 200, 255]
    picture = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6) % 4, mode="P")
    picture.putpalette([value for shade in shades for value in (shade, shade, 40 if colored else shade)])
    picture.save(tmp_path / name)
    channels = 3 if colored else 1
    assert header(tmp_path / name, None) == (channels, 4, 6)
    found = decode(tmp_path / name, None)
    assert found.shape == (channels, 4, 6)
    assert set(found[0].flatten().tolist()) == set(shades)


def test_sixteen_bits_of_color(tmp_path):
    pixels = np.asarray(scene()).astype(">u2") * 257
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 60, 40, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    assert abs(made(tmp_path / "a.png") - np.asarray(scene())).max() == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_becomes_white(tmp_path, mode):
    image = scene().convert("RGBA")
    image.putalpha(Image.fromarray(np.where(np.arange(60) < 30, 0, 255).astype(np.uint8)[None].repeat(40, 0)))
    image = image.quantize(8) if mode == "P" else image.convert(mode)
    image.save(tmp_path / "a.png")
    found = made(tmp_path / "a.png")
    assert (found[:, :28] > 250).all()
    assert not (found[:, 32:] > 250).all(-1).any()


def test_the_middle_is_cut_and_nothing_is_squeezed(tmp_path):
    pixels = np.zeros((50, 90), np.uint8)
    pixels[:, 20:70] = 200  # the square in the middle
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert (made(tmp_path / "a.png", 1, (50, 50), "center") == 200).all()
    squeezed = made(tmp_path / "a.png", 1, (50, 50), "none")
    assert (squeezed == 0).any(axis=1).all()
    assert photo_pixels(tmp_path / "a.png", 1, (50, 50), "center")[1] == (50, 50)
    tall = made(tmp_path / "a.png", 1, (112, 92), "center")
    assert tall.shape == (112, 92)
    assert (tall == 200).all()


def test_a_large_jpeg_is_read_at_a_fraction_and_looks_the_same(tmp_path):
    scene(2400, 1600).save(tmp_path / "a.jpg", quality=95)
    scene(2400, 1600).save(tmp_path / "a.png")
    assert abs(made(tmp_path / "a.jpg") - made(tmp_path / "a.png")).mean() < 3


REFUSED = {
    "empty.png": (lambda path: path.write_bytes(b""), "is empty"),
    "text.jpg": (lambda path: path.write_text("no picture"), "is not a picture that can be read here"),
    "cut.png": (lambda path: cut(path), "cannot be decoded"),
    "float.tif": (lambda path: Image.fromarray(np.ones((4, 4), np.float32)).save(path), "mode F, whose range"),
    "film.gif": (
        lambda path: scene().save(path, save_all=True, append_images=[scene().rotate(180)]),
        "holds 2 pictures",
    ),
    "folder.png": (lambda path: path.mkdir(), "is not a plain file"),
}


def cut(path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_says_why_in_one_line(tmp_path, name):
    write, expected = REFUSED[name]
    write(tmp_path / name)
    with pytest.raises(DataError, match=expected) as caught:
        made(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_refused_and_a_telephone_is_not(tmp_path):
    before = Image.MAX_IMAGE_PIXELS
    Image.new("1", (10_000, 9_000)).save(tmp_path / "telephone.png", compress_level=1)
    bomb = bytearray((tmp_path / "telephone.png").read_bytes())
    bomb[16:24] = struct.pack(">II", 20_000, 14_000)  # what the header says is refused before it is decoded
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    (tmp_path / "bomb.png").write_bytes(bomb)
    assert made(tmp_path / "telephone.png", 1).shape == (40, 60)
    with pytest.raises(DataError, match="has more than 250,000,000 pixels"):
        made(tmp_path / "bomb.png", 1)
    assert before == Image.MAX_IMAGE_PIXELS
