"""What any attack finds at most, in plain numbers, and whether an attack that was run found more than that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from idpgan.attacks.registry import ATTACKS
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport, Relation, Unit
from idpgan.privacy.risk import SHOWN, Risk, percent
from idpgan.privacy.tradeoff import Tradeoff, tradeoff
from idpgan.report.charts import Point, roc_chart
from idpgan.report.epsilons import RECORDS
from idpgan.report.page import Chart, Part, Table

_DRAWN = np.geomspace(1e-4, 1.0, 81)  # false alarms at which the curve is drawn


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


def risk_part(report: PrivacyReport, events: Sequence[Event]) -> Part:
    """Return the numbers of a release with their curve.

    Args:
        report: Its three numbers.
        events: All charges that a receiver profits from, see `Plan.joint_events`.
    """
    proven, heading = proven_of(report, events), "Risk in plain numbers"
    if proven is None:
        return Part("risk", heading, missing="Nothing is proven of this release, so an attack may find every record.")
    membership, record = proven.relation is Relation.ZERO_OUT, RECORDS.get(proven.unit, f"one {proven.unit}")
    rows = Risk.of(events).rows()
    if membership:
        said = (
            f"A member is a record ({record}) that was used; false alarms are records that were not, and are accused."
        )
    else:
        said = (
            f"A record is {record}. All are in the data, so nothing here is about membership: an attacker who knows "
            "all the rest, and two contents that this record may have, says which of the two it is."
        )
    law = "The numbers come from the law of the charges themselves, not from one epsilon, and hold for every attack."
    chart = roc_chart(
        (),
        proven=proven.points,
        title="What any attack finds at most",
        description=f"at {SHOWN[0]:.0%} false alarms {rows[0][1]}; dotted: a guess",
    )
    caption = "above the curve no attack can be; dotted: a guess"
    return Part(
        "risk",
        heading,
        text=(f"{said} {law}",),
        charts=(Chart("Most that is found, by false alarms", chart, caption),),
        tables=(Table("At most, whoever attacks", ("", "any attack", "a guess"), rows),),
    )
