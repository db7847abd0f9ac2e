"""The [model] section of the config and the image sizes that the networks are built for. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from idpgan.config import Section
from idpgan.errors import ConfigError, InputError
from idpgan.files import printable
from idpgan.models.drawing import DRAWINGS, PLAIN, Drawing, drawing_of, earlier_drawing, with_drawing
from idpgan.own_code import is_own_code, path_of


class Pyramid(NamedTuple):
    """How the networks reach one image size.

    The generator doubles a start map several times and crops its borders; the critic halves the image equally often.
    """

    start: tuple[int, int]  # height and width of the generator's first feature map, px
    doublings: int
    last: tuple[int, int]  # height and width of the critic's last feature map, px


class Purpose(StrEnum):
    """What images are drawn for: to be looked at, or to train and to measure something on them."""

    LOOKING = "looking"
    TRAINING = "training"


_LARGEST_START = 7  # px
_FEWEST_DOUBLINGS = 2
#: (height, width) in px of all images that networks are built for
SIZES = (*((side, side) for side in range(8, 129, 4)), (112, 92))
SIZES_IN_WORDS = "squares of 8, 12, 16, ... 128 (every multiple of 4), and 112 x 92 (height x width)"
CHANNELS = (1, 3)
_LONGEST_LICENSE = 200

_GENERATORS = ("dcgan", "warp", "gaussian", "refined", "diffusion", "population", "pictures", "pipeline")
PIPELINE_PARTS = {  # classes of `diffusers` that are known
    "network": ("UNet2DModel", "UNet2DConditionModel", "DiTTransformer2DModel", "Transformer2DModel"),
    "autoencoder": ("AutoencoderKL",),
    "scheduler": (
        "DDPMScheduler", "DDIMScheduler", "PNDMScheduler", "DPMSolverMultistepScheduler", "EulerDiscreteScheduler",
        "EulerAncestralDiscreteScheduler", "UniPCMultistepScheduler", "LMSDiscreteScheduler",
    ),
}  # fmt: skip
_LONGEST_SETTINGS = 50_000  # characters
_LAWS = ("gaussian", "refined")  # onto which public images are moved
_CRITICS = ("dcgan",)
_SIMULATORS = ("faces", "fonts", "people", "public", "generator")  # "people": in releases of 0.3.0 alone
_WAYS = (PLAIN, *DRAWINGS)
_DROPPED = {  # keys of earlier versions, with all that is left: runs that were made with them state these
    "generator_norm": "batch",
    "critic_norm": "none",
    **{key: value for key, value in Drawing().model_dump().items() if key != "taught"},
}


def or_own(*known: str) -> AfterValidator:
    """Accept the name of one of ours, or the path of the user's code."""

    def check(value: str) -> str:
        if value in known or is_own_code(value):
            return value
        raise ValueError(f"it is none of {', '.join(known)}, nor your own code like 'package.module:Class'")

    return AfterValidator(check)


def shown_or_own(*known: str) -> WithJsonSchema:
    """Let the page of all keys show what `or_own` accepts."""
    return WithJsonSchema({"anyOf": [{"enum": list(known)}, {"type": "string"}]})


def _one_line(text: str) -> str:
    if len(text) > _LONGEST_LICENSE or not printable(text):
        raise ValueError(f"it must be one printable line of at most {_LONGEST_LICENSE} characters")
    return text


def _way(value: Any) -> Any:
    if isinstance(value, Drawing) or value in _WAYS:
        return value
    raise ValueError(f"it is none of {', '.join(_WAYS)}")


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


TrainedPart = Annotated[str, Field(min_length=1, max_length=_LONGEST_LICENSE), AfterValidator(_one_line)]


class PipelineConfig(Section):
    """[model.pipeline]: a pipeline of `diffusers` that a run adapts; `idpgan train` reads it from its folder.

    Attributes:
        network: Class and settings, as JSON; likewise ``autoencoder``, if there is one, and ``scheduler``.
        tokens: Vectors of a prompt, where there are prompts.
        weights: SHA-256 (hex) of the weights.
        license: As the folder states it.
    """

    network: Annotated[str, Field(max_length=_LONGEST_SETTINGS)]
    autoencoder: Annotated[str, Field(max_length=_LONGEST_SETTINGS)] | None = None
    scheduler: Annotated[str, Field(max_length=_LONGEST_SETTINGS)]
    tokens: int = Field(1, ge=1, le=4096)
    weights: str = Field(pattern=r"^[0-9a-f]{64}$")
    license: Annotated[str, AfterValidator(_one_line)] = ""

    @model_validator(mode="after")
    def _check_classes(self) -> PipelineConfig:
        for part, known in PIPELINE_PARTS.items():
            settings = getattr(self, part)
            if settings is None:
                continue
            try:
                table = json.loads(settings)
            except ValueError as error:
                raise ConfigError(f"pipeline.{part} is not JSON ({error}).") from error
            if not isinstance(table, dict) or table.get("_class_name") not in known:
                raise ConfigError(f"pipeline.{part} is of no known class: {', '.join(known)}.")
        return self

    @property
    def kind(self) -> str:
        """The class of the network."""
        return str(json.loads(self.network)["_class_name"])


class ModelConfig(Section):
    """Shape of generator and critic; the image size and the classes come from the data.

    Attributes:
        latent_dim: Numbers in one latent vector z. Of a "gaussian", "refined" or "diffusion" generator: DCT
            coefficients of an image, the lowest frequencies; at most as many as it has pixels.
        width: Feature maps next to the image, in both networks; each halving of the image doubles them. Of a "refined"
            generator: feature maps of its convolutions, all in the size of the image; of a "diffusion" generator: those
            of its network, a half or a quarter of the image's size.
        conditional: Whether both networks get the class of the image. Needs labeled data.
        generator: "dcgan" (transposed convolutions), "warp" (codes, a small decoder and a random smooth warp),
            "gaussian" (one normal distribution a class, for the method of that name), "refined" (the same, and a few
            convolutions that refine what it draws), "diffusion" (the same, and a network that takes noise away, for the
            methods diffusion and edm), "population" (members that a simulator draws, for the method evolution),
            "pictures" (finished ones, for the method traits) or "pipeline" (a pipeline of diffusers, whose adapters the
            method diffusion trains); or your own class, "package.module:Class".
        critic: "dcgan", or your own class, for dp-gan and wgan-gp.
        codes: Codes per class of a "warp" generator; members per class of a "population"; "pictures" of each class.
        warp: Strength of the motions of a "warp" generator, and of the simulator "public": 1 is that of handwriting, 0
            none; faces and things move less.
        simulator: What draws the members of a "population": "faces" and "fonts" are programs, "public"
            moves, bends and tints the public images of [data],
            "generator" is the released generator of ``data.public_generator``; or
            your own, "package.module:name".
        license: Of your own simulator and its weights, as you state it; the card repeats it.
        origin: That generator; written by `idpgan train`, which reads its release.
        variation: How much an image of a "population" differs from its member: 0 not at all, 1 as two images of the
            simulator do.
        drawing: How images are drawn, by what they show: "plain", nothing special; "photos", "few-photos" (grey, below
            20,000), "faces" (aligned), "handwriting", "pen" (handwriting beside digits of a simulated pen),
            "many-classes" or "public-photos" (beside public ones that a teacher finds to be of a class). What each
            means: `idpgan.models.drawing`.
        moved: Public images of each class that are moved onto the law of a "gaussian" generator and released with it
            (`idpgan.synthesis.move`); 0: none. Images to look at are then these. With a ``simulator`` of your own, or
            "generator", what that draws is moved.
        trained: Of a run that adapts what ``data.public_generator`` names, a released "diffusion" generator or a folder
            of `diffusers`: which of its weights the steps move, one or several of "labels", "biases", "lora:R",
            "lora:R:PATTERN", and patterns of names; see `idpgan.models.adapters`. Empty: nothing is adapted.
        pipeline: That folder; written by `idpgan train`, which reads it.
        prompts: What the frozen text encoder of that folder is told of each class, in their order, or of all images.
    """

    latent_dim: int = Field(default=64, ge=1, le=4096)
    width: int = Field(default=64, ge=1, le=1024)
    conditional: bool = True
    generator: Annotated[str, BeforeValidator(path_of), or_own(*_GENERATORS), shown_or_own(*_GENERATORS)] = "dcgan"
    critic: Annotated[str, BeforeValidator(path_of), or_own(*_CRITICS), shown_or_own(*_CRITICS)] = "dcgan"
    codes: int = Field(default=128, ge=1, le=65536)
    warp: float = Field(default=0.3, ge=0, le=3)
    simulator: Annotated[str, BeforeValidator(path_of), or_own(*_SIMULATORS), shown_or_own(*_SIMULATORS)] = "faces"
    license: Annotated[str, AfterValidator(_one_line)] = ""
    origin: Origin | None = None
    variation: float = Field(default=0.2, ge=0, le=1)
    drawing: Annotated[str | Drawing, BeforeValidator(_way), WithJsonSchema({"enum": [*_WAYS]})] = PLAIN
    moved: int = Field(default=0, ge=0, le=65536)
    trained: Annotated[tuple[TrainedPart, ...], BeforeValidator(_several), Field(max_length=64)] = ()
    pipeline: PipelineConfig | None = None
    prompts: Annotated[tuple[TrainedPart, ...], BeforeValidator(_several), Field(max_length=1000)] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, table: Any) -> Any:
        """Read keys of earlier versions: `license` as they spelled it, and those that have one value left."""
        if not isinstance(table, Mapping):
            return table
        kept = {key: value for key, value in table.items() if key not in _DROPPED or value != _DROPPED[key]}
        if isinstance(drawing := table.get("drawing"), Mapping):
            found = earlier_drawing(drawing, str(table.get("generator", "dcgan")))
            kept["drawing"] = PLAIN if found == Drawing() else found
        return {"license" if key == "licence" and "license" not in kept else key: kept[key] for key in kept}

    @property
    def drawn(self) -> Drawing:
        """How the generator draws."""
        return self.drawing if isinstance(self.drawing, Drawing) else drawing_of(self.drawing, self.generator)

    def temperature_for(self, purpose: Purpose, *, taught: bool = False) -> float:
        """Return the factor on the latent numbers of images that are drawn for a purpose.

        Args:
            taught: Whether they are grey, and a teacher chooses among them.
        """
        drawn = self.drawn
        if drawn.truncation is not None and purpose is Purpose.LOOKING:
            return drawn.truncation
        return drawn.taught if taught and drawn.taught is not None else drawn.temperature

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        drawn = self.drawn
        if self.moved and (drawn.light or drawn.varied or drawn.agreed):
            raise ConfigError(
                f'moved = {self.moved} and drawing = "{self.drawing}" exclude each other. Set moved = 0, or drawing = '
                f'"{PLAIN}".'
            )
        if self.moved and self.generator not in _LAWS:
            raise ConfigError(
                f"moved = {self.moved} moves public images onto a normal distribution, that of the generators "
                f'{", ".join(_LAWS)}, and generator = "{self.generator}". Set moved = 0.'
            )
        if self.simulator == "generator" and self.origin is None:
            raise ConfigError(
                'simulator = "generator" needs a released generator: name its folder as data.public_generator.'
            )
        if (self.generator == "pipeline") != (self.pipeline is not None) or (self.pipeline and not self.trained):
            raise ConfigError(
                'generator = "pipeline" needs trained, and a folder of diffusers as data.public_generator; any other '
                "generator has no pipeline."
            )
        if self.prompts and (self.pipeline is None or self.pipeline.kind != "UNet2DConditionModel"):
            raise ConfigError("prompts are for a pipeline whose network is a UNet2DConditionModel. Leave them out.")
        if self.trained:
            self._check_trained()
        elif self.simulator != "generator" and self.origin is not None:
            raise ConfigError(
                f'origin is for simulator = "generator", not for "{self.simulator}", or for trained. Leave it out.'
            )
        if self.license and not is_own_code(self.simulator):
            raise ConfigError("license is for a simulator of your own. Leave it out.")
        return self

    def _check_trained(self) -> None:
        """Refuse to adapt what is no diffusion generator, or one of another width."""
        if self.generator == "pipeline" and self.pipeline is not None:
            return
        base = None if self.origin is None else self.origin.model
        if base is None or base.generator != "diffusion" or self.generator != "diffusion":
            raise ConfigError(
                f"trained = {list(self.trained)} adapts a released diffusion generator or a pipeline: name the folder "
                "of such a release, of method edm say, or one of diffusers as data.public_generator, and leave "
                "generator out."
            )
        if self.width != base.width:
            raise ConfigError(
                f"width = {self.width}, and the generator that is adapted has {base.width}. Leave width out."
            )

    @property
    def draws_own(self) -> bool:
        """Whether what is moved is drawn by code of the user, or by the generator of ``data.public_generator``."""
        return bool(self.moved) and (self.simulator == "generator" or is_own_code(self.simulator))

    @property
    def shows_public(self) -> bool:
        """Whether public pictures, as they were or changed, are among what the generator draws."""
        population = self.generator == "population" and self.simulator == "public"
        return population or bool(self.drawn.agreed) or (bool(self.moved) and not self.draws_own)

    @property
    def own_code(self) -> tuple[str, ...]:
        """Paths of the user's code that training runs."""
        simulator = self.simulator if self.generator == "population" or self.moved else ""
        return tuple(path for path in (self.generator, self.critic, simulator) if is_own_code(path))


class Origin(Section):
    """[model.origin]: a released generator that a run builds on, and what its release proves.

    Its latent numbers are a simulator, or its weights are adapted.

    Attributes:
        model: Its own [model].
        image_shape: (C, H, W) in px of its images.
        classes: Their names; empty: unconditional.
        weights: SHA-256 (hex) of its file of weights.
        num_private: Private images that it was trained on.
        epsilon: Proven of them; None: nothing is.
        delta: Where it is proven.
        unit: Of that guarantee, an `idpgan.privacy.Unit`.
        relation: Of that guarantee, an `idpgan.privacy.Relation`.
        license: Of the images that it was trained on, as its release states it.
    """

    model: ModelConfig
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...] = ()
    weights: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_private: int = Field(ge=1)
    epsilon: float | None = Field(default=None, ge=0)
    delta: float = Field(ge=0, lt=1)
    unit: Literal["image", "column", "pixel", "window", "label", "event", "person", "photo"]
    relation: Literal["replace-one", "zero-out-one"]
    license: Annotated[str, AfterValidator(_one_line)] = ""

    @model_validator(mode="before")
    @classmethod
    def _check_model(cls, table: Any) -> Any:
        model = table.get("model") if isinstance(table, Mapping) else None
        if isinstance(model, Mapping) and model.get("origin") is not None:  # before anything is nested further
            raise ConfigError(
                "a population whose simulator is a released generator is not a simulator itself. Name that generator "
                "as data.public_generator."
            )
        if isinstance(model, Mapping) and is_own_code(str(model.get("generator", ""))):
            raise ConfigError(
                f"the generator of data.public_generator needs code that is not in its release ({model['generator']}). "
                "Name code of your own that draws its images as model.simulator."
            )
        return table


ModelConfig.model_rebuild()


def of_release(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a released [model] as this version spells it.

    Raises:
        ConfigError: If votes chose its layers.
    """
    parts = model.get("trained")
    if isinstance(parts, list) and any(isinstance(part, str) and part.startswith("votes:") for part in parts):
        raise ConfigError(f"a generator of which votes chose the layers, trained = {parts}, opens with idpgan 0.3.")
    return with_drawing(model)


def pyramid_of(image_shape: Sequence[int]) -> Pyramid:
    """Look up how images of this shape, (C, H, W) in px, are built.

    Raises:
        ConfigError: If no network is built for it; the message names the supported sizes.
    """
    shape = tuple(image_shape)
    if len(shape) == 3 and shape[0] in CHANNELS and shape[1:] in SIZES:
        height, width = shape[1:]
        doublings = _FEWEST_DOUBLINGS
        while max(height, width) > _LARGEST_START << doublings:
            doublings += 1
        start = -(-height >> doublings), -(-width >> doublings)  # rounded up
        return Pyramid(start, doublings, (height >> doublings, width >> doublings))
    raise ConfigError(
        f"No network is built for images of shape {' x '.join(map(str, shape))} (channels x height x width). "
        f"Supported: {SIZES_IN_WORDS} px with {' or '.join(map(str, CHANNELS))} channels. "
        "Resize the images to one of these before training (idpgan prepare)."
    )


def classes_of(config: ModelConfig, num_classes: int) -> int:
    """Return the number of classes that the networks are conditioned on, 0 for none.

    ``num_classes`` are the classes of the data, 0 without labels; `ConfigError` if the config asks for classes then.
    """
    if not config.conditional:
        return 0
    if num_classes < 1:
        raise ConfigError(
            f"model.conditional = true needs labeled data, but the data has {num_classes} classes. "
            "Set model.conditional = false, or use a data set with classes."
        )
    return num_classes


def labels_error(network: str, num_classes: int) -> InputError:
    """Say what labels a network takes, after missing or unexpected ones."""
    if num_classes:
        return InputError(f"This {network} is conditional: give each image a label in [0, {num_classes - 1}].")
    return InputError(f"This {network} is unconditional: it takes no labels. Leave them out.")
