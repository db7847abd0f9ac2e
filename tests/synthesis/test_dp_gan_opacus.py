"""dp-GAN by Opacus' steps: the same steps at the same price, and what its hooks cannot do is refused."""

import dataclasses
import re

import pytest
import torch

from idpgan.errors import ConfigError
from idpgan.models.dcgan import Critic
from idpgan.privacy import DPSGDPlan, Ledger, Relation, Unit
from idpgan.synthesis.dp_gan import Method as DpGan
from tests.synthesis.test_dp_gan import config_of, method_of, run, weights
from tests.training.toy import CPU, digits

BOTH = {
    "pairs": {},
    "separate": {"fakes": "separate"},
    "pairs, wrong classes, moved": {"mismatch": 0.5, "augment": 0.5},
    "weights clipped": {"loss": "wgan-clip", "weight_bound": 0.3},
    "spectral norm, separate": {"loss": "wgan-spectral", "fakes": "separate"},
    "hinge, separate, wrong classes": {"loss": "hinge", "fakes": "separate", "mismatch": 1.0},
}


class CoinsOf:
    """Gives each record coins of its position alone, whatever batch or tile it stands in."""

    def __init__(self, index):
        self._index = index

    def uniform(self, shape):
        rows = [torch.rand(shape[1], generator=torch.Generator().manual_seed(int(i) + 1)) for i in self._index]
        return torch.stack(rows).double() if rows else torch.zeros(shape, dtype=torch.float64)


def share_coins_and_noise(monkeypatch):
    """Let coins of records follow from positions, and the grid's noise be the rounded noise of Opacus' steps."""
    records = DpGan._records

    def by_position(method, index):
        noise, method.noise = method.noise, CoinsOf(index)
        found = records(method, index)
        method.noise = noise
        return found

    def rounded(plan, count, noise):
        return (noise.normal((count,)) * plan.noise_multiplier / plan.grid).round().long()

    monkeypatch.setattr(DpGan, "_records", by_position)
    monkeypatch.setattr(DPSGDPlan, "grid_noise", rounded)


@pytest.mark.parametrize("options", BOTH.values(), ids=BOTH.keys())
def test_both_engines_take_the_same_steps_with_the_same_noise(monkeypatch, options):
    """Same coins, same noise, same clip, two libraries: a run differs by rounding alone."""
    share_coins_and_noise(monkeypatch)
    ours, theirs, noisier = (
        method_of(config_of(**options, **engine))
        for engine in ({}, {"engine": "opacus"}, {"engine": "opacus", "secure_mode": True})
    )
    start = weights(ours.critic)
    stats = [run(method, 1, 4) for method in (ours, theirs, noisier)]
    moved = (weights(ours.critic) - start).norm()
    assert (weights(ours.critic) - weights(theirs.critic)).norm() < 1e-2 * moved
    assert (weights(ours.critic) - weights(noisier.critic)).norm() > 0.1 * moved  # negative control: other noise
    assert stats[0].keys() == stats[1].keys()
    assert stats[0]["gradient_norm"][0] == pytest.approx(float(stats[1]["gradient_norm"][0]), rel=1e-3)
    assert stats[0]["critic_loss"][0] == pytest.approx(float(stats[1]["critic_loss"][0]), rel=1e-3)


def test_steps_by_opacus_cost_the_same_and_the_report_has_its_accountants_beside_ours():
    config = config_of(engine="opacus", privacy={"noise_multiplier": 1.5})
    method = DpGan.of(config, digits(), ledger=Ledger(Unit.IMAGE, Relation.ZERO_OUT), device=CPU)
    ours = method_of(config_of(privacy={"noise_multiplier": 1.5})).step_event()
    assert method.step_event() == dataclasses.replace(ours, grid=None)  # the same price, and no grid
    method.ledger.charge(method.step_event().repeated(2250))
    report = method.privacy()
    assert report.private
    assert "AES-256-CTR, 256 bits from the operating system; gradients, clipping and sums by Opacus" in report.reason
    said = dict(re.findall(r"(PRV|RDP) ([0-9]+\.[0-9]+)", report.reason))
    assert report.proven.epsilon <= float(said["PRV"]) <= report.proven.epsilon + 0.02
    assert float(said["RDP"]) > float(said["PRV"])
    assert "Opacus" not in method_of(config_of()).privacy().reason


def test_opacus_refuses_what_its_hooks_cannot_do_in_one_line():
    with pytest.raises(
        ConfigError, match=r'loss = "wgan-gp" differentiates .* Set method\.loss = "wgan-clip" or "wgan-s'
    ):
        config_of(engine="opacus", loss="wgan-gp")
    with pytest.raises(ConfigError, match=r'secure_mode = true is a mode of Opacus\. Set method\.engine = "opacus"'):
        config_of(secure_mode=True)
    with pytest.raises(ConfigError, match=r"method\.engine"):
        config_of(engine="tensorflow")


@pytest.mark.parametrize("loss", ["wgan-clip", "wgan-spectral", "hinge"])
def test_a_wasserstein_critic_keeps_to_its_bound_after_every_step(loss):
    method = method_of(config_of(engine="opacus", loss=loss, critic_learning_rate=0.1))
    for step in (1, 2):
        method.critic_step(step)
        numbers, norms = [], []
        for weight in method.critic.parameters():
            numbers.append(weight.abs().max().item())
            norms += [torch.linalg.svdvals(weight.detach().flatten(1))[0].item()] if weight.ndim > 1 else []
        if loss == "wgan-clip":
            assert max(numbers) == pytest.approx(0.01)
        assert (max(norms) <= 1 + 1e-5) == (loss != "hinge")  # hinge is the negative control
    assert (loss == "wgan-spectral") == (max(norms) == pytest.approx(1))


def test_a_bound_that_nothing_uses_and_a_pace_without_a_threshold_are_refused():
    with pytest.raises(ConfigError, match=r"method\.weight_bound = 0\.5 is of loss"):
        config_of(weight_bound=0.5)
    with pytest.raises(ConfigError, match=r'scores of loss = "wgan-clip" have no such threshold'):
        config_of(loss="wgan-clip", adaptive_below=0.9)


def test_a_network_that_opacus_refuses_is_refused_in_its_words_and_ours(monkeypatch):
    class Mixing(Critic):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.blocks.append(torch.nn.BatchNorm2d(8))

    monkeypatch.setattr("idpgan.models.checkpoint.Critic", Mixing)
    for engine in ({}, {"engine": "opacus"}):
        with pytest.raises(ConfigError, match="mean and variance of the whole batch") as refused:
            method_of(config_of(**engine))
        assert (
            "Opacus says: BatchNorm cannot support training with differential privacy" in str(refused.value)
        ) == bool(engine)
        assert "\n" not in str(refused.value)
