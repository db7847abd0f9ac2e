"""The steps by Opacus: sums as ours, sensitivity in float32 too, noise from our source, nothing left behind."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.optimizers import DPOptimizer
from scipy.stats import kstest, norm
from torch import nn
from torch.func import functional_call

from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.models.private_classifier import GroupNormCnn
from idpgan.privacy import DPSGDPlan, Noise
from idpgan.privacy.captured_gradients import Batch
from idpgan.privacy.dpsgd import SLACK
from idpgan.privacy.opacus_steps import OpacusSteps, four_draws, objections
from idpgan.synthesis.critic_loss import CriticLoss
from tests.privacy.clipped import clipped


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Row(nn.Module):
    """A network whose gradient is the record, or any that a test wants."""

    def __init__(self, num):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num))

    def forward(self, records):
        return (records * self.weight).sum(1)


def steps_of(network, *, physical_batch=64, **options):
    """The steps, and a list of the gradients that the optimizer has seen."""
    optimizer, seen = torch.optim.SGD(network.parameters(), 0.0), []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append({name: weight.grad.clone() for name, weight in network.named_parameters()})
    )
    return OpacusSteps(network, optimizer, physical_batch=physical_batch, **options), seen


def slack_of(physical_batch):
    return SLACK + 2.01 * physical_batch**2 * 2.0**-24


def sum_of(network, loss, records, *, clip_norm, null=None, physical_batch=64):
    """The clipped sum without noise to speak of, by weight, and the norms."""
    steps, seen = steps_of(network, physical_batch=physical_batch)
    plan = DPSGDPlan(0.5, clip_norm, 1, 1e-30)
    ((_, norms),) = steps.step(plan, Noise.fixed(0), Batch(loss, records, null))
    return seen[0], norms


def of_gradients(gradients, clip_norm, null=None, physical_batch=64):
    loss = lambda network, records: network(records)  # noqa: E731
    network = Row(gradients.shape[1])
    return sum_of(network, loss, [gradients], clip_norm=clip_norm, null=null, physical_batch=physical_batch)


def flat(sums):
    return torch.cat([part.flatten() for part in sums.values()]).double()


# The sum is that of our engine ---------------------------------------------------------------------------------------

LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "linear on rows": (lambda: nn.Linear(6, 5), (7, 6)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 8, 8)),
    "stride, groups": (lambda: nn.Conv2d(4, 6, 4, stride=2, padding=1, groups=2), (4, 8, 8)),
    "dilation": (lambda: nn.Conv2d(2, 3, 3, dilation=2, bias=False), (2, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 4, stride=2, padding=1), (2, 5, 5)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 1)), (4, 6, 6)),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm([3, 5]), nn.Tanh(), nn.Linear(5, 2)), (3, 5)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (3, 6, 6)),
    "network": (lambda: nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 1)),
                (1, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("physical_batch", [3, 64])
def test_the_clipped_sum_is_that_of_our_engine_on_every_layer(layer, physical_batch):
    make, shape = layer
    torch.manual_seed(0)
    network, records = make(), [5 * drawn(8, *shape, seed=3)]
    total = lambda outputs: outputs.flatten(1).tanh().sum(1)  # noqa: E731
    weights = dict(network.named_parameters())
    ours_of = lambda weights, record: total(functional_call(network, dict(weights), (record[None],)))[0]  # noqa: E731
    free = clipped(DPSGDPlan(0.5, 1e6, 1, 1.0), ours_of, weights, records, physical_batch=64)
    clip_norm = float(free.norms.median())  # some are clipped, some are not
    ours = clipped(DPSGDPlan(0.5, clip_norm / (1 - SLACK), 1, 1.0), ours_of, weights, records, physical_batch=64)
    theirs, norms = sum_of(
        network,
        lambda module, records: total(module(records)),
        records,
        clip_norm=clip_norm / (1 - slack_of(physical_batch)),
        physical_batch=physical_batch,
    )
    assert torch.allclose(norms, ours.norms, rtol=1e-5)
    assert (ours.norms > clip_norm).any()
    assert (flat(theirs) - flat(ours.sums)).norm() < 1e-5 * flat(ours.sums).norm()
    assert (flat(theirs) - flat(free.sums)).norm() > 1e-3 * flat(ours.sums).norm()  # negative control


LOSSES = {
    "pairs": {"paired": True},
    "alone": {"paired": False},
    "pairs, wrong classes": {"paired": True, "mismatch": 0.5},
    "hinge": {"paired": True, "kind": "hinge"},
}


@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES.keys())
def test_the_clipped_sum_of_a_conditional_critic_is_that_of_our_engine(options):
    critic = Critic(ModelConfig(width=4), (1, 8, 8), 10)
    loss = CriticLoss(critic, **{"kind": "non-saturating", "penalty": 0.0} | options)
    real, fake, labels = 3 * drawn(6, 1, 8, 8), 3 * drawn(6, 1, 8, 8, seed=1), torch.arange(6)
    records = [real, labels, fake, torch.zeros(6), (labels + 3) % 10]
    weights = dict(critic.named_parameters())
    ours = clipped(DPSGDPlan(0.5, 0.5 / (1 - SLACK), 1, 1.0), loss.of_record, weights, records, physical_batch=64)
    theirs, norms = sum_of(critic, loss.of_records, records, clip_norm=0.5 / (1 - slack_of(64)))
    assert (norms > 0.5).sum() >= 4
    assert torch.allclose(norms, ours.norms, rtol=1e-5)
    assert (flat(theirs) - flat(ours.sums)).norm() < 1e-5 * flat(ours.sums).norm()


def test_the_clipped_sum_of_the_classifier_is_that_of_our_engine():
    network = GroupNormCnn((1, 8, 8), ("a", "b", "c"), width=4, seed=0)
    records = [drawn(7, 1, 8, 8), torch.arange(7) % 3]
    cross = nn.functional.cross_entropy

    def of_record(weights, image, label):
        return cross(functional_call(network, dict(weights), (image[None],)), label[None])

    plan = DPSGDPlan(0.5, 0.5 / (1 - SLACK), 1, 1.0)
    ours = clipped(plan, of_record, dict(network.named_parameters()), records, physical_batch=64)
    theirs, _ = sum_of(
        network,
        lambda module, images, labels: cross(module(images), labels, reduction="none"),
        records,
        clip_norm=0.5 / (1 - slack_of(64)),
    )
    assert (flat(theirs) - flat(ours.sums)).norm() < 1e-5 * flat(ours.sums).norm()


# Sensitivity ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(0, 6), st.floats(1e-3, 20), st.integers(0, 99), st.sampled_from([1, 3, 128]))
def test_a_null_record_moves_the_sum_by_at_most_the_clip_norm(others, clip_norm, seed, physical_batch):
    gradients = drawn(others + 1, 40, seed=seed) * 10 ** drawn(others + 1, 1, seed=seed + 1)
    null = torch.arange(others + 1) == seed % (others + 1)
    sums = [flat(of_gradients(gradients, clip_norm, mask, physical_batch)[0]) for mask in (None, null)]
    assert (sums[0] - sums[1]).norm() <= clip_norm
    reached = min(clip_norm, float(gradients[null].double().norm()))
    assert (sums[0] - sums[1]).norm() > 0.99 * reached - 1e-5 * float(sums[0].norm())  # and the bound is nearly reached


def test_rounding_in_float32_never_carries_a_row_beyond_the_clip_norm():
    """One large number, and many whose squares float32 loses beside its square; as Opacus comes, it overshoots."""
    hard = torch.full((1, 1 << 18), 2.0**-12)
    hard[:, :64] = 1.0
    overshoot = []
    for clip_norm in (0.01, 0.1, 1 / 3, 1.0):
        assert 0.999 * clip_norm < flat(of_gradients(hard, clip_norm)[0]).norm() <= clip_norm
        row = Row(hard.shape[1])
        plain = DPOptimizer(
            torch.optim.SGD(row.parameters(), 0.0), noise_multiplier=0.0, max_grad_norm=clip_norm, expected_batch_size=1
        )
        row.weight.grad_sample = hard.clone()
        plain.clip_and_accumulate()
        overshoot.append(row.weight.summed_grad.double().norm().item() / clip_norm - 1)
    assert max(overshoot) > 1e-6


def test_rounding_of_a_long_sum_stays_within_the_slack():
    one = drawn(1, 5_000, seed=5)
    many = torch.cat([one.repeat(255, 1) + 0.01 * drawn(255, 5_000, seed=6), -one])
    null = torch.arange(256) == 255
    for physical_batch in (7, 128):
        sums = [flat(of_gradients(many, 1.0, mask, physical_batch)[0]) for mask in (None, null)]
        assert (sums[0] - sums[1]).norm() <= 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_record_that_is_not_finite_or_far_too_long_counts_as_zero_before_the_sum(bad):
    gradients = drawn(5, 40)
    good, _ = of_gradients(gradients, 0.5, torch.arange(5) == 2)
    gradients[2] = bad
    found, norms = of_gradients(gradients, 0.5)
    assert torch.equal(flat(found), flat(good))
    assert norms.isfinite().tolist() == [True, True, False, True, True]
    # Opacus by itself: one such record is NaN in every weight.
    row = Row(40)
    plain = DPOptimizer(
        torch.optim.SGD(row.parameters(), 0.0), noise_multiplier=0.0, max_grad_norm=0.5, expected_batch_size=1
    )
    row.weight.grad_sample = gradients
    plain.clip_and_accumulate()
    assert bool(row.weight.summed_grad.isnan().all()) == (not math.isfinite(bad))


def test_an_empty_batch_is_a_step_of_noise_alone():
    found, norms = of_gradients(torch.zeros(0, 40), 0.5)
    assert norms.shape == (0,)
    assert flat(found).norm() < 1e-25
    steps, seen = steps_of(Row(40))
    loss = lambda network, records: network(records)  # noqa: E731
    steps.step(DPSGDPlan(0.5, 1.0, 7, 2.0), Noise.fixed(3), Batch(loss, [torch.zeros(0, 40)]))
    assert torch.allclose(flat(seen[0]), Noise.fixed(3).normal((40,)) * 2.0 / 7, atol=1e-7)


def test_chunks_change_the_sum_by_their_slack_alone():
    gradients = drawn(11, 30)
    whole = flat(of_gradients(gradients, 0.5, physical_batch=64)[0]) / (1 - slack_of(64))
    for physical_batch in (1, 4):
        parts = flat(of_gradients(gradients, 0.5, physical_batch=physical_batch)[0]) / (1 - slack_of(physical_batch))
        assert torch.allclose(whole, parts, atol=1e-6)


def test_public_records_get_no_noise_of_their_own():
    """Two batches, one sum, one draw: what is added beside the private records moves the gradient by its own sum."""
    loss = lambda network, records: network(records)  # noqa: E731
    private, public = Batch(loss, [drawn(5, 30)]), Batch(loss, [drawn(3, 30, seed=1)])
    gradients = []
    for batches in ([private], [private, public], [public]):
        steps, seen = steps_of(Row(30))
        result = steps.step(DPSGDPlan(0.5, 1.0, 1, 2.0), Noise.fixed(3), *batches)
        assert [len(losses) for losses, _ in result] == [len(batch.records[0]) for batch in batches]
        gradients.append(flat(seen[0]))
    noise = Noise.fixed(3).normal((30,)) * 2.0
    assert torch.allclose(gradients[0] + gradients[2] - gradients[1], noise, atol=1e-5)


# Noise ---------------------------------------------------------------------------------------------------------------


def noise_of(secure_mode, seed=1):
    steps, seen = steps_of(Row(20_011), secure_mode=secure_mode)
    loss = lambda network, records: network(records)  # noqa: E731
    for _ in range(2):
        steps.step(DPSGDPlan(0.5, 2.0, 7, 1.5), Noise.fixed(seed), Batch(loss, [torch.zeros(0, 20_011)]))
    return flat(seen[0]).numpy()


@pytest.mark.parametrize("secure_mode", [False, True])
def test_the_noise_has_the_law_that_is_charged_for(secure_mode):
    state, std = torch.get_rng_state(), 1.5 * 2.0 / 7
    found = noise_of(secure_mode)
    assert torch.equal(state, torch.get_rng_state())  # it comes from our source alone
    assert kstest(found, norm(scale=std).cdf).pvalue > 1e-3
    for wrong in (0.9, 1.1, 2.0, 0.5):  # must be rejected: a mean of four, a sum of four among them
        assert kstest(found, norm(scale=wrong * std).cdf).pvalue < 1e-4
    assert abs(torch.corrcoef(torch.from_numpy(found).view(-1)[:20_000].view(2, -1))[0, 1]) < 0.05
    assert not (found == noise_of(secure_mode, seed=2)).any()


def test_secure_mode_is_half_the_sum_of_four():
    assert torch.equal(four_draws(Noise.fixed(1), (3,)), Noise.fixed(1).normal((4, 3)).sum(0) / 2)


# What is left behind, and what is refused ----------------------------------------------------------------------------


def test_a_step_leaves_no_gradient_and_its_hooks_sleep_between_steps():
    critic = Critic(ModelConfig(width=4, conditional=False), (1, 8, 8), 0)
    steps, _ = steps_of(critic)
    plan, loss = DPSGDPlan(0.5, 1.0, 1, 1.0), lambda network, images: network(images)
    images = drawn(5, 1, 8, 8).requires_grad_()
    for _ in range(2):
        steps.step(plan, Noise.fixed(0), Batch(loss, [images.detach()]))
        assert all(weight.grad is None and weight.grad_sample is None for weight in critic.parameters())
        critic(images).sum().backward(inputs=[images])  # as a generator's step differentiates through the critic
        assert all(weight.grad is None and weight.grad_sample is None for weight in critic.parameters())


def test_after_a_step_that_failed_half_way_nothing_is_released():
    network = Row(30)
    steps, seen = steps_of(network, physical_batch=2)
    calls = []

    def failing(network, records):
        calls.append(len(records))
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return network(records)

    batch = Batch(failing, [drawn(5, 30)])
    with pytest.raises(RuntimeError, match="out of memory"):
        steps.step(DPSGDPlan(0.5, 1.0, 1, 1.0), Noise.fixed(0), batch)
    with pytest.raises(RuntimeError, match="an earlier step failed"):
        steps.step(DPSGDPlan(0.5, 1.0, 1, 1.0), Noise.fixed(0), batch)
    assert seen == []


def test_what_opacus_refuses_is_said_in_its_words():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    assert any("BatchNorm" in words for words in objections(network))
    assert not network.training
    assert objections(nn.Linear(2, 2).eval()) == []  # how it is used now is no objection
    with pytest.raises(ConfigError, match=r"Opacus refuses the network: .*BatchNorm.*method\.engine = \"idpgan\""):
        OpacusSteps(network, torch.optim.SGD(network.parameters(), 1.0), physical_batch=1)


def test_a_loss_that_is_not_one_number_a_record_is_refused():
    steps, _ = steps_of(Row(30))
    with pytest.raises(ValueError, match=r"5 records have losses of shape \(\)"):
        steps.step(
            DPSGDPlan(0.5, 1.0, 1, 1.0),
            Noise.fixed(0),
            Batch(lambda network, rows: network(rows).mean(), [drawn(5, 30)]),
        )
