r"""The noisy first layer of IDP-GAN: what noise the paper asks for, what it costs, and what is proven.

Yang Yunlu, Zhou Yajian, Ning Hua, "Image Data Mining Method Supporting Differential Privacy", eq. 6-8:
``x~ = x + Lap(b0 / beta)``, ``b~ = b + Lap(b0)``, ``b0 = D0 / (eps1 |L|)``: every pixel of every image gets its own
noise, and the layer ``h = x~ W^T + b~`` and all behind it see x~ only. Hence everything that is computed from x~ is
post-processing of n Laplace releases per image, and W plays no part in the guarantee.

Formal guarantee, unit image, replace-one: pixels lie in a public range R, so replacing an image moves each of its n
numbers by at most R, and number j has noise of scale ``b0 / beta_j``. One access is therefore n independent Laplace
releases of noise multiplier ``b0 / (R beta_j)``: pure epsilon ``n R / b0`` (as sum beta = n), and the n-fold Laplace
PLD. `once` is one access however long the training; `per_step` is one access each time an image is drawn. `per_batch`
adds one draw to all images of a batch: differences within the batch carry no noise, so nothing is proven.

The paper's D0 is a constant of the *layer* and is divided by the batch size. Neither is a sensitivity of what is
released here; that is why claimed and proven differ.

Allocation of the noise: layer-wise relevance propagation (LRP) distributes the score of a network over its pixels,
layer by layer, and IDP-GAN gives less noise to relevant pixels (introduction; Phan et al. 2017). The relevance is that
of PUBLIC images only. Relevance from private images would be a separate release without a charge, so private images
must never be passed to `propagate_relevance` or `mean_relevance`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from idpgan.errors import ConfigError, InputError
from idpgan.models.config import ModelConfig, pyramid_of
from idpgan.models.dcgan import SLOPE
from idpgan.models.initialize import group_norm, seeded_init
from idpgan.privacy import Event, Guarantee, Laplace, Noise, Relation, Unit, compose_epsilon

Draw = Literal["once", "per_step", "per_batch"]
ImageShape = tuple[int, int, int]
PIXEL_RANGE = 2.0  # R: networks see [-1, 1]
SHARED_NOISE = "one draw of noise is shared by all images of a batch, so their differences carry no noise"
_ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)
MOST_BINS = 32
_STABILISER = 1e-6  # of the epsilon rule, relative to the largest activation
_LINEAR = (nn.Linear, nn.Conv2d, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
_PASSED = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Dropout)  # relevance goes through unchanged


def paper_sensitivity(layer: nn.Linear | nn.Conv2d, image_shape: ImageShape) -> int:
    """Return D0 of the paper, ``2 * sum of d over the neurons of h0`` (below eq. 7), d a neuron's fan-in.

    Linear: ``2 * out_features * in_features``. Convolution: the neurons of *one* feature map, ``2 H_out W_out C_in k_h
    k_w``, as the public code of the mechanism's origin counts (Phan et al. 2017).

    Raises:
        InputError: If the layer is of another kind, or does not fit the image.

    Example:
        >>> paper_sensitivity(nn.Conv2d(1, 64, 5, stride=2, padding=2), (1, 28, 28))  # 2 * 14 * 14 * 25
        9800
    """
    channels, height, width = image_shape
    if isinstance(layer, nn.Linear):
        if layer.in_features != channels * height * width:
            raise InputError(f"a linear layer of {layer.in_features} inputs does not fit images of {image_shape}.")
        return 2 * layer.out_features * layer.in_features
    if not isinstance(layer, nn.Conv2d):
        raise InputError(f"the first layer must be Linear or Conv2d, affine in the pixels, got {type(layer).__name__}.")
    if layer.in_channels != channels:
        raise InputError(f"a convolution of {layer.in_channels} channels does not fit images of {image_shape}.")
    probe = copy.deepcopy(layer).to("meta")
    out_height, out_width = probe(torch.empty(1, channels, height, width, device="meta")).shape[2:]
    fan_in = channels // layer.groups * layer.kernel_size[0] * layer.kernel_size[1]
    return 2 * out_height * out_width * fan_in


@dataclasses.dataclass(frozen=True)
class PixelNoise:
    """Laplace noise on the pixels of images; its price is known before anything is read.

    Attributes:
        image_shape: (C, H, W), n = C H W.
        scale: b0, for pixels in [-1, 1].
        draw: "once", "per_step" or "per_batch"; see the module.
        allocation: beta_j > 0 with sum n, for all pixels in the order of ``flatten()``; None is 1 everywhere.
    """

    image_shape: ImageShape
    scale: float
    draw: Draw
    allocation: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise InputError(f"the noise scale b0 = {self.scale} must be positive and finite.")
        if self.allocation is not None:
            total = math.fsum(self.allocation)
            if len(self.allocation) != self.num_pixels or not math.isclose(total, self.num_pixels, rel_tol=1e-9):
                raise InputError(f"an allocation holds {self.num_pixels} numbers that sum to it, got sum {total:g}.")

    @property
    def num_pixels(self) -> int:
        """Numbers per image, n."""
        return math.prod(self.image_shape)

    @property
    def pure_epsilon(self) -> float:
        """``n R / b0``: pure epsilon of one access with independent noise."""
        return self.num_pixels * PIXEL_RANGE / self.scale

    def events(self, accesses: int = 1) -> tuple[Event, ...]:
        """Return the price of any one image: of one access if noise is drawn `once`, else of at most ``accesses``."""
        if self.draw == "per_batch":
            return (Event.non_private(SHARED_NOISE, *_ADJACENCY),)
        repeats = 1 if self.draw == "once" else accesses
        bins = [(1.0, self.num_pixels)] if self.allocation is None else bin_allocation(self.allocation)
        return tuple(
            Event("laplace", *_ADJACENCY, self.scale / (PIXEL_RANGE * b), count * repeats) for b, count in bins
        )

    def proven(self, delta: float, accesses: int = 1) -> Guarantee:
        """Return the proven guarantee of the images' pixels."""
        epsilon = compose_epsilon(self.events(accesses), delta)
        basis = f"{self.num_pixels} Laplace releases per access, range {PIXEL_RANGE:g}, scale {self.scale:.4g}"
        return Guarantee(epsilon, delta if math.isfinite(epsilon) else 0.0, *_ADJACENCY, basis)

    def release(self, images: Tensor, noise: Noise) -> Tensor:
        """Perturb private images, (B, C, H, W) float, clamped to [-1, 1] first; the result is not clamped."""
        beta = self._divisors(images)
        mechanism = Laplace(PIXEL_RANGE, self.scale / PIXEL_RANGE, *_ADJACENCY)
        scaled = images.clamp(-1, 1) * beta  # noise of scale b0 here is b0 / beta in the images
        if self.draw == "per_batch":
            return (scaled + mechanism(torch.zeros_like(scaled[:1]), noise)) / beta
        return mechanism(scaled, noise) / beta

    def perturb_public(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Perturb generated images in the same way. This noise need not be secret: it protects nothing."""
        drawn = images[:1] if self.draw == "per_batch" else images
        return images + public_laplace(drawn.shape, rng, images.device) * self.scale / self._divisors(images)

    def _divisors(self, images: Tensor) -> Tensor:
        """Return beta in the shape that broadcasts over a batch."""
        if tuple(images.shape[1:]) != self.image_shape:
            raise InputError(f"this noise is for images of shape {self.image_shape}, got {tuple(images.shape[1:])}.")
        if self.allocation is None:
            return torch.ones((), dtype=images.dtype, device=images.device)
        return torch.tensor(self.allocation, dtype=images.dtype, device=images.device).view(self.image_shape)


def public_laplace(shape: torch.Size, rng: torch.Generator, device: torch.device) -> Tensor:
    """Draw Laplace(1) numbers from torch's generator, float32: for generated images and public constants only."""
    uniform = torch.rand((2, *shape), generator=rng, device=device).clamp_(min=1e-30).log_()
    return uniform[0] - uniform[1]


class PerturbedAffine(nn.Module):
    """The affine layer h0 with noise on its input features and its bias.

    Args:
        layer: `nn.Linear` on flattened images, or `nn.Conv2d`.
        epsilon: eps1 of the paper.
        batch_size: |L|, by which the paper divides the noise.
        draw: See `PixelNoise`, also for ``allocation``.
        sensitivity: Overrides D0; None is `paper_sensitivity`.

    Attributes:
        sensitivity: D0.
        pixel_noise: The noise of x~. Its ``events`` and ``proven`` are the layer's.
        bias_noise: The noise on the bias, (out,). The bias is not private: its noise costs and protects nothing.

    Raises:
        InputError: If the layer does not fit the images, or a number is not positive and finite.
    """

    def __init__(
        self,
        layer: nn.Linear | nn.Conv2d,
        image_shape: ImageShape,
        *,
        epsilon: float,
        batch_size: int,
        draw: Draw,
        sensitivity: float | None = None,
        allocation: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        if not (0 < epsilon < math.inf and batch_size >= 1):
            raise InputError(f"eps1 = {epsilon} must be positive and finite, the batch size {batch_size} at least 1.")
        self.layer = layer
        self.sensitivity = float(paper_sensitivity(layer, image_shape) if sensitivity is None else sensitivity)
        self.pixel_noise = PixelNoise(image_shape, self.sensitivity / (epsilon * batch_size), draw, allocation)
        width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        self.bias_noise: Tensor = nn.Buffer(torch.zeros(width))

    def draw_bias_noise(self, rng: torch.Generator) -> None:
        """Replace the noise of the bias by a fresh draw."""
        self.bias_noise = public_laplace(self.bias_noise.shape, rng, self.bias_noise.device) * self.pixel_noise.scale

    def forward(self, perturbed: Tensor) -> Tensor:
        """Apply the layer to perturbed images (B, C, H, W): (B, out) or (B, out, H_out, W_out)."""
        if isinstance(self.layer, nn.Linear):
            return self.layer(perturbed.flatten(1)) + self.bias_noise
        return self.layer(perturbed) + self.bias_noise.view(-1, 1, 1)


class PerturbedCritic(nn.Module):
    """A noisy first layer, hidden layers behind normalization, bounded last features, M linear outputs without bias.

    ``z_il = h_i . w_l`` with h in [-1, 1]^d: half of a layer norm (over one record), clamped (eq. 9). Output 0 says
    real or fake; outputs 1 .. K are the classes.

    Args:
        hidden: Maps the output of the noisy layer ``first`` to (B, d).
        num_features: d = |h_k|.
        num_outputs: M.
        label_classes: Number of labels, if they are an input too; else 0.

    Attributes:
        weight: (M, d).
    """

    def __init__(
        self,
        first: PerturbedAffine,
        hidden: nn.Module,
        num_features: int,
        num_outputs: int,
        label_classes: int = 0,
    ) -> None:
        super().__init__()
        self.first, self.hidden, self.num_features = first, hidden, num_features
        self.label_embedding = nn.Embedding(label_classes, num_features) if label_classes else None
        self.bound = nn.LayerNorm(num_features, elementwise_affine=False)
        self.weight = nn.Parameter(torch.randn(num_outputs, num_features) / num_features**0.5)

    def features(self, perturbed: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map perturbed images to the last hidden features (B, d), all in [-1, 1]."""
        hidden = self.hidden(self.first(perturbed))
        if self.label_embedding is not None:
            hidden = hidden + self.label_embedding(labels)
        return (self.bound(hidden) / 2).clamp(-1, 1)

    def forward(self, perturbed: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map perturbed images to the outputs z (B, M)."""
        return self.features(perturbed, labels) @ self.weight.T


def first_layer(kind: str, config: ModelConfig, image_shape: ImageShape) -> nn.Linear | nn.Conv2d:
    """Build the affine layer h0: a 5 x 5 convolution of stride 2, which halves the side, or one dense layer."""
    if kind == "linear":
        return nn.Linear(math.prod(image_shape), config.width)
    return nn.Conv2d(image_shape[0], config.width, 5, stride=2, padding=2)


def build_critic(
    config: ModelConfig,
    image_shape: ImageShape,
    *,
    kind: str,
    num_features: int,
    num_outputs: int,
    label_classes: int = 0,
    seed: int = 0,
    perturb: Callable[[nn.Linear | nn.Conv2d], PerturbedAffine],
) -> PerturbedCritic:
    """Build the critic for an image size.

    Args:
        config: The [model] section; width is the number of neurons or feature maps of h0.
        kind: "conv" or "linear", of h0.
        num_features: d.
        num_outputs: M.
        perturb: Puts the noise around h0.

    Raises:
        ConfigError: If no network is built for such images.
    """
    pyramid = pyramid_of(image_shape)
    with seeded_init(seed, stream=1):
        first = perturb(first_layer(kind, config, image_shape))
        channels = config.width
        if kind == "linear":
            hidden = [nn.LayerNorm(channels), nn.LeakyReLU(SLOPE), nn.Linear(channels, num_features)]
        else:
            hidden = [group_norm(channels, groups=1), nn.LeakyReLU(SLOPE)]
            for _ in range(pyramid.doublings - 1):  # normalization before every activation (section 2.2.1)
                hidden.append(nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1))
                channels *= 2
                hidden += [group_norm(channels, groups=1), nn.LeakyReLU(SLOPE)]
            hidden += [nn.Flatten(), nn.Linear(channels * math.prod(pyramid.last), num_features)]
        return PerturbedCritic(first, nn.Sequential(*hidden), num_features, num_outputs, label_classes)


def check_bounded_features(critic: PerturbedCritic, image_shape: ImageShape, num_labels: int = 0) -> None:
    """Refuse a critic whose last features leave [-1, 1]: DF would then be too small. The error has the largest value.

    The critic is tested on normal pixels of scale 1, 100 and 10,000, with all labels; this is a test, not a proof.
    """
    rng = torch.Generator().manual_seed(0)
    device = critic.weight.device
    labels = torch.arange(16, device=device) % num_labels if num_labels else None
    with torch.no_grad():
        probes = [torch.randn(16, *image_shape, generator=rng).to(device) * loudness for loudness in (1.0, 1e2, 1e4)]
        largest = max(critic.features(probe, labels).abs().max().item() for probe in probes)
    if not largest <= 1:
        raise ConfigError(
            f"The critic's last features reach {largest:.4g}, but the noise of the loss (Yang, Zhou and Ning, eq. 11) "
            "is sized for features in [-1, 1]. End the hidden layers with normalization within each record and a clamp."
        )


def propagate_relevance(network: nn.Sequential, images: Tensor, labels: Tensor) -> Tensor:
    r"""Distribute the score of each image's own class over its pixels.

    The epsilon rule of `Bach et al. (2015), Eq. (58) <https://doi.org/10.1371/journal.pone.0130140>`_, from the last
    layer to the first: ``R_i = a_i * sum_j w_ij R_j / (z_j + eps sign z_j)``, with z_j the output of neuron j, its
    bias included. Without biases the relevance of all pixels sums to the score.

    Args:
        network: Linear layers, convolutions, pooling, ReLU or LeakyReLU, Flatten; its output is the logits (B, K).
        images: Public images, (B, C, H, W) in [-1, 1].
        labels: (B,) int64 in [0, K).

    Returns:
        Relevance, the shape of `images`; either sign.

    Raises:
        InputError: If the network holds a layer of another kind.
    """
    inputs = [images]
    with torch.no_grad():
        for layer in network:
            if not isinstance(layer, (*_LINEAR, *_PASSED, nn.Flatten)):
                raise InputError(f"relevance has no rule for a layer of kind {type(layer).__name__}.")
            inputs.append(layer(inputs[-1]))
    logits = inputs.pop()
    chosen = torch.nn.functional.one_hot(labels, logits.shape[1])
    relevance = logits * chosen  # (B, K)
    for layer, activation in zip(reversed(network), reversed(inputs), strict=True):
        if isinstance(layer, _LINEAR):  # as activation times gradient (Montavon et al. 2019, section 10.3)
            leaf = activation.detach().requires_grad_()
            with torch.enable_grad():
                outputs = layer(leaf)
                stabiliser = _STABILISER * outputs.detach().abs().max().clamp(min=1e-30)
                sign = torch.where(outputs >= 0, 1.0, -1.0)
                ratio = (relevance / (outputs + stabiliser * sign)).detach()
                (gradient,) = torch.autograd.grad((outputs * ratio).sum(), leaf)
            relevance = activation * gradient
        relevance = relevance.reshape(activation.shape)
    return relevance


def mean_relevance(network: nn.Sequential, images: Tensor, labels: Tensor, batch_size: int = 500) -> Tensor:
    """Average the relevance of each pixel over public images, at least one: float64 (C, H, W), either sign."""
    if len(images) == 0:
        raise InputError("relevance needs public images: set data.public_share, or data.public_root.")
    total = torch.zeros(images.shape[1:], dtype=torch.float64, device=images.device)
    for batch, batch_labels in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        total += propagate_relevance(network, batch, batch_labels).double().sum(0)
    return total / len(images)


def allocate(relevance: Tensor, floor: float) -> tuple[float, ...]:
    """Turn relevance into the divisors beta_j of the noise scale: ``beta_j = n r_j / sum r``.

    ``r_j = max(|relevance_j|, floor * mean |relevance|)``: relevance has no unit, so the floor is relative to its mean.

    Args:
        relevance: Any shape with n numbers.
        floor: In (0, 1]; 1 lifts every pixel below the average to it.

    Returns:
        n numbers > 0 whose sum is n, in the order of ``relevance.flatten()``.

    Raises:
        InputError: If the floor is out of range, or the relevance is zero everywhere or not finite.
    """
    if not 0 < floor <= 1:
        raise InputError(f"the floor of the relevance = {floor} must lie in (0, 1]: a pixel of none would lose itself.")
    size = relevance.detach().double().flatten().abs()
    mean = size.mean().item()
    if not 0 < mean < math.inf:
        raise InputError(f"the mean relevance of the public images is {mean}: nothing can be allotted by it.")
    size = size.clamp(min=floor * mean)
    beta = size * (len(size) / size.sum())
    return tuple(beta.tolist())


def bin_allocation(beta: Sequence[float], most_bins: int = MOST_BINS) -> tuple[tuple[float, int], ...]:
    """Group the divisors beta_j > 0 into a few geometric bins, each stated by its largest member: rounded up.

    A larger divisor is less noise, so pricing a pixel at its bin's largest divisor never prices it too low. Afterwards
    the sum exceeds n by the rounding.

    Returns:
        (largest divisor, number of pixels) per bin that is not empty, ascending.
    """
    values = sorted(beta)
    if not values or not 0 < values[0] <= values[-1] < math.inf:
        raise InputError("the divisors of the noise scale must be positive and finite.")
    width = math.log(values[-1] / values[0]) / most_bins
    bins: dict[int, list[float]] = {}
    for value in values:
        number = min(int(math.log(value / values[0]) / width), most_bins - 1) if width > 0 else 0
        bins.setdefault(number, []).append(value)
    return tuple((members[-1], len(members)) for members in bins.values())
