"""The weights of a released generator that is the simulator of another one: those that its config names, or none."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch import Tensor

from idpgan.errors import ConfigError
from idpgan.files import read_plain
from idpgan.models.checkpoint import (
    CONFIG,
    MOST_TEXT_BYTES,
    describe_generator,
    find_weights,
    most_weight_bytes,
    put_weights,
)
from idpgan.models.config import Origin


def origin_weights(path: Path | None, origin: Origin) -> dict[str, Tensor]:
    """Return the weights of the generator of a release, on the CPU; those of a teacher beside it are left out.

    Raises:
        ConfigError: If they are not those that ``origin`` names, or no folder is named.
        InputError: If they are missing or damaged.
    """
    if path is None:
        raise ConfigError('model.simulator = "generator" needs data.public_generator: the folder of its release.')
    weights = find_weights(path.expanduser())
    described = weights.with_name(CONFIG)
    generator = describe_generator(read_plain(described, MOST_TEXT_BYTES, follow=True), described)
    content = read_plain(weights, most_weight_bytes(generator), follow=True)
    if hashlib.sha256(content).hexdigest() != origin.weights:
        raise ConfigError(
            f"data.public_generator = '{path}' holds other weights than model.origin names. Name the release that the "
            "run began with, or leave model.origin out of the config, so that it is read anew."
        )
    put_weights(generator, content, weights)
    return {name: tensor for name, tensor in generator.state_dict().items() if not name.startswith("teacher.")}
