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
2. A null record keeps its coins and adds the zero vector, so N is public and nobody else's numbers depend on it.
   Under replace-one too the zero vector is within the bound.
3. A record's cluster is the nearest public centroid, its group an independent coin: functions of that record alone.
4. Means are noisy sum / max(noisy count, 1). True counts are used nowhere; labels are drawn uniformly.
5. The deep critic's fakes come in groups of the (noisy) size of a real group, with the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.models.augment import augment
from idpgan.models.ema import Ema
from idpgan.models.families import build_generator
from idpgan.models.features import EmbeddingNet, FeatureMap, PublicFeatures, RandomFeatures
from idpgan.models.generator import Generator
from idpgan.models.initialize import torch_seed
from idpgan.models.warp import WarpGenerator
from idpgan.privacy import Event, Ledger, Noise, PrivacyReport, Unit
from idpgan.privacy.sums import NORMS
from idpgan.synthesis.aggregate.cells import Cells, private_vectors, refuse_people_in_two_parts
from idpgan.synthesis.aggregate.config import AggregateConfig, AggregatePrivacy, Config
from idpgan.synthesis.aggregate.critic import DeepCritic, LinearCritic
from idpgan.synthesis.aggregate.pretrain import fit_embedding, pretrain_codes
from idpgan.synthesis.product import GivesGenerator
from idpgan.training import method
from idpgan.training.method import Stats

__all__ = ["AggregateConfig", "AggregatePrivacy", "Config", "IdpAggregate", "Method"]

_RNG_STREAM = 2  # of training.seed; 0 and 1 are the initial weights
_METRIC_IMAGES = 6000
_BATCH = 1000  # images per call of the feature map
_FEATURES = "features."  # of the names of what is released


class IdpAggregate(GivesGenerator):
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
        self._run, self._data = config, split.shape
        self.ledger, self.device, self.noise = ledger, device, noise or Noise.system()
        self._private: Images | None = split.private
        self._public, self.shape, self.num_private = split.public, split.image_shape, split.num_private
        seed, classes = config.training.seed, split.classes
        config.check(split.shape)
        if config.privacy.unit is Unit.PERSON:
            refuse_people_in_two_parts(split)
        self.newest = build_generator(config.model, self.shape, len(classes), seed=seed).to(device)
        self.newest.classes = classes if self.newest.num_classes else ()
        self.classes = self.newest.num_classes  # 0: unconditional
        self.rows = max(self.classes, 1)
        self.features = self._new_features(EmbeddingNet(self.shape, max(len(classes), 1), seed=seed))
        self.cells = Cells(self.rows, self.config.clusters, self.config.groups)
        self.sums = config.cell_sums(split.shape)
        self._rng = torch.Generator(device).manual_seed(torch_seed(seed, _RNG_STREAM))
        self._start_training()

    # The one private read --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Release the noisy sums, drop the private images, and start from what public images teach."""
        released = self.ledger.release([self.sums.event], self._release, noise=self.noise)
        self.noise.ratchet()
        self._take_released(released)
        if len(self._public) and isinstance(self.newest, WarpGenerator) and self.config.pretrain_steps:
            steps, seed = self.config.pretrain_steps, self.training.seed
            pretrain_codes(self.newest, self._public, steps=steps, seed=seed)
        self._start_training()

    def _release(self) -> dict[str, Tensor]:
        """Fix the feature map by public images, then read the private ones; return noisy sums and feature map."""
        if self.config.features == "public":
            network = EmbeddingNet(self.shape, max(len(self._public.classes), 1), seed=self.training.seed)
            fit_embedding(network, self._public, steps=self.config.embedding_steps, seed=self.training.seed)
            self.features = self._new_features(network)
            if self.config.clusters > 1:
                self.cells.find_clusters(self._embedding, self._public, self.training.seed)
        vectors = private_vectors(
            self._take_private(), self.features, self.cells, self.noise, motion=self.config.augment, cap=self._cap()
        )
        released = {"sums": self.sums(vectors, self.noise)}
        released |= {f"{_FEATURES}{name}": tensor for name, tensor in self.features.state_dict().items()}
        if self.cells.centroids is not None:
            released["centroids"] = self.cells.centroids
        return released

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

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Take what was released, now or in an earlier part of the run; the private images are not needed any more."""
        self._private, self._released = None, released
        features = {
            name.removeprefix(_FEATURES): tensor for name, tensor in released.items() if name.startswith(_FEATURES)
        }
        self.features.load_state_dict(features)
        if "centroids" in released:
            self.cells.set_centroids(self._embedding, released["centroids"].to(self.device))
        self._use_released()

    def _use_released(self) -> None:
        """Make the critic from the released sums, (rows, clusters, groups, dimensions)."""
        config, count = self.config, self.features.count
        sums = self._released["sums"].view(self.rows, config.clusters, config.groups, -1).float().to(self.device)
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

    @property
    def noises(self) -> tuple[Noise, ...]:
        """No step draws secret noise."""
        return ()

    def step_event(self) -> None:
        """No step reads anything private."""

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        """No step reads anything private."""
        return ()

    def step(self, step: int) -> Stats:
        """See `Method.step`: generate and embed, move the critic, then the generator by the same embedding."""
        if isinstance(self.critic, LinearCritic):
            if step == 1 and self.config.metric == "public":
                self._set_metric(*self._public_images())
            if self.config.metric == "fakes" and step in self.config.metric_steps:
                self._set_metric(*self._fake_images())
        fake = self._embedded(self.newest)
        return self.critic.learn(fake.detach()) | self._generator_step(fake, step)

    def _generator_step(self, fake: Tensor, step: int) -> Stats:
        """Raise the critic's score of an embedding by one Adam step, and move the average."""
        score = self.critic.score(fake)
        for group in self._optimizer.param_groups:
            group["lr"] = self.config.learning_rate * _schedule(step / self.training.steps)
        self._optimizer.zero_grad()
        (-score).backward(inputs=self._trained)  # leaves no gradient on critic or features
        self._optimizer.step()
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
        proven = self.ledger.proven(self.privacy_config.delta)
        return self._run.report(self._data, self.ledger.events, proven, (self.noise.source,))

    # State -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what was released, networks, optimizer, average and random state."""
        return {
            "prepared": self._released,
            "critic": self.critic.state(),
            "generator": self.newest.state_dict(),
            "ema": self.ema.state(),
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.get_state(),
            "private_noise": self.noise.private,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self._take_released(state["prepared"])
        self.critic.load_state(state["critic"])
        self.newest.load_state_dict(state["generator"])
        self.ema.load_state(state["ema"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._rng.set_state(state["rng"])
        if self.noise.private and not state["private_noise"]:
            raise ConfigError("the saved release was made with a fixed noise seed and is not private; start a new run.")

    def _start_training(self) -> None:
        """Make average and optimizer for the generator as it stands."""
        pretrained = isinstance(self.newest, WarpGenerator) and bool(len(self._public)) and self.config.pretrain_steps
        self.newest.train(not pretrained)  # the batch statistics of the pre-training stay
        self.ema = Ema(self.newest, self.config.ema_decay)
        self.generator = cast(Generator, self.ema.module)
        self._trained = list(self.newest.parameters())
        betas = (self.config.beta1, self.config.beta2)
        self._optimizer = torch.optim.Adam(self._trained, lr=self.config.learning_rate, betas=betas, fused=True)

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
