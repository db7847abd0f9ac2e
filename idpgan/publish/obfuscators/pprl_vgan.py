"""PPRL-VGAN: the face of another known person with the same expression.

Chen, Konrad, Ishwar, "VGAN-based image representation learning for privacy-preserving facial expression recognition"
(CVPR workshops 2018), arXiv:1803.07100. A variational encoder maps an image to a code f(I); a decoder draws from the
code and a person's number c. Three discriminators judge whether an image is real, who it shows, and with which
expression. The generator's images should pass as real, as person c, and with the expression of I; f(I) is pulled to a
standard normal. The paper claims that drawn faces show the expression about as well as the image, and not who was on
it.

The weights of the losses are the paper's as we know them (generator 0.108, 0.6, 0.29 and 0.002; discriminator 0.25,
0.5, 0.25); our notes on the paper give neither weights nor layers. Our discriminators share one trunk. The drawn faces
are those of real people.
"""

from __future__ import annotations

from collections.abc import Sequence

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from idpgan.models.optimizers import Adam
from idpgan.progress import Progress
from idpgan.publish.obfuscators.networks import Painter, TrainedObfuscator, Training, Trunk, batches, update
from idpgan.publish.obfuscators.obfuscator import without_proof

_GENERATOR = (0.108, 0.6, 0.29, 0.002)  # real, person, expression, divergence from the normal
_DISCRIMINATOR = (0.25, 0.5, 0.25)  # real, person, expression


class PprlVganConfig(Training):
    """Options of `pprl-vgan`; defaults of Radford et al. (2016) for Adam.

    Attributes:
        code: Numbers in f(I).
    """

    code: int = pydantic.Field(128, ge=1, le=1 << 14)
    learning_rate: float = pydantic.Field(2e-4, gt=0)


class PprlVgan(TrainedObfuscator):
    """Encoder and decoder; the discriminators are discarded after `fit`."""

    Config = PprlVganConfig
    name = "pprl-vgan"

    def _build(self) -> None:
        config = self.config
        self.trunk = Trunk(self.image_shape, config.width)
        self.code = nn.Linear(self.trunk.num_features, 2 * config.code)
        self.painter = Painter(config.code + self.num_identities, self.image_shape, config.width)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of f(I) for images in [-1, 1], (B, code) each."""
        mean, log_variance = self.code(self.trunk(images)).chunk(2, dim=1)
        return mean, log_variance.clamp(-10, 10)

    def draw(self, code: Tensor, people: Tensor) -> Tensor:
        """Draw people, int64 (B,), from codes (B, code): images in [-1, 1]."""
        drawn: Tensor = self.painter(torch.cat([code, one_hot(people, self.num_identities).to(code)], dim=1))
        return drawn

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        people = torch.randint(self.num_identities, (len(images),), generator=rng).to(images.device)
        return (self.draw(self.encode(images * 2 - 1)[0], people) + 1) / 2

    def _fit(self, images: Tensor, inputs: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config, device = self.config, images.device
        judges = _Judges(self.image_shape, config.width, self.num_identities, self.num_utilities).to(device)
        generator_optimizer = Adam(self.parameters(), lr=config.learning_rate, betas=(0.5, 0.999), fused=True)
        judge_optimizer = Adam(judges.parameters(), lr=config.learning_rate, betas=(0.5, 0.999), fused=True)
        draw = batches(len(images), config.batch_size, device)
        for _ in self._steps(progress, judges):
            index = next(draw)
            real, people, moods = images[index] * 2 - 1, identities[index], utilities[index]
            others_to_be = torch.randint(self.num_identities, (len(real),), device=device)
            mean, log_variance = self.encode(real)
            drawn = self.draw(mean + torch.randn_like(mean) * (log_variance / 2).exp(), others_to_be)

            truth, who, mood = judges(real)
            truth_loss = _true(truth, 1.0) + _true(judges(drawn.detach())[0], 0.0)
            update(
                judge_optimizer,
                _weighted(_DISCRIMINATOR, truth_loss, cross_entropy(who, people), cross_entropy(mood, moods)),
            )

            truth, who, mood = judges(drawn)
            divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
            fooled = (_true(truth, 1.0), cross_entropy(who, others_to_be), cross_entropy(mood, moods))
            update(generator_optimizer, _weighted(_GENERATOR, *fooled, divergence))


def _weighted(weights: Sequence[float], *losses: Tensor) -> Tensor:
    return torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum()


class _Judges(nn.Module):
    """The three discriminators on one trunk."""

    def __init__(self, image_shape: tuple[int, int, int], width: int, num_people: int, num_moods: int) -> None:
        super().__init__()
        self.trunk = Trunk(image_shape, width)
        self.heads = nn.ModuleList(nn.Linear(self.trunk.num_features, size) for size in (1, num_people, num_moods))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map images in [-1, 1] to logits: real (B, 1), who (B, people), mood (B, moods)."""
        features = self.trunk(images)
        real, who, mood = (head(features) for head in self.heads)
        return real, who, mood


def _true(logits: Tensor, target: float) -> Tensor:
    """Return the cross-entropy of real (1) or drawn (0)."""
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


PUBLISHERS = {PprlVgan.name: without_proof(PprlVgan)}
