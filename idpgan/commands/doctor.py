"""``idpgan doctor``: what a private release relies on, and what this machine does in which time."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from idpgan.commands.command import Answer, Device, command
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.memory import GIB, free_memory
from idpgan.progress import Progress, silent

_MODULES = {"pillow": "PIL", "scikit-learn": "sklearn", "tomli-w": "tomli_w"}  # that are named otherwise than packages
_DIGITS, _FACES = tuple("0123456789"), ("neutral", "smiling")
_TASKS = (  # what, N, (C, H, W), classes, config, settings
    ("gaussian, 8,000 faces of 32 x 32", 8_000, (1, 32, 32), _FACES, "faces-wild-gaussian", ()),
    ("the same with a teacher", 8_000, (1, 32, 32), _FACES, "faces-wild-gaussian", ("method.teacher_share=0.5",)),
    ("idp-gan-aggregate, 54,000 digits of 28 x 28", 54_000, (1, 28, 28), _DIGITS, "mnist-aggregate-no-public", ()),
    ("evolution, the same digits", 54_000, (1, 28, 28), _DIGITS, "mnist-evolution", ()),
    ("scattering-linear, the same digits", 54_000, (1, 28, 28), _DIGITS, "mnist-scattering-linear", ()),
)


@dataclass(frozen=True)
class Finding:
    """One examined item, what was found, and whether that is as it should be."""

    what: str
    found: str
    good: bool

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return asdict(self)


@command
def doctor(
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Measure this machine instead, ours against libraries: minutes.")
    ] = False,
    device: Device = "auto",
    every: Annotated[bool, typer.Option("--all", help="Print every check.")] = False,
    *,
    progress: Progress,
) -> Answer:
    """Say in ten lines whether all is as it was tested, and what this machine can do in which time.

    Versions, devices, noise source and accountant are checked; a part of some runs is tried on random images.

    Example: idpgan doctor --benchmark
    """
    if benchmark:
        from idpgan.commands import benchmark as bench
        from idpgan.device import resolve_device

        where = resolve_device(device, "--device")
        rows = bench.benchmark(where, progress=progress)
        return Answer(bench.to_json(rows, where), lambda: print(*rows, sep="\n"))
    if device != "auto":
        raise InputError(f"--device {device[:40]} belongs to --benchmark; without it all devices are examined.")
    examined, times = examine(), capabilities(progress)
    findings = [*examined, *times]
    shown = findings if every else [*summary(examined), *times]
    lines = [f"{'ok  ' if finding.good else 'BAD '} {finding.what}: {finding.found}" for finding in shown]
    good = all(finding.good for finding in findings)
    return Answer([finding.to_json() for finding in findings], lambda: print(*lines, sep="\n"), code=0 if good else 1)


@own_state()
def examine() -> list[Finding]:
    """Examine versions, devices, noise, accounting, networks and data sets."""
    import torch

    from idpgan.data.load import BY_NAME
    from idpgan.models.config import ModelConfig
    from idpgan.models.dcgan import Critic
    from idpgan.models.validate import validate_private_critic
    from idpgan.privacy import Event, Noise, Relation, RoundedGaussian, Unit, compose_epsilon

    free = free_memory()  # the limit by which large batches and data sets are refused
    memory = "unknown" if free is None else f"{free / GIB:.1f} GiB free"
    noise, mechanism = Noise.system(), RoundedGaussian(1.0, 1000, Unit.IMAGE, Relation.ZERO_OUT)
    std = mechanism(torch.zeros(20_000, dtype=torch.int64), noise).double().std().item()
    # A golden epsilon: sigma 1.5, q 0.04, 2,250 steps, delta 1e-5: 6.768787; Opacus' PRV: 6.779132.
    event = Event("poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, 1.5, 2250, sample_rate=0.04)
    epsilon = compose_epsilon([event], 1e-5)
    critic = "no layer mixes records"
    try:
        validate_private_critic(Critic(ModelConfig(width=8), (1, 8, 8), 10))
        mixes = False
    except InputError as error:
        critic, mixes = str(error), True
    return [
        Finding("python", platform.python_version(), True),
        *_versions(),
        _device(),
        Finding("memory", memory, free is None or free > GIB),
        Finding("noise", f"{noise.name}; std {std:.0f} for 1000", abs(std / 1000 - 1) < 0.04),  # 8 standard errors
        Finding("accountant", f"{epsilon:.6f} for 6.768787", math.isclose(epsilon, 6.768787, abs_tol=1e-5)),
        Finding("critic", critic, not mixes),
        *map(_data, BY_NAME),
    ]


@own_state()
def capabilities(progress: Progress = silent) -> list[Finding]:
    """Say how long typical runs take here, by a probe of each on random images; nothing is kept."""
    from idpgan import estimate
    from idpgan.data.load import DataShape, Sizes
    from idpgan.trainer import load_config

    findings = []
    for number, (what, num, image_shape, classes, name, settings) in enumerate(_TASKS):
        shape = DataShape(Sizes(0, num, 0, 1), image_shape, classes)
        config = load_config(Path(name), ['data.split_by="image"', *settings])
        try:
            findings.append(Finding(what, str(estimate.expected(config, shape)), True))
        except InputError as error:
            findings.append(Finding(what, str(error), False))
        progress("methods tried", number + 1, len(_TASKS))
    return findings


def summary(findings: Sequence[Finding]) -> list[Finding]:
    """Return what is not as it should be, and what a user asks first; the rest is counted."""
    shown = {"device", "memory"}
    good = [each for each in findings if each.good and each.what not in shown and not each.what.startswith("data ")]
    here = [each for each in findings if each.what.startswith("data ") and "not here" not in each.found]
    sets = Finding("data sets", ", ".join(each.what.removeprefix("data ") for each in here), True)
    checks = Finding(f"{len(good)} checks", "versions, noise source, accountant and networks as they were tested", True)
    bad = [each for each in findings if not each.good]
    return [*bad, checks, *(each for each in findings if each.good and each.what in shown), sets]


def _versions() -> list[Finding]:
    """Import every dependency, and compare it with the tested range in the package's own metadata."""
    from packaging.requirements import Requirement

    findings = []
    try:
        texts = importlib.metadata.requires("idpgan") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("idpgan", "not installed, so that nothing says which versions were tested", False)]
    for text in texts:
        requirement = Requirement(text)
        if requirement.marker is not None:  # the requirement of an extra
            continue
        try:
            version = importlib.metadata.version(requirement.name)
            with warnings.catch_warnings(action="ignore"):  # of the libraries about themselves
                importlib.import_module(_MODULES.get(requirement.name, requirement.name))
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(requirement.name, f"not installed, tested {requirement.specifier}", False))
            continue
        except (ImportError, OSError, RuntimeError) as error:  # installed, but damaged or of another build
            why = str(error).partition("\n")[0]
            findings.append(Finding(requirement.name, f"{version}, which cannot be imported ({why})", False))
            continue
        good = requirement.specifier.contains(version, prereleases=True)
        found = version if good else f"{version}, tested {requirement.specifier}"
        findings.append(Finding(requirement.name, found, good))
    return findings


def _device() -> Finding:
    import torch

    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        return Finding("device", f"CPU only, {threads}", True)
    try:
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
    except RuntimeError as error:  # a driver that does not answer
        return Finding("device", str(error).splitlines()[0], False)
    return Finding("device", f"{name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free; {threads}", True)


def _data(name: str) -> Finding:
    from idpgan.data.config import DataConfig
    from idpgan.data.load import describe

    try:
        shape = describe(DataConfig(name=name))
    except InputError as error:
        return Finding(f"data {name}", str(error), False)
    found = f"{shape.num_private:,} private images" if shape else "not here; set IDPGAN_DATA or give --data-root"
    return Finding(f"data {name}", found, True)
