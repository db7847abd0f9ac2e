"""What each command takes: one model per command, with its defaults, its help and its checks. Imports nothing heavy.

The command line is made of these models (`idpgan.cli.options`), the jobs take them, and a script fills them in itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from idpgan.device import check_device
from idpgan.errors import InputError

Device = Annotated[
    str, Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
]


@dataclass(frozen=True)
class AttackOptions:
    """How to attack."""

    attacks: Annotated[tuple[str, ...], Option("--attack", metavar="NAME", help="By name, several times, or all.")] = (
        "all",
    )
    reference: Annotated[
        Path | None, Option(metavar="RUN", help="A run on other images: its generator calibrates.")
    ] = None
    train_reference: Annotated[
        bool, Option("--train-reference", help="Train such a generator on test and spare holdout images.")
    ] = False
    samples: Annotated[
        int | None, Option(help="Images to draw; default: as many as are private, 10,000 .. 60,000.")
    ] = None
    most: Annotated[int, Option(help="Members and non-members judged, at most.")] = 10_000
    most_costly: Annotated[int, Option(help="The same where every image is optimized for.")] = 1_000
    confidence: Annotated[float, Option(help="Of each interval.")] = 0.95
    seed: Annotated[int, Option(help="Of generated images and attacks.")] = 0
    data_root: Annotated[Path | None, Option(help="Where the data set lies now (data.root).")] = None
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_device(self.device, "--device")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed} must be at least 0.")
        if not 0 < self.confidence < 1:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1).")
        counts = (("--samples", self.samples, 3), ("--most", self.most, 2), ("--most-costly", self.most_costly, 2))
        for name, number, least in counts:
            if number is not None and number < least:
                raise InputError(f"{name} {number} must be at least {least}.")
        if self.reference is not None and self.train_reference:
            raise InputError("--reference and --train-reference exclude each other: take one of them.")
