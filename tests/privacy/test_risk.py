"""Risk in plain numbers: never below dp_accounting's loss distributions, little above them, and in the right words."""

import math

import pytest
from scipy.stats import norm

from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.guarantee import Guarantee
from idpgan.privacy.totals import Part, joint_events, total
from idpgan.privacy.tradeoff import RATES, Risk, Tradeoff, percent, tradeoff

ZERO_OUT, REPLACE_ONE = (Unit.IMAGE, Relation.ZERO_OUT), (Unit.IMAGE, Relation.REPLACE_ONE)


def noise(kind, multiplier, count=1, **fields):
    return Event(kind, *ZERO_OUT, noise_multiplier=multiplier, count=count, **fields)


def sampled(multiplier, rate, count=1):
    return noise("poisson-gaussian", multiplier, count, sample_rate=rate)


# Found at 1 % and at 0.1 % false alarms, and (1 + delta(0)) / 2. dp_accounting 0.6.0, discretization interval 1e-5,
# pessimistic, connect-the-dots but for randomized response: pld._pmf_remove (the record is there, against that it is
# not), the least of e^e a + get_delta_for_epsilon(e) over 24,001 epsilons in -12 .. 12.
GOLDEN = {
    "Gaussian at epsilon 1": ([noise("gaussian", 3.7302)], (0.0197823, 0.0023851, 0.5533150)),
    "Gaussian at epsilon 10": ([noise("gaussian", 0.5)], (0.3720806, 0.1378054, 0.8413447)),
    "ten Gaussians": ([noise("gaussian", 2.0, 10)], (0.2280727, 0.0656374, 0.7854025)),
    "sampled once": ([sampled(1.0, 0.5)], (0.0511811, 0.0096492, 0.5957312)),
    "sampled rarely": ([sampled(0.5, 0.01)], (0.0136208, 0.0023681, 0.5034134)),
    "DP-SGD, 1,000 steps": ([sampled(1.0, 0.01, 1000)], (0.0291391, 0.0040684, 0.5805088)),
    "DP-SGD, 10,000 steps": ([sampled(0.7, 0.004, 10_000)], (0.0989089, 0.0213366, 0.6894336)),
    "one Laplace": ([noise("laplace", 1.0)], (0.0271828, 0.0027183, 0.6967347)),
    "three Laplace": ([noise("laplace", 1.0, 3)], (0.1886830, 0.0200855, 0.7838427)),
    "50 Laplace": ([noise("laplace", 10.0, 50)], (0.0510999, 0.0081534, 0.6361539)),
    "Laplace and Gaussian": ([noise("laplace", 1.0), noise("gaussian", 2.0)], (0.0687368, 0.0102912, 0.7072148)),
    "discrete": ([noise("discrete-laplace", 2.0, 20, sensitivity=3)], (0.4031752, 0.1514311, 0.8524724)),
    "responses": (
        [Event("randomized-response", *REPLACE_ONE, pure_epsilon=1.0, categories=4, count=5)],
        (0.2782930, 0.0699424, 0.8056059),
    ),
    "three kinds": (
        [noise("laplace", 2.0, 2), sampled(1.5, 0.05, 200), noise("gaussian", 4.0, 3)],
        (0.0804353, 0.0144138, 0.6826719),
    ),
}
ROUNDING = 2e-6  # of the golden values, which are pessimistic on a grid of 1e-5


def between(risk, golden):
    """Whether each number lies at most 1e-3 above its golden one, and not below."""
    found = (risk.found[0.01], risk.found[0.001], risk.best_guess)
    return all(truth - ROUNDING <= ours <= truth + 1e-3 for ours, truth in zip(found, golden, strict=True))


@pytest.mark.parametrize("name", GOLDEN)
def test_the_numbers_are_those_of_the_loss_distribution(name):
    events, golden = GOLDEN[name]
    assert between(Risk.of(events), golden)
    assert list(Risk.of(events).found.values()) == sorted(Risk.of(events).found.values())


def test_the_comparison_can_fail():
    """Must be rejected: one percent more noise, the opposite direction, and what one epsilon says."""
    for events, golden in (GOLDEN["Gaussian at epsilon 10"], GOLDEN["one Laplace"]):
        quieter = [noise(event.kind, event.noise_multiplier * 1.01) for event in events]
        assert not between(Risk.of(quieter), golden)
    events, (found, *_) = GOLDEN["DP-SGD, 1,000 steps"]
    assert Tradeoff.at(compose_epsilon(events, 1e-5), 1e-5).found(0.01) > 1.5 * found
    turned = tradeoff(tuple(GOLDEN["sampled once"][0]))
    turned = Tradeoff(math.inf, turned.epsilons, turned.backward, turned.forward)
    assert turned.found(0.01) < GOLDEN["sampled once"][1][0] - 0.01  # nobody is found by being left out of a step


def test_one_gaussian_is_exact_at_every_rate():
    risk = Risk.of([noise("gaussian", 0.5)])
    for rate in RATES[:-1]:
        assert 0 <= risk.found[rate] - norm.cdf(norm.ppf(rate) + 2.0) <= 1.1e-6
    assert risk.found[1.0] == 1.0


@pytest.mark.parametrize("many", [17, 60])
def test_a_great_many_different_charges_are_bounded_without_composition(many):
    """By their Renyi divergences: not below as many reads with more noise, and not above all of them by much."""
    several = [noise("laplace", 50.0 + number / many) for number in range(many)]
    least, most = (Risk.of([noise("laplace", multiplier, many)]) for multiplier in (51.0, 50.0))
    assert Risk.of(several).short_of(least) is None
    assert Risk.of(several).found[0.01] < 2 * most.found[0.01] < 0.5
    mixed = [*several, noise("gaussian", 3.0)]
    assert Risk.of(mixed).short_of(Risk.of(several[:1] + mixed[-1:])) is None
    assert Risk.of(mixed).found[0.01] < 1


def test_who_is_shown_is_found():
    """A read that fails with 2 % shows one in fifty; with nothing else known, that is a known pair of laws."""
    failing = Event("approximate", *ZERO_OUT, pure_epsilon=1.0, delta=0.02)
    risk = Risk.of([failing])
    assert risk.found[0.01] == pytest.approx(0.02 + math.e * 0.01, abs=2e-6)
    assert risk.best_guess == pytest.approx((1 + 0.02 + 0.98 * math.tanh(0.5)) / 2, abs=2e-6)
    assert tradeoff((Event.non_private("raw", *ZERO_OUT),)).found(0.01) == 1.0


def test_contained_releases_count():
    """By one ledger where one step leads from pair to pair, else by group privacy."""
    own = Part((noise("gaussian", 2.0),), 1e-5)
    other = Part((Event("gaussian", *REPLACE_ONE, noise_multiplier=2.0),), 1e-5)
    found = total([[own, other]], *ZERO_OUT, delta=1e-5).whole
    together = joint_events([own, other], found)
    assert {(event.unit, event.relation) for event in together} == {ZERO_OUT}
    assert tradeoff(together).mu == pytest.approx(math.sqrt(0.5))
    found = total([[own, other]], *REPLACE_ONE, delta=1e-5).whole
    together = joint_events([own, other], found)
    assert sorted(event.kind for event in together) == ["approximate", "gaussian"]
    assert Risk.of([noise("gaussian", 2.0), noise("gaussian", 1.0)]).best_guess < Risk.of(together).best_guess < 1


def test_each_relation_has_its_own_words():
    member, content = (Risk.of([Event("gaussian", *pair, noise_multiplier=2.0)]) for pair in (ZERO_OUT, REPLACE_ONE))
    assert "members found, while 1 % of the others are accused falsely" in member.rows()[0]
    assert "member" not in " ".join(map(" ".join, content.rows())) + str(content.to_json())
    for risk in (member, content):
        assert Risk.from_json(risk.to_json()) == risk
        assert [guess for *_, guess in risk.rows()] == ["1 %", "0.1 %", "50 %"]
    assert member.short_of(content) == "membership for which of two contents"
    for broken in ({**member.to_json(), "question": "who"}, {**member.to_json(), "found": {"0.01": 0.5}}):
        with pytest.raises(InputError, match="a risk speaks of"):
            Risk.from_json(broken)
    with pytest.raises(InputError, match="Missing key 'best_guess' of a risk"):
        Risk.from_json({})


def test_percents_are_rounded_up():
    assert [percent(share) for share in (0.0123456, 0.5, 0.99951, 1.0)] == ["1.24 %", "50.0 %", "100 %", "100 %"]


def test_an_epsilon_has_the_risks_that_the_guide_says():
    """Gaussian noise at delta 1e-5: 2.0 % and 55 % at epsilon 1, 37 % and 84 % at 10; a guarantee alone says more."""
    for epsilon, found, guess in ((1.0, 0.0198, 0.553), (10.0, 0.372, 0.841)):
        multiplier = {1.0: 3.7304, 10.0: 0.49989}[epsilon]
        assert Guarantee(compose_epsilon([noise("gaussian", multiplier)], 1e-5), 1e-5, *ZERO_OUT, "").epsilon == (
            pytest.approx(epsilon, rel=1e-3)
        )
        risk = Risk.of([noise("gaussian", multiplier)])
        assert (risk.found[0.01], risk.best_guess) == pytest.approx((found, guess), rel=2e-3)
        assert Tradeoff.at(epsilon, 1e-5).found(0.01) > 1.3 * found
