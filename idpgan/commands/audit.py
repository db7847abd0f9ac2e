"""``idpgan audit``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.commands.command import Answer, command, kept, print_lines, print_table, processes
from idpgan.errors import InputError
from idpgan.jobs.options import ASKED, AuditOptions, given
from idpgan.progress import Progress
from idpgan.ranks import refuse_several

if TYPE_CHECKING:
    from idpgan.audit.cases import Audited
    from idpgan.jobs.canaries import ExposureReport, OneRun

_READ = "Private images were read: this result is for the curator."


@command
def audit(
    what: Annotated[
        str, typer.Argument(metavar="METHOD|RUN|CONFIG", help="Method by name, a run folder, or a config (--one-run).")
    ],
    options: AuditOptions,
    progress: Progress,
) -> Answer | None:
    """Bound the epsilon of a method, or of a run's release, from below by attacking it on constructed neighbors.

    No private image is read, but by --one-run CONFIG and --exposure, which train. A run's result goes to its
    audit.json. Exit code 1: the bound exceeds the proven epsilon.
    Several processes share the runs by torchrun --nproc-per-node 8 -m idpgan audit ...: docs/reference/scale.md.

    Example: idpgan audit laplace --epsilon 1 --runs 100000
    """
    if options.exposure:
        refuse_several("audit --exposure")
        return _expose(Path(what), options, progress)
    if options.one_run:
        refuse_several("audit --one-run")
        return _nothing(what) or _one_run(what, options, progress)
    return _played(what, options, progress)


def _nothing(what: str) -> Answer | None:
    """Return why a method has nothing to audit, if so: this is an answer, not an error."""
    from idpgan.jobs.audit import nothing_to_audit

    sentence = nothing_to_audit(what)
    value = {"method": what, "proven": "inf", "audited": None, "verdict": sentence}
    return None if sentence is None else Answer(value, lambda: print(sentence))


def _played(what: str, options: AuditOptions, progress: Progress) -> Answer | None:
    """Play the game; None where rank 0 has the result."""
    from idpgan.jobs.audit import follow, play, run_of, write_audit, write_into_release

    with processes() as ranks:
        if not ranks.first:
            follow(ranks)
            return None
        if nothing := _nothing(what):
            return nothing
        audited = play(what, options, progress, ranks)
    if run := run_of(what):
        with kept(audited.to_json()):
            write_audit(run, audited)
            if options.release and not audited.violation:
                write_into_release(run, audited)

    def show() -> None:
        _print(audited)
        if options.release and audited.violation:
            print("Nothing was written into the release. If the violation stays, withdraw the release.")

    return Answer(audited, show, code=int(audited.violation))


def _expose(config: Path, options: AuditOptions, progress: Progress) -> Answer:
    """Train once with secrets, and say how well they are known."""
    if not config.is_file():
        raise InputError(f"--exposure trains a config file, and {config} is none.")
    _refuse_asked(str(config), options)
    from idpgan.jobs.canaries import exposure_of

    canaries, seed = 20 if options.canaries is None else options.canaries, options.seed or 0
    found = exposure_of(config, canaries=canaries, repeats=options.repeats, seed=seed, progress=progress)
    return Answer(found, lambda: _print_exposure(found))


def _print_exposure(found: ExposureReport) -> None:
    """Print how well secrets are known, by each score."""
    from idpgan.attacks.exposure import FLOOR

    lines = [f"{found.method}: {found.canaries} secrets, {found.repeats} times each; proven {found.proven}"]
    for name, result in found.results.items():
        fit = "" if result.fits else ", which does not fit the references: do not trust it"
        lines.append(
            f"{name}: mean exposure {result.by_rank.mean():.2f} bits by rank among {result.references:,} (never seen: "
            f"{FLOOR:.2f}), most {result.by_rank.max():.2f}; {result.extrapolated.mean():.2f} by a skew-normal law"
            f"{fit}"
        )
    if not found.results:
        lines.append("No score tells one image from another, so nothing was measured.")
    print_lines([*lines, *(f"note: {note}" for note in found.notes), _READ])


def _refuse_asked(config: str, options: AuditOptions) -> None:
    """Refuse what is said of methods where a config is trained with its own settings."""
    if asked := given(options, *ASKED, "device"):
        raise InputError(f"{asked[0]} is for methods; {config} is trained with its own settings. Leave it out.")


def _one_run(what: str, options: AuditOptions, progress: Progress) -> Answer:
    """Train once with canaries, and say what it shows."""
    from idpgan.device import resolve_device
    from idpgan.jobs.audit import case_of, run_of
    from idpgan.jobs.canaries import gradients_once, images_once

    canaries, confidence, seed = options.canaries, options.confidence, options.seed
    if run_of(what) is None and Path(what).is_file():
        _refuse_asked(what, options)
        found = images_once(Path(what), canaries, confidence=confidence, seed=seed, progress=progress)
    else:
        device = resolve_device(options.device, "--device")
        found = gradients_once(case_of(what, options), canaries, confidence=confidence, seed=seed, device=device)
    return Answer(found, lambda: _print_one_run(found), code=int(found.violation))


def _print_one_run(found: OneRun) -> None:
    """Print the bound of each attack beside what is proven."""
    from idpgan.audit.cases import doubt

    lines = [f"{found.method}, one run: proven {found.proven}"]
    for name, result in found.results.items():
        lines.append(
            f"{name}: epsilon >= {result.epsilon_lower:.4f} (cap {result.cap:.2f}): {result.correct} of "
            f"{result.guesses} guesses right about {result.canaries} canaries, confidence {result.confidence:g}"
        )
    lines += [f"note: {note}" for note in found.notes] + [_READ] * (not found.data_free)
    if found.violation:
        confidence = min(result.confidence for result in found.results.values())
        lines.append(f"VIOLATION: a bound exceeds the proven epsilon. {doubt(confidence)}")
    print_lines(lines)


def _print(audited: Audited) -> None:
    """Print claimed, proven and audited side by side, and what they rest on."""
    from idpgan.audit.bounds import SHARE, SHARE_MEANS, share_text

    case, result = audited.case, audited.result
    rows = []
    for name, guarantee in {
        "claimed": case.claimed,
        "proven": case.proven,
        "audited (lower bound)": audited.guarantee,
    }.items():
        epsilon = "nothing" if guarantee is None else f"{guarantee.epsilon:.4f}" if guarantee.finite else "infinite"
        rows.append((name, epsilon, "" if guarantee is None else f"{guarantee.delta:g}"))
    print_table(("", "epsilon", "delta"), rows, f"{case.method}, unit {case.proven.unit}, {case.proven.relation}")
    sign = ">=" if result.direction == 1 else "<"
    lines = [
        f"neighbors: {case.pair.name}",
        f"{result.runs:,} runs per side, half of them held out: 'neighbor' ({result.statistic} {sign} "
        f"{result.threshold:.6g}) was right {result.true_positives:,} and wrong {result.false_positives:,} times of "
        f"{result.held_out:,}",
    ]
    if math.isfinite(audited.proven_mu):  # the second bound, and the epsilon that it implies
        found, proven, implied, exact = result.separation, audited.proven_mu, audited.implied_epsilon, audited.exact_mu
        also = "" if implied is None else f"; if the law is Gaussian, that is epsilon >= {implied:.4f}"
        if exact is not None:
            also += f"; of what these neighbors can show at all, {exact:.4f}: {share_text(found.mu_lower, exact)}"
        lines.append(
            f"{SHARE}: {share_text(found.mu_lower, proven)} (audited mu >= {found.mu_lower:.4f} of proven {proven:.4f} "
            f"standard deviations, at a false-positive rate of {found.fpr_high:.4g}{also})"
        )
        lines.append(f"{SHARE_MEANS}.")
    lines.append(
        f"confidence {result.confidence:g}; cap at this number of runs: {result.cap:.2f}; 'infinite' is never measured"
    )
    print_lines([*lines, *(f"note: {note}" for note in case.notes), audited.verdict])
