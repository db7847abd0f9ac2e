"""Mean and median filter against scipy's, absolute and relative error by the paper's own example."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from idpgan.errors import InputError
from idpgan.metrics.images import absolute_error, mean_filter, median_filter, relative_error


def noise(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize("shape", [(3, 9, 7), (2, 3, 6, 5), (1, 1, 4)])
def test_filters_equal_scipys_with_the_border_repeated(side, shape):
    images = noise(*shape)
    size = [1] * (len(shape) - 2) + [side, side]
    mean = ndimage.uniform_filter(images.numpy(), size, mode="nearest")
    median = ndimage.median_filter(images.numpy(), size, mode="nearest")
    assert np.allclose(mean_filter(images, side), mean)
    assert np.array_equal(median_filter(images, side), median)
    if side > 1:
        assert not np.allclose(mean, median)
        assert not np.allclose(mean, ndimage.uniform_filter(images.numpy(), size, mode="constant"))


def test_bytes_stay_bytes_and_chunks_do_not_show(monkeypatch):
    images = (noise(5, 8, 9) * 255).round().byte()
    whole = [filter_(images) for filter_ in (mean_filter, median_filter)]
    monkeypatch.setattr("idpgan.metrics.images._CHUNK_NUMBERS", 8 * 9 * 9 * 2)
    for filter_, before in zip((mean_filter, median_filter), whole, strict=True):
        after = filter_(images)
        assert after.dtype == torch.uint8
        assert torch.equal(after, before)
        assert torch.equal(after, filter_(images.float()).round().byte())


def test_the_median_takes_a_stray_pixel_away_and_the_mean_spreads_it():
    images = torch.zeros(1, 5, 5)
    images[0, 2, 2] = 1.0
    assert not median_filter(images).any()
    assert mean_filter(images).sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("images", "side", "words"),
    [
        (torch.zeros(1, 4, 4), 2, "side = 2"),
        (torch.zeros(1, 4, 4), -1, "side = -1"),
        (torch.zeros(4, 4), 3, "got"),
        (torch.zeros(1, 4, 4, dtype=torch.int64), 3, "int64"),
    ],
)
def test_what_cannot_be_filtered_is_refused(images, side, words):
    for filter_ in (mean_filter, median_filter):
        with pytest.raises(InputError, match=words):
            filter_(images, side)


def test_errors_by_the_papers_example():
    """200 that became 280: 80 as it is, 55 as it is shown."""
    original, noisy = torch.tensor([[200.0, 100.0]]) / 255, torch.tensor([[280.0, 90.0]]) / 255
    assert (absolute_error(noisy, original) * 255).tolist() == pytest.approx([45.0])
    assert (relative_error(noisy, original) * 255).tolist() == pytest.approx([32.5])
    assert absolute_error(original, original).tolist() == relative_error(original, original).tolist() == [0.0]
    shown = torch.tensor([[255, 90]], dtype=torch.uint8)
    levels = torch.tensor([[200, 100]], dtype=torch.uint8)
    assert (absolute_error(shown, levels) * 255).tolist() == pytest.approx([32.5])
    assert torch.equal(relative_error(shown, levels), absolute_error(shown, levels))
