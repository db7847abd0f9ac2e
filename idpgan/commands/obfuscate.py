"""``idpgan obfuscate``: a folder of images is released without a guarantee, and its card says so.

The order of steps and the output folders are those of `idpgan.commands.folder`. The charge is one read without a proof,
which makes every total on the folder's ledger infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from idpgan.commands import folder
from idpgan.commands.command import Answer, command, completing, option
from idpgan.errors import DataError, InputError
from idpgan.files import pasted
from idpgan.host import own_state
from idpgan.methods import METHODS, methods_of
from idpgan.progress import Progress, silent

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.data.images import Images
    from idpgan.obfuscate.base import Obfuscator
    from idpgan.privacy.guarantee import Guarantee, PrivacyReport

_NAMES = tuple(methods_of("obfuscator"))
FORMAT = "idpgan obfuscation 1"
_BYTES_PER_PIXEL = 16
Labels = tuple[Sequence[str], Sequence[str]]  # for each image the value to be kept and the one to be hidden


@dataclass(frozen=True)
class ObfuscateOptions(folder.FolderOptions):
    """What to obfuscate, and how; the images are all of the folder, or those that its metadata.csv names."""

    arguments: folder.FolderAndSettings
    method: Annotated[str, Option(help=f"{', '.join(_NAMES)}.", autocompletion=completing(*_NAMES))]
    out: Annotated[Path, Option(help="Output folder: absent or empty.")]
    keep: str | None = option(None, "Of metadata.csv: what is to stay readable, to train on.", metavar="COLUMN")
    hide: str = option("person", "Of metadata.csv: what is to be hidden.", metavar="COLUMN")
    fitted: Path | None = option(None, "curator/ of an earlier call: take its weights or key.", metavar="DIR")
    ledger: folder.FolderLedgerFile = None
    color: bool = option(False, "Color images.")
    accept_unsound: bool = option(False, "Needed: no obfuscator proves anything.")
    device: str = option("auto", "auto, cpu or cuda.")
    no_mark: bool = option(False, "Do not say in the pictures that they are artificial.")


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


@command
def obfuscate(options: ObfuscateOptions, progress: Progress) -> Answer:
    """Blur, disguise or re-draw every image of a folder WITHOUT a guarantee: OUT/release, OUT/curator to keep.

    What people do in the place of differential privacy, to be held against it; the card says that nothing is proven.

    Example: idpgan obfuscate faces --method blur sigma=3 --out blurred --accept-unsound
    """
    if options.accept_unsound:
        folder.ask_before_marking(options, options.method)
    done = obfuscate_folder(options, progress)
    channels, height, width = done.image_shape
    trained = f", {done.parameters:,} parameters, {done.steps:,} steps" if done.steps else ""
    kind = "color" if channels == 3 else "grey"
    text = (
        f"NOT PRIVATE: {done.report.reason}\n"
        f"{done.num:,} {kind} images of {height} x {width}, method {done.method}{trained}\n"
        f"claimed: nothing\nproven:  {done.report.proven}\n"
        f"ledger:  {options.ledger_path}: in total {done.total}\n"
        f"The images: {done.release}   Curator only: {done.curator} (a pixel changed by "
        f"{done.changed:.3g} in the mean)\nNext: idpgan verify {pasted(done.release)}"
    )
    return Answer(done, lambda: print(text))


@own_state()
def obfuscate_folder(options: ObfuscateOptions, progress: Progress = silent) -> Obfuscated:
    """Obfuscate a folder of images: charge, read, fit where there is something to fit, transform, write.

    Raises:
        InputError: If anything of the options cannot be used. Nothing is charged then.
        DataError: If the table of landmarks cannot be read. The charge stands, since images were read.
    """
    import torch

    from idpgan.config import build
    from idpgan.data.declared import shape_of_most
    from idpgan.data.images import to_unit
    from idpgan.device import resolve_device
    from idpgan.memory import check_memory
    from idpgan.obfuscate import base
    from idpgan.privacy.folder_ledger import total
    from idpgan.privacy.guarantee import Unit
    from idpgan.release.folder import write_release

    kind = base.load_method(options.method)
    if not options.accept_unsound:
        raise InputError(
            f"'{options.method}' proves no privacy at all: {METHODS[options.method].reason}. To use it all the same, "
            "give --accept-unsound; for a proven epsilon take `idpgan publish`."
        )
    folder.check_places(options)
    if options.fitted is not None and options.settings:
        raise InputError("--fitted brings its own options. Leave the others out.")
    device = resolve_device(options.device, "--device")
    files, labels = _files(options, kind)
    num, shape = len(files), shape_of_most(options.folder, files, 3 if options.color else 1)
    check_memory(_BYTES_PER_PIXEL * num * math.prod(shape), f"{num:,} images", "Take a part of them.")
    method = _method(options, shape, labels)
    method.check_number(num)
    folder.check_room(options, base.ObfuscatedArtifact(num, shape))  # refuses what no release can hold
    public = {key: value for key, value in method.config.to_json().items() if key not in base.SECRET}
    table = {"data": "images", "method": options.method, "num": num, "shape": list(shape), "options": public}
    table["mark"] = not options.no_mark
    stated = build(base.ObfuscationTable, table, "the release")
    card = stated.settings(stated.plan())
    events = card.plan.price.events
    with folder.charged(options, folder.expense(options, options.method, num, events, None, 0.0)) as (ledger, part):
        images = folder.read_images(files, shape, progress)
        landmarks = None
        if kind.landmarked:
            images, landmarks = _with_landmarks(options, files, images)
        pixels = to_unit(images.images)
        if labels is not None:
            there, keep, hide = _labelled(images, labels)
            marks = None if landmarks is None else landmarks[there]
            method.fit(pixels[there], keep, hide, landmarks=marks, device=device, progress=progress)
        changed = method.to(device).transform(pixels, landmarks=landmarks)
        released = (changed * 255).round().to(torch.uint8)
        proven = total([(ledger,)], Unit.IMAGE).guarantee
        report = card.plan.report_of(events, proven, ())
        write_release(part / "release", base.ObfuscatedArtifact.of(released), card, report, events)
        difference = float((changed - pixels).abs().mean())
        content = {
            "format": FORMAT,
            "curator_only": "computed from the private images; the weights or the key undo what was done to them",
            "changed": difference,
            "images": [path.relative_to(options.folder).as_posix() for path in files],
        }
        folder.write_curator(part / "curator", images.images, released, content)
        method.save(part / "curator")
    places = options.out / "release", options.out / "curator"
    counts = method.num_parameters, method.steps
    return Obfuscated(options.method, num, shape, report, proven, *places, difference, *counts)


def _files(options: ObfuscateOptions, kind: type[Obfuscator]) -> tuple[tuple[Path, ...], Labels | None]:
    """Return the images, and the values of the columns to be kept and to be hidden where the method is fitted."""
    from idpgan.data import cells, metadata
    from idpgan.data.sources import face_folder

    source, trains = options.folder, kind.trained and options.fitted is None
    marks, table = source / metadata.LANDMARKS, source / metadata.METADATA
    if kind.landmarked and not marks.is_file():
        raise InputError(
            f"'{options.method}' draws faces from their landmarks, which photos do not bring: {source} needs a "
            f"{marks.name} (file_name, x1, y1, x2, y2, ..., in px). A landmark detector finds them."
        )
    if not table.is_file():
        if trains:
            raise InputError(
                f"'{options.method}' is trained on labels: {source} needs a {table.name} (file_name, person, and a "
                "column that is to stay readable). `idpgan prepare` writes one."
            )
        if kind.landmarked:
            return tuple(source / name for name in metadata.file_names(metadata.read_table(marks))), None
        return face_folder.tree(source), None
    columns = [] if options.keep is None else [options.keep]
    columns += [] if options.hide == "person" else [options.hide]
    rows = metadata.read_rows(source, columns if trains else [])
    if not trains:
        return rows.paths, None
    if options.keep is None:
        raise InputError(f"name the column that is to stay readable: --keep {' or --keep '.join(rows.columns)}.")
    keep, *hide = ([cells.read(cell, cells.TABLE_LABEL) for cell in column] for column in rows.values)
    if options.hide != "person":
        return rows.paths, (keep, hide[0])
    if rows.people is None:
        raise InputError(f"{table} has no column person. Add one, or name another with --hide.")
    return rows.paths, (keep, [str(person) for person in rows.people])


def _method(options: ObfuscateOptions, shape: tuple[int, int, int], labels: Labels | None) -> Obfuscator:
    """Return the obfuscator, fitted where it was in an earlier call."""
    from idpgan.data.metadata import class_values
    from idpgan.obfuscate.base import load_obfuscator, make_obfuscator

    if options.fitted is None:
        keep, hide = (0, 0) if labels is None else (len(class_values(values)) for values in labels)
        return make_obfuscator(options.method, shape, num_utilities=keep, num_identities=hide, **options.settings)
    method = load_obfuscator(options.fitted)
    if (method.name, method.image_shape) != (options.method, shape):
        raise InputError(
            f"{options.fitted} holds '{method.name}' for images of {method.image_shape}, not '{options.method}' "
            f"for {shape}."
        )
    return method


def _with_landmarks(options: ObfuscateOptions, files: Sequence[Path], images: Images) -> tuple[Images, Tensor]:
    """Return the images and their landmarks, float32 (N, K, 2); null where a landmark is no number, and 0 there."""
    import torch

    from idpgan.data.metadata import read_landmarks
    from idpgan.data.source import Refused, warn_of_null

    try:
        landmarks = torch.tensor(read_landmarks(options.folder, files))
    except DataError as error:
        raise DataError(f"{error} Nothing was written, but the charge stands on {options.ledger_path}.") from error
    wrong = ~landmarks.isfinite().flatten(1).all(1)
    unmarked = [files[row] for row in wrong.nonzero()[:, 0].tolist()]
    warn_of_null([Refused(path, f"A landmark of {path} is not a number of px.") for path in unmarked], len(files))
    images = images.zeroed_out(wrong)
    return images, landmarks.masked_fill(images.is_null[:, None, None], 0)


def _labelled(faces: Images, labels: Labels) -> tuple[Tensor, Tensor, Tensor]:
    """Return which images are present and have both labels, and their classes of either kind."""
    import torch

    from idpgan.data.metadata import class_values

    there = (~faces.is_null).tolist()
    both = [index for index, known in enumerate(zip(*labels, there, strict=True)) if all(known)]
    classes = [class_values(values) for values in labels]
    keep, hide = (
        torch.tensor([names.index(values[index]) for index in both])
        for names, values in zip(classes, labels, strict=True)
    )
    return torch.tensor(both), keep, hide
