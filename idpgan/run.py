"""The run folder, and the environment that a run records. Importing this module does not import torch."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import itertools
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from idpgan import files
from idpgan.errors import InputError

_PASSING, _ALIVE = "idpgan-private-", "alive"  # how passing folders begin, and the file in them that is locked
_RUN_FOLDER = 0o711  # others may pass through to release/, but not look around


@dataclass(frozen=True)
class _Place:
    """A file or folder of a run, defined by its name; as an attribute of a run it gives the path."""

    name: str

    def __get__(self, run: RunFolder, owner: type) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run.

    ``release`` is covered by epsilon and to be given away, ``state_dir`` is secret, the rest is for the curator only:
    files 0600 in folders 0700.

    Attributes:
        path: The folder.
        config: The resolved config; its presence makes a folder a run.
        environment: Versions and hardware.
        stats: One JSON line per tick; losses on real images, not covered by epsilon.
        log: The printed output.
        tensorboard: Folder of event files.
        samples: Folder of sample grids.
        state_dir: Secret folder (mode 0700) for resuming.
        state: Weights, optimizers, samplers and noise state.
        prepared: The tensors that ``prepare()`` released to the training.
        features: Folder of what an unfinished run has computed of private images, without noise.
        ledger: The charges: durable before the read that they pay for, or with the result of a one-time release.
        release: Folder to give away.
        evaluation: Scores against private images.
        attack: Results of membership inference.
        audit: Empirical lower bounds of epsilon.
        report: All of the above as one page.
    """

    path: Path
    config = _Place("config.toml")
    environment = _Place("environment.json")
    stats = _Place("stats.jsonl")
    log = _Place("log.txt")
    tensorboard = _Place("tensorboard")
    samples = _Place("samples")
    state_dir = _Place("state")
    state = _Place("state/state.pt")
    prepared = _Place("state/prepared.safetensors")
    features = _Place("state/features")
    ledger = _Place("state/ledger.json")
    release = _Place("release")
    evaluation = _Place("evaluation.json")
    attack = _Place("attack.json")
    audit = _Place("audit.json")
    report = _Place("report.html")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from training this run: two continuations of one state would reuse its noise.

        A run is read under this lock before it continues. The lock ends with the process. Half-written files of a run
        that was killed are removed.

        Raises:
            InputError: If another process holds it, or the run has no state.
        """
        if not self.state_dir.is_dir():
            raise InputError(
                f"{self.path} has no {self.state_dir.name}/, so its spending is unknown and it cannot go on. "
                "Restore the folder from a copy, or start a new run."
            )
        busy = f"Another process is training {self.path}. Wait for it, or stop it before you resume."
        with files.file_lock(self.state_dir / "lock", busy=busy):
            for folder, kind in ((self.path, "stats.jsonl"), (self.samples, "step_"), (self.state_dir, "state")):
                for part in folder.glob(f".{kind}*.part"):  # of these folders this process is the only writer
                    part.unlink(missing_ok=True)
            yield

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config_toml: str,
        environment: Mapping[str, Any] | None = None,
        *,
        ledger: str | None = None,
    ) -> RunFolder:
        """Make a new run folder with its config and environment.

        A kill before the config is whole leaves a folder that may be used again: it is not a run yet.

        Args:
            path: A folder that does not exist yet or is empty.
            config_toml: The resolved config.
            environment: What to record; None = ``describe_environment()``.
            ledger: The content of the empty ledger; None = the caller writes it.

        Raises:
            InputError: If the folder holds something (nothing is written then), or cannot be made.
        """
        run = cls(Path(path))
        described = describe_environment() if environment is None else environment
        refuse_used(run)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            with files.file_lock(run.path, busy=f"Another process is making the run {run.path}. Choose another name."):
                refuse_used(run)  # checked again, as the folder may have been made in between
                _empty(run)
                run.path.chmod(stat.S_IMODE(run.path.stat().st_mode) & _RUN_FOLDER)
                run.state_dir.mkdir(mode=files.PRIVATE_FOLDER)  # not exist_ok: nothing is overwritten
                try:
                    _fill(run, config_toml, described, ledger)
                except OSError:  # this call made the folder, not another process, which would wait for its lock
                    shutil.rmtree(run.path, ignore_errors=True)
                    raise
        except OSError as error:
            raise InputError(
                f"The run folder {run.path} cannot be made ({error.strerror or error}: {error.filename or run.path}). "
                "Choose another place or name."
            ) from error
        return run

    @classmethod
    def create_unique(
        cls,
        dataset: str,
        method: str,
        config_toml: str,
        *,
        root: str | os.PathLike[str] = "runs",
        environment: Mapping[str, Any] | None = None,
        ledger: str | None = None,
    ) -> RunFolder:
        """Make a new run folder ``root/<dataset>-<method>-<timestamp>``, with ``-2``, ``-3``, ... if that exists."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{dataset}-{method}").strip("-.") or "run"
        for number in itertools.count(1):
            path = Path(root) / (f"{name}-{stamp}" if number == 1 else f"{name}-{stamp}-{number}")
            try:
                path.mkdir(parents=True)  # claims the name: a job started in the same second gets the next one
            except OSError as error:
                if os.path.lexists(path):
                    continue
                raise InputError(f"{path} cannot be made ({error.strerror or error}). Choose another place.") from error
            break
        return cls.create(path, config_toml, environment, ledger=ledger)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open an existing run; raises `InputError` if the folder is missing or not a run."""
        run = cls(Path(path))
        if not run.path.exists():
            raise InputError(f"The run {run.path} does not exist. Check the name; runs lie in runs/ unless told else.")
        if not run.config.is_file():
            raise InputError(
                f"{run.path} is not a run folder: it holds no {run.config.name}. Name one that `train` made."
            )
        return run


@contextlib.contextmanager
def passing_folder() -> Iterator[Path]:
    """Give a new temporary folder, mode 0700, for what is private and goes with this process.

    It is removed at the end of the block. A process that was killed removes nothing: its folder goes at the next call
    by the same user on this machine, as nobody holds its lock.
    """
    for alive in Path(tempfile.gettempdir()).glob(f"{_PASSING}*/{_ALIVE}"):
        none = contextlib.suppress(InputError, OSError, ImportError)  # in use, another user's, or no locks here
        with none, files.file_lock(alive, busy="its process lives"):
            shutil.rmtree(alive.parent)
    with files.locked_folder(lambda: Path(tempfile.mkdtemp(prefix=_PASSING)), lock=_ALIVE) as folder:
        yield folder


@functools.cache
def private_folder() -> Path:
    """Return the folder of this process for what is private; it is removed when the process ends, or was killed."""
    folders = contextlib.ExitStack()
    atexit.register(folders.close)
    return folders.enter_context(passing_folder())


def refuse_used(run: RunFolder) -> None:
    """Raise if the folder of a new run is not free."""
    if run.config.exists():
        raise InputError(
            f"{run.path} is a run already. Continue it with --resume {files.pasted(run.path)}, or choose another name "
            "for a new one."
        )
    if run.path.exists() and not run.path.is_dir():
        raise InputError(f"{run.path} is a file. Choose another name for the run folder.")
    names = sorted(entry.name for entry in run.path.iterdir()) if run.path.exists() else []
    if names and not _is_unborn(run):
        raise InputError(
            f"The folder {run.path} is not empty ({names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}) and "
            "a new run writes over nothing. Choose another name, or continue an existing run with --resume."
        )


def _fill(run: RunFolder, config_toml: str, described: Mapping[str, Any], ledger: str | None) -> None:
    """Write the files of a new run, under the lock of its folder."""
    run.samples.mkdir(mode=files.PRIVATE_FOLDER)
    for folder in (run.state_dir, run.samples):
        folder.chmod(files.PRIVATE_FOLDER)
    files.write_private_json(run.environment, described)
    if ledger is not None:
        files.write_text_atomic(run.ledger, ledger, mode=files.PRIVATE_FILE)
    # Last: from here on the folder is a run.
    files.write_text_atomic(run.config, config_toml, mode=files.PRIVATE_FILE)


def _empty(run: RunFolder) -> None:
    """Remove what a killed `RunFolder.create` has written: nothing was read or charged before its config was whole."""
    if _is_unborn(run):
        for entry in sorted(run.path.rglob("*"), reverse=True):  # the content before its folder
            entry.rmdir() if entry.is_dir() else entry.unlink()


def _is_unborn(run: RunFolder) -> bool:
    """Whether the folder holds only files that a killed `RunFolder.create` made: nothing is lost."""
    folders, plain = {run.state_dir, run.samples, run.release}, {run.environment, run.ledger}
    for file in (*plain, run.config):
        plain |= set(files.parts_of(file))
    return run.state_dir.is_dir() and all(
        entry in (folders if entry.is_dir() else plain) and not entry.is_symlink() for entry in run.path.rglob("*")
    )


def describe_environment(device: str = "cpu") -> dict[str, Any]:
    """Collect what a result depends on besides config and data, as JSON values; no user name, host name or path.

    ``device`` is torch's name, such as "cpu" or "cuda:0". The git commit is None outside a checkout.
    """
    import torch  # imported here, as importing this module must stay cheap for the command line

    on_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("idpgan", "torch", "numpy", "scipy")},
        "platform": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if on_gpu else None,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "byte_order": sys.byteorder,
        "git": _git_commit(),
    }


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache  # of the code that was loaded; three processes
def _git_commit() -> dict[str, Any] | None:
    """Return the commit of the checkout that this very file belongs to, and whether its package was changed."""
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None  # an installed package, perhaps below somebody else's repository
    commit = _git(here.parent, "rev-parse", "HEAD")
    changed = _git(here.parent, "status", "--porcelain", "--", ".")
    return None if commit is None else {"commit": commit, "changed": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Run git and return its output; None if git or a repository is missing, or git does not answer."""
    try:
        done = subprocess.run(["git", "-C", os.fspath(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
