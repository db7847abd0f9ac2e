"""``idpgan audit``: any method by name, or a finished run's own release with its own settings.

An audit of a run reads its config, and from `state/` only shapes and allocation. It constructs its neighbors and reads
no image. Its result is therefore as public as the settings are, and may stand in the release. What trains with canaries
(--one-run of a config) does read images: `idpgan.commands.canaries`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.checks import whole
from idpgan.commands.command import Answer, Device, command, given, kept, option, print_lines, print_table
from idpgan.device import check_device, resolve_device
from idpgan.errors import InputError
from idpgan.files import check_writable, pasted, remove_dead, whole_folder, write_bytes_atomic, write_private_json
from idpgan.methods import METHODS, load_audit
from idpgan.progress import Progress, silent
from idpgan.run import RunFolder

if TYPE_CHECKING:
    from idpgan.audit.cases import AuditCase, Audited
    from idpgan.audit.entry import Entry, Request
    from idpgan.release.verify import Verification

FORMAT = "idpgan audit 2"
_OF_METHODS = ("epsilon", "delta", "unit", "pair")  # of a method, never of a run or a config
_MOST_RUNS, _MOST_CANARIES = 10**9, 20_000  # runs per side: hours, even of one number each; per call: see `audit.cases`


@dataclass(frozen=True)
class AuditOptions:
    """How to audit, and what is asked of the method that is audited."""

    epsilon: float | None = option(None, "What the method is asked to keep to.")
    delta: float | None = option(None, "Default: 1e-5 for Gaussian noise and published, else 0.")
    unit: str | None = option(None, "pixel, column, image, label or person.")
    runs: int | None = option(
        None, "Runs per side, half of them counted; default: 100000, fewer where one is long (dp-gan 50000)."
    )
    confidence: float = option(0.95, "Of each bound.")
    pair: str | None = option(None, "Publishers: the neighbors, such as extremes.")
    release: bool = option(False, "Also fill the audited field of a run's release.")
    seed: int | None = option(None, "Fixes the noise, to have a result again.")
    one_run: bool = option(False, "One run with many canaries: gradients or sums of a METHOD, or a CONFIG's training.")
    canaries: int | None = option(None, "Of --one-run; default: 5000 gradients or sums, or 500 images.")
    device: Device = "cpu"

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1).")
        if self.runs is not None and not 100 <= self.runs <= _MOST_RUNS:
            raise InputError(
                f"--runs {str(self.runs)[:40]} must be in 100 .. {_MOST_RUNS:,}; leave it out for the usual number."
            )
        check_device(self.device, "--device")
        if self.seed is not None:
            whole(self.seed, "--seed")
        if self.canaries is not None and not self.one_run:
            raise InputError("--canaries belongs to --one-run.")
        if self.one_run and (unfit := given(self, "release", "runs")):
            raise InputError(f"{unfit[0]} does not go with --one-run.")
        if self.one_run and self.canaries is not None and not 10 <= self.canaries <= _MOST_CANARIES:
            raise InputError(f"--canaries {str(self.canaries)[:40]} must be in 10 .. {_MOST_CANARIES:,}.")


@command
def audit(
    what: Annotated[
        str, typer.Argument(metavar="METHOD|RUN|CONFIG", help="Method by name, a run folder, or a config (--one-run).")
    ],
    options: AuditOptions,
    progress: Progress,
) -> Answer:
    """Bound the epsilon of a method, or of a run's release, from below by attacking it on constructed neighbors.

    No private image is read, but by --one-run CONFIG, which trains. A run's result goes to its
    audit.json. Exit code 1: the bound exceeds the proven epsilon.

    Example: idpgan audit laplace --epsilon 1 --runs 100000
    """
    if options.one_run:
        return _canaries(what, options, progress)
    if sentence := nothing_to_audit(what):  # an answer, not an error
        return _nothing(what, sentence)
    audited = play(what, options, progress)
    if run := run_of(what):
        with kept(audited.to_json()):
            write_audit(run, audited)
            if options.release and not audited.violation:
                write_into_release(run, audited)

    def show() -> None:
        print_audited(audited)
        if options.release and audited.violation:
            print("Nothing was written into the release. If the violation stays, withdraw the release.")

    return Answer(audited, show, code=int(audited.violation))


def _nothing(what: str, sentence: str) -> Answer:
    value = {"method": what, "proven": "inf", "audited": None, "verdict": sentence}
    return Answer(value, lambda: print(sentence))


def _canaries(what: str, options: AuditOptions, progress: Progress) -> Answer:
    """Train once with canaries, and say how well they are known."""
    from idpgan.commands import canaries

    config, seed, confidence = Path(what), options.seed, options.confidence
    if sentence := nothing_to_audit(what):
        return _nothing(what, sentence)
    if run_of(what) is not None or not config.is_file():
        device = resolve_device(options.device, "--device")
        case = case_of(what, options)
        once = canaries.gradients_once(case, options.canaries, confidence=confidence, seed=seed, device=device)
        return Answer(once, lambda: print_lines(once.lines()), code=int(once.violation))
    if asked := given(options, *_OF_METHODS, "device"):
        raise InputError(f"{asked[0]} is for methods; {what} is trained with its own settings. Leave it out.")
    once = canaries.images_once(config, options.canaries, confidence=confidence, seed=seed, progress=progress)
    return Answer(once, lambda: print_lines(once.lines()), code=int(once.violation))


def print_audited(audited: Audited) -> None:
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
        separation, proven = result.separation, audited.proven_mu
        implied, exact = audited.implied_epsilon, audited.exact_mu
        also = "" if implied is None else f"; if the law is Gaussian, that is epsilon >= {implied:.4f}"
        if exact is not None:
            also += f"; of what these neighbors can show at all, {exact:.4f}: {share_text(separation.mu_lower, exact)}"
        lines.append(
            f"{SHARE}: {share_text(separation.mu_lower, proven)} (audited mu >= {separation.mu_lower:.4f} of proven "
            f"{proven:.4f} standard deviations, at a false-positive rate of {separation.fpr_high:.4g}{also})"
        )
        lines.append(f"{SHARE_MEANS}.")
    lines.append(
        f"confidence {result.confidence:g}; cap at this number of runs: {result.cap:.2f}; 'infinite' is never measured"
    )
    print_lines([*lines, *(f"note: {note}" for note in case.notes), audited.verdict])


def run_of(what: str | Path) -> Path | None:
    """Return the folder of a run; None for the name of a method, or a config."""
    return Path(what) if RunFolder(Path(what)).config.is_file() else None


def nothing_to_audit(what: str | Path) -> str | None:
    """Return in one sentence why a method, or the method of a run, has no guarantee to audit; None if it has one."""
    from idpgan.trainer import load_config

    run = run_of(what)
    name = load_config(RunFolder.open(run).config).method.name if run else str(what)
    return METHODS[name].nothing_to_audit if name in METHODS else None


def audit_entry(name: str) -> Entry:
    """Return how a method, publisher or mechanism is audited; refuse an unknown name, and one without a guarantee."""
    from idpgan.audit.cases import CASES
    from idpgan.config import nearest_hint

    if name in CASES and name not in METHODS:
        return CASES[name]
    if name not in METHODS:
        raise InputError(f"'{name}' is neither a run nor a method. {nearest_hint(name, {**CASES, **METHODS})}")
    if nothing := METHODS[name].nothing_to_audit:
        raise InputError(nothing)
    if METHODS[name].family == "publisher":
        from idpgan.publish.plan import load_publisher

        if (audit := load_publisher(name).audit) is not None:
            return audit
    entry: Entry = load_audit(name)
    return entry


def method_case(name: str, request: Request) -> AuditCase:
    """Return the case of a method, a publisher or a mechanism.

    Raises:
        InputError: If the name is unknown, the method has no guarantee, or does not take what was asked.
    """
    return audit_entry(name).case(name, request)


def run_case(path: Path) -> AuditCase:
    """Return the case of what a run released of its private images.

    Raises:
        InputError: If the folder is not a run, its method has no guarantee, or its release was changed.
    """
    from idpgan.audit.entry import RunFacts
    from idpgan.data.load import known_shape
    from idpgan.kinds import KINDS
    from idpgan.release.statement import PRIVACY
    from idpgan.release.verify import open_release
    from idpgan.trainer import load_config
    from idpgan.training.plan import plan_run

    run = RunFolder.open(path)
    config = load_config(run.config)
    make = audit_entry(config.method.name).of_run
    if make is None:
        raise InputError(f"runs of '{config.method.name}' cannot be audited. Audit the method: give its name.")
    if not (run.release / PRIVACY).is_file():  # settings and data size define the case
        shape = known_shape(config.data)
        delta = plan_run(config, shape).delta
        facts = RunFacts(shape.image_shape, len(shape.classes), shape.num_private, delta, None, run.prepared)
        return make(config, facts)
    release = open_release(run.release, KINDS)
    described, stated = release.artifact.describe(), release.stated
    channels, height, width = described["image_shape"]
    facts = RunFacts(
        image_shape=(channels, height, width),
        num_classes=len(described["classes"]),
        num_private=stated.num_private,
        delta=stated.delta,
        claimed=stated.report.claimed,
        prepared=run.prepared,
    )
    return make(config, facts)


def case_of(what: str, options: AuditOptions) -> AuditCase:
    """Return the case of a run with its own settings, or of a method with the given options.

    Raises:
        InputError: As `run_case` and `method_case`, or if something is asked that does not go with it.
    """
    from idpgan.audit.entry import Request
    from idpgan.privacy.guarantee import parse_unit

    run, unfit = run_of(what), given(options, *_OF_METHODS)
    if run is not None:
        if unfit:
            raise InputError(f"{unfit[0]} is for methods; {run} is a run and is audited with its own settings.")
        return run_case(run)
    if options.release:
        raise InputError(f"--release is for runs, and {what} is none.")
    unit = None if options.unit is None else parse_unit(options.unit)
    if options.epsilon is None:
        method_case(what, Request(1.0))  # an unknown name is reported first
        raise InputError(f"--epsilon is missing: say what '{what}' is asked to keep to, for example --epsilon 1.")
    return method_case(what, Request(options.epsilon, options.delta, unit, pair=options.pair))


def play(what: str, options: AuditOptions, progress: Progress = silent) -> Audited:
    """Play the case of a run or a method.

    Raises:
        InputError: As `case_of` and `AuditCase.run`, or if the result could not be written.
    """
    from idpgan.release.folder import check_output

    if run := run_of(what):
        if options.release:
            check_release(run)
        path = RunFolder.open(run).audit
        check_output(path, FORMAT, option="the result")
        check_writable(path)
    case, device = case_of(what, options), resolve_device(options.device, "--device")
    return case.run(options.runs, confidence=options.confidence, seed=options.seed, device=device, progress=progress)


def write_audit(run: Path, audited: Audited) -> Path:
    """Write a run's audit.json; return where."""
    path = RunFolder.open(run).audit
    write_private_json(path, {"format": FORMAT, "data_free": True, **audited.to_json()})
    return path


def check_release(run: Path) -> Verification:
    """Verify a run's release and return the result; refuse a missing or inconsistent one, naming the first problem."""
    from idpgan.kinds import verify

    folder = RunFolder.open(run).release
    verification = verify(folder)
    for link in (folder, *map(folder.joinpath, verification.links)):
        if link.is_symlink():
            raise InputError(f"{link} is a symbolic link, and nothing is written through one.")
    if not verification.consistent:
        raise InputError(
            f"{folder} does not verify, so no audited value is written into it: {verification.problems[0]} If it was "
            f"left so by a crash, remove it: idpgan train --resume {pasted(run)} writes it again."
        )
    return verification


def write_into_release(run: Path, audited: Audited) -> None:
    """Put the audited value into a run's privacy.json and card.

    The release is written anew from the very files that were verified, and replaced as a whole.

    Raises:
        InputError: If the release does not verify, or the audit refutes what it says.
    """
    from idpgan.audit.cases import doubt
    from idpgan.release.folder import CARD, card_text, seal

    if audited.violation:
        raise InputError(
            "The audit exceeds the proven epsilon, so nothing was written into the release. "
            f"{doubt(audited.result.confidence)} If it stays, withdraw the release."
        )
    folder = RunFolder.open(run)
    with folder.locked():
        remove_dead(folder.path, folder.release.name)
        verification = check_release(run)
        artifact, settings = verification.artifact, verification.settings
        if artifact is None or settings is None:
            raise TypeError("a release that verifies has an artifact and settings.")
        statement = verification.stated.but(report=dataclasses.replace(verification.report, audited=audited.guarantee))
        before, after = (
            card_text(stated, artifact, settings).split("\n") for stated in (verification.stated, statement)
        )
        rows = dict(zip(before, after, strict=True))  # one row differs; the rest keeps its words
        card = "\n".join(rows.get(line, line) for line in verification.files[CARD].decode().split("\n"))
        with whole_folder(folder.release) as part:
            for name, content in verification.files.items():
                if name != CARD:
                    (part / name).parent.mkdir(exist_ok=True)
                    write_bytes_atomic(part / name, content)
            seal(part, statement, artifact, card)
