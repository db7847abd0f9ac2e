"""Light and sharpness: sub-bands add up, and a picture gets more of what it is asked to have."""

import pytest
import torch

from idpgan.models.camera import LIGHT, SHARPNESS, light, lit, sharpened, sharpness


def pictures(*shape, seed=0):
    return torch.nn.functional.avg_pool2d(torch.rand(*shape, generator=torch.Generator().manual_seed(seed)), 3, 1, 1)


@pytest.mark.parametrize("shape", [(3, 1, 32, 32), (2, 3, 64, 64), (2, 1, 33, 48)])
def test_no_change_gives_the_picture_back_and_a_change_of_light_is_exact(shape):
    images = pictures(*shape)
    torch.testing.assert_close(sharpened(images, torch.zeros(SHARPNESS)), images, rtol=0, atol=1e-6)
    torch.testing.assert_close(lit(images, torch.zeros(LIGHT)), images)
    change = torch.randn(LIGHT, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(light(lit(images, change)), light(images) + change, rtol=0, atol=1e-4)


def test_energies_rise_where_they_are_asked_to():
    images = pictures(40, 1, 48, 48)
    for place in (0, 4, 8):
        asked = torch.zeros(12, 3, 3)
        asked[3 * (place // 3), 0, 0] = 2.0  # a sub-band, above on the left
        moved = (sharpness(sharpened(images, asked.flatten())) - sharpness(images)).mean(0).view(12, 3, 3)
        assert float(moved[3 * (place // 3), 0, 0]) == float(moved[:, 0, 0].max()) > 0.5
        assert float(moved[: 3 * (place // 3) + 1, 2, 2].abs().max()) < 0.05


def test_blur_makes_fine_bands_weaker_and_hardly_the_coarse_ones():
    images = pictures(40, 3, 48, 48)
    blurred = torch.nn.functional.avg_pool2d(images, 3, 1, 1, count_include_pad=False)
    change = (sharpness(blurred) - sharpness(images)).mean(0).view(4, 3, 9).mean((1, 2))
    assert float(change[0]) < -0.5
    assert float(change[3].abs()) < 0.3
