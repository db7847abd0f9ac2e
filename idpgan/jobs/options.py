"""What each command takes: one model per command, with its defaults, its help and its checks. Imports nothing heavy.

The command line is made of these models (`idpgan.cli.command`), the jobs take them, and a script fills them in itself.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from idpgan.device import check_device
from idpgan.errors import ConfigError, InputError

Device = Annotated[
    str, Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
]
FolderAndSettings = Annotated[tuple[str, ...], Argument(metavar="DIR [option=value ...]", show_default=False)]
FolderLedgerFile = Annotated[
    Path | None, Option(metavar="FILE", help="Ledger of DIR; default: DIR.ledger.json beside it.")
]


@dataclass(frozen=True)
class TrainOptions:
    """What to train and where, or which run to continue."""

    arguments: Annotated[tuple[str, ...], Argument(metavar="[CONFIG] [key.sub=value ...]", show_default=False)] = ()
    out: Annotated[Path | None, Option(help="Run folder; default: runs/DATA-METHOD-TIME.")] = None
    resume: Annotated[Path | None, Option(metavar="RUN", help="Continue an interrupted run.")] = None
    dry_run: Annotated[bool, Option("--dry-run", help="Print config and cost in epsilon, read no image.")] = False
    data_root: Annotated[Path | None, Option(help="Where the data set lies (data.root).")] = None
    device: Annotated[str | None, Option(help="Where to compute (training.device): auto, cpu, cuda or cuda:1.")] = None
    accept_unsound: Annotated[bool, Option("--accept-unsound", help="Run a method that proves nothing.")] = False
    keep_names: Annotated[
        bool, Option("--keep-names", help="Release class names that may be people's (data.keep_names).")
    ] = False

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
        """All settings, those that have an option of their own last."""
        settings = [text for text in self.arguments if "=" in text]
        settings += ["privacy.accept_unsound=true"] * self.accept_unsound + ["data.keep_names=true"] * self.keep_names
        settings += [] if self.device is None else [f"training.device={json.dumps(self.device)}"]
        return settings + at_root(self.data_root)


@dataclass(frozen=True)
class AttackOptions:
    """How to attack."""

    attacks: Annotated[tuple[str, ...], Option("--attack", metavar="NAME", help="By name, several times, or all.")] = (
        "all",
    )
    reference: Annotated[
        Path | None, Option(metavar="RUN", help="A run on other images: its generator calibrates.")
    ] = None
    train_reference: Annotated[
        bool, Option("--train-reference", help="Train such a generator on test and spare holdout images.")
    ] = False
    samples: Annotated[
        int | None, Option(help="Images to draw; default: as many as are private, 10,000 .. 60,000.")
    ] = None
    most: Annotated[int, Option(help="Members and non-members judged, at most.")] = 10_000
    most_costly: Annotated[int, Option(help="The same where every image is optimized for.")] = 1_000
    confidence: Annotated[float, Option(help="Of each interval.")] = 0.95
    seed: Annotated[int, Option(help="Of generated images and attacks.")] = 0
    data_root: Annotated[Path | None, Option(help="Where the data set lies now (data.root).")] = None
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_device(self.device, "--device")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed} must be at least 0.")
        if not 0 < self.confidence < 1:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1).")
        counts = (("--samples", self.samples, 3), ("--most", self.most, 2), ("--most-costly", self.most_costly, 2))
        for name, number, least in counts:
            if number is not None and number < least:
                raise InputError(f"{name} {number} must be at least {least}.")
        if self.reference is not None and self.train_reference:
            raise InputError("--reference and --train-reference exclude each other: take one of them.")


@dataclass(frozen=True)
class EvaluateOptions:
    """What to measure, and against what."""

    settings: Annotated[tuple[str, ...], Argument(metavar="[data.key=value ...]", show_default=False)] = ()
    data: Annotated[str | None, Option(metavar="NAME", help="Real data set; default: that of the run.")] = None
    data_root: Annotated[Path | None, Option(help="Where the data set lies (data.root).")] = None
    config: Annotated[Path | None, Option(help="Run, release or TOML whose [data] declares the real images.")] = None
    part: Annotated[str, Option(help="Real images that judge: test, or holdout to choose settings.")] = "test"
    only: Annotated[str | None, Option(help="Measure just this: utility, inception or fidelity.")] = None
    ceiling: Annotated[bool, Option("--ceiling", help="Also measure the real private images.")] = False
    floor: Annotated[bool, Option("--floor", help="Also the utility of the public images alone.")] = False
    num: Annotated[
        int | None, Option(help="Images to draw from a run; default: as many as are private, or as the protocol.")
    ] = None
    protocol: Annotated[
        str, Option(help="idpgan, or dpimagebench: the best of its three classifiers on 60,000 images.")
    ] = "idpgan"
    full: Annotated[
        bool, Option("--full", help="dpimagebench in its published size: hours on a GPU, days on a CPU.")
    ] = False
    seeds: Annotated[int | None, Option(help="Fits of each classifier; default: 3, and 1 by dpimagebench.")] = None
    classifier: Annotated[
        tuple[str, ...], Option(help="Kind for utility: cnn, resnet, logistic; may be repeated. Default: all.")
    ] = ()
    splits: Annotated[int, Option(help="Splits of the inception score.")] = 10
    features: Annotated[str, Option(help="Network of the fidelity: auto, classifier, autoencoder or inception-v3.")] = (
        "auto"
    )
    weights: Annotated[Path | None, Option(help="Weights file of inception-v3.")] = None
    pixel_range: Annotated[str, Option("--range", help="Of float images: unit [0, 1], symmetric [-1, 1] or auto.")] = (
        "auto"
    )
    device: Device = "auto"
    cache: Annotated[Path | None, Option(help="Cache folder; default: $IDPGAN_CACHE or ~/.cache/idpgan.")] = None
    classifier_run: Annotated[
        Path | None, Option(metavar="RUN", help="Released classifier to stand beside the utility of images.")
    ] = None
    out: Annotated[Path | None, Option(help="JSON file to write; default for a run: its evaluation.json.")] = None

    def __post_init__(self) -> None:
        check_device(self.device, "--device")
        for name, value, known in (
            ("--part", self.part, ("test", "holdout")),
            ("--features", self.features, ("auto", "classifier", "autoencoder", "inception-v3")),
            ("--protocol", self.protocol, ("idpgan", "dpimagebench")),
        ):
            if value not in known:
                raise InputError(f"{name} {value} is unknown. Known: {', '.join(known)}.")
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"--seeds {self.seeds} must be at least 1.")
        if len(set(self.classifier)) < len(self.classifier):
            raise InputError(f"--classifier {', '.join(self.classifier)}: name none twice.")
        if (self.features == "inception-v3") != (self.weights is not None):
            raise InputError(
                "--features inception-v3 and --weights FILE go together: nothing is downloaded. Give both."
            )
        if self.protocol == "idpgan" and self.full:
            raise InputError("--full is for --protocol dpimagebench: give both, or leave it out.")
        ours = given(self, "only", "ceiling", "floor", "classifier", "splits", "features")
        if self.protocol == "dpimagebench" and ours:
            raise InputError(
                f"{ours[0]} is not for --protocol dpimagebench, which measures the utility of its own three "
                "classifiers alone. Leave one of the two out."
            )


@dataclass(frozen=True)
class AuditOptions:
    """How to audit, and what is asked of the method that is audited."""

    epsilon: Annotated[float | None, Option(help="What the method is asked to keep to.")] = None
    delta: Annotated[float | None, Option(help="Default: 1e-5 for Gaussian noise and published, else 0.")] = None
    unit: Annotated[str | None, Option(help="pixel, column, image, label or person.")] = None
    relation: Annotated[str | None, Option(help="replace-one or zero-out-one.")] = None
    runs: Annotated[
        int | None,
        Option(help="Runs per side, half of them counted; default: 100000, fewer where one is long (dp-gan 50000)."),
    ] = None
    confidence: Annotated[float, Option(help="Of each bound.")] = 0.95
    noise: Annotated[str | None, Option(help="idp-gan-published: once, per_step or per_batch.")] = None
    law: Annotated[str | None, Option(help="Kind of noise or bound, where a method has several.")] = None
    pair: Annotated[str | None, Option(help="Publishers: the neighbors, such as extremes.")] = None
    release: Annotated[bool, Option("--release", help="Also fill the audited field of a run's release.")] = False
    seed: Annotated[int | None, Option(help="Fixes the noise, to have a result again.")] = None
    one_run: Annotated[
        bool, Option("--one-run", help="One training with many canaries: gradients (dp-gan, hybrid) or a CONFIG's.")
    ] = False
    exposure: Annotated[
        bool, Option("--exposure", help="Train CONFIG with random secrets in it: how well are they known?")
    ] = False
    canaries: Annotated[
        int | None, Option(help="Default: of --one-run 5000 gradients or 500 images, of --exposure 20.")
    ] = None
    repeats: Annotated[int, Option(help="How often each secret of --exposure is in the training.")] = 1
    threads: Annotated[int, Option(help="Threads, each with its own noise.")] = 1
    device: Device = "cpu"

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1 or not 1 <= self.threads <= 256:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1), --threads {self.threads} in 1 .. 256.")
        if self.runs is not None and not 100 <= self.runs <= MOST_RUNS:
            raise InputError(
                f"--runs {str(self.runs)[:40]} must be in 100 .. {MOST_RUNS:,}; leave it out for the usual number."
            )
        check_device(self.device, "--device")
        if self.exposure and (unfit := given(self, "runs", "release", "one_run", *ASKED)):
            raise InputError(f"{unfit[0]} does not go with --exposure.")
        if self.repeats != 1 and not self.exposure:
            raise InputError("--repeats belongs to --exposure.")
        if self.canaries is not None and not self.one_run and not self.exposure:
            raise InputError("--canaries belongs to --one-run and --exposure.")
        if self.one_run and (unfit := given(self, "release", "runs")):
            raise InputError(f"{unfit[0]} does not go with --one-run.")
        if self.one_run and self.canaries is not None and not 10 <= self.canaries <= MOST_CANARIES:
            raise InputError(f"--canaries {str(self.canaries)[:40]} must be in 10 .. {MOST_CANARIES:,}.")


@dataclass(frozen=True)
class PrepareOptions:
    """What becomes of photos, and what their folders and labels mean."""

    size: Annotated[str, Option(metavar="SIDE|HxW", help="Height and width in px: 48, or 112x92.")]
    grey: Annotated[bool, Option("--grey", help="Drop the colors.")] = False
    crop: Annotated[
        str, Option(metavar="center|none", help="center: cut the middle; none: squeeze the whole photo.")
    ] = "center"
    folders: Annotated[str | None, Option(metavar="label|person|none", help="What the subfolders of SRC are.")] = None
    labels: Annotated[
        Path | None, Option(metavar="FILE.csv", help="Columns file_name, labels, person; default: SRC/metadata.csv.")
    ] = None

    def __post_init__(self) -> None:
        from idpgan.models.config import SIZES, SIZES_IN_WORDS

        if self.sides not in SIZES:
            written = "x".join(map(str, self.sides))
            raise InputError(f"--size {written} is none that networks are built for: {SIZES_IN_WORDS}.")
        for option, value, known in (
            ("crop", self.crop, ("center", "none")),
            ("folders", self.folders, ("label", "person", "none", None)),
        ):
            if value not in known:
                raise InputError(f"--{option} {value} is unknown: {', '.join(filter(None, known))}.")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width in px."""
        return sides(self.size)


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
    delta: Annotated[float, Option(help="Below 1/N; 0 is pure.")] = 0.0
    ledger: FolderLedgerFile = None
    size: Annotated[
        str | None,
        Option(metavar="SIDE|HxW", help="Height and width in px; others are null records. Default: most headers'."),
    ] = None
    color: Annotated[bool, Option("--color", help="Color images; their channels share the budget.")] = False
    keep_names: Annotated[bool, Option("--keep-names", help="Give names of files and folders away.")] = False
    accept_unsound: Annotated[bool, Option("--accept-unsound", help="Publish by a method that proves nothing.")] = False
    device: Annotated[str, Option(help="Where to compute: auto, cpu, cuda or cuda:1; noise is the CPU's.")] = "cpu"

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
    keep: Annotated[
        str | None, Option(metavar="COLUMN", help="Of metadata.csv: what is to stay readable, to train on.")
    ] = None
    hide: Annotated[str, Option(metavar="COLUMN", help="Of metadata.csv: what is to be hidden.")] = "person"
    fitted: Annotated[
        Path | None, Option(metavar="DIR", help="curator/ of an earlier call: take its weights or key.")
    ] = None
    ledger: FolderLedgerFile = None
    color: Annotated[bool, Option("--color", help="Color images.")] = False
    accept_unsound: Annotated[bool, Option("--accept-unsound", help="Needed: no obfuscator proves anything.")] = False
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto"


@dataclass(frozen=True)
class StreamOptions:
    """What a stream is, which never changes in a continuation (epsilon, horizon, real), and where it is kept."""

    epsilon: Annotated[float, Option(help="Of the whole stream; unit: one event, which adds at most 1.")]
    horizon: Annotated[int | None, Option(help="Most values that will come; left out: not known.")] = None
    state: Annotated[Path | None, Option(metavar="FILE", help="Where the stream is kept, secret.")] = None
    first: Annotated[int | None, Option(help="Index of the first line's value; default: the next.")] = None
    block: Annotated[int, Option(help="Values that are answered, and made durable, together.")] = 1
    real: Annotated[bool, Option("--real", help="Real values of at most 1 per event, not whole counts.")] = False
    out: Annotated[Path | None, Option(metavar="DIR", help="A new folder to give away: all answers so far.")] = None
    data: Annotated[str, Option(help="What the card calls the stream.")] = "a stream"


ASKED = ("epsilon", "delta", "unit", "relation", "noise", "law", "pair")  # of a method, never of a run or a config
MOST_RUNS, MOST_CANARIES = 10**9, 20_000  # per side: hours, even of one number each; of one call: see `audit.cases`


def given(options: Any, *names: str) -> list[str]:
    """Return the flags of those fields of an options model that do not have their defaults."""
    defaults = {field.name: field.default for field in fields(options)}
    return [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) != defaults[name]]


def at_root(data_root: Path | None) -> list[str]:
    """Return the setting that says where a data set lies, ``data.root``; none where it lies where it lay."""
    return [] if data_root is None else [f"data.root={json.dumps(str(data_root))}"]  # a JSON string is a TOML string


def sides(size: str) -> tuple[int, int]:
    """Return height and width of ``--size``; raises `InputError` if it is neither SIDE nor HxW."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", size.strip(), re.ASCII)
    if match is None:
        raise InputError(f"--size {size!r} is no size. Write one side, as 48, or height x width, as 112x92.")
    return int(match[1]), int(match[2] or match[1])
