"""Settings and price of idp-gan-aggregate, known before an image is read."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

from idpgan.config import key
from idpgan.data.drawn import are_unlabeled
from idpgan.errors import ConfigError
from idpgan.models.features import DATALESS, PublicFeatures
from idpgan.privacy import Event
from idpgan.privacy.noise import Source
from idpgan.private import released_once
from idpgan.synthesis import move, sums
from idpgan.synthesis.feature_sums import PhotoFeatures
from idpgan.training.config import MOST_STEPS, settings
from idpgan.training.plan import RunPlan, Signal


def _check_start(config: Any) -> None:
    """Refuse 0 steps where steps are needed."""
    if not config.training.steps and config.model.generator != "refined":
        raise ConfigError(
            "training.steps = 0 leaves the generator as it starts, and only a "
            f'"refined" one starts at what was released; model.generator = "{config.model.generator}". Set '
            "training.steps to 1 or more."
        )


_FEATURES = (
    '"public" (CNN and PCA learned on the public split), or of no data at all: "random" (Gabor moduli) or "scattering" '
    '(two orders of wavelet moduli; about twice the time), all three for handwriting; or "photos": the moments of '
    'model.latent_dim DCT coefficients, which a "refined" generator starts at, and wavelet moduli, all in absolute '
    "units; public images then set center and scale."
)
_MOMENTS = (
    'Principal components ("public") or DCT coefficients and projections ("random") whose second moments are released: '
    'm (m + 1) / 2 numbers a class each. With "photos" projections, and coefficients whose moments are matched.'
)
_LEVEL = (
    "Brightness that those of no data count from: 0 black, 1 white. A public statement, as on which ground things are "
    "drawn."
)

Settings = settings(
    "idp-gan-aggregate",
    method=[
        sums.KEYS,
        {
            "features": key(Literal["public", "random", "scattering", "photos"], "random", _FEATURES),
            "moments": key(int, 48, _MOMENTS, ge=1, le=1000),
            "fourier": key(int, 500, "Random Fourier features of each kind.", ge=1, le=100_000),
            "level": key(float, 0.5, _LEVEL, ge=0, le=1),
            "law": key(
                Literal["gaussian", "laplace"],
                "gaussian",
                '"gaussian" (L2 norm, (epsilon, delta)) or "laplace" (L1 norm, pure).',
            ),
            "augment": key(
                float,
                0.2,
                "Strength of the random motion of every private image before phi; 1 is that of handwriting.",
                ge=0,
                le=3,
            ),
            "metric": key(
                Literal["none", "public", "fakes"],
                "fakes",
                'What the critic whitens by: images of the "public" split, "fakes", or "none".',
            ),
            "metric_steps": key(
                tuple[int, ...], (200, 500, 1500, 3000), "Steps after which the metric is taken anew from fakes."
            ),
            "metric_noise": key(
                float, 300.0, "How many images count as one direction when noise and variance are weighed.", ge=0
            ),
            "embedding_steps": key(int, 3500, "Steps of fitting the public CNN.", ge=0),
            "pretrain_steps": key(int, 1500, 'Steps of pre-training a "warp" generator on public images.', ge=0),
            "learning_rate": key(
                float, 2e-3, "Peak, of Adam for the generator; warm-up 5 %, then cosine to zero.", gt=0
            ),
            "beta1": key(float, 0.8, "Decay of Adam's first moment.", ge=0, lt=1),
            "beta2": key(float, 0.99, "Decay of Adam's second moment.", ge=0, lt=1),
            "ema_decay": key(float, 0.99, "Weight of the past in the averaged generator.", ge=0, lt=1),
        },
    ],
    privacy=[released_once.KEYS],
    training=[
        {
            "steps": key(
                int,
                10_000,
                'Generator steps, on released sums alone: they cost nothing. 0: a "refined" generator as it starts.',
                ge=0,
                le=MOST_STEPS,
            )
        }
    ],
    checks=[sums.check_shares, _check_start],
    abilities={"move"},
    dropped={
        "average": 0.95,
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
    },
)


class Plan(RunPlan):
    """What a run of idp-gan-aggregate costs: one release of sums, perhaps with a teacher beside it."""

    @property
    def reads_public(self) -> bool:  # type: ignore[override]  # it follows from the settings
        """Whether features, metric or pre-training are of public images."""
        method, pretrains = (
            self.config.method,
            self.config.model.generator == "warp" and self.config.method.pretrain_steps,
        )
        return "public" in (method.features, method.metric) or method.features == "photos" or bool(pretrains)

    @functools.cached_property
    def release(self) -> sums.SumsRelease:
        """All that is released; raises a `ConfigError` if Gaussian noise is asked for at delta = 0."""
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
        return self.of_dimensions(dimensions)

    @property
    def feature_sizes(self) -> dict[str, Any]:
        """What makes feature maps larger or smaller, but for those that are learned on public images."""
        method = self.config.method
        sizes = {"dimensions": method.moments, "fourier": method.fourier}
        photos = {"shape": self.config.model.drawn.shape, "symmetric": method.symmetric}
        return sizes | (photos if method.features == "photos" else {})

    def of_dimensions(self, dimensions: int) -> sums.SumsRelease:
        """Return the release of sums of so many numbers; raise as `release`."""
        law = self.config.method.law
        if law == "gaussian" and self.config.privacy.delta == 0:
            raise ConfigError(
                "privacy.delta = 0, but Gaussian noise has no pure guarantee. Set privacy.delta above 0, or "
                'method.law = "laplace".'
            )
        return sums.SumsRelease(self, dimensions, law)

    @property
    def events(self) -> tuple[Event, ...]:
        """The price of the release."""
        return self.release.events

    @property
    def signal(self) -> Signal:
        """The figure of the sums."""
        of_sums = self.release.sums
        return released_once.signal_of(self, of_sums.noise_length, "the release", of_sums.noise_std)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name what was released, and where its noise came from."""
        return f"{self.release.reason('sums', events)}; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the feature map, and what else was fixed or learned before a private image was read."""
        features = self.config.method.features
        assumptions = [f"the feature map ({features} features), fixed before any private image was read"]
        if self.shape.sizes.public:
            assumptions.append("what was learned from public images; the generator may reproduce them")
        return (*assumptions, *move.assumed(self.config.model), *released_once.capped(self.config))

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
        released_once.check_people(self)
        sums.check(self)
        move.check(self)
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
        if self.config.model.moved or self.config.model.drawn.shape or method.symmetric:
            raise ConfigError(
                'model.moved, model.drawing = "faces" and method.symmetric are for method gaussian: idp-gan-aggregate '
                "takes images as they lie. Take that method, or leave them out."
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
        if method.features == "photos" and method.law != "gaussian":
            raise ConfigError(
                f'method.features = "photos" bounds the L2 norm, and method.law = "{method.law}" needs the L1 '
                'norm. Set method.law = "gaussian", or another method.features.'
            )
