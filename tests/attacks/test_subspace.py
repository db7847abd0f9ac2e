import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from idpgan.attacks.subspace import identified, subspace_scores
from idpgan.errors import InputError

PEOPLE, EACH, M, N = 12, 4, 24, 20


def photographs(seed=0, spread=0.15):
    """Images (PEOPLE, EACH, M, N) float64: a smooth pattern per person and a little that differs."""
    generator = torch.Generator().manual_seed(seed)

    def smooth(*shape):
        low = torch.rand(*shape, 6, 5, generator=generator, dtype=torch.float64)
        flat = torch.nn.functional.interpolate(low.reshape(-1, 1, 6, 5), (M, N), mode="bilinear")
        return flat.reshape(*shape, M, N)

    images = smooth(PEOPLE, 1) + spread * smooth(PEOPLE, EACH)
    return images + 0.01 * torch.rand(PEOPLE, EACH, M, N, generator=generator, dtype=torch.float64)


def sra_like(images, seed=0, scale=10.0):
    """True singular vectors, values that are nothing but noise."""
    left, values, right = torch.linalg.svd(images, full_matrices=False)
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed)).double()
    return (left * (scale * values[..., :1] * noise)[..., None, :]) @ right


@pytest.fixture(scope="module")
def faces():
    images = photographs()
    people = torch.arange(PEOPLE).repeat_interleave(EACH // 2)
    return images[:, : EACH // 2].flatten(0, 1), images[:, EACH // 2 :].flatten(0, 1), people


def test_scores_equal_principal_angles(faces):
    gallery, probes, _ = faces
    probe = probes[:1]
    left, values, right = torch.linalg.svd(probe, full_matrices=False)
    low = (left[:, :, :5] * values[:, None, :5]) @ right[:, :5]  # rank 5
    for match, turn in (("columns", False), ("rows", True)):
        scores = subspace_scores(low, gallery[:3], match=match, gallery_rank=1)[0]
        for score, other in zip(scores, gallery[:3], strict=True):
            first, second = (part.mT if turn else part for part in (low[0], other))
            leading = torch.linalg.svd(second)[0][:, :1].numpy()
            angle = subspace_angles(torch.linalg.svd(first)[0][:, :5].numpy(), leading)[0]
            assert float(score) == pytest.approx(np.cos(angle) ** 2, abs=1e-9)


def test_pairs_equal_their_formula(faces):
    gallery, probes, _ = faces
    released = sra_like(probes[:2])
    left, _, right = torch.linalg.svd(released, full_matrices=False)
    scores = subspace_scores(released, gallery[:3], gallery_rank=N)
    for a in range(2):
        for b in range(3):
            values = torch.einsum("mi,mn,in->i", left[a], gallery[b], right[a])
            assert float(scores[a, b]) == pytest.approx(float(values.square().sum() / gallery[b].square().sum()))


def test_the_image_itself_scores_one_whatever_the_noise(faces):
    gallery, _, _ = faces
    for match in ("columns", "rows", "pairs"):
        scores = subspace_scores(sra_like(gallery), gallery, match=match)
        assert scores.diagonal().min() > 1 - 1e-6
    others = scores - 2 * torch.eye(len(scores))
    assert others.max() < 0.999  # and no other does
    # Ten times the noise, or none: the same scores.
    strong, weak = (subspace_scores(sra_like(gallery, scale=scale), gallery) for scale in (100.0, 1.0))
    assert torch.allclose(strong, weak, atol=1e-6)


@pytest.mark.trained
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_people_are_identified_through_noise_on_singular_values_only(faces, dtype):
    gallery, probes, people = faces
    released = sra_like(probes).to(dtype)
    rate = identified(subspace_scores(released, gallery.to(dtype)), people, people).double().mean()
    assert rate > 0.8  # chance is 1 / 12
    # The same amount of noise on the pixels leaves nothing: no false alarm of the attack.
    generator = torch.Generator().manual_seed(1)
    size = (released - probes).square().mean().sqrt()
    hidden = probes.to(dtype) + size * torch.randn(probes.shape, generator=generator, dtype=dtype)
    for match in ("columns", "pairs"):
        scores = subspace_scores(hidden, gallery.to(dtype), match=match)
        assert identified(scores, people, people).double().mean() < 0.4
    # Nor do people of other names.
    assert identified(subspace_scores(released, gallery.to(dtype)), people, people.flip(0)).double().mean() < 0.4


def test_constant_images_identify_nobody(faces):
    gallery, probes, people = faces
    for fill in (0.0, 0.4):
        scores = subspace_scores(torch.full_like(probes, fill), gallery)
        assert identified(scores, people, people).double().mean() <= 2 / 12
    assert subspace_scores(torch.zeros_like(probes), gallery).max() == 0
    assert subspace_scores(probes, torch.zeros_like(gallery)).max() == 0


def test_chunks_do_not_show(faces, monkeypatch):
    gallery, probes, _ = faces
    whole = {match: subspace_scores(sra_like(probes), gallery, match=match) for match in ("columns", "rows", "pairs")}
    monkeypatch.setattr("idpgan.attacks.subspace._CHUNK_NUMBERS", 5 * len(probes) * N * N)
    for match, scores in whole.items():
        assert torch.allclose(subspace_scores(sra_like(probes), gallery, match=match), scores)


def test_scores_all_alike_identify_nobody():
    people = torch.tensor([0, 1])
    assert identified(torch.ones(2, 2), people, people).tolist() == [False, False]
    assert identified(torch.eye(2), people, people).tolist() == [True, True]
    assert identified(torch.eye(2).flip(0), people, people).tolist() == [False, False]


OK = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: subspace_scores(OK, OK[:, :3]), r"\(4, 3\), gallery images \(3, 3\)"),
        (lambda: subspace_scores(OK[0], OK), "released images must be floating point"),
        (lambda: subspace_scores(OK, OK[:0]), "gallery images must be .* N >= 1"),
        (lambda: subspace_scores((OK * 255).to(torch.uint8), OK), "torch.uint8"),
        (lambda: subspace_scores(OK * math.nan, OK), "released images .* NaN"),
        (lambda: subspace_scores(OK, OK, match="angles"), "no match 'angles'"),
        (lambda: subspace_scores(OK, OK, gallery_rank=0), "gallery_rank = 0"),
        (lambda: identified(OK[0], torch.arange(3), torch.arange(3)), r"3 released and 3 gallery images, got \(4, 3\)"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
