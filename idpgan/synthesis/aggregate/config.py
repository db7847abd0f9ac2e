"""Settings and price of idp-gan-aggregate, known before an image is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.models.config import classes_of
from idpgan.models.features import DATALESS, PublicFeatures
from idpgan.models.generator import MOST_CANDIDATES
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.aggregate.evolved import (
    EvolutionRun,
    EvolvedConfig,
    check_evolution_terms,
    evolution_run,
    vote_events,
    voting_of,
)
from idpgan.synthesis.aggregate.photos import PhotoFeatures
from idpgan.synthesis.teacher import (
    beside_sums,
    check_teacher_classes,
    check_teacher_terms,
    teacher_events,
    teacher_reason,
)
from idpgan.synthesis.terms import AggregatePrivacy, refuse_shared_people
from idpgan.training.config import MOST_STEPS, MethodConfig, RunConfig, TrainingConfig
from idpgan.training.signal import Signal


class AggregateConfig(MethodConfig):
    """[method] of idp-gan-aggregate.

    Attributes:
        features: "public" (CNN and PCA learned on the public split), or of no data at all: "random" (Gabor moduli) or
            "scattering" (two orders of wavelet moduli; about twice the time), all three for handwriting; or "photos":
            the moments of model.latent_dim DCT coefficients, which a "refined" generator starts at, and wavelet moduli,
            all in absolute units; public images then set center and scale.
        moments: Principal components ("public") or DCT coefficients and projections ("random") whose second moments
            are released: m (m + 1) / 2 numbers a class each. With "photos" projections, and coefficients whose moments
            are matched.
        fourier: Random Fourier features of each kind.
        level: Brightness that those of no data count from: 0 black, 1 white. A public statement, as on which ground
            things are drawn.
        law: "gaussian" (L2 norm, (epsilon, delta)) or "laplace" (L1 norm, pure).
        augment: Strength of the random motion of every private image before phi; 1 is that of handwriting.
        clusters: Public clusters per class, k-means on the public embedding; 1 = none.
        groups: Groups per class, by an independent coin per image; for the deep critic.
        critic: "linear" (mean-embedding match) or "deep" (a network on noisy group means).
        metric: What the linear critic whitens by: images of the "public" split, "fakes", or "none".
        metric_steps: Steps after which the metric is taken anew from fakes.
        metric_noise: How many images count as one direction when noise and variance are weighed.
        average: Weight of the past in the linear critic's average of fake means.
        embedding_steps: Steps of fitting the public CNN.
        pretrain_steps: Steps of pre-training a "warp" generator on public images.
        learning_rate: Peak, of Adam for the generator (and the deep critic); warm-up 5 %, then cosine to zero.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        ema_decay: Weight of the past in the averaged generator.
        teacher_share: Share of the budget that a private classifier gets, which chooses among what the generator draws;
            0 = none. See `idpgan.synthesis.teacher`.
        candidates: Images that the released generator draws for each one that the classifier chooses.
        evolution_share: Share of the budget that the votes of evolution get; what they choose is what a "warp"
            generator is pre-trained on, in place of public images. 0 = none. See `idpgan.synthesis.aggregate.evolved`.
        evolution: [method.evolution], as [method] of evolution; the simulator is that of [model].
    """

    name: Literal["idp-gan-aggregate"] = "idp-gan-aggregate"
    features: Literal["public", "random", "scattering", "photos"] = "random"
    moments: int = Field(48, ge=1, le=1000)
    fourier: int = Field(500, ge=1, le=100_000)
    level: float = Field(0.5, ge=0, le=1)
    law: Literal["gaussian", "laplace"] = "gaussian"
    augment: float = Field(0.2, ge=0, le=3)
    clusters: int = Field(1, ge=1, le=1000)
    groups: int = Field(1, ge=1, le=100_000)
    critic: Literal["linear", "deep"] = "linear"
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
    teacher_share: float = Field(0.0, ge=0, le=0.95)
    candidates: int = Field(4, ge=1, le=MOST_CANDIDATES)
    evolution_share: float = Field(0.0, ge=0, le=0.95)
    evolution: EvolvedConfig = EvolvedConfig()


class AggregateTraining(TrainingConfig):
    """[training] of idp-gan-aggregate.

    Attributes:
        steps: Generator steps, on released sums alone: they cost nothing. 0: a "refined" generator as it starts.
    """

    steps: int = Field(10_000, ge=0, le=MOST_STEPS)


class AggregateRun(RunConfig):
    """A whole config file of idp-gan-aggregate."""

    method: AggregateConfig = AggregateConfig()
    privacy: AggregatePrivacy
    training: AggregateTraining = AggregateTraining()

    @model_validator(mode="after")
    def _check_people(self) -> AggregateRun:
        refuse_shared_people(self.privacy.unit, self.data)
        check_teacher_terms(self.method.teacher_share, self.method.law, self.privacy.relation)
        check_evolution_terms(self)
        if not self.training.steps and self.model.generator != "refined":
            raise ConfigError(
                "training.steps = 0 leaves the generator as it starts, and only a "
                f'"refined" one starts at what was released; model.generator = "{self.model.generator}". Set '
                "training.steps to 1 or more."
            )
        return self

    def evolution_part(self) -> EvolutionRun | None:
        """Return the evolution whose population the generator starts from as a config of its own; None without it."""
        return evolution_run(self) if self.method.evolution_share else None

    @property
    def candidates(self) -> int | None:
        """See `RunConfig.candidates`."""
        return self.method.candidates if self.method.teacher_share else None

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`."""
        return self.privacy.unit, self.privacy.relation, Budget(self.privacy.epsilon, self.privacy.delta)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        sums, method = self.cell_sums(shape), self.method
        taught = teacher_events(method.teacher_share, sums, method.evolution_share)
        return (sums.event, *taught, *vote_events(voting_of(method, self.privacy), sums, method.teacher_share))

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        method = self.method
        chosen = f", and votes for images on {method.evolution_share:g} of it" if method.evolution_share else ""
        return f"one release of noisy sums{teacher_reason(method.teacher_share)}{chosen}; noise: {noise[0].name}"

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        features, part = self.method.features, self.evolution_part()
        assumptions = [f"the feature map ({features} features), fixed before any private image was read"]
        if shape.sizes.public:
            assumptions.append("what was learned from public images; the generator may reproduce them")
        if part is not None:
            assumptions += part.public_assumptions()
        elif self.privacy.unit is Unit.PERSON:
            assumptions.append(f"the cap of {self.privacy.most_per_person} images of one person")
        return tuple(assumptions)

    def check(self, shape: DataShape) -> None:
        """See `RunConfig.check`."""
        super().check(shape)
        config, rows = self.method, max(classes_of(self.model, len(shape.classes)), 1)
        cells = rows * config.clusters * config.groups
        needs_public = [key for key in ("features", "metric") if getattr(config, key) == "public"]
        needs_public += ["clusters"] if config.clusters > 1 else []
        if needs_public and not shape.sizes.public:
            raise ConfigError(
                f"method.{needs_public[0]} = {getattr(config, needs_public[0])} needs public images, and there "
                "are none. Name a folder of them as data.public_root, or set data.public_share and confirm_public, "
                'or set method.features = "random", method.metric = "fakes" and method.clusters = 1.'
            )
        unlabeled = self.data.public is not None and not self.data.public_labels
        if unlabeled and self._learns_classes and classes_of(self.model, len(shape.classes)):
            raise ConfigError(
                f'data.public = "{self.data.public}" without labels, but the generator has classes. Say what each '
                "looks like in data.public_labels, or set model.conditional = false."
            )
        self._check_photos()
        if config.clusters > 1 and config.features != "public":
            raise ConfigError(
                'method.clusters above 1 needs method.features = "public": clusters live in its embedding.'
            )
        if cells > shape.num_private:
            raise ConfigError(
                f"{cells} cells (classes x clusters x groups) for {shape.num_private} private images: most would hold "
                "noise only. Lower method.clusters or method.groups."
            )
        if config.critic == "deep" and config.groups < 2:
            raise ConfigError("method.critic = deep needs method.groups of at least 2: it learns from several groups.")
        if self.privacy.unit is Unit.PERSON and not shape.has_people:
            raise ConfigError(
                "privacy.unit = person, but the data set names no identities. Use one with person labels, or "
                "unit = image."
            )
        check_teacher_classes(config.teacher_share, classes_of(self.model, len(shape.classes)))
        part = self.evolution_part()
        if part is not None:
            part.check(shape)
        if part is not None and config.evolution.images < rows:
            raise ConfigError(
                f"method.evolution.images = {config.evolution.images} is less than one image for each of the {rows} "
                "classes. Raise it."
            )
        if self.training.batch_size % rows:
            raise ConfigError(
                f"training.batch_size = {self.training.batch_size} must be a multiple of the {rows} classes: "
                "every step generates equally many of each."
            )

    @property
    def _learns_classes(self) -> bool:
        """Whether public images teach what classes are: all, but those that set a center and a scale."""
        return self.method.features != "photos" or self.method.metric == "public" or self.model.generator == "warp"

    def _check_photos(self) -> None:
        """Refuse a "refined" generator without the moments that it starts at, and noise that they have no proof for."""
        if self.model.generator == "refined" and self.method.features != "photos":
            raise ConfigError(
                f'model.generator = "refined" starts at released moments, and method.features = '
                f'"{self.method.features}" has none. Set method.features = "photos".'
            )
        if self.method.features == "photos" and self.method.law != "gaussian":
            raise ConfigError(
                f'method.features = "photos" bounds the L2 norm, and method.law = "{self.method.law}" needs the L1 '
                'norm. Set method.law = "gaussian", or another method.features.'
            )

    def signal_to_noise(self, shape: DataShape) -> Signal:
        """See `RunConfig.signal_to_noise`."""
        return signal_of_sums(self.cell_sums(shape), self.privacy, shape, classes_of(self.model, len(shape.classes)))

    def cell_sums(self, shape: DataShape) -> CellSums:
        """Return the release of sums; raise a `ConfigError` if Gaussian noise is asked for at delta = 0."""
        privacy, method = self.privacy, self.method
        if method.law == "gaussian" and privacy.delta == 0:
            raise ConfigError(
                "privacy.delta = 0, but Gaussian noise has no pure guarantee. Set privacy.delta above 0, or "
                'method.law = "laplace".'
            )
        classes = classes_of(self.model, len(shape.classes))
        if method.features in DATALESS:
            dimensions = DATALESS[method.features].count_dimensions(
                shape.image_shape, dimensions=method.moments, fourier=method.fourier
            )
        elif method.features == "photos":
            dimensions = PhotoFeatures.count_dimensions(
                shape.image_shape, self.model.latent_dim, dimensions=method.moments, fourier=method.fourier
            )
        else:
            dimensions = PublicFeatures.count_dimensions(
                shape.image_shape, shape.sizes.public, classes, components=method.moments, fourier=method.fourier
            )
        return sums_of(method, privacy, max(classes, 1) * method.clusters * method.groups, dimensions)


def sums_of(method: AggregateConfig, privacy: AggregatePrivacy, cells: int, dimensions: int) -> CellSums:
    """Return the release of so many sums of so many numbers with the least noise that keeps to [privacy]."""
    voting = voting_of(method, privacy)

    def votes(multiplier: float) -> tuple[Event, ...]:
        return () if voting is None else (voting.event(multiplier),)

    return CellSums.calibrated(
        cells,
        dimensions,
        method.law,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        unit=privacy.unit,
        relation=privacy.relation,
        most_per_unit=privacy.most_per_person if privacy.unit is Unit.PERSON else 1,
        **beside_sums(method.teacher_share, privacy.unit, method.evolution_share, votes),
    )


def signal_of_sums(sums: CellSums, privacy: AggregatePrivacy, shape: DataShape, classes: int) -> Signal:
    """Return the signal-to-noise figure of a release of sums, whose noise a class has in each of its cells.

    A person's images weigh as much as one image, so with a cap of k there are at least N / k records.
    """
    rows, person = max(classes, 1), privacy.unit is Unit.PERSON
    per_row = sums.num_cells // rows
    share = 2 if sums.law == "gaussian" else 1  # lengths add up by squares, or as they are
    return Signal(
        records=shape.num_private / (privacy.most_per_person if person else 1) / rows,
        classes=rows,
        noise=sums.noise_length * per_row ** (1 / share),
        source="the release",
        record="people" if person else "images",
    )
