"""The trial of a critic of the user: its gradients are taken record by record, as a step does, on drawn images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.families import build_critic
from idpgan.models.validate import probe
from idpgan.own_code import short_error
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.tiles import tiled
from idpgan.synthesis.dp_gan.loss import CriticLoss


def loss_of(critic: nn.Module, config: Any) -> CriticLoss:
    """Return the loss of a critic by [method] of dp-gan."""
    return CriticLoss(
        critic,
        config.loss,
        penalty=config.gradient_penalty,
        paired=config.fakes == "paired",
        mismatch=config.mismatch,
    )


def try_gradients(
    model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int, config: Any, dpsgd: DPSGDPlan
) -> None:
    """Take the gradients of drawn records by the critic of the user.

    Args:
        config: [method] of dp-gan.

    Raises:
        ConfigError: In one line, if they cannot be taken or are not finite.
    """
    critic = build_critic(model, image_shape, num_classes)
    images, *labels = probe(image_shape, num_classes)
    known = labels[0] if labels else torch.zeros(len(images), dtype=torch.int64)
    records = [images, known, images.flip(0), torch.full((len(images),), 0.5), known]
    weights = dict(critic.named_parameters())
    try:
        loss = loss_of(critic, config).of_record
        tiles = dpsgd.tiles(loss, weights, records, num=len(images), most=len(images))
        norms = dpsgd.clipped_sum(loss, weights, tiled(records, tiles.rows), tiles).norms
    except Exception as error:  # code of the user may raise anything
        raise ConfigError(
            f"model.critic = '{model.critic}' cannot be differentiated record by record: {short_error(error)}. What it "
            "computes may not hang on the numbers it sees (shapes, branches, .item()), and every operation must be "
            "torch's."
        ) from error
    if not bool(norms.isfinite().all()):
        raise ConfigError(f"model.critic = '{model.critic}' has gradients that are not finite, on drawn images.")
