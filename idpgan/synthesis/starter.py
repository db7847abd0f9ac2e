"""Configs to begin with, from what is public of the data: what `idpgan init` writes and `idpgan.fit` trains.

One commented template a situation, in `starters/`, with what was measured in its head. A situation is told by public
facts; no private image is read, so the choice costs no privacy. What is computed: delta, unit, batches, moved images,
and the number of coefficients.

A line of a template that begins with ``word|`` is kept where that word holds, with ``!word|`` where it does not; lines
of ``data|`` go to the section [data].
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from idpgan.data.declared import shown
from idpgan.data.load import DataShape
from idpgan.methods import CLASSIFIER
from idpgan.models.drawing import CHOSEN, drawing_of
from idpgan.models.summary_statistics import FEWEST
from idpgan.privacy import Event, Relation, Unit, calibrate
from idpgan.privacy.tradeoff import gaussian_mu
from idpgan.synthesis.moments import COUNT_SHARE
from idpgan.synthesis.template import TEMPLATE_SHARE

EPSILON = 3.0
BEST = "best"
_STARTERS = Path(__file__).parent / "starters"
_OF_METHOD = {
    "diffusion": "diffusion",
    "evolution": "evolution",
    "idp-gan-aggregate": "handwriting",
    CLASSIFIER: "classifier",
    "traits": "portraits",
}
NEEDS = {  # what a method asks, where images are not such ones
    "traits": "the ten digits, or faces whose eyes are in place, beside portraits of nobody: idpgan prepare PHOTOS "
    "FACES --size 48 --align eyes && idpgan people portraits --num 6000 --size 48, then idpgan init FACES --base "
    "portraits --method traits",
}
_TAUGHT = 1_000  # images of a class from which on a teacher was measured
_MANY = (
    20_000  # private images from which on a teacher takes more steps, grey ones have light, a network learns writing
)
_ALONE, _FAINT = 260, 1000  # `Facts.signal` up to which nothing was shown to add to portraits; to which a law adds less
_FAINT_DIGITS = 600  # `Facts.signal` up to which a network learns digits no better than the pen alone is asked for them
_MANY_CLASSES, _PLACED, _PLACED_SHARE = 20, 300, 0.25  # so many classes of so many images, and what places them costs
_MOST_BYTES = 1 << 25  # of public images in a release
_WIDTH, _LONGEST = 30, 120  # where comments begin, and where lines end
_ASKED = re.compile(r"((?:!?[a-z]+\|)*) ?(.*)")
_COMMENT = re.compile(r"^([a-z_]+ = \S.*?) +# (.*)$", re.MULTILINE)


class Setting(NamedTuple):
    """A value and its reason in a few words, empty where the key says it; and whether nobody declared it."""

    value: object
    why: str = ""
    found: bool = False


@dataclass(frozen=True)
class Facts:
    """What is public about the data, as declared.

    Attributes:
        shape: Sizes, image shape, classes.
        per_person: Mean number of images of a person or photo; None where the data has no identities.
        handwriting: Whether images are strokes, as the source or the user says; else photographs.
        aligned: Whether the eyes of all faces are in the same places, as the source or `idpgan prepare` says.
        epsilon: That is asked for: how many numbers of an image stand above the noise depends on it.
        digits: Whether they are the ten digits too; numbers as names of classes do not say so.
        portraits: Whether the public images are portraits of `idpgan people`.
    """

    shape: DataShape
    per_person: float | None
    handwriting: bool
    aligned: bool = False
    epsilon: float = EPSILON
    digits: bool = False
    portraits: bool = False

    def of_handwriting(self) -> Facts:
        """Return the facts where somebody says that images are strokes; then classes called 0 to 9 are the digits."""
        digits = self.digits or set(self.shape.classes) == set("0123456789")
        return dataclasses.replace(self, handwriting=True, digits=digits)

    @property
    def num_classes(self) -> int:
        """Number of classes, at least 1."""
        return max(len(self.shape.classes), 1)

    @property
    def per_class(self) -> int:
        """Private images of each class, if all classes had equally many."""
        return self.shape.num_private // self.num_classes

    @property
    def signal(self) -> float:
        """A class of people, or of images, times mu of the Gaussian noise: how far its mean stands above the noise."""
        terms = privacy(self)
        mu = gaussian_mu(*(float(str(terms[key].value)) for key in ("epsilon", "delta")))
        return mu * self.per_class / (self.per_person or 1)

    @property
    def of_photos(self) -> bool:
        """Whether public images lie beside photos of anything but aligned faces, and are none of portraits."""
        return bool(self.shape.sizes.public) and not (self.aligned or self.portraits or self.handwriting)

    @property
    def public_suffice(self) -> bool:
        """Whether so many public photos lie beside classes that a teacher can choose those of each."""
        return self.of_photos and self.num_classes > 1 and self.shape.sizes.public >= CHOSEN * self.num_classes

    @property
    def of_portraits(self) -> bool:
        """Whether portraits lie beside aligned faces, and are enough to be asked how the faces look."""
        return self.aligned and self.portraits and self.shape.sizes.public >= FEWEST

    @property
    def of_pen(self) -> bool:
        """Whether the images are the ten digits, of which a pen draws public ones."""
        return self.digits and self.num_classes > 1 and not self.shape.sizes.public

    @property
    def portraits_suffice(self) -> bool:
        """Whether portraits, as they are, teach as much as what is proposed: so much noise is there."""
        return self.aligned and self.portraits and self.signal < _ALONE


@dataclass(frozen=True)
class Starter:
    """A template that is filled in.

    Attributes:
        name: Its situation.
        text: TOML with comments, without [data].
        data: Lines of [data].
    """

    name: str
    text: str
    data: str

    @property
    def table(self) -> dict[str, Any]:
        """The settings, those of [data] among them."""
        data = tomllib.loads(f"[data]\n{self.data}")["data"]
        return tomllib.loads(self.text) | ({"data": data} if data else {})


def has_template(method: str, facts: Facts) -> bool:
    """Tell whether a method has a template for such images."""
    if method == "idp-gan-aggregate":  # a network for strokes draws ghosts of faces
        return facts.handwriting and facts.num_classes > 1
    if method == CLASSIFIER:
        return facts.num_classes > 1
    if method == "traits":
        return facts.of_portraits or facts.of_pen
    return method in ("gaussian", *_OF_METHOD)


def starter_for(facts: Facts, method: str = BEST, base: Mapping[str, object] | None = None) -> Starter:
    """Fill in the template of a situation, or of a method that has one.

    Args:
        base: Of a public network that is adapted: ``base``, ``trained``, ``share`` and ``clip`` of that template.
    """
    shape, many = facts.shape, facts.shape.num_private >= _MANY
    large = facts.num_classes > 1 and facts.per_class >= _TAUGHT
    name = (
        "pen"
        if method == "traits" and facts.of_pen
        else _OF_METHOD.get(method) or _situation(facts, of_network=method == BEST and large and many)
    )
    chosen = name == "photos" and facts.public_suffice
    teacher, writing = chosen or (large and name != "many-classes"), large and facts.handwriting
    words = {
        "aligned": facts.aligned,
        "base": base is not None,
        "chosen": chosen,
        "many": many and teacher,
        "pen": facts.digits and teacher and not shape.sizes.public,
        "move": facts.of_photos and not shape.classes,
        "numerous": many,
        "public": shape.sizes.public > 0,
        "taught": teacher,
        "writing": writing,
    }
    lit = (shape.image_shape[0] == 3 or many) and not words["move"]
    of_photos = "public-photos" if chosen else "handwriting" if writing else "photos" if lit else "few-photos"
    drawing = of_photos if name == "photos" else name
    values = {
        "conditional": bool(shape.classes),
        "drawing": drawing,
        "simulator": "public" if shape.sizes.public else "fonts" if facts.handwriting else "faces",
        "coefficients": _coefficients(facts, name, drawing, teacher),
        "moved": min(shape.sizes.public, _MOST_BYTES // math.prod(shape.image_shape)) // facts.num_classes,
        "candidates": min(max(facts.per_class // 20, 20), 1000),
        "moments": 24 if shape.image_shape[0] == 3 else 48,
        "width": 64 if min(shape.image_shape[1:]) > 16 else 16,
        "batch": -(-250 // facts.num_classes) * facts.num_classes,
        **(base or {}),
    }
    return _filled(name, words, {key: shown(value) for key, value in values.items()}, facts)


def _situation(facts: Facts, *, of_network: bool) -> str:
    """Return the name of the template: the first whose facts hold; ``of_network``: writing is for the network."""
    if facts.aligned:
        return "portraits" if facts.of_portraits and facts.signal < _FAINT else "faces"
    if facts.handwriting:
        written = "handwriting" if of_network else "photos"
        asked = facts.of_pen and facts.per_class >= _TAUGHT and facts.signal < _FAINT_DIGITS
        return "pen" if asked else written
    return "many-classes" if facts.num_classes >= _MANY_CLASSES and facts.per_class >= _PLACED else "photos"


def _filled(name: str, words: Mapping[str, bool], values: Mapping[str, str], facts: Facts) -> Starter:
    """Keep the lines of a template whose words hold, and put the values in."""
    kept: dict[str, list[str]] = {"": [], "data": []}
    for line in (_STARTERS / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        prefix, rest = _ASKED.fullmatch(line).groups()  # type: ignore[union-attr]  # every line matches
        conditions = [word for word in prefix.split("|") if word not in ("", "data")]
        if all(words[word.removeprefix("!")] != word.startswith("!") for word in conditions):
            kept["data" if "data|" in prefix else ""].append(rest)
    terms = privacy(facts)
    blocks = {
        "privacy": section("privacy", terms),
        "terms": section("privacy", {key: terms[key] for key in ("epsilon", "delta")}),
    }
    text, data = (Template("\n".join(lines)).substitute({**values, **blocks}) for lines in kept.values())
    text, data = (_COMMENT.sub(lambda match: f"{match[1]:<{_WIDTH}} # {match[2]}", part) for part in (text, data))
    return Starter(name, re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n", data)


def section(name: str, settings: Mapping[str, Setting]) -> str:
    """Return a section of TOML, each setting with its reason."""
    lines = [f"[{name}]"]
    for key, setting in settings.items():
        value = shown(setting.value)
        line = f"{key} = {value.replace('e-0', 'e-') if isinstance(setting.value, float) else value}"
        with_why = f"{line:<{_WIDTH}} # {setting.why}" if setting.why else line
        lines += [with_why] if len(with_why) <= _LONGEST or not setting.why else [f"# {setting.why}", line]
    return "\n".join(lines)


def privacy(facts: Facts) -> dict[str, Setting]:
    """Return the [privacy] section that a release of sums begins with."""
    exponent = math.ceil(math.log10(10 * facts.shape.num_private) - 1e-9)
    settings = {
        "epsilon": Setting(facts.epsilon, "choose it: 1 protects much, 3 usually, 10 little"),
        "delta": Setting(float(f"1e-{max(exponent, 5)}"), "below 1/N; usually the smaller of 1e-5 and 1 / (10 N)"),
    }
    if facts.per_person is None:
        return settings | {"unit": Setting("image", "one image is protected; a person who is on many is not")}
    most = math.ceil(facts.per_person)
    if facts.shape.of_photos:
        return settings | {
            "unit": Setting("photo", "all faces cut out of a photo are protected; a person on many photos is not"),
            "most_per_person": Setting(most, "faces of a photo that count; noise grows with it"),
        }
    return settings | {
        "unit": Setting("person", 'all images of a person are protected; "image" protects one, with less noise'),
        "most_per_person": Setting(most, "images of a person that count; noise grows with it"),
    }


def _coefficients(facts: Facts, name: str, drawing: str, teacher: bool) -> int:
    """Return ``model.latent_dim``: a quarter more than make an even share of the variance stand above the noise edge.

    ``1 / q = sqrt(2 q R) s / N`` for R classes, N records and noise of standard deviation s on a second moment
    (`synthesis.shrinkage`); two blocks of q / 2 under mirror symmetry have an edge sqrt(2) lower. On a group of photos
    kept for choosing, Wasserstein errors were least, and flat, at 1.3 to 1.5 times as many. In 40 to 240 by 40s. At one
    contrast twice as many are of use, in color not more than 120 (benchmarks/RESULTS.md, "Many classes", "Clothes").
    """
    of_sums = name in ("faces", "photos", "many-classes")
    drawn = (
        drawing_of(drawing, "gaussian") if of_sums else drawing_of("faces" if facts.aligned else "plain", "diffusion")
    )
    share = 0.5 if teacher or not of_sums else 1.0
    if of_sums and drawn.shape:
        share -= _PLACED_SHARE if drawn.detail else TEMPLATE_SHARE
    epsilon, delta = (float(str(privacy(facts)[key].value)) for key in ("epsilon", "delta"))
    noise = calibrate(lambda multiplier: [Event("gaussian", Unit.IMAGE, Relation.ZERO_OUT, multiplier)], epsilon, delta)
    records = facts.shape.num_private / (facts.per_person or 1)
    scale = math.sqrt((1 if name == "faces" else 2) * facts.num_classes / share) / (1 - COUNT_SHARE)
    count = (2.5 if drawn.light else 1.25) * (noise * scale / records) ** (-2 / 3) - 2 * drawn.shape
    most = 120 if drawn.light and facts.shape.image_shape[0] == 3 else 240
    return min(max(int(count) // 40 * 40, 40), most, math.prod(facts.shape.image_shape) * 5 // 8)
