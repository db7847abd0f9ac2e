"""Methods that went with 0.4.0, as far as the price of what they released follows from its settings: nothing trains.

The proofs are in the code of commit 1aef30f1: `synthesis/local_channel.py`, and `synthesis/hybrid.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from idpgan.config import Key, Keys, key, section
from idpgan.errors import ConfigError
from idpgan.methods import load
from idpgan.privacy import DiscreteLaplace, Event, Grid, RandomizedResponse, Relation, RoundedGaussian, Unit
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Budget
from idpgan.training.config import section_of, settings
from idpgan.training.plan import RunPlan

# idp-gan-local: every image and its label went through a channel of its own, once ------------------------------------

_LOCAL = (Unit.IMAGE, Relation.REPLACE_ONE)


def _keys_of(name: str) -> Keys:
    """Return the keys of a method's [method] but for its name."""
    fields = section_of(load(name).Settings, "method").model_fields
    kinds = {key: Annotated[field.annotation, *field.metadata, None] for key, field in fields.items() if key != "name"}
    return {key: Key(kind, fields[key].default, "", {}) for key, kind in kinds.items()}


def _raw_labels(config: Any) -> bool:
    """Tell whether labels were used without protection."""
    return config.model.conditional and config.privacy.label_epsilon is None


def _check_local(config: Any) -> None:
    label, method = config.privacy.label_epsilon, config.method
    if label is not None and not (config.model.conditional and label < config.privacy.epsilon):
        raise ConfigError(f"privacy.label_epsilon = {label:g} is not part of epsilon, or there are no labels.")
    if (method.projection == "pixels") != (method.coefficients is None):
        raise ConfigError(f"method.coefficients = {method.coefficients} does not fit to method.projection.")


_LocalSettings = settings(
    "idp-gan-local",
    method=[
        _keys_of("wgan-gp"),
        {
            "projection": key(Literal["pixels", "dct", "public-pca"], "pixels", "A public basis."),
            "coefficients": key(int | None, None, "k of them.", ge=1),
            "bound": key(Literal["clamp", "l1", "l2"], "clamp", "Each is clamped, or all are clipped in a norm."),
            "clip_norm": key(float | None, None, "Of all together.", gt=0),
        },
    ],
    privacy=[
        {
            "epsilon": key(float, ..., "Of an image and its label.", gt=0),
            "delta": key(float | None, None, "Where it is stated.", ge=0, lt=1),
            "label_epsilon": key(float | None, None, "Of epsilon, for randomized response to the label.", gt=0, le=30),
        }
    ],
    checks=[_check_local],
)


class LocalPlan(RunPlan):
    """The price of a run of idp-gan-local."""

    @property
    def budget(self) -> Budget | None:
        """What was asked for; raw labels have none."""
        return None if _raw_labels(self.config) else super().budget

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The least noise that keeps the image and its label within the budget."""
        privacy, pixels = self.config.privacy, math.prod(self.shape.image_shape)
        size = self.config.method.coefficients or pixels
        if size > pixels:
            raise ConfigError(f"method.coefficients = {size} must lie in 1 .. {pixels}, the numbers of an image.")
        labels: tuple[Event, ...] = ()
        if privacy.label_epsilon is not None and self.classes:
            labels = (RandomizedResponse(self.classes, privacy.label_epsilon, *_LOCAL).event,)
        multiplier = calibrate(lambda noise: (self._image(size, noise), *labels), privacy.epsilon, self.delta)
        unpaid = (Event.non_private("raw labels are an input of the critic", *_LOCAL),)
        return (self._image(size, multiplier), *labels, *(unpaid if _raw_labels(self.config) else ()))

    def _image(self, size: int, noise_multiplier: float) -> Event:
        """Return the price of an image: replacing it moves each coefficient, or the norm of all, by at most 2."""
        bound = self.config.method.bound
        length, norm = (1, 1) if bound == "clamp" else (size, 1 if bound == "l1" else 2)
        grid = Grid.fine(2.0, length, norm=norm)
        if norm == 2:
            far = grid.l2(2.0, length)
            return RoundedGaussian(far, math.ceil(noise_multiplier * far), *_LOCAL).event
        steps = grid.l1(2.0, length)
        return DiscreteLaplace(steps, math.ceil(noise_multiplier * steps), *_LOCAL).event.repeated(size // length)

    @property
    def claimed(self) -> None:
        """No paper claims anything of this method."""

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the noise, and what public images had set."""
        method, learned = self.config.method, "basis and bounds of the coefficients were computed from public images"
        plain = method.projection == "pixels" and (method.bound == "clamp" or method.clip_norm)
        return f"noise source: {sources[0].name}", *((learned,) if self.shape.sizes.public and not plain else ())


class Local:
    """What is left of idp-gan-local."""

    Settings, Plan = _LocalSettings, LocalPlan


# hybrid: a release of sums at a share of epsilon, then critic steps of dp-gan with what it left, on one ledger --------


_AGGREGATE, _STEPS = (section_of(load(name).Settings, "method") for name in ("idp-gan-aggregate", "dp-gan"))
_DP_GAN = section(_STEPS, {"critic_warmup": key(int, 0, "Critic steps before a generator's.", ge=0)}, dropped={})


def _check_hybrid(config: Any) -> None:
    public_start = config.method.dp_gan.groups or config.method.dp_gan.public_steps
    if public_start or config.training.steps <= config.method.aggregate_steps:
        raise ConfigError("hybrid had no public start, and more training.steps than method.aggregate_steps.")


_HybridSettings = settings(
    "hybrid",
    method=[
        {
            "share": key(float, 0.1, "Of epsilon, for the release.", gt=0, lt=1),
            "aggregate_steps": key(int, 2000, "Steps that read nothing private.", ge=1),
            "aggregate_batch_size": key(int, 250, "Images in such a step.", ge=1),
            "match": key(float, 100.0, "Weight of the match.", ge=0),
            "aggregate": key(_AGGREGATE, _AGGREGATE(), "Of the release."),
            "dp_gan": key(_DP_GAN, _DP_GAN(critic_warmup=300), "Of the steps."),
        }
    ],
    privacy=[
        {
            "epsilon": key(float, ..., "Of both parts together.", gt=0),
            "delta": key(float, ..., "Where it is stated.", gt=0, lt=1),
            "sample_rate": key(float | None, None, "Of the critic steps.", gt=0, le=1),
        }
    ],
    checks=[_check_hybrid],
    abilities={"move"},
)


class HybridPlan(RunPlan):
    """The price of a run of hybrid: those of both parts."""

    SOURCES = 2

    @functools.cached_property
    def first(self) -> Any:
        """The release of sums."""
        config, privacy = self.config, self.config.privacy
        steps = {"steps": config.method.aggregate_steps, "batch_size": config.method.aggregate_batch_size}
        delta = 0.0 if config.method.aggregate.law == "laplace" else privacy.delta  # Laplace noise is pure
        aggregate = load("idp-gan-aggregate")
        part = aggregate.Settings(
            data=config.data,
            model=config.model.model_copy(update={"critic": "dcgan"}),
            method=config.method.aggregate,
            privacy={"epsilon": config.method.share * privacy.epsilon, "delta": delta},
            training=config.training.model_dump() | steps,
        )
        return aggregate.Plan(part, self.shape)

    @functools.cached_property
    def second(self) -> Any:
        """The critic steps."""
        config, privacy = self.config, self.config.privacy
        dp_gan = load("dp-gan")
        part = dp_gan.Settings(
            data=config.data,
            model=config.model.model_copy(update={"moved": 0, "origin": None}),
            method=config.method.dp_gan,
            privacy={"epsilon": privacy.epsilon, "delta": privacy.delta, "sample_rate": privacy.sample_rate},
            training=config.training.model_copy(
                update={"steps": config.training.steps - config.method.aggregate_steps}
            ),
        )
        return dp_gan.Plan(part, self.shape, self.first.events)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of the release, then of the critic steps."""
        return (*self.first.events, *self.second.events)

    @property
    def candidates(self) -> int | None:
        """Images that the released generator draws for each one that its teacher chooses; None without a teacher."""
        return self.first.candidates

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name what both parts took as public."""
        second = self.second
        second.reads_public = True
        return (*self.first.assumptions(sources[:1]), *second.assumptions(sources[1:]))


class Hybrid:
    """What is left of hybrid."""

    Settings, Plan = _HybridSettings, HybridPlan
