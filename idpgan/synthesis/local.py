r"""IDP-GAN made sound per image, in the local model: the curator need not be trusted.

The published method's one sound idea is to perturb every image by itself, once. Here the guarantee sizes the noise, not
the paper's formula. Images and labels go through `idpgan.synthesis.local_channel` before anything else sees them, with
the noise solved so that proven = requested; then the raw data are dropped. The critic is that of WGAN-GP. It compares
noisy reals with *generated* images and labels that went through the same channel, drawn fresh each time, so the
generator learns the clean distribution (AmbientGAN, `Bora et al. 2018 <https://openreview.net/forum?id=Hy7fDog0b>`_).
Everything after `prepare` is post-processing: epochs, tuning, architectures.

Local privacy limits utility: each image is hidden by its own noise, not among other images. Our additions to channel
and critic: docs/reference/deviations.md, local 1 to 6.

A null record is perturbed and released like any other, as a black image of class 0. Under replace-one being null is
part of a record's content: a release that left null records out would show, without noise, which ones are null.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor

from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.models.perturbed import ImageShape
from idpgan.privacy import Event, Guarantee, Noise, Relation, Unit
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Budget
from idpgan.private.released_once import ReleasedOnce
from idpgan.synthesis.local_channel import (
    ADJACENCY,
    Bound,
    Channel,
    ChannelPrivacy,
    Projection,
    build_channel,
    check_channel,
    count_coefficients,
    solve,
)
from idpgan.synthesis.wgan_gp import WganGp, WganGpConfig
from idpgan.training.config import PrivacyConfig, RunConfig
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan

if TYPE_CHECKING:
    from idpgan.audit.cases import AuditCase

_CHUNK = 1024  # images perturbed per call
_RAW_LABELS = "raw labels are an input of the critic"
_SHAPE: ImageShape = (1, 8, 8)  # of the example image of an audit without a run


class LocalConfig(WganGpConfig):
    """[method] of idp-gan-local: that of wgan-gp, and the channel.

    Attributes:
        projection: "pixels", "dct" or "public-pca"; fixed and public.
        coefficients: k, for a projection.
        bound: "clamp" each coefficient (Laplace), or clip the "l1" norm (Laplace, pure) or the "l2" norm (Gaussian).
        clip_norm: Public norm of "l1" and "l2"; None takes it from public images, or allows any image.
    """

    name: Literal["idp-gan-local"] = "idp-gan-local"  # type: ignore[assignment]  # the same section, another method
    projection: Projection = "pixels"
    coefficients: int | None = Field(None, ge=1)
    bound: Bound = "clamp"
    clip_norm: float | None = Field(None, gt=0)


class LocalPrivacy(PrivacyConfig):
    """[privacy] of idp-gan-local.

    Attributes:
        epsilon: What is proven for one image together with its label.
        delta: Below 1/N for N private images; 0 is pure differential privacy, None is ``min(1e-5, 1 / (10 N))``.
        label_epsilon: Part of it that the label's randomized response takes; needed where the model is conditional.
    """

    epsilon: float = Field(gt=0)
    delta: float | None = Field(None, ge=0, lt=1)
    label_epsilon: float | None = Field(None, gt=0, le=30)


class LocalRun(RunConfig):
    """A whole config file of idp-gan-local."""

    method: LocalConfig = LocalConfig()
    privacy: LocalPrivacy

    @property
    def raw_labels(self) -> bool:
        """Whether labels are used without protection."""
        return self.model.conditional and self.privacy.label_epsilon is None

    @model_validator(mode="after")
    def _check_labels(self) -> LocalRun:
        if self.raw_labels and not self.privacy.accept_unsound:
            raise ConfigError(
                "model.conditional = true makes labels an input of the critic. Set privacy.label_epsilon for their "
                "randomized response, model.conditional = false, or privacy.accept_unsound = true for no guarantee."
            )
        if self.privacy.label_epsilon is not None and not self.model.conditional:
            raise ConfigError("privacy.label_epsilon is set, but model.conditional = false uses no labels.")
        return self


class LocalPlan(RunPlan):
    """The plan of a run of idp-gan-local: every image and label go through a channel, once."""

    reads_public = True  # they set the bounds of coefficients

    @functools.cached_property
    def channel(self) -> ChannelPrivacy:
        """What the channel has to keep to."""
        method, privacy = self.config.method, self.config.privacy
        return ChannelPrivacy(
            num_coefficients=count_coefficients(method.projection, method.coefficients, self.shape.image_shape),
            bound=method.bound,
            epsilon=privacy.epsilon,
            delta=self.delta,
            num_classes=self.classes,
            label_epsilon=privacy.label_epsilon,
        )

    @property
    def budget(self) -> Budget | None:
        """What was asked for; raw labels have none."""
        return None if self.config.raw_labels else super().budget

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """All that `IdpLocal.prepare` charges."""
        unpaid = (Event.non_private(_RAW_LABELS, *ADJACENCY),) if self.config.raw_labels else ()
        return self.channel.events(solve(self.channel)) + unpaid

    @property
    def claimed(self) -> None:
        """No paper claims anything of this method."""

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Say that labels are raw, or what is perturbed."""
        return next((event.reason for event in events if event.reason), self.row.reason)

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the noise, and what public images have set."""
        method, learned = self.config.method, "basis and bounds of the coefficients were computed from public images"
        plain = method.projection == "pixels" and (method.bound == "clamp" or method.clip_norm)
        return f"noise source: {sources[0].name}", *((learned,) if self.shape.sizes.public and not plain else ())

    def check(self) -> None:
        """Refuse networks that no memory holds, and a channel that cannot be built."""
        super().check()
        method = self.config.method
        check_channel(self.channel, method.projection, self.shape.sizes.public, method.clip_norm)


class IdpLocal(ReleasedOnce, WganGp):
    """WGAN-GP on images and labels that were perturbed one by one; see the module.

    Args:
        split: The private part is read once, by `prepare`; the public one sets basis and bounds.
        ledger: Charged by `prepare` together with what it releases.
        noise: Secret source; None is the operating system's.

    Attributes:
        channel: What every image goes through, real or generated.

    Raises:
        ConfigError: If config and data do not fit, or no noise reaches the target.
    """

    Config, Plan = LocalRun, LocalPlan

    NULL_RECORDS = True  # see the module
    config: LocalConfig

    plan: LocalPlan

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        shape, method, self._privacy = split.image_shape, self.config, self.plan.channel
        channel = build_channel(self._privacy, method.projection, shape, split.public, method.clip_norm)
        self.channel = channel.to(self.device)
        self._steps = torch.empty(0, self._privacy.num_coefficients, dtype=torch.int32, device=self.device)
        self._labels = torch.empty(0, dtype=torch.int64, device=self.device)
        self._frequencies: Tensor | None = None
        self._released = {"steps": self._steps, "labels": self._labels}
        response = self._privacy.response
        self._response = (1.0, 0.0) if response is None else response.probabilities  # of the truth, of each lie

    def _release(self) -> dict[str, Tensor]:
        """Read every image and label, and return what the channel and the response make of them."""
        chunks = [
            self.channel.release(to_float(chunk).to(self.device), self.noise)
            for chunk in self._images.images.split(_CHUNK)
        ]
        labels = torch.empty(0, dtype=torch.int64)
        if self.newest.num_classes and self._images.labels is not None:
            raw = self._images.labels.cpu().clone()
            labels = raw if self._privacy.response is None else self._privacy.response(raw, self.noise)
        return {"steps": torch.cat(chunks), "labels": labels}

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Continue from the release; the class frequencies are estimated from the noisy labels."""
        super()._take_released(released)
        self._steps, self._labels = (released[name].to(self.device) for name in ("steps", "labels"))
        classes, (truth, lie) = self.newest.num_classes, self._response
        if classes:
            noisy = torch.bincount(self._labels, minlength=classes).double() / len(self._labels)
            estimate = ((noisy - lie) / (truth - lie)).clamp(min=0)  # the response inverted, (K,)
            self._frequencies = (estimate / estimate.sum()).float()
        empty = self._images.select(torch.empty(0, dtype=torch.int64))
        self._images = Images(empty.images.clone(), empty.labels, empty.classes)

    def step_event(self) -> None:
        """Return None: nothing private is read after `prepare`."""

    def critic_step(self, step: int) -> Stats:
        """One Adam step of WGAN-GP's critic on noisy reals and equally noisy fakes."""
        real, labels = self._real_batch()
        with torch.no_grad():
            fake, fake_labels = self._fake_batch(frequencies=self._frequencies)
        return self._step_critic(real, labels, fake, fake_labels)

    def _real_batch(self) -> tuple[Tensor, Tensor | None]:
        """Draw B noisy images with replacement: (B, C, H, W), and their noisy labels if they are used."""
        rng = self.networks.own_rng()
        index = torch.randint(len(self._steps), (self.rows,), generator=rng, device=self.device)
        images = self.channel.decode_steps(self._steps[index])
        return images, self._labels[index] if self.newest.num_classes else None

    def _fake_batch(self, frequencies: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Generate this rank's share of B images, labels uniform unless told, and send both through the channel."""
        classes, labels, noisy, rng = self.newest.num_classes, None, None, self.networks.own_rng()
        if classes:
            weights = torch.ones(classes, device=self.device) if frequencies is None else frequencies
            labels = torch.multinomial(weights, self.rows, replacement=True, generator=rng)
            noisy = self._respond(labels, rng)
        fake = self.newest(self.networks.latents(self.rows, rng), labels)
        return self.channel.perturb_public(fake, rng), noisy

    def _respond(self, labels: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Randomize generated labels as the private ones were."""
        classes, (truth, _), rng = self.newest.num_classes, self._response, rng or self.networks.rng
        lie = torch.rand(labels.shape, generator=rng, device=self.device) >= truth
        other = labels + torch.randint(1, max(classes, 2), labels.shape, generator=rng, device=self.device)
        return torch.where(lie, other % classes, labels)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return how real the critic finds images, as the channel would give them back without noise."""
        return super().critic_scores(self.channel.decode(self.channel.encode(images)), labels)


# The audit: one image, and its label where one is released, through the channel --------------------------------------


def channel_case(channel: Channel, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of one image, and its label where one is released, going through the channel."""
    from idpgan.audit import neighbors
    from idpgan.audit.cases import released_case
    from idpgan.audit.neighbors import Pair
    from idpgan.audit.statistics import WithLabel, likelihood_ratio

    privacy, shape = channel.privacy, channel.image_shape
    # The image that, against its negative, moves as few coefficients as possible as far as is allowed
    image = torch.zeros(len(channel.center)) if channel.basis is None else channel.basis[:, 0].sign()
    if channel.basis is None:
        norm = channel.bounds[0].item()
        filled = {"clamp": len(image), "l1": norm, "l2": norm**2}[privacy.bound]
        image[: min(len(image), math.ceil(filled))] = 1.0
    labels = None if privacy.response is None else torch.tensor([0.0, 1.0])
    rows = torch.stack([image, -image])  # (2, n)
    data = rows if labels is None else torch.cat([rows, labels[:, None]], 1)
    name = neighbors.NEGATIVE if labels is None else neighbors.NEGATIVE_AND_LABEL

    def release(values: Tensor, noise: Noise) -> Tensor:
        steps = channel.to(values.device).release(values[:, : image.numel()].reshape(-1, *shape), noise).double()
        if privacy.response is None:
            return steps
        label = privacy.response(values[:, -1].long(), noise)
        return torch.cat([steps, label[:, None].double()], 1)

    coefficients = channel.encode(rows.view(2, *shape)).double() / privacy.grid.step  # (2, k)
    statistic = likelihood_ratio(channel.mechanism)(coefficients[0], coefficients[1])
    if labels is not None and privacy.response is not None:
        statistic = WithLabel(statistic, labels, privacy.response.epsilon)
    pair, events = Pair(name, data[0], data[1]), privacy.events(channel.mechanism)
    return released_case("idp-gan-local", request, events, pair, release, lambda *_: statistic, claimed)


def data_free_channel(
    privacy: ChannelPrivacy, projection: Projection, shape: ImageShape, clip_norm: float | None, *, public: bool
) -> Channel:
    """Return a run's channel, with noise in the place of its public images, if it has some: they set basis and bounds.

    ``public`` says whether the run has public images; ``shape`` is (C, H, W).
    """
    count = 2 * privacy.num_coefficients if public else 0
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randint(256, (count, *shape), generator=rng, dtype=torch.uint8)
    return build_channel(privacy, projection, shape, Images(drawn, None, ()), clip_norm)


def _build(request: Request) -> AuditCase:
    """Return the case of a small image without label."""
    bound = cast(Bound, request.law)
    privacy = ChannelPrivacy(math.prod(_SHAPE), bound, request.epsilon, request.delta or 0.0)
    clip_norm = None if bound == "clamp" else 1.0
    return channel_case(data_free_channel(privacy, "pixels", _SHAPE, clip_norm, public=False), request)


def _of_run(config: LocalRun, facts: RunFacts) -> AuditCase:
    """Return the case of the channel that a run's images go through."""
    method, privacy = config.method, LocalPlan(config, facts.shape).channel
    public = bool(config.data.public_share or config.data.public_root)
    channel = data_free_channel(privacy, method.projection, facts.image_shape, method.clip_norm, public=public)
    return channel_case(channel, Request(privacy.epsilon, privacy.delta), facts.claimed)


AUDIT = Entry(
    _build,
    (Unit.IMAGE,),
    (Relation.REPLACE_ONE,),
    delta=1e-5,
    options={"law": ("clamp", "l1", "l2")},
    pure=("l1",),
    of_run=_of_run,
)
