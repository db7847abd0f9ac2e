"""``idpgan prepare``: photos of any size and format become PNGs of one size and a metadata.csv."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from idpgan.data.eyes import SEARCHED, Finder, face_finder, registered
from idpgan.data.image_files import decode
from idpgan.data.images import make_grid, png_bytes
from idpgan.data.metadata import METADATA, PERSON
from idpgan.data.photos import Photo, Planned, cut, metadata_csv, open_photo, photo_pixels, plan
from idpgan.errors import DataError, InputError
from idpgan.files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    check_writable,
    whole_folder,
    write_bytes_atomic,
    write_private_json,
    write_text_atomic,
)
from idpgan.host import own_state
from idpgan.jobs.options import PrepareOptions
from idpgan.progress import Progress, silent
from idpgan.release.folder import remove_leftovers

REPORT, SHEET = "prepared.json", "prepared.png"
_SHOWN = 64  # images of the contact sheet
_CHUNK = 16  # photos in one task of a thread
_NOT_FOUND = "shows no face, or no further one, that is found"


class _Made(NamedTuple):
    digest: bytes = b""  # digest of the pixels
    enlarged: bool = False
    grey: bool = True
    refused: str = ""  # reason for a refusal
    placed_by: str = ""  # "eyes", "face" or "middle": what an aligned photo was cut by


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
    aligned: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        refused = [{"file_name": name, "reason": reason} for name, reason in self.refused]
        return {**self.__dict__, "out": str(self.out), "refused": refused}


@own_state()
def prepare(source: Path, out: Path, options: PrepareOptions, progress: Progress = silent) -> Prepared:
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
    """
    if os.path.lexists(out):
        raise InputError(f"{out} exists already and is not written over. Choose another name or remove it.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"the folder {out.parent} does not exist. Make it first.")
    if out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{out} lies in {source}, so that its images would be photos next time. Choose another place.")
    with face_finder() if options.align else nullcontext() as find:
        planned = plan(source, options.folders, options.label_table, options.faces)
        shape = (1 if options.grey else 3, *options.sides)
        check_writable(out, len(planned.photos) * math.prod(shape))
        remove_leftovers(out)  # photos that a kill left in a hidden folder
        with whole_folder(out) as part:
            part.chmod(PRIVATE_FOLDER)
            made = _make_all(planned, _Making(part, shape, options, find), progress)
            if all(photo.refused for photo in made):
                raise DataError(
                    f"None of the {len(made)} photos of {source} can be used; the first, "
                    f"{planned.photos[0].source.name}, {made[0].refused}. Name another folder."
                )
            report = _report(out, planned, made, shape, source)
            table = metadata_csv(planned, [bool(photo.refused) for photo in made])
            write_text_atomic(part / METADATA, table, mode=PRIVATE_FILE)
            write_private_json(part / REPORT, report.to_json())
            if find is not None:
                write_bytes_atomic(part / SHEET, _sheet(planned, made, part, shape), mode=PRIVATE_FILE)
    return report


def was_aligned(folder: Path) -> bool:
    """Tell whether a folder was prepared with ``--align eyes``; a folder of another origin was not.

    Raises:
        InputError: If its report cannot be read.
    """
    report = folder / REPORT
    if not report.is_file():
        return False
    try:
        return bool(json.loads(report.read_text(encoding="utf-8")).get("aligned"))
    except (ValueError, AttributeError) as error:
        raise InputError(f"{report} is not as idpgan prepare wrote it: {error}. Prepare the folder again.") from error


class _Making(NamedTuple):
    """What becomes of each photo."""

    part: Path
    shape: tuple[int, int, int]
    options: PrepareOptions
    find: Finder | None

    def image(self, photo: Photo) -> _Made:
        """Make one image, or say why there is none."""
        try:
            pixels, found, placed_by = self._pixels(photo.source, photo.face)
        except DataError as error:
            return _Made(refused=str(error))
        flags = (
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        )  # two names may be one file on this disk
        with os.fdopen(os.open(self.part / photo.file_name, flags, PRIVATE_FILE), "wb") as file:
            Image.fromarray(pixels).save(file, format="PNG")
        grey = self.shape[0] == 1 or bool((pixels == pixels[..., :1]).all())
        return _Made(hashlib.sha256(pixels.tobytes()).digest(), found < 1, grey, placed_by=placed_by)

    def _pixels(self, path: Path, number: int) -> tuple[np.ndarray, float, str]:
        """Return the pixels, how many px of the photo make the side of one, and what they were placed by."""
        channels, size = self.shape[0], self.shape[1:]
        if self.find is None:
            pixels, sides = photo_pixels(path, channels, size, self.options.crop)
            return pixels, min(sides[0] / size[0], sides[1] / size[1]), ""
        with open_photo(path, channels, 2 * max(*SEARCHED, *size)) as photo:
            faces = self.find(np.asarray(photo.convert("L")), self.options.faces)
            if number < len(faces):
                return *registered(photo, faces[number], size), "eyes" if faces[number].seen else "face"
            if self.options.not_found == "null" or number > 0:
                raise DataError(_NOT_FOUND)
            pixels, sides = cut(photo, size, "center")
        return pixels, min(sides[0] / size[0], sides[1] / size[1]), "middle"


def _make_all(planned: Planned, making: _Making, progress: Progress) -> list[_Made]:
    """Make the images on all cores; Pillow and OpenCV work outside the interpreter lock."""
    photos, made = planned.photos, list[_Made]()
    for folder in sorted({folder for photo in photos for folder in PurePosixPath(photo.file_name).parents}):
        (making.part / folder).mkdir(mode=PRIVATE_FOLDER, exist_ok=True)

    def chunk(start: int) -> list[_Made]:
        return [making.image(photo) for photo in photos[start : start + _CHUNK]]

    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    try:
        with warnings.catch_warnings(action="ignore"):  # the host's filters must not make errors of Pillow's
            for results in pool.map(chunk, range(0, len(photos), _CHUNK)):
                made += results
                progress("photos", len(made), len(photos))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C too: no thread may write into the folder that is removed
    return made


def _sheet(planned: Planned, made: list[_Made], part: Path, shape: tuple[int, int, int]) -> bytes:
    """Return a PNG of images spread over the folder, for the curator to look at."""
    there = [photo.file_name for photo, result in zip(planned.photos, made, strict=True) if not result.refused]
    shown = [decode(part / name, shape[0]) for name in there[:: -(-len(there) // _SHOWN)]]
    return png_bytes(make_grid(torch.from_numpy(np.stack(shown)), 8))


def _report(out: Path, planned: Planned, made: list[_Made], shape: tuple[int, int, int], source: Path) -> Prepared:
    """Collect what the curator has to know."""
    groups = defaultdict(list)
    for index, result in enumerate(made):
        if not result.refused:
            groups[result.digest].append(index)
    same = [group for group in groups.values() if len(group) > 1]
    people = [photo.values[-1] for photo in planned.photos] if PERSON in planned.columns else None
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
        aligned=_aligned(made),
    )


def _aligned(made: list[_Made]) -> dict[str, int]:
    """Count what aligned photos were placed by; empty where no face was looked for."""
    counts = {kind: sum(result.placed_by == kind for result in made) for kind in ("eyes", "face", "middle")}
    none = sum(result.refused == _NOT_FOUND for result in made)
    return {**counts, "none": none} if none or any(counts.values()) else {}
