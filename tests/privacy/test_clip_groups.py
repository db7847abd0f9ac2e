"""Groups of weights: what is clipped, how long the whole vector is, its noise, and how groups are found."""

import dataclasses
import math

import pytest
import torch

from idpgan.errors import InputError
from idpgan.privacy import DPSGDPlan, Noise
from idpgan.privacy.clip_groups import ClipGroups, group_by_norm
from idpgan.privacy.layer_gradients import Materialized, sums_of_norms
from idpgan.privacy.tiles import Tiles, tiled

GROUPS = ClipGroups((("a", "c"), ("b",)), (0.5, 3.0))
PLAN = DPSGDPlan(0.1, 2.0, 1, 1.5, groups=GROUPS)
SHAPES = {"a": (3,), "b": (2, 4), "c": (5,)}


def loss(weights, a, b, c):
    """Its gradient in each weight is the record's own tensor."""
    return (weights["a"] * a).sum() + (weights["b"] * b).sum() + (weights["c"] * c).sum()


def records(scale, num=40):
    draws = torch.Generator().manual_seed(0)
    return [scale * torch.randn(num, *shape, generator=draws) for shape in SHAPES.values()]


def clipped_sum(plan, given):
    zero = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    return plan.clipped_sum(loss, zero, tiled(given, 8), Tiles.fixed(8, "vmap"))


def by_hand(groups, given):
    """Sum of the records, each group of them clipped by itself, in the unit of the gradient."""
    found = {}
    for own, bound in zip(groups.names, groups.bounds, strict=True):
        parts = {name: part for name, part in zip(SHAPES, given, strict=True) if name in own}
        norm = torch.cat([part.flatten(1) for part in parts.values()], 1).norm(dim=1)
        factor = (bound / norm).clamp(max=1)
        found |= {
            name: (part * factor.view(-1, *[1] * (part.ndim - 1))).sum(0).double() for name, part in parts.items()
        }
    return found


def in_gradients(plan, sums):
    return {name: total * plan.step * plan.groups.stretch(name, plan.clip_norm) for name, total in sums.items()}


@pytest.mark.parametrize("scale", [1e-3, 0.4, 100.0])
@pytest.mark.parametrize("groups", [GROUPS, GROUPS.apart])
def test_every_group_is_clipped_by_itself(groups, scale):
    plan, given = dataclasses.replace(PLAN, groups=groups), records(scale)
    found = in_gradients(plan, clipped_sum(plan, given).sums)
    for name, wanted in by_hand(groups, given).items():
        assert torch.allclose(found[name], wanted, rtol=1e-4, atol=1e-5)
    if scale > 1:  # negative control: they are not clipped together
        together = clipped_sum(dataclasses.replace(plan, groups=None), given).sums
        assert not torch.allclose(together["b"] * plan.step, found["b"], rtol=0.1)


def lengths(plan, scale):
    """Norms of one record at a time as a share of the clip norm, by what is added, whole grid steps."""
    found = [clipped_sum(plan, [part[i : i + 1] for part in records(scale, 6)]).sums for i in range(6)]
    return [torch.cat([part.flatten() for part in sums.values()]).norm().item() * plan.grid for sums in found]


@pytest.mark.parametrize("scale", [1e-3, 0.4, 100.0, 1e18])
def test_all_groups_together_are_within_the_clip_norm(scale):
    for groups in (GROUPS, GROUPS.apart):
        found = lengths(dataclasses.replace(PLAN, groups=groups), scale)
        assert max(found) <= 1
        assert scale < 1 or min(found) > 0.9999
    assert max(lengths(dataclasses.replace(PLAN, groups=None), scale)) <= 1


def test_apart_a_record_exceeds_what_its_groups_are_priced_at():
    """The fault of dp-gan-zhang: a group of k tensors moves by sqrt(k) times its bound, and not more."""
    plan, given = dataclasses.replace(PLAN, groups=GROUPS.apart), records(100.0, 1)
    sums = in_gradients(plan, clipped_sum(plan, given).sums)
    moved = torch.cat([sums["a"], sums["c"]]).norm().item() / 0.5
    assert moved == pytest.approx(math.sqrt(2), rel=1e-4)
    together = in_gradients(PLAN, clipped_sum(PLAN, given).sums)
    assert torch.cat([together["a"], together["c"]]).norm().item() / 0.5 == pytest.approx(1, rel=1e-4)


def test_the_noise_on_a_group_is_that_of_all_groups_together_times_its_bound():
    weights = {"a": torch.zeros(4000), "b": torch.zeros(2, 2000), "c": torch.zeros(10)}
    seen = {name: weight.requires_grad_() for name, weight in weights.items()}
    optimizer = torch.optim.SGD(seen.values(), lr=1.0)
    zero = {name: torch.zeros(weight.shape, dtype=torch.float64) for name, weight in weights.items()}
    PLAN.noisy_step(optimizer, seen, zero, Noise.fixed(3))
    for name, bound in (("a", 0.5), ("b", 3.0)):
        wanted = 1.5 * math.sqrt(2) * bound
        assert seen[name].std().item() == pytest.approx(wanted, rel=0.05)  # standard error 1.1 %
        assert seen[name].std().item() != pytest.approx(wanted / math.sqrt(2), rel=0.2)  # negative control


def test_a_record_that_is_not_finite_in_one_group_adds_nothing_to_any():
    given = records(1.0, 2)
    given[1][0, 0, 0] = math.nan
    found = clipped_sum(PLAN, given)
    alone = clipped_sum(PLAN, [part[1:] for part in given])
    assert all(torch.equal(found.sums[name], alone.sums[name]) for name in SHAPES)
    assert found.norms.isfinite().tolist()[:2] == [False, True]


def test_like_norms_come_together_and_the_bound_is_the_root_of_squares():
    """By hand: 3 and 4 have the smallest ratio, then 1 and 1.4."""
    found = group_by_norm({"a": 3.0, "b": 1.0, "c": 40.0, "d": 4.0, "e": 1.4}, 3)
    assert found.names == (("c",), ("a", "d"), ("b", "e"))
    assert found.bounds == pytest.approx((40, 5, math.hypot(1, 1.4)))
    assert group_by_norm({"a": 3.0, "b": 1.0}, 5).names == (("a",), ("b",))


def test_a_weight_without_a_gradient_takes_no_group_of_its_own():
    found = group_by_norm({"a": 3.0, "none": 0.0, "b": 1.0}, 2)
    assert sorted(map(len, found.names)) == [1, 2]
    assert sorted(found.bounds) == pytest.approx([1, 3])


def test_norms_of_records_add_up_by_weight():
    gradients = {name: Materialized(part) for name, part in zip(SHAPES, records(2.0), strict=True)}
    wanted = [part.flatten(1).norm(dim=1).sum().item() for part in records(2.0)]
    assert sums_of_norms(gradients, 40).tolist() == pytest.approx(wanted, rel=1e-5)


def test_groups_that_cannot_be_are_refused():
    for names, bounds in (((("a",),), (0.0,)), ((("a",),), (math.nan,)), ((("a",), ("b",)), (1.0,))):
        with pytest.raises(InputError, match="needs a bound"):
            ClipGroups(names, bounds)
    for names in ((("a",), ("b",)), (("a", "b"), ("b", "c"))):
        with pytest.raises(ValueError, match="exactly one group"):
            ClipGroups(names, (1.0, 1.0)).places(SHAPES)
    with pytest.raises(InputError, match="exact steps only"):
        dataclasses.replace(PLAN, exact=False)
