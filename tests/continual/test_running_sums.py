"""Running sums of vectors: contract of the sensitivity, exact answers, law of the noise, an audit, state and errors."""

import dataclasses

import pytest
import torch

from idpgan.continual import RunningSums, SumsStream
from idpgan.errors import InputError
from idpgan.privacy import Budget, BudgetError, Ledger, Noise, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.sums import CellSums

CELLS, DIMENSIONS, PARTS = 2, 3, 10


def mechanism(law="gaussian", relation=Relation.ZERO_OUT, multiplier=1.0, parts=PARTS, **options):
    unit = options.pop("unit", Unit.IMAGE)
    return RunningSums(CellSums(CELLS, DIMENSIONS, law, multiplier, unit, relation, **options), parts)


def vectors(*rows):
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, DIMENSIONS)


def part(rows, cells=None, weights=None):
    rows = vectors(*rows)
    return [(rows, torch.zeros(len(rows), dtype=torch.int64) if cells is None else cells, weights)]


EXTREMES = [[100.0, 0, 0], [-100.0, 0, 0], [3.0, 3, 3], [0.0, 1, 0], [1e-9, 0, 0], [0.0, 0, 0]]


@pytest.mark.parametrize("relation", [Relation.ZERO_OUT, Relation.REPLACE_ONE])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_no_record_moves_the_answers_by_more_than_the_stated_distance_and_one_nearly_does(law, relation):
    running = mechanism(law, relation)
    strategy, largest = running.strategy.double(), 0.0
    for when in range(PARTS):
        for record in EXTREMES:
            others = [None] if relation is Relation.ZERO_OUT else EXTREMES
            for other in others:
                left = running.cells.exact(part([record]))
                right = 0 * left if other is None else running.cells.exact(part([other], torch.tensor([1])))
                moved = strategy[:, when, None, None] * (left - right)
                largest = max(largest, float(moved.flatten().norm(p=2 if law == "gaussian" else 1)))
    bound = running.mechanism.sensitivity
    assert largest <= bound
    slack = 0.999 if relation is Relation.ZERO_OUT or law == "laplace" else 0.70  # two cells: sqrt 2 of the bound's 2
    assert largest >= slack * bound


def test_a_person_whose_images_arrive_in_different_parts_moves_them_no_further():
    cap = 3
    running = mechanism(unit=Unit.PERSON, most_per_unit=cap)
    share = torch.tensor([1 / cap], dtype=torch.float64)
    strategy, largest = running.strategy.double(), 0.0
    for when in [(0, 0, 0), (0, 1, 2), (0, 4, 9), (7, 8, 9)]:
        arrived = torch.zeros(PARTS, CELLS, DIMENSIONS, dtype=torch.float64)
        for time in when:
            arrived[time] += running.cells.exact(part([[5.0, 0, 0]], weights=share))
        moved = torch.tensordot(strategy, arrived, 1)
        largest = max(largest, float(moved.norm()))
    assert 0.99 * running.mechanism.sensitivity <= largest <= running.mechanism.sensitivity


def test_shares_that_change_with_the_number_of_images_are_refused():
    stream = SumsStream(mechanism(unit=Unit.PERSON, most_per_unit=3), noise=Noise.fixed(1))
    with pytest.raises(ValueError, match="not a fixed share"):
        stream.push(part([[1.0, 0, 0]], weights=torch.tensor([1.0])))
    assert stream.count == 0


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_answers_are_the_running_sums_plus_noise_of_the_stated_size(law):
    running = RunningSums(CellSums(50, 40, law, 0.5, Unit.IMAGE, Relation.ZERO_OUT), PARTS)
    stream, total = SumsStream(running, noise=Noise.fixed(3)), torch.zeros(50, 40, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for number in range(1, PARTS + 1):
        rows = torch.randn(30, 40, generator=generator, dtype=torch.float64)
        cells = torch.randint(50, (30,), generator=generator)
        total += running.cells.grid.value(running.cells.exact([(rows, cells, None)]))
        error = stream.push([(rows, cells, None)]) - total
        ratio = float(error.square().mean().sqrt()) / running.noise_std(number)
        assert 0.9 < ratio < 1.1, number
        assert abs(float(error.mean())) < 4 * running.noise_std(number) / 2000**0.5


def test_the_errors_are_those_of_the_square_root_and_far_below_a_release_per_part():
    running = mechanism(parts=10)
    single = running.cells.noise_std
    ratios = [(running.noise_std(number) / single) ** 2 for number in range(1, 11)]
    assert ratios[-1] == pytest.approx(3.2, rel=0.02)  # variances of one release (docs/methods/continual.md)
    assert max(ratios) < 10  # a release per part at the same guarantee adds up to at least as many


def test_the_decoder_answers_prefix_sums_of_the_rounded_strategy():
    for law in ("gaussian", "laplace"):
        running = mechanism(law, parts=37)
        product = running.decoder @ running.strategy.double()
        assert torch.allclose(product, torch.ones(37, 37, dtype=torch.float64).tril(), atol=1e-9)
        assert bool((running.strategy.triu(1) == 0).all())


@pytest.mark.parametrize("fair", [True, False])
def test_an_audit_by_the_likelihood_ratio_finds_no_more_than_is_proven(fair):
    """Noise half as large, the control, is found out: the exact log-likelihood ratio separates the neighbors."""
    running = mechanism(multiplier=1.0)
    row = running.strategy.double()[:, 0]
    moved = row * float(running.cells.exact(part([[9.0, 0, 0]]))[0, 0])
    law = running.mechanism if fair else dataclasses.replace(running.mechanism, scale=running.mechanism.scale // 2)
    noise, runs = Noise.fixed(8), 20_000
    absent = law(torch.zeros(runs, PARTS, dtype=torch.int64), noise).double() @ moved / moved.norm() ** 2
    present = law(moved.long().expand(runs, PARTS).contiguous(), noise).double() @ moved / moved.norm() ** 2
    separation = (present.mean() - absent.mean()) / absent.std()
    assert bool(separation <= 1.0 + 4 / runs**0.5) is fair
    assert separation > 0.95


@pytest.mark.parametrize(("law", "delta"), [("gaussian", 1e-5), ("laplace", 0.0), ("laplace", 1e-5)])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_a_stream_of_calibrated_sums_keeps_to_their_epsilon_whatever_its_noise_is_rounded_to(law, delta, epsilon):
    terms = {"epsilon": epsilon, "delta": delta, "unit": Unit.IMAGE, "relation": Relation.ZERO_OUT}
    for dimensions in (1, 3, 10):
        cells = CellSums.calibrated(CELLS, dimensions, law, **terms)
        for parts in (1, 5, 12):
            event = RunningSums(cells, parts).event
            assert event.noise_multiplier >= cells.event.noise_multiplier * (1 - 1e-12)
            assert 0.99 * epsilon <= compose_epsilon([event], delta) <= epsilon
            Ledger(Unit.IMAGE, Relation.ZERO_OUT, Budget(epsilon, delta)).charge(event)


def test_the_stream_is_charged_once_and_first():
    running = mechanism(multiplier=1.0)
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    stream = SumsStream(running, ledger=ledger, noise=Noise.fixed(1))
    with pytest.raises(ValueError, match="not finite"):
        stream.push(part([[float("nan"), 0, 0]]))
    assert ledger.events == (running.event,)  # a failed read over-counts
    for _ in range(PARTS):
        stream.push(part([[1.0, 0, 0]]))
    assert ledger.events == (running.event,)
    with pytest.raises(InputError, match="all 10 parts"):
        stream.push(part([[1.0, 0, 0]]))


def test_a_ledger_that_cannot_pay_lets_nothing_be_read():
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT, Budget(0.1, 1e-5))
    stream = SumsStream(mechanism(multiplier=1.0), ledger=ledger)

    def read():
        pytest.fail("read before it was paid for")
        yield

    with pytest.raises(BudgetError):
        stream.push(read())
    assert stream.count == 0


def test_a_continued_stream_keeps_its_answers_and_draws_fresh_noise():
    running, ledger = mechanism(), Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    stream = SumsStream(running, ledger=ledger, noise=Noise.fixed(1))
    first = [stream.push(part([[1.0, 0, 0]])) for _ in range(3)]
    state = stream.state()
    again = SumsStream.from_state(running, state, ledger=ledger)
    assert torch.equal(again.answer(2), first[1])
    assert not again.private  # the first noise was fixed
    assert not torch.equal(stream.push(part([[1.0, 0, 0]])), again.push(part([[1.0, 0, 0]])))
    assert ledger.events == (running.event,)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "idpgan running sums 0"},
        {"mechanism": {}},
        {"noisy": torch.zeros(1, CELLS, DIMENSIONS, dtype=torch.int64)},
        {"parts": torch.zeros(2, CELLS, DIMENSIONS)},
        {"noisy": None},
    ],
)
def test_a_damaged_or_foreign_state_is_refused(change):
    running, ledger = mechanism(), Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    stream = SumsStream(running, ledger=ledger, noise=Noise.fixed(1))
    stream.push(part([[1.0, 0, 0]]))
    stream.push(part([[1.0, 0, 0]]))
    with pytest.raises(InputError):
        SumsStream.from_state(running, {**stream.state(), **change}, ledger=ledger)
    with pytest.raises(InputError, match="ledger was not charged"):
        SumsStream.from_state(running, stream.state(), ledger=Ledger(Unit.IMAGE, Relation.ZERO_OUT))
    with pytest.raises(InputError, match="another stream"):
        SumsStream.from_state(mechanism(multiplier=2.0), stream.state(), ledger=ledger)


def test_two_like_streams_on_one_ledger_are_continued_and_what_was_never_paid_is_not():
    running, ledger = mechanism(), Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    streams = [SumsStream(running, ledger=ledger, noise=Noise.fixed(seed)) for seed in (1, 2)]
    for stream in streams:
        stream.push(part([[1.0, 0, 0]]))
    for stream in streams:
        assert SumsStream.from_state(running, stream.state(), ledger=ledger).count == 1
    with pytest.raises(InputError, match="damaged"):
        SumsStream.from_state(running, {**streams[0].state(), "paid": False}, ledger=ledger)


def test_a_stream_is_not_continued_under_another_bound():
    """Vectors of the parts so far may be negative: with the bound of nonnegative ones the noise would be too small."""
    cells = CellSums(CELLS, DIMENSIONS, "gaussian", 1.0, Unit.IMAGE, Relation.REPLACE_ONE)
    ledger = Ledger(Unit.IMAGE, Relation.REPLACE_ONE)
    stream = SumsStream(RunningSums(cells, PARTS), ledger=ledger, noise=Noise.fixed(1))
    stream.push(part([[-1.0, 0, 0]]))
    other = RunningSums(dataclasses.replace(cells, nonnegative=True), PARTS)
    ledger.charge(other.event)  # by another stream
    with pytest.raises(InputError, match="another stream"):
        SumsStream.from_state(other, stream.state(), ledger=ledger)


@pytest.mark.parametrize("parts", [0, -1, 1025, True, 1.5])
def test_an_impossible_number_of_parts_is_refused(parts):
    with pytest.raises(InputError, match="parts"):
        mechanism(parts=parts)
