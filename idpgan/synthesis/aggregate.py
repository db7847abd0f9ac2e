r"""IDP-GAN, aggregate form: one noisy release of sums of features, then training for as long as you like.

Yang Yunlu, Zhou Yajian, Ning Hua, "Image Data Mining Method Supporting Differential Privacy", perturb the critic's
affine layer, which is a batch *sum*: ``h_L(W) = sum_{i in L} (x_i W^T + b)`` (eq. 7). As published its guarantee does
not hold. It does if (a) the layer's input is a feature map phi that is fixed before any private image is read, (b)
every private image belongs to exactly one cell of a fixed public list, and (c) the critic sees only noisy sums. This
method does all three; what differs from the paper: docs/reference/deviations.md, aggregate 1 to 8.

The only private read is `prepare` (with a teacher beside the sums, charged in the same release: `synthesis.teacher`):
for every class the sum of ``(phi(x), a)`` over its images, of norm at most 1 per image, plus discrete noise on
everything at once (`privacy.sums.CellSums`; the proof of the sensitivity stands there). Epochs, networks and everything
else downstream are post-processing and cost nothing.

Why the steps before the sum keep the guarantee:

- Every private image is moved at random (rotation, shear, bend). The coins are drawn from the noise source, one set per
  image, and never released: for fixed coins each image still adds one vector of norm at most 1 in one cell, and
  averaging over independent coins of a record keeps the guarantee (quasi-convexity of the hockey-stick divergence).
- A null record keeps its coins and adds the zero vector, so N is public and no other record's numbers depend on it. The
  zero vector is within the bound under replace-one too.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.models.features import DATALESS, EmbeddingNet, FeatureMap, PublicFeatures
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.private_classifier import LinearScattering
from idpgan.models.warp import WarpGenerator, augment
from idpgan.privacy.sums import NORMS, CellSums, Law
from idpgan.private import released_once
from idpgan.private.released_once import ReleasedOnce
from idpgan.ranks import Ranks
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import product, sums_audit
from idpgan.synthesis.aggregate_plan import Plan, Settings
from idpgan.synthesis.feature_sums import PhotoFeatures, private_vectors
from idpgan.synthesis.networks import AdamSettings, Generators
from idpgan.synthesis.pretrain import fit_embedding, pretrain_codes
from idpgan.synthesis.teacher import TEACHER, fit_teacher, teacher_of
from idpgan.training.config import ReleaseConfig
from idpgan.training.distributed import sum_over_ranks
from idpgan.training.fit import set_rate
from idpgan.training.method import CriticScores, ReleasedSums, Stats, refuse_small_shares

__all__ = ["AUDIT", "Method", "Plan", "Settings"]

_RNG_STREAM = 2  # of training.seed; 0 and 1 are the initial weights
_METRIC_IMAGES = 6000
_AUDITED_NUMBERS = 64  # of a vector, where no run says how many
_BATCH = 1000  # images per call of the feature map
_PAST = 0.95  # weight of the past in the average of generated means: makes up for small batches
_FLOOR = 1e-5  # of the metric, so that directions without variance do not blow up
_FEATURES = "features."  # prefix of the names of released tensors


class Method(ReleasedOnce):
    """The method as the loop sees it; see `ReleasedOnce`.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained.
        networks: Both with their optimizer and random numbers.
        teacher: A private classifier that chooses among what the generator draws; None = none does.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    took = "14 minutes on one core for 54,000 digits of 28 x 28 with a teacher"
    taught = "a small network 96.9 % at epsilon 1 and 97.5 % at 10, by digits of 28 x 28 with a teacher"

    SAVED = ("critic", "networks")

    plan: Plan
    teacher: LinearScattering | None = None

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        product.check_public(split, self._run)
        config, method, self.training = self._run, self.config, self._run.training
        self.shape = split.image_shape
        self.networks = Generators(
            config,
            split.shape,
            device=self.device,
            adam=AdamSettings(method.learning_rate, method.beta1, method.beta2),
            ema_decay=method.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest, self.generator = self.networks.newest, self.networks.average
        self.newest.train(not self._pretrained)  # the batch statistics of the pre-training stay
        self.classes = self.newest.num_classes  # 0: unconditional
        self.rows = max(self.classes, 1)
        self.noise_std = self.plan.release.sums.noise_std

    def share_steps(self, ranks: Ranks) -> None:
        """Let each rank generate its share of every class; `prepare` is rank 0's."""
        refuse_small_shares(self.training.batch_size // self.rows, "training.batch_size / classes", ranks)
        self.networks.ranks = ranks

    # The one private read --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Release the noisy sums, drop the private images, and start from what public images teach."""
        super().prepare()
        self._pretrain()

    def _pretrain(self) -> None:
        """Start the generator at released moments, or train it on public images."""
        if isinstance(self.features, PhotoFeatures) and isinstance(self.newest, GaussianGenerator):
            normals = self.features.normals(self._released["sums"], self.noise_std)
            self.newest.set_moments(normals.mean, normals.factor)
            self.networks.start_from(self.newest)
        if self._pretrained:
            steps, seed, newest = self.config.pretrain_steps, self.training.seed, cast(WarpGenerator, self.newest)
            pretrain_codes(newest, self._public, steps=steps, seed=seed, progress=self.progress)
            self.newest.eval()
            self.networks.start_from(self.newest)

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the generator with public pictures that its teacher agrees with, and that teacher."""
        return product.artifact(
            self.generator,
            self._run,
            config,
            public=self._public,
            teacher=self.teacher,
            candidates=self.plan.candidates,
            progress=self.progress,
        )

    @property
    def _pretrained(self) -> bool:
        return bool(len(self._public) and self.config.pretrain_steps) and isinstance(self.newest, WarpGenerator)

    def _release(self) -> dict[str, Tensor]:
        """Fix the feature map by public images, then read the private images; return noisy sums and feature map."""
        config, release = self.config, self.plan.release
        if config.features == "public":
            self.features = self._public_features(fit=True)
        private, cap = self._take_private(), released_once.cap_of(self._run.privacy)
        if isinstance(self.features, PhotoFeatures) and len(self._public):
            self.features.learn_public(self._public)
        vectors = functools.partial(
            private_vectors,
            private,
            self.features,
            self.noise,
            conditional=self.rows > 1,
            motion=config.augment,
            cap=cap,
        )
        fixed, num = list(self.features.state_dict().values()), len(private)
        noisy = self.kept.released(release.sums, vectors, num, self.noise, fixed=fixed, progress=self.progress)
        released = {"sums": noisy} | fit_teacher(release.teacher, private, cap, self)
        return released | {f"{_FEATURES}{name}": tensor for name, tensor in self.features.state_dict().items()}

    # The feature map --------------------------------------------------------------------------------------------

    @functools.cached_property
    def features(self) -> FeatureMap:
        """The feature map, built once: fitted to public images by `_release`, or for its shapes, to be loaded."""
        seed = self.training.seed
        if self.config.features == "public":
            return self._public_features(fit=False)
        if self.config.features == "photos":
            latent_dim, method = self._run.model.latent_dim, self.config
            sizes = {"dimensions": method.moments, "fourier": method.fourier}
            return PhotoFeatures(self.shape, latent_dim, seed=seed, **sizes).to(self.device)
        norm, level = NORMS[self.config.law], self.config.level
        dataless = DATALESS[self.config.features]
        return dataless(self.shape, norm=norm, seed=seed, level=level, **self.plan.feature_sizes).to(self.device)

    def _public_features(self, fit: bool) -> PublicFeatures:
        """Return the features of the public CNN, fitted to public images, or as it is made."""
        config, seed = self.config, self.training.seed
        network = EmbeddingNet(self.shape, max(len(self._public.classes), 1), seed=seed)
        if fit:
            fit_embedding(network, self._public, steps=config.embedding_steps, seed=seed, progress=self.progress)
        return PublicFeatures(
            network,
            self._public.images,
            self.classes,
            norm=NORMS[config.law],
            seed=seed,
            components=config.moments,
            fourier=config.fourier,
        ).to(self.device)

    # What follows is post-processing of the released sums ------------------------------------------------------

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Take teacher and feature map, and make the critic from the sums."""
        super()._take_released(released)
        if TEACHER in released:
            self.teacher = teacher_of(released[TEACHER], self.shape, self.generator.classes).to(self.device)
        features = {
            name.removeprefix(_FEATURES): tensor for name, tensor in released.items() if name.startswith(_FEATURES)
        }
        self.features.load_state_dict(features)
        # (rows, dimensions)
        sums = released["sums"].float().to(self.device)
        per_row = (sums[:, -1] / self.features.count).clamp(min=1)  # noisy images per class
        self.noise_variance = (self.noise_std / per_row.mean().item()) ** 2
        self.critic = LinearCritic(self.features.matched_of(sums) / per_row[:, None], _PAST)

    @property
    def released_sums(self) -> ReleasedSums:
        """The sums of features, one row a class, of images at rest."""

        def vectors(images: Images) -> tuple[Tensor, Tensor]:
            rows = torch.zeros(len(images), dtype=torch.int64)
            if self.classes and images.labels is not None:
                rows = images.labels
            parts = []
            for index in torch.arange(len(images)).split(_BATCH):
                batch, labels = images.images[index].to(self.device), rows[index].to(self.device)
                with torch.no_grad():
                    parts.append(self.features(to_float(batch), labels if self.classes else None).double().cpu())
            return torch.cat(parts), rows.cpu()

        return ReleasedSums(self._released["sums"], self.noise_std, vectors)

    def step(self, step: int) -> Stats:
        """Generate and embed, move the critic, then raise its score of the same embedding by one Adam step."""
        config = self.config
        whitened = {"public": (1,), "fakes": config.metric_steps}.get(config.metric, ())
        if step in whitened:
            self._set_metric()
        fake = self._embedded()
        stats, score = self.critic.learn(fake.detach()), self.critic.score(fake)
        progress = step / self.training.steps  # 5 % linear warm-up, then a cosine to zero
        falling = 0.5 * (1 + math.cos(math.pi * (progress - 0.05) / 0.95))
        set_rate(
            self.networks.generator_optimizer, config.learning_rate * (progress / 0.05 if progress < 0.05 else falling)
        )
        self.networks.step_generator(-score)
        return stats | {"score": score.detach()}

    def _embedded(self) -> Tensor:
        """Generate equally many images of each class; return their mean embedding, (rows, D).

        Each rank generates its share of every class; the embedding is that of all of them, on every rank.
        """
        ranks, size = self.networks.ranks, self.training.batch_size // self.rows
        labels = torch.arange(self.rows, device=self.device).repeat_interleave(ranks.rows(size))
        latents = self.networks.latents(len(labels), self.networks.own_rng())
        images = self.newest(latents, labels if self.classes else None)
        means = self.features.means(images, labels if self.classes else None, self.rows)
        return sum_over_ranks(means * ranks.weight(size), ranks)

    def _set_metric(self) -> None:
        """Whiten the critic by the covariance of the features of public or generated images."""
        public, classes, rng = self._public, self.classes, self.networks.rng
        with torch.no_grad():
            if self.config.metric == "public":
                copies = -(-_METRIC_IMAGES // len(public))
                images = to_float(public.images).to(self.device).repeat(copies, 1, 1, 1)
                labels = public.labels if public.labels is not None and classes else torch.zeros(len(public)).long()
                images, rows = augment(images, rng, self.config.augment), labels.to(self.device).repeat(copies)
            else:
                rows = torch.arange(_METRIC_IMAGES, device=self.device) % self.rows
                parts = zip(self.networks.latents(len(rows)).split(_BATCH), rows.split(_BATCH), strict=True)
                images = torch.cat([self.generator(z, of_part if classes else None) for z, of_part in parts])
            vectors = [
                self.features.matched(part, of_part if classes else None)
                for part, of_part in zip(images.split(_BATCH), rows.split(_BATCH), strict=True)
            ]
            self.critic.set_metric(torch.cat(vectors), rows, self.config.metric_noise * self.noise_variance)
        self.networks.ranks.from_first([cast(Tensor, self.critic.metric)])  # a GPU may add up in another order

    @property
    def critic_scores(self) -> CriticScores:
        """How far an image's features lie from generated ones towards the released sums; see `HasCritic`."""
        witness = self.critic.witness  # (rows, D)

        def scores(images: Tensor, labels: Tensor | None = None) -> Tensor:
            rows = torch.zeros(len(images), dtype=torch.int64, device=images.device)
            rows = labels if self.classes and labels is not None else rows
            vectors = self.features.matched(images, rows if self.classes else None)
            return (vectors * witness[rows]).sum(1)

        return scores


class LinearCritic:
    """The witness of a mean-embedding match: ``w = M (target - average of fakes)``, ``score = 2 w . fake``.

    With M = 1 this is DP-MERF (Harder, Adamczewski, Park 2021), whose loss is the squared distance of the means; the
    average over steps makes up for small batches. M = lambda (C + lambda)^-1, C the covariance of the embedding within
    a class (of *public* or of *generated* images), has eigenvalues in (0, 1]: directions that vary much within a class
    count less.

    Args:
        target: (K, D) released means, post-processed.
        decay: Weight of the past in the average of the fakes.
    """

    def __init__(self, target: Tensor, decay: float) -> None:
        self.target, self.decay = target, decay
        self.average = torch.zeros_like(target)
        self.metric: Tensor | None = None
        self.steps = 0

    def learn(self, fake: Tensor) -> Stats:
        """Let the average of the fakes follow ``fake``, (K, D) without gradient."""
        decay = min(self.decay, self.steps / (self.steps + 5))
        self.steps += 1
        self.average.lerp_(fake, 1 - decay)
        difference = self.target - self.average
        return {"distance": difference.square().sum() / len(difference)}

    @property
    def witness(self) -> Tensor:
        """The direction in which real images lie from generated ones, (K, D)."""
        witness = self.target - self.average
        return witness if self.metric is None else witness @ self.metric

    def score(self, fake: Tensor) -> Tensor:
        """Return how far ``fake`` lies along the witness."""
        return 2 * (self.witness * fake).sum()

    def set_metric(self, vectors: Tensor, labels: Tensor, noise: float) -> None:
        """Whiten by the within-class covariance of public or generated images, (N, D) with labels in [0, K).

        ``noise`` is the variance of the noise on a released mean, times the number of images that count as one
        direction.
        """
        centers = torch.zeros(len(self.target), vectors.shape[1], device=vectors.device).index_add_(0, labels, vectors)
        centers /= torch.bincount(labels, minlength=len(self.target)).clamp(min=1)[:, None]
        spread = vectors - centers[labels]
        floor = noise + _FLOOR
        covariance = spread.T @ spread / len(spread)
        covariance.diagonal().add_(floor)
        self.metric = floor * torch.cholesky_inverse(torch.linalg.cholesky(covariance))

    def state(self) -> dict[str, Any]:
        """Return what `load_state` needs."""
        return {"average": self.average, "metric": self.metric, "steps": self.steps}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.average = state["average"].to(self.target).view_as(self.target)
        self.metric = None if state["metric"] is None else state["metric"].to(self.target)
        self.steps = state["steps"]


# The audit: the sums of a small release, or those of a run -----------------------------------------------------------


def _audit(request: Request) -> AuditCase:
    terms = sums_audit.terms_of(request)
    sums = CellSums.calibrated(sums_audit.CLASSES, _AUDITED_NUMBERS, cast(Law, request.law), **terms)
    return sums_audit.sums_case("idp-gan-aggregate", sums, request)


def _audit_of_run(config: Any, facts: RunFacts) -> AuditCase:
    plan = Plan(config, facts.shape)
    _, dimensions = facts.prepared_shape("sums")  # how many public features there are is not in the facts
    release = plan.of_dimensions(dimensions)
    return sums_audit.sums_case("idp-gan-aggregate", release.sums, asked_of(config), facts.claimed, beside=release)


AUDIT = Entry(
    _audit,
    sums_audit.UNITS,
    sums_audit.RELATIONS,
    delta=1e-5,
    options={"law": ("gaussian", "laplace")},
    pure=("laplace",),
    of_run=_audit_of_run,
)
