"""The three numbers of a release, and in plain words what they mean and why they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from idpgan.audit.bounds import SHARE, SHARE_MEANS
from idpgan.audit.cases import stated_share
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.books import count
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.release.card import RECORDS as _OF_CARD
from idpgan.report.page import Figure, Part, Table

RECORDS = {
    **_OF_CARD,
    Unit.IMAGE: "one image",
    Unit.WINDOW: "one window of one image",
    Unit.EVENT: "one event",
}
SOUND = {True: "sound: proven never exceeds what is asked for", False: "NOT sound", None: "promises nothing"}
_AGREE = 0.01  # relative: the noise is rounded up, so that proven lies a little below
_MOST_ROWS = 12
_GROUPS = (2, 5, 10)


def epsilon_text(epsilon: float) -> str:
    """Write an epsilon as every command does."""
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"


def delta_text(delta: float) -> str:
    """Write a delta."""
    return f"{delta:.3g}"


def figures(report: PrivacyReport) -> list[Figure]:
    """Return claimed, proven and audited; where other releases are contained, the total too."""
    proven = report.proven
    rows = [
        ("Claimed", report.claimed, "no paper claims one", ""),
        ("Proven", proven, "", "≤" if proven.finite else ""),
        ("Audited", report.audited, "no audit was made", "≥"),
    ]
    rows += [] if report.total is None else [("In total", report.total, "", "≤")]
    shown = []
    for name, found, missing, sign in rows:
        if found is None:
            shown.append(Figure(name, "none", basis=missing))
            continue
        value = epsilon_text(found.epsilon) if found.finite else "∞"
        delta = f"δ = {delta_text(found.delta)}" if found.delta else "δ = 0" if found.finite else ""
        shown.append(Figure(name, value, sign, delta, f"unit {found.unit}, {found.relation}", found.basis))
    return shown


def alarm(report: PrivacyReport) -> tuple[str, ...]:
    """Return the warning at the top of the page for a release that must not be called private."""
    if not report.proven.finite:
        return (
            "Nothing is proven of this release: the proven epsilon is infinite.",
            f"Why: {_plain(report.reason)}. Whoever may not see the private images must not get it either.",
        )
    if not report.private:
        return (
            "This release is not private, although its epsilon is finite.",
            f"Why: {_plain(report.reason)}. Whoever knows the noise can subtract it.",
        )
    return ()


def why(report: PrivacyReport, cap: float | None = None) -> tuple[str, ...]:
    """Say what the three numbers mean, and why they differ, one paragraph each.

    ``cap`` is the most that an audit of so many runs could have shown; None where it is not known.
    """
    return (*_meaning(report), _upper(report), _lower(report, cap))


def _meaning(report: PrivacyReport) -> tuple[str, ...]:
    proven = report.proven
    if not proven.finite:
        return ()
    record = RECORDS.get(proven.unit, f"one {proven.unit}")
    sure = 1 - (1 - proven.delta) / (1 + math.exp(min(proven.epsilon, 700.0)))  # (e^eps + delta) / (e^eps + 1)
    factor = math.exp(proven.epsilon) if proven.epsilon < 700 else math.inf
    grown = f"{factor:,.3g}" if factor < 1000 else f"{factor:,.0f}" if factor < 1e9 else f"{factor:.1e}"
    strength = "strong" if proven.epsilon <= 1 else "moderate" if proven.epsilon <= 5 else "weak"
    certain = f"{sure:.1%}" if sure < 0.999 else f"{sure:.5%}" if sure < 0.9999999 else "all but 100%"
    aside = f", except with a probability of about δ = {delta_text(proven.delta)}" if proven.delta else ""
    either = (
        f"Whether {record} is in the data or not"
        if proven.relation is Relation.ZERO_OUT
        else f"Whichever content {record} has"
    )
    return (
        f"{either}, nothing that comes out of this release is more than e^ε = {grown} times as likely in one case as "
        f"in the other{aside}. Somebody to whom both cases were equally likely can be at most {certain} sure "
        f"afterwards. That is a {strength} promise.",
    )


def _upper(report: PrivacyReport) -> str:
    """Compare claimed with proven."""
    claimed, proven = report.claimed, report.proven
    said = f"Our accountant's reason: {_plain(report.reason)}."
    if claimed is None:
        return f"Nobody claims an epsilon for this method, so there is nothing to compare the proof with. {said}"
    start = "Claimed is what is stated or asked for; proven is what follows from the noise that was really added. "
    if not proven.finite:
        return f"{start}Here nothing follows, so the claim of {epsilon_text(claimed.epsilon)} is unsupported. {said}"
    if claimed.unit != proven.unit or claimed.relation != proven.relation:
        return (
            f"{start}They cannot be compared as numbers: the claim is for unit {claimed.unit} ({claimed.relation}), "
            f"the proof for unit {proven.unit} ({proven.relation}). {said}"
        )
    if math.isclose(claimed.epsilon, proven.epsilon, rel_tol=_AGREE):
        return f"{start}Here they agree, but for the rounding of the noise. {said}"
    if proven.epsilon < claimed.epsilon:
        return (
            f"{start}Here more is proven than was claimed: the budget was not spent to its end, or the claim counts "
            f"more loosely. {said}"
        )
    return f"{start}Here the proof is weaker than the claim, and what holds is the proof. {said}"


def _lower(report: PrivacyReport, cap: float | None) -> str:
    """Compare audited with the two others."""
    audited, claimed, proven = report.audited, report.claimed, report.proven
    if audited is None:
        if not proven.finite and claimed is None:
            return "There is no audit, since there is no guarantee that it could refute."
        if not proven.finite:
            return "There is no audit, so nothing is known of how far the claim is wrong."
        return "There is no audit, so nothing is known of how much of the proven epsilon an attack can really use."
    text = (
        f"Audited is a lower bound: an attack on neighbors that are constructed to be told apart showed an epsilon of "
        f"at least {epsilon_text(audited.epsilon)}. "
    )
    if audited.epsilon > proven.epsilon:
        return text + "It exceeds the proven epsilon: proof or code is wrong, or chance. Do not give this release away."
    if claimed is not None and audited.epsilon > claimed.epsilon:
        text += "It exceeds the claimed epsilon: the claim is false. "
    if not proven.finite:
        return text + "Above it anything is possible, since nothing is proven."
    text += "The truth lies between audited and proven. "
    if (share := stated_share(audited)) is not None:
        text += f"{SHARE.capitalize()}: {share[0]} ({share[1]} of {share[2]} standard deviations); {SHARE_MEANS}. "
    if cap is not None and cap < proven.epsilon:
        text += (
            f"With so many runs no audit shows more than {cap:.2f}, so that much of the gap is the audit's, not the "
            "mechanism's. "
        )
    return text + "An audit can refute a guarantee; it never proves one."


@dataclass(frozen=True)
class Spending:
    """The charges on the ledger of a run.

    Attributes:
        events: All charges, in order.
        delta: Where they are priced.
        target: What may be spent, in words; None = no limit, or not known.
        prepared: Number of charges of the one read before the first step; None = not known.
        repeated: Number of charges for steps that were taken again after an interruption.
        source: Where this was read.
    """

    events: Sequence[Event]
    delta: float
    target: str | None
    prepared: int | None
    repeated: int
    source: str


def ledger_part(spending: Spending, proven: Guarantee | None) -> Part:
    """Return the charges with their prices, in order."""
    rows, before, events = list[tuple[str, ...]](), 0, list(spending.events)
    for place, event in enumerate(events[:_MOST_ROWS]):
        first, before = before + 1, before + event.count
        charges = f"{first:,}" if event.count == 1 else f"{first:,} to {before:,}"
        alone = compose_epsilon([event.single], spending.delta)
        so_far = compose_epsilon(events[: place + 1], spending.delta)
        early = spending.prepared is not None and before <= spending.prepared
        when = "before the first step" if early else "in training"
        rows.append((charges, described(event), when, epsilon_text(alone), epsilon_text(so_far)))
    if len(events) > _MOST_ROWS:
        left = f"{before + 1:,} to {count(events):,}"
        so_far = compose_epsilon(events, spending.delta)
        rows.append((left, f"{len(events) - _MOST_ROWS:,} more kinds of charges", "", "", epsilon_text(so_far)))
    head: tuple[str, ...] = ("charge", "what was read, and how", "when", "ε of one alone", "ε so far")
    if spending.prepared is None:
        head, *rows = ((*row[:2], *row[3:]) for row in (head, *rows))
    tables = [Table(f"Every charge, at δ = {delta_text(spending.delta)}", head, rows)] if events else []
    if proven is not None and proven.unit is Unit.IMAGE and proven.finite:
        groups = [(str(size), proven.for_group(size)) for size in _GROUPS]
        lines = [(n, epsilon_text(each.epsilon), delta_text(each.delta) if each.finite else "") for n, each in groups]
        caption = "What is proven for a person who is on several images (group privacy)"
        tables.append(Table(caption, ("images", "ε", "δ"), lines))
    notes = [
        "A step's charge is made durable before the read that it pays for; what is released once is computed in memory "
        "and made durable together with its charge. The ledger keeps the order of the charges, not the clock.",
        f"Read from {spending.source}.",
    ]
    if spending.repeated:
        notes.insert(0, f"{spending.repeated:,} charges paid for steps that were taken again after an interruption.")
    text = f"The run may spend {spending.target}." if spending.target else "The run has no limit."
    missing = None if events else "Nothing private was read, so nothing was charged."
    return Part("ledger", "Budget ledger", text=(text,), tables=tables, missing=missing, notes=notes)


def described(event: Event) -> str:
    """Say in words how a read is protected."""
    noise = f"{event.noise_multiplier:.4g} times the sensitivity" if event.noise_multiplier is not None else ""
    record = {Unit.PERSON: "people", Unit.COLUMN: "columns", Unit.PIXEL: "pixels", Unit.WINDOW: "windows"}.get(
        event.unit, f"{event.unit}s"
    )
    if event.kind == "poisson-gaussian":
        return (
            f"a random sample of the {record}, each with probability {event.sample_rate:.4g}; Gaussian noise of {noise}"
        )
    answers = {
        "gaussian": f"all {record}; Gaussian noise of {noise}",
        "laplace": f"all {record}; Laplace noise of {noise}",
        "discrete-laplace": f"all {record}; discrete Laplace noise of {noise} ({event.sensitivity} steps of the grid)",
        "randomized-response": f"all {record}; each of {event.categories} answers may be replaced by chance",
        "exponential": f"all {record}; one choice by the exponential mechanism",
        "pure": f"all {record}; a mechanism of which only its epsilon is known",
        "approximate": f"all {record}; a mechanism of which only its epsilon and its delta are known",
        "non-private": f"all {record}; WITHOUT PROTECTION: {event.reason}",
    }
    return answers.get(event.kind, event.kind)


def _plain(text: str) -> str:
    return text.strip().removesuffix(".")
