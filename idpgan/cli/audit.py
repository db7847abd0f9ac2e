"""``idpgan audit``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.cli.output import AsJson, Device, Quiet, kept, print_json, processes
from idpgan.device import check_device
from idpgan.errors import InputError
from idpgan.files import check_writable
from idpgan.progress import shown
from idpgan.ranks import refuse_several
from idpgan.run import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from idpgan.audit.cases import Audited, Request
    from idpgan.jobs.one_run_audit import OneRun

_MOST_RUNS, _MOST_CANARIES = 10**9, 20_000  # those of `idpgan.audit`, said before torch is loaded


def audit(
    what: Annotated[
        str, typer.Argument(metavar="METHOD|RUN|CONFIG", help="Method by name, a run folder, or a config (--one-run).")
    ],
    epsilon: Annotated[float | None, typer.Option(help="What the method is asked to keep to.")] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1e-5 for Gaussian noise and published, else 0.")] = None,
    unit: Annotated[str | None, typer.Option(help="pixel, column, image, label or person.")] = None,
    relation: Annotated[str | None, typer.Option(help="replace-one or zero-out-one.")] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            help="Runs per side, half of them counted; default: 100000, fewer where one is long (dp-gan 50000)."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of each bound.")] = 0.95,
    noise: Annotated[str | None, typer.Option(help="idp-gan-published: once, per_step or per_batch.")] = None,
    law: Annotated[str | None, typer.Option(help="Kind of noise or bound, where a method has several.")] = None,
    pair: Annotated[str | None, typer.Option(help="Publishers: the neighbors, such as extremes.")] = None,
    release: Annotated[bool, typer.Option("--release", help="Also fill the audited field of a run's release.")] = False,
    seed: Annotated[int | None, typer.Option(help="Fixes the noise, to have a result again.")] = None,
    one_run: Annotated[
        bool,
        typer.Option("--one-run", help="One training with many canaries: gradients (dp-gan, hybrid) or a CONFIG's."),
    ] = False,
    exposure: Annotated[
        bool, typer.Option("--exposure", help="Train CONFIG with random secrets in it: how well are they known?")
    ] = False,
    canaries: Annotated[
        int | None, typer.Option(help="Default: of --one-run 5000 gradients or 500 images, of --exposure 20.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often each secret of --exposure is in the training.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads, each with its own noise.")] = 1,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Bound the epsilon of a method, or of a run's release, from below by attacking it on constructed neighbors.

    No private image is read, but by --one-run CONFIG and --exposure, which train. A run's result goes to its
    audit.json. Exit code 1: the bound exceeds the proven epsilon.
    Several processes share the runs by torchrun --nproc-per-node 8 -m idpgan audit ...: docs/scale.md.

    Example: idpgan audit laplace --epsilon 1 --runs 100000
    """
    if not 0 < confidence < 1 or not 1 <= threads <= 256:
        raise InputError(f"--confidence {confidence} must be in (0, 1), --threads {threads} in 1 .. 256.")
    if runs is not None and not 100 <= runs <= _MOST_RUNS:
        raise InputError(
            f"--runs {str(runs)[:40]} must be in 100 .. {_MOST_RUNS:,}; leave it out for the usual number."
        )
    check_device(device, "--device")
    options = {"--epsilon": epsilon, "--delta": delta, "--unit": unit, "--relation": relation, "--noise": noise}
    options |= {"--law": law, "--pair": pair}
    run = Path(what) if (Path(what) / "config.toml").is_file() else None
    if exposure:
        refuse_several("audit --exposure")
        _refuse_beside_exposure(runs, release, one_run, options, what)
        _exposure(Path(what), canaries, repeats, seed, quiet, as_json)
        return
    if repeats != 1:
        raise InputError("--repeats belongs to --exposure.")
    if one_run:
        refuse_several("audit --one-run")
        if _nothing(run or what, as_json):
            return
        _refuse_beside_one_run(runs, release, canaries)
        _one_run(what, run, options, canaries, confidence, seed, quiet, as_json)
        return
    if canaries is not None:
        raise InputError("--canaries belongs to --one-run and --exposure.")
    audited = _audited(what, run, options, release, (runs, confidence, seed, threads, device), quiet, as_json)
    if audited is None:
        return
    if run:
        from idpgan.jobs.audit import write_audit, write_into_release

        with kept(audited.to_json()):
            write_audit(run, audited)
            if release and not audited.violation:
                write_into_release(run, audited)
    if as_json:
        print_json(audited.to_json())
    else:
        _print(audited)
        if release and audited.violation:
            print("Nothing was written into the release. If the violation stays, withdraw the release.")
    if audited.violation:
        raise typer.Exit(1)


def _audited(
    what: str,
    run: Path | None,
    options: dict[str, float | str | None],
    release: bool,
    game: tuple[int | None, float, int | None, int, str],
    quiet: bool,
    as_json: bool,
) -> Audited | None:
    """Play the game; None where there is nothing to play, or where rank 0 has the result."""
    from idpgan.jobs.audit import FORMAT, Game, follow, play
    from idpgan.release.outputs import check_output

    with processes() as ranks, shown(quiet or as_json or not ranks.first) as progress:
        if not ranks.first:
            follow(ranks)
            return None
        if _nothing(run or what, as_json):
            return None
        source = _run(run, options, release) if run else _method(what, options, release)
        if run:
            check_output(RunFolder.open(run).audit, FORMAT, option="the result")
            check_writable(RunFolder.open(run).audit)
        return play(source, Game(*game), progress, ranks)


def _nothing(what: str | Path, as_json: bool) -> bool:
    """Say so where there is no guarantee to audit; that is an answer, not an error."""
    from idpgan.jobs.audit import nothing_to_audit

    sentence = nothing_to_audit(what)
    if sentence is None:
        return False
    if as_json:
        print_json({"method": str(what), "proven": "inf", "audited": None, "verdict": sentence})
    else:
        print(sentence)
    return True


def _refuse_beside_one_run(runs: int | None, release: bool, canaries: int | None) -> None:
    """Refuse options that one run has no use for."""
    if runs is not None or release:
        raise InputError(f"{'--release' if release else '--runs'} does not go with --one-run.")
    if canaries is not None and not 10 <= canaries <= _MOST_CANARIES:
        raise InputError(f"--canaries {str(canaries)[:40]} must be in 10 .. {_MOST_CANARIES:,}.")


def _refuse_beside_exposure(
    runs: int | None, release: bool, one_run: bool, options: dict[str, float | str | None], what: str
) -> None:
    """Refuse options that a training with secrets has no use for."""
    flags = {"--runs": runs, "--release": release or None, "--one-run": one_run or None, **options}
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} does not go with --exposure.")
    if not Path(what).is_file():
        raise InputError(f"--exposure trains a config file, and {what} is none.")


def _exposure(config: Path, canaries: int | None, repeats: int, seed: int | None, quiet: bool, as_json: bool) -> None:
    """Train once with secrets, and print how well they are known."""
    from rich.console import Console

    from idpgan.jobs.exposure import FLOOR, exposure_of

    with shown(quiet or as_json) as progress:
        found = exposure_of(
            config, canaries=20 if canaries is None else canaries, repeats=repeats, seed=seed or 0, progress=progress
        )
    if as_json:
        print_json(found.to_json())
        return
    console = Console(markup=False)
    console.print(f"{found.method}: {found.canaries} secrets, {found.repeats} times each; proven {found.proven}")
    for name, result in found.results.items():
        fit = "" if result.fits else ", which does not fit the references: do not trust it"
        console.print(
            f"{name}: mean exposure {result.by_rank.mean():.2f} bits by rank among {result.references:,} (never seen: "
            f"{FLOOR:.2f}), most {result.by_rank.max():.2f}; {result.extrapolated.mean():.2f} by a skew-normal law"
            f"{fit}",
            soft_wrap=True,
        )
    if not found.results:
        console.print("No score tells one image from another, so nothing was measured.")
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print("Private images were read: this result is for the curator.", soft_wrap=True)


def _one_run(
    what: str,
    run: Path | None,
    options: dict[str, float | str | None],
    canaries: int | None,
    confidence: float,
    seed: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train once with canaries, and print what it shows."""
    from idpgan.jobs.audit import case_of
    from idpgan.jobs.one_run_audit import gradients_once, images_once

    if run is None and Path(what).is_file():
        given = [flag for flag, value in options.items() if value is not None]
        if given:
            raise InputError(f"{given[0]} is for methods; {what} is trained with its own settings.")
        with shown(quiet or as_json) as progress:
            found = images_once(Path(what), canaries, confidence=confidence, seed=seed, progress=progress)
    else:
        case = case_of(_run(run, options, False) if run else _method(what, options, False))
        found = gradients_once(case, canaries, confidence=confidence, seed=seed)
    if as_json:
        print_json(found.to_json())
    else:
        _print_one_run(found)
    if found.violation:
        raise typer.Exit(1)


def _print_one_run(found: OneRun) -> None:
    """Print the bound of each attack beside what is proven."""
    from rich.console import Console

    console, proven = Console(markup=False), found.proven
    console.print(f"{found.method}, one run: proven {proven}", soft_wrap=True)
    for name, result in found.results.items():
        console.print(
            f"{name}: epsilon >= {result.epsilon_lower:.4f} (cap {result.cap:.2f}): {result.correct} of "
            f"{result.guesses} guesses right about {result.canaries} canaries, confidence {result.confidence:g}",
            soft_wrap=True,
        )
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if not found.data_free:
        console.print("Private images were read: this result is for the curator.", soft_wrap=True)
    if found.violation:
        from idpgan.audit.cases import doubt

        confidence = min(result.confidence for result in found.results.values())
        console.print(f"VIOLATION: a bound exceeds the proven epsilon. {doubt(confidence)}", soft_wrap=True)


def _method(name: str, options: dict[str, float | str | None], release: bool) -> tuple[str, Request]:
    """Return a method and what is asked of it."""
    from idpgan.audit import Request
    from idpgan.jobs.audit import method_case
    from idpgan.privacy.guarantee import parse_relation, parse_unit

    if release:
        raise InputError(f"--release is for runs, and {name} is none.")
    request: dict[str, object] = {flag.removeprefix("--"): value for flag, value in options.items()}
    request["draw"] = request.pop("noise")
    for key, parse in (("unit", parse_unit), ("relation", parse_relation)):
        request[key] = None if request[key] is None else parse(str(request[key]))
    if request["epsilon"] is None:
        method_case(name, Request(1.0))  # an unknown name is the first thing to say
        raise InputError(f"--epsilon is missing: say what '{name}' is asked to keep to, for example --epsilon 1.")
    return name, Request(**request)  # type: ignore[arg-type]  # parsed above


def _run(run: Path, options: dict[str, float | str | None], release: bool) -> Path:
    """Return a run whose own settings hold, and which can be audited as asked."""
    from idpgan.jobs.audit import check_release

    given = [flag for flag, value in options.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} is for methods; {run} is a run and is audited with its own settings.")
    if release:
        check_release(run)
    return run


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
    console.print(f"neighbors: {case.pair.name}", soft_wrap=True)
    console.print(
        f"{result.runs:,} runs per side, half of them held out: 'neighbor' ({result.statistic} {sign} "
        f"{result.threshold:.6g}) was right {result.true_positives:,} and wrong {result.false_positives:,} times of "
        f"{result.held_out:,}",
        soft_wrap=True,
    )
    if math.isfinite(audited.proven_mu):
        _print_separation(console, audited)
    console.print(
        f"confidence {result.confidence:g}; cap at this number of runs: {result.cap:.2f}; 'infinite' is never measured"
    )
    for note in case.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print(audited.verdict, soft_wrap=True)


def _print_separation(console: Console, audited: Audited) -> None:
    """Print the second bound, and what it would say of epsilon."""
    found, proven = audited.result.separation, audited.proven_mu
    share = f" ({found.mu_lower / proven:.0%})" if proven > 0 else ""
    implied = audited.implied_epsilon
    also = "" if implied is None else f"; if the law is Gaussian, that is epsilon >= {implied:.4f}"
    console.print(
        f"separation in standard deviations: audited mu >= {found.mu_lower:.4f} of proven {proven:.4f}{share} at a "
        f"false-positive rate of {found.fpr_high:.4g}{also}",
        soft_wrap=True,
    )
