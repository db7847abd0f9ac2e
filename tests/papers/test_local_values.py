"""Several values of a device: estimates are unbiased, a report keeps its ratio, and one drawn value beats a split."""

import math

import pytest
import torch
from papers.literature.local_values import LocalLabels, LocalNumbers, Reports

from idpgan.errors import InputError
from idpgan.privacy import Noise

NUM = 40_000


@pytest.mark.parametrize("split", [False, True])
def test_means_are_unbiased(split):
    rng = torch.Generator().manual_seed(0)
    truth = torch.tensor([-0.8, -0.1, 0.3, 0.9])
    records = (truth + 0.1 * torch.randn(NUM, 4, generator=rng)).clamp(-1, 1)
    method = LocalNumbers(4, 2.0, split)
    found = method.means(method.report(records, Noise.fixed(1)))
    scale, sent = (4.0, NUM) if split else (1.0, NUM / 4)  # 2 k / epsilon or 2 / epsilon
    std = math.sqrt((2 * scale**2 + 0.1**2) / sent)
    assert (found - records.double().mean(0)).abs().max() < 4 * std
    assert (found - records.double().mean(0).flip(0)).abs().max() > 20 * std  # another order must be rejected
    assert method.event.pure <= 2.0


def test_a_drawn_number_has_a_quarter_of_the_variance():
    zeros, spread = torch.zeros(NUM, 4), {}
    for split in (False, True):
        method = LocalNumbers(4, 1.0, split)
        reports = method.report(zeros, Noise.fixed(2))
        spread[split] = float(reports.values.var()) / (reports.which == 0).sum()
    assert spread[True] / spread[False] == pytest.approx(4.0, rel=0.1)


def ratio(method, claimed, low, high):
    """Return the largest log ratio of chances of outcomes, in standard deviations beyond the claim."""
    counts = []
    for seed, record in enumerate((low, high)):
        reports = method.report(record.expand(NUM, -1), Noise.fixed(seed))
        bins = reports.values.clamp(-6, 6).mul(2).round().long() + 12
        counts.append(torch.bincount((reports.which * 25 + bins).flatten(), minlength=100).double())
    enough = (counts[0] > 50) & (counts[1] > 50)
    first, second = (count[enough] for count in counts)
    return float((((first / second).log().abs() - claimed) / (1 / first + 1 / second).sqrt()).max())


def test_no_outcome_is_likelier_than_epsilon_allows():
    low, high = torch.full((1, 4), -1.0), torch.ones(1, 4)
    assert ratio(LocalNumbers(4, 1.0), 1.0, low, high) < 4
    assert ratio(LocalNumbers(4, 2.0), 1.0, low, high) > 10  # half the noise
    ones = torch.ones(1, 4, dtype=torch.int64)
    assert ratio(LocalLabels(4, 1.0, categories=3), 1.0, 0 * ones, ones) < 4
    assert ratio(LocalLabels(4, 2.0, categories=3), 1.0, 0 * ones, ones) > 10


@pytest.mark.parametrize("split", [False, True])
def test_shares_of_labels_are_unbiased(split):
    rng = torch.Generator().manual_seed(0)
    chances = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    records = torch.stack([torch.multinomial(row, NUM, replacement=True, generator=rng) for row in chances], 1)
    method = LocalLabels(2, 3.0, split, categories=3)
    reports = method.report(records, Noise.fixed(3))
    found = method.shares(reports)
    truth = torch.nn.functional.one_hot(records).double().mean(0)
    assert (found - truth).abs().max() < 0.03
    assert found.sum(1).tolist() == pytest.approx([1.0, 1.0])
    answers = torch.nn.functional.one_hot(reports.values[reports.which == 1]).double().mean(0)
    assert (answers - truth[1]).abs().max() > 0.05  # the answers themselves are biased
    assert method.event.count * method.event.pure == pytest.approx(3.0)


def test_what_no_record_is_is_refused():
    method = LocalNumbers(3, 1.0)
    reports = method.report(torch.tensor([[math.nan, 7.0, -7.0]]), Noise.fixed(0))
    assert reports.values.isfinite().all()
    nobody = method.means(Reports(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1)))
    assert nobody.isnan().tolist() == [False, True, True]
    with pytest.raises(InputError, match=r"\(N, 3\)"):
        method.report(torch.zeros(4, 2), Noise.fixed(0))
    with pytest.raises(InputError, match="num_values"):
        LocalNumbers(0, 1.0)
    with pytest.raises(InputError, match="epsilon"):
        LocalLabels(2, math.inf)
