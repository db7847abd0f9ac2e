"""A public denoiser as the start of private steps, and checks that every weight that is adapted really moves.

Nothing here reads a private image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from idpgan.data.load import Split
from idpgan.errors import ConfigError, InputError
from idpgan.models.adapters import adapt, label_rows, trained_weights
from idpgan.models.checkpoint import origin_weights
from idpgan.models.pipeline import PipelineGenerator
from idpgan.models.pipeline_folder import check_weights
from idpgan.training.config import RunConfig

_NETWORK = "network."


def public_pipeline(config: RunConfig, split: Split) -> PipelineGenerator:
    """Return the pipeline that a config names, its network adapted.

    Raises:
        ConfigError: If it does not fit the images, its weights are others than the config names, or ``model.trained``
            names what it has not.
    """
    model, classes = config.model, split.classes
    if model.pipeline is None:
        raise TypeError("a pipeline is described in the config.")
    made = PipelineGenerator(
        model,
        split.image_shape,
        len(classes),
        seed=config.training.seed,
        folder=check_weights(config.data.public_generator, model.pipeline),
        classes=classes if model.conditional else (),
        looks=config.data.public_labels or {},
    )
    made.classes = classes if made.num_classes else ()
    return made


def start_at_public(generator: Any, config: RunConfig, classes: Sequence[str]) -> None:
    """Give a `DiffusionGenerator` the weights of the public one that a config names, and adapt its network.

    A class begins as that of its name, or of its look in ``data.public_labels``, or as the mean of all.

    Raises:
        ConfigError: If the weights are others than the config names, or ``model.trained`` names what they have not.
    """
    model, origin = config.model, config.model.origin
    if origin is None:
        raise TypeError("a config with model.trained has an origin.")
    names = classes if generator.num_classes else ()
    weights = origin_weights(config.data.public_generator, origin)
    rows = label_rows(origin.classes, names, config.data.public_labels or {})
    network = {name.removeprefix(_NETWORK): one for name, one in weights.items() if name.startswith(_NETWORK)}
    generator.network.start_at(network, len(origin.classes), rows)
    if weights["mean"].shape[1:] == generator.mean.shape[1:]:  # a release of moments takes their place, if there is one
        each = rows or [None]
        found = [_moments(weights["mean"], weights["factor"], row) for row in each]
        generator.set_moments(*(torch.stack(parts).to(generator.mean.device) for parts in zip(*found, strict=True)))
    adapt(generator.network, model.trained, seed=config.training.seed)


def _moments(mean: Tensor, factor: Tensor, row: int | None) -> tuple[Tensor, Tensor]:
    """Return mean and factor of a row of normal distributions, or of the mixture of all."""
    if row is not None or len(mean) == 1:
        return mean[row or 0], factor[row or 0]
    center = mean.double().mean(0)
    between = mean.double() - center
    covariance = (factor.double() @ factor.double().mT).mean(0) + between.T @ between / len(mean)
    values, axes = torch.linalg.eigh(covariance)
    return center.to(mean), (axes * values.clamp(min=0).sqrt()).to(factor)


def refuse_unreached(network: nn.Module, loss: Callable[[Mapping[str, Tensor]], Tensor]) -> None:
    """Refuse weights that a loss does not depend on: only noise would move them.

    Args:
        network: Adapted.
        loss: Of a public record, by the trained weights; they are disturbed, since a factor of zero hides the other.

    Raises:
        ConfigError: Naming them.
    """
    rng = torch.Generator().manual_seed(0)
    weights = {
        name: (weight.detach() + 0.1 * torch.randn(weight.shape, generator=rng).to(weight)).requires_grad_()
        for name, weight in trained_weights(network).items()
    }
    with torch.enable_grad():
        found = torch.autograd.grad(loss(weights), list(weights.values()), allow_unused=True)
    idle = [name for name, part in zip(weights, found, strict=True) if part is None or not bool(part.any())]
    if idle:
        raise ConfigError(
            f"model.trained: no gradient reaches {', '.join(idle[:5])} ({len(idle)} of {len(weights)} weights): only "
            "noise would move them. Train other parts."
        )


def refuse_unmoved(network: nn.Module, start: Mapping[str, Tensor]) -> None:
    """Refuse a network of which a trained weight is still where it started.

    Raises:
        InputError: Naming them.
    """
    still = [name for name, weight in trained_weights(network).items() if torch.equal(weight, start[name])]
    if still:
        raise InputError(
            f"{', '.join(still[:5])} ({len(still)} of {len(start)} adapted weights) did not move: nothing was learned "
            "there. Was the network moved, copied or compiled after its optimizer was made?"
        )
