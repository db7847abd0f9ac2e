"""idp-gan-aggregate that starts from evolution's population: one price for sums and votes, and what is refused."""

import copy
import json

import pytest
import torch

from idpgan import trainer
from idpgan.audit.entry import Request
from idpgan.commands.audit import run_case
from idpgan.data.images import to_uint8
from idpgan.data.load import load
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models import build_generator
from idpgan.privacy import Budget, BudgetError, Ledger, Noise, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.synthesis.aggregate import method as aggregate
from idpgan.synthesis.aggregate.config import voting_of
from idpgan.synthesis.aggregate.method import IdpAggregate
from idpgan.synthesis.audit import sums_and_votes_case
from idpgan.synthesis.follow import running_sums
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

FACES = {"name": "faces", "num_images": 80, "num_people": 20, "image_size": [28, 28], "label": ["smiling"]}
FACES |= {"split_by": "identity", "holdout_share": 0.0, "channels": 1}


def config_of(share=0.4, method=None, evolution=None, model=None, privacy=None, data=None, training=None):
    evolution = {"codes": 6, "steps": 3, "images": 60} | (evolution or {})
    method = {"name": "idp-gan-aggregate", "evolution_share": share, "evolution": evolution} | (method or {})
    table = {
        "data": data or {},
        "model": {"generator": "warp", "latent_dim": 4, "codes": 4, "width": 4, "simulator": "fonts"} | (model or {}),
        "method": {"moments": 6, "fourier": 20, "metric": "none", "pretrain_steps": 4} | method,
        "privacy": {"epsilon": 3.0, "delta": 1e-5} | (privacy or {}),
        "training": {"device": "cpu", "steps": 3, "batch_size": 20} | (training or {}),
        "release": {"samples": 10},
    }
    return build_config(table, "a test")


def made(config, epsilon=3.0, noise=None):
    ledger = Ledger(config.privacy.unit, config.privacy.relation, Budget(epsilon, 1e-5))
    return IdpAggregate.of(config, load(config.data), ledger=ledger, device=torch.device("cpu"), noise=noise)


PERSON = {"data": FACES, "model": {"simulator": "faces"}, "privacy": {"unit": "person", "most_per_person": 3}}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"share": 0.9},
        {"privacy": {"relation": "replace-one"}},
        {"method": {"teacher_share": 0.3}},
        PERSON,
    ],
)
def test_sums_votes_and_teacher_together_cost_what_was_asked(keys):
    config = config_of(**keys)
    plan = plan_run(config, load(config.data).shape)
    events = plan.events
    assert [event.count for event in events][-1] == 3
    assert len(events) == (3 if config.method.teacher_share else 2)
    assert 0.99 * 3 < compose_epsilon(events, 1e-5) <= 3
    parts = [compose_epsilon([event], 1e-5) for event in events]
    assert all(0.2 < part < 2.95 for part in parts)  # control: each of them is a real part of it
    assert {(event.unit, event.relation) for event in events} == {(plan.price.unit, plan.price.relation)}


def test_a_run_ends_with_a_verified_release_whose_audit_stays_below_the_proof(tmp_path):
    config = config_of()
    trainer.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    stated = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert [(event["kind"], event["count"]) for event in stated["events"]] == [("gaussian", 1), ("gaussian", 3)]
    assert 0.99 * 3 < stated["report"]["proven"]["epsilon"] <= 3
    assert any("the program that draws fonts" in text for text in stated["report"]["public_assumptions"])
    case = run_case(tmp_path / "run")
    assert case.events == plan_run(config, load(config.data).shape).events


@pytest.mark.parametrize("keys", [{}, {"privacy": {"relation": "replace-one"}}, PERSON])
def test_the_audit_of_both_comes_near_the_proof_and_not_above(keys):
    config = config_of(**keys)
    sums = plan_run(config, load(config.data).shape).sums
    voting, request = voting_of(config.method, config.privacy), Request(3.0, 1e-5)
    case = sums_and_votes_case(sums, voting, 0.0, request)
    audited = case.run(20_000, seed=1)
    assert 0.8 * audited.proven_mu < audited.result.separation.mu_lower <= audited.proven_mu
    alone = compose_epsilon([sums.event], 1e-5)
    assert alone < 0.9 * case.proven.epsilon  # what is proven is of both
    assert audited.result.epsilon_lower > 0


def test_the_generator_learns_from_what_was_chosen(monkeypatch):
    """It is pre-trained on the population's images, those of all its classes, and not on public ones."""
    learned = []
    monkeypatch.setattr(aggregate, "pretrain_codes", lambda generator, images, **_: learned.append(images))
    data = {"public_share": 0.2, "confirm_public": True}
    config = config_of(data=data, evolution={"images": 300})
    method = made(config, noise=Noise.fixed(1))
    assert method._pretrained
    method.prepare()
    population = build_generator(config.evolution_part().model, (1, 8, 8), 10)
    stored = {name[11:]: part for name, part in method._released.items() if name.startswith("population.")}
    population.load_state_dict(stored)
    assert len(stored["members"].flatten(0, 1).unique(dim=0)) == 60
    assert torch.equal(learned[0].images, to_uint8(population.sample(300, seed=0)))
    assert learned[0].labels.bincount().tolist() == [30] * 10


def test_nothing_is_read_that_the_ledger_cannot_pay():
    method = made(config_of(), epsilon=2.9)
    with pytest.raises(BudgetError):
        method.prepare()
    assert method._private is not None  # never taken
    assert method.ledger.events == ()


def test_a_resumed_run_has_the_same_generator():
    config = config_of()
    first = made(config, noise=Noise.fixed(1))
    first.prepare()
    first.step(1)
    second = made(config, noise=Noise.fixed(1))
    second.load_state(copy.deepcopy(first.state()))
    first.step(2), second.step(2)
    assert torch.equal(first.generator.sample(5, seed=0), second.generator.sample(5, seed=0))


def test_without_a_share_there_are_no_votes():
    config = config_of(share=0.0)
    assert config.evolution_part() is None
    assert voting_of(config.method, config.privacy) is None
    assert len(plan_run(config, load(config.data).shape).events) == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": {"generator": "dcgan"}}, r'is for what a "warp" generator is pre-trained on'),
        ({"method": {"pretrain_steps": 0}}, r"method\.pretrain_steps above 0"),
        ({"method": {"law": "laplace"}}, "needs Gaussian noise"),
        ({"privacy": {"delta": 0.0}}, "needs Gaussian noise"),
        ({"share": 0.7, "method": {"teacher_share": 0.3}}, r"together they may be 0\.95 at most"),
        ({"evolution": {"looks": {"0": "smiling"}}}, 'is nothing that model.simulator = "fonts" knows'),
        ({"model": {"simulator": "generator"}}, r"name its folder as data\.public_generator"),
    ],
)
def test_settings_that_cannot_be_are_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        config_of(**keys)


def test_what_the_data_cannot_give_is_refused():
    with pytest.raises(ConfigError, match="needs public images"):
        made(config_of(model={"simulator": "public"}))
    with pytest.raises(ConfigError, match="less than one image for each of the 10 classes"):
        made(config_of(evolution={"images": 9}))
    config = config_of()
    with pytest.raises(ConfigError, match="a stream releases sums and takes no votes"):
        running_sums(config, load(config.data), 2)
    with pytest.raises(ConfigError, match="hybrid takes no votes"):
        build_config(
            {
                "method": {"name": "hybrid", "aggregate": {"evolution_share": 0.2}},
                "privacy": {"epsilon": 3.0, "delta": 1e-5, "sample_rate": 0.1},
            },
            "a test",
        )


def test_units_and_relations_are_those_of_the_config():
    assert config_of(**PERSON).evolution_part().privacy.unit is Unit.PERSON
    assert config_of(privacy={"relation": "replace-one"}).evolution_part().privacy.relation is Relation.REPLACE_ONE
