"""A gate before a publication: what attacks may find at most, and the exit code that says whether they found more.

The verdict is a fact about the private images without noise, as the attacks are: for the curator only. Who changes
settings until it says "passed" chooses them by private images, which no epsilon covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from idpgan.attacks.evaluate import LEAST_NON_MEMBERS
from idpgan.attacks.outcome import Best, Outcome, corrected, judged, least_images
from idpgan.errors import InputError

LEAK = "leak"  # the limit that nothing may be found
CODES = {"passed": 0, "failed": 3, "undecided": 4}  # 1 is what a crash ends with, 2 bad input
NOT_PRIVACY = (
    '"passed" is not evidence of privacy: it says that these attacks, on these images, found no more than was allowed.',
    "the verdict, its exit code and its log are facts about private images without noise: for the curator only. "
    "Running again until it passes is a choice by private images, which no epsilon covers.",
)


@dataclass(frozen=True)
class Verdict:
    """What a gate says.

    Attributes:
        limit: As it was asked for.
        name: A key of `CODES`.
        reasons: What was found, a clause each.
    """

    limit: str
    name: str
    reasons: tuple[str, ...]

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return CODES[self.name]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"limit": self.limit, "verdict": self.name, "exit_code": self.code, "reasons": list(self.reasons)}

    def lines(self) -> list[str]:
        """Say it in words."""
        head = f"GATE {self.name.upper()} (exit code {self.code}), limit {self.limit}: {'; '.join(self.reasons)}."
        return ["", head, *(f"note: {note}" for note in NOT_PRIVACY)]


@dataclass(frozen=True)
class Limit:
    """What attacks may find at most: nothing, or a share of the members at a rate of false alarms.

    Attributes:
        tpr: The share; None where nothing may be found.
        fpr: The rate, one of `LEAST_NON_MEMBERS`.
        upper_end: Whether the upper end of each interval is held against the share, and not what was measured.
    """

    tpr: float | None = None
    fpr: float = 0.01
    upper_end: bool = False

    @classmethod
    def parse(cls, text: str, upper_end: bool = False) -> Limit:
        """Read "leak" or "TPR@FPR".

        Raises:
            InputError: If it is neither, or a limit that a guess exceeds or that nothing can.
        """
        if text == LEAK:
            if upper_end:
                raise InputError(f"--upper-end goes with --fail-above TPR@FPR, and not with {LEAK}.")
            return cls()
        try:
            tpr, fpr = map(float, text.split("@"))
        except ValueError:
            raise InputError(f"--fail-above {text[:40]} must be {LEAK} or TPR@FPR, such as 0.05@0.01.") from None
        if fpr not in LEAST_NON_MEMBERS:
            known = " or ".join(f"{rate:g}" for rate in LEAST_NON_MEMBERS)
            raise InputError(f"--fail-above {text}: false alarms are measured at a rate of {known}.")
        if not fpr <= tpr < 1:
            raise InputError(f"--fail-above {text}: the share of members must be in [{fpr:g}, 1); a guess has {fpr:g}.")
        return cls(tpr, fpr, upper_end)

    def __str__(self) -> str:
        by = "upper ends of the intervals" if self.upper_end else "as measured"
        return LEAK if self.tpr is None else f"{self.tpr:g}@{self.fpr:g} ({by})"

    def judge(
        self, outcomes: Sequence[Outcome], best: Best | None, further: int = 0, *, copied: bool = False
    ) -> Verdict:
        """Hold what was found against the limit; what too few images leave open is undecided, and does not pass.

        Args:
            outcomes: Of all attacks.
            best: The strongest of them; None if none was run.
            further: Statements that hold together with the attacks' intervals; see `corrected`.
            copied: Whether members, and not others, are copied among the generated images: above any limit.
        """
        above = ["members are copied among the generated images"] if copied else []
        run = [outcome for outcome in outcomes if outcome.scores is not None]
        if best is None:
            unknown = ["no attack was run"]
        elif self.tpr is None:
            unknown = self._too_few(run, best, further)
            above += [f"a leak was found: {best}"] if best.leak else []
        else:
            rates = self._rates(run, corrected(best.attacks, best.confidence, further))
            unknown = [
                f"{name} judged too few others for a rate at {self.fpr:.1%} false alarms, "
                f"{LEAST_NON_MEMBERS[self.fpr]:,} are needed"
                for name, rate in rates
                if rate is None
            ]
            above += [
                f"{name} finds {'up to ' * self.upper_end}{rate:.2%} of the members at {self.fpr:.1%} false alarms"
                for name, rate in rates
                if rate is not None and rate > self.tpr
            ]
        if above:
            return Verdict(str(self), "failed", tuple(above))
        if unknown:
            return Verdict(str(self), "undecided", tuple(unknown))
        smaller = " (a leak was found, smaller than the limit)" if best is not None and best.leak else ""
        return Verdict(str(self), "passed", (f"none of {len(run)} attacks found more{smaller}",))

    def _rates(self, run: Sequence[Outcome], confidence: float) -> list[tuple[str, float | None]]:
        """Return the name of each attack and what it is held to have found; None where that was not measured."""
        rates = []
        for outcome in run:
            if outcome.scores is not None:
                result = judged(outcome.scores, outcome.people, confidence)
                ends = result.tpr_intervals[self.fpr]
                upper = None if ends is None else ends[1]
                rates.append((outcome.attack.name, upper if self.upper_end else result.tpr_at_fpr[self.fpr]))
        return rates

    @staticmethod
    def _too_few(run: Sequence[Outcome], best: Best, further: int) -> list[str]:
        least = least_images(best.attacks, best.confidence, further)
        most = max(len(side) for outcome in run for side in outcome.scores or ())
        return [f"{most} members and others show nothing, even to a sure attack: {least} would"] * (most < least)
