"""From config to a verified release: units, simulators, resume, and what is refused."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from idpgan import trainer
from idpgan.commands.audit import run_case
from idpgan.data.load import known_shape, load
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models import load_generator
from idpgan.privacy import Noise
from idpgan.removed import gone
from idpgan.synthesis import evolution
from idpgan.trainer import load_config
from idpgan.trainer import plan as price
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

FACES = {"name": "faces", "num_images": 80, "num_people": 20, "image_size": [24, 20], "label": ["smiling"]}
FACES |= {"split_by": "identity", "holdout_share": 0.0, "channels": 1}


def table_of(**sections):
    table = {
        "model": {"generator": "population", "simulator": "fonts", "codes": 10},
        "method": {"name": "evolution"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5},
        "training": {"device": "cpu", "steps": 3},
        "release": {"samples": 10},
    }
    return {name: table.get(name, {}) | sections.get(name, {}) for name in {**table, **sections}}


def config_of(**sections):
    return build_config(table_of(**sections), "a test")


def test_a_run_ends_with_a_verified_release_that_draws_more(tmp_path):
    finished = trainer.start(config_of(), tmp_path / "run")
    assert (finished.outcome.step, finished.outcome.ended, finished.released) == (3, "finished", True)
    assert verify(tmp_path / "run").problems == ()
    generator = load_generator(tmp_path / "run")
    images = generator.sample(200, seed=0)
    assert images.shape == (200, 1, 8, 8)
    assert len(images.unique(dim=0)) > 190  # more than the 100 members: variations
    stated = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert [(event["kind"], event["count"]) for event in stated["events"]] == [("gaussian", 3)]
    assert 0.99 * 3.0 < stated["report"]["proven"]["epsilon"] <= 3.0
    case = run_case(tmp_path / "run")
    assert (case.method, case.events[0].count) == ("evolution", 3)
    assert case.run(4000, seed=1).result.epsilon_lower <= case.proven.epsilon <= 3.0


def test_forged_members_are_found_out(small_run, tmp_path):
    weights = shutil.copytree(small_run("evolution"), tmp_path / "run") / "release" / "generator.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert verify(tmp_path / "run").problems[0].startswith("generator.safetensors was changed after the release:")


@pytest.mark.parametrize("unit", ["image", "person"])
@pytest.mark.parametrize("relation", ["zero-out-one", "replace-one"])
def test_drawn_faces_by_unit_and_relation(tmp_path, unit, relation):
    model = {"simulator": "faces", "codes": 8}
    privacy = {"unit": unit, "relation": relation, "most_per_person": 3}
    training = {"steps": 2}
    config = config_of(data=FACES, model=model, privacy=privacy, training=training)
    trainer.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    stated = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert (stated["unit"], stated["relation"]) == (unit, relation)


@pytest.mark.parametrize("channels", [1, 3])
def test_public_images_are_moved_and_only_those_of_members_are_released(tmp_path, channels):
    data = FACES | {"channels": channels, "public": "faces", "public_images": 50}
    config = config_of(data=data, model={"simulator": "public", "codes": 8}, training={"steps": 2})
    trainer.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    generator = load_generator(tmp_path / "run")
    assert generator.simulator.photos.shape == (16, channels, 24, 20)
    public = load(config.data).public.images.flatten(1)
    assert all(bool((public == photo).all(1).any()) for photo in generator.simulator.photos.flatten(1))
    assert generator.sample(2, seed=0).shape == (2, channels, 24, 20)


def test_labels_of_public_images_say_where_a_class_begins():
    looks = {"not smiling": "not smiling", "smiling": "smiling"}
    data = FACES | {"public": "faces", "public_images": 50}
    names = load(config_of(data=data, model={"simulator": "public"}).data).classes
    data["public_labels"] = dict(zip(names, looks.values(), strict=True))
    config = config_of(data=data, model={"simulator": "public", "codes": 8})
    split = load(config.data)
    method = evolution.Method.of(config, split, device=torch.device("cpu"))
    for row in range(2):
        assert (split.public.labels[method._simulator.chosen(method._members[row])] == row).all()


@pytest.mark.trained
@pytest.mark.parametrize(("epsilon", "runs"), [(10.0, 9), (0.01, 9)])  # control: noise alone does not choose
def test_the_votes_choose_what_is_there(epsilon, runs):
    """Private digits are thick: so are the members after some iterations, though all kinds are drawn; on average."""
    split = load(config_of(data=FONTS).data)
    ink = split.private.images.float().mean((1, 2, 3))
    split = dataclasses.replace(split, private=split.private.zeroed_out(ink < ink.quantile(0.85)))
    above = sum(ink_above_the_start(split, epsilon, seed) for seed in range(runs)) / runs
    assert (above if epsilon > 1 else -above) > 0


FONTS = {"name": "fonts", "num_images": 2400, "image_size": 12}


def ink_above_the_start(split, epsilon, seed):
    """Median ink of what four iterations end with, above that of all but a third of what they begin with."""
    training = {"steps": 4, "seed": seed}
    config = config_of(data=FONTS, model={"codes": 16}, privacy={"epsilon": epsilon}, training=training)
    method = evolution.Method.of(config, split, device=torch.device("cpu"), noise=Noise.fixed(seed))

    def ink():
        return method.generator.sample(200, seed=0).add(1).mul(127.5).mean((1, 2, 3))

    before = ink()
    for step in range(1, 5):
        method.step(step)
    return float(ink().median() - before.quantile(0.65))


def test_a_class_begins_with_its_look_and_the_charge_comes_before_the_read():
    config = config_of(data=FACES, model={"simulator": "faces", "codes": 8})
    split = load(config.data)
    method = evolution.Method.of(config, split, device=torch.device("cpu"))
    assert method._simulator.has_look(method._members[1], "smiling").all()
    assert method._records is None  # nothing private was read by making it
    method.prepare()
    assert method._records is None


def test_a_dry_run_states_the_price_of_all_iterations():
    plan = price(config_of(training={"steps": 5}))
    assert plan.events[0].count == 5
    assert 0.99 * 3.0 < plan.price.epsilon <= 3.0
    assert plan.signal.source == "the votes"


def test_a_resumed_run_goes_on_as_if_nothing_had_happened():
    """The state carries what the next iterations need: with equal noise they are equal, bit for bit."""
    config = config_of(training={"steps": 4})
    split = load(config.data)

    def new():
        return evolution.Method.of(config, split, device=torch.device("cpu"), noise=Noise.fixed(5))

    whole, first, second = new(), new(), new()
    for step in range(1, 5):
        whole.step(step)
    first.step(1)
    first.step(2)
    second.load_state(first.state())
    second.step(3)
    second.step(4)
    assert torch.equal(whole._members, second._members)
    assert torch.equal(whole.generator.shares, second.generator.shares)


def test_noise_of_a_fixed_seed_is_never_called_private():
    config = config_of()
    method = evolution.Method.of(config, load(config.data), device=torch.device("cpu"), noise=Noise.fixed(1))
    method.ledger.charge(method.step_event())
    method.step(1)
    assert not method.privacy().private


def test_the_configs_are_read():
    for path in sorted((Path(__file__).parents[3] / "configs").glob("*evolution*.toml")):
        assert load_config(path).method.name == "evolution"


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"generator": "dcgan"}}, r"model\.generator = dcgan, but method evolution trains no network"),
        ({"privacy": {"delta": 0.0}}, r"privacy\.delta = 0"),
        ({"privacy": {"unit": "person"}}, r'data\.split_by = "identity"'),
    ],
)
def test_settings_that_cannot_be_are_refused(sections, words):
    with pytest.raises(ConfigError, match=words):
        config_of(**sections)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"simulator": "public"}}, "needs public images, and there are none"),
        ({"model": {"simulator": "faces"}}, "16 pixels a side or more"),
    ],
)
def test_what_the_data_cannot_give_is_refused_before_it_is_read(sections, words):
    config = config_of(**sections)
    with pytest.raises(ConfigError, match=words):
        plan_run(config, known_shape(config.data)).check()


def test_portraits_are_no_longer_drawn_by_a_run():
    config = config_of(model={"simulator": "people"}, data=FACES)
    with pytest.raises(ConfigError, match=re.escape(gone('model.simulator = "people"'))):
        plan_run(config, known_shape(config.data)).check()
