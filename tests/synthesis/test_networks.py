"""The bundle of networks: saved and restored bit for bit, stepped apart from each other, started from other weights."""

import copy

import pytest
import torch

from idpgan.models.dcgan import Critic
from idpgan.synthesis.networks import AdamSettings, Networks
from tests.training.toy import CPU, bits, digits, tiny_config

ADAM = AdamSettings(1e-2, 0.5, 0.9)


def networks_of(seed=0, **critic_adam):
    config = tiny_config()
    config = config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})
    critic = Critic(config.model, digits().image_shape, 10, seed=seed)
    of_critic = AdamSettings(1e-2, 0.5, 0.9, **critic_adam)
    return Networks(
        config, digits().shape, critic, device=CPU, adam=ADAM, critic_adam=of_critic, ema_decay=0.9, stream=2
    )


def step(networks, times=1):
    for _ in range(times):
        networks.step_critic(networks.critic(*networks.fakes(8)).square().mean())
        networks.step_generator(-networks.critic(*networks.fakes(8)).mean())


def test_restored_networks_go_on_bit_for_bit():
    whole, other = networks_of(), networks_of(seed=5)
    step(whole, 2)
    other.load_state(copy.deepcopy(whole.state()))  # as from a file
    assert bits(other.state()) == bits(whole.state())
    for networks in (whole, other):
        step(networks, 2)
    assert bits(other.state()) == bits(whole.state())
    assert bits(networks_of(seed=5).state()) != bits(networks_of().state())  # negative control


def test_a_step_of_one_leaves_the_others_as_they_are():
    networks = networks_of()
    networks.newest.eval()  # batch statistics are moved by whoever generates
    parts = {"critic": {"critic", "critic_optimizer"}, "generator": {"newest", "average", "generator_optimizer"}}
    for name, moved in parts.items():
        before = bits(networks.state())
        loss = -networks.critic(*networks.fakes(8)).mean()
        getattr(networks, f"step_{name}")(loss)
        after = bits(networks.state())
        assert {key for key in before if before[key] != after[key]} == moved | {"rng"}
        other = networks.critic if name == "generator" else networks.newest
        assert all(parameter.grad is None for parameter in other.parameters())
        networks.critic.zero_grad()


def test_newest_and_average_are_two_generators():
    networks = networks_of()
    step(networks, 3)
    newest, average = networks.newest.state_dict(), networks.average.state_dict()
    assert not all(map(torch.equal, newest.values(), average.values()))
    assert networks.newest.training
    assert not networks.average.training
    other = networks_of(seed=5)
    other.start_from(networks.average)
    for generator in (other.newest, other.average):
        assert all(map(torch.equal, generator.state_dict().values(), average.values()))


def test_fakes_have_uniform_labels():
    counts = torch.bincount(networks_of().fakes(5000)[1], minlength=10)
    assert 400 < counts.min() <= counts.max() < 600  # 500 each, standard deviation 21


@pytest.mark.parametrize("term", ["l2", "decay"])
def test_both_kinds_of_weight_decay_pull_at_the_weights(term):
    def norm(**terms):
        networks = networks_of(**terms)
        for _ in range(20):
            networks.step_critic(0 * networks.critic(*networks.fakes(2)).sum())
        return sum(weight.square().sum() for weight in networks.critic.parameters()).item()

    assert norm(**{term: 1.0}) < 0.9 * norm()
    assert norm() == norm(l2=0.0, decay=0.0)
