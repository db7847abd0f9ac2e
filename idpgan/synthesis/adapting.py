"""What `idpgan init --base` fills in: which part of a public network is trained, and its clip, by public numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.models.pipeline_folder import is_pipeline
from idpgan.synthesis.diffusion.method import Diffusion
from idpgan.synthesis.starter import Facts, starter_for
from idpgan.training.config import RunConfig
from idpgan.training.plan import plan_run

_FEW, _MANY = 16, 64  # images that a base draws: a pipeline takes long


def adapted(facts: Facts, base: Path, config_of: Callable[[Mapping[str, Any]], RunConfig]) -> dict[str, object]:
    """Return what the template of diffusion asks about a public network.

    The part is `DiffusionPlan.largest_part`, the clip norm the median of the gradients of images that the base draws.

    Args:
        base: A released denoiser of this package, or a folder of diffusers.
        config_of: Makes a config of sections without those of the data, with what the base states.

    Raises:
        InputError: If the base does not fit the images, or the signal bears none of its parts.
    """
    asked: dict[str, object] = {"base": str(base), "trained": ["biases"], "share": 0.5, "clip": 1.0}
    asked |= {"share": 0.0} if is_pipeline(base) else {}

    def config() -> RunConfig:
        return config_of(starter_for(facts, "diffusion", asked).table)

    part = plan_run(config(), facts.shape).largest_part
    if not part:
        raise InputError(
            f"at epsilon {facts.epsilon:g} the noise on {facts.shape.num_private:,} images is too much for the "
            f"least part of {base}. Take another method, or a larger epsilon."
        )
    asked["trained"] = list(part)
    return asked | {"clip": float(f"{_usual_norm(config(), facts):.2g}")}


def _usual_norm(config: RunConfig, facts: Facts) -> float:
    shape = facts.shape
    nobody, one = (
        Images(
            torch.zeros(num, *shape.image_shape, dtype=torch.uint8),
            torch.zeros(num, dtype=torch.int64) if shape.classes else None,
            shape.classes,
        )
        for num in (0, 1)
    )
    method = Diffusion.of(config, Split(nobody, one, nobody, nobody), device=resolve_device(config.training.device))
    return float(method.usual_norm(_FEW if config.model.pipeline is not None else _MANY))
