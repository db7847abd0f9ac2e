"""What each command takes: one model per command, with its defaults, its help and its checks. Imports nothing heavy.

The command line is made of these models (`idpgan.commands.command`), the jobs take them, and a script fills them in
itself.
"""

from __future__ import annotations

import functools
import json
import re
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Option

from idpgan.device import check_device
from idpgan.errors import ConfigError, InputError

if TYPE_CHECKING:
    from idpgan.data.photos import LabelTable

T = TypeVar("T")
Device = Annotated[
    str, Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
]
FolderAndSettings = Annotated[tuple[str, ...], Argument(metavar="DIR [option=value ...]", show_default=False)]
FolderLedgerFile = Annotated[
    Path | None, Option(metavar="FILE", help="Ledger of DIR; default: DIR.ledger.json beside it.")
]
RANGE = "Of images that are not bytes: unit [0, 1], symmetric [-1, 1], bytes [0, 255] or auto."


def option(default: T, text: str, *flags: str, metavar: str | None = None) -> T:
    """Return the field of an options model that is an option of the command line, with its help.

    Without ``flags`` it is called as the field is.
    """
    found: Any = field(default=default, metadata={"flags": flags, "metavar": metavar, "help": text})
    return found


def annotations_of(model: type[Any]) -> dict[str, Any]:
    """Return how typer is to take each field of an options model: ``Annotated[type, option]``."""
    hints = typing.get_type_hints(model, include_extras=True)
    for each in fields(model):
        if each.metadata:
            own = (f"--{each.name.replace('_', '-')}",) if hints[each.name] is bool else ()  # or typer adds --no-NAME
            flags, metavar, text = (each.metadata[name] for name in ("flags", "metavar", "help"))
            text = text.replace("[", "\\[")  # or the help takes it for markup, and leaves it out
            hints[each.name] = Annotated[hints[each.name], Option(*(flags or own), metavar=metavar, help=text)]
    return hints


@dataclass(frozen=True)
class TrainOptions:
    """What to train and where, or which run to continue."""

    arguments: Annotated[tuple[str, ...], Argument(metavar="[CONFIG] [key.sub=value ...]", show_default=False)] = ()
    out: Path | None = option(None, "Run folder; default: runs/DATA-METHOD-TIME.")
    resume: Path | None = option(None, "Continue an interrupted run.", metavar="RUN")
    dry_run: bool = option(False, "Print config and cost in epsilon, read no image.")
    data_root: Path | None = option(None, "Where the data set lies (data.root).")
    device: str | None = option(None, "Where to compute (training.device): auto, cpu, cuda or cuda:1.")
    accept_unsound: bool = option(False, "Run a method that proves nothing.")
    keep_names: bool = option(False, "Release class names that may be people's (data.keep_names).")

    def __post_init__(self) -> None:
        files = [text for text in self.arguments if "=" not in text]
        if len(files) > 1:
            raise ConfigError(
                f"one config file at most, got {', '.join(files)}. A setting is written section.key=value."
            )
        if self.device is not None:
            check_device(self.device, "--device")
        if self.resume is not None and given(
            self, "arguments", "accept_unsound", "keep_names", "device", "out", "dry_run"
        ):
            raise ConfigError("--resume continues a run as it was configured: give it alone, or with --data-root.")

    @property
    def config(self) -> Path | None:
        """The config; None = the default."""
        return next((Path(text) for text in self.arguments if "=" not in text), None)

    @property
    def overrides(self) -> list[str]:
        """All settings, with those that have an option of their own last."""
        from idpgan.training.config import at_root

        settings = [text for text in self.arguments if "=" in text]
        settings += ["privacy.accept_unsound=true"] * self.accept_unsound + ["data.keep_names=true"] * self.keep_names
        settings += [] if self.device is None else [f"training.device={json.dumps(self.device)}"]
        return settings + at_root(self.data_root)


@dataclass(frozen=True)
class RehearseOptions:
    """What to rehearse, and at which epsilons."""

    arguments: Annotated[tuple[str, ...], Argument(metavar="[CONFIG] [key.sub=value ...]", show_default=False)] = ()
    epsilon: tuple[float, ...] = option((0.3, 1.0, 3.0, 10.0), "Epsilons to try: 1 3 10.", metavar="E ...")
    seeds: int = option(1, "Fits of the classifier at each epsilon.")
    out: Path | None = option(None, "PNG of what each epsilon draws.", metavar="FILE.png")
    data_root: Path | None = option(None, "Where the data set lies (data.root).")
    device: str | None = option(None, "Where to compute (training.device): auto, cpu, cuda or cuda:1.")

    def __post_init__(self) -> None:
        refuse_below(self, seeds=1)
        for epsilon in self.epsilons:
            if not 0 < epsilon < float("inf"):
                raise InputError(f"--epsilon {epsilon:g} must be positive and finite.")
        if self.out is not None and self.out.suffix.lower() != ".png":
            raise InputError(f"--out {self.out} must be the name of a picture, FILE.png.")
        _ = self._train

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Epsilons to try, each once; numbers among the arguments are further ones, as in ``--epsilon 1 3 10``."""
        further = tuple(number for text in self.arguments if (number := _number(text)) is not None)
        given = self.epsilon if not further or self.epsilon != type(self).epsilon else ()
        return tuple(dict.fromkeys((*given, *further)))

    @functools.cached_property
    def _train(self) -> TrainOptions:
        arguments = tuple(text for text in self.arguments if _number(text) is None)
        return TrainOptions(arguments, data_root=self.data_root, device=self.device)

    @property
    def config(self) -> Path | None:
        """The config; None = the default."""
        return self._train.config

    @property
    def overrides(self) -> list[str]:
        """All settings."""
        return self._train.overrides


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class PrepareOptions:
    """What becomes of photos, and what their folders and labels mean."""

    size: Annotated[str, Option(metavar="SIDE|HxW", help="Height and width in px: 48, or 112x92.")]
    grey: bool = option(False, "Drop the colors.")
    crop: str = option("center", "center: cut the middle; none: squeeze the whole photo.", metavar="center|none")
    align: str | None = option(None, "eyes: find the face, put its eyes on fixed places.", metavar="eyes")
    not_found: str = option(
        "null", "A photo without a face: a null record, or its middle is cut.", metavar="null|center"
    )
    faces: int = option(1, "Rows of every photo, null where it shows fewer faces; the unit is then the photo.")
    folders: str | None = option(
        None, "What the subfolders of SRC are; person:2: those in them.", metavar="label|person|none"
    )
    labels: Path | None = option(
        None, "Table of files, labels, maybe person; default: SRC/metadata.csv.", metavar="FILE.csv"
    )
    file_column: str = option("file_name", "Its column of paths below SRC.", metavar="COLUMN")
    label_column: str | None = option(None, "Its one column to take; default: all.", metavar="COLUMN")
    person_column: str | None = option(None, "Its column of people; default: person.", metavar="COLUMN")
    only_labelled: bool = option(False, "Leave photos without a label out.")

    def __post_init__(self) -> None:
        from idpgan.models.config import SIZES, SIZES_IN_WORDS

        if self.sides not in SIZES:
            written = "x".join(map(str, self.sides))
            raise InputError(f"--size {written} is none that networks are built for: {SIZES_IN_WORDS}.")
        for name, value, known in (
            ("crop", self.crop, ("center", "none")),
            ("align", self.align, ("eyes", None)),
            ("not-found", self.not_found, ("null", "center")),
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
        if self.align is None and self.not_found != "null":
            raise InputError("--not-found belongs to --align eyes: without it no face is looked for.")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width in px."""
        return sides(self.size)

    @property
    def label_table(self) -> LabelTable:
        """The table of labels, and how it is read."""
        from idpgan.data.photos import LabelTable

        return LabelTable(self.labels, self.file_column, self.label_column, self.person_column, self.only_labelled)


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


@dataclass(frozen=True)
class PublishOptions(FolderOptions):
    """What to publish, and how."""

    arguments: FolderAndSettings
    method: Annotated[str, Option(help="Publisher, see `idpgan methods`; best = by tests on drawn faces.")]
    epsilon: Annotated[float, Option(help="Of this publication, per unit.")]
    unit: Annotated[str, Option(help="What is protected: pixel, column or image.")]
    out: Annotated[Path, Option(help="Output folder: absent or empty.")]
    delta: float = option(0.0, "Below 1/N for N images, usually the smaller of 1e-5 and 1 / (10 N); 0 is pure.")
    ledger: FolderLedgerFile = None
    size: str | None = option(
        None, "Height and width in px; others are null records. Default: most headers'.", metavar="SIDE|HxW"
    )
    color: bool = option(False, "Color images; their channels share the budget.")
    keep_names: bool = option(False, "Give names of files and folders away.")
    accept_unsound: bool = option(False, "Publish by a method that proves nothing.")
    device: str = option("cpu", "Where to compute: auto, cpu, cuda or cuda:1; noise is the CPU's.")

    def __post_init__(self) -> None:
        _ = self.folder, self.sides

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width in px."""
        return None if self.size is None else sides(self.size)


@dataclass(frozen=True)
class ObfuscateOptions(FolderOptions):
    """What to obfuscate, and how; the images are all of the folder, or those that its metadata.csv names."""

    arguments: FolderAndSettings
    method: Annotated[str, Option(help="Obfuscator, see `idpgan methods`.")]
    out: Annotated[Path, Option(help="Output folder: absent or empty.")]
    keep: str | None = option(None, "Of metadata.csv: what is to stay readable, to train on.", metavar="COLUMN")
    hide: str = option("person", "Of metadata.csv: what is to be hidden.", metavar="COLUMN")
    fitted: Path | None = option(None, "curator/ of an earlier call: take its weights or key.", metavar="DIR")
    ledger: FolderLedgerFile = None
    color: bool = option(False, "Color images.")
    accept_unsound: bool = option(False, "Needed: no obfuscator proves anything.")
    device: str = option("auto", "auto, cpu or cuda.")


@dataclass(frozen=True)
class StreamOptions:
    """What a stream is, which never changes in a continuation (epsilon, horizon, real), and where it is kept."""

    epsilon: Annotated[float, Option(help="Of the whole stream; unit: one event, which adds at most 1.")]
    horizon: int | None = option(None, "Most values that will come; left out: not known.")
    state: Path | None = option(None, "Where the stream is kept, secret.", metavar="FILE")
    first: int | None = option(None, "Index of the first line's value; default: the next.")
    block: int = option(1, "Values that are answered, and made durable, together.")
    real: bool = option(False, "Real values of at most 1 per event, not whole counts.")
    out: Path | None = option(None, "A new folder to give away: all answers so far.", metavar="DIR")
    data: str = option("a stream", "What the card calls the stream.")


MOST_FACES = 20  # of a photo


def given(options: Any, *names: str) -> list[str]:
    """Return the flags of those fields of an options model that do not have their defaults."""
    defaults = {field.name: field.default for field in fields(options)}
    return [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) != defaults[name]]


def refuse_below(options: Any, **least: int) -> None:
    """Refuse the fields of an options model that lie below a limit; a field that is None is not checked."""
    for name, limit in least.items():
        value = getattr(options, name)
        if value is not None and value < limit:
            raise InputError(f"--{name.replace('_', '-')} {value} must be at least {limit}.")


def sides(size: str) -> tuple[int, int]:
    """Return height and width of ``--size``; raises `InputError` if it is neither SIDE nor HxW."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", size.strip(), re.ASCII)
    if match is None:
        raise InputError(f"--size {size!r} is not a size. Write one side, as 48, or height x width, as 112x92.")
    return int(match[1]), int(match[2] or match[1])
