"""The generator families by name, ``model.generator``, and the least memory that training one beside a critic takes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence

from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig, Origin, classes_of
from idpgan.models.dcgan import Critic, DcganGenerator
from idpgan.models.diffusion import DiffusionGenerator
from idpgan.models.gaussian import GaussianGenerator, RefinedGenerator
from idpgan.models.generator import Generator
from idpgan.models.initialize import without_weights
from idpgan.models.own import OwnCritic, OwnGenerator
from idpgan.models.pipeline import PipelineGenerator
from idpgan.models.simulators import DRAWN, GeneratorSimulator, PhotoSimulator, PopulationGenerator, Simulator
from idpgan.models.warp import WarpGenerator
from idpgan.own_code import is_own_code

GENERATORS: Mapping[str, Callable[..., Generator]] = {
    "dcgan": DcganGenerator,
    "diffusion": DiffusionGenerator,
    "gaussian": GaussianGenerator,
    "pipeline": PipelineGenerator,
    "refined": RefinedGenerator,
    "warp": WarpGenerator,
}
_COPIES = 4  # of each weight: itself, its gradient, and Adam's two averages
_FLOAT = 4  # bytes


def build_generator(config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> Generator:
    """Build a generator of the family that the config names.

    Arguments and errors are those of `DcganGenerator`; "gaussian", "refined", "diffusion", "population" and your own
    have any size.
    """
    if is_own_code(config.generator):
        return OwnGenerator(config, image_shape, num_classes, seed=seed)
    if config.generator == "population":
        members = max(classes_of(config, num_classes), 1) * config.codes
        simulator = build_simulator(config, image_shape, members)
        return PopulationGenerator(config, image_shape, num_classes, simulator)
    return GENERATORS[config.generator](config, image_shape, num_classes, seed=seed)


def build_critic(
    config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0
) -> Critic | OwnCritic:
    """Build the critic that a [model] names; arguments and errors are those of `DcganGenerator`."""
    kind = OwnCritic if is_own_code(config.critic) else Critic
    return kind(config, image_shape, num_classes, seed=seed)


def build_simulator(model: ModelConfig, image_shape: Sequence[int], num_photos: int) -> Simulator:
    """Build the simulator of a population; "public" holds so many images, "generator" has arbitrary weights.

    A population that a simulator of the user proposed holds the chosen images, as one of public images does: whoever
    receives it does not need it. So do portraits in releases of 0.3.0.

    Raises:
        ConfigError: If it does not draw such images.
    """
    if model.simulator in ("public", "people") or is_own_code(model.simulator):
        return PhotoSimulator(image_shape, num_photos, model.warp)
    if model.origin is None:
        return DRAWN[model.simulator](image_shape)
    generator = build_origin(model.origin, image_shape)
    if generator.num_classes:
        generator.classes = model.origin.classes
    return GeneratorSimulator(generator)


def build_origin(origin: Origin, image_shape: Sequence[int]) -> Generator:
    """Build the released generator that a run builds on, with arbitrary weights.

    Raises:
        ConfigError: If it draws images of another shape.
    """
    if tuple(image_shape) != origin.image_shape:
        known, given = (" x ".join(map(str, shape)) for shape in (origin.image_shape, image_shape))
        raise ConfigError(
            f"the generator of data.public_generator draws images of {known} (channels x height x width), and those of "
            f"the data have {given}. Name one of the same shape."
        )
    return build_generator(origin.model, origin.image_shape, len(origin.classes))


def generator_bytes(model: ModelConfig, image_shape: Sequence[int], num_classes: int) -> int:
    """Return the bytes that training a generator keeps, whatever the batch, without building it."""
    with (
        contextlib.nullcontext() if is_own_code(model.generator) else without_weights()
    ):  # foreign code may want numbers
        weights = build_generator(model, image_shape, num_classes).parameters()
    return _COPIES * _FLOAT * sum(weight.numel() for weight in weights)


def critic_bytes(model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int) -> int:
    """Return the bytes of one copy of a critic's weights, without building it."""
    with contextlib.nullcontext() if is_own_code(model.critic) else without_weights():
        return _FLOAT * sum(weight.numel() for weight in build_critic(model, image_shape, num_classes).parameters())


def critic_tensors(model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int) -> int:
    """Return how many weight tensors a critic has, without keeping one."""
    with contextlib.nullcontext() if is_own_code(model.critic) else without_weights():
        return len([*build_critic(model, image_shape, num_classes).parameters()])


def batch_bytes(model: ModelConfig, image_shape: Sequence[int], batch_size: int) -> int:
    """Return the least bytes of a batch: the feature maps next to the image, at half its size and with gradients."""
    channels, height, width = image_shape
    return batch_size * _FLOAT * (math.prod((channels, height, width)) + model.width * height * width // 2)
