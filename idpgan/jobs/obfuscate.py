"""``idpgan obfuscate``: a folder of images is released without a guarantee, and its card says so.

The order of steps and the output folders are those of `idpgan.jobs.pipeline`. The charge is one read without a proof,
which makes every total on the folder's ledger infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.config import build
from idpgan.data import face_folder
from idpgan.data.declared import shape_of_most
from idpgan.data.images import Images, to_unit
from idpgan.data.labels import spelled
from idpgan.data.metadata import LANDMARKS, METADATA, class_values, file_names, read_landmarks, read_rows, read_table
from idpgan.data.source import Refused, warn_of_null
from idpgan.device import resolve_device
from idpgan.errors import DataError, InputError
from idpgan.host import own_state
from idpgan.jobs.options import ObfuscateOptions
from idpgan.jobs.pipeline import charged, check_room, expense, read_images, refuse_places, write_curator
from idpgan.memory import check_memory
from idpgan.methods import METHODS
from idpgan.obfuscate.base import SECRET, Obfuscator, load_method, load_obfuscator, make_obfuscator
from idpgan.obfuscate.settings import ObfuscatedArtifact, ObfuscationTable
from idpgan.privacy.folder_ledger import total
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Unit
from idpgan.progress import Progress, silent
from idpgan.release.folder import write_release

FORMAT = "idpgan obfuscation 1"
_BYTES_PER_PIXEL = 16
Labels = tuple[Sequence[str], Sequence[str]]  # for each image the value to be kept and the one to be hidden


@dataclass(frozen=True)
class Obfuscated:
    """The result of an obfuscation.

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


@own_state()
def obfuscate(options: ObfuscateOptions, progress: Progress = silent) -> Obfuscated:
    """Obfuscate a folder of images: charge, read, fit where there is something to fit, transform, write.

    Raises:
        InputError: If anything of the options cannot be used. Nothing is charged then.
        DataError: If the table of landmarks cannot be read. The charge stands, since images were read.
    """
    _refuse(options)
    device = resolve_device(options.device, "--device")
    files, labels = _files(options)
    num, shape = len(files), _shape(options, files)
    method = _method(options, shape, labels)
    check_room(options, ObfuscatedArtifact(num, shape))  # making the artifact refuses what no release can hold
    public = {key: value for key, value in method.config.to_json().items() if key not in SECRET}
    table = {"data": "images", "method": options.method, "num": num, "shape": list(shape), "options": public}
    said = build(ObfuscationTable, table, "the release")
    settings = said.settings(said.plan())
    events = settings.plan.price.events
    with charged(options, expense(options, options.method, num, events, None, 0.0)) as (ledger, part):
        images, landmarks = _read(options, files, shape, progress)
        pixels = to_unit(images.images)
        if labels is not None:
            _fit(method, images, landmarks, labels, device, progress)
        changed = method.to(device).transform(pixels, landmarks=landmarks)
        released = (changed * 255).round().to(torch.uint8)
        proven = total([(ledger,)], Unit.IMAGE).guarantee
        report = settings.plan.report_of(events, proven, ())
        write_release(part / "release", ObfuscatedArtifact.of(released), settings, report, events)
        difference = float((changed - pixels).abs().mean())
        content = {
            "format": FORMAT,
            "curator_only": "computed from the private images; the weights or the key undo what was done to them",
            "changed": difference,
            "images": [path.relative_to(options.folder).as_posix() for path in files],
        }
        write_curator(part / "curator", images.images, released, content)
        method.save(part / "curator")
    places = options.out / "release", options.out / "curator"
    counts = method.num_parameters, method.steps
    return Obfuscated(options.method, num, shape, report, proven, *places, difference, *counts)


# Before any image is read --------------------------------------------------------------------------------------


def _refuse(options: ObfuscateOptions) -> None:
    """Refuse what can be refused by names alone."""
    load_method(options.method)
    if not options.accept_unsound:
        raise InputError(
            f"'{options.method}' proves no privacy at all: {METHODS[options.method].reason}. To use it all the same, "
            "give --accept-unsound; for a proven epsilon take `idpgan publish`."
        )
    ledger = "is to be a file beside the images and the output. Name one with --ledger."
    refuse_places(options, elsewhere="Choose another place.", inside=ledger, nowhere=ledger)
    if options.fitted is not None and options.settings:
        raise InputError("--fitted brings its own options. Leave the others out.")


def _files(options: ObfuscateOptions) -> tuple[tuple[Path, ...], Labels | None]:
    """Return the images, and the values of the columns to be kept and to be hidden where the method is fitted."""
    wanted, source = load_method(options.method), options.folder
    trains = wanted.trained and options.fitted is None
    if wanted.landmarked and not (source / LANDMARKS).is_file():
        raise InputError(
            f"'{options.method}' draws faces from their landmarks, which photos do not bring: {source} needs a "
            f"{LANDMARKS} (file_name, x1, y1, x2, y2, ..., in px). A landmark detector finds them."
        )
    if not (source / METADATA).is_file():
        if trains:
            raise InputError(
                f"'{options.method}' is trained on labels: {source} needs a {METADATA} (file_name, person, and a "
                "column that is to stay readable). `idpgan prepare` writes one."
            )
        if wanted.landmarked:
            return tuple(source / name for name in file_names(read_table(source / LANDMARKS))), None
        return face_folder.tree(source), None
    columns = [] if options.keep is None else [options.keep]
    columns += [] if options.hide == "person" else [options.hide]
    rows = read_rows(source, columns if trains else [])
    if not trains:
        return rows.paths, None
    if options.keep is None:
        raise InputError(f"name the column that is to stay readable: --keep {' or --keep '.join(rows.columns)}.")
    if options.hide != "person":
        return rows.paths, (list(map(spelled, rows.values[0])), list(map(spelled, rows.values[-1])))
    if rows.people is None:
        raise InputError(f"{source / METADATA} has no column person. Add one, or name another with --hide.")
    return rows.paths, (list(map(spelled, rows.values[0])), [str(person) for person in rows.people])


def _shape(options: ObfuscateOptions, files: Sequence[Path]) -> tuple[int, int, int]:
    """Return (C, H, W) of most images; refuse more of them than the memory holds."""
    shape = shape_of_most(options.folder, files, 3 if options.color else 1)
    check_memory(_BYTES_PER_PIXEL * len(files) * math.prod(shape), f"{len(files):,} images", "Take a part of them.")
    return shape


def _method(options: ObfuscateOptions, shape: tuple[int, int, int], labels: Labels | None) -> Obfuscator:
    """Return the obfuscator, fitted where it was in an earlier call."""
    if options.fitted is not None:
        method = load_obfuscator(options.fitted)
        if (method.name, method.image_shape) != (options.method, shape):
            raise InputError(
                f"{options.fitted} holds '{method.name}' for images of {method.image_shape}, not '{options.method}' "
                f"for {shape}."
            )
        return method
    keep, hide = (0, 0) if labels is None else (len(class_values(values)) for values in labels)
    return make_obfuscator(options.method, shape, num_utilities=keep, num_identities=hide, **options.settings)


# Reading and fitting -------------------------------------------------------------------------------------------


def _read(
    options: ObfuscateOptions, files: Sequence[Path], shape: tuple[int, int, int], progress: Progress
) -> tuple[Images, Tensor | None]:
    """Return all images and their landmarks, float32 (N, K, 2), if the method uses landmarks; null records are 0."""
    images = read_images(files, shape, progress)
    if not load_method(options.method).landmarked:
        return images, None
    try:
        landmarks = torch.tensor(read_landmarks(options.folder, files))
    except DataError as error:
        raise DataError(f"{error} Nothing was written, but the charge stands on {options.ledger_path}.") from error
    wrong = ~landmarks.isfinite().flatten(1).all(1)
    unmarked = [files[row] for row in wrong.nonzero()[:, 0].tolist()]
    warn_of_null([Refused(path, f"A landmark of {path} is not a number of px.") for path in unmarked], len(files))
    images = images.zeroed_out(wrong)
    return images, landmarks.masked_fill(images.is_null[:, None, None], 0)


def _fit(
    method: Obfuscator,
    faces: Images,
    landmarks: Tensor | None,
    labels: Labels,
    device: torch.device,
    progress: Progress,
) -> None:
    """Fit on the images and landmarks that are present and have both labels."""
    there = (~faces.is_null).tolist()
    classes = [class_values(values) for values in labels]
    both = torch.tensor([index for index, known in enumerate(zip(*labels, there, strict=True)) if all(known)])
    keep, hide = (
        torch.tensor([names.index(values[index]) for index in both.tolist()])
        for names, values in zip(classes, labels, strict=True)
    )
    shown = None if landmarks is None else landmarks[both]
    method.fit(to_unit(faces.images[both]), keep, hide, landmarks=shown, device=device, progress=progress)
