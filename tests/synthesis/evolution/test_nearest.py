"""Who votes for whom: the nearest candidate, bit for bit a matter of one record and the candidates."""

import pytest
import torch

from idpgan.data import fonts
from idpgan.data.images import Images, to_float
from idpgan.synthesis import votes as rule
from idpgan.synthesis.votes import Embedding, nearest, private_vectors


def vectors(num, size=256, seed=0, most=127):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (num, size), generator=rng, dtype=torch.int8)


@pytest.fixture(scope="module")
def embedding():
    return Embedding((1, 12, 12), lambda num: to_float(fonts.draw(num, 12, seed=9).images), torch.device("cpu"))


def test_it_is_the_nearest_and_the_first_of_several(monkeypatch):
    monkeypatch.setattr(rule, "_TILE", ((64, 100), ()))  # several tiles of both
    records, candidates = vectors(150), vectors(333, seed=1)
    candidates[200:] = candidates[:133]  # all of those have a twin before them
    distances = (records.long()[:, None] - candidates.long()).square().sum(2)
    assert torch.equal(nearest(records, candidates), distances.argmin(1))
    assert nearest(records, candidates).max() < 200


def test_extreme_vectors_are_compared_exactly():
    top = torch.full((1, 256), 127, dtype=torch.int8)
    close = top.clone()
    close[0, 17] = 126  # one step from the largest score that there is
    assert nearest(top, torch.cat([-top, close, top])).item() == 2
    assert nearest(close, torch.cat([-top, top, close])).item() == 2


def test_a_vote_does_not_depend_on_the_other_records_or_on_the_batch():
    records, candidates = vectors(700, most=5), vectors(90, seed=1, most=5)  # small numbers: many near ties
    together = nearest(records, candidates)
    assert torch.equal(torch.cat([nearest(row[None], candidates) for row in records]), together)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(2))
    assert torch.equal(nearest(records[order], candidates), together[order])


def test_a_null_record_does_not_change_the_bits_of_another(embedding):
    private = fonts.draw(300, 12, seed=3)
    everything = torch.cat(list(private_vectors(private, embedding)))
    without = torch.cat(list(private_vectors(private.zeroed_out(torch.tensor([0, 7, 260])), embedding)))
    kept = torch.ones(300, dtype=torch.bool)
    kept[[0, 7, 260]] = False
    assert torch.equal(everything[kept], without[kept])
    assert not torch.equal(everything, without)


def test_images_are_near_to_small_changes_of_themselves(embedding):
    images = to_float(fonts.draw(200, 12, seed=4).images)
    changed = (images + 0.05 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))).clamp(-1, 1)
    assert (nearest(embedding(changed), embedding(images)) == torch.arange(200)).float().mean() > 0.95
    assert embedding(images).abs().max() > 60  # the grid is used
    assert embedding.size <= 256


def test_empty_images_have_vectors_too(embedding):
    grey = Images(torch.zeros(2, 1, 12, 12, dtype=torch.uint8))
    assert next(private_vectors(grey, embedding)).shape == (2, embedding.size)


@pytest.mark.parametrize(
    ("records", "candidates"),
    [
        (vectors(2).float(), vectors(2)),
        (vectors(2), vectors(2, 255)),
        (vectors(2, 257), vectors(2, 257)),
        (vectors(2), vectors(0)),
    ],
)
def test_what_cannot_be_compared_exactly_is_refused(records, candidates):
    with pytest.raises(ValueError, match=r"coordinates|int8"):
        nearest(records, candidates)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_same():
    records, candidates = vectors(5000, most=5), vectors(900, seed=1, most=5)
    assert torch.equal(nearest(records.cuda(), candidates.cuda()).cpu(), nearest(records, candidates))
