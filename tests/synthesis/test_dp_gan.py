"""dp-GAN: what a step may depend on, what it costs, and that nothing is lost on the way."""

import dataclasses
import math
import warnings

import pytest
import torch

from idpgan.data.images import Images, to_float
from idpgan.data.load import load
from idpgan.errors import ConfigError, InputError
from idpgan.privacy import Budget, DPSGDPlan, Ledger, Noise, Relation, Unit, compose_epsilon, graphs
from idpgan.privacy.dpsgd import least_noise
from idpgan.privacy.guarantee import EXACT
from idpgan.synthesis.dp_gan import Method as DpGan
from idpgan.training.config import build_config
from idpgan.training.loop import train
from idpgan.training.plan import plan_run
from idpgan.training.stats import read_stats
from tests.training.toy import CPU, digits, new_run

DELTA = 1e-5
RATE = 0.02  # of 1,295 digits: 26 a step


def config_of(*, model=None, privacy=None, training=None, **method):
    table = {
        "model": {"width": 4, "latent_dim": 4} | (model or {}),
        "method": {"name": "dp-gan", "critic_steps_per_generator_step": 2} | method,
        "privacy": {"epsilon": 50.0, "delta": DELTA, "sample_rate": RATE, "noise_multiplier": 2.0} | (privacy or {}),
        "training": {"steps": 12, "tick_steps": 3, "batch_size": 26, "device": "cpu"} | (training or {}),
    }
    return build_config(table, "test")


def method_of(config, *, split=None, seed=1, kind=DpGan, ledger=None):
    ledger = ledger or Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    return kind.of(config, split or digits(), ledger=ledger, device=CPU, noise=Noise.fixed(seed))


def run(method, first, last):
    """Do steps without the loop."""
    stats = {}
    for step in range(first, last + 1):
        stats = method.step(step)
    return stats


def loop(path, config, *, kind=DpGan, target=None, private=None):
    """Begin a run in the loop, or continue the one at `path`; without a target no step has to be priced."""
    from idpgan.run import RunFolder

    if path.exists():
        folder = RunFolder.open(path)
        ledger = Ledger.open(folder.ledger, "test")
    else:
        folder = new_run(path)
        ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT, target, folder.ledger, "test")
        ledger.flush()
    split = load(config.data)
    split = split if private is None else dataclasses.replace(split, private=private)
    method = method_of(config, kind=kind, ledger=ledger, split=split)
    fingerprint = {"config": config.identity(), "device": "cpu"}
    return train(
        method, config=config.training, ledger=ledger, run=folder, fingerprint=fingerprint, delta=DELTA
    ), method


def weights(network):
    return torch.cat([weight.detach().flatten() for weight in network.parameters()])


# What it costs -------------------------------------------------------------------------------------------------------


def test_golden_epsilons_and_those_of_opacus():
    config = config_of(
        privacy={"noise_multiplier": 1.5, "sample_rate": 0.04}, training={"steps": 2250, "batch_size": 52}
    )
    (event,) = plan_run(config, digits().shape).events
    assert (event.count, event.noise_multiplier, event.sample_rate) == (2250, 1.5, 0.04)
    assert (event.unit, event.relation) == (Unit.IMAGE, Relation.ZERO_OUT)
    ours = compose_epsilon([event], DELTA)
    assert ours == pytest.approx(6.768787, abs=2e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the largest order, which is not the best one here
        from opacus.accountants import PRVAccountant, RDPAccountant

        theirs = {}
        for accountant in (RDPAccountant(), PRVAccountant()):
            accountant.history = [(1.5, 0.04, 2250)]
            theirs[accountant.mechanism()] = accountant.get_epsilon(DELTA)
    assert theirs["rdp"] == pytest.approx(7.329111, abs=1e-5)
    assert theirs["prv"] == pytest.approx(6.779132, abs=1e-4)
    assert ours <= theirs["prv"] <= theirs["rdp"]


def test_the_calibrated_noise_stays_within_the_target_and_is_not_more_than_needed():
    config = config_of(privacy={"epsilon": 0.02, "noise_multiplier": None})
    (event,) = plan_run(config, digits().shape).events
    assert event.noise_multiplier == least_noise(0.02, DELTA, RATE, 12)  # computed once
    assert compose_epsilon([event], DELTA) <= 0.02
    less = dataclasses.replace(event, noise_multiplier=0.999 * event.noise_multiplier)
    assert compose_epsilon([less], DELTA) > 0.02
    assert method_of(config).step_event() == event.single


def test_it_stops_before_the_step_that_would_exceed_the_target(tmp_path):
    config = config_of(privacy={"noise_multiplier": 4.0})
    event = plan_run(config, digits().shape).dpsgd.event
    target = Budget(1.001 * compose_epsilon([event.repeated(4)], DELTA), DELTA)
    outcome, method = loop(tmp_path / "run", config, target=target)
    assert (outcome.ended, outcome.step) == ("budget", 4)
    assert method.ledger.events == (event.repeated(4),)
    assert method.ledger.epsilon(DELTA) <= target.epsilon < compose_epsilon([event.repeated(5)], DELTA)


def test_every_critic_step_is_charged_and_no_generator_step(tmp_path):
    _, method = loop(tmp_path / "run", config_of(critic_steps_per_generator_step=1))
    assert method.ledger.events == (method.step_event().repeated(12),)
    report = method.privacy()
    assert report.proven.epsilon == compose_epsilon([method.step_event().repeated(12)], DELTA)
    assert (report.claimed.epsilon, report.private) == (50.0, False)  # a fixed noise seed
    assert "FIXED SEED" in report.reason


def test_the_rate_that_is_charged_is_the_rate_of_the_coins(monkeypatch):
    seen, sample = [], DPSGDPlan.sample
    monkeypatch.setattr(DPSGDPlan, "sample", lambda *args: seen.append(args) or sample(*args))
    method = method_of(config_of())
    method.critic_step(1)
    assert [(plan.event, num) for plan, num, *_ in seen] == [(method.step_event(), 1295)]
    assert seen[0][2] is method.noise


def test_no_charge_and_no_noise_is_lost_on_empty_batches(tmp_path):
    config = config_of(privacy={"sample_rate": 1e-3}, training={"steps": 40, "tick_steps": 40, "batch_size": 1})
    outcome, method = loop(tmp_path / "run", config, kind=Watched)
    drew, moved = zip(*method.watched, strict=True)
    assert 4 <= drew.count(False) <= 25  # e^-1.3 of 40 is 11
    assert all(moved)
    assert outcome.ended == "finished"
    assert method.ledger.events == (method.step_event().repeated(40),)
    assert weights(method.critic).isfinite().all()
    (row,) = read_stats(tmp_path / "run" / "stats.jsonl")
    assert math.isfinite(row["critic_loss"])  # the mean of the steps that drew somebody


class Watched(DpGan):
    """Writes down of every critic step whether it drew somebody, and whether the critic moved."""

    def critic_step(self, step):
        before = weights(self.critic)
        stats = super().critic_step(step)
        self.watched = [
            *getattr(self, "watched", []),
            (bool(stats["critic_loss"][1]), not torch.equal(before, weights(self.critic))),
        ]
        return stats


# What a step may depend on -------------------------------------------------------------------------------------------


def everyone(**method):
    return config_of(privacy={"sample_rate": 1.0}, training={"batch_size": 20}, **method)


def twenty(labels=None):
    private = digits().private.select(torch.arange(20))
    private = private if labels is None else dataclasses.replace(private, labels=labels)
    return dataclasses.replace(digits(), private=private)


@pytest.mark.parametrize("generator", ["dcgan", "warp"])
def test_a_paired_fake_depends_on_its_own_record_alone(generator):
    labels = digits().private.labels[:20].clone()
    changed = labels.clone()
    changed[3] = (changed[3] + 1) % 10
    config = everyone(model={"generator": generator})
    pairs = [method_of(config, split=twenty(value)) for value in (labels, changed)]
    first, second = (method._records(torch.arange(20))[0][2] for method in pairs)
    different = (first - second).abs().flatten(1).sum(1) > 0
    assert different.nonzero().flatten().tolist() == [3]
    for method in pairs:  # negative control: batch statistics carry a label into everyone's fake
        method.newest.train()
    mixed, other = (method._records(torch.arange(20))[0][2] for method in pairs)
    assert ((mixed - other).abs().flatten(1).sum(1) > 0).sum() > 10


def test_fakes_and_motions_of_records_are_secret_coins():
    config = everyone(augment=1.0)
    method, same, other = (method_of(config, split=twenty(), seed=seed) for seed in (1, 1, 2))
    state = method.networks.rng.get_state()
    real, fake, alpha = _three(method)
    assert torch.equal(state, method.networks.rng.get_state())  # nothing comes from training.seed, which is published
    assert all(map(torch.equal, (real, fake, alpha), _three(same)))
    for mine, theirs in zip((real, fake, alpha), _three(other), strict=True):
        assert not torch.equal(mine, theirs)
    assert not torch.equal(real, to_float(twenty().private.images))


def _three(method):
    (real, _, fake, alpha, _), _ = method._records(torch.arange(20))
    return real, fake, alpha


def test_a_wrong_class_is_every_other_class_by_a_secret_coin():
    method = method_of(config_of(mismatch=1.0))
    labels = torch.arange(10).repeat(200)
    coins = Noise.fixed(0).uniform((len(labels), method.coins))
    *_, wrong = method.prepared(torch.zeros(len(labels), 1, 8, 8), labels, coins)
    assert ((wrong >= 0) & (wrong < 10) & (wrong != labels)).all()
    counts = torch.bincount((wrong - labels) % 10, minlength=10)
    assert counts[0] == 0
    assert counts[1:].min() > 150  # 222 each, standard deviation 14
    with pytest.raises(ConfigError, match=r"method\.mismatch = 1 needs at least 2 classes"):
        method_of(config_of(mismatch=1.0, model={"conditional": False}))


def test_separate_fakes_do_not_know_the_private_images():
    config = everyone(fakes="separate")
    seen = []
    for split in (twenty(), twenty(torch.zeros(20, dtype=torch.int64))):
        method = method_of(config, split=split)
        method.critic_step(1)
        seen.append(method.public_part()[-1])
    assert torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][1], seen[1][1])
    assert len(seen[0][0]) == 20


def test_separate_fakes_add_a_constant_to_the_sum(monkeypatch):
    """Neighbors, equal weights and public coins: the sums before the noise differ by at most C."""
    sums = []
    monkeypatch.setattr(
        DPSGDPlan,
        "noisy_step",
        lambda self, optimizer, weights, parts, noise: sums.append(
            torch.cat([p.flatten() for p in parts.values()]) * self.step
        ),
    )
    config = everyone(fakes="separate", clip_norm=0.3)
    method_of(config, split=twenty()).critic_step(1)
    fewer = dataclasses.replace(digits(), private=digits().private.select(torch.arange(19)))
    method_of(config, split=fewer).critic_step(1)
    assert 0.01 < (sums[0] - sums[1]).norm() <= 0.3
    assert sums[0].norm() > 0.6  # negative control: the bound is that of the difference


def test_it_reads_the_private_part_only():
    one = digits()
    white = Images(torch.full_like(one.test.images, 255), one.test.labels, one.classes)
    methods = [method_of(config_of(), split=s) for s in (one, dataclasses.replace(one, public=white, test=white))]
    for method in methods:
        run(method, 1, 4)
    assert torch.equal(weights(methods[0].critic), weights(methods[1].critic))
    inverted = dataclasses.replace(one.private, images=255 - one.private.images)
    third = method_of(config_of(), split=dataclasses.replace(one, private=inverted))
    run(third, 1, 4)
    assert not torch.equal(weights(methods[0].critic), weights(third.critic))  # negative control


def test_the_generator_step_leaves_nothing_on_the_critic():
    method = method_of(config_of())
    before = weights(method.critic)
    method.generator_step(1)
    assert torch.equal(before, weights(method.critic))
    assert all(weight.grad is None for weight in method.critic.parameters())
    other = method_of(config_of())  # so that the critic's step is the same with and without it
    other.generator_step(1)
    method.newest.load_state_dict(other.newest.state_dict())
    method.critic_step(1)
    other.critic_step(1)
    assert torch.equal(weights(method.critic), weights(other.critic))
    assert all(weight.grad is None for weight in method.critic.parameters())


def sum_of_a_step(monkeypatch, method):
    """Return the first step's sum before the noise, in the unit of the gradient."""
    found = []

    def watched(plan, optimizer, weights, sums, noise):
        found.append(torch.cat([part.flatten() for part in sums.values()]) * plan.step)

    with monkeypatch.context() as patch:
        patch.setattr(DPSGDPlan, "noisy_step", watched)
        method.critic_step(1)
    return found[0]


@pytest.mark.parametrize("fakes", ["paired", "separate"])
def test_physical_batches_do_not_change_the_sum(fakes, monkeypatch):
    sums = [
        sum_of_a_step(monkeypatch, method_of(config_of(fakes=fakes, max_physical_batch=size)))
        for size in (32, 64, 1000)
    ]
    assert all(torch.allclose(sums[0], other, atol=1e-6) for other in sums[1:])
    other = sum_of_a_step(monkeypatch, method_of(config_of(fakes=fakes), seed=2))
    assert not torch.allclose(sums[0], other, atol=1e-2)  # the comparison can fail


def test_too_little_memory_halves_the_physical_batch_before_the_first_step(monkeypatch):
    plenty, little = method_of(config_of()), method_of(config_of())
    expected, real = sum_of_a_step(monkeypatch, plenty), graphs.record_gradients

    def tight(loss, weights, chunk, way):
        if len(chunk[0]) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(loss, weights, chunk, way)

    monkeypatch.setattr(graphs, "record_gradients", tight)
    found = sum_of_a_step(monkeypatch, little)
    assert little.state()["tiles"]["chunk"] == 13  # two chunks of it hold the 26 that are expected
    assert found.norm() > 0.5 * expected.norm()  # of the same records, each with other coins of its own


# Training ------------------------------------------------------------------------------------------------------------

VARIANTS = {
    "paired": {},
    "separate": {"fakes": "separate"},
    "wgan-gp": {"loss": "wgan-gp"},
    "wgan-gp, separate": {"loss": "wgan-gp", "fakes": "separate"},
    "warp, moved": {"model": {"generator": "warp"}, "augment": 0.7},
    "unconditional": {"model": {"conditional": False}},
    "unconditional wgan-gp": {"model": {"conditional": False}, "loss": "wgan-gp", "fakes": "separate"},
    "hinge": {"loss": "hinge", "adaptive_below": 0.5},
    "opacus": {"engine": "opacus"},
    "opacus, hinge, separate": {"engine": "opacus", "loss": "hinge", "fakes": "separate"},
    "opacus, unconditional": {"engine": "opacus", "model": {"conditional": False}, "secure_mode": True},
    "mismatch": {"mismatch": 0.5},
    "mismatch, separate": {"mismatch": 1.0, "fakes": "separate"},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_variant_steps(variant):
    method = method_of(config_of(**variant))
    before = weights(method.newest), weights(method.critic)
    stats = run(method, 1, 2)
    assert all(value.dim() < 2 and value.isfinite().all() and not value.requires_grad for value in stats.values())
    assert not torch.equal(before[0], weights(method.newest))
    assert not torch.equal(before[1], weights(method.critic))
    assert method.generator.sample(3, seed=0).shape == (3, 1, 8, 8)
    assert not method.newest.training


@pytest.mark.slow  # what could go wrong is a sign: the steps of Opacus and the loops of test_critic_loss.py know it
@pytest.mark.trained
def test_it_learns_the_digits():
    config = config_of(
        privacy={"sample_rate": 0.05, "noise_multiplier": 0.5, "epsilon": 1000.0},
        training={"steps": 200, "batch_size": 64},
        critic_steps_per_generator_step=1,
        ema_decay=0.9,
        critic_learning_rate=2e-3,
        generator_learning_rate=5e-3,
    )
    real = to_float(digits().private.images).mean(0)

    def distance(generator):
        """Distance of the generated from the real mean image."""
        return (generator.sample(500, seed=1).mean(0) - real).norm().item()

    method = method_of(config)
    untrained = distance(method.generator)
    run(method, 1, 200)
    assert distance(method.generator) < 0.8 * untrained  # measured: 0.4; without training 1


def seeing(method, score):
    """Let the critic give every image this score; fakes are known by one below 0."""
    method.critic = lambda images, labels: 0 * images.mean((1, 2, 3)) + score
    return method


def test_the_pace_follows_the_accuracy_on_fakes():
    method = method_of(config_of(critic_steps_per_generator_step=2, adaptive_below=0.6))
    seeing(method, -1.0).generator_step(1)
    assert method.pace == 2
    for step in range(20):
        seeing(method, 1.0).generator_step(step)
    assert method.pace > 3
    fixed = method_of(config_of())
    seeing(fixed, 1.0).generator_step(1)
    assert fixed.pace == 2


def test_pace_and_cool_down():
    method = method_of(config_of(critic_steps_per_generator_step=2, cooldown=0.5))
    wanted, rates = [], []
    for step in range(1, 13):
        if "generator_loss" in method.step(step):
            wanted.append(step)
        rates.append(method.networks.critic_optimizer.param_groups[0]["lr"])
    assert wanted == [2, 4, 6, 8, 10, 12]
    assert rates[:7] == pytest.approx([5e-4] * 7)
    assert rates[7:] == pytest.approx([5e-4 * left / 6 for left in (5, 4, 3, 2, 1)])


@pytest.mark.trained
def test_the_decay_bounds_the_critic():
    free, held = method_of(config_of()), method_of(config_of(critic_decay=200.0))
    for method in (free, held):
        run(method, 1, 5)
    assert weights(held.critic).norm() < 0.8 * weights(free.critic).norm()


def test_noise_of_the_operating_system_makes_the_report_private():
    config = config_of(privacy={"noise_multiplier": 4.0})
    method = DpGan.of(config, digits(), ledger=Ledger(Unit.IMAGE, Relation.ZERO_OUT), device=CPU)
    method.ledger.charge(method.step_event())
    method.critic_step(1)
    report = method.privacy()
    assert report.private
    assert "AES-256-CTR, 256 bits from the operating system" in report.reason
    assert EXACT in report.reason


def test_critic_scores_are_those_of_the_critic():
    method, images = method_of(config_of()), digits().holdout
    scores = method.critic_scores(images.images, images.labels)
    assert scores.shape == (len(images),)
    with torch.no_grad():
        assert torch.allclose(scores, method.critic(to_float(images.images), images.labels), atol=1e-5)
    assert torch.allclose(scores[:3], method.critic_scores(to_float(images.images)[:3], images.labels[:3]), atol=1e-5)
    assert len(method.critic_scores(images.images[:0], images.labels[:0])) == 0


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"batch_size": 100}}, r"training\.batch_size = 100 divides the noisy sum of about 26 images"),
        (
            {"privacy": {"sample_rate": 0.1}},
            r"Leave privacy\.sample_rate out, set it to about 0\.02008, or training\.batch_size to 130",
        ),
        ({"privacy": {"delta": 1e-3}}, r"privacy\.delta = 0\.001 must be at least 0 and below 1/N"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        method_of(config_of(**change))


def test_without_a_rate_the_expected_images_of_a_step_are_its_divisor():
    plan = plan_run(config_of(privacy={"sample_rate": None}), digits().shape)
    assert plan.dpsgd.sample_rate == 26 / 1295
    assert plan.events == plan_run(config_of(privacy={"sample_rate": 26 / 1295}), digits().shape).events
    everybody = config_of(privacy={"sample_rate": None}, training={"batch_size": 2000})
    assert plan_run(everybody, digits().shape).dpsgd.sample_rate == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "wgan-gp", "adaptive_below": 0.5}, "the fakes that score below 0"),
        ({"privacy": {"sample_rate": 0.0}}, r"privacy\.sample_rate"),
        ({"clip_nrm": 1.0}, r"Did you mean 'clip_norm'"),
        ({"privacy": {"relation": "replace-one"}}, r"Unknown key 'privacy\.relation'"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        config_of(**change)
