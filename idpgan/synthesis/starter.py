"""What a config begins with: a method's own suggestion, by what is public about the data. `idpgan init` writes it.

A method that can be begun with gives ``suggest(facts) -> Sections`` among its lazy names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from idpgan.data.load import DataShape

STARTER = "gaussian"  # the method that `idpgan init` writes where nobody names one
EPSILON = 3.0


class Setting(NamedTuple):
    """A value and why, in a few words; no words where the key says it."""

    value: object
    why: str = ""


Sections = Mapping[str, Mapping[str, Setting]]  # section -> key -> setting


@dataclass(frozen=True)
class Facts:
    """What is public about the data, as declared.

    Attributes:
        shape: Sizes, image shape, classes.
        per_person: Images of a person in the mean, rounded up; None where nobody knows who is on which image.
        handwriting: Whether images are strokes, as the source says; else photographs.
    """

    shape: DataShape
    per_person: int | None
    handwriting: bool

    @property
    def num_classes(self) -> int:
        """Number of classes, at least 1."""
        return max(len(self.shape.classes), 1)

    @property
    def per_class(self) -> int:
        """Private images for each class, if all were alike."""
        return self.shape.num_private // self.num_classes


def privacy(facts: Facts) -> dict[str, Setting]:
    """Return the [privacy] section that a release of sums begins with."""
    exponent = math.ceil(math.log10(10 * facts.shape.num_private) - 1e-9)
    settings = {
        "epsilon": Setting(EPSILON, "choose it: 1 protects much, 3 usually, 10 little"),
        "delta": Setting(float(f"1e-{max(exponent, 5)}"), "below 1/N"),
    }
    if facts.per_person is None:
        return settings | {"unit": Setting("image", "one image is protected; a person who is on many is not")}
    return settings | {
        "unit": Setting("person", 'all images of a person are protected; "image" protects one, with less noise'),
        "most_per_person": Setting(facts.per_person, "images of a person that count; noise grows with it"),
    }
