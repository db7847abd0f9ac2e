"""The meaning of ``--method best`` and of `idpgan.fit`: a generator by what is public of the data.

The rules follow the package's own tables (README, docs/methods/teacher.md, docs/methods/gaussian.md,
docs/reference/signal.md), each of which names its data, epsilon and seeds. No private image is read, so the choice
costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from idpgan.synthesis import starter
from idpgan.synthesis.starter import Facts, Sections

MANY, SOME = 5_000, 1_000  # private images of a class from which on a rule holds: where it was measured, rounded down


class Choice(NamedTuple):
    """A method with its settings, and why it is proposed."""

    method: str
    sections: Sections
    why: str


class _Rule(NamedTuple):
    """The first rule that holds is the one."""

    holds: Callable[[Facts], bool]
    propose: Callable[[Facts], Sections]
    why: str


_RULES = (
    _Rule(
        lambda facts: facts.handwriting and facts.num_classes > 1 and facts.per_class >= MANY,
        starter.aggregate,
        f"handwriting, {MANY:,} images of a class or more: a network that matches noisy sums, and a teacher (MNIST: "
        "95.9, 96.9 and 97.5 % at epsilon 0.3, 1 and 10; evolution 89.4 % at 1)",
    ),
    _Rule(
        lambda facts: facts.num_classes > 1 and facts.per_class >= SOME,
        starter.gaussian_with_teacher,
        f"classes of {SOME:,} images or more: a normal distribution a class, and a teacher (photos of faces: 79.6 and "
        "83.9 % at epsilon 1 and 10, 76.4 and 81.3 % without the teacher, aggregate 80.6 and 82.1 %)",
    ),
    _Rule(
        lambda facts: True,
        starter.gaussian,
        "few images of a class, or no classes: a normal distribution, whose noise is the least (digits of 8 x 8: 80.5 "
        "and 89.7 % at epsilon 1 and 10, where aggregate has 69 and 89 %)",
    ),
)
_OTHERS = {
    "gaussian": starter.gaussian,
    "idp-gan-aggregate": starter.aggregate,
    "evolution": starter.evolution,
}


def best(facts: Facts) -> Choice:
    """Return what is proposed for such data."""
    rule = next(rule for rule in _RULES if rule.holds(facts))
    sections = rule.propose(facts)
    return Choice(str(sections["method"]["name"].value), sections, rule.why)


def alternatives(facts: Facts) -> tuple[Choice, ...]:
    """Return the other methods that have a config to begin with."""
    chosen = best(facts).sections["method"]
    others = [(name, propose(facts)) for name, propose in _OTHERS.items()]
    return tuple(Choice(name, sections, "") for name, sections in others if sections["method"] != chosen)
