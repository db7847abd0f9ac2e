"""``idpgan prepare``: photos of any size and format become PNGs of one size and a metadata.csv."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from idpgan.data.metadata import METADATA, PERSON
from idpgan.data.photos import Photo, Planned, large_photos, metadata_csv, photo_pixels, plan
from idpgan.errors import DataError, InputError
from idpgan.files import check_writable, whole_folder
from idpgan.jobs.options import PrepareOptions
from idpgan.progress import Progress, silent
from idpgan.release.folder import remove_leftovers

REPORT = "prepared.json"
_CHUNK = 16  # photos in one task of a thread


class _Made(NamedTuple):
    digest: bytes = b""  # digest of the pixels
    enlarged: bool = False
    grey: bool = True
    refused: str = ""  # reason for a refusal


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`. For the curator only: it names photos.

    Attributes:
        out: The folder.
        num_photos: Rows of its metadata.csv, refused photos included.
        image_shape: (C, H, W) of all of them.
        columns: Of its metadata.csv, beside file_name.
        refused: Photo and reason, one for each row without a file.
        duplicates: Groups of photos of the same pixels; all of them are kept.
        shared: How many of these groups lie under more than one person.
        enlarged: Photos that were smaller than wanted.
        all_grey: Whether no photo has a color, although colors were kept.
        left_out: Files that are not photos by their names.
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

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        refused = [{"file_name": name, "reason": reason} for name, reason in self.refused]
        return {**self.__dict__, "out": str(self.out), "refused": refused}


def prepare(source: Path, out: Path, options: PrepareOptions, progress: Progress = silent) -> Prepared:
    """Make a folder of images of one size out of a folder of photos, whole or not at all.

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
    planned = plan(source, options.folders, options.labels)
    shape = (1 if options.grey else 3, *options.sides)
    check_writable(out, len(planned.photos) * math.prod(shape))
    remove_leftovers(out)  # photos that a kill left in a hidden folder
    with whole_folder(out) as part, large_photos():
        made = _make_all(planned, part, shape, options.crop, progress)
        if all(photo.refused for photo in made):
            raise DataError(
                f"None of the {len(made)} photos of {source} can be read; the first, {planned.photos[0].source.name}, "
                f"{made[0].refused}. Name another folder."
            )
        report = _report(out, planned, made, shape, source)
        (part / METADATA).write_text(metadata_csv(planned, [bool(p.refused) for p in made]), encoding="utf-8")
        (part / REPORT).write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    return report


def _make_all(planned: Planned, part: Path, shape: tuple[int, int, int], crop: str, progress: Progress) -> list[_Made]:
    """Make the images on all cores; Pillow works outside the interpreter lock."""
    photos, made = planned.photos, list[_Made]()
    for folder in {(part / photo.file_name).parent for photo in photos}:
        folder.mkdir(parents=True, exist_ok=True)

    def chunk(start: int) -> list[_Made]:
        return [_make(photo, part, shape, crop) for photo in photos[start : start + _CHUNK]]

    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    try:
        for results in pool.map(chunk, range(0, len(photos), _CHUNK)):
            made += results
            progress("photos", len(made), len(photos))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C too: no thread may write into the folder that is removed
    return made


def _make(photo: Photo, part: Path, shape: tuple[int, int, int], crop: str) -> _Made:
    try:
        pixels, found = photo_pixels(photo.source, shape[0], shape[1:], crop)
    except DataError as error:
        return _Made(refused=str(error))
    with open(part / photo.file_name, "xb") as file:  # two names may be the same file on this disk
        Image.fromarray(pixels).save(file, format="PNG")
    enlarged = found[0] < shape[1] or found[1] < shape[2]
    grey = shape[0] == 1 or bool((pixels == pixels[..., :1]).all())
    return _Made(hashlib.sha256(pixels.tobytes()).digest(), enlarged, grey)


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
    )
