"""What attacks found, as a table, as attack.json, or as one page of plain words. For the curator."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idpgan.attacks.evaluate import roc_curve
from idpgan.attacks.gate import Limit, Verdict
from idpgan.attacks.outcome import RATE, Best, Outcome, corrected
from idpgan.attacks.riskiest import Record
from idpgan.files import PRIVATE_FILE, write_bytes_atomic, write_private_json

FORMAT = "idpgan attack 1"
CAUTION = (
    "computed with private images: for the curator only, covered by no epsilon",
    "an attack that fails proves nothing: stronger ones may succeed; the guarantee is the proven epsilon",
)
_LISTED = 20  # copies on a page
COPIES = 2  # statements beside those on attacks: more members than others are equal to, or found in, synthetic images


@dataclass(frozen=True)
class Findings:
    """What attacks found; ``print`` shows those on images of any tool as a page.

    Attributes:
        outcomes: Of each attack.
        best: The strongest of them, corrected for having been chosen; None if none was run.
        facts: JSON values that say what was compared with what; "copies", if members were searched in the images.
        notes: What a reader has to know.
        riskiest: The members that are found most easily, the first one first.
        gate: The verdict of `attacks.gate`.
        path: The attack.json of a run.
    """

    outcomes: tuple[Outcome, ...]
    best: Best | None
    facts: dict[str, Any]
    notes: tuple[str, ...] = CAUTION
    riskiest: tuple[Record, ...] = ()
    gate: Verdict | None = None
    path: Path | None = None

    def __repr__(self) -> str:
        leak = "LEAK FOUND" if self.leak else "no leak found"
        return f"<Findings: {leak}, {len(self.outcomes)} attacks; print it for the page>"

    def __str__(self) -> str:
        return "\n".join(self.page())

    @property
    def leak(self) -> bool:
        """Whether an attack tells members from others better than a guess, or members stand in the synthetic images."""
        return (self.best is not None and self.best.leak) or self.copied

    @property
    def copied(self) -> bool:
        """Whether members stand in the synthetic images, corrected for all attacks that were run.

        A single member that is equal to a synthetic image, turned or not, is a leak where none of the others is. Else
        more members than others have to be equal, or found after changes: were nobody known to the generator, either
        would be a member or another with equal chance. Images of one person are not independent: where they are
        known, the people of whom an image is found are counted, each a member with the share of members' people.
        """
        from scipy.stats import binom

        if self.best is None or "copies" not in self.facts:
            return self._certain
        strict, copies = corrected(self.best.attacks, self.best.confidence, COPIES), self.facts["copies"]

        def more(members: int, others: int, *, chance: float = 0.5) -> bool:
            return members > 0 and bool(binom.sf(members - 1, members + others, chance) <= 1 - strict)

        equal, found = ((copies[f"{kind}_members"], copies[f"{kind}_others"]) for kind in ("equal", "found"))
        if people := copies.get("people"):
            several = more(*copies["found_people"], chance=people[0] / sum(people))
        else:
            several = more(*found)
        return (equal[0] > 0 and equal[1] == 0) or more(*equal) or several

    @property
    def _certain(self) -> bool:
        """Whether members are copied, which needs no statistics; see `Copies.certain`."""
        return bool(self.facts.get("copies", {}).get("certain"))

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return 0 if self.gate is None else self.gate.code

    def gated(self, limit: Limit | None) -> Findings:
        """Add the verdict of a gate, if there is one; a copied member is above any limit."""
        if limit is None:
            return self
        further = COPIES * ("copies" in self.facts)
        return dataclasses.replace(self, gate=limit.judge(self.outcomes, self.best, further, copied=self.copied))

    def to_json(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        head = {"format": FORMAT, "curator_only": True, **self.facts}
        if "copies" in self.facts:
            head["leak"] = self.leak
        head["best"] = None if self.best is None else self.best.to_json()
        head["attacks"] = {outcome.attack.name: outcome.to_json() for outcome in self.outcomes}
        if self.riskiest:
            head["riskiest"] = [record.to_json() for record in self.riskiest]
        if self.gate is not None:
            head["gate"] = self.gate.to_json()
        return {**head, "notes": list(self.notes)}

    def write(self) -> tuple[Path, ...]:
        """Write attack.json and attack.png (ROC curves, log-log) into the run, if there is one; return where."""
        if self.path is None:
            return ()
        picture = self.path.with_suffix(".png")
        write_private_json(self.path, self.to_json())
        write_bytes_atomic(picture, roc_png(self.outcomes), mode=PRIVATE_FILE)
        return self.path, picture

    def lines(self) -> list[str]:
        """Return the riskiest members and the verdict of the gate in words."""
        named = [f"riskiest {place}: {record}" for place, record in enumerate(self.riskiest, 1)]
        return named + ([] if self.gate is None else self.gate.lines())

    def page(self) -> list[str]:
        """Return the result as lines of plain words, for a reader who has never heard of such attacks."""
        best, facts = self.best, self.facts
        if self._certain:
            return self._copies_alone()
        if best is None or "copies" not in facts:  # of a run: `commands.attack` prints a table
            return [*([] if best is None else [str(best)]), *(f"note: {note}" for note in self.notes), *self.lines()]
        table = [("attack", "AUC", "found at 1% false alarms")]
        for outcome in self.outcomes:
            if outcome.result is not None:
                low, high = outcome.result.auc_interval
                rate, ends = outcome.result.tpr_at_fpr[RATE], outcome.result.tpr_intervals[RATE]
                shown = "-" if rate is None or ends is None else f"{rate:.1%} [{ends[0]:.1%}, {ends[1]:.1%}]"
                table.append((outcome.attack.name, f"{outcome.result.auc:.3f} [{low:.3f}, {high:.3f}]", shown))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
        skipped = [f"  {outcome.attack.name}: {outcome.skipped}" for outcome in self.outcomes if outcome.skipped]
        return [
            f"Was {facts['synthetic']} made from the images of {facts['members']}?",
            "",
            *self._verdict(best),
            "",
            f"{facts['num_members']:,} images that are said to have been used (members) and {facts['num_others']:,} "
            f"that were not (others) were mixed. {best.attacks} attacks saw {facts['num_samples']:,} synthetic "
            f"images and {facts['num_reference']:,} reference images, and gave each mixed image a score: higher = was "
            "used.",
            "",
            *rows,
            "",
            "AUC: how often a member scores higher than one of the others; a guess has 0.5. The right column: the "
            "share of members that score higher than 99% of the others; a guess finds 1%. The brackets hold for all "
            f"attacks together with {best.confidence:.3g} confidence (Bonferroni), since the best of many looks "
            "good by chance.",
            "",
            self._nearest(),
            *(["", "Not run:", *skipped] if skipped else []),
            "",
            *(f"note: {note}" for note in self.notes),
            *self.lines(),
        ]

    def _copies_alone(self) -> list[str]:
        """Return the page of copies of members where images hang together, so that no statistic holds."""
        members, facts = self.facts["copies"]["members"], self.facts
        shown = [
            f"  {' = '.join(each['member'])}: synthetic image {each['synthetic'] + 1:,}, {each['change']}"
            + ("" if each["equal"] else f", correlation {each['correlation']:.2f}")
            for each in members[:_LISTED]
        ]
        return [
            f"Was {facts['synthetic']} made from the images of {facts['members']}?",
            "",
            f"LEAK FOUND. Who has these images can tell who was used to make them: {self._copied()}that needs no "
            f"statistic. {facts['num_members']:,} members and as many others were looked for:",
            *shown,
            *([f"  and {len(members) - _LISTED:,} more (--json)"] if members[_LISTED:] else []),
            "",
            *(f"note: {note}" for note in self.notes),
            *self.lines(),
        ]

    def _verdict(self, best: Best) -> list[str]:
        areas = best.auc
        pairs = (
            f"shown one member and one of the others, {areas.name} names the member {areas.value:.0%} of the time "
            f"({areas.interval[0]:.0%} to {areas.interval[1]:.0%}; a guess: 50%)"
        )
        rate = ""
        if best.tpr is not None:
            low, high = best.tpr.interval
            sure = (
                f"{low:.0%} to {high:.0%}" if low > 0 or best.tpr.value <= RATE else "too few others to be sure of it"
            )
            rate = (
                f"; {best.tpr.name} finds {best.tpr.value:.0%} of the members while it accuses 1% of the others "
                f"({sure}; a guess: 1%)"
            )
        copied = self._copied()
        if self.leak:
            return [f"LEAK FOUND. Who has these images can tell who was used to make them: {copied}{pairs}{rate}."]
        ends = [outcome.result.auc_interval[1] for outcome in self.outcomes if outcome.result is not None]
        return [
            f"NO LEAK FOUND by these {best.attacks} attacks. This is not evidence of privacy: other attacks may "
            "succeed, and only a proof, such as a differential privacy epsilon, speaks of all attacks.",
            f"The best of them: {copied}{pairs}{rate}. With so few images an AUC of up to {max(ends):.2f} would go "
            "unseen.",
        ]

    def _copied(self) -> str:
        """Say how many stand in the synthetic images, if members do; it ends before the next clause."""
        copies = self.facts["copies"]
        equal, found = copies["equal_members"], copies["found_members"]
        exact = (
            f"{equal:,} members and {copies['equal_others']:,} of the others are among the synthetic images pixel by "
            "pixel, perhaps turned or mirrored (who knows such an image recognizes it); "
        ) * bool(equal)
        changed = (
            f"{found:,} members and {copies['found_others']:,} of the others are in a synthetic image, equal or "
            f"changed (correlation above {copies['threshold']:.2f}); "
        ) * (found > max(equal, copies["found_others"]))
        return exact + changed

    def _nearest(self) -> str:
        near = self.facts["nearest_record"]
        return (
            "Distance to the nearest synthetic image, in grey levels of 0 to 255 (root mean square; medians): members "
            f"{near['members']:.1f}, others {near['others']:.1f}; equal to a synthetic image: {near['equal_members']} "
            f"members, {near['equal_others']} others. Many tools report this distance as privacy. It is not evidence "
            "of privacy: images far from every record may still tell who was used (Yao et al. 2025, The DCR delusion)."
        )


def roc_png(outcomes: Sequence[Outcome]) -> bytes:
    """Draw the ROC curves of all attacks that were run, both axes logarithmic: the left end is what matters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    run = [(part.attack.name, part.result, part.scores) for part in outcomes if part.result and part.scores]
    floor = 0.5 / max([result.num_members for _, result, _ in run] or [50])
    for name, result, scores in run:
        false, true = roc_curve(*scores)
        axes.step(false.clip(floor), true.clip(floor), where="post", label=f"{name} {result.auc:.3f}")
    axes.plot([floor, 1], [floor, 1], color="grey", linestyle=":", label="a guess 0.500")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title="Membership inference: AUC")
    axes.legend(fontsize="small", loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
