"""Starter configs, from what is public of the data: what `idpgan init` writes and `idpgan.fit` trains.

A method with a starter config has ``suggest(facts) -> Sections``, one of the functions here. Which one is proposed for
``--method best`` follows the package's own tables (README, docs/methods/teacher.md, docs/methods/gaussian.md,
docs/reference/signal.md), each of which names its data, epsilon and seeds. No private image is read, so the choice
costs no privacy.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from idpgan.data.load import DataShape
from idpgan.models.drawing import Drawing, drawing_of
from idpgan.privacy import Event, Relation, Unit, calibrate
from idpgan.synthesis.moments import COUNT_SHARE
from idpgan.synthesis.template import TEMPLATE_SHARE

EPSILON = 3.0
_WRITTEN = 1_000  # images of a class from which on writing is brought into place
_SIGNS, _MEMBERS = 20, 300  # so many classes of so many images are brought into place
_PLACED = 0.25  # of the budget, for that
_MANY = 20_000  # private images from which on a teacher takes more steps, and grey ones have light
_MOST_BYTES = 1 << 25  # of public images in a release
_PLAIN = Drawing()


class Setting(NamedTuple):
    """A value and its reason in a few words; the reason is empty where the key says it."""

    value: object
    why: str = ""


Sections = Mapping[str, Mapping[str, Setting]]  # section -> key -> setting


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
    """

    shape: DataShape
    per_person: float | None
    handwriting: bool
    aligned: bool = False
    epsilon: float = EPSILON
    digits: bool = False

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


def privacy(facts: Facts) -> dict[str, Setting]:
    """Return the [privacy] section that a release of sums begins with."""
    exponent = math.ceil(math.log10(10 * facts.shape.num_private) - 1e-9)
    settings = {
        "epsilon": Setting(facts.epsilon, "choose it: 1 protects much, 3 usually, 10 little"),
        "delta": Setting(float(f"1e-{max(exponent, 5)}"), "below 1/N; usually the smaller of 1e-5 and 1 / (10 N)"),
    }
    if facts.per_person is None:
        return settings | {"unit": Setting("image", "one image is protected; a person who is on many is not")}
    if facts.shape.of_photos:
        return settings | {
            "unit": Setting("photo", "all faces cut out of a photo are protected; a person on many photos is not"),
            "most_per_person": Setting(math.ceil(facts.per_person), "faces of a photo that count; noise grows with it"),
        }
    return settings | {
        "unit": Setting("person", 'all images of a person are protected; "image" protects one, with less noise'),
        "most_per_person": Setting(math.ceil(facts.per_person), "images of a person that count; noise grows with it"),
    }


def _coefficients(facts: Facts, share: float, drawn: Drawing = _PLAIN, *, symmetric: bool = False) -> Setting:
    """Return ``model.latent_dim``: a quarter more than make an even share of the variance stand above the noise edge.

    ``1 / q = sqrt(2 q R) s / N`` for R classes, N records and noise of standard deviation s on a second moment
    (`synthesis.shrinkage`); two blocks of q / 2 under mirror symmetry have an edge sqrt(2) lower. On a group of photos
    kept for choosing, Wasserstein errors were least, and flat, at 1.3 to 1.5 times as many. In 40 to 240 by 40s. At one
    contrast twice as many are of use, in color not more than 120 (benchmarks/RESULTS.md, "Many classes", "Clothes").

    Args:
        share: Of the budget, for the sums.
        drawn: How images are drawn: functions of a displacement count too, and coefficients may be at one contrast.
        symmetric: Whether moments that a mirror would negate are left out.
    """
    asked, pixels = privacy(facts), math.prod(facts.shape.image_shape)
    epsilon, delta = (float(str(asked[key].value)) for key in ("epsilon", "delta"))
    noise = calibrate(lambda multiplier: [Event("gaussian", Unit.IMAGE, Relation.ZERO_OUT, multiplier)], epsilon, delta)
    records = facts.shape.num_private / (facts.per_person or 1)
    scale = math.sqrt((1 if symmetric else 2) * facts.num_classes / share) / (1 - COUNT_SHARE)
    more = 2.5 if drawn.light else 1.25
    most = 120 if drawn.light and facts.shape.image_shape[0] == 3 else 240
    count = more * (noise * scale / records) ** (-2 / 3) - 2 * drawn.shape
    return Setting(
        min(max(int(count) // 40 * 40, 40), most, pixels * 5 // 8), "fewer coefficients, less noise, more blur"
    )


def _moments(
    facts: Facts, teacher: Mapping[str, Setting], generator: str
) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Return the settings of [model] and of [method] that say which moments are released, beside such a teacher."""
    share = 1 - (float(str(teacher["teacher_share"].value)) if teacher else 0.0)
    way, method = _way(facts, bool(teacher), generator), {}
    drawn = drawing_of(str(way.value), generator)
    if drawn.shape:
        share -= _PLACED if drawn.detail else TEMPLATE_SHARE
    if drawn.detail:
        method = {"templates": _OF_CLASSES, "template_share": _ROUNDS}
    elif drawn.shape:
        method = {"symmetric": _MIRRORED} if facts.aligned else {"templates": _OF_CLASSES}
    count = _coefficients(facts, share, drawn, symmetric=facts.aligned)
    moved = {"moved": _moved(facts)} if facts.aligned and facts.shape.sizes.public else {}
    return {"latent_dim": count, "drawing": way, **moved}, method


def _way(facts: Facts, taught: bool, generator: str) -> Setting:
    """Return ``model.drawing``."""
    if facts.aligned:
        return _REGISTERED
    if facts.handwriting and facts.num_classes > 1 and facts.per_class >= _WRITTEN:
        return _STROKED
    if generator != "gaussian":
        return _LOOKED_AT
    if not taught and _in_place(facts):
        return _IN_PLACE
    return _LIT if _lit(facts) else _FEW


def _lit(facts: Facts) -> bool:
    """Tell whether contrasts are drawn by themselves: in color, and in grey of many images or classes."""
    many = facts.shape.num_private >= _MANY and not facts.aligned
    return facts.shape.image_shape[0] == 3 or many or _in_place(facts)


def _in_place(facts: Facts) -> bool:
    """Tell whether classes are so many that their things, signs say, are brought into place."""
    seen = not (facts.aligned or facts.handwriting)
    return seen and facts.num_classes >= _SIGNS and facts.per_class >= _MEMBERS


def _moved(facts: Facts) -> Setting:
    """Return ``model.moved``: as many as there are of each class, and no more than make a release large."""
    images = facts.shape.sizes.public // facts.num_classes, _MOST_BYTES // math.prod(facts.shape.image_shape)
    return Setting(min(images[0], images[1] // facts.num_classes), "of each class; these are the images to look at")


_REGISTERED = Setting("faces", "brought into place on a noisy mean face; drawn ones get a shape of their own")
_STROKED = Setting("handwriting", "strokes are brought into place on a noisy mean image; drawn ones are bent back")
_IN_PLACE = Setting("many-classes", "brought into place; contrasts by themselves; fine detail comes from drawn shapes")
_LIT = Setting("photos", "the contrasts of an image are drawn by themselves")
_LOOKED_AT = Setting("photos", "images to look at have .7 of the spread")
_FEW = Setting("few-photos", "images to look at have .7 of the spread")
_OF_CLASSES = Setting("class", "each class has a mean image of its own to be brought into place on")
_MIRRORED = Setting(True, "a face and its mirror image are taken as equally likely, which leaves less noise")
_ROUNDS = Setting(_PLACED, "of the budget, for the mean images of classes, which are noisy where classes are small")


def gaussian(facts: Facts, *, candidates: int = 0) -> Sections:
    """Return the settings of gaussian by size and number of private images.

    With ``candidates`` above 0 half of the budget is for a teacher, which chooses among so many of them.
    """
    teacher = taught(facts, candidates) if candidates else {}
    model, method = _moments(facts, teacher, "gaussian")
    trained = "minutes: its teacher is trained, no network draws" if teacher else "seconds; nothing is trained"
    return {
        "model": {
            "generator": Setting("gaussian", "a normal distribution a class: blurred images, and no network"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            **model,
        },
        "method": {"name": Setting("gaussian", trained), **method, **teacher},
        "privacy": privacy(facts),
    }


def diffusion(facts: Facts) -> Sections:
    """Return the settings of diffusion by size and number of private images."""
    _, height, width = facts.shape.image_shape
    few = facts.shape.num_private <= 4096
    drawn = drawing_of("faces", "diffusion") if facts.aligned else _PLAIN
    terms = {key: setting for key, setting in privacy(facts).items() if key in ("epsilon", "delta")}
    return {
        "model": {
            "generator": Setting("diffusion", "a normal distribution a class, and a network that takes noise away"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "latent_dim": _coefficients(facts, 0.5, drawn),  # the default of method.start_share
            **({"drawing": _REGISTERED} if facts.aligned else {}),
            "width": Setting(16 if height * width <= 16 * 16 else 32, "feature maps: more weights get more noise"),
        },
        "method": {
            "name": Setting("diffusion", "a release of moments, then DP-SGD on what they lack; unit image"),
            **({"symmetric": _MIRRORED} if facts.aligned else {}),
        },
        "privacy": terms,
        "training": {
            "steps": Setting(100 if few else 400, "more take longer, each with more noise"),
            "batch_size": Setting(4096 if few else 2048, "expected; up to so many images all are in every step"),
            "tick_steps": Setting(20 if few else 50),
        },
    }


def evolution(facts: Facts) -> Sections:
    """Return the settings of evolution by size and number of private images."""
    pen = "digits of a pen" if facts.digits else "digits of a pen, no letters: name public images in data.public_root"
    simulator, why = ("fonts", pen) if facts.handwriting else ("faces", "drawn faces")
    if facts.shape.sizes.public:
        simulator, why = "public", "the public images, moved and bent"
    candidates = min(max(facts.per_class // 20, 20), 1000)  # 20 private images of the class for each
    return {
        "model": {
            "generator": Setting("population", "settings of a simulator, chosen by votes; no network is trained"),
            "simulator": Setting(simulator, f'{why}; "faces" or "fonts" are drawn, "public" are your public images'),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "codes": Setting(candidates, "candidates of each class: more are finer, with fewer votes each"),
        },
        "method": {"name": Setting("evolution", "minutes; the private images only vote")},
        "privacy": privacy(facts),
    }


def aggregate(facts: Facts) -> Sections:
    """Return the settings of idp-gan-aggregate, without public images, by size, classes and private images."""
    return _handwriting(facts) if facts.handwriting else _photos(facts)


def taught(facts: Facts, candidates: int) -> dict[str, Setting]:
    """Return the settings of a teacher, for [method] of gaussian and of idp-gan-aggregate.

    Long teaching gained 0.4 to 0.7 points on MNIST, and nothing on 6,308 photos of faces (docs/methods/teacher.md).
    """
    long = {
        "teacher_steps": Setting(400, "more cost time, and no budget"),
        "teacher_batch_size": Setting(5000, "images in each of them, drawn by coins"),
    }
    return {
        "teacher_share": Setting(0.5, "of the budget, for a classifier that chooses among candidates"),
        **(long if facts.shape.num_private >= _MANY else {}),
        "candidates": Setting(candidates, "images drawn for each one that it chooses"),
    }


def _photos(facts: Facts) -> Sections:
    classes = facts.num_classes
    teacher = taught(facts, 8) if classes > 1 else {}
    model, method = _moments(facts, teacher, "refined")
    return {
        "model": {
            "generator": Setting("refined", "a normal distribution a class, and a network that refines it"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            **model,
            "width": Setting(16),
        },
        "method": {
            "name": Setting("idp-gan-aggregate", "one noisy release of sums, then training costs nothing"),
            "features": Setting("photos", "moments that the generator starts at, and wavelet moduli"),
            "moments": Setting(24),
            "fourier": Setting(100),
            "augment": Setting(0.0, "photos are as they lie"),
            "metric": Setting("none"),
            "learning_rate": Setting(3e-4, "a higher one draws stripes"),
            **method,
            **teacher,
        },
        "privacy": privacy(facts),
        "training": {
            "steps": Setting(0, "a few hundred steps of the network have not been seen to help yet"),
            "batch_size": Setting(-(-128 // classes) * classes, "of which training.steps would be made"),
        },
    }


def _handwriting(facts: Facts) -> Sections:
    channels, height, width = facts.shape.image_shape
    large, classes = height * width > 32 * 32, facts.num_classes
    numbers = channels * height * width  # of an image: what a step costs
    many, some = facts.per_class >= 5000, facts.per_class >= 500  # private images of a class
    moments, fourier = (48, 500) if many else (24, 200) if some else (12, 50)
    teaching = classes > 1 and many
    pen = teaching and facts.digits and not facts.shape.sizes.public
    return {
        "model": {
            "generator": Setting("warp", "codes, a small decoder, a random smooth warp"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "latent_dim": Setting(32 if large else 16),
            "codes": Setting(100 if large else 20, "kinds of images per class"),
            "warp": Setting(0.7, "1 is that of handwriting"),
            "width": Setting(16 if height * width <= 16 * 16 else 64),
            **({"drawing": _PEN_TOO if pen else _WIDE} if teaching else {}),
        },
        "method": {
            "name": Setting("idp-gan-aggregate", "one noisy release of sums, then training costs nothing"),
            "features": Setting("random", "of no data at all; public images would be better (data.public_root)"),
            "metric": Setting("fakes"),
            "moments": Setting(max(moments // (2 if channels == 3 else 1), 8), "fewer numbers, less noise in each"),
            "fourier": Setting(fourier),
            "augment": Setting(0.67),
            "level": Setting(0.1, "brightness of the ground: 0 black, 1 white"),
            "learning_rate": Setting(2e-3),
            **(taught(facts, 4) if teaching else {}),
            **({"pretrain_steps": Setting(0, "the network learns from the sums alone")} if pen else {}),
        },
        "privacy": privacy(facts),
        **({"data": _PEN} if pen else {}),
        "training": {
            "steps": Setting(
                4000 if teaching else 3000 if numbers <= 1024 else 1500 if numbers <= 4096 else 1000,
                "more is sharper, up to the noise",
            ),
            "batch_size": Setting(-(-250 // classes) * classes, "generated images a step, a multiple of the classes"),
            "tick_steps": Setting(250),
        },
    }


_PEN = {
    "public": Setting("fonts", "digits of a simulated pen: nobody's handwriting, and no budget"),
    "public_images": Setting(15_000),
}
_WIDE = Setting("handwriting", "drawn more widely than trained, moved, sharpened; the classifier keeps the classes")
_PEN_TOO = Setting(
    "pen", "the same; of four images one is a digit of the pen that the classifier finds to be of its class"
)

# What is proposed ----------------------------------------------------------------------------------------------------

MANY, SOME = 5_000, 1_000  # private images of a class from which on a rule holds: where it was measured, rounded down
_RULES = (  # the first that holds is the one: what it proposes, when, and why
    (
        aggregate,
        lambda facts: facts.handwriting and facts.num_classes > 1 and facts.per_class >= MANY,
        f"handwriting, {MANY:,} images of a class or more: a network that matches noisy sums, and a teacher (MNIST: "
        "95.9, 96.9 and 97.5 % at epsilon 0.3, 1 and 10; evolution 89.4 % at 1)",
    ),
    (
        functools.partial(gaussian, candidates=4),
        lambda facts: facts.num_classes > 1 and facts.per_class >= SOME and not _in_place(facts),
        f"classes of {SOME:,} images or more: a normal distribution a class, and a teacher (photos of faces: 79.6 and "
        "83.9 % at epsilon 1 and 10, 76.4 and 81.3 % without the teacher, aggregate 80.6 and 82.1 %)",
    ),
    (
        gaussian,
        lambda facts: True,
        "few images of a class, no classes, or many: a normal distribution, whose noise is the least (digits "
        "of 8 x 8: 80.5 and 89.7 % at epsilon 1 and 10, where aggregate has 69 and 89 %)",
    ),
)


class Choice(NamedTuple):
    """A method with its settings, and why it is proposed."""

    method: str
    sections: Sections
    why: str

    @classmethod
    def of(cls, sections: Sections, why: str = "") -> Choice:
        """Return the choice of these settings."""
        return cls(str(sections["method"]["name"].value), sections, why)


def best(facts: Facts) -> Choice:
    """Return what is proposed for such data."""
    return next(Choice.of(propose(facts), why) for propose, holds, why in _RULES if holds(facts))


def alternatives(facts: Facts) -> tuple[Choice, ...]:
    """Return the other methods that have a config to begin with."""
    others = (Choice.of(propose(facts)) for propose in (gaussian, aggregate, evolution))
    chosen = best(facts).sections["method"]
    return tuple(other for other in others if other.sections["method"] != chosen)
