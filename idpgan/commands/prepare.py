"""``idpgan prepare``: photos of any size and format become PNGs of one size and a metadata.csv."""

from __future__ import annotations

import hashlib
import math
import os
import re
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from idpgan import files
from idpgan.commands.command import Answer, MachineError, command, option, refuse_below
from idpgan.commands.folder import sides
from idpgan.errors import DataError, InputError
from idpgan.host import call, unwarned, work_for
from idpgan.progress import Progress, silent

if TYPE_CHECKING:
    import numpy as np

    from idpgan.data.dicom import View
    from idpgan.data.eyes import Finder
    from idpgan.data.photos import LabelTable, Photo, Planned

MOST_FACES = 20  # of a photo
_SHOWN = 10  # refused photos on the terminal; all of them are in prepared.json
_PICTURES = 64  # of the contact sheet
_CHUNK = 16  # photos in one task of a thread
_ASKED = 200  # photos after which it ends where most show no face
_NOT_FOUND = "shows no face, or no further one, that is found"


@dataclass(frozen=True)
class PrepareOptions:
    """What becomes of photos, and what their folders and labels mean."""

    size: Annotated[str, Option(metavar="SIDE|HxW", help="Height and width in px: 48, or 112x92.")]
    grey: bool = option(False, "Drop the colors.")
    crop: str = option("center", "center: cut the middle; none: squeeze the whole photo.", metavar="center|none")
    align: str | None = option(None, "eyes: find the face, put its eyes on fixed places.", metavar="eyes")
    not_found: str | None = option(
        None,
        "A photo without a face: a null record, or its middle is cut; default: null, but ends where most show none.",
        metavar="null|center",
    )
    faces: int = option(1, "Rows of every photo, null where it shows fewer faces; the unit is then the photo.")
    folders: str | None = option(
        None, "What the subfolders of SRC are; person:2: those in them.", metavar="label|person|none"
    )
    table: Path | None = option(
        None,
        "Table of files, labels, maybe person; default: SRC/metadata.csv. Formerly --labels.",
        "--table",
        "--labels",
        metavar="FILE.csv",
    )
    file_column: str = option("file_name", "Its column of files: names, or paths below SRC.", metavar="COLUMN")
    label_column: str | None = option(None, "Its one column to take; default: all.", metavar="COLUMN")
    person_column: str | None = option(None, "Its column of people; default: person.", metavar="COLUMN")
    only_labelled: bool = option(False, "Leave photos without a label, or without a row, out.")
    skip_missing: bool = option(False, "Leave rows of the table without a photo out.")
    window: str | None = option(
        None, "Of DICOM: values that become black and white; default: each file's own.", metavar="LOW:HIGH"
    )
    frame: int | None = option(None, "Of DICOM files of several frames: take this one, from 1.")
    patients: bool = option(False, "The person on a DICOM file is its patient; PatientID is hashed.")

    def __post_init__(self) -> None:
        from idpgan.models.config import SIZES, SIZES_IN_WORDS

        if self.sides not in SIZES:
            written = "x".join(map(str, self.sides))
            raise InputError(f"--size {written} is none that networks are built for: {SIZES_IN_WORDS}.")
        for name, value, known in (
            ("crop", self.crop, ("center", "none")),
            ("align", self.align, ("eyes", None)),
            ("not-found", self.not_found, ("null", "center", None)),
        ):
            if value not in known:
                raise InputError(f"--{name} {value} is unknown: {', '.join(filter(None, known))}.")
        if not re.fullmatch(r"none|(label|person)(:[1-9])?", self.folders or "none"):
            raise InputError(f"--folders {self.folders} is unknown: label, person, none; or label:2, person:2.")
        if self.align is not None and self.crop != "center":
            raise InputError(f"--crop {self.crop} does not go with --align: a found face says what is cut.")
        if not 1 <= self.faces <= MOST_FACES:
            raise InputError(f"--faces {self.faces} must be in 1 .. {MOST_FACES}.")
        if self.align is None and self.faces > 1:
            raise InputError("--faces belongs to --align eyes: without it no face is looked for.")
        if self.align is None and self.not_found is not None:
            raise InputError("--not-found belongs to --align eyes: without it no face is looked for.")
        refuse_below(self, frame=1)
        _ = self.dicom_view

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width in px."""
        return sides(self.size)

    @property
    def dicom_view(self) -> View:
        """How DICOM files are shown; raises `InputError` if ``window`` is no range."""
        from idpgan.data.dicom import View

        if self.window is None:
            return View(None, self.frame)
        match = re.fullmatch(r"([-+]?\d+\.?\d*):([-+]?\d+\.?\d*)", self.window.strip(), re.ASCII)
        low, high = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
        if not low < high:
            raise InputError(f"--window {self.window} is no range. Write LOW:HIGH, such as -160:240 for a CT.")
        return View((low, high), self.frame)

    @property
    def label_table(self) -> LabelTable:
        """The table of labels, and how it is read."""
        from idpgan.data.photos import LabelTable

        columns = self.file_column, self.label_column, self.person_column
        return LabelTable(self.table, *columns, self.only_labelled, self.skip_missing, self.patients)


class FewFacesError(DataError):
    """Most photos show no face, and what becomes of these was not said."""


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`. For the curator only: it names photos.

    Attributes:
        out: The folder.
        num_photos: Rows of its metadata.csv, refused photos included; one for each face that is asked for.
        image_shape: (C, H, W) of all of them.
        columns: Of its metadata.csv, beside file_name.
        refused: Photo and reason, one for each row without a file.
        duplicates: Groups of photos of the same pixels; all of them are kept.
        shared: How many of these groups lie under more than one person.
        enlarged: Photos that were smaller than wanted.
        all_grey: Whether no photo has a color, although colors were kept.
        left_out: Files that are not photos by their names.
        twins: Raw files of a camera beside a readable file of the same name, which was taken.
        leftovers: Photos in hidden folders and in what file systems leave behind, by the name of the folder.
        unlabelled: Photos that were left out because they have no label.
        missing: Files of rows that were left out because there is no such photo.
        blank: Photos without a label that were not left out, where others have one.
        dicom: Number of DICOM files among the photos.
        aligned: How many photos were put in place by their "eyes", by the box of the "face" or by the "middle" of the
            photo, and in how many "none" is found; empty where no face was looked for.
    """

    out: Path
    num_photos: int
    image_shape: tuple[int, int, int]
    columns: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    duplicates: tuple[tuple[str, ...], ...]
    shared: int
    enlarged: int
    all_grey: bool
    left_out: tuple[str, ...]
    twins: tuple[str, ...]
    leftovers: dict[str, int]
    unlabelled: int
    missing: tuple[str, ...]
    blank: int
    dicom: int
    aligned: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        refused = [{"file_name": name, "reason": reason} for name, reason in self.refused]
        return {**self.__dict__, "out": str(self.out), "refused": refused}


@command
def prepare(
    source: Annotated[Path, Argument(metavar="SRC", help="Folder of photos.")],
    out: Annotated[Path, Argument(metavar="DST", help="The folder to be.")],
    options: PrepareOptions,
    progress: Progress,
) -> Answer:
    """Make images of one size, and a metadata.csv, out of photos of any size and format.

    Faces are looked for with --align eyes alone; else they have to be in the middle. A photo that cannot be used keeps
    its row, without a file.

    Example: idpgan prepare photos faces48 --size 48 --folders person
    """
    try:
        done = prepare_photos(source, out, options, progress)
    except FewFacesError as error:
        raise MachineError(str(error), 1) from error
    return Answer(done, lambda: _tell(done, options))


def _tell(done: Prepared, options: PrepareOptions) -> None:
    from idpgan.data.image_files import in_folders
    from idpgan.data.metadata import SHEET

    channels, height, width = done.image_shape
    columns = ", ".join(("file_name", *done.columns))
    print(
        f"{done.num_photos - len(done.refused):,} of {done.num_photos:,} photos are in {done.out}, {height} x {width} "
        f"{'grey' if channels == 1 else 'color'}, with metadata.csv ({columns})."
    )
    if done.aligned:
        eyes, face, middle, none = (done.aligned[kind] for kind in ("eyes", "face", "middle", "none"))
        print(
            f"Put in place: {eyes:,} by their eyes, {face:,} by the box of the face, whose eyes were not found. "
            f"No face was found in {middle + none:,}: {'the middle was cut out' if middle else 'null records'}. "
            f"Look at {done.out / SHEET} (secret) before you go on."
        )
    else:
        cut = "the middle of each was cut out" if options.crop == "center" else "each was squeezed as a whole"
        print(f"No face was looked for (--align eyes does): {cut}. Look at some before you go on.")
    if done.dicom:
        print(
            f"Of {done.dicom:,} DICOM files the pixels were taken and no tag. Text burnt into them was not looked for."
        )
        if options.window is None:
            print(
                "Each is shown by its own window, or else by all that its bits can hold: a CT is then grey (--window)."
            )
    if done.blank:
        print(f"Without a label or a row in the table: {done.blank:,} photos (--only-labelled leaves them out).")
    if done.unlabelled:
        print(f"Left out, without a label: {done.unlabelled:,} photos.")
    if done.enlarged:
        print(f"{done.enlarged:,} were smaller and have been enlarged: they are blurred.")
    if done.all_grey:
        print("None has a color: --grey makes the images a third of the size.")
    for what, names in (
        ("rows without a photo", done.missing),
        ("no photos by their names", done.left_out),
        ("raw files beside a readable one of the same shot", done.twins),
    ):
        if names:
            print(f"Left out, {what}: {_some(names)} ({len(names):,} in all).")
    if done.leftovers:
        print(f"Left out, in hidden folders and what systems leave behind: {in_folders(done.leftovers)} photos.")
    if done.refused:
        print(f"Refused: {len(done.refused):,}. Each keeps its row, and stands as a null record:")
        for name, reason in done.refused[:_SHOWN]:
            print(f"  {name} {reason}")
    if done.duplicates:
        copies = sum(map(len, done.duplicates)) - len(done.duplicates)
        print(
            f"{copies:,} photos are exact copies of others and were kept, as in: "
            f"{_some(tuple(' = '.join(group[:3]) for group in done.duplicates[:3]))}."
        )
        if done.shared:
            print(f"  {done.shared:,} of these groups lie under more than one person: are these one person?")
    if len(done.refused) > _SHOWN or done.duplicates:
        print(f"All of them: {done.out / 'prepared.json'}")
    print(f"Next: idpgan init {files.pasted(done.out)} > config.toml")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)


def prepare_photos(source: Path, out: Path, options: PrepareOptions, progress: Progress = silent) -> Prepared:
    """Make a folder of images of one size out of a folder of photos, whole or not at all.

    Beside the images it holds metadata.csv and, for the curator only, prepared.json and, of aligned photos,
    prepared.png, a sheet of 64 of them spread over the folder. An image is a function of its photo and of public
    settings alone, as `idpgan.data.eyes` proves for aligned ones: another photo that changes moves no pixel of it.

    Args:
        source: Photos, in subfolders or not.
        out: The folder to be; its parent exists.

    Raises:
        InputError: If the options, or the names and labels of the photos, do not fit; or if no photo at all can be
            read. Single photos that cannot be read are listed, and keep their rows.
        FewFacesError: If most of the first 200 photos show no face, and ``not_found`` is not given.
    """
    from idpgan.data.eyes import face_finder
    from idpgan.data.metadata import METADATA, PREPARED, SHEET
    from idpgan.data.photos import metadata_csv, plan
    from idpgan.release.folder import refuse_place

    files.refuse_existing(out)
    refuse_place(out, str(out), [source])
    with face_finder() if options.align else nullcontext() as find:
        planned = plan(source, options.folders, options.label_table, options.faces)
        for photo in planned.photos:
            if (first := photo.file_name.partition("/")[0]).casefold() in (METADATA, PREPARED, SHEET):
                raise DataError(
                    f"{photo.source} would become {photo.file_name}, and {first} is a name of what is written beside "
                    "the photos. Rename it."
                )
        shape = (1 if options.grey else 3, *options.sides)
        files.check_writable(out, len(planned.photos) * math.prod(shape))
        with files.new_folder(out) as part:
            part.chmod(files.PRIVATE_FOLDER)
            made = _make_all(planned, _Making(part, shape, options, find), progress)
            if all(photo.refused for photo in made):
                raise DataError(
                    f"None of the {len(made)} photos of {source} can be used; the first, "
                    f"{planned.photos[0].source.name}, {made[0].refused}. Name another folder."
                )
            report = _report(out, planned, made, shape, source)
            table = metadata_csv(planned, [bool(photo.refused) for photo in made])
            files.write_text_atomic(part / METADATA, table, mode=files.PRIVATE_FILE)
            files.write_private_json(part / PREPARED, report.to_json())
            if find is not None:
                files.write_bytes_atomic(part / SHEET, _sheet(planned, made, part, shape), mode=files.PRIVATE_FILE)
    return report


class _Made(NamedTuple):
    digest: bytes = b""  # digest of the pixels
    enlarged: bool = False
    grey: bool = True
    refused: str = ""  # reason for a refusal
    placed_by: str = ""  # "eyes", "face" or "middle": what an aligned photo was cut by


class _Making(NamedTuple):
    """What becomes of each photo."""

    part: Path
    shape: tuple[int, int, int]
    options: PrepareOptions
    find: Finder | None

    def image(self, photo: Photo) -> _Made:
        """Make one image, or say why there is none."""
        from PIL import Image

        try:
            pixels, reduction, placed_by = self._pixels(photo.source, photo.face)
        except DataError as error:
            return _Made(refused=str(error))
        except Exception as error:
            if not _of_picture(error):
                raise
            return _Made(refused=f"cannot be worked on: {' '.join(str(error).split())[:200]}; replace it")
        # Two names may be one file on this disk.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(self.part / photo.file_name, flags, files.PRIVATE_FILE), "wb") as file:
            Image.fromarray(pixels).save(file, format="PNG")
        grey = self.shape[0] == 1 or bool((pixels == pixels[..., :1]).all())
        return _Made(hashlib.sha256(pixels.tobytes()).digest(), reduction < 1, grey, placed_by=placed_by)

    def _pixels(self, path: Path, number: int) -> tuple[np.ndarray, float, str]:
        """Return the pixels, how many px of the photo make the side of one, and what they were placed by."""
        import numpy as np

        from idpgan.data.eyes import SEARCHED, registered
        from idpgan.data.photos import cut, open_photo, photo_pixels

        channels, size = self.shape[0], self.shape[1:]
        if self.find is None:
            pixels, sides = photo_pixels(path, channels, size, self.options.crop, self.options.dicom_view)
            return pixels, min(sides[0] / size[0], sides[1] / size[1]), ""
        with open_photo(path, channels, 2 * max(*SEARCHED, *size), self.options.dicom_view) as photo:
            faces = self.find(np.asarray(photo.convert("L")), self.options.faces)
            if number < len(faces):
                return *registered(photo, faces[number], size), "eyes" if faces[number].seen else "face"
            if self.options.not_found != "center" or number > 0:
                raise DataError(_NOT_FOUND)
            pixels, sides = cut(photo, size, "center")
        return pixels, min(sides[0] / size[0], sides[1] / size[1]), "middle"


def _of_picture(error: Exception) -> bool:
    """Tell whether OpenCV or Pillow refused one picture's numbers or size; what we call wrongly is no photo's fault."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    of_numbers = isinstance(error, ValueError | ArithmeticError | SystemError | RuntimeError)
    return type(error).__module__ == "cv2" or (of_numbers and frame.f_globals["__name__"].startswith("PIL."))


def _refuse_faceless(made: list[_Made], options: PrepareOptions) -> None:
    """End after the first photos if most show no face, unless it is said what becomes of these."""
    first = made[: _ASKED * options.faces : options.faces]  # of several faces the first
    none = sum(photo.refused == _NOT_FOUND for photo in first)
    if options.align and options.not_found is None and len(first) == _ASKED and 2 * none > _ASKED:
        raise FewFacesError(
            f"No face was found in {none} of the first {_ASKED} photos, and each would be a null record. Photos that "
            "are cut tightly have their faces in place: leave --align out. Else say what becomes of these, with "
            "--not-found center (the middle is cut out) or --not-found null. Nothing was written."
        )


def _make_all(planned: Planned, making: _Making, progress: Progress) -> list[_Made]:
    """Make the images on all cores; Pillow and OpenCV work outside the interpreter lock."""
    photos, made = planned.photos, list[_Made]()
    for folder in sorted({folder for photo in photos for folder in PurePosixPath(photo.file_name).parents}):
        (making.part / folder).mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)

    def chunk(start: int) -> list[_Made]:
        return [making.image(photo) for photo in photos[start : start + _CHUNK]]

    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pool = ThreadPoolExecutor(threads, initializer=work_for, initargs=(call(),))
    try:
        with unwarned():  # the host's filters must not make errors of Pillow's
            for results in pool.map(chunk, range(0, len(photos), _CHUNK)):
                if len(made) < _ASKED * making.options.faces <= len(made) + len(results):
                    _refuse_faceless([*made, *results], making.options)
                made += results
                progress("photos", len(made), len(photos))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C too: no thread may write into the folder that is removed
    return made


def _sheet(planned: Planned, made: list[_Made], part: Path, shape: tuple[int, int, int]) -> bytes:
    """Return a PNG of images spread over the folder, for the curator to look at."""
    import numpy as np
    import torch

    from idpgan.data.image_files import decode
    from idpgan.data.images import make_grid, png_bytes

    there = [photo.file_name for photo, result in zip(planned.photos, made, strict=True) if not result.refused]
    shown = [decode(part / name, shape[0]) for name in there[:: -(-len(there) // _PICTURES)]]
    return png_bytes(make_grid(torch.from_numpy(np.stack(shown)), 8))


def _report(out: Path, planned: Planned, made: list[_Made], shape: tuple[int, int, int], source: Path) -> Prepared:
    """Collect what the curator has to know."""
    from idpgan.data.dicom import is_dicom
    from idpgan.data.metadata import PERSON

    groups = defaultdict(list)
    for index, result in enumerate(made):
        if not result.refused:
            groups[result.digest].append(index)
    same = [group for group in groups.values() if len(group) > 1]
    people = [photo.values[-1] for photo in planned.photos] if PERSON in planned.columns else None
    placed = {kind: sum(result.placed_by == kind for result in made) for kind in ("eyes", "face", "middle")}
    placed["none"] = sum(result.refused == _NOT_FOUND for result in made)
    return Prepared(
        out=out,
        num_photos=len(made),
        image_shape=shape,
        columns=planned.columns,
        refused=tuple((p.file_name, m.refused) for p, m in zip(planned.photos, made, strict=True) if m.refused),
        duplicates=tuple(tuple(planned.photos[index].file_name for index in group) for group in same),
        shared=sum(len({people[index] for index in group}) > 1 for group in same) if people else 0,
        enlarged=sum(result.enlarged for result in made),
        all_grey=shape[0] == 3 and all(result.grey for result in made),
        left_out=tuple(path.relative_to(source).as_posix() for path in planned.left_out),
        twins=tuple(path.relative_to(source).as_posix() for path in planned.twins),
        leftovers=planned.leftovers,
        unlabelled=planned.unlabelled,
        missing=planned.missing,
        blank=planned.blank,
        dicom=sum(is_dicom(photo.source) for photo in planned.photos),
        aligned=placed if any(placed.values()) else {},
    )
