r"""Diffusion: a release of moments is the denoiser's closed form, and DP-SGD trains the network that it lacks.

The first private read is that of `gaussian`: noisy sums of moments of each class, once (`synthesis.gaussian`). They
make the closed form of a denoiser (`idpgan.models.diffusion`), whose images have the very law of that release. The
steps then train a small network, zero at first, on what the closed form leaves of a private image: the EDM loss of
Karras et al. (2022) at levels of noise that are log-normal between public constants. After Dockhorn, Cao, Vahdat and
Kreis, "Differentially private diffusion models" (2023): K noisy copies of an image under one clip, large batches, an
average of the weights. A step reads the records that Poisson sampling at rate q draws, and releases

.. math:: \frac{1}{B} \Big( \sum_{i} \mathrm{clip}_C(g_i) + N(0, (\sigma C)^2 I) \Big)

by `privacy.dpsgd.DPSGDPlan`: the Poisson-sampled Gaussian mechanism, unit image, zero-out-one; an image and its label
are one record.

Sensitivity: 1 for the sums with their counts (`privacy.sums`), C for a step. Record i's gradient g_i is that of the
mean loss over its K noisy copies, clipped as one: besides the weights and what was released before, only record i, its
label and its own coins enter it. Levels and noise of the copies come from the secret source, so that a record that is
taken out does not shift those of the others. An empty batch is a step like any other: noise, charge, step. What is
drawn from the network is post-processing.

With ``model.shape`` above 0 the release begins with a template (`synthesis.template`), and a step sees a record by its
texture and its displacement: both are functions of that record and of the template, so the above holds. Each record is
registered once, before the first step that a process takes, in tiles of a fixed size; the displacements stay in its
memory, are never saved, and a resumed run finds the same ones again.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.device import sent
from idpgan.models.diffusion import DiffusionGenerator, training_levels
from idpgan.models.ema import Ema
from idpgan.privacy import Event
from idpgan.privacy.dpsgd import full_precision
from idpgan.privacy.noise import Source, box_muller
from idpgan.privacy.tiles import Tiles, rows_at_once
from idpgan.progress import counted
from idpgan.ranks import Ranks
from idpgan.synthesis import starter
from idpgan.synthesis.diffusion.config import DiffusionPlan, DiffusionRun
from idpgan.synthesis.gaussian import GaussianMoments
from idpgan.synthesis.moments import private_moments
from idpgan.synthesis.networks import Adam
from idpgan.training.fit import set_rate
from idpgan.training.method import Stats, refuse_small_shares

BETAS = 0.9, 0.99  # of Adam


class Diffusion(GaussianMoments):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: The private part is read in `prepare` and in the charged steps; the public part freely.
        ledger: Charged by `prepare`, and by the loop for each step.
        noise: Source of all noise and coins; None = a fresh one of the operating system.

    Attributes:
        generator: With the averaged network, in eval mode.
        newest: With the network that is trained.
        dpsgd: The steps.
    """

    Config, Plan = DiffusionRun, DiffusionPlan
    suggest = staticmethod(starter.diffusion)

    UNNOISED = ("loss", "gradient_norm", "clipped_share")
    NOISY_STEPS = True
    SAVED = ("newest", "average", "optimizer", "noise")

    plan: DiffusionPlan
    generator: DiffusionGenerator

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        self._images = place(split.private, self.device)
        self.newest = self.generator
        self.newest.network.requires_grad_(True)
        self._average = Ema(self.newest, self.config.ema_decay)
        self.generator = self._average.module  # type: ignore[assignment]  # a copy
        self.dpsgd, self.draws = self.plan.dpsgd, self.plan.draws
        self._optimizer = Adam(self.plan.learning_rate, *BETAS).optimizer(self.newest.network)

    def _take_released(self, released: dict[str, Tensor]) -> None:
        super()._take_released(released)
        if self.generator.template is not None:
            self.generator.template.data.copy_(released["template"])
        for name in ("mean", "factor", *(["template"] if self.plan.template_share else [])):
            getattr(self.newest, name).data.copy_(getattr(self.generator, name))

    @property
    def release_events(self) -> tuple[Event, ...]:
        """The price of all that the steps start from."""
        return self.plan.start_events

    @property
    def sources(self) -> tuple[Source, ...]:
        """The noise source of the release, which is that of the steps too."""
        return self.noise.source, self.noise.source

    def share_steps(self, ranks: Ranks) -> None:
        """Let each rank take its share of every step; only a record's own rank sees it and draws its coins."""
        refuse_small_shares(self.dpsgd.divisor, "training.batch_size", ranks)
        self.dpsgd = dataclasses.replace(self.dpsgd, ranks=ranks)

    def step_event(self) -> Event:
        """Return the price of one Poisson-sampled Gaussian release; an empty batch is charged too."""
        return self.dpsgd.event

    # The only lines that read private images after the release --------------------------------------------------

    def step(self, step: int) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step; the average follows."""
        weights, tiles = dict(self.newest.network.named_parameters()), self.tiles
        drawn = self.dpsgd.sample(len(self._images), self.noise, tiles)
        result = self.dpsgd.clipped_sum(self.newest.loss, weights, map(self._records, drawn), tiles)
        set_rate(self._optimizer, self._rate(step))
        self.dpsgd.noisy_step(self._optimizer, weights, result.sums, self.noise)
        self._average.update(self.newest)
        return self.dpsgd.statistics(result.losses, result.norms)

    def decide_tiles(self, saved: Tiles | None) -> Tiles:
        """See `Method`."""
        image = torch.zeros(1, *self._data.image_shape, device=self.device)
        label = torch.zeros(1, dtype=torch.int64, device=self.device)
        shapes = torch.zeros(1, 2 * self._run.model.shape, device=self.device)
        coins = torch.zeros(1, self._coins, dtype=torch.float64, device=self.device)
        return self.dpsgd.tiles(
            self.newest.loss,
            dict(self.newest.network.named_parameters()),
            [image, shapes, label, coins],
            num=len(self._images),
            most=rows_at_once(self.config, self.device),
            prepare=self._prepared,
            saved=saved,
        )

    @property
    def _coins(self) -> int:
        """How many uniform numbers a record has of its own: for K levels and K noisy copies."""
        numbers = self.draws * (1 + self.newest.latent_dim)
        return numbers + numbers % 2

    def _records(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return what the loss takes of the records at positions ``index``, `EMPTY` for none, and which are null.

        Null records are drawn like others and have coins of their own.
        """
        index = sent(index, self.device)
        batch = self._images.select(index.clamp(min=0)).zeroed_out(index < 0).to(self.device)
        num = len(batch)
        labels = torch.zeros(num, dtype=torch.int64, device=self.device)
        if self.newest.num_classes and batch.labels is not None:
            labels = batch.labels
        shapes = self._shapes[index.clamp(min=0)]
        coins = sent(self.noise.uniform((num, self._coins)), self.device)
        return self._prepared(to_float(batch.images), shapes, labels, coins), batch.is_null

    @torch.no_grad()
    @full_precision()
    def _prepared(self, images: Tensor, shapes: Tensor, labels: Tensor, coins: Tensor) -> tuple[Tensor, ...]:
        """Return what the network sees, levels, labels and targets, K copies each, by each record's own coins."""
        num, draws = len(images), self.draws
        states = self.newest.states(images, shapes).repeat_interleave(draws, 0)  # (B K, D)
        normal = box_muller(coins)[:, : draws * (1 + states.shape[1])].float()
        levels = training_levels(normal[:, :draws].flatten())
        known = labels.repeat_interleave(draws) if self.newest.num_classes else None
        inputs, target = self.newest.problem(states, known, levels, normal[:, draws:].reshape(states.shape))
        copies = [part.view(num, draws, *part.shape[1:]) for part in (inputs, levels, target)]
        return copies[0], copies[1], labels, copies[2]

    @functools.cached_property
    def _shapes(self) -> Tensor:
        """The displacements of all private records onto the template, (N, 2 shape)."""
        if not self._run.model.shape:
            return torch.zeros(len(self._images), 0, device=self.device)
        conditional = bool(self.newest.num_classes)
        found = private_moments(self._images, _Displacements(self.newest), conditional=conditional, cap=None)
        told = counted(found, self.progress, "register", len(self._images), lambda part: len(part[0]))
        return torch.cat([shapes for shapes, _, _ in told]).to(self.device)

    # What follows is for the curator, or reads nothing private ---------------------------------------------------

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step: constant, then falling to zero over the cool-down."""
        left = 1 - (step - 1) / self._run.training.steps
        return self.plan.learning_rate * min(1.0, left / self.config.cooldown if self.config.cooldown else 1.0)


class _Displacements:
    """Maps images to their displacements, as `private_moments` does it.

    Attributes:
        dimensions: Numbers of a displacement.
    """

    def __init__(self, generator: DiffusionGenerator) -> None:
        self._generator, self.dimensions = generator, 2 * generator.config.shape

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """Map images (B, C, H, W) of classes (B,) to displacements (B, dimensions), each by itself."""
        device = self._generator.mean.device
        return self._generator.shapes(images.to(device), rows.to(device)).to(images.device)
