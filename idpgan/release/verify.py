"""Check a release without its data: everything in it is derived again from the settings, and compared.

`verify_release` says all that it finds. `open_release` makes the same checks before something is loaded or drawn, but
for what only a reader of the folder sees: the card and files beside the release make it warn, and the picture is not
drawn again, since its hash is compared.

Links are followed, such as those of download caches, and line ends that Git changed are changed back: the content is
what the hashes speak of. Neither these nor what systems leave behind makes a release another one; they are noted.

Report and card of a release that this exact code made are compared word for word. Of any other release the fields are
compared: a later version may say the same in other words, and a release keeps its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idpgan.errors import InputError
from idpgan.files import CONFIG, MOST_TEXT_BYTES, json_text, left_behind, parse_json, pasted, printable, read_plain
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, number_to_json
from idpgan.privacy.ledger import Ledger
from idpgan.privacy.noise import SOURCES
from idpgan.privacy.tradeoff import gaussian_mu
from idpgan.release.artifact import Artifact, Kind, describe_release, read_settings
from idpgan.release.charges import check_charges
from idpgan.release.folder import CARD, card_text, hashed_files
from idpgan.release.mark import DigitalSource
from idpgan.release.signature import is_signed, signature_of
from idpgan.release.statement import FORMAT, PRIVACY, WITHOUT_RISK, Settings, Statement, statement_of
from idpgan.version import made_with

_LOG = logging.getLogger(__name__)
_TOLERANCE = 1e-6  # same code and same settings: only the rounding of another machine is tolerated
_FIELDS = ("| ", "license: ", "tags: ", "Made with idpgan ")  # lines of a card that hold fields, such as a table
_NOT_PRIVATE = "**NOT private.**"


@dataclass
class Verification:
    """What was found.

    Attributes:
        stated: What the release says, in its privacy.json with this ``content``.
        wrong: One sentence per thing that does not fit.
        beside: Likewise, of the card and of files that are not the release's.
        left: Names of files that systems leave behind, which are no part of the release.
        links: Names of files that are links.
        turned: Names of files whose line ends were changed.
        signed: What the signatures of its pictures say, a line each.
        recomputed: Epsilon of the released events, at the released delta; None where the events are not those of the
            settings, since a forged list may take long to price.
        files: Content of the files that were checked, by name.
        artifact: What is given away; None where the check ended before it was read, as for ``settings``.
    """

    stated: Statement
    content: bytes
    wrong: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    turned: list[str] = field(default_factory=list)
    signed: list[str] = field(default_factory=list)
    recomputed: float | None = None
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    artifact: Artifact | None = None
    settings: Settings | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence per thing that does not fit; empty = consistent."""
        return (*self.wrong, *self.beside)

    @property
    def report(self) -> PrivacyReport:
        """The three numbers that the release states."""
        return self.stated.report

    @property
    def consistent(self) -> bool:
        """Whether everything fits together. A release cannot show whether the run was as stated."""
        return not self.problems

    @property
    def own_words(self) -> bool:
        """Whether this very code made the release, so that its sentences can be derived too."""
        return bool(self.stated.idpgan == made_with())

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What could not be checked, one sentence each, and is the word of whoever made the release."""
        prose = (
            f"the sentences of report and card are those of idpgan {self.stated.idpgan}, not of this "
            "version: only fields and hashes were compared"
        )
        excused = f"{self.stated.format!r} states neither risk nor marks: neither was compared"
        of_artifact = getattr(self.artifact, "unchecked", None)
        return (
            *(() if self.own_words else (prose,)),
            *((excused,) if self.stated.format in WITHOUT_RISK else ()),
            *((of_artifact,) if of_artifact else ()),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What is otherwise than as it was released, and changes nothing of it, one sentence each."""
        git = "`git config core.autocrlf false`, or in .gitattributes: * -text"
        said = (
            (self.left, "left there by a system or by Git, no part of the release: no epsilon covers it"),
            (self.links, "links, as in a download cache: what they lead to was checked. Give copies away, not links"),
            (self.turned, f"line ends were changed by Git; the content is as released ({git})"),
        )
        more = {words: f" and {len(names) - 5:,} more" if names[5:] else "" for names, words in said}
        notes = (f"{', '.join(names[:5])}{more[words]}: {words}." for names, words in said if names)
        return (*notes, *self.signed)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "consistent": self.consistent,
            "recomputed_epsilon": None if self.recomputed is None else number_to_json(self.recomputed),
            "report": self.report.to_json(),
            "problems": list(self.problems),
            "made_with": self.stated.idpgan,
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"unchecked": "; ".join(self.unchecked)} if self.unchecked else {}),
        }


def verify_release(path: Path, kinds: Mapping[str, Kind]) -> Verification:
    """Verify a release folder, or the ``release/`` of a run.

    The charges are derived from the settings, report and card from the charges, and the picture from what it shows;
    each is compared with what is there. That shows that a release is consistent, not that it is true: what was really
    charged, and how many records there were, is the word of whoever made it. A proven epsilon above what the charges
    cost is accepted: the accounting may have become tighter since.

    ``kinds`` says how each kind of release is read; `idpgan.kinds.KINDS` has all.

    Raises:
        InputError: If privacy.json is missing, damaged or of another format.
    """
    folder = path / "release" if (path / "release" / PRIVACY).exists() else path
    if not (folder / PRIVACY).exists():
        raise InputError(f"{folder} is not a release: it holds no {PRIVACY}. Name a run or its release folder.")
    found = _begin(folder)
    _check(folder, kinds, found, whole=True)
    return found


@dataclass(frozen=True)
class Opened:
    """A release that may be loaded: what it states, what it describes, and the content of its files by name."""

    stated: Statement
    settings: Settings
    artifact: Artifact
    files: Mapping[str, bytes]


def open_release(folder: Path, kinds: Mapping[str, Kind]) -> Opened:
    """Return a release whose hashes, settings, charges and report fit together; the artifact has no content yet.

    A card that is not that of the numbers, and files that do not belong to the release, are warned of.

    Raises:
        InputError: If anything else does not fit, or privacy.json is missing. The first problem is named.
    """
    if not os.path.lexists(folder / PRIVACY):
        raise InputError(
            f"{folder} is a release without its {PRIVACY}, so nothing says what protects the training images. Copy "
            "the whole folder again."
        )
    found = _begin(folder)
    _check(folder, kinds, found, whole=False)
    if found.wrong or found.artifact is None or found.settings is None:
        raise InputError(
            f"{folder} is not what was released, and nothing is read from it: {found.wrong[0]} Copy the whole "
            f"folder again, or ask whoever made it. All that does not fit: idpgan verify {pasted(folder)}"
        )
    if found.beside:
        _LOG.warning("%s: %s The rest of the release was checked, and is used.", folder, " ".join(found.beside))
    return Opened(found.stated, found.settings, found.artifact, found.files)


def _begin(folder: Path) -> Verification:
    content = read_plain(folder / PRIVACY, MOST_TEXT_BYTES, follow=True)
    found = Verification(statement_of(content, folder / PRIVACY), content)
    if content != found.stated.content == _line_ends(content):
        found.content = found.stated.content
        found.turned.append(PRIVACY)
    return found


def _line_ends(content: bytes) -> bytes:
    """Return a text with the line ends that a release has; what Git takes for no text stays as it is."""
    return content if b"\0" in content else content.replace(b"\r\n", b"\n")


def is_bare(weights: Path) -> bool:
    """Whether weights are no part of a release: no privacy.json lies beside them, and no settings in config.json."""
    if os.path.lexists(weights.with_name(PRIVACY)):
        return False
    try:
        document = parse_json(read_plain(weights.with_name(CONFIG), MOST_TEXT_BYTES, follow=True))
    except ValueError:  # InputErrors too: whoever loads the weights says what is wrong
        return True
    return not isinstance(document, dict) or "settings" not in document


def _check(folder: Path, kinds: Mapping[str, Kind], found: Verification, *, whole: bool) -> None:
    """Fill ``found``: compare files with their hashes, and statements with the settings.

    ``whole`` says that the artifact's content is read too.
    """
    try:
        artifact, config, kind = _check_files(folder, kinds, found)
        shown = artifact.read(_without_marks(found)) if whole else []
        settings = read_settings(config, kind, artifact, found.stated)
        found.artifact, found.settings = artifact, settings
        found.wrong += _check_config(found.files[CONFIG], config, artifact, settings)
        wrong = check_charges(settings, found.stated)
        found.wrong += wrong
        if not wrong:
            found.recomputed = compose_epsilon(found.stated.events, settings.plan.price.delta)
            found.wrong += _check_statement(artifact, settings, found)
        _check_texts(artifact, settings, found)
        found.wrong += shown
    except InputError as error:
        said = str(error).encode("utf-8", "backslashreplace").decode()  # it may quote half a character
        found.wrong.append(said)


def _without_marks(found: Verification) -> Mapping[str, bytes]:
    """Return the files with their pictures as they were before they were marked, where privacy.json names a mark."""
    bare, without = found.stated.unmarked(found.files)
    _check_signatures(found)
    if without:
        found.wrong.append(f"{without[0]} lacks the mark that {PRIVACY} speaks of, or has another one.")
    return bare


def _check_signatures(found: Verification) -> None:
    """Check the manifests of pictures that have one, and note who signed."""
    read = {name: signature_of(content) for name, content in found.files.items() if is_signed(content)}
    found.wrong += [f"{name}: signature {one.text}." for name, one in read.items() if not one.valid][:1]
    found.signed += [
        f"{len(read):,} pictures: signature {text}." for text in sorted({one.text for one in read.values()})
    ]


def _check_files(folder: Path, kinds: Mapping[str, Kind], found: Verification) -> tuple[Artifact, dict[str, Any], Kind]:
    """Read all files of a release and compare their hashes; return what config.json describes, its content and kind."""
    files = found.files
    files[CONFIG] = _read(folder, CONFIG, MOST_TEXT_BYTES)
    artifact, config, kind = describe_release(files[CONFIG], kinds)
    own = artifact.files()
    _look_around(folder, {*own, CONFIG, CARD, PRIVACY}, found)
    for name, most in own.items():
        files[name] = _read(folder, name, most)
    if os.path.lexists(folder / CARD):
        files[CARD] = _read(folder, CARD, MOST_TEXT_BYTES)
    else:
        found.beside.append(f"{CARD} is missing.")
    hashes = found.stated.files
    if set(hashes) != set(hashed_files(artifact)):
        found.wrong.append(f"{PRIVACY} speaks of other files than those of the release.")
    for name in files:
        made, now = str(hashes.get(name, "no hash")), hashlib.sha256(files[name]).hexdigest()
        if made != now and made == hashlib.sha256(_line_ends(files[name])).hexdigest():
            files[name] = _line_ends(files[name])
            found.turned.append(name)
        elif made != now:
            (found.beside if name == CARD else found.wrong).append(
                f"{name} was changed after the release: its SHA-256 begins with {now[:12]}, and {PRIVACY} has "
                f"{made[:12]!a}."
            )
    return artifact, config, kind


# Files ---------------------------------------------------------------------------------------------------------


def _look_around(folder: Path, names: set[str], found: Verification, above: str = "") -> None:
    """Find what lies in a folder and is no plain file of the release."""
    inner = {name.split("/")[0] for name in names if "/" in name}
    for item in sorted(folder.iterdir()):
        shown, link = f"{above}{ascii(item.name)[1:-1]}", item.is_symlink()
        if item.name in inner and item.is_dir() and not link:
            within = {name.removeprefix(f"{item.name}/") for name in names if name.startswith(f"{item.name}/")}
            _look_around(item, within, found, f"{shown}/")
        elif item.name in inner:
            found.beside.append(f"{shown} is a link or a file, not a folder of the release.")
        elif item.name in names:
            found.links += [shown] * link
        elif left_behind(item.name):
            found.left.append(shown)
        else:
            found.beside.append(f"{shown} does not belong to the release: no epsilon covers it.")


def _read(folder: Path, name: str, most: int) -> bytes:
    """Return the content of one file; refuse one that is missing, too large, or no plain file."""
    path = folder / name
    if not os.path.lexists(path):
        raise InputError(f"{name} is missing.")
    if not path.is_file():
        raise InputError(f"{name} is a folder, a pipe, a device or a link to nothing, not a plain file.")
    return read_plain(path, most, follow=True)


# Numbers -------------------------------------------------------------------------------------------------------


def _check_config(content: bytes, config: Mapping[str, Any], artifact: Artifact, settings: Settings) -> list[str]:
    """Refuse a config.json without readable settings and description."""
    problems, kind = [], artifact.kind
    if set(config) != {"kind", kind, "settings"} or set(config[kind]) != set(artifact.describe()):
        problems.append(f"{CONFIG} is not what is written for these settings: it holds more, less or other values.")
    if content != json_text(config).encode():
        problems.append(f"{CONFIG} is not written as a release writes it.")
    return problems + settings.problems(artifact.describe())


def _check_statement(artifact: Artifact, settings: Settings, found: Verification) -> list[str]:
    """Make privacy.json again from the settings and the charges, and compare."""
    stated, said = found.stated, found.report
    ledger = Ledger(stated.unit, stated.relation)
    for event in stated.events:
        ledger.charge(event)
    proven = ledger.proven(stated.delta)
    problems = _check_audited(said.audited, proven, stated)
    if found.recomputed is not None and said.proven.epsilon < found.recomputed * (1 - _TOLERANCE):
        problems.append(f"the events cost epsilon = {found.recomputed:.6g}, the report says {said.proven.epsilon:.6g}.")
    report, wrong = _report_again(settings, dataclasses.replace(proven, epsilon=said.proven.epsilon), found)
    problems += [f"report: '{name}' is not what follows from the settings and the events." for name in wrong]
    ours = Statement.of(settings, artifact.describe(), artifact.files(), report, stated.events)
    return problems + _differences(_as_in_format(ours, settings, stated), stated)


def _report_again(settings: Settings, proven: Guarantee, found: Verification) -> tuple[PrivacyReport, list[str]]:
    """Derive the report for noise of the system and of a fixed seed; return the one like it, and what differs."""
    said, compare = found.report, (lambda entry: entry) if found.own_words else _without_prose
    names = [entry.name for entry in dataclasses.fields(PrivacyReport) if entry.name != "audited"]
    reports = [
        _raised(settings.plan.report_of(found.stated.events, proven, (source, source)), said) for source in SOURCES
    ]
    wrong = [
        [name for name in names if compare(getattr(said, name)) != compare(getattr(ours, name))] for ours in reports
    ]
    return min(zip(reports, wrong, strict=True), key=lambda pair: len(pair[1]))


def _as_in_format(ours: Statement, settings: Settings, stated: Statement) -> Statement:
    """Return a statement as the version that wrote another one, in an earlier format, would have made it."""
    if stated.format == FORMAT:
        return ours
    ours = ours.but(num_classes=settings.num_classes)
    if settings.run is not None and ours.mark is not None:
        ours = ours.but(mark=DigitalSource.TRAINED)  # whatever a run's pictures were
    return ours.but(risk=None, mark=stated.mark and ours.mark) if stated.format in WITHOUT_RISK else ours


def _differences(ours: Statement, stated: Statement) -> list[str]:
    """Compare all fields but those that were compared before; more risk may be stated, as of an earlier accountant."""
    less = None if stated.risk is None or ours.risk is None else stated.risk.short_of(ours.risk)
    if less is not None:
        return [f"risk: less is stated than an attack may find by these charges ({less})."]
    if (stated.risk is None) != (ours.risk is None):
        return [f"{PRIVACY} has a risk where none can be stated, or none where one has to be."]
    ours = ours.but(**{name: getattr(stated, name) for name in ("format", "idpgan", "report", "risk", "files")})
    pairs = [(name, getattr(stated, name), getattr(ours, name)) for name in Statement.model_fields]
    return [f"{name} = {theirs}, but the settings say {mine}." for name, theirs, mine in pairs if theirs != mine]


def _without_prose(entry: Any) -> Any:
    """Return the fields of a report's entry; of its sentences only how many there are."""
    if isinstance(entry, Guarantee):
        return dataclasses.replace(entry, basis="")
    if isinstance(entry, tuple):
        return [_without_prose(item) for item in entry]
    return "" if isinstance(entry, str) else entry


def _raised(expected: PrivacyReport, said: PrivacyReport) -> PrivacyReport:
    """Return a report with the totals that another report states where these are not lower: both are bounds."""
    if expected.total is None or said.total is None or len(expected.contained) != len(said.contained):
        return expected
    pairs = zip((*expected.contained, expected.total), (*said.contained, said.total), strict=True)
    *contained, total = (
        ours if theirs.epsilon < ours.epsilon * (1 - _TOLERANCE) else dataclasses.replace(ours, epsilon=theirs.epsilon)
        for ours, theirs in pairs
    )
    return dataclasses.replace(expected, contained=tuple(contained), total=total)


def _check_audited(audited: Guarantee | None, proven: Guarantee, stated: Statement) -> list[str]:
    """Check the audited numbers: finite, of the same unit and relation, of this proof, and refuting nothing."""
    delta = stated.delta
    if audited is None:
        return []
    if not audited.finite or (audited.unit, audited.relation) != (proven.unit, proven.relation):
        return ["the audited value is infinite, or of another unit or relation than the proven one."]
    if audited.delta > delta:
        return [f"the audited value holds at delta = {audited.delta:g}, above {delta:g}."]
    if audited.delta == proven.delta and audited.epsilon > proven.epsilon:
        return [f"audited {audited.epsilon:.6g} exceeds proven {proven.epsilon:.6g}: the proof would be refuted."]
    from idpgan.audit.cases import audited_again, stated_share  # plays games too, and most releases have no audit

    problem = audited_again(audited)
    share = stated_share(audited)
    if (
        problem is None
        and share is not None
        and proven.delta
        and {event.kind for event in stated.events} == {"gaussian"}
    ):
        limit = gaussian_mu(proven.epsilon, proven.delta)
        if not math.isclose(float(share[2]), limit, rel_tol=_TOLERANCE, abs_tol=1e-4):
            problem = f"the proven separation is {limit:.4f}, not {share[2]}."
    return [] if problem is None else [problem]


# Texts ---------------------------------------------------------------------------------------------------------


def _check_texts(artifact: Artifact, settings: Settings, found: Verification) -> None:
    """Write card and privacy.json again from what they state, and compare."""
    card = found.files.get(CARD)
    if card is not None:  # that it is missing was said where the files were read
        said, ours = card.decode(errors="surrogateescape"), card_text(found.stated, artifact, settings)
        if not found.own_words:
            said, ours = _fields_of_card(said), _fields_of_card(ours)
        if said != ours:
            found.beside.append(f"{CARD} is not the card of these numbers and settings.")
    if found.content != found.stated.content:
        found.wrong.append(f"{PRIVACY} is not written as a release writes it.")


def _fields_of_card(card: str) -> str:
    """Return what of a card is no prose: licenses, tags, the table of the numbers, and whether it is private.

    Lines that a terminal would not show as they are count too.
    """
    lines = [line for line in card.split("\n") if line.startswith(_FIELDS) or (line and not printable(line))]
    return "\n".join([*lines, _NOT_PRIVATE * (_NOT_PRIVATE in card)])
