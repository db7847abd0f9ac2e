"""How ``idpgan publish`` releases a folder of images: charge, read, compute, write.

Before the charge only file names and headers are read; the charge is durable before any pixel is read. The content of a
file never ends a release: an unusable file becomes a black image, at the price of any other, and the curator is told on
the terminal. The output folder appears as a whole with one rename: whatever ends the program, the result is a release
with its charge, or a charge without a release. A restart is a new release with a fresh charge; what the killed one had
computed is deleted and was shown to nobody.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from idpgan import files
from idpgan.errors import DataError, InputError
from idpgan.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.data.images import Images
    from idpgan.data.metadata import Rows
    from idpgan.privacy.event import Event
    from idpgan.privacy.folder_ledger import FolderLedger, Publication
    from idpgan.publish.obfuscators.obfuscator import Obfuscator
    from idpgan.release.images import ImagesArtifact

    Labels = tuple[Sequence[str], Sequence[str]]  # for each image the value to be kept and the one to be hidden

FolderAndSettings = Annotated[tuple[str, ...], Argument(metavar="DIR [option=value ...]", show_default=False)]
FolderLedgerFile = Annotated[
    Path | None, Option(metavar="FILE", help="Ledger of DIR; default: DIR.ledger.json beside it.")
]
REPORT, SHEET = "report.json", "contact.png"
SHOWN, COLUMNS = 32, 8  # pairs on the contact sheet; pictures in a row


class FolderOptions:
    """A folder of images with the settings of a method, and the ledger of the folder; raises as `folder_and_settings`.

    Attributes:
        arguments: The folder, and ``option=value`` for each setting of the method.
        out: Folder to write to: absent or empty.
        ledger: Of the folder; None = ``NAME.ledger.json`` beside it.
    """

    arguments: tuple[str, ...]
    out: Path
    ledger: Path | None

    def __post_init__(self) -> None:
        _ = self.folder

    @functools.cached_property
    def folder_and_settings(self) -> tuple[Path, dict[str, Any]]:
        """The folder, and the settings of the method.

        Raises:
            InputError: If there is not one folder, or a setting is not key=value.
        """
        from idpgan.config import apply_overrides

        folders = [text for text in self.arguments if "=" not in text or Path(text).is_dir()]
        if len(folders) != 1:
            raise InputError(
                f"name one folder of images, got {', '.join(folders) or 'none'}. An option is written key=value."
            )
        return Path(folders[0]), apply_overrides({}, [text for text in self.arguments if text not in folders])

    @property
    def folder(self) -> Path:
        """Of the images, as it was named."""
        return self.folder_and_settings[0]

    @property
    def settings(self) -> dict[str, Any]:
        """Of the method."""
        return self.folder_and_settings[1]

    @property
    def name(self) -> str:
        """Of the folder itself, whatever link leads there."""
        return self.folder.resolve().name

    @property
    def ledger_path(self) -> Path:
        """Where the folder's ledger lies."""
        from idpgan.privacy.folder_ledger import ledger_of

        return self.ledger if self.ledger is not None else ledger_of(self.folder)


def sides(size: str) -> tuple[int, int]:
    """Return height and width of ``--size``; raises `InputError` if it is neither SIDE nor HxW."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", size.strip(), re.ASCII)
    if match is None:
        raise InputError(f"--size {size!r} is not a size. Write one side, as 48, or height x width, as 112x92.")
    return int(match[1]), int(match[2] or match[1])


def ask_before_marking(options: FolderOptions, method: str) -> None:
    """Ask on a terminal before a release without a proof makes the total of a folder's ledger infinite, for good.

    Elsewhere, as in a script, ``--accept-unsound`` is the answer.

    Raises:
        InputError: If the answer is no; nothing was charged.
    """
    from idpgan.privacy.folder_ledger import FolderLedger

    before = FolderLedger.read(options.ledger_path, options.name).publications
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or not all(item.sound for item in before):
        return
    question = (
        f"'{method}' proves nothing. Its release stands on {options.ledger_path} for good, and makes the total of "
        f"{options.folder} infinite ({len(before)} sound publications until now). For a trial take a copy of a few "
        "images. Go on?"
    )
    if not typer.confirm(question, default=False, err=True):
        raise InputError("nothing was published or charged.")


def check_places(options: FolderOptions) -> None:
    """Refuse nested folders, an existing output, and a ledger path that cannot be a file."""
    from idpgan.release.folder import refuse_closed, refuse_place

    source, out = options.folder.resolve(), options.out.parent.resolve() / options.out.name
    where = f"--out {options.out}"
    if not options.folder.is_dir():
        raise InputError(f"There is no folder {options.folder}. Name the folder of images.")
    refuse_place(options.out, where, [options.folder])
    if not out.parent.is_dir():
        raise InputError(f"the folder {options.out.parent} does not exist. Make it first.")
    files.refuse_filled(options.out)
    path = options.ledger_path
    ledger = path.parent.resolve() / path.name
    if ledger.is_relative_to(out) or ledger.is_relative_to(source):
        raise InputError(f"the ledger {path} lies in what is published or written. Keep it beside: --ledger FILE.")
    if not ledger.parent.is_dir() or ledger.is_dir():
        raise InputError(f"the ledger {path} is to be a file in a folder that exists. Name one with --ledger.")
    refuse_closed(path, f"--ledger {path}")


def check_room(options: FolderOptions, artifact: ImagesArtifact) -> None:
    """Refuse places that cannot be written to, a ledger that cannot be locked, a disk that the release does not fit."""
    files.check_writable(options.out, sum(artifact.files().values()))
    try:
        files.check_writable(options.ledger_path, locked=True)
    except OSError as error:
        raise InputError(
            f"the ledger {options.ledger_path} cannot be kept there: {error.strerror}. Name a place for it on another "
            "disk or in another folder: --ledger FILE."
        ) from error


def expense(
    options: FolderOptions, method: str, num: int, events: tuple[Event, ...], epsilon: float | None, delta: float
) -> Publication:
    """Return the row that a release of ``num`` images gets on the folder's ledger."""
    from idpgan.privacy.folder_ledger import Publication

    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Publication(events, delta, method, epsilon, num, options.out.name, date)


@contextmanager
def charged(options: FolderOptions, row: Publication) -> Iterator[tuple[FolderLedger, Path]]:
    """Charge a release; yield the ledger and the folder to write ``release`` and ``curator`` to.

    Raises:
        InputError: See `FolderLedger.pay`.
    """
    from idpgan.privacy.folder_ledger import FolderLedger

    with FolderLedger.locked(options.ledger_path, options.name) as ledger, files.new_folder(options.out) as part:
        yield ledger.pay(options.folder, [row]), part  # the charge is durable, whatever happens


def read_images(paths: Sequence[Path], shape: tuple[int, int, int], progress: Progress) -> Images:
    """Return all images, uint8 (N, C, H, W); null records are black."""
    from idpgan.data.image_files import Files, read_files

    return read_files(Files(tuple(paths)), shape, progress=progress)[0]


def write_curator(target: Path, originals: Tensor, released: Tensor, content: Mapping[str, Any]) -> None:
    """Write what is computed from the originals: the contact sheet of both, uint8 (N, C, H, W), and the report."""
    import torch

    from idpgan.data.images import make_grid, png_bytes

    target.mkdir(mode=files.PRIVATE_FOLDER)
    pairs = torch.stack([originals[:SHOWN], released[:SHOWN]], dim=1).flatten(0, 1)
    sheet = png_bytes(make_grid(pairs, min(len(pairs), COLUMNS)))
    files.write_bytes_atomic(target / SHEET, sheet, mode=files.PRIVATE_FILE)
    files.write_text_atomic(
        target / REPORT, json.dumps(content, indent=1, allow_nan=False) + "\n", mode=files.PRIVATE_FILE
    )


# What an obfuscator reads of a folder --------------------------------------------------------------------------------


def listed(source: Path) -> Rows:
    """Return the images of a folder: those that its metadata.csv names, in that order, with its people; else all files.

    A row without a file, as of a photo that `idpgan prepare` refused, keeps its position. What else lies beside the
    table is not read.
    """
    from idpgan.data import metadata
    from idpgan.data.sources import face_folder

    if (source / metadata.METADATA).is_file():
        return metadata.read_rows(source, ())
    return metadata.Rows(face_folder.tree(source), None, (), ())


def labeled_files(
    source: Path, kind: type[Obfuscator], keep: str | None, hide: str, *, fits: bool
) -> tuple[tuple[Path, ...], Labels | None]:
    """Return the images, and the values of the columns to be kept and to be hidden where the method is fitted.

    The images are those that metadata.csv names, else those of landmarks.csv for a method that draws from them, else
    all of the folder.

    Args:
        source: The folder.
        kind: The obfuscator.
        keep: Column of metadata.csv that is to stay readable.
        hide: Column of metadata.csv that is to be hidden.
        fits: Whether a method that can be trained is trained now.
    """
    from idpgan.data import metadata

    trains, marks, table = kind.trained and fits, source / metadata.LANDMARKS, source / metadata.METADATA
    if kind.landmarked and not marks.is_file():
        raise InputError(
            f"'{kind.name}' draws faces from their landmarks, which photos do not bring: {source} needs a "
            f"{marks.name} (file_name, x1, y1, x2, y2, ..., in px). A landmark detector finds them."
        )
    if not table.is_file():
        if trains:
            raise InputError(
                f"'{kind.name}' is trained on labels: {source} needs a {table.name} (file_name, person, and a "
                "column that is to stay readable). `idpgan prepare` writes one."
            )
        if kind.landmarked:
            return tuple(source / name for name in metadata.file_names(metadata.read_table(marks))), None
        return listed(source).paths, None
    columns = [name for name in (keep, None if hide == "person" else hide) if name is not None]
    rows = metadata.read_rows(source, columns if trains else [])
    if not trains:
        return rows.paths, None
    if keep is None:
        raise InputError(f"name the column that is to stay readable: --keep {' or --keep '.join(rows.columns)}.")
    kept, *hidden = map(list, rows.values)
    if hide != "person":
        return rows.paths, (kept, hidden[0])
    if rows.people is None:
        raise InputError(f"{table} has no column person. Add one, or name another with --hide.")
    return rows.paths, (kept, [str(person) for person in rows.people])


def obfuscator_for(
    method: str, shape: tuple[int, int, int], labels: Labels | None, fitted: Path | None, settings: Mapping[str, Any]
) -> Obfuscator:
    """Return the obfuscator for images of a shape: a fresh one, or the one that an earlier call left in ``fitted``."""
    from idpgan.data.metadata import class_values
    from idpgan.publish.obfuscators import obfuscator

    if fitted is None:
        keep, hide = (0, 0) if labels is None else (len(class_values(values)) for values in labels)
        return obfuscator.make_obfuscator(method, shape, num_utilities=keep, num_identities=hide, **settings)
    if settings:
        raise InputError("--fitted brings its own options. Leave the others out.")
    network = obfuscator.load_obfuscator(fitted)
    if (network.name, network.image_shape) != (method, shape):
        raise InputError(
            f"{fitted} holds '{network.name}' for images of {network.image_shape}, not '{method}' for {shape}."
        )
    return network


def with_landmarks(options: FolderOptions, paths: Sequence[Path], images: Images) -> tuple[Images, Tensor]:
    """Return the images and their landmarks, float32 (N, K, 2); null where a landmark is no number, and 0 there.

    Raises:
        DataError: If the table of landmarks cannot be read. The charge stands, since images were read.
    """
    import torch

    from idpgan.data.metadata import read_landmarks
    from idpgan.data.source import Refused, warn_of_null

    try:
        landmarks = torch.tensor(read_landmarks(options.folder, paths))
    except DataError as error:
        raise DataError(f"{error} Nothing was written, but the charge stands on {options.ledger_path}.") from error
    unusable = ~landmarks.isfinite().flatten(1).all(1)
    unmarked = [paths[index] for index in unusable.nonzero()[:, 0].tolist()]
    warn_of_null([Refused(path, f"A landmark of {path} is not a number of px.") for path in unmarked], len(paths))
    images = images.zeroed_out(unusable)
    return images, landmarks.masked_fill(images.is_null[:, None, None], 0)


def labeled(images: Images, labels: Labels) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of images that are present and have both labels, and their classes of either kind."""
    import torch

    from idpgan.data.metadata import class_values

    present = (~images.is_null).tolist()
    positions = [index for index, known in enumerate(zip(*labels, present, strict=True)) if all(known)]
    classes = [class_values(values) for values in labels]
    keep, hide = (
        torch.tensor([names.index(values[index]) for index in positions])
        for names, values in zip(classes, labels, strict=True)
    )
    return torch.tensor(positions), keep, hide
