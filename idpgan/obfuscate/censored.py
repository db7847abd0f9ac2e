"""A representation censored by an adversary: the image is reconstructed, and what is hidden cannot be told from it.

Edwards and Storkey, "Censoring representations with an adversary" (ICLR 2016), arXiv:1511.05897. An encoder makes a
representation R of an image X, a decoder reconstructs X; an adversary tells the sensitive S from R, a predictor the
label Y; encoder, decoder and predictor minimize ``alpha C(X, R) + beta D(S, R) + gamma E(Y, R)``, where C is the
squared error of reconstruction, E the predictor's cross-entropy and D how well the adversary does, who maximizes D.

Two uses. *Fair classification*: what is decided from R treats the groups of S alike (`idpgan.metrics.accuracy`).
*Anonymization*: S says whether there is something to remove (a text in a picture); two sets of images are enough, with
and without it, and no image is there in both forms. Every R is to be taken for one of the set without:
`Config.towards`.

The notes that this is built from stop at the loss; the rest is the usual form, and networks are ours. R is the decoded
image in both uses: that is what goes out, and what adversary and predictor read. S has any number of values, not two.
The encoder does not maximize the adversary's cross-entropy, which has no bound: it brings the answer to the uniform
one, or, towards a value, to that value for the images that have another.
"""

from __future__ import annotations

from typing import Any

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from idpgan.errors import InputError
from idpgan.models.classifier import build_classifier
from idpgan.models.initialize import seeded_init
from idpgan.obfuscate.base import Obfuscator, Training
from idpgan.obfuscate.networks import Painter, Trunk, batches, check_sides, num_trained
from idpgan.progress import Progress


class CensoredConfig(Training):
    """Options of `censored`; alpha, beta and gamma are those of the paper.

    Attributes:
        alpha: Weight of the reconstruction, mean squared error of pixels in [-1, 1].
        beta: Weight of the hidden label, to be lost.
        gamma: Weight of the label that is to be kept; 0 where there is none.
        towards: Value of the hidden label, by its number from 0 (values sorted), that all images are to be taken for;
            None: every value is to be equally likely.
        code: Numbers between encoder and decoder.
        adversary_steps: Updates of the adversary for each of the autoencoder.
    """

    alpha: float = pydantic.Field(10.0, ge=0)
    beta: float = pydantic.Field(1.0, ge=0)
    gamma: float = pydantic.Field(1.0, ge=0)
    towards: int | None = pydantic.Field(None, ge=0)
    code: int = pydantic.Field(128, ge=1, le=1 << 14)
    adversary_steps: int = pydantic.Field(1, ge=1)


class Censored(Obfuscator):
    """Encoder and decoder; adversary and predictor are thrown away after `fit`."""

    Config = CensoredConfig
    name = "censored"
    trained = True

    def __init__(self, config: Any, image_shape: tuple[int, int, int], num_utilities: int = 0, num_identities: int = 0):
        super().__init__(config, image_shape, num_utilities, num_identities)
        check_sides(image_shape, self.name)
        if config.towards is not None and config.towards >= num_identities:
            raise InputError(
                f"towards = {config.towards} must be the number of one of {num_identities} values to be hidden, from 0."
            )
        with seeded_init(config.seed):
            self.trunk = Trunk(image_shape, config.width)
            self.code = nn.Linear(self.trunk.num_features, config.code)
            self.painter = Painter(config.code, image_shape, config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [-1, 1] to censored ones in [-1, 1]."""
        censored: Tensor = self.painter(self.code(self.trunk(images)))
        return censored

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return (self(images * 2 - 1) + 1) / 2

    def _fit(self, images: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config, device = self.config, images.device
        adversary = build_classifier("cnn", self.image_shape, self.num_identities, seed=config.seed).to(device)
        predictor = build_classifier("cnn", self.image_shape, self.num_utilities, seed=config.seed + 1).to(device)
        own = torch.optim.Adam([*self.parameters(), *predictor.parameters()], lr=config.learning_rate, fused=True)
        other = torch.optim.Adam(adversary.parameters(), lr=config.learning_rate, fused=True)
        self.training_parameters = num_trained(self, adversary, predictor)
        draw = batches(len(images), config.batch_size, device)
        self.train()
        for step in range(1, config.steps + 1):
            for _ in range(config.adversary_steps):
                index = next(draw)
                with torch.no_grad():
                    shown = self(images[index] * 2 - 1)
                other.zero_grad()
                cross_entropy(adversary(shown), identities[index]).backward()
                other.step()
            index = next(draw)
            real = images[index] * 2 - 1
            shown = self(real)
            cost = (shown - real).square().mean()
            told = self._told(adversary(shown), identities[index])
            missed = cross_entropy(predictor(shown), utilities[index])
            own.zero_grad()
            (config.alpha * cost + config.beta * told + config.gamma * missed).backward()
            own.step()
            self.steps = step
            progress("fit censored", step, config.steps)

    def _told(self, logits: Tensor, hidden: Tensor) -> Tensor:
        """Return D, what the adversary tells: its cross-entropy from the answer that says nothing."""
        log_shares = logits.log_softmax(1)
        if self.config.towards is None:
            return -log_shares.mean()
        others = (hidden != self.config.towards).to(logits)  # the rest is innocent as it is
        return -(log_shares[:, self.config.towards] * others).mean()
