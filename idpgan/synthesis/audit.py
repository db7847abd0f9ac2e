"""Audits of methods that take steps of DP-SGD, alone or beside a release of sums (`idpgan.synthesis.sums_audit`).

Steps are played with canaries (`idpgan.audit.gradient_canaries`), whose network replaces the critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from idpgan.classify.audit import asked_of
from idpgan.data.load import DataShape, Split, known_shape
from idpgan.models.config import ModelConfig
from idpgan.privacy import Event, Guarantee, Ledger, Noise, Relation, Unit
from idpgan.privacy.dpsgd import least_noise
from idpgan.privacy.sums import CellSums
from idpgan.private.people import AggregatePrivacy
from idpgan.synthesis.diffusion.audit import DenoiserSteps, planned
from idpgan.synthesis.diffusion.config import DiffusionPlan, DiffusionRun
from idpgan.synthesis.dp_gan.method import DpGan, DpGanConfig, DpGanPlan, DpGanPrivacy, DpGanRun
from idpgan.synthesis.hybrid import HybridPlan, HybridRun
from idpgan.synthesis.sums_audit import sums_case
from idpgan.training.config import TrainingConfig

_CELLS, _DIMENSIONS = 10, 64  # of a release that stands for all, where no run says which
_SAMPLE_RATE, _STEPS = 0.3, 50  # of dp-gan: nearly Gaussian
_SHARE = 0.1  # of hybrid: of epsilon for the release of sums, the default


# Critic steps of DP-SGD -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CriticSteps(CanarySteps):
    """The settings that determine how much the critic steps leak.

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
        """What was played and what was left out, one sentence."""
        return (
            "played through the critic steps of dp-gan, with a critic whose gradient is the canary; left out were "
            "augmentation and wrong classes (functions of one record and its own coins) and the generator's steps "
            "(post-processing)"
        )

    def training(self, present: Tensor, noise: Noise) -> Training:
        """Begin a dp-GAN of canaries; null records are added until a batch is expected to hold one record."""
        positions, null = self.positions(present)
        still = {"critic_learning_rate": STILL, "critic_decay": 0.0, "augment": 0.0, "mismatch": 0.0}
        batch = self.divisor(positions)
        config = DpGanRun(
            model=ModelConfig(width=1, latent_dim=1, conditional=False),
            method=self.method.model_copy(update={**still, "max_physical_batch": 512}),
            privacy=DpGanPrivacy(
                epsilon=NO_LIMIT,  # no step is charged: constructed images need no budget
                delta=0.5 / positions,
                sample_rate=self.sample_rate,
                noise_multiplier=self.noise_multiplier,
            ),
            training=TrainingConfig(steps=self.simulated, batch_size=batch),
        )
        nobody = canary_images(0)
        split = Split(nobody, canary_images(positions).zeroed_out(null), nobody, nobody)
        ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
        method = _WatchedGan.of(config, split, ledger=ledger, device=present.device, noise=noise)
        unit = -batch / self.method.clip_norm  # the loss falls where the score rises

        def step(number: int) -> Tensor:
            method.critic_step(number)
            return method.seen[: len(present)].double() * unit

        return step


class _WatchedGan(DpGan):
    """dp-GAN with the critic of canaries, whose noisy gradients the attacker sees.

    ``seen`` is the last step's gradient, (positions,), after noise and division.
    """

    seen: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)

        def look(*_: object) -> None:
            """Record the gradient before the optimizer steps: noise and divisor are in it."""
            gradient = self.canaries.weight.grad
            if gradient is None:
                raise RuntimeError("a step without a gradient.")
            self.seen = gradient.detach().clone()

        self.networks.critic_optimizer.register_step_pre_hook(look)

    def _build_critic(self) -> CanaryNetwork:  # type: ignore[override]  # scores images like a `Critic`
        """Return the critic of canaries."""
        self.canaries = CanaryNetwork(len(self._images), SLOPE * self.config.clip_norm)
        return self.canaries


def steps_case(steps: CriticSteps, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of the critic steps of a run or a plan: one record absent against present."""
    return canary_case("dp-gan", steps, (steps.event,), steps.play, request, claimed)


def _planned_steps(request: Request, spent: tuple[Event, ...] = ()) -> CriticSteps:
    """Return a short plan with the least noise that, after what is spent, keeps to the request."""
    noise_multiplier = least_noise(request.epsilon, request.delta or 0.0, _SAMPLE_RATE, _STEPS, spent)
    return CriticSteps(DpGanConfig(), _SAMPLE_RATE, noise_multiplier, _STEPS)


def _steps_of(plan: DpGanPlan) -> CriticSteps:
    """Return the critic steps of a run."""
    config, dpsgd = plan.config, plan.dpsgd
    return CriticSteps(config.method, dpsgd.sample_rate, dpsgd.noise_multiplier, config.training.steps)


def _dp_gan_run(config: DpGanRun, facts: RunFacts) -> AuditCase:
    return steps_case(_steps_of(DpGanPlan(config, facts.shape)), asked_of(config), facts.claimed)


def _hybrid(request: Request) -> AuditCase:
    share = AggregatePrivacy(epsilon=_SHARE * request.epsilon, delta=request.delta or 0.0)
    sums = CellSums.calibrated(_CELLS, _DIMENSIONS, "gaussian", **share.terms)
    return sums_case("hybrid", sums, request, steps=_planned_steps(request, (sums.event,)))


def _hybrid_run(config: HybridRun, facts: RunFacts) -> AuditCase:
    plan = HybridPlan(config, known_shape(config.data))
    first, steps = plan.first, _steps_of(plan.second)
    first.sums = first.of_cells(*facts.prepared_shape("sums"))
    return sums_case(
        "hybrid", first.sums, asked_of(config), facts.claimed,
        template=first.template_events, teaching=first.teaching, steps=steps,
    )  # fmt: skip


def _diffusion_case(
    config: DiffusionRun, shape: DataShape, request: Request, claimed: Guarantee | None = None
) -> AuditCase:
    plan = DiffusionPlan(config, shape)
    return sums_case(
        "diffusion", plan.sums, request, claimed,
        template=plan.template_events, teaching=plan.teaching, steps=DenoiserSteps.of(plan),
    )  # fmt: skip


_ZERO_OUT = ((Unit.IMAGE,), (Relation.ZERO_OUT,))
AUDITS = {
    "dp-gan": Entry(
        lambda request: steps_case(_planned_steps(request), request), *_ZERO_OUT, delta=1e-5, of_run=_dp_gan_run
    ),
    "diffusion": Entry(
        lambda request: _diffusion_case(*planned(request), request),
        *_ZERO_OUT,
        delta=1e-5,
        of_run=lambda config, facts: _diffusion_case(config, facts.shape, asked_of(config), facts.claimed),
    ),
    "hybrid": Entry(_hybrid, *_ZERO_OUT, delta=1e-5, of_run=_hybrid_run),
}
