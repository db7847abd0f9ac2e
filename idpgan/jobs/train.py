"""From a config to a finished run: what the commands and sweeps do with several rooms at once."""

from __future__ import annotations

import contextlib
import json
import logging
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from idpgan.config import apply_overrides, dump_toml, load_table
from idpgan.data.load import Split, known_shape, load
from idpgan.device import resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.files import append_line, check_writable
from idpgan.host import own_state
from idpgan.jobs.options import at_root
from idpgan.jobs.origin import check_total, with_releases
from idpgan.models.generator import Generator
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.privacy.ledger import Ledger
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks
from idpgan.release.folder import PRIVACY, write_release
from idpgan.release.outputs import refuse_closed
from idpgan.release.settings import settings_of_run
from idpgan.run import RunFolder, describe_environment, passing_folder, refuse_used
from idpgan.training.config import RunConfig, build_config, load_method, refuse_unsound
from idpgan.training.distributed import agree_on, agreed, check_own_gpu, receive_config, run_worker, send_config
from idpgan.training.loop import Outcome, train
from idpgan.training.method import Method, SharesSteps, Tick
from idpgan.training.plan import RunPlan, plan_run
from idpgan.training.samples import SampleGrid
from idpgan.training.state import run_fingerprint
from idpgan.training.stats import TensorBoardScalars

_LOGGED = 20  # null records that are named in log.txt
_LOG = logging.getLogger(__name__)


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a TOML file (None = the embedded default), apply ``section.key=value`` settings, build the method's config.

    Raises:
        ConfigError: On the first problem in the config.
    """
    where = "the default config" if path is None else str(path)
    return build_config(with_releases(apply_overrides(load_table(path), overrides)), where, overrides)


@own_state()
def plan(config: RunConfig, out: Path | None = None) -> RunPlan:
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
    planned: RunPlan = plan_run(config, known_shape(config.data))
    planned.check()
    check_total(planned)
    return planned


@dataclass(frozen=True)
class Finished:
    """A run that ended without an error; after an interruption it is not ``released``: it has no ``release/``.

    Attributes:
        privacy: The three numbers of what was released; None where nothing was.
        warning: Says that the result must be noise; None where it need not.
        attackable: Whether there are images for an attack that the run never saw.
        license: Of the release; None where the config states none, and the card says so.
    """

    run: RunFolder
    outcome: Outcome
    released: bool
    privacy: PrivacyReport | None = None
    warning: str | None = None
    attackable: bool = True
    license: str | None = None


@own_state()
def start(
    config: RunConfig,
    out: Path | None = None,
    progress: Progress = silent,
    ranks: Ranks = ALONE,
    *,
    read: Callable[[], object] = lambda: None,
) -> Finished:
    """Train a new run in ``out`` (None = ``runs/<data>-<method>-<timestamp>``) and release what it made.

    ``ranks`` are the processes that share the steps, seen by rank 0; the others `follow`. ``read`` is called when all
    data are in memory.

    Raises:
        InputError: If config, data or folder cannot be used; nothing is written then.
    """
    planned = plan(config, out)
    if planned.signal is not None and planned.signal.warning:
        _LOG.warning("%s", planned.signal.warning)
    ledger = Ledger.of(planned.price, config.identity())
    split, method = _shared(config, ledger, ranks, planned)  # refusals come before the folder exists
    read()
    environment = describe_environment(str(resolve_device(config.training.device))) | {"processes": ranks.size}
    toml = dump_toml(config)
    books = json.dumps(ledger.to_json(), indent=1) + "\n"
    if out is None:
        run = RunFolder.create_unique(config.data.name, config.method.name, toml, environment=environment, ledger=books)
    else:
        run = RunFolder.create(out, toml, environment, ledger=books)
    ledger.path = run.ledger  # from the first charge on it is kept on the disk
    with run.locked():
        for file in split.refused[:_LOGGED]:  # warn once: a resumed run has these warnings in its log
            append_line(run.log, f"null record: {file.reason}")
        if len(split.refused) > _LOGGED:
            append_line(run.log, f"null records: {len(split.refused):,} in all, of which these were the first.")
        return _train(config, split, method, run, ledger, progress, ranks)


@own_state()
def resume(path: Path, data_root: Path | None = None, progress: Progress = silent, ranks: Ranks = ALONE) -> Finished:
    """Continue an interrupted run: bit for bit on the CPU of an equal machine, elsewhere with fresh noise.

    ``data_root`` says where the data set lies now; None = where it lay. The number of processes may differ.

    Raises:
        InputError: If the run, its data, its code or its ledger is not what it was.
    """
    run = RunFolder.open(path)
    with run.locked():  # before anything is read that another process may be writing
        config = load_config(run.config, at_root(data_root))
        planned = plan_run(config, known_shape(config.data))
        ledger = Ledger.open(run.ledger, config.identity(), planned.price)
        planned.check()
        split, method = _shared(config, ledger, ranks, planned)
        return _train(config, split, method, run, ledger, progress, ranks)


def follow(ranks: Ranks) -> None:
    """Train together with rank 0 on another rank: nothing is written, charged or shown here.

    Raises:
        LostRankError: If rank 0 ends without a word; it has said why.
    """
    content = receive_config(ranks)
    if content is not None:
        config = build_config(with_releases(tomllib.loads(content)), "the config of rank 0")
        _, method = _meet(config, None, ranks)
        run_worker(method, ranks)


def _shared(config: RunConfig, ledger: Ledger, ranks: Ranks, planned: RunPlan) -> tuple[Split, Method]:
    """Load the data and make the method, on rank 0 and on all other ranks with it."""
    with send_config(ranks, dump_toml(config)):
        return _meet(config, ledger, ranks, planned)


def _meet(
    config: RunConfig, ledger: Ledger | None, ranks: Ranks, planned: RunPlan | None = None
) -> tuple[Split, Method]:
    """Load the data and make the method on this rank; without a ledger its charges are not kept."""
    with agreed(ranks):
        device = resolve_device(config.training.device)
        check_own_gpu(device, ranks)
        split = load(config.data)
        if planned is None or planned.shape != split.shape:  # the files may have changed since they were described
            planned = plan_run(config, split.shape)
            planned.check()
        _refuse_beyond_cap(planned, split)
        ledger = ledger or Ledger.of(planned.price, config.identity())
        method: Method = load_method(config.method.name)(planned, split, ledger=ledger, device=device)
        if not ranks.alone:
            if not isinstance(method, SharesSteps):
                raise InputError(
                    f"method '{config.method.name}' has no steps that several processes could share, and torchrun "
                    f"started {ranks.size}. Start it without torchrun."
                )
            method.share_steps(ranks)
    agree_on("data, code or device", json.dumps(_fingerprint(config, split, device)), ranks)
    return split, method


def _refuse_beyond_cap(planned: RunPlan, split: Split) -> None:
    """Refuse people with more images than the cap by which charges of a contained release count for a person.

    The person at each position is public, so this reveals nothing about an image.
    """
    most, people = planned.images_per_person, split.private.identities
    if most is None or people is None or not len(people):
        return
    found = int(torch.unique(people, return_counts=True)[1].max())
    if found > most:
        raise ConfigError(
            f"privacy.most_per_person = {most}, and somebody has {found} private images. The contained release "
            f"protects one image and may have read all of them, so it costs a person {found} times that or more: set "
            "most_per_person to the most images that anybody has in the private folder."
        )


@own_state()
def train_on(config: RunConfig, split: Split, progress: Progress = silent) -> Method:
    """Train a run's method on a split of your own, in a folder that passes (`passing_folder`): for attacks and audits.

    Raises:
        InputError: If config and images do not fit, or the training was interrupted.
    """
    device, planned = resolve_device(config.training.device), plan_run(config, split.shape)
    planned.check()
    ledger = Ledger(planned.unit, planned.relation, owner=config.identity())  # no limit: the result is never released
    method: Method = load_method(config.method.name)(planned, split, ledger=ledger, device=device)
    with passing_folder() as folder:  # of weights that were fitted to private images
        run = RunFolder.create(folder / "reference", dump_toml(config))
        ledger.path = run.ledger
        outcome = train(
            method,
            config=config.training,
            ledger=ledger,
            run=run,
            fingerprint=_fingerprint(config, split, device),
            delta=planned.delta,
            progress=progress,
        )
    if outcome.ended == "interrupted":
        raise InputError("The training was interrupted, so that nothing was attacked.")
    return method


def _fingerprint(config: RunConfig, split: Split, device: torch.device) -> dict[str, str]:
    """Return what must be equal in every continuation of a run."""
    return run_fingerprint(
        config=config.identity(),
        private_data=split.digest,
        public_data=split.public.digest(),
        device=device,
        own_code=config.own_code,
    )


def _train(
    config: RunConfig,
    split: Split,
    method: Method,
    run: RunFolder,
    ledger: Ledger,
    progress: Progress,
    ranks: Ranks,
) -> Finished:
    planned: RunPlan = method.plan
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
            delta=planned.delta,
            on_tick=[show, tensorboard],
            progress=progress,
            ranks=ranks,
        )
        released = outcome.ended != "interrupted"
        privacy = method.privacy() if released else None
        kept = (run.release / PRIVACY).exists()  # an existing release may hold an audited value
        if privacy is not None and not kept:
            artifact = method.artifact(config.release)
            write_release(run.release, artifact, settings_of_run(planned), privacy, ledger.events)
        append_line(run.log, outcome.message)
    warning = None if planned.signal is None else planned.signal.warning
    return Finished(run, outcome, released, privacy, warning, len(split.holdout) > 0, config.release.license)
