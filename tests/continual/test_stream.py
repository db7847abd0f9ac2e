"""The counter: exact noise and budget, push and release alike, states, refusals, audits."""

# ruff: noqa: N806 (matrices keep their names from the papers)

import copy
import json
import os
import pickle
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from idpgan.audit import audit
from idpgan.audit.statistics import Nearness, Statistic
from idpgan.continual import ContinualCounter, isotonic
from idpgan.continual.fenwick import ADJACENCY, NodeNoise, chain, fast_diagonal, matrices, node_sums, parents
from idpgan.errors import InputError
from idpgan.privacy import Budget, BudgetError, Ledger, Noise, Unit

COUNTS = torch.randint(50, (300,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def known_noise(monkeypatch):
    """Noise that is a function of the node's share, so that two ways to the same release can be compared."""
    monkeypatch.setattr(NodeNoise, "draw", lambda self, divisors, noise: divisors % 1009 - 500)


# Noise and budget ---------------------------------------------------------------------------------------------------


def p_value(draws, rate):
    support = np.arange(-400, 401)
    probability = np.exp(-rate * abs(support))
    expected = probability / probability.sum() * len(draws)
    observed = np.bincount(draws.clip(-400, 400) + 400, minlength=801)
    inside = expected >= 20
    f_obs, f_exp = (np.append(x[inside], x[~inside].sum()) for x in (observed, expected))
    return chisquare(f_obs, f_exp * f_obs.sum() / f_exp.sum()).pvalue


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.7])
def test_node_noise_is_discrete_laplace_of_its_own_scale(rate):
    law, count = NodeNoise(2.0, 1), 60_000
    shares = torch.tensor([round(rate * law.scale), round(3 * rate * law.scale)]).repeat(count)
    draws = law.draw(shares, Noise.fixed(2)).view(-1, 2)
    for drawn, true in ((draws[:, 0].numpy(), rate), (draws[:, 1].numpy(), 3 * rate)):
        assert p_value(drawn, true) > 1e-3
        for wrong in (0.93 * true, 1.07 * true):
            assert p_value(drawn, wrong) < 1e-6
    spread = draws.double().square().mean(0)
    expected = law.variance(shares[:2])
    assert torch.allclose(spread, expected, rtol=0.05)
    assert bool((expected < 2 / torch.tensor([rate, 3 * rate]) ** 2).all())  # Laplace's variance is larger


@pytest.mark.parametrize(
    ("epsilon", "integer"), [(1e-6, True), *((e, w) for e in (0.1, 0.3, 1.0, 1 / 3, 7.7, 50.0) for w in (True, False))]
)
def test_no_event_ever_costs_more_than_epsilon_exactly(epsilon, integer):
    counter = ContinualCounter(epsilon, 100, integer)
    law, moved = counter._law, 1 if integer else 1025
    shares = counter._divisors(1, 100)
    losses = matrices(100)[1].long().T @ shares
    exact = [Fraction(int(loss)) * moved / law.scale for loss in losses]
    assert max(exact) <= Fraction(counter.event.pure) <= Fraction(epsilon)
    assert float(max(exact)) == pytest.approx(epsilon, rel=1e-4)  # and nothing of it is wasted
    scales = law.scale / shares.double()  # t_p = moved / (epsilon lambda_p), up to whole numbers
    assert torch.allclose(scales, moved / (epsilon * fast_diagonal(100)[0]), rtol=2e-4)


def test_a_real_event_moves_a_node_by_no_more_than_assumed():
    counter = ContinualCounter(1.0, 3, integer=False)
    values = torch.rand(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with_event = counter._to_steps(values + 1.0) - counter._to_steps(values)
    assert int(with_event.max()) <= 1025
    assert int(counter._to_steps(torch.tensor([1.49951171875 + 1e-12, 0.4995117187]).double()).diff()) < 0


def test_blocks_of_an_unknown_horizon_each_have_the_whole_budget():
    counter = ContinualCounter(1.0)
    for _ in range(5):
        length = counter._length
        losses = matrices(length)[1].long().T @ counter._divisors(1, length)
        assert Fraction(int(losses.max()), counter._law.scale) <= 1
        counter.release(torch.ones(length, dtype=torch.int64))
    assert counter.count == 31
    assert len(counter._indices) == 1


# Push and release ---------------------------------------------------------------------------------------------------


def test_a_release_is_b_times_m_x_plus_noise(known_noise):
    counter = ContinualCounter(1.0, 300)
    noise = counter._divisors(1, 300) % 1009 - 500
    B, M = (matrix.long() for matrix in matrices(300))
    assert torch.equal(counter.release(COUNTS), B @ (M @ COUNTS + noise))


@pytest.mark.parametrize("horizon", [300, 511, None])
@pytest.mark.parametrize("integer", [True, False])
def test_push_and_release_in_any_parts_are_one_mechanism(known_noise, horizon, integer):
    whole = ContinualCounter(0.7, horizon, integer).release(COUNTS)
    counter = ContinualCounter(0.7, horizon, integer)
    parts = [counter.release(COUNTS[:50])]
    parts.append(torch.tensor([counter.push(value) for value in COUNTS[50:130].tolist()]))
    parts += [counter.release(COUNTS[130:131]), counter.release(COUNTS[131:131]), counter.release(COUNTS[131:])]
    assert torch.equal(torch.cat(parts).to(whole), whole)
    assert whole.dtype == (torch.int64 if integer else torch.float64)
    series = torch.stack([COUNTS, COUNTS.flip(0), COUNTS * 0])
    both = ContinualCounter(0.7, horizon, integer)
    batched = torch.cat([both.release(series[:, :77]), both.release(series[:, 77:])], -1)
    assert torch.equal(batched[0], whole)
    assert torch.equal(batched[1] - batched[2], (whole * 0 + COUNTS.flip(0).cumsum(0)))
    assert counter.count == both.count == 300


def test_without_noise_the_answers_are_the_counts(monkeypatch):
    monkeypatch.setattr(NodeNoise, "draw", lambda self, divisors, noise: torch.zeros_like(divisors))
    for horizon in (300, None):
        assert torch.equal(ContinualCounter(1.0, horizon).release(COUNTS), COUNTS.cumsum(0))
        halves = ContinualCounter(1.0, horizon, integer=False).release(COUNTS / 2)
        assert torch.equal(halves, COUNTS.cumsum(0) / 2)


@pytest.mark.parametrize(("horizon", "integer"), [(100, True), (100, False), (None, True)])
def test_the_simulated_error_is_the_formula(horizon, integer):
    counter = ContinualCounter(1.0, horizon, integer, noise=Noise.fixed(7))
    squares = counter.release(torch.zeros(4000, 100, dtype=torch.int64)).double().square()
    expected = counter.variance(100)
    for measured, formula in ((squares.mean(1), expected.mean()), (squares[:, -1], expected[-1])):
        error = measured.std() / len(measured) ** 0.5
        assert abs(measured.mean() - formula) < 3 * error
        assert abs(measured.mean() - 1.2 * formula) > 3 * error
    if horizon and integer:  # a little below the continuous mechanism's
        assert 0.99 < float(expected.sum()) / (2 * fast_diagonal(100)[1]) < 1


def test_the_price_of_an_unknown_horizon():
    """About a quarter more mean error; weights that ignore the later answers would cost far more."""
    known, unknown = (ContinualCounter(1.0, horizon).variance(1023).mean() for horizon in (1023, None))
    assert 1.1 < float(unknown / known) < 1.35


def test_the_state_in_memory_is_logarithmic():
    counter = ContinualCounter(1.0, 10**6)
    counter.release(torch.ones(2**15 - 1, dtype=torch.int64))
    assert len(counter.state()["prefixes"]) == 16
    assert len(json.dumps(counter.state())) < 1000


# The ledger ---------------------------------------------------------------------------------------------------------


def test_one_charge_before_the_first_value():
    ledger = Ledger(*ADJACENCY)
    counter = ContinualCounter(0.3, 10, ledger=ledger)
    assert ledger.events == ()
    for value in (-1, 0.5, float("nan")):
        with pytest.raises(InputError):
            counter.push(value)
    assert ledger.events == ()
    counter.push(1)
    counter.release([1, 2])
    assert ledger.events == (counter.event,)
    assert counter.event.unit is Unit.EVENT
    assert ledger.epsilon(0.0) == pytest.approx(0.3, rel=1e-12)
    assert ledger.epsilon(0.0) <= 0.3
    assert ledger.epsilon(1e-3) <= 0.3


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1 / 3, 1.1, 49.0])
def test_a_target_of_just_epsilon_is_enough_and_less_refuses_everything(epsilon):
    ContinualCounter(epsilon, 9, ledger=Ledger(*ADJACENCY, Budget(epsilon, 0.0))).push(1)
    counter = ContinualCounter(epsilon, 9, ledger=Ledger(*ADJACENCY, Budget(0.99 * epsilon, 0.0)))
    with pytest.raises(BudgetError):
        counter.push(1)
    with pytest.raises(BudgetError):
        counter.release([1])
    assert counter.count == 0


def test_the_report_says_whether_it_is_private():
    report = ContinualCounter(0.5, 9).privacy
    assert report.private
    assert report.proven.epsilon <= report.claimed.epsilon == 0.5
    fixed = ContinualCounter(0.5, 9, noise=Noise.fixed(0))
    assert not fixed.privacy.private
    fixed.push(1)
    assert not ContinualCounter.from_state(fixed.state(), 0.5, 9).privacy.private


# The state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [300, None])
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("series", [(), (3,)])
@pytest.mark.parametrize("split", [1, 3, 100, 127])
def test_a_stream_goes_on_from_its_state(known_noise, horizon, integer, series, split):
    values = COUNTS.expand(*series, 300)
    whole = ContinualCounter(0.7, horizon, integer).release(values)
    first = ContinualCounter(0.7, horizon, integer, keep=4)
    begun = first.release(values[..., :split])
    state = json.loads(json.dumps(first.state()))
    second = ContinualCounter.from_state(state, 0.7, horizon, integer)
    rest = second.release(values[..., split:])
    assert torch.equal(torch.cat([begun, rest], -1), whole)
    assert first.state() == state


def test_a_state_holds_no_noise_of_the_future():
    counter = ContinualCounter(1.0, 1000, noise=Noise.fixed(4))
    counter.push(3)
    counter.push(0)
    assert "noise" not in json.dumps(counter.state()).replace("noisy", "")
    state = counter.state()
    loaded = [ContinualCounter.from_state(state, 1.0, 1000) for _ in range(2)]
    assert loaded[0].answer(2) == loaded[1].answer(2) == counter.answer(2)
    ahead = [[each.push(0) for _ in range(20)] for each in loaded]
    assert ahead[0] != ahead[1]


def test_a_forked_process_draws_noise_of_its_own(monkeypatch):
    counter = ContinualCounter(1.0, 1000)
    counter.push(1)
    before = list(counter._ahead)
    monkeypatch.setattr(os, "getpid", lambda: -5)
    counter.push(1)
    assert counter._ahead[:40] != before[:40]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("what", ["counter", "noise"])
def test_what_draws_noise_says_why_it_is_not_copied(way, what):
    """A copy would answer with the noise of the original: `copy` shared it, `deepcopy` said "CipherContext"."""
    counter = ContinualCounter(1.0, 20)
    counter.push(3)
    things = {"counter": counter, "noise": Noise.system()}
    with pytest.raises(InputError, match="cannot be copied or pickled: the copy would add the same noise"):
        way(things[what])
    if way is not copy.copy:
        with pytest.raises(InputError, match="cannot be copied"):
            way([things[what]])
    assert ContinualCounter.from_state(counter.state(), 1.0, 20, True).count == 1  # the way out


def test_a_repeated_index_returns_the_stored_answer():
    counter = ContinualCounter(1.0, 100, keep=3)
    answers = [counter.push(2, index=number) for number in range(1, 8)]
    for index in (4, 5, 6, 7):  # 4, 6, 7 are still needed; 5, 6, 7 are kept
        assert counter.push(999, index=index) == answers[index - 1] == counter.answer(index)
    assert counter.count == 7
    restored = ContinualCounter.from_state(json.loads(json.dumps(counter.state())), 1.0, 100)
    assert [restored.answer(index) for index in (4, 5, 6, 7)] == answers[3:]
    for index in (1, 3, 0, -1, 9, 100):
        with pytest.raises(InputError, match="no answer of index"):
            counter.push(1, index=index)
    blocks = ContinualCounter(1.0, keep=2)
    given = blocks.release(COUNTS[:20]).tolist()
    assert [blocks.answer(index) for index in (15, 19, 20)] == [given[14], given[18], given[19]]


def small_state():
    counter = ContinualCounter(1.0, 100)
    counter.release([1, 2, 3])
    return counter.state()


def test_the_folder_of_a_release_may_be_a_text(tmp_path):
    counter = ContinualCounter(epsilon=1.0, horizon=7)
    counter.write(str(tmp_path / "counts"), torch.tensor([counter.push(12), *counter.release([3, 0])]))
    assert (tmp_path / "counts" / "privacy.json").is_file()


def test_a_state_of_another_stream_is_refused():
    state = small_state()
    for epsilon, horizon, integer, named in ((2.0, 100, True, "epsilon"), (1.0, 101, True, "horizon"),
                                             (1.0, None, True, "horizon"), (1.0, 100, False, "integer")):  # fmt: skip
        with pytest.raises(InputError, match=f"{named} = "):
            ContinualCounter.from_state(state, epsilon, horizon, integer)
    with pytest.raises(InputError, match="does not hold"):
        ContinualCounter.from_state(state, 1.0, 100, ledger=Ledger(*ADJACENCY))
    ledger = Ledger(*ADJACENCY)
    ledger.charge(ContinualCounter(1.0, 100).event)
    ContinualCounter.from_state(state, 1.0, 100, ledger=ledger).push(1)
    assert ledger.epsilon(0.0) == 1.0  # not charged again


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "idpgan stream 0"}, {"count": 4}, {"count": -1}, {"count": 2.0}, {"count": 101}, {"series": None},
        {"prefixes": []}, {"prefixes": [[0, 0, 0], [2, 3, 5], [3, 6, None]]}, {"prefixes": [0, 2, 3]}, {"keep": -1},
        {"prefixes": [[0, 0, 0], [2, 3, 5.5], [3, 6, 7]]}, {"more": 1}, {"series": [2]}, {"kept": ["x"]},
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused(damage):
    with pytest.raises(InputError):
        ContinualCounter.from_state({**small_state(), **damage}, 1.0, 100)


# Bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), "3", None, True, 1j, 1 << 60, 2.0**60])
def test_values_that_are_no_counts_release_nothing(value):
    counter = ContinualCounter(1.0, 10)
    counter.push(1)
    before = counter.state()
    with pytest.raises(InputError):
        counter.push(value)
    if value is not True:  # which a list of numbers turns into 1
        with pytest.raises(InputError):
            counter.release([1, value])
    assert counter.state() == before


def test_whole_floats_are_counts_and_negative_reals_are_values():
    assert isinstance(ContinualCounter(1.0, 10).push(3.0), int)
    assert ContinualCounter(1.0, 10).release(np.array([1.0, 2.0])).dtype == torch.int64
    assert isinstance(ContinualCounter(1.0, 10, integer=False).push(-0.3), float)
    for value in (float("nan"), float("-inf"), 2.0**43, -1e300, 1 << 60):
        with pytest.raises(InputError, match=r"finite|real values"):
            ContinualCounter(1.0, 10, integer=False).push(value)
        with pytest.raises(InputError, match=r"finite|real values"):
            ContinualCounter(1.0, 10, integer=False).release([1.0, value])
    counter = ContinualCounter(1.0, 10, integer=False)
    halves = [(k + 0.5) / 1024 for k in range(-4, 4)]  # both ways to the grid round halves alike
    assert [counter._steps_of(half) for half in halves] == counter._to_steps(torch.tensor(halves).double()).tolist()


def test_more_values_than_the_horizon_release_nothing():
    counter = ContinualCounter(1.0, 5)
    counter.release([1, 1, 1])
    before = counter.state()
    with pytest.raises(InputError, match="horizon = 5"):
        counter.release([1, 1, 1])
    assert counter.state() == before
    counter.push(1)
    counter.push(1)
    with pytest.raises(InputError, match="horizon = 5"):
        counter.push(1)
    assert counter.count == 5
    fresh = Ledger(*ADJACENCY)
    with pytest.raises(InputError, match="horizon = 2"):
        ContinualCounter(1.0, 2, ledger=fresh).release([1, 1, 1])
    assert fresh.events == ()


@pytest.mark.parametrize(
    "arguments",
    [(0.0,), (-1.0,), (float("inf"),), (float("nan"),), ("1",), (True,), (1e-12,), (1e300,), (1.0, 0), (1.0, 2.5)],
)
def test_parameters_that_make_no_stream(arguments):
    with pytest.raises(InputError):
        ContinualCounter(*arguments)


def test_series_that_change_in_number():
    counter = ContinualCounter(1.0, 10)
    counter.release(torch.ones(2, 3))
    with pytest.raises(InputError, match=r"shape \(2,\)"):
        counter.release(torch.ones(3, 3))
    with pytest.raises(InputError, match=r"shape \(2,\)"):
        counter.push(1)
    with pytest.raises(InputError, match="single value"):
        counter.release(3)
    with pytest.raises(InputError, match="no series"):
        ContinualCounter(1.0, 10).release(torch.ones(0, 3))


# Audits -------------------------------------------------------------------------------------------------------------


class Nodes(Statistic):
    """The exact likelihood ratio: answers are turned back into the tree's noisy nodes."""

    def __init__(self, data, neighbor, *, rates):
        self.name = "nodes"
        self._near = Nearness(node_sums(data), node_sums(neighbor), unit=1 / rates)

    def __call__(self, outputs):
        padded = torch.nn.functional.pad(outputs, (1, 0))
        return self._near(outputs - padded[..., parents(1, outputs.shape[-1])])


def audited(epsilon, integer, broken=1.0):
    size = 1.0 if integer else 1.0 / 1025 * 1024
    data = torch.tensor([3, 0, 2, 5, 1, 0, 4]).to(torch.int64 if integer else torch.float64)
    neighbor = data.clone()
    neighbor[0] += 1  # the value that lies in the most nodes
    noise, law = Noise.fixed(5), ContinualCounter(epsilon, 7, integer)
    rates = law._divisors(1, 7).double() / law._law.scale / (1.0 if integer else 2.0**-10)

    def statistic(one, other):
        return Nodes(one, other, rates=rates * size)

    return audit(
        lambda rows: ContinualCounter(epsilon * broken, 7, integer, noise=noise).release(rows),
        data, neighbor, runs=20_000, confidence=0.9999, statistics=[statistic],
    )  # fmt: skip


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("integer", [True, False])
def test_an_audit_finds_no_more_than_epsilon(epsilon, integer):
    assert 0.4 * epsilon < audited(epsilon, integer).epsilon_lower <= epsilon


def test_half_the_noise_is_caught():
    assert audited(1.0, True, broken=2.0).epsilon_lower > 1.0


def test_the_chain_of_the_first_value_is_the_longest():
    assert [sum(t in chain(p) for p in range(1, 8)) for t in (1, 2, 4)] == [1, 2, 4]


# Post-processing ----------------------------------------------------------------------------------------------------


def test_isotonic_answers_are_counts_again_and_nearer():
    counter = ContinualCounter(0.5, 300, noise=Noise.fixed(3))
    noisy = counter.release(COUNTS.expand(50, 300))
    better = isotonic(noisy, weights=1 / counter.variance(300))
    truth = COUNTS.cumsum(0)
    assert bool((better.diff(dim=-1) >= 0).all())
    assert float(better.min()) >= 0
    assert (better - truth).square().mean() < 0.9 * (noisy - truth).double().square().mean()
    assert torch.allclose(isotonic(better, weights=1 / counter.variance(300)), better, atol=1e-9)
    assert isotonic([-2, -1], nonnegative=False).tolist() == [-2.0, -1.0]


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [10**6, None])
def test_a_million_values_and_fifty_thousand_pushes(horizon):
    started = time.process_time()
    ContinualCounter(1.0, horizon).release(torch.ones(10**6, dtype=torch.int64))
    assert time.process_time() - started < 2
    counter, started = ContinualCounter(1.0, horizon), time.process_time()
    for _ in range(50_000):
        counter.push(1)
    assert time.process_time() - started < 1


@pytest.mark.gpu
def test_a_series_on_the_gpu(known_noise):
    on_gpu = ContinualCounter(1.0, 300).release(COUNTS.cuda())
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), ContinualCounter(1.0, 300).release(COUNTS))
