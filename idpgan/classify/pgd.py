r"""pgd: adversarial training (Madry, Makelov, Schmidt, Tsipras, Vladu 2018, eq. 2.1).

``min_w E max_(|d|_inf <= radius) loss(w, x + d, y)``: every batch is attacked by projected gradient ascent on the
newest weights, and the network takes an Adam step on the result. Nothing protects the training images, so the proven
epsilon is infinite: the method serves as a target for attacks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idpgan.attacks.adversarial import pgd
from idpgan.classify import classifier
from idpgan.config import key
from idpgan.data.load import Split, place
from idpgan.models.optimizers import Adam
from idpgan.models.private_classifier import PrivateClassifier, ReluCnn
from idpgan.privacy import Event
from idpgan.training import method
from idpgan.training.config import MOST_STEPS, settings
from idpgan.training.fit import set_rate
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan

# Share of the steps over which the radius grows from 0: trained at 0.3 from the start, a network may end at one class.
_WARMUP = 0.2

Settings = settings(
    "pgd",
    method=[
        {
            "width": key(int, 16, "Feature maps of the first convolution.", ge=1, le=1024),
            "radius": key(
                float,
                0.3,
                "Bound on the change of a pixel, in units of the pixel range; 0 is plain training.",
                ge=0,
                le=1,
            ),
            "attack_steps": key(int, 10, "Of each attack.", ge=1, le=1000),
            "step_size": key(
                float | None,
                None,
                "Of an attack, in units of the pixel range; None = ``2.5 radius / attack_steps``.",
                gt=0,
                le=1,
            ),
            "learning_rate": key(float, 2e-3, "Peak of Adam's; it falls to 0 along a cosine.", gt=0),
        }
    ],
    training=[
        {
            "steps": key(
                int, 5000, "Steps of gradient descent, each on a batch of attacked images.", ge=1, le=MOST_STEPS
            ),
            "batch_size": 100,
            "tick_steps": 500,
        }
    ],
    dropped={"warmup_share": _WARMUP},
)


class Plan(RunPlan):
    """The plan of a run of pgd."""

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return a convolutional network without normalization."""
        return ReluCnn(image_shape, classes, width=self.config.method.width, seed=self.config.training.seed)

    def step_bytes(self, network: PrivateClassifier) -> int:
        """Count what the layers keep of a batch for its gradient."""
        _, height, width = network.image_shape
        pixels: int = self.config.training.batch_size * height * width
        return 8 * pixels * int(self.config.method.width)

    def check(self) -> None:
        """Refuse what no classifier supports."""
        classifier.check(self, self.classifier, self.step_bytes, "Lower training.batch_size or method.width.")

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the described network with that of [method]."""
        return classifier.misdescribed(self.classifier, described)


class Method(method.Method):
    """The method as the loop sees it; of the data only the private part is read, without its null records."""

    SAVED = ("newest", "optimizer", "rng")

    plan: Plan

    def _set_up(self, split: Split) -> None:
        self._images = place(split.private.existing(least=1), self.device)
        self.newest = self.plan.classifier(split.image_shape, split.classes).eval().to(self.device)
        self.optimizer = Adam(self.newest.parameters(), self.config.learning_rate)
        self._rng = classifier.seeded(self._run)

    @property
    def product(self) -> PrivateClassifier:
        """The released classifier."""
        return self.newest

    artifact, critic_scores = classifier.artifact, classifier.critic_scores

    def step_event(self) -> Event:
        """Every step reads raw images."""
        return self.plan.raw_read

    def step(self, step: int) -> Stats:
        """Attack a batch, and take an Adam step on the attacked images."""
        training = self._run.training
        chosen = torch.randint(len(self._images), (training.batch_size,), generator=self._rng)
        batch = self._images.select(chosen).to(self.device)
        labels, share = cast(Tensor, batch.labels), step / training.steps
        radius = self.config.radius * min(1.0, share / _WARMUP)
        attacked = pgd(
            self.newest, batch.images, labels, radius=radius, steps=self.config.attack_steps,
            step_size=self.config.step_size, seed=int(torch.randint(2**62, (1,), generator=self._rng)),
        )  # fmt: skip
        set_rate(self.optimizer, self.config.learning_rate * (1 + math.cos(math.pi * share)) / 2)
        logits = self.newest(attacked)
        loss = cross_entropy(logits, labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "accuracy": (logits.argmax(1) == labels).float().mean()}
