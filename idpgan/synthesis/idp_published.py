r"""IDP-GAN as published: unsound, built to be measured. The paper claims eps1 + eps2; the ledger has what is proven.

Yang Yunlu, Zhou Yajian, Ning Hua, "Image Data Mining Method Supporting Differential Privacy", Algorithm 1. Lines 3-6,
the noisy first layer, are in `idpgan.models.perturbed`; lines 7-8, the noisy Taylor loss, in `idpgan.models.losses`. No
loss term sees a raw image, the gradient penalty included. Choices where the paper is silent, wrong or contradictory:
docs/reference/deviations.md, IDP-GAN 1 to 20.

A null record is an ordinary record, a black image of class 0. Under replace-one being null is part of a record's
content: a release that left null records out would show, without noise, which ones are null.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, place
from idpgan.errors import ConfigError
from idpgan.models import losses, perturbed
from idpgan.models.config import ModelConfig
from idpgan.models.initialize import seeded_init
from idpgan.privacy import Event, Guarantee, Laplace, Noise, RandomizedResponse, Relation, Unit
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import product
from idpgan.synthesis.idp_published_plan import ADJACENCY, RELEVANCE_FLOOR, Plan, Settings, label_targets
from idpgan.synthesis.networks import AdamSettings, Networks
from idpgan.training import method
from idpgan.training.config import ReleaseConfig
from idpgan.training.fit import FitConfig, fit_classifier
from idpgan.training.method import Stats

if TYPE_CHECKING:
    from idpgan.audit.cases import AuditCase

__all__ = ["AUDIT", "Method", "Plan", "Settings"]

_LOG = logging.getLogger(__name__)
_RNG_STREAM, _RELEVANCE_STREAM = 2, 3  # of training.seed; 0 and 1 are the initial weights
_CHUNK = 2048  # images perturbed per call: bounds the memory of the float64 noise
_SHAPE: perturbed.ImageShape = (1, 28, 28)  # of the image that stands for all in an audit
_BATCH = 256  # |L| there
_ACCESSES = 4  # of per_step there, where no run says how many; more than that is never simulated
_CURVATURE_STEPS = 20  # the loss is examined for a lower bound every so many steps


class Method(method.Method):
    """Algorithm 1 as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: The private part is read in `prepare` (`once`) or at every step (otherwise), the public one for relevance
            only.
        ledger: Charged in full by `prepare`, before it reads.
        noise: Secret source; None is the operating system's.
        critic: Another critic; its last features must lie in [-1, 1].

    Attributes:
        generator: The averaged generator.
        newest: The generator that is trained.
        critic: The critic with its noisy first layer.

    Raises:
        ConfigError: If data and config do not fit, or the critic's last features are not bounded.
    """

    NOISY_STEPS = True
    SAVED = ("networks", "noise", "order", "cursor", "unbounded")

    plan: Plan

    def _set_up(self, split: Split, critic: perturbed.PerturbedCritic | None = None) -> None:
        config, shape, self.batch_size = self.plan.config, split.image_shape, self.plan.config.training.batch_size
        self._num_classes, self._num_private = len(split.classes), split.num_private
        self._raw: Images | None = place(split.private, self.device)  # dropped by `prepare` where noise is drawn once
        self._public = split.public if config.method.allocation == "relevance" else None
        self._images: Tensor | None = None  # x~ of `once`, (N, C, H, W) float32
        self._labels_are_public = config.privacy.label_epsilon is not None  # once released, by randomized response
        labels = split.private.labels
        self._labels = None if labels is None else labels.clone().to(self.device)
        self._order, self._cursor = torch.empty(0, dtype=torch.int64), 0

        self.critic = (critic or self._build_critic(shape)).to(self.device)
        section = config.method
        self.networks = Networks(
            config,
            split.shape,
            self.critic,
            device=self.device,
            adam=AdamSettings.of(self.config),
            ema_decay=self.config.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest, self.generator = self.networks.newest, self.networks.average
        perturbed.check_bounded_features(self.critic, shape, self.newest.num_classes if section.label_input else 0)
        self._unbounded, self._warned = torch.zeros((), device=self.device), False
        change, self._order2 = losses.ORDERS[section.loss]  # of one coefficient of order 1, and the weight of order 2
        self._coefficient_noise = Laplace(change, self.plan.coefficient_scale / change, *ADJACENCY)

    # Private reads ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Pay for every read of the run; perturb images (`once`) and labels, and drop the raw images."""
        if self._public is not None:
            self._allocate(perturbed.allocate(self._relevance(self._public), RELEVANCE_FLOOR))
        events = self.plan.charged(self.critic.first.pixel_noise)
        self._take_released(self.ledger.release(events, self._release, noise=self.noise))
        self.critic.first.draw_bias_noise(self.networks.rng)

    def _release(self) -> dict[str, Tensor]:
        """Return what is drawn once: x~ (`once`), the labels' random answers; and the allocation of the noise."""
        released, pixels = {}, self.critic.first.pixel_noise
        if self._labels_are_public and self._labels is not None and self.newest.num_classes:
            response = RandomizedResponse(self.newest.num_classes, self._run.privacy.label_epsilon or 0.0, *ADJACENCY)
            released["labels"] = response(self._labels, self.noise)
        if pixels.draw == "once" and self._raw is not None:
            noisy = [pixels.release(to_float(chunk), self.noise).cpu() for chunk in self._raw.images.split(_CHUNK)]
            released["images"] = torch.cat(noisy)
        if self.config.allocation == "relevance":
            released["allocation"] = torch.tensor(pixels.allocation, dtype=torch.float64)
        return released

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Take what was released, now or in an earlier part of the run, and drop the raw data."""
        self._released = released
        if "allocation" in released:
            self._allocate(tuple(released["allocation"].tolist()))
        if "labels" in released:
            self._labels = released["labels"].to(self.device)
        if "images" in released:
            self._images, self._raw = released["images"].to(self.device), None

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        """Return the price of the remaining accesses: one more than whole epochs, as the steps may begin inside one."""
        remaining = self._run.training.steps - step
        accesses = math.ceil(remaining * self.batch_size / self._num_private) + 1
        pixels = self.critic.first.pixel_noise
        of_pixels = pixels.events(accesses) if remaining and pixels.draw != "once" else ()
        of_labels = () if not remaining or self._labels_are_public else self.plan.label_events(accesses)
        return of_pixels + of_labels

    def _real_batch(self) -> tuple[Tensor, Tensor | None]:
        """Return the next |L| images of the shuffled epoch, perturbed, (B, C, H, W), and their labels if used."""
        index = self._next_index()
        if self._images is not None:
            real = self._images[index]
        else:
            if self._raw is None:
                raise RuntimeError("prepare() or load_state() comes before the first step.")
            raw = to_float(self._raw.select(index).images).to(self.device)
            real = self.critic.first.pixel_noise.release(raw, self.noise)
        if not self.newest.num_classes or self._labels is None:
            return real, None
        return real, self._labels[index]

    def _next_index(self) -> Tensor:
        """Return |L| positions of the stream of shuffled epochs: each image comes once per epoch."""
        end = self._cursor + self.batch_size
        parts = [self._order[self._cursor : end]]
        if end > len(self._order):
            self._order = torch.randperm(self._num_private, generator=self.networks.rng, device=self.device)
            end -= self._cursor + len(parts[0])
            parts.append(self._order[:end])
        self._cursor = end
        return torch.cat([part.to(self.device) for part in parts])

    # Steps -----------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Stats:
        """Take a critic step; the generator's turn is after ``critic_steps_per_generator_step`` of them."""
        stats = self.critic_step(step)
        if step % self.config.critic_steps_per_generator_step == 0:
            stats |= self.generator_step(step)
        return stats

    def critic_step(self, step: int) -> Stats:
        """Minimize the noisy polynomial loss / |L| + 10 x gradient penalty by one Adam step (lines 3-10)."""
        first, pixels = self.critic.first, self.critic.first.pixel_noise
        if pixels.draw != "once":
            first.draw_bias_noise(self.networks.rng)
        real, labels = self._real_batch()
        with torch.no_grad():
            fake, fake_labels = self.networks.fakes(self.batch_size)
            fake = pixels.perturb_public(fake, self.networks.rng)
        given, fake_given = (labels, fake_labels) if self.config.label_input else (None, None)
        real_features, fake_features = self.critic.features(real, given), self.critic.features(fake, fake_given)
        noise = self._coefficient_noise_sums()
        loss = self._taylor_loss(real_features, labels, fake_features, fake_labels, noise)

        alpha = torch.rand(self.batch_size, generator=self.networks.rng, device=self.device)
        mixed = losses.interpolate(real, fake, alpha)
        penalty = losses.gradient_penalty(lambda x: self.critic(x, given)[:, 0], mixed).mean()
        total = loss + self.config.gradient_penalty * penalty
        self.networks.step_critic(total)
        stats = {"critic_loss": total.detach(), "taylor_loss": loss.detach(), "gradient_penalty": penalty.detach()}
        if step % _CURVATURE_STEPS == 1:
            # The share of outputs along whose weights the loss has no lower bound
            features = torch.cat([real_features, fake_features]).detach()
            second = (noise[1] + self._order2 * features.T @ features) / self.batch_size
            stats["unbounded_below"] = (losses.taylor_curvature(second, self.config.l2) < 0).float().mean()
            self._unbounded = torch.maximum(self._unbounded, stats["unbounded_below"])
        return stats

    def _taylor_loss(
        self,
        real: Tensor,
        labels: Tensor | None,
        fake: Tensor,
        fake_labels: Tensor | None,
        noise: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Return the noisy loss of 2 |L| records, divided by |L| (lines 7-9). Features are (B, d)."""
        weight, of_outputs = self.critic.weight, losses.OUTPUT_LOSSES[self.config.loss]
        released = self._labels_are_public
        real_targets = self._targets(1.0, labels if released else None)
        loss = of_outputs(real @ weight.T, real_targets).sum()
        loss = loss + of_outputs(fake @ weight.T, self._targets(0.0, fake_labels)).sum()
        loss = loss + losses.taylor_polynomial(*noise, weight)
        if labels is not None and not released:
            # The order-1 terms of the class outputs, from coefficients that were released with noise
            targets = label_targets(self._run, labels, self._num_classes)  # (B, K), K = M - 1
            exact, _ = losses.taylor_coefficients(real.detach(), targets, self.config.loss)  # (B, K, d)
            term = (self._coefficient_noise(exact, self.noise).sum(0) * weight[1:]).sum()
            if self._run.privacy.label_path == "autograd":  # line 9 literally: raw labels to the hidden layers
                order1 = losses.ORDERS[self.config.loss][0] * (0.5 - targets)
                leak = (order1 * (real @ weight[1:].detach().T)).sum()
                term = term + leak - leak.detach()
            loss = loss + term
        return loss / self.batch_size

    def _targets(self, real: float, labels: Tensor | None) -> Tensor:
        """Return y (B, M); without labels the class outputs get 1/2, where their order-1 term vanishes."""
        outputs = self.plan.label_outputs
        first = torch.full((self.batch_size, 1), real, device=self.device)
        if labels is None:
            return torch.cat([first, torch.full((self.batch_size, outputs), 0.5, device=self.device)], 1)
        return torch.cat([first, label_targets(self._run, labels, self._num_classes)], 1)

    def _coefficient_noise_sums(self) -> tuple[Tensor, Tensor]:
        """Draw the noise of all records' coefficients, summed: (M, d) and symmetric (M, d, d).

        Order-1 noise of private labels is not in it: that one is secret and drawn record by record.
        """

        def laplace_sums(counts: Tensor) -> Tensor:  # the difference of two gamma variables is a sum of Laplace numbers
            positive, negative = (torch._standard_gamma(counts, generator=self.networks.rng) for _ in range(2))
            return (positive - negative) * self.plan.coefficient_scale

        outputs, features = self.critic.weight.shape
        records = torch.full((outputs, 1), 2.0 * self.batch_size, device=self.device)
        secret = self.newest.num_classes > 0 and not self._labels_are_public
        order1 = records.clone()
        order1[1:] -= self.batch_size if secret else 0
        first = laplace_sums(order1.expand(outputs, features))
        upper = laplace_sums(records.unsqueeze(2).expand(outputs, features, features)).triu()
        return first, upper + upper.triu(1).mT

    def generator_step(self, step: int) -> Stats:
        """Minimize minus the mean output of perturbed fakes by one Adam step (line 11), and move the average."""
        fake, labels = self.networks.fakes(self.batch_size)
        fake = self.critic.first.pixel_noise.perturb_public(fake, self.networks.rng)
        outputs = self.critic(fake, labels if self.config.label_input else None)  # (B, M)
        loss = -outputs[:, 0].mean()
        if labels is not None:
            wanted = label_targets(self._run, labels, self._num_classes)
            if self._run.data.attributes:  # an absent attribute is to be seen as absent; other classes are left alone
                wanted = 2 * wanted - 1
            loss = loss - (wanted * outputs[:, 1:]).sum(1).mean()
        self.networks.step_generator(loss)
        return {"generator_loss": loss.detach()}

    # Books -----------------------------------------------------------------------------------------------------

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the averaged generator."""
        return product.artifact(self.generator, self._run, config)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the real/fake output; see `HasCritic`."""
        given = labels if self.critic.label_embedding is not None else None
        outputs: Tensor = self.critic(images, given)
        return outputs[:, 0]

    def state(self) -> dict[str, Any]:
        """Return networks, optimizers, average, batch order and random states; x~ once, under "prepared".

        Warns once, at a tick, if the order-2 noise has made the loss unbounded below.
        """
        if not self._warned and self._unbounded.item() > 0:
            self._warned = True
            _LOG.warning(
                "the order-2 noise leaves the critic's loss without a lower bound for up to %.0f %% of its outputs "
                "(statistic unbounded_below); raise |L|, privacy.epsilon2 or method.l2, or lower method.features.",
                100 * self._unbounded.item(),
            )
        return {**super().state(), "prepared": self._released}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; raw images are dropped as in `prepare`."""
        super().load_state(state)
        self._take_released(state["prepared"])

    # Helpers ---------------------------------------------------------------------------------------------------

    def _build_critic(self, image_shape: perturbed.ImageShape) -> perturbed.PerturbedCritic:
        config, privacy = self._run, self._run.privacy

        def perturb(layer: nn.Linear | nn.Conv2d) -> perturbed.PerturbedAffine:
            return perturbed.PerturbedAffine(
                layer,
                image_shape,
                epsilon=privacy.epsilon1,
                batch_size=self.batch_size,
                draw=privacy.noise,
                sensitivity=privacy.sensitivity,
            )

        return perturbed.build_critic(
            config.model,
            image_shape,
            kind=self.config.first_layer,
            num_features=self.config.features,
            num_outputs=1 + self.plan.label_outputs,
            label_classes=self.plan.classes if self.config.label_input else 0,
            seed=config.training.seed,
            perturb=perturb,
        )

    def _relevance(self, public: Images) -> Tensor:
        """Return the relevance of each pixel (C, H, W) to a small classifier of public images."""
        if public.labels is None:
            raise ConfigError("method.allocation = relevance needs labeled public images.")
        seed, (channels, height, width) = self._run.training.seed, public.image_shape
        maps = ((height + 3) // 4) * ((width + 3) // 4)
        with seeded_init(seed, stream=_RELEVANCE_STREAM):
            network = nn.Sequential(
                *(nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.ReLU()),
                *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
                *(nn.Flatten(), nn.Linear(32 * maps, len(public.classes))),
            )
        fit_classifier(network, public.images, public.labels, config=FitConfig(batch_size=64, seed=seed))
        return perturbed.mean_relevance(network, to_float(public.images), public.labels)

    def _allocate(self, allocation: tuple[float, ...]) -> None:
        """Put an allocation into the noise of the first layer."""
        first = self.critic.first
        first.pixel_noise = dataclasses.replace(first.pixel_noise, allocation=allocation)


# The audit: the noisy pixels of one image, black against white -------------------------------------------------------


def pixels_case(
    pixels: perturbed.PixelNoise, accesses: int, delta: float, claimed: Guarantee, notes: tuple[str, ...] = ()
) -> AuditCase:
    """Return the case of the noisy pixels of one image: a black one against a white one.

    ``accesses`` is the most often that an image may be drawn, ``delta`` where epsilon is stated, ``claimed`` the
    paper's.
    """
    from idpgan.audit import neighbors
    from idpgan.audit.cases import AuditCase
    from idpgan.audit.neighbors import Pair
    from idpgan.audit.statistics import EXACT, Nearness, Statistic, WithinBatch

    shape, beta = pixels.image_shape, pixels.allocation or (1.0,) * pixels.num_pixels
    black, white = torch.full(shape, -1.0), torch.full(shape, 1.0)
    proven = pixels.proven(delta, accesses)

    def release_batch(values: Tensor, noise: Noise) -> Tensor:
        """Release many batches of two in one call: run r's images are channels r C .. (r + 1) C - 1.

        The call shares its one draw between the two images of every batch, and draws channels independently.
        """
        runs, two, channels, height, width = values.shape
        stacked = values.transpose(0, 1).reshape(two, runs * channels, height, width)
        allocation = None if pixels.allocation is None else pixels.allocation * runs
        wide = dataclasses.replace(pixels, image_shape=(runs * channels, height, width), allocation=allocation)
        return wide.release(stacked, noise).view(two, runs, channels, height, width).transpose(0, 1)

    if pixels.draw == "per_batch":
        pair = Pair(neighbors.BLACK_IN_BATCH, torch.stack([black, black]), torch.stack([white, black]))
        return AuditCase("idp-gan-published", pair, claimed, proven, release_batch, (WithinBatch,), notes=notes)
    times = 1 if pixels.draw == "once" else min(accesses, _ACCESSES)
    if pixels.draw == "per_step" and times < accesses:
        notes += (f"{times} of at most {accesses} accesses were simulated: what they show holds for all",)

    def release(values: Tensor, noise: Noise) -> Tensor:
        return pixels.release(values.reshape(-1, *shape), noise).view_as(values)

    def exact(data: Tensor, neighbor: Tensor) -> Statistic:
        scale = pixels.scale / torch.tensor(beta, dtype=torch.float64).repeat(times)
        statistic = Nearness(data, neighbor, unit=pixels.scale if pixels.allocation is None else scale)
        statistic.name = EXACT
        return statistic

    pair = Pair(neighbors.BLACK, black.expand(times, *shape), white.expand(times, *shape))
    return AuditCase("idp-gan-published", pair, claimed, proven, release, (exact,), notes=notes)


def _build(request: Request) -> AuditCase:
    """Return the case of the paper's noise on MNIST: 5 x 5 convolution, |L| = 256, eps1 = eps2 = epsilon / 2."""
    layer = perturbed.first_layer("conv", ModelConfig(), _SHAPE)
    scale = perturbed.paper_sensitivity(cast(nn.Conv2d, layer), _SHAPE) / (request.epsilon / 2 * _BATCH)
    pixels = perturbed.PixelNoise(_SHAPE, scale, cast(perturbed.Draw, request.draw))
    claimed = _claim(request.epsilon)
    notes = (f"MNIST's size, |L| = {_BATCH}, eps1 = eps2; scale of the noise {scale:.4g} on [-1, 1]",)
    return pixels_case(pixels, _ACCESSES, request.delta or 0.0, claimed, notes)


def _of_run(config: Any, facts: RunFacts) -> AuditCase:
    plan, privacy = Plan(config, facts.shape), config.privacy
    pixels = plan.pixel_noise
    if config.method.allocation == "relevance":
        allocation = tuple(facts.prepared_tensor("allocation").tolist())
        pixels = dataclasses.replace(pixels, allocation=allocation)
    notes: tuple[str, ...] = (f"scale of the noise {pixels.scale:.4g} for a range of {perturbed.PIXEL_RANGE:g}",)
    if config.model.conditional and facts.num_classes:
        notes += ("labels were left out: what the pixels show holds for both together",)
    claimed = facts.claimed or _claim(privacy.epsilon1 + privacy.epsilon2)
    return pixels_case(pixels, plan.most_accesses, facts.delta, claimed, notes)


def _claim(epsilon: float) -> Guarantee:
    return Guarantee(epsilon, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "Yang, Zhou and Ning: eps1 + eps2")


AUDIT = Entry(
    _build,
    (Unit.IMAGE,),
    (Relation.REPLACE_ONE,),
    delta=1e-5,
    options={"draw": ("once", "per_step", "per_batch")},
    of_run=_of_run,
)
