"""What `idpgan init --base` proposes: which part of a public network is trained, and how, by public numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.models.pipeline_folder import is_pipeline
from idpgan.synthesis import starter
from idpgan.synthesis.diffusion.method import Diffusion
from idpgan.synthesis.starter import Facts, Sections, Setting
from idpgan.training.config import RunConfig

_FIRST = "biases"  # all networks have some: what the largest part is asked of
_FEW, _MANY = 16, 64  # images that a base draws: a pipeline takes long


def adapters(
    facts: Facts, data: Mapping[str, Setting], base: Path, config_of: Callable[[Sections], RunConfig]
) -> Sections:
    """Return the settings of diffusion that adapt a public network, [data] among them.

    The part is `DiffusionPlan.largest_part`; draws and learning rate are those of its plan; the clip norm is the median
    of the gradients of images that the base draws. Batches are full where images are few.

    Args:
        data: [data], of the images.
        base: A released denoiser of this package, or a folder of diffusers.
        config_of: Makes a config of sections, with what the base states.

    Raises:
        InputError: If the base does not fit the images, or the signal bears none of its parts.
    """
    plain, whole = starter.diffusion(facts), is_pipeline(base)
    of_base = {
        "public_generator": Setting(str(base), "adapted; data.public_labels says which of its classes yours look like"),
        "public_disjoint": Setting(True, "your word: nobody of the private images is among what it learned from"),
    }
    method = {
        "name": Setting("diffusion", "DP-SGD on a part of a public network; unit image"),
        "start_share": Setting(0.0 if whole else 0.5, "of the budget, for moments in the place of the base's own"),
    }
    sections: dict[str, dict[str, Setting]] = {
        "data": {**data, **of_base},
        "model": {"conditional": plain["model"]["conditional"], "trained": Setting((_FIRST,))},
        "method": method,
        "privacy": {**plain["privacy"]},
        "training": {**plain["training"]},
    }
    part = Diffusion.Plan(config_of(sections), facts.shape).largest_part
    if not part:
        raise InputError(
            f"at epsilon {facts.epsilon:g} the noise on {facts.shape.num_private:,} images is too much for the "
            f"least part of {base}. Take another method, or a larger epsilon."
        )
    sections["model"]["trained"] = Setting(part, "the largest part that the signal bears")
    method |= _measured(config_of(sections), facts)
    return sections


def _measured(config: RunConfig, facts: Facts) -> dict[str, Setting]:
    """Return draws and learning rate of the plan, and the clip norm that the base says."""
    shape = facts.shape
    nobody = Images(torch.zeros(0, *shape.image_shape, dtype=torch.uint8), _labels(0, shape.classes), shape.classes)
    one = Images(torch.zeros(1, *shape.image_shape, dtype=torch.uint8), _labels(1, shape.classes), shape.classes)
    method = Diffusion.of(config, Split(nobody, one, nobody, nobody), device=resolve_device(config.training.device))
    drawn = _FEW if config.model.pipeline is not None else _MANY
    plan = Diffusion.Plan(config, shape)
    return {
        "draws": Setting(plan.draws, "noisy copies of an image in its gradient: of few images they cost little"),
        "learning_rate": Setting(float(f"{plan.learning_rate:.2g}"), "less where the steps are noisier"),
        "clip_norm": Setting(float(f"{method.usual_norm(drawn):.2g}"), "the median on images that the base draws"),
    }


def _labels(num: int, classes: tuple[str, ...]) -> torch.Tensor | None:
    return torch.zeros(num, dtype=torch.int64) if classes else None
