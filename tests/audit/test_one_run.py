"""The one-run audit: Theorem 5.2 in closed cases, correct mechanisms are not refuted, leaky ones caught, a GAN too."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from scipy.stats import binom, norm

from idpgan import trainer
from idpgan.audit.one_run import (
    audit_guesses,
    audit_one_run,
    bound_law,
    epsilon_from_guesses,
    insert_canaries,
    law_of,
    make_canaries,
    p_value,
    refutes,
)
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.privacy import Event, Noise, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.mechanisms import RandomizedResponse
from idpgan.training.config import build_config


@pytest.fixture(scope="module")
def digits():
    return load(DataConfig())


def tosses(num, seed):
    return torch.rand(num, generator=torch.Generator().manual_seed(seed)) < 0.5


# The bound -----------------------------------------------------------------------------------------------------------


def slow_p_value(m, r, v, eps, delta):
    """Theorem 5.2 term by term."""
    q = math.exp(eps) / (1 + math.exp(eps))
    pmf = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    slack = max([sum(pmf[max(v - i, 0) : v]) / i for i in range(1, v + 1)] or [0.0])
    return min(1.0, sum(pmf[v:]) + 2 * m * delta * slack)


@settings(max_examples=50)
@given(st.integers(0, 25), st.integers(0, 25), st.floats(0, 4), st.sampled_from([0.0, 1e-5, 1e-2]))
def test_p_value_is_the_theorem(a, b, epsilon, delta):
    v, r = sorted((a, b))
    assert p_value(30, r, v, epsilon, delta) == pytest.approx(slow_p_value(30, r, v, epsilon, delta), abs=1e-12)


def test_closed_cases():
    # All r guesses right: q^r = alpha, so epsilon = logit(alpha^(1/r)).
    for r in (10, 100, 1000):
        q = 0.05 ** (1 / r)
        assert epsilon_from_guesses(r, r, r) == pytest.approx(math.log(q / (1 - q)), abs=1e-9)
    assert epsilon_from_guesses(100, 100, 50) == 0.0
    assert epsilon_from_guesses(100, 4, 4) == 0.0  # 1/16 > 0.05
    assert epsilon_from_guesses(100, 5, 5) > 0.0
    # delta = 1 / m allows anything: the bound must vanish.
    assert epsilon_from_guesses(100, 100, 100, delta=0.5) == 0.0


def test_epsilon_grows_with_right_guesses_and_falls_with_delta_and_confidence():
    bounds = [epsilon_from_guesses(200, 100, v) for v in range(50, 101, 5)]
    assert bounds == sorted(bounds)
    assert epsilon_from_guesses(200, 100, 90, delta=1e-4) < epsilon_from_guesses(200, 100, 90)
    assert epsilon_from_guesses(200, 100, 90, confidence=0.999) < epsilon_from_guesses(200, 100, 90)


def test_the_bound_is_where_the_p_value_meets_the_confidence():
    for delta in (0.0, 1e-5):
        epsilon = epsilon_from_guesses(1000, 400, 300, delta=delta)
        assert p_value(1000, 400, 300, epsilon, delta) == pytest.approx(0.05, abs=1e-9)


# Mechanisms ----------------------------------------------------------------------------------------------------------


def responses(coins, epsilon, seed):
    """Randomized response on each coin: exactly epsilon-DP for adding or removing a canary."""
    lie = torch.rand(len(coins), generator=torch.Generator().manual_seed(seed)) >= 1 / (1 + math.exp(-epsilon))
    return (coins ^ lie).double()


def test_a_correct_mechanism_is_not_refuted_more_often_than_allowed():
    refuted, lower = 0, []
    for seed in range(100):
        coins = tosses(400, seed)
        found = audit_guesses(responses(coins, 1.0, seed + 10_000), coins, confidence=0.95, guesses=[400])
        refuted += found.epsilon_lower > 1.0
        lower.append(found.epsilon_lower)
    assert refuted <= binom.isf(1e-3, 100, 0.05)
    assert np.median(lower) > 0.6  # randomized response is the tight case: the bound is not vacuous


def test_a_leaky_mechanism_is_caught():
    claimed, seeds = 1.0, range(20)
    caught = [
        audit_guesses(responses(tosses(400, s), 2 * claimed, s + 1), tosses(400, s), guesses=[400]).epsilon_lower
        > claimed
        for s in seeds
    ]
    assert sum(caught) >= 18  # noise for epsilon 2 was sold as 1


def test_a_gaussian_sum_keeps_to_its_epsilon_at_its_delta():
    # One noisy number per canary, sensitivity 1: sigma of Dwork and Roth is above what (1, 1e-3) needs.
    epsilon, delta = 1.0, 1e-3
    sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    for seed in range(8):
        coins = tosses(500, seed)
        noise = torch.randn(500, generator=torch.Generator().manual_seed(seed + 77))
        result = audit_guesses(coins + sigma * noise, coins, delta=delta)
        assert result.epsilon_lower <= epsilon
        assert audit_guesses(coins + 0.05 * noise, coins, delta=delta).epsilon_lower > epsilon  # a forgotten factor


def test_our_own_randomized_response_keeps_to_its_epsilon():
    coins = tosses(1000, 1)
    response = RandomizedResponse(2, 1.5, Unit.IMAGE, Relation.REPLACE_ONE)
    result = audit_guesses(response(coins.long(), Noise.fixed(3)).double(), coins, confidence=0.999)
    assert 0.8 < result.epsilon_lower <= 1.5


def test_abstentions_help_where_only_few_canaries_are_known():
    coins = tosses(1000, 3)
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(4))
    known = torch.zeros(1000).index_fill_(0, torch.arange(0, 1000, 20), 1.0)
    scores = torch.where(known > 0, (coins.double() - 0.5) * 100, noise.double())
    assert audit_guesses(scores, coins, guesses=[1000]).epsilon_lower < 0.4
    few = audit_guesses(scores, coins)
    assert few.guesses == 50
    assert few.correct >= 45  # one score more is called out than canaries are
    assert few.epsilon_lower > 1


def test_constant_scores_find_nothing_and_bad_ones_are_refused():
    coins = tosses(100, 1)
    assert audit_guesses(torch.zeros(100), coins).epsilon_lower < 0.5
    for scores, options, words in (
        (torch.full((100,), math.nan), {}, "NaN"),
        (torch.zeros(99), {}, "one per canary"),
        (torch.zeros(100), {"guesses": [101]}, "1 .. 100"),
        (torch.zeros(100), {"confidence": 1.0}, "confidence"),
        (torch.zeros(100), {"delta": -1.0}, "delta"),
    ):
        with pytest.raises(InputError, match=words):
            audit_guesses(scores, coins, **options)
    with pytest.raises(InputError, match="correct"):
        p_value(10, 5, 6, 1.0)


# The bound of a law --------------------------------------------------------------------------------------------------


def noise_of(kind, multiplier, **more):
    return [Event(kind, Unit.IMAGE, Relation.ZERO_OUT, multiplier, **more)]


# jax_privacy 2.0.0 (PyPI, Apache 2.0), auditing.py, CanaryScoreAuditor.epsilon_one_run_fdp(1 - confidence, delta,
# threshold_strategy=Explicit(0.5)) on scores 1 (guessed) and 0: v canaries that are in and r - v that are out score 1.
# Run on 2026-11-26 with numpy 2.4.6 and scipy 1.17.1; it solves for epsilon to 1e-6.
JAX_PRIVACY = (  # m, r, v, delta, confidence, epsilon
    (1000, 1000, 600, 1e-5, 0.95, 0.5835403679239116),
    (1000, 200, 150, 1e-5, 0.95, 1.2969160950579595),
    (5000, 500, 420, 1e-5, 0.95, 2.051579868088469),
    (100, 99, 99, 1e-5, 0.95, 8.178972541769634),
    (2000, 100, 98, 1e-8, 0.99, 4.28366926469018),
    (500, 100, 60, 1e-3, 0.95, 0.020290551494999927),
    (5000, 250, 249, 1e-5, 0.95, 5.666441893621598),
    (300, 300, 299, 1e-6, 0.95, 9.793806561809857),
    (100, 40, 20, 1e-5, 0.95, 0.0),
    (1000, 1, 1, 1e-5, 0.95, 0.0),
)


@pytest.mark.parametrize(("m", "r", "v", "delta", "confidence", "epsilon"), JAX_PRIVACY)
def test_the_gaussian_law_gives_the_values_of_jax_privacy(m, r, v, delta, confidence, epsilon):
    # The highest r scores are guesses "in", v of them right. Twice as many guesses, half of them "out", count alike.
    found = bound_law(m, {r: v}, noise_of("gaussian", 1.0), delta=delta, error=1 - confidence)
    assert found.epsilon_lower == pytest.approx(epsilon, abs=2e-6)
    assert (found.law, found.guesses, found.correct) == ("Gaussian", r, v)
    other = bound_law(m, {r: v}, noise_of("gaussian", 7.0), delta=delta, error=1 - confidence)
    assert other.epsilon_lower == pytest.approx(found.epsilon_lower, rel=1e-6)  # the noise only begins the search


def least_total(law, m, r, v, error):
    """Solve the inequalities of the theorem for the least mass, by a linear program with the law's tangents."""
    rates = np.concatenate([np.geomspace(1e-6, 0.5, 150), np.linspace(0.5, 1 - 1e-6, 50)])
    slopes = np.array([(law(t + 1e-9) - law(t - 1e-9)) / 2e-9 for t in rates])
    offsets = np.array([law(t) for t in rates]) - slopes * rates
    number = np.arange(r + 1)
    rows, limits = [-(number >= v).astype(float)], [-error]
    for least in range(1, v + 1):
        right = np.where(number >= least, number / m, 0.0)
        wrong = np.where(number >= least - 1, (r - number) / m, 0.0)
        rows += list(slopes[:, None] * right - wrong)
        limits += list(-offsets)
    found = linprog(np.ones(r + 1), A_ub=np.array(rows), b_ub=np.array(limits))
    return found.fun if found.success else math.inf


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_recursion_is_the_least_mass_that_the_theorem_allows(mu):
    law, exact = law_of(noise_of("gaussian", 1 / mu), 1e-6)
    assert exact
    refuted = {v: refutes(law, 20, 12, v, 0.05) for v in range(13)}
    assert list(refuted.values()) == sorted(refuted.values())  # more right guesses refute more
    for v in range(6, 13):
        least = least_total(law, 20, 12, v, 0.05)
        assert refuted[v] == (least > 1), (v, least)
        assert abs(least - 1) > 1e-3  # no other rounding turns it


def gaussian_scores(canaries, multiplier, seed):
    coins = tosses(canaries, seed)
    noise = torch.randn(canaries, generator=torch.Generator().manual_seed(seed + 500)).double()
    return coins + multiplier * noise, coins


def test_the_bound_of_a_law_is_valid_and_above_steinkes():
    proven = noise_of("gaussian", 1.0)
    found = [
        audit_guesses(*gaussian_scores(1000, 1.0, seed), delta=1e-5, guesses=[100], events=proven)
        for seed in range(100)
    ]
    above = sum(result.fdp.epsilon_lower > compose_epsilon(proven, 1e-5) for result in found)
    assert above <= 5  # of 100, at confidence 95 %
    assert all(result.highest == result.fdp.epsilon_lower >= result.epsilon_lower for result in found)
    assert np.median([result.fdp.epsilon_lower - result.epsilon_lower for result in found]) > 0.5
    first, law = found[0], found[0].fdp
    assert first.to_json()["fdp"]["law"] == "Gaussian"
    both = f"epsilon >= {first.epsilon_lower:.4g}, epsilon >= {law.epsilon_lower:.4g} if the law is Gaussian"
    assert both in repr(first)  # not the higher one by itself
    assert "each of the two 0.95 confident" in repr(first)
    alone = dataclasses.replace(first, fdp=None)
    assert f">= {alone.epsilon_lower:.4g} at delta = 1e-05 (0.95 confident" in repr(alone)


def test_noise_that_is_a_fifth_too_small_is_caught():
    """Of ten million Gaussian scores the 10,000 most extreme ones are guessed; only these are drawn."""
    canaries, guesses, rng = 10_000_000, 10_000, np.random.default_rng(1)
    law, _ = law_of(noise_of("gaussian", 1.0), 1e-6)

    def refuted(multiplier):
        beyond = [lambda t, sign=sign: norm.sf((t + sign * 0.5) / multiplier) for sign in (-1, 1)]  # right, wrong
        reach = brentq(lambda t: beyond[0](t) + beyond[1](t) - guesses / canaries, 0, 10)
        right = beyond[0](reach) * canaries / guesses
        counts = rng.binomial(guesses, right, 200)
        return sum(refutes(law, canaries, guesses, int(count), 0.05) for count in counts)

    assert refuted(0.8) >= 190
    assert refuted(1.0) == 0
    # Five thousand, as the command has, are too few for a fifth, and enough for a half.
    scores = [gaussian_scores(5000, 0.5, seed) for seed in range(5)]
    options = {"delta": 1e-5, "guesses": [500], "events": noise_of("gaussian", 1.0)}
    assert all(audit_guesses(*given, **options).fdp.epsilon_lower > 4.4 for given in scores)  # proven: 4.377


def test_a_law_of_its_own_is_scaled_and_composed():
    sampled = noise_of("poisson-gaussian", 0.9, count=20, sample_rate=0.3)
    law, exact = law_of(sampled, 1e-6)
    assert not exact
    rates = np.linspace(0.01, 0.99, 50)
    least = np.array([law(rate) for rate in rates])
    assert ((least >= 0) & (least <= rates)).all()
    assert (np.diff(least, 2) >= -1e-12).all()  # convex
    every = noise_of("poisson-gaussian", 0.9, count=20, sample_rate=1.0)
    assert law_of(every, 1e-6)[1]  # nobody is left out: Gaussian
    assert (least >= [law_of(every, 1e-6)[0](rate) for rate in rates]).all()  # sampling hides
    found = bound_law(2000, {200: 180}, sampled, delta=1e-5, error=0.05)
    assert found.law == "the mechanism's own"
    assert epsilon_from_guesses(2000, 200, 180, delta=1e-5) < found.epsilon_lower < compose_epsilon(sampled, 1e-5)


def test_a_law_of_pure_noise_and_of_none():
    coins = tosses(1000, 1)
    scores = responses(coins, 1.0, 2)
    laplace = audit_guesses(scores, coins, events=noise_of("laplace", 1.0)).fdp
    assert 0 < laplace.epsilon_lower <= 1.0
    for events in ((), noise_of("gaussian", 1.0), [Event("pure", Unit.IMAGE, Relation.ZERO_OUT, pure_epsilon=1.0)]):
        assert audit_guesses(scores, coins, delta=0.0, events=events).fdp is None  # no Gaussian epsilon at delta = 0


# Canaries ------------------------------------------------------------------------------------------------------------


def test_canaries_are_appended_and_nulled_by_independent_coins(digits):
    """Zero-out-one: the number of positions is the same for all coins."""
    canaries = make_canaries(digits, 100, "noise")
    trials = [insert_canaries(digits, canaries, seed=seed) for seed in range(30)]
    for trial in trials:
        private = trial.split.private
        assert len(private) == trial.split.num_private == digits.num_private + 100
        assert torch.equal(private.images[: digits.num_private], digits.private.images)
        assert not private.null[: digits.num_private].any()
        assert torch.equal(private.null[digits.num_private :], ~trial.included)
        appended = private.select(torch.arange(digits.num_private, len(private)))
        assert torch.equal(appended.images[trial.included], canaries.images[trial.included])
        assert torch.equal(appended.labels[trial.included], canaries.labels[trial.included])
        assert not appended.images[~trial.included].any()
        assert trial.split.holdout is digits.holdout
    coins = torch.stack([trial.included for trial in trials]).double()
    assert abs(coins.mean() - 0.5) < 5 * 0.5 / math.sqrt(3000)
    assert torch.corrcoef(coins.T).triu(1).nan_to_num().mean().abs() < 0.05
    again = insert_canaries(digits, canaries, seed=1)
    assert torch.equal(again.included, trials[1].included)
    assert not torch.equal(insert_canaries(digits, canaries).included, insert_canaries(digits, canaries).included)
    already = dataclasses.replace(digits, private=digits.private.zeroed_out(torch.tensor([3])))
    assert insert_canaries(already, canaries, seed=1).split.private.null[3]


def test_kinds_of_canaries(digits):
    ordinary = make_canaries(digits, 20, "holdout")
    assert torch.equal(ordinary.images, digits.holdout.images[:20])
    wrong = make_canaries(digits, 20)
    assert torch.equal(wrong.images, ordinary.images)
    assert (wrong.labels != ordinary.labels).all()
    assert wrong.labels.max() < 10
    doubled = dataclasses.replace(digits, holdout=digits.holdout.select(torch.arange(20).repeat(3)))
    assert torch.equal(make_canaries(doubled, 20, "holdout").images, ordinary.images)  # a copy is no second canary
    with pytest.raises(InputError, match=r"1 \.\. 20, the number of different holdout images"):
        make_canaries(doubled, 21)
    unlabeled = Split(*(Images(part.images) for part in (digits.public, digits.private, digits.holdout, digits.test)))
    for split, num, kind, words in (
        (digits, 10_000, "noise", "holdout images"),
        (digits, 10, "loud", "no canaries of the kind"),
        (unlabeled, 10, "mislabeled", "need labels"),
    ):
        with pytest.raises(InputError, match=words):
            make_canaries(split, num, kind)
    with pytest.raises(InputError, match="the classes"):
        insert_canaries(digits, make_canaries(unlabeled, 5, "noise"))
    with pytest.raises(InputError, match="no canaries"):
        insert_canaries(digits, digits.holdout.select(torch.arange(0)))


# Training ------------------------------------------------------------------------------------------------------------


def wgan_gp(steps):
    """Any method will do: it is made with the split that holds the canaries."""
    table = {
        "data": {"name": "digits"},
        "model": {"width": 8, "latent_dim": 4},
        "method": {"name": "wgan-gp", "critic_steps_per_generator_step": 10, "learning_rate": 2e-3},
        "training": {"steps": steps, "batch_size": 64, "device": "cpu"},
    }
    config = build_config(table, "test")
    return lambda split: trainer.train_on(config, split)


def white_box(method, canaries):
    with torch.no_grad():
        return method.critic(to_float(canaries.images), canaries.labels)


def black_box(method, canaries):
    samples = method.generator.sample(500, seed=0).flatten(1)
    return -torch.cdist(to_float(canaries.images).flatten(1), samples).amin(1)


@pytest.mark.trained
def test_a_training_without_noise_is_caught_from_inside(digits):
    few = digits.private.select(torch.arange(10))
    split = Split(digits.public, few, digits.holdout, digits.test)
    canaries = make_canaries(digits, 60, "noise")
    found = audit_one_run(split, canaries, wgan_gp(300), {"white box": white_box, "black box": black_box}, seed=1)
    assert found["white box"].epsilon_lower > 0.5
    assert found["white box"].relation == "zero-out-one"
    assert 0 <= found["black box"].epsilon_lower <= found["black box"].cap
    assert found["white box"].to_json()["canaries"] == 60


@pytest.mark.trained
def test_a_generator_that_replays_its_training_set_is_caught_from_outside(digits):
    canaries = make_canaries(digits, 100, "noise")

    def nearest(replayed, images):
        return -torch.cdist(to_float(images.images).flatten(1), to_float(replayed).flatten(1)).amin(1)

    attacks = {"nearest": nearest}
    caught = audit_one_run(digits, canaries, lambda split: split.private.existing().images, attacks, seed=2)["nearest"]
    assert caught.correct > 0.8 * caught.guesses  # more or fewer than half are in
    assert caught.cap >= caught.epsilon_lower > 0.5  # about 2.4, by the coins 1.7 to 3.2
    blind = audit_one_run(digits, canaries, lambda split: digits.private.images, attacks, seed=2)["nearest"]
    assert blind.epsilon_lower < 0.3
