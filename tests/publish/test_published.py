"""The six published algorithms: faithful to their formulas, and wrong as docs/methods/matrix-publishers.md says."""

# ruff: noqa: N806 (matrices keep their names from the papers)

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest, laplace

from idpgan.privacy import Noise
from idpgan.privacy.matrix import column_norm, noisy_product
from idpgan.publish import matrix, release
from idpgan.publish.matrix import EsraOptions, SraOptions, decompose, eigen_design, esra, lrm_factors, score_ranks, sra
from tests.publish.pictures import pictures

PUBLISHED = ("lap-published", "lra", "sra", "esra", "lrm", "mm")
FAST = {"lra": {"sweeps": 2}, "lrm": {"iterations": 3}}


def publish(images, method, epsilon=1.0, seed=1, **options):
    """Release with fixed noise, consent given."""
    options = FAST.get(method, {}) | options
    noise = Noise.fixed(seed)
    return release(images, method, epsilon=epsilon, noise=noise, accept_unsound=True, **options).images


@pytest.mark.parametrize("method", PUBLISHED)
@pytest.mark.parametrize("shape", [(3, 9, 6), (2, 6, 9), (2, 1, 1), (1, 1, 4), (2, 4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_shape_and_dtype_is_kept(method, shape, dtype):
    images = pictures(*shape, dtype=dtype)
    before = images.clone()
    released = publish(images, method)
    assert (released.shape, released.dtype) == (images.shape, dtype)
    assert bool(released.isfinite().all())
    assert torch.equal(images, before)
    assert not torch.equal(released, images)


@pytest.mark.parametrize("method", PUBLISHED)
def test_much_epsilon_gives_the_image_back(method):
    """Up to what the method itself leaves out: LRM's residual, LRA's regularization, ESRA's choice of r."""
    images = pictures(3, 12, 9)
    released = publish(images, method, epsilon=1e9)
    slack = {"lra": 0.1, "lrm": 0.1, "esra": 0.9}.get(method, 1e-6)
    assert ((released - images).flatten(1).norm(dim=1) < slack * images.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("method", PUBLISHED)
def test_black_images_are_released_exactly_and_constant_ones_work(method):
    images = pictures(3, 8, 5)
    images[0], images[2] = 0.0, 0.6
    released = publish(images, method)
    assert not released[0].any()
    assert (released[1:] != images[1:]).flatten(1).any(1).all()
    notes = release(images, method, epsilon=1.0, accept_unsound=True, **FAST.get(method, {})).notes
    assert notes == ("1 of 3 images are black and were released exactly, without any noise.",)


@pytest.mark.parametrize("method", PUBLISHED)
def test_images_of_a_batch_do_not_touch_each_other(method):
    """With next to no noise the release of one image is the same alone and in company."""
    images = pictures(3, 8, 5)
    together, alone = (publish(x, method, epsilon=1e12) for x in (images, images[1:2]))
    if method != "esra":  # its r is drawn
        assert torch.allclose(together[1:2], alone, atol=1e-6)
    noise = publish(images[:1].expand(200, 8, 5), method) - images[:1]
    assert abs(np.corrcoef(noise[::2].flatten(), noise[1::2].flatten())[0, 1]) < 0.15


def test_lap_adds_noise_of_the_largest_column_sum():
    images = pictures(2, 160, 120)
    images[1] *= 0.1
    noise = (publish(images, "lap-published", epsilon=2.0) - images).flatten(1)
    for row, scale in zip(noise, (column_norm(images) / 2).tolist(), strict=True):
        assert kstest(row.numpy(), laplace(scale=scale).cdf).pvalue > 1e-3
        for wrong in (0.8 * scale, 1.2 * scale, 2 * scale):
            assert kstest(row.numpy(), laplace(scale=wrong).cdf).pvalue < 1e-6


def test_eq_7_forgets_the_number_of_columns():
    """Noise is drawn for every column of L: the error is n times ``2 |B|^2 (D1 L)^2 / eps^2``, also for theorem 1."""
    image = pictures(1, 9, 6)
    B, L = eigen_design(image)
    stated = 2 * B.square().sum().item() * column_norm(L).item() ** 2 / 0.5**2
    errors = (publish(image.expand(4000, 9, 6), "mm", epsilon=0.5) - image).square().sum((1, 2))
    assert errors.mean().item() == pytest.approx(6 * stated, rel=0.1)
    identity = torch.eye(6).double().expand(4000, 6, 6)
    product = noisy_product(image.expand(4000, 9, 6), identity, torch.full((4000,), 2.0), Noise.fixed(1))
    bound = 2 * image.square().sum().item() / 0.5**2  # theorem 1, B = A and L = I
    assert (product - image).square().sum((1, 2)).mean().item() == pytest.approx(6 * bound, rel=0.1)


def test_the_error_of_sra_is_far_above_eq_10():
    """Eq. 10 is wrong: 2 r lambda_1^2 / eps^2, against the stated bound 2 sum lambda_i^2 / eps^2."""
    image = pictures(1, 24, 18)
    values = decompose(image).S[0]
    errors = (publish(image.expand(4000, 24, 18), "sra", epsilon=0.7, refine=False) - image).square().sum((1, 2))
    true, stated = (2 * x.item() / 0.7**2 for x in (18 * values[0] ** 2, values.square().sum()))
    assert errors.mean().item() == pytest.approx(true, rel=0.05)
    assert errors.mean().item() > 10 * stated


@pytest.mark.parametrize(("method", "rank"), [("sra", 6), ("esra", 6), ("mm", 6), ("lrm", 6)])
def test_the_column_space_of_the_output_is_that_of_the_image(method, rank):
    """What lies outside the private image's column space is zero; for a neighbor it is not."""
    images = pictures(1, 9, rank)
    neighbor = images.clone()
    neighbor[:, :, 0] = 1 - neighbor[:, :, 0]
    released = publish(images.expand(20, 9, rank), method)
    outside = []
    for image in (images, neighbor):
        U = decompose(image).U[0]
        outside.append((released - U @ (U.T @ released)).norm(dim=(1, 2)) / released.norm(dim=(1, 2)))
    assert outside[0].max() < 1e-7
    assert outside[1].min() > 1e3 * outside[0].max()
    if method == "sra":
        assert torch.linalg.matrix_rank(released).tolist() == [rank] * 20


def test_sra_keeps_the_first_singular_values_and_no_more_than_there_are():
    images = pictures(2, 9, 6)
    for rank, left in ((2, 2), (6, 6), (100, 6)):
        assert torch.linalg.matrix_rank(publish(images, "sra", rank=rank)).tolist() == [left, left]
    images[0] = 0.5  # rank 1: r beyond it keeps what there is
    assert torch.linalg.matrix_rank(publish(images, "sra", rank=3)).tolist() == [1, 3]


def test_refined_singular_values_do_not_increase():
    svd = decompose(pictures(40, 12, 9))
    images = (svd.U * svd.S[:, None]) @ svd.Vh

    def values(refine):
        released = sra(images, 1.0, SraOptions(refine=refine), Noise.fixed(3))
        return (svd.U.mT @ released @ svd.Vh.mT).diagonal(dim1=1, dim2=2)

    assert (values(True).diff(dim=1) <= 1e-9).all()
    assert (values(False).diff(dim=1) > 1e-3).any()
    assert torch.allclose(values(True).sum(1), values(False).sum(1))  # a projection on a cone keeps the sum


def test_esra_scores_are_eq_11():
    image, epsilon = pictures(1, 7, 5)[0], 0.5
    U, S, Vh = (x.numpy() for x in torch.linalg.svd(image, full_matrices=True))
    found = score_ranks(decompose(image[None]), epsilon)
    for r in range(1, 6):
        expected = (
            math.sqrt((U[:, r:] ** 2).sum())
            + math.sqrt((S[r:] ** 2).sum())
            + math.sqrt((Vh[r:] ** 2).sum())
            + math.sqrt(2 * (S[:r] ** 2).sum()) / epsilon
        )
        assert found.scores[0, r - 1].item() == pytest.approx(expected)
    norms = [abs(x).sum(0).max() for x in (U[:, :5], np.diag(S), Vh)]
    assert found.sensitivity.item() == pytest.approx(norms[0] + 2 * norms[1] + norms[2])


def test_esra_chooses_by_the_exponential_mechanism_with_half_the_budget():
    image = pictures(1, 6, 4) * 0.02  # small numbers, so that the choice is not quite uniform
    epsilon = 20.0
    scores = score_ranks(decompose(image), epsilon)
    released = esra(image.expand(8000, 6, 4), epsilon, EsraOptions(refine=False), Noise.fixed(2))
    chosen = np.bincount(torch.linalg.matrix_rank(released, rtol=1e-9).numpy(), minlength=5)[1:]
    weights = np.exp(-(epsilon / 2) * scores.scores[0].numpy() / (2 * scores.sensitivity.item()))
    assert chisquare(chosen, 8000 * weights / weights.sum()).pvalue > 1e-3
    for wrong in (weights**2, weights**0.5, np.ones(4)):  # the whole budget; a factor 2; uniform
        assert chisquare(chosen, 8000 * wrong / wrong.sum()).pvalue < 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.9, 1.3])
def test_the_choice_of_r_is_uniform_in_practice(epsilon):
    """ESRA chooses r almost uniformly: on ORL probabilities differ by 1.003 to 1.07; these images are rougher."""
    found = score_ranks(decompose(pictures(4, 112, 92)), epsilon)
    spread = found.scores.amax(1) - found.scores.amin(1)
    ratios = ((epsilon / 2) * spread / (2 * found.sensitivity)).exp()
    assert (ratios > 1.0).all()
    assert (ratios < 1.15).all()


def test_lra_draws_noise_in_every_sweep_and_its_factor_depends_on_it():
    image = pictures(1, 9, 6)
    one, other = (publish(image, "lra", seed=seed, epsilon=0.5) for seed in (1, 2))
    U = decompose(one).U[0]
    assert (other - U @ (U.T @ other)).norm() > 1e-3 * other.norm()  # unlike SRA: the column space moved
    low = image.clone()
    low[:] = image[:, :, :1]
    assert torch.linalg.matrix_rank(publish(low, "lra")).item() == 1  # the rank is that of the private image


def test_a_claim_proves_nothing():
    for method in PUBLISHED:
        report = release(pictures(1, 3, 3), method, epsilon=0.3, accept_unsound=True, **FAST.get(method, {})).privacy
        assert (report.claimed.epsilon, report.claimed.unit) == (0.3, "column")
        assert (report.proven.epsilon, report.private) == (math.inf, False)
        assert report.reason


def test_lrm_is_noise_on_factors_that_depend_on_no_other_image(monkeypatch):
    images = pictures(5, 9, 6)
    B, L = lrm_factors(images, 3)
    alone = lrm_factors(images[2:3], 3)
    assert torch.allclose(B[2:3] @ L[2:3], alone[0] @ alone[1], atol=1e-6)
    monkeypatch.setattr(matrix, "_CHUNK_NUMBERS", (2 * 9 * 6, 0))  # two images a part
    in_parts = lrm_factors(images, 3)
    assert torch.allclose(in_parts[0], B, atol=1e-6)
    assert torch.allclose(in_parts[1], L, atol=1e-6)
    assert torch.equal(publish(images, "lrm"), noisy_product(*in_parts, column_norm(in_parts[1]), Noise.fixed(1)))
