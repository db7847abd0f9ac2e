r"""pgd: adversarial training (Madry, Makelov, Schmidt, Tsipras, Vladu 2018, eq. 2.1).

``min_w E max_(|d|_inf <= radius) loss(w, x + d, y)``: every batch is attacked by projected gradient ascent on the
newest weights, and the network takes an Adam step on what comes of it. Nothing hides the training images, so proven is
infinite: the method is there to be attacked.
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
from idpgan.classify.config import ClassifierConfig
from idpgan.classify.training import GivesClassifier
from idpgan.data.load import DataShape, Split, place
from idpgan.methods import METHODS
from idpgan.models.private_classifier import PrivateClassifier, ReluCnn
from idpgan.privacy import Event, Guarantee, Ledger, PrivacyReport, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.training.config import MOST_STEPS, MethodConfig, TrainingConfig
from idpgan.training.method import Stats

EVENT = Event.non_private(METHODS["pgd"].reason, Unit.IMAGE, Relation.REPLACE_ONE)
_PROVEN = Guarantee(float("inf"), 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "raw images are read without noise")
REPORT = PrivacyReport(claimed=None, proven=_PROVEN, audited=None, reason=METHODS["pgd"].reason, private=False)


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
    """[training] of pgd."""

    steps: int = Field(5000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(100, ge=1, le=1_000_000)
    tick_steps: int = Field(500, ge=1, le=MOST_STEPS)


class PgdRun(ClassifierConfig):
    """A whole config file of pgd."""

    method: PgdConfig = PgdConfig()
    training: PgdTraining = PgdTraining()

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`; nothing is promised, so there is no target."""
        return Unit.IMAGE, Relation.REPLACE_ONE, None

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (EVENT.repeated(self.training.steps),)

    def report(
        self, shape: DataShape, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]
    ) -> PrivacyReport:
        """See `RunConfig.report`."""
        return REPORT

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """See `ClassifierConfig.classifier`."""
        return ReluCnn(image_shape, classes, width=self.method.width, seed=self.training.seed)

    def step_bytes(self, classifier: PrivateClassifier, num_private: int) -> int:
        """See `ClassifierConfig.step_bytes`: what the layers keep of a batch for its gradient."""
        _, height, width = classifier.image_shape
        return 8 * self.training.batch_size * self.method.width * height * width

    @property
    def way_out(self) -> str:
        """See `ClassifierConfig.way_out`."""
        return "Lower training.batch_size or method.width."


_RNG_STREAM = 1  # of training.seed; 0 is the initial weights


class PgdAdversarial(GivesClassifier):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        config: The run's config.
        split: Only its private part is read, without its null records.
        ledger: Charged by the loop, for reads without a proof.
        device: Where network and data live.

    Raises:
        ConfigError: If config and data do not fit together.
        DataError: If there are null records only: nothing is promised that this could break.
    """

    Config = PgdRun

    SAVED = ("newest", "optimizer", "rng")

    def __init__(self, config: PgdRun, split: Split, *, ledger: Ledger, device: torch.device) -> None:
        super().__init__(config, split, ledger=ledger, device=device)
        self._training = config.training
        self._images = place(split.private.existing(least=1), device)
        self.newest = config.classifier(split.image_shape, split.classes).to(device).eval()
        self.optimizer = torch.optim.Adam(self.newest.parameters(), self.config.learning_rate)
        self._rng = torch.Generator().manual_seed((config.training.seed + _RNG_STREAM * 0x9E3779B97F4A7C15) % 2**63)

    @property
    def product(self) -> PrivateClassifier:
        """The newest weights: the network has no layer that differs between training and use."""
        return self.newest

    def step_event(self) -> Event:
        """Every step reads raw images."""
        return EVENT

    def step(self, step: int) -> Stats:
        """Attack a batch, and take an Adam step on the attacked images."""
        chosen = torch.randint(len(self._images), (self._training.batch_size,), generator=self._rng)
        batch = self._images.select(chosen).to(self.device)
        labels, share = cast(Tensor, batch.labels), step / self._training.steps
        radius = self.config.radius * min(1.0, share / self.config.warmup_share if self.config.warmup_share else 1.0)
        attacked = pgd(
            self.newest, batch.images, labels, radius=radius, steps=self.config.attack_steps,
            step_size=self.config.step_size, seed=int(torch.randint(2**62, (1,), generator=self._rng)),
        )  # fmt: skip
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * (1 + math.cos(math.pi * share)) / 2
        logits = self.newest(attacked)
        loss = cross_entropy(logits, labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "accuracy": (logits.argmax(1) == labels).float().mean()}
