"""Every door reads a picture as it is meant to be seen, by one decoder that opens named formats alone."""

import importlib.util
import struct
import threading
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, TiffImagePlugin

from idpgan.commands.folder import read_images
from idpgan.data import image_files
from idpgan.data.image_files import decode, decoded, header
from idpgan.data.photos import photo_pixels
from idpgan.data.sources import folder
from idpgan.errors import DataError
from idpgan.host import own_state
from idpgan.metrics import source
from tests.data.layouts import declared, read
from tests.data.test_photos import TURN, scene

GREY = np.tile(np.linspace(0, 255, 60).astype(np.uint8), (40, 1))


def seen(path, channels=3):
    return decode(path, channels).transpose(1, 2, 0).squeeze().astype(int)


def oriented(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return scene() if TURN[orientation] is None else scene().transpose(TURN[orientation]), exif


# Orientation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_every_door_turns_a_picture_upright(tmp_path, orientation, suffix):
    turned, exif = oriented(orientation)
    for name in ("1", "2"):
        path = tmp_path / "photos" / f"{name}{suffix}"
        path.parent.mkdir(exist_ok=True)
        turned.save(path, exif=exif, **({"quality": 95} if suffix in (".jpg", ".webp") else {}))
    config = declared(path.parent)
    doors = {
        "train": read(config)[0],
        "publish": read_images([path], (3, 40, 60), lambda *_: None),
        "evaluate": folder.read_all(path.parent, None),
        "attack": source.read_images(path.parent),
    }
    prepared = photo_pixels(path, 3, (40, 60), "none")[0].transpose(2, 0, 1)
    assert header(path, None) == (3, 40, 60)
    assert abs(prepared.transpose(1, 2, 0).astype(int) - np.asarray(scene())).mean() < 6
    for door, images in doors.items():
        assert not bool(images.is_null.any()), door
        assert np.array_equal(images.images[0].numpy(), prepared), door


def png(path, image, *, front=(), back=(), bits=8, color=2):
    """Write a PNG with chunks before and behind its pixels."""
    raw = b"".join(b"\0" + np.ascontiguousarray(row).astype(f">u{bits // 8}").tobytes() for row in np.asarray(image))
    height, width = np.asarray(image).shape[:2]
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)), *front]
    chunks += [(b"IDAT", zlib.compress(raw)), *back, (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def test_orientation_wherever_a_png_keeps_it(tmp_path):
    turned, exif = oriented(6)
    bare = exif.tobytes().removeprefix(b"Exif\0\0")
    raw = b"\nexif\n%8d\n" % (len(bare) + 6) + (b"Exif\0\0" + bare).hex().encode() + b"\n"
    places = {
        "front": {"front": [(b"eXIf", bare)]},
        "back": {"back": [(b"eXIf", bare)]},
        "ImageMagick": {"back": [(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw))]},
        "XMP": {"back": [(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP)]},
    }
    for name, chunks in places.items():
        png(tmp_path / f"{name}.png", turned, **chunks)
        assert header(tmp_path / f"{name}.png", None) == (3, 40, 60), name
        assert np.array_equal(seen(tmp_path / f"{name}.png"), np.asarray(scene())), name


def test_a_damaged_orientation_is_none(tmp_path):
    png(tmp_path / "a.png", scene(), front=[(b"eXIf", b"MM\0*\0\0\0\x08\0\x09\x01")])
    assert np.array_equal(seen(tmp_path / "a.png"), np.asarray(scene()))


def test_a_picture_in_memory_is_decoded_alike(tmp_path):
    turned, exif = oriented(8)
    turned.save(tmp_path / "a.webp", exif=exif, lossless=True)
    with Image.open(tmp_path / "a.webp") as picture:
        assert np.array_equal(np.asarray(decoded(picture)), decode(tmp_path / "a.webp", None).transpose(1, 2, 0))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_plain_pictures_keep_every_bit(tmp_path, mode):
    pixels = np.random.default_rng(3).integers(0, 256, (40, 60, 3), np.uint8)
    plain = Image.fromarray(pixels).convert(mode)
    for suffix in (".png", ".bmp", ".tif", ".ppm"):
        plain.save(tmp_path / f"a{suffix}")
        assert np.array_equal(seen(tmp_path / f"a{suffix}", None), np.asarray(plain)), suffix


# TIFF and layers --------------------------------------------------------------------------------------------------


def tiff(path, width, height, data, **tags):
    """Write one grey picture; tags by their TIFF numbers, shorts only."""
    entries = {256: width, 257: height, 258: 16, 259: 1, 262: 1, 277: 1, 278: height, 279: len(data)}
    entries |= {int(name[1:]): value for name, value in tags.items()}
    entries[273] = 8 + 2 + 12 * (len(entries) + 1) + 4
    ifd = b"".join(
        struct.pack("<HHII", tag, 4 if tag in (273, 279) else 3, 1, value) for tag, value in sorted(entries.items())
    )
    path.write_bytes(struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + ifd + bytes(4) + data)


def packed(values):
    """Return 12-bit numbers, two in three bytes."""
    first, second = values.reshape(-1, 2).T
    return np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], 1).astype(np.uint8).tobytes()


def test_grey_of_more_than_eight_bits(tmp_path):
    values = GREY.astype(np.uint32)
    cases = {
        "12 bits": (packed(values * 4095 // 255), {"t258": 12}),
        "white is zero": ((65535 - values * 257).astype("<u2").tobytes(), {"t262": 0}),
        "MaxSampleValue": ((values * 4095 // 255).astype("<u2").tobytes(), {"t281": 4095}),
        "both": ((4095 - values * 4095 // 255).astype("<u2").tobytes(), {"t281": 4095, "t262": 0}),
        "16 bits": ((values * 257).astype("<u2").tobytes(), {}),
        "a statistic": ((values * 257).astype("<u2").tobytes(), {"t281": 50000}),
    }
    for name, (data, tags) in cases.items():
        tiff(tmp_path / "a.tif", 60, 40, data, **tags)
        assert abs(seen(tmp_path / "a.tif", 1) - GREY).max() <= 1, name


def test_a_portable_graymap_says_what_is_white(tmp_path):
    values = (GREY.astype(np.uint32) * 4095 // 255).astype(">u2").tobytes()
    (tmp_path / "a.pgm").write_bytes(b"P5 60 40 4095\n" + values)
    assert abs(seen(tmp_path / "a.pgm", 1) - GREY).max() <= 1


def test_colors_of_twelve_bits_in_sixteen_are_refused(tmp_path):
    """Pillow takes the upper 8 bits of 16, and so would leave 4."""
    tiff(tmp_path / "a.tif", 60, 40, bytes(2 * 3 * 2400), t262=2, t277=3, t281=4095)
    content = (tmp_path / "a.tif").read_bytes()
    place = len(content)  # BitsPerSample needs three numbers
    content = content.replace(struct.pack("<HHII", 258, 3, 1, 16), struct.pack("<HHII", 258, 3, 3, place))
    (tmp_path / "a.tif").write_bytes(content + struct.pack("<3H", 16, 16, 16))
    with pytest.raises(DataError, match="has colors from 0 to 4095 in 16 bits"):
        decode(tmp_path / "a.tif", 3)


@pytest.mark.parametrize(("kind", "first"), [(1, False), (1, True), (4, False), (5, False)])
def test_overviews_and_masks_are_no_pictures(tmp_path, kind, first):
    picture, other = Image.fromarray(GREY), Image.fromarray(GREY[::2, ::2])
    pages = [(picture, 0), (other, kind)]
    pages = pages[::-1] if first else pages
    with Image.open(save_pages(tmp_path / "a.tif", pages)) as opened:
        assert opened.n_frames == 2
    assert header(tmp_path / "a.tif", None) == (1, 40, 60)
    assert np.array_equal(seen(tmp_path / "a.tif", 1), GREY)


def save_pages(path, pages):
    with TiffImagePlugin.AppendingTiffWriter(str(path), True) as file:
        for image, kind in pages:
            image.save(file, format="TIFF", tiffinfo={254: kind})
            file.newFrame()
    return path


def test_two_pages_are_two_pictures(tmp_path):
    save_pages(tmp_path / "a.tif", [(Image.fromarray(GREY), 2), (Image.fromarray(GREY), 2)])
    with pytest.raises(DataError, match="holds 2 pictures; save each as a file of its own"):
        decode(tmp_path / "a.tif", 1)


def test_layers_are_one_picture(tmp_path):
    """A PSD of two layers, whose picture as a whole lies behind them."""
    channel = struct.pack(">hI", 0, 2)
    layer = struct.pack(">4iH", 0, 0, 0, 0, 1) + channel + b"8BIMnorm" + struct.pack(">4BI", 255, 0, 0, 0, 12)
    layer += struct.pack(">II", 0, 0) + b"\x03abc"
    layers = struct.pack(">h", 2) + 2 * layer + 2 * b"\0\0"
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 1, 40, 60, 8, 1) + 2 * bytes(4)
    body = struct.pack(">II", len(layers) + 8, len(layers)) + layers + bytes(4) + struct.pack(">H", 0)
    (tmp_path / "a.psd").write_bytes(head + body + GREY.tobytes())
    with Image.open(tmp_path / "a.psd") as opened:
        assert opened.n_frames == 2
    assert np.array_equal(photo_pixels(tmp_path / "a.psd", 1, (40, 60), "none")[0], GREY)


# Transparency, profiles and notes ---------------------------------------------------------------------------------


def test_hidden_colors_stay_hidden(tmp_path):
    """Black below full transparency is white at every door, in every mode that can say so."""
    holes = np.where(np.arange(60) < 30, 0, 255).astype(np.uint8)[None].repeat(40, 0)
    black = Image.new("RGB", (60, 40))
    black.putalpha(Image.fromarray(holes))
    black.save(tmp_path / "RGBA.png")
    black.save(tmp_path / "RGBA.tif")
    black.save(tmp_path / "RGBA.webp", lossless=True, exact=True)
    black.convert("LA").save(tmp_path / "LA.png")
    black.quantize(4).save(tmp_path / "P.png")
    Image.fromarray(255 - holes).save(tmp_path / "L.png", transparency=255)
    png(
        tmp_path / "I;16.png", (255 - holes) * np.uint16(3), front=[(b"tRNS", struct.pack(">H", 765))], bits=16, color=0
    )
    for path in tmp_path.iterdir():
        for channels in (1, 3, None):
            pixels = decode(path, channels)
            assert (pixels[..., :30] == 255).all(), path.name
            assert (pixels[..., 30:] < 5).all(), path.name
            assert pixels.shape == header(path, channels), path.name


@pytest.mark.parametrize("place", ["front", "back"])
def test_large_profiles_and_notes_are_not_read(tmp_path, place):
    large = zlib.compress(bytes(2 << 20))
    notes = [(b"zTXt", b"workflow\0\0" + large), (b"iTXt", b"prompt\0\1\0\0\0" + large)]
    notes += [(b"iCCP", b"profile\0\0" + large)] if place == "front" else []
    png(tmp_path / "a.png", scene(), **{place: notes})
    assert np.array_equal(seen(tmp_path / "a.png"), np.asarray(scene()))
    with pytest.raises(ValueError, match="too large"), Image.open(tmp_path / "a.png") as opened:  # Pillow's own
        opened.load()


def test_what_is_cut_off_is_still_refused(tmp_path):
    png(tmp_path / "a.png", scene(), front=[(b"tEXt", b"a\0b")])
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:-60])
    with pytest.raises(DataError, match=r"a\.png cannot be decoded"):
        decode(tmp_path / "a.png", 3)


def deep_png(path, values, color):
    """Write a PNG of 16 bits a channel, (H, W) of grey or (H, W, 3), which Pillow cannot write in color."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    size = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, 2 if color else 0, 0, 0, 0)
    chunks = [(b"IHDR", size), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    text = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(text))


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize(("most", "is_said"), [(1023, True), (4095, True), (30000, False), (65535, False), (0, False)])
def test_twelve_bits_in_sixteen_are_said_once_and_read_as_they_stand(tmp_path, caplog, most, is_said, color):
    values = np.linspace(0, most, 200).round().astype(np.uint16).reshape(10, 20)
    values = np.repeat(values[..., None], 3, 2) if color else values
    for number in range(130):
        deep_png(tmp_path / f"{number}.png", values, color)
    with own_state():
        images = read_images(sorted(tmp_path.glob("*.png")), (3 if color else 1, 10, 20), lambda *_: None)
        decode(tmp_path / "0.png", 1)
    assert caplog.text.count("as if its 12 bits were written as 16") == is_said
    expected = values.astype(int).reshape(10, 20, -1)[..., 0]
    expected = expected // 256 if color else (expected * 255 + 32767) // 65535
    assert np.array_equal(images.images[0, 0].numpy(), expected)


def test_twelve_bits_that_a_tag_tells_are_not_said(tmp_path, caplog):
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[281] = 4095
    values = np.linspace(0, 4095, 200).astype(np.uint16).reshape(10, 20)
    Image.fromarray(values).save(tmp_path / "a.tif", tiffinfo=tags)
    Image.fromarray(values).save(tmp_path / "b.tif")
    with own_state():
        assert decode(tmp_path / "a.tif", 1).max() == 255
        assert caplog.text == ""
        decode(tmp_path / "b.tif", 1)
    assert "multiply its values by 16" in caplog.text


# Formats, limits and the host -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
def test_no_picture_starts_a_program(tmp_path, monkeypatch, name):
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / name).write_bytes(script)
    started = []
    monkeypatch.setattr(
        EpsImagePlugin, "Ghostscript", lambda *_, **__: started.append(1) or Image.new("RGB", (9, 9)).im
    )
    for door in (lambda path: decode(path, 3), lambda path: photo_pixels(path, 3, (8, 8), "none")):
        with pytest.raises(DataError, match="is not a picture that can be read here"):
            door(tmp_path / name)
    assert started == []
    with Image.open(tmp_path / name) as opened:  # negative control: Pillow's guess does
        opened.load()
    assert started == [1]


def test_the_limit_of_pixels_is_ours(tmp_path, monkeypatch):
    """Neither the host's filters nor its limit decide what is read."""
    scene().save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert seen(tmp_path / "a.png").shape == (40, 60, 3)
        warnings.simplefilter("ignore")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
        monkeypatch.setattr(image_files, "MOST_PIXELS", 2399)
        with pytest.raises(DataError, match="has more than 2,399 pixels"):
            decode(tmp_path / "a.png", 3)
        with pytest.raises(DataError, match="has more than 2,399 pixels"):
            header(tmp_path / "a.png", 3)


def test_warnings_of_pillow_decide_nothing(tmp_path):
    """An orientation stands before a tag of which Pillow warns that it is cut off."""
    exif = struct.pack("<2sHIH HHIHH HHII I", b"II", 42, 8, 2, 274, 3, 1, 6, 0, 271, 2, 100, 900, 0)
    png(tmp_path / "1.png", oriented(6)[0], front=[(b"eXIf", exif)])
    with pytest.warns(UserWarning, match="Skipping tag"):
        config = declared(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = read_images([tmp_path / "1.png"], (3, 40, 60), lambda *_: None)
    assert config.sides == (40, 60)
    assert np.array_equal(images.images[0].permute(1, 2, 0).numpy(), np.asarray(scene()))


def test_importing_changes_no_filter_of_the_host():
    before = list(warnings.filters)
    spec = importlib.util.spec_from_file_location("read_again", image_files.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert warnings.filters == before


# Memory -----------------------------------------------------------------------------------------------------------


def test_memory_is_bounded_by_the_machine_and_not_by_threads(monkeypatch):
    """Twice what a picture needs is free for pictures: two at once, and a larger one alone."""
    photo, panorama = Image.new("1", (1000, 1000)), Image.new("1", (3000, 1000))
    monkeypatch.setattr("idpgan.device.free_memory", lambda: 4 * 16 * 1_000_000)
    room, lock, held, most = image_files._Room(), threading.Lock(), [], []

    def work(picture):
        with room.taken(picture.size):
            with lock:
                held.append(picture.width)
                most.append(list(held))
            time.sleep(0.005)
            with lock:
                held.remove(picture.width)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [photo] * 8 + [panorama] + [photo] * 8))
    assert len(most) == 17
    assert max(map(len, most)) == 2
    assert [now for now in most if 3000 in now] == [[3000]]
