"""An obfuscator against an attacker: the image changes little, and the attacker fails.

Raval, Machanavajjhala, Cox, "Protecting visual secrets using adversarial nets" (CVPR workshops 2017). The attacker A is
trained on clear and obfuscated images alike to tell what is secret; the obfuscator O minimizes
``lambda E A(O(x)) + (1 - lambda) E |x - O(x)|_1``. Claimed: the attacker falls to
chance, and the image stays what it was.

In the paper A says whether an image shows a secret object (a QR code on CIFAR-10). Here the secret is who is on the
image: A has a probability for each person, and A(O(x)) is that of the right one. Where A is certain the slope of
A(O(x)) vanishes, and an obfuscator that begins near the image itself never leaves it; we minimize -log(1 - A) in its
place, as GANs are trained. The L1 distance is the mean over pixels in [0, 1]. The networks are ours: the notes state
none.
"""

from __future__ import annotations

from typing import Any

import pydantic
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from idpgan.models.classifier import build_classifier
from idpgan.models.initialize import seeded_init
from idpgan.obfuscate.base import Obfuscator, Training
from idpgan.obfuscate.networks import Translator, batches, check_sides, num_trained
from idpgan.progress import Progress


class GameObfuscatorConfig(Training):
    """Options of `obfuscator`.

    Attributes:
        weight: lambda, the attacker's share of the loss.
        adversary_steps: Updates of the attacker for each of the obfuscator.
    """

    weight: float = pydantic.Field(0.5, gt=0, lt=1)
    adversary_steps: int = pydantic.Field(2, ge=1)


class GameObfuscator(Obfuscator):
    """The obfuscating network; its attacker is thrown away after `fit`. The label to be kept is not used."""

    Config = GameObfuscatorConfig
    name = "obfuscator"
    trained = True

    def __init__(self, config: Any, image_shape: tuple[int, int, int], num_utilities: int = 0, num_identities: int = 0):
        super().__init__(config, image_shape, num_utilities, num_identities)
        check_sides(image_shape, self.name)
        with seeded_init(config.seed):
            self.network = Translator(image_shape[0], config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to images in [0, 1]."""
        return torch.sigmoid(self.network(images * 2 - 1) + 4 * (images - 0.5))  # begins near the image itself

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return self(images)

    def _fit(self, images: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config = self.config
        attacker = build_classifier("cnn", self.image_shape, self.num_identities, seed=config.seed).to(images.device)
        own = torch.optim.Adam(self.parameters(), lr=config.learning_rate, fused=True)
        other = torch.optim.Adam(attacker.parameters(), lr=config.learning_rate, fused=True)
        self.training_parameters = num_trained(self, attacker)
        draw = batches(len(images), config.batch_size, images.device)
        self.train()
        for step in range(1, config.steps + 1):
            for _ in range(config.adversary_steps):
                index = next(draw)
                with torch.no_grad():
                    hidden = self(images[index])
                both = torch.cat([images[index], hidden]) * 2 - 1
                loss = cross_entropy(attacker(both), identities[index].repeat(2))
                other.zero_grad()
                loss.backward()
                other.step()
            index = next(draw)
            hidden = self(images[index])
            found = _not(attacker(hidden * 2 - 1), identities[index])
            changed = (hidden - images[index]).abs().mean()
            own.zero_grad()
            (config.weight * found + (1 - config.weight) * changed).backward()
            own.step()
            self.steps = step
            progress("fit obfuscator", step, config.steps)


def _not(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of -log(1 - p), p the probability of the label: its slope does not vanish where p is near 1."""
    right = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1, keepdim=True)
    return softplus(right - others).mean()  # 1 - p = sigmoid(others - right)
