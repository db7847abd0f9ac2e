"""The results of attacks: on a run, and on somebody's images as one page of plain words. For the curator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idpgan.attacks.attack import RATE, Best, Outcome, corrected, roc_png
from idpgan.attacks.gate import Limit, Verdict
from idpgan.attacks.riskiest import Record
from idpgan.files import PRIVATE_FILE, write_bytes_atomic, write_private_json
from idpgan.run import RunFolder

FORMAT = "idpgan attack 1"
CAUTION = (
    "computed with private images: for the curator only, covered by no epsilon",
    "an attack that fails proves nothing: stronger ones may succeed; the guarantee is the proven epsilon",
)
COPIES = 2  # statements beside those on attacks: more members than others are equal to, or found in, synthetic images


@dataclass(frozen=True)
class _Asked:
    """What only some calls ask for.

    Attributes:
        riskiest: The members that are found most easily, the first one first.
        gate: The verdict of `attacks.gate`.
    """

    riskiest: tuple[Record, ...] = field(default=(), kw_only=True)
    gate: Verdict | None = field(default=None, kw_only=True)

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return 0 if self.gate is None else self.gate.code

    def lines(self) -> list[str]:
        """Return in words what was asked for."""
        named = [f"riskiest {place}: {record}" for place, record in enumerate(self.riskiest, 1)]
        return named + ([] if self.gate is None else self.gate.lines())

    def asked(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        records = {"riskiest": [record.to_json() for record in self.riskiest]} if self.riskiest else {}
        return {**records, **({} if self.gate is None else {"gate": self.gate.to_json()})}


@dataclass(frozen=True)
class AttackReport(_Asked):
    """The results of the attacks on a run.

    Attributes:
        facts: JSON values that say what was compared with what.
        best: The strongest attack, corrected for having been chosen; None if none was run.
    """

    run: RunFolder
    outcomes: tuple[Outcome, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]
    best: Best | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        attacks = {found.attack.name: found.to_json() for found in self.outcomes}
        best = None if self.best is None else self.best.to_json()
        head = {"format": FORMAT, "curator_only": True, **self.facts, "best": best}
        return {**head, "attacks": attacks, **self.asked(), "notes": list(self.notes)}

    def gated(self, limit: Limit | None) -> AttackReport:
        """Add the verdict of a gate, if there is one."""
        return self if limit is None else dataclasses.replace(self, gate=limit.judge(self.outcomes, self.best))

    def write(self) -> tuple[Path, Path]:
        """Write attack.json and attack.png (ROC curves, log-log) into the run; return where."""
        path, picture = self.run.attack, self.run.attack.with_suffix(".png")
        write_private_json(path, self.to_json())
        write_bytes_atomic(picture, roc_png(self.outcomes), mode=PRIVATE_FILE)
        return path, picture


@dataclass(frozen=True)
class ImagesAttack(_Asked):
    """What the attacks on somebody's images found; ``print`` shows it as a page.

    Attributes:
        outcomes: Of each attack; intervals are corrected for the number of attacks.
        best: The strongest of them.
        facts: JSON values that say what was compared with what.
        notes: What a reader has to know.
    """

    outcomes: tuple[Outcome, ...]
    best: Best
    facts: dict[str, Any]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        found = "LEAK FOUND" if self.leak else "no leak found"
        return f"<ImagesAttack: {found}, {len(self.outcomes)} attacks; print it for the page>"

    @property
    def leak(self) -> bool:
        """Whether an attack tells members from others better than a guess, or members stand in the synthetic images."""
        return self.best.leak or self.copied

    @property
    def copied(self) -> bool:
        """Whether members stand in the synthetic images, corrected for all attacks that were run.

        A single member that is equal to a synthetic image, turned or not, is a leak where none of the others is. Else
        more members than others have to be equal, or found after changes: were nobody known to the generator, either
        would be a member or another with equal chance. Images of one person are not independent: where they are
        known, the people of whom an image is found are counted, each a member with the share of members' people.
        """
        from scipy.stats import binom

        strict, copies = corrected(self.best.attacks, self.best.confidence, COPIES), self.facts["copies"]

        def more(members: int, others: int, *, chance: float = 0.5) -> bool:
            return members > 0 and bool(binom.sf(members - 1, members + others, chance) <= 1 - strict)

        equal, found = ((copies[f"{kind}_members"], copies[f"{kind}_others"]) for kind in ("equal", "found"))
        if people := copies.get("people"):
            several = more(*copies["found_people"], chance=people[0] / sum(people))
        else:
            several = more(*found)
        return (equal[0] > 0 and equal[1] == 0) or more(*equal) or several

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        attacks = {found.attack.name: found.to_json() for found in self.outcomes}
        head = {"format": FORMAT, "curator_only": True, **self.facts, "leak": self.leak, "best": self.best.to_json()}
        return {**head, "attacks": attacks, **self.asked(), "notes": list(self.notes)}

    def gated(self, limit: Limit | None) -> ImagesAttack:
        """Add the verdict of a gate, if there is one; a copied member is above any limit."""
        if limit is None:
            return self
        return dataclasses.replace(self, gate=limit.judge(self.outcomes, self.best, COPIES, copied=self.copied))

    def __str__(self) -> str:
        return "\n".join(self.page())

    def page(self) -> list[str]:
        """Return the result as lines of plain words, for a reader who has never heard of such attacks."""
        facts, table = self.facts, [("attack", "AUC", "found at 1% false alarms")]
        for found in self.outcomes:
            if found.result is not None:
                low, high = found.result.auc_interval
                rate, ends = found.result.tpr_at_fpr[RATE], found.result.tpr_intervals[RATE]
                shown = "-" if rate is None or ends is None else f"{rate:.1%} [{ends[0]:.1%}, {ends[1]:.1%}]"
                table.append((found.attack.name, f"{found.result.auc:.3f} [{low:.3f}, {high:.3f}]", shown))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
        skipped = [f"  {found.attack.name}: {found.skipped}" for found in self.outcomes if found.skipped is not None]
        return [
            f"Was {facts['synthetic']} made from the images of {facts['members']}?",
            "",
            *self._verdict(),
            "",
            f"{facts['num_members']:,} images that are said to have been used (members) and {facts['num_others']:,} "
            f"that were not (others) were mixed. {self.best.attacks} attacks saw {facts['num_samples']:,} synthetic "
            f"images and {facts['num_reference']:,} reference images, and gave each mixed image a score: higher = was "
            "used.",
            "",
            *rows,
            "",
            "AUC: how often a member scores higher than one of the others; a guess has 0.5. The right column: the "
            "share of members that score higher than 99% of the others; a guess finds 1%. The brackets hold for all "
            f"attacks together with {self.best.confidence:.3g} confidence (Bonferroni), since the best of many looks "
            "good by chance.",
            "",
            self._nearest(),
            *(["", "Not run:", *skipped] if skipped else []),
            "",
            *(f"note: {note}" for note in self.notes),
            *self.lines(),
        ]

    def _verdict(self) -> list[str]:
        best, areas = self.best, self.best.auc
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
        ends = [found.result.auc_interval[1] for found in self.outcomes if found.result is not None]
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
