r"""pgd: adversarial training (Madry, Makelov, Schmidt, Tsipras, Vladu 2018, eq. 2.1).

``min_w E max_(|d|_inf <= radius) loss(w, x + d, y)``: every batch is attacked by projected gradient ascent on the
newest weights, and the network takes an Adam step on the result. Nothing protects the training images, so the proven
epsilon is infinite: the method serves as a target for attacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from idpgan.attacks.adversarial import pgd
from idpgan.classify.classifier import ClassifierPlan, GivesClassifier
from idpgan.data.load import Split
from idpgan.models.optimizers import Adam
from idpgan.models.private_classifier import PrivateClassifier, ReluCnn
from idpgan.privacy import Event
from idpgan.training.config import MOST_STEPS, MethodConfig, RunConfig, TrainingConfig
from idpgan.training.fit import set_rate
from idpgan.training.method import Stats


class PgdConfig(MethodConfig):
    """[method] of pgd.

    Attributes:
        width: Feature maps of the first convolution.
        radius: Bound on the change of a pixel, in units of the pixel range; 0 is plain training.
        warmup_share: Share of the steps over which the radius grows from 0: trained at 0.3 from the start, a network
            may settle for one class.
        attack_steps: Of each attack.
        step_size: Of an attack, in units of the pixel range; None = ``2.5 radius / attack_steps``.
        learning_rate: Peak of Adam's; it falls to 0 along a cosine.
    """

    name: Literal["pgd"] = "pgd"
    width: int = Field(16, ge=1, le=1024)
    radius: float = Field(0.3, ge=0, le=1)
    warmup_share: float = Field(0.2, ge=0, le=1)
    attack_steps: int = Field(10, ge=1, le=1000)
    step_size: float | None = Field(None, gt=0, le=1)
    learning_rate: float = Field(2e-3, gt=0)


class PgdTraining(TrainingConfig):
    """[training] of pgd.

    Attributes:
        steps: Steps of gradient descent, each on a batch of attacked images.
    """

    steps: int = Field(5000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(100, ge=1, le=1_000_000)
    tick_steps: int = Field(500, ge=1, le=MOST_STEPS)


class PgdRun(RunConfig):
    """A whole config file of pgd."""

    method: PgdConfig = PgdConfig()
    training: PgdTraining = PgdTraining()


class PgdPlan(ClassifierPlan):
    """The plan of a run of pgd."""

    WAY_OUT = "Lower training.batch_size or method.width."

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return a convolutional network without normalization."""
        return ReluCnn(image_shape, classes, width=self.config.method.width, seed=self.config.training.seed)

    def step_bytes(self, classifier: PrivateClassifier) -> int:
        """Count what the layers keep of a batch for its gradient."""
        _, height, width = classifier.image_shape
        pixels: int = self.config.training.batch_size * height * width
        return 8 * pixels * int(self.config.method.width)


class PgdAdversarial(GivesClassifier):
    """The method as the loop sees it; of the data only the private part is read, without its null records."""

    NULL_RECORDS = False
    SAVED = ("newest", "optimizer", "rng")

    plan: PgdPlan

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        self.optimizer = Adam(self.newest.parameters(), self.config.learning_rate)
        self._rng = self.seeded()

    def step_event(self) -> Event:
        """Every step reads raw images."""
        return self.plan.raw_read

    def step(self, step: int) -> Stats:
        """Attack a batch, and take an Adam step on the attacked images."""
        training = self._run.training
        chosen = torch.randint(len(self._images), (training.batch_size,), generator=self._rng)
        batch = self._images.select(chosen).to(self.device)
        labels, share = cast(Tensor, batch.labels), step / training.steps
        radius = self.config.radius * min(1.0, share / self.config.warmup_share if self.config.warmup_share else 1.0)
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


Settings, Plan, Method = PgdRun, PgdPlan, PgdAdversarial
