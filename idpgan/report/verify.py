"""Check a release without its data: recompute the proven epsilon from the charges, and every file's hash."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idpgan.errors import InputError
from idpgan.models.checkpoint import load_generator
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport, number_to_json, parse_relation, parse_unit
from idpgan.privacy.ledger import Ledger
from idpgan.report.release import FILES, FORMAT, PRIVACY
from idpgan.run import sha256_file

_TOLERANCE = 1e-6  # the same code on the same events: only the rounding of another machine is let pass


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        recomputed: Epsilon of the released events, at the released delta.
        report: What the release says.
        problems: One sentence per thing that does not fit; empty = verified.
    """

    recomputed: float
    report: PrivacyReport
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "verified": not self.problems,
            "recomputed_epsilon": number_to_json(self.recomputed),
            "report": self.report.to_json(),
            "problems": list(self.problems),
        }


def verify_release(path: Path) -> Verification:
    """Verify a release folder, or the ``release/`` of a run.

    It proves that the numbers follow from the listed events and that no file was changed since; it cannot prove that
    the events are all that happened. That is the word of whoever ran the training.

    Raises:
        InputError: If privacy.json is missing, damaged or of another format.
    """
    folder = path / "release" if (path / "release" / PRIVACY).is_file() else path
    document = _read(folder / PRIVACY)
    report = PrivacyReport.from_json(document["report"])
    ledger = Ledger(parse_unit(document["unit"]), parse_relation(document["relation"]))
    for item in document["events"]:
        ledger.charge(Event.from_json(item))
    recomputed = ledger.epsilon(document["delta"])
    problems = [*_check_numbers(report, ledger, recomputed, document), *_check_files(folder, document["files"])]
    return Verification(recomputed, report, tuple(problems))


def _check_numbers(report: PrivacyReport, ledger: Ledger, recomputed: float, document: dict[str, Any]) -> list[str]:
    problems, proven = [], report.proven
    if recomputed > proven.epsilon * (1 + _TOLERANCE):
        problems.append(f"the events cost epsilon = {recomputed:.6g}, the report says {proven.epsilon:.6g}.")
    if (proven.unit, proven.relation) != (ledger.unit, ledger.relation):
        problems.append(f"the report speaks of unit {proven.unit}, {proven.relation}; the events do not.")
    if math.isfinite(proven.epsilon) and proven.delta < document["delta"]:
        problems.append(f"the report's delta = {proven.delta:g} is below the one of the events, {document['delta']:g}.")
    if math.isfinite(proven.epsilon) and document["delta"] * document["num_private"] >= 1:
        problems.append(f"delta = {document['delta']:g} is not below 1/N for N = {document['num_private']}.")
    if math.isfinite(proven.epsilon) and not ledger.events:
        problems.append("no event is listed, so nothing was read or the list is incomplete.")
    return problems


def _check_files(folder: Path, hashes: dict[str, str]) -> list[str]:
    problems = []
    for name in FILES:
        if not (folder / name).is_file():
            problems.append(f"{name} is missing.")
        elif hashes.get(name) != sha256_file(folder / name):
            problems.append(f"{name} was changed after the release.")
    strangers = sorted(item.name for item in folder.iterdir() if item.name not in (*FILES, PRIVACY))
    problems += [f"{name} does not belong to the release: no epsilon covers it." for name in strangers]
    if not problems:
        load_generator(folder)  # raises if the weights are not a finite generator
    return problems


def _read(path: Path) -> dict[str, Any]:
    """Read privacy.json."""
    if not path.is_file():
        raise InputError(f"{path.parent} is no release: it holds no {PRIVACY}. Name a run or its release folder.")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}).") from error
    known = {"format", "idpgan", "report", "num_private", "delta", "unit", "relation", "events", "files"}
    if not isinstance(document, dict) or document.get("format") != FORMAT or set(document) != known:
        raise InputError(f"{path} is not of the format {FORMAT!r}, so it cannot be verified.")
    numbers = {"num_private": int, "delta": float | int, "events": list, "files": dict, "report": dict}
    for key, kind in numbers.items():
        if not isinstance(document[key], kind):
            raise InputError(f"{path}: {key} = {document[key]!r} is not of the expected type.")
    return document
