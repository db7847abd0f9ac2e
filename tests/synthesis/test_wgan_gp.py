"""Losses, the registry, and WGAN-GP itself."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idpgan.config import dump_toml
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.models.generator import Generator
from idpgan.models.losses import critic_wasserstein, generator_wasserstein, gradient_penalty, interpolate
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.ledger import Ledger
from idpgan.synthesis import METHODS
from idpgan.synthesis.wgan_gp import Method as WganGp
from idpgan.synthesis.wgan_gp import Settings as Config
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run
from idpgan.training.stats import read_stats
from tests.training.toy import CPU, digits, tiny_config, train_on_digits


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def make(config, split=None):
    return WganGp.of(config, split or digits(), device=CPU)


# Losses ------------------------------------------------------------------------------------------------------------


def test_wasserstein_losses():
    real, fake = torch.tensor([1.0, 3.0]), torch.tensor([10.0, 20.0])
    assert critic_wasserstein(real, fake) == 13
    assert generator_wasserstein(fake) == -15


def test_an_interpolate_lies_between_its_own_pair():
    real, fake = torch.randn(2, 5, 3, 4, 4, generator=rng())
    alpha = torch.tensor([0.0, 1.0, 0.25, 0.5, 0.9])
    mixed = interpolate(real, fake, alpha)
    assert torch.equal(mixed[0], fake[0])
    assert torch.equal(mixed[1], real[1])
    assert torch.allclose(mixed[2], 0.25 * real[2] + 0.75 * fake[2])


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 5), st.integers(1, 6))
def test_the_penalty_of_a_linear_critic_is_known(norm, batch):
    weight = torch.randn(48, generator=rng(1), dtype=torch.float64)
    weight = weight / weight.norm() * norm
    penalty = gradient_penalty(
        lambda images: images.flatten(1) @ weight, torch.zeros(batch, 3, 4, 4, dtype=torch.float64)
    )
    assert penalty.shape == (batch,)
    assert penalty.tolist() == pytest.approx([(norm - 1) ** 2] * batch, abs=1e-12)


def test_the_penalty_equals_a_loop_over_single_records_and_so_does_its_gradient():
    critic = Critic(ModelConfig(width=4), (1, 8, 8), 10).double()
    images, labels = torch.randn(6, 1, 8, 8, generator=rng(), dtype=torch.float64), torch.arange(6)
    penalty = gradient_penalty(lambda x: critic(x, labels), images)
    gradients = torch.autograd.grad(penalty.mean(), list(critic.parameters()), allow_unused=True)

    expected, per_record = [torch.zeros_like(p) for p in critic.parameters()], []
    for image, label in zip(images, labels, strict=True):
        one = image[None].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(critic(one, label[None])[0], one, create_graph=True)
        record = (gradient.square().sum().sqrt() - 1) ** 2
        per_record.append(record.item())
        parts = torch.autograd.grad(record / 6, list(critic.parameters()), allow_unused=True)
        expected = [a + (0 if b is None else b) for a, b in zip(expected, parts, strict=True)]
    assert penalty.tolist() == pytest.approx(per_record, rel=1e-12)
    for found, wanted in zip(gradients, expected, strict=True):
        assert torch.allclose(torch.zeros_like(wanted) if found is None else found, wanted, rtol=1e-10, atol=1e-14)
    # Negative control: the norm of the whole batch's gradient is another number.
    inputs = images.clone().requires_grad_()
    (batch,) = torch.autograd.grad(critic(inputs, labels).sum(), inputs)
    assert abs((batch.norm() - 1).square() - penalty.mean()) > 0.1 * penalty.mean()


def test_a_critic_that_mixes_records_is_seen():
    norm = torch.nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    weight = torch.randn(4, generator=rng())
    images = torch.randn(5, 1, 2, 2, generator=rng(1))
    mixed = gradient_penalty(lambda x: norm(x.flatten(1)).square() @ weight, images)
    alone = gradient_penalty(lambda x: x.flatten(1).square() @ weight, images)
    changed = images.clone()
    changed[0] += 1
    assert torch.equal(gradient_penalty(lambda x: x.flatten(1).square() @ weight, changed)[1:], alone[1:])
    assert not torch.allclose(gradient_penalty(lambda x: norm(x.flatten(1)).square() @ weight, changed)[1:], mixed[1:])


def test_a_zero_gradient_gives_no_nan():
    weight = torch.zeros(16, requires_grad=True)
    penalty = gradient_penalty(lambda x: x.flatten(1) @ weight, torch.ones(2, 1, 4, 4)).mean()
    penalty.backward()
    assert penalty.item() == 1
    assert weight.grad.isfinite().all()


# Registry and config -----------------------------------------------------------------------------------------------


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'wgan_gp' is not a known method\. Did you mean 'wgan-gp'\?"):
        load_method("wgan_gp")


@pytest.mark.parametrize("table", [{}, {"method": {}}, {"method": {"name": 3}}, {"method": "wgan-gp"}])
def test_a_config_without_a_method_is_refused(table):
    with pytest.raises(ConfigError, match=r"run\.toml names no method. Set method\.name to one of: generator: wgan-gp"):
        build_config(table, "run.toml")


def test_a_config_is_strict_down_to_the_sections():
    config = build_config({"method": {"name": "wgan-gp", "l2": 0.5}, "training": {"steps": 7}}, "run.toml")
    assert (config.method.l2, config.training.steps, config.privacy.accept_unsound) == (0.5, 7, False)
    with pytest.raises(ConfigError, match=r"'method\.learning_rat' in run\.toml\. Did you mean 'learning_rate'"):
        build_config({"method": {"name": "wgan-gp", "learning_rat": 1.0}}, "run.toml")
    with pytest.raises(ConfigError, match=r"training\.steps = 0"):
        build_config({"method": {"name": "wgan-gp"}, "training": {"steps": 0}}, "run.toml")
    assert 'name = "wgan-gp"' in dump_toml(config)  # so the run folder's config builds the same method again


def test_the_rows_of_the_registry_are_json_in_the_words_of_the_package():
    for name, row in METHODS.items():
        line = row.to_json()
        assert list(line) == ["name", "family", "units", "relation", "sound", "claimed", "proven", "reason"]
        assert (line["name"], line["family"]) == (name, "generator")
        assert set(line["units"]) <= set(Unit)
        assert set(line["relation"].split(" or ")) <= set(Relation)
        assert load_method(name).Settings.model_fields["method"].annotation.model_fields["name"].default == name


def test_registry_and_config_do_not_import_torch():
    code = "import sys, idpgan.synthesis, idpgan.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_plan_is_what_a_run_charges(tmp_path):
    config = tiny_config(steps=7)
    train_on_digits(tmp_path / "run", config)
    ledger = Ledger.open(tmp_path / "run" / "state" / "ledger.json", owner=config.identity())
    assert ledger.events == plan_run(config, digits().shape).events
    assert ledger.epsilon(1e-5) == math.inf
    assert read_stats(tmp_path / "run" / "stats.jsonl")[-1]["epsilon"] == "inf"


# The method --------------------------------------------------------------------------------------------------------


def test_it_promises_nothing():
    report = make(tiny_config()).privacy()
    assert report.claimed is None
    assert report.proven.epsilon == math.inf
    assert report.private is False
    assert report.reason == "wgan-gp trains on the raw images without noise"


def test_it_reads_the_private_part_only():
    one = digits()
    white = Images(torch.full_like(one.test.images, 255), one.test.labels, one.classes)
    empty = one.public
    states = []
    for split in (one, Split(public=white, private=one.private, holdout=empty, test=white)):
        method = make(tiny_config(), split)
        for step in range(1, 5):
            method.critic_step(step)
            method.generator_step(step)
        states.append(method.state())
    first, second = (state["networks"]["newest"] for state in states)
    assert all(torch.equal(first[name], tensor) for name, tensor in second.items())
    changed = Images(255 - one.private.images, one.private.labels, one.classes)  # negative control
    method = make(tiny_config(), Split(public=empty, private=changed, holdout=empty, test=empty))
    for step in range(1, 5):
        method.critic_step(step)
        method.generator_step(step)
    critics = [state["networks"]["critic"]["head.weight"] for state in (method.state(), states[0])]
    assert not torch.equal(*critics)


@pytest.mark.trained
@pytest.mark.parametrize("conditional", [True, False])
def test_the_critic_step_descends_on_its_loss_and_leaves_the_generator_alone(conditional):
    config = tiny_config().model_copy(update={"model": ModelConfig(width=4, latent_dim=4, conditional=conditional)})
    method = make(config)
    weights = [parameter.clone() for parameter in method.newest.parameters()]
    stats = [method.critic_step(step) for step in range(1, 60)]
    assert stats[0].keys() == {"critic_loss", "wasserstein", "gradient_penalty"}
    assert all(value.dim() == 0 and not value.requires_grad for value in stats[0].values())
    expected = -stats[0]["wasserstein"] + 10 * stats[0]["gradient_penalty"]
    assert torch.allclose(stats[0]["critic_loss"], expected)
    early, late = (sum(s["critic_loss"].item() for s in part) for part in (stats[:10], stats[-10:]))
    assert late < early - 1
    assert all(map(torch.equal, weights, method.newest.parameters()))


def test_the_generator_step_leaves_the_critic_alone_and_moves_the_average():
    method = make(tiny_config())
    method.critic_step(1)
    for parameter in method.critic.parameters():
        parameter.grad = None
    weights = [parameter.clone() for parameter in method.critic.parameters()]
    average = method.generator.project.weight.clone()
    assert method.generator_step(1).keys() == {"generator_loss"}
    assert all(parameter.grad is None for parameter in method.critic.parameters())
    assert all(map(torch.equal, weights, method.critic.parameters()))
    assert not torch.equal(average, method.generator.project.weight)


def test_five_critic_steps_per_generator_step_by_default():
    method = make(Config(model=ModelConfig(width=4)))
    assert [step for step in range(1, 16) if "generator_loss" in method.step(step)] == [5, 10, 15]


@pytest.mark.trained
def test_the_l2_term_is_in_the_gradient_of_both_networks():
    plain, pulled = make(tiny_config(l2=0.0)), make(tiny_config(l2=100.0))
    for method in (plain, pulled):
        for step in range(1, 31):
            method.critic_step(step)
            method.generator_step(step)
    for name in ("critic", "newest"):
        norms = [sum(p.square().sum().item() for p in getattr(m, name).parameters()) for m in (plain, pulled)]
        assert norms[1] < norms[0]


@pytest.mark.parametrize(("change", "same"), [({}, True), ({"seed": 1}, False)])
def test_the_seed_decides_everything(change, same):
    config = tiny_config()
    other = config.model_copy(update={"training": config.training.model_copy(update=change)})
    stats = [make(c).critic_step(1)["critic_loss"] for c in (config, other)]
    assert torch.equal(*stats) is same


def test_data_without_labels_needs_an_unconditional_model():
    private = Images(digits().private.images)
    split = Split(public=private, private=private, holdout=private, test=private)
    with pytest.raises(ConfigError, match=r"model\.conditional = false"):
        make(tiny_config(), split)
    config = tiny_config().model_copy(update={"model": ModelConfig(width=4, conditional=False)})
    assert make(config, split).generator.num_classes == 0


@pytest.mark.trained
def test_it_learns_the_digits(tmp_path):
    table = {
        "model": {"width": 8, "latent_dim": 8},
        "method": {"name": "wgan-gp", "critic_steps_per_generator_step": 2, "learning_rate": 1e-3, "ema_decay": 0.9},
        "training": {"steps": 300, "tick_steps": 300, "batch_size": 32, "device": "cpu"},
    }
    config = Config.model_validate(table)
    real = to_float(digits().private.images)
    untrained = make(config).generator
    _, method = train_on_digits(tmp_path / "run", config)

    def distance(generator: Generator, classes: bool) -> float:
        """Distance of the generated from the real mean image, overall or averaged over the classes."""
        if not classes:
            return (generator.sample(500, seed=1).mean(0) - real.mean(0)).norm().item()
        labels = digits().private.labels
        parts = [
            (generator.sample(100, k, seed=1).mean(0) - real[labels == k].mean(0)).norm().item() for k in range(10)
        ]
        return sum(parts) / 10

    # Measured: 5.2 -> 1.2 and 5.9 -> 2.3; without training the ratio is 1.
    assert distance(method.generator, False) < 0.5 * distance(untrained, False)
    assert distance(method.generator, True) < 0.6 * distance(untrained, True)
    assert distance(make(config).generator, False) == distance(untrained, False)
