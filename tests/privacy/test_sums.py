"""Brute-force contract of the sensitivity, per law, relation and unit, with records that reach it."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idpgan.errors import InputError
from idpgan.privacy import Noise, Relation, Unit, compose_epsilon
from idpgan.privacy.sums import CellSums

CELLS, DIMENSIONS = 3, 4
LAWS = ["gaussian", "laplace"]


def sums_of(law="gaussian", relation=Relation.ZERO_OUT, **options):
    return CellSums(CELLS, DIMENSIONS, law, 1.0, options.pop("unit", Unit.IMAGE), relation, **options)


def steps(sums, vectors, cells, weights=None):
    """The exact sums, without noise, in grid steps."""
    return sums._exact_sum(torch.tensor(vectors).reshape(-1, DIMENSIONS).double(), torch.tensor(cells).long(), weights)


def distance(sums, left, right):
    return torch.linalg.vector_norm((left - right).flatten(), ord=2 if sums.law == "gaussian" else 1).item()


# Extreme records: far outside the ball, on an axis, on a diagonal, opposite, tiny, zero.
EXTREMES = [
    [100.0, 0, 0, 0],
    [-100.0, 0, 0, 0],
    [3.0, 3, 3, 3],
    [-3.0, -3, -3, -3],
    [0.0, 1, 0, 0],
    [1e-9, 0, 0, 0],
    [0.0, 0, 0, 0],
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("nonnegative", [False, True])
def test_no_neighbor_moves_the_sums_further_than_declared(law, nonnegative):
    records = [(v, c) for v in EXTREMES for c in range(CELLS) if not nonnegative or min(v) >= 0]
    rest_vectors, rest_cells = [[0.3, 0.1, 0.0, 0.2], [0.0, 0.9, 0.1, 0.0]], [0, 2]
    worst = dict.fromkeys(Relation, 0.0)
    for relation in Relation:
        sums = sums_of(law, relation, nonnegative=nonnegative)
        without = steps(sums, rest_vectors, rest_cells)
        with_one = [steps(sums, [*rest_vectors, v], [*rest_cells, c]) for v, c in records]
        pairs = (
            [(one, without) for one in with_one]
            if relation is Relation.ZERO_OUT
            else itertools.combinations(with_one, 2)  # replace-one, with and without a change of cell
        )
        worst[relation] = max(distance(sums, left, right) for left, right in pairs)
        # Reached to within rounding: the bound is no looser than it must be.
        assert 0.99 * sums.mechanism.sensitivity <= worst[relation] <= sums.mechanism.sensitivity
    # Control: the sensitivity of zero-out-one does not cover replace-one.
    assert worst[Relation.REPLACE_ONE] > 1.4 * sums_of(law, nonnegative=nonnegative).mechanism.sensitivity


VECTOR = st.lists(st.floats(-5, 5, width=32), min_size=DIMENSIONS, max_size=DIMENSIONS)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LAWS), VECTOR, VECTOR, st.integers(0, 2), st.integers(0, 2))
def test_random_neighbors_stay_within_the_sensitivity(law, left, right, left_cell, right_cell):
    for relation in Relation:
        sums = sums_of(law, relation)
        one = steps(sums, left, [left_cell])
        other = steps(sums, right, [right_cell]) if relation is Relation.REPLACE_ONE else torch.zeros_like(one)
        assert distance(sums, one, other) <= sums.mechanism.sensitivity


@pytest.mark.parametrize("law", LAWS)
def test_a_person_with_many_images_moves_the_sums_no_further_than_one(law):
    images = 5
    sums = sums_of(law, unit=Unit.PERSON, most_per_unit=images)
    weights = torch.full((images,), 1 / images)
    worst = 0.0
    for cells in itertools.product(range(CELLS), repeat=images):
        vectors = [EXTREMES[0]] * images
        worst = max(worst, steps(sums, vectors, list(cells), weights).norm(p=2 if law == "gaussian" else 1).item())
    assert 0.99 * sums.mechanism.sensitivity <= worst <= sums.mechanism.sensitivity
    unweighted = steps(sums, [EXTREMES[0]] * images, [0] * images, torch.ones(images))
    assert unweighted.norm() > 4 * sums.mechanism.sensitivity  # control: without the weights the bound is broken


def test_the_sums_are_right_and_the_noise_has_its_size():
    sums = CellSums(200, 300, "gaussian", 2.0, Unit.IMAGE, Relation.ZERO_OUT)
    vectors = torch.zeros(3, 300)
    vectors[0, 7], vectors[1, 8], vectors[2, 9] = 0.5, 0.25, 1.0
    expected = torch.zeros(200, 300, dtype=torch.float64)
    expected[0, 7], expected[199, 8], expected[0, 9] = 0.5, 0.25, 1.0
    batches = [(vectors[:2], torch.tensor([0, 199]), None), (vectors[2:], torch.tensor([0]), None)]
    assert (sums.grid.value(sum(sums._exact_sum(*batch) for batch in batches)) - expected).abs().max() <= sums.grid.step
    errors = (sums.release(batches, Noise.fixed(1)) - expected).flatten()
    assert errors.mean().abs() < 5 * sums.noise_std / len(errors) ** 0.5
    assert errors.std().item() == pytest.approx(sums.noise_std, rel=0.02)  # 60,000 numbers: 7 standard errors
    assert sums.noise_std == pytest.approx(2.0, rel=0.003)  # sensitivity 1, noise multiplier 2, the grid's 0.2 %


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("relation", list(Relation))
def test_calibration_meets_its_target_and_wastes_little(law, relation):
    sums = CellSums.calibrated(
        10, 1000, law, epsilon=1.0, delta=1e-5, unit=Unit.IMAGE, relation=relation, nonnegative=False
    )
    assert 0.99 <= compose_epsilon([sums.event], 1e-5) <= 1.0


@pytest.mark.parametrize(
    ("vector", "cell"),
    [
        ([math.nan, 0, 0, 0], 0),
        ([math.inf, 0, 0, 0], 0),
        ([1e200, 1e200, 0, 0], 0),  # finite, and its norm is not
        ([1.0, 0, 0, 0], 3),
        ([1.0, 0, 0, 0], -1),
    ],
)
def test_what_is_not_bounded_is_not_released(vector, cell):
    with pytest.raises(ValueError, match="not finite or is negative"):
        sums_of().release([(torch.tensor([vector], dtype=torch.float64), torch.tensor([cell]), None)], Noise.fixed(1))


@pytest.mark.parametrize("weight", [math.nan, math.inf, -0.5, 1.5])
def test_a_share_of_a_person_that_is_none_is_refused(weight):
    sums = sums_of(unit=Unit.PERSON, most_per_unit=2)
    with pytest.raises(ValueError, match="weights"):
        sums.release([(torch.ones(1, 4), torch.zeros(1).long(), torch.tensor([weight]))], Noise.fixed(1))


def test_more_records_than_add_up_exactly_are_refused_by_their_number_alone():
    sums = sums_of(unit=Unit.PERSON, most_per_unit=1_000_000)
    rows = math.ceil(2**53 * sums.grid.step)
    many = torch.zeros(1, 4).expand(rows, 4), torch.zeros(1).long().expand(rows), torch.zeros(1).expand(rows)
    with pytest.raises(ValueError, match="do not add up exactly"):
        sums.release([many], Noise.fixed(1))


def test_refusals():
    with pytest.raises(ValueError, match="negative"):
        steps(sums_of(nonnegative=True), [-0.1, 0, 0, 0], [0])
    with pytest.raises(ValueError, match="weights"):
        sums_of(unit=Unit.PERSON, most_per_unit=2).release(
            [(torch.zeros(1, 4), torch.zeros(1).long(), None)], Noise.fixed(1)
        )
    with pytest.raises(InputError, match="one image per unit"):
        sums_of(most_per_unit=2)
    with pytest.raises(InputError, match="no pure guarantee"):
        CellSums.calibrated(1, 1, "gaussian", epsilon=1.0, delta=0.0, unit=Unit.IMAGE, relation=Relation.ZERO_OUT)
