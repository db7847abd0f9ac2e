"""Classifiers that can be trained with per-record gradients and released: no layer mixes records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from idpgan.config import Section, build, nearest_hint
from idpgan.data.images import to_float
from idpgan.data.labels import numbers
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.models.classifier import stride_to
from idpgan.models.initialize import group_norm, seeded_init
from idpgan.models.scattering import Scattering, scales_of, scattering_shape
from idpgan.privacy.collaborative import FeatureNoise
from idpgan.privacy.noise import Noise

CHANNELS = (1, 3)
SIDES = (8, 512)  # least and most pixels
_CONSTANT = 0.1  # coordinate of the bias among features of norm 1
_REST = math.sqrt(1 - _CONSTANT**2)  # norm of the others
_BODY_PX = 16  # the first convolution of a CNN brings the longer side down to at most this
_BATCH = 512
MOST_FEATURES = 4096  # that leave the phone of a split network
_PHONE_PX, _CLOUD = 4, 128  # positions of a side on the phone, hidden numbers in the cloud
_BLACK = -1.0  # what a nullified pixel becomes


class PrivateClassifier(nn.Module):
    """Map images to logits; each subclass is one kind of network, see `NETWORKS`.

    Args:
        image_shape: (C, H, W), C = 1 or 3, sides of 8 to 512 pixels.
        classes: Names of the K >= 2 classes, in the order of the labels.
        options: Further settings of the network, the keys of `Options`.

    Attributes:
        network: Name of the kind.
        Options: The options of a described network, which are validated as untrusted input.
        privacy: What protects the training images, a `idpgan.privacy.PrivacyReport`, where it was loaded from a
            release; else None. The report covers the weights as loaded: set it to None before they are trained on other
            private images.

    Raises:
        InputError: If no such network is built.
    """

    network: ClassVar[str]
    Options: ClassVar[type[Section]]

    def __init__(self, image_shape: Sequence[int], classes: Sequence[str], **options: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        if channels not in CHANNELS or not all(SIDES[0] <= side <= SIDES[1] for side in (height, width)):
            raise InputError(
                f"No classifier is built for images of {channels} x {height} x {width} (channels x height x width): "
                f"1 or 3 channels, sides of {SIDES[0]} to {SIDES[1]} pixels. Resize the images."
            )
        if len(classes) < 2:
            raise InputError(
                f"A classifier needs at least 2 classes, and the data has {len(classes)}. Take labeled images."
            )
        self.image_shape, self.classes = (int(channels), int(height), int(width)), tuple(classes)
        self.privacy: Any = None
        self._options = options

    def options(self) -> dict[str, Any]:
        """Return the settings of the network besides image shape and classes, JSON values."""
        return dict(self._options)

    @own_state()
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits (N, K) of images (N, C, H, W), uint8 or floating point in [-1, 1], batch by batch.

        Raises:
            InputError: If the images have another shape or type.
        """
        if tuple(images.shape[1:]) != self.image_shape or not (
            images.dtype == torch.uint8 or images.is_floating_point()
        ):
            raise InputError(
                f"The classifier takes images (N, {', '.join(map(str, self.image_shape))}), uint8 or floating point in "
                f"[-1, 1], got {images.dtype} {tuple(images.shape)}."
            )
        device = next(self.parameters()).device
        with torch.no_grad():
            parts = []
            for batch in images.split(_BATCH):
                batch = batch.to(device)
                parts.append(self(to_float(batch) if batch.dtype == torch.uint8 else batch.float()))
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes), device=device)

    @own_state()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return the probability of each class (N, K); arguments and errors as of `logits`."""
        return self.logits(images).softmax(1)

    @own_state()
    def predict(self, images: Tensor) -> Tensor:
        """Return the likeliest class of each image, int64 (N,); arguments and errors as of `logits`.

        It is the number that the class is called by; where not all classes are called by numbers, its position in
        `classes`, which ``probabilities(images).argmax(1)`` is always.
        """
        best = self.logits(images).argmax(1)
        return torch.tensor(numbers(self.classes), device=best.device)[best]

    def predict_names(self, images: Tensor) -> list[str]:
        """Return the name of the likeliest class of each image; arguments and errors as of `logits`."""
        return [self.classes[place] for place in self.logits(images).argmax(1).tolist()]


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of each row's class: (B, K) and int64 (B,) -> (B,); it orders as p does, unrounded."""
    chosen = labels.to(logits.device)[:, None]
    rest = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
    return logits.gather(1, chosen)[:, 0] - rest


class LinearScattering(PrivateClassifier):
    """Linear softmax on normalized scattering features, which are fixed without any data; see `Scattering.normalized`.

    Args:
        image_shape: (C, H, W).
        classes: Names.
        scales: J; None = by size.
        directions: L.

    Attributes:
        weight: (K, D), the last column of which is the bias.
    """

    network = "scattering"

    class Options(Section):
        """J and L."""

        scales: int = Field(ge=1, le=6)
        directions: int = Field(ge=1, le=16)

    def __init__(
        self, image_shape: Sequence[int], classes: Sequence[str], *, scales: int | None = None, directions: int = 8
    ) -> None:
        scales = scales_of(*image_shape[1:]) if scales is None else scales
        super().__init__(image_shape, classes, scales=scales, directions=directions)
        maps, rows, columns = scattering_shape(self.image_shape, scales, directions)
        self.num_features = maps * rows * columns + 1
        self.weight = nn.Parameter(torch.zeros(len(classes), self.num_features))
        self._scattering: list[Scattering] = []  # made when it is first used; it has no weights

    def features(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) to features (B, D) of norm at most 1, the constant coordinate included.

        The constant coordinate serves as the bias of a linear layer without a free bias: the gradient of a record is
        the product of its residual and these features, so that its norm is at most that of the residual.
        """
        vectors = self._transform(images).normalized(images)
        constant = torch.full_like(vectors[:, :1], _CONSTANT)
        return torch.cat([vectors.mul_(_REST), constant], 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to logits (B, K)."""
        channels, bias = self.image_shape[0], self.weight[:, -1:] * _CONSTANT
        weight = (self.weight[:, :-1] * _REST).unflatten(1, (channels, -1)).transpose(1, 2).flatten(1)
        tiles = self._transform(images).normalized_tiles(images)  # never all features at once
        return torch.cat([torch.addmm(bias, weight, tile.flatten(0, 1)) for tile in tiles], 1)[:, : len(images)].T

    def _transform(self, images: Tensor) -> Scattering:
        if not self._scattering:
            self._scattering.append(Scattering(self.image_shape, **self.options()))
        return self._scattering[0].to(images.device)


class BodyAndHead(PrivateClassifier):
    """A body and a linear head, which a subclass makes; one number sets their size.

    Args:
        image_shape: (C, H, W).
        classes: Names.
        width: Feature maps of the first convolution; the second has twice as many.
        seed: Of the initial weights, >= 0. The caller's random state is neither read nor changed.
    """

    class Options(Section):
        """The width."""

        width: int = Field(ge=1, le=1024)

    body: nn.Sequential
    head: nn.Linear

    def forward(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to logits (B, K)."""
        return self.head(self.body(images))


class GroupNormCnn(BodyAndHead):
    """Two convolutions with group normalization and tanh, and a linear layer on 4 x 4 positions: few weights.

    Papernot et al. (2021), "Tempered sigmoid activations for deep learning with differential privacy": bounded
    activations keep gradients within the clip norm. All logits are 0 before training. Arguments: see `BodyAndHead`.
    """

    network = "cnn"

    def __init__(self, image_shape: Sequence[int], classes: Sequence[str], *, width: int = 16, seed: int = 0) -> None:
        super().__init__(image_shape, classes, width=width)
        stride = stride_to(self.image_shape, _BODY_PX)
        with seeded_init(seed):
            self.body = nn.Sequential(
                nn.Conv2d(self.image_shape[0], width, max(3, 2 * stride + 1), stride, padding=max(1, stride)),
                group_norm(width),
                nn.Tanh(),
                nn.Conv2d(width, 2 * width, 3, 2, padding=1),
                group_norm(2 * width),
                nn.Tanh(),
                nn.AdaptiveAvgPool2d(4),
                nn.Flatten(),
            )
            self.head = nn.Linear(2 * width * 16, len(classes))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class ReluCnn(BodyAndHead):
    """Two strided convolutions and two linear layers with ReLU: the small MNIST network of Wong, Rice, Kolter 2020.

    "Fast is better than free: revisiting adversarial training", with 16 and 32 maps and 100 hidden numbers at width 16.
    Larger images are averaged to 7 x 7 positions before the linear layers. Arguments: see `BodyAndHead`.
    """

    network = "relu-cnn"

    def __init__(self, image_shape: Sequence[int], classes: Sequence[str], *, width: int = 16, seed: int = 0) -> None:
        super().__init__(image_shape, classes, width=width)
        channels, *sides = self.image_shape
        rows, columns = (min(7, side // 4) for side in sides)
        with seeded_init(seed):
            self.body = nn.Sequential(
                nn.Conv2d(channels, width, 4, 2, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, 2 * width, 4, 2, padding=1),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d((rows, columns)),
                nn.Flatten(),
                nn.Linear(2 * width * rows * columns, 100),
                nn.ReLU(),
            )
            self.head = nn.Linear(100, len(classes))


class ReluMlp(BodyAndHead):
    """Two hidden layers with ReLU: the fully connected network of Shokri and Shmatikov 2015.

    "Privacy-preserving deep learning", with 16 width and 8 width hidden numbers, theirs at 8: 140,106 weights on images
    of 32 x 32, 402,250 on SVHN. Arguments: see `BodyAndHead`.
    """

    network = "relu-mlp"

    def __init__(self, image_shape: Sequence[int], classes: Sequence[str], *, width: int = 8, seed: int = 0) -> None:
        super().__init__(image_shape, classes, width=width)
        with seeded_init(seed):
            self.body = nn.Sequential(
                nn.Flatten(),
                nn.Linear(math.prod(self.image_shape), 16 * width),
                nn.ReLU(),
                nn.Linear(16 * width, 8 * width),
                nn.ReLU(),
            )
            self.head = nn.Linear(8 * width, len(classes))


def nullify(images: Tensor, coins: Tensor, rate: float) -> Tensor:
    """Set pixels to black: images (N, C, H, W) in [-1, 1], coins uniform in (0, 1) (N, 1, H, W), pixel by pixel."""
    return torch.where(coins.to(images.device) < rate, _BLACK, images) if rate else images


class SplitCnn(PrivateClassifier):
    """Two strided convolutions and a linear layer to d features on a phone; three linear layers in a cloud.

    Wang, Zhang, Bao, Zhu, Cao, Yu 2018, "Not just privacy" (ARDEN), with a smaller network. What leaves the phone has
    the noise of `FeatureNoise`.

    Features are scaled by the largest of them: ``f / max(1, |f|_inf / B)`` with the constant B = 1, the unit of
    training.

    Args:
        image_shape: (C, H, W).
        classes: Names.
        width: Feature maps of the first convolution; the second has twice as many.
        features: d.
        seed: Of the initial weights, >= 0. The caller's random state is neither read nor changed.
    """

    network = "split-cnn"

    class Options(Section):
        """The width, and d."""

        width: int = Field(ge=1, le=1024)
        features: int = Field(ge=1, le=MOST_FEATURES)

    def __init__(
        self, image_shape: Sequence[int], classes: Sequence[str], *, width: int = 16, features: int = 16, seed: int = 0
    ) -> None:
        super().__init__(image_shape, classes, width=width, features=features)
        with seeded_init(seed):
            self.phone = nn.Sequential(
                nn.Conv2d(self.image_shape[0], width, 4, 2, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, 2 * width, 4, 2, padding=1),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(_PHONE_PX),
                nn.Flatten(),
                nn.Linear(2 * width * _PHONE_PX**2, features),
            )
            self.cloud = nn.Sequential(
                nn.Linear(features, _CLOUD), nn.ReLU(), nn.Linear(_CLOUD, _CLOUD), nn.ReLU(),
                nn.Linear(_CLOUD, len(classes)),
            )  # fmt: skip
        self.num_features = features

    def features(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to features (B, d) in [-1, 1]: the phone's part, without noise."""
        raw: Tensor = self.phone(images)
        return raw / raw.abs().amax(1, keepdim=True).clamp(min=1.0)

    def forward(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to logits (B, K), as if the phone added no noise."""
        return self.cloud(self.features(images))

    @torch.no_grad()
    def perturb(
        self, images: Tensor, epsilon: float, *, nullification: float = 0.0, noise: Noise | None = None
    ) -> Tensor:
        """Return what leaves the phone: noisy features (N, d) on the CPU, for `predict_features`.

        Each image costs a pure ``epsilon`` at unit image, replace-one, each time; see `FeatureNoise`. Nothing is
        charged here: the phone keeps its own account.

        Args:
            images: (N, C, H, W), uint8 or floating point in [-1, 1].
            epsilon: Of one image, > 0.
            nullification: Share of the pixels, chosen by coins, that are set to black before, in [0, 1).
            noise: Secret source; None is the operating system's.

        Raises:
            InputError: If a number is out of range, or the images have another shape.
        """
        if not 0 < epsilon < math.inf or not 0 <= nullification < 1:
            raise InputError(
                f"epsilon = {epsilon} must be positive and finite, and nullification = {nullification} in [0, 1)."
            )
        if tuple(images.shape[1:]) != self.image_shape:
            raise InputError(f"The phone takes images (N, {', '.join(map(str, self.image_shape))}).")
        channel, noise = FeatureNoise(self.num_features, epsilon), noise or Noise.system()
        parts = [self.released(batch, channel, nullification, noise) for batch in images.split(_BATCH)]
        return channel.values(torch.cat(parts)) if parts else torch.zeros(0, self.num_features)

    @torch.no_grad()
    def released(self, images: Tensor, channel: FeatureNoise, nullification: float, noise: Noise) -> Tensor:
        """Nullify, extract and perturb a batch: whole grid steps (N, d), int64 on the CPU."""
        pixels = to_float(images) if images.dtype == torch.uint8 else images.float()
        coins = noise.uniform((len(pixels), 1, *self.image_shape[1:])) if nullification else torch.empty(0)
        device = next(self.parameters()).device
        return channel.release(self.features(nullify(pixels.to(device), coins, nullification)), noise)

    @torch.no_grad()
    def predict_features(self, features: Tensor) -> Tensor:
        """Return the likeliest class of features (N, d), noisy or not: the cloud's part, int64 (N,), as by `predict`.

        Raises:
            InputError: If the features have another shape.
        """
        if tuple(features.shape[1:]) != (self.num_features,):
            raise InputError(f"The cloud takes features (N, {self.num_features}), got {tuple(features.shape)}.")
        best: Tensor = self.cloud(features.to(next(self.parameters()).device)).argmax(1)
        return torch.tensor(numbers(self.classes), device=best.device)[best]


NETWORKS: dict[str, type[PrivateClassifier]] = {
    kind.network: kind for kind in (LinearScattering, GroupNormCnn, ReluCnn, ReluMlp, SplitCnn)
}


def described_classifier(
    network: str, options: Mapping[str, Any], image_shape: Sequence[int], classes: Sequence[str]
) -> PrivateClassifier:
    """Return the classifier that a release describes, without weights, on torch's meta device.

    Raises:
        InputError: If it describes no classifier; everything is validated as untrusted input.
    """
    if network not in NETWORKS:
        raise InputError(f"there is no classifier network '{network}'. {nearest_hint(network, NETWORKS)}")
    kind = NETWORKS[network]
    checked = build(kind.Options, options, "the network").model_dump()
    with torch.device("meta"):
        return kind(image_shape, classes, **checked)
