"""The audit of the denoiser's steps: canaries through the method's own step; `idpgan.synthesis.audit` adds the sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import (
    NO_LIMIT,
    SHAPE,
    SLOPE,
    STILL,
    CanaryNetwork,
    CanarySteps,
    Training,
    canary_images,
)
from idpgan.data.load import DataShape, Sizes, Split
from idpgan.models.config import ModelConfig
from idpgan.models.ema import Ema
from idpgan.privacy import Ledger, Noise, Relation, Unit
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.diffusion.config import (
    DiffusionConfig,
    DiffusionPlan,
    DiffusionPrivacy,
    DiffusionRun,
    DiffusionTraining,
)
from idpgan.synthesis.diffusion.method import BETAS, Diffusion
from idpgan.synthesis.networks import Adam

_COPIES = 2  # of a canary, at most: all are alike


def planned(request: Request) -> tuple[DiffusionRun, DataShape]:
    """Return a short run that stands for all, where no run says which, with the least noise that keeps to a request."""
    config = DiffusionRun(
        model=ModelConfig(generator="diffusion", latent_dim=10, width=4),
        privacy=DiffusionPrivacy(epsilon=request.epsilon, delta=request.delta or 0.0),
        training=DiffusionTraining(steps=50, batch_size=30),
    )
    return config, DataShape(Sizes(0, 100, 0, 0), SHAPE, tuple(map(str, range(10))))


@dataclass(frozen=True)
class DenoiserSteps(CanarySteps):
    """The settings that determine how much the denoiser's steps leak.

    Attributes:
        method: Its copies and its clip norm are played with.
        draws: K.
        sample_rate: q.
        noise_multiplier: sigma.
        count: Steps of the run.
    """

    method: DiffusionConfig
    draws: int
    sample_rate: float
    noise_multiplier: float
    count: int

    @classmethod
    def of(cls, plan: DiffusionPlan) -> DenoiserSteps:
        """Return those of a run."""
        steps, config = plan.dpsgd, plan.config
        return cls(config.method, plan.draws, steps.sample_rate, steps.noise_multiplier, config.training.steps)

    @property
    def code(self) -> str:
        """What was played and what was left out, one sentence."""
        return (
            "played through the steps of diffusion, with a denoiser whose gradient is the canary; left out were the "
            "closed form, the noise on an image and, where there is a template, its rounds and the displacement "
            "(functions of what was released, of one record and its own coins)"
        )

    def training(self, present: Tensor, noise: Noise) -> Training:
        """Begin a diffusion of canaries; null records are added until a batch is expected to hold one record."""
        positions, null = self.positions(present)
        divisor, clip_norm = self.divisor(positions), self.method.clip_norm
        copies = {"draws": min(self.draws, _COPIES), "max_physical_batch": 512, "teacher_share": 0.0}
        config = DiffusionRun(
            model=ModelConfig(generator="diffusion", latent_dim=1, width=1, conditional=False),
            method=self.method.model_copy(update=copies),
            privacy=DiffusionPrivacy(epsilon=NO_LIMIT, delta=0.5 / positions),
            training=DiffusionTraining(steps=self.simulated, batch_size=divisor),
        )
        nobody = canary_images(0)
        split = Split(nobody, canary_images(positions).zeroed_out(null), nobody, nobody)
        plan = _PlayedPlan(config, split.shape, DPSGDPlan(self.sample_rate, clip_norm, divisor, self.noise_multiplier))
        ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
        method = _WatchedDiffusion(plan, split, ledger=ledger, device=present.device, noise=noise)

        def step(number: int) -> Tensor:
            method.step(number)
            return method.seen[: len(present)].double() * (divisor / clip_norm)

        return step


class _PlayedPlan(DiffusionPlan):
    """A plan whose steps are given, and whose sums are never released."""

    def __init__(self, config: DiffusionRun, shape: DataShape, steps: DPSGDPlan) -> None:
        super().__init__(config, shape)
        self._given_steps = steps

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:
        """The steps that were given."""
        return self._given_steps

    @functools.cached_property
    def sums(self) -> CellSums:
        """Some sums."""
        return CellSums(1, 1, "gaussian", 1.0, Unit.IMAGE, Relation.ZERO_OUT)

    @property
    def learning_rate(self) -> float:
        """No weight moves."""
        return STILL


class _Canaries(nn.Module):
    """In the place of a generator: its loss of a record is the record's canary."""

    num_classes = 0
    latent_dim = math.prod(SHAPE)

    def __init__(self, canaries: int, slope: float) -> None:
        super().__init__()
        self.network = CanaryNetwork(canaries, slope)

    def states(self, images: Tensor, *_: Any) -> Tensor:
        """Return the images as rows of numbers."""
        return images.flatten(1)

    def problem(self, states: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Return the rows as they are."""
        return states, states

    def loss(self, weights: Mapping[str, Tensor], inputs: Tensor, *_: Any) -> Tensor:
        """Return the mean score of the copies of a record."""
        scores: Tensor = functional_call(self.network, dict(weights), (inputs,))
        return scores.mean()


class _WatchedDiffusion(Diffusion):
    """Diffusion with a denoiser of canaries, whose noisy gradients the attacker sees.

    ``seen`` is the last step's gradient, (positions,), after noise and division.
    """

    seen: Tensor

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        if split.image_shape != SHAPE:
            raise RuntimeError("canaries have another shape.")
        watched = _Canaries(len(self._images), SLOPE * self.config.clip_norm).to(self.device)
        self.newest, self._average = watched, Ema(watched, 0.0)  # type: ignore[assignment]
        self._optimizer = Adam(STILL, *BETAS).optimizer(watched)

        def look(*_: object) -> None:
            """Record the gradient before the optimizer steps: noise and divisor are in it."""
            gradient = watched.network.weight.grad
            if gradient is None:
                raise RuntimeError("a step without a gradient.")
            self.seen = gradient.detach().clone()

        self._optimizer.register_step_pre_hook(look)
