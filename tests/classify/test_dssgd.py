"""Selective sharing helps its participants; with noise every upload is paid for, and the paper's claim is refuted."""

import math

import pytest
import torch
from scipy.stats import kstest

import idpgan
from idpgan import trainer
from idpgan.attacks.adversarial import accuracy
from idpgan.audit.entry import Request
from idpgan.classify.dssgd import Sharing
from idpgan.commands.audit import audit_entry
from idpgan.data.load import load
from idpgan.errors import ConfigError, InputError
from idpgan.models.private_classifier import ReluMlp, described_classifier
from idpgan.privacy import Noise
from idpgan.training.config import build_config, load_method, refuse_unsound
from idpgan.training.plan import plan_run
from idpgan.training.state import nonfinite
from tests.classify.test_release import said
from tests.classify.test_steps import split_of
from tests.release.forging import verdict


def config_of(steps=6, epsilon=None, **method):
    return build_config(
        {
            "data": {"name": "digits"},
            "method": {"name": "dssgd", "width": 4, "participants": 4, **method},
            "privacy": {"accept_unsound": True} | ({} if epsilon is None else {"epsilon": epsilon}),
            "training": {"steps": steps, "tick_steps": 2},
        },
        "test",
    )


def trained(config, split, steps=None):
    method = load_method("dssgd").Method.of(config, split, device=torch.device("cpu"), noise=Noise.fixed(1))
    for step in range(1, (config.training.steps if steps is None else steps) + 1):
        method.step(step)
    return method


@pytest.mark.trained
def test_sharing_a_tenth_is_better_than_learning_alone():
    settings = {"participants": 8}
    split = load(config_of().data)
    holdout = split.holdout
    together = trained(config_of(8, **settings), split)
    shards = [together.shard(participant) for participant in range(8)]
    assert torch.cat(shards).sort().values.equal(torch.arange(split.num_private))  # disjoint, and all
    alone = []
    for shard in shards[:1]:
        few = type(split)(split.public, split.private.select(shard), holdout, split.test)
        alone.append(trained(config_of(8, participants=1, upload_share=1.0, bound=1.0), few))
    accuracies = [accuracy(method.product, holdout.images, holdout.labels) for method in (together, *alone)]
    assert accuracies[0] > max(accuracies[1:]) + 0.1


@pytest.mark.parametrize("order", ["round-robin", "random", "asynchronous"])
@pytest.mark.parametrize("selection", ["largest", "random"])
def test_a_round_uploads_what_it_may(order, selection):
    method = trained(config_of(order=order, selection=selection, download_share=0.5, bound=1e-3), split_of(24), 0)
    before = torch.nn.utils.parameters_to_vector(method.newest.parameters()).detach().clone()
    stats = method.step(1)
    after = torch.nn.utils.parameters_to_vector(method.newest.parameters()).detach()
    assert 0 < float(stats["uploaded"]) <= method.sharing.uploads
    assert int((after != before).sum()) <= 4 * method.sharing.uploads
    assert float((after - before).abs().max()) <= 4 * 1e-3 + 1e-6


def test_the_largest_changes_are_chosen_and_clipped():
    sharing = Sharing(6, 2, 1.0, 0.1, True, None)
    change = torch.tensor([0.05, -3.0, 0.2, 0.0, 0.5, -0.4])
    assert sharing.select(change, torch.Generator()).tolist() == [0, -1.0, 0, 0, 0.5, 0]
    any_two = Sharing(6, 2, 1.0, 0.3, False, None)
    seen = {tuple(any_two.select(change, torch.Generator().manual_seed(n)).nonzero()[:, 0].tolist()) for n in range(60)}
    assert seen == {(1, 4), (1, 5), (4, 5)}  # those above the threshold


SHARING = Sharing(40, 10, 0.01, 0.002, True, 5.0)


def test_the_price_is_that_of_all_uploads():
    assert SHARING.event.pure == pytest.approx(5.0, rel=1e-5)
    assert SHARING.event.pure <= 5.0
    config = config_of(7, epsilon=5.0)
    shape = split_of(24).shape
    (planned,) = plan_run(config, shape).events
    assert planned.count * planned.pure == pytest.approx(35.0, rel=1e-3)
    (raw,) = plan_run(config_of(7), shape).events
    assert raw.pure == math.inf


def test_uploads_have_their_noise_and_stay_within_the_bound():
    changes = torch.full((2000, 40), 0.004)
    exact = Sharing(40, 10, 0.01, 0.002, True, 1e7).release(changes, Noise.fixed(1))
    assert (exact != 0).sum(1).tolist() == [10] * 2000  # every change is above the threshold
    assert torch.allclose(exact[exact != 0], torch.tensor(0.004), atol=1e-5)
    assert (exact != 0).double().mean(0).std() < 0.02  # blocks are random: no parameter is preferred
    wide = Sharing(40, 10, 0.01, 0.002, True, 400.0)
    noisy = wide.release(changes, Noise.fixed(2))
    assert noisy.abs().max() <= 0.01
    drawn = (noisy[noisy != 0] - 0.004).double()
    scale = wide.scales[2] / 2**16 * 0.01
    inside = drawn[drawn.abs() < 0.005] / scale  # not clipped
    folded = -(-inside.abs()).expm1() / -math.expm1(-0.005 / scale)
    assert kstest(folded.numpy(), "uniform").pvalue > 1e-3
    silent = Sharing(40, 10, 0.01, 0.009, True, 1e7).release(changes, Noise.fixed(3))
    assert not silent.any()
    diverged = Sharing(40, 10, 0.01, 0.002, True, 1e7).release(changes * math.nan, Noise.fixed(1))
    assert not diverged.any()  # as a change of 0: whether a run goes on must not depend on it


def test_an_audit_refutes_the_claim_per_parameter_and_not_the_proof():
    audited = audit_entry("dssgd").case("dssgd", Request(3000.0)).run(800, seed=1)
    assert audited.case.claimed.epsilon == pytest.approx(3.0)
    assert audited.case.proven.epsilon <= 3000.0
    assert audited.exceeds_claim
    assert not audited.violation


def test_a_resumed_training_goes_on_as_if_nothing_had_happened():
    split, config = split_of(24), config_of(4, epsilon=1e5, download_share=0.5, order="random")
    whole, half = trained(config, split), trained(config, split, 2)
    again = trained(config, split, 0)
    again.load_state(half.state())
    for step in (3, 4):
        again.step(step)
    for one, other in zip(whole.newest.parameters(), again.newest.parameters(), strict=True):
        assert torch.equal(one, other)


def test_null_records_are_not_trained_on():
    split = split_of(24)
    empty = type(split)(split.public, split.private.zeroed_out(torch.arange(24)), split.holdout, split.test)
    method = trained(config_of(), empty, 0)
    before = [weight.detach().clone() for weight in method.newest.parameters()]
    method.step(1)
    assert all(torch.equal(a, b) for a, b in zip(before, method.newest.parameters(), strict=True))


@pytest.mark.parametrize("order", ["round-robin", "random", "asynchronous"])
def test_a_null_record_changes_what_its_own_participant_does_and_nothing_else(order):
    split, config = split_of(24), config_of(order=order, download_share=0.5, upload_share=1e-6)
    neighbor = type(split)(split.public, split.private.zeroed_out(torch.tensor([4])), split.holdout, split.test)
    present, absent = (trained(config, each, 0) for each in (split, neighbor))
    for method in (present, absent):
        method._upload = torch.zeros_like  # so that participants see nothing of each other
        for step in (1, 2):
            method.step(step)
    same = [torch.equal(a, b) for a, b in zip(present._local, absent._local, strict=True)]
    assert same == [False, True, True, True]  # position 4 lies with participant 0


def test_a_participant_that_diverges_ends_nothing():
    split, config = split_of(24), config_of(epsilon=1e5, learning_rate=1e38, local_batch_size=2, download_share=0.5)
    method = trained(config, split, 0)
    for step in (1, 2):
        stats = method.step(step)
    assert all(value.isfinite() for value in stats.values())
    assert not nonfinite(method.state())


@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_a_run_is_released_as_what_it_is(epsilon, tmp_path):
    path = trainer.start(config_of(2, epsilon=epsilon), tmp_path / "run").run.path
    assert verdict(path) == ""
    privacy = idpgan.load_classifier(path).privacy
    if epsilon is None:
        assert (privacy.private, privacy.claimed) == (False, None)
        assert privacy.proven.epsilon == math.inf
    else:
        assert 5.9 < privacy.proven.epsilon <= 6.0
        assert privacy.claimed.epsilon < 0.1
        code, out, _ = said("audit", path, "--runs", 200, "--seed", 1)
        assert code == 0
        assert "one round is played" in out


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="Lower it"):
        plan_run(config_of(participants=25), split_of(24).shape).check()
    with pytest.raises(ConfigError, match="unsound"):
        refuse_unsound(config_of().model_copy(update={"privacy": type(config_of().privacy)()}))
    with pytest.raises(InputError, match="no guarantee"):
        audit_entry("pgd")


def test_the_network_of_the_papers_mlp_has_its_weights():
    """Shokri and Shmatikov 2015, section 7: 140,106 weights for MNIST at 32 x 32, 402,250 for SVHN."""
    for shape, weights in (((1, 32, 32), 140_106), ((3, 32, 32), 402_250)):
        network = ReluMlp(shape, tuple("0123456789"))
        assert sum(weight.numel() for weight in network.parameters()) == weights
    method = trained(config_of(1, network="mlp", width=2), split_of(24))
    assert method.product.network == "relu-mlp"
    assert described_classifier("relu-mlp", method.product.options(), (1, 8, 8), method.product.classes)
