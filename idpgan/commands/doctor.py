"""``idpgan doctor``: what a private release relies on, and how to mend what is not as it was tested."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from packaging.requirements import Requirement

from idpgan.commands.command import Answer, command
from idpgan.device import GIB, free_memory
from idpgan.errors import InputError
from idpgan.host import unwarned

_MODULES = {"pillow": "PIL", "scikit-learn": "sklearn", "tomli-w": "tomli_w"}  # that are named otherwise than packages
_SHOWN = ("device", "memory")
_TOGETHER = ("torch", "torchvision")  # one build of both: a CPU torch beside a CUDA torchvision cannot be imported
_ON_THEM = ("opacus", "torchmetrics", *_TOGETHER)


@dataclass(frozen=True)
class Finding:
    """One examined item, what was found, whether that is as it should be, and a command that mends it."""

    what: str
    found: str
    good: bool
    mend: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return asdict(self)


@command
def doctor() -> Answer:
    """Say in seconds whether all is as it was tested, how to mend what is not, and what this machine has.

    Versions, devices, memory, noise source and accountant are checked; nothing is trained. --json has every check.

    Example: idpgan doctor
    """
    findings = examine()
    good = all(finding.good for finding in findings)
    return Answer(
        [finding.to_json() for finding in findings], lambda: print(*_lines(findings), sep="\n"), int(not good)
    )


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what is not as it should be, with its mend, and what a user asks first; the rest is counted."""
    for each in findings:
        if not each.good:
            yield f"BAD  {each.what}: {each.found}"
            yield from [f"     mend: {each.mend}"] if each.mend else []
    good = {each.what: each.found for each in findings if each.good}
    sets = [what.removeprefix("data ") for what in good if what.startswith("data ") and "not here" not in good[what]]
    counted = [what for what in good if what not in _SHOWN and not what.startswith("data ")]
    yield f"ok   {len(counted)} checks: versions, noise source, accountant and networks as they were tested"
    yield from (f"ok   {what}: {good[what]}" for what in _SHOWN if what in good)
    yield f"ok   data sets: {', '.join(sets)}"


def examine() -> list[Finding]:
    """Examine versions, devices, noise, accounting, networks and data sets."""
    versions = [Finding("python", platform.python_version(), True), *_versions()]
    if any(each.what == "torch" and not each.good for each in versions):
        return versions  # all else computes with it
    import torch

    from idpgan.data.sources import BY_NAME
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
        *versions,
        _device(),
        Finding("memory", memory, free is None or free > GIB),
        Finding("noise", f"{noise.name}; std {std:.0f} for 1000", abs(std / 1000 - 1) < 0.04),  # 8 standard errors
        Finding("accountant", f"{epsilon:.6f} for 6.768787", math.isclose(epsilon, 6.768787, abs_tol=1e-5)),
        Finding("critic", critic, not mixes),
        *map(_data, BY_NAME),
    ]


def _versions() -> list[Finding]:
    """Import every dependency, and compare it with the tested range in the package's own metadata."""
    try:
        texts = importlib.metadata.requires("idpgan") or []
    except importlib.metadata.PackageNotFoundError:
        what = "not installed, so that nothing says which versions were tested"
        return [Finding("idpgan", what, False, "pip install -c constraints.txt . (in the folder of the source)")]
    tested = {each.name: each for each in map(Requirement, texts) if each.marker is None}  # a marker: of an extra
    return [_version(name, tested) for name in tested]


def _version(name: str, tested: Mapping[str, Requirement]) -> Finding:
    """Import one dependency, and compare its version with the tested ones."""
    specifier, mend = tested[name].specifier, f'pip install "{tested[name]}"'
    try:
        version = importlib.metadata.version(name)
        with unwarned():  # of the libraries about themselves
            importlib.import_module(_MODULES.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, f"not installed, tested {specifier}", False, mend)
    except (ImportError, OSError, RuntimeError) as error:  # installed, but damaged or of another build
        both = dict.fromkeys((name, *(_TOGETHER if name in _ON_THEM else ())))
        words = " ".join(f'"{tested[each]}"' for each in both if each in tested)
        mend = f"pip install --force-reinstall {words} (in the folder of the source with -c constraints.txt)"
        return Finding(name, f"{version}, which cannot be imported ({str(error).partition(chr(10))[0]})", False, mend)
    good = specifier.contains(version, prereleases=True)
    return Finding(name, version if good else f"{version}, tested {specifier}", good, None if good else mend)


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
