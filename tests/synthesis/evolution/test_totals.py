"""What a receiver holds in total: at every way in by which one release comes into another."""

import dataclasses
import json
import re
import shutil

import pytest

from idpgan import trainer
from idpgan.commands import main
from idpgan.config import dump_toml
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.errors import ConfigError, InputError
from idpgan.kinds import verify
from idpgan.models import load_generator, save_generator
from idpgan.privacy import BudgetError, Event, Guarantee, Ledger, Noise, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.totals import Part, total
from idpgan.privacy.tradeoff import Risk
from idpgan.publish import release
from idpgan.release.contained import contained_in
from idpgan.release.export import export_samples
from idpgan.release.statement import read_privacy
from idpgan.run import RunFolder
from idpgan.trainer import load_config
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.neighbors.folders import data_of, write_classes
from tests.release.forging import config as forged_config
from tests.release.forging import edit, raw, verdict
from tests.synthesis.evolution.test_run import FACES, table_of

DIGITS = {"name": "digits"}
FIRST = {
    "data": DIGITS,
    "model": {"generator": "gaussian", "latent_dim": 12},
    "method": {"name": "gaussian"},
    "privacy": {"epsilon": 5.0, "delta": 1e-5},
    "training": {"device": "cpu"},
    "release": {"samples": 10},
}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run at epsilon 5 on the digits."""
    run = tmp_path_factory.mktemp("first") / "run"
    trainer.start(build_config(FIRST, "a test"), run)
    return run


@pytest.fixture(scope="module")
def second(tmp_path_factory, first):
    """A run at epsilon 5 on the same digits, whose release holds the generator of the first."""
    folder = tmp_path_factory.mktemp("second")
    trainer.start(config_of(folder, data={"public_generator": first}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, first):
    """Images that were drawn from the first run's generator."""
    out = tmp_path_factory.mktemp("drawn") / "images"
    export_samples(first, 60, out, seed=1)
    (out / "metadata.csv").unlink()  # the folders say what the classes are
    return out


def config_of(folder, table=None, **sections):
    """Read a config as the command does; evolution on the digits at epsilon 5 unless a table or sections say more."""
    if table is None:
        simulator = "public" if "public_root" in sections["data"] else "generator"
        model = {"simulator": simulator} | sections.pop("model", {})
        privacy = {"epsilon": 5.0} | sections.pop("privacy", {})
        table = table_of(model=model, privacy=privacy, **sections)
        table["data"] = DIGITS | sections["data"]
    settings = [
        f"{name}.{key}={json.dumps(value if isinstance(value, bool | int | float | dict | list) else str(value))}"
        for name, section in table.items()
        for key, value in section.items()
    ]
    (folder / "config.toml").write_text("")
    return load_config(folder / "config.toml", settings)


def said_in(release):
    return read_privacy(release / "privacy.json").report.to_json()


def test_five_that_contains_five_says_seven_and_a_half(second, tmp_path, capsys):
    """It said 5, and held the first generator bit for bit."""
    report = said_in(second / "release")
    assert report["proven"]["epsilon"] == pytest.approx(5, rel=1e-3)
    assert [each["epsilon"] for each in report["contained"]] == [pytest.approx(5, rel=1e-3)]
    assert report["total"]["epsilon"] == pytest.approx(7.54, abs=0.005)
    assert (report["total"]["delta"], report["total"]["unit"]) == (1e-5, "image")
    own = read_privacy(second / "release" / "privacy.json").events
    listed = json.loads((second / "release" / "config.json").read_text())["settings"]["contained"]
    events = [*own, *map(Event.from_json, listed[0]["events"])]
    assert report["total"]["epsilon"] == compose_epsilon(events, 1e-5)
    risk = json.loads((second / "release" / "privacy.json").read_text())["risk"]
    assert risk == Risk.of(events).to_json()  # of both: a receiver has both
    assert risk["best_guess"] > Risk.of(events[:1]).best_guess
    card = (second / "release" / "README.md").read_text()
    assert "| contained: another release | epsilon = 5, delta = 1e-05" in card
    assert "| **in total** | epsilon = 7.537, delta = 1e-05; unit: image; zero-out-one" in card
    assert "in total: epsilon = 7.537" in repr(load_generator(second)) + str(verify(second).report)
    for command in (["verify", second], ["sample", second, "--num", "10", "--out", tmp_path / "images"]):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in command])
        assert not ended.value.code
        last = capsys.readouterr().out.splitlines()[-1]
        assert "epsilon = 5, delta = 1e-05" in last
        assert "in total: epsilon = 7.537, delta = 1e-05" in last
    for path in (tmp_path / "images" / "README.md", tmp_path / "images" / "manifest.json"):
        assert "7.53" in path.read_text()


def test_the_command_says_it_before_and_after_the_run(first, tmp_path, capsys):
    settings = [f"data.public_generator={first}", "data.name=digits", "model.simulator=generator", "training.steps=2"]
    settings += ["privacy.epsilon=5.0", "training.device=cpu", "model.codes=5", "release.samples=10"]
    for more in (["--dry-run"], ["--out", str(tmp_path / "run")]):
        with pytest.raises(SystemExit) as ended:
            main(["train", "digits-evolution", *settings, *more])
        assert not ended.value.code
        told = capsys.readouterr().out
        line = next(line for line in told.splitlines()[::-1] if "epsilon = 5" in line)
        assert re.search(r"[Ii]n total.* epsilon = 7\.5", line)
    assert "Proven: " in told.splitlines()[-1]


def test_its_charges_stand_on_the_ledger_before_all_others(second, first):
    books = json.loads(RunFolder.open(second).ledger.read_text())
    earlier = [Event.from_json(event) for event in books["contained"][0]["events"]]
    assert earlier == list(Ledger.open(RunFolder.open(first).ledger, books_owner(first)).events)
    config, ledger = load_config(second / "config.toml"), RunFolder.open(second).ledger
    planned = plan_run(config, load(config.data).shape).price
    assert Ledger.open(ledger, config.identity(), planned).contained == (Part(tuple(earlier), 1e-5),)
    with pytest.raises(InputError, match="other charges of contained releases than the config names"):
        Ledger.open(ledger, config.identity(), dataclasses.replace(planned, contained=()))
    spare = Ledger(Unit.IMAGE, Relation.ZERO_OUT, planned.budget, contained=planned.contained)
    spare.charge(planned.events[0])  # the target is for the run's own
    with pytest.raises(BudgetError):
        spare.charge(planned.events[0])


def books_owner(run):
    return load_config(run / "config.toml").identity()


def lower(document):
    document["report"]["total"]["epsilon"] = 5.0


def without_total(document):
    del document["report"]["total"], document["report"]["contained"]


def without_contained(content):
    content["settings"]["contained"] = []


def dearer(content):
    content["settings"]["contained"][0]["events"][0]["noise_multiplier"] = 0.8


def another(content):
    content["settings"]["contained"][0]["num_private"] = 12


def declared(content):
    content["settings"]["data"]["public_disjoint"] = True


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda release: edit(release, lower), "'total' is not what follows"),
        (lambda release: edit(release, without_total), "'contained' is not what follows"),
        (forged_config(without_contained), "the total is unknown"),
        (forged_config(dearer), "'total' is not what follows"),
        (forged_config(another), "the total is unknown"),
        (forged_config(declared), "is not what follows"),
        (lambda release: raw("README.md", (release / "README.md").read_text().replace("7.537", "5"))(release), "card"),
    ],
)
def test_a_total_that_was_edited_down_is_found_out(second, tmp_path, forge, words):
    shutil.copytree(second / "release", tmp_path / "release")
    assert verdict(tmp_path / "release") == ""
    forge(tmp_path / "release")
    assert words in verdict(tmp_path / "release")


def test_a_declaration_decides_and_stands_on_the_card(first, tmp_path):
    config = config_of(tmp_path, data={"public_generator": first, "public_disjoint": True})
    trainer.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    report = said_in(tmp_path / "run" / "release")
    assert "total" not in report
    assert "contained" not in report
    card = (tmp_path / "run" / "release" / "README.md").read_text()
    assert "that nobody of the private images is among the 1295 images" in card
    assert "in total" not in card
    assert trainer.plan(config).total is None
    assert len(config.contained) == 1  # carried along: the next one has other private images
    assert "contained" not in json.loads(RunFolder.open(tmp_path / "run").ledger.read_text())


def test_no_image_decides_what_counts_and_no_digest_of_one_is_released(tmp_path, first, second):
    """A record that is blanked is a neighbor: it must not change what is counted. No hash of the data may go out."""
    totals = []
    for name in ("whole", "blanked"):
        keys = write_classes(tmp_path / name)
        if name == "blanked":
            (tmp_path / name / "cat" / "003.png").write_bytes(b"")
        table = FIRST | {"data": data_of(keys)}
        made = tmp_path / f"{name}-first"
        trainer.start(build_config(table, "a test"), made)
        data = json.loads(json.dumps(table["data"], default=str)) | {"public_generator": tmp_path / "whole-first"}
        plan = trainer.plan(config_of(tmp_path, table_of(model={"simulator": "generator"}, data=data)))
        totals.append((plan.total, plan.price.epsilon, plan.price.events))
    assert totals[0] == totals[1]
    assert totals[0][0].epsilon > totals[0][1]
    folder = second / "release"
    files = json.loads((folder / "privacy.json").read_text())["files"]
    named = {*files.values(), json.loads((first / "release" / "privacy.json").read_text())["files"][WEIGHTS]}
    for name in ("privacy.json", "config.json", "README.md"):
        assert set(re.findall(r"\b[0-9a-f]{32,}\b", (folder / name).read_text())) <= named
    split = load(load_config(second / "config.toml").data)
    whole = b"".join(path.read_bytes() for path in folder.iterdir())
    assert split.digest.encode() not in whole


WEIGHTS = "generator.safetensors"


def test_a_chain_is_followed_whatever_was_declared_on_the_way(drawn, tmp_path):
    """The second says that nobody of its own images is in the first; the third has those of the first again."""
    data = DIGITS | {"public_root": drawn, "public_disjoint": True}
    table = FIRST | {"data": data, "model": {"generator": "gaussian", "latent_dim": 8}}
    trainer.start(config_of(tmp_path, table), tmp_path / "second")
    assert "total" not in said_in(tmp_path / "second" / "release")
    third = config_of(tmp_path, data={"public_generator": tmp_path / "second"})
    assert [each.method for each in third.contained] == ["gaussian", "gaussian"]
    total_of_three = trainer.plan(third).total
    assert total_of_three.epsilon == pytest.approx(9.65, abs=0.05)
    trainer.start(third, tmp_path / "third")
    assert verify(tmp_path / "third").problems == ()
    assert [each["epsilon"] for each in said_in(tmp_path / "third" / "release")["contained"]] == [
        pytest.approx(5, rel=1e-3)
    ] * 2


def test_a_new_run_does_not_trust_what_another_config_says_of_a_folder(drawn, tmp_path):
    config = config_of(tmp_path, data={"public_root": drawn})
    text = dump_toml(config.model_copy(update={"contained": ()}))
    (tmp_path / "edited.toml").write_text(text + "contained = []\n" if "contained" not in text else text)
    with pytest.raises(ConfigError, match="does not say what that one contains"):
        trainer.plan(load_config(tmp_path / "edited.toml"))


GAUSSIAN = {"kind": "gaussian", "unit": "image", "relation": "zero-out-one", "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"events": []}, "contained"),
        ({"events": [GAUSSIAN] * 21}, "contained"),
        ({"events": [GAUSSIAN | {"kind": "guess"}]}, "unknown event kind"),
        ({"events": [GAUSSIAN | {"colour": 1}]}, "not an event of this package"),
        ({"events": [GAUSSIAN, GAUSSIAN | {"unit": "person"}]}, "of one unit and one relation"),
        ({"events": [{"kind": "non-private", "unit": "image", "relation": "zero-out-one", "reason": []}]}, "a text"),
        ({"method": "gaussian\n\n# Free"}, "method"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_what_a_foreign_release_says_of_its_charges_is_checked(change, words):
    contained = {"method": "gaussian", "num_private": 5, "delta": 1e-5, "events": [GAUSSIAN]}
    assert len(build_config(table_of() | {"contained": [contained]}, "a test").contained) == 1
    with pytest.raises(ConfigError, match=words):
        build_config(table_of() | {"contained": [contained | change]}, "a test")


def test_many_kinds_of_charges_are_carried_as_one(second):
    """As those of idp-gan-published, where every pixel may have a price of its own."""
    found, stated = verify(second), read_privacy(second / "release" / "privacy.json")
    many = [Event("laplace", Unit.IMAGE, Relation.REPLACE_ONE, 100.0 + number) for number in range(30)]
    proven = Guarantee(compose_epsilon(many, 1e-5), 1e-5, Unit.IMAGE, Relation.REPLACE_ONE, "")
    report = dataclasses.replace(stated.report, proven=proven, contained=(), total=None)
    own, *_ = contained_in(stated.but(events=tuple(many), report=report), found.settings)
    assert [event["kind"] for event in own.events] == ["approximate"]
    assert own.part.proven.epsilon == pytest.approx(proven.epsilon, rel=1e-6)


# Public folders ------------------------------------------------------------------------------------------------


def test_drawn_images_as_a_public_folder_cost_what_their_generator_cost(drawn, tmp_path):
    config = config_of(tmp_path, data={"public_root": drawn, "public_license": "CC0 1.0"})
    said = "the images of data.public_root are public, license CC0 1.0:"
    assert any(said in text for text in trainer.sources(trainer.plan(config)))  # before anything is read
    trainer.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    report = said_in(tmp_path / "run" / "release")
    assert report["total"]["epsilon"] == pytest.approx(7.54, abs=0.005)
    assert any(said in text for text in report["public_assumptions"])


def test_a_publication_as_a_public_folder_costs_what_it_cost(tmp_path):
    faces = {name: value for name, value in FACES.items() if name != "label"} | {"image_size": [24, 24]}
    split = load(DataConfig(**faces | {"image_size": (24, 24)}))
    release(split.private.images[:40, 0].double() / 255, method="lap", epsilon=3.0).write(
        tmp_path / "published", "faces"
    )
    data = faces | {"public_root": tmp_path / "published" / "images"}
    with pytest.raises(ConfigError, match=r"nothing is proven for unit image.*public_disjoint = true"):
        trainer.plan(config_of(tmp_path, data=data, model={"conditional": False}))  # its unit is less than an image
    config = config_of(tmp_path, data=data | {"public_disjoint": True}, model={"conditional": False})
    assert trainer.plan(config).total is None
    assert config.contained[0].method == "lap"


def test_any_other_public_folder_is_public_by_the_word_of_who_names_it(drawn, tmp_path):
    for name in sorted(path.name for path in drawn.iterdir() if path.is_dir()):
        shutil.copytree(drawn / name, tmp_path / "plain" / name)
    (tmp_path / "manifest.json").write_text("[]")  # of another program
    words = {}
    for disjoint in (False, True):
        data = {"public_root": tmp_path / "plain", "public_disjoint": disjoint}
        config = config_of(tmp_path, data=data)
        assert config.contained == ()
        trainer.start(config, tmp_path / f"{disjoint}")
        assert verify(tmp_path / f"{disjoint}").problems == ()
        words[disjoint] = (tmp_path / f"{disjoint}" / "release" / "README.md").read_text()
    assert "that the images of data.public\\_root are public: the word of whoever made this release" in words[False]
    assert "and that nobody of the private ones is on them" in words[True]


# Other ways in -------------------------------------------------------------------------------------------------


def test_diffusion_counts_what_its_public_images_contain(drawn, tmp_path):
    table = {
        "data": DIGITS | {"public_root": drawn},
        "model": {"generator": "diffusion", "latent_dim": 4, "width": 4},
        "method": {"name": "diffusion"},
        "privacy": {"epsilon": 5.0, "delta": 1e-5},
        "training": {"device": "cpu", "steps": 3, "batch_size": 1290},
    }
    plan = trainer.plan(config_of(tmp_path, table))
    assert (plan.price.unit, plan.price.relation) == (Unit.IMAGE, Relation.ZERO_OUT)
    assert 7 < plan.total.epsilon < 10
    assert plan.price.epsilon <= 5


def test_a_reference_generator_comes_into_no_release(first, tmp_path):
    """`attack --train-reference` reads test images and holdout without a limit: it stays with the curator."""
    shutil.copytree(first, tmp_path / "run")
    reference = tmp_path / "run" / "reference"
    save_generator(reference, load_generator(first), extra={"curator_only": True})
    with pytest.raises(InputError, match="is not a release"):
        config_of(tmp_path, data={"public_generator": reference})
    export_samples(reference, 20, tmp_path / "images", seed=1)
    (tmp_path / "images" / "metadata.csv").unlink()
    with pytest.raises(ConfigError, match=r"of which nothing is proven.*public_disjoint = true"):
        trainer.plan(config_of(tmp_path, data={"public_root": tmp_path / "images"}))


def test_a_generator_of_ones_own_without_a_release_is_refused(first, tmp_path):
    save_generator(tmp_path / "mine", load_generator(first))
    with pytest.raises(InputError, match=r"is not a release: it holds no privacy\.json"):
        config_of(tmp_path, data={"public_generator": tmp_path / "mine"})


def test_what_proves_nothing_needs_the_declaration(tmp_path):
    small = {"model": {"generator": "dcgan", "width": 4, "latent_dim": 4}, "method": {"name": "wgan-gp"}}
    small |= {"training": {"device": "cpu", "steps": 1, "batch_size": 10}, "release": {"samples": 10}}
    trainer.start(build_config({"data": DIGITS} | small, "a test"), tmp_path / "unsound")
    data = {"public_generator": tmp_path / "unsound"}
    for more in ({}, {"confirm_public": True}):
        with pytest.raises(ConfigError, match=r"of which nothing is proven.*public_disjoint = true"):
            trainer.plan(config_of(tmp_path, data=data | more))
    config = config_of(tmp_path, data=data | {"public_disjoint": True})
    assert trainer.plan(config).total is None
    assert config.contained[0].events[0]["kind"] == "non-private"


def test_a_release_with_noise_of_a_fixed_seed_proves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Noise, "system", classmethod(lambda cls: Noise.fixed(1)))
    trainer.start(build_config(FIRST, "a test"), tmp_path / "fixed")
    monkeypatch.undo()
    assert verify(tmp_path / "fixed").problems == ()
    data = {"public_generator": tmp_path / "fixed"}
    with pytest.raises(ConfigError, match="of which nothing is proven"):
        trainer.plan(config_of(tmp_path, data=data))
    assert trainer.plan(config_of(tmp_path, data=data | {"public_disjoint": True})).total is None


# People --------------------------------------------------------------------------------------------------------


def test_an_image_becomes_a_person_by_the_cap(tmp_path):
    faces = {name: value for name, value in FACES.items() if name != "image_size"} | {"image_size": [24, 20]}
    table = FIRST | {"data": faces, "privacy": {"epsilon": 0.5, "delta": 1e-5}}
    trainer.start(build_config(table, "a test"), tmp_path / "first")
    people = {"public_generator": tmp_path / "first"}
    person = {"unit": "person", "delta": 1e-3, "most_per_person": 12}
    sections = {"data": faces | people, "model": {"conditional": False}}
    config = config_of(tmp_path, **sections, privacy=person)
    plan = trainer.plan(config)
    own = Part(plan.events, 1e-3)
    parts = own, config.contained[0].part
    expected = total([parts], Unit.PERSON, Relation.ZERO_OUT, delta=1e-3, most_per_person=12).guarantee
    assert plan.total == expected
    assert plan.total.epsilon > 5 + 12 * 0.5
    assert plan.total.delta == 1e-3 + 1e-5
    report = trainer.start(config, tmp_path / "second").privacy
    assert isinstance(report.total, Guarantee)
    assert verify(tmp_path / "second").problems == ()
    assert any("the cap of 12 images of one person in the contained" in text for text in report.public_assumptions)
    with pytest.raises(ConfigError, match=r"somebody has \d+ private images"):
        trainer.start(config_of(tmp_path, **sections, privacy=person | {"most_per_person": 2}), tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_deltas_together_stay_below_one_over_n(first, tmp_path):
    data = {"public_generator": first}
    relation = {"relation": "replace-one", "delta": 7.7e-4}  # 1 / 1295 = 7.72e-4
    with pytest.raises(InputError, match="together with that of the contained releases"):
        trainer.plan(config_of(tmp_path, data=data, privacy=relation))
    plan = trainer.plan(config_of(tmp_path, data=data, privacy=relation | {"delta": 1e-5}))
    assert plan.total.delta == 2e-5
    assert plan.total.epsilon > 5 + 2 * 5
