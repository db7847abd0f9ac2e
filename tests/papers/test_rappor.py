"""RAPPOR has its chances and its prices, and decodes within its standard errors; broken variants are caught."""

import decimal
import itertools
import math

import numpy as np
import pytest
import torch
from papers.literature.rappor import Rappor, decode

from idpgan.audit import audit
from idpgan.audit.statistics import Statistic
from idpgan.errors import InputError
from idpgan.privacy import Budget, BudgetError, Ledger, Noise, Relation, Unit

CHROME = Rappor(bits=32, hashes=2, cohorts=4, f=0.5, p=0.5, q=0.75)


def test_every_bit_has_its_chances():
    mechanism = Rappor(bits=64, hashes=3, f=0.25, p=0.25, q=0.625)
    bloom = mechanism.bloom("a value", 0)
    assert int(bloom.sum()) == 3
    noise = Noise.fixed(1)
    permanent = mechanism.permanent(bloom.expand(8000, 64), noise)
    reports = mechanism.instantaneous(permanent, noise)
    for seen, ones, zeros in ((permanent, 1 - 0.125, 0.125), (reports, *mechanism.chances)):
        for mask, chance in ((bloom, ones), (~bloom, zeros)):
            drawn = seen[:, mask].double()
            assert abs(drawn.mean().item() - chance) < 4 * math.sqrt(0.25 / drawn.numel())
            assert (drawn.mean(0) - chance).abs().max() < 5 * math.sqrt(0.25 / 8000)  # each bit
    assert mechanism.chances == pytest.approx((0.875 * 0.625 + 0.125 * 0.25, 0.125 * 0.625 + 0.875 * 0.25))


def test_a_permanent_response_is_kept_and_reports_are_fresh():
    noise, bloom = Noise.fixed(2), CHROME.bloom("x", 1)
    permanent = CHROME.permanent(bloom[None], noise)
    first, second = (CHROME.instantaneous(permanent.expand(4000, 32), noise).double().mean(0) for _ in range(2))
    assert (first - second).abs().max() < 0.08  # the same law
    assert not torch.equal(*(CHROME.instantaneous(permanent, noise) for _ in range(2)))


def worst_ratio(mechanism, reports):
    """Brute force: filters 1 and 0 of one bit each way, all sequences of reports of two bits."""
    keep, lie = 1 - mechanism.f / 2, mechanism.f / 2

    def law(bit, seen):
        total = 0.0
        for permanent, chance in ((1, keep if bit else lie), (0, lie if bit else keep)):
            one = mechanism.q if permanent else mechanism.p
            total += chance * math.prod(one if s else 1 - one for s in seen)
        return total

    sequences = list(itertools.product((0, 1), repeat=reports))
    set_bit = max(math.log(law(1, s) / law(0, s)) for s in sequences)
    other = max(math.log(law(0, s) / law(1, s)) for s in sequences)
    return mechanism.hashes * (set_bit + other)


@pytest.mark.parametrize("mechanism", [CHROME, Rappor(hashes=1, f=0.25, p=0.25, q=0.875), Rappor(f=1.0)])
def test_the_price_is_exact_for_any_number_of_reports(mechanism):
    for reports in (1, 2, 3, 8):
        assert mechanism.epsilon(reports) == pytest.approx(worst_ratio(mechanism, reports), rel=1e-9, abs=1e-12)
        assert mechanism.epsilon(reports) <= mechanism.epsilon(reports + 1) * (1 + 1e-12)
    assert mechanism.epsilon(10**6) == pytest.approx(mechanism.epsilon(None), abs=1e-9)


def test_the_prices_are_those_of_the_paper():
    """Section 3: ``2 h ln((1 - f/2) / (f/2))`` and ``h log(q*(1 - p*) / (p*(1 - q*)))``."""
    true, false = CHROME.chances
    assert CHROME.epsilon(None) == pytest.approx(4 * math.log(3), rel=1e-9)
    assert CHROME.epsilon(1) == pytest.approx(2 * math.log(true * (1 - false) / (false * (1 - true))), rel=1e-9)
    assert (round(CHROME.epsilon(1), 4), round(CHROME.epsilon(None), 4)) == (1.0743, 4.3944)


def test_disjoint_filters_reach_the_price_and_no_pair_exceeds_it():
    true, false = CHROME.chances
    ones = math.log(true / false), math.log((1 - true) / (1 - false))
    worst = 0.0
    for left, right in itertools.combinations(range(30), 2):
        one, other = CHROME.bloom(f"v{left}", 0), CHROME.bloom(f"v{right}", 0)
        worst = max(worst, int((one & ~other).sum()) * ones[0] - int((other & ~one).sum()) * ones[1])
    assert worst == pytest.approx(CHROME.epsilon(1), rel=1e-9)


class Overlap(Statistic):
    """How many reported bits speak for the neighbor's filter rather than for the data's."""

    name = "overlap"

    def __init__(self, data, neighbor):
        self._weights = neighbor.double() - data.double()

    def __call__(self, outputs):
        return outputs.double() @ self._weights


@pytest.mark.parametrize("reports", [1, None])
def test_reports_are_audited_below_their_price(reports):
    noise = Noise.fixed(4)
    data, neighbor = next(
        (one, other)
        for one, other in ((CHROME.bloom("a", 0), CHROME.bloom(f"b{n}", 0)) for n in range(20))
        if not bool((one & other).any())
    )

    def release(rows):
        permanent = CHROME.permanent(rows, noise)
        return CHROME.instantaneous(permanent, noise) if reports else permanent

    found = audit(release, data, neighbor, runs=30_000, confidence=1 - 1e-4, statistics=[Overlap])
    assert 0.7 * CHROME.epsilon(reports) < found.epsilon_lower <= CHROME.epsilon(reports)
    one_hash = Rappor(bits=32, hashes=1, cohorts=4)  # the price of one hash function for two: caught
    assert found.epsilon_lower > one_hash.epsilon(reports)


def test_fresh_permanent_responses_break_the_longitudinal_price():
    """The negative control of memoization: many reports, each from a permanent response of its own."""
    mechanism, noise = Rappor(bits=4, hashes=1, cohorts=1), Noise.fixed(5)
    data, neighbor = torch.tensor([True, False, False, False]), torch.tensor([False, True, False, False])

    def release(rows, kept):
        permanent = mechanism.permanent(rows, noise)
        total = torch.zeros(rows.shape)
        for _ in range(60):
            total += mechanism.instantaneous(permanent, noise)
            permanent = permanent if kept else mechanism.permanent(rows, noise)
        return total

    found = [
        audit(
            lambda rows, kept=kept: release(rows, kept), data, neighbor, runs=3000, confidence=1 - 1e-4,
            statistics=[Overlap],
        ).epsilon_lower
        for kept in (True, False)
    ]  # fmt: skip
    assert found[0] <= mechanism.epsilon(None) < found[1]


def test_counts_are_decoded_within_their_standard_errors():
    mechanism = Rappor(bits=64, hashes=2, cohorts=8, f=0.25, p=0.25, q=0.75)
    candidates, truth = [f"value {n}" for n in range(30)], np.zeros(30)
    truth[:5] = 8000, 5000, 3000, 2000, 2000
    values = [candidates[n] for n in range(5) for _ in range(int(truth[n]))]
    deviations, strays = [], []
    for run in range(8):
        noise = Noise.fixed(100 + run)
        cohorts = noise.integers(8, (len(values),))
        reports = mechanism.report(values, cohorts.tolist(), noise)
        found = decode(mechanism, reports, cohorts, candidates)
        deviations += ((found.counts[:5].numpy() - truth[:5]) / found.standard_errors[:5].numpy()).tolist()
        strays += found.counts[5:].tolist()
    assert abs(np.mean(deviations)) < 4 / math.sqrt(len(deviations))
    assert 0.6 < np.std(deviations) < 1.5
    assert max(np.abs(strays)) < 1000


def test_the_bias_of_the_coins_must_be_taken_out():
    """The negative control of decoding: with p* of another f the counts are off by many standard errors."""
    mechanism, wrong = Rappor(bits=64, f=0.25), Rappor(bits=64, f=1 / 64)
    noise, values = Noise.fixed(9), ["a"] * 30_000 + ["b"] * 10_000
    cohorts = noise.integers(8, (40_000,))
    reports = mechanism.report(values, cohorts.tolist(), noise)
    right, off = (decode(kind, reports, cohorts, ["a", "b"]) for kind in (mechanism, wrong))
    truth = torch.tensor([30_000, 10_000])
    assert ((right.counts - truth).abs() < 4 * right.standard_errors).all()
    assert ((off.counts - truth).abs() > 4 * off.standard_errors).any()


def test_the_price_is_charged_under_replace_one():
    ledger = Ledger(Unit.LABEL, Relation.REPLACE_ONE, Budget(CHROME.epsilon(None), 0.0))
    ledger.charge(CHROME.event(None))
    with pytest.raises(BudgetError, match="exceed"):
        ledger.charge(CHROME.event(1))
    assert Rappor(f=1.0).event(None) is None  # coins only


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"bits": 0}, "bits"),
        ({"hashes": 65}, "hashes"),
        ({"cohorts": True}, "cohorts"),
        ({"f": 0.0}, "f = 0"),
        ({"p": 0.8}, "below q"),
        ({"q": 1.0}, "q = 1"),
        ({"f": math.nan}, "f = nan"),
        ({"unit": "label"}, "Unit"),
    ],
)
def test_bad_settings_are_refused(change, match):
    with pytest.raises(InputError, match=match):
        Rappor(**({"bits": 64} | change))


def test_bad_reports_are_refused():
    reports, cohorts = torch.zeros(3, 32, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)
    for bad in (
        (reports[:2], cohorts, ["a"]),
        (reports, cohorts + 4, ["a"]),
        (reports, cohorts, []),
        (reports, cohorts, ["a", "a"]),
        (reports.long(), cohorts, ["a"]),
    ):
        with pytest.raises(InputError):
            decode(CHROME, *bad)
    with pytest.raises(InputError, match="cohort"):
        CHROME.bloom("a", 4)
    with pytest.raises(ValueError, match="bool"):
        CHROME.permanent(torch.zeros(3), Noise.fixed(1))


@pytest.mark.parametrize(
    ("chances", "reports"),
    [({"p": 0.3, "q": 0.3 + 2.0**-50}, 2**48), ({"p": 0.3, "q": 0.300001}, 1000), ({"p": 0.3, "q": 0.3 + 1e-9}, 1)],
)
def test_the_price_is_not_rounded_down_where_reports_say_little(chances, reports):
    rappor = Rappor(**chances)
    with decimal.localcontext() as context:
        context.prec = 60
        f, p, q = map(decimal.Decimal, (rappor.f, rappor.p, rappor.q))

        def log_ratio(less, more):  # of a set bit against one that is not, after so many reports of the likelier kind
            odds = ((less / more).ln() * reports).exp()
            return (((1 - f / 2) + f / 2 * odds) / (f / 2 + (1 - f / 2) * odds)).ln()

        exact = rappor.hashes * (log_ratio(p, q) + log_ratio(1 - q, 1 - p))
        assert exact <= decimal.Decimal(rappor.epsilon(reports)) <= exact * (1 + decimal.Decimal(2) ** -30)
