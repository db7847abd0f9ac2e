"""How ``idpgan publish`` and ``idpgan obfuscate`` release a folder of images: charge, read, compute, write.

Before the charge only file names and headers are read; the charge is durable before any pixel is read. The content of a
file never ends a release: an unusable file becomes a black image, at the price of any other, and the curator is told on
the terminal. The output folder appears as a whole with one rename: whatever ends the program, the result is a release
with its charge, or a charge without a release. A restart is a new release with a fresh charge; what the killed one had
computed is deleted and was shown to nobody.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.data.image_files import Files, read_files
from idpgan.data.images import Images, make_grid, png_bytes
from idpgan.errors import InputError
from idpgan.files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    check_writable,
    new_folder,
    refuse_filled,
    write_bytes_atomic,
    write_text_atomic,
)
from idpgan.jobs.options import FolderOptions
from idpgan.privacy.event import Event
from idpgan.privacy.folder_ledger import FolderLedger, Publication
from idpgan.progress import Progress
from idpgan.release.images import ImagesArtifact
from idpgan.release.outputs import refuse_closed

REPORT, SHEET = "report.json", "contact.png"
SHOWN, COLUMNS = 32, 8  # pairs on the contact sheet; pictures in a row


def refuse_places(options: FolderOptions, elsewhere: str, inside: str, nowhere: str) -> None:
    """Refuse nested folders, an existing output, and a ledger path that cannot be a file.

    ``elsewhere`` says where the output may lie, ``inside`` and ``nowhere`` what is wrong with the ledger's place.
    """
    source, out = options.folder.resolve(), options.out.parent.resolve() / options.out.name
    where = f"--out {options.out}"
    if not options.folder.is_dir():
        raise InputError(f"There is no folder {options.folder}. Name the folder of images.")
    if out == source or out.is_relative_to(source) or source.is_relative_to(out):
        raise InputError(f"{where} and the images in {options.folder} lie in each other. {elsewhere}")
    if not out.parent.is_dir():
        raise InputError(f"the folder {options.out.parent} does not exist. Make it first.")
    refuse_closed(options.out, where)
    refuse_filled(options.out)
    path = options.ledger_path
    ledger = path.parent.resolve() / path.name
    if ledger.is_relative_to(out) or ledger.is_relative_to(source):
        raise InputError(f"the ledger {path} {inside}")
    if not ledger.parent.is_dir() or ledger.is_dir():
        raise InputError(f"the ledger {path} {nowhere}")
    refuse_closed(path, f"--ledger {path}")


def check_room(options: FolderOptions, artifact: ImagesArtifact) -> None:
    """Refuse places that cannot be written to, a ledger that cannot be locked, a disk that the release does not fit."""
    check_writable(options.out, sum(artifact.files().values()))
    try:
        check_writable(options.ledger_path, locked=True)
    except OSError as error:
        raise InputError(
            f"the ledger {options.ledger_path} cannot be kept there: {error.strerror}. Name a place for it on another "
            "disk or in another folder: --ledger FILE."
        ) from error


def expense(
    options: FolderOptions, method: str, num: int, events: tuple[Event, ...], epsilon: float | None, delta: float
) -> Publication:
    """Return the row that a release of ``num`` images gets on the folder's ledger."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Publication(events, delta, method, epsilon, num, options.out.name, date)


@contextmanager
def charged(options: FolderOptions, row: Publication) -> Iterator[tuple[FolderLedger, Path]]:
    """Charge a release; yield the ledger and the folder to write ``release`` and ``curator`` to."""
    with FolderLedger.locked(options.ledger_path, options.name) as ledger, new_folder(options.out) as part:
        ledger = ledger.charged(row)
        ledger.write()  # from here on the charge is durable, whatever happens
        yield ledger, part


def read_images(files: Sequence[Path], shape: tuple[int, int, int], progress: Progress) -> Images:
    """Return all images, uint8 (N, C, H, W); null records are black."""
    return read_files(Files(tuple(files)), shape, progress=progress)[0]


def write_curator(target: Path, originals: Tensor, released: Tensor, content: Mapping[str, Any]) -> None:
    """Write what is computed from the originals: the contact sheet of both, uint8 (N, C, H, W), and the report."""
    target.mkdir(mode=PRIVATE_FOLDER)
    pairs = torch.stack([originals[:SHOWN], released[:SHOWN]], dim=1).flatten(0, 1)
    sheet = png_bytes(make_grid(pairs, min(len(pairs), COLUMNS)))
    write_bytes_atomic(target / SHEET, sheet, mode=PRIVATE_FILE)
    write_text_atomic(target / REPORT, json.dumps(content, indent=1, allow_nan=False) + "\n", mode=PRIVATE_FILE)
