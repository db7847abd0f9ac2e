"""The generator families by name: ``model.generator``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import DcganGenerator
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.generator import Generator
from idpgan.models.warp import WarpGenerator

FAMILIES: Mapping[str, Callable[..., Generator]] = {
    "dcgan": DcganGenerator,
    "gaussian": GaussianGenerator,
    "warp": WarpGenerator,
}


def build_generator(config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> Generator:
    """Build a generator of the family that the config names.

    Args:
        config: The [model] section.
        image_shape: (C, H, W) in px; (H, W) in `SIZES` ("gaussian": any), C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Seed of the initial weights, >= 0. The caller's random state is neither read nor changed.

    Raises:
        ConfigError: If the shape is not supported, or classes are asked for and there are none.
    """
    return FAMILIES[config.generator](config, image_shape, num_classes, seed=seed)
