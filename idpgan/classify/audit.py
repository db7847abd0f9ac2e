"""Audits of classifiers: canary gradients in a method's own steps; the data that leave a phone or a participant."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.gradient_canaries import (
    NO_LIMIT,
    SLOPE,
    STILL,
    CanaryNetwork,
    CanarySteps,
    Training,
    canary_case,
    canary_images,
)
from idpgan.audit.neighbors import FEATURES, FEATURES_AND_LABEL, SILENT, Pair
from idpgan.audit.statistics import UPLOADED, Column, Maker, WithLabel, likelihood_ratio
from idpgan.classify.arden import ArdenConfig, ArdenPlan, ArdenRun
from idpgan.classify.classifier import ClassifierPrivacy, ClassifierRun, TrainsClassifier
from idpgan.classify.dp_sgd import DpSgd, DpSgdConfig, DpSgdRun, DpSgdTraining
from idpgan.classify.dssgd import DssgdPlan, DssgdRun, Sharing
from idpgan.classify.scattering_linear import (
    ScatteringLinear,
    ScatteringLinearConfig,
    ScatteringLinearRun,
    ScatteringLinearTraining,
)
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.models.optimizers import SGD
from idpgan.models.private_classifier import LinearScattering, PrivateClassifier
from idpgan.privacy import Event, Guarantee, Ledger, Noise, RandomizedResponse, Relation, Unit
from idpgan.privacy.collaborative import FeatureNoise
from idpgan.privacy.dpsgd import DPSGDPlan, Features, least_noise
from idpgan.privacy.mechanisms import DiscreteLaplace
from idpgan.training.config import ENGINE_KEYS, TrainingConfig
from idpgan.training.plan import plan_run

_CLASSES = ("0", "1")  # every canary has the first class
_FEATURES = 16  # of the example image of arden, used without a run
_UPLOADS = 1000  # of the example round of dssgd, used without a run
_ROUNDS, _ROWS = 4000, 200  # of dssgd that are played, and of one call


# Constructors that the cases of all packages share -------------------------------------------------------------


def released_case(
    method: str,
    request: Request,
    events: Sequence[Event],
    pair: Pair,
    release: Callable[[Tensor, Noise], Tensor],
    statistic: Maker,
    claimed: Guarantee | None = None,
    **more: Any,
) -> AuditCase:
    """Return the case of a release that these events price; claim None = the request."""
    asked, proven = guarantees(request, *events)
    return AuditCase(method, pair, claimed or asked, proven, release, (statistic,), events=tuple(events), **more)


def asked_of(config: Any) -> Request:
    """Return the epsilon and delta that a run keeps to, as a request."""
    return Request(config.privacy.epsilon, config.privacy.delta)


# DP-SGD -----------------------------------------------------------------------------------------------------------

# The number is C; engine and secure_mode of a run's method are passed by name.
Make = Callable[..., "WatchedClassifier"]  # (Split, float, ClassifierPrivacy, TrainingConfig, Noise, device)


class WatchedClassifier(TrainsClassifier):
    """A classifier of canaries whose noisy gradients the attacker sees; mixed into a method.

    Attributes:
        weight: The parameter that holds the gradients of all canaries.
        gradient: Its last gradient, after noise and division.
    """

    weight: nn.Parameter
    optimizer: SGD
    gradient: Tensor

    def watch(self, plan: DPSGDPlan) -> None:
        """Take steps by this plan, and record each gradient before the optimizer steps."""

        def look(*_: object) -> None:
            if self.weight.grad is None:
                raise RuntimeError("a step without a gradient.")
            self.gradient = self.weight.grad.detach().clone()

        self.dpsgd = plan
        self.optimizer.register_step_pre_hook(look)

    def seen(self) -> Tensor:
        """Return each canary's share of the last gradient, (positions,): the clipped sum in units of C."""
        raise NotImplementedError


@dataclass(frozen=True)
class ClassifierSteps(CanarySteps):
    """The settings that determine how much the steps of a classifier leak.

    Attributes:
        name: Of the method.
        make: Builds it for canaries.
        sample_rate: q.
        noise_multiplier: sigma.
        count: Steps of the run.
        clip_norm: C.
    """

    name: str
    make: Make
    sample_rate: float
    noise_multiplier: float
    count: int
    clip_norm: float

    @property
    def code(self) -> str:
        """What was played, one sentence."""
        return f"played through the steps of {self.name}, with a network whose gradient is the canary"

    def training(self, present: Tensor, noise: Noise) -> Training:
        """Begin a training with canaries that are present or null records; see `CanarySteps`."""
        positions, null = self.positions(present)
        images = canary_images(positions)
        images = Images(images.images, torch.zeros(positions, dtype=torch.int64), _CLASSES).zeroed_out(null)
        nobody = images.select(torch.arange(0))
        # No step is charged: constructed images need no budget.
        privacy = ClassifierPrivacy(epsilon=NO_LIMIT, delta=0.5 / positions, noise_multiplier=self.noise_multiplier)
        batch = self.divisor(positions)
        training = TrainingConfig(steps=self.simulated, batch_size=batch)
        method = self.make(
            Split(nobody, images, nobody, nobody), self.clip_norm, privacy, training, noise, present.device
        )
        method.watch(DPSGDPlan(self.sample_rate, self.clip_norm, batch, self.noise_multiplier))

        def step(number: int) -> Tensor:
            method.step(number)
            return method.seen()[: len(present)] * (batch / self.clip_norm)

        return step


def _entry_of(name: str, make: Make, sample_rate: float, steps: int, clip_norm: float) -> Entry:
    """Return the audit of a private classifier; without a run, it audits a representative plan."""

    def case(played: ClassifierSteps, request: Request, claimed: Guarantee | None = None) -> AuditCase:
        return canary_case(name, played, (played.event,), played.play, request, claimed)

    def build(request: Request) -> AuditCase:
        sigma = least_noise(request.epsilon, request.delta or 0.0, sample_rate, steps)
        return case(ClassifierSteps(name, make, sample_rate, sigma, steps, clip_norm), request)

    def of_run(config: ClassifierRun, facts: RunFacts) -> AuditCase:
        plan, count = plan_run(config, facts.shape).dpsgd, config.training.steps
        engine = {key: getattr(config.method, key) for key in ENGINE_KEYS if hasattr(config.method, key)}
        own = functools.partial(make, **engine)
        played = ClassifierSteps(name, own, plan.sample_rate, plan.noise_multiplier, count, plan.clip_norm)
        return case(played, asked_of(config), facts.claimed)

    return Entry(build, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5, of_run=of_run)


class _WatchedLinear(WatchedClassifier, ScatteringLinear):
    """scattering-linear, where the features of canary j are the j-th axis, so that it owns column j of the gradient.

    Under weights of zero the residual of every canary is (-1/2, 1/2), a known direction, on which the column is
    projected; the axes are so long that each canary's gradient is far above the clip norm.
    """

    def _build(self) -> PrivateClassifier:
        network = LinearScattering(self._data.image_shape, self._data.classes)
        network.num_features = len(self._images)
        network.weight = self.weight = nn.Parameter(torch.zeros(2, network.num_features, device=self.device))
        return network

    def _features(self) -> Features:
        return self.dpsgd.features(
            SLOPE * self.dpsgd.clip_norm * torch.eye(len(self._null), len(self._images), device=self.device)
        )

    def seen(self) -> Tensor:
        return (self.gradient[1].double() - self.gradient[0].double()) / math.sqrt(2)


def watched_linear(
    split: Split,
    clip_norm: float,
    privacy: ClassifierPrivacy,
    training: TrainingConfig,
    noise: Noise,
    device: torch.device,
) -> WatchedClassifier:
    """Build scattering-linear for canaries; see `Make`."""
    section = ScatteringLinearConfig(clip_norm=clip_norm, learning_rate=STILL, momentum=0.0)
    own = ScatteringLinearTraining(**training.model_dump())
    config = ScatteringLinearRun(method=section, privacy=privacy, training=own)
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)  # never charged
    return _WatchedLinear.of(config, split, ledger=ledger, device=device, noise=noise)


class _CanaryClassifier(PrivateClassifier):
    """Scores the first class for an image by the weight of the canary that the image shows."""

    network = "canaries"

    def __init__(self, image_shape: tuple[int, int, int], canaries: int, slope: float) -> None:
        super().__init__(image_shape, _CLASSES)
        self.canaries = CanaryNetwork(canaries, slope)

    def forward(self, images: Tensor) -> Tensor:
        score = self.canaries(images)
        return torch.stack([score, torch.zeros_like(score)], 1)


class _WatchedSgd(WatchedClassifier, DpSgd):
    """dp-sgd, where the network of canaries, one weight each, takes the place of the classifier."""

    def _build(self) -> PrivateClassifier:
        slope = 2 * SLOPE * self.config.clip_norm
        network = _CanaryClassifier(self._data.image_shape, len(self._images), slope).to(self.device)
        self.weight = network.canaries.weight
        return network

    def seen(self) -> Tensor:
        return -self.gradient.double()  # the loss falls where the score rises


def _watched_sgd(
    split: Split,
    clip_norm: float,
    privacy: ClassifierPrivacy,
    training: TrainingConfig,
    noise: Noise,
    device: torch.device,
    **engine: Any,
) -> WatchedClassifier:
    still: dict[str, Any] = {"learning_rate": STILL, "momentum": 0.0, "ema_decay": 0.0, "max_physical_batch": 512}
    section = DpSgdConfig(clip_norm=clip_norm, **still, **engine)
    config = DpSgdRun(method=section, privacy=privacy, training=DpSgdTraining(**training.model_dump()))
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    return _WatchedSgd.of(config, split, ledger=ledger, device=device, noise=noise)


# dssgd: what a participant uploads in a round, whose changes are all 0 or all at the bound --------------------------


def _uploads_case(sharing: Sharing, rounds: int, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    if sharing.event is None:
        raise InputError("dssgd without noise has no guarantee to audit. Set privacy.epsilon.")
    event = sharing.event.repeated(rounds)
    one = Guarantee(request.epsilon / sharing.uploads, request.delta or 0.0, event.unit, event.relation, "asked for")
    most = torch.full((sharing.parameters,), sharing.bound, dtype=torch.float64)

    def release(changes: Tensor, noise: Noise) -> Tensor:
        return sharing.release(changes, noise).sum(1, keepdim=True)

    notes = (
        f"one round is played, the proof is for {rounds}; {sharing.uploads:,} uploads at most",
        "claimed is what the paper states for one uploaded parameter",
    )
    return released_case(
        "dssgd", request, (event,), Pair(SILENT, torch.zeros_like(most), most), release,
        lambda *_: Column(0, UPLOADED), claimed or one, notes=notes, runs=_ROUNDS, rows=_ROWS,
    )  # fmt: skip


def _dssgd(request: Request) -> AuditCase:
    return _uploads_case(Sharing(_UPLOADS, _UPLOADS, 0.01, 1e-4, True, request.epsilon), 1, request)


def _dssgd_run(config: DssgdRun, facts: RunFacts) -> AuditCase:
    sharing = DssgdPlan(config, facts.shape).sharing
    played = dataclasses.replace(sharing, parameters=sharing.uploads)  # one to a block: each may be uploaded
    request = Request(config.privacy.epsilon or 1.0, facts.delta)
    return _uploads_case(played, config.training.steps, request, facts.claimed)


# arden: what leaves a phone whose features are all at the bound, or all at its negative -----------------------------


def _features_case(
    channel: FeatureNoise, response: RandomizedResponse | None, request: Request, claimed: Guarantee | None
) -> AuditCase:
    mechanism, bound = channel.mechanism, round(1 / channel.grid.step)
    lowest, highest = (torch.full((channel.features,), side, dtype=torch.float64) for side in (-1.0, 1.0))
    statistic = likelihood_ratio(mechanism)(lowest * bound, highest * bound)
    pair, events = Pair(FEATURES, lowest, highest), [mechanism.event]
    each = DiscreteLaplace(2 * bound, mechanism.scale, mechanism.unit, mechanism.relation)  # all move at once
    law = [each.event.repeated(channel.features)]
    if response is not None:
        labels = torch.tensor([0.0, 1.0], dtype=torch.float64)
        statistic = WithLabel(statistic, labels, response.epsilon)
        pair = Pair(FEATURES_AND_LABEL, torch.cat([lowest, labels[:1]]), torch.cat([highest, labels[1:]]))
        events.append(response.event)
        law.append(response.event)

    def release(values: Tensor, noise: Noise) -> Tensor:
        steps = channel.release(values[:, : channel.features], noise).double()
        if response is None:
            return steps
        return torch.cat([steps, response(values[:, -1].long(), noise)[:, None].double()], 1)

    paper = channel.claimed(ArdenConfig().nullification)
    one = Guarantee(paper, request.delta or 0.0, events[0].unit, events[0].relation, "asked for")
    notes = (f"{channel.features} features; claimed is what the paper states, the price of one of them",)
    return released_case(
        "arden", request, events, pair, release, lambda *_: statistic, claimed or one, notes=notes, law=tuple(law)
    )


def _arden(request: Request) -> AuditCase:
    return _features_case(FeatureNoise(_FEATURES, request.epsilon), None, request, None)


def _arden_run(config: ArdenRun, facts: RunFacts) -> AuditCase:
    plan, request = ArdenPlan(config, facts.shape), Request(config.privacy.epsilon, facts.delta)
    return _features_case(plan.channel, plan.response, request, facts.claimed)


AUDITS = {
    "scattering-linear": _entry_of("scattering-linear", watched_linear, sample_rate=1.0, steps=80, clip_norm=0.1),
    "dp-sgd": _entry_of("dp-sgd", _watched_sgd, sample_rate=0.3, steps=50, clip_norm=1.0),  # nearly Gaussian
    "dssgd": Entry(_dssgd, (Unit.IMAGE,), (Relation.REPLACE_ONE,), of_run=_dssgd_run),
    "arden": Entry(_arden, (Unit.IMAGE,), (Relation.REPLACE_ONE,), of_run=_arden_run),
}
