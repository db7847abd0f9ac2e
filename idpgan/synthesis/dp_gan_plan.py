"""Settings and price of dp-gan, known before an image is read."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

from idpgan.config import Keys, key
from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.models import checkpoint
from idpgan.models.config import ModelConfig
from idpgan.own_code import is_own_code
from idpgan.privacy import Event, check_delta
from idpgan.privacy.dpsgd import ClipNorm, DPSGDPlan
from idpgan.privacy.noise import Source
from idpgan.private import steps
from idpgan.synthesis.critic_loss import Kind, try_gradients
from idpgan.training.config import ENGINE, check_engine, settings
from idpgan.training.plan import RunPlan, Signal

METHOD: Keys = {
    "loss": key(
        Kind,
        "non-saturating",
        '"non-saturating", "hinge", "wgan-gp", "wgan-clip" or "wgan-spectral"; see `CriticLoss`. Opacus\' '
        'hooks do all but "wgan-gp".',
    ),
    "weight_bound": key(
        float | None,
        None,
        'Of "wgan-clip", on each number (None = 0.01), and of "wgan-spectral", on each weight\'s largest '
        "singular value (None = 1).",
        gt=0,
    ),
    "fakes": key(
        Literal["paired", "separate"],
        "paired",
        '"paired" with their record under one clip, or "separate", outside of the private sum.',
    ),
    "clip_norm": key(
        ClipNorm, 1.0, "C, bound on one record's gradient; a constant, never taken from private gradients."
    ),
    "groups": key(
        int,
        0,
        "Clip the critic's weights in so many groups, each to the mean norm of its gradient on public images,"
        " of which every step looks at a batch (Zhang, Ji, Wang 2018); `clip_norm` is then without effect. 0 "
        "= together.",
        ge=0,
        le=1024,
    ),
    "public_steps": key(
        int, 0, "Critic steps on public images before the first private one, without noise or charge.", ge=0
    ),
    "critic_width": key(
        int | None,
        None,
        "Feature maps of the critic next to the image; noise grows with the number of weights, so it may be "
        "narrower than the generator. None = ``model.width``.",
        ge=1,
        le=1024,
    ),
    "gradient_penalty": key(float, 10.0, 'Weight of the penalty, "wgan-gp" only.', ge=0),
    "mismatch": key(
        float,
        0.0,
        "Weight of every drawn image under a wrong class as one more fake (Reed et al. 2016), under the same "
        "clip: it teaches the critic classes. 0 = none; needs classes.",
        ge=0,
    ),
    "augment": key(
        float,
        0.0,
        "Strength of a random motion of every drawn image, by coins of its own; 1 is that of handwriting.",
        ge=0,
        le=3,
    ),
    "critic_steps_per_generator_step": key(int, 10, "At the start, if `adaptive_below` is above 0.", ge=1),
    "adaptive_below": key(
        float,
        0.0,
        "Where the critic tells fewer fakes than this share, its steps per generator step grow by half (Bie "
        "et al. 2023, section 4.3). 0 = fixed pace. Not with a Wasserstein loss.",
        ge=0,
        lt=1,
    ),
    "critic_learning_rate": key(float, 5e-4, "Of Adam.", gt=0),
    "critic_decay": key(
        float,
        0.0,
        "Decoupled weight decay of the critic, times its learning rate. It bounds what the noise of thousands"
        " of steps adds up to: a standard deviation of about ``sqrt(rate / (2 decay))`` per weight.",
        ge=0,
    ),
    "generator_learning_rate": key(float, 5e-4, "Of Adam.", gt=0),
    "cooldown": key(
        float, 0.2, "Share of the steps at the end over which both learning rates fall linearly to zero.", ge=0, le=1
    ),
    "beta1": key(float, 0.5, "Decay of Adam's first moment.", ge=0, lt=1),
    "beta2": key(float, 0.99, "Decay of Adam's second moment.", ge=0, lt=1),
    "ema_decay": key(float, 0.999, "Weight of the past in the averaged generator.", ge=0, lt=1),
    "max_physical_batch": key(int, 64, steps.PHYSICAL_BATCH, ge=1),
}
"""Keys of [method] of dp-gan, beside `ENGINE`."""

DROPPED = {"critic_warmup": 0}
"""Keys of [method] of earlier versions; see `Section.DROPPED`."""

PRIVACY: Keys = {
    **steps.BUDGET,
    "sample_rate": key(
        float | None,
        None,
        "q, the chance of each image to be in a critic step; None = ``training.batch_size``, which is the "
        "divisor, of the N private images.",
        gt=0,
        le=1,
    ),
    "noise_multiplier": steps.NOISE_MULTIPLIER,
}
"""Keys of [privacy]; unit image, zero-out-one."""


def looks_at_public(method: Any) -> bool:
    """Tell whether public images are used for anything."""
    return bool(method.groups > 0 or method.public_steps > 0)


def check_pace(method: Any) -> None:
    """Refuse settings of [method] that do not fit together; raises `ConfigError`."""
    if method.loss.startswith("wgan") and method.adaptive_below > 0:
        raise ConfigError(
            f"adaptive_below = {method.adaptive_below:g} counts the fakes that score below 0, and scores of "
            f'loss = "{method.loss}" have no such threshold. Set adaptive_below = 0, or loss = "non-saturating".'
        )
    if method.loss == "wgan-gp" and method.engine == "opacus":
        raise ConfigError(
            'method.loss = "wgan-gp" differentiates its gradient penalty a second time, and Opacus\' hooks see a '
            'backward pass once. Set method.loss = "wgan-clip" or "wgan-spectral", which bound weights instead, '
            'or method.engine = "idpgan".'
        )
    if method.weight_bound is not None and method.loss not in ("wgan-clip", "wgan-spectral"):
        raise ConfigError(
            f'method.weight_bound = {method.weight_bound:g} is of loss = "wgan-clip" and "wgan-spectral", and loss = '
            f'"{method.loss}". Leave it out.'
        )
    if method.groups and method.engine == "opacus":
        raise ConfigError(
            f"method.groups = {method.groups} clips groups of weights by themselves, and Opacus' steps clip all "
            'together. Set method.engine = "idpgan", or method.groups = 0.'
        )
    if method.public_steps and method.fakes == "separate":
        raise ConfigError(
            f"method.public_steps = {method.public_steps} trains the critic on pairs of a public image and a fake. "
            'Set method.fakes = "paired", or method.public_steps = 0.'
        )


Settings = settings(
    "dp-gan",
    method=[ENGINE, METHOD],
    privacy=[PRIVACY],
    method_checks=[check_engine, check_pace],
    dropped=DROPPED,
    abilities={"record-gradients"},
)


class Plan(RunPlan):
    """The plan of a run of dp-gan: critic steps, with the least noise that the charges before them leave room for."""

    OWN_CRITIC = "private"
    apart = False  # whether every weight of a group is clipped by itself, to the group's bound

    def __init__(self, config: Any, shape: DataShape, given: Sequence[Event] = ()) -> None:
        super().__init__(config, shape, given)
        self.reads_public = looks_at_public(config.method)

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:
        """The critic's steps."""
        return steps.steps_at(self, self.sample_rate, self.config.training.batch_size)

    @property
    def events(self) -> tuple[Event, ...]:
        """The price of all steps."""
        return (self.dpsgd.event.repeated(self.config.training.steps),)

    @property
    def sample_rate(self) -> float:
        """q, as set, or that at which the expected number of images in a step is its divisor."""
        expected = min(1.0, self.config.training.batch_size / max(self.shape.num_private, 1))
        return self.config.privacy.sample_rate or expected

    @property
    def critic_model(self) -> ModelConfig:
        """The [model] section as the critic has it."""
        model: ModelConfig = self.config.model
        return model.model_copy(update={"width": self.config.method.critic_width or model.width})

    @property
    def signal(self) -> Signal:
        """The figure of all critic steps together, if every record pulled one way in all of them.

        A step adds up q N gradients of norm at most C, and noise of standard deviation sigma C on every weight; over T
        steps the first grows with T, the second with its root.
        """
        cells = max(self.classes, 1)
        noise = (
            self.dpsgd.noise_multiplier
            * math.sqrt(sum(self.critic_sizes) / self.config.training.steps)
            / self.sample_rate
        )
        return Signal(self.shape.num_private / cells, cells, noise, "the DP-SGD steps")

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name the mechanism, and where its noise came from."""
        groups = self.config.method.groups
        clipped = f", {groups} groups of weights clipped to bounds from public images" if groups else ""
        what = f"DP-SGD on the critic, Poisson sampling{clipped}"
        return steps.reason_of_steps(self, what, events, sources[0])

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the sampling rate, the divisor, the settings, and how many images are public."""
        rate, divisor = self.sample_rate, self.config.training.batch_size
        public = (f"{self.shape.sizes.public} public images, which are not protected",) if self.reads_public else ()
        return f"the sampling rate {rate:g} and the divisor {divisor}", *public, steps.SETTINGS

    def check(self) -> None:
        """Refuse a divisor that is not about q N, wrong classes without classes, and a step beyond memory or budget."""
        super().check()
        self._check_public()
        if is_own_code(self.config.model.critic):
            try_gradients(self.critic_model, self.shape.image_shape, self.classes, self.config.method, self.dpsgd)
        method, privacy, size = self.config.method, self.config.privacy, self.config.training.batch_size
        num_private, classes = self.shape.num_private, self.classes
        check_delta(privacy.delta, num_private)
        expected = self.sample_rate * num_private
        if not expected / 2 <= size <= 2 * expected:
            raise ConfigError(
                f"training.batch_size = {size} divides the noisy sum of about {expected:.0f} images "
                f"(privacy.sample_rate = {self.sample_rate:g} of {num_private}); it must be within a factor of 2 of "
                f"that. Leave privacy.sample_rate out, set it to about {size / num_private:.4g}, or "
                f"training.batch_size to {max(1, round(expected))}."
            )
        if method.mismatch and classes < 2:
            raise ConfigError(
                f"method.mismatch = {method.mismatch:g} needs at least 2 classes, and the critic has "
                f"{classes}. Set method.mismatch = 0."
            )
        steps.check_gradients(self, 4 * sum(self.critic_sizes), "Lower method.critic_width (model.width).")
        self.refuse_no_step()

    def refuse_no_step(self) -> None:
        """Refuse noise with which not even one step is within the budget."""
        steps.refuse_no_step(self, self.dpsgd)

    @property
    def critic_sizes(self) -> list[int]:
        """How many numbers each weight of the critic has."""
        return checkpoint.critic_sizes(self.critic_model, self.shape.image_shape, self.classes)

    @property
    def critic_tensors(self) -> int:
        """Weights of the critic that have a gradient of their own."""
        return len(self.critic_sizes)

    def _check_public(self) -> None:
        """Refuse to look at public images that are not there, and more groups than weights."""
        method = self.config.method
        if self.reads_public and not self.shape.sizes.public:
            key = "groups" if method.groups else "public_steps"
            raise ConfigError(
                f"method.{key} = {getattr(method, key)} looks at public images, and there are none. Set "
                f"data.public_share (0.02, with data.confirm_public = true) or data.public_root, or method.{key} = 0."
            )
        if method.groups > self.critic_tensors:
            raise ConfigError(
                f"method.groups = {method.groups}, and the critic has {self.critic_tensors} weight tensors. Set "
                f"method.groups to {self.critic_tensors} at most."
            )
