"""The scattering transform against an independent implementation, and what its features promise."""

from pathlib import Path

import numpy as np
import pytest
import torch

from idpgan.errors import InputError
from idpgan.models.scattering import Scattering, scales_of

# Scattering2D of kymatio 0.3.0 (NumPy 1.26.4, SciPy 1.11.4), its NumPy backend in float64, on
# np.random.RandomState(seed).rand(H, W): seed 0 for 28 x 28 (J = 2, L = 8), seed 1 for 48 x 40 (J = 3, L = 4).
GOLDEN = np.load(Path(__file__).with_name("scattering_golden.npz"))


def random_images(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "scales", "directions", "seed"), [("28x28", 2, 8, 0), ("48x40", 3, 4, 1)])
def test_it_is_the_transform_of_an_independent_implementation(name, scales, directions, seed):
    height, width = map(int, name.split("x"))
    image = torch.from_numpy(np.random.RandomState(seed).rand(height, width)).float()  # as kymatio got it
    found = Scattering((1, height, width), scales, directions)(image[None, None])[0]
    assert found.shape == GOLDEN[name].shape
    assert torch.allclose(found, torch.from_numpy(GOLDEN[name]), atol=5e-5)
    turned = Scattering((1, height, width), scales, directions)(image.flip(1)[None, None])[0]
    assert not torch.allclose(turned, torch.from_numpy(GOLDEN[name]), atol=1e-2)  # the comparison can fail


def test_channels_are_transformed_one_by_one():
    images = random_images(2, 3, 32, 32)
    alone = torch.cat([Scattering((1, 32, 32))(images[:, [channel]]) for channel in range(3)], 1)
    assert torch.allclose(Scattering((3, 32, 32))(images), alone, atol=1e-6)


@pytest.mark.parametrize(("shape", "output"), [((1, 28, 28), (81, 7, 7)), ((1, 64, 64), (217, 8, 8)),
                                               ((1, 112, 92), (417, 7, 5)), ((3, 48, 48), (651, 6, 6))])  # fmt: skip
def test_shapes(shape, output):
    scattering = Scattering(shape)
    assert scattering.output_shape == output
    assert scattering(random_images(1, *shape)).shape == (1, *output)


def test_features_have_norm_one_ignore_contrast_and_depend_on_their_own_image_only():
    images, scattering = random_images(3, 1, 28, 28), Scattering((1, 28, 28))
    features = scattering.normalized(images)
    assert torch.allclose(features.norm(dim=1), torch.ones(3))
    assert torch.allclose(scattering.normalized(0.3 * images), features, atol=1e-3)
    assert torch.allclose(scattering.normalized(images[1:2])[0], features[1], atol=1e-6)
    assert float(scattering.normalized(torch.zeros(1, 1, 28, 28)).norm()) == 0


def test_a_shift_moves_features_less_than_pixels():
    images, scattering = random_images(1, 1, 36, 36), Scattering((1, 32, 32))
    left, right = images[..., 2:34, 2:34], images[..., 2:34, 3:35]
    pixels = float((left - right).norm() / left.norm())
    moved = float((scattering(left) - scattering(right)).norm() / scattering(left).norm())
    assert moved < 0.5 * pixels


def test_gradients_reach_the_images():
    images = random_images(1, 1, 28, 28).requires_grad_()
    Scattering((1, 28, 28)).normalized(images).square().sum().backward()
    assert bool(images.grad.isfinite().all())


@pytest.mark.parametrize(("side", "scales"), [(28, 2), (39, 2), (40, 3), (64, 3), (80, 4), (128, 4)])
def test_scales_follow_from_the_size(side, scales):
    assert scales_of(side, side) == scales


@pytest.mark.parametrize(("shape", "scales"), [((1, 7, 28), 2), ((1, 28, 28), 0), ((1, 15, 15), 3)])
def test_images_that_are_too_small_are_refused(shape, scales):
    with pytest.raises(InputError, match="scattering with J"):
        Scattering(shape, scales)


def test_images_of_another_shape_are_refused():
    with pytest.raises(InputError, match="images must be"):
        Scattering((1, 28, 28))(random_images(1, 1, 32, 32))
