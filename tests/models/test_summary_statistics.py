"""Summary statistics: the norm of what is summed, what one record moves, and means read back from sums."""

import math

import pytest
import torch

from idpgan import portraits
from idpgan.data.images import Images, to_float
from idpgan.errors import InputError
from idpgan.models.orientations import orientations
from idpgan.models.summary_statistics import SHARES, SummaryStatistics
from idpgan.privacy import Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.moments import private_moments
from tests.portraits.made_head import made_head

SIDE, POOL = 32, 320


@pytest.fixture(scope="module")
def learned():
    head = made_head()
    images = portraits.draw(portraits.sample(POOL, 1, head=head), SIDE, 1, 1, head=head)
    return SummaryStatistics().learn(images), images


def test_no_image_has_a_vector_longer_than_1_and_some_nearly_reach_it(learned):
    statistics, images = learned
    rng = torch.Generator().manual_seed(4)
    odd = torch.cat([torch.rand(40, 1, SIDE, SIDE, generator=rng) * 2 - 1, torch.full((2, 1, SIDE, SIDE), 1.0),
                     -torch.ones(1, 1, SIDE, SIDE), to_float(images)])  # fmt: skip
    odd[1::7] = odd[1::7].sign()
    vectors = statistics(odd)
    assert vectors.shape == (len(odd), SummaryStatistics().dimensions)
    assert vectors.dtype == torch.float64
    lengths = vectors.norm(dim=1)
    assert 0.999 < float(lengths.max()) <= 1 + 1e-12
    assert torch.equal(vectors[:, 0], torch.full_like(lengths, math.sqrt(0.05)))


@pytest.mark.parametrize("unit", [Unit.IMAGE, Unit.PERSON])
@pytest.mark.parametrize("relation", [Relation.ZERO_OUT, Relation.REPLACE_ONE])
def test_one_record_moves_the_sums_by_at_most_what_is_charged(learned, unit, relation):
    """Brute force: each record is zeroed out, or becomes an outlier of another class; one nearly reaches the bound."""
    statistics, images = learned
    most = 2 if unit is Unit.PERSON else 1
    sums = CellSums(2, SummaryStatistics().dimensions, "gaussian", 1.0, unit, relation, most_per_unit=most)
    rng = torch.Generator().manual_seed(5)
    noise = (torch.rand(3, 1, SIDE, SIDE, generator=rng) < 0.5).to(torch.uint8) * 255
    pictures, outlier = torch.cat([images[:6], noise[:2]]), noise[2]
    people, labels = torch.arange(8) // 2, torch.tensor([0, 1, 0, 1, 0, 0, 1, 1])

    def total(pictures, labels, null):
        private = Images(pictures, labels, ("a", "b"), people, null=null if null.any() else None)
        cap = most if unit is Unit.PERSON else None
        return sums.exact(private_moments(private, statistics, conditional=True, cap=cap, tile=8))

    nobody = torch.zeros(8, dtype=torch.bool)
    base, moved = total(pictures, labels, nobody), []
    for record in range(8 // most):
        there = torch.arange(8) // most == record
        other = (pictures * ~there[:, None, None, None], labels, there)
        if relation is Relation.REPLACE_ONE:
            other = (
                torch.where(there[:, None, None, None], outlier, pictures),
                labels ^ there,
                nobody,
            )
        moved.append(float((base - total(*other)).double().norm()))
    assert 0.6 * sums.distance < max(moved) <= sums.distance


def test_what_is_learned_is_of_the_portraits_alone_and_too_few_are_refused(learned):
    statistics, images = learned
    again = SummaryStatistics().learn(images)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in statistics.state_dict().items())
    mean = statistics.of("edges", images).mean(0)  # of the standard deviations of portraits
    assert float(mean.norm()) < 0.5
    with pytest.raises(InputError, match="299 portraits are too few"):
        SummaryStatistics().learn(images[:299])


def test_edges_are_told_whatever_the_light_is_and_the_size(learned):
    statistics, images = learned
    pictures = to_float(images[:20])

    def edges(pictures):
        return statistics.part("edges")(orientations(pictures))

    vectors, darker, turned = edges(pictures), edges(0.7 * pictures - 0.2), edges(pictures.transpose(2, 3))
    assert float((vectors - darker).norm(dim=1).mean()) < 0.2 * float((vectors - turned).norm(dim=1).mean())
    larger = torch.nn.functional.interpolate(pictures, (96, 96), mode="bilinear").expand(-1, 3, -1, -1)
    assert float((vectors - edges(larger)).norm(dim=1).mean()) < 0.5 * float((vectors - turned).norm(dim=1).mean())


@pytest.mark.parametrize("name", SHARES)
def test_means_are_read_back_from_sums_and_no_noise_makes_them_longer_than_the_radius(learned, name):
    statistics, images = learned
    sums = statistics(to_float(images)).sum(0, keepdim=True)
    estimates, radius = statistics.estimates(sums, 2.0), float(statistics.part(name).radius)
    torch.testing.assert_close(estimates.means[name][0], statistics.of(name, images).mean(0), rtol=1e-6, atol=1e-8)
    assert float(estimates.counts) == pytest.approx(POOL)
    assert float(estimates.noise[name]) == pytest.approx(2.0 * radius / math.sqrt(0.95 * SHARES[name]) / POOL)
    drowned = statistics.estimates(1e6 * torch.ones_like(sums).index_fill(1, torch.tensor([0]), 1e-9), 1e6)
    assert float(drowned.means[name].norm()) <= radius * (1 + 1e-12)
