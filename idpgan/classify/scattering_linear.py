r"""scattering-linear: linear softmax on fixed features of norm 1, by noisy gradient descent on all images.

Tramer and Boneh (2021), "Differentially private learning needs better features (or much more data)", with full batches
and a clip of the residual. A step releases

.. math:: \frac{1}{B} \Big( \sum_i \mathrm{clip}_C\big((p_i - y_i) f_i^T\big) + N(0, (\sigma C)^2 I) \Big)

with f_i the scattering features of image i, which depend on that image alone and have norm at most 1 *with* their
constant coordinate, p_i the probabilities that the newest weights give it, y_i its label, and B the public expected
number of images in a step.

Sensitivity, L2, zero-out-one: C. The term of a record is a function of that record and of the weights, its norm is
clipped to C (`DPSGDPlan.clipped_outer_sum`), and that of a null record is zero. (A free bias beside features of norm 1
would have gradients of norm sqrt(2) |p - y|: no proof breaks, as all weights are clipped together, but half of the
clip would go to the bias.)

The features are computed at the first step of a process, after its charge, and are never released: they are as private
as the images. Many lie in a file without a name, which ends with the process (`memory.zeros`); a resume takes those of
`idpgan.training.kept_features`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, pad

from idpgan.audit.gradient_canaries import NO_LIMIT, SLOPE, STILL, CanarySteps, Training
from idpgan.classify import classifier
from idpgan.config import key
from idpgan.data import images, load
from idpgan.device import LARGEST, check_room, let_go, resolve_device, sent, zeros
from idpgan.models.optimizers import SGD
from idpgan.models.private_classifier import LinearScattering, PrivateClassifier
from idpgan.privacy import Noise
from idpgan.privacy.dpsgd import ClipNorm, DPSGDPlan
from idpgan.privacy.layer_gradients import Features
from idpgan.privacy.tiles import Rows, Tiles, alike, sizes, threads_of
from idpgan.private import steps
from idpgan.training.config import MOST_STEPS, section_of, settings
from idpgan.training.method import Stats

_WAY_OUT = "Lower method.directions, resize the images, or take a classifier that keeps no features (dp-sgd)."
_MOST_RATE = 1000.0
_LOGIT_NOISE = 2.0  # standard deviation that the noise of all steps may add up to in one logit
_AVERAGE_FROM = 0.5  # share of the steps after which the average of the iterates begins, which is released
_FLOAT = 4  # bytes
_ROWS = 1000  # images at once, of all
_LEAST_DRAWN, _MOST_DRAWN = 64, 1024  # of those that coins draw
_CACHED = 1 << 20  # numbers that a processor's cache holds


Settings = settings(  # few steps, each on all images up to a million
    "scattering-linear",
    method=[
        {
            "scales": key(
                int | None, None, "J of the scattering; None = 2 up to 39 pixels, 3 up to 79, then 4.", ge=1, le=6
            ),
            "directions": key(int, 8, "L of the scattering.", ge=1, le=16),
            "clip_norm": key(ClipNorm, 0.1, "C, bound on one record's gradient, which is at most sqrt(2) by itself."),
            "learning_rate": key(
                float | None,
                None,
                "Of gradient descent on the mean loss; None = that at which the noise of all steps adds up to 2 in a "
                "logit (1000 at most): it follows from N, sigma and the number of steps.",
                gt=0,
            ),
            "momentum": key(float, 0.9, "Weight of the past in a step.", ge=0, lt=1),
        }
    ],
    privacy=[classifier.PRIVACY],
    training=[
        {
            "steps": key(int, 80, "Steps of noisy gradient descent, each of which is charged.", ge=1, le=MOST_STEPS),
            "batch_size": 1_000_000,
            "tick_steps": 20,
        }
    ],
    dropped={"average_from": _AVERAGE_FROM},
)


class Plan(classifier.StepsPlan):
    """The plan of a run of scattering-linear."""

    WAY_OUT = _WAY_OUT

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> LinearScattering:
        """Return the linear classifier with weights of zero."""
        method = self.config.method
        return LinearScattering(image_shape, classes, scales=method.scales, directions=method.directions)

    def step_bytes(self, network: PrivateClassifier) -> int:
        """Count the features of all images, which are kept; many of them on the disk, where there is no GPU."""
        kept = self.shape.num_private * sum(weight.shape[1] for weight in network.parameters()) * _FLOAT
        if kept <= LARGEST or resolve_device(self.config.training.device).type != "cpu":
            return kept
        check_room(kept, 1, f"The features of {self.shape.num_private:,} images", _WAY_OUT)
        return LARGEST

    @property
    def learning_rate(self) -> float:
        """The learning rate for N images.

        T steps of noise sigma C / N, which momentum m multiplies by 1 / (1 - m), add up to a standard deviation of
        ``rate sigma C sqrt(T) / ((1 - m) N)`` in a logit, as features have norm 1.
        """
        method, dpsgd = self.config.method, self.dpsgd
        if method.learning_rate is not None:
            return float(method.learning_rate)
        walk = dpsgd.noise_multiplier * dpsgd.clip_norm * math.sqrt(self.config.training.steps) / dpsgd.divisor
        return min(_MOST_RATE, _LOGIT_NOISE * (1 - method.momentum) / walk)


class Method(steps.PrivateSteps):
    """The method as the loop sees it; see `PrivateSteps`.

    Args:
        shares: (N,) in [0, 1], each image's share of its person, for unit person; None = every image is a unit.

    Attributes:
        newest: The iterate.
        product: The average of the iterates, in eval mode: the released classifier.
    """

    newest: LinearScattering
    SAVED = ("newest", "product", "averaged", "optimizer", "noise")
    took = "2 minutes on one core for 54,000 digits of 28 x 28"

    plan: Plan

    def _set_up(
        self, split: load.Split, shares: Tensor | None = None, canaries: LinearScattering | None = None
    ) -> None:
        """Make the network; the steps of an audit train ``canaries`` in its place, whose features are axes."""
        self._images = load.place(split.private, self.device)
        self.newest = canaries or self.plan.classifier(split.image_shape, split.classes).eval()
        self.newest.to(self.device)
        private, room = self._images, (0, _ROWS)  # after the last record there is room for a tile
        self._labels = pad(cast(Tensor, private.labels).to(self.device), room)
        self._null = pad(private.is_null.to(self.device), room, value=True)
        self._shares = None if shares is None else pad(shares.to(self.device), room)
        self._product = copy.deepcopy(self.newest).eval().requires_grad_(False)
        self.optimizer = SGD(self.newest.parameters(), self.plan.learning_rate, momentum=self.config.momentum)
        self.train_privately(self.newest, self.optimizer)
        self._averaged = 0
        self._known = None if canaries is None else self._axes()  # of all private images, once they were read

    @property
    def product(self) -> LinearScattering:
        """The average of the iterates."""
        return self._product

    artifact, critic_scores = classifier.artifact, classifier.critic_scores

    def step(self, step: int) -> Stats:
        """Take a private step; then add the newest weights to the average of the iterates: post-processing."""
        stats = self.private_step()
        if step <= _AVERAGE_FROM * self._run.training.steps:
            self._product.load_state_dict(self.newest.state_dict())
            return stats
        self._averaged += 1
        with torch.no_grad():
            self._product.weight.lerp_(self.newest.weight, 1 / self._averaged)
        return stats

    def private_step(self) -> Stats:
        """See `PrivateSteps`: here the gradient of a record is that of a linear layer, and is never made."""
        features, weight = self._features(), self.newest.weight
        total = torch.zeros(weight.shape, dtype=torch.float64, device=self.device)
        losses, norms = [], []
        drawn = self.dpsgd.sample(len(self._images), self.noise, self.tiles)
        with self.tiles.computing():
            for index in drawn:
                some, null = self._some(index), sent(index < 0, self.device)
                rows, labels, null = features[some], self._labels[some], null | self._null[some]
                residuals, loss = self._residuals(rows, labels, weight)
                losses.append(loss)
                shares = None if self._shares is None else self._shares[some]
                _, norm = self.dpsgd.clipped_outer_sum(residuals, rows, null=null, weights=shares, total=total)
                norms.append(norm)
                let_go(features.whole)
        self.dpsgd.noisy_step(self.optimizer, {"weight": weight}, {"weight": total}, self.noise)
        return self.dpsgd.statistics(torch.cat(losses), torch.cat(norms)) if losses else {}

    def _some(self, index: Tensor) -> slice | Tensor:
        """Return the rows of a tile's records, with any record in empty slots: a slice where it is a run of rows."""
        first, count = int(index[0]), int((index >= 0).sum())
        if self.dpsgd.sample_rate == 1 and first >= 0 and int(index[count - 1]) == first + count - 1:
            return slice(first, first + len(index))
        return sent(index.clamp(min=0), self.device)

    @torch.no_grad()
    def _residuals(self, features: Features, labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return p - y (B, K) and the losses (B,)."""
        logits = (features.whole @ weight.T) * features.unit[:, None].float()
        return logits.softmax(1) - one_hot(labels, logits.shape[1]), cross_entropy(logits, labels, reduction="none")

    def decide_tiles(self, saved: Tiles | None) -> Tiles:
        """See `Method`: in a step on all records each has its slot anyway."""
        if saved is not None:
            return saved
        num, rate, width = self.dpsgd.ranks.rows(len(self._images)), self.dpsgd.sample_rate, self.newest.num_features
        drawn = max(_LEAST_DRAWN, min(_MOST_DRAWN, _CACHED // width)) if self.device.type == "cpu" else _MOST_DRAWN
        (_, rows), classes = sizes(rate, num, _ROWS if rate == 1 else drawn, self.device), len(self._data.classes)

        def computed(draws: torch.Generator) -> Rows:
            one, weight = torch.rand(1, width, generator=draws), torch.randn(classes, width, generator=draws)
            features = self.dpsgd.features(one.expand(rows, -1).contiguous().to(self.device))
            labels = torch.zeros(rows, dtype=torch.int64, device=self.device)
            yield slice(0, rows), self._residuals(features, labels, weight.to(self.device))[0]

        threads = 0 if rate == 1 else threads_of(rows, self.device)
        if not threads:
            return Tiles.fixed(rows)
        fixed = dataclasses.replace(Tiles.fixed(rows), threads=threads)
        with fixed.computing():
            return dataclasses.replace(fixed, kinds=alike(rows, (rows, computed)))

    def _features(self) -> Features:
        """Return the features of all private images (N, D), computed when they are first asked for.

        Rows that no step of this rank asks for stay empty.
        """
        if self._known is None:
            known = Features(
                zeros((len(self._null), self.newest.num_features), torch.float32, self.device),
                torch.ones(len(self._null), dtype=torch.float64, device=self.device),
            )
            start, end, _ = self.dpsgd.ranks.share(len(self._images)).indices(len(self._images))  # always the same
            computed = functools.partial(self._computed, start, end)
            for part in self.kept.rows(f"scattering-{start}", end - start, computed, progress=self.progress):
                features = self.dpsgd.features(part.to(self.device))  # bounded anew, wherever they come from
                some = slice(start, start := start + len(part))
                known.whole[some], known.unit[some] = features.whole, features.unit
            self._known = known
        return self._known

    @torch.no_grad()
    def _computed(self, start: int, end: int, first: int) -> Iterator[Tensor]:
        """Yield the features of the images of a share from one of them on."""
        for index in torch.arange(start + first, end).split(_ROWS):
            yield self.newest.features(images.to_float(self._images.select(index).to(self.device).images))

    def _axes(self) -> Features:
        """Return the features of canaries: axes so long that each one's gradient is far above the clip norm."""
        axes = torch.eye(len(self._null), len(self._images), device=self.device)
        return self.dpsgd.features(SLOPE * self.dpsgd.clip_norm * axes)


# The audit: the features of canary j are the j-th axis, so that it owns column j of the gradient -------------------


def canaries(
    section: Any,
    sample_rate: float,
    noise_multiplier: float,
    count: int,
    name: str = "scattering-linear",
) -> CanarySteps:
    """Return the steps as an audit plays them; ``name`` says whose they are.

    Under weights of zero the residual of every canary is (-1/2, 1/2), a known direction, on which its column of the
    gradient is projected.
    """

    def make(split: load.Split, dpsgd: DPSGDPlan, num_steps: int, noise: Noise, device: torch.device) -> Training:
        config = Settings(
            method={"clip_norm": section.clip_norm, "learning_rate": STILL, "momentum": 0.0},
            privacy={"epsilon": NO_LIMIT, "delta": 0.5 / len(split.private)},
            training={"steps": num_steps, "batch_size": dpsgd.divisor},
        )
        network = LinearScattering(split.image_shape, split.classes)
        network.num_features = len(split.private)
        network.weight = nn.Parameter(torch.zeros(2, network.num_features))
        method = Method.of_canaries(config, split, dpsgd, noise, device, canaries=network)
        return method.seen_gradients(lambda gradient: (gradient[1].double() - gradient[0].double()) / math.sqrt(2))

    code = f"played through the steps of {name}, with a network whose gradient is the canary"
    return CanarySteps(code, make, sample_rate, noise_multiplier, count, section.clip_norm)


AUDIT = steps.steps_entry("scattering-linear", canaries, section_of(Settings, "method")(), sample_rate=1.0, steps=80)
