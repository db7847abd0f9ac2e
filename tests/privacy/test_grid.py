import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idpgan.errors import InputError
from idpgan.privacy import Grid

VALUES = st.floats(-50, 50, allow_nan=False)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8), st.sampled_from([2.0**-6, 0.25, 1.0, 8.0]))
def test_rounding_never_breaks_the_stated_sensitivity(pairs, step):
    grid, (left, right) = Grid(step), torch.tensor(pairs, dtype=torch.float64).T
    steps = (grid.round(left) - grid.round(right)).double()
    distance, dimensions = left - right, len(pairs)
    assert steps.abs().sum() <= grid.l1(distance.abs().sum().item(), dimensions)
    assert steps.norm() <= grid.l2(distance.norm().item(), dimensions) * (1 + 1e-12)


def test_the_rounding_term_is_needed():
    # Control: without the term per coordinate the bound is broken by two values on either side of a tie.
    grid, left, right = Grid(1.0), torch.full((8,), 0.49), torch.full((8,), 0.51)
    steps = (grid.round(left) - grid.round(right)).abs().sum()
    assert steps == 8
    assert steps > grid.l1(float((left - right).abs().sum()), 0)


@given(st.floats(1e-6, 1e6), st.integers(1, 10**6), st.sampled_from([1, 2]))
def test_a_fine_grid_costs_a_thousandth_per_rounding(sensitivity, dimensions, norm):
    grid = Grid.fine(sensitivity, dimensions, norm=norm)
    rounded = (grid.l1 if norm == 1 else grid.l2)(sensitivity, dimensions) * grid.step
    assert sensitivity <= rounded <= sensitivity * 1.0021  # ceil adds up to one step more


def test_values_on_the_grid_come_back_exactly():
    values = torch.tensor([-3.5, 0.0, 0.25, 1024.75], dtype=torch.float64)
    grid = Grid(0.25)
    assert torch.equal(grid.value(grid.round(values)), values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_values_that_no_step_can_hold_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        Grid(1.0).round(torch.tensor([0.0, bad], dtype=torch.float64))


@pytest.mark.parametrize("step", [0.0, -1.0, 0.3, math.inf, math.nan])
def test_a_step_that_is_no_power_of_two_is_refused(step):
    with pytest.raises(InputError, match="power of two"):
        Grid(step)
