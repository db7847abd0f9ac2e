"""Votes for the layers that LoRA stands beside: what a record can change, what they cost, and that they choose."""

import dataclasses

import pytest
import torch

from idpgan import load_generator, trainer
from idpgan.commands.audit import run_case
from idpgan.data.images import to_float
from idpgan.errors import ConfigError
from idpgan.models.adapters import adapt, trained_weights, voted
from idpgan.models.diffusion import ResidualNetwork
from idpgan.privacy import compose_epsilon
from idpgan.synthesis.diffusion.votes import keep_chosen, release_votes
from idpgan.synthesis.moments import private_moments
from idpgan.training.plan import plan_run
from tests.release.forging import verdict
from tests.synthesis.test_adapters import DELTA, base, config_of, method_of  # noqa: F401
from tests.synthesis.test_diffusion import few

VOTES = "votes:2:1"


@pytest.fixture
def method(base):  # noqa: F811
    return method_of(config_of(base, ["labels", VOTES]))


def votes_of(found, images, labels):
    return found(to_float(images), labels)


def test_each_record_has_its_votes_and_no_record_moves_the_counts_by_more_than_a_unit(method):
    found, private = method._vote_map(), few().private
    extremes = torch.tensor([0, 255]).repeat(32).view(1, 1, 8, 8).to(torch.uint8)
    records = torch.cat([private.images[:60], extremes, 255 - extremes, torch.zeros_like(extremes)])
    labels = torch.cat([private.labels[:60], torch.tensor([9, 9, 9])])
    votes = votes_of(found, records, labels)
    assert votes.shape == (63, len(voted(method.newest.network)))
    assert (votes > 0).sum(1).tolist() == [2] * 63
    assert votes.square().sum(1).sqrt() == pytest.approx(1, abs=1e-12)
    assert (votes > 0).double().mean(0).std() > 0.05  # they agree on something
    for i in (0, 60, 61):  # the votes of the others stay when a record is another
        changed = records.clone()
        changed[i] = 255 - records[i]
        other = votes_of(found, changed, labels)
        rest = torch.arange(63) != i
        assert torch.equal(other[rest], votes[rest])


def test_a_record_that_breaks_the_arithmetic_still_has_its_votes_and_a_null_one_has_none(method):
    found, private = method._vote_map(), few().private
    found._loss = lambda weights, *record: method.record_loss(weights, *record) * float("nan")
    assert votes_of(found, private.images[:5], private.labels[:5]).square().sum(1) == pytest.approx(1)
    null = private.zeroed_out(torch.arange(200) == 3)
    vectors = torch.cat([part for part, _, _ in private_moments(null, found, conditional=True, cap=None, tile=50)])
    assert (vectors[3].any().item(), vectors[4].any().item()) == (False, True)


def test_the_noisy_counts_are_those_of_the_records_and_the_layers_with_most_are_kept(base):  # noqa: F811
    method = method_of(config_of(base, VOTES, privacy={"epsilon": 1e5}, vote_share=0.5))
    private, found, sums = few().private, method._vote_map(), method.plan.votes
    counts = release_votes(sums, found, private, 50, method.noise)
    alone = votes_of(found, private.images, private.labels).sum(0)
    assert (counts - alone).abs().max() < 6 * sums.noise_std + 1e-3
    method.prepare()
    method.step(1)
    first = set(counts.topk(2).indices.tolist())
    for place, layer in enumerate(voted(method.newest.network).values()):
        assert bool(layer.up.weight.any()) == (place in first)
    assert len(trained_weights(method.newest.network)) == 4
    flat = method._vote_map()
    flat.usual = torch.ones_like(flat.usual)
    flat.usual[5] = 1e-9  # longest against what is usual: all vote for it
    assert (votes_of(flat, private.images, private.labels)[:, 5] > 0).all()


def test_votes_are_paid_from_their_share_and_with_the_steps_keep_to_the_budget(base):  # noqa: F811
    for start in (0.0, 0.4):
        plan = plan_run(config_of(base, VOTES, start_share=start, vote_share=0.2), few().shape)
        kinds = [*(["gaussian"] if start else []), "gaussian", "poisson-gaussian"]
        assert [event.kind for event in plan.events] == kinds
        assert 0.99 * 8 <= compose_epsilon(plan.events, DELTA) <= 8
        assert plan.votes.event.noise_multiplier == pytest.approx(plan.multiplier / 0.2**0.5, rel=1e-3)
    assert plan_run(config_of(base, "lora:1"), few().shape).votes is None


def test_the_plan_counts_the_largest_layers_that_votes_can_choose(base):  # noqa: F811
    plan = plan_run(config_of(base, VOTES), few().shape)
    network = ResidualNetwork((1, 8, 8), 8, 10, seed=0)
    adapt(network, [VOTES])
    for layer in (0, len(voted(network)) - 1):
        keep_chosen(network, torch.eye(len(voted(network)))[layer] + torch.arange(len(voted(network))) * 1e-3, 2)
        assert sum(weight.numel() for weight in trained_weights(network).values()) <= plan.num_weights
    assert plan.num_weights < plan_run(config_of(base, "lora:1"), few().shape).num_weights


@pytest.mark.parametrize(
    ("trained", "method", "words"),
    [
        ("votes:90:1", {}, "chooses among"),
        (["votes:2:1", "votes:1:2"], {}, "one part"),
        (VOTES, {"start_share": 0.5, "vote_share": 0.5}, "vote_share = 0.5 leave nothing"),
    ],
)
def test_refusals_name_what_to_change(base, trained, method, words):  # noqa: F811
    with pytest.raises(ConfigError, match=words):
        plan_run(config_of(base, trained, **method), few().shape).num_weights  # noqa: B018


def test_a_state_with_votes_is_taken_up_again(base):  # noqa: F811
    config = config_of(base, ["labels", VOTES])
    first, again = method_of(config), method_of(config)
    first.prepare()
    first.step(1)
    again.dpsgd = shared = dataclasses.replace(again.dpsgd, divisor=7)  # as another rank has its own
    again.load_state(first.state())
    assert again.dpsgd is shared
    assert again._trainer is again._optimizer
    for kind in ("newest", "generator"):
        found = [trained_weights(getattr(method, kind).network) for method in (first, again)]
        assert found[0].keys() == found[1].keys()
        assert all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())


def test_the_release_verifies_and_the_audit_plays_the_votes(base, tmp_path):  # noqa: F811
    config = config_of(base, ["labels", VOTES])
    finished = trainer.start(config, tmp_path / "run")
    assert verdict(finished.run.release) == ""
    assert "noisy votes for 2 layers" in finished.privacy.reason
    known, found = (load_generator(path).network.state_dict() for path in (base, finished.run.release))
    changed = {name for name in known if not torch.equal(known[name], found[name])}
    label_rows = {"kept.weight", "known.0.weight", "known.1.weight", "known.2.weight"}
    assert len(changed - label_rows) <= 2
    case = run_case(tmp_path / "run")
    assert [event.kind for event in case.events] == ["gaussian", "poisson-gaussian"]
    assert 0.97 * 8 <= case.proven.epsilon <= 8
