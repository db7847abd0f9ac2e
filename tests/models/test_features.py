"""The contract of a feature map: norm at most 1 for every image, and means that equal the mean of vectors."""

import pytest
import torch

from idpgan.models.features import (
    DATALESS,
    EmbeddingNet,
    PublicFeatures,
    RandomFeatures,
    ScatteringFeatures,
)
from idpgan.models.warp import MOVES, augment, move

CLASSES = 3


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def public_features(shape, norm, num_classes=CLASSES):
    public = torch.randint(0, 256, (12, *shape), generator=rng(1), dtype=torch.uint8)
    return PublicFeatures(EmbeddingNet(shape, CLASSES, seed=2), public, num_classes, norm=norm)


def random_features(shape, norm):
    return RandomFeatures(shape, norm=norm, dimensions=10, fourier=40)


def scattering_features(shape, norm):
    return ScatteringFeatures(shape, norm=norm, dimensions=10, fourier=40)


def extreme_images(shape):
    """Black, white, checkerboard, one bright pixel, noise: far from anything that the map was fitted to."""
    _, height, width = shape
    board = (torch.arange(height)[:, None] + torch.arange(width)) % 2 * 2.0 - 1
    pixel = -torch.ones(shape)
    pixel[0, 0, 0] = 1
    flat = [torch.full(shape, value) for value in (-1.0, 0.0, 1.0)]
    noise = torch.rand(20, *shape, generator=rng(3)) * 2 - 1
    return torch.cat([torch.stack([*flat, board.expand(shape), pixel]), noise, noise.sign()])


MAPS = [public_features, random_features, scattering_features]


@pytest.mark.parametrize("build", MAPS)
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 48, 48), (1, 112, 92)])
def test_no_image_has_a_norm_above_one(build, norm, shape):
    features = build(shape, norm)
    images = extreme_images(shape)
    labels = torch.arange(len(images)) % CLASSES
    vectors = features(images, labels).detach()
    norms = torch.linalg.vector_norm(vectors.double(), ord=norm, dim=1)
    assert vectors.shape == (len(images), features.dimensions)
    assert vectors.isfinite().all()
    assert norms.max() <= 1 + 1e-5
    assert norms.max() > 0.5  # the bound is used, not wasted
    assert torch.equal(vectors[:, -1], torch.full((len(images),), features.count))


@pytest.mark.parametrize("build", MAPS)
@pytest.mark.parametrize("norm", [1, 2])
def test_means_are_the_means_of_the_vectors(build, norm):
    features = build((1, 8, 8), norm)
    images = extreme_images((1, 8, 8))[:24]
    labels = torch.arange(3).repeat_interleave(8)
    expected = features(images, labels).view(3, 8, -1).mean(1)[:, :-1]
    found = features.means(images, labels, 3)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found.roll(1, 0), expected, atol=1e-3)


def test_the_random_map_needs_no_data_and_follows_its_seed():
    images = extreme_images((1, 8, 8))
    same = [random_features((1, 8, 8), 2)(images, None) for _ in range(2)]
    assert torch.equal(*same)
    other = RandomFeatures((1, 8, 8), seed=1, dimensions=10, fourier=40)(images, None)
    assert not torch.allclose(same[0], other, atol=1e-3)


def test_the_level_is_where_brightness_is_counted_from():
    grey = torch.zeros(1, 1, 8, 8)
    from_grey, from_black = (RandomFeatures((1, 8, 8), level=level).blocks(grey, None)[0].left for level in (0.5, 0.0))
    assert from_grey[0, :-1].abs().max() < 1e-5
    assert from_black[0, 0] > 0.5


@pytest.mark.trained
def test_generated_images_can_be_pulled_towards_scattering_means():
    """Gradients flow through the map: descent on pixels brings the features of images to those of others."""
    features = ScatteringFeatures((1, 8, 8), norm=2, dimensions=20, fourier=100)
    target = features(torch.rand(8, 1, 8, 8, generator=rng(5)) * 2 - 1, None)
    pixels = (torch.rand(8, 1, 8, 8, generator=rng(6)) * 0.2).requires_grad_()

    def distance(wanted):
        return (features(pixels, None) - wanted).square().sum()

    before, before_others = distance(target).item(), distance(target.flip(0)).item()
    optimizer = torch.optim.Adam([pixels], 0.1)
    for _ in range(150):
        optimizer.zero_grad()
        distance(target).backward()
        optimizer.step()
    assert distance(target).item() < 0.3 * before
    assert distance(target.flip(0)).item() > 0.7 * before_others  # control: to what nothing pulled


def test_unlabeled_images_have_no_gradient_block():
    with_labels = public_features((1, 8, 8), 2)
    without = public_features((1, 8, 8), 2, num_classes=0)
    assert without.dimensions == with_labels.dimensions - CLASSES * 65
    assert without(extreme_images((1, 8, 8)), None).shape[1] == without.dimensions


@pytest.mark.parametrize("num_classes", [0, CLASSES])
@pytest.mark.parametrize(
    ("shape", "components"), [((1, 8, 8), 40), ((1, 28, 28), 100), ((3, 48, 48), 10), ((1, 112, 92), 10)]
)
def test_dimensions_are_known_before_a_public_image_is_read(shape, components, num_classes):
    public = torch.randint(0, 256, (12, *shape), generator=rng(1), dtype=torch.uint8)
    network = EmbeddingNet(shape, CLASSES, seed=2)
    features = PublicFeatures(network, public, num_classes, components=components, fourier=30)
    known = PublicFeatures.count_dimensions(shape, 12, num_classes, components=components, fourier=30)
    assert features.dimensions == known
    for kind in DATALESS.values():
        drawn = kind(shape, dimensions=components, fourier=30)
        assert drawn.dimensions == kind.count_dimensions(shape, dimensions=components, fourier=30)


def test_features_are_restored_from_their_state():
    features, again = public_features((1, 8, 8), 2), public_features((1, 8, 8), 2)
    for weight in again.state_dict().values():
        weight.zero_()
    again.load_state_dict(features.state_dict())
    images = extreme_images((1, 8, 8))
    labels = torch.zeros(len(images), dtype=torch.int64)
    assert torch.equal(features(images, labels), again(images, labels))


def test_gradients_reach_the_images_and_not_the_network():
    features = public_features((1, 8, 8), 2)
    images = extreme_images((1, 8, 8)).requires_grad_()
    features.means(images, torch.zeros(len(images), dtype=torch.int64), 1).square().sum().backward()
    assert images.grad.abs().sum() > 0
    assert all(weight.grad is None for weight in features.network.parameters())


def test_no_motion_leaves_images_as_they_are_and_a_shift_shifts():
    images = torch.rand(2, 1, 8, 8, generator=rng())
    assert torch.allclose(move(images, torch.zeros(2, MOVES)), images, atol=1e-5)
    shift = torch.zeros(2, MOVES)
    shift[:, 4] = 0.25  # one of eight pixels to the left
    assert torch.allclose(move(images, shift)[..., :-1], images[..., 1:], atol=1e-5)


def test_motion_is_that_of_pixels_whatever_the_shape():
    """A disk turned around the center stays a disk where the image is not a square."""
    rows, columns = torch.meshgrid(torch.arange(112) - 55.5, torch.arange(92) - 45.5, indexing="ij")
    disk = (rows**2 + columns**2 < 30**2).float()[None, None]
    turn = torch.zeros(1, MOVES)
    turn[0, 0] = 0.7  # radians
    assert (move(disk, turn) - disk).abs().mean() < 0.008
    bar = (columns.abs() < 4).float().expand(1, 1, -1, -1)
    assert (move(bar, turn) - bar).abs().mean() > 0.05


def test_augmentation_follows_its_generator_and_its_strength():
    images = torch.rand(4, 1, 28, 28, generator=rng())
    assert torch.equal(augment(images, rng(1)), augment(images, rng(1)))
    assert not torch.allclose(augment(images, rng(1)), augment(images, rng(2)), atol=1e-2)
    assert torch.allclose(augment(images, rng(1), 0.0), images, atol=1e-4)


def test_a_motion_is_an_affine_map_and_a_smooth_displacement():
    images, moves = torch.rand(3, 2, 12, 10, generator=rng(1)), 0.2 * torch.randn(3, MOVES, generator=rng(2))
    angle, log_x, log_y, shear, *shift = moves[:, :6].T
    x, y, aspect = log_x.exp(), log_y.exp(), 12 / 10
    rows = [angle.cos() * x, (shear - angle.sin()) * y * aspect, shift[0]]
    rows += [angle.sin() * x / aspect, angle.cos() * y, shift[1]]
    functional = torch.nn.functional
    grid = functional.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), [3, 2, 12, 10], align_corners=False)
    bend = functional.interpolate(moves[:, 6:].view(3, 2, 5, 5), size=(12, 10), mode="bicubic", align_corners=True)
    grid = grid + bend.permute(0, 2, 3, 1)
    expected = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    assert torch.allclose(move(images, moves), expected, atol=1e-5)


def test_a_motion_first_made_in_inference_mode_serves_training_too():
    images = torch.rand(1, 1, 9, 13, generator=rng(1))
    with torch.inference_mode():
        move(images, torch.zeros(1, MOVES))
    moves = torch.zeros(1, MOVES, requires_grad=True)
    move(images, moves).sum().backward()
    assert moves.grad.abs().sum() > 0
