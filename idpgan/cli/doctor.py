"""``idpgan doctor``."""

from __future__ import annotations

import typer

from idpgan.cli.output import AsJson, print_json


def doctor(as_json: AsJson = False) -> None:
    """Check versions against the tested ranges, devices, noise source and accountant.

    Example: idpgan doctor
    """
    from idpgan.jobs.doctor import examine

    findings = examine()
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.good else 'BAD '} {finding.what}: {finding.found}")
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)
