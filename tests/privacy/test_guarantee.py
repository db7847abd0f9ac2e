import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idpgan.errors import InputError
from idpgan.privacy import guarantee
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, check_delta, default_delta
from idpgan.privacy.plan import Budget

IMAGE = Guarantee(1.0, 1e-6, Unit.IMAGE, Relation.ZERO_OUT, "test")


def test_infinity_survives_json_as_a_string():
    infinite = Guarantee(math.inf, 0.0, Unit.PIXEL, Relation.REPLACE_ONE, "nothing is proven")
    assert infinite.to_json()["epsilon"] == "inf"
    assert Guarantee.from_json(infinite.to_json()) == infinite


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-0.1, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -1e-9), (1.0, math.nan)]
)
def test_impossible_guarantees_are_refused(epsilon, delta):
    with pytest.raises(InputError, match="epsilon"):
        Guarantee(epsilon, delta, Unit.IMAGE, Relation.ZERO_OUT, "test")


def test_group_privacy_against_the_formula():
    ten = IMAGE.for_group(10)  # ORL has 10 images of one person
    assert (ten.epsilon, ten.unit) == (pytest.approx(10.0), Unit.PERSON)
    assert ten.delta == pytest.approx(1e-6 * math.expm1(10) / math.expm1(1), rel=1e-12)
    assert Guarantee(0.5, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "pure").for_group(3).epsilon == pytest.approx(1.5)


def test_a_group_of_perfectly_protected_ones_adds_up_its_delta():
    nothing = Guarantee(0.0, 1e-5, Unit.IMAGE, Relation.ZERO_OUT, "nothing was read").for_group(3)
    assert (nothing.epsilon, nothing.delta) == (0.0, pytest.approx(3e-5))


def test_a_group_too_large_has_no_guarantee():
    assert IMAGE.for_group(20).epsilon == math.inf  # CelebA has about 20: 1e-6 e^19 > 1
    assert IMAGE.for_group(10**6).epsilon == math.inf
    with pytest.raises(InputError, match="at least 1"):
        IMAGE.for_group(0)


@given(st.floats(1e-3, 50), st.floats(0, 0.5), st.integers(1, 30))
def test_a_group_is_never_better_protected_than_one(epsilon, delta, size):
    one = Guarantee(epsilon, delta, Unit.IMAGE, Relation.REPLACE_ONE, "test")
    group = one.for_group(size)
    assert group.epsilon >= one.epsilon * (1 - 1e-12)
    assert group.epsilon == math.inf or group.delta >= delta * (1 - 1e-9)


def test_delta_of_one_over_n_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"below 1/N = 0.01 .* Set it to 1e-05"):
        check_delta(0.01, 100)
    check_delta(0.0099, 100)
    assert default_delta(100) == 1e-5
    assert default_delta(200_000) == pytest.approx(5e-7)


@pytest.mark.parametrize("change", [{"epsilon": "infinite"}, {"unit": "picture"}, {"relation": "swap"}, {"extra": 1}])
def test_foreign_json_is_refused(change):
    with pytest.raises(InputError):
        Guarantee.from_json(IMAGE.to_json() | change)


def test_report_round_trip_and_honesty():
    report = PrivacyReport(None, IMAGE, None, "because", True, ("N", "image size"))
    assert PrivacyReport.from_json(report.to_json()) == report
    infinite = Guarantee(math.inf, 0.0, Unit.IMAGE, Relation.ZERO_OUT, "none")
    with pytest.raises(ValueError, match="cannot be marked private"):
        PrivacyReport(IMAGE, infinite, None, "unsound", True)
    with pytest.raises(ValueError, match="never None"):
        PrivacyReport(IMAGE, None, None, "unsound", False)


@pytest.mark.parametrize(("epsilon", "said"), [(100.0, 0), (1e9, 1), (math.inf, 0)])
def test_an_epsilon_that_protects_next_to_nothing_is_said_once(caplog, epsilon, said):
    guarantee._warn_once.cache_clear()
    for _ in range(2):
        Budget(epsilon, 0.0)
    assert [
        record.getMessage().startswith("epsilon = 1e+09 protects next to nothing") for record in caplog.records
    ] == [True] * said
