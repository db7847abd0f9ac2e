"""``idpgan audit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.cli.output import AsJson, Quiet, count_progress, kept, print_json
from idpgan.errors import InputError
from idpgan.run import RunFolder, check_writable

if TYPE_CHECKING:
    import torch

    from idpgan.audit.cases import AuditCase, Audited


def audit(
    what: Annotated[str, typer.Argument(metavar="METHOD|RUN", help="Method or mechanism by name, or a run folder.")],
    epsilon: Annotated[float | None, typer.Option(help="What the method is asked to keep to.")] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1e-5 for Gaussian noise and published, else 0.")] = None,
    unit: Annotated[str | None, typer.Option(help="pixel, column, image, label or person.")] = None,
    relation: Annotated[str | None, typer.Option(help="replace-one or zero-out-one.")] = None,
    runs: Annotated[int, typer.Option(help="Runs per side; one half chooses, the other is counted.")] = 100_000,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    noise: Annotated[str | None, typer.Option(help="idp-gan-published: once, per_step or per_batch.")] = None,
    law: Annotated[str | None, typer.Option(help="Kind of noise or bound, where a method has several.")] = None,
    pair: Annotated[str | None, typer.Option(help="Publishers: the neighbours, such as extremes.")] = None,
    release: Annotated[bool, typer.Option("--release", help="Also fill the audited field of a run's release.")] = False,
    seed: Annotated[int | None, typer.Option(help="Fixes the noise, to have a result again.")] = None,
    threads: Annotated[int, typer.Option(help="Threads, each with its own noise.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, or cuda for continuous noise.")] = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Bound the epsilon of a method, or of a run's release, from below by attacking it on constructed neighbours.

    No private image is read. A run's result goes to its audit.json. Exit code 1: the bound exceeds the proven epsilon.

    Example: idpgan audit laplace --epsilon 1 --runs 100000
    """
    if not 100 <= runs <= 10**9 or not 0 < confidence < 1 or not 1 <= threads <= 256:
        raise InputError(
            f"--runs {runs} must be in 100 .. 10^9, --confidence {confidence} in (0, 1), --threads 1 .. 256."
        )
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device {device} is unknown. Known: cpu, cuda.")
    options = {"--epsilon": epsilon, "--delta": delta, "--unit": unit, "--relation": relation, "--noise": noise}
    options |= {"--law": law, "--pair": pair}
    run = Path(what) if (Path(what) / "config.toml").is_file() else None
    case = _run_case(run, options, release) if run else _method_case(what, options, release)
    if run:
        check_writable(RunFolder.open(run).audit)
    with count_progress("runs", quiet or as_json) as progress:
        audited = case.run(
            runs, confidence=confidence, seed=seed, threads=threads, device=_device(device), progress=progress
        )
    if run:
        from idpgan.report.audit_run import write_audit, write_into_release

        with kept(audited.to_json()):
            write_audit(run, audited)
            if release:
                write_into_release(run, audited)
    if as_json:
        print_json(audited.to_json())
    else:
        _print(audited)
    if audited.violation:
        raise typer.Exit(1)


def _device(name: str) -> torch.device:
    """Return the device; a GPU that is not there is refused."""
    from idpgan.training.method import resolve_device

    return resolve_device(name, "--device")


def _method_case(name: str, options: dict[str, float | str | None], release: bool) -> AuditCase:
    """Return the case of a method."""
    from idpgan.audit import Request
    from idpgan.privacy.guarantee import parse_relation, parse_unit
    from idpgan.report.audit_run import method_case

    if release:
        raise InputError(f"--release is for runs, and {name} is none.")
    request: dict[str, object] = {flag.removeprefix("--"): value for flag, value in options.items()}
    request["draw"] = request.pop("noise")
    for key, parse in (("unit", parse_unit), ("relation", parse_relation)):
        request[key] = None if request[key] is None else parse(str(request[key]))
    if request["epsilon"] is None:
        method_case(name, Request(1.0))  # an unknown name is the first thing to say
        raise InputError(f"--epsilon is missing: say what '{name}' is asked to keep to, for example --epsilon 1.")
    return method_case(name, Request(**request))  # type: ignore[arg-type]  # parsed above


def _run_case(run: Path, options: dict[str, float | str | None], release: bool) -> AuditCase:
    """Return the case of a run, whose own settings hold."""
    from idpgan.report.audit_run import check_release, run_case

    given = [flag for flag, value in options.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} is for methods; {run} is a run and is audited with its own settings.")
    if release:
        check_release(run)
    return run_case(run)


def _print(audited: Audited) -> None:
    """Print claimed, proven and audited side by side, and what they rest on."""
    from rich.console import Console
    from rich.table import Table

    case, result = audited.case, audited.result
    console = Console(markup=False)
    table = Table("", "epsilon", "delta", title=f"{case.method}, unit {case.proven.unit}, {case.proven.relation}")
    rows = (("claimed", case.claimed), ("proven", case.proven), ("audited (lower bound)", audited.guarantee))
    for name, guarantee in rows:
        if guarantee is None:
            table.add_row(name, "nothing", "")
        else:
            epsilon = f"{guarantee.epsilon:.4f}" if guarantee.finite else "infinite"
            table.add_row(name, epsilon, f"{guarantee.delta:g}")
    console.print(table)
    sign = ">=" if result.direction == 1 else "<"
    console.print(f"neighbours: {case.pair.name}", soft_wrap=True)
    console.print(
        f"{result.runs:,} runs per side, half of them held out: 'neighbour' ({result.statistic} {sign} "
        f"{result.threshold:.6g}) was right {result.true_positives:,} and wrong {result.false_positives:,} times of "
        f"{result.held_out:,}",
        soft_wrap=True,
    )
    console.print(
        f"confidence {result.confidence:g}; cap at this number of runs: {result.cap:.2f}; 'infinite' is never measured"
    )
    for note in case.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print(audited.verdict, soft_wrap=True)
