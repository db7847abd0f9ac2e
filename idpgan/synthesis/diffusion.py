r"""Diffusion: a release of moments is the denoiser's closed form, and DP-SGD trains the network that it lacks.

The first private read is that of `gaussian`: noisy sums of moments of each class, once (`synthesis.gaussian`). They
make the closed form of a denoiser (`idpgan.models.diffusion`), whose images have the very law of that release. The
steps then train a small network, zero at first, on what the closed form leaves of a private image: the EDM loss of
Karras et al. (2022) at levels of noise that are log-normal between public constants. After Dockhorn, Cao, Vahdat and
Kreis, "Differentially private diffusion models" (2023): K noisy copies of an image under one clip, large batches, an
average of the weights. These are private steps (`private.steps`).

Sensitivity: 1 for the sums with their counts (`privacy.sums`), C for a step. Record i's gradient g_i is that of the
mean loss over its K noisy copies, clipped as one: besides the weights and what was released before, only record i, its
label and its own coins enter it. Levels and noise of the copies come from the secret source, so that a record that is
taken out does not shift those of the others. What is drawn from the network is post-processing.

With ``drawing = "faces"`` the release begins with a template (`synthesis.template`), and a step sees a record by its
texture and its displacement: both are functions of that record and of the template, so the above holds. Each record is
registered once, before the first step that a process takes, in tiles of a fixed size; the displacements stay in its
memory, are never saved, and a resumed run finds the same ones again.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request
from idpgan.audit.gradient_canaries import (
    NO_LIMIT,
    SHAPE,
    SLOPE,
    STILL,
    CanaryNetwork,
    CanarySteps,
    Training,
    canary_case,
)
from idpgan.data.images import to_float
from idpgan.data.load import DataShape, Sizes, Split, place
from idpgan.errors import ConfigError, InputError
from idpgan.models import checkpoint, initialize, optimizers
from idpgan.models.adapters import adapt, label_rows, merged, trained_weights
from idpgan.models.checkpoint import origin_weights
from idpgan.models.config import ModelConfig
from idpgan.models.diffusion import DiffusionGenerator, ResidualNetwork, training_levels
from idpgan.models.pipeline_folder import check_weights
from idpgan.models.pipelines import PipelineGenerator
from idpgan.privacy import Event, Guarantee, Noise, Relation, Unit
from idpgan.privacy.dpsgd import DPSGDPlan, Weights, full_precision
from idpgan.privacy.noise import Source, box_muller
from idpgan.privacy.tiles import random_like, tiled
from idpgan.private.steps import PrivateSteps
from idpgan.ranks import Ranks
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import gaussian, moments, networks
from idpgan.synthesis.diffusion_plan import BETAS, Plan, Settings
from idpgan.synthesis.sums_audit import sums_case
from idpgan.training.config import ReleaseConfig, RunConfig
from idpgan.training.fit import set_rate
from idpgan.training.method import ReleasedSums, Stats, refuse_small_shares

__all__ = ["AUDIT", "Method", "Plan", "Settings"]

_NETWORK = "network."
_COPIES = 2  # of a canary, at most: all are alike


class Method(PrivateSteps):
    """The method as the loop sees it; see `PrivateSteps`.

    Args:
        split: The private part is read in `prepare` and in the charged steps; the public part freely.
        ledger: Charged by `prepare`, and by the loop for each step.

    Attributes:
        generator: With the averaged network, in eval mode.
        newest: With the network that is trained.
        start: The method gaussian on the same plan, ledger and noise: it releases the moments that the steps start at.
    """

    took = "49 minutes for 54,000 digits of 28 x 28"
    taught = "a small network 93.58 % at epsilon 10, by digits of 28 x 28"

    SAVED = ("newest", "average", "optimizer", "noise")

    plan: Plan
    generator: DiffusionGenerator

    def _set_up(self, split: Split, canaries: nn.Module | None = None) -> None:
        """Make the networks; the steps of an audit train ``canaries`` in the place of the generator."""
        self.newest = self._built(split)
        self.start = gaussian.Method(
            cast(Any, self.plan), split, ledger=self.ledger, device=self.device, noise=self.noise, generator=self.newest
        )
        self._images = place(split.private, self.device)
        self._adapts = bool(self._run.model.trained)
        trained = trained_weights(self.newest.network)
        self._before = {name: weight.detach().clone() for name, weight in trained.items()} if self._adapts else {}
        self._average = initialize.Ema(self.newest, self.config.ema_decay)
        self.start.generator = self.generator = cast(DiffusionGenerator, self._average.module)  # a copy
        self.draws = self.plan.draws
        self._optimizer = networks.AdamSettings(self.plan.learning_rate, *BETAS).optimizer(self.newest.network)
        if canaries is not None:
            self.newest = cast(DiffusionGenerator, canaries.to(self.device))
            self._optimizer = optimizers.SGD(self.newest.network.parameters(), STILL)
        self.train_privately(self.newest.network, self._optimizer)

    def _built(self, split: Split) -> DiffusionGenerator:
        """Return the generator before anything is released; what the steps move is not frozen."""
        model, seed = self._run.model, self._run.training.seed
        if model.pipeline is not None:
            return cast(DiffusionGenerator, public_pipeline(self._run, split))
        made = checkpoint.build_generator(model, split.image_shape, len(split.classes), seed=seed)
        generator = cast(DiffusionGenerator, made.requires_grad_(False))
        if model.trained:
            start_at_public(generator, self._run, split.classes)
        else:
            generator.network.requires_grad_(True)
        return generator

    def prepare(self) -> None:
        """Make sure that the loss reaches all that is adapted, and release the moments, if the run starts there."""
        if self._adapts:
            record = [part[0] for part in self.prepared(*_random_like(self.example()))]
            refuse_unreached(self.newest.network, lambda weights: self.record_loss(weights, *record))
        self.start.progress, self.start.kept = self.progress, self.kept
        if self.plan.starts_at_moments:
            self.start.prepare()
        self._start_at_moments()

    def usual_norm(self, num: int) -> float:
        """Return the median of `usual_norms`."""
        norms = self.usual_norms(num)
        return float(norms[norms.isfinite()].median())

    def usual_norms(self, num: int) -> Tensor:
        """Return the norms of the gradients of so many images that the generator draws; public before a step."""
        drawn, rng = place(self.generator.sample_images(num, seed=0), self.device), torch.Generator().manual_seed(0)
        labels = torch.zeros(num, dtype=torch.int64, device=self.device) if drawn.labels is None else drawn.labels
        images, coins = to_float(drawn.images), torch.rand(num, self.coins, generator=rng, dtype=torch.float64)
        known = self.newest.known(images, labels if self.newest.num_classes else None)
        records = self.prepared(images, labels, known, coins.to(self.device))
        weights, rows = trained_weights(self.newest.network), self.tiles.rows
        return self.dpsgd.clipped_sum(self.record_loss, weights, tiled(records, rows), self.tiles).norms

    def _start_at_moments(self) -> None:
        """Put what was released into both networks, if the run starts there."""
        if not self.plan.starts_at_moments:
            return
        if self.generator.template is not None and self.start.moments.template is not None:
            self.generator.template.data.copy_(self.start.moments.template)
        for name in ("mean", "factor", *(["template"] if self.generator.template is not None else [])):
            getattr(self.newest, name).data.copy_(getattr(self.generator, name))

    def state(self) -> dict[str, Any]:
        """Return what `SAVED` names, what was released, and the tiles."""
        return {**super().state(), **self.start.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.start.load_state(state)
        self._start_at_moments()
        super().load_state(state)

    @property
    def released_sums(self) -> ReleasedSums | None:
        """The sums of moments, one row a class; None where none were released."""
        return self.start.released_sums

    @property
    def sources(self) -> tuple[Source, ...]:
        """The noise source of the release, which is that of the steps too."""
        return self.source, self.source

    def share_steps(self, ranks: Ranks) -> None:
        """See `PrivateSteps`."""
        refuse_small_shares(self.dpsgd.divisor, "training.batch_size", ranks)
        super().share_steps(ranks)

    def step(self, step: int) -> Stats:
        """Take a private step; the average follows."""
        set_rate(self._optimizer, self.rate(self.plan.learning_rate, step))
        stats = self.private_step()
        self._average.update(self.newest)
        if self._adapts and step == 1:
            refuse_unmoved(self.newest.network, self._before)
        return stats

    def step_event(self) -> Event:
        """Return the price of a step."""
        return self.plan.step_event

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the generator; what was learned beside its layers is in their weights."""
        made = self.start.artifact(config)
        if self._adapts:
            generator = cast(DiffusionGenerator, made.generator)
            refuse_unmoved(generator.network, self._before)
            made.generator = generator = copy.deepcopy(generator)
            if generator.config.pipeline is None:  # of a pipeline the adapters alone are given away
                generator.network = cast(ResidualNetwork, merged(generator.network))
        return made

    # A record's loss: a function of that record, its coins, what was released and the weights ----------------------

    @property
    def coins(self) -> int:  # type: ignore[override]  # they follow from the network
        """How many uniform numbers a record has of its own: for K levels and K noisy copies."""
        numbers = self.draws * (1 + self.newest.latent_dim)
        return numbers + numbers % 2

    def record_loss(self, weights: Weights, *record: Tensor) -> Tensor:
        """Return the mean loss of K noisy copies of one image."""
        return self.newest.loss(weights, *record)

    def example(self) -> list[Tensor]:
        """Return one public record of zeros, with what is known of it."""
        image, label, coins = super().example()
        return [image, label, torch.zeros(1, self.newest.known_numbers, device=self.device), coins]

    def known(self, index: Tensor) -> tuple[Tensor, ...]:
        """Return displacements, or the latents of an autoencoder."""
        return (self._known[index],)

    @torch.no_grad()
    @full_precision()
    def prepared(self, images: Tensor, labels: Tensor, *coins: Tensor) -> tuple[Tensor, ...]:
        """Return what the network sees, levels, labels and targets, K copies each, by each record's own coins."""
        known, uniform = coins
        labels = labels if self.newest.num_classes else torch.zeros_like(labels)
        num, draws = len(images), self.draws
        states = self.newest.states(images, known).repeat_interleave(draws, 0)  # (B K, D)
        normal = box_muller(uniform)[:, : draws * (1 + states.shape[1])].float()
        levels = self.newest.levels(normal[:, :draws].flatten())
        classes = labels.repeat_interleave(draws) if self.newest.num_classes else None
        inputs, target = self.newest.problem(states, classes, levels, normal[:, draws:].reshape(states.shape))
        copies = [part.view(num, draws, *part.shape[1:]) for part in (inputs, levels, target)]
        return copies[0], copies[1], labels, copies[2]

    @functools.cached_property
    def _known(self) -> Tensor:
        """The displacements of all private records onto the template, or their latents, each of one record, (N, D)."""
        if not self.newest.known_numbers:
            return torch.zeros(len(self._images), 0, device=self.device)
        conditional, template = bool(self.newest.num_classes), getattr(self.newest, "template", None)

        def computed(first: int) -> Iterator[Tensor]:
            private, known = self._images, _Known(self.newest)
            batches = moments.private_moments(private, known, conditional=conditional, cap=None, first=first)
            return (vectors for vectors, _, _ in batches)

        parts = self.kept.rows(
            "known",
            len(self._images),
            computed,
            fixed=() if template is None else (template,),
            progress=self.progress,
            what="images brought into place",
        )
        return torch.cat([part.to(self.device) for part in parts])


def _random_like(record: Sequence[Tensor]) -> list[Tensor]:
    """Return a record with random numbers in [0, 1) in the place of those with a point."""
    rng = torch.Generator().manual_seed(0)
    return [random_like(part, rng) for part in record]


class _Known:
    """Maps images to what the steps keep of them, as `private_moments` does it.

    Attributes:
        dimensions: Numbers of an image.
    """

    def __init__(self, generator: DiffusionGenerator) -> None:
        self._generator, self.dimensions = generator, generator.known_numbers

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """Map images (B, C, H, W) of classes (B,) to (B, dimensions), each by itself."""
        device = next(self._generator.parameters()).device
        return self._generator.known(images.to(device), rows.to(device)).to(images.device)


# The public denoiser that is adapted; nothing here reads a private image --------------------------------------------


def public_pipeline(config: RunConfig, split: Split) -> PipelineGenerator:
    """Return the pipeline that a config names, its network adapted.

    Raises:
        ConfigError: If it does not fit the images, its weights are others than the config names, or ``model.trained``
            names what it has not.
    """
    model, classes = config.model, split.classes
    if model.pipeline is None:
        raise TypeError("a pipeline is described in the config.")
    made = PipelineGenerator(
        model,
        split.image_shape,
        len(classes),
        seed=config.training.seed,
        folder=check_weights(config.data.public_generator, model.pipeline),
        classes=classes if model.conditional else (),
        looks=config.data.public_labels or {},
    )
    made.classes = classes if made.num_classes else ()
    return made


def start_at_public(generator: Any, config: RunConfig, classes: Sequence[str]) -> None:
    """Give a `DiffusionGenerator` the weights of the public one that a config names, and adapt its network.

    A class begins as that of its name, or of its look in ``data.public_labels``, or as the mean of all.

    Raises:
        ConfigError: If the weights are others than the config names, or ``model.trained`` names what they have not.
    """
    model, origin = config.model, config.model.origin
    if origin is None:
        raise TypeError("a config with model.trained has an origin.")
    names = classes if generator.num_classes else ()
    weights = origin_weights(config.data.public_generator, origin)
    rows = label_rows(origin.classes, names, config.data.public_labels or {})
    network = {name.removeprefix(_NETWORK): one for name, one in weights.items() if name.startswith(_NETWORK)}
    generator.network.start_at(network, len(origin.classes), rows)
    if weights["mean"].shape[1:] == generator.mean.shape[1:]:  # a release of moments takes their place, if there is one
        each = rows or [None]
        found = [_moments(weights["mean"], weights["factor"], row) for row in each]
        generator.set_moments(*(torch.stack(parts).to(generator.mean.device) for parts in zip(*found, strict=True)))
    adapt(generator.network, model.trained, seed=config.training.seed)


def _moments(mean: Tensor, factor: Tensor, row: int | None) -> tuple[Tensor, Tensor]:
    """Return mean and factor of a row of normal distributions, or of the mixture of all."""
    if row is not None or len(mean) == 1:
        return mean[row or 0], factor[row or 0]
    center = mean.double().mean(0)
    between = mean.double() - center
    covariance = (factor.double() @ factor.double().mT).mean(0) + between.T @ between / len(mean)
    values, axes = torch.linalg.eigh(covariance)
    return center.to(mean), (axes * values.clamp(min=0).sqrt()).to(factor)


def refuse_unreached(network: nn.Module, loss: Callable[[Mapping[str, Tensor]], Tensor]) -> None:
    """Refuse weights that a loss does not depend on: only noise would move them.

    Args:
        network: Adapted.
        loss: Of a public record, by the trained weights; they are disturbed, since a factor of zero hides the other.

    Raises:
        ConfigError: Naming them.
    """
    rng = torch.Generator().manual_seed(0)
    weights = {
        name: (weight.detach() + 0.1 * torch.randn(weight.shape, generator=rng).to(weight)).requires_grad_()
        for name, weight in trained_weights(network).items()
    }
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss(weights), list(weights.values()), allow_unused=True)
    idle = [
        name for name, gradient in zip(weights, gradients, strict=True) if gradient is None or not bool(gradient.any())
    ]
    if idle:
        raise ConfigError(
            f"model.trained: no gradient reaches {', '.join(idle[:5])} ({len(idle)} of {len(weights)} weights): only "
            "noise would move them. Train other parts."
        )


def refuse_unmoved(network: nn.Module, start: Mapping[str, Tensor]) -> None:
    """Refuse a network of which a trained weight is still where it started.

    Raises:
        InputError: Naming them.
    """
    still = [name for name, weight in trained_weights(network).items() if torch.equal(weight, start[name])]
    if still:
        raise InputError(
            f"{', '.join(still[:5])} ({len(still)} of {len(start)} adapted weights) did not move: nothing was learned "
            "there. Was the network moved, copied or compiled after its optimizer was made?"
        )


# The audit: a denoiser whose loss of a record is the record's canary -------------------------------------------------


class _Canaries(nn.Module):
    """In the place of a generator: its loss of a record is the record's canary."""

    num_classes = 0
    latent_dim, known_numbers = math.prod(SHAPE), 0
    levels = staticmethod(training_levels)

    def __init__(self, canaries: int, slope: float) -> None:
        super().__init__()
        self.network = CanaryNetwork(canaries, slope)

    def states(self, images: Tensor, *_: Any) -> Tensor:
        """Return the images as rows of numbers."""
        return images.flatten(1)

    def problem(self, states: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Return the rows as they are."""
        return states, states

    def loss(self, weights: Weights, inputs: Tensor, *_: Any) -> Tensor:
        """Return the mean score of the copies of a record."""
        scores: Tensor = functional_call(self.network, dict(weights), (inputs,))
        return scores.mean()


def canaries(section: Any, draws: int, sample_rate: float, noise_multiplier: float, count: int) -> CanarySteps:
    """Return the denoiser's steps as an audit plays them: by a section's clip norm, with two copies of an image."""

    def make(split: Split, dpsgd: DPSGDPlan, steps: int, noise: Noise, device: torch.device) -> Training:
        copies = {"draws": min(draws, _COPIES), "max_physical_batch": 512, "learning_rate": STILL}
        start = {"start_share": 0.5, "teacher_share": 0.0}  # as of a run without a base, whatever is audited
        config = Settings(
            model=ModelConfig(generator="diffusion", latent_dim=1, width=1, conditional=False),
            method=section.model_copy(update=copies | start),
            privacy={"epsilon": NO_LIMIT, "delta": 0.5 / len(split.private)},
            training={"steps": steps, "batch_size": dpsgd.divisor},
        )
        network = _Canaries(len(split.private), SLOPE * section.clip_norm)
        return Method.of_canaries(config, split, dpsgd, noise, device, canaries=network).seen_gradients()

    code = (
        "played through the steps of diffusion, with a denoiser whose gradient is the canary; left out were the "
        "closed form, the noise on an image and, where there is a template, its rounds and the displacement "
        "(functions of what was released, of one record and its own coins)"
    )
    return CanarySteps(code, make, sample_rate, noise_multiplier, count, section.clip_norm)


def _case(config: Any, shape: DataShape, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    plan = Plan(config, shape)
    steps = canaries(
        config.method, plan.draws, plan.dpsgd.sample_rate, plan.dpsgd.noise_multiplier, config.training.steps
    )
    if not plan.starts_at_moments:
        return canary_case("diffusion", steps, request, claimed)
    return sums_case("diffusion", plan.release.sums, request, claimed, beside=plan.release, steps=steps)


def _build(request: Request) -> AuditCase:
    """Return the case of a short run that stands for all, with the least noise that keeps to a request."""
    config = Settings(
        model=ModelConfig(generator="diffusion", latent_dim=10, width=4),
        privacy={"epsilon": request.epsilon, "delta": request.delta or 0.0},
        training={"steps": 50, "batch_size": 30},
    )
    return _case(config, DataShape(Sizes(0, 100, 0, 0), SHAPE, tuple(map(str, range(10)))), request)


AUDIT = Entry(
    _build,
    (Unit.IMAGE,),
    (Relation.ZERO_OUT,),
    delta=1e-5,
    of_run=lambda config, facts: _case(config, facts.shape, asked_of(config), facts.claimed),
)
