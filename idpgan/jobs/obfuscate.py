"""``idpgan obfuscate``: a folder of images goes out without a guarantee, and its card says so.

Order and places are those of `idpgan.jobs.publish`: charge, read, compute, write. The charge is one read without a
proof, which makes every total on the folder's ledger infinite.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.config import build
from idpgan.data import face_folder
from idpgan.data.declared import shape_of_most
from idpgan.data.image_files import Files, read_files
from idpgan.data.images import Images, make_grid, png_bytes, to_unit
from idpgan.data.metadata import (
    LANDMARKS,
    METADATA,
    Rows,
    class_values,
    file_names,
    read_landmarks,
    read_rows,
    read_table,
)
from idpgan.data.source import Refused, warn_of_null
from idpgan.device import resolve_device
from idpgan.errors import DataError, InputError
from idpgan.files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    check_writable,
    new_folder,
    refuse_filled,
    write_bytes_atomic,
    write_text_atomic,
)
from idpgan.memory import check_memory
from idpgan.methods import METHODS
from idpgan.obfuscate.base import SECRET, Obfuscator, load_method, load_obfuscator, make_obfuscator
from idpgan.obfuscate.settings import ObfuscatedArtifact, Obfuscation
from idpgan.privacy.folder_ledger import FolderLedger, Publication, ledger_of, total
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Unit
from idpgan.progress import Progress, silent
from idpgan.release.folder import write_release
from idpgan.release.outputs import refuse_closed

REPORT, SHEET = "report.json", "contact.png"
FORMAT = "idpgan obfuscation 1"
_SHOWN, _COLUMNS = 32, 8  # pairs on the contact sheet; pictures in a row
_BYTES_PER_PIXEL = 16


@dataclass(frozen=True)
class Order:
    """What is to be obfuscated, and how.

    Attributes:
        folder: Images at any depth, or those that its metadata.csv names. Landmarks, for a method that draws
            faces from them, stand in its landmarks.csv.
        method: Name of an obfuscator.
        out: A folder that is absent or empty.
        keep: Column of metadata.csv that is to stay readable; for a method that is trained.
        hide: Column that is to be hidden; for a method that is trained.
        fitted: Folder curator/ of an earlier call, whose weights or key are taken; None fits, or draws a key.
        ledger: Of the folder; None = ``NAME.ledger.json`` beside it.
        color: Whether the images are color.
        accept_unsound: Needed, since nothing is proven.
        options: Of the method.
    """

    folder: Path
    method: str
    out: Path
    keep: str | None = None
    hide: str = "person"
    fitted: Path | None = None
    ledger: Path | None = None
    color: bool = False
    accept_unsound: bool = False
    device: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the folder itself, whatever link leads there."""
        return self.folder.resolve().name

    @property
    def ledger_path(self) -> Path:
        """Where the folder's ledger lies."""
        return self.ledger if self.ledger is not None else ledger_of(self.folder)


@dataclass(frozen=True)
class Obfuscated:
    """What came of it.

    Attributes:
        release: The folder to give away.
        curator: The folder that is the curator's alone: weights or key, originals beside results.
        changed: Mean absolute difference of a pixel, of the range [0, 1]. Curator only.
        parameters: Numbers that make the transformation.
        steps: Training steps; 0 where nothing was trained.
    """

    method: str
    num: int
    image_shape: tuple[int, int, int]
    report: PrivacyReport
    total: Guarantee
    release: Path
    curator: Path
    changed: float
    parameters: int
    steps: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "method": self.method,
            "num_images": self.num,
            "image_shape": list(self.image_shape),
            "report": self.report.to_json(),
            "total": self.total.to_json(),
            "release": str(self.release),
            "curator": str(self.curator),
            "parameters": self.parameters,
            "steps": self.steps,
            "curator_only": {"changed": self.changed},
        }


def obfuscate(order: Order, progress: Progress = silent) -> Obfuscated:
    """Obfuscate a folder of images: charge, read, fit where there is something to fit, transform, write.

    Raises:
        InputError: If anything of the order cannot be used. Nothing is charged then.
        DataError: If the table of landmarks cannot be read. The charge stands, since images were read.
    """
    _refuse(order)
    device = resolve_device(order.device, "--device")
    files, labels = _files(order)
    shape = shape_of_most(order.folder, files, 3 if order.color else 1)
    check_memory(_BYTES_PER_PIXEL * len(files) * math.prod(shape), f"{len(files):,} images", "Take a part of them.")
    method = _method(order, shape, labels)
    artifact = ObfuscatedArtifact(len(files), shape)  # refuses what no release can hold
    check_writable(order.out, sum(artifact.files().values()))
    options = {key: value for key, value in method.config.to_json().items() if key not in SECRET}
    table = {"data": "images", "method": order.method, "num": len(files), "shape": list(shape), "options": options}
    settings = build(Obfuscation, table, "the release")
    events = settings.planned_events()
    with FolderLedger.locked(order.ledger_path, order.name) as ledger, new_folder(order.out) as part:
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        ledger = ledger.charged(Publication(order.method, None, 0.0, len(files), order.out.name, date, events))
        ledger.write()  # the charge: from here on it stands, whatever happens
        found, landmarks = _read(order, files, shape, progress)
        originals, pixels = found.images, to_unit(found.images)
        if labels is not None:
            _fit(method, found, landmarks, labels, device, progress)
        changed = method.to(device).transform(pixels, landmarks=landmarks)
        released = (changed * 255).round().to(torch.uint8)
        proven = total([(ledger,)], Unit.IMAGE).guarantee
        report = settings.report(events, proven, ())
        write_release(part / "release", ObfuscatedArtifact.of(released), settings, report, events)
        difference = float((changed - pixels).abs().mean())
        _write_curator(part / "curator", order, method, (files, originals, released), difference)
    return Obfuscated(
        order.method,
        len(files),
        shape,
        report,
        proven,
        order.out / "release",
        order.out / "curator",
        difference,
        method.num_parameters,
        method.steps,
    )


# Before anything is read ---------------------------------------------------------------------------------------


def _refuse(order: Order) -> None:
    """Refuse what can be refused by names alone."""
    load_method(order.method)
    if not order.accept_unsound:
        raise InputError(
            f"'{order.method}' proves no privacy at all: {METHODS[order.method].reason}. To use it all the same, give "
            "--accept-unsound; for a proven epsilon take `idpgan publish`."
        )
    source, out = order.folder.resolve(), order.out.parent.resolve() / order.out.name
    if not order.folder.is_dir():
        raise InputError(f"There is no folder {order.folder}. Name the folder of images.")
    if out == source or out.is_relative_to(source) or source.is_relative_to(out):
        raise InputError(f"--out {order.out} and the images in {order.folder} lie in each other. Choose another place.")
    if not out.parent.is_dir():
        raise InputError(f"the folder {order.out.parent} does not exist. Make it first.")
    refuse_closed(order.out, f"--out {order.out}")
    refuse_filled(order.out)
    path = order.ledger_path
    ledger = path.parent.resolve() / path.name
    if ledger.is_relative_to(out) or ledger.is_relative_to(source) or not ledger.parent.is_dir() or ledger.is_dir():
        raise InputError(f"the ledger {path} is to be a file beside the images and the output. Name one with --ledger.")
    refuse_closed(path, f"--ledger {path}")
    check_writable(path)
    if order.fitted is not None and order.options:
        raise InputError("--fitted brings its own options. Leave the others out.")


def _files(order: Order) -> tuple[tuple[Path, ...], tuple[Sequence[str], Sequence[str]] | None]:
    """Return the images, and the values of the columns to be kept and to be hidden where the method is fitted."""
    wanted = load_method(order.method)
    trains = wanted.trained and order.fitted is None
    if wanted.landmarked and not (order.folder / LANDMARKS).is_file():
        raise InputError(
            f"'{order.method}' draws faces from their landmarks, which photos do not bring: {order.folder} needs a "
            f"{LANDMARKS} (file_name, x1, y1, x2, y2, ..., in px). A landmark detector finds them."
        )
    if not (order.folder / METADATA).is_file():
        if trains:
            raise InputError(
                f"'{order.method}' is trained on labels: {order.folder} needs a {METADATA} (file_name, person, and a "
                "column that is to stay readable). `idpgan prepare` writes one."
            )
        if wanted.landmarked:
            return tuple(order.folder / name for name in file_names(read_table(order.folder / LANDMARKS))), None
        return face_folder.tree(order.folder), None
    columns = [] if order.keep is None else [order.keep]
    columns += [] if order.hide == "person" else [order.hide]
    rows = read_rows(order.folder, columns if trains else [])
    if not trains:
        return rows.paths, None
    if order.keep is None:
        raise InputError(f"name the column that is to stay readable: --keep {' or --keep '.join(rows.columns)}.")
    hidden = _people(rows, order) if order.hide == "person" else rows.values[-1]
    return rows.paths, (rows.values[0], hidden)


def _people(rows: Rows, order: Order) -> Sequence[str]:
    if rows.people is None:
        raise InputError(f"{order.folder / METADATA} has no column person. Add one, or name another with --hide.")
    return [str(person) for person in rows.people]


def _method(
    order: Order, shape: tuple[int, int, int], labels: tuple[Sequence[str], Sequence[str]] | None
) -> Obfuscator:
    if order.fitted is not None:
        method = load_obfuscator(order.fitted)
        if (method.name, method.image_shape) != (order.method, shape):
            raise InputError(
                f"{order.fitted} holds '{method.name}' for images of {method.image_shape}, not '{order.method}' for "
                f"{shape}."
            )
        return method
    keep, hide = (0, 0) if labels is None else (len(class_values(values)) for values in labels)
    return make_obfuscator(order.method, shape, num_utilities=keep, num_identities=hide, **order.options)


# Reading, fitting, writing -------------------------------------------------------------------------------------


def _read(
    order: Order, files: Sequence[Path], shape: tuple[int, int, int], progress: Progress
) -> tuple[Images, Tensor | None]:
    """Return all images and their landmarks, float32 (N, K, 2), where the method knows some; null records are 0."""
    images, _ = read_files(Files(tuple(files)), shape, progress=progress)
    if not load_method(order.method).landmarked:
        return images, None
    try:
        landmarks = torch.tensor(read_landmarks(order.folder, files))
    except DataError as error:
        raise DataError(f"{error} Nothing was written, but the charge stands on {order.ledger_path}.") from error
    wrong = ~landmarks.isfinite().flatten(1).all(1)
    unmarked = [files[row] for row in wrong.nonzero()[:, 0].tolist()]
    warn_of_null([Refused(path, f"A landmark of {path} is no number of px.") for path in unmarked], len(files))
    images = images.zeroed_out(wrong)
    return images, landmarks.masked_fill(images.is_null[:, None, None], 0)


def _fit(
    method: Obfuscator,
    faces: Images,
    landmarks: Tensor | None,
    labels: tuple[Sequence[str], Sequence[str]],
    device: torch.device,
    progress: Progress,
) -> None:
    """Fit on the images, and landmarks, that are there and have both labels."""
    there = (~faces.is_null).tolist()
    classes = [class_values(values) for values in labels]
    both = torch.tensor([index for index, known in enumerate(zip(*labels, there, strict=True)) if all(known)])
    keep, hide = (
        torch.tensor([names.index(values[index]) for index in both.tolist()])
        for names, values in zip(classes, labels, strict=True)
    )
    shown = None if landmarks is None else landmarks[both]
    method.fit(to_unit(faces.images[both]), keep, hide, landmarks=shown, device=device, progress=progress)


def _write_curator(
    target: Path,
    order: Order,
    method: Obfuscator,
    results: tuple[Sequence[Path], Tensor, Tensor],
    difference: float,
) -> None:
    """Write what stays: weights or key, originals beside results, which file is which."""
    files, originals, released = results
    target.mkdir(mode=PRIVATE_FOLDER)
    method.save(target)
    pairs = torch.stack([originals[:_SHOWN], released[:_SHOWN]], dim=1).flatten(0, 1)
    write_bytes_atomic(target / SHEET, png_bytes(make_grid(pairs, min(len(pairs), _COLUMNS))), mode=PRIVATE_FILE)
    content = {
        "format": FORMAT,
        "curator_only": "computed from the private images; the weights or the key undo what was done to them",
        "changed": difference,
        "images": [path.relative_to(order.folder).as_posix() for path in files],
    }
    write_text_atomic(target / REPORT, json.dumps(content, indent=1) + "\n", mode=PRIVATE_FILE)
