"""Gradients captured from one backward pass: equal to a loop over single records, or refused, never too small."""

import gc
import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from idpgan.privacy import DPSGDPlan, captured_gradients
from idpgan.privacy.captured_gradients import NotCapturedError, capture
from idpgan.privacy.layer_gradients import LinearCall, clip_and_add
from tests.privacy.clipped import clipped


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def score_of(model, *, copies=1):
    """A loss that puts a record through the model more than once, in one batch, and sums unequal terms."""

    def loss(weights, record):
        batch = torch.stack([record * (1 + 0.3 * i) for i in range(copies)])
        outputs = functional_call(model, weights, (batch,))
        return (outputs.flatten(1).sum(1).tanh() * torch.arange(1, copies + 1)).sum()

    return loss


def loop_over_records(loss, weights, records):
    """Each record alone, by plain autograd; returns gradients (B, P) float64."""
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    rows = []
    for record in zip(*records, strict=True):
        parts = torch.autograd.grad(loss(leaves, *record), list(leaves.values()), allow_unused=True)
        parts = [torch.zeros_like(w) if p is None else p for p, w in zip(parts, leaves.values(), strict=True)]
        rows.append(torch.cat([part.flatten() for part in parts]).double())
    return torch.stack(rows)


def assert_equals_the_loop(loss, weights, records, *, clip_norm=None, way="capture", physical_batch=3):
    """Norms and clipped sum, to 1e-5 of their size; the clip norm falls between the norms unless it is given."""
    rows = loop_over_records(loss, weights, records)
    norms = rows.norm(dim=1)
    clip_norm = clip_norm or max(float(norms.median()), 1e-6)
    plan = DPSGDPlan(0.5, clip_norm, 4, 1.0)
    result = clipped(plan, loss, weights, records, physical_batch=physical_batch)
    assert result.way == way
    assert torch.allclose(result.norms, norms, rtol=1e-5, atol=1e-7)
    expected = (rows * (clip_norm / norms.clamp_min(1e-30)).clamp(max=1.0)[:, None]).sum(0)
    found = torch.cat([result.sums[name].flatten() for name in weights])
    assert float((found - expected).norm()) <= 3e-5 * float(expected.norm()) + 1e-8
    return result


# Layers --------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.sampled_from([(1, 1, 2), (2, 4, 1), (4, 2, 2), (3, 3, 3), (6, 4, 2)]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.booleans(),
    st.integers(1, 3),
    st.floats(0.1, 10.0),
)
def test_convolutions_of_any_kind(channels, kernel, stride, padding, dilation, bias, copies, factor):
    inner, outer, groups = channels
    groups = groups if inner % groups == 0 and outer % groups == 0 else 1
    model = nn.Conv2d(inner, outer, kernel, stride, padding, dilation, groups, bias)
    records = [drawn(4, inner, 9, 8)]
    loss = score_of(model, copies=copies)
    norms = loop_over_records(loss, dict(model.named_parameters()), records).norm(dim=1)
    assert_equals_the_loop(
        loss, dict(model.named_parameters()), records, clip_norm=factor * float(norms.median()) + 1e-6
    )


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(1, 4), max_size=2), st.booleans(), st.integers(1, 3))
def test_linear_layers_on_inputs_of_any_number(inner, outer, positions, bias, copies):
    model = nn.Linear(inner, outer, bias)
    assert_equals_the_loop(
        score_of(model, copies=copies), dict(model.named_parameters()), [drawn(5, *positions, inner)]
    )


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)

    def forward(self, words):
        return self.norm(self.table(words)).flatten(1) * torch.arange(1.0, 25)


class View(nn.Module):
    def forward(self, images):
        return images.view(len(images), -1)


MODELS = {
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 5)
    ),
    "in place": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2)),
    "view": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), View(), nn.Linear(144, 2)),
    "norm without weights": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2)
    ),
    "padding by reflection": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm((3, 8, 8)), nn.Flatten(), nn.Linear(192, 3)),
}


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_networks(name, copies):
    torch.manual_seed(1)
    model = MODELS[name]()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    expected = "vmap" if name == "in place" else "capture"  # what came out is changed: refused, and right all the same
    assert_equals_the_loop(
        score_of(model, copies=copies), dict(model.named_parameters()), [drawn(5, 3, 8, 8)], way=expected
    )


def test_an_embedding_whose_lines_a_record_uses_twice():
    torch.manual_seed(1)
    model = Words()
    words = torch.tensor([[0, 0, 1, 2], [3, 3, 3, 3], [6, 5, 4, 3]])

    def loss(weights, own):
        return functional_call(model, weights, (own[None],)).sin().sum()

    assert_equals_the_loop(loss, dict(model.named_parameters()), [words])
    gradients, _ = capture(loss, dict(model.named_parameters()), [words])
    assert gradients["table.weight"].width == 4 * 6  # the lines that a record uses, not all


def test_a_large_table_adds_line_by_line():
    torch.manual_seed(1)
    table, words = nn.Embedding(300, 2), torch.tensor([[0, 299, 0], [7, 7, 7], [1, 2, 3]])

    def loss(weights, own):
        return functional_call(table, weights, (own,)).sin().sum()

    assert_equals_the_loop(loss, dict(table.named_parameters()), [words])


def test_groups_of_a_convolution():
    for groups in (1, 2):
        model = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1, groups=groups), nn.Tanh(), nn.Flatten(), nn.Linear(96, 3))
        assert_equals_the_loop(score_of(model, copies=2), dict(model.named_parameters()), [drawn(5, 4, 8, 8)])


# Where a norm could come out too small -------------------------------------------------------------------------------


class Shared(nn.Module):
    """One layer twice on the way of a record, once more on a part of it, its weight's bias shared by two layers."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.bias = self.layer.bias

    def forward(self, x):
        x = self.layer(x).tanh()
        return self.other(self.layer(x).tanh() + self.layer(x * 0.5))


def test_a_layer_that_is_used_three_times_counts_three_times():
    torch.manual_seed(3)
    model = Shared()
    weights = dict(model.named_parameters())
    assert set(weights) == {"layer.weight", "layer.bias", "other.weight"}
    assert_equals_the_loop(score_of(model, copies=2), weights, [drawn(6, 6)])


def test_two_passes_in_one_loss_count_together():
    """Real and fake halves: once in one batch, once in two calls; where they cancel, the norm is that of the rest."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 1))

    def together(weights, real, fake):
        scores = functional_call(model, weights, (torch.stack([real, fake]),))
        return functional.softplus(-scores[0]).sum() + functional.softplus(scores[1]).sum()

    def apart(weights, real, fake):
        scores = [functional_call(model, weights, (image[None],)) for image in (real, fake)]
        return functional.softplus(-scores[0]).sum() + functional.softplus(scores[1]).sum()

    weights, real, fake = dict(model.named_parameters()), drawn(6, 1, 8, 8), drawn(6, 1, 8, 8, seed=1)
    fake[0] = real[0]
    fake[1] = real[1] + 1e-3 * fake[1]
    one, two = (assert_equals_the_loop(loss, weights, [real, fake]) for loss in (together, apart))
    assert torch.allclose(one.norms, two.norms, rtol=1e-5)


def test_terms_that_cancel_never_make_a_norm_too_small():
    """Ghost norms are differences of large numbers here: what is released stays within the clip norm."""
    model = nn.Linear(400, 1, bias=False)

    def loss(weights, one, two):
        return functional_call(model, weights, (one,)).sum() - functional_call(model, weights, (two,)).sum()

    one = drawn(64, 400) * 1e6
    step = 10.0 ** torch.linspace(-4, 3, 64)
    two = one + drawn(64, 400, seed=1) * step[:, None]
    weights = dict(model.named_parameters())
    true = (one.double() - two.double()).norm(dim=1)
    result = clipped(DPSGDPlan(0.5, 0.1, 4, 1.0), loss, weights, [one, two], physical_batch=64)
    assert result.way == "capture"
    assert (result.norms >= true * (1 - 4e-6)).all()
    for i in range(64):
        alone = clipped(DPSGDPlan(0.5, 0.1, 4, 1.0), loss, weights, [one[i : i + 1], two[i : i + 1]], physical_batch=1)
        assert float(alone.sums["weight"].norm()) <= 0.1


def test_a_shared_weight_in_layers_of_two_kinds_is_left_to_vmap():
    table = nn.Embedding(5, 4)

    def loss(weights, word):
        hidden = functional.embedding(word, weights["weight"])
        return functional.linear(hidden, weights["weight"]).square().sum()

    assert_equals_the_loop(loss, dict(table.named_parameters()), [torch.tensor([0, 3, 4])], way="vmap")


@pytest.mark.parametrize("name", ["layer norm", "group norm"])
def test_one_weight_that_scales_and_shifts_counts_as_both(name):
    weights = {"weight": drawn(3, seed=1)}

    def loss(weights, record):
        both = weights["weight"], weights["weight"]
        if name == "layer norm":
            return functional.layer_norm(record, (3,), *both).sin().sum()
        return functional.group_norm(record.T[None], 3, *both).sin().sum()

    assert_equals_the_loop(loss, weights, [drawn(6, 5, 3)])


def convolutions_of_unequal_groups(weights, record):
    image = record.expand(4, 4, 4)
    one = functional.conv2d(image[None, :2], weights["weight"]).tanh().sum()
    return one + functional.conv2d(image[None], weights["weight"], groups=2).square().sum()


UNUSUAL_SHAPES = {
    "a vector on a vector": (lambda w, x: functional.linear(x, w["weight"]).tanh().sum(), (4,), (1,)),
    "a vector on a matrix": (lambda w, x: functional.linear(x * torch.ones(5, 1), w["weight"]).sin().sum(), (4,), (1,)),
    "no outputs": (lambda w, x: functional.linear(x, w["weight"]).sum() + (x * w["bias"]).sum(), (0, 4), (4,)),
    "no inputs": (lambda w, x: (functional.linear(x[:0], w["weight"], w["bias"]) * x[:3]).sum(), (3, 0), (3,)),
    "one bias for all": (lambda w, x: functional.linear(x[None], w["weight"], w["bias"]).sin().sum(), (3, 4), (1,)),
    "unequal groups": (convolutions_of_unequal_groups, (4, 2, 3, 3), (1,)),
}


@pytest.mark.parametrize("name", UNUSUAL_SHAPES)
def test_weights_of_unusual_shapes_are_left_to_vmap(name):
    loss, weight, bias = UNUSUAL_SHAPES[name]
    weights = {"weight": drawn(*weight, seed=1), "bias": drawn(*bias, seed=2)}
    assert_equals_the_loop(loss, weights, [drawn(5, 4)], way="vmap")


def test_a_loss_of_more_than_one_number_is_refused_as_by_torch_func():
    plan, weights = DPSGDPlan(0.5, 1.0, 4, 1.0), {"weight": drawn(3, 4)}
    with pytest.raises(RuntimeError, match="scalar"):
        clipped(plan, lambda w, x: functional.linear(x, w["weight"]), weights, [drawn(5, 4)], physical_batch=5)


def test_an_error_in_the_backward_pass_is_that_of_the_loss():
    def loss(weights, record):
        found = functional.linear(record, weights["weight"]).exp()
        found.add_(1)  # exp needs it
        return found.sum()

    weights = {"weight": drawn(3, 4)}
    with pytest.raises(NotCapturedError):
        capture(loss, weights, [drawn(5, 4)])
    with pytest.raises(RuntimeError, match="inplace"):
        clipped(DPSGDPlan(0.5, 1.0, 4, 1.0), loss, weights, [drawn(5, 4)], physical_batch=5)


def test_double_precision_whose_squares_underflow_stays_within_the_clip_norm():
    call = LinearCall()
    call.keep(drawn(1, 50).double() * 1e153)
    call.arrive(drawn(1, 50, seed=1).double() * 1e-161)
    gradient = LinearCall.gradient_of([call], torch.zeros(50, 50, dtype=torch.float64))
    total = {"weight": torch.zeros(50, 50, dtype=torch.float64)}
    clip_and_add({"weight": gradient}, torch.ones(1, dtype=torch.bool), 1e-9, 2.0**-32, total)
    assert float(total["weight"].norm()) == pytest.approx(2**32, rel=2e-5)


def plus(extra):
    """A linear layer whose weight is also used in another way."""
    model = nn.Linear(4, 3)

    def loss(weights, record):
        return functional_call(model, weights, (record,)).tanh().sum() + extra(model, weights, record)

    return loss, dict(model.named_parameters())


def penalty(model, weights, record):
    slope = grad(lambda x: functional_call(model, weights, (x,)).tanh().sum())(record)
    return (slope.norm() - 1).square()


def directional(model, weights, record):
    return jvp(lambda x: functional_call(model, weights, (x,)).tanh().sum(), (record,), (torch.ones(4),))[1].square()


def nested(model, weights, record):
    batch = record * torch.arange(1.0, 6)[:, None]
    return vmap(lambda x: functional_call(model, weights, (x,)).tanh().sum())(batch).square().sum()


def nested_on_constants(model, weights, record):
    batch = torch.arange(20.0).view(5, 4) / 20
    return vmap(lambda x: functional_call(model, weights, (x,)).tanh().sum())(batch).square().sum() * record.sum()


OTHER_USES = {
    "product": lambda model, weights, record: (record @ weights["weight"].T).square().sum(),
    "a view": lambda model, weights, record: functional.linear(record, weights["weight"] * 2).square().sum(),
    "weight decay": lambda model, weights, record: weights["weight"].square().sum() * record.sum(),
    "as an input": lambda model, weights, record: functional.linear(weights["weight"], weights["weight"]).sum(),
    "bias as an input": lambda model, weights, record: functional.linear(weights["bias"], record[:3][None]).sum(),
    "gradient penalty": penalty,
    "forward derivative": directional,
    "nested vmap": nested,
    "nested vmap on constants": nested_on_constants,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, for derivatives
@pytest.mark.parametrize("name", OTHER_USES)
def test_other_uses_of_a_weight_are_left_to_vmap_and_counted(name):
    torch.manual_seed(4)
    loss, weights = plus(OTHER_USES[name])
    with pytest.raises(NotCapturedError):
        capture(loss, weights, [drawn(5, 4)])
    assert_equals_the_loop(loss, weights, [drawn(5, 4)], way="vmap")


def test_an_input_that_is_changed_in_place_afterwards_is_refused():
    model = nn.Linear(4, 3)

    def loss(weights, record):
        hidden = record * 2
        out = functional_call(model, weights, (hidden,)).tanh().sum()
        hidden.mul_(0.0)  # what the gradient is made of is gone
        return out + hidden.sum()

    with pytest.raises(NotCapturedError):
        capture(loss, dict(model.named_parameters()), [drawn(5, 4)])


def test_inputs_that_need_a_gradient_and_constant_inputs():
    model = nn.Linear(4, 3)
    weights, constant = dict(model.named_parameters()), drawn(4, seed=9)
    records = [drawn(5, 4).requires_grad_()]
    assert_equals_the_loop(score_of(model), weights, records)
    assert records[0].grad is None

    def loss(weights, record):  # the same input for all records, another gradient for each
        return (functional_call(model, weights, (constant,)) * record[:3]).sum()

    assert_equals_the_loop(loss, weights, [drawn(5, 4)])


def test_a_checkpointed_layer_is_right_or_left_to_vmap():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

    def loss(weights, record):
        own = {name[2:]: weight for name, weight in weights.items() if name.startswith("0.")}
        hidden = checkpoint(lambda x: functional_call(model[0], own, (x,)).tanh(), record, use_reentrant=False)
        return functional.linear(hidden, weights["2.weight"], weights["2.bias"]).sum()

    weights, records = dict(model.named_parameters()), [drawn(5, 4)]
    try:
        gradients, _ = capture(loss, weights, records)
    except NotCapturedError:
        return
    total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    norms = clip_and_add(gradients, torch.ones(5, dtype=torch.bool), 1.0, 2.0**-32, total)
    assert torch.allclose(norms, loop_over_records(loss, weights, records).norm(dim=1), rtol=1e-5)


def test_activations_are_freed_without_the_garbage_collector(monkeypatch):
    """Failed before: hooks in the graph led back to what held the graph."""
    model, seen = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2)), []

    class Watched(captured_gradients._Recorder):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            seen.append(weakref.ref(self))

    monkeypatch.setattr(captured_gradients, "_Recorder", Watched)
    gc.disable()
    try:
        gradients, _ = capture(score_of(model), dict(model.named_parameters()), [drawn(5, 1, 8, 8)])
        assert [part() for part in seen] == [None]
        assert gradients
    finally:
        gc.enable()


def test_batch_norm_is_no_layer_of_single_records():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(NotCapturedError):
        capture(score_of(model, copies=2), dict(model.named_parameters()), [drawn(5, 4)])


def test_a_loss_without_weights_and_a_weight_without_use():
    model = nn.Linear(4, 3)
    weights = {**dict(model.named_parameters()), "idle": torch.zeros(2)}
    result = clipped(
        DPSGDPlan(0.5, 1.0, 4, 1.0), lambda weights, record: record.sum(), weights, [drawn(5, 4)], physical_batch=2
    )
    assert (result.way, float(result.norms.sum())) == ("capture", 0.0)
    assert_equals_the_loop(
        lambda weights, record: functional.linear(record, weights["weight"]).sum(), weights, [drawn(5, 4)]
    )


# Records that count as zero ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("name", ["group norm", "layer norm"])
def test_a_record_that_is_not_finite_or_null_changes_nothing_of_the_others(name, bad):
    torch.manual_seed(1)
    model = MODELS[name]()
    weights, records = dict(model.named_parameters()), drawn(5, 3, 8, 8)
    loss, plan = score_of(model, copies=2), DPSGDPlan(0.5, 0.5, 4, 1.0)
    null = torch.arange(5) == 2
    nulled = clipped(plan, loss, weights, [records], physical_batch=5, null=null)
    records[2, 0, 0, 0] = bad
    spoiled = clipped(plan, loss, weights, [records], physical_batch=5)
    both = clipped(plan, loss, weights, [records], physical_batch=5, null=null)
    assert nulled.way == spoiled.way == both.way == "capture"
    assert not nulled.norms[2].isfinite()
    for key in weights:
        assert torch.allclose(nulled.sums[key], both.sums[key], atol=1e-12)
        if not spoiled.norms[2].isfinite():
            assert torch.allclose(nulled.sums[key], spoiled.sums[key], atol=1e-12)
