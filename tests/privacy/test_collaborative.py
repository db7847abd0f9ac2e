"""Prices of selective sharing and of split networks: golden, and by the densities."""

import math

import numpy as np
import pytest

from idpgan.errors import InputError
from idpgan.privacy import Relation, SparseVector, Unit
from idpgan.privacy.collaborative import (
    nullified_epsilon,
    sharing_epsilon,
    sharing_scales,
    split_network_epsilon,
)


def test_the_papers_noise_costs_its_epsilon_per_epoch_and_the_epochs_add_up():
    scales = sharing_scales(0.5, 100, 0.001)
    assert scales == pytest.approx((0.9, 1.8, 3.6))
    assert sharing_epsilon(scales, 100, 0.001, 1) == pytest.approx(0.5)
    assert sharing_epsilon(scales, 100, 0.001, 60) == pytest.approx(30.0)  # claimed: 0.005 per parameter
    assert sharing_epsilon(scales, 100, 0.001, 60, redrawn=False) == math.inf


def test_an_upload_is_a_sparse_vector_of_one_positive_and_a_laplace_release():
    scales = sharing_scales(1.0, 5, 0.5)  # sensitivity 1
    chosen = SparseVector(100, 1125, 2250, 1, Unit.IMAGE, Relation.REPLACE_ONE)  # hundredths: no rounding
    assert scales == pytest.approx((11.25, 22.5, 45.0))
    assert sharing_epsilon(scales, 5, 0.5, 1) == pytest.approx(5 * (chosen.event.pure + 1 / scales.value))


def test_a_split_network_pays_for_every_feature():
    assert split_network_epsilon(128, 2.0, 256.0) == pytest.approx(2.0)
    corners = np.array([2.0] * 128), np.array([-2.0] * 128)  # the largest log-ratio of Laplace densities
    assert np.abs(corners[0] - corners[1]).sum() / 256.0 == pytest.approx(2.0)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
def test_nullification_is_exact_for_one_pixel(rate):
    """Randomized response whose input is set to 0 by a coin: worst over all pairs of a pixel's three values."""
    epsilon, lowest = 1.2, 1 / (math.exp(1.2) + 2)
    law = {x: np.array([math.exp(1.2) * lowest if y == x else lowest for y in range(3)]) for x in range(3)}
    mixed = {x: rate * law[0] + (1 - rate) * law[x] for x in law}
    worst = max(np.log(mixed[a] / mixed[b]).max() for a in law for b in law)
    assert worst <= nullified_epsilon(epsilon, rate) * (1 + 1e-12)
    assert worst == pytest.approx(nullified_epsilon(epsilon, rate), rel=1e-9)
    assert rate == 0 or nullified_epsilon(epsilon, rate) < epsilon


@pytest.mark.parametrize(
    "bad",
    [
        lambda: sharing_scales(0.0, 1, 1.0),
        lambda: sharing_scales(1.0, 0, 1.0),
        lambda: sharing_epsilon(sharing_scales(1.0, 1, 1.0), 1, 1.0, 0),
        lambda: split_network_epsilon(0, 1.0, 1.0),
        lambda: split_network_epsilon(1, math.inf, 1.0),
        lambda: nullified_epsilon(1.0, 1.0),
        # Failed before: other errors, although the guide names these functions.
        lambda: nullified_epsilon(1.0, "0.5"),
        lambda: sharing_epsilon((1.0, 1.0, 1.0), 1, 1.0, 1),
        lambda: split_network_epsilon(1, "1", 1.0),
        lambda: split_network_epsilon(1, 1.0, None),
    ],
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(InputError):
        bad()
