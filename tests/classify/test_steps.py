"""What a step of a private classifier reads, adds and charges."""

import dataclasses
import math

import pytest
import torch

from idpgan.audit.entry import RunFacts
from idpgan.classify.dp_sgd import AUDIT
from idpgan.data.images import Images
from idpgan.data.load import Split, known_shape
from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.privacy import DPSGDPlan, Ledger, Noise, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run
from tests.classify.conftest import SMALL, config_of
from tests.privacy.clipped import clipped

NAMES = sorted(SMALL)
CLASSES = ("a", "b", "c")


def split_of(num=12, seed=0, labels=True):
    """Random private images of three classes; nothing else."""
    rng = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (num, 1, 8, 8), generator=rng, dtype=torch.uint8)
    images = Images(pixels, torch.arange(num) % 3, CLASSES) if labels else Images(pixels)
    nobody = images.select(torch.arange(0))
    return Split(nobody, images, nobody, nobody)


def method_of(name, split, seed=1, **sections):
    config = config_of(name, **{"privacy": {"epsilon": 1e6, "delta": 1e-3, "noise_multiplier": 1.0}} | sections)
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    return load_method(name).Method.of(
        config, split, ledger=ledger, device=torch.device("cpu"), noise=Noise.fixed(seed)
    )


def sums_of(method, monkeypatch, steps=1):
    """The sums of each step as they are before the noise, in the unit of the gradient, (steps, weights)."""
    seen, plan = [], type(method.dpsgd)
    noisy_step = plan.noisy_step

    def watched(self, optimizer, weights, sums, noise):
        seen.append(torch.cat([part.flatten() for part in sums.values()]) * self.step)
        noisy_step(self, optimizer, weights, sums, noise)

    with monkeypatch.context() as patch:
        patch.setattr(plan, "noisy_step", watched)
        for step in range(1, steps + 1):
            method.step(step)
    return torch.stack(seen)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clip_norm", [1e-3, 0.2])
def test_a_null_record_moves_the_sum_by_at_most_the_clip_norm(name, clip_norm, monkeypatch):
    split, section = split_of(), {"method": {"clip_norm": clip_norm}, "training": {"batch_size": 12}}
    whole = sums_of(method_of(name, split, **section), monkeypatch)[0]
    moved = []
    for position in range(12):
        private = split.private.zeroed_out(torch.tensor([position]))
        without = sums_of(method_of(name, dataclasses.replace(split, private=private), **section), monkeypatch)[0]
        moved.append(float((whole - without).norm()))
    assert max(moved) <= clip_norm
    if clip_norm == 1e-3:  # every gradient is longer, and the bound is reached
        assert min(moved) > 0.999 * clip_norm


@pytest.mark.parametrize("name", NAMES)
def test_null_records_alone_add_nothing(name, monkeypatch):
    split = split_of()
    split = dataclasses.replace(split, private=split.private.zeroed_out(torch.arange(12)))
    assert float(sums_of(method_of(name, split, training={"batch_size": 12}), monkeypatch).abs().max()) == 0


def test_the_linear_sum_is_that_of_gradients_taken_record_by_record(monkeypatch):
    split = split_of()
    method = method_of("scattering-linear", split)
    sums = sums_of(method, monkeypatch, steps=3)[2].view(3, -1)
    again = method_of("scattering-linear", split)
    again.step(1), again.step(2)
    features = again._features()
    features = (features.whole * features.unit[:, None]).float()[: len(split.private)]
    plan, weights = again.dpsgd, {"weight": again.newest.weight}

    def loss(weights, row, label):
        return torch.nn.functional.cross_entropy((weights["weight"] @ row)[None], label[None])

    expected = clipped(plan, loss, weights, (features, split.private.labels), physical_batch=5).sums["weight"]
    assert torch.allclose(sums, expected, atol=1e-4)  # features are rounded toward zero
    assert float(sums.norm()) > 0.1


def test_features_have_norm_one_with_their_constant():
    method = method_of("scattering-linear", split_of())
    features = method._features()[:12]
    norms = features.whole.double().norm(dim=1)
    assert (norms <= 2**17).all()
    assert torch.allclose(norms * features.unit, torch.ones(12).double(), atol=1e-3)  # rounded toward zero
    assert torch.equal(features.whole[:, -1], features.whole[0, -1].expand(12))
    assert float(method.newest.features(torch.zeros(1, 1, 8, 8)).norm()) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_going_on_from_a_state_is_the_same_bit_for_bit(name):
    whole, first = method_of(name, split_of()), method_of(name, split_of())
    for step in range(1, 7):
        whole.step(step)
    for step in range(1, 4):
        first.step(step)
    second = method_of(name, split_of(), seed=2)
    second.load_state(first.state())
    for step in range(4, 7):
        second.step(step)
    for kind in ("product", "newest"):
        wanted, found = (getattr(method, kind).state_dict() for method in (whole, second))
        assert all(torch.equal(wanted[key], found[key]) for key in wanted)
    other = method_of(name, split_of(), seed=2)
    for step in range(1, 7):
        other.step(step)
    key = next(iter(wanted))
    assert not torch.equal(other.product.state_dict()[key], whole.product.state_dict()[key])  # the comparison can fail


@pytest.mark.parametrize("name", NAMES)
def test_a_run_plans_what_it_may_spend(name):
    config = config_of(name)
    events = plan_run(config, known_shape(config.data)).events
    assert 2.99 < compose_epsilon(events, 1e-5) <= 3.0
    assert (events[0].count, str(events[0].relation)) == (6, "zero-out-one")
    rate = events[0].sample_rate
    assert rate == (1.0 if name == "scattering-linear" else 60 / known_shape(config.data).num_private)


def test_all_images_in_every_step_are_one_gaussian_mechanism():
    config = config_of("scattering-linear", privacy={"noise_multiplier": 20.0})
    event = plan_run(config, known_shape(config.data)).events[0]
    gaussian = dataclasses.replace(event, kind="gaussian", sample_rate=None, grid=None)
    assert compose_epsilon([event], 1e-5) == compose_epsilon([gaussian], 1e-5)


def test_the_learning_rate_follows_from_what_the_noise_adds_up_to():
    config = config_of("scattering-linear", training={"steps": 80})
    plan = plan_run(config, known_shape(config.data))
    dpsgd = plan.dpsgd
    walk = plan.learning_rate * dpsgd.noise_multiplier * dpsgd.clip_norm * math.sqrt(80) / (0.1 * dpsgd.divisor)
    assert walk == pytest.approx(2.0)
    given = config_of("scattering-linear", method={"learning_rate": 7.0})
    assert plan_run(given, known_shape(given.data)).learning_rate == 7.0


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_trained_is_refused_in_one_line(name):
    split = split_of(labels=False)
    with pytest.raises(ConfigError, match="at least 2 classes"):
        method_of(name, split)
    tiny = Images(torch.zeros(12, 1, 7, 7, dtype=torch.uint8), torch.arange(12) % 3, CLASSES)
    with pytest.raises(ConfigError, match="sides of 8 to 512 pixels"):
        method_of(name, dataclasses.replace(split_of(), private=tiny))
    with pytest.raises(ConfigError, match=r"Leave \[model\] out"):
        method_of(name, split_of(), model=ModelConfig(width=4).model_dump())
    with pytest.raises(ConfigError, match=r"'privacy\.delta' .* has no default"):
        build_config({"method": {"name": name}, "privacy": {"epsilon": 1.0}}, "the test")


def test_a_share_without_a_record_adds_nothing(monkeypatch):
    method = method_of("scattering-linear", split_of())
    assert method.dpsgd.sample_rate == 1
    nobody = torch.zeros(0, dtype=torch.int64)  # more ranks than images
    monkeypatch.setattr(type(method.dpsgd), "poisson_sample", lambda plan, num, noise: nobody)
    assert sums_of(method, monkeypatch).abs().max() == 0


# Steps by Opacus -----------------------------------------------------------------------------------------------------


@pytest.fixture
def noise_of_opacus(monkeypatch):
    """Our steps take the noise that Opacus' take, rounded to the grid."""

    def rounded(plan, count, noise):
        return (noise.normal((count,)) * (plan.noise_multiplier / plan.grid)).round().long()

    monkeypatch.setattr(DPSGDPlan, "grid_noise", rounded)


def opacus_of(split, seed=1, **method):
    return method_of("dp-sgd", split, seed, method={"width": 4, **method}, training={"batch_size": 12})


@pytest.mark.parametrize("clip_norm", [1e-2, 0.2])
def test_by_opacus_a_null_record_moves_the_noisy_sum_by_at_most_the_clip_norm(clip_norm, noise_of_opacus):
    """The same noise on both sides: what differs is the sum."""
    split = split_of()

    def gradient(private, engine="opacus"):
        method = opacus_of(dataclasses.replace(split, private=private), engine=engine, clip_norm=clip_norm)
        seen = []
        method.optimizer.register_step_pre_hook(
            lambda *_: seen.append(torch.cat([w.grad.double().flatten() for w in method.newest.parameters()]))
        )
        method.step(1)
        return 12 * seen[0]

    whole = gradient(split.private)
    assert torch.allclose(whole, gradient(split.private, "idpgan"), atol=1e-2 * clip_norm)
    for position in (0, 5, 11):
        without = gradient(split.private.zeroed_out(torch.tensor([position])))
        assert 0.9 * clip_norm < float((whole - without).norm()) <= clip_norm * (1 + 1e-6)


def test_both_engines_train_the_same_classifier_with_the_same_noise(noise_of_opacus):
    ours, theirs, other = opacus_of(split_of()), opacus_of(split_of(), engine="opacus"), opacus_of(split_of(), seed=2)
    for method in (ours, theirs, other):
        for step in range(1, 5):
            method.step(step)
    found = [torch.cat([w.flatten() for w in method.product.parameters()]) for method in (ours, theirs, other)]
    assert (found[0] - found[1]).norm() < 1e-2 * (found[0] - found[2]).norm()
    assert theirs.state()["noise"] == ours.state()["noise"]  # as many numbers were drawn


def test_by_opacus_going_on_from_a_state_is_the_same_bit_for_bit():
    whole, first, second = (opacus_of(split_of(), seed, engine="opacus") for seed in (1, 1, 2))
    for step in range(1, 7):
        whole.step(step)
    for step in range(1, 4):
        first.step(step)
    second.load_state(first.state())
    for step in range(4, 7):
        second.step(step)
    wanted, found = whole.product.state_dict(), second.product.state_dict()
    assert all(torch.equal(wanted[key], found[key]) for key in wanted)


def test_a_run_by_opacus_is_audited_through_its_own_steps(monkeypatch):
    """Canaries go through the engine of the run: the law holds, and a mistake in it alone is seen."""
    from idpgan.privacy import opacus_steps

    config = config_of("dp-sgd", method={"engine": "opacus"}, training={"batch_size": 400, "steps": 2})
    facts = RunFacts((1, 8, 8), 10, 1295, 1e-5, None, None)
    assert AUDIT.of_run(config, facts).run(400, seed=1).violation is False
    begin, calls = opacus_steps._PlannedOptimizer.begin, []

    def louder(self, plan, *rest):
        calls.append(1)
        begin(self, plan, *rest)
        self.max_grad_norm *= 20

    monkeypatch.setattr(opacus_steps._PlannedOptimizer, "begin", louder)
    assert AUDIT.of_run(config, facts).run(400, seed=1).violation
    assert calls
    calls.clear()
    AUDIT.of_run(config_of("dp-sgd", training={"batch_size": 400, "steps": 2}), facts).run(400, seed=1)
    assert not calls
