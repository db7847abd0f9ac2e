"""Image files: listing them below a folder, reading their headers, and decoding their pixels.

Every picture is decoded here (`decoded`), whoever reads it, as it is meant to be seen: turned by its EXIF orientation,
transparency blended with white, 16 bits a channel brought to 8, and palettes, CMYK and the like converted by Pillow.
Color profiles are not applied. Only `FORMATS` are opened, whatever a file's name, and none of them starts another
program.

Left out of every folder (`entries`, `walk`): names that begin with a dot, what systems leave behind
(`files.LEFTOVERS`), what `idpgan sample` writes beside its images (`EXPORTED`), and ledgers of folders (`LEDGER`).
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import logging
import math
import os
import stat
import struct
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from idpgan import device
from idpgan.data.images import Images
from idpgan.data.labels import NONE
from idpgan.data.source import Refused, warn_of_null, warn_once
from idpgan.errors import DataError
from idpgan.files import LEFTOVERS
from idpgan.host import call, unwarned, work_for
from idpgan.lazy import torch
from idpgan.progress import Progress, silent

_LOG = logging.getLogger(__name__)
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # those of torchvision
EXPORTED = ("manifest.json", "readme.md", "privacy.json")  # what `idpgan sample` puts beside its class folders
LEDGER = ".ledger.json"  # suffix to a folder's name: the file beside it that lists its publications
FORMATS = "JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF", "JPEG2000", "AVIF", "PSD", "DIB", "TGA"  # Pillow's names
MODES = {1: "L", 3: "RGB"}
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")  # modes of pictures without color
MOST_PIXELS = 250_000_000  # of a picture; those of telephones have up to 200 million
_PIXEL_BYTES = 16  # most memory of a pixel while its picture is decoded
_PNG = b"\x89PNG\r\n\x1a\n"
_SMALL = 1 << 22  # bytes of a picture that is decoded without asking for memory
_TURNS = {  # EXIF orientation -> what turns the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SUBFILE, _SUBFILE_OLD, _BITS, _PHOTOMETRIC, _MAX_SAMPLE = 254, 255, 258, 262, 281  # tags of TIFF
DAMAGE = (  # exceptions of Pillow's decoders for incomplete images; a warning is one where the host makes it so
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError,
    RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Warning,
)  # fmt: skip
CHUNK = 64  # images per task of a thread
Shape = tuple[int, int, int]  # (C, H, W)
UNWANTED = NONE  # label of a file whose class is not on the list


class Files(NamedTuple):
    """Image files in a fixed order, and what is known about each before it is opened."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...] = ()  # empty where there are no classes
    classes: tuple[str, ...] = ()
    unwanted: str = "lies in a folder that is none of data.classes"  # reason given for a label UNWANTED
    counted: bool = False  # whether these are said where a table is read, by their number
    people: tuple[int, ...] = ()  # person on each image; empty if unknown
    attributes: tuple[tuple[int, ...], ...] = ()  # attribute bits of each image
    attribute_names: tuple[str, ...] = ()


def walk(folder: Path, *, ledgers: bool = False) -> list[Path]:
    """List all files below a folder, by folder and name; or list the ledgers of its folders instead."""

    def refuse(error: OSError) -> None:  # `os.walk` would silently skip the folder
        raise DataError(f"Cannot list the folder {error.filename}: {error.strerror}.") from error

    files: list[str] = []
    seen: dict[tuple[int, int], str] = {}
    for place, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        status = os.stat(place)
        first = seen.setdefault((status.st_dev, status.st_ino), place)
        if first != place:
            ends = ((Path(place), first), (Path(first), place))  # either may be the real one
            ways = [(way, other) for end, other in ends for way in (end, *end.parents) if folder in way.parents]
            link, other = next((way for way in ways if way[0].is_symlink()), (place, first))
            raise DataError(f"{link} leads to {other}, which is read as well: remove the link.")
        folders[:] = filter(_is_visible, folders)
        wanted = [name for name in filter(_is_visible, names) if name.endswith(LEDGER) == ledgers]
        files += [os.path.join(place, name) for name in wanted]
    return [Path(file) for file in sorted(files, key=os.path.split)]


def places_of(root: Path) -> set[tuple[Path, Path]]:
    """Return the folders below a folder that hold files, as they are named and as they lie, whatever links lead there.

    Raises:
        DataError: If the folder cannot be listed.
    """
    real = functools.cache(Path.resolve)
    return {(path.parent, path.resolve().parent if path.is_symlink() else real(path.parent)) for path in walk(root)}


def leftovers(root: Path, suffixes: Sequence[str] = EXTENSIONS) -> dict[str, int]:
    """Count the image files in hidden folders and `LEFTOVERS`, by the name of that folder; links are not followed."""
    counts = dict[str, int]()
    for place, folders, _ in os.walk(root):
        for name in itertools.filterfalse(_is_visible, folders):
            inside = (file for _, _, files in os.walk(os.path.join(place, name)) for file in files)
            count = sum(os.path.splitext(file)[1].lower() in suffixes for file in inside)
            if count:
                counts[name] = counts.get(name, 0) + count
        folders[:] = filter(_is_visible, folders)
    return counts


def in_folders(counts: Mapping[str, int]) -> str:
    """Return what `leftovers` has counted, in words."""
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(counts.items()))


def entries(folder: Path) -> list[Path]:
    """List a folder, sorted by name, without hidden entries and without the ledgers of its folders."""
    members = [folder / name for name in sorted(os.listdir(folder)) if _is_visible(name)]
    return [path for path in members if not path.name.endswith(LEDGER) or path.is_dir()]


def _is_visible(name: str) -> bool:
    """Distinguish the user's files and folders from those that systems create."""
    return not name.startswith(".") and name.lower() not in LEFTOVERS and name.lower() not in EXPORTED


# One picture ------------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture; inside the block its header is known, and `decoded` reads its pixels.

    Raises:
        DataError: If it cannot be used; the message is the rest of a sentence that begins with the file's name.
    """
    with _damage_refused():
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise DataError("is not a plain file, but a folder, pipe, socket or device; replace it")
        file = path.open("rb")
    with file:
        with _damage_refused():
            picture = _identified(file, path)
            _turn_to_the_page(picture)
            if picture.width * picture.height > MOST_PIXELS:
                raise DataError(f"has more than {MOST_PIXELS:,} pixels; make it smaller")
            _white(picture)
        yield picture


def decoded(picture: Image.Image) -> Image.Image:
    """Decode a picture as it is meant to be seen: upright, on white, with 8 bits a channel, grey (L) or RGB.

    Args:
        picture: One that `opened` gave, or that was made by any other program of the user; its current frame is taken.

    Raises:
        DataError: As `opened` raises it.
    """
    with _damage_refused():
        deep = ";16" in f"{picture.mode} {getattr(picture, 'tile', '')}"  # of a file that is not decoded yet
        picture.load()
        turn = turn_of(picture)
        flat = on_white(picture)
        if deep and 0 < np.asarray(flat).max() <= 256 // 16:
            warn_once(
                "A picture of 16 bits a channel has no value above a sixteenth of white (4095 of 65535), as if its 12 "
                "bits were written as 16: it is read as it stands, nearly black. If it should be brighter, multiply "
                "its values by 16, or save 8 bits a channel."
            )
        return flat if turn is None else flat.transpose(turn)


def turn_of(picture: Image.Image) -> Image.Transpose | None:
    """Return what turns a picture upright by its EXIF or XMP orientation; None if nothing does, or none is known."""
    if isinstance(picture, TiffImageFile):
        return None  # Pillow turns it while it decodes, and tells the turned size before
    try:  # that of PNG would decode the whole picture first; `_identified` puts its notes in front
        return _TURNS.get(Image.Image.getexif(picture).get(0x0112, 1))
    except DAMAGE:
        return None


def on_white(picture: Image.Image) -> Image.Image:
    """Return a decoded picture as L or RGB of 8 bits a channel; what is transparent is blended with white.

    Raises:
        DataError: If nothing says what its numbers mean.
    """
    white, mode = _white(picture), picture.mode
    wanted = "L" if is_grey(picture) else "RGB"
    if mode == "I" or mode.startswith("I;16"):
        values = np.asarray(picture).astype(np.uint32).clip(max=white)  # (H, W)
        grey = (values * 255 + white // 2) // white
        if isinstance(picture, TiffImageFile) and picture.tag_v2.get(_PHOTOMETRIC) == 0:  # white is zero
            grey = 255 - grey
        grey[values == picture.info.get("transparency", -1)] = 255
        return Image.fromarray(grey.astype(np.uint8))
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        above = picture if mode == "RGBA" else picture.convert("RGBA")
        below = Image.new("RGBA", above.size, "white")
        below.alpha_composite(above)
        picture = below
    return picture if picture.mode == wanted else picture.convert(wanted)


def is_grey(picture: Image.Image) -> bool:
    """Return whether an opened picture has no color by its mode or, as in many a GIF, by its palette."""
    if picture.mode != "P" or picture.palette is None:
        return picture.mode in GREY
    order, entries = picture.palette.getdata()  # as the file has them, or as Pillow does once it is decoded
    colors = np.frombuffer(bytes(entries), np.uint8)
    planes = colors.reshape(3, -1).T if order.endswith(";L") else colors.reshape(-1, 4 if order[3:] else 3)
    return bool((planes[:, :3] == planes[:, :1]).all())


@contextmanager
def _damage_refused() -> Iterator[None]:
    """Refuse what Pillow cannot read, in the words of `opened`."""
    try:
        yield
    except DataError:
        raise
    except DAMAGE as error:
        reason = getattr(error, "strerror", None) or str(error)  # the system's message without the file name
        raise DataError(f"cannot be decoded: {' '.join(reason.split())[:200]}; replace it") from error


def _identified(file: BinaryIO, path: Path) -> Image.Image:
    """Open a file of one of `FORMATS` by its first bytes.

    `Image.open` would also ask the warning filters and the limit of pixels that the calling program may have set.
    """
    Image.init()
    first = file.read(16)
    if not first:
        raise DataError("is empty; replace it")
    file = _plain_png(file) if first.startswith(_PNG) else file
    for form in FORMATS:
        factory, accepts = Image.OPEN.get(form, (None, None))
        if factory is None or (accepts is None and path.suffix.lower() != f".{form.lower()}"):  # TGA has no first bytes
            continue
        with contextlib.suppress(SyntaxError, IndexError, TypeError, struct.error):
            known = accepts is None or accepts(first)
            if known and not isinstance(known, str):  # a text says that this Pillow was built without the format
                file.seek(0)
                return factory(file, "")
    raise DataError("is not a picture that can be read here; convert it to JPEG or PNG")


def _plain_png(file: BinaryIO) -> BinaryIO:
    """Return a PNG without profile and notes, which are not used and of which Pillow refuses large ones.

    What may hold the orientation is put before the pixels: so it is known before these are decoded.
    """
    file.seek(0)
    content = file.read()
    front, rest, place = [content[:33]], list[bytes](), 33  # signature and IHDR
    while place + 12 <= len(content):
        length, kind = struct.unpack(">I4s", content[place : place + 8])
        chunk, place = content[place : place + length + 12], place + length + 12
        if kind == b"eXIf" or chunk[8:].startswith((b"Raw profile type exif", b"XML:com.adobe.xmp")):
            front.append(chunk)
        elif kind not in (b"iCCP", b"tEXt", b"zTXt", b"iTXt"):
            rest.append(chunk)
    return io.BytesIO(b"".join((*front, *rest, content[place:])))


def _turn_to_the_page(picture: Image.Image) -> None:
    """Find the one picture of a file beside its previews, masks and layers; refuse a file of several."""
    # The second picture of an MPO photograph is a preview of the first; those of a PSD are its layers.
    pages = list(range(1 if picture.format in ("MPO", "PSD") else getattr(picture, "n_frames", 1)))
    if isinstance(picture, TiffImageFile) and len(pages) > 1:
        full = []
        for page in pages:
            picture.seek(page)
            kind = picture.tag_v2.get(_SUBFILE, 0)  # bits: 1 reduced, 2 page of several, 4 mask, 8 depth
            if not kind & (1 | 4 | 8) and picture.tag_v2.get(_SUBFILE_OLD) != 2:
                full.append(page)
        pages = full or pages
        picture.seek(pages[0])
    if len(pages) > 1:
        raise DataError(f"holds {len(pages)} pictures; save each as a file of its own")


def _white(picture: Image.Image) -> int:
    """Return the number that means white; refuse a picture of which nothing says it."""
    mode, tags = picture.mode, getattr(picture, "tag_v2", {})
    if mode in ("F", "LAB") or (mode == "I" and picture.format not in ("PNG", "PPM")):
        raise DataError(f"has pixels of mode {mode}, whose range nothing says; save it with 8 or 16 bits a channel")
    bits = max(tags.get(_BITS, (8,)))
    white = (1 << bits) - 1 if 8 < bits < 16 else 65535
    declared = max(np.atleast_1d(tags.get(_MAX_SAMPLE, white)).tolist()) if bits > 8 else white
    if 255 <= declared < white and declared & (declared + 1) == 0:  # 12 bits in 16; other numbers are statistics
        white = declared
    if mode == "I" or mode.startswith("I;16"):
        return white
    if white < 65535:  # Pillow has taken the upper 8 of 16
        raise DataError(f"has colors from 0 to {white} in {bits} bits; save it with 8 or 16 bits a channel")
    return 255


class _Room:
    """Memory for pictures that are decoded at once: half of what is free, whatever the number of threads."""

    def __init__(self) -> None:
        self._taken, self._most = 0, 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: tuple[int, int]) -> Iterator[None]:
        """Hold what a picture needs; wait until others have given back enough, or all where it is larger than that."""
        need = size[0] * size[1] * _PIXEL_BYTES
        if need <= _SMALL:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + need <= self._most)
            if not self._taken:
                self._most = (device.free_memory() or 4 * device.GIB) // 2
            self._taken += need
        try:
            yield
        finally:
            with self._changed:
                self._taken -= need
                self._changed.notify_all()


ROOM = _Room()


def header(path: Path, channels: int | None) -> Shape:
    """Read (C, H, W) from a file's header, as `decode` would return it; raises like `decode`."""
    with _named(path), opened(path) as picture:
        turn, (width, height) = turn_of(picture), picture.size
        if turn in (_TURNS[5], _TURNS[6], _TURNS[7], _TURNS[8]):
            width, height = height, width
        grey = is_grey(picture) if channels is None else channels == 1
        return 1 if grey else 3, height, width


def decode(path: Path, channels: int | None, size: tuple[int, int] | None = None) -> np.ndarray:
    """Decode one picture to uint8 (C, H, W), see `decoded`; None keeps the picture's own channels or size.

    Raises:
        DataError: If it is not a whole picture, or not of the size (H, W).
    """
    with _named(path), opened(path) as picture, ROOM.taken(picture.size):
        if size not in (None, picture.size, picture.size[::-1]):  # refused before it is decoded, turned or not
            raise DataError(_wrong(picture, size))
        image = as_channels(decoded(picture), channels)
        if size not in (None, image.size[::-1]):
            raise DataError(_wrong(image, size))
        return planes(image)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the file's name before a refusal."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path} {error}.") from error


def _wrong(picture: Image.Image, size: tuple[int, int]) -> str:
    return f"is {picture.width} x {picture.height}, expected {size[1]} x {size[0]}"


def as_channels(image: Image.Image, channels: int | None) -> Image.Image:
    """Return a decoded picture in grey (1) or color (3), or as it is (None)."""
    mode = image.mode if channels is None else MODES[channels]
    return image if image.mode == mode else image.convert(mode)


def planes(image: Image.Image) -> np.ndarray:
    """Return a grey or RGB picture as uint8 (C, H, W)."""
    pixels = np.asarray(image)  # (H, W) or (H, W, 3)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def read_files(
    files: Files,
    shape: Shape,
    decoder: Callable[[Path], np.ndarray] | None = None,
    progress: Progress = silent,
    *,
    private: bool = True,
) -> tuple[Images, tuple[Refused, ...]]:
    """Decode every file once, on all cores, into one tensor; an unusable file becomes a null record.

    Null records, and copies among private images, are reported on the terminal only, to the curator.

    Args:
        shape: (C, H, W) of each image.
        decoder: Returns uint8 (C, H, W), or raises a `DataError`; None is `decode`.

    Returns:
        One image for each file, in their order, and the null records among them.
    """
    paths = files.paths
    device.check_room(
        len(paths) * math.prod(shape),
        2,  # once as read, and once more when they are split
        f"{len(paths):,} images of {in_words(shape)}",
        "Take fewer, or make them smaller.",
    )
    stored = device.zeros((len(paths), *shape), torch.uint8)
    pixels = stored.numpy()  # (N, C, H, W)
    null = torch.zeros(len(paths), dtype=torch.bool)

    def fill(start: int) -> list[Refused]:
        refused = []
        for index in range(start, min(start + CHUNK, len(paths))):
            try:
                if files.labels and files.labels[index] == UNWANTED:
                    raise DataError(f"{paths[index]} {files.unwanted}.")
                pixels[index] = decode(paths[index], shape[0], shape[1:]) if decoder is None else decoder(paths[index])
            except DataError as error:
                null[index] = True
                refused.append(Refused(paths[index], str(error)))
        return refused

    refused: list[Refused] = []
    # Pillow releases the interpreter lock while it decodes; the host's filters must not make errors of its warnings.
    with unwarned(), ThreadPoolExecutor(initializer=work_for, initargs=(call(),)) as pool:
        for done, part in enumerate(pool.map(fill, range(0, len(paths), CHUNK)), start=1):
            refused += part
            device.let_go(stored)
            progress("read images", min(done * CHUNK, len(paths)), len(paths))
    images = Images(
        stored,
        torch.tensor(files.labels, dtype=torch.int64) if files.classes else None,
        files.classes,
        torch.tensor(files.people) if files.people else None,
        torch.tensor(files.attributes, dtype=torch.uint8) if files.attribute_names else None,
        files.attribute_names,
    )
    images = images.zeroed_out(null) if refused else images
    if private:
        warn_of_null([file for file in refused if not (files.counted and files.unwanted in file.reason)], len(paths))
        _warn_of_equal(paths, images)
    return images, tuple(refused)


def _warn_of_equal(paths: Sequence[Path], images: Images) -> None:
    """Report duplicate pictures on the terminal: each copy is a separate record, and is protected as one."""
    places = defaultdict(list)
    for path, digest, is_null in zip(paths, images.digests(), images.is_null.tolist(), strict=True):
        if not is_null:
            places[digest].append(path)
    copied = [same for same in places.values() if len(same) > 1]
    if copied:
        _LOG.warning(
            "Exact copies of other pictures: %d, as %s = %s. Each is a record of its own: with unit image, whoever is "
            "on k of them has k epsilon.",
            sum(map(len, copied)) - len(copied), *copied[0][:2],
        )  # fmt: skip


def in_words(shape: tuple[int, ...]) -> str:
    """Return (C, H, W) in words: 48 x 48 RGB."""
    return f"{shape[2]} x {shape[1]} {MODES[shape[0]]}"
