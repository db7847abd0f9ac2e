r"""IDP-GAN made sound per image, for a curator whom nobody has to trust.

The published method's one sound idea is to perturb every image by itself, once. Here the noise is what a guarantee
needs, not what a formula gives. Images and labels go through `idpgan.synthesis.local.channel` before anything else sees
them, with the noise solved so that proven = requested; then the raw ones are dropped. The critic is that of WGAN-GP. It
compares noisy reals with *generated* images and labels that went through the same channel, drawn fresh each time, so
the generator learns the clean distribution (AmbientGAN, `Bora et al. 2018
<https://openreview.net/forum?id=Hy7fDog0b>`_). All after `prepare` is post-processing: epochs, tuning, architectures.

Utility is limited by local privacy: every image hides by itself, not in the crowd. What is ours in the channel and the
critic: docs/deviations.md, local 1 to 6.

A null record is perturbed and released like any other, as a black image of class 0. Under replace-one being null is
part of a record's content: a release that left null records out would show, without noise, which ones are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.data.load import DataShape, Split, describe
from idpgan.errors import ConfigError
from idpgan.methods import METHODS
from idpgan.models.config import classes_of
from idpgan.models.perturbed import ImageShape
from idpgan.privacy import Event, Ledger, Noise, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.synthesis.local.channel import (
    ADJACENCY,
    Bound,
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

_CHUNK = 1024  # images perturbed per call
_RAW_LABELS = "raw labels are an input of the critic"


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
        delta: 0 is pure differential privacy.
        label_epsilon: Part of it that the label's randomized response takes; needed where the model is conditional.
    """

    epsilon: float = Field(gt=0)
    delta: float | None = Field(None, ge=0, lt=1)
    label_epsilon: float | None = Field(None, gt=0, le=30)


class LocalRun(RunConfig):
    """A whole config file of idp-gan-local."""

    method: LocalConfig = LocalConfig()
    privacy: LocalPrivacy

    @model_validator(mode="after")
    def _check_labels(self) -> LocalRun:
        if self._raw_labels and not self.privacy.accept_unsound:
            raise ConfigError(
                "model.conditional = true makes labels an input of the critic. Set privacy.label_epsilon for their "
                "randomized response, model.conditional = false, or privacy.accept_unsound = true for no guarantee."
            )
        if self.privacy.label_epsilon is not None and not self.model.conditional:
            raise ConfigError("privacy.label_epsilon is set, but model.conditional = false uses no labels.")
        return self

    @property
    def _raw_labels(self) -> bool:
        """Whether labels are used without protection."""
        return self.model.conditional and self.privacy.label_epsilon is None

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`: the target is what was asked for; raw labels have none."""
        if self._raw_labels:
            return *ADJACENCY, None
        found = describe(self.data)
        return *ADJACENCY, Budget(self.privacy.epsilon, self.stated_delta(found.num_private if found else 1))

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return self.events(shape.image_shape, len(shape.classes), shape.num_private)

    def claimed(self, shape: DataShape) -> None:
        """Return None: no paper claims anything of this method."""

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        return next((event.reason for event in events if event.reason), METHODS["idp-gan-local"].reason)

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        method, learned = self.method, "basis and bounds of the coefficients were computed from public images"
        plain = method.projection == "pixels" and (method.bound == "clamp" or method.clip_norm)
        return f"noise source: {noise[0].name}", *((learned,) if shape.sizes.public and not plain else ())

    def check(self, shape: DataShape) -> None:
        """See `RunConfig.check`."""
        super().check(shape)
        privacy = self.channel_privacy(shape.image_shape, len(shape.classes), shape.num_private)
        check_channel(privacy, self.method.projection, shape.sizes.public, self.method.clip_norm)

    def channel_privacy(self, image_shape: ImageShape, num_classes: int, num_private: int) -> ChannelPrivacy:
        """Return what the channel has to keep to."""
        return ChannelPrivacy(
            num_coefficients=count_coefficients(self.method.projection, self.method.coefficients, image_shape),
            bound=self.method.bound,
            epsilon=self.privacy.epsilon,
            delta=self.stated_delta(num_private),
            num_classes=classes_of(self.model, num_classes),
            label_epsilon=self.privacy.label_epsilon,
        )

    def events(self, image_shape: ImageShape, num_classes: int, num_private: int) -> tuple[Event, ...]:
        """Return all that `prepare` charges."""
        privacy = self.channel_privacy(image_shape, num_classes, num_private)
        unpaid = (Event.non_private(_RAW_LABELS, *ADJACENCY),) if self._raw_labels else ()
        return privacy.events(solve(privacy)) + unpaid


class IdpLocal(WganGp):
    """WGAN-GP on images and labels that were perturbed one by one; see the module.

    Args:
        split: The private part is read once, by `prepare`; the public one sets basis and bounds.
        ledger: Made with ``config.ledger_terms()``; charged by `prepare` together with what it releases.
        noise: Secret source; None is the operating system's.

    Attributes:
        channel: What every image goes through, real or generated.

    Raises:
        ConfigError: If config and data do not fit, or no noise reaches the target.
    """

    Config = LocalRun  # type: ignore[assignment]  # same sections

    config: LocalConfig

    def __init__(
        self, config: LocalRun, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)  # type: ignore[arg-type]
        shape, classes = split.image_shape, len(split.classes)
        self._events = config.events(shape, classes, split.num_private)
        self._privacy = config.channel_privacy(shape, classes, split.num_private)
        channel = build_channel(self._privacy, config.method.projection, shape, split.public, config.method.clip_norm)
        self.channel = channel.to(device)
        self._steps = torch.empty(0, self._privacy.num_coefficients, dtype=torch.int32, device=device)
        self._labels = torch.empty(0, dtype=torch.int64, device=device)
        self._frequencies = torch.empty(0, device=device)

    def _usable(self, private: Images) -> Images:
        """Return all records, null records too: see the module."""
        return private

    def prepare(self) -> None:
        """Perturb all images and labels, once, and let go of the raw ones."""
        released = self.ledger.release(self._events, self._release, noise=self.noise)
        self.noise.ratchet()
        self._take(released["steps"], released["labels"])

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

    def _take(self, steps: Tensor, labels: Tensor) -> None:
        self._steps, self._labels = steps.to(self.device), labels.to(self.device)
        if self.newest.num_classes:
            self._frequencies = self._estimate_frequencies()
        empty = self._images.select(torch.empty(0, dtype=torch.int64))
        self._images = Images(empty.images.clone(), empty.labels, empty.classes)

    def _estimate_frequencies(self) -> Tensor:
        """Return the class frequencies that the noisy labels point to: the response inverted, (K,)."""
        classes = self.newest.num_classes
        noisy = torch.bincount(self._labels, minlength=classes).double() / len(self._labels)
        truth, lie = self._response_probabilities()
        estimate = ((noisy - lie) / (truth - lie)).clamp(min=0)
        return (estimate / estimate.sum()).float()

    def _response_probabilities(self) -> tuple[float, float]:
        return (1.0, 0.0) if self._privacy.response is None else self._privacy.response.probabilities

    def step_event(self) -> None:  # type: ignore[override]  # WGAN-GP always has one
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
        classes, (truth, _), rng = self.newest.num_classes, self._response_probabilities(), rng or self.networks.rng
        lie = torch.rand(labels.shape, generator=rng, device=self.device) >= truth
        other = labels + torch.randint(1, max(classes, 2), labels.shape, generator=rng, device=self.device)
        return torch.where(lie, other % classes, labels)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """See `HasCritic`; the critic sees an image as the channel would give it back without noise."""
        return super().critic_scores(self.channel.decode(self.channel.encode(images)), labels)

    def state(self) -> dict[str, Any]:
        """Return WGAN-GP's state, and under "prepared" what was released. The noise source is not needed again."""
        return {**super().state(), "prepared": {"steps": self._steps, "labels": self._labels}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned; raw images are let go of as in `prepare`."""
        super().load_state(state)
        self._take(state["prepared"]["steps"], state["prepared"]["labels"])
