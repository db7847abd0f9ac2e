"""The audit of dp-gan: canary gradients at every step, through its own critic steps. `hybrid` uses it too.

See `idpgan.audit.gradient_canaries`, whose network of canaries takes the critic's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.gradient_canaries import (
    NO_LIMIT,
    SLOPE,
    STILL,
    CanaryNetwork,
    CanarySteps,
    Training,
    canary_case,
    canary_images,
)
from idpgan.data.load import Split
from idpgan.models.config import ModelConfig
from idpgan.privacy import Guarantee, Ledger, Noise, Relation, Unit
from idpgan.privacy.dpsgd import least_noise
from idpgan.privacy.event import Event
from idpgan.synthesis.dp_gan.config import DpGanConfig, DpGanPrivacy, DpGanRun
from idpgan.synthesis.dp_gan.method import DpGan
from idpgan.training.config import TrainingConfig

__all__ = ["AUDIT", "Steps", "canary_case", "canary_images", "planned_steps", "steps_case", "steps_of"]

_SAMPLE_RATE, _STEPS = 0.3, 50  # of a plan that stands for all, where no run says which: nearly Gaussian


@dataclass(frozen=True)
class Steps(CanarySteps):
    """What decides how much the critic steps tell.

    Attributes:
        method: Of dp-gan: its loss, fakes and clip norm are played with.
        sample_rate: q.
        noise_multiplier: sigma.
        count: Steps of the run.
    """

    method: DpGanConfig
    sample_rate: float
    noise_multiplier: float
    count: int

    @property
    def code(self) -> str:
        """See `CanarySteps`."""
        return (
            "played through the critic steps of dp-gan, with a critic whose gradient is the canary; left out were "
            "augmentation and wrong classes (functions of one record and its own coins) and the generator's steps "
            "(post-processing)"
        )

    def training(self, present: Tensor, noise: Noise) -> Training:
        """See `CanarySteps`."""
        method = self._method(present, noise)
        unit = -method.training.batch_size / self.method.clip_norm  # the loss falls where the score rises

        def step(number: int) -> Tensor:
            method.critic_step(number)
            return method.seen[: len(present)].double() * unit

        return step

    def _method(self, present: Tensor, noise: Noise) -> _Watched:
        """Make a dp-GAN of canaries; null records fill it up to where a batch is expected to hold one."""
        positions, null = self.positions(present)
        still = {"critic_learning_rate": STILL, "critic_decay": 0.0, "augment": 0.0, "mismatch": 0.0}
        config = DpGanRun(
            model=ModelConfig(width=1, latent_dim=1, conditional=False),
            method=self.method.model_copy(update={**still, "max_physical_batch": 512}),
            privacy=DpGanPrivacy(
                epsilon=NO_LIMIT,  # no step is charged: constructed images need no budget
                delta=0.5 / positions,
                sample_rate=self.sample_rate,
                noise_multiplier=self.noise_multiplier,
            ),
            training=TrainingConfig(steps=self.simulated, batch_size=self.divisor(positions)),
        )
        nobody = canary_images(0)
        split = Split(nobody, canary_images(positions).zeroed_out(null), nobody, nobody)
        ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
        return _Watched(config, split, ledger=ledger, device=torch.device(noise.device), noise=noise)


class _Watched(DpGan):
    """dp-GAN with the critic of canaries, whose noisy gradients the attacker sees.

    ``seen`` is the last step's gradient, (positions,), after noise and division.
    """

    seen: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.networks.critic_optimizer.register_step_pre_hook(self._watch)

    def _build_critic(self) -> CanaryNetwork:  # type: ignore[override]  # scores images like a `Critic`
        """Take the critic of canaries."""
        self.canaries = CanaryNetwork(len(self._images), SLOPE * self.config.clip_norm)
        return self.canaries

    def _watch(self, *_: object) -> None:
        """Look at the gradient before the optimizer steps: noise and divisor are in it."""
        gradient = self.canaries.weight.grad
        if gradient is None:
            raise RuntimeError("a step without a gradient.")
        self.seen = gradient.detach().clone()


def steps_case(steps: Steps, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of the critic steps of a run or a plan: one record absent against present."""
    return canary_case("dp-gan", steps, (steps.event,), steps.play, request, claimed)


def planned_steps(request: Request, spent: tuple[Event, ...] = ()) -> Steps:
    """Return a short plan with the least noise that, after what is spent, keeps to the request."""
    noise_multiplier = least_noise(request.epsilon, request.delta or 0.0, _SAMPLE_RATE, _STEPS, spent)
    return Steps(DpGanConfig(), _SAMPLE_RATE, noise_multiplier, _STEPS)


def steps_of(config: DpGanRun) -> Steps:
    """Return the critic steps of a run."""
    event = config.step_event()
    return Steps(config.method, event.sample_rate or 0.0, event.noise_multiplier or 0.0, config.training.steps)


def _build(request: Request) -> AuditCase:
    return steps_case(planned_steps(request), request)


def _of_run(config: DpGanRun, facts: RunFacts) -> AuditCase:
    request = Request(config.privacy.epsilon, config.privacy.delta)
    return steps_case(steps_of(config), request, facts.claimed)


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5, of_run=_of_run)
