import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from idpgan.errors import InputError
from idpgan.metrics.images import entropy, grey_histograms, histogram_distance, mse, psnr, ssim


def noise(shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def pair(shape=(3, 40, 31), strength=0.2):
    """A smooth float image batch and a noisy one."""
    generator = torch.Generator().manual_seed(1)
    rows, columns = (torch.linspace(0, 1, side, dtype=torch.float64) for side in shape[-2:])
    clean = (rows[:, None] * columns).expand(shape)
    return (clean + strength * torch.randn(shape, generator=generator)).clamp(0, 1), clean


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 5), height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 99))
def test_histograms_equal_numpys_image_by_image(count, height, width, seed):
    images = noise((count, height, width), seed)
    for histogram, image in zip(grey_histograms(images), images, strict=True):
        assert histogram.tolist() == np.bincount(image.numpy().ravel(), minlength=256).tolist()
    # Floating point images are rounded to the levels they came from.
    assert torch.equal(grey_histograms(images.double() / 255), grey_histograms(images))


def test_chunks_do_not_show(monkeypatch):
    images, other = noise((7, 12, 13)), noise((7, 12, 13), seed=1)
    whole = grey_histograms(images), ssim(images, other)
    monkeypatch.setattr("idpgan.metrics.images._CHUNK_NUMBERS", 8 * 12 * 13 * 3)
    assert torch.equal(grey_histograms(images), whole[0])
    assert torch.allclose(ssim(images, other), whole[1])


def test_entropy_by_hand():
    images = torch.zeros(5, 8, 32, dtype=torch.uint8)
    images[1, 0] = 1  # one in eight
    images[2] = torch.arange(256).view(8, 32)
    images[3, :4] = 200
    images[4, :, 8:] = 255  # three in four
    expected = [0.0, 3 / 8 + 7 / 8 * math.log2(8 / 7), 8.0, 1.0, 0.25 * 2 + 0.75 * math.log2(4 / 3)]
    assert entropy(images).tolist() == pytest.approx(expected)
    nats = torch.tensor(expected) * math.log(2)
    assert (entropy(images) - nats).abs().max() > 1  # the tolerance tells bits from nats


def test_entropy_does_not_change_with_the_order_of_pixels():
    images = noise((2, 10, 10))
    assert torch.equal(entropy(images), entropy(images.flatten(1)[:, torch.randperm(100)]))


def test_mse_and_psnr_by_hand():
    reference = torch.zeros(2, 2, 2, dtype=torch.uint8)
    images = torch.tensor([[[255, 0], [0, 0]], [[51, 51], [51, 51]]], dtype=torch.uint8)
    assert mse(images, reference).tolist() == pytest.approx([0.25, 0.04])
    assert psnr(images, reference).tolist() == pytest.approx([6.0205999, 13.9794001])
    assert psnr(images, images).tolist() == [math.inf, math.inf]
    assert mse(torch.full((1, 4), -2.0), torch.full((1, 4), 3.0)).tolist() == [25.0]  # unclamped releases are allowed


def test_they_equal_torchmetrics():
    noisy, clean = pair()
    expected = [float(peak_signal_noise_ratio(a, b, data_range=1.0)) for a, b in zip(noisy, clean, strict=True)]
    assert psnr(noisy, clean).tolist() == pytest.approx(expected, rel=1e-6)  # torchmetrics: float32
    mean, full = structural_similarity_index_measure(
        noisy[:, None], clean[:, None], data_range=1.0, reduction="none", return_full_image=True
    )
    inside = full[..., 5:-5, 5:-5].flatten(1).mean(dim=1)  # torchmetrics averages over a reflected border as well
    assert torch.allclose(ssim(noisy, clean), inside, atol=1e-9)
    assert (mean - inside).abs().min() > 1e-5


def test_ssim_by_hand():
    # Constant images: only the term of the means is left.
    images, reference = torch.full((1, 11, 11), 0.2), torch.full((1, 11, 11), 0.6)
    assert float(ssim(images, reference)) == pytest.approx((2 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4), rel=1e-6)
    noisy, clean = pair()
    assert torch.allclose(ssim(clean, clean), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(ssim(noisy, clean), ssim(clean, noisy))
    slightly = pair(strength=0.05)[0]
    assert (ssim(slightly, clean) > ssim(noisy, clean) + 0.1).all()
    assert float(ssim(1 - clean, clean).max()) < 0.9


def test_color_images_average_their_channels():
    noisy, clean = pair((2, 3, 20, 20))
    by_channel = torch.stack([ssim(noisy[:, channel], clean[:, channel]) for channel in range(3)]).mean(dim=0)
    assert torch.allclose(ssim(noisy, clean), by_channel)
    assert grey_histograms(noise((2, 3, 4, 4))).sum(dim=1).tolist() == [48, 48]


def test_histogram_distances_by_hand():
    black = torch.zeros(1, 2, 2, dtype=torch.uint8)
    half = torch.tensor([[[0, 0], [255, 255]]], dtype=torch.uint8)
    near = torch.tensor([[[1, 1], [0, 0]]], dtype=torch.uint8)
    assert float(histogram_distance(half, black)) == float(histogram_distance(black, half)) == 0.5
    assert float(histogram_distance(near, black)) == 0.5
    assert float(histogram_distance(half.flip(1), half)) == 0.0
    assert float(histogram_distance(black + 255, black)) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entropy(torch.tensor([[0.5, 1.2]])), r"\[0, 1\], found 0.5 to 1.2: clip them first"),
        (lambda: entropy(torch.tensor([[0.5, math.nan]])), r"\[0, 1\]"),
        (lambda: entropy(torch.zeros(2, 2, dtype=torch.int64)), "uint8 or floating point, got torch.int64"),
        (lambda: entropy(torch.zeros(0, 2, dtype=torch.uint8)), "N >= 1"),
        (lambda: mse(torch.zeros(1, 2), torch.zeros(1, 3)), r"one shape.*\(1, 2\) and \(1, 3\)"),
        (lambda: mse(torch.tensor([[math.nan]]), torch.zeros(1, 1)), "NaN or infinite"),
        (lambda: psnr(torch.zeros(1, 1), torch.tensor([[math.inf]])), "NaN or infinite"),
        (lambda: ssim(torch.zeros(1, 10, 40), torch.zeros(1, 10, 40)), "at least 11 pixels"),
        (lambda: ssim(torch.zeros(1, 400), torch.zeros(1, 400)), "at least 11 pixels"),
        (lambda: ssim(torch.full((1, 11, 11), 2.0), torch.zeros(1, 11, 11)), "clip them first"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
