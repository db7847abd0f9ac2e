"""Damaged and hostile images and archives: refused in one line, or decoded to what an independent decoder sees.

Deterministic: case number n is the same everywhere. The default suite runs a slice, ``-m slow`` all of them.
"""

import gzip
import io
import os
import socket
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image

from idpgan.data import image_files
from idpgan.data.config import DataConfig
from idpgan.data.sources import mnist
from idpgan.errors import InputError
from idpgan.metrics.source import read_images
from tests.data.layouts import read
from tests.redteam.alarm import within

IMAGES, NPZ, IDX = 200, 60, 40
SECONDS = 10
SIDE = 24
CLASSES = ("a", "b")
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore::DeprecationWarning")


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def damaged(content, rng):
    """Flip, cut, insert or repeat bytes; the beginning, where headers are, more often than the rest."""
    content = bytearray(content)
    for _ in range(1 + int(rng.integers(3))):
        limit = len(content) if rng.random() < 0.5 else min(len(content), 64)
        place, kind = int(rng.integers(max(limit, 1))), int(rng.integers(5))
        if kind == 0 and content:
            content[min(place, len(content) - 1)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            content[place : place + 4] = struct.pack(">I", pick(rng, [0, 1, 2**31 - 1, 2**32 - 1, 60_000]))
        elif kind == 2:
            del content[place:]
        elif kind == 3:
            del content[place : place + 1 + int(rng.integers(8))]
        else:
            content[place:place] = bytes(rng.integers(0, 256, 1 + int(rng.integers(8)), dtype=np.uint8))
    return bytes(content)


# Images ---------------------------------------------------------------------------------------------------------


def picture(rng, mode):
    """Return an image of a mode, smooth enough for JPEG."""
    ramp = np.add.outer(np.arange(SIDE), np.arange(SIDE)) * 4 + rng.integers(0, 60)
    grey = Image.fromarray(ramp.astype(np.uint8))
    if mode in ("I;16", "I", "F"):
        return Image.fromarray((ramp * 200).astype({"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]))
    if mode in ("RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"):
        bands = [grey, grey.rotate(90), grey.rotate(180), grey]
        return Image.merge(mode, bands[: len(Image.new(mode, (1, 1)).getbands())])
    return grey.convert(mode)


FORMATS = {  # extension -> modes that it can hold
    ".png": ("L", "RGB", "RGBA", "LA", "P", "1", "I;16"),
    ".jpg": ("L", "RGB", "CMYK", "YCbCr"),
    ".bmp": ("L", "RGB", "P", "1"),
    ".ppm": ("RGB",),
    ".pgm": ("L", "I;16"),
    ".tif": ("L", "RGB", "RGBA", "CMYK", "LAB", "P", "1", "I;16", "I", "F"),
    ".webp": ("RGB", "RGBA"),
}


def encoded(rng):
    """Return the name and content of a whole image file, perhaps with several frames."""
    extension = pick(rng, list(FORMATS))
    image = picture(rng, pick(rng, FORMATS[extension]))
    buffer = io.BytesIO()
    several = extension in (".png", ".tif", ".webp") and rng.random() < 0.15
    more = {"save_all": True, "append_images": [image.rotate(90)]} if several else {}
    image.save(buffer, format=Image.registered_extensions()[extension], **more)
    return extension, buffer.getvalue()


def png_of_size(width, height):
    """Return a PNG of a few bytes that declares any size."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def pipe(path):
    os.mkfifo(path)


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # such names may have 107 bytes only
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


SPECIAL = {
    "pipe": pipe,
    "socket": unix_socket,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no image"),
    "bomb": lambda path: path.write_bytes(png_of_size(60_000, 60_000)),
    "half a bomb": lambda path: path.write_bytes(png_of_size(10_000, 10_000)),
    "no pixels": lambda path: path.write_bytes(png_of_size(0, 8)),
    "largest size": lambda path: path.write_bytes(png_of_size(2**31 - 1, 2**31 - 1)),
    "animation": lambda path: Image.new("L", (8, 8)).save(
        path, format="GIF", save_all=True, append_images=[Image.new("L", (8, 8), 255)]
    ),
    "archive": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
    "program": lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"),
}


def judged_independently(path, pixels):
    """Compare decoded pixels with another decoder's; None where that one cannot read the file."""
    content = path.read_bytes()
    if path.suffix in (".png", ".jpg", ".webp"):
        mode = ImageReadMode.GRAY if pixels.shape[0] == 1 else ImageReadMode.RGB
        try:
            other = decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode).numpy()
        except (RuntimeError, ValueError):
            return None
        return (
            pixels.shape == other.shape and int(np.abs(pixels.astype(int) - other).max()) <= (path.suffix != ".png") * 3
        )
    if path.suffix in (".ppm", ".pgm"):
        return same_as_pnm(content, pixels)
    return None


def same_as_pnm(content, pixels):
    """Read a binary PNM by its definition: magic, width, height, largest value, then the numbers."""
    fields = content.split(maxsplit=4)
    if fields[0] not in (b"P5", b"P6") or any(b"#" in field for field in fields[:4]) or fields[3] != b"255":
        return None
    channels, width, height = (1 if fields[0] == b"P5" else 3), int(fields[1]), int(fields[2])
    start = len(content) - len(content.split(None, 3)[3]) + len(b"255") + 1
    numbers = np.frombuffer(content, np.uint8, channels * width * height, start)
    return np.array_equal(numbers.reshape(height, width, channels).transpose(2, 0, 1), pixels)


def try_image(number, place):
    """Return what is wrong with how case `number` was answered, and whether it was decoded and compared."""
    rng = np.random.default_rng([16, 1, number])
    channels = pick(rng, [None, None, 1, 3])
    names = list(SPECIAL)
    if number < 2 * len(names) and number % 2 == 0:
        name = names[number // 2]
        path = place / f"{number}.png"
        SPECIAL[name](path)
        whole = False
    else:
        extension, content = encoded(rng)
        whole = rng.random() < 0.3
        name, path = ("whole " if whole else "damaged ") + extension, place / f"{number}{extension}"
        path.write_bytes(content if whole else damaged(content, rng))
    try:
        pixels = image_files.decode(path, channels)
    except InputError as error:
        if "\n" in str(error) or str(path) not in str(error):
            return f"image {number} ({name}): {error}", None
        return None, None
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[0] != (channels or pixels.shape[0]):
        return f"image {number} ({name}): {pixels.dtype} {pixels.shape}", None
    if channels is not None:
        return None, None  # converted by Pillow's own weights: only what is decoded as it is can be compared
    same = judged_independently(path, pixels)
    return (f"image {number} ({name}): other pixels" if same is False else None), same


# Archives -------------------------------------------------------------------------------------------------------


def npz(arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def with_header(header):
    """Return an npz whose array of images has any header."""
    text = header.encode("latin1") + b"\n"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", min(len(text), 65535)) + text
    return zipped({"images.npy": member})


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def encrypted(content):
    """Set the flag of encryption in every header."""
    content = bytearray(content)
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(magic)
        while place >= 0:
            content[place + offset] |= 1
            place = content.find(magic, place + 4)
    return bytes(content)


def claiming(content, size):
    """Let the directory claim that every part has so many bytes unpacked."""
    content = bytearray(content)
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        content[place + 24 : place + 28] = struct.pack("<I", size)
        place = content.find(b"PK\x01\x02", place + 4)
    return bytes(content)


def hostile_archives():
    """Content, and whether it may be read."""
    pixels = np.random.default_rng(5).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    labels, names = np.arange(6) % 2, np.array(CLASSES)
    good = {"images": pixels, "labels": labels, "classes": names}
    unit = pixels / 255
    header = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
    yield npz(good), True
    yield npz({**good, "images": unit.astype(">f4")}), True
    yield npz({**good, "images": unit[::-1, ::-1].astype(np.longdouble)}), True
    yield npz({**good, "images": np.asfortranarray(pixels), "labels": labels.astype(">u2")}), True
    yield npz({**good, "classes": np.array([CLASSES])}), False
    yield npz({**good, "classes": np.arange(2)}), False
    yield npz({**good, "classes": np.array([b"a", b"\xff"])}), False
    yield npz({**good, "classes": np.array(["a", "a"])}), False
    yield npz({**good, "classes": np.array("a")}), False
    yield npz({**good, "images": np.array([pixels, None], dtype=object)}), False
    yield npz({**good, "labels": np.array([None] * 6, dtype=object)}), False
    yield npz({**good, "images": unit.astype(complex)}), False
    yield npz({**good, "images": np.full((6, 8, 8), np.nan)}), False
    yield npz({**good, "images": np.zeros((0, 8, 8), np.uint8)}), False
    yield npz({**good, "images": np.uint8(3)}), False
    yield npz({**good, "images": pixels.astype("datetime64[s]")}), False
    yield npz({**good, "images": np.zeros(6, dtype=[("a", "u1")])}), False
    yield npz({**good, "labels": labels - 1}), False
    yield npz({**good, "labels": np.full(6, 2**64 - 1, dtype=np.uint64)}), False
    yield npz({**good, "labels": labels[None]}), False
    yield npz({**good, "labels": labels.astype(float)}), True  # whole, as pandas writes them
    yield npz({**good, "labels": labels + 0.5}), False
    yield npz({"pictures": pixels}), False
    yield encrypted(npz(good)), False
    yield claiming(npz(good), 2**32 - 1), False
    yield claiming(npz(good), 3), False
    yield with_header(header.format("|u1", (10**6, 10**6, 10**6))), False
    yield with_header(header.format("|u1", (-1, 8, 8))), False
    yield with_header(header.format("|O", (6, 8, 8))), False
    yield with_header(header.format("<f999", (6, 8, 8))), False
    yield with_header("[" * 9000), False
    yield with_header("{'descr': '|u1'"), False
    yield with_header(" " * 60_000), False
    yield zipped({"images.npy": b""}), False
    yield zipped({"images.npy/": b"", "../images.npy": b"x"}), False
    yield b"", False
    yield b"PK\x05\x06" + bytes(18), False
    yield gzip.compress(npz(good)), False
    yield b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR.", False


def try_archive(number, place):
    """Read an npz file; see `try_image`."""
    rng = np.random.default_rng([16, 2, number])
    known = list(hostile_archives())
    content, readable = known[number] if number < len(known) else (damaged(known[0][0], rng), None)
    path = place / f"{number}.npz"
    path.write_bytes(content)
    try:
        found = read_images(path, (1, 8, 8), CLASSES)
    except InputError as error:
        if "\n" in str(error) or path.name not in str(error):
            return f"archive {number}: {error}", None
        return (f"archive {number}: refused" if readable else None), None
    if readable is False:
        return f"archive {number}: read", None
    if readable is None:  # what damage left whole must be what was there
        original = np.load(io.BytesIO(known[0][0]))["images"]
        return (
            None if np.array_equal(found.images[:, 0].numpy(), original) else f"archive {number}: other pixels"
        ), True
    return (None if len(found) == 6 and found.labels is not None else f"archive {number}: {len(found)}"), True


def idx(array):
    return struct.pack(">I", 0x0800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def try_idx(number, place):
    """Read a set in the layout of MNIST, one of whose files is damaged; see `try_image`."""
    rng = np.random.default_rng([16, 3, number])
    root = place / f"idx{number}"
    root.mkdir()
    pixels, labels = rng.integers(0, 256, (7, 28, 28), dtype=np.uint8), (np.arange(7) % 10).astype(np.uint8)
    contents = dict(zip(mnist.TRAIN + mnist.TEST, map(idx, (pixels, labels, pixels, labels)), strict=True))
    victim = pick(rng, list(contents))
    if number == 0:
        contents[victim] += bytes(100_000_000)  # a bomb of 100 kB
    elif number == 1:
        contents[victim] = struct.pack(">IIII", 0x0803, 2**32 - 1, 28, 28)
    elif number % 2:
        contents[victim] = damaged(contents[victim], rng)
    for name, content in contents.items():
        packed = gzip.compress(content, 1)
        if name == victim and number > 1 and number % 2 == 0:
            packed = damaged(packed, rng)
        (root / f"{name}.gz").write_bytes(packed)
    try:
        train, test, _ = read(DataConfig(name="mnist", root=root))
    except InputError as error:
        return (f"idx {number}: {error}" if "\n" in str(error) or str(root) not in str(error) else None), None
    for part, file in ((train, mnist.TRAIN), (test, mnist.TEST)):
        content = gzip.decompress((root / f"{file[0]}.gz").read_bytes())
        if not np.array_equal(part.images.flatten().numpy(), np.frombuffer(content, np.uint8, offset=16)):
            return f"idx {number}: other pixels", True
    return None, True


# The tests ------------------------------------------------------------------------------------------------------


def attack(tries, place):
    """Run cases; returns what was answered wrongly and how many were decoded and found to be right."""
    wrong, right = [], 0
    for attempt, number in tries:
        try:
            with within(SECONDS):
                problem, same = attempt(number, place)
        except Exception as error:  # noqa: BLE001  # that is what this test looks for
            problem, same = f"{attempt.__name__} {number}: {type(error).__name__}: {str(error)[:200]}", None
        wrong += [] if problem is None else [problem]
        right += same is True
    return wrong, right


def test_some_damaged_files_are_refused_or_read_rightly(tmp_path):
    tries = [(try_image, n) for n in range(34)]
    tries += [(try_archive, n) for n in range(43)]
    tries += [(try_idx, n) for n in range(1, 5)]
    wrong, right = attack(tries, tmp_path)
    assert wrong == []
    assert right >= 5
    assert not list(tmp_path.glob("**/hacked"))


@pytest.mark.slow
def test_all_damaged_files_are_refused_or_read_rightly(tmp_path):
    tries = [(try_image, n) for n in range(IMAGES)]
    tries += [(try_archive, n) for n in range(NPZ)] + [(try_idx, n) for n in range(IDX)]
    assert len(tries) == 300
    wrong, right = attack(tries, tmp_path)
    assert wrong == []
    assert right >= 15


def test_the_comparison_can_fail(tmp_path, monkeypatch):
    decode = image_files.decode
    monkeypatch.setattr(image_files, "decode", lambda path, channels: 255 - decode(path, channels))
    wrong, _ = attack([(try_image, n) for n in range(33, 80)], tmp_path)
    assert any("other pixels" in line for line in wrong)


def test_links_that_lead_back_are_refused(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "a" / "1.png")
    for name in ("one", "two"):
        (tmp_path / "a" / "b" / name).symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="read as well: remove the link"):
        read(DataConfig(name="folder", root=tmp_path))


def test_mnist_is_never_unpacked_into_the_temporary_folder(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("private images in the temporary folder outlive a kill")

    pixels, labels = np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.uint8)
    for name, array in zip(mnist.TRAIN + mnist.TEST, (pixels, labels, pixels, labels), strict=True):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    for name in ("TemporaryDirectory", "mkdtemp", "mkstemp", "NamedTemporaryFile"):
        monkeypatch.setattr(f"tempfile.{name}", refuse)
    assert len(read(DataConfig(name="mnist", root=tmp_path)).images) == 3


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\nb"])
def test_class_folders_whose_names_are_no_text_are_refused_before_training(tmp_path, name):
    from idpgan.data.load import describe, load

    for place in (name, b"good"):
        path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), place)))
        path.mkdir()
        for index in range(20):
            Image.new("L", (8, 8), index).save(path / f"{index}.png")
    config = DataConfig(name="folder", root=tmp_path)
    for look in (describe, load):
        with pytest.raises(InputError, match=r"cannot be released|does not show") as caught:
            look(config)
        assert str(caught.value).isprintable()
