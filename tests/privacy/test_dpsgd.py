"""The plan of DP-SGD: clipped sum and sensitivity, coins, noisy step; and a classifier that is trained by it."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.optimizers import DPOptimizer
from scipy.stats import binom, kstest, norm
from torch.func import functional_call

from idpgan.data.images import to_float
from idpgan.errors import InputError
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.privacy import DPSGDPlan, Event, Ledger, Noise, Relation, Unit, graphs
from idpgan.privacy.captured_gradients import per_example_gradients, record_gradients
from idpgan.synthesis.critic_loss import CriticLoss
from tests.privacy.clipped import clipped
from tests.training.toy import digits

KINDS = ["non-saturating", "wgan-gp"]


def records(num, seed=0, classes=10):
    rng = torch.Generator().manual_seed(seed)
    real, fake = torch.rand(2, num, 1, 8, 8, generator=rng) * 2 - 1
    labels = torch.randint(classes, (num,), generator=rng)
    return real, labels, fake, torch.rand(num, generator=rng), (labels + 3) % classes


def critic_of(conditional=True, width=4):
    return Critic(ModelConfig(width=width, conditional=conditional), (1, 8, 8), 10)


# The clipped sum -----------------------------------------------------------------------------------------------------


def sum_of(batch, *, critic, kind="non-saturating", clip_norm=0.5, physical_batch=64, paired=True, null=None):
    loss = CriticLoss(critic, kind, penalty=10.0, paired=paired)
    plan = plan_of(clip_norm=clip_norm)
    weights = dict(critic.named_parameters())
    return clipped(plan, loss.of_record, weights, batch, physical_batch=physical_batch, null=null)


def flat(result):
    return torch.cat([part.flatten() for part in result.sums.values()])


@pytest.mark.parametrize("physical_batch", [1, 2, 3, 100])
def test_chunks_do_not_change_the_sum(physical_batch):
    critic, batch = critic_of(), records(7)
    whole, parts = sum_of(batch, critic=critic), sum_of(batch, critic=critic, physical_batch=physical_batch)
    assert torch.allclose(flat(whole), flat(parts), atol=1e-6)
    assert torch.allclose(whole.norms, parts.norms)
    assert len(parts.losses) == 7


def test_an_empty_batch_sums_to_zero():
    result = sum_of(records(0), critic=critic_of())
    assert not flat(result).any()
    assert result.losses.shape == result.norms.shape == (0,)


@settings(max_examples=6)
@given(st.integers(0, 6), st.floats(0.01, 20), st.sampled_from(KINDS), st.booleans(), st.integers(0, 99))
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(others, clip_norm, kind, paired, seed):
    critic, batch = critic_of(), records(others + 2, seed)
    options = {"critic": critic, "kind": kind, "clip_norm": clip_norm, "paired": paired, "physical_batch": 3}
    extreme = torch.where(torch.arange(64).view(1, 8, 8) % 2 == 0, 1.0, -1.0)
    batch[0][-1] = extreme  # a checkerboard, which the others are far from
    without = flat(sum_of([part[:-1] for part in batch], **options))
    added = flat(sum_of(batch, **options))
    replaced = flat(sum_of([torch.cat([part[:-2], part[-1:]]) for part in batch], **options))
    assert (added - without).norm() <= clip_norm  # add or remove
    assert (replaced - without).norm() <= 2 * clip_norm  # replace: twice
    null = torch.arange(others + 2) == others + 1
    nulled = flat(sum_of(batch, null=null, **options))
    assert (added - nulled).norm() <= clip_norm  # zero out: the record keeps its row and adds nothing
    assert torch.allclose(nulled, without, rtol=0, atol=1e-6 * clip_norm)


def test_the_bound_is_nearly_reached_and_clipping_is_what_gives_it():
    critic, batch = critic_of(), records(4)
    clipped, free = (sum_of(batch, critic=critic, clip_norm=clip) for clip in (0.1, 1e6))
    alone = sum_of([part[:1] for part in batch], critic=critic, clip_norm=0.1)
    assert flat(alone).norm() == pytest.approx(0.1, rel=1e-4)
    assert (clipped.norms > 0.1).all()
    assert flat(free).norm() > 1  # negative control


def of_gradients(gradients, clip_norm, null=None):
    """Sum records whose gradients are given, float32 (B, n)."""
    weights = {"w": torch.zeros(gradients.shape[1])}
    loss = lambda weights, record: (weights["w"] * record).sum()  # noqa: E731
    plan = plan_of(clip_norm=clip_norm)
    return clipped(plan, loss, weights, [gradients], physical_batch=len(gradients), null=null).sums["w"]


def adversarial_gradients():
    """One large number, and many whose squares float32 loses beside its square; and random ones of all sizes."""
    hard = torch.full((1 << 18,), 2.0**-12)
    hard[:64] = 1.0
    rng = torch.Generator().manual_seed(3)
    spread = torch.randn(1 << 18, generator=rng) * 10 ** (6 * torch.rand(1 << 18, generator=rng) - 3)
    return torch.stack([hard, -hard, spread, 1e15 * spread, torch.full((1 << 18,), 1e-3)])


def test_rounding_never_carries_a_clipped_gradient_beyond_the_clip_norm():
    """Failed before: norms and factors were float32."""
    overshoot = []
    for gradient in adversarial_gradients():
        for clip_norm in (0.01, 0.1, 1 / 3, 1.0):
            clipped = of_gradients(gradient[None], clip_norm)
            reached = min(clip_norm, torch.linalg.vector_norm(gradient.double()).item())
            assert 0.9999 * reached < clipped.norm() <= clip_norm
            norm = torch.linalg.vector_norm(gradient[None], dim=1)  # the control: as it was
            old = ((clip_norm / (norm + 1e-6)).clamp(max=1.0) @ gradient[None]).double()
            overshoot.append(old.norm().item() / clip_norm - 1)
    assert max(overshoot) > 1e-6


def test_rounding_never_moves_a_sum_by_more_than_its_record():
    """Failed before: beside a long sum of float32 numbers a small record moved it by its rounding too."""
    rng = torch.Generator().manual_seed(5)
    one = torch.randn(1, 20_000, generator=rng)
    many = torch.cat([one.repeat(255, 1) + 0.01 * torch.randn(255, 20_000, generator=rng), -one])
    null = torch.arange(256) == 255
    assert (of_gradients(many, 1.0) - of_gradients(many, 1.0, null)).norm() <= 1.0
    assert (of_gradients(many, 1.0) - of_gradients(many[:255], 1.0)).norm() <= 1.0


def test_a_null_record_keeps_its_row_and_adds_nothing():
    critic, batch = critic_of(), records(7)
    null = torch.arange(7) == 2
    others = [part[~null] for part in batch]
    changed = [part.clone() for part in batch]
    changed[0][2] = math.nan  # whatever stands in its place
    result = sum_of(changed, critic=critic, null=null, physical_batch=3)
    assert torch.allclose(flat(result), flat(sum_of(others, critic=critic, physical_batch=3)), atol=1e-9)
    assert result.norms.isnan().tolist() == null.tolist()
    assert not torch.allclose(flat(result), flat(sum_of(batch, critic=critic)), atol=1e-3)  # negative control


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_record_that_is_not_finite_counts_as_zero_before_the_sum(bad):
    critic, batch = critic_of(), records(3)
    good = sum_of([part[:2] for part in batch], critic=critic)
    batch[0][2] = bad
    result = sum_of(batch, critic=critic)
    assert torch.allclose(flat(result), flat(good), atol=1e-7)
    assert not result.norms[2].isfinite()


def test_the_sum_equals_that_of_opacus():
    critic, batch = critic_of(), records(6)
    loss = CriticLoss(critic, "non-saturating", penalty=0.0, paired=True)
    gradients, _ = per_example_gradients(loss.of_record, dict(critic.named_parameters()), batch)
    theirs = DPOptimizer(
        torch.optim.SGD(critic.parameters(), 0.1), noise_multiplier=0.0, max_grad_norm=0.5, expected_batch_size=6
    )
    for name, weight in critic.named_parameters():
        weight.grad_sample = gradients[name]
    theirs.clip_and_accumulate()
    ours = sum_of(batch, critic=critic)
    assert (ours.norms > 0.5).all()  # every record is clipped, ours to C (1 - 1e-5)
    for name, weight in critic.named_parameters():
        assert torch.allclose(ours.sums[name].float() / (1 - 1e-5), weight.summed_grad, atol=1e-6)


# Memory --------------------------------------------------------------------------------------------------------------


def tiles_of(critic, *, most, paired=True):
    loss = CriticLoss(critic, "non-saturating", penalty=0.0, paired=paired)
    weights = dict(critic.named_parameters())
    return plan_of(0.5).tiles(loss.of_record, weights, records(1), num=10 * most, most=most)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("you can't allocate memory: 9 bytes")])
def test_the_rows_are_halved_until_they_fit_before_a_private_record_is_read(error, monkeypatch):
    critic, tried = critic_of(), []

    def tight(loss, weights, chunk, way):
        tried.append(len(chunk[0]))
        if tried[-1] > 5:
            raise error
        return record_gradients(loss, weights, chunk, way)

    monkeypatch.setattr(graphs, "record_gradients", tight)
    tiles = tiles_of(critic, most=40)
    assert tiles.chunk == tried[-1] == 4
    assert tiles.rows == len(tiles.kinds) >= 200  # about what is drawn of 400 at rate 0.5
    assert tried[:4] == [32, 16, 8, 4]


def test_where_memory_is_short_in_a_step_it_fails(monkeypatch):
    """Halving it then would let the content of a batch choose how the next records are computed."""

    def short(*_):
        raise torch.OutOfMemoryError("CUDA")

    monkeypatch.setattr(graphs, "record_gradients", short)
    with pytest.raises(torch.OutOfMemoryError):
        sum_of(records(3), critic=critic_of(), physical_batch=8)


def test_other_errors_and_a_single_record_too_many_are_passed_on(monkeypatch):
    for error in (RuntimeError("shape"), torch.OutOfMemoryError("no")):

        def failing(*_, error=error):
            raise error

        monkeypatch.setattr(graphs, "record_gradients", failing)
        with pytest.raises(RuntimeError, match=r"shape|no") as raised:
            tiles_of(critic_of(), most=8)
        assert raised.value is error


# Poisson sampling ----------------------------------------------------------------------------------------------------


def plan_of(sample_rate=0.1, clip_norm=1.0, divisor=7, noise_multiplier=1.0):
    return DPSGDPlan(sample_rate, clip_norm, divisor, noise_multiplier)


def test_every_record_has_its_own_coin_of_chance_q():
    num, rate, draws, noise = 200, 0.1, 400, Noise.fixed(1)
    plan = plan_of(rate)
    drawn = torch.zeros(draws, num)
    for row in drawn:
        row[plan.poisson_sample(num, noise)] = 1
    sizes, per_record = drawn.sum(1).numpy(), drawn.sum(0).numpy()
    law = binom(num, rate)
    assert abs(sizes.mean() - law.mean()) < 4 * law.std() / math.sqrt(draws)
    assert abs(sizes.std() / law.std() - 1) < 0.15  # 4 standard errors
    assert abs(torch.corrcoef(drawn[:, :2].T)[0, 1]) < 0.2
    assert per_record.min() > 10
    assert per_record.max() < 80
    # Must be rejected: batches of a fixed size have no spread, q off by a fifth another mean.
    fixed = torch.full((draws,), num * rate)
    assert not abs(fixed.std().item() / law.std() - 1) < 0.15
    assert not abs(sizes.mean() - binom(num, 1.2 * rate).mean()) < 4 * law.std() / math.sqrt(draws)


def test_sampling_edges():
    noise = Noise.fixed(0)
    assert plan_of(1.0).poisson_sample(5, noise).tolist() == [0, 1, 2, 3, 4]
    assert len(plan_of(1e-12).poisson_sample(5, noise)) == 0
    assert len(plan_of(0.5).poisson_sample(0, noise)) == 0


# The noisy step ------------------------------------------------------------------------------------------------------


def stepped(noise_multiplier, *, steps=20, learning_rate=0.3, clip_norm=2.0, divisor=7, seed=1, sums=0.0):
    """Return how far a weight moves by plain steps on a constant sum."""
    weights = {"one": torch.nn.Parameter(torch.zeros(200, 100)), "two": torch.nn.Parameter(torch.zeros(11))}
    plan, noise = plan_of(1.0, clip_norm, divisor, noise_multiplier), Noise.fixed(seed)
    optimizer = torch.optim.SGD(weights.values(), learning_rate)
    total = {k: torch.full_like(weight, round(sums / plan.step), dtype=torch.float64) for k, weight in weights.items()}
    for _ in range(steps):
        plan.noisy_step(optimizer, weights, total, noise)
    assert all(weight.grad is None for weight in weights.values())
    return torch.cat([weight.detach().flatten() for weight in weights.values()])


def test_the_noise_has_the_energy_that_is_charged_for():
    moved = stepped(1.5)
    expected = 20 * len(moved) * (0.3 * 1.5 * 2.0 / 7) ** 2
    spread = 4 * math.sqrt(2 / len(moved))  # relative, 4 standard errors of a chi-square
    assert abs(moved.square().sum().item() / expected - 1) < spread
    one = stepped(1.5, steps=1).double().numpy()
    std = 0.3 * 1.5 * 2.0 / 7
    assert kstest(one, norm(scale=std).cdf).pvalue > 1e-3
    # Must be rejected: 10 % off, C forgotten, divided by the square root, noise added once in 20 steps.
    for wrong in (0.9, 1.1, 1 / 2.0, math.sqrt(7)):
        assert kstest(one, norm(scale=wrong * std).cdf).pvalue < 1e-3
    for wrong in (0.81, 1.21, 1 / 20):
        assert abs(moved.square().sum().item() / (wrong * expected) - 1) > spread


def test_the_divisor_is_the_constant_whatever_was_drawn():
    assert torch.allclose(stepped(1e-9, steps=1, sums=14.0), torch.tensor(-0.3 * 14 / 7))


def test_noise_comes_from_our_source_alone():
    state = torch.get_rng_state()
    assert torch.equal(stepped(1.0), stepped(1.0))
    assert torch.equal(state, torch.get_rng_state())
    first, second = stepped(1.0, steps=1), stepped(1.0, steps=1, seed=2)
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 5 / math.sqrt(len(first))
    two = stepped(1.0, steps=2) - first  # successive draws differ
    assert abs(torch.corrcoef(torch.stack([first, two]))[0, 1]) < 5 / math.sqrt(len(first))


def test_a_step_takes_the_weights_that_the_sums_are_of():
    weights = {name: torch.nn.Parameter(torch.zeros(3)) for name in ("a", "b")}
    optimizer, sums = torch.optim.SGD(weights.values(), 1.0), {name: torch.ones(3) for name in ("a", "b")}
    others = (
        ({"a": weights["a"]}, {"a": sums["a"]}),  # "b" would step on an old gradient
        (weights, {"a": sums["a"]}),
        (weights, {"b": sums["b"], "a": sums["a"]}),
        ({name: torch.zeros(3) for name in weights}, sums),  # the optimizer holds others
    )
    for wrong in others:
        with pytest.raises(ValueError, match="must be the same"):
            plan_of().noisy_step(optimizer, *wrong, Noise.fixed(0))
    assert not any(weight.any() for weight in weights.values())
    plan_of().noisy_step(optimizer, weights, sums, Noise.fixed(0))
    assert all(weight.any() for weight in weights.values())


# The plan ------------------------------------------------------------------------------------------------------------


def test_the_event_is_that_of_what_the_plan_does():
    plan = DPSGDPlan(sample_rate=0.04, clip_norm=0.3, divisor=52, noise_multiplier=1.5)
    assert plan.event == Event("poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, 1.5, sample_rate=0.04, grid=2.0**-32)
    assert (plan.relation, plan.event.relation) == (Relation.ZERO_OUT, Relation.ZERO_OUT)
    assert dataclasses.replace(plan, unit=Unit.PERSON).event.unit is Unit.PERSON
    assert dataclasses.replace(plan, clip_norm=5.0, divisor=1).event == plan.event  # both leave sigma as it is


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_rate": 0.0}, "sample_rate = 0.0"),
        ({"sample_rate": 1.5}, "sample_rate = 1.5"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0"),
        ({"clip_norm": math.nan}, "clip_norm = nan"),
        ({"clip_norm": math.inf}, "clip_norm = inf"),
        ({"divisor": 0}, "divisor = 0"),
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier = nan"),
    ],
)
def test_a_plan_without_a_guarantee_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(plan_of(), **change)


def test_records_of_unequal_length_are_refused():
    weights, loss = {"w": torch.zeros(2)}, lambda weights, one, two: (weights["w"] * one * two).sum()
    for records_of, null in (([torch.ones(3, 2), torch.ones(2, 2)], None), ([torch.ones(3, 2)] * 2, torch.ones(2) > 0)):
        with pytest.raises(ValueError, match="must have B rows"):
            clipped(plan_of(), loss, weights, records_of, physical_batch=2, null=null)


# A linear classifier: a plain loss of (weights, image, label) ---------------------------------------------------------


def cross_entropy_of(model):
    def loss(weights, image, label):
        return torch.nn.functional.cross_entropy(functional_call(model, weights, (image,)), label)

    return loss


def trained_classifier(plan, images, labels, *, steps=60, seed=1):
    """Train by DP-SGD; return the classifier and what it cost."""
    model, noise = torch.nn.Linear(images.shape[1], 10), Noise.fixed(seed)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    weights, optimizer = dict(model.named_parameters()), torch.optim.SGD(model.parameters(), 2.0)
    ledger, loss = Ledger(plan.unit, plan.relation), cross_entropy_of(model)
    tiles = plan.tiles(loss, weights, [images[:1] * 0, labels[:1] * 0], num=len(images), most=64)
    for _ in range(steps):
        ledger.charge(plan.event)
        drawn = plan.sample(len(images), noise, tiles)
        result = plan.clipped_sum(loss, weights, (([images[i], labels[i]], i < 0) for i in drawn), tiles)
        plan.noisy_step(optimizer, weights, result.sums, noise)
    return model, ledger


def flat_digits():
    private = digits().private
    return to_float(private.images).flatten(1), private.labels


@pytest.mark.trained
def test_a_linear_classifier_learns_and_noise_limits_it():
    images, labels = flat_digits()
    test, truth = to_float(digits().test.images).flatten(1), digits().test.labels

    def accuracy(noise_multiplier):
        plan = DPSGDPlan(sample_rate=0.1, clip_norm=1.0, divisor=130, noise_multiplier=noise_multiplier)
        model, ledger = trained_classifier(plan, images, labels)
        assert ledger.events == (plan.event.repeated(60),)
        return (model(test).argmax(1) == truth).float().mean().item()

    assert accuracy(1.0) > 0.8
    assert accuracy(300.0) < 0.5  # negative control: it learns from the images, through the noise


def test_brute_force_sensitivity_of_the_classifier():
    """Whole data sets that differ in one record, added, zeroed out or drawn alone: the sum moves by at most C."""
    images, labels = (part[:12] for part in flat_digits())
    plan, model = plan_of(clip_norm=0.25), torch.nn.Linear(64, 10)
    weights = dict(model.named_parameters())

    def total(rows, extreme=None, null=None):
        own = [images[rows], labels[rows]]
        if extreme is not None:
            own = [torch.cat([own[0], extreme[0][None]]), torch.cat([own[1], extreme[1][None]])]
        result = clipped(plan, cross_entropy_of(model), weights, own, physical_batch=5, null=null)
        return torch.cat([part.flatten() for part in result.sums.values()])

    extremes = [(torch.full((64,), value), torch.tensor(label)) for value in (-1.0, 1e3, math.nan) for label in (0, 9)]
    moved = []
    for rows in (torch.arange(12), torch.arange(5), torch.arange(0)):
        null = torch.arange(len(rows) + 1) == len(rows)
        for extreme in extremes:
            added, without = total(rows, extreme), total(rows)
            assert torch.allclose(total(rows, extreme, null), without, atol=1e-9)
            moved.append((added - without).norm().item())
    assert max(moved) <= 0.25
    assert max(moved) > 0.249  # the bound is reached
    free = [
        torch.autograd.grad(cross_entropy_of(model)(weights, *extreme), list(weights.values())) for extreme in extremes
    ]
    assert max(sum(part.square().sum() for part in parts).sqrt().item() for parts in free[:4]) > 10  # without the clip


# The sum for a linear layer -------------------------------------------------------------------------------------------


def outer_sum(plan, residuals, features, **options):
    """Return the sum in the unit of the gradient, and the norms."""
    total, norms = plan.clipped_outer_sum(residuals, plan.features(features), **options)
    assert (total == total.trunc()).all()
    return total * plan.step, norms


def outer_pair(num, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(num, 3, generator=rng), torch.randn(num, 5, generator=rng) * 10 ** torch.randn(
        num, 1, generator=rng
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_outer_sum_is_the_sum_of_clipped_outer_products_and_moves_by_at_most_the_clip_norm(seed):
    residuals, features = outer_pair(9, seed)
    plan = DPSGDPlan(0.5, 0.7, 4, 1.0)
    total, norms = outer_sum(plan, residuals, features)
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for left, right, norm_ in zip(residuals.double(), features.double(), norms, strict=True):
        one = torch.outer(left, right)
        assert float(one.norm()) == pytest.approx(float(norm_), rel=1e-4)
        expected += one * min(1.0, 0.7 / float(one.norm()))
    assert torch.allclose(total, expected, atol=2e-4)
    for position in range(9):
        null = torch.arange(9) == position
        without, _ = outer_sum(plan, residuals, features, null=null)
        assert 0 < float((total - without).norm()) <= 0.7
    parts = plan.clipped_outer_sum(residuals[:4], plan.features(features[:4]))[0]
    parts, _ = plan.clipped_outer_sum(residuals[4:], plan.features(features[4:]), total=parts)
    assert torch.equal(parts * plan.step, total)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_an_outer_product_that_is_not_finite_counts_as_zero(bad):
    residuals, features = outer_pair(4, 0)
    plan = DPSGDPlan(0.5, 0.7, 4, 1.0)
    without, _ = outer_sum(plan, residuals[1:], features[1:])
    for tensor in (residuals, features):
        broken = [part.clone() if part is tensor else part for part in (residuals, features)]
        next(part for part, old in zip(broken, (residuals, features), strict=True) if old is tensor)[0, 0] = bad
        found, norms = outer_sum(plan, *broken)
        assert torch.equal(found, without)
        assert norms.isfinite().tolist() == [False, True, True, True]


def test_an_outer_sum_of_nobody_is_zero():
    plan = DPSGDPlan(0.5, 0.7, 4, 1.0)
    total, norms = outer_sum(plan, torch.zeros(0, 3), torch.zeros(0, 5))
    assert (float(total.abs().sum()), norms.shape) == (0.0, (0,))
    total, _ = outer_sum(plan, torch.zeros(2, 3), torch.ones(2, 5))
    assert float(total.abs().sum()) == 0
    total, norms = outer_sum(plan, torch.ones(2, 3), torch.zeros(2, 5))
    assert float(total.abs().sum() + norms.sum()) == pytest.approx(0)
