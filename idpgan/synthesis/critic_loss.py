"""The critic's loss of one private record, as `privacy.dpsgd` takes it; the penalty of WGAN-GP is part of it.

A critic of the user is tried here: its gradients are taken record by record, as a step does, on drawn images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.functional import relu, softplus

from idpgan.errors import ConfigError
from idpgan.models import checkpoint, losses, validate
from idpgan.models.config import ModelConfig
from idpgan.own_code import error_line
from idpgan.privacy.captured_gradients import Weights
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.tiles import tiled

Kind = Literal["non-saturating", "hinge", "wgan-gp", "wgan-clip", "wgan-spectral"]
_WEIGHT_BOUNDS = {"wgan-clip": 0.01, "wgan-spectral": 1.0}


class CriticLoss:
    """The critic's loss as a function of its weights and of one record.

    Args:
        critic: Scores of a record depend on that record alone.
        kind: "non-saturating": ``softplus(-D(x)) + softplus(D(G(z)))`` (Goodfellow et al. 2014); "hinge":
            ``max(0, 1 - D(x)) + max(0, 1 + D(G(z)))`` (Lim, Ye 2017, "Geometric GAN"); "wgan-gp":
            ``D(G(z)) - D(x) + penalty * (||grad D(x^)|| - 1)^2`` (Gulrajani et al. 2017); "wgan-clip" and
            "wgan-spectral": ``D(G(z)) - D(x)``, where `bound_weights` takes the place of the penalty.
        penalty: Weight of the gradient penalty, "wgan-gp" only.
        paired: Whether the fake's term belongs to its record.
        mismatch: Weight of the record under a wrong class as one more fake (GAN-CLS, Reed et al. 2016), which teaches
            the critic classes; 0 = none.
    """

    def __init__(
        self,
        critic: nn.Module,
        kind: Kind,
        *,
        penalty: float,
        paired: bool,
        mismatch: float = 0.0,
    ) -> None:
        self.critic, self.kind, self.penalty, self.paired, self.mismatch = critic, kind, penalty, paired, mismatch
        self.conditional = bool(getattr(critic, "num_classes", 0))

    def of_record(
        self, weights: Weights, real: Tensor, label: Tensor, fake: Tensor, alpha: Tensor, wrong: Tensor
    ) -> Tensor:
        """Return all terms that one private record has a part in, 0-d.

        Args:
            weights: Of the critic.
            real: (C, H, W), the record.
            label: 0-d, its class; of the fake too.
            fake: (C, H, W), not used where it is neither paired nor interpolated.
            alpha: 0-d in [0, 1], where between real and fake the penalty is taken.
            wrong: 0-d, another class than the record's, not used without mismatch.
        """
        images, labels = zip(*self._scored(real, label, fake, wrong), strict=True)
        loss = self._terms(self._scores(weights, torch.stack(images), torch.stack(labels)))
        if self.kind == "wgan-gp":
            mixed = losses.interpolate(real[None], fake[None], alpha[None])
            slope = grad(lambda images: self._scores(weights, images, label[None])[0])(mixed)
            loss = loss + self.penalty * (torch.linalg.vector_norm(slope) - 1).square()
        return loss

    def of_fake(self, weights: Weights, fake: Tensor, label: Tensor) -> Tensor:
        """Return the term of one fake, 0-d."""
        return self._term(self._scores(weights, fake[None], label[None])[0])

    def of_records(
        self, critic: nn.Module, real: Tensor, label: Tensor, fake: Tensor, alpha: Tensor, wrong: Tensor
    ) -> Tensor:
        """Return `of_record` of a batch, (B,), by one pass through ``critic`` for each term; not for "wgan-gp".

        Hooks on the critic see the terms of record i at row i of every pass.
        """
        return self._terms([self._called(critic, *pair) for pair in self._scored(real, label, fake, wrong)])

    def of_fakes(self, critic: nn.Module, fake: Tensor, label: Tensor) -> Tensor:
        """Return `of_fake` of a batch, (B,)."""
        return self._term(self._called(critic, fake, label))

    def of_generator(self, scores: Tensor) -> Tensor:
        """Return the generator's loss on scores (B,) of fakes, 0-d."""
        return -scores.mean() if self.kind == "hinge" else self._term(-scores).mean()

    def _scored(self, real: Tensor, label: Tensor, fake: Tensor, wrong: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the images and labels that the critic scores for one record, or for each of a batch."""
        pairs = [(real, label)]
        if self.paired:
            pairs.append((fake, label))
        if self.mismatch:
            pairs.append((real, wrong))
        return pairs

    def _terms(self, scores: Sequence[Tensor] | Tensor) -> Tensor:
        """Add up the terms of what `_scored` returned."""
        loss = self._term(-scores[0])
        if self.paired:
            loss = loss + self._term(scores[1])
        if self.mismatch:
            loss = loss + self.mismatch * self._term(scores[-1])
        return loss

    def _term(self, score: Tensor) -> Tensor:
        """Return the cost of a score that should be low."""
        if self.kind == "hinge":
            return relu(1 + score)
        return softplus(score) if self.kind == "non-saturating" else score

    def _scores(self, weights: Weights, images: Tensor, labels: Tensor) -> Tensor:
        inputs = (images, labels) if self.conditional else (images,)
        scores: Tensor = functional_call(self.critic, dict(weights), inputs)
        return scores

    def _called(self, critic: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        scores: Tensor = critic(images, labels) if self.conditional else critic(images)
        return scores


@torch.no_grad()
def bound_weights(critic: nn.Module, kind: Kind, bound: float | None = None) -> None:
    """Bound the weights of a Wasserstein critic in place, after every step: post-processing, whatever the engine.

    Args:
        kind: "wgan-clip": every number is clamped to ``-bound .. bound`` (Arjovsky et al. 2017, "Wasserstein GAN",
            Algorithm 1). "wgan-spectral": every weight of two or more dimensions, as a matrix with its first one as
            rows (Miyato et al. 2018), is divided by its largest singular value in units of the bound, if that is above
            1 (Gouk et al. 2021, "Regularisation of neural networks by enforcing Lipschitz continuity"). Others: none.
        bound: None = 0.01 and 1.
    """
    if kind not in _WEIGHT_BOUNDS:
        return
    bound = _WEIGHT_BOUNDS[kind] if bound is None else bound
    for weight in critic.parameters():
        if kind == "wgan-clip":
            weight.clamp_(-bound, bound)
        elif weight.ndim > 1:
            weight.div_((torch.linalg.matrix_norm(weight.flatten(1), 2) / bound).clamp(min=1))


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
    critic = checkpoint.build_critic(model, image_shape, num_classes)
    images, *labels = validate.probe(image_shape, num_classes)
    known = labels[0] if labels else torch.zeros(len(images), dtype=torch.int64)
    records = [images, known, images.flip(0), torch.full((len(images),), 0.5), known]
    weights = dict(critic.named_parameters())
    try:
        loss = loss_of(critic, config).of_record
        tiles = dpsgd.tiles(loss, weights, records, num=len(images), most=len(images))
        norms = dpsgd.clipped_sum(loss, weights, tiled(records, tiles.rows), tiles).norms
    except Exception as error:  # code of the user may raise anything
        raise ConfigError(
            f"model.critic = '{model.critic}' cannot be differentiated record by record: {error_line(error)}. What it "
            "computes may not hang on the numbers it sees (shapes, branches, .item()), and every operation must be "
            "torch's."
        ) from error
    if not bool(norms.isfinite().all()):
        raise ConfigError(f"model.critic = '{model.critic}' has gradients that are not finite, on drawn images.")
