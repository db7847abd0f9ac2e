"""Gradients per record, the clipped sum and its sensitivity, the coins, and the noise of the optimizer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.optimizers import DPOptimizer
from scipy.stats import binom, kstest, norm

from idpgan.models.config import ModelConfig
from idpgan.models.critic import Critic
from idpgan.models.losses import critic_wasserstein, gradient_penalty, interpolate
from idpgan.privacy import Noise
from idpgan.synthesis.dp_gan.noisy_optimizer import NoisyOptimizer
from idpgan.synthesis.dp_gan.per_example import (
    CriticLoss,
    clipped_sum,
    halving_on_out_of_memory,
    per_example_gradients,
    poisson_sample,
)

KINDS = ["non-saturating", "wgan-gp"]


def records(num, seed=0, classes=10):
    rng = torch.Generator().manual_seed(seed)
    real, fake = torch.rand(2, num, 1, 8, 8, generator=rng) * 2 - 1
    labels = torch.randint(classes, (num,), generator=rng)
    return real, labels, fake, torch.rand(num, generator=rng), (labels + 3) % classes


def critic_of(conditional=True, width=4):
    return Critic(ModelConfig(width=width, conditional=conditional), (1, 8, 8), 10)


def plain_loss(critic, kind, paired, mismatch, real, label, fake, alpha, wrong):
    """The loss of records written once more, with autograd and not with functorch."""
    labels = label if critic.num_classes else None
    at_real, at_fake = critic(real, labels), critic(fake, labels)
    at_wrong = critic(real, wrong if critic.num_classes else None)
    if kind == "non-saturating":
        loss = torch.nn.functional.softplus(-at_real).sum()
        loss = loss + mismatch * torch.nn.functional.softplus(at_wrong).sum()
        return loss + torch.nn.functional.softplus(at_fake).sum() * paired
    penalty = gradient_penalty(lambda images: critic(images, labels), interpolate(real, fake, alpha))
    wasserstein = critic_wasserstein(at_real, at_fake) * len(real) if paired else -at_real.sum()
    return wasserstein + 10 * penalty.sum() + mismatch * at_wrong.sum()


@pytest.mark.parametrize("num", [0, 1, 5])
@pytest.mark.parametrize(("conditional", "mismatch"), [(True, 0.0), (True, 0.5), (False, 0.0)])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_a_loop_over_batches_of_one(kind, paired, conditional, mismatch, num):
    critic, batch = critic_of(conditional), records(num)
    loss = CriticLoss(critic, kind, penalty=10.0, paired=paired, mismatch=mismatch)
    gradients, losses = per_example_gradients(loss.of_record, dict(critic.named_parameters()), batch)
    assert losses.shape == (num,)
    for i in range(num):
        value = plain_loss(critic, kind, paired, mismatch, *(part[i : i + 1] for part in batch))
        expected = torch.autograd.grad(value, list(critic.parameters()), allow_unused=True)
        assert losses[i].item() == pytest.approx(value.item(), abs=1e-5)
        for (name, weight), wanted in zip(critic.named_parameters(), expected, strict=True):
            wanted = torch.zeros_like(weight) if wanted is None else wanted
            assert torch.allclose(gradients[name][i], wanted, rtol=1e-5, atol=1e-5)
    assert all(gradients[name].shape == (num, *weight.shape) for name, weight in critic.named_parameters())
    if num > 1:  # negative control: the gradient of another record is not it
        assert not torch.allclose(gradients["head.weight"][0], gradients["head.weight"][1], rtol=1e-2, atol=1e-2)


def test_gradients_leave_nothing_on_the_critic():
    critic = critic_of()
    loss = CriticLoss(critic, "wgan-gp", penalty=10.0, paired=True)
    before = [weight.clone() for weight in critic.parameters()]
    per_example_gradients(loss.of_record, dict(critic.named_parameters()), records(3))
    assert all(map(torch.equal, before, critic.parameters()))
    assert all(weight.grad is None and not hasattr(weight, "grad_sample") for weight in critic.parameters())


# The clipped sum -----------------------------------------------------------------------------------------------------


def sum_of(batch, *, critic, kind="non-saturating", clip_norm=0.5, physical_batch=64, paired=True, null=None):
    loss = CriticLoss(critic, kind, penalty=10.0, paired=paired)
    weights = dict(critic.named_parameters())
    return clipped_sum(loss.of_record, weights, batch, clip_norm=clip_norm, physical_batch=physical_batch, null=null)


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
    return clipped_sum(loss, weights, [gradients], clip_norm=clip_norm, physical_batch=100, null=null).sums["w"]


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


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("you can't allocate memory: 9 bytes")])
def test_the_batch_is_halved_until_it_fits(error):
    tried = []

    def compute(physical_batch):
        tried.append(physical_batch)
        if physical_batch > 5:
            raise error
        return "done"

    assert halving_on_out_of_memory(compute, 40) == ("done", 5)
    assert tried == [40, 20, 10, 5]


def test_other_errors_and_a_single_record_too_many_are_passed_on():
    def failing(error):
        def compute(_):
            raise error

        return compute

    with pytest.raises(RuntimeError, match="shape"):
        halving_on_out_of_memory(failing(RuntimeError("shape")), 8)
    with pytest.raises(torch.OutOfMemoryError):
        halving_on_out_of_memory(failing(torch.OutOfMemoryError("no")), 8)


# Poisson sampling ----------------------------------------------------------------------------------------------------


def test_every_record_has_its_own_coin_of_chance_q():
    num, rate, draws, noise = 200, 0.1, 400, Noise.fixed(1)
    drawn = torch.zeros(draws, num)
    for row in drawn:
        row[poisson_sample(num, rate, noise)] = 1
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
    assert poisson_sample(5, 1.0, noise).tolist() == [0, 1, 2, 3, 4]
    assert len(poisson_sample(5, 1e-12, noise)) == 0
    assert len(poisson_sample(0, 0.5, noise)) == 0


# The optimizer -------------------------------------------------------------------------------------------------------


def stepped(noise_multiplier, *, steps=20, learning_rate=0.3, clip_norm=2.0, divisor=7, seed=1, sums=0.0):
    """Return how far a weight moves by plain steps on a constant sum."""
    weights = [torch.nn.Parameter(torch.zeros(200, 100)), torch.nn.Parameter(torch.zeros(11))]
    optimizer = NoisyOptimizer(
        torch.optim.SGD(weights, learning_rate),
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        divisor=divisor,
        noise=Noise.fixed(seed),
    )
    for _ in range(steps):
        optimizer.noisy_step([torch.full_like(weight, sums) for weight in weights])
    assert all(weight.grad is weight.grad_sample is weight.summed_grad is None for weight in weights)
    return torch.cat([weight.detach().flatten() for weight in weights])


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
