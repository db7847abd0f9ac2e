"""``idpgan doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from idpgan.commands.command import Answer, command
from idpgan.errors import InputError
from idpgan.jobs.options import Device
from idpgan.progress import Progress


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
        from idpgan.device import resolve_device
        from idpgan.jobs.benchmark import benchmark as measure
        from idpgan.jobs.benchmark import to_json

        where = resolve_device(device, "--device")
        rows = measure(where, progress=progress)
        return Answer(to_json(rows, where), lambda: print(*rows, sep="\n"))
    if device != "auto":
        raise InputError(f"--device {device[:40]} belongs to --benchmark; without it all devices are examined.")

    from idpgan.jobs.doctor import capabilities, examine, summary

    examined, times = examine(), capabilities(progress)
    findings = [*examined, *times]
    shown = findings if every else [*summary(examined), *times]
    lines = [f"{'ok  ' if finding.good else 'BAD '} {finding.what}: {finding.found}" for finding in shown]
    good = all(finding.good for finding in findings)
    return Answer([finding.to_json() for finding in findings], lambda: print(*lines, sep="\n"), code=0 if good else 1)
