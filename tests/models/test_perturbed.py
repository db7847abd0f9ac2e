"""The noisy first layer: the paper's formula, the law of the noise, and what is proven for it."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm
from torch import nn

from idpgan.errors import ConfigError, InputError
from idpgan.models.config import ModelConfig
from idpgan.models.initialize import seeded_init
from idpgan.models.perturbed import (
    PerturbedAffine,
    PixelNoise,
    build_critic,
    check_bounded_features,
    paper_sensitivity,
    public_laplace,
)
from idpgan.models.validate import validate_private_critic
from idpgan.privacy import Noise

SHAPE = (1, 8, 8)


def layer(draw="once", epsilon=0.5, batch_size=10, **options):
    with seeded_init(1):
        conv = nn.Conv2d(1, 4, 5, stride=2, padding=2)
    return PerturbedAffine(conv, SHAPE, epsilon=epsilon, batch_size=batch_size, draw=draw, **options)


def critic(**options):
    return build_critic(
        ModelConfig(width=4),
        SHAPE,
        **{"kind": "conv", "num_features": 6, "num_outputs": 3, **options},
        perturb=lambda h0: PerturbedAffine(h0, SHAPE, epsilon=1.0, batch_size=10, draw="once"),
    )


# The formula -------------------------------------------------------------------------------------------------------


def test_the_convolution_of_the_reference_code_gives_a_scale_of_about_77():
    conv = nn.Conv2d(1, 64, 5, stride=2, padding=2)
    assert paper_sensitivity(conv, (1, 28, 28)) == 2 * 14 * 14 * 25
    noisy = PerturbedAffine(conv, (1, 28, 28), epsilon=0.5, batch_size=256, draw="once")
    assert noisy.pixel_noise.scale == pytest.approx(77, abs=1)


def test_the_formula_counts_neurons_and_fan_in():
    assert paper_sensitivity(nn.Linear(64, 7), SHAPE) == 2 * 7 * 64
    assert paper_sensitivity(nn.Conv2d(3, 9, (3, 5), padding=(1, 2)), (3, 6, 10)) == 2 * 60 * 3 * 15
    assert paper_sensitivity(nn.Conv2d(1, 1, 3, stride=3, dilation=2), (1, 28, 28)) == 2 * 8 * 8 * 9
    assert layer(sensitivity=123.0).pixel_noise.scale == pytest.approx(123 / (0.5 * 10))
    assert layer(batch_size=20).pixel_noise.scale == layer().pixel_noise.scale / 2  # larger batches, less noise


@pytest.mark.parametrize("wrong", [nn.Linear(63, 2), nn.Conv2d(3, 2, 3), nn.Conv1d(1, 1, 3), nn.ReLU()])
def test_a_layer_that_does_not_fit_is_refused(wrong):
    with pytest.raises(InputError, match=r"fit images|Linear or Conv2d"):
        paper_sensitivity(wrong, SHAPE)


@pytest.mark.parametrize("scale", [0.0, math.nan, math.inf])
def test_a_scale_out_of_range_is_refused(scale):
    with pytest.raises(InputError, match="noise scale"):
        PixelNoise(SHAPE, scale, "once")
    with pytest.raises(InputError, match="sum"):
        PixelNoise(SHAPE, 1.0, "once", (2.0,) * 64)


# The noise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["once", "per_step"])
def test_every_pixel_of_every_image_has_its_own_laplace_noise(draw):
    noise = PixelNoise(SHAPE, 3.0, draw)
    images = torch.rand(1000, *SHAPE, generator=torch.Generator().manual_seed(0)) * 2 - 1
    drawn = (noise.release(images, Noise.fixed(4)) - images).double()
    sample = drawn.flatten().numpy()
    assert kstest(sample, laplace(scale=3).cdf).pvalue > 1e-3
    # Must be rejected: 10 % too little or too much, the range forgotten, the same variance but Gaussian.
    for wrong in (laplace(scale=2.7), laplace(scale=3.3), laplace(scale=1.5), norm(scale=3 * 2**0.5)):
        assert kstest(sample, wrong.cdf).pvalue < 1e-6
    flat = drawn.flatten(1).numpy()
    for other in (np.roll(flat, 1, axis=0), np.roll(flat, 1, axis=1)):  # neither images nor pixels share a draw
        assert abs(np.corrcoef(flat.ravel(), other.ravel())[0, 1]) < 5 / sample.size**0.5


def test_a_batch_that_shares_its_noise_can_be_told_by_its_differences():
    noise = PixelNoise(SHAPE, 3.0, "per_batch")
    images = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    drawn = noise.release(images, Noise.fixed(4))
    assert torch.allclose(drawn - drawn[:1], images - images[:1], atol=1e-5)
    assert (drawn - images).std() > 2


def test_the_allocation_divides_the_scale_pixel_by_pixel():
    beta = (0.5,) * 32 + (1.5,) * 32
    noise = PixelNoise(SHAPE, 3.0, "once", beta)
    images = torch.zeros(3000, *SHAPE)
    for drawn in (
        noise.release(images, Noise.fixed(5)),
        noise.perturb_public(images, torch.Generator().manual_seed(5)),
    ):
        halves = drawn.flatten(1).double()
        for half, scale in ((halves[:, :32], 6.0), (halves[:, 32:], 2.0)):
            assert kstest(half.flatten().numpy(), laplace(scale=scale).cdf).pvalue > 1e-3
            assert kstest(half.flatten().numpy(), laplace(scale=1.1 * scale).cdf).pvalue < 1e-6


@pytest.mark.parametrize("draw", ["once", "per_step", "per_batch"])
def test_generated_images_get_the_same_law(draw):
    noise = PixelNoise(SHAPE, 3.0, draw)
    images = torch.zeros(2000, *SHAPE)
    drawn = noise.perturb_public(images, torch.Generator().manual_seed(6)).double()
    if draw == "per_batch":
        assert torch.equal(drawn[0], drawn[1])
        drawn = public_laplace(torch.Size([2000, 64]), torch.Generator().manual_seed(6), drawn.device).double() * 3
    assert kstest(drawn.flatten().numpy(), laplace(scale=3).cdf).pvalue > 1e-3
    assert kstest(drawn.flatten().numpy(), laplace(scale=2.7).cdf).pvalue < 1e-6


def test_pixels_are_clamped_to_the_public_range_before_the_noise():
    noise = PixelNoise(SHAPE, 3.0, "once")
    loud, bound = torch.full((1, *SHAPE), 50.0), torch.ones(1, *SHAPE)
    assert torch.equal(noise.release(loud, Noise.fixed(1)), noise.release(bound, Noise.fixed(1)))
    with pytest.raises(ValueError, match="finite"):
        noise.release(torch.full((1, *SHAPE), math.nan), Noise.fixed(1))
    with pytest.raises(InputError, match="shape"):
        noise.release(torch.zeros(1, 1, 4, 16), Noise.fixed(1))


def test_the_bias_gets_noise_of_the_same_scale():
    noisy = PerturbedAffine(nn.Linear(64, 5000), SHAPE, epsilon=1.0, batch_size=1, draw="once", sensitivity=2.0)
    assert noisy.bias_noise.abs().sum() == 0
    noisy.draw_bias_noise(torch.Generator().manual_seed(1))
    assert kstest(noisy.bias_noise.numpy(), laplace(scale=2).cdf).pvalue > 1e-3
    assert kstest(noisy.bias_noise.numpy(), laplace(scale=1.6).cdf).pvalue < 1e-6
    x = torch.zeros(2, *SHAPE)
    assert torch.allclose(noisy(x), (noisy.layer.bias + noisy.bias_noise).expand(2, -1))


# What it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "epsilon"), [(14, 9.82343), (28, 4.33768), (78, 1.37401)])
def test_golden_epsilon_of_784_pixels(ratio, epsilon):
    noise = PixelNoise((1, 28, 28), 2.0 * ratio, "once")  # range 2
    assert noise.proven(1e-5).epsilon == pytest.approx(epsilon, abs=1e-3)
    assert noise.proven(0).epsilon == pytest.approx(784 / ratio)
    assert noise.pure_epsilon == pytest.approx(784 / ratio)


def test_proven_by_when_noise_is_drawn():
    once, each, shared = (layer(draw).pixel_noise for draw in ("once", "per_step", "per_batch"))
    assert once.proven(1e-5, accesses=50) == once.proven(1e-5)
    assert each.proven(1e-5) == once.proven(1e-5)
    assert each.proven(1e-5, accesses=50).epsilon > 5 * once.proven(1e-5).epsilon
    assert each.events(50)[0].count == 50 * 64
    assert shared.proven(1e-5).epsilon == math.inf
    assert "shared" in shared.events()[0].reason


def test_no_image_reaches_further_than_the_events_say():
    """Contract: black against white, the worst pair, exactly uses up the pure epsilon of the events."""
    noise = PixelNoise(SHAPE, 7.0, "once")
    white, black = torch.ones(1, *SHAPE), -torch.ones(1, *SHAPE)
    released = noise.release(white, Noise.fixed(1)).double()
    loss = ((released - black).abs() - (released - white).abs()).sum().item() / 7.0
    worst = (white - black).abs().sum().item() / 7.0
    (event,) = noise.events()
    assert loss <= worst + 1e-4
    assert worst == pytest.approx(event.count * event.pure)


# The critic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_gradients_flow_through_the_noisy_layer_to_weights_and_images(kind):
    net = critic(kind=kind)
    net.first.draw_bias_noise(torch.Generator().manual_seed(1))
    images = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(2)).requires_grad_()
    noisy = net.first.pixel_noise.perturb_public(images, torch.Generator().manual_seed(3))
    assert net(noisy).shape == (4, 3)
    net(noisy)[:, 0].sum().backward()
    assert images.grad.abs().amin(0).max() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert net.first.layer.weight.grad.abs().max() > 0


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_the_critic_mixes_no_records_and_its_last_features_are_bounded(kind):
    net = critic(kind=kind)
    validate_private_critic(net, image_shape=SHAPE, num_classes=0)
    check_bounded_features(net, SHAPE)
    assert net.features(torch.randn(3, *SHAPE) * 1e3).abs().max() <= 1
    labeled = critic(kind=kind, label_classes=3)
    check_bounded_features(labeled, SHAPE, 3)
    x = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(labeled(x, torch.tensor([0, 0])), labeled(x, torch.tensor([1, 1])))


def test_unbounded_last_features_are_refused():
    net = critic()
    net.features = lambda images, labels=None: net.hidden(net.first(images))  # negative control: no norm, no clamp
    with pytest.raises(ConfigError, match=r"last features reach \S+, but the noise of the loss"):
        check_bounded_features(net, SHAPE)
