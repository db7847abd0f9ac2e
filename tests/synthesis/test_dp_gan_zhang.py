"""dp-GAN of Zhang, Ji and Wang: what its public images decide, what is claimed and proven, and the sound form."""

import dataclasses
import math

import pytest
import torch

from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import canary_case
from idpgan.data.load import load
from idpgan.errors import ConfigError
from idpgan.methods import load as load_method
from idpgan.privacy import DPSGDPlan, Ledger, Noise, Relation, Unit, compose_epsilon
from idpgan.privacy.dpsgd import least_noise
from idpgan.synthesis.dp_gan import canaries
from idpgan.training.config import build_config, refuse_unsound, section_of
from idpgan.training.plan import plan_run
from tests.synthesis.test_dp_gan import loop, weights
from tests.synthesis.test_dp_gan_resume import Killed
from tests.training.toy import CPU, remains

DELTA = 1e-5
KINDS = {name: load_method(name).Method for name in ("dp-gan", "dp-gan-zhang")}


def section(name="dp-gan-zhang", **keys):
    return section_of(load_method(name).Settings, "method")(**keys)


def config_of(name="dp-gan-zhang", *, data=None, model=None, privacy=None, training=None, **method):
    zhang = {"loss": "wgan-gp", "groups": 3, "public_steps": 4, "critic_steps_per_generator_step": 2}
    table = {
        "data": {"public_share": 0.02, "confirm_public": True} | (data or {}),
        "model": {"width": 4, "latent_dim": 4} | (model or {}),
        "method": {"name": name, **zhang} | method,
        "privacy": {"epsilon": 50.0, "delta": DELTA, "sample_rate": 0.02, "noise_multiplier": 2.0} | (privacy or {}),
        "training": {"steps": 12, "tick_steps": 3, "batch_size": 26, "device": "cpu"} | (training or {}),
    }
    return build_config(table, "test")


def split_of(config, **parts):
    return dataclasses.replace(load(config.data), **parts)


def method_of(config, split=None, seed=1):
    kind = KINDS[config.method.name]
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    return kind.of(config, split or split_of(config), ledger=ledger, device=CPU, noise=Noise.fixed(seed))


def test_start_and_groups_follow_from_public_images_alone_and_cost_nothing():
    config = config_of("dp-gan")
    one = split_of(config)
    inverted = [dataclasses.replace(part, images=255 - part.images) for part in (one.private, one.public)]
    splits = one, dataclasses.replace(one, private=inverted[0]), dataclasses.replace(one, public=inverted[1])
    methods = [method_of(config, split) for split in splits]
    fresh = weights(methods[0].critic)
    for method in methods:
        method.prepare()
        assert method.ledger.events == ()
    same, other_private, other_public = methods
    groups = [method.clip_groups() for method in methods]
    assert not torch.equal(weights(same.critic), fresh)
    assert torch.equal(weights(same.critic), weights(other_private.critic))
    assert torch.equal(weights(same.newest), weights(other_private.newest))
    assert groups[0] == groups[1]
    assert not torch.equal(weights(same.critic), weights(other_public.critic))  # negative controls
    assert groups[0] != groups[2]


def test_a_step_clips_to_the_bounds_of_the_public_images_at_its_weights():
    method = method_of(config_of("dp-gan"))
    method.prepare()
    seen = []
    for step in (1, 2):
        method.critic_step(step)
        seen.append(method.dpsgd.groups)
    names = [name for name, _ in method.critic.named_parameters()]
    assert sorted(name for own in seen[0].names for name in own) == sorted(names)
    assert len(seen[0].names) == 3
    assert seen[0] != seen[1]


@pytest.mark.parametrize("name", KINDS)
def test_neighbors_move_a_group_by_its_bound_or_apart_by_more(name, monkeypatch):
    """One record more, the same coins and weights: the sum moves by at most b in a group, in the sound form alone."""
    config = config_of(name, privacy={"sample_rate": 1.0}, training={"batch_size": 20}, public_steps=0)
    one, sums = split_of(config), []
    monkeypatch.setattr(
        DPSGDPlan,
        "noisy_step",
        lambda plan, optimizer, weights, parts, noise: sums.append(
            {key: part * plan.step * plan.groups.stretch(key, plan.clip_norm) for key, part in parts.items()}
        ),
    )
    small = ("head.weight", "projection.weight"), ("blocks.0.weight", "blocks.2.weight")
    small = (*small, ("head.bias", "blocks.0.bias", "blocks.2.bias"))
    for num in (20, 19):
        method = method_of(config, dataclasses.replace(one, private=one.private.select(torch.arange(num))))
        groups = type(method.clip_groups())(small, (0.01, 0.02, 0.001))  # everybody is clipped
        monkeypatch.setattr(method, "clip_groups", lambda groups=groups: groups.apart if name != "dp-gan" else groups)
        method.critic_step(1)
    for own, bound in zip(small, (0.01, 0.02, 0.001), strict=True):
        moved = torch.cat([(sums[0][key] - sums[1][key]).flatten() for key in own]).norm().item() / bound
        if name == "dp-gan":
            assert 0.99 < moved <= 1
        else:
            assert 1.4 < moved <= math.sqrt(3)


def test_the_claim_counts_groups_and_what_is_proven_counts_tensors():
    config = config_of(groups=5, training={"steps": 200})
    plan = plan_run(config, split_of(config).shape)
    assert plan.critic_tensors == 7  # two convolutions with biases, the head's weight and bias, the classes'
    (event,) = plan.events
    assert event.noise_multiplier == pytest.approx(2.0 * math.sqrt(5 / 7))
    sound = plan_run(config_of("dp-gan", groups=5, training={"steps": 200}), split_of(config).shape)
    assert sound.events[0].noise_multiplier == 2.0
    assert compose_epsilon(plan.events, DELTA) > 1.15 * compose_epsilon(sound.events, DELTA)
    assert (plan.claimed.epsilon, plan.budget) == (50.0, None)
    assert "7 weight tensors" in plan.reason(plan.events, method_of(config).sources)
    with pytest.raises(ConfigError, match="'dp-gan-zhang' is unsound: every weight tensor"):
        refuse_unsound(config)
    refuse_unsound(config_of("dp-gan"))
    alike = plan_run(config_of(groups=7, training={"steps": 200}), split_of(config).shape)
    assert alike.events[0].noise_multiplier == 2.0  # a tensor a group: nothing is left out


@pytest.mark.slow
@pytest.mark.parametrize(("claimed", "proven"), [(1.0, 1.55), (10.0, 20.68)])
def test_the_figures_of_the_page_of_deviations(claimed, proven):
    rate, steps = 64 / 58_800, 20_000
    sigma = least_noise(claimed, DELTA, rate, steps) * math.sqrt(5 / 7)
    event = DPSGDPlan(rate, 1.0, 1, sigma).event.repeated(steps)
    assert compose_epsilon([event], DELTA) == pytest.approx(proven, abs=0.01)


@pytest.mark.parametrize("method", [section("dp-gan", loss="wgan-gp", groups=2), section(groups=2)])
def test_the_steps_clip_their_canary_to_the_norm(method):
    once = canaries(method, 1.0, 1e-3, 1)
    score = once.play(torch.arange(100) % 2 == 1, Noise.fixed(2))[:, 0]
    # log-likelihood ratio (y - 1/2) / sigma^2 of y = 0 and y = 1
    assert torch.allclose(score[1::2] * 1e-6, torch.tensor(0.5).double(), atol=0.01)
    assert torch.allclose(score[::2] * 1e-6, torch.tensor(-0.5).double(), atol=0.01)


def test_the_audit_finds_more_than_the_claim_and_nothing_of_it_in_the_sound_form():
    """One group of seven tensors, full batches, delta where few runs show it: epsilon 1 is claimed."""
    delta, runs = 0.01, 1000
    sigma = least_noise(1.0, delta, 1.0, 1)
    for method, less in ((section(groups=1), math.sqrt(1 / 7)), (section("dp-gan", groups=1), 1.0)):
        case = canary_case(method.name, canaries(method, 1.0, less * sigma, 1), Request(1.0, delta))
        audited = case.run(runs, confidence=0.999, seed=1)
        assert audited.result.epsilon_lower <= case.proven.epsilon
        assert (audited.result.epsilon_lower > 1.0) == (less < 1)


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    config = config_of("dp-gan", public_steps=1)
    with pytest.raises(KeyboardInterrupt):
        loop(tmp_path / "killed", config, kind=Killed)
    loop(tmp_path / "killed", config)
    loop(tmp_path / "whole", config)
    assert remains(tmp_path / "whole") == remains(tmp_path / "killed")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"public_share": 0.0}}, r"method\.groups = 3 looks at public images, and there are none.*public_sh"),
        ({"data": {"public_share": 0.0}, "groups": 0}, r"method\.public_steps = 4 looks at public images"),
        ({"groups": 8}, r"method\.groups = 8, and the critic has 7 weight tensors"),
        ({"groups": 0, "public_steps": 0}, r"public_share = 0\.02 takes all protection"),
        ({"engine": "opacus", "loss": "hinge"}, r"method\.groups = 3 clips groups.*engine = \"idpgan\""),
        ({"fakes": "separate"}, r"method\.public_steps = 4 trains the critic on pairs"),
    ],
)
def test_what_cannot_be_done_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        method_of(config_of("dp-gan", **changes))
