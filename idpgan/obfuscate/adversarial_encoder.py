"""An encoder trained against an adversary: one label of its images is to be lost, another to be kept.

Pittaluga, Koppal, Chakrabarti, "Learning privacy preserving encodings through adversarial training" (WACV 2019),
arXiv:1802.05214: ``E = argmax_E I(E; u) - alpha I_v(E)``, where I is the least loss of an estimator of the private
label u on encoded images, and I_v that of the label to be kept. Against collapse every output number has mean 0 and
variance 1 over the images. Claimed: an estimator trained afresh on encoded images fails at u, and blur stops none.

The notes that this is built from state neither networks nor losses. Ours are a U-Net and two convolutional estimators;
the encoder does not maximize the estimator's cross-entropy, which has no bound, but brings its answer to the uniform
one. An output of mean 0 and variance 1 becomes a pixel by ``1/2 + z/6``, clipped, so that the code is an image.
"""

from __future__ import annotations

from typing import Any

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from idpgan.models.classifier import build_classifier
from idpgan.models.initialize import seeded_init
from idpgan.obfuscate.base import Obfuscator, Training
from idpgan.obfuscate.networks import Translator, batches, check_sides, num_trained
from idpgan.progress import Progress

_REACH = 3.0  # standard deviations of an output number that black and white stand for


class AdversarialEncoderConfig(Training):
    """Options of `adversarial-encoder`.

    Attributes:
        alpha: Weight of the label to be kept, beside 1 for the one to be lost.
        adversary_steps: Updates of the estimators for each of the encoder.
    """

    alpha: float = pydantic.Field(1.0, ge=0)
    adversary_steps: int = pydantic.Field(2, ge=1)


class AdversarialEncoder(Obfuscator):
    """The encoder; its estimators are thrown away after `fit`."""

    Config = AdversarialEncoderConfig
    name = "adversarial-encoder"
    trained = True

    def __init__(self, config: Any, image_shape: tuple[int, int, int], num_utilities: int = 0, num_identities: int = 0):
        super().__init__(config, image_shape, num_utilities, num_identities)
        check_sides(image_shape, self.name)
        with seeded_init(config.seed):
            self.network = Translator(image_shape[0], config.width)
        numbers = image_shape[0] * image_shape[1] * image_shape[2]
        self.whiten = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(numbers, affine=False))

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to codes in [-1, 1], (B, C, H, W)."""
        code = self.whiten(self.network(images * 2 - 1)).view_as(images)
        return (code / _REACH).clamp(-1, 1)

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return (self(images) + 1) / 2

    def _fit(self, images: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config, shape = self.config, self.image_shape
        spy = build_classifier("cnn", shape, self.num_identities, seed=config.seed).to(images.device)
        keeper = build_classifier("cnn", shape, self.num_utilities, seed=config.seed + 1).to(images.device)
        own = torch.optim.Adam(self.parameters(), lr=config.learning_rate, fused=True)
        others = torch.optim.Adam([*spy.parameters(), *keeper.parameters()], lr=config.learning_rate, fused=True)
        self.training_parameters = num_trained(self, spy, keeper)
        draw = batches(len(images), config.batch_size, images.device)
        self.train()
        for step in range(1, config.steps + 1):
            for _ in range(config.adversary_steps):
                index = next(draw)
                with torch.no_grad():
                    code = self(images[index])
                loss = cross_entropy(spy(code), identities[index]) + cross_entropy(keeper(code), utilities[index])
                others.zero_grad()
                loss.backward()
                others.step()
            index = next(draw)
            code = self(images[index])
            lost = -spy(code).log_softmax(1).mean()  # cross-entropy of the uniform answer
            kept = cross_entropy(keeper(code), utilities[index])
            own.zero_grad()
            (lost + config.alpha * kept).backward()
            own.step()
            self.steps = step
            progress("fit adversarial-encoder", step, config.steps)
