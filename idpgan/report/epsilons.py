"""The three numbers of a release in plain words, its charges, and what any attack finds at most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from idpgan.attacks.registry import ATTACKS
from idpgan.audit.bounds import SHARE, SHARE_MEANS
from idpgan.audit.cases import stated_share
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.books import count
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.tradeoff import SHOWN, Risk, Tradeoff, percent, tradeoff
from idpgan.release.folder import RECORDS as _OF_CARD
from idpgan.report.page import Content, Point, roc_chart, table

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
_DURABLE = (
    "A step's charge is made durable before the read that it pays for; what is released once is computed in memory "
    "and made durable together with its charge. The ledger keeps the order of the charges, not the clock."
)
_DRAWN = np.geomspace(1e-4, 1.0, 81)  # false alarms at which the curve of any attack is drawn


def epsilon_text(epsilon: float) -> str:
    """Write an epsilon as every command does."""
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"


def delta_text(delta: float) -> str:
    """Write a delta."""
    return f"{delta:.3g}"


def figures(report: PrivacyReport) -> list[Content]:
    """Return claimed, proven and audited; where other releases are contained, the total too."""
    proven, shown = report.proven, list[Content]()
    rows = [
        ("Claimed", report.claimed, "no paper claims one", ""),
        ("Proven", proven, "", "≤" if proven.finite else ""),
        ("Audited", report.audited, "no audit was made", "≥"),
    ]
    for name, guarantee, missing, sign in [*rows, *([("In total", report.total, "", "≤")] if report.total else [])]:
        if guarantee is None:
            shown.append({"name": name, "value": "none", "basis": missing})
            continue
        finite, pair = guarantee.finite, f"unit {guarantee.unit}, {guarantee.relation}"
        value = epsilon_text(guarantee.epsilon) if finite else "∞"  # read out as "infinite"
        delta = f"δ = {delta_text(guarantee.delta)}" if guarantee.delta else "δ = 0" if finite else ""
        shown.append(
            {"name": name, "value": value, "sign": sign, "delta": delta, "unit": pair, "basis": guarantee.basis}
        )
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
    reason = f"Our accountant's reason: {_plain(report.reason)}."
    if claimed is None:
        return f"Nobody claims an epsilon for this method, so there is nothing to compare the proof with. {reason}"
    start = "Claimed is what is stated or asked for; proven is what follows from the noise that was really added. "
    if not proven.finite:
        return f"{start}Here nothing follows, so the claim of {epsilon_text(claimed.epsilon)} is unsupported. {reason}"
    if claimed.unit != proven.unit or claimed.relation != proven.relation:
        return (
            f"{start}They cannot be compared as numbers: the claim is for unit {claimed.unit} ({claimed.relation}), "
            f"the proof for unit {proven.unit} ({proven.relation}). {reason}"
        )
    if math.isclose(claimed.epsilon, proven.epsilon, rel_tol=_AGREE):
        return f"{start}Here they agree, but for the rounding of the noise. {reason}"
    if proven.epsilon < claimed.epsilon:
        return (
            f"{start}Here more is proven than was claimed: the budget was not spent to its end, or the claim counts "
            f"more loosely. {reason}"
        )
    return f"{start}Here the proof is weaker than the claim, and what holds is the proof. {reason}"


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


def ledger_part(
    events: Sequence[Event],
    delta: float,
    proven: Guarantee | None,
    *,
    text: str | None = None,
    notes: Sequence[str] = (),
    prepared: int | None = None,
) -> dict[str, Any]:
    """Return the charges of a release with their prices, in order.

    Args:
        events: All charges.
        delta: Where they are priced.
        proven: Of the release, if there is one.
        text: What may be spent.
        notes: In small print.
        prepared: Number of charges of the one read before the first step; None = not known.
    """
    rows, before = list[tuple[str, ...]](), 0
    for place, event in enumerate(events[:_MOST_ROWS]):
        first, before = before + 1, before + event.count
        charges = f"{first:,}" if event.count == 1 else f"{first:,} to {before:,}"
        when = () if prepared is None else ("before the first step" if before <= prepared else "in training",)
        prices = (compose_epsilon([event.single], delta), compose_epsilon(events[: place + 1], delta))
        rows.append((charges, described(event), *when, *map(epsilon_text, prices)))
    if len(events) > _MOST_ROWS:
        more = (f"{before + 1:,} to {count(events):,}", f"{len(events) - _MOST_ROWS:,} more kinds of charges")
        rows.append((*more, *[""] * (len(rows[0]) - 3), epsilon_text(compose_epsilon(events, delta))))
    head = ("charge", "what was read, and how", *(["when"] * (prepared is not None)), "ε of one alone", "ε so far")
    tables = [table(f"Every charge, at δ = {delta_text(delta)}", head, rows)] if events else []
    if proven is not None and proven.unit is Unit.IMAGE and proven.finite:
        groups = [(str(size), proven.for_group(size)) for size in _GROUPS]
        lines = [(n, epsilon_text(of.epsilon), delta_text(of.delta) if of.finite else "") for n, of in groups]
        caption = "What is proven for a person who is on several images (group privacy)"
        tables.append(table(caption, ("images", "ε", "δ"), lines))
    return {
        "name": "ledger",
        "heading": "Budget ledger",
        "text": [text] if text else [],
        "tables": tables,
        "missing": None if events else "Nothing private was read, so nothing was charged.",
        "notes": [_DURABLE, *notes],
    }


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


# What any attack finds at most ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proven:
    """What is proven of all charges that a receiver profits from.

    Attributes:
        unit: Of the charges; likewise ``relation``.
        curve: The most that any test finds.
    """

    unit: Unit
    relation: Relation
    curve: Tradeoff

    @property
    def points(self) -> list[Point]:
        """The curve as it is drawn: (false alarms, found)."""
        return [(rate, self.curve.found(rate)) for rate in _DRAWN.tolist()]

    def bounds(self, attack: str) -> bool:
        """Whether it bounds an attack on members: not where contents are told apart, or the unit is too small."""
        of_people = attack in ATTACKS and ATTACKS[attack].by_person
        wide_enough = self.unit.of_images or (self.unit is Unit.IMAGE and not of_people)
        return self.relation is Relation.ZERO_OUT and wide_enough

    def exceeded(self, attack: str, result: Mapping[str, Any]) -> Iterator[str]:
        """Yield in a sentence each where the lower end of an interval of an attack lies above what is proven."""
        if not self.bounds(attack):
            return
        for rate, interval in result["tpr_intervals"].items():
            most = self.curve.found(float(rate))
            if interval and interval[0] > most:
                yield (
                    f"ABOVE WHAT IS PROVEN: {attack} finds at least {interval[0]:.2%} of the members at "
                    f"{float(rate):.1%} false alarms, and the charges allow {percent(most)} to any attack. Proof, code "
                    "or data are not what they are said to be, or it is chance, at "
                    f"{result['confidence']:.0%} confidence. Do not give this release away before you know which."
                )


def proven_of(report: PrivacyReport, events: Sequence[Event]) -> Proven | None:
    """Return what the charges of a release prove; None where nothing holds."""
    if not (report.private and events):
        return None
    return Proven(report.proven.unit, report.proven.relation, tradeoff(tuple(events)))


def risk_part(report: PrivacyReport, events: Sequence[Event]) -> Content:
    """Return the numbers of a release with their curve.

    Args:
        report: Its three numbers.
        events: All charges that a receiver profits from, see `Plan.joint_events`.
    """
    proven, head = proven_of(report, events), {"name": "risk", "heading": "Risk in plain numbers"}
    if proven is None:
        return head | {"missing": "Nothing is proven of this release, so an attack may find every record."}
    membership, record = proven.relation is Relation.ZERO_OUT, RECORDS.get(proven.unit, f"one {proven.unit}")
    rows = Risk.of(events).rows()
    if membership:
        meaning = (
            f"A member is a record ({record}) that was used; false alarms are records that were not, and are accused."
        )
    else:
        meaning = (
            f"A record is {record}. All are in the data, so nothing here is about membership: an attacker who knows "
            "all the rest, and two contents that this record may have, says which of the two it is."
        )
    exact = "The numbers come from the law of the charges themselves, not from one epsilon, and hold for every attack."
    chart = roc_chart(
        (),
        proven=proven.points,
        title="What any attack finds at most",
        description=f"at {SHOWN[0]:.0%} false alarms {rows[0][1]}; dotted: a guess",
    )
    caption = "above the curve no attack can be; dotted: a guess"
    return head | {
        "text": [f"{meaning} {exact}"],
        "charts": [{"title": "Most that is found, by false alarms", "svg": chart, "caption": caption}],
        "tables": [table("At most, whoever attacks", ("", "any attack", "a guess"), rows)],
    }
