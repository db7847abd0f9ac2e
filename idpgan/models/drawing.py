"""Ways of drawing, ``model.drawing``: what else than its law makes the images of a released generator. Needs no torch.

A name is the combination that was measured for one situation. Releases of idpgan 0.3 and before hold the numbers
themselves, so these are read too, as a table: those that the package's configs and proposals then had.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Field

from idpgan.config import Section, build
from idpgan.errors import ConfigError


class Drawing(Section):
    """How a generator draws. Nothing here costs budget but ``shape`` and ``light``, which set what is released.

    Attributes:
        temperature: Factor on the latent numbers of images that are drawn, but not on those that choose; training
            has 1. Above 1 images vary more than in training; with a teacher those that leave their class are left out.
        taught: Takes the place of it in grey images among which a teacher chooses; None: the same.
        coolest: Images to train on have temperatures of their own, even between so much of `temperature` and all of it;
            1 = all the same. Of many classes the cool images show what tells them apart, the warm ones how they vary.
        truncation: Takes the place of `temperature` in images that are drawn to be looked at; None: the same. Below 1
            images are cleaner and more alike (Brock, Donahue and Simonyan 2019): samples.png and `idpgan sample` are
            drawn so, and what others train on is not.
        shape: Functions a direction of the smooth displacement by which a "gaussian", "refined" or "diffusion"
            generator bends each image, 0 = none: texture and shape are drawn together (`idpgan.models.registration`).
        light: Whether a "gaussian" generator draws an image's contrast by itself: coefficients at one contrast are
            released, and its logarithm (`idpgan.models.gaussian`).
        detail: Whether a "gaussian" generator adds what lies above its coefficients, taken from dead leaves drawn here:
            edges, for images of photographs (`idpgan.models.gaussian.Detail`).
        varied: Strength of the motions of images of handwriting that are drawn to train on, which are sharpened too
            (`idpgan.models.varied`): 1 is that of `warp`, 0 leaves all as it was drawn.
        agreed: Public images of each class that are drawn beside the law's as they are and released with it: those that
            the teacher finds to be of their class (`idpgan.synthesis.move`); 0: none.
        plain_share: Of the images to train on, the share that is drawn by the law as without `agreed` or
            ``model.moved``.
    """

    temperature: float = Field(default=1.0, ge=0, le=10)
    taught: float | None = Field(default=None, ge=0, le=10)
    coolest: float = Field(default=1.0, ge=0, le=1)
    truncation: float | None = Field(default=None, ge=0, le=10)
    shape: int = Field(default=0, ge=0, le=36)
    light: bool = False
    detail: bool = False
    varied: float = Field(default=0.0, ge=0, le=3)
    agreed: int = Field(default=0, ge=0, le=65536)
    plain_share: float = Field(default=0.5, ge=0, lt=1)


PLAIN = "plain"
_LOOKED_AT = 0.7  # of normal distributions of photos: 0.6 to 0.8 looked best in trials at epsilon 10
_AGREED = 1000
CHOSEN = 500  # public photos of each class
_IN_PLACE = Drawing(shape=12, truncation=_LOOKED_AT)  # more functions add noise, fewer bend less
_WRITTEN = Drawing(temperature=2.5, truncation=1.0, varied=0.5)

#: Name -> generator -> how it draws; "plain", any generator with nothing of this, stands apart.
DRAWINGS: Mapping[str, Mapping[str, Drawing]] = MappingProxyType(
    {
        # CIFAR-10 at epsilon 10, the mean of three judges: 45.4 % without light, 48.4 % with it. Beside a teacher at 1
        # clothes have 81.1 % at temperature 1 and 82.4 % at 1.5, which loses in color (benchmarks/RESULTS.md, Clothes).
        "photos": {
            "gaussian": Drawing(light=True, taught=1.5, truncation=_LOOKED_AT),
            "refined": Drawing(truncation=_LOOKED_AT),
        },
        # 7,887 grey photos at 1 and 10: 77.4 and 81.3 % without light, 76.7 and 82.7 % with it.
        "few-photos": {"gaussian": Drawing(truncation=_LOOKED_AT)},
        # docs/methods/faces.md
        "faces": {"gaussian": _IN_PLACE, "refined": _IN_PLACE, "diffusion": Drawing(shape=_IN_PLACE.shape)},
        # MNIST. Normal distributions at 1: 91.2 % as it lies, 94.9 % in place. The network at 0.2, the mean of three
        # judges: 93.3 % at temperature 2.5 alone, 95.8 % varied too, 97.3 % beside digits of a pen.
        "handwriting": {"gaussian": Drawing(shape=6, truncation=_LOOKED_AT), "warp": _WRITTEN},
        "pen": {"warp": _WRITTEN.model_copy(update={"agreed": _AGREED, "plain_share": 0.75})},
        # 43 classes of color digits at 10, the mean of three judges: 77.3 %, before 52.7 %.
        "many-classes": {
            "gaussian": Drawing(light=True, detail=True, shape=6, coolest=0.4, truncation=_LOOKED_AT),
        },
        # Half of CIFAR-10 beside the other, without labels: docs/guide/own-data.md.
        "public-photos": {
            "gaussian": Drawing(light=True, truncation=_LOOKED_AT, agreed=CHOSEN, plain_share=0.25),
        },
    }
)

#: What configs and proposals of earlier versions had beside these, by generator.
_EARLIER: Mapping[str, tuple[Drawing, ...]] = MappingProxyType(
    {
        "gaussian": (Drawing(light=True, temperature=1.5, truncation=_LOOKED_AT),),
        "warp": (
            Drawing(temperature=2.5),
            Drawing(temperature=2.5, truncation=1.0),
            Drawing(temperature=2.5, varied=0.5),
        ),
    }
)
_KEYS = Drawing.model_fields.keys() - {"taught"}  # of [model], until idpgan 0.3


def drawing_of(name: str, generator: str) -> Drawing:
    """Return how a generator draws by a name.

    Raises:
        ConfigError: If it does not draw so.
    """
    if name == PLAIN:
        return Drawing()
    if generator not in DRAWINGS[name]:
        raise ConfigError(
            f'drawing = "{name}" is for generator = {" or ".join(map(repr, DRAWINGS[name]))}, and not for '
            f"'{generator}'. Set one of them, or drawing = \"{PLAIN}\"."
        )
    return DRAWINGS[name][generator]


def earlier_drawing(table: Mapping[str, Any], generator: str) -> Drawing:
    """Return the way of drawing that a release of an earlier version states in numbers.

    Raises:
        ConfigError: If no config or proposal of the package had these.
    """
    of_names = (ways[generator].model_copy(update={"taught": None}) for ways in DRAWINGS.values() if generator in ways)
    asked = build(Drawing, table, "drawing")
    alike = asked.model_copy(update={"agreed": _AGREED}) if asked.agreed else asked  # however many
    if alike not in (Drawing(), *of_names, *_EARLIER.get(generator, ())):
        said = ", ".join(f"{key} = {value}" for key, value in asked.to_json().items())
        raise ConfigError(f"a '{generator}' generator that draws with {said} opens with idpgan 0.3.")
    return asked


def with_drawing(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a released [model] with ``drawing``, where an earlier version wrote its numbers one by one."""
    kept = {key: value for key, value in model.items() if key not in _KEYS}
    if (numbers := {key: value for key, value in model.items() if key in _KEYS}) and "drawing" not in model:
        kept["drawing"] = numbers
    origin = model.get("origin")
    if isinstance(origin, Mapping) and isinstance(origin.get("model"), Mapping):
        kept["origin"] = {**origin, "model": with_drawing(origin["model"])}
    return kept
