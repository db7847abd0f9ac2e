"""A rehearsal and its page, on which people choose who do not read tables: a slider over epsilon, a switch of units.

Everything on the page is public: stand-ins, what was made of them, and facts that a release declares. Without a script
it is a list of all choices; the script of the page only hides those that are not chosen.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from idpgan.data.images import Images
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit, number_to_json
from idpgan.privacy.risk import Risk, percent
from idpgan.report.page import TEMPLATES, Picture, Table, lay_out, render_template

FORMAT = "idpgan rehearsal 1"
TIMES = (1, 2, 5, 10)  # the same release so often
_ALL = "Accuracy of a small CNN that the images taught; the most that any attack finds at 1 % and 0.1 % false alarms"
_CELLS = 30  # images of a picture
_COLUMNS, _MOST_COLUMNS = 6, 10  # or as many as there are classes
_PROTECTED = {
    Unit.IMAGE: "one image",
    Unit.PERSON: "all images of a person",
    Unit.PHOTO: "all faces of a photo",
}
_ASKED = {  # of a record, by unit: what the attacker is asked, and what is found
    Unit.IMAGE: ("whether one given image was used", "of the images that were used", "which of two images was used"),
    Unit.PERSON: (
        "whether one given person is on the images",
        "of the people who are on them",
        "which images a person has",
    ),
    Unit.PHOTO: ("whether one given photo was used", "of the photos that were used", "which of two photos was used"),
}
_MEASURED = (  # `gaussian`, one CNN; docs/guide/which-method.md says how
    ("1,060 photos of faces, eyes in place, unit person", "3", "55 %", "57, 65 %"),
    ("the same", "10", "59 %", "64 %"),
    ("2,001 photos of faces, unit image", "3", "67 %", "73 %"),
    ("8,089 photos of faces, eyes in no fixed places, unit image", "1", "70 %", "76 %"),
    ("the same", "10", "88 %", "81 %"),
    ("54,000 written digits of 28 x 28, unit image", "1", "76 %", "93 %"),
    ("the same", "10", "84 %", "94 %"),
    ("1,295 written digits of 8 x 8, unit image", "1", "31 %", "80 %"),
    ("the same", "10", "48 %", "90 %"),
)


@dataclass(frozen=True)
class Repeated:
    """The price of making the same release several times: epsilon in all, at the delta of one, and the risk."""

    times: int
    epsilon: float
    risk: Risk

    @classmethod
    def of(cls, events: Sequence[Event], times: int, delta: float) -> Repeated:
        """Compute it of all charges of one release."""
        several = tuple(event.repeated(event.count * times) for event in events)
        return cls(times, compose_epsilon(several, delta), Risk.of(several))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"times": self.times, "epsilon": number_to_json(self.epsilon), "risk": self.risk.to_json()}


@dataclass(frozen=True)
class Rehearsed:
    """What came of one epsilon.

    Attributes:
        accuracy: Of the classifier that generated images taught, on stand-ins that nothing was trained on; None for
            unlabeled images, or a method that releases a classifier: its own.
        accuracy_std: Over its fits; None for one.
        kid: To those stand-ins; None for a classifier. Compare within one rehearsal only.
        repeated: What the release costs once, and so often as `TIMES` says; empty where nothing is proven.
        seconds: How long training and sampling took.
        shown: Some of what was generated; None for a classifier.
    """

    unit: Unit
    relation: Relation
    epsilon: float
    delta: float
    accuracy: float | None
    accuracy_std: float | None
    kid: float | None
    repeated: tuple[Repeated, ...]
    seconds: float
    shown: Images | None = None

    @property
    def risk(self) -> Risk | None:
        """What any attack finds at most; None where nothing is proven."""
        return self.repeated[0].risk if self.repeated else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict, without the images."""
        kept = {key: value for key, value in vars(self).items() if key not in ("shown", "repeated")}
        found = {key: number_to_json(value) if isinstance(value, float) else value for key, value in kept.items()}
        risk = self.risk and self.risk.to_json()
        return {**found, "risk": risk, "repeated": [times.to_json() for times in self.repeated]}


@dataclass(frozen=True)
class Rehearsal:
    """The rehearsal of a config.

    Attributes:
        stand_ins: What stood in for the data, in words.
        majority: Accuracy of one constant answer; None for unlabeled images.
        real: Accuracy that the stand-ins themselves teach; None where there is none.
        rows: One for each unit and epsilon, in their order.
        shown: Some of the stand-ins.
        chosen: The epsilon of the config.
    """

    method: str
    stand_ins: str
    num_private: int
    majority: float | None
    real: float | None
    rows: tuple[Rehearsed, ...]
    shown: Images
    chosen: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict, without the images."""
        table = {key: value for key, value in vars(self).items() if key not in ("rows", "shown", "chosen")}
        return {**table, "rows": [row.to_json() for row in self.rows]}


def some_of(images: Images) -> Images:
    """Return the images of a picture: a column for each class in turn where there are some."""
    import torch

    count, num = max(len(images.classes), 1), len(images)
    if images.labels is None:
        return images.select(torch.arange(min(_CELLS, num)))
    columns = _columns(count)
    place = torch.arange(_CELLS // columns * columns)
    kinds = place % columns % count
    turns = place // columns * max(columns // count, 1) + place % columns // count
    counts = torch.bincount(images.labels, minlength=count)
    starts = counts.cumsum(0) - counts
    index = starts[kinds] + turns % counts[kinds].clamp(min=1)
    return images.select(images.labels.argsort(stable=True)[index.clamp(max=num - 1)])


def _columns(classes: int) -> int:
    return min(classes * max(_COLUMNS // classes, 1), _MOST_COLUMNS)


# The page -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One epsilon and unit as the page shows it.

    Attributes:
        name: Of the place to jump to.
        protected: What the unit protects, in words.
        picture: Of what was generated; None for a classifier.
        useful: Sentences on use, with the share that the bar shows and the mark on it; None without an accuracy.
        risky: The same of the risk; None where nothing is proven.
        repeated: What repeating costs; None where nothing is proven.
        said: What a screen reader says of it.
    """

    name: str
    unit: str
    epsilon: str
    protected: str
    picture: Picture | None
    useful: Bar | None
    risky: Bar | None
    repeated: Table | None
    said: str


@dataclass(frozen=True)
class Bar:
    """A share in [0, 1] as a large figure and a bar, a mark on the bar, and what both mean, one paragraph each."""

    figure: str
    share: float
    mark: float
    text: Sequence[str]


def rehearsal_page(done: Rehearsal) -> str:
    """Return the HTML of a rehearsal's page, which loads nothing; every text of it is escaped."""
    script = TEMPLATES.joinpath("rehearsal.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    epsilons = list(dict.fromkeys(row.epsilon for row in done.rows))
    units = {str(row.unit): _PROTECTED[row.unit] for row in done.rows}
    start = min(range(len(epsilons)), key=lambda index: abs(epsilons[index] - done.chosen))
    return render_template(
        "rehearsal.html",
        done=done,
        choices=[_choice(row, done) for row in done.rows],
        epsilons=[f"{epsilon:g}" for epsilon in epsilons],
        start=start,
        units=units,
        stand_ins=_picture(done.shown, f"of the stand-ins, {done.stand_ins}"),
        columns=_columns_in_words(done.shown),
        everything=rehearsal_table(done),
        measured=_measured(),
        format=FORMAT,
        script=script,
        scripts=f"; script-src 'sha256-{digest}'",
    )


def _choice(row: Rehearsed, done: Rehearsal) -> Choice:
    epsilon, protected = f"{row.epsilon:g}", _PROTECTED[row.unit]
    picture = None if row.shown is None else _picture(row.shown, f"drawn at epsilon {epsilon}, {protected} protected")
    useful, risky = _useful(row, done), _risky(row)
    said = [f"Epsilon {epsilon}, {protected} protected"]
    said += [f"what the pictures teach is {useful.figure} of the time"] if useful else []
    said += [f"the surest attacker is right {percent(risky.share)} of the time"] if risky else []
    return Choice(
        f"{row.unit}-{epsilon}",
        str(row.unit),
        epsilon,
        protected,
        picture,
        useful,
        risky,
        _repeated(row),
        ", ".join(said),
    )


def _useful(row: Rehearsed, done: Rehearsal) -> Bar | None:
    if row.accuracy is None:
        return None
    taught = "The released classifier" if row.shown is None else "A program that learned from these pictures alone"
    compared = [f"always the same answer: {_rounded(done.majority)}"] if done.majority is not None else []
    compared += [f"learned from the stand-ins themselves: {_rounded(done.real)}"] if done.real is not None else []
    text = f"{taught} names the class of a new image rightly {_rounded(row.accuracy)} of the time"
    return Bar(
        f"right {_rounded(row.accuracy)}",
        row.accuracy,
        done.majority or 0.0,
        [text + (f" ({'; '.join(compared)})." if compared else ".")],
    )


def _risky(row: Rehearsed) -> Bar | None:
    """Return what the surest attacker knows, of the law of the charges."""
    if row.risk is None:
        return None
    figure, (whether, found, which) = f"right at most {percent(row.risk.best_guess)}", _ASKED[row.unit]
    asked = whether if row.relation is Relation.ZERO_OUT else which
    guess = (
        f"Asked {asked}, the surest attacker there can be is right at most {percent(row.risk.best_guess)} of the time. "
        "A coin: 50 %."
    )
    if row.relation is not Relation.ZERO_OUT:
        return Bar(figure, row.risk.best_guess, 0.5, [guess])
    finds = f"Allowed to accuse 1 % of the others falsely, they find at most {percent(row.risk.found[0.01])} {found}. "
    return Bar(figure, row.risk.best_guess, 0.5, [guess, finds + "By chance: 1 %."])


def _repeated(row: Rehearsed) -> Table | None:
    if not row.repeated:
        return None
    rows = [
        ("once" if each.times == 1 else f"{each.times} times", f"{each.epsilon:.3g}", percent(each.risk.best_guess))
        for each in row.repeated
    ]
    caption = "The same release made again, each time with new noise"
    return Table(caption, ("released", "epsilon in all", "the surest attacker is right"), rows)


def _picture(images: Images, what: str) -> Picture:
    return lay_out(images.images, _columns(max(len(images.classes), 1)), alt=f"{len(images)} images {what}")


def _rounded(share: float) -> str:
    return f"{100 * share:.0f} %"


def _columns_in_words(images: Images) -> str:
    classes, columns = images.classes, _columns(max(len(images.classes), 1))
    return f"Columns in turn: {', '.join(classes[:columns])}." if classes and images.labels is not None else ""


def rehearsal_table(done: Rehearsal) -> Table:
    """Return all numbers, a row for each unit and epsilon."""
    several = len({row.unit for row in done.rows}) > 1
    rows = []
    for row in done.rows:
        spread = f" ± {row.accuracy_std:.1%}" if row.accuracy_std else ""
        risk = ("100 %",) * 3 if row.risk is None else tuple(most for _, most, _ in row.risk.rows())
        useful = "" if row.accuracy is None else f"{row.accuracy:.1%}{spread}"
        unit = (str(row.unit),) if several else ()
        rows.append((f"{row.epsilon:g}", *unit, useful, "" if row.kid is None else f"{row.kid:.4f}", *risk))
    unit = ("unit",) if several else ()
    return Table(_ALL, ("epsilon", *unit, "accuracy", "KID", "found at 1 %", "at 0.1 %", "guessed"), rows)


def _measured() -> Table | None:
    head = ("images", "epsilon", "rehearsal", "real run")
    return Table("Accuracy that rehearsals of gaussian foretold, and that of real runs", head, _MEASURED)
