"""What each command takes: one model per command, with its defaults, its help and its checks. Imports nothing heavy.

The command line is made of these models (`idpgan.commands.command`), the jobs take them, and a script fills them in
itself.
"""

from __future__ import annotations

import json
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Option

from idpgan.checks import whole
from idpgan.device import check_device
from idpgan.errors import ConfigError, InputError

if TYPE_CHECKING:
    pass

T = TypeVar("T")
Device = Annotated[
    str, Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
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
class AttackOptions:
    """How to attack."""

    attacks: tuple[str, ...] = option(("all",), "By name, several times, or all.", "--attack", metavar="NAME")
    members: Path | None = option(None, "Images of any tool: those that they were made from.", metavar="DIR|FILE.npz")
    others: Path | None = option(None, "Then also: images of the same kind that were not used.", metavar="DIR|FILE.npz")
    reference: Path | None = option(
        None, "A run on other images, whose generator calibrates; with --members other real images.", metavar="RUN|DIR"
    )
    train_reference: bool = option(False, "Train such a generator on test and spare holdout images.")
    shadows: int = option(0, "Retrain so many generators with and without the most exposed records; even, >= 4.")
    samples: int | None = option(None, "Images to draw; default: as many as are private, 10,000 .. 60,000.")
    most: int = option(10_000, "Members and non-members judged, at most.")
    most_costly: int = option(1_000, "The same where every image is optimized for.")
    confidence: float = option(0.95, "Of each interval.")
    seed: int = option(0, "Of generated images and attacks.")
    data_root: Path | None = option(None, "Where the data set lies now (data.root).")
    pixel_range: str = option("auto", f"With --members: {RANGE}", "--range")
    out: Path | None = option(None, "With --members: JSON file to write.")
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_device(self.device, "--device")
        whole(self.seed, "--seed")
        if self.shadows and (self.shadows < 4 or self.shadows % 2):
            raise InputError(f"--shadows {self.shadows} must be even and at least 4: half of them know each record.")
        if self.out is not None and self.members is None:
            raise InputError("--out is for --members: a run's result goes to its attack.json.")
        if self.pixel_range != "auto" and self.members is None:
            raise InputError("--range is for --members: a run's images are bytes.")
        if not 0 < self.confidence < 1:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1).")
        refuse_below(self, samples=3, most=2, most_costly=2)
        if self.reference is not None and self.train_reference:
            raise InputError("--reference and --train-reference exclude each other: take one of them.")


@dataclass(frozen=True)
class AuditOptions:
    """How to audit, and what is asked of the method that is audited."""

    epsilon: float | None = option(None, "What the method is asked to keep to.")
    delta: float | None = option(None, "Default: 1e-5 for Gaussian noise and published, else 0.")
    unit: str | None = option(None, "pixel, column, image, label or person.")
    relation: str | None = option(None, "replace-one or zero-out-one.")
    runs: int | None = option(
        None, "Runs per side, half of them counted; default: 100000, fewer where one is long (dp-gan 50000)."
    )
    confidence: float = option(0.95, "Of each bound.")
    noise: str | None = option(None, "idp-gan-published: once, per_step or per_batch.")
    law: str | None = option(None, "Kind of noise or bound, where a method has several.")
    pair: str | None = option(None, "Publishers: the neighbors, such as extremes.")
    release: bool = option(False, "Also fill the audited field of a run's release.")
    seed: int | None = option(None, "Fixes the noise, to have a result again.")
    one_run: bool = option(False, "One training with many canaries: gradients (dp-gan, hybrid) or a CONFIG's.")
    exposure: bool = option(False, "Train CONFIG with random secrets in it: how well are they known?")
    canaries: int | None = option(None, "Default: of --one-run 5000 gradients or 500 images, of --exposure 20.")
    repeats: int = option(1, "How often each secret of --exposure is in the training.")
    threads: int = option(1, "Threads, each with its own noise.")
    device: Device = "cpu"

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1 or not 1 <= self.threads <= 256:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1), --threads {self.threads} in 1 .. 256.")
        if self.runs is not None and not 100 <= self.runs <= MOST_RUNS:
            raise InputError(
                f"--runs {str(self.runs)[:40]} must be in 100 .. {MOST_RUNS:,}; leave it out for the usual number."
            )
        check_device(self.device, "--device")
        if self.seed is not None:
            whole(self.seed, "--seed")
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


ASKED = ("epsilon", "delta", "unit", "relation", "noise", "law", "pair")  # of a method, never of a run or a config
MOST_RUNS, MOST_CANARIES = 10**9, 20_000  # runs per side: hours, even of one number each; per call: see `audit.cases`


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
