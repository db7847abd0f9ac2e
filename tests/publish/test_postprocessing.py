"""What is made of noisy numbers: shrinkage, the model of faces, codewords. None of it may look at an image."""

# ruff: noqa: N806 (matrices keep their names)

import math

import pytest
import torch
from scipy.stats import binomtest

from idpgan.data.faces import draw
from idpgan.errors import InputError
from idpgan.privacy import Noise, Unit, compose_epsilon
from idpgan.publish import release
from idpgan.publish.plan import load_publisher
from idpgan.publish.sound import prior
from idpgan.publish.sound.faces import face_codebook
from idpgan.publish.sound.numbers import block_sums, calibrate_pixels
from idpgan.publish.sound.publishers import shrink
from idpgan.publish.sound.weighted_blocks import face_parts, quadtree
from tests.publish.pictures import pictures

SIZES = {
    "pix": {"block": 4},
    "dct": {"frequencies": 4},
    "fourier": {"frequencies": 4},
    "wavelet": {"levels": 2},
    "quadtree": {"depth": 2},
    "face-parts": {"block": 8},
    "eigenfaces": {"components": 4},
}


@pytest.fixture(scope="module")
def faces():
    """Drawn faces that the model was not fitted on, (60, 48, 40)."""
    return draw(60, prior.SHAPE, 1, people=60, seed=5).images[:, 0].double() / 255


@pytest.mark.parametrize("method", ["lap-shrink", "lap-wiener"])
def test_post_processing_sees_the_noisy_pixels_alone(method):
    """The release is the step after `lap` applied to what `lap` gives under the same noise."""
    publisher, images = load_publisher(method), pictures(3, 12, 9)
    plan = publisher.plan((12, 9), Unit.PIXEL, 20.0, 0.0, publisher.options())
    noisy = calibrate_pixels((12, 9), Unit.PIXEL, "laplace", epsilon=20.0, delta=0.0)
    seen = noisy(images, Noise.fixed(4))
    if method == "lap-shrink":
        expected = 0.5 + shrink(seen - 0.5, math.sqrt(2) * noisy.scale)
    else:
        expected = prior.face_prior((12, 9)).estimate(torch.eye(12).double(), torch.eye(9).double(), noisy.variance)(
            seen
        )
    assert torch.allclose(plan.release(images, Noise.fixed(4)), expected)
    assert not torch.allclose(plan.release(images, Noise.fixed(5)), expected)


def test_the_estimate_is_the_conditional_mean_of_a_gaussian():
    shape, variance = (4, 3), 0.02
    model, query = prior.face_prior(shape), block_sums(shape, 2)
    W, S = torch.kron(query.A, query.B), torch.kron(model.rows, model.columns)  # of images row by row
    numbers = torch.randn(5, 2, 2, generator=torch.Generator().manual_seed(1)).double()
    gain = S @ W.T @ torch.linalg.inv(W @ S @ W.T + variance * torch.eye(4).double())
    expected = model.mean.flatten() + (numbers.flatten(1) - W @ model.mean.flatten()) @ gain.T
    estimate = model.estimate(query.A, query.B, variance)
    assert torch.allclose(estimate(numbers).flatten(1), expected, atol=1e-10)
    assert estimate.error == pytest.approx((S - gain @ W @ S).diagonal().mean().item())


@pytest.mark.parametrize("query", [quadtree((6, 5), 2), face_parts((6, 5), 2, 0.3)])
def test_the_estimate_from_weighted_sums_is_the_conditional_mean(query):
    model, variance = prior.face_prior((6, 5)), 0.02
    W = query(torch.eye(30).view(30, 6, 5).double()).T  # from pixels to numbers
    S = torch.kron(model.rows, model.columns)
    gain = S @ W.T @ torch.linalg.inv(W @ S @ W.T + variance * torch.eye(len(W)).double())
    numbers = torch.randn(4, len(W), generator=torch.Generator().manual_seed(1)).double()
    expected = model.mean.flatten() + (numbers - W @ model.mean.flatten()) @ gain.T
    assert torch.allclose(query.estimate(numbers, variance).flatten(1), expected, atol=1e-9)
    assert query.error(variance) == pytest.approx(-(gain @ W @ S).trace().item())


def test_no_noise_and_all_noise_are_the_ends_of_the_estimate(faces):
    model = prior.face_prior(prior.SHAPE)
    identities = [torch.eye(size).double() for size in prior.SHAPE]
    exact = model.estimate(*identities, 1e-12)
    assert torch.allclose(exact(faces), faces, atol=1e-4)
    assert torch.allclose(model.estimate(*identities, 1e12)(faces), model.mean, atol=1e-3)


@pytest.mark.trained
def test_the_shipped_model_is_that_of_drawn_faces():
    assert prior.FILE.stat().st_size < 100_000
    faces = draw(240, prior.SHAPE, 1, people=240, seed=5).images[:, 0].double() / 255
    fitted, shipped = prior.fit(faces), prior._model()
    assert {name: value.shape for name, value in fitted.items()} == {n: v.shape for n, v in shipped.items()}
    assert (fitted["mean"] - shipped["mean"]).abs().mean() < 0.03
    for side in ("rows", "columns"):
        one, other = fitted[side].double(), shipped[side]
        assert (one * other).sum() > 0.95 * one.norm() * other.norm()
    directions = shipped["directions"].flatten(1)
    variances = directions.square().sum(1)
    assert variances.tolist() == sorted(variances.tolist(), reverse=True)
    assert torch.allclose(directions @ directions.T, variances.diag(), atol=1e-3 * variances[0].item())
    assert 0.8 < variances.sum() / (shipped["rows"].trace() * shipped["columns"].trace()) < 0.9


def test_optimal_shrinkage_finds_the_rank_and_beats_its_neighbors():
    rng = torch.Generator().manual_seed(3)
    noise = torch.randn(40, 60, 45, generator=rng, dtype=torch.float64)
    assert not shrink(noise, 1.0).any()
    U, V = (torch.linalg.qr(torch.randn(40, n, 2, generator=rng, dtype=torch.float64)).Q for n in (60, 45))
    signal = 25 * U @ V.mT
    shrunk = shrink(signal + noise, 1.0)
    assert torch.linalg.matrix_rank(shrunk, atol=1e-6).tolist() == [2] * 40
    U, S, Vh = torch.linalg.svd(signal + noise, full_matrices=False)
    truncated = (U[..., :2] * S[:, None, :2]) @ Vh[:, :2]
    error = (shrunk - signal).square().mean()
    assert error < 0.9 * (truncated - signal).square().mean()
    for wrong in (0.8, 1.25):  # the noise level is known: with another one it is worse
        assert error < (shrink(signal + noise, wrong) - signal).square().mean()
    assert torch.allclose(shrink(signal, 1e-9), signal, atol=1e-6)


def test_the_nearest_codeword_is_the_nearest(faces):
    book = face_codebook(prior.SHAPE, 50)
    words = book.faces(torch.arange(50))
    expected = torch.cdist(faces.flatten(1), words.flatten(1)).argmin(1)
    assert torch.equal(book.nearest(faces), expected)
    assert torch.equal(
        book.nearest(words.clamp(0, 1)), torch.cdist(words.clamp(0, 1).flatten(1), words.flatten(1)).argmin(1)
    )
    assert len(expected.unique()) > 10
    assert torch.allclose(face_codebook(prior.SHAPE, 20).multiples, book.multiples[:20])


def test_the_codeword_is_told_with_the_probability_that_was_paid_for(faces):
    epsilon, words, runs = 3.0, 8, 4000
    image = faces[:1].expand(runs, -1, -1)
    told = release(image, "codebook", epsilon=epsilon, noise=Noise.fixed(1), codewords=words).images
    book = face_codebook(prior.SHAPE, words)
    truth = book.faces(book.nearest(faces[:1]))
    right = int(((told - truth).abs().amax((1, 2)) < 1e-9).sum())
    stated = math.exp(epsilon) / (math.exp(epsilon) + words - 1)
    assert binomtest(right, runs, stated).pvalue > 1e-3
    for wrong in (stated * 0.9, math.exp(epsilon + 1) / (math.exp(epsilon + 1) + words - 1)):
        assert binomtest(right, runs, wrong).pvalue < 1e-6


def test_codewords_grow_with_epsilon_and_delta_buys_none(faces):
    publisher = load_publisher("codebook")

    def words(epsilon):
        return publisher.plan((12, 10), Unit.IMAGE, epsilon, 0.0, publisher.options()).events[0].categories

    assert [words(epsilon) for epsilon in (0.1, 1.0, 5.0, 10.0, 700.0)] == [2, 2, 15, 2203, 4096]
    with pytest.raises(InputError, match="leave delta out"):
        release(faces, "codebook", epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("method", ["pix", "dct", "fourier", "wavelet", "quadtree", "face-parts", "eigenfaces"])
def test_delta_buys_less_noise(faces, method):
    few = faces.repeat(5, 1, 1)

    def error(delta, law):
        publisher = load_publisher(method)
        plan = publisher.plan(prior.SHAPE, Unit.COLUMN, 1.0, delta, publisher.options(law=law, **SIZES[method]))
        assert 0.9 < compose_epsilon(plan.events, delta) <= 1.0
        return (plan.release(few, Noise.fixed(1)) - few).square().mean().item()

    assert error(1e-2, "laplace") < error(0.0, "laplace")
    assert error(1e-2, "gaussian") < error(1e-5, "gaussian")


def test_what_each_unit_affords_on_drawn_faces(faces):
    """The order that docs/methods/publishers.md reports, with room: blocks for a pixel, codewords for a whole image."""

    def error(method, unit, epsilon):
        told = release(faces, method, epsilon=epsilon, unit=unit, noise=Noise.fixed(6)).images.clamp(0, 1)
        return (told - faces).square().mean().item()

    pixel = [error(method, "pixel", 1.0) for method in ("pix", "lap-wiener", "lap-shrink", "lap")]
    assert pixel == sorted(pixel)
    assert pixel[0] < 0.5 * pixel[1]
    constant = (faces - faces.mean((1, 2), keepdim=True)).square().mean().item()
    assert error("codebook", "image", 10.0) < min(
        constant, error("pix", "image", 10.0), error("eigenfaces", "image", 10.0)
    )
