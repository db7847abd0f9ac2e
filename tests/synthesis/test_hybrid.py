"""Hybrid: a free first part on one release, a charged second part, one ledger over both."""

import dataclasses

import pytest
import torch

from idpgan.errors import ConfigError
from idpgan.privacy import Ledger, Noise, Relation, Unit, compose_epsilon
from idpgan.run import RunFolder
from idpgan.synthesis.hybrid import Hybrid
from idpgan.synthesis.hybrid import HybridRun as Config
from idpgan.synthesis.template import ROUNDS
from idpgan.training.config import build_config, load_method
from idpgan.training.loop import train
from idpgan.training.plan import plan_run
from tests.training.toy import CPU, digits, new_run, remains, terms_of

DELTA = 1e-5
AGGREGATE_STEPS = 4


def config_of(*, privacy=None, training=None, **method):
    table = {
        "model": {"width": 4, "latent_dim": 4, "generator": "warp", "codes": 5},
        "method": {
            "name": "hybrid",
            "share": 0.5,
            "aggregate_steps": AGGREGATE_STEPS,
            "aggregate_batch_size": 20,
            "aggregate": {"moments": 6, "fourier": 20, "metric_steps": [2]},
            "dp_gan": {"critic_steps_per_generator_step": 1, "critic_warmup": 1},
        }
        | method,
        "privacy": {"epsilon": 0.1, "delta": DELTA, "sample_rate": 0.02} | (privacy or {}),
        "training": {"steps": 10, "tick_steps": 5, "batch_size": 26, "device": "cpu"} | (training or {}),
    }
    return build_config(table, "test")


def method_of(config, *, kind=Hybrid, ledger=None, split=None):
    ledger = ledger or Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    return kind.of(config, split or digits(), ledger=ledger, device=CPU, noise=Noise.fixed(1))


def loop(path, config, *, kind=Hybrid, terms=None):
    """Begin a run in the loop, or continue the one at `path`."""
    if path.exists():
        folder = RunFolder.open(path)
        ledger = Ledger.open(folder.ledger, "test")
    else:
        folder = new_run(path)
        ledger = Ledger(*(terms or (Unit.IMAGE, Relation.ZERO_OUT, None)), folder.ledger, "test")
        ledger.flush()
    method = method_of(config, kind=kind, ledger=ledger)
    fingerprint = {"config": config.identity(), "device": "cpu"}
    return train(
        method, config=config.training, ledger=ledger, run=folder, fingerprint=fingerprint, delta=DELTA
    ), method


def weights(network):
    return torch.cat([tensor.detach().flatten() for tensor in network.state_dict().values()])


def test_the_plan_spends_the_budget_on_both_parts():
    release, steps = plan_run(config_of(), digits().shape).events
    assert (release.kind, steps.kind, steps.count) == ("gaussian", "poisson-gaussian", 6)
    assert {(event.unit, event.relation) for event in (release, steps)} == {(Unit.IMAGE, Relation.ZERO_OUT)}
    assert 0.99 * 0.05 <= compose_epsilon([release], DELTA) <= 0.05
    assert 0.99 * 0.1 <= compose_epsilon([release, steps], DELTA) <= 0.1
    assert compose_epsilon([steps], DELTA) < 0.095  # negative control: the release is in the sum


def test_a_whole_run_is_charged_as_planned_within_the_target(tmp_path):
    config = config_of()
    outcome, method = loop(tmp_path / "run", config, terms=terms_of(config))
    assert (outcome.ended, outcome.step) == ("finished", 10)
    release, steps = method.ledger.events
    assert (release, steps) == plan_run(config, digits().shape).events
    report = method.privacy()
    assert 0.97 * 0.1 <= report.proven.epsilon <= 0.1 == report.claimed.epsilon
    assert not report.private  # a fixed noise seed
    assert "one release of noisy sums" in report.reason
    assert "DP-SGD" in report.reason
    assert any("feature map" in text for text in report.public_assumptions)
    assert any("sampling rate" in text for text in report.public_assumptions)


def test_the_first_part_is_free_and_the_second_goes_on_from_its_generator():
    method = method_of(config_of())
    method.prepare()
    for step in range(1, AGGREGATE_STEPS + 1):
        assert method.step_event() is None
        assert "score" in method.step(step)
    assert method.generator is method.aggregate.generator
    trained = weights(method.generator)
    assert method.step_event() == method.dp_gan.step_event()
    assert "generator_loss" not in method.step(5)  # the critic warms up
    assert method.generator is method.dp_gan.generator
    assert torch.equal(trained, weights(method.generator))
    statistics = [buffer.clone() for buffer in method.dp_gan.newest.buffers()]
    assert "generator_loss" in method.step(6)
    assert not torch.equal(trained, weights(method.generator))
    assert all(map(torch.equal, statistics, method.dp_gan.newest.buffers()))  # no batch carries into them
    scores = method.critic_scores(digits().holdout.images[:5], digits().holdout.labels[:5])
    assert torch.equal(scores, method.dp_gan.critic_scores(digits().holdout.images[:5], digits().holdout.labels[:5]))


@pytest.mark.trained
def test_the_second_part_goes_on_matching_the_released_sums():
    ratios = [distance_after(60, 100.0, seed) / distance_after(60, 0.0, seed) for seed in (0, 1)]
    assert sum(ratios) / 2 < 0.93


def distance_after(steps, match, seed):
    """Squared distance of the generator's sums from the released ones, after all steps."""
    method = method_of(config_of(match=match, privacy={"epsilon": 50.0}, training={"steps": steps, "seed": seed}))
    method.prepare()
    for step in range(1, steps + 1):
        method.step(step)
    aggregate = method.aggregate
    fake = aggregate._embedded(method.dp_gan.newest).detach()
    return float((aggregate.critic.target - fake).square().sum())


def test_the_first_part_reads_private_images_in_prepare_only():
    private = digits().private
    copy = dataclasses.replace(private, images=private.images.clone())
    results = []
    for poison in (False, True):
        method = method_of(config_of(), split=dataclasses.replace(digits(), private=copy))
        method.prepare()
        if poison:
            copy.images.zero_()
        for step in range(1, AGGREGATE_STEPS + 1):
            method.step(step)
        results.append(method)
    assert torch.equal(*(weights(method.generator) for method in results))
    for method in results:  # negative control: the second part reads
        copy.images.copy_(private.images if method is results[0] else torch.zeros_like(copy.images))
        method.step(5)
    assert not torch.equal(*(weights(method.dp_gan.critic) for method in results))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("hybrid") / "whole"
    _, method = loop(path, config_of())
    return path, method


@pytest.mark.parametrize("killed_at", [2, 5, 9])  # in the first part, at the handover, in the second part
def test_a_resumed_run_equals_the_uninterrupted_one_and_costs_the_same(killed_at, whole, tmp_path):
    class Killed(Hybrid):
        def step(self, step):
            if step == killed_at:
                raise KeyboardInterrupt
            return super().step(step)

    path, uninterrupted = whole
    with pytest.raises(KeyboardInterrupt):
        loop(tmp_path / "killed", config_of(), kind=Killed)
    outcome, resumed = loop(tmp_path / "killed", config_of())
    assert outcome.step == 10
    assert remains(path) == remains(tmp_path / "killed")
    assert uninterrupted.ledger.epsilon(DELTA) == resumed.ledger.epsilon(DELTA) > 0


def test_a_pure_release_leaves_room_too():
    config = config_of(aggregate={"moments": 6, "fourier": 20, "law": "laplace"})
    release, steps = plan_run(config, digits().shape).events
    assert 0.999 * 0.05 < release.pure <= 0.05
    assert compose_epsilon([release, steps], DELTA) <= 0.1


def test_steps_count_both_parts():
    with pytest.raises(ConfigError, match=r"training\.steps = 4 counts both parts, .* method\.aggregate_steps = 4"):
        config_of(training={"steps": 4})


def test_a_wrong_key_of_a_part_is_named():
    with pytest.raises(ConfigError, match=r"'method\.dp_gan\.clip_nrm' in test\. Did you mean 'clip_norm'"):
        config_of(dp_gan={"clip_nrm": 1.0})


def test_the_registry_finds_it():
    assert load_method("hybrid").Config is Config
    assert load_method("hybrid") is Hybrid


def test_a_teacher_beside_the_sums_is_paid_by_their_share_and_given_away_with_the_generator(tmp_path):
    table = {"moments": 6, "fourier": 20, "metric_steps": [2], "teacher_share": 0.5, "candidates": 3}
    config = config_of(aggregate=table, privacy={"epsilon": 8.0})
    outcome, method = loop(tmp_path / "run", config, terms=terms_of(config))
    assert outcome.ended == "finished"
    sums, teacher, steps = method.ledger.events
    assert (sums, teacher, steps) == plan_run(config, digits().shape).events
    assert 0.99 * 4 <= compose_epsilon([sums, teacher], DELTA) <= 4
    assert max(compose_epsilon([part], DELTA) for part in (sums, teacher)) < 3.2  # control: each is a part of it
    assert 0.97 * 8 <= method.privacy().proven.epsilon <= 8
    _, again = loop(tmp_path / "run", config, terms=terms_of(config))
    assert method.teacher is not None
    assert method.candidates == 3
    assert torch.equal(again.teacher.weight, method.teacher.weight)
    assert again.ledger.events == method.ledger.events


def test_a_registered_start_is_paid_by_the_first_part_and_trained_on_by_the_second(tmp_path):
    aggregate = {"features": "photos", "moments": 4, "fourier": 5, "augment": 0.0, "metric": "none"}
    table = config_of(aggregate=aggregate, privacy={"epsilon": 8.0}).to_json()
    table["model"] |= {"generator": "refined", "latent_dim": 12, "drawing": "faces"}
    config = build_config(table, "test")
    outcome, method = loop(tmp_path / "run", config, terms=terms_of(config))
    assert outcome.ended == "finished"
    template, sums, steps = method.ledger.events
    assert (template, sums, steps) == plan_run(config, digits().shape).events
    assert template.count == ROUNDS
    assert 0.98 * 4 <= compose_epsilon([template, sums], DELTA) <= 4
    assert "a template from 3 noisy mean images" in method.privacy().reason
    assert torch.equal(method.generator.mean, method.aggregate.generator.mean)  # the network alone is trained
    assert not torch.equal(method.generator.last.weight, method.aggregate.generator.last.weight)
