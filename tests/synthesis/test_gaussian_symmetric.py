"""gaussian with mirror symmetry: the norm by brute force, the estimate, the law of samples, folder to release, runs."""

import pytest
import torch

from idpgan import trainer
from idpgan.data.faces import draw
from idpgan.data.images import Images
from idpgan.models import ModelConfig, build_generator, load_generator
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import low_spectrum
from idpgan.privacy import Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.moments import MomentMap, count_moments, estimate_normals, private_moments
from idpgan.synthesis.template import ROUNDS, TemplateMap
from idpgan.training.config import build_config
from tests.neighbors.folders import Change, data_of, method_of, neighbor, record, write_metadata
from tests.synthesis.test_gaussian import random_images
from tests.synthesis.test_template import table_of

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, SIZE, COUNT = (1, 8, 8), 12, 3
TALL = (1, 24, 20)


def symmetric_map(image_shape=SHAPE, size=SIZE, **keys):
    return MomentMap(image_shape, size, **{"symmetric": True, "contrast": 0.1} | keys)


def norms_of(moments, coefficients):
    """Norms of the vectors of images that have these coefficients."""
    moments.coefficients = lambda images, rows: images
    return moments(coefficients).norm(dim=1)


def adversaries(moments, num=3000):
    """Coefficients around the center: all even, all odd, every mixture of both, longer and shorter than the clip."""
    rng = torch.Generator().manual_seed(4)
    directions = torch.randn(num, moments.size, generator=rng, dtype=torch.float64)
    share = torch.linspace(0, 1, num, dtype=torch.float64)[:, None]
    even, odd = (torch.where(part, directions, 0.0) for part in (~moments.odd, moments.odd))
    mixed = (1 - share).sqrt() * even / even.norm(dim=1, keepdim=True) + share.sqrt() * odd / odd.norm(
        dim=1, keepdim=True
    )
    length = torch.tensor([0.3, 0.9, 1.0, 1.5, 4.0, 100.0], dtype=torch.float64)
    return moments.center + moments.scale * (length[:, None, None] * mixed).flatten(0, 1)


@pytest.mark.parametrize("count_share", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("keys", [{}, {"shape": COUNT, "image_shape": TALL}])
def test_no_vector_is_longer_than_one_and_a_heavier_odd_block_is_caught(monkeypatch, count_share, keys):
    moments = symmetric_map(**keys, count_share=count_share)
    every = adversaries(moments)
    norms = norms_of(moments, every)
    assert 1 - 1e-7 < norms.max() <= 1 + 1e-12
    only_odd = norms_of(moments, every[-1:])
    assert only_odd.item() == pytest.approx(1.0, abs=1e-7)  # the weight is not slack
    heavier = 1.05 * moments.odd_weight
    monkeypatch.setattr(MomentMap, "odd_weight", heavier)
    wrong = symmetric_map(**keys, count_share=count_share)
    assert norms_of(wrong, every).max() > 1.005  # control


def test_a_vector_holds_what_a_mirror_leaves():
    """The vector is the mean of the unsymmetric ones of an image and its mirror image, but for w and zeros."""
    images = random_images(50).images / 127.5 - 1
    whole, half = MomentMap(SHAPE, SIZE, contrast=0.1), symmetric_map()
    both = (whole(images) + whole(images.flip(-1))) / 2
    rows, columns = torch.triu_indices(SIZE + 1, SIZE + 1)
    odd = torch.cat([torch.zeros(1, dtype=torch.bool), half.odd])
    dropped = odd[rows] != odd[columns]
    assert both[:, :-1][:, dropped].abs().max() < 1e-12
    weights = torch.where(odd[rows] & odd[columns], half.odd_weight, 1.0)[~dropped]
    kept = torch.cat([both[:, :-1][:, ~dropped] * weights, both[:, -1:]], dim=1)
    assert torch.allclose(half(images), kept, atol=1e-12)
    assert half.dimensions == half(images).shape[1] == count_moments(SHAPE, SIZE, symmetric=True) < whole.dimensions
    assert torch.allclose(half(images), half(images.flip(-1)), atol=1e-12)


@pytest.mark.parametrize("image_shape", [(1, 24, 20), (3, 24, 21)])
def test_signs_of_a_displacement_are_those_of_a_registered_mirror_image(image_shape):
    """On a symmetric template a mirror image is brought into place by the mirrored displacement."""
    images = draw(6, image_shape[1:], image_shape[0], people=3, seed=1).images / 127.5 - 1
    moments = symmetric_map(image_shape, 30, shape=COUNT)
    template = images.mean(0)
    moments.set_template((template + template.flip(-1)) / 2)
    found, mirrored = moments.coefficients(images), moments.coefficients(images.flip(-1))
    expected = torch.where(moments.odd, -found, found)
    assert (mirrored - expected).abs().max() < 1e-3 * found.abs().max()
    shapes = slice(-2 * COUNT, None)
    assert (mirrored - expected)[:, shapes].abs().max() < 1e-3 * found[:, shapes].abs().max()
    assert found[:, shapes].abs().max() > 0.01
    assert (mirrored - found)[:, shapes].abs().max() > 0.01  # control: the mirror image is another one


def vectors_of(images, moments, cap=None):
    return private_moments(images, moments, conditional=True, cap=cap)


def sums_of(images, moments):
    sums = torch.zeros(2, moments.dimensions, dtype=torch.float64)
    for vectors, cells, _ in vectors_of(images, moments):
        sums.index_add_(0, cells, vectors)
    return sums


def test_without_noise_the_normals_are_those_of_images_and_their_mirror_images():
    images, rows = random_images(300), torch.arange(300)
    lopsided = images.images.clone()
    lopsided[..., :3] //= 2  # no symmetry in the data
    images = Images(lopsided, images.labels, images.classes)
    both = Images(torch.cat([lopsided, lopsided.flip(-1)]), images.labels[torch.cat([rows, rows])], images.classes)
    half, whole = symmetric_map(clip=100.0, contrast=1.0), MomentMap(SHAPE, SIZE, clip=100.0, contrast=1.0)
    found = estimate_normals(sums_of(images, half), half, 0.0)
    expected = estimate_normals(sums_of(both, whole), whole, 0.0)
    assert torch.allclose(found.mean, expected.mean, atol=1e-9)
    assert torch.allclose(found.factor @ found.factor.mT, expected.factor @ expected.factor.mT, atol=1e-9)
    assert found.ranks == expected.ranks == (SIZE, SIZE)
    alone = estimate_normals(sums_of(images, whole), whole, 0.0)
    assert (alone.mean - found.mean).abs().max() > 0.1  # control


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("shape", [0, COUNT])
def test_the_law_of_samples_is_mirror_symmetric_under_noise(shape, public):
    """Odd means and even-odd covariances are zero, and odd coefficients of the other sign draw the mirror image."""
    images = draw(40, TALL[1:], 1, people=20, seed=2)
    images = Images(images.images, torch.arange(40) % 2, ("a", "b"))
    moments = symmetric_map(TALL, 20, shape=shape, contrast=0.35)
    if shape:
        moments.set_template(images.images.float().mean(0) / 127.5 - 1)
    if public:
        moments.learn_public(images)
        assert moments.covariance[moments.odd][:, ~moments.odd].abs().max() < 1e-12
    sums = sums_of(images, moments)
    noise = torch.randn(sums.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    normals = estimate_normals(sums + 0.3 * noise, moments, 0.3)
    covariances = normals.factor @ normals.factor.mT
    assert not normals.mean[:, moments.odd].any()
    assert covariances[:, moments.odd][:, :, ~moments.odd].abs().max() < 1e-9 * covariances.abs().max()
    assert covariances[:, moments.odd].abs().max() > 0
    model = build_generator(ModelConfig(generator="gaussian", latent_dim=20, drawing=Drawing(shape=shape)), TALL, 2)
    model.set_moments(torch.zeros_like(normals.mean), torch.eye(moments.size).expand(2, -1, -1))
    drawn = torch.randn(8, moments.size, generator=torch.Generator().manual_seed(3)) * normals.factor[0].norm(dim=1)
    pictures, labels = model.unclamped(drawn.float(), torch.zeros(8, dtype=torch.int64)), torch.zeros(8).long()
    mirrored = model.unclamped(torch.where(moments.odd, -drawn, drawn).float(), labels)
    assert torch.allclose(mirrored, pictures.flip(-1), atol=1e-4)
    assert not torch.allclose(mirrored, pictures, atol=0.1)


def test_in_heavy_noise_classes_differ_by_their_means_alone_and_in_light_noise_by_both_blocks():
    moments = symmetric_map((1, 16, 16), 80, contrast=0.5)
    variance = torch.full((2, 80), 0.2)
    variance[1, moments.odd], variance[1, ~moments.odd] = 0.6, 0.4
    draws = torch.randn(2, 4000, 80, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moments.coefficients = lambda images, rows: images
    vectors = moments.scale * draws * variance.sqrt()[:, None] / 80**0.5
    sums = torch.stack([sum(moments(part).sum(0) for part in of.split(500)) for of in vectors])
    noise = torch.randn(sums.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    blocks = (~moments.odd, moments.odd)
    for std, alike in ((100.0, True), (0.1, False)):
        factor = estimate_normals(sums + std * noise, moments, 1.1 * std).factor / moments.scale[:, None]
        covariance = factor @ factor.mT
        for block in blocks:
            differ = (covariance[1] - covariance[0])[block][:, block].trace()
            assert bool(differ.abs() < 1e-9) is alike
    # Control: with an edge that is too low, the noise itself would be taken for a difference.
    factor = estimate_normals(sums + 100 * noise, moments, 70.0).factor
    assert (factor[0] @ factor[0].mT - factor[1] @ factor[1].mT).abs().max() > 1e-6


def test_a_template_is_symmetric_and_the_center_of_textures():
    moments, found = symmetric_map(TALL, 10, shape=COUNT), None
    found = TemplateMap(symmetric_map(TALL, 10, shape=COUNT))
    sums = torch.rand(1, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
    template = found.read(sums)
    assert torch.allclose(template, template.flip(-1), atol=1e-6)
    assert template.std() > 1e-3
    moments.set_template(template)
    basis = low_spectrum(TALL, 10).basis
    assert torch.allclose(moments.center[:10], template.flatten().double() @ basis, atol=1e-6)
    assert not moments.center[moments.odd].any()
    assert not moments.center[10:].any()


# From folder to release, and whole runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [0, 2])
def test_from_folder_to_release(small_tiles, tmp_path, monkeypatch, shape):
    """Up to a release both folders' computations agree but for one record; given equal releases, so on."""
    data = data_of(write_metadata(tmp_path / "metadata"))
    table = table_of() | {"model": {"generator": "gaussian", "latent_dim": 8, "drawing": {"shape": shape}}}
    table["method"] = {"name": "gaussian", "symmetric": True}
    del table["data"]
    answers, call, rounds = [], CellSums.exact, 1 + (ROUNDS if shape else 0)
    pair = (method_of(each, table)[0] for each in (data, neighbor(data, tmp_path, Change(record(data), "emptied"))))

    def equal_releases(sums, *batches):
        answers.append((sums, call(sums, *batches)))
        return answers[-1][1] if len(answers) <= rounds else answers[len(answers) - 1 - rounds][1]

    monkeypatch.setattr(CellSums, "exact", equal_releases)
    for method in pair:
        method.prepare()
    for (sums, first), (other, second) in zip(answers[:rounds], answers[rounds:], strict=True):
        assert sums == other
        assert 0.05 < (first - second).double().norm().item() / sums.mechanism.sensitivity <= 1


def test_a_neighbor_of_an_odd_image_reaches_the_sensitivity():
    moments = symmetric_map(SHAPE, 3)
    wave = torch.cos(torch.pi * (torch.arange(8) + 0.5) / 8).expand(8, 8)
    images = Images((127.5 * (1 + wave)).round().to(torch.uint8)[None, None], torch.zeros(1, dtype=torch.int64), ("a",))
    sums = CellSums(1, moments.dimensions, "gaussian", 1.0, Unit.IMAGE, Relation.ZERO_OUT)
    left = sums.exact(private_moments(images, moments, conditional=False, cap=None))
    right = sums.exact(private_moments(images.zeroed_out(torch.tensor([0])), moments, conditional=False, cap=None))
    assert not right.any()
    assert 0.99 * sums.mechanism.sensitivity < (left - right).double().norm() <= sums.mechanism.sensitivity


def test_a_run_folder_without_the_key_is_resumed_as_it_was(tmp_path):
    run = tmp_path / "run"
    table = table_of() | {"model": {"generator": "gaussian", "latent_dim": 10}}
    trainer.start(build_config(table, "a test"), run)
    first = load_generator(run).sample(3, seed=1)
    config = run / "config.toml"
    text = config.read_text()
    assert "symmetric = false" in text
    config.write_text(text.replace("symmetric = false\n", ""))
    assert trainer.resume(run).outcome.step == 0
    assert torch.equal(load_generator(run).sample(3, seed=1), first)
