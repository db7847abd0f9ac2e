r"""IDP-GAN, aggregate form: one noisy release of sums of features, then training for as long as you like.

Seed 004 perturbs the critic's affine layer, which is a batch *sum*: ``h_L(W) = sum_{i in L} (x_i W^T + b)`` (eq. 7).
As published its guarantee does not hold. It does if (a) the layer's input is a feature map phi that is fixed before any
private image is read, (b) every private image belongs to exactly one cell of a fixed public list, and (c) the critic
sees only noisy sums (math.md, 1.3). That is this method.

The only private read is `prepare`: for every cell (class x public cluster x group) the sum of ``(phi(x), a)`` over its
images, of norm at most 1 per image, plus discrete noise on everything at once (`privacy.sums.CellSums`; the proof of
the sensitivity stands there). Epochs, networks and everything else downstream are post-processing and cost nothing.

Choices:

1. Before phi every private image is moved at random (rotation, shear, bend): the generator moves its images too. The
   coins are drawn from the noise source, one set per image, and never released: for fixed coins each image still
   adds one vector of norm at most 1 in one cell, and averaging over independent coins of a record keeps the guarantee
   (quasi-convexity of the hockey-stick divergence).
2. A record's cluster is the nearest public centroid, its group an independent coin: functions of that record alone.
3. Means are noisy sum / max(noisy count, 1). True counts are used nowhere; labels are drawn uniformly.
4. The deep critic's fakes come in groups of the (noisy) size of a real group, with the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.data.load import DataShape, Split
from idpgan.errors import ConfigError
from idpgan.gan import METHODS
from idpgan.gan.aggregate_cells import Cells, private_vectors
from idpgan.gan.aggregate_critic import DeepCritic, LinearCritic
from idpgan.gan.config import CHOOSE_DELTA, MethodConfig, PrivacyConfig, RunConfig
from idpgan.gan.pretrain import fit_embedding, pretrain_codes
from idpgan.models.augment import augment
from idpgan.models.config import classes_of
from idpgan.models.ema import Ema
from idpgan.models.families import build_generator
from idpgan.models.features import EmbeddingNet, FeatureMap, PublicFeatures, RandomFeatures
from idpgan.models.generator import Generator
from idpgan.models.initialise import torch_seed
from idpgan.models.warp import WarpGenerator
from idpgan.privacy import Event, Guarantee, Ledger, Noise, PrivacyReport, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.sums import NORMS, CellSums
from idpgan.training import method
from idpgan.training.method import Stats

INFO = METHODS["idp-gan-aggregate"]
_RNG_STREAM = 2  # of training.seed; 0 and 1 are the initial weights
_METRIC_IMAGES = 6000
_BATCH = 1000  # images per call of the feature map


class AggregateConfig(MethodConfig):
    """[method] of idp-gan-aggregate.

    Attributes:
        features: "public" (CNN and PCA learned on the public split) or "random" (no data at all).
        moments: Principal components ("public") or DCT coefficients and projections ("random") whose second moments
            are released: m (m + 1) / 2 numbers a class each.
        fourier: Random Fourier features of each kind.
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
    """

    name: Literal["idp-gan-aggregate"] = "idp-gan-aggregate"
    features: Literal["public", "random"] = "random"
    moments: int = Field(48, ge=1, le=1000)
    fourier: int = Field(500, ge=1, le=100_000)
    law: Literal["gaussian", "laplace"] = "gaussian"
    augment: float = Field(1.0, ge=0, le=3)
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


class AggregatePrivacy(PrivacyConfig):
    """[privacy] of idp-gan-aggregate; epsilon, delta, unit and relation are one statement.

    Attributes:
        epsilon: Of the one release, whatever is trained from it.
        delta: Below 1/N; 0 for the pure guarantee of Laplace noise.
        unit: "image", or "person" where the data names identities.
        relation: How neighbours differ.
        most_per_person: Public cap on a person's images; further ones are left out, the first by index stay.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(ge=0, lt=1, description=CHOOSE_DELTA)
    unit: Literal[Unit.IMAGE, Unit.PERSON] = Unit.IMAGE
    relation: Relation = Relation.ZERO_OUT
    most_per_person: int = Field(20, ge=1)


class Config(RunConfig):
    """A whole config file of idp-gan-aggregate."""

    method: AggregateConfig = AggregateConfig()
    privacy: AggregatePrivacy

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`."""
        return self.privacy.unit, self.privacy.relation, Budget(self.privacy.epsilon, self.privacy.delta)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (self.cell_sums(shape).event,)

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
        if self.training.batch_size % rows:
            raise ConfigError(
                f"training.batch_size = {self.training.batch_size} must be a multiple of the {rows} classes: "
                "every step generates equally many of each."
            )

    def cell_sums(self, shape: DataShape) -> CellSums:
        """Return the release of sums.

        Raises:
            ConfigError: If Gaussian noise is asked for at delta = 0.
        """
        terms, method = self.privacy, self.method
        if method.law == "gaussian" and terms.delta == 0:
            raise ConfigError(
                "privacy.delta = 0, but Gaussian noise has no pure guarantee. Set privacy.delta above 0, or "
                'method.law = "laplace".'
            )
        classes = classes_of(self.model, len(shape.classes))
        settings = {"norm": NORMS[method.law], "fourier": method.fourier}
        if method.features == "random":
            dimensions = RandomFeatures(shape.image_shape, dimensions=method.moments, **settings).dimensions
        else:
            dimensions = PublicFeatures.count_dimensions(
                shape.image_shape, shape.sizes.public, classes, components=method.moments, fourier=method.fourier
            )
        return CellSums.calibrated(
            max(classes, 1) * method.clusters * method.groups,
            dimensions,
            method.law,
            epsilon=terms.epsilon,
            delta=terms.delta,
            unit=terms.unit,
            relation=terms.relation,
            most_per_unit=terms.most_per_person if terms.unit is Unit.PERSON else 1,
        )


class IdpAggregate:
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        config: The run's config.
        split: The private part is read in `prepare` and dropped there; the public part is read freely.
        ledger: Charged once, before that read.
        device: Where networks and features live.
        noise: Source of noise and coins; None = the operating system's.

    Attributes:
        generator: The averaged generator, in eval mode.
        sums: The mechanism of the release.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    def __init__(
        self, config: Config, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        self.config, self.privacy_config, self.training = config.method, config.privacy, config.training
        self.ledger, self.device, self.noise = ledger, device, noise or Noise.system()
        self._private: Images | None = split.private
        self._public, self.shape, self.num_private = split.public, split.image_shape, split.num_private
        seed, classes = config.training.seed, split.classes
        config.check(split.shape)
        self.newest = build_generator(config.model, self.shape, len(classes), seed=seed).to(device)
        self.newest.classes = classes if self.newest.num_classes else ()
        self.classes = self.newest.num_classes  # 0: unconditional
        self.rows = max(self.classes, 1)
        self.features = self._new_features(EmbeddingNet(self.shape, max(len(classes), 1), seed=seed))
        self.cells = Cells(self.rows, self.config.clusters, self.config.groups)
        self.sums = config.cell_sums(split.shape)
        self._rng = torch.Generator(device).manual_seed(torch_seed(seed, _RNG_STREAM))
        self._fake: Tensor | None = None
        self._start_training()

    # The one private read --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Learn what public images teach, charge, release the noisy sums, and drop the private images."""
        if len(self._public):
            seed = self.training.seed
            if self.config.features == "public":
                network = EmbeddingNet(self.shape, max(len(self._public.classes), 1), seed=seed)
                fit_embedding(network, self._public, steps=self.config.embedding_steps, seed=seed)
                self.features = self._new_features(network)
                if self.config.clusters > 1:
                    self.cells.find_clusters(self._embedding, self._public, seed)
            if isinstance(self.newest, WarpGenerator) and self.config.pretrain_steps:
                pretrain_codes(self.newest, self._public, steps=self.config.pretrain_steps, seed=seed)
        self.ledger.charge(self.sums.event)  # before the read: a failure over-counts, never under-counts
        vectors = private_vectors(
            self._take_private(), self.features, self.cells, self.noise, motion=self.config.augment, cap=self._cap()
        )
        self._released = self.sums(vectors, self.noise)
        self._start_training()
        self._use_released()

    def _take_private(self) -> Images:
        """Hand the private images over, once."""
        private, self._private = self._private, None
        if private is None:
            raise RuntimeError("the private images were dropped after the release.")
        return private

    def _cap(self) -> int | None:
        """Return the cap on one person's images; None for unit image."""
        return self.privacy_config.most_per_person if self.privacy_config.unit is Unit.PERSON else None

    def _embedding(self, images: Tensor) -> Tensor:
        """Embed images (B, C, H, W) in [-1, 1] by the public CNN, (B, 64)."""
        with torch.no_grad():
            return cast(PublicFeatures, self.features).network.activations(images)[1]

    # What follows is post-processing of the released sums ------------------------------------------------------

    def _use_released(self) -> None:
        """Make the critic from the released sums, (rows, clusters, groups, dimensions)."""
        config, count = self.config, self.features.count
        sums = self._released.view(self.rows, config.clusters, config.groups, -1).float().to(self.device)
        per_row = (sums[..., -1].sum((1, 2)) / count).clamp(min=1)  # noisy images per class
        noise_std = self.sums.noise_std * math.sqrt(config.groups)
        self.noise_variance = (noise_std / per_row.mean().item()) ** 2
        if config.critic == "deep":
            size = (sums[:, 0, :, -1] / count).clamp(min=1)
            self.group_size = max(1, round(size.mean().item()))
            means = sums[:, 0, :, :-1] / size[:, :, None]
            self.critic: DeepCritic | LinearCritic = DeepCritic(
                means,
                self.sums.noise_std / self.group_size,
                seed=self.training.seed,
                learning_rate=config.learning_rate,
            )
            return
        target = sums[..., :-1].sum(2) / per_row[:, None, None]  # (rows, clusters, D)
        self.critic = LinearCritic(target, config.average)

    def step_event(self) -> None:
        """No step reads anything private."""

    def critic_step(self, step: int) -> Stats:
        """Generate, embed, and move the critic; the embedding is kept for the generator's step."""
        if isinstance(self.critic, LinearCritic):
            if step == 1 and self.config.metric == "public":
                self._set_metric(*self._public_images())
            if self.config.metric == "fakes" and step in self.config.metric_steps:
                self._set_metric(*self._fake_images())
        self._fake = self._embedded(self.newest)
        return self.critic.learn(self._fake.detach())

    def wants_generator_step(self, step: int) -> bool:
        """After every critic step."""
        return True

    def generator_step(self, step: int) -> Stats:
        """Raise the critic's score of the embedding by one Adam step, and move the average."""
        if self._fake is None:
            raise RuntimeError("generator_step follows critic_step.")
        score, self._fake = self.critic.score(self._fake), None
        for group in self._optimiser.param_groups:
            group["lr"] = self.config.learning_rate * _schedule(step / self.training.steps)
        self._optimiser.zero_grad()
        (-score).backward(inputs=self._trained)  # leaves no gradient on critic or features
        self._optimiser.step()
        self.ema.update(self.newest)
        return {"score": score.detach()}

    def match_loss(self, generator: Generator) -> Tensor:
        """Move the critic by images of another generator, and return how little it likes them, 0-d, differentiable.

        For a method that trains a generator on the released sums and on something else (`hybrid`).
        """
        fake = self._embedded(generator)
        self.critic.learn(fake.detach())
        return -self.critic.score(fake)

    def _embedded(self, generator: Generator) -> Tensor:
        """Generate equally many images of each class; return their mean embedding, (rows, clusters, D) or (rows, D)."""
        deep = isinstance(self.critic, DeepCritic)
        size = self.group_size if deep else self.training.batch_size // self.rows
        labels = torch.arange(self.rows, device=self.device).repeat_interleave(size)
        z = torch.randn(len(labels), self.newest.latent_dim, generator=self._rng, device=self.device)
        images = generator(z, labels if self.classes else None)
        members = self.cells.members(images, labels) if self.config.clusters > 1 else None
        means = self.features.means(images, labels if self.classes else None, self.rows, members)
        return means[:, 0] if deep else means

    def _set_metric(self, images: Tensor, rows: Tensor) -> None:
        """Whiten the linear critic by the covariance of the features of public or generated images."""
        critic = cast(LinearCritic, self.critic)
        labels = rows if self.classes else None
        with torch.no_grad():
            vectors = [
                self.features(part, None if labels is None else of_part)[:, :-1]
                for part, of_part in zip(images.split(_BATCH), rows.split(_BATCH), strict=True)
            ]
            critic.set_metric(torch.cat(vectors), rows, self.config.metric_noise * self.noise_variance)

    def _public_images(self) -> tuple[Tensor, Tensor]:
        """Return moved public images and their rows."""
        copies = -(-_METRIC_IMAGES // len(self._public))
        images = to_float(self._public.images).to(self.device).repeat(copies, 1, 1, 1)
        labels = self._public.labels
        rows = torch.zeros(len(self._public), dtype=torch.int64) if labels is None or not self.classes else labels
        return augment(images, self._rng, self.config.augment), rows.to(self.device).repeat(copies)

    def _fake_images(self) -> tuple[Tensor, Tensor]:
        """Return images of the averaged generator and their rows."""
        rows = torch.arange(_METRIC_IMAGES, device=self.device) % self.rows
        z = torch.randn(len(rows), self.newest.latent_dim, generator=self._rng, device=self.device)
        with torch.no_grad():
            parts = zip(z.split(_BATCH), rows.split(_BATCH), strict=True)
            images = [self.generator(part, of_part if self.classes else None) for part, of_part in parts]
        return torch.cat(images), rows

    def privacy(self) -> PrivacyReport:
        """Report the requested epsilon as claimed, and what the ledger proves for what was drawn."""
        terms = self.privacy_config
        claimed = Guarantee(terms.epsilon, terms.delta, terms.unit, terms.relation, "privacy.epsilon of the config")
        public = len(self._public)
        assumptions = [f"the feature map ({self.config.features} features), fixed before any private image was read"]
        if public:
            assumptions.append("what was learned from public images; the generator may reproduce them")
        if terms.unit is Unit.PERSON:
            assumptions.append(f"the cap of {terms.most_per_person} images of one person")
        return PrivacyReport(
            claimed=claimed,
            proven=self.ledger.proven(terms.delta),
            audited=None,
            reason=f"one release of noisy sums; noise: {self.noise.name}",
            private=self.noise.private and math.isfinite(self.ledger.epsilon(terms.delta)),
            public_assumptions=tuple(assumptions),
        )

    # State -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what was released, networks, optimiser, average and random state."""
        prepared = {"sums": self._released}
        prepared |= {f"features.{name}": tensor for name, tensor in self.features.state_dict().items()}
        if self.cells.centroids is not None:
            prepared["centroids"] = self.cells.centroids
        return {
            "prepared": prepared,
            "critic": self.critic.state(),
            "generator": self.newest.state_dict(),
            "ema": self.ema.state(),
            "optimiser": self._optimiser.state_dict(),
            "rng": self._rng.get_state(),
            "private_noise": self.noise.private,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned; the private images are not needed any more."""
        self._private = None
        prepared = state["prepared"]
        self._released = prepared["sums"]
        prefix = "features."
        self.features.load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in prepared.items() if name.startswith(prefix)}
        )
        if "centroids" in prepared:
            self.cells.set_centroids(self._embedding, prepared["centroids"].to(self.device))
        self._use_released()
        self.critic.load_state(state["critic"])
        self.newest.load_state_dict(state["generator"])
        self.ema.load_state(state["ema"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._rng.set_state(state["rng"])
        if self.noise.private and not state["private_noise"]:
            raise ConfigError("the saved release was made with a fixed noise seed and is not private; start a new run.")

    def _start_training(self) -> None:
        """Make average and optimiser for the generator as it stands."""
        pretrained = isinstance(self.newest, WarpGenerator) and bool(len(self._public)) and self.config.pretrain_steps
        self.newest.train(not pretrained)  # the batch statistics of the pre-training stay
        self.ema = Ema(self.newest, self.config.ema_decay)
        self.generator = cast(Generator, self.ema.module)
        self._trained = list(self.newest.parameters())
        betas = (self.config.beta1, self.config.beta2)
        self._optimiser = torch.optim.Adam(self._trained, lr=self.config.learning_rate, betas=betas, fused=True)

    def _new_features(self, network: EmbeddingNet) -> FeatureMap:
        norm, seed = NORMS[self.config.law], self.training.seed
        if self.config.features == "random":
            features: FeatureMap = RandomFeatures(
                self.shape, norm=norm, seed=seed, dimensions=self.config.moments, fourier=self.config.fourier
            )
        else:
            features = PublicFeatures(
                network,
                self._public.images,
                self.classes,
                norm=norm,
                seed=seed,
                components=self.config.moments,
                fourier=self.config.fourier,
            )
        return features.to(self.device)


def _schedule(progress: float) -> float:
    """Return the share of the peak learning rate: 5 % linear warm-up, then a cosine to zero."""
    if progress < 0.05:
        return progress / 0.05
    return 0.5 * (1 + math.cos(math.pi * (progress - 0.05) / 0.95))


Method: Callable[..., method.Method] = IdpAggregate
