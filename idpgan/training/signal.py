"""The largest possible signal of a release against its noise, known from the config and the declared N alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LEAST = 1.0  # below this figure the noise on a class is longer than the longest sum of its records


@dataclass(frozen=True)
class Signal:
    """The signal-to-noise figure of a run; docs/reference/signal.md has formula and threshold.

    A record adds a vector of length at most 1 to the sum of its class, so the n records of a class add up to at most n.
    The figure is that length over the expected length of the noise on it: an upper bound, whatever the images are.

    Attributes:
        records: n, declared records (images, or people) per declared class.
        classes: Declared classes, 1 without.
        noise: Expected length of the noise on the sum of a class, in records.
        source: What the noise is on: "the release" or "the DP-SGD steps".
        record: "images" or "people".
    """

    records: float
    classes: int
    noise: float
    source: str
    record: str = "images"

    @property
    def figure(self) -> float:
        """Signal / noise."""
        return self.records / self.noise if self.noise > 0 else math.inf

    @property
    def warning(self) -> str | None:
        """Return a sentence that the result must be noise, and what to change; None if the figure is high enough."""
        if self.figure >= LEAST:
            return None
        few = math.floor(self.classes * self.figure)
        ways = []
        if self.classes > 1:
            ways.append(f"at most {few} classes" if few > 1 else "no classes (model.conditional = false)")
        ways.append(f"about {1 / self.figure:.2g} times as many {self.record}")
        if self.record == "people":
            ways.append('privacy.unit = "image", if a person needs no more')
        ways += ["a larger epsilon", "public images (data.public, data.public_root)"]
        where = f" in each of {self.classes} classes" if self.classes > 1 else ""
        return (
            f"the result will be noise: {self.records:.3g} {self.record}{where} against the noise of {self.source}, "
            f"which is as long as {self.noise:.3g} of them (signal to noise {self.figure:.2g}, least {LEAST:g}). "
            "What helps: "
            f"{'; '.join(ways)}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "figure": self.figure if math.isfinite(self.figure) else None,
            "least": LEAST,
            "records_per_class": self.records,
            "classes": self.classes,
            "noise": self.noise,
            "source": self.source,
            "warning": self.warning,
        }
