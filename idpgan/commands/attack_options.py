"""The options of ``idpgan attack``, for runs, for images of any tool, and for publications."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from idpgan.checks import whole
from idpgan.commands.command import RANGE, Device, given, option, refuse_below
from idpgan.device import check_device
from idpgan.errors import InputError

if TYPE_CHECKING:
    from idpgan.attacks.gate import Limit


@dataclass(frozen=True)
class AttackOptions:
    """How to attack."""

    attacks: tuple[str, ...] = option(("all",), "By name, several times, or all.", "--attack", metavar="NAME")
    members: Path | None = option(None, "Images of any tool: those that they were made from.", metavar="DIR|FILE.npz")
    others: Path | None = option(None, "Then also: images of the same kind that were not used.", metavar="DIR|FILE.npz")
    originals: Path | None = option(None, "Of a publication or obfuscation: what it was made from.", metavar="DIR")
    reference: Path | None = option(
        None, "A run on other images, whose generator calibrates; with --members other real images.", metavar="RUN|DIR"
    )
    train_reference: bool = option(False, "Train such a generator on test and spare holdout images.")
    shadows: int = option(0, "Retrain so many generators with and without the most exposed records; even, >= 4.")
    samples: int | None = option(None, "Images to draw; default: as many as are private, 10,000 .. 60,000.")
    most: int = option(10_000, "Members and non-members judged, at most.")
    most_costly: int = option(1_000, "The same where every image is optimized for.")
    confidence: float = option(0.95, "Of each interval.")
    seed: int = option(0, "Of generated images and attacks.")
    data_root: Path | None = option(None, "Where the data set lies now (data.root).")
    pixel_range: str = option("auto", f"With --members: {RANGE}", "--range")
    out: Path | None = option(None, "With --members: JSON file to write.")
    fail_above: str | None = option(None, "A gate: leak, or at most TPR at an FPR of 0.01 or 0.001.", metavar="TPR@FPR")
    upper_end: bool = option(False, "With TPR@FPR: hold upper ends of intervals against it.")
    riskiest: int = option(0, "Name so many members that are found most easily.")
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_device(self.device, "--device")
        whole(self.seed, "--seed")
        if self.shadows and (self.shadows < 4 or self.shadows % 2):
            raise InputError(f"--shadows {self.shadows} must be even and at least 4: half of them know each record.")
        if self.members is None and (unfit := given(self, "out", "pixel_range")):
            raise InputError(f"{unfit[0]} is for --members: a run's images are bytes, its result is in attack.json.")
        if not 0 < self.confidence < 1:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1).")
        refuse_below(self, samples=3, most=2, most_costly=2, riskiest=0)
        if self.upper_end and self.fail_above is None:
            raise InputError("--upper-end is for a gate: give --fail-above TPR@FPR too.")
        _ = self.limit
        if self.reference is not None and self.train_reference:
            raise InputError("--reference and --train-reference exclude each other: take one of them.")

    @property
    def limit(self) -> Limit | None:
        """What the gate lets through; None without one."""
        if self.fail_above is None:
            return None
        from idpgan.attacks.gate import Limit

        return Limit.parse(self.fail_above, self.upper_end)
