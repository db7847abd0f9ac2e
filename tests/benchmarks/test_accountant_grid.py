"""A slice of benchmarks/accountant_grid.py: each way to the truth, and controls that it can find something."""

import accountant_grid as grid
import pytest

CELLS = {
    "closed curve": [(20.0, 1.0, 1, 1e-9), (0.4358, 1e-3, 1, 1e-5)],
    "inverted": [(1.0, 0.1, 1000, 1e-7)],
    "bracketed": [(1.0, 0.01, 2, 1e-7)],
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", CELLS)
def test_each_way_finds_the_truth_near_the_price(way):
    for cell in CELLS[way]:
        row = grid.play(*cell)
        assert (row["way"], row["below"], row["above"]) == (way, False, False)
        low, high = row["truth"]
        assert low <= row["epsilon"] * (1 + 1e-9)
        assert high == pytest.approx(row["epsilon"], rel=1e-4)


@pytest.mark.parametrize("factor", [0.98, 1.1])
def test_a_wrong_price_is_found(monkeypatch, factor):
    """The control."""
    price = grid.price
    monkeypatch.setattr(grid, "price", lambda *cell: factor * price(*cell))
    row = grid.play(0.5, 0.9, 1, 1e-7)
    assert (row["below"], row["above"]) == (factor < 1, factor > 1)


def test_a_fall_is_found():
    """The control."""
    rows = [grid.play(1.0, 1.0, count, 1e-5) for count in (1, 2)]
    assert grid.summed(rows)["falls"] == []
    assert grid.summed([rows[1] | {"count": 1}, rows[0] | {"count": 2}])["falls"] == [[1.0, 1.0, 1e-5, 1, 2]]
