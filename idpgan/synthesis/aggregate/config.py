r"""Settings and price of idp-gan-aggregate, known before an image is read.

Besides the sums there may be a teacher (`idpgan.synthesis.teacher`), and a population of evolution as the start.
Without public images a "warp" generator begins at random codes, and images that noisy votes have chosen
(`idpgan.synthesis.evolution`) replace the public ones: its decoder and codes learn them, and then match the released
sums. Sums, teacher and votes are one release on one ledger: it is priced before a private image is read, and charged
with the result.

Budget, as for a teacher: with s the share of the squared signal, T votes of noise multiplier ``m sqrt(T / s)`` are
together as private as one Gaussian release of ``m / sqrt(s)``. The events themselves are charged, and m is the least
with which all of them together stay within (epsilon, delta). Sensitivity of a vote: `idpgan.synthesis.evolution.votes`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.features import DATALESS, PublicFeatures
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.aggregate.vectors import PhotoFeatures
from idpgan.synthesis.evolution.method import EvolutionConfig, EvolutionPlan, EvolutionRun, EvolutionTraining
from idpgan.synthesis.evolution.votes import Votes
from idpgan.synthesis.people import AggregatePrivacy, GaussianPrivacy
from idpgan.synthesis.sums_plan import SumsConfig, SumsPlan, SumsRun
from idpgan.training.config import MOST_STEPS, TrainingConfig


class EvolvedConfig(EvolutionConfig):
    """[method.evolution]: the votes that choose what the generator starts from.

    Attributes:
        steps: Iterations, each of which is a vote.
        codes: Candidates of each class.
        images: Drawn of the population to learn from.
    """

    steps: int = Field(8, ge=1, le=MOST_STEPS)
    codes: int = Field(200, ge=1, le=65536)
    images: int = Field(6000, ge=1, le=1_000_000)


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
        evolution_share: Share of the budget that the votes of evolution get; what they choose is what a "warp"
            generator is pre-trained on, in place of public images. 0 = none. See `idpgan.synthesis.aggregate.config`.
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
    evolution_share: float = Field(0.0, ge=0, le=0.95)
    evolution: EvolvedConfig = EvolvedConfig()


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
        """Refuse a start from a population that cannot be learned or priced, and 0 steps where steps are needed."""
        method, share = self.method, self.method.evolution_share
        if share and method.teacher_share + share > 0.95:
            raise ConfigError(
                f"method.teacher_share = {method.teacher_share:g} and method.evolution_share = {share:g} leave hardly "
                "anything of the budget to the sums: together they may be 0.95 at most."
            )
        if share and (self.model.generator != "warp" or not method.pretrain_steps):
            raise ConfigError(
                f'method.evolution_share = {share:g} is for what a "warp" generator is pre-trained on: set '
                'model.generator = "warp" and method.pretrain_steps above 0, or method.evolution_share = 0.'
            )
        if share and (method.law != "gaussian" or not self.privacy.delta):
            raise ConfigError(
                f"method.evolution_share = {share:g} needs Gaussian noise and privacy.delta above 0, which votes are "
                "priced with. Set them, or method.evolution_share = 0."
            )
        self.evolution_part()  # refuses looks and simulators that do not go together
        if not self.training.steps and self.model.generator != "refined":
            raise ConfigError(
                "training.steps = 0 leaves the generator as it starts, and only a "
                f'"refined" one starts at what was released; model.generator = "{self.model.generator}". Set '
                "training.steps to 1 or more."
            )
        return self

    @property
    def own_code(self) -> tuple[str, ...]:
        """Paths of the user's code that the run uses."""
        part = self.evolution_part()
        return (*super().own_code, *(part.own_code if part is not None else ()))

    @property
    def population(self) -> ModelConfig:
        """The model of the candidates that are voted for."""
        return self.model.model_copy(update={"generator": "population", "codes": self.method.evolution.codes})

    def evolution_part(self) -> EvolutionRun | None:
        """Return the evolution that makes the start population, as a config of its own; None without it.

        Its own budget is not used.
        """
        own, privacy = self.method.evolution, self.privacy
        if not self.method.evolution_share:
            return None
        return EvolutionRun(
            data=self.data,
            model=self.population,
            method=EvolutionConfig(**{name: getattr(own, name) for name in EvolutionConfig.model_fields}),
            privacy=GaussianPrivacy(**{name: getattr(privacy, name) for name in AggregatePrivacy.model_fields}),
            training=EvolutionTraining(steps=own.steps, seed=self.training.seed, device=self.training.device),
        )


@dataclass(frozen=True)
class Voting:
    """The votes of a run, without their noise.

    Attributes:
        share: s of the budget, in (0, 1).
        steps: T, how many.
        most_per_unit: Public cap on the images of one person; 1 for unit image.
    """

    share: float
    steps: int
    unit: Unit
    relation: Relation
    most_per_unit: int

    def votes(self, multiplier: float, rows: int = 1, candidates: int = 1) -> Votes:
        """Return one vote for m = ``multiplier``; its price does not depend on how many candidates there are."""
        noise = multiplier * math.sqrt(self.steps / self.share)
        return Votes(rows, candidates, noise, self.unit, self.relation, self.most_per_unit)

    def event(self, multiplier: float) -> Event:
        """Return the price of all votes."""
        return self.votes(multiplier).event.repeated(self.steps)

    def multiplier_beside(self, sums: CellSums, teacher: float) -> float:
        """Return m for sums that leave this share to the votes, and ``teacher`` to a teacher."""
        return sums.noise_multiplier * math.sqrt(1 - teacher - self.share)


def voting_of(method: AggregateConfig, privacy: AggregatePrivacy) -> Voting | None:
    """Return the votes of a run; None without them."""
    if not method.evolution_share:
        return None
    return Voting(method.evolution_share, method.evolution.steps, privacy.unit, privacy.relation, privacy.cap or 1)


class AggregatePlan(SumsPlan):
    """The plan of a run of idp-gan-aggregate: one release of sums, perhaps with a teacher and votes beside them."""

    @property
    def other_share(self) -> float:
        """Share of the budget for votes."""
        return float(self.config.method.evolution_share)

    def others(self, multiplier: float) -> tuple[Event, ...]:
        """Return the charge of all votes."""
        voting = voting_of(self.config.method, self.config.privacy)
        return () if voting is None else (voting.event(multiplier),)

    @functools.cached_property
    def sums(self) -> CellSums:
        """The release of sums; raises a `ConfigError` if Gaussian noise is asked for at delta = 0."""
        config, shape, classes = self.config, self.shape, self.classes
        method = config.method
        if method.features in DATALESS:
            dimensions = DATALESS[method.features].count_dimensions(
                shape.image_shape, dimensions=method.moments, fourier=method.fourier
            )
        elif method.features == "photos":
            dimensions = PhotoFeatures.count_dimensions(
                shape.image_shape,
                config.model.latent_dim,
                dimensions=method.moments,
                fourier=method.fourier,
                shape=config.model.shape,
                symmetric=method.symmetric,
            )
        else:
            dimensions = PublicFeatures.count_dimensions(
                shape.image_shape, shape.sizes.public, classes, components=method.moments, fourier=method.fourier
            )
        return self.of_cells(self.rows * method.clusters * method.groups, dimensions)

    def of_cells(self, cells: int, dimensions: int) -> CellSums:
        """Return the release of so many sums of so many numbers; raise as `sums`."""
        law = self.config.method.law
        if law == "gaussian" and self.config.privacy.delta == 0:
            raise ConfigError(
                "privacy.delta = 0, but Gaussian noise has no pure guarantee. Set privacy.delta above 0, or "
                'method.law = "laplace".'
            )
        return self.calibrated(cells, dimensions, law)

    @functools.cached_property
    def votes(self) -> Votes | None:
        """One vote of the evolution that the generator starts from; None without it."""
        method, voting = self.config.method, voting_of(self.config.method, self.config.privacy)
        if voting is None:
            return None
        return voting.votes(self.multiplier, self.rows, method.evolution.codes)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of the template, of the sums, of the teacher, and of all votes."""
        return (*super().events, *self.others(self.multiplier))

    @functools.cached_property
    def evolution(self) -> EvolutionPlan | None:
        """The plan of the evolution whose population the generator starts from, but for its price; None without it."""
        part = self.config.evolution_part()
        return None if part is None else EvolutionPlan(part, self.shape)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name what was released, and where its noise came from."""
        share = self.config.method.evolution_share
        chosen = f", and votes for images on {share:g} of it" if share else ""
        return f"{self.placed}one release of noisy sums{self.taught(events)}{chosen}; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the feature map, and what else was fixed or learned before a private image was read."""
        features = self.config.method.features
        assumptions = [f"the feature map ({features} features), fixed before any private image was read"]
        if self.shape.sizes.public:
            assumptions.append("what was learned from public images; the generator may reproduce them")
        return (*assumptions, *(self.capped if self.evolution is None else self.evolution.assumptions(sources)))

    def check(self) -> None:
        """Refuse data that networks, features, cells, teacher or votes cannot use."""
        super().check()
        method, batch_size = self.config.method, self.config.training.batch_size
        self._check_features()
        cells = self.rows * method.clusters * method.groups
        if cells > self.shape.num_private:
            raise ConfigError(
                f"{cells} cells (classes x clusters x groups) for {self.shape.num_private} private images: most would "
                "hold noise only. Lower method.clusters or method.groups."
            )
        if method.critic == "deep" and method.groups < 2:
            raise ConfigError("method.critic = deep needs method.groups of at least 2: it learns from several groups.")
        self.check_people()
        self.check_teacher()
        self.check_template()
        if self.evolution is not None:
            self.evolution.check()
        if self.evolution is not None and method.evolution.images < self.rows:
            raise ConfigError(
                f"method.evolution.images = {method.evolution.images} is less than one image for each of the "
                f"{self.rows} classes. Raise it."
            )
        if batch_size % self.rows:
            raise ConfigError(
                f"training.batch_size = {batch_size} must be a multiple of the {self.rows} classes: "
                "every step generates equally many of each."
            )

    def _check_features(self) -> None:
        """Refuse options that need missing public images or labels, and moments without a proof."""
        data, method, generator = self.config.data, self.config.method, self.config.model.generator
        needs_public = [key for key in ("features", "metric") if getattr(method, key) == "public"]
        needs_public += ["clusters"] if method.clusters > 1 else []
        if needs_public and not self.shape.sizes.public:
            raise ConfigError(
                f"method.{needs_public[0]} = {getattr(method, needs_public[0])} needs public images, and there "
                "are none. Name a folder of them as data.public_root, or set data.public_share and confirm_public, "
                'or set method.features = "random", method.metric = "fakes" and method.clusters = 1.'
            )
        unlabeled = data.public is not None and not data.public_labels
        # Public images need labels to teach classes, unless they only set a center and a scale.
        learns_classes = method.features != "photos" or method.metric == "public" or generator == "warp"
        if unlabeled and learns_classes and self.classes:
            raise ConfigError(
                f'data.public = "{data.public}" without labels, but the generator has classes. Say what each '
                "looks like in data.public_labels, or set model.conditional = false."
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
        if method.clusters > 1 and method.features != "public":
            raise ConfigError(
                'method.clusters above 1 needs method.features = "public": clusters live in its embedding.'
            )
