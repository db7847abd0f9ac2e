"""``idpgan audit``: any method by name, or a finished run's own release with its own settings.

An audit of a run reads its config, and from `state/` only shapes and allocation. It constructs its neighbors and reads
no image. Its result is therefore as public as the settings are, and may stand in the release.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path

from idpgan.audit.cases import CASES, AuditCase, Audited, doubt
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.config import nearest_hint
from idpgan.data.load import known_shape
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.files import check_writable, pasted, whole_folder, write_bytes_atomic, write_private_json
from idpgan.host import own_state
from idpgan.jobs.options import ASKED, AuditOptions, given
from idpgan.kinds import KINDS, verify
from idpgan.methods import METHODS, load_audit
from idpgan.privacy.guarantee import parse_relation, parse_unit
from idpgan.progress import Progress, silent
from idpgan.publish.plan import load_publisher
from idpgan.ranks import ALONE, Ranks
from idpgan.release.folder import CARD, PRIVACY, card_text, remove_leftovers, seal
from idpgan.release.outputs import check_output
from idpgan.release.received import read_privacy
from idpgan.release.verify import Verification, open_release
from idpgan.run import RunFolder
from idpgan.trainer import load_config
from idpgan.training.distributed import agree_on, agreed, check_own_gpu
from idpgan.training.plan import plan_run

FORMAT = "idpgan audit 2"


def run_of(what: str | Path) -> Path | None:
    """Return the folder of a run; None for the name of a method, or a config."""
    return Path(what) if RunFolder(Path(what)).config.is_file() else None


def nothing_to_audit(what: str | Path) -> str | None:
    """Return in one sentence why a method, or the method of a run, has no guarantee to audit; None if it has one."""
    run = run_of(what)
    name = load_config(RunFolder.open(run).config).method.name if run else str(what)
    return METHODS[name].nothing_to_audit if name in METHODS else None


def audit_entry(name: str) -> Entry:
    """Return how a method, publisher or mechanism is audited; refuse an unknown name, and one without a guarantee."""
    if name in CASES and name not in METHODS:
        return CASES[name]
    if name not in METHODS:
        raise InputError(f"'{name}' is neither a run nor a method. {nearest_hint(name, {**CASES, **METHODS})}")
    if nothing := METHODS[name].nothing_to_audit:
        raise InputError(nothing)
    if METHODS[name].family == "publisher":
        return load_publisher(name).audit
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
    described, document = release.artifact.describe(), release.stated.document
    channels, height, width = described["image_shape"]
    facts = RunFacts(
        image_shape=(channels, height, width),
        num_classes=len(described["classes"]),
        num_private=document["num_private"],
        delta=document["delta"],
        claimed=release.stated.report.claimed,
        prepared=run.prepared,
    )
    return make(config, facts)


def case_of(what: str, options: AuditOptions) -> AuditCase:
    """Return the case of a run with its own settings, or of a method with the given options.

    Raises:
        InputError: As `run_case` and `method_case`, or if something is asked that does not go with it.
    """
    run, asked = run_of(what), given(options, *ASKED)
    if run is not None:
        if asked:
            raise InputError(f"{asked[0]} is for methods; {run} is a run and is audited with its own settings.")
        return run_case(run)
    if options.release:
        raise InputError(f"--release is for runs, and {what} is none.")
    unit = None if options.unit is None else parse_unit(options.unit)
    relation = None if options.relation is None else parse_relation(options.relation)
    if options.epsilon is None:
        method_case(what, Request(1.0))  # an unknown name is reported first
        raise InputError(f"--epsilon is missing: say what '{what}' is asked to keep to, for example --epsilon 1.")
    request = Request(options.epsilon, options.delta, unit, relation, options.pair, options.law, options.noise)
    return method_case(what, request)


@own_state()
def play(what: str, options: AuditOptions, progress: Progress = silent, ranks: Ranks = ALONE) -> Audited:
    """Play the case of a run or a method.

    ``ranks`` are the processes that share the runs, seen by rank 0; the others `follow`.

    Raises:
        InputError: As `case_of` and `AuditCase.run`, or if the result could not be written.
        LostRankError: If another process ends.
    """
    if run := run_of(what):
        if options.release:
            check_release(run)
        path = RunFolder.open(run).audit
        check_output(path, FORMAT, option="the result")
        check_writable(path)
    with ranks.order({"what": what, "options": asdict(options)}):
        return _play(what, options, progress, ranks)


def follow(ranks: Ranks) -> None:
    """Play this rank's share of the runs that rank 0 starts: nothing is written or shown here.

    The case of a run is built from its folder, which every rank must see.

    Raises:
        LostRankError: If rank 0 ends without a word; it has said why.
    """
    for asked in ranks.orders():
        _play(asked["what"], AuditOptions(**asked["options"]), silent, ranks)


def _play(what: str, options: AuditOptions, progress: Progress, ranks: Ranks) -> Audited:
    with agreed(ranks):
        case, device = case_of(what, options), resolve_device(options.device, "--device")
        check_own_gpu(device, ranks)
    agree_on("code, or another run,", json.dumps([case.proven.to_json(), case.pair.name]), ranks)
    return case.run(
        options.runs,
        confidence=options.confidence,
        seed=options.seed,
        threads=options.threads,
        device=device,
        progress=progress,
        ranks=ranks,
    )


def write_audit(run: Path, audited: Audited) -> Path:
    """Write a run's audit.json; return where."""
    path = RunFolder.open(run).audit
    write_private_json(path, {"format": FORMAT, "data_free": True, **audited.to_json()})
    return path


def check_release(run: Path) -> Verification:
    """Verify a run's release and return the result; refuse a missing or inconsistent one, naming the first problem."""
    folder = RunFolder.open(run).release
    if folder.is_symlink():
        raise InputError(f"{folder} is a symbolic link, and nothing is written through one.")
    found = verify(folder)
    if not found.consistent:
        raise InputError(
            f"{folder} does not verify, so no audited value is written into it: {found.problems[0]} If it was left so "
            f"by a crash, remove it: idpgan train --resume {pasted(run)} writes it again."
        )
    return found


def write_into_release(run: Path, audited: Audited) -> None:
    """Put the audited value into a run's privacy.json and card.

    The release is written anew from the very files that were verified, and replaced as a whole.

    Raises:
        InputError: If the release does not verify, or the audit refutes what it says.
    """
    if audited.violation:
        raise InputError(
            "The audit exceeds the proven epsilon, so nothing was written into the release. "
            f"{doubt(audited.result.confidence)} If it stays, withdraw the release."
        )
    folder = RunFolder.open(run)
    with folder.locked():
        remove_leftovers(folder.release)
        found = check_release(run)
        stated = read_privacy(folder.release / PRIVACY)
        if found.artifact is None or found.settings is None:
            raise TypeError("a release that verifies has an artifact and settings.")
        document = {name: value for name, value in stated.document.items() if name != "files"}
        report = dataclasses.replace(found.report, audited=audited.guarantee)
        document["report"] = report.to_json()
        before, after = (
            card_text(each, document, found.artifact, found.settings).split("\n") for each in (found.report, report)
        )
        rows = dict(zip(before, after, strict=True))  # one row differs; the rest keeps its words
        card = "\n".join(rows.get(line, line) for line in found.files[CARD].decode().split("\n"))
        with whole_folder(folder.release) as part:
            for name, content in found.files.items():
                if name != CARD:
                    (part / name).parent.mkdir(exist_ok=True)
                    write_bytes_atomic(part / name, content)
            seal(part, document, found.artifact, card)
