"""Settings and price of idp-gan-aggregate, known before an image is read."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from idpgan.data.drawn import are_unlabeled
from idpgan.errors import ConfigError
from idpgan.models.features import DATALESS, PublicFeatures
from idpgan.privacy import Event
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.private.people import AggregatePrivacy, capped, check_people
from idpgan.synthesis.aggregate.vectors import PhotoFeatures
from idpgan.synthesis.agreed import check_agreed
from idpgan.synthesis.move import assumed, check_moved
from idpgan.synthesis.sums_plan import SumsConfig, SumsPlan, SumsRun
from idpgan.training.config import MOST_STEPS, TrainingConfig


class AggregateConfig(SumsConfig):
    """[method] of idp-gan-aggregate.

    Attributes:
        features: "public" (CNN and PCA learned on the public split), or of no data at all: "random" (Gabor moduli) or
            "scattering" (two orders of wavelet moduli; about twice the time), all three for handwriting; or "photos":
            the moments of model.latent_dim DCT coefficients, which a "refined" generator starts at, and wavelet moduli,
            all in absolute units; public images then set center and scale.
        moments: Principal components ("public") or DCT coefficients and projections ("random") whose second moments
            are released: m (m + 1) / 2 numbers a class each. With "photos" projections, and coefficients whose moments
            are matched (none where they are registered or symmetric: those only start the generator).
        fourier: Random Fourier features of each kind.
        level: Brightness that those of no data count from: 0 black, 1 white. A public statement, as on which ground
            things are drawn.
        law: "gaussian" (L2 norm, (epsilon, delta)) or "laplace" (L1 norm, pure).
        augment: Strength of the random motion of every private image before phi; 1 is that of handwriting.
        metric: What the critic whitens by: images of the "public" split, "fakes", or "none".
        metric_steps: Steps after which the metric is taken anew from fakes.
        metric_noise: How many images count as one direction when noise and variance are weighed.
        average: Weight of the past in the critic's average of fake means.
        embedding_steps: Steps of fitting the public CNN.
        pretrain_steps: Steps of pre-training a "warp" generator on public images.
        learning_rate: Peak, of Adam for the generator; warm-up 5 %, then cosine to zero.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        ema_decay: Weight of the past in the averaged generator.
    """

    DROPPED: ClassVar[Mapping[str, Any]] = {
        "clusters": 1,
        "groups": 1,
        "critic": "linear",
        "evolution_share": 0.0,
        "evolution": {
            "name": "evolution",
            "threshold": 2.0,
            "first_variation": 0.6,
            "last_variation": 0.2,
            "lookahead": 0,
            "looks": None,
            "embedding": "scattering",
            "steps": 8,
            "codes": 200,
            "images": 6000,
        },
    }

    name: Literal["idp-gan-aggregate"] = "idp-gan-aggregate"
    features: Literal["public", "random", "scattering", "photos"] = "random"
    moments: int = Field(48, ge=1, le=1000)
    fourier: int = Field(500, ge=1, le=100_000)
    level: float = Field(0.5, ge=0, le=1)
    law: Literal["gaussian", "laplace"] = "gaussian"
    augment: float = Field(0.2, ge=0, le=3)
    metric: Literal["none", "public", "fakes"] = "fakes"
    metric_steps: tuple[int, ...] = (200, 500, 1500, 3000)
    metric_noise: float = Field(300.0, ge=0)
    average: float = Field(0.95, ge=0, lt=1)
    embedding_steps: int = Field(3500, ge=0)
    pretrain_steps: int = Field(1500, ge=0)
    learning_rate: float = Field(2e-3, gt=0)
    beta1: float = Field(0.8, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    ema_decay: float = Field(0.99, ge=0, lt=1)


class AggregateTraining(TrainingConfig):
    """[training] of idp-gan-aggregate.

    Attributes:
        steps: Generator steps, on released sums alone: they cost nothing. 0: a "refined" generator as it starts.
    """

    steps: int = Field(10_000, ge=0, le=MOST_STEPS)


class AggregateRun(SumsRun):
    """A whole config file of idp-gan-aggregate."""

    method: AggregateConfig = AggregateConfig()
    privacy: AggregatePrivacy
    training: AggregateTraining = AggregateTraining()

    @model_validator(mode="after")
    def _check_start(self) -> AggregateRun:
        """Refuse 0 steps where steps are needed."""
        if not self.training.steps and self.model.generator != "refined":
            raise ConfigError(
                "training.steps = 0 leaves the generator as it starts, and only a "
                f'"refined" one starts at what was released; model.generator = "{self.model.generator}". Set '
                "training.steps to 1 or more."
            )
        return self


class AggregatePlan(SumsPlan):
    """The plan of a run of idp-gan-aggregate: one release of sums, perhaps with a teacher beside it."""

    @property
    def reads_public(self) -> bool:  # type: ignore[override]  # it follows from the settings
        """Whether features, metric or pre-training are of public images."""
        method, pretrains = (
            self.config.method,
            self.config.model.generator == "warp" and self.config.method.pretrain_steps,
        )
        return "public" in (method.features, method.metric) or method.features == "photos" or bool(pretrains)

    @functools.cached_property
    def sums(self) -> CellSums:
        """The release of sums; raises a `ConfigError` if Gaussian noise is asked for at delta = 0."""
        method, image_shape = self.config.method, self.shape.image_shape
        if method.features == "public":
            dimensions = PublicFeatures.count_dimensions(
                image_shape, self.shape.sizes.public, self.classes, components=method.moments, fourier=method.fourier
            )
        elif method.features == "photos":
            latent_dim = self.config.model.latent_dim
            dimensions = PhotoFeatures.count_dimensions(image_shape, latent_dim, **self.feature_sizes)
        else:
            dimensions = DATALESS[method.features].count_dimensions(image_shape, **self.feature_sizes)
        return self.of_cells(self.rows, dimensions)

    @property
    def feature_sizes(self) -> dict[str, Any]:
        """What makes feature maps larger or smaller, but for those that are learned on public images."""
        method = self.config.method
        sizes = {"dimensions": method.moments, "fourier": method.fourier}
        photos = {"shape": self.config.model.drawn.shape, "symmetric": method.symmetric}
        return sizes | (photos if method.features == "photos" else {})

    def of_cells(self, cells: int, dimensions: int) -> CellSums:
        """Return the release of so many sums of so many numbers; raise as `sums`."""
        law = self.config.method.law
        if law == "gaussian" and self.config.privacy.delta == 0:
            raise ConfigError(
                "privacy.delta = 0, but Gaussian noise has no pure guarantee. Set privacy.delta above 0, or "
                'method.law = "laplace".'
            )
        return self.calibrated(cells, dimensions, law)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name what was released, and where its noise came from."""
        return f"{self.placed}one release of noisy sums{self.taught(events)}; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the feature map, and what else was fixed or learned before a private image was read."""
        features = self.config.method.features
        assumptions = [f"the feature map ({features} features), fixed before any private image was read"]
        if self.shape.sizes.public:
            assumptions.append("what was learned from public images; the generator may reproduce them")
        return (*assumptions, *assumed(self.config.model), *capped(self.config))

    def check(self) -> None:
        """Refuse data that networks, features, cells or teacher cannot use."""
        super().check()
        batch_size = self.config.training.batch_size
        self._check_features()
        if self.rows > self.shape.num_private:
            raise ConfigError(
                f"{self.rows} classes for {self.shape.num_private} private images: most sums would hold noise only. "
                "Take more images, or set model.conditional = false."
            )
        check_people(self)
        self.check_teacher()
        self.check_template()
        check_moved(self)
        check_agreed(self)
        if batch_size % self.rows:
            raise ConfigError(
                f"training.batch_size = {batch_size} must be a multiple of the {self.rows} classes: "
                "every step generates equally many of each."
            )

    def _check_features(self) -> None:
        """Refuse options that need missing public images or labels, and moments without a proof."""
        data, method, generator = self.config.data, self.config.method, self.config.model.generator
        needs_public = [key for key in ("features", "metric") if getattr(method, key) == "public"]
        if needs_public and not self.shape.sizes.public:
            raise ConfigError(
                f"method.{needs_public[0]} = {getattr(method, needs_public[0])} needs public images, and there "
                "are none. Name a folder of them as data.public_root, or set data.public_share and confirm_public, "
                'or set method.features = "random" and method.metric = "fakes".'
            )
        if self.config.model.moved and method.features != "photos":
            raise ConfigError(
                f"model.moved = {self.config.model.moved} moves public images onto released moments, which "
                f'method.features = "{method.features}" has none of. Set it to "photos", or model.moved = 0.'
            )
        unlabeled = are_unlabeled(data, self.shape.classes)
        # Public images need labels to teach classes, unless they only set a center and a scale.
        learns_classes = method.features != "photos" or method.metric == "public" or generator == "warp"
        if unlabeled and learns_classes and self.classes:
            raise ConfigError(
                "the public images have no labels, but the generator has classes. Say what each looks like in "
                "data.public_labels, or set model.conditional = false."
            )
        if generator == "refined" and method.features != "photos":
            raise ConfigError(
                f'model.generator = "refined" starts at released moments, and method.features = "{method.features}" '
                'has none. Set method.features = "photos".'
            )
        if method.symmetric and method.features != "photos":
            raise ConfigError(
                f'method.symmetric = true leaves out moments, and method.features = "{method.features}" has none. Set '
                'method.features = "photos", or method.symmetric = false.'
            )
        if method.features == "photos" and method.law != "gaussian":
            raise ConfigError(
                f'method.features = "photos" bounds the L2 norm, and method.law = "{method.law}" needs the L1 '
                'norm. Set method.law = "gaussian", or another method.features.'
            )
