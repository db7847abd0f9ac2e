"""The generator families by name: ``model.generator``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import DcganGenerator
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.generator import Generator
from idpgan.models.population import PopulationGenerator
from idpgan.models.refined import RefinedGenerator
from idpgan.models.warp import WarpGenerator

GENERATORS: Mapping[str, Callable[..., Generator]] = {
    "dcgan": DcganGenerator,
    "gaussian": GaussianGenerator,
    "population": PopulationGenerator,
    "refined": RefinedGenerator,
    "warp": WarpGenerator,
}


def build_generator(config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> Generator:
    """Build a generator of the family that the config names.

    Arguments and errors are those of `DcganGenerator`; "gaussian", "refined" and "population" have any size.
    """
    return GENERATORS[config.generator](config, image_shape, num_classes, seed=seed)
