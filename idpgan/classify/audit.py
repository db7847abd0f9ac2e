"""The audit of private classifiers: canary gradients at every step, through a method's own steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.gradient_canaries import NO_LIMIT, CanarySteps, Training, canary_case, canary_images
from idpgan.classify.config import ClassifierPrivacy, ClassifierRun
from idpgan.classify.training import TrainsClassifier
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.privacy import Guarantee, Ledger, Noise, Relation, Unit
from idpgan.privacy.dpsgd import DPSGDPlan, least_noise
from idpgan.training.config import TrainingConfig

CLASSES = ("0", "1")  # every canary is of the first

Make = Callable[[Split, float, ClassifierPrivacy, TrainingConfig, Noise], "WatchedClassifier"]  # the number is C


class WatchedClassifier(TrainsClassifier):
    """A classifier of canaries whose noisy gradients the attacker sees; mixed into a method.

    Attributes:
        weight: The parameter that holds the gradients of all canaries.
        gradient: Its last gradient, after noise and division.
    """

    weight: nn.Parameter
    optimizer: torch.optim.SGD
    gradient: Tensor

    def watch(self, plan: DPSGDPlan) -> None:
        """Take steps by this very plan, and look at each gradient before the optimizer steps."""
        self.plan = plan
        self.optimizer.register_step_pre_hook(self._look)

    def _look(self, *_: object) -> None:
        if self.weight.grad is None:
            raise RuntimeError("a step without a gradient.")
        self.gradient = self.weight.grad.detach().clone()

    def seen(self) -> Tensor:
        """Return what the last gradient tells of each canary, (positions,): the clipped sum in units of C."""
        raise NotImplementedError


@dataclass(frozen=True)
class ClassifierSteps(CanarySteps):
    """What decides how much the steps of a classifier tell.

    Attributes:
        name: Of the method.
        make: Builds it for canaries.
        sample_rate: q.
        noise_multiplier: sigma.
        count: Steps of the run.
        clip_norm: C.
    """

    name: str
    make: Make
    sample_rate: float
    noise_multiplier: float
    count: int
    clip_norm: float

    @property
    def code(self) -> str:
        """See `CanarySteps`."""
        return f"played through the steps of {self.name}, with a network whose gradient is the canary"

    def training(self, present: Tensor, noise: Noise) -> Training:
        """See `CanarySteps`."""
        positions, null = self.positions(present)
        images = canary_images(positions)
        images = Images(images.images, torch.zeros(positions, dtype=torch.int64), CLASSES).zeroed_out(null)
        nobody = images.select(torch.arange(0))
        # No step is charged: constructed images need no budget.
        privacy = ClassifierPrivacy(epsilon=NO_LIMIT, delta=0.5 / positions, noise_multiplier=self.noise_multiplier)
        batch = self.divisor(positions)
        training = TrainingConfig(steps=self.simulated, batch_size=batch)
        method = self.make(Split(nobody, images, nobody, nobody), self.clip_norm, privacy, training, noise)
        method.watch(DPSGDPlan(self.sample_rate, self.clip_norm, batch, self.noise_multiplier))

        def step(number: int) -> Tensor:
            method.step(number)
            return method.seen()[: len(present)] * (batch / self.clip_norm)

        return step


def entry_of(name: str, make: Make, sample_rate: float, steps: int, clip_norm: float) -> Entry:
    """Return how a private classifier is audited.

    Args:
        name: Of the method.
        make: Builds it for canaries.
        sample_rate: Of a plan that stands for all, where no run says which.
        steps: Of that plan.
        clip_norm: Of that plan.
    """

    def case(played: ClassifierSteps, request: Request, claimed: Guarantee | None = None) -> AuditCase:
        return canary_case(name, played, (played.event,), played.play, request, claimed)

    def build(request: Request) -> AuditCase:
        sigma = least_noise(request.epsilon, request.delta or 0.0, sample_rate, steps)
        return case(ClassifierSteps(name, make, sample_rate, sigma, steps, clip_norm), request)

    def of_run(config: ClassifierRun, facts: RunFacts) -> AuditCase:
        plan = config.plan(facts.num_private)
        played = ClassifierSteps(
            name, make, plan.sample_rate, plan.noise_multiplier, config.training.steps, plan.clip_norm
        )
        return case(played, Request(config.privacy.epsilon, config.privacy.delta), facts.claimed)

    return Entry(build, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5, of_run=of_run)


def ledger_of_nobody() -> Ledger:
    """Return a ledger that is charged for nothing."""
    return Ledger(Unit.IMAGE, Relation.ZERO_OUT)
