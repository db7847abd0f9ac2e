"""The scattering transform against an independent implementation, and what its features promise."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from idpgan.errors import InputError
from idpgan.models.private_classifier import LinearScattering
from idpgan.models.scattering import Scattering, _envelope, scales_of

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


def sampled(spectrum, factor):
    """The inverse transform of a spectrum, every factor-th place, float64."""
    return torch.fft.ifft2(spectrum)[..., ::factor, ::factor]


def by_definition(images, scales, directions):
    """``|...|x * psi_a| ...| * phi`` by Fourier transforms of whole planes, float64 (B, C * maps, rows, columns)."""
    made = Scattering(images.shape[1:], scales, directions)
    extra = [padded - side for padded, side in zip(made.padded, images.shape[2:], strict=True)]
    ends = (extra[1] // 2, (extra[1] + 1) // 2, extra[0] // 2, (extra[0] + 1) // 2)
    planes = torch.nn.functional.pad(images.double(), ends, mode="reflect").flatten(0, 1)
    phi = torch.fft.fft2(_envelope(made.padded, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0)).real
    wavelets = [torch.stack([made._wavelet(scale, turn) for turn in range(directions)]) for scale in range(scales)]

    def average(signals, level):
        low = torch.fft.fft2(signals) * made._coarser(phi[None], level)[0]
        return sampled(low, 2 ** (scales - level)).real[..., 1:-1, 1:-1]

    maps, second = [average(planes, 0)[:, None]], []
    for scale in range(scales):
        first = sampled(torch.fft.fft2(planes)[:, None] * wavelets[scale], 2**scale).abs()
        maps.append(average(first, scale))
        pairs = []
        for coarser in range(scale + 1, scales):
            filters = made._coarser(wavelets[coarser], scale)
            again = sampled(torch.fft.fft2(first)[:, :, None] * filters, 2 ** (coarser - scale)).abs()
            pairs.append(average(again, coarser))
        second += [torch.cat(pairs, 2).flatten(1, 2)] if pairs else []
    return torch.cat(maps + second, 1).unflatten(0, images.shape[:2]).flatten(1, 2)


@pytest.mark.parametrize(
    ("shape", "scales", "directions"),
    [((1, 9, 13), 1, 4), ((3, 11, 8), 2, 8), ((1, 17, 22), 3, 3), ((3, 33, 21), 2, 5)],
)  # fmt: skip
def test_it_is_its_definition_on_odd_sizes_and_color(shape, scales, directions):
    images = random_images(20, *shape)
    expected, made = by_definition(images, scales, directions), Scattering(shape, scales, directions)
    with torch.no_grad():
        found = made(images)
    assert torch.allclose(found.double(), expected, atol=2e-6)
    assert torch.allclose(made(images), found, atol=1e-6)  # where gradients are enabled, without shared memory


def test_its_gradient_is_that_of_the_definition():
    images, weights = random_images(2, 1, 12, 16).requires_grad_(), random_images(2, 81, 3, 4, seed=1)
    (by_definition(images, 2, 8) * weights).sum().backward()
    expected, images.grad = images.grad, None
    (Scattering((1, 12, 16), 2, 8)(images) * weights).sum().backward()
    assert torch.allclose(images.grad, expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 12)])
def test_features_are_to_the_last_bit_those_of_an_image_and_its_place(shape):
    images, others, scattering = random_images(37, *shape), random_images(37, *shape, seed=1), Scattering(shape)
    with torch.no_grad():
        features = scattering.normalized(images)
        for place in (0, 7, 16, 36):
            neighbor = others.clone()
            neighbor[place] = images[place]
            assert torch.equal(scattering.normalized(neighbor)[place], features[place])
            assert torch.equal(scattering.normalized(images[: place + 1])[place], features[place])
            assert not torch.equal(scattering.normalized(others)[place], features[place])  # the comparison can fail
        neighbor[5] = torch.inf
        kept = torch.arange(37) != 5
        assert torch.equal(
            scattering.normalized(torch.cat([images[:5], neighbor[5:6], images[6:]]))[kept], features[kept]
        )


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 19, 24), (1, 8, 8)])
def test_no_image_has_features_longer_than_one(shape):
    _, height, width = shape
    board = ((torch.arange(height)[:, None] + torch.arange(width)) % 2 * 2.0 - 1).expand(shape)
    pixels = -torch.ones(5, *shape)
    pixels.view(5, -1)[torch.arange(5), torch.arange(5)] = 1
    flat = torch.stack([torch.full(shape, value) for value in (-1.0, 0.0, 1.0)])
    noise = random_images(40, *shape) * 2 - 1
    images = torch.cat([board[None], pixels, flat, noise, noise.sign(), 1e-7 * noise, 1e4 * noise])
    classifier = LinearScattering(shape, ("a", "b"))
    with torch.no_grad():
        norms = classifier.features(images).double().norm(dim=1)
        torch.nn.init.normal_(classifier.weight)
        logits = classifier.features(images) @ classifier.weight.T
        assert torch.allclose(classifier.logits(images), logits, atol=1e-5)
    assert norms.max() <= 1 + 1e-6
    assert norms[9:89].min() > 1 - 1e-6  # the bound is used
    assert logits.isfinite().all()


def test_channels_are_transformed_one_by_one():
    images = random_images(2, 3, 32, 32)
    alone = torch.cat([Scattering((1, 32, 32))(images[:, [channel]]) for channel in range(3)], 1)
    assert torch.allclose(Scattering((3, 32, 32))(images), alone, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 20)])
def test_logits_weigh_the_features_of_all_channels(shape):
    images, classifier = 2 * random_images(70, *shape) - 1, LinearScattering(shape, ("a", "b", "c"))
    torch.nn.init.normal_(classifier.weight, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = classifier.features(images) @ classifier.weight.T
    assert torch.allclose(classifier.logits(images), expected, atol=1e-5)
    assert expected.std(0).min() > 1e-2  # the comparison can fail


def test_calls_share_no_memory():
    """Neither those one after another, nor those of several threads, nor those of copies."""
    shape = (3, 16, 12)
    batches = [random_images(40, *shape, seed=seed) for seed in range(6)]
    fresh = [Scattering(shape).normalized(batch).detach() for batch in batches]
    used = Scattering(shape)

    def features(batch, scattering=used):
        with torch.no_grad():
            return scattering.normalized(batch)

    first = features(batches[0])
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(features, batches))
    copied = [features(batches[1], copy.deepcopy(used)), features(batches[1], pickle.loads(pickle.dumps(used)))]
    with torch.inference_mode():
        copied.append(used.normalized(batches[1]))
    copied.append(features(batches[1]))  # after inference mode, whose memory must not be written
    for images, expected in zip([first, *found, *copied], [fresh[0], *fresh, *[fresh[1]] * 4], strict=True):
        assert torch.allclose(images, expected, atol=1e-6)
    assert not torch.allclose(fresh[0], fresh[1], atol=1e-2)  # the comparison can fail


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
