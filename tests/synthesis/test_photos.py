"""Features of photographs: norm and sensitivity by brute force, absolute units, the start, and a run to its release."""

import itertools
import json

import pytest
import torch

from idpgan import trainer
from idpgan.data.images import Images
from idpgan.data.load import Split, load
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models import load_generator
from idpgan.models.gaussian import softly_clamped
from idpgan.privacy import Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis import aggregate, gaussian
from idpgan.synthesis.feature_sums import PhotoFeatures, private_vectors
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, SIZE = (1, 12, 12), 6


def features_of(image_shape=SHAPE, size=SIZE):
    return PhotoFeatures(image_shape, size, dimensions=4, fourier=5)


def extremes(shape=SHAPE):
    """Grey, black, white, a checkerboard, a bright and a faint wave, noise: in [-1, 1]."""
    _, height, width = shape
    wave = torch.cos(torch.pi * (torch.arange(width) + 0.5) / width).expand(height, width)
    board = 1.0 - 2 * ((torch.arange(height)[:, None] + torch.arange(width)) % 2)
    noise = torch.rand(height, width, generator=torch.Generator().manual_seed(0)) * 2 - 1
    flat = [torch.full((height, width), level) for level in (0.0, -1.0, 1.0)]
    return torch.stack([*flat, board, wave, 0.02 * wave, noise]).float()[:, None].expand(-1, *shape)


def random_images(num, shape=SHAPE, classes=2, people=None):
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (num, *shape), generator=rng, dtype=torch.uint8)
    identities = None if people is None else torch.arange(num) % people
    return Images(pixels, torch.arange(num) % classes, ("a", "b")[:classes], identities)


def exact(sums, images, features, cap=None):
    """The sums that are released, without noise, in grid steps; coins of a fixed seed."""
    conditional = sums.num_cells > 1
    return sums.exact(private_vectors(images, features, Noise.fixed(1), conditional=conditional, motion=0.0, cap=cap))


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 28, 28), (1, 112, 92)])
def test_a_vector_has_at_most_norm_one_and_as_many_numbers_as_declared(shape):
    features = features_of(shape)
    vectors = features(extremes(shape), torch.arange(7) % 2)
    assert vectors.shape == (7, features.dimensions)
    norms = vectors.double().norm(dim=1)
    assert norms.max() <= 1 + 1e-6
    assert norms.max() > 0.95
    assert (vectors[:, -1] == features.count).all()
    assert (vectors * 1.06).norm(dim=1).max() > 1  # control: the shares are not slack


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ZERO_OUT])
def test_no_neighbor_moves_the_sums_further_than_declared(small_tiles, relation):
    features, base = features_of(), random_images(5)
    sums = CellSums(2, features.dimensions, "gaussian", 1.0, Unit.IMAGE, relation)
    variants = [] if relation is Relation.REPLACE_ONE else [base.zeroed_out(torch.tensor([2]))]
    for picture, label in itertools.product(extremes(), (0, 1)):
        pixels, labels = base.images.clone(), base.labels.clone()
        pixels[2], labels[2] = ((picture + 1) * 127.5).round().to(torch.uint8), label
        variants.append(Images(pixels, labels, base.classes))
    totals = [exact(sums, variant, features) for variant in variants]
    pairs = [(totals[0], other) for other in totals[1:]]
    if relation is Relation.REPLACE_ONE:
        pairs = list(itertools.combinations(totals, 2))
    worst = max((left - right).double().norm().item() for left, right in pairs)
    assert worst <= sums.mechanism.sensitivity
    least = 0.97 if relation is Relation.ZERO_OUT else 0.68
    assert worst > least * sums.mechanism.sensitivity


def test_a_person_with_many_images_moves_the_sums_no_further_than_one(small_tiles):
    features, cap, base = features_of(), 3, random_images(12, classes=1, people=3)
    sums = CellSums(1, features.dimensions, "gaussian", 1.0, Unit.PERSON, Relation.ZERO_OUT, most_per_unit=cap)
    pixels = base.images.clone()
    pixels[base.identities == 1] = ((extremes()[4] + 1) * 127.5).round().to(torch.uint8)
    base = Images(pixels, base.labels, base.classes, base.identities)
    moved = exact(sums, base, features, cap) - exact(sums, base.zeroed_out(base.identities == 1), features, cap)
    assert 0.97 * sums.mechanism.sensitivity < moved.double().norm().item() <= sums.mechanism.sensitivity


def test_a_record_does_not_change_the_bits_of_another(small_tiles):
    features, base = features_of(), random_images(40)
    read = lambda images: torch.cat(  # noqa: E731
        [part[0] for part in private_vectors(images, features, Noise.fixed(1), conditional=True, motion=0.3, cap=None)]
    )
    whole, rest = read(base), read(base.zeroed_out(torch.tensor([0, 7])))
    kept = torch.ones(40, dtype=torch.bool)
    kept[[0, 7]] = False
    assert torch.equal(whole[kept], rest[kept])
    assert not rest[~kept].any()


def test_contrast_is_seen():
    """Twice the contrast is another mean of every block; half flat and half saturated images do not pass for grey."""
    features, rng = features_of((1, 28, 28)), torch.Generator().manual_seed(0)
    noise = 0.3 * torch.randn(200, 1, 28, 28, generator=rng)
    plain = features.matched(noise, None).mean(0)
    split = features.matched(torch.cat([noise[:100] * 0.05, noise[100:] * 2]), None).mean(0)
    assert (plain - split).norm() > 0.15 * plain.norm()
    again = features.matched(0.3 * torch.randn(200, 1, 28, 28, generator=rng), None).mean(0)
    assert (plain - again).norm() < 0.05 * plain.norm()  # control


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 28, 28)])
def test_what_is_matched_is_a_part_of_what_is_released(shape):
    features, images, labels = features_of(shape, 9), extremes(shape), torch.arange(7) % 2
    released, matched = features(images, labels), features.matched(images, labels)
    assert matched.shape[1] < released.shape[1] - 1
    assert torch.allclose(features.matched_of(released), matched, atol=1e-7)
    assert torch.allclose(features.means(images, labels, 1)[0], matched.mean(0), atol=1e-6)


def test_without_noise_the_start_is_that_of_gaussian():
    """The moments of both methods, from one set of images, give one normal distribution."""
    features, images = features_of(), random_images(300)
    vectors = features(images.images / 127.5 - 1, None).double()
    own = torch.stack([vectors[images.labels == row].sum(0) for row in (0, 1)])
    plain = features.moments(images.images / 127.5 - 1)
    of_gaussian = torch.stack([plain[images.labels == row].sum(0) for row in (0, 1)])
    found = features.normals(own, 0.0)
    from_moments = features.moments.read(of_gaussian, 0.0)
    assert torch.allclose(found.mean, features.moments.center + features.moments.scale * from_moments.first
                          / from_moments.counts[:, None] * gain(from_moments), atol=1e-4)  # fmt: skip
    coefficients = features.moments.coefficients(images.images / 127.5 - 1)
    assert torch.allclose(found.mean[0], coefficients[images.labels == 0].mean(0), atol=0.2)


def gain(found):
    kept = found.second.diagonal(dim1=1, dim2=2).sum()
    return (found.power.sum() / kept).clamp(min=1).sqrt()


# From config to release ----------------------------------------------------------------------------------------------


def table_of(*, steps=3, model=None, privacy=None, data=None, **method):
    return {
        "data": data or {"name": "digits"},
        "model": {"generator": "refined", "latent_dim": 12, "width": 4} | (model or {}),
        "method": {"name": "idp-gan-aggregate", "features": "photos", "moments": 4, "fourier": 5, "augment": 0.0}
        | {"metric_steps": [2]}
        | method,
        "privacy": {"epsilon": 8.0, "delta": 1e-5} | (privacy or {}),
        "training": {"steps": steps, "batch_size": 20, "tick_steps": 2, "device": "cpu"},
        "release": {"samples": 10},
    }


def test_a_release_says_what_is_taken_for_public(small_run):
    stated = json.loads((small_run("photos") / "release" / "privacy.json").read_text())
    assert "the feature map (photos features)" in stated["report"]["public_assumptions"][0]


FACES = {"name": "faces", "num_images": 60, "num_people": 20, "image_size": 28, "label": ["smiling"]}


@pytest.mark.parametrize(("unit", "channels"), [("image", 1), ("person", 3)])
def test_color_unit_and_drawn_public_faces(small_tiles, tmp_path, unit, channels):
    data = FACES | {"channels": channels, "split_by": "identity", "holdout_share": 0.0}
    data |= {"public": "faces", "public_images": 50, "public_crop": 0.6}  # unlabeled: a center and a scale
    table = table_of(steps=1, data=data, privacy={"unit": unit, "most_per_person": 2})
    config = build_config(table, "a test")
    trainer.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    assert load_generator(tmp_path / "run").sample(2, seed=0).shape == (2, channels, 28, 28)
    other = build_config(table | {"method": table["method"] | {"metric": "public"}}, "a test")
    with pytest.raises(ConfigError, match="the public images have no labels"):
        plan_run(other, load(config.data).shape).check()


def method_of(config, split=None):
    split = split or load(config.data)
    method = config_method(config).of(config, split, device=torch.device("cpu"), noise=Noise.fixed(1))
    method.prepare()
    return method


def config_method(config):
    return gaussian.Method if config.method.name == "gaussian" else aggregate.Method


def test_before_the_first_step_it_is_the_gaussian_and_the_steps_leave_mean_and_factor():
    aggregate = method_of(build_config(table_of(steps=4), "a test"))
    start = {name: weight.clone() for name, weight in aggregate.generator.state_dict().items()}
    z = torch.randn(20, aggregate.generator.latent_dim)
    labels = torch.arange(20) % 10
    drawn = aggregate.generator.unclamped(z[:, :12], labels)
    assert torch.equal(aggregate.generator(z, labels), softly_clamped(drawn))
    for step in range(1, 5):
        aggregate.step(step)
    moved = aggregate.generator.state_dict()
    assert torch.equal(moved["mean"], start["mean"])
    assert torch.equal(moved["factor"], start["factor"])
    assert not torch.equal(moved["last.weight"], start["last.weight"])


def test_the_start_is_as_good_as_that_of_gaussian():
    """Means of the classes: one tenth of the squared norm is for other features, so the noise is 5 % larger."""
    table = table_of(steps=0, privacy={"epsilon": 1e3})
    own = method_of(build_config(table, "a test"))
    table |= {"model": table["model"] | {"generator": "gaussian"}, "method": {"name": "gaussian"}}
    table["training"] = {"device": "cpu"}
    other = method_of(build_config(table, "a test"))
    assert 1.03 < (own.plan.release.sums.noise_std / 0.9**0.5) / other.plan.release.sums.noise_std < 1.1
    assert torch.allclose(own.generator.mean, other.generator.mean, atol=0.1)
    assert (own.generator.mean - other.generator.mean).norm() < 0.05 * other.generator.mean.norm()


def test_public_images_set_center_and_scale():
    data = FACES | {"channels": 1, "public_share": 0.5, "confirm_public": True}
    config = build_config(table_of(steps=0, data=data), "a test")
    split = load(config.data)
    method = method_of(config, Split(split.public, split.private, split.holdout, split.test))
    assert not torch.equal(method.features.center, torch.zeros(12, dtype=torch.float64))
    other = PhotoFeatures(split.image_shape, 12, dimensions=4, fourier=5)
    other.learn_public(split.public)
    assert torch.equal(method.features.center, other.center)
    assert torch.equal(method.features.moments.center, other.center)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": "random"}, r'model\.generator = "refined" starts at released moments'),
        ({"law": "laplace"}, r'method\.features = "photos" bounds the L2 norm'),
        ({"symmetric": True}, r"takes images as they lie"),
        ({"model": {"drawing": "faces"}}, r"takes images as they lie"),
        ({"model": {"moved": 20}}, r"takes images as they lie"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, words):
    config = build_config(table_of(**change), "a test")
    with pytest.raises(ConfigError, match=words):
        plan_run(config, load(config.data).shape).check()
