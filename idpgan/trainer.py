"""From a config to a finished run: what the commands and sweeps do with several rooms at once.

How a run keeps to the limits on the images that it reads: under a limit it is charged on the ledger of their folder.

A run's own ledger lies in the run, wherever that is. Where a limit stands, the whole plan of the run is charged on the
folder's ledger before the first read, so that it counts whatever becomes of the run. A continuation that repeats steps
with fresh noise is charged again. Charges of contained releases count too, also where their own run is on the ledger.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import logging
import pickle
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from idpgan.config import apply_overrides, dump_toml, load_table
from idpgan.data.config import DataConfig, folders_of
from idpgan.data.load import DataShape, Split, known_shape, load
from idpgan.device import computing_on, resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.files import append_line, check_writable
from idpgan.models.generator import Generator
from idpgan.origin import check_total, with_releases
from idpgan.own_code import is_own_code
from idpgan.privacy import folder_ledger
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.privacy.ledger import Ledger
from idpgan.private.memory import forecast
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks
from idpgan.release.artifact import Artifact
from idpgan.release.folder import drawn_by, refuse_place, write_release
from idpgan.release.settings import settings_of_run
from idpgan.release.statement import PRIVACY
from idpgan.run import RunFolder, describe_environment, passing_folder, refuse_used
from idpgan.training.config import RunConfig, at_root, build_config, load_method, refuse_unsound
from idpgan.training.distributed import agree_on, agreed, check_own_gpu, receive_config, run_worker, send_config
from idpgan.training.loop import Outcome, train
from idpgan.training.method import CriticScores, HasCritic, Method, NoCriticError, SharesSteps, Tick
from idpgan.training.plan import RunPlan, plan_run
from idpgan.training.state import run_fingerprint
from idpgan.training.stats import SampleGrid, TensorBoard

_LOGGED = 20  # null records that are named in log.txt
_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError)
_LOG = logging.getLogger(__name__)


def load_config(
    path: Path | None, overrides: Sequence[str] = (), data_root: Path | None = None, *, earlier: bool = False
) -> RunConfig:
    """Read a TOML file (None = the embedded default), apply ``section.key=value`` settings, build the method's config.

    ``data_root`` says where the data set lies now; None = where the file says. ``earlier``: see `build_config`.

    Raises:
        ConfigError: On the first problem in the config.
    """
    where, overrides = "the default config" if path is None else str(path), [*overrides, *at_root(data_root)]
    table = with_releases(apply_overrides(load_table(path), overrides))
    return build_config(table, where, overrides, earlier=earlier)


def plan(config: RunConfig, out: Path | None = None, shape: DataShape | None = None) -> RunPlan:
    """Price a run, and refuse all that can be refused without reading an image.

    ``shape`` is of a data set in memory; None = of the files that the config names.

    Raises:
        InputError: If config, machine or folder (``out``; None = one will be found) cannot be used, or a limit on the
            images leaves no room.
    """
    refuse_unsound(config)
    resolve_device(config.training.device)
    if out is not None:
        refuse_used(RunFolder(out))
    place = Path("runs", "new") if out is None else out
    refuse_place(place, f"--out {place}", folders_of(vars(config.data)))
    check_writable(place)
    planned: RunPlan = plan_run(config, known_shape(config.data) if shape is None else shape)
    planned.check()
    check_total(planned)
    refuse_beyond_limits(planned)
    planned.memory = forecast(planned)
    return planned


def sources(planned: RunPlan) -> list[str]:
    """Return what a run takes from elsewhere, with its license as it is stated, one phrase each."""
    model, stated = planned.config.model, list(planned.declared)
    if (model.generator == "population" or model.moved) and is_own_code(model.simulator):
        stated.append(f"the simulator {model.simulator}, license {model.license or 'not stated'}")
    return stated


@dataclass(frozen=True)
class Finished:
    """A run that ended without an error; after an interruption it is not ``released``: it has no ``release/``.

    Attributes:
        privacy: The three numbers of what was released; None where nothing was.
        artifact: What was released now, as it is in memory; None where nothing was.
        warning: Says that the result must be noise; None where it need not.
        attackable: Whether there are images for an attack that the run never saw.
        license: Of the release; None where the config states none, and the card says so.
    """

    run: RunFolder
    outcome: Outcome
    released: bool
    privacy: PrivacyReport | None = None
    artifact: Artifact | None = None
    warning: str | None = None
    attackable: bool = True
    license: str | None = None


def start(
    config: RunConfig,
    out: Path | None = None,
    progress: Progress = silent,
    ranks: Ranks = ALONE,
    *,
    planned: RunPlan | None = None,
    split: Split | None = None,
) -> Finished:
    """Train a new run in ``out`` (None = ``runs/<data>-<method>-<timestamp>``) and release what it made.

    Args:
        ranks: The processes that share the steps, seen by rank 0; the others `follow`.
        planned: What `plan` returned for this config, folder and data; None = it is asked now.
        split: The data, where they are in memory; None = they are loaded.

    Raises:
        InputError: If config, data or folder cannot be used; nothing is written then.
    """
    planned = planned or plan(config, out, None if split is None else split.shape)
    if planned.signal is not None and (foretold := planned.signal.warning or planned.signal.foretold):
        _LOG.warning("%s", foretold if planned.signal.warning else f"Expect {foretold}")
    if planned.memory is not None:
        _LOG.warning("%s", planned.memory)
    ledger = Ledger.of(planned.price, config.identity())
    with send_config(ranks, dump_toml(config)):  # refusals come before the folder exists
        split, method = _load_and_build(config, ledger, ranks, planned, split)
    environment = describe_environment(str(resolve_device(config.training.device)))
    environment |= {"processes": ranks.size, "step_threads": planned.step_threads}
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
        charge_folder(method.plan, run, method.plan.price.events, contained=True)
        return _train_and_release(split, method, run, ledger, progress, ranks)


def resume(path: Path, data_root: Path | None = None, progress: Progress = silent, ranks: Ranks = ALONE) -> Finished:
    """Continue an interrupted run: bit for bit on the CPU of an equal machine, elsewhere with fresh noise.

    ``data_root`` says where the data set lies now; None = where it lay. The number of processes may differ.

    Raises:
        InputError: If the run, its data, its code or its ledger is not what it was.
    """
    run = RunFolder.open(path)
    with run.locked():  # before anything is read that another process may be writing
        config = load_config(run.config, data_root=data_root)
        planned = plan_run(config, known_shape(config.data))
        ledger = Ledger.open(run.ledger, config.identity(), planned.price)
        planned.check()
        with send_config(ranks, dump_toml(config)):
            split, method = _load_and_build(config, ledger, ranks, planned)
        charge_rest(method.plan, run, ledger.repeated)
        return _train_and_release(split, method, run, ledger, progress, ranks)


def follow(ranks: Ranks) -> None:
    """Train together with rank 0 on another rank: nothing is written, charged or shown here.

    Raises:
        LostRankError: If rank 0 ends without a word; it has said why.
    """
    content = receive_config(ranks)
    if content is not None:
        config = build_config(with_releases(tomllib.loads(content)), "the config of rank 0")
        _, method = _load_and_build(config, None, ranks)
        run_worker(method, ranks)


def _load_and_build(
    config: RunConfig,
    ledger: Ledger | None,
    ranks: Ranks,
    planned: RunPlan | None = None,
    split: Split | None = None,
) -> tuple[Split, Method]:
    """Load the data (unless ``split``) and make the method, on all ranks; without a ledger no charges are kept."""
    with agreed(ranks):
        device = resolve_device(config.training.device)
        check_own_gpu(device, ranks)
        split = load(config.data) if split is None else split
        if planned is None or planned.shape != split.shape:  # the files may have changed since they were described
            planned = plan_run(config, split.shape)
            planned.check()
        _refuse_beyond_cap(planned, split)
        ledger = ledger or Ledger.of(planned.price, config.identity())
        method: Method = load_method(config.method.name).Method(planned, split, ledger=ledger, device=device)
        if not ranks.alone:
            if not isinstance(method, SharesSteps):
                raise InputError(
                    f"method '{config.method.name}' has no steps that several processes could share, and torchrun "
                    f"started {ranks.size}. Start it without torchrun."
                )
            method.share_steps(ranks)
    agree_on("data, code or device", json.dumps(_fingerprint(config, split)), ranks)
    return split, method


def _refuse_beyond_cap(planned: RunPlan, split: Split) -> None:
    """Refuse people with more images than the cap by which charges of a contained release count for a person.

    The person at each position is public, so this reveals nothing about an image.
    """
    most, people = planned.images_per_person, split.private.identities
    if most is None or people is None or not len(people):
        return
    largest = int(torch.unique(people, return_counts=True)[1].max())
    if largest > most:
        raise ConfigError(
            f"privacy.most_per_person = {most}, and somebody has {largest} private images. The contained release "
            f"protects one image and may have read all of them, so it costs a person {largest} times that or more: set "
            "most_per_person to the most images that anybody has in the private folder."
        )


class InterruptedTrainingError(InputError):
    """A training that nothing is kept of was interrupted."""


def train_on(config: RunConfig, split: Split, progress: Progress = silent) -> Method:
    """Train a run's method on a split of your own, in a folder that passes: for attacks and audits.

    Raises:
        InputError: If config and images do not fit.
        InterruptedTrainingError: If the training was interrupted.
    """
    device, planned = resolve_device(config.training.device), plan_run(config, split.shape)
    planned.check()
    ledger = Ledger(planned.unit, planned.relation, owner=config.identity())  # no limit: the result is never released
    method: Method = load_method(config.method.name).Method(planned, split, ledger=ledger, device=device)
    with passing_folder() as folder:  # of weights that were fitted to private images
        run = RunFolder.create(folder / "reference", dump_toml(config))
        ledger.path = run.ledger
        outcome = _steps(split, method, run, ledger, progress)
    if outcome.ended == "interrupted":
        raise InterruptedTrainingError("The training was interrupted, so that nothing was attacked.")
    return method


def _fingerprint(config: RunConfig, split: Split) -> dict[str, str]:
    """Return what must be equal in every continuation of a run."""
    return run_fingerprint(
        config=config.identity(),
        private_data=split.digest,
        public_data=split.public.digest(),
        device=resolve_device(config.training.device),
        own_code=config.own_code,
    )


def _steps(split: Split, method: Method, run: RunFolder, ledger: Ledger, progress: Progress, **more: Any) -> Outcome:
    """Take the steps of a method in a folder."""
    planned: RunPlan = method.plan
    config, fingerprint, threads = planned.config, _fingerprint(planned.config, split), torch.get_num_threads()
    with computing_on(planned.step_threads):
        return train(
            method,
            config=config.training,
            ledger=ledger,
            run=run,
            fingerprint=fingerprint,
            delta=planned.delta,
            progress=progress,
            prepare_threads=threads,
            **more,
        )


def _train_and_release(
    split: Split, method: Method, run: RunFolder, ledger: Ledger, progress: Progress, ranks: Ranks
) -> Finished:
    planned: RunPlan = method.plan
    config: RunConfig = planned.config
    ledger.before_repeating = functools.partial(charge_folder, planned, run)
    source = settings_of_run(planned).mark
    marked = None if source is None else functools.partial(drawn_by, source)
    grid = SampleGrid(run.samples, num=config.release.samples, marked=marked)

    def show(tick: Tick) -> None:
        if isinstance(tick.generator, Generator):  # a classifier draws nothing
            grid(tick)

    networks = getattr(method, "networks", None)
    optimizers = () if networks is None else (networks.generator_optimizer,)
    with contextlib.closing(TensorBoard(run.tensorboard, grid, optimizers)) as tensorboard:
        on_tick = [show, tensorboard]
        outcome = _steps(split, method, run, ledger, progress, on_tick=on_tick, ranks=ranks, resumable=True)
        released = outcome.ended != "interrupted"
        if released:
            tensorboard.end(config.model_dump(mode="json"))
        privacy = method.privacy() if released else None
        kept, artifact = (run.release / PRIVACY).exists(), None  # an existing release may hold an audited value
        if privacy is not None and not kept:
            artifact = method.artifact(config.release)
            write_release(run.release, artifact, settings_of_run(planned), privacy, ledger.events)
        append_line(run.log, outcome.message)
    warning = None if planned.signal is None else planned.signal.warning
    attackable = len(split.holdout) > 0
    return Finished(run, outcome, released, privacy, artifact, warning, attackable, config.release.license)


# The method of a finished run, for an attacker with the curator's access -------------------------------------------


def saved_state(run: RunFolder) -> dict[str, Any] | None:
    """Read a run's state, tensors on the CPU; None for a copy without state/. A damaged one is refused."""
    if not run.state.is_file():
        return None
    try:
        content = torch.load(run.state, map_location="cpu", weights_only=True)
        state, fingerprint = dict(content["method"]), content["fingerprint"]
        if content["prepared"] is not None:
            from safetensors.torch import load_file

            state["prepared"] = load_file(run.prepared)
    except _UNREADABLE as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(f"{run.state_dir} cannot be read ({reason}). Restore it from a copy, or remove it.") from error
    return {"method": state, "fingerprint": fingerprint}


def method_of_run(config: RunConfig, split: Split, state: dict[str, Any] | None, device: torch.device) -> Method:
    """Build a run's method again, as it was when its training ended.

    ``state`` is what `saved_state` returned; the method wants to see the shapes of ``split``.

    Raises:
        NoCriticError: If the state is not there, or was written by another version.
    """
    if state is None:
        raise NoCriticError("the run's state/ is not there, which holds the critic")
    plan = plan_run(config, split.shape)
    ledger = Ledger(plan.unit, plan.relation)  # never charged: the method is built only to be asked
    method: Method = load_method(config.method.name).Method(plan, split, ledger=ledger, device=device)
    try:
        method.load_state(state["method"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise NoCriticError("the run's state/ was written by another version of idpgan") from error
    return method


def critic_of(method: Method) -> CriticScores:
    """Return how real a method's critic finds images; `NoCriticError` if the critic does not see single images."""
    if not isinstance(method, HasCritic):
        raise NoCriticError("this method's critic does not score images")
    return method.critic_scores


MADE_HERE = ("digits", "faces", "fonts")  # sources that read no folder


def folder_of(data: DataConfig, root: Path) -> Path | None:
    """Return the folder that holds the images of a run whose data root this is; None where there is none.

    A built-in set reads the folder of its name, not what else lies beside that.
    """
    if data.name in MADE_HERE or not root.is_dir():
        return None
    entries = () if data.name.endswith("folder") else sorted(root.iterdir())
    return next((path for path in entries if path.name.lower() == data.name and path.is_dir()), root).resolve()


def refuse_beyond_limits(planned: RunPlan) -> None:
    """Refuse a run for which a limit on its images leaves no room, before an image is read.

    Raises:
        InputError: Also if images under a limit are to be public, or a ledger cannot be used.
    """
    data = planned.config.data
    folder, root = folder_of(data, data.data_root), data.public_root
    public = folder if data.public_share else root.expanduser() if root is not None else None
    if public is not None and public.is_dir() and _is_limited(public):
        raise InputError(
            f"the images in {public} are under a limit (idpgan ledger) and cannot be taken as public: nothing protects "
            "these. Name other public images."
        )
    if folder is not None:
        publications = charges(planned, RunFolder(Path("run")), planned.price.events)
        ledger = _ledger(folder).charged(*publications)
        folder_ledger.refuse_beyond(folder, folder_ledger.chains(folder, ledger), publications)


def charge_folder(planned: RunPlan, run: RunFolder, events: Sequence[Event], *, contained: bool = False) -> None:
    """Charge events of a run on the ledger of its images' folder, before their reads, if a limit stands on the way.

    Args:
        contained: Whether the charges of contained releases are not on the ledger yet.

    Raises:
        LimitError: If a limit leaves no room.
        InputError: If a ledger cannot be used, or is in use.
    """
    folder = folder_of(planned.config.data, planned.config.data.data_root)
    if folder is not None and events and _is_limited(folder):
        with folder_ledger.FolderLedger.locked(folder_ledger.ledger_of(folder), folder.name) as ledger:
            ledger.pay(folder, charges(planned, run, events, contained=contained))


def charge_rest(planned: RunPlan, run: RunFolder, repeated: Sequence[Event]) -> None:
    """Charge what a run that goes on may still spend and its images' folder does not know: see `charge_folder`.

    Args:
        repeated: Charges of the run beyond its plan.
    """
    folder = folder_of(planned.config.data, planned.config.data.data_root)
    publications = [] if folder is None else _ledger(folder).publications
    charged = [event for item in publications if item.run == str(run.path.resolve()) for event in item.events]
    charge_folder(planned, run, _without((*planned.price.events, *repeated), charged), contained=not charged)


def charges(
    planned: RunPlan, run: RunFolder, events: Sequence[Event], *, contained: bool = True
) -> tuple[folder_ledger.Publication, ...]:
    """Return the rows of a run on a folder's ledger: its events, and the charges of the releases that it contains."""
    path, config = run.path.resolve(), planned.config
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    epsilon, num = planned.budget.epsilon if planned.budget else None, planned.shape.num_private
    publication = folder_ledger.Publication(
        tuple(events), planned.delta, config.method.name, epsilon, num, path.name, date, str(path)
    )
    releases = config.contained if contained and planned.contained else ()
    return (
        publication,
        *(
            folder_ledger.Publication(
                part.events, part.delta, release.method, None, num, path.name, date, str(path / run.release.name)
            )
            for release in releases
            for part in (release.part,)
        ),
    )


def _ledger(folder: Path) -> folder_ledger.FolderLedger:
    return folder_ledger.FolderLedger.read(folder_ledger.ledger_of(folder), folder.name)


def _is_limited(folder: Path) -> bool:
    """Whether a limit stands on the way of an image of a folder."""
    real = folder.resolve()
    return any(ledger.limit for chain in folder_ledger.chains(real, _ledger(real)) for ledger in chain)


def _without(events: Sequence[Event], charged: Sequence[Event]) -> list[Event]:
    """Return the events that are not among those held, or not so often."""
    counts: dict[Event, int] = {}
    for sign, group in ((1, events), (-1, charged)):
        for event in group:
            counts[event.single] = counts.get(event.single, 0) + sign * event.count
    return [event.repeated(count) for event, count in counts.items() if count > 0]
