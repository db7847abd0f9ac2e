"""Selection has its law and its price; the broken sparse vectors of Lyu, Su, Li (2017) are caught."""

import itertools
import math

import numpy as np
import pytest
import torch

from idpgan.audit import audit
from idpgan.audit.statistics import Outcomes, Statistic
from idpgan.errors import InputError
from idpgan.privacy import (
    Budget,
    BudgetError,
    Exponential,
    Ledger,
    Noise,
    NoisyMax,
    Relation,
    SparseVector,
    Unit,
)
from idpgan.privacy.discrete import discrete_laplace
from idpgan.privacy.selection import NOT_ANSWERED

PAIR = (Unit.IMAGE, Relation.ZERO_OUT)


@pytest.mark.parametrize("kind", [Exponential, NoisyMax])
def test_monotone_scores_get_half_the_noise_at_the_same_price(kind):
    one, two = kind(1.0, 1.0, *PAIR, True), kind(1.0, 2.0, *PAIR)
    scores = torch.tensor([0.0, 1.0, 3.0]).double().expand(2000, 3)
    assert torch.equal(one(scores, Noise.fixed(3)), two(scores, Noise.fixed(3)))
    assert one.event.pure == 1.0


@pytest.mark.parametrize("kind", [Exponential, NoisyMax])
def test_monotone_selection_is_audited_below_its_price(kind):
    mechanism, noise = kind(1.0, 1.0, *PAIR, True), Noise.fixed(4)
    data, neighbor = torch.zeros(20).double(), torch.zeros(20).double()
    neighbor[0] = 1.0
    found = audit(lambda x: mechanism(x, noise), data, neighbor, runs=20_000, confidence=0.9999, statistics=[Outcomes])
    assert 0.3 < found.epsilon_lower <= 1.0


# Sparse vector.


def test_sparse_vector_answers_and_stops():
    mechanism = SparseVector(1, 1, 1, 2, *PAIR)
    answers = torch.tensor([-100, 100, -100, 100, 100, -100])
    assert mechanism(answers, Noise.fixed(1)).tolist() == [0, 1, 0, 1, NOT_ANSWERED, NOT_ANSWERED]
    shifted = mechanism(answers.expand(3, 6) + torch.arange(6), Noise.fixed(1), torch.arange(6))
    assert shifted.tolist() == 3 * [[0, 1, 0, 1, NOT_ANSWERED, NOT_ANSWERED]]


def chance(answers, outputs, mechanism, reach=30):
    """The exact chance of outputs up to the stop: a sum over the noise of the threshold."""
    total = 0.0
    for rho in range(-reach, reach + 1):
        part = discrete(rho, mechanism.threshold_scale)
        for answer, output in zip(answers, outputs, strict=False):
            above = upper(rho - answer, mechanism.answer_scale)
            part *= above if output else 1 - above
        total += part
    return total


@pytest.mark.parametrize(("threshold_scale", "answer_scale"), [(60, 20), (20, 60)])
def test_sparse_vector_draws_its_law(threshold_scale, answer_scale):
    """With a tenth less noise on the threshold or on the answers, the wider of them, it would be 14 sd off or more."""
    mechanism = SparseVector(1, threshold_scale, answer_scale, 1, *PAIR)
    start, rows = -80, 200_000
    drawn = mechanism(torch.full((rows, 1), start), Noise.fixed(2)).double().mean().item()
    truth = chance([start], (1,), mechanism, reach=2000)
    assert drawn == pytest.approx(truth, abs=6 * math.sqrt(truth * (1 - truth) / rows))


def discrete(x, scale):
    r = math.exp(-1 / scale)
    return (1 - r) / (1 + r) * r ** abs(x)


def upper(x, scale):
    """P(noise >= x)."""
    r = math.exp(-1 / scale)
    return r**x / (1 + r) if x >= 1 else 1 - r ** (1 - x) / (1 + r)


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("positives", [1, 2])
def test_sparse_vector_keeps_to_its_price_on_all_neighbors(positives, monotone):
    mechanism = SparseVector.of(1, positives, 2.0, *PAIR, monotone=monotone)
    assert mechanism.event.pure <= 2.0
    worst = 0.0
    moves = [m for m in itertools.product((-1, 0, 1), repeat=4) if not (monotone and min(m) < 0 < max(m))]
    for outputs in ((0, 0, 0, 1), (1,), (0, 1), (0, 0, 1, 1), (1, 1)):
        if sum(outputs) > positives:
            continue
        for start in (-6, 1):
            law = chance([start] * 4, outputs, mechanism)
            worst = max(worst, *(abs(math.log(law / chance(np.add(start, m), outputs, mechanism))) for m in moves))
    assert 0.4 * mechanism.event.pure < worst <= mechanism.event.pure * (1 + 1e-9)


def test_the_budget_is_shared_as_the_paper_finds_best():
    mechanism = SparseVector.of(1000, 4, 1.0, *PAIR)
    shares = 1000 / mechanism.threshold_scale, 8 * 1000 / mechanism.answer_scale
    assert shares[1] / shares[0] == pytest.approx(8 ** (2 / 3), rel=0.01)
    assert 0.99 < mechanism.event.pure <= 1.0


ROWS = 20_000


def broken(variant, epsilon, positives, noise):
    """The variants of Lyu, Su, Li (2017), figure 1, on answers (R, m) and threshold 0; sensitivity 1 is 100 steps."""

    def laplace(scale, shape):
        return discrete_laplace(round(100 * scale), math.prod(shape), noise).reshape(shape)

    def release(answers):
        rows, many = answers.shape
        rho = laplace(2 / epsilon if variant != 4 else 4 / epsilon, (rows, 1))
        if variant == 5:  # Stoddard et al. 2014: no noise on the answers
            return (100 * answers >= rho).long()
        if variant == 6:  # Chen et al. 2015: no stop
            return (100 * answers + laplace(2 / epsilon, (rows, many)) >= rho).long()
        if variant == 4:  # Lee and Clifton 2014: noise does not grow with the number of positives
            above = 100 * answers + laplace(4 / (3 * epsilon), (rows, many)) >= rho
            return torch.where(above.cumsum(1) - above.long() < positives, above.long(), NOT_ANSWERED)
        noisy = 100 * answers + laplace(2 * positives / epsilon, (rows, many))  # 3, Roth 2011: releases them
        above = noisy >= rho
        stop = above.cumsum(1) - above.long() >= positives
        return torch.where(stop, -(10**6), torch.where(above, noisy, -(10**5)))

    return release


class Pattern(Statistic):
    """A function of the output that the paper's proof looks at."""

    def __init__(self, score):
        self.name, self._score = "pattern", score

    def __call__(self, outputs):
        return self._score(outputs).double()


# Answers on both neighbors, each moved by at most 1, and the statistic.
HALF = 12
GAMES = {
    4: (
        [0] * HALF + [0] * HALF,
        [1] * HALF + [-1] * HALF,
        lambda y: (y[:, HALF:] == 1).sum(1) - (y[:, :HALF] == 1).sum(1),
    ),
    5: ([0, 1], [1, 0], lambda y: y[:, 0] - y[:, 1]),
    6: ([0] * HALF + [0] * HALF, [1] * HALF + [-1] * HALF, lambda y: y[:, HALF:].sum(1) - y[:, :HALF].sum(1)),
}


@pytest.mark.parametrize("variant", [4, 5, 6])
def test_a_broken_sparse_vector_is_caught_and_the_sound_one_is_not(variant):
    epsilon, positives = 1.0, HALF
    data, neighbor, score = GAMES[variant]
    sides = [torch.tensor(side) for side in (data, neighbor)]
    statistics = [lambda *_: Pattern(score)]
    noise = Noise.fixed(variant)
    found = audit(
        broken(variant, epsilon, positives, noise), *sides, runs=ROWS, confidence=1 - 1e-4, statistics=statistics
    )
    assert found.epsilon_lower > 1.2 * epsilon
    sound = SparseVector.of(100, positives, epsilon, *PAIR)
    kept = audit(
        lambda x: sound(100 * x, noise), *sides, runs=ROWS, confidence=1 - 1e-4, statistics=[*statistics, Outcomes]
    )
    assert kept.epsilon_lower <= sound.event.pure <= epsilon


def test_releasing_the_noisy_answers_is_caught():
    """Variant 3 (Roth 2011): a low answer beside silent ones says how low the threshold is, so it cannot have moved."""
    data, neighbor = torch.zeros(7).long(), torch.tensor([1] * 6 + [0])

    def score(outputs):
        silent = (outputs[:, :-1] == -(10**5)).all(1) & (outputs[:, -1] > -(10**5))
        return torch.where(silent, -outputs[:, -1], -(10**4)).clamp(-(10**4), 10**4)

    found = audit(
        broken(3, 2.0, 1, Noise.fixed(3)), data, neighbor, runs=150_000, confidence=1 - 1e-4,
        statistics=[lambda *_: Pattern(score)],
    )  # fmt: skip
    assert found.epsilon_lower > 2.2


def test_a_selection_is_charged():
    noise, ledger = Noise.system(), Ledger(*PAIR, Budget(1.0, 0.0))
    mechanism = SparseVector.of(1, 2, 1.0, *PAIR)
    answers = torch.tensor([-50, 50, 50, 0])
    found = ledger.release([mechanism.event], lambda: {"above": mechanism(answers, noise)}, noise=noise)
    assert found["above"].shape == (4,)
    assert 0.9 < ledger.epsilon(0.0) <= 1.0
    with pytest.raises(BudgetError, match="exceed"):
        ledger.charge(SparseVector(1, 2, 2, 1, *PAIR).event)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: SparseVector(0, 1, 1, 1, *PAIR), "sensitivity"),
        (lambda: SparseVector(1, 1, 2.0, 1, *PAIR), "scale"),
        (lambda: SparseVector(1, 1, 1, 1, "image", Relation.ZERO_OUT), "Unit"),
        (lambda: SparseVector(1, 1, 1, 0, *PAIR), "positives"),
        (lambda: SparseVector.of(1, 1, math.nan, *PAIR), "epsilon"),
        (lambda: SparseVector.of(1, 1, 1e-300, *PAIR), "threshold_scale"),
    ],
)
def test_bad_settings_are_refused(make, match):
    with pytest.raises(InputError, match=match):
        make()


def test_scores_must_be_whole_steps():
    mechanism = SparseVector(1, 1, 1, 1, *PAIR)
    for bad in (torch.zeros(3), torch.tensor(1), torch.tensor([1 << 61])):
        with pytest.raises(ValueError, match="grid steps"):
            mechanism(bad, Noise.fixed(1))
