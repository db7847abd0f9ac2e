import math

import pytest

from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit

REPLACE, ADD = (Unit.IMAGE, Relation.REPLACE_ONE), (Unit.IMAGE, Relation.ZERO_OUT)

EVERY_KIND = [
    Event("laplace", *REPLACE, 2.0, 7),
    Event("gaussian", *ADD, 1.5),
    Event("poisson-gaussian", *ADD, 1.5, 2250, sample_rate=0.04),
    Event("discrete-laplace", *REPLACE, 2.0, sensitivity=255),
    Event("randomized-response", *REPLACE, pure_epsilon=1.0, categories=10),
    Event("exponential", *REPLACE, pure_epsilon=0.5),
    Event("pure", *REPLACE, count=3, pure_epsilon=0.25),
    Event("approximate", *ADD, pure_epsilon=0.25, delta=1e-7),
    Event.non_private("trained on raw images"),
]


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: event.kind)
def test_json_round_trip(event):
    assert Event.from_json(event.to_json()) == event


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "gauss"},
        {"surprise": 1},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"count": 0},
        {"count": 1.5},
        {"count": True},
        {"sample_rate": 0.5},
        {"unit": "album"},
        {"relation": "replace-special"},
        {"noise_multiplier": "2.0"},
        {"noise_multiplier": True},
        {"noise_multiplier": 10**400},
        {"count": (1 << 62) + 1},
        {"kind": ["laplace"]},
        {"kind": "discrete-gaussian"},  # of earlier versions; priced otherwise now
    ],
)
def test_foreign_or_impossible_events_are_refused(change):
    with pytest.raises(InputError):
        Event.from_json(EVERY_KIND[0].to_json() | change)


def test_a_missing_parameter_is_refused():
    with pytest.raises(InputError, match="sample_rate"):
        Event("poisson-gaussian", *ADD, 1.0)
    with pytest.raises(InputError, match="sensitivity"):
        Event("discrete-laplace", *REPLACE, 1.0)


def test_units_and_numbers_of_other_types_are_refused():
    for wrong in (("image", Relation.ZERO_OUT), (Unit.IMAGE, "zero-out-one"), (Unit.IMAGE, None)):
        with pytest.raises(InputError, match="a Unit and a Relation"):
            Event("gaussian", *wrong, 1.0)
    for rate in ("0.1", True, None, math.nan):
        with pytest.raises(InputError, match="sample_rate"):
            Event("poisson-gaussian", *ADD, 1.0, sample_rate=rate)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan, True, "1e-5", None])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(InputError, match="delta"):
        Event("approximate", *ADD, pure_epsilon=1.0, delta=delta)


def test_relations_that_have_no_proof_are_refused():
    with pytest.raises(InputError, match="zero-out-one only"):
        Event("poisson-gaussian", *REPLACE, 1.0, sample_rate=0.1)
    with pytest.raises(InputError, match="replace-one only"):
        Event("randomized-response", *ADD, pure_epsilon=1.0, categories=2)


def test_pure_epsilon_per_kind():
    assert [event.pure for event in EVERY_KIND] == [0.5, *2 * [math.inf], 0.5, 1.0, 0.5, 0.25, *2 * [math.inf]]
