r"""The audit of dp-gan: canary gradients at every step, through the step code of dp-gan itself. `hybrid` uses it too.

One training plays many games at once. The critic has one weight per canary, and the gradient of canary j is weight j's
alone, of a norm far above C: clipping leaves C. A record that is present goes through its own Poisson coin,
`clipped_sum`, the noise and the division of `DPSGDPlan`; one that is absent is a null record at the same position.
So number j of every noisy gradient is N(0, s^2) for an absent canary and ``(1 - q) N(0, s^2) + q N(C, s^2)`` for a
present one, independent of all other canaries: the dominating pair of the Poisson-sampled Gaussian mechanism. The
attacker sees the gradient of every step (Nasr et al. 2023, gradient canaries), and its score is the exact
log-likelihood ratio, the sum over steps of ``log(1 - q + q exp((y - 1/2) / sigma^2))``, y in units of C.

The critic's weights never move (a learning rate of 1e-30), so that every step's gradient is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from idpgan.audit.cases import AuditCase, Entry, Request, guarantees
from idpgan.audit.neighbors import CANARY, Pair
from idpgan.audit.run_facts import RunFacts
from idpgan.audit.statistics import EXACT, RANGE, Column, Maker
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.models.config import ModelConfig
from idpgan.privacy import Event, Guarantee, Ledger, Noise, Relation, Unit
from idpgan.privacy.dpsgd import least_noise
from idpgan.synthesis.dp_gan.config import Config, DpGanConfig, DpGanPrivacy
from idpgan.synthesis.dp_gan.method import DpGan
from idpgan.training.config import TrainingConfig

_SHAPE = (1, 8, 8)
_BITS = 40  # pixels that hold the number of a canary
_SLOPE = 100.0  # gradient of a canary / clip norm: far above 1
_NO_LIMIT = 1e12  # an epsilon that any step is below
_STILL = 1e-30  # learning rate
_MOST_STEPS = 10_000  # simulated: some minutes
_CALLS = 10_000  # steps of all trainings of one audit together, about: some minutes
_MOST_RUNS = 50_000  # unless told
_SAMPLE_RATE, _STEPS = 0.3, 50  # of a plan that stands for all, where no run says which: nearly Gaussian
_STATISTICS: tuple[Maker, ...] = (
    lambda one, other: Column(0, EXACT),
    lambda one, other: Column(1, RANGE),
)


class CanaryCritic(nn.Module):
    """Scores canary j by weight j times the slope, and anything that is no canary by 0."""

    num_classes = 0
    image_shape = _SHAPE
    places: Tensor

    def __init__(self, canaries: int, slope: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(canaries))
        self.slope = slope
        self.register_buffer("places", 2 ** torch.arange(_BITS))

    def forward(self, images: Tensor) -> Tensor:
        """Score images (B, C, H, W), (B,)."""
        pixels = images.flatten(1)
        canary = (pixels.abs() == 1).all(1)  # generated images are never all black and white
        number = ((pixels[:, :_BITS] > 0).long() * self.places).sum(1) % len(self.weight)
        return torch.where(canary, self.slope * self.weight[number], 0.0)


def canary_images(canaries: int) -> Images:
    """Return black and white images, each of which spells its number in binary."""
    numbers = torch.arange(canaries)[:, None]
    images = torch.zeros(canaries, math.prod(_SHAPE), dtype=torch.uint8)
    images[:, :_BITS] = ((numbers >> torch.arange(_BITS)) & 1) * 255
    return Images(images.view(-1, *_SHAPE))


@dataclass(frozen=True)
class Steps:
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
    def simulated(self) -> int:
        """Steps that are played."""
        return min(self.count, _MOST_STEPS)

    @property
    def event(self) -> Event:
        """What all steps cost."""
        return Event(
            "poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, self.noise_multiplier, self.count, self.sample_rate
        )

    @property
    def rows(self) -> int:
        """Canaries of one training: per-record gradients are of about q canaries^2 numbers."""
        return int(min(max(math.sqrt(1.6e6 / self.sample_rate), 1000), 8000)) // 2 * 2

    @property
    def runs(self) -> int:
        """Usual runs per side, in about `_CALLS` steps."""
        trainings = max(2, _CALLS // self.simulated)
        return min(_MOST_RUNS, trainings // 2 * self.rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        part = ""
        if self.simulated < self.count:
            part = f"{self.simulated:,} of {self.count:,} steps were simulated: what they show holds for all"
        plan = f"sample rate {self.sample_rate:g}, noise multiplier {self.noise_multiplier:.4g}, {self.count:,} steps"
        code = (
            "played through the critic steps of dp-gan, with a critic whose gradient is the canary; left out were "
            "augmentation and wrong classes (functions of one record and its own coins) and the generator's steps "
            "(post-processing)"
        )
        return (plan, code, part) if part else (plan, code)

    def play(self, present: Tensor, noise: Noise) -> Tensor:
        """Train once with canaries that are present, (R,) bool, or null records; ``noise`` gives coins and noise.

        Returns:
            (R, 2) float64 on the CPU: each canary's log-likelihood ratio of presence, and the range of its numbers over
            the steps, which is 0 where noise is drawn once and used again.
        """
        method = self._method(present, noise)
        score = torch.zeros(len(present), dtype=torch.float64, device=method.device)
        least, most = score + math.inf, score - math.inf
        unit = -self._divisor(len(method._images)) / self.method.clip_norm  # the loss falls where the score rises
        for step in range(1, self.simulated + 1):
            method.critic_step(step)
            seen = method.seen[: len(present)].double() * unit
            score += self._log_ratio(seen)
            torch.minimum(least, seen, out=least)
            torch.maximum(most, seen, out=most)
        return torch.stack([score, most - least], 1).cpu()

    def _log_ratio(self, seen: Tensor) -> Tensor:
        """Return the log-likelihood ratio of one step's numbers, in units of C."""
        shifted = (seen - 0.5) / self.noise_multiplier**2 + math.log(self.sample_rate)
        rest = math.log1p(-self.sample_rate) if self.sample_rate < 1 else -math.inf
        return torch.logaddexp(shifted, torch.full_like(shifted, rest))

    def _divisor(self, positions: int) -> int:
        return max(1, round(self.sample_rate * positions))

    def _method(self, present: Tensor, noise: Noise) -> _Watched:
        """Make a dp-GAN of canaries; null records fill it up to where a batch is expected to hold one."""
        positions = max(len(present), math.ceil(1 / self.sample_rate))
        null = torch.ones(positions, dtype=torch.bool)
        null[: len(present)] = ~present.cpu()
        still = {"critic_learning_rate": _STILL, "critic_decay": 0.0, "augment": 0.0, "mismatch": 0.0}
        config = Config(
            model=ModelConfig(width=1, latent_dim=1, conditional=False),
            method=self.method.model_copy(update={**still, "max_physical_batch": 512}),
            privacy=DpGanPrivacy(
                epsilon=_NO_LIMIT,  # no step is charged: constructed images need no budget
                delta=0.5 / positions,
                sample_rate=self.sample_rate,
                noise_multiplier=self.noise_multiplier,
            ),
            training=TrainingConfig(steps=self.simulated, batch_size=self._divisor(positions)),
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

    def _build_critic(self) -> CanaryCritic:  # type: ignore[override]  # scores images like a `Critic`
        self.canaries = CanaryCritic(len(self._images), _SLOPE * self.config.clip_norm)
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


def canary_case(
    method: str,
    steps: Steps,
    events: Sequence[Event],
    play: Callable[[Tensor, Noise], Tensor],
    request: Request,
    claimed: Guarantee | None,
) -> AuditCase:
    """Return the case of a training whose records are canaries; None as claim = what was asked for.

    Args:
        method: What is audited.
        steps: The part of it that is critic steps of dp-gan.
        events: All that it releases.
        play: Trains once; see `Steps.play`.
        request: Epsilon and delta that were asked for.
    """
    asked, proven = guarantees(request, *events)
    one = torch.ones(1, dtype=torch.float64)

    def release(values: Tensor, noise: Noise) -> Tensor:
        return play(values[:, 0] > 0, noise)

    return AuditCase(
        method, Pair(CANARY, 0 * one, one),
        claimed or asked, proven, release, _STATISTICS,
        notes=steps.notes, events=tuple(events), runs=steps.runs, rows=steps.rows,
    )  # fmt: skip


def planned_steps(request: Request, spent: tuple[Event, ...] = ()) -> Steps:
    """Return a short plan with the least noise that, after what is spent, keeps to the request."""
    noise_multiplier = least_noise(request.epsilon, request.delta or 0.0, _SAMPLE_RATE, _STEPS, spent)
    return Steps(DpGanConfig(), _SAMPLE_RATE, noise_multiplier, _STEPS)


def steps_of(config: Config) -> Steps:
    """Return the critic steps of a run."""
    event = config.step_event()
    return Steps(config.method, event.sample_rate or 0.0, event.noise_multiplier or 0.0, config.training.steps)


def _build(request: Request) -> AuditCase:
    return steps_case(planned_steps(request), request)


def _of_run(config: Config, facts: RunFacts) -> AuditCase:
    request = Request(config.privacy.epsilon, config.privacy.delta)
    return steps_case(steps_of(config), request, facts.claimed)


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5, of_run=_of_run)
