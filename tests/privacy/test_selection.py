"""Selection has its law and its price; the broken sparse vectors of Lyu, Su, Li (2017) are caught."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from idpgan.audit import audit
from idpgan.audit.statistics import LogProbability, Outcomes, Statistic
from idpgan.errors import InputError
from idpgan.privacy import (
    Budget,
    BudgetError,
    Exponential,
    Ledger,
    Noise,
    NoisyMax,
    PermuteAndFlip,
    Relation,
    SparseVector,
    Unit,
)
from idpgan.privacy.discrete import discrete_laplace, survives
from idpgan.privacy.selection import NOT_ANSWERED

PAIR = (Unit.IMAGE, Relation.ZERO_OUT)


def permute_and_flip(scores, scale):
    """The law, from its definition: over all orders."""
    take = np.exp((np.array(scores) - max(scores)) / scale)
    chances = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        left = 1.0
        for candidate in order:
            chances[candidate] += left * take[candidate]
            left *= 1 - take[candidate]
    return chances / math.factorial(len(scores))


def noisy_max(scores, scale):
    """The same by integration: the largest of ``score + E`` with exponential noise."""
    x = np.linspace(min(scores), max(scores) + 40 * scale, 400_001)
    below = np.stack([np.where(x >= s, -np.expm1(-(x - s).clip(0) / scale), 0.0) for s in scores])
    density = np.stack([np.where(x >= s, np.exp(-(x - s).clip(0) / scale) / scale, 0.0) for s in scores])
    return np.array(
        [np.trapezoid(density[i] * np.delete(below, i, 0).prod(0), x) for i in range(len(scores))],
    )


def test_a_coin_has_its_chance():
    for numerator in (0, 3, 10, 25):
        kept = survives(torch.full((40_000,), numerator), 10, Noise.fixed(1)).double().mean().item()
        assert kept == pytest.approx(math.exp(-numerator / 10), abs=0.01)


def test_permute_and_flip_is_the_noisy_max_with_exponential_noise():
    scores, scale = [0, 3, 5, 4], 4
    law = permute_and_flip(scores, scale)
    assert np.allclose(law, noisy_max(scores, scale), atol=1e-4)
    chosen = PermuteAndFlip(1, scale, *PAIR)(torch.tensor(scores).expand(40_000, 4), Noise.fixed(2)).numpy()
    assert chisquare(np.bincount(chosen, minlength=4), 40_000 * law).pvalue > 1e-3
    weights = np.exp(np.array(scores) / scale)  # the exponential mechanism's law must be rejected
    assert chisquare(np.bincount(chosen, minlength=4), 40_000 * weights / weights.sum()).pvalue < 1e-6


@pytest.mark.parametrize("monotone", [False, True])
def test_permute_and_flip_keeps_to_its_price_on_all_neighbors(monotone):
    mechanism = PermuteAndFlip(1, 2, *PAIR, monotone)
    worst = 0.0
    for scores in itertools.product(range(-3, 4), repeat=3):
        law = permute_and_flip(scores, 2)
        for move in itertools.product((-1, 0, 1), repeat=3):
            if monotone and min(move) < 0 < max(move):
                continue
            other = permute_and_flip(np.array(scores) + move, 2)
            worst = max(worst, np.abs(np.log(law / other)).max())
    assert 0.7 * mechanism.event.pure < worst <= mechanism.event.pure
    assert mechanism.event.pure == pytest.approx(0.5 if monotone else 1.0)


def test_monotone_prices_do_not_hold_for_scores_that_move_both_ways():
    """The negative control of the flag."""
    law, other = permute_and_flip([0, -2], 2), permute_and_flip([1, -3], 2)
    assert np.abs(np.log(law / other)).max() > PermuteAndFlip(1, 2, *PAIR, True).event.pure


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


def test_permute_and_flip_is_audited_to_most_of_its_price():
    mechanism, noise = PermuteAndFlip(1, 2, *PAIR), Noise.fixed(5)
    data, neighbor = torch.ones(8).long(), torch.zeros(8).long()
    data[0], neighbor[0] = 0, 1
    laws = [permute_and_flip_of_two_levels(-1, 7), permute_and_flip_of_two_levels(1, 7)]
    ratio = torch.tensor(np.log(laws[1] / laws[0]))
    found = audit(
        lambda x: mechanism(x, noise), data, neighbor, runs=15_000, confidence=0.9999,
        statistics=[lambda *_: LogProbability(ratio)],
    )  # fmt: skip
    assert 0.5 < found.epsilon_lower <= mechanism.event.pure
    half = PermuteAndFlip(1, 1, *PAIR)  # half the noise: caught at the price of the whole
    caught = audit(
        lambda x: half(x, noise), data, neighbor, runs=15_000, confidence=0.9999,
        statistics=[lambda *_: LogProbability(ratio)],
    )  # fmt: skip
    assert caught.epsilon_lower > mechanism.event.pure


def permute_and_flip_of_two_levels(first, others):
    """The law of [first, 0, ..., 0] of scale 2: the others share what the first one leaves."""
    law = noisy_max([first] + [0] * others, 2)
    return law / law.sum()


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
        ledger.charge(PermuteAndFlip(1, 2, *PAIR).event)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PermuteAndFlip(0, 2, *PAIR), "sensitivity"),
        (lambda: PermuteAndFlip(1, 2.0, *PAIR), "scale"),
        (lambda: PermuteAndFlip(1, 2, "image", Relation.ZERO_OUT), "Unit"),
        (lambda: SparseVector(1, 1, 1, 0, *PAIR), "positives"),
        (lambda: SparseVector.of(1, 1, math.nan, *PAIR), "epsilon"),
        (lambda: SparseVector.of(1, 1, 1e-300, *PAIR), "threshold_scale"),
    ],
)
def test_bad_settings_are_refused(make, match):
    with pytest.raises(InputError, match=match):
        make()


@pytest.mark.parametrize("mechanism", [PermuteAndFlip(1, 2, *PAIR), SparseVector(1, 1, 1, 1, *PAIR)])
def test_scores_must_be_whole_steps(mechanism):
    for bad in (torch.zeros(3), torch.tensor(1), torch.tensor([1 << 61])):
        with pytest.raises(ValueError, match="grid steps"):
            mechanism(bad, Noise.fixed(1))
