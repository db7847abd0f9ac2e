"""``idpgan report``: what is known of a run or a publication, gathered into one page for the curator.

The page shows real private images beside generated ones. They are read without a charge, as `idpgan attack` and
`idpgan evaluate` read them: what is on the page is for the curator only. Nothing else private is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from idpgan.data.images import to_uint8
from idpgan.data.load import DataShape, Sizes, describe, load
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, check_writable, parse_json, read_plain, write_text_atomic
from idpgan.jobs import attack, audit, evaluate
from idpgan.jobs.report_publication import publication_page
from idpgan.jobs.train import load_config
from idpgan.jobs.verify import KINDS
from idpgan.methods import METHODS
from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES, WEIGHTS, load_generator
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.books import Books, count
from idpgan.privacy.guarantee import Guarantee, PrivacyReport
from idpgan.progress import Progress, silent
from idpgan.release.artifact import Artifact
from idpgan.release.folder import PRIVACY
from idpgan.release.outputs import refuse_closed
from idpgan.release.received import Stated, describe_release, read_privacy
from idpgan.report.epsilons import Spending, alarm, delta_text, epsilon_text, figures, ledger_part, why
from idpgan.report.measured import attack_part, audit_part, curves_part, evaluation_part
from idpgan.report.page import FORMAT, Gallery, Page, Part, by_class, render
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig
from idpgan.training.plan import RunPlan, plan_run
from idpgan.training.stats import read_stats

_MOST_BYTES = 1 << 27  # of a result file
_HEAD_BYTES = 1000  # of a page, in which its format stands
_SHOWN_CLASSES = 16
_OTHER_VERSION = (KeyError, TypeError, ValueError, IndexError, AttributeError)  # what a foreign result file may raise


def report(source: Path, data_root: Path | None = None, progress: Progress = silent) -> Path:
    """Write the report of a run or a publication; return where.

    Args:
        source: A run folder, or the output folder of `idpgan publish`.
        data_root: Where the run's data set lies now; None = where it lay.
        progress: Told how far the images are read.

    Raises:
        InputError: If it is neither, or its release cannot be read, or something else lies where the report is to be.
    """
    if (source / "config.toml").is_file():
        run = RunFolder.open(source)
        path, make = run.report, lambda: _run_page(run, data_root, progress)
    elif (source / "curator" / "report.json").is_file():
        if data_root is not None:
            raise InputError(f"--data-root is for runs: the report of {source} reads nothing but that folder.")
        path, make = source / "curator" / "report.html", lambda: publication_page(source)
    else:
        raise InputError(
            f"{source} is neither a run nor the output of `idpgan publish`: it holds neither config.toml nor "
            "curator/report.json. What was given away alone has no report: see its README.md, and `idpgan verify`."
        )
    refuse_closed(path, f"the report {path}")  # nothing but an earlier report is written over
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} is no plain file. Move it away.")
    if path.exists() and f'content="{FORMAT}"'.encode() not in path.read_bytes()[:_HEAD_BYTES]:
        raise InputError(f"{path} exists and is no report of this version of idpgan. Move it away.")
    check_writable(path)
    write_text_atomic(path, render(make()), mode=PRIVATE_FILE)
    return path


@dataclass(frozen=True)
class _Known:
    """What the files of a run say, before anything is written about it."""

    run: RunFolder
    config: RunConfig
    stated: Stated | None  # of the release; None before there is one
    artifact: Artifact | None
    books: Books | None  # None for a copy without state/
    audited: Mapping[str, Any] | None
    shape: DataShape | None

    @property
    def name(self) -> str:
        """Of the run, as a command takes it."""
        return shlex.quote(str(self.run.path))

    @functools.cached_property
    def plan(self) -> RunPlan:
        """Of the run, for neighbors, delta and budget; what it would charge may need data that are not here."""
        stated = 1 if self.stated is None else self.stated.document["num_private"]
        shape = self.shape or DataShape(Sizes(0, stated, 0, 0), (1, 1, 1), self.classes)
        plan: RunPlan = plan_run(self.config, shape)
        return plan

    @property
    def described(self) -> Mapping[str, Any]:
        """Of the product; empty before the release."""
        return {} if self.artifact is None else self.artifact.describe()

    @property
    def classes(self) -> tuple[str, ...]:
        """Of the data."""
        return tuple(self.described.get("classes") or (self.shape.classes if self.shape else ()))

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """(C, H, W)."""
        found = self.described.get("image_shape") or (self.shape.image_shape if self.shape else None)
        return None if found is None else tuple(found)


def _run_page(run: RunFolder, data_root: Path | None, progress: Progress) -> Page:
    known = _gathered(run, data_root)
    told = _report_of(known)
    cap = None if known.audited is None else known.audited.get("result", {}).get("cap")
    config, released = known.config, known.stated
    subtitle = f"Run {run.path.resolve().name}"
    words = _unreleased(known) if told is None else why(told, cap if isinstance(cap, int | float) else None)
    return Page(
        title=f"{config.method.name} on {config.data.name}",
        subtitle=subtitle + (f", {released.document['num_private']:,} private images" if released else ""),
        alarm=() if told is None else alarm(told),
        figures=() if told is None else figures(told),
        why=words,
        parts=(
            _about(known),
            _ledger(known),
            _images(known, progress),
            _curves(known),
            _result(known, "evaluation", evaluate.FORMAT, evaluation_part, ("metrics", "Metrics"), "evaluate"),
            _attacks(known),
            _audit(known),
            _environment(known),
        ),
    )


def _gathered(run: RunFolder, data_root: Path | None) -> _Known:
    config = load_config(run.config, [] if data_root is None else [f"data.root={json.dumps(str(data_root))}"])
    stated = artifact = books = None
    if (run.release / PRIVACY).is_file():
        stated = read_privacy(run.release / PRIVACY)
        artifact, _, _ = describe_release(read_plain(run.release / CONFIG, MOST_TEXT_BYTES), KINDS)
    if run.ledger.is_file():
        books = Books.parse(read_plain(run.ledger, _MOST_BYTES), run.ledger)
    shape = None
    if stated is None:  # else the release says what is public of the data
        with contextlib.suppress(InputError):
            shape = describe(config.data)
    audited, _ = _read(run.audit, audit.FORMAT)
    return _Known(run, config, stated, artifact, books, audited, shape)


def _read(path: Path, form: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return the content of a result file, or why there is none; neither where there is no file."""
    if not path.is_file():
        return None, None
    try:
        found = parse_json(read_plain(path, _MOST_BYTES))
    except ValueError as error:  # InputErrors too
        return None, f"{path.name} cannot be read ({error})."
    if not isinstance(found, dict) or found.get("format") != form:
        return None, f"{path.name} was written by another version of idpgan."
    return found, None


def _report_of(known: _Known) -> PrivacyReport | None:
    """Return the three numbers, the audited one from audit.json where the release does not state it."""
    if known.stated is None:
        return None
    told, found = known.stated.report, known.audited
    if told.audited is not None or found is None:
        return told
    try:
        result = found["result"]
        basis = f"audit.json, confidence {result['confidence']:g}; the release does not state it yet"
        bound = Guarantee(
            float(result["epsilon_lower"]), float(result["delta"]), told.proven.unit, told.proven.relation, basis
        )
    except _OTHER_VERSION:
        return told
    return dataclasses.replace(told, audited=bound)


def _unreleased(known: _Known) -> tuple[str, ...]:
    """Say what stands on the books of a run that has released nothing."""
    go_on = f"Continue it with: idpgan train --resume {known.name}"
    if known.books is None:
        return (f"This run has released nothing yet, and its ledger is not here. {go_on}",)
    delta = _delta(known)
    terms, entries = known.books.terms, known.books.entries
    if not entries:
        return (f"This run has released nothing yet, and nothing was charged. {go_on}",)
    return (
        "This run has released nothing yet. Charged so far: epsilon "
        f"{epsilon_text(compose_epsilon(entries, delta))} at δ = {delta_text(delta)}, unit "
        f"{terms.unit}, {terms.relation}. {go_on}",
    )


def _delta(known: _Known) -> float:
    if known.stated is not None:
        return float(known.stated.document["delta"])
    target = None if known.books is None else known.books.terms.target
    if known.shape is not None:
        return known.plan.delta
    return target.delta if target is not None else known.config.privacy.delta or 0.0


# The parts ------------------------------------------------------------------------------------------------------


def _about(known: _Known) -> Part:
    """Say what was trained on what."""
    config, stated = known.config, known.stated
    info = METHODS[config.method.name]
    sound = {True: "sound: proven never exceeds what is asked for", False: "NOT sound", None: "promises nothing"}
    facts = [("Method", f"{config.method.name} ({info.family}; {sound[info.sound]})")]
    where = "" if config.data.root is None else f", read from {config.data.root}"
    facts.append(("Data", f"{config.data.name}{where}"))
    if stated is not None:
        document = stated.document
        facts.append(("Private images", f"N = {document['num_private']:,} (public)"))
        facts.append(
            ("Public images", f"{document['num_public']:,}" + ("; no protection at all" * bool(document["num_public"])))
        )
    elif known.shape is not None:
        facts.append(("Private images", f"N = {known.shape.num_private:,} (public)"))
    if known.image_shape is not None:
        channels, height, width = known.image_shape
        facts.append(("Size", f"{height} x {width} pixels, {'grey' if channels == 1 else 'color'}"))
    shown, more = ", ".join(known.classes[:_SHOWN_CLASSES]), ", ..." * (len(known.classes) > _SHOWN_CLASSES)
    facts.append(("Classes", f"{len(known.classes)}: {shown}{more}" if known.classes else "none: unlabeled"))
    if config.data.num_people is not None:
        facts.append(("People", f"{config.data.num_people:,} declared"))
    facts.append(("Holdout", f"{config.data.holdout_share:g} of the images, split by {config.data.split_by}"))
    facts.append(("Protected unit", f"one {known.plan.unit}, {known.plan.relation}"))
    kind = "nothing yet" if known.artifact is None else f"a {known.artifact.kind}"
    facts.append(("Released", kind))
    facts.append(("Steps", f"{config.training.steps:,} asked for"))
    log = known.run.log.read_text("utf-8", "replace") if known.run.log.is_file() else ""
    if nulls := sum(line.startswith("null record: ") for line in log.splitlines()):
        facts.append(("Null records", f"{nulls:,} files could not be used and count in N (log.txt has the reasons)"))
    public = () if stated is None else stated.report.public_assumptions
    return Part(
        "about",
        "What was trained on what",
        facts=tuple(facts),
        notes=tuple(f"Taken as public: {each}." for each in public),
    )


def _ledger(known: _Known) -> Part:
    if known.books is None and known.stated is None:
        return Part("ledger", "Budget ledger", missing="state/ is not here, and no release that lists the charges.")
    books, stated = known.books, known.stated
    events = books.entries if books is not None else list(stated.events) if stated is not None else []
    target = known.plan.budget
    words = None if target is None else f"epsilon {target.epsilon:g} at δ = {delta_text(target.delta)}"
    prepared = None if books is None or books.committed is None else books.committed.position
    repeated = 0 if books is None else count(books.repeated)
    source = "state/ledger.json" if books is not None else "release/privacy.json, since state/ is not here"
    spending = Spending(events, _delta(known), words, prepared, repeated, source)
    return ledger_part(spending, None if stated is None else stated.report.proven)


def _images(known: _Known, progress: Progress) -> Part:
    """Show what the released generator draws beside real private images."""
    heading, run = "Images", known.run
    if known.artifact is not None and known.artifact.kind != "generator":
        return Part("images", heading, text=("A classifier draws no images.",))
    galleries, missing, command = [], None, None
    if known.artifact is None or not (run.release / WEIGHTS).is_file():
        missing, command = "Nothing is released yet.", f"idpgan train --resume {known.name}"
    else:
        galleries.append(_drawn(known))
    real, why_not = _real(known, progress)
    if real is not None:
        galleries.append(real)
    more = () if len(known.classes) <= _SHOWN_CLASSES else (f"The first {_SHOWN_CLASSES} classes.",)
    return Part(
        "images",
        heading,
        galleries=tuple(galleries),
        missing=missing,
        command=command,
        notes=(*more, *(() if why_not is None else (why_not,))),
    )


def _drawn(known: _Known) -> Gallery:
    generator = load_generator(known.run.path)
    shown = min(generator.num_classes, _SHOWN_CLASSES)
    labels = torch.arange(shown * (8 if shown > 4 else 16)) % shown if shown else None
    images = to_uint8(generator.sample(48 if labels is None else len(labels), labels=labels, seed=0))
    pictures = by_class(images, labels, generator.classes, what="generated images")
    private = known.stated is not None and known.stated.report.private
    covered = "covered by the proven epsilon" if private else "NOT private"
    return Gallery("Generated", tuple(pictures), f"Drawn from the released generator with seed 0: {covered}.")


def _real(known: _Known, progress: Progress) -> tuple[Gallery | None, str | None]:
    """Read private images, uncharged, for the curator; return them, or why they are not shown."""
    missing = "The private images are not shown, since they are no longer where they lay"
    try:
        split = load(known.config.data, progress)
    except InputError as error:
        return None, f"{missing} ({error}) If they lie elsewhere: idpgan report {known.name} --data-root DIR"
    expected = None if known.books is None else known.books.fingerprint.get("private data")
    if expected is not None and expected != split.digest:
        return None, (
            "The private images are not shown, since those that lie there now are not those of the run. Name the right "
            f"ones: idpgan report {known.name} --data-root DIR"
        )
    private = split.private.existing()
    pictures = by_class(private.images, private.labels, private.classes, what="real private images")
    unchecked = "" if expected is not None else " Without state/ it is not known that these are the run's own data."
    caption = f"The first ones, read for this page without a charge.{unchecked}"
    return Gallery("Real: private, nothing protects them here", tuple(pictures), caption, private=True), None


def _curves(known: _Known) -> Part:
    name, heading = "curves", "Training curves"
    if not known.run.stats.is_file():
        return Part(name, heading, missing="There is no stats.jsonl: no step was taken.")
    try:
        rows = read_stats(known.run.stats)
        if not rows:
            return Part(name, heading, missing="stats.jsonl is empty: no step was taken.")
        target = known.plan.budget
        return curves_part(rows, None if target is None else target.epsilon)
    except (InputError, *_OTHER_VERSION) as error:
        return Part(name, heading, missing=f"stats.jsonl cannot be drawn ({error}).")


def _result(
    known: _Known,
    attribute: str,
    form: str,
    make: Callable[[Mapping[str, Any]], Part],
    titles: tuple[str, str],
    command: str,
) -> Part:
    """Return the part of one result file, or say which command makes it."""
    path = getattr(known.run, attribute)
    found, problem = _read(path, form)
    if found is not None:
        try:
            return make(found)
        except _OTHER_VERSION:
            problem = f"{path.name} was written by another version of idpgan."
    said = problem or f"There is no {path.name} yet."
    return Part(*titles, missing=f"{said} This command makes it:", command=f"idpgan {command} {known.name}")


def _attacks(known: _Known) -> Part:
    titles = ("attacks", "Membership inference")
    if not known.run.attack.is_file() and known.config.data.holdout_share == 0:
        return Part(
            *titles,
            missing="The run has no holdout: there are no images that it never saw to compare with. Train again with:",
            command=f"idpgan train {shlex.quote(str(known.run.config))} data.holdout_share=0.1",
        )
    return _result(known, "attack", attack.FORMAT, attack_part, titles, "attack")


def _audit(known: _Known) -> Part:
    titles, nothing = ("audit", "Audit"), METHODS[known.config.method.name].nothing_to_audit
    if nothing is not None and not known.run.audit.is_file():
        return Part(*titles, text=(f"{nothing[:1].upper()}{nothing[1:]}",))
    released = known.stated is not None and known.stated.report.audited is not None
    make = functools.partial(audit_part, released=released, command=f"idpgan audit {known.name} --release")
    return _result(known, "audit", audit.FORMAT, make, titles, "audit")


def _environment(known: _Known) -> Part:
    run, facts = known.run, []
    try:
        found = parse_json(read_plain(run.environment, _MOST_BYTES))
        versions, commit = found["versions"], found["git"]
        facts = [
            ("Versions", ", ".join([f"Python {found['python']}", *(f"{name} {v}" for name, v in versions.items())])),
            ("System", " ".join(map(str, found["platform"].values()))),
            ("Device", f"{found['device']} ({found['device_name']}), {found['threads']} thread(s)"),
            ("Commit", "unknown" if not commit else commit["commit"] + (", changed" if commit["changed"] else "")),
        ]
    except (OSError, *_OTHER_VERSION):
        pass
    settings = run.config.read_text("utf-8", "replace")
    missing = None if facts else "environment.json is missing or of another version."
    return Part("environment", "Environment and settings", facts=tuple(facts), missing=missing, settings=settings)
