"""The page about a run: what its files say, what it spent, its images, and what was measured of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from idpgan.attacks.distances import nearest_neighbors
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import DataShape, Sizes, describe, load_again
from idpgan.errors import InputError
from idpgan.files import WEIGHTS, parse_json, pasted, read_plain
from idpgan.methods import METHODS
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.books import Books, count
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport
from idpgan.progress import Progress
from idpgan.release.artifact import Artifact, Kind
from idpgan.release.generator import load_generator
from idpgan.release.statement import PRIVACY, Statement
from idpgan.release.verify import open_release
from idpgan.report import epsilons, measured, page
from idpgan.report.epsilons import delta_text, epsilon_text
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig
from idpgan.training.plan import RunPlan, plan_run
from idpgan.training.stats import read_stats

_SHOWN_CLASSES = 16
_PAIRS, _COLUMNS = 16, 4  # generated images that are shown beside their nearest, and pairs side by side
_OTHER_VERSION = (KeyError, TypeError, ValueError, IndexError, AttributeError)  # raised by foreign files
_Result = tuple[page.Content | None, str | None]


@dataclass(frozen=True)
class Known:
    """What the files of a run say.

    Attributes:
        run: The folder.
        config: Its settings.
        stated: What the release states; None before there is one.
        artifact: What the release describes; likewise.
        books: The ledger; None for a copy without state/.
        shape: What is public of the data, where no release says so.
        results: By name, the content of a result file, or why it cannot be used; neither where the file is missing.
    """

    run: RunFolder
    config: RunConfig
    stated: Statement | None
    artifact: Artifact | None
    books: Books | None
    shape: DataShape | None
    results: Mapping[str, _Result]

    @property
    def name(self) -> str:
        """Of the run, as a command takes it."""
        return shlex.quote(str(self.run.path))

    @property
    def classes(self) -> tuple[str, ...]:
        """Of the data."""
        described = {} if self.artifact is None else self.artifact.describe()
        return tuple(described.get("classes") or (self.shape.classes if self.shape else ()))

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(C, H, W)."""
        described = {} if self.artifact is None else self.artifact.describe()
        shape = described.get("image_shape") or (self.shape.image_shape if self.shape else None)
        return None if shape is None else (shape[0], shape[1], shape[2])

    @functools.cached_property
    def plan(self) -> RunPlan:
        """Of the run, for neighbors, delta and budget; its charges may need data that are not here."""
        stated = 1 if self.stated is None else self.stated.num_private
        shape = self.shape or DataShape(Sizes(0, stated, 0, 0), (1, 1, 1), self.classes)
        plan: RunPlan = plan_run(self.config, shape)
        return plan

    @property
    def joint_events(self) -> tuple[Event, ...]:
        """All charges that a receiver of the release profits from."""
        return () if self.stated is None else self.plan.joint_events(self.stated.events)

    @property
    def delta(self) -> float:
        """Where epsilon is stated, as far as that is known."""
        if self.stated is not None:
            return float(self.stated.delta)
        if self.shape is not None:
            return self.plan.delta
        target = None if self.books is None else self.books.terms.target
        return target.delta if target is not None else self.config.privacy.delta or 0.0

    @property
    def report(self) -> PrivacyReport | None:
        """The three numbers, the audited one from audit.json where the release does not state it."""
        if self.stated is None:
            return None
        report, (audit, _) = self.stated.report, self.results["audit"]
        if report.audited is not None or audit is None:
            return report
        try:
            result, (unit, relation) = audit["result"], (report.proven.unit, report.proven.relation)
            basis = f"audit.json, confidence {result['confidence']:g}; the release does not state it yet"
            bound = Guarantee(float(result["epsilon_lower"]), float(result["delta"]), unit, relation, basis)
        except _OTHER_VERSION:
            return report
        return dataclasses.replace(report, audited=bound)


def gathered(run: RunFolder, config: RunConfig, kinds: Mapping[str, Kind], formats: Mapping[str, str]) -> Known:
    """Read what the files of a run say.

    Args:
        run: The folder.
        config: Its settings.
        kinds: How each kind of release is read.
        formats: Of each result file, by the name of its path in the run.

    Raises:
        InputError: If the release was changed, or the ledger cannot be read.
    """
    stated = artifact = books = shape = None
    if (run.release / PRIVACY).is_file():
        release = open_release(run.release, kinds)
        stated, artifact = release.stated, release.artifact
    else:  # no file states yet what is public about the data
        with contextlib.suppress(InputError):
            shape = describe(config.data)
    if run.ledger.is_file():
        books = Books.parse(read_plain(run.ledger, page.MOST_BYTES), run.ledger)
    results = {name: _read(getattr(run, name), form) for name, form in formats.items()}
    return Known(run, config, stated, artifact, books, shape, results)


def _read(path: Path, form: str) -> _Result:
    """Return the content of a result file, or why it cannot be used; neither where the file is missing."""
    if not path.is_file():
        return None, None
    try:
        content = parse_json(read_plain(path, page.MOST_BYTES))
    except ValueError as error:  # InputErrors too
        return None, f"{path.name} cannot be read ({error})."
    if not isinstance(content, dict) or content.get("format") != form:
        return None, f"{path.name} was written by another version of idpgan."
    return content, None


# The page ------------------------------------------------------------------------------------------------------------


def run_page(known: Known, progress: Progress) -> page.Content:
    """Return the page; real private images are read for it, uncharged, for the curator."""
    privacy, config, stated = known.report, known.config, known.stated
    audit, _ = known.results["audit"]
    cap = None if audit is None else audit.get("result", {}).get("cap")
    num = f", {stated.num_private:,} private images" if stated else ""
    parts = [
        _about(known),
        *([epsilons.risk_part(stated.report, known.joint_events)] if stated else []),
        _ledger(known),
    ]
    parts += [
        {"name": name, "heading": heading, **part}
        for name, heading, part in (
            ("images", "Images", _images(known, progress)),
            ("curves", "Training curves", _curves(known)),
            ("metrics", "Metrics", _result(known, "evaluation", "evaluate", measured.evaluation_part)),
            ("attacks", "Membership inference", _attacks(known)),
            ("audit", "Audit", _audit(known)),
            ("environment", "Environment and settings", _environment(known)),
        )
    ]
    head = {"title": f"{config.method.name} on {config.data.name}", "parts": parts}
    head["subtitle"] = f"Run {known.run.path.resolve().name}{num}"
    if privacy is None:
        return head | {"why": [_unreleased(known)]}
    why = epsilons.why(privacy, cap if isinstance(cap, int | float) else None)
    return head | {"alarm": epsilons.alarm(privacy), "figures": epsilons.figures(privacy), "why": why}


def _unreleased(known: Known) -> str:
    """Say what a run that has released nothing has charged."""
    if known.books is None:
        spent = ", and its ledger is not here"
    elif not known.books.entries:
        spent = ", and nothing was charged"
    else:
        terms, epsilon = known.books.terms, epsilon_text(compose_epsilon(known.books.entries, known.delta))
        spent = (
            f". Charged so far: epsilon {epsilon} at δ = {delta_text(known.delta)}, unit {terms.unit}, {terms.relation}"
        )
    return f"This run has released nothing yet{spent}. Continue it with: idpgan train --resume {pasted(known.name)}"


def _about(known: Known) -> page.Content:
    """Say which method was trained on which data."""
    config, data, stated, classes = known.config, known.config.data, known.stated, known.classes
    info = METHODS[config.method.name]
    where = "" if data.root is None else f", read from {data.root}"
    sound = epsilons.SOUND[info.sound]
    facts = [("Method", f"{config.method.name} ({info.family}; {sound})"), ("Data", f"{data.name}{where}")]
    if stated is not None:
        num, public = stated.num_private, stated.num_public
        facts.append(("Private images", f"N = {num:,} (public)"))
        facts.append(("Public images", f"{public:,}" + ("; no protection at all" if public else "")))
    elif known.shape is not None:
        facts.append(("Private images", f"N = {known.shape.num_private:,} (public)"))
    if known.image_shape is not None:
        facts.append(("Size", page.size_text(known.image_shape)))
    names = ", ".join(classes[:_SHOWN_CLASSES]) + ", ..." * (len(classes) > _SHOWN_CLASSES)
    facts.append(("Classes", f"{len(classes)}: {names}" if classes else "none: unlabeled"))
    if data.num_people is not None:
        facts.append(("People", f"{data.num_people:,} declared"))
    facts += [
        ("Holdout", f"{100 * data.holdout_share:g} % of the images, split by {data.split_by}"),
        ("Protected unit", f"one {known.plan.unit}, {known.plan.relation}"),
        ("Released", "nothing yet" if known.artifact is None else f"a {known.artifact.kind}"),
        ("Steps", f"{config.training.steps:,} asked for"),
    ]
    log = known.run.log.read_text("utf-8", "replace") if known.run.log.is_file() else ""
    if nulls := _null_records(log):
        facts.append(("Null records", f"{nulls} files could not be used and count in N (log.txt has the reasons)"))
    assumptions = () if stated is None else stated.report.public_assumptions
    notes = [f"Taken as public: {assumption}." for assumption in assumptions]
    return {"name": "about", "heading": "What was trained on what", "facts": facts, "notes": notes}


def _null_records(log: str) -> str:
    """Return how many null records a log.txt counts; empty for none. It names the first ones, and then says how many.

    The reasons of the first ones hold names of files, so only a line of its own can say it.
    """
    totals = re.findall(r"^null records: ([0-9,]+) in all", log, re.MULTILINE)
    named = len(re.findall(r"^null record: ", log, re.MULTILINE))
    return str(totals[-1]) if totals else f"{named:,}" * bool(named)


def _ledger(known: Known) -> page.Content:
    """Say what was charged: by the ledger, or else by the release."""
    books, stated, target = known.books, known.stated, known.plan.budget
    if books is not None:
        events, source = books.entries, "state/ledger.json"
    elif stated is not None:
        events, source = list(stated.events), "release/privacy.json, since state/ is not here"
    else:
        missing = "state/ is not here, and no release that lists the charges."
        return {"name": "ledger", "heading": "Budget ledger", "missing": missing}
    repeated, notes = 0 if books is None else count(books.repeated), [f"Read from {source}."]
    if repeated:
        notes.insert(0, f"{repeated:,} charges paid for steps that were taken again after an interruption.")
    return epsilons.ledger_part(
        events,
        known.delta,
        None if stated is None else stated.report.proven,
        text="The run has no limit."
        if target is None
        else f"The run may spend epsilon {target.epsilon:g} at δ = {delta_text(target.delta)}.",
        notes=notes,
        prepared=None if books is None or books.committed is None else books.committed.position,
    )


def _images(known: Known, progress: Progress) -> page.Content:
    """Show what the released generator draws beside real private images."""
    if known.artifact is not None and known.artifact.kind != "generator":
        return {"text": ["A classifier draws no images."]}
    galleries, images, missing = list[page.Content](), None, dict[str, str]()
    if known.artifact is None or not (known.run.release / WEIGHTS).is_file():
        missing = {"missing": "Nothing is released yet.", "command": f"idpgan train --resume {pasted(known.name)}"}
    elif (module := known.config.model.generator) in known.config.own_code:
        command = f"idpgan sample {pasted(known.name)} --module {module} --num 64 --out DIR"
        words = f"The generator is code of your own, {module}, which a report does not run."
        missing = {"missing": words, "command": command}
    else:
        images, gallery = _generated(known)
        galleries.append(gallery)
    notes = [] if len(known.classes) <= _SHOWN_CLASSES else [f"The first {_SHOWN_CLASSES} classes."]
    private = _private(known, progress)
    if isinstance(private, str):
        notes.append(private)
    else:
        galleries += [_first(private, known), *([] if images is None else [_nearest(images[:_PAIRS], private)])]
    return {"galleries": galleries, "notes": notes, **missing}


def _generated(known: Known) -> tuple[Tensor, page.Content]:
    """Draw from the released generator: uint8 (n, C, H, W), and the gallery of them."""
    generator = load_generator(known.run.path)
    shown = min(generator.num_classes, _SHOWN_CLASSES)
    labels = torch.arange(shown * (8 if shown > 4 else 16)) % shown if shown else None
    names = None if labels is None else [generator.classes[index] for index in labels.tolist()]
    images = to_uint8(generator.sample(48 if names is None else len(names), labels=names, seed=0))
    private = known.stated is not None and known.stated.report.private
    covered = "covered by the proven epsilon" if private else "NOT private"
    caption = f"Drawn from the released generator with seed 0: {covered}."
    if (truncation := generator.config.drawn.truncation) is not None:
        caption += f" To be looked at, with {truncation:g} of the spread (model.drawing)."
    pictures = page.by_class(images, labels, generator.classes, what="generated images")
    return images, {"heading": "Generated", "pictures": pictures, "caption": caption}


def _private(known: Known, progress: Progress) -> Images | str:
    """Read private images, uncharged, for the curator; return them, or why they are not shown."""
    try:
        split = load_again(known.config.data, progress)
    except InputError as error:
        return (
            f"The private images are not shown, since they are no longer where they lay ({error}) If they lie "
            f"elsewhere: idpgan report {known.name} --data-root DIR"
        )
    expected = None if known.books is None else known.books.fingerprint.get("private data")
    if expected is not None and expected != split.digest:
        return (
            "The private images are not shown, since those that lie there now are not those of the run. Name the right "
            f"ones: idpgan report {known.name} --data-root DIR"
        )
    return split.private.existing()


def _first(private: Images, known: Known) -> page.Content:
    """Show the first private images."""
    checked = known.books is not None and "private data" in known.books.fingerprint
    unchecked = "" if checked else " Without state/ it is not known that these are the run's own data."
    return {
        "heading": "Real: private, nothing protects them here",
        "pictures": page.by_class(private.images, private.labels, private.classes, what="real private images"),
        "caption": f"The first ones, read for this page without a charge.{unchecked}",
        "private": True,
    }


def _nearest(generated: Tensor, private: Images) -> page.Content:
    """Show generated images, each beside the private image that it is nearest to."""
    squares, where = nearest_neighbors(generated, private.images, 1)
    pairs = torch.stack([generated, private.images[where[:, 0]]], 1).flatten(0, 1)
    levels = 127.5 * squares[:, 0].sqrt()  # pixels there are -1 to 1
    alt = f"{len(generated)} generated images, each left of its nearest real private image"
    caption = (
        f"The first {len(generated)} generated images, each with the private image of the least root mean square "
        f"difference at its right: {float(levels.min()):.1f} to {float(levels.max()):.1f} of 255 grey levels. A "
        "method that learns images by heart shows pairs that are alike; whether they are too alike says idpgan attack."
    )
    pictures = [page.lay_out(pairs, 2 * _COLUMNS, alt=alt)]
    return {"heading": "Generated beside the nearest real", "pictures": pictures, "caption": caption, "private": True}


def _curves(known: Known) -> page.Content:
    """Draw stats.jsonl."""
    if not known.run.stats.is_file():
        return {"missing": "There is no stats.jsonl: no step was taken."}
    try:
        rows, target = read_stats(known.run.stats), known.plan.budget
        if rows:
            return measured.curves_part(rows, None if target is None else target.epsilon)
    except (InputError, *_OTHER_VERSION) as error:
        return {"missing": f"stats.jsonl cannot be drawn ({error})."}
    return {"missing": "stats.jsonl is empty: no step was taken."}


def _result(known: Known, result: str, command: str, make: Callable[[page.Content], page.Content]) -> page.Content:
    """Return the part of one result file, or say which command makes it."""
    content, problem = known.results[result]
    file = getattr(known.run, result).name
    if content is not None:
        try:
            return make(content)
        except _OTHER_VERSION:
            problem = f"{file} was written by another version of idpgan."
    missing = f"{problem or f'There is no {file} yet.'} This command makes it:"
    return {"missing": missing, "command": f"idpgan {command} {known.name}"}


def _attacks(known: Known) -> page.Content:
    """Return the results of attacks, which need a holdout."""
    if not known.run.attack.is_file() and known.config.data.holdout_share == 0:
        return {
            "missing": "The run has no holdout: there are no images that it never saw to compare with. Train again "
            "with:",
            "command": f"idpgan train {shlex.quote(str(known.run.config))} data.holdout_share=0.1",
        }
    stated = known.stated
    proven = None if stated is None else epsilons.proven_of(stated.report, known.joint_events)
    return _result(known, "attack", "attack", lambda content: measured.attack_part(content, proven))


def _audit(known: Known) -> page.Content:
    """Return the result of an audit, or why there is nothing to audit."""
    nothing = METHODS[known.config.method.name].nothing_to_audit
    if nothing is not None and not known.run.audit.is_file():
        return {"text": [f"{nothing[:1].upper()}{nothing[1:]}"]}
    released = known.stated is not None and known.stated.report.audited is not None
    command = f"idpgan audit {known.name} --release"
    return _result(known, "audit", "audit", lambda content: measured.audit_part(content, released, command))


def _environment(known: Known) -> page.Content:
    """Say on which machine and with which settings it was trained."""
    settings = {"settings": known.run.config.read_text("utf-8", "replace")}
    try:
        written = parse_json(read_plain(known.run.environment, page.MOST_BYTES))
        versions, commit, threads = written["versions"], written["git"], written.get("step_threads", written["threads"])
        facts = [
            ("Versions", ", ".join([f"Python {written['python']}", *(f"{name} {v}" for name, v in versions.items())])),
            ("System", " ".join(map(str, written["platform"].values()))),
            ("Device", f"{written['device']} ({written['device_name']}), {threads} thread{'s' * (threads != 1)}"),
            ("Commit", "unknown" if not commit else commit["commit"] + (", changed" if commit["changed"] else "")),
        ]
    except (OSError, *_OTHER_VERSION):
        return settings | {"missing": "environment.json is missing or of another version."}
    return settings | {"facts": facts}
