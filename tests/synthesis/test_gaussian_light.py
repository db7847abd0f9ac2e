"""Contrast beside coefficients at one contrast: norm, neighbors, what is drawn, and a run."""

import itertools

import pytest
import torch

from idpgan.data.images import Images, to_float
from idpgan.errors import ConfigError
from idpgan.models import load_generator
from idpgan.models.checkpoint import build_generator
from idpgan.models.config import ModelConfig, Purpose
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import Light, light_of, low_spectrum
from idpgan.privacy import Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.moments import MomentMap, count_moments, estimate_normals, private_moments
from idpgan.synthesis.shrinkage import shared
from idpgan.synthesis.template import TemplateMap
from idpgan.training.config import build_config

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, SIZE = (3, 8, 8), 12


def moment_map(channels=3, **keys):
    return MomentMap((channels, *SHAPE[1:]), SIZE, light=True, **{"contrast": 0.05} | keys)


def extreme_images():
    """No contrast, the most there is, a faint one, one bright pixel and noise, uint8."""
    flat = [torch.full(SHAPE, level, dtype=torch.uint8) for level in (0, 128, 255)]
    halves = torch.zeros(SHAPE, dtype=torch.uint8)
    halves[:, :, 4:] = 255
    faint, dot = torch.full(SHAPE, 127, dtype=torch.uint8), torch.zeros(SHAPE, dtype=torch.uint8)
    faint[:, :4], dot[0, 0, 0] = 128, 255
    noise = torch.randint(0, 256, SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return torch.stack([*flat, halves, faint, dot, noise])


def in_changing_light(num, seed=0):
    """One picture in many lights, with a little noise, (num, 3, 8, 8) uint8."""
    rng = torch.Generator().manual_seed(seed)
    picture = low_spectrum(SHAPE, 4).basis.sum(1).float().view(SHAPE)
    lights = 0.2 + torch.rand(num, 1, 1, 1, generator=rng)
    images = 0.6 * lights * picture / picture.abs().max() + 0.02 * torch.randn(num, *SHAPE, generator=rng)
    return (127.5 * (1 + images.clamp(-1, 1))).round().to(torch.uint8)


def coefficients_of(images):
    return to_float(images).flatten(1).double() @ low_spectrum(SHAPE, SIZE).basis


def normals_of(images, moments):
    sums = torch.zeros(1, moments.dimensions, dtype=torch.float64)
    for vectors, cells, _ in private_moments(Images(images), moments, conditional=False, cap=None):
        sums.index_add_(0, cells, vectors)
    return estimate_normals(sums, moments, 0.0)


def test_light_is_taken_out_and_given_back():
    rng = torch.Generator().manual_seed(1)
    light, found = light_of(SHAPE, SIZE), coefficients_of(torch.randint(0, 256, (20, *SHAPE), generator=rng).byte())
    torch.testing.assert_close(light.given_back(light.taken_out(found)), found)
    found = found[light.taken_out(found / 2)[:, SIZE:].exp().amin(1) > 1 / 15]  # within the bounds
    assert len(found) > 10
    numbers, darker = light.taken_out(found), light.taken_out(found / 2)
    torch.testing.assert_close(darker[:, 1:SIZE], numbers[:, 1:SIZE])  # the same things in half the light
    torch.testing.assert_close(numbers[:, SIZE:] - darker[:, SIZE:], torch.full((len(found), 3), 2.0).log().double())


@pytest.mark.parametrize(("counts", "bands"), [([1], 0), ([2], 1), ([12], 2), ([8, 2, 2], 3), ([1, 1, 0], 1)])
def test_every_contrast_is_of_some_coefficients(counts, bands):
    size = sum(counts)
    light = Light(torch.ones(size, dtype=torch.float64), counts)
    numbers = light.taken_out(torch.arange(1.0, size + 1).double()[None])
    assert numbers.shape == (1, size + bands)
    torch.testing.assert_close(light.given_back(numbers)[0], torch.arange(1.0, size + 1).double())


def test_it_is_bounded_for_any_image():
    light, numbers = light_of(SHAPE, SIZE), light_of(SHAPE, SIZE).taken_out(coefficients_of(extreme_images()))
    assert numbers.isfinite().all()
    assert numbers[:, SIZE:].abs().max() <= torch.tensor(16.0).log() + 1e-9
    assert light.given_back(torch.full((1, SIZE + 3), 1e3).double()).max() <= 16e3 + 1e-6


def test_means_are_shared_as_far_as_noise_hides_them():
    rng, rows = torch.Generator().manual_seed(0), 40
    true = torch.randn(rows, 300, generator=rng, dtype=torch.float64)
    std = torch.linspace(0.2, 4.0, rows, dtype=torch.float64)
    noisy = true + std[:, None] * torch.randn(true.shape, generator=rng, dtype=torch.float64)
    better = (shared(noisy, std) - true).square().mean(1)
    best = std.square() / (1 + std.square())  # by who knows the spread, which is 1
    assert (better / best - 1).abs().max() < 0.7
    assert (better / (noisy - true).square().mean(1))[-1] < 0.1  # a class of few images gains the most
    torch.testing.assert_close(shared(noisy, 0 * std), noisy)
    torch.testing.assert_close(shared(noisy[:1], std[:1]), noisy[:1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_no_vector_is_longer_than_one_and_one_reaches_it(symmetric, channels):
    moments = moment_map(channels, symmetric=symmetric)
    vectors = moments(to_float(torch.cat([extreme_images(), in_changing_light(200)])[:, :channels]))
    numbers = count_moments(moments.image_shape, SIZE, symmetric=symmetric, light=True)
    assert vectors.shape[1] == moments.dimensions == numbers
    assert 1 - 1e-6 < vectors.norm(dim=1).max() <= 1 + 1e-12
    assert (1.1 * vectors).norm(dim=1).max() > 1  # control: the norm is no slack


def placed(shape=3, channels=3, **keys):
    """Images in changing light and place, and the map that brings them into place on their mean image."""
    images = in_changing_light(60)[:, :channels]
    images[::2] = images[::2].roll(1, 3)
    moments = moment_map(channels, shape=shape, **keys)
    moments.set_template(to_float(images).mean(0))
    return to_float(images), moments


@pytest.mark.parametrize("channels", [1, 3])
def test_in_place_too_no_vector_is_longer_than_one(channels):
    images, moments = placed(channels=channels)
    vectors = moments(torch.cat([to_float(extreme_images())[:, :channels], images]))
    assert vectors.shape[1] == moments.dimensions == count_moments(moments.image_shape, SIZE, 3, light=True)
    assert 1 - 1e-6 < vectors.norm(dim=1).max() <= 1 + 1e-12


def test_an_image_is_drawn_again_of_its_numbers_at_one_contrast_in_place():
    images, moments = placed()
    config = ModelConfig(generator="gaussian", latent_dim=SIZE, conditional=False, drawing=Drawing(light=True, shape=3))
    generator, errors = build_generator(config, SHAPE, 0), []
    for image, numbers in zip(images, moments.coefficients(images), strict=True):
        assert numbers[-6:].abs().max() > 0  # a displacement
        smooth = (moments.basis @ (moments.basis.T @ image.flatten().double())).view(SHAPE)
        generator.set_moments(numbers[None].float(), torch.zeros(1, len(numbers), 1))
        errors.append((generator.sample(1, seed=0)[0] - smooth).square().mean() / smooth.square().mean())
    assert torch.stack(errors).mean() < 0.1


def test_templates_of_small_classes_take_more_of_the_others():
    rng, rows, std = torch.Generator().manual_seed(0), 30, 8.0
    counts = torch.linspace(20.0, 2000.0, rows, dtype=torch.float64)[:, None]
    maps = {light: TemplateMap(MomentMap(SHAPE, SIZE, shape=2, light=light)) for light in (True, False)}
    z = 0.2 * torch.randn(rows, maps[True].dimensions, generator=rng, dtype=torch.float64)
    z[:, 0] = maps[True]._texture.constant
    noisy = counts * z + std * torch.randn(z.shape, generator=rng, dtype=torch.float64)
    true = maps[True].read(counts * z)
    error = {light: (found.read(noisy, std) - true).square().mean((1, 2, 3)) for light, found in maps.items()}
    assert error[True][0] < error[False][0] / 2
    assert error[True][-1] < 1.2 * error[False][-1]
    torch.testing.assert_close(true, maps[False].read(counts * z))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("relation", list(Relation))
def test_no_neighbor_moves_the_sums_further_than_declared(small_tiles, relation, in_place):
    moments = placed()[1] if in_place else moment_map()
    base = Images(in_changing_light(5), torch.tensor([0, 1, 0, 1, 0]), ("a", "b"))
    sums = CellSums(2, moments.dimensions, "gaussian", 1.0, Unit.IMAGE, relation)
    variants = [base.zeroed_out(torch.tensor([2]))] if relation is Relation.ZERO_OUT else []
    for picture, label in itertools.product(extreme_images(), (0, 1)):
        pixels, labels = base.images.clone(), base.labels.clone()
        pixels[2], labels[2] = picture, label
        variants.append(Images(pixels, labels, base.classes))
    totals = [exact(sums, variant, moments) for variant in variants]
    pairs = itertools.combinations(totals, 2) if relation is Relation.REPLACE_ONE else ((totals[0], t) for t in totals)
    worst = max((left - right).norm().item() for left, right in pairs)
    reached = 0.99 if relation is Relation.ZERO_OUT else 0.7  # 2 is charged of replace-one, and sqrt(2) is reached
    assert reached * sums.mechanism.sensitivity < worst <= sums.mechanism.sensitivity


def exact(sums, images, moments):
    return sum(sums._exact_sum(*part) for part in private_moments(images, moments, conditional=True, cap=None))


def test_a_record_does_not_change_the_bits_of_another():
    moments, base = moment_map(), Images(in_changing_light(40))
    whole, rest = (
        torch.cat([part[0] for part in private_moments(images, moments, conditional=False, cap=None)])
        for images in (base, base.zeroed_out(torch.tensor([0, 7])))
    )
    others = torch.tensor([row for row in range(40) if row not in (0, 7)])
    assert torch.equal(whole[others], rest[others])


def test_drawn_images_have_the_spread_of_light_of_the_private_ones():
    images, spreads = in_changing_light(2000), {}
    contrast = to_float(images).flatten(1).std(1)
    for light in (True, False):
        found = normals_of(images, MomentMap(SHAPE, SIZE, light=light))
        config = ModelConfig(generator="gaussian", latent_dim=SIZE, conditional=False, drawing=Drawing(light=light))
        generator = build_generator(config, SHAPE, 0)
        generator.set_moments(found.mean, found.factor)
        drawn = generator.sample(2000, seed=0, purpose=Purpose.TRAINING).flatten(1).std(1)
        spreads[light] = float(drawn.log().std() / contrast.log().std())
        assert float(drawn.mean()) == pytest.approx(float(contrast.mean()), rel=0.2)
    assert spreads[True] == pytest.approx(1.0, abs=0.2)
    assert spreads[False] < 0.85  # vectors are cut to one length, and with them the lights


def config_of(**model):
    table = {
        "model": {"generator": "gaussian", "latent_dim": 12, "drawing": {"light": True}} | model,
        "method": {"name": "gaussian"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5},
        "training": {"device": "cpu"},
        "release": {"samples": 10},
    }
    return build_config(table, "a test")


@pytest.mark.parametrize(("name", "size"), [("gaussian, light", 14), ("gaussian, light in place", 18)])
def test_two_numbers_of_light_are_drawn_beside_the_coefficients(small_run, name, size):
    assert load_generator(small_run(name)).latent_dim == size


@pytest.mark.parametrize(
    ("keys", "words"), [({"generator": "warp"}, "is for generator = 'gaussian'"), ({"moved": 50}, "exclude each other")]
)
def test_what_has_no_such_law_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        config_of(drawing="photos", **keys)
