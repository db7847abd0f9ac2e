"""Each statistic tells what it is for, and says when it cannot."""

import pytest
import torch

from idpgan.audit import audit
from idpgan.audit.neighbors import extremes, low_rank, nearly_equal
from idpgan.audit.statistics import (
    Classifier,
    Linear,
    LowOrderBits,
    Nearness,
    Outcomes,
    SubspaceDistance,
    WithinBatch,
    likelihood_ratio,
    usual,
)
from idpgan.errors import InputError
from idpgan.privacy import (
    Exponential,
    Gaussian,
    Laplace,
    Noise,
    NoisyMax,
    RandomizedResponse,
    Relation,
    RoundedGaussian,
    Unit,
)

PAIR = (Unit.IMAGE, Relation.REPLACE_ONE)


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        (Laplace(1.0, 2.0, *PAIR), torch.distributions.Laplace(0.0, 2.0)),
        (Gaussian(2.0, 1.5, *PAIR), torch.distributions.Normal(0.0, 3.0)),
        (RoundedGaussian(2.0, 3, *PAIR), torch.distributions.Normal(0.0, 3.0)),  # the same ratio
    ],
)
def test_the_likelihood_ratio_is_exact(mechanism, law):
    data, neighbor = torch.tensor([0.0, 1.0]).double(), torch.tensor([3.0, -1.0]).double()
    outputs = torch.randn(50, 2, generator=torch.Generator().manual_seed(1)).double() * 3
    expected = (law.log_prob(outputs - neighbor) - law.log_prob(outputs - data)).sum(1)
    assert torch.allclose(likelihood_ratio(mechanism)(data, neighbor)(outputs), expected.double(), atol=1e-5)


def test_the_likelihood_ratio_of_choices_is_that_of_their_probabilities():
    response = likelihood_ratio(RandomizedResponse(4, 1.5))(torch.tensor([0]), torch.tensor([2]))
    assert response(torch.arange(4)[:, None]).tolist() == [-1.5, 0.0, 1.5, 0.0]
    scores = torch.tensor([0.0, 1.0, 1.0]).double()
    choice = likelihood_ratio(Exponential(1.0, 2.0, *PAIR))(scores, 1 - scores)(torch.arange(3))
    probabilities = [(s - s.logsumexp(0)) for s in (scores, 1 - scores)]
    assert torch.allclose(choice, probabilities[1] - probabilities[0])
    with pytest.raises(InputError, match="NoisyMax"):
        likelihood_ratio(NoisyMax(1.0, 1.0, *PAIR))(scores, scores)


def test_a_learned_classifier_finds_what_is_in_no_coordinate():
    """Two coordinates have equal signs on the data and opposite signs on the neighbor; each by itself is the same."""
    rng = torch.Generator().manual_seed(2)

    def release(values):
        sign = torch.randint(2, (len(values), 1), generator=rng) * 6 - 3.0
        return torch.cat([sign, sign * (1 - 2 * values)], 1) + torch.randn(len(values), 2, generator=rng)

    zero, one = torch.zeros(1), torch.ones(1)
    learned = audit(release, zero, one, runs=4000, statistics=[Classifier])
    assert learned.epsilon_lower > 3.5
    assert learned.epsilon_lower <= audit(release, zero, one, runs=4000).epsilon_lower + 1
    assert audit(release, zero, zero, runs=4000, statistics=[Classifier]).epsilon_lower < 0.3  # control


def test_outcomes_are_for_few_outcomes_only():
    few, many = torch.arange(400) % 7, torch.randn(400, 2, generator=torch.Generator().manual_seed(1))
    assert Outcomes(few, few).fit(few, few + 1)
    assert not Outcomes(many, many).fit(many, many + 1)
    seen = Outcomes(few, few)
    seen.fit(few, few + 7)
    assert seen(torch.tensor([0, 7, 99])).sign().tolist() == [-1.0, 1.0, 0.0]


def test_the_difference_within_a_batch_cancels_shared_noise():
    data, neighbor = torch.zeros(2, 3), torch.tensor([[1.0] * 3, [0.0] * 3])
    noise = torch.randn(20, 1, 3, generator=torch.Generator().manual_seed(1)) * 1e3
    score = WithinBatch(data, neighbor)
    assert (score(data + noise) < -2.9).all()
    assert (score(neighbor + noise) > 2.9).all()
    with pytest.raises(InputError, match="two records"):
        WithinBatch(torch.zeros(1, 3), torch.zeros(1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_order_bits_are_powers_of_two(dtype):
    values = torch.tensor([[1.0], [0.75], [-5.0], [96.0], [2.0**-30]], dtype=dtype)
    assert LowOrderBits(values[0], values[0])(values).tolist() == [0.0, -2.0, 0.0, 5.0, -30.0]
    with pytest.raises(InputError, match="int64"):
        LowOrderBits(values[0], values[0])(torch.ones(1, 1, dtype=torch.int64))


def test_the_subspace_distance_sees_columns_not_scale():
    pair = low_rank((6, 4), Unit.COLUMN)
    score = SubspaceDistance(pair.data, pair.neighbor)
    both = score(torch.stack([pair.data * 7, pair.neighbor * 0.1]))
    assert both[0] < 0 < both[1]
    with pytest.raises(InputError, match="matrices"):
        SubspaceDistance(torch.zeros(3), torch.zeros(3))


def test_neighbors_differ_in_one_unit():
    for make in (extremes, nearly_equal, low_rank):
        for unit, changed in ((Unit.PIXEL, 1), (Unit.COLUMN, 6), (Unit.IMAGE, 24)):
            pair = make((6, 4), unit)
            assert int((pair.data != pair.neighbor).sum()) == changed
            assert pair.data.min() >= 0
            assert pair.neighbor.max() <= 1
            assert unit in pair.name
        with pytest.raises(InputError, match="person"):
            make((6, 4), Unit.PERSON)
    assert torch.linalg.matrix_rank(low_rank((6, 4), Unit.COLUMN).data) == 1
    with pytest.raises(InputError, match="two rows"):
        low_rank((1, 4), Unit.PIXEL)


def test_the_usual_statistics_depend_on_the_shape_of_outputs():
    names = [maker(torch.zeros(4), torch.ones(4)).name for maker in usual(torch.zeros(4), torch.zeros(4))]
    assert names == ["frequency of outcomes", "linear discriminant", "nearness (L1)", "nearness (L2)"]
    assert Classifier in usual(torch.zeros(4), torch.zeros(5))


def test_a_line_is_not_fitted_to_more_numbers_than_runs():
    outputs = Noise.fixed(1).normal((40, 30))
    assert not Linear(outputs[0], outputs[0]).fit(outputs, outputs)
    assert Nearness(outputs[0], outputs[1]).fit(outputs, outputs)
