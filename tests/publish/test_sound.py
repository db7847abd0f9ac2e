"""``lap``: sensitivities by brute force, noise as calibrated, proven never above what was asked for."""

import itertools
import math

import pytest
import torch
from scipy.stats import kstest, laplace, norm

from idpgan.errors import InputError
from idpgan.privacy import Noise, RoundedGaussian, Unit, compose_epsilon
from idpgan.publish import release
from idpgan.publish.sound.numbers import calibrate_pixels, touched_pixels
from tests.publish.pictures import pictures

SETTINGS = [("laplace", 0.0), ("laplace", 1e-5), ("gaussian", 1e-5)]
UNITS = (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE)


def unit_of(image, unit):
    """Mask of one unit of an image."""
    mask = torch.zeros_like(image, dtype=torch.bool)
    if unit is Unit.PIXEL:
        mask[-1, -1] = True
    elif unit is Unit.COLUMN:
        mask[:, -1] = True
    else:
        mask[:] = True
    return mask


@pytest.mark.parametrize(("law", "delta"), SETTINGS)
@pytest.mark.parametrize("unit", UNITS)
def test_no_neighbor_moves_the_rounded_query_further_than_declared(unit, law, delta):
    """All replacements of one unit of a 2 x 2 image by values at, beside, between and beyond the ends of the range."""
    found = calibrate_pixels((2, 2), unit, law, epsilon=1.0, delta=delta)
    levels = (-3.0, 0.0, found.grid.step * 0.49, found.grid.step * 0.51, 1 - found.grid.step * 0.51, 1.0, 7.0)
    image = torch.tensor([[0.3, 0.0], [1.0, 0.2]]).double()
    mask = unit_of(image, unit)
    size = int(mask.sum())
    values = levels if size < 4 else (-3.0, found.grid.step * 0.51, 1.0)
    versions = []
    for replaced in itertools.product(values, repeat=size):
        changed = image.clone()
        changed[mask] = torch.tensor(replaced).double()
        versions.append(found.grid.round(changed.clamp(0, 1)).double())
    moves = torch.stack([one - other for one, other in itertools.combinations(versions, 2)])
    if isinstance(found.mechanism, RoundedGaussian):
        farthest = moves.square().sum((1, 2)).sqrt().max().item()
    elif found.count > 1:
        farthest = moves.abs().max().item()  # each pixel is charged by itself
        assert (moves != 0).sum((1, 2)).max() <= found.count
    else:
        farthest = moves.abs().sum((1, 2)).max().item()
    assert 0.99 * found.mechanism.sensitivity <= farthest <= found.mechanism.sensitivity


@pytest.mark.parametrize(("law", "delta"), SETTINGS)
@pytest.mark.parametrize("unit", UNITS)
def test_proven_is_what_was_asked_for_or_less(unit, law, delta):
    epsilon = 0.7
    released = release(pictures(2, 4, 3), "lap", epsilon=epsilon, delta=delta, unit=unit, law=law)
    proven = released.privacy.proven
    assert 0.97 * epsilon < proven.epsilon <= epsilon
    assert proven.epsilon == compose_epsilon(released.events, delta)
    assert (proven.unit, proven.delta) == (unit, delta)
    assert released.privacy.private


@pytest.mark.parametrize(("unit", "distance"), [(Unit.PIXEL, 1), (Unit.COLUMN, 60), (Unit.IMAGE, 60 * 150)])
def test_pure_noise_has_the_scale_of_its_unit(unit, distance):
    images = pictures(8, 60, 150)
    noise = release(images, "lap", epsilon=0.5, unit=unit, noise=Noise.fixed(1)).images - images
    flat, scale = noise.flatten().numpy(), distance / 0.5
    assert kstest(flat, laplace(scale=scale).cdf).pvalue > 1e-3
    for wrong in (0.9 * scale, 1.1 * scale, 2 * scale):
        assert kstest(flat, laplace(scale=wrong).cdf).pvalue < 1e-6


def test_gaussian_noise_is_gaussian():
    images = pictures(8, 40, 120)
    released = release(images, "lap", epsilon=1.0, delta=1e-5, unit="column", law="gaussian", noise=Noise.fixed(2))
    flat = (released.images - images).flatten().numpy()
    std = calibrate_pixels((40, 120), Unit.COLUMN, "gaussian", epsilon=1.0, delta=1e-5).scale
    assert kstest(flat, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(flat, laplace(scale=std / 2**0.5).cdf).pvalue < 1e-6
    for wrong in (0.9 * std, 1.1 * std):
        assert kstest(flat, norm(scale=wrong).cdf).pvalue < 1e-6
    # sqrt(m) R times the multiplier of Balle and Wang 2018; a discrete Gaussian, priced by zCDP, needed 4.08.
    assert std == pytest.approx(math.sqrt(40) * 3.7307, rel=0.003)


def test_with_delta_the_better_of_two_proofs_is_taken():
    few = calibrate_pixels((2, 2), Unit.COLUMN, "laplace", epsilon=1.0, delta=1e-5)
    many = calibrate_pixels((30, 2), Unit.COLUMN, "laplace", epsilon=1.0, delta=1e-5)
    assert (few.count, many.count) == (1, 30)
    for found, pixels in ((few, 2), (many, 30)):
        assert found.scale <= calibrate_pixels((pixels, 2), Unit.COLUMN, "laplace", epsilon=1.0, delta=0.0).scale
    assert many.scale < 0.9 * 30


def test_the_noise_does_not_depend_on_the_image():
    black, white = torch.zeros(1, 5, 4), torch.ones(1, 5, 4)
    one, other = (release(x, "lap", epsilon=1.0, noise=Noise.fixed(3)).images for x in (black, white))
    assert torch.allclose(one + 1, other, atol=1e-5)
    assert one.abs().min() > 0  # black is not released exactly
    beyond = release(white * 9, "lap", epsilon=1.0, noise=Noise.fixed(3)).images
    assert torch.equal(beyond, other)


def test_values_lie_on_the_public_grid():
    released = release(pictures(1, 5, 4), "lap", epsilon=1.0)
    steps = released.images / calibrate_pixels((5, 4), Unit.PIXEL, "laplace", epsilon=1.0, delta=0.0).grid.step
    assert torch.equal(steps, steps.round())


def test_impossible_budgets_are_refused():
    with pytest.raises(InputError, match="no pure guarantee"):
        calibrate_pixels((3, 3), Unit.PIXEL, "gaussian", epsilon=1.0, delta=0.0)
    with pytest.raises(InputError, match="no amount of noise"):
        calibrate_pixels((3, 3), Unit.IMAGE, "gaussian", epsilon=1e-13, delta=1e-15)
    with pytest.raises(InputError, match="drawn exactly"):
        calibrate_pixels((3, 3), Unit.IMAGE, "laplace", epsilon=1e-13, delta=0.0)
    with pytest.raises(InputError, match="not part of an image"):
        touched_pixels((3, 3), Unit.LABEL)
