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

With ``model.shape`` above 0 the release begins with a template (`synthesis.template`), and a step sees a record by its
texture and its displacement: both are functions of that record and of the template, so the above holds. Each record is
registered once, before the first step that a process takes, in tiles of a fixed size; the displacements stay in its
memory, are never saved, and a resumed run finds the same ones again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request
from idpgan.audit.gradient_canaries import NO_LIMIT, SHAPE, SLOPE, STILL, CanaryNetwork, CanarySteps, Training
from idpgan.data.load import DataShape, Sizes, Split, place
from idpgan.errors import ConfigError
from idpgan.models import ema, families, optimizers
from idpgan.models.config import ModelConfig
from idpgan.models.diffusion import DiffusionGenerator, ResidualNetwork, training_levels
from idpgan.privacy import Event, Guarantee, Noise, Relation, Unit
from idpgan.privacy.dpsgd import ClipNorm, DPSGDPlan, Weights, full_precision
from idpgan.privacy.noise import Source, box_muller
from idpgan.privacy.sums import CellSums
from idpgan.private.people import GaussianPrivacy
from idpgan.private.shares import noise_on
from idpgan.private.steps import SETTINGS, PrivateSteps, StepsPlan
from idpgan.progress import counted
from idpgan.ranks import Ranks
from idpgan.synthesis import moments, networks, starter
from idpgan.synthesis.gaussian import GaussianMoments, GaussianPlan, MomentsConfig
from idpgan.synthesis.sums_audit import sums_case
from idpgan.synthesis.sums_plan import SumsRun
from idpgan.training.config import RunConfig, TrainingConfig
from idpgan.training.fit import set_rate
from idpgan.training.method import Stats, refuse_small_shares

BETAS = 0.9, 0.99  # of Adam
_COPIES = 2  # of a canary, at most: all are alike
_RATE = 2e-3  # of Adam, where noise is no matter
_QUIET = 0.03  # noise of all steps together, in clip norms, up to which it is none
_DRAWS = ((20_000, 1), (5_000, 2), (0, 4))  # by least number of private images: few of them cost little time
MODEL = ModelConfig(generator="diffusion", latent_dim=160, width=32)


class DiffusionConfig(MomentsConfig):
    """[method] of diffusion.

    Attributes:
        start_share: Share of the budget for the sums of moments at which the diffusion starts, as with `gaussian`; the
            teacher has its own, and the steps get the rest.
        draws: K, noisy copies of an image inside its one clipped gradient. None = 1 from 20,000 private images on, 2
            from 5,000 on, else 4: where images are few, copies cost little time.
        clip_norm: C, bound on one image's gradient; a constant, never taken from private gradients.
        learning_rate: Of Adam. None = 2e-3, less in proportion where the noise of all steps together is longer than
            0.03 clip norms.
        cooldown: Share of the steps at the end over which the learning rate falls linearly to zero.
        ema_decay: Weight of the past in the averaged network, which is released.
        max_physical_batch: Images whose gradients are in memory at once, halved by itself where that is too many; a GPU
            takes 2,048 unless another number is set.
    """

    MAKES_ROWS: ClassVar[bool] = True

    name: Literal["diffusion"] = "diffusion"
    start_share: float = Field(0.5, gt=0, lt=1)
    draws: int | None = Field(None, ge=1, le=1000)
    clip_norm: ClipNorm = 0.2
    learning_rate: float | None = Field(None, gt=0)
    cooldown: float = Field(0.5, ge=0, le=1)
    ema_decay: float = Field(0.98, ge=0, lt=1)
    max_physical_batch: int = Field(128, ge=1)


class DiffusionPrivacy(GaussianPrivacy):
    """[privacy] of diffusion; unit image, zero-out-one.

    Attributes:
        epsilon: Of everything together.
        delta: Below 1/N for N private images, usually ``min(1e-5, 1 / (10 N))``; above 0, as the noise is Gaussian.
        unit: DP-SGD protects one image.
        relation: How neighbors differ; Poisson sampling is accounted under this one.
        most_per_person: Without effect.
    """

    epsilon: float = Field(gt=0)
    unit: Literal[Unit.IMAGE] = Unit.IMAGE
    relation: Literal[Relation.ZERO_OUT] = Relation.ZERO_OUT


class DiffusionTraining(TrainingConfig):
    """[training] of diffusion.

    Attributes:
        steps: Steps of the network.
        batch_size: Expected number of images in a step, each drawn by a coin; all of them up to so many.
    """

    steps: int = Field(400, ge=1, le=1_000_000)
    batch_size: int = Field(2048, ge=1, le=1_000_000)
    tick_steps: int = Field(50, ge=1)


def refuse_other_generators(config: RunConfig) -> None:
    """Refuse a generator that does not draw by diffusion."""
    if config.model.generator != "diffusion":
        raise ConfigError(
            f'model.generator = "{config.model.generator}", but method {config.method.name} trains a denoiser: set '
            'model.generator = "diffusion".'
        )


class DiffusionRun(SumsRun):
    """A whole config file of diffusion."""

    model: ModelConfig = MODEL
    method: DiffusionConfig = DiffusionConfig()
    privacy: DiffusionPrivacy
    training: DiffusionTraining = DiffusionTraining()

    @model_validator(mode="after")
    def _check_parts(self) -> DiffusionRun:
        refuse_other_generators(self)
        shares = ["start_share", "teacher_share", *(["template_share"] if self.model.shape else [])]
        if sum(getattr(self.method, share) for share in shares) >= 1:
            given = ", ".join(f"method.{share} = {getattr(self.method, share):g}" for share in shares)
            raise ConfigError(
                f"{given} leave nothing of the budget for the steps. Lower one of them, or take method gaussian, which "
                "has no steps."
            )
        return self


class DiffusionPlan(StepsPlan, GaussianPlan):
    r"""The plan of a run of diffusion: perhaps a template, sums of moments, perhaps a teacher, and T steps of DP-SGD.

    All of them are calibrated together: at a noise multiplier m of everything, the sums have ``m / sqrt(start_share)``,
    and the steps the noise that `idpgan.private.shares` derives for a share of the squared signal. The ledger
    charges the events themselves, and m is the least with which they stay within (epsilon, delta).
    """

    SOURCES = 2

    @property
    def other_share(self) -> float:
        """Share of the budget for the steps."""
        method = self.config.method
        return float(1 - method.start_share - method.teacher_share - self.template_share)

    def others(self, multiplier: float) -> tuple[Event, ...]:
        """Return the charge of all steps."""
        return (self._steps(multiplier).event.repeated(self.config.training.steps),)

    def _steps(self, multiplier: float) -> DPSGDPlan:
        training, num = self.config.training, max(self.shape.num_private, 1)
        rate = min(1.0, training.batch_size / num)
        noise = noise_on(self.other_share, multiplier, training.steps, rate)
        return DPSGDPlan(rate, self.config.method.clip_norm, max(1, round(rate * num)), noise)

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:  # type: ignore[override]  # found when it is asked for
        """The steps."""
        return self._steps(self.multiplier)

    @property
    def start_events(self) -> tuple[Event, ...]:
        """The price of the template, of the sums, and of the teacher."""
        teacher = () if self.teaching is None else (self.teaching.event,)
        return (*self.template_events, self.sums.event, *teacher)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of what the steps start from, and of all steps."""
        return (*self.start_events, *self.others(self.multiplier))

    @property
    def draws(self) -> int:
        """K."""
        given, num = self.config.method.draws, self.shape.num_private
        return given or next(draws for least, draws in _DRAWS if num >= least)

    @property
    def learning_rate(self) -> float:
        """Of Adam before the cool-down, by public numbers."""
        given, steps, plan = self.config.method.learning_rate, self.config.training.steps, self.dpsgd
        noise = plan.noise_multiplier * math.sqrt(self.num_weights / steps) / plan.divisor
        return given or _RATE * min(1.0, _QUIET / max(noise, 1e-12))

    @property
    def num_weights(self) -> int:
        """Weights that the steps move."""
        with torch.device("meta"):
            network = ResidualNetwork(self.shape.image_shape, self.config.model.width, self.classes, seed=0)
        return sum(weight.numel() for weight in network.parameters())

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name both parts, and where their noise came from."""
        first = super().reason(events, sources[:1])
        return self.reason_of(f"{first}; then DP-SGD on the denoiser, Poisson sampling", events, sources[1])

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name what both parts take as public."""
        plan = self.dpsgd
        return (
            *super().assumptions(sources[:1]),
            f"the sampling rate {plan.sample_rate:g} and the divisor {plan.divisor}",
            SETTINGS,
        )

    def check(self) -> None:
        """Refuse what the data cannot give and the machine cannot hold; any image size will do."""
        super().check()
        each = 4 * self.num_weights + self.draws * families.batch_bytes(self.config.model, self.shape.image_shape, 1)
        self.check_gradients(each, "Lower it, or model.width.")


class Diffusion(PrivateSteps, GaussianMoments):
    """The method as the loop sees it; see `PrivateSteps`.

    Args:
        split: The private part is read in `prepare` and in the charged steps; the public part freely.
        ledger: Charged by `prepare`, and by the loop for each step.

    Attributes:
        generator: With the averaged network, in eval mode.
        newest: With the network that is trained.
    """

    Config, Plan = DiffusionRun, DiffusionPlan
    suggest = staticmethod(starter.diffusion)

    SAVED = ("newest", "average", "optimizer", "noise")

    plan: DiffusionPlan
    generator: DiffusionGenerator

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        self._images = place(split.private, self.device)
        self.newest = self.generator
        self.newest.network.requires_grad_(True)
        self._average = ema.Ema(self.newest, self.config.ema_decay)
        self.generator = self._average.module  # type: ignore[assignment]  # a copy
        self.draws = self.plan.draws
        self._optimizer = networks.AdamSettings(self.plan.learning_rate, *BETAS).optimizer(self.newest.network)
        self.train_privately(self.newest.network, self._optimizer)

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
        return self.source, self.source

    def share_steps(self, ranks: Ranks) -> None:
        """See `PrivateSteps`."""
        refuse_small_shares(self.dpsgd.divisor, "training.batch_size", ranks)
        super().share_steps(ranks)

    def step(self, step: int) -> Stats:
        """Take a private step; the average follows."""
        set_rate(self._optimizer, self.rate(self.plan.learning_rate, step))
        found = self.private_step()
        self._average.update(self.newest)
        return found

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
        """Return one public record of zeros, with a displacement."""
        image, label, coins = super().example()
        return [image, label, torch.zeros(1, 2 * self._run.model.shape, device=self.device), coins]

    def known(self, index: Tensor) -> tuple[Tensor, ...]:
        """Return displacements."""
        return (self._shapes[index],)

    @torch.no_grad()
    @full_precision()
    def prepared(self, images: Tensor, labels: Tensor, *coins: Tensor) -> tuple[Tensor, ...]:
        """Return what the network sees, levels, labels and targets, K copies each, by each record's own coins."""
        shapes, uniform = coins
        labels = labels if self.newest.num_classes else torch.zeros_like(labels)
        num, draws = len(images), self.draws
        states = self.newest.states(images, shapes).repeat_interleave(draws, 0)  # (B K, D)
        normal = box_muller(uniform)[:, : draws * (1 + states.shape[1])].float()
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
        found = moments.private_moments(self._images, _Displacements(self.newest), conditional=conditional, cap=None)
        parts = counted(found, self.progress, "faces brought into place", len(self._images), lambda part: len(part[0]))
        return torch.cat([shapes for shapes, _, _ in parts]).to(self.device)


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


# The audit: a denoiser whose loss of a record is the record's canary -------------------------------------------------


class _Canaries(nn.Module):
    """In the place of a generator: its loss of a record is the record's canary."""

    num_classes = 0
    latent_dim = math.prod(SHAPE)

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


class _CanaryDiffusion(Diffusion):
    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        self.newest = _Canaries(len(self._images), SLOPE * self.config.clip_norm).to(self.device)  # type: ignore[assignment]
        self.train_privately(self.newest.network, optimizers.SGD(self.newest.network.parameters(), STILL))


def canaries(
    section: DiffusionConfig, draws: int, sample_rate: float, noise_multiplier: float, count: int
) -> CanarySteps:
    """Return the denoiser's steps as an audit plays them: by a section's clip norm, with two copies of an image."""

    def make(split: Split, dpsgd: DPSGDPlan, steps: int, noise: Noise, device: torch.device) -> Training:
        copies = {"draws": min(draws, _COPIES), "max_physical_batch": 512, "teacher_share": 0.0, "learning_rate": STILL}
        config = DiffusionRun(
            model=ModelConfig(generator="diffusion", latent_dim=1, width=1, conditional=False),
            method=section.model_copy(update=copies),
            privacy=DiffusionPrivacy(epsilon=NO_LIMIT, delta=0.5 / len(split.private)),
            training=DiffusionTraining(steps=steps, batch_size=dpsgd.divisor),
        )
        sums = CellSums(1, 1, "gaussian", 1.0, Unit.IMAGE, Relation.ZERO_OUT)  # never released
        return _CanaryDiffusion.of_canaries(config, split, dpsgd, noise, device, sums=sums).seen_gradients()

    code = (
        "played through the steps of diffusion, with a denoiser whose gradient is the canary; left out were the "
        "closed form, the noise on an image and, where there is a template, its rounds and the displacement "
        "(functions of what was released, of one record and its own coins)"
    )
    return CanarySteps(code, make, sample_rate, noise_multiplier, count, section.clip_norm)


def _case(config: DiffusionRun, shape: DataShape, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    plan = DiffusionPlan(config, shape)
    steps = canaries(
        config.method, plan.draws, plan.dpsgd.sample_rate, plan.dpsgd.noise_multiplier, config.training.steps
    )
    template, teaching = plan.template_events, plan.teaching
    return sums_case("diffusion", plan.sums, request, claimed, template=template, teaching=teaching, steps=steps)


def _build(request: Request) -> AuditCase:
    """Return the case of a short run that stands for all, with the least noise that keeps to a request."""
    config = DiffusionRun(
        model=ModelConfig(generator="diffusion", latent_dim=10, width=4),
        privacy=DiffusionPrivacy(epsilon=request.epsilon, delta=request.delta or 0.0),
        training=DiffusionTraining(steps=50, batch_size=30),
    )
    return _case(config, DataShape(Sizes(0, 100, 0, 0), SHAPE, tuple(map(str, range(10)))), request)


AUDIT = Entry(
    _build,
    (Unit.IMAGE,),
    (Relation.ZERO_OUT,),
    delta=1e-5,
    of_run=lambda config, facts: _case(config, facts.shape, asked_of(config), facts.claimed),
)
