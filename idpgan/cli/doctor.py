"""``idpgan doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from idpgan.cli.output import AsJson, Device, Quiet, print_json
from idpgan.errors import InputError
from idpgan.progress import shown


def doctor(
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Measure this machine instead, ours against libraries: minutes.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check versions against the tested ranges, devices, noise source and accountant; or measure the machine.

    Example: idpgan doctor --benchmark
    """
    if benchmark:
        from idpgan.device import resolve_device
        from idpgan.jobs.benchmark import benchmark as measure
        from idpgan.jobs.benchmark import to_json

        where = resolve_device(device, "--device")
        with shown(quiet or as_json) as progress:
            rows = measure(where, progress=progress)
        if as_json:
            print_json(to_json(rows, where))
        else:
            print("\n".join(map(str, rows)))
        return
    if device != "auto":
        raise InputError(f"--device {device[:40]} belongs to --benchmark; without it all devices are examined.")

    from idpgan.jobs.doctor import examine

    findings = examine()
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.good else 'BAD '} {finding.what}: {finding.found}")
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)
