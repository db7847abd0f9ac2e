"""The settings and the plan of method diffusion: moments, or the public denoiser that is adapted, and steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, cast

from torch import nn

from idpgan.config import Keys, key
from idpgan.errors import ConfigError
from idpgan.models import checkpoint
from idpgan.models.adapters import LABELS, adapt, refuse_gone, trained_weights
from idpgan.models.config import ModelConfig
from idpgan.models.diffusion import DiffusionGenerator
from idpgan.models.initialize import without_weights
from idpgan.privacy import Event, Relation, Unit, calibrate
from idpgan.privacy.dpsgd import ClipNorm, DPSGDPlan, least_noise
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Budget
from idpgan.private import released_once
from idpgan.private.steps import SETTINGS, check_gradients, reason_of_steps
from idpgan.synthesis import gaussian, moments, sums
from idpgan.synthesis.teacher import noise_on
from idpgan.training.config import DELTA_ABOVE_ZERO, settings
from idpgan.training.plan import RunPlan, Signal

BETAS = 0.9, 0.99  # of Adam
_RATE = 2e-3  # of Adam, where noise is no matter
_QUIET = 0.03  # noise of all steps together, in clip norms, up to which it is none
_NO_NOISE = 2.0**-30  # a noise multiplier: some steps of the grid, and of no proof
_LEAST_OF_PART = 0.5  # twice where all weights stopped being the best part, on made digits (benchmarks/RESULTS.md)
_PARTS = (LABELS, "biases", *(f"lora:{rank}" for rank in (1, 2, 4, 8, 16, 32)), "*")
_DRAWS = ((20_000, 1), (5_000, 2), (0, 4))  # by least number of private images: few of them cost little time
MODEL = ModelConfig(generator="diffusion", latent_dim=160, width=32)


_START = (
    "Share of the budget for the sums of moments at which the diffusion starts, as with `gaussian`; the teacher has "
    "its own, and the steps get the rest. 0, with `model.trained`: those of the public denoiser stay."
)
_COPIES = (
    "K, noisy copies of an image inside its one clipped gradient. None = 1 from 20,000 private images on, 2 from 5,000 "
    "on, else 4: where images are few, copies cost little time."
)
_LEARNING = (
    "Of Adam. None = 2e-3, less in proportion where the noise of all steps together is longer than 0.03 clip norms."
)
_PHYSICAL = (
    "Images whose gradients are in memory at once, halved by itself where that is too many; a GPU takes 2,048 unless "
    "another number is set."
)
_KEYS: Keys = {
    "start_share": key(float, 0.5, _START, ge=0, lt=1),
    "draws": key(int | None, None, _COPIES, ge=1, le=1000),
    "clip_norm": key(
        ClipNorm, 0.2, "C, bound on one image's gradient; a constant, never taken from private gradients."
    ),
    "learning_rate": key(float | None, None, _LEARNING, gt=0),
    "cooldown": key(
        float, 0.5, "Share of the steps at the end over which the learning rate falls linearly to zero.", ge=0, le=1
    ),
    "ema_decay": key(float, 0.98, "Weight of the past in the averaged network, which is released.", ge=0, lt=1),
    "max_physical_batch": key(int, 128, _PHYSICAL, ge=1),
}
_PRIVACY: Keys = {
    "epsilon": key(float, ..., "Of everything together.", gt=0),
    "unit": key(Literal[Unit.IMAGE], Unit.IMAGE, "DP-SGD protects one image."),
    "relation": key(
        Literal[Relation.ZERO_OUT],
        Relation.ZERO_OUT,
        "How neighbors differ; Poisson sampling is accounted under this one.",
    ),
    "most_per_person": key(int, 20, "Without effect.", ge=1, le=1_000_000),
    "without_noise": key(
        bool,
        False,
        "Steps with a noise of 2^-30 clip norms, clipped and rounded as else, to see what the noise costs: nothing is "
        "proven of them.",
    ),
}
_TRAINING: Keys = {
    "steps": key(int, 400, "Steps of the network.", ge=1, le=1_000_000),
    "batch_size": key(
        int,
        2048,
        "Expected number of images in a step, each drawn by a coin; all of them up to so many.",
        ge=1,
        le=1_000_000,
    ),
    "tick_steps": key(int, 50, "Steps between two ticks: save, statistics, epsilon, sample grid, metrics.", ge=1),
}


def refuse_other_generators(config: Any) -> None:
    """Refuse a generator that does not draw by diffusion."""
    if config.model.generator != "diffusion":
        raise ConfigError(
            f'model.generator = "{config.model.generator}", but method {config.method.name} trains a denoiser: set '
            'model.generator = "diffusion".'
        )


def _check_parts(config: Any) -> None:
    """Refuse another generator, shares that leave nothing for the steps, and a start that is none."""
    if config.model.pipeline is None:
        refuse_other_generators(config)
    else:
        _check_pipeline(config)
    shares = ["start_share", "teacher_share", *(["template_share"] if config.model.drawn.shape else [])]
    if sum(getattr(config.method, share) for share in shares) >= 1:
        named = ", ".join(f"method.{share} = {getattr(config.method, share):g}" for share in shares)
        raise ConfigError(
            f"{named} leave nothing of the budget for the steps. Lower one of them, or take method gaussian, which "
            "has no steps."
        )
    if not config.method.start_share:
        _check_start(config)


def _check_pipeline(config: Any) -> None:
    """Refuse a release of moments, which no pipeline starts at, and a pipeline that may know private images."""
    if config.method.start_share:
        raise ConfigError(
            f"method.start_share = {config.method.start_share:g} releases moments, and a pipeline starts at none. "
            "Set method.start_share = 0."
        )
    if not config.data.public_disjoint:
        raise ConfigError(
            "nothing says what the pipeline of data.public_generator learned from. If nobody of the private images "
            "is among that, declare it with data.public_disjoint = true."
        )


def _check_start(config: Any) -> None:
    """Refuse to start at nothing, and what needs a release of moments."""
    model = config.model
    if not model.trained or model.drawn.shape or config.method.teacher_share:
        raise ConfigError(
            "method.start_share = 0 leaves the moments of a public denoiser as they are: name it as "
            "data.public_generator with model.trained, no model.drawing and method.teacher_share = 0, or set "
            "method.start_share above 0."
        )
    if model.origin is not None and model.latent_dim != model.origin.model.latent_dim:
        raise ConfigError(
            f"model.latent_dim = {model.latent_dim}, and the denoiser whose moments stay has "
            f"{model.origin.model.latent_dim}. Leave model.latent_dim out, or set method.start_share above 0."
        )


Settings = settings(
    "diffusion",
    method=[sums.KEYS, _KEYS],
    privacy=[released_once.KEYS, DELTA_ABOVE_ZERO, _PRIVACY],
    training=[_TRAINING],
    model=MODEL,
    checks=[sums.check_shares, _check_parts],
    dropped=moments.DROPPED,
    abilities={"move", "adapt", "record-gradients"},
)


class Plan(RunPlan):
    r"""What a run of diffusion costs: perhaps a template, sums of moments, perhaps a teacher, and T steps of DP-SGD.

    All of them are calibrated together: at a noise multiplier m of everything, the sums have ``m / sqrt(start_share)``,
    and the steps the noise that `teacher.noise_on` derives for a share of the squared signal. The ledger
    charges the events themselves, and m is the least with which they stay within (epsilon, delta).
    """

    SOURCES = 2
    reads_public = True

    @property
    def starts_at_moments(self) -> bool:
        """Whether moments of the private images are released; else those of the public denoiser stay."""
        return bool(self.config.method.start_share)

    @functools.cached_property
    def release(self) -> sums.SumsRelease:
        """The release of moments; the run has none where it does not start at them."""
        if not self.starts_at_moments:
            raise TypeError("a run that starts at the moments of a public denoiser releases none.")
        return sums.SumsRelease(self, gaussian.dimensions(self), steps_share=self.steps_share, steps=self._all_steps)

    @property
    def budget(self) -> Budget | None:
        """See `RunPlan`; none where nothing is proven."""
        return None if self.config.privacy.without_noise else super().budget

    @property
    def steps_share(self) -> float:
        """Share of the budget for the steps."""
        method = self.config.method
        return float(1 - method.start_share - method.teacher_share - sums.template_share(self.config))

    def _all_steps(self, multiplier: float) -> tuple[Event, ...]:
        """Return the charge of all steps."""
        return (self._steps(multiplier).event.repeated(self.config.training.steps),)

    @functools.cached_property
    def multiplier(self) -> float:
        """Noise multiplier of everything together."""
        if self.starts_at_moments:
            return self.release.multiplier
        return calibrate(self._all_steps, self.config.privacy.epsilon, self.delta)

    @property
    def sample_rate(self) -> float:
        """The chance of a record to be in a step."""
        return min(1.0, self.config.training.batch_size / max(self.shape.num_private, 1))

    def _steps(self, multiplier: float) -> DPSGDPlan:
        noise = noise_on(self.steps_share, multiplier, self.config.training.steps, self.sample_rate)
        divisor = max(1, round(self.sample_rate * max(self.shape.num_private, 1)))
        return DPSGDPlan(self.sample_rate, self.config.method.clip_norm, divisor, noise)

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:
        """The steps."""
        privacy, steps = self.config.privacy, self.config.training.steps
        if privacy.without_noise:
            return dataclasses.replace(self._steps(1.0), noise_multiplier=_NO_NOISE)
        if self.starts_at_moments:
            return self._steps(self.multiplier)
        noise = least_noise(privacy.epsilon, self.delta, self.sample_rate, steps)
        return dataclasses.replace(self._steps(1.0), noise_multiplier=noise)

    @property
    def step_event(self) -> Event:
        """The price of a step."""
        if self.config.privacy.without_noise:
            return Event.non_private("steps without noise (privacy.without_noise)", self.unit, self.relation)
        return self.dpsgd.event

    @property
    def start_events(self) -> tuple[Event, ...]:
        """The price of the template, of the sums and of the teacher; nothing where none are released."""
        return self.release.events if self.starts_at_moments else ()

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of what the steps start from, and of all steps."""
        return (*self.start_events, self.step_event.repeated(self.config.training.steps))

    @functools.cached_property
    def signal(self) -> Signal:
        """The figure of the release; without one that of all steps together, as with dp-gan."""
        if self.starts_at_moments:
            return released_once.signal_of(self, self.release.sums.noise_length, "the release")
        num, part, figure = self.shape.num_private, self.largest_part, self._signal_of(self.num_weights)
        advice = (
            f"The part that is trained has {self.num_weights:,} weights, N mu / sqrt(weights) = {figure:.2g}. The "
            f"largest part with {_LEAST_OF_PART:g} or more: {', '.join(part) or 'none'}."
        )
        return Signal(num / self.rows, self.rows, num / figure, "the DP-SGD steps", advice=advice)

    @property
    def draws(self) -> int:
        """K."""
        copies, num = self.config.method.draws, self.shape.num_private
        return copies or next(draws for least, draws in _DRAWS if num >= least)

    @property
    def learning_rate(self) -> float:
        """Of Adam before the cool-down, by public numbers."""
        rate, steps, plan = self.config.method.learning_rate, self.config.training.steps, self.dpsgd
        noise = plan.noise_multiplier * math.sqrt(self.num_weights / steps) / plan.divisor
        return rate or _RATE * min(1.0, _QUIET / max(noise, 1e-12))

    @functools.cached_property
    def num_weights(self) -> int:
        """Numbers that the steps move.

        Raises:
            ConfigError: If ``model.trained`` names what the network has not.
        """
        return _count(self._adapted(self.config.model))

    def _adapted(self, model: ModelConfig) -> nn.Module:
        """Return the network as the steps see it, without its weights."""
        with without_weights():
            generator = checkpoint.build_generator(model, self.shape.image_shape, len(self.shape.classes))
            network = cast(DiffusionGenerator, generator).network
            if model.origin is not None:
                adapt(network, model.trained)
        return network

    def _signal_of(self, weights: int) -> float:
        """Return N mu / sqrt(d): the longest sum of all records over the noise, both of the whole run."""
        spread = self.dpsgd.noise_multiplier * math.sqrt(weights / self.config.training.steps)
        return self.shape.num_private * self.sample_rate / spread

    @functools.cached_property
    def largest_part(self) -> tuple[str, ...]:
        """The largest part of the public network that the signal bears, by public numbers; empty: not even a small one.

        Of the parts of `idpgan.models.adapters`, each with the vectors of classes where there are classes, it is the
        largest whose `_signal_of` is `_LEAST_OF_PART` or more.
        """
        borne: dict[tuple[str, ...], int] = {}
        for part in _PARTS:
            alone = part in (LABELS, "*") or not (self.config.model.conditional and self.shape.classes)
            trained = (part,) if alone else (part, LABELS)
            with contextlib.suppress(ConfigError):  # a network need not have all of them
                weights = _count(self._adapted(self.config.model.model_copy(update={"trained": trained})))
                borne |= {trained: weights} if self._signal_of(weights) >= _LEAST_OF_PART else {}
        return max(borne, key=lambda trained: borne[trained], default=())

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name both parts, and where their noise came from."""
        first = ""
        if self.starts_at_moments:
            first = f"{self.release.reason('sums of moments', events)}; noise: {sources[0].name}; then "
        what = "adapters of a public denoiser" if self.config.model.trained else "the denoiser"
        noise = ", WITHOUT NOISE" if self.config.privacy.without_noise else ""
        return reason_of_steps(self, f"{first}DP-SGD on {what}, Poisson sampling{noise}", events, sources[1])

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name what both parts take as public."""
        plan = self.dpsgd
        return (
            *(gaussian.assumptions(self) if self.starts_at_moments else ()),
            f"the sampling rate {plan.sample_rate:g} and the divisor {plan.divisor}",
            SETTINGS,
        )

    def check(self) -> None:
        """Refuse what the data cannot give and the machine cannot hold; any image size will do."""
        refuse_gone(self.config.model.trained)
        self.check_precision()
        if self.starts_at_moments:
            gaussian.check(self)
        if self.config.model.origin is not None:
            checkpoint.build_origin(self.config.model.origin, self.shape.image_shape)
        record_bytes = 4 * self.num_weights + self.draws * checkpoint.batch_bytes(
            self.config.model, self.shape.image_shape, 1
        )
        check_gradients(self, record_bytes, "Lower model.width.")


def _count(network: nn.Module) -> int:
    """Return the numbers that the steps move."""
    return sum(weight.numel() for weight in trained_weights(network).values())
