"""gaussian: sensitivity by brute force, the estimate against the truth, and a run from config to verified release."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from idpgan import trainer
from idpgan.config import load_table
from idpgan.data.images import Images
from idpgan.data.load import load
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models import load_generator
from idpgan.privacy import Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis import gaussian
from idpgan.synthesis.moments import MomentMap, estimate_normals, private_moments
from idpgan.synthesis.shrinkage import beside_public, filled, shrunk
from idpgan.trainer import train_on
from idpgan.training.config import build_config

SHAPE, SIZE = (1, 8, 8), 6
CONFIGS = Path(__file__).parents[2] / "configs"


def moment_map(**keys):
    return MomentMap(SHAPE, SIZE, **{"contrast": 0.1, "clip": 0.7, "count_share": 0.2} | keys)


def random_images(num, seed=0, classes=2, people=None):
    rng = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (num, *SHAPE), generator=rng, dtype=torch.uint8)
    identities = None if people is None else torch.arange(num) % people
    return Images(pixels, torch.arange(num) % classes, tuple("abcdefgh"[:classes]), identities)


def extreme_images():
    """Grey (norm 0), black, white, a checkerboard, a bright and a faint low frequency."""
    wave = low_wave()
    board = torch.tensor([[0, 255], [255, 0]], dtype=torch.uint8).repeat(4, 4)
    faint = (127.5 + 3 * wave).round().to(torch.uint8)
    flat = [torch.full((8, 8), level, dtype=torch.uint8) for level in (128, 0, 255)]
    return torch.stack([*flat, board, (127.5 * (1 + wave)).to(torch.uint8), faint])[:, None]


def low_wave():
    return torch.cos(torch.pi * (torch.arange(8) + 0.5) / 8).expand(8, 8)


def exact(sums, images, moments, cap=None):
    """The released sums without noise, in grid steps."""
    parts = private_moments(images, moments, conditional=sums.num_cells > 1, cap=cap)
    return sum(sums._exact_sum(*part) for part in parts)


def test_a_vector_has_at_most_norm_one_and_reaches_it():
    moments = moment_map()
    norms = moments(extreme_images() / 127.5 - 1).norm(dim=1)
    assert norms.max() <= 1 + 1e-12
    assert norms.max() > 1 - 1e-6  # the bright wave
    assert norms.min() < 0.3
    with_heavy_triangle = moments(extreme_images() / 127.5 - 1) * 1.1
    assert with_heavy_triangle.norm(dim=1).max() > 1  # control: the weights are not slack


@pytest.mark.parametrize("relation", list(Relation))
def test_no_neighbor_moves_the_sums_further_than_declared(relation):
    moments, base = moment_map(), random_images(5)
    sums = CellSums(2, moments.dimensions, "gaussian", 1.0, Unit.IMAGE, relation)
    variants = [base.zeroed_out(torch.tensor([2]))]
    if relation is Relation.REPLACE_ONE:
        variants = []
    for picture, label in itertools.product(extreme_images(), (0, 1)):
        pixels, labels = base.images.clone(), base.labels.clone()
        pixels[2], labels[2] = picture, label
        variants.append(Images(pixels, labels, base.classes))
    totals = [exact(sums, variant, moments) for variant in variants]
    pairs = [(totals[0], other) for other in totals[1:]]
    if relation is Relation.REPLACE_ONE:
        pairs = list(itertools.combinations(totals, 2))
    worst = max((left - right).norm().item() for left, right in pairs)
    assert worst <= sums.mechanism.sensitivity
    # Zero-out-one is reached; of replace-one sqrt(2) is, since <zz', yy'> is never negative, and 2 is charged.
    assert worst > (0.99 if relation is Relation.ZERO_OUT else 0.7) * sums.mechanism.sensitivity


def test_a_person_with_many_images_moves_the_sums_no_further_than_one():
    moments, cap = moment_map(), 3
    base = random_images(12, people=3)
    sums = CellSums(2, moments.dimensions, "gaussian", 1.0, Unit.PERSON, Relation.ZERO_OUT, most_per_unit=cap)
    bright = base.images.clone()
    bright[base.identities == 1] = extreme_images()[4]
    base = Images(bright, torch.zeros(12, dtype=torch.int64), base.classes, base.identities)
    moved = exact(sums, base, moments, cap) - exact(sums, base.zeroed_out(base.identities == 1), moments, cap)
    assert 0.99 * sums.mechanism.sensitivity < moved.norm().item() <= sums.mechanism.sensitivity


def test_a_record_does_not_change_the_bits_of_another():
    moments, base = moment_map(), random_images(40)
    all_of = torch.cat([part[0] for part in private_moments(base, moments, conditional=True, cap=None)])
    without = base.zeroed_out(torch.tensor([0, 7]))
    rest = torch.cat([part[0] for part in private_moments(without, moments, conditional=True, cap=None)])
    kept = torch.ones(40, dtype=torch.bool)
    kept[[0, 7]] = False
    assert torch.equal(all_of[kept], rest[kept])
    assert not rest[~kept].any()


def test_without_noise_the_normals_are_those_of_the_images():
    moments = moment_map(clip=100.0, contrast=1.0)
    images = random_images(400, classes=2)
    sums = torch.zeros(2, moments.dimensions, dtype=torch.float64)
    for vectors, cells, _ in private_moments(images, moments, conditional=True, cap=None):
        sums.index_add_(0, cells, vectors)
    found = estimate_normals(sums, moments, 0.0)
    coefficients = moments.coefficients(images.images / 127.5 - 1)
    for row in range(2):
        own = coefficients[images.labels == row]
        assert torch.allclose(found.mean[row], own.mean(0), atol=1e-9)
        covariance = found.factor[row] @ found.factor[row].T
        assert torch.allclose(covariance, own.T.cov(correction=0), atol=1e-9)
    assert found.ranks == (SIZE, SIZE)


def test_eigenvalues_of_noise_are_cut_and_those_above_the_edge_stay():
    size, std, rng = 200, 1.0, torch.Generator().manual_seed(1)
    noise = torch.randn(size, size, generator=rng, dtype=torch.float64).triu(1) / 2**0.5
    noise = noise + noise.T + torch.diag(torch.randn(size, generator=rng, dtype=torch.float64))
    edge = (2 * size) ** 0.5 * std
    assert torch.linalg.matrix_rank(shrunk(noise, 1.05 * edge)) == 0
    assert torch.linalg.matrix_rank(shrunk(noise, 0.8 * edge)) > 5  # control: the edge is not slack
    axis = torch.full((size,), size**-0.5, dtype=torch.float64)
    spiked = shrunk(noise + 5 * edge * torch.outer(axis, axis), 1.05 * edge)
    assert torch.linalg.eigvalsh(spiked)[-1].item() == pytest.approx(5 * edge, rel=0.05)
    assert (axis @ spiked @ axis).item() > 4.5 * edge


def test_variance_that_noise_hides_is_half_given_back_where_it_is_surely_there():
    """A steep spectrum under noise that hides its tail: the filled estimate is nearer in Wasserstein-2 distance."""
    size, std, rng = 100, 0.02, torch.Generator().manual_seed(1)
    truth = 1 / torch.arange(1, size + 1, dtype=torch.float64)
    noise = torch.randn(size, size, generator=rng, dtype=torch.float64).triu(1) / 2**0.5
    noise = (noise + noise.T + torch.diag(torch.randn(size, generator=rng, dtype=torch.float64))) * std
    noisy = torch.diag(truth) + noise
    cut = shrunk(noisy, (2 * size) ** 0.5 * std)
    given = filled(cut, noisy.trace().item(), size**0.5 * std)
    lacking = noisy.trace() - cut.trace() - 2 * size**0.5 * std
    assert (given.trace() - cut.trace()).item() == pytest.approx(lacking.item() / 2, rel=1e-6)

    def distance(covariance):
        root = truth.sqrt()[:, None] * covariance * truth.sqrt()
        overlap = torch.linalg.eigvalsh(root).clamp(min=0).sqrt().sum()
        return (truth.sum() + covariance.trace() - 2 * overlap).item()

    assert distance(given) < 0.8 * distance(cut)
    empty = shrunk(noise, 1.05 * (2 * size) ** 0.5 * std)
    assert torch.equal(
        filled(empty, noise.trace().item(), size**0.5 * std), empty
    )  # control: noise alone gives nothing


def test_a_public_covariance_stands_in_for_what_noise_hides():
    """Nearer to the truth than an even spread where it is of the same kind, hardly farther where it is not."""
    size, std = 100, 0.05
    rng = torch.Generator().manual_seed(3)
    mixing = torch.randn(size, size, generator=rng).double() * torch.linspace(1, 0.05, size)
    truth = mixing @ mixing.T / size
    noise = torch.randn(size, size, generator=rng).double().triu() * std
    noisy, edge = truth + (noise + noise.T) / 2**0.5, (2 * size) ** 0.5 * std
    alike = (mixing @ torch.randn(size, 400, generator=rng).double()).cov() * 7  # scale does not matter
    other = torch.randn(size, 400, generator=rng).double().cov()
    alone = filled(shrunk(noisy, edge), noisy.trace().item(), size**0.5 * std)
    distance = {
        name: (found - truth).norm().item()
        for name, found in {
            "alone": alone,
            "alike": beside_public(noisy, alike, edge),
            "other": beside_public(noisy, other, edge),
            "one image": beside_public(noisy, torch.zeros(size, size).double(), edge),
        }.items()
    }
    assert distance["alike"] < 0.7 * distance["alone"]
    assert max(distance["other"], distance["one image"]) < 1.1 * distance["alone"]
    assert (torch.linalg.eigvalsh(beside_public(noisy - 9 * torch.eye(size), alike, edge)) > -1e-9).all()


def test_contrast_that_was_cut_is_given_back():
    images = random_images(2000, classes=1)
    moments = moment_map(contrast=0.05)  # far too little: all are cut
    sums = torch.zeros(1, moments.dimensions, dtype=torch.float64)
    for vectors, cells, _ in private_moments(images, moments, conditional=False, cap=None):
        sums.index_add_(0, cells, vectors)
    cut = moments.scale.square().sum().sqrt()
    found = estimate_normals(sums, moments, 0.0)
    power = found.factor[0].square().sum() + found.mean[0].square().sum()
    assert power.sqrt() > 1.5 * cut / SIZE**0.5


# From config to release ----------------------------------------------------------------------------------------------


def config_of(**privacy):
    table = {
        "model": {"generator": "gaussian", "latent_dim": 12},
        "method": {"name": "gaussian"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5} | privacy,
        "training": {"device": "cpu"},
        "release": {"samples": 10},
    }
    return build_config(table, "a test")


FACES = {"name": "faces", "num_images": 60, "num_people": 20, "image_size": [24, 20], "label": ["smiling"]}


@pytest.mark.parametrize("unit", ["image", "person"])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_color_unit_and_drawn_public_faces(tmp_path, unit, channels):
    table = config_of(unit="image").model_dump(mode="json", exclude_none=True)
    looks = {"smiling": "smiling", "not smiling": "not smiling"}
    table["data"] = FACES | {"channels": channels, "split_by": "identity", "holdout_share": 0.0}
    table["data"] |= {"public": "faces", "public_images": 50, "public_crop": 0.6}
    table["privacy"] |= {"unit": unit, "most_per_person": 2}
    config = build_config(table, "a test")
    table["data"]["public_labels"] = dict(zip(load(config.data).classes, looks.values(), strict=True))
    trainer.start(build_config(table, "a test"), tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    assert load_generator(tmp_path / "run").sample(2, seed=0).shape == (2, channels, 24, 20)
    stated = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert (stated["num_public"], stated["unit"]) == (50, unit)
    assert "center, scale and covariance, learned from public images" in stated["report"]["public_assumptions"]


def test_public_images_set_center_and_scale():
    moments, images = moment_map(), random_images(5000)
    moments.learn_public(images)
    coefficients = moments.coefficients(images.images / 127.5 - 1)
    assert torch.allclose(moments.center, coefficients.mean(0))
    assert torch.allclose(moments.variance, coefficients.var(0), rtol=0.1)
    few = moment_map()
    few.learn_public(random_images(1))
    assert torch.allclose(few.variance, moment_map().variance, rtol=0.02)


def test_the_images_teach_what_a_class_is():
    """Mean images of the classes, generated at epsilon 10, lie nearest to the real mean image of the same class."""
    config = build_config(load_table(CONFIGS / "digits-gaussian.toml"), "digits")
    method = train_on(config, load(config.data))
    split = load(config.data)
    real = torch.stack([(split.test.images[split.test.labels == k] / 127.5 - 1).mean(0) for k in range(10)])
    images = method.generator.sample(2000, seed=0)
    made = torch.stack([images[k::10].mean(0) for k in range(10)])
    assert torch.equal(torch.cdist(made.flatten(1), real.flatten(1)).argmin(1), torch.arange(10))


@pytest.mark.parametrize(
    ("section", "keys", "words"),
    [
        ("model", {"generator": "dcgan"}, r"model\.generator = dcgan, but method gaussian trains no network"),
        ("training", {"steps": 5}, r"training\.steps = 5"),
        ("privacy", {"epsilon": 1.0, "delta": 0.0}, r"privacy\.delta = 0"),
        ("privacy", {"epsilon": 1.0, "delta": 1e-5, "unit": "person"}, r'data\.split_by = "identity"'),
        ("method", {"name": "gaussian", "clip": 0.5}, r"method\.clip went with idpgan"),
    ],
)
def test_settings_that_cannot_be_are_refused(section, keys, words):
    table = config_of().model_dump(mode="json", exclude_none=True) | {section: keys}
    with pytest.raises(ConfigError, match=words):
        build_config(table, "a test")


def test_noise_of_a_fixed_seed_is_never_called_private(tmp_path):
    config = config_of()
    method = gaussian.Method.of(config, load(config.data), device=torch.device("cpu"), noise=Noise.fixed(1))
    method.prepare()
    assert not method.privacy().private
    with pytest.raises(RuntimeError, match="dropped"):
        method._release()
