"""A generator that follows a growing collection of digits, under one guarantee."""

import pytest
import torch

from idpgan.errors import ConfigError
from idpgan.privacy import Noise
from idpgan.synthesis.aggregate.method import IdpAggregate
from idpgan.synthesis.follow import Follower
from idpgan.training.config import build_config
from tests.training.toy import digits


def config(**changes):
    tables = {
        "model": {"generator": "warp", "width": 4, "latent_dim": 4, "codes": 5},
        "method": {"name": "idp-gan-aggregate", "moments": 6, "fourier": 20, "metric_steps": [2], "augment": 0.0},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "training": {"steps": 4, "batch_size": 20, "device": "cpu"},
    }
    for section, keys in changes.items():
        tables[section] |= keys
    return build_config(tables, "a test")


def parts_of(images, number):
    return [images.select(index) for index in torch.arange(len(images)).chunk(number)]


def test_generators_of_all_parts_cost_one_release_and_the_sums_grow():
    split = digits()
    follower = Follower(config(), split, 4, noise=Noise.fixed(1))
    counts = []
    for images in parts_of(split.private, 4):
        follower.add(images)
        generator = follower.train()
        assert generator.sample(20, seed=1).shape == (20, *split.image_shape)
        counts.append(float(follower.stream.answer(follower.stream.count)[:, -1].sum()))
    assert follower.ledger.events == (follower.stream.mechanism.event,)
    assert follower.ledger.proven(1e-5).epsilon <= 2.0
    assert counts[-1] > 2 * counts[0]


def test_a_part_may_lack_classes_and_a_seed_changes_the_generator_only():
    split = digits()
    follower = Follower(config(), split, 2, noise=Noise.fixed(1))
    zeros = split.private.select((split.private.labels == 0).nonzero()[:, 0])
    follower.add(zeros)
    first, second = follower.train(), follower.train(seed=7)
    again = follower.train()
    assert torch.equal(first.sample(5, seed=1), again.sample(5, seed=1))
    assert not torch.equal(first.sample(5, seed=1), second.sample(5, seed=1))


def test_another_seed_learns_in_the_features_whose_sums_were_released(monkeypatch):
    split, used = digits(), []
    follower = Follower(config(), split, 2, noise=Noise.fixed(1))
    follower.add(split.private)

    def look(method, step):
        used.append({name: tensor.clone() for name, tensor in method.features.state_dict().items()})
        return {}

    monkeypatch.setattr(IdpAggregate, "step", look)
    follower.train()
    follower.train(seed=7)
    first, last = used[0], used[-1]
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"features": "public"}, "data": {}},
        {"privacy": {"unit": "person"}, "data": {"split_by": "identity"}},
    ],
)
def test_what_a_stream_cannot_have_is_refused(changes):
    data = changes.pop("data")
    tables = changes | ({"data": data} if data else {})
    with pytest.raises(ConfigError):
        Follower(config_with(tables), digits(), 2)


def config_with(tables):
    base = {"data": {"name": "digits"}, "model": {"generator": "warp", "width": 4, "latent_dim": 4, "codes": 5}}
    base |= {"method": {"name": "idp-gan-aggregate"}, "privacy": {"epsilon": 2.0, "delta": 1e-5}}
    base |= {"training": {"steps": 4, "batch_size": 20, "device": "cpu"}}
    return build_config({name: base[name] | tables.get(name, {}) for name in base}, "a test")
