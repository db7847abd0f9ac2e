"""From a config to a finished run: what the commands and sweeps do with several rooms at once."""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from idpgan.config import apply_overrides, dump_toml, load_table
from idpgan.data.load import DataShape, Split, known_shape, load
from idpgan.device import resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.files import append_line, check_writable
from idpgan.jobs.origin import check_total, with_releases
from idpgan.models.generator import Generator
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, number_to_json
from idpgan.privacy.ledger import Budget, Ledger, PlannedLedger
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks
from idpgan.release.folder import PRIVACY, write_release
from idpgan.release.outputs import refuse_closed
from idpgan.release.settings import RunSettings
from idpgan.run import RunFolder, describe_environment, refuse_used
from idpgan.training.config import RunConfig, build_config, load_method, refuse_unsound
from idpgan.training.contained import counted, images_per_person, with_total
from idpgan.training.distributed import agree_on, agreed, check_own_gpu, do_as_told, hear_config, tell_config
from idpgan.training.loop import Outcome, train
from idpgan.training.method import Method, SharesSteps, Tick
from idpgan.training.samples import SampleGrid
from idpgan.training.signal import Signal
from idpgan.training.state import run_fingerprint
from idpgan.training.stats import TensorBoardScalars

_LOG = logging.getLogger(__name__)


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a TOML file (None = the embedded default), apply ``section.key=value`` settings, build the method's config.

    Raises:
        ConfigError: On the first thing that is wrong with it.
    """
    where = "the default config" if path is None else str(path)
    return build_config(with_releases(apply_overrides(load_table(path), overrides)), where)


@dataclass(frozen=True)
class Plan:
    """What a run will cost, known without reading an image.

    Attributes:
        num_private: Declared number of private images.
        delta: Where epsilon is stated.
        unit: What the guarantee speaks of.
        relation: How neighbors differ.
        events: All that the run will charge if it does all its steps.
        epsilon: Their price at ``delta``; infinite where nothing is proven.
        target: What the ledger refuses to exceed; None = no limit.
        signal: What can be learned of a class against the noise; None where nothing is known of it.
        total: What the events and those of contained releases cost together; None where nothing is contained.
    """

    num_private: int
    delta: float
    unit: Unit
    relation: Relation
    events: tuple[Event, ...]
    epsilon: float
    target: Budget | None
    signal: Signal | None = None
    total: Guarantee | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "num_private": self.num_private,
            "epsilon": number_to_json(self.epsilon),
            "delta": self.delta,
            "unit": str(self.unit),
            "relation": str(self.relation),
            "events": [event.to_json() for event in self.events],
            "target": {"epsilon": number_to_json(self.target.epsilon), "delta": self.target.delta}
            if self.target
            else None,
            "signal_to_noise": self.signal.to_json() if self.signal else None,
            "total": self.total.to_json() if self.total else None,
        }


def plan(config: RunConfig, out: Path | None = None) -> Plan:
    """Price a run, and refuse all that can be refused without reading an image: what `start` does first.

    Raises:
        InputError: If config, machine or folder (``out``; None = one will be found) cannot be used.
    """
    refuse_unsound(config)
    resolve_device(config.training.device)
    if out is not None:
        refuse_used(RunFolder(out))
        refuse_closed(out, f"--out {out}")
    check_writable(Path("runs", "new") if out is None else out)
    shape = known_shape(config.data)
    config.check(shape)
    delta = config.stated_delta(shape.num_private)
    unit, relation, target = config.ledger_terms()
    events = config.planned_events(shape)
    epsilon, signal = compose_epsilon(events, delta), config.signal_to_noise(shape)
    total = check_total(config, events, shape.num_private)
    return Plan(shape.num_private, delta, unit, relation, events, epsilon, target, signal, total)


@dataclass(frozen=True)
class Finished:
    """A run that ended without an error; after an interruption it is not ``released``, that is, has no ``release/``.

    Attributes:
        privacy: The three numbers of what was released; None where nothing was.
        warning: Says that the result must be noise; None where it need not.
        attackable: Whether there are images that it never saw, to attack it with.
    """

    run: RunFolder
    outcome: Outcome
    released: bool
    privacy: PrivacyReport | None = None
    warning: str | None = None
    attackable: bool = True


def start(config: RunConfig, out: Path | None = None, progress: Progress = silent, ranks: Ranks = ALONE) -> Finished:
    """Train a new run in ``out`` (None = ``runs/<data>-<method>-<timestamp>``) and release what it made.

    ``ranks`` are the processes that share the steps, seen by rank 0; the others `follow`.

    Raises:
        InputError: If config, data or folder cannot be used; nothing is written then.
    """
    signal = plan(config, out).signal
    if signal is not None and signal.warning:
        _LOG.warning("%s", signal.warning)
    ledger = Ledger(*config.ledger_terms(), owner=config.identity(), contained=counted(config))
    split, method = _shared(config, ledger, ranks)  # refuses what the data cannot give, before there is a folder
    delta = config.stated_delta(split.num_private)
    environment = describe_environment(str(resolve_device(config.training.device))) | {"processes": ranks.size}
    toml = dump_toml(config)
    books = json.dumps(ledger.to_json(), indent=1) + "\n"
    if out is None:
        run = RunFolder.create_unique(config.data.name, config.method.name, toml, environment=environment, ledger=books)
    else:
        run = RunFolder.create(out, toml, environment, ledger=books)
    ledger.path = run.ledger  # from the first charge on it is kept on the disk
    with run.locked():
        for file in split.refused:  # once: a run that is resumed has them in its log
            append_line(run.log, f"null record: {file.reason}")
        return _train(config, split, method, run, ledger, delta, progress, ranks)


def resume(path: Path, data_root: Path | None = None, progress: Progress = silent, ranks: Ranks = ALONE) -> Finished:
    """Continue an interrupted run: bit for bit on the CPU of an equal machine, elsewhere with fresh noise.

    ``data_root`` says where the data set lies now; None = where it lay. The number of processes may be another one.

    Raises:
        InputError: If the run, its data, its code or its ledger is not what it was.
    """
    run = RunFolder.open(path)
    with run.locked():  # before anything is read that another process may be writing
        config = load_config(run.config, [] if data_root is None else [f"data.root={json.dumps(str(data_root))}"])
        ledger = Ledger.open(run.ledger, config.identity(), planned(config, known_shape(config.data)))
        split, method = _shared(config, ledger, ranks)
        return _train(config, split, method, run, ledger, config.stated_delta(split.num_private), progress, ranks)


def follow(ranks: Ranks) -> None:
    """Train with rank 0, as another rank: nothing is written, charged or shown here.

    Raises:
        LostRankError: If rank 0 ends without a word; it has said why.
    """
    content = hear_config(ranks)
    if content is not None:
        config = build_config(with_releases(tomllib.loads(content)), "the config of rank 0")
        _, method = _meet(config, Ledger(*config.ledger_terms(), owner=config.identity()), ranks)
        do_as_told(method, ranks)


def _shared(config: RunConfig, ledger: Ledger, ranks: Ranks) -> tuple[Split, Method]:
    """Load the data and make the method, on rank 0 and with it on all others."""
    with tell_config(ranks, dump_toml(config)):
        return _meet(config, ledger, ranks)


def _meet(config: RunConfig, ledger: Ledger, ranks: Ranks) -> tuple[Split, Method]:
    with agreed(ranks):
        device = resolve_device(config.training.device)
        check_own_gpu(device, ranks)
        split = load(config.data)
        _refuse_beyond_cap(config, split)
        method = _method(config, split, ledger, device)
        if not ranks.alone:
            if not isinstance(method, SharesSteps):
                raise InputError(
                    f"method '{config.method.name}' has no steps that several processes could share, and torchrun "
                    f"started {ranks.size}. Start it without torchrun."
                )
            method.share_steps(ranks)
    agree_on("data, code or device", json.dumps(_fingerprint(config, split, device)), ranks)
    return split, method


def _refuse_beyond_cap(config: RunConfig, split: Split) -> None:
    """Refuse people with more images than the cap by which charges of a contained release count for a person.

    Who is on which position is public, so this tells nothing of an image.
    """
    most, people = images_per_person(config), split.private.identities
    if most is None or people is None or not len(people):
        return
    found = int(torch.unique(people, return_counts=True)[1].max())
    if found > most:
        raise ConfigError(
            f"privacy.most_per_person = {most}, and somebody has {found} private images. The contained release "
            f"protects one image and may have read all of them, so it costs a person {found} times that or more: set "
            "most_per_person to the most images that anybody has in the private folder."
        )


def planned(config: RunConfig, shape: DataShape) -> PlannedLedger:
    """Return what a config says of its run's ledger."""
    events = config.planned_events(shape) if config.plans_exactly else None
    return PlannedLedger(*config.ledger_terms(), events, counted(config))


def train_on(config: RunConfig, split: Split, progress: Progress = silent) -> Method:
    """Train a run's method on a split of your own, in a folder that is thrown away: for attacks and audits.

    Raises:
        InputError: If config and images do not fit, or the training was interrupted.
    """
    device = resolve_device(config.training.device)
    unit, relation, _ = config.ledger_terms()
    ledger = Ledger(unit, relation, owner=config.identity())
    method = _method(config, split, ledger, device)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "reference", dump_toml(config))
        ledger.path = run.ledger
        outcome = train(
            method,
            config=config.training,
            ledger=ledger,
            run=run,
            fingerprint=_fingerprint(config, split, device),
            delta=config.stated_delta(split.num_private),
            progress=progress,
        )
    if outcome.ended == "interrupted":
        raise InputError("The training was interrupted, so that nothing was attacked.")
    return method


def _method(config: RunConfig, split: Split, ledger: Ledger, device: torch.device) -> Method:
    method: Method = load_method(config.method.name)(config, split, ledger=ledger, device=device)
    return method


def _fingerprint(config: RunConfig, split: Split, device: torch.device) -> dict[str, str]:
    """Return what must be equal in every continuation of a run."""
    return run_fingerprint(
        config=config.identity(), private_data=split.digest, public_data=split.public.digest(), device=device
    )


def _train(
    config: RunConfig,
    split: Split,
    method: Method,
    run: RunFolder,
    ledger: Ledger,
    delta: float,
    progress: Progress,
    ranks: Ranks,
) -> Finished:
    device = resolve_device(config.training.device)
    grid = SampleGrid(run.samples, num=config.release.samples)

    def show(tick: Tick) -> None:
        if isinstance(tick.generator, Generator):  # a classifier draws nothing
            grid(tick)

    with contextlib.closing(TensorBoardScalars(run.tensorboard)) as tensorboard:
        outcome = train(
            method,
            config=config.training,
            ledger=ledger,
            run=run,
            fingerprint=_fingerprint(config, split, device),
            delta=delta,
            on_tick=[show, tensorboard],
            progress=progress,
            ranks=ranks,
        )
        released = outcome.ended != "interrupted"
        privacy = with_total(method.privacy(), config, split.shape, ledger.events) if released else None
        if (
            privacy is not None and not (run.release / PRIVACY).exists()
        ):  # a release that is there may hold an audited value
            artifact, settings = method.artifact(config.release), RunSettings.of(config, split.shape)
            write_release(run.release, artifact, settings, privacy, ledger.events)
        append_line(run.log, outcome.message)
    signal = config.signal_to_noise(split.shape)
    warning = None if signal is None else signal.warning
    return Finished(run, outcome, released, privacy, warning, attackable=len(split.holdout) > 0)
