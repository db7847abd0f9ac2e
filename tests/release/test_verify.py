"""Forged releases: each is found out or refused in one line, and the untouched one is consistent."""

import dataclasses
import io
import json
import pickle
import shutil
import stat
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load, save

from idpgan.data.load import DataShape, Sizes
from idpgan.kinds import verify
from idpgan.models.checkpoint import load_generator
from idpgan.release.settings import settings_of_run
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.release.conftest import BUDGET, train
from tests.release.forging import (
    WORDS,
    audited,
    charged,
    config,
    described,
    document_of,
    edit,
    events_of,
    first_class,
    first_float,
    linked,
    other_event,
    pipe,
    png,
    put_file,
    raw,
    replaced_text,
    report,
    risk,
    said,
    setting,
    somebody,
    stated,
    verdict,
    weights,
    with_hash,
    with_text,
)

DEEP = "[" * 100_000
FORGED = {
    # what the first review got past it
    "card 0.01 for 10": (
        lambda f: put_file(f, "README.md", (f / "README.md").read_text().replace("epsilon = 10", "epsilon = 0.01")),
        "is not the card",
    ),
    "epsilon 0.01 in the config": (setting("privacy", epsilon=0.01), "not those of the settings"),
    "milder law in the config": (setting("method", law="laplace"), "not those of the settings"),
    "event with more noise": (other_event(noise_multiplier=50.0), "gaussian 50 stands for"),
    "event of any mechanism": (
        other_event(kind="approximate", noise_multiplier=None, pure_epsilon=0.1, delta=1e-9),
        "approximate 0.1 stands for",
    ),
    "event with little more noise": (
        lambda f: other_event(noise_multiplier=document_of(f)["events"][0]["noise_multiplier"] * 1.001)(f),
        "not those of the settings",
    ),
    "delta 0.999": (stated(delta=0.999), "the settings state epsilon at"),
    "N = 0": (stated(num_private=0), "num_private = 0"),
    "N = -5": (stated(num_private=-5), "num_private = -5"),
    "N = true": (stated(num_private=True), "num_private = True"),
    "N = 1295.0": (stated(num_private=1295.0), "num_private = 1295.0"),
    "audited above proven": (audited(10.5), "exceeds proven"),
    "audited lowered, card and all": (audited(0.1), "the counts of the audit prove epsilon >= 4.6"),
    "audited in other words": (audited(basis=f"{WORDS}; the true epsilon is 0.001"), "does not rest on what an audit"),
    "audited without counts": (audited(1.0, basis="lower bound"), "does not rest on what an audit"),
    "audited by impossible counts": (audited(basis=WORDS.replace("wrong 20", "wrong 50001")), "impossible counts"),
    "audited infinite": (audited("inf"), "audited value is infinite"),
    "audited of another unit": (audited(1.0, unit="pixel"), "another unit"),
    "audited at a larger delta": (audited(1.0, delta=0.5), "above 1e-05"),
    "audited edited": (
        lambda f: (audited(5.0)(f), replaced_text("privacy.json", '"epsilon": 5.0', '"epsilon": 0.1')(f)),
        "is not the card",
    ),
    # numbers
    "N too large for delta": (stated(num_private=200_000), "below 1/N"),
    "N of 5,000 digits": (lambda f: replaced_text("privacy.json", "1295", "9" * 5000)(f), "is damaged"),
    "N of 4,000 digits": (lambda f: replaced_text("privacy.json", "1295", "9" * 4000)(f), "num_private"),
    "proven 1": (said(epsilon=1.0), "the events cost"),
    "proven a little lower": (said(epsilon=9.99), "the events cost"),
    "proven infinite": (said(epsilon="inf"), "cannot be marked private"),
    "proven of another unit": (said(unit="pixel"), "'proven' is not"),
    "proven of another relation": (said(relation="replace-one"), "'proven' is not"),
    "proven at a smaller delta": (said(delta=0.0), "'proven' is not"),
    "risk lowered": (risk(best_guess=0.5), "less is stated than an attack may find by these charges (best guess: 0.5"),
    "risk lowered at one rate": (
        lambda f: edit(f, lambda d: d["risk"]["found"].update({"0.2": 0.2})),
        "found at 0.2: 0.2 for",
    ),
    "risk removed": (lambda f: edit(f, lambda d: d.pop("risk")), "none where one has to be"),
    "risk as null": (stated(risk=None), "none where one has to be"),
    "risk of another question": (risk(question="which of two contents"), "which of two contents for membership"),
    "risk at other rates": (lambda f: edit(f, lambda d: d["risk"]["found"].pop("0.2")), "at the false alarms"),
    "risk above 1": (risk(best_guess=1.5), "best_guess = 1.5"),
    "risk in an older format": (stated(format="idpgan release 4", idpgan="0.2.0"), "a risk where none"),
    "an older format": (stated(format="idpgan release 4"), "never wrote"),
    "the format before": (stated(format="idpgan release 5"), "never wrote"),
    "an older version": (stated(idpgan="0.3.0"), "never wrote"),
    "a version before all": (stated(idpgan="0"), "never wrote"),
    "basis edited": (said(basis="proved by hand"), "'proven' is not"),
    "claimed edited": (
        lambda f: edit(f, lambda d: d["report"]["claimed"].update(epsilon=1.0)),
        "'claimed' is not",
    ),
    "claimed removed": (report(claimed=None), "'claimed' is not"),
    "private flag": (report(private=False), "'private' is not"),
    "reason edited": (report(reason="no noise is needed here"), "'reason' is not"),
    "assumption dropped": (report(public_assumptions=[]), "'public_assumptions' is not"),
    "assumption added": (report(public_assumptions=["all"] * 2), "'public_assumptions' is not"),
    "fixed seed passed off": (
        lambda f: edit(
            f,
            lambda d: d["report"].update(
                reason=d["report"]["reason"].replace("256 bits from the operating system", "FIXED SEED")
            ),
        ),
        "is not what follows",
    ),
    "public images invented": (stated(num_public=100), "'public_assumptions' is not"),
    "class fewer": (stated(num_classes=9), "num_classes = 9, but the settings"),
    "unit of the document": (stated(unit="person"), "which speak of unit image"),
    "relation of the document": (stated(relation="replace-one"), "which speak of unit image"),
    "unknown unit": (stated(unit="planet"), "unit = 'planet' is none of"),
    "old relation": (stated(relation="add-or-remove-one"), "relation = 'add-or-remove-one' is none of"),
    # charges
    "no charge": (stated(events=[]), "there is none"),
    "charge twice": (lambda f: edit(f, lambda d: d["events"].append(d["events"][0])), "1 are planned"),
    "count 2": (other_event(count=2), "exceed the target"),
    "kind magic": (lambda f: edit(f, lambda d: d["events"][0].update(kind="magic")), "unknown event kind"),
    "kind laplace": (other_event(kind="laplace"), "laplace 0.4998"),
    "count true": (lambda f: edit(f, lambda d: d["events"][0].update(count=True)), "count = True"),
    "count as text": (lambda f: edit(f, lambda d: d["events"][0].update(count="1")), "count = '1'"),
    "multiplier zero": (
        lambda f: edit(f, lambda d: d["events"][0].update(noise_multiplier=0.0)),
        "positive and finite",
    ),
    "multiplier huge": (
        lambda f: edit(f, lambda d: d["events"][0].update(noise_multiplier=10**400)),
        "noise_multiplier",
    ),
    "charge with a foreign key": (lambda f: edit(f, lambda d: d["events"][0].update(hidden=1)), "hidden"),
    "charge of another unit": (
        lambda f: edit(f, lambda d: d["events"][0].update(unit="pixel")),
        "not all of unit image",
    ),
    "1,000 charges": (
        lambda f: edit(f, lambda d: d.update(events=d["events"] * 1000)),
        "no run of these settings",
    ),
    "charges as a table": (stated(events={}), "events"),
    # privacy.json
    "format 2": (stated(format="idpgan release 2"), "train and release again"),
    "format of tomorrow": (stated(format="idpgan release 7"), "not of the format"),
    "format as a list": (stated(format=[]), "not of the format"),
    "foreign key": (stated(note="trust me"), "Unknown key 'note'"),
    "key missing": (lambda f: edit(f, lambda d: d.pop("delta")), "Missing key 'delta'"),
    "report missing": (stated(report=None), "report"),
    "delta as text": (stated(delta="1e-5"), "delta = '1e-5'"),
    "delta = 1": (stated(delta=1), "delta = 1"),
    "delta negative": (stated(delta=-1e-5), "delta"),
    "empty": (raw("privacy.json", b""), "is damaged"),
    "a list": (raw("privacy.json", "[]"), "not of the format"),
    "not UTF-8": (raw("privacy.json", b'{"format": "\xff\xfe"}'), "is damaged"),
    "NaN": (replaced_text("privacy.json", "1295", "NaN"), "NaN is not a JSON number"),
    "Infinity": (replaced_text("privacy.json", "1295", "-Infinity"), "Infinity is not a JSON number"),
    "1e999": (replaced_text("privacy.json", "1295", "1e999"), "too large"),
    "deep": (raw("privacy.json", DEEP), "is damaged"),
    "deep in a key": (replaced_text("privacy.json", "1295", DEEP + "]" * 100_000), "is damaged"),
    "key twice": (replaced_text("privacy.json", '"delta"', '"delta": 0.5, "delta"'), "a key stands twice"),
    "written otherwise": (lambda f: raw("privacy.json", json.dumps(document_of(f)))(f), "not written as"),
    "control characters": (report(reason="fine\u001b[2J"), "control characters"),
    "turned-around text": (report(reason="\u202eetavirp"), "control characters"),
    "hash of another file": (
        lambda f: edit(f, lambda d: d["files"].update({"../x": "0" * 64})),
        "speaks of other files",
    ),
    "hashes as a list": (lambda f: raw("privacy.json", json.dumps({**document_of(f), "files": []}))(f), "files"),
    # config.json
    "config with more": (config(lambda c: c.update(note="x")), "holds more, less or other"),
    "generator with more": (described(note="x"), "holds more, less or other"),
    "config without a run": (config(lambda c: c.pop("settings")), "no settings"),
    "unknown setting": (setting("training", stesp=3), "stesp"),
    "steps true": (setting("training", steps=True), "config.json"),
    "steps as text": (setting("training", steps="2"), "config.json"),
    "a folder of the curator": (setting("data", root="/home/x"), "names folders"),
    "unknown data": (setting("data", name="facts"), "not a known data set"),
    "data of no text": (setting("data", name="faces\ud800"), "not text that can be written"),
    "another method": (
        config(lambda c: c["settings"].update(method={"name": "wgan-gp"}, privacy={})),
        "not those of the settings",
    ),
    "unsound method": (
        config(
            lambda c: c["settings"].update(
                method={"name": "idp-gan-published"}, privacy={"epsilon1": 1, "epsilon2": 1, "noise": "once"}
            )
        ),
        "is unsound",
    ),
    "another model": (config(lambda c: c["settings"]["model"].update(warp=0.5)), "not of the run's [model]"),
    "config of 4,000 digits": (setting("method", moments=10**3999), "config.json"),
    "config deep": (raw("config.json", DEEP), "config.json does not describe"),
    "config not UTF-8": (raw("config.json", b"\xff"), "config.json does not describe"),
    "config NaN": (setting("data", holdout_share=float("nan")), "NaN is not a JSON number"),
    "class with NUL": (first_class("a\0b"), "printable"),
    "class with a line break": (first_class("a\n# PRIVATE"), "printable"),
    "class of 5,000 characters": (first_class("x" * 5000), "(5000 characters)"),
    "class half a sign": (first_class("\ud800"), "printable"),
    "class without a name": (first_class(""), "printable"),
    "class twice": (first_class("9"), "stands twice"),
    "another shape": (described(image_shape=[3, 8, 8]), "does not hold the generator"),
    "shape of 4,000 digits": (described(image_shape=[1, 10**3999, 8]), "No network"),
    # weights
    "weights cut off": (with_hash("generator.safetensors", lambda content: content[:-10]), "is damaged"),
    "weights a pickle": (with_hash("generator.safetensors", lambda content: pickle.dumps({})), "is damaged"),
    "weights with a huge header": (
        with_hash("generator.safetensors", lambda content: (1 << 62).to_bytes(8, "little") + content[8:]),
        "is damaged",
    ),
    "weights much larger": (with_hash("generator.safetensors", lambda content: content + bytes(1 << 21)), "at most"),
    "weights NaN": (first_float(lambda tensor: tensor * float("nan")), "not finite"),
    "other weights": (first_float(lambda tensor: -tensor), "not the grid"),
    "weights with a stranger": (
        weights(lambda tensors: tensors.update(records=next(iter(tensors.values())).clone())),
        "does not hold",
    ),
    "weights with a text": (
        with_hash("generator.safetensors", lambda content: save(load(content), {"epsilon": "0.1"})),
        "more than its tensors",
    ),
    # picture
    "another picture": (with_hash("samples.png", somebody), "not the grid"),
    "picture with text": (with_hash("samples.png", with_text), "more than pixels"),
    "picture and more": (with_hash("samples.png", lambda content: content + b"secret"), "more than pixels"),
    "no picture": (with_hash("samples.png", lambda content: b"x"), "samples.png is damaged"),
    "picture cut off": (with_hash("samples.png", lambda content: content[:60]), "samples.png is damaged"),
    "picture as JPEG": (
        with_hash("samples.png", lambda content: png(Image.open(io.BytesIO(content)), form="JPEG")),
        "samples.png is damaged",
    ),
    "picture changed": (raw("samples.png", b"x"), "samples.png was changed"),
    # files
    "card missing": (lambda f: (f / "README.md").unlink(), "README.md is missing"),
    "config missing": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "privacy missing": (lambda f: (f / "privacy.json").unlink(), "is not a release"),
    "card not UTF-8": (with_hash("README.md", lambda content: content + b"\xff"), "is not the card"),
    "curator's file": (raw("stats.jsonl", "loss"), "stats.jsonl does not belong"),
    "hidden file": (raw(".note", "x"), ".note does not belong"),
    "left-over part": (raw(".privacy.json.0.part", "x"), "does not belong"),
    "folder": (lambda f: (f / "more").mkdir(), "more does not belong"),
    "stranger's name": (lambda f: (f / "a\nb\udcff").write_text(""), "does not belong"),
    "card a pipe": (pipe("README.md"), "README.md is a folder, a pipe"),
    "card a link to nothing": (
        lambda f: (linked("README.md")(f), (f.parent / "elsewhere").unlink()),
        "link to nothing",
    ),
    "changed behind a link": (lambda f: (linked("README.md")(f), raw("README.md", "x")(f)), "README.md was changed"),
    "weights a pipe": (pipe("generator.safetensors"), "a pipe"),
    "privacy a pipe": (pipe("privacy.json"), "not a plain file"),
    "config a folder": (lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()), "a folder"),
}


def test_the_untouched_folder_is_consistent(release):
    assert verdict(release) == ""
    assert verify(release).to_json()["recomputed_epsilon"] == pytest.approx(10, abs=1e-3)
    edit(release, lambda document: None)  # negative control: the forger's own tools change nothing by themselves
    config(lambda content: None)(release)
    weights(lambda tensors: None)(release)
    audited()(release)
    assert verdict(release) == ""


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_folder_is_found_out(release, name):
    forge, word = FORGED[name]
    forge(release)
    assert word in verdict(release)


def test_nothing_is_changed_by_verifying(release):
    target = release.parent / "elsewhere"
    linked("README.md")(release)
    target.chmod(0o600)
    before = target.read_bytes()
    verify(release)
    assert (stat.S_IMODE(target.stat().st_mode), target.read_bytes()) == (0o600, before)


def test_a_folder_above_it_is_no_excuse_for_class_names(release):
    first_class("../x")(release)
    assert "samples.png" not in verdict(release)
    assert load_generator(release).classes[0] == "../x"  # a name; whoever writes folders of it refuses it


# Steps ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def budget_run(tmp_path_factory):
    """A run that its target ended before its steps were done."""
    return train(tmp_path_factory.mktemp("report") / "budget", BUDGET[1:], {"method": {"name": "dp-gan"}})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (0, ""),
        (-1, "the target allows more"),
        (1, "exceed the target"),
        (20, "exceed the target"),
    ],
)
def test_a_run_ends_with_its_steps_or_its_target(budget_run, tmp_path, change, word):
    folder = shutil.copytree(budget_run / "release", tmp_path / "release")
    event = events_of(folder)[0]
    assert event.count == 3  # of 10
    charged(event.repeated(event.count + change))(folder)
    said = verdict(folder)
    assert (said == "") if not word else (word in said)


def test_a_run_that_a_less_tight_accountant_ended_is_consistent(budget_run, tmp_path):
    folder = shutil.copytree(budget_run / "release", tmp_path / "release")
    event = events_of(folder)[0]
    charged(event.repeated(event.count - 1))(folder)
    assert "the target allows more" in verdict(folder)
    said(epsilon=3.99)(folder)  # of a target of 4: there was no room for a step at such a price
    assert verdict(folder) == ""


def test_more_noise_in_the_config_of_dp_gan_is_found_out(budget_run, tmp_path):
    folder = shutil.copytree(budget_run / "release", tmp_path / "release")
    setting("privacy", noise_multiplier=50.0)(folder)
    assert "poisson-gaussian 2 1 stands for poisson-gaussian 50 1" in verdict(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wgan-gp", "idp-gan-published", "diffusion", "edm"])
def test_the_release_of_every_method_is_consistent(tmp_path, name):

    from idpgan.config import load_table

    configs = Path(__file__).parents[2] / "configs"
    table = load_table(configs / f"digits-{name}.toml")
    path = train(tmp_path / "run", ["training.steps=6", "training.tick_steps=10"], table)
    assert verdict(path) == ""


CLASSES = {  # of the settings, where those of the generator are neutral, happiness
    "permuted": ["happiness", "neutral"],
    "shorter": ["neutral"],
    "longer": ["neutral", "happiness", "anger"],
    "none": [],
    "another": ["neutral", "anger"],
    "as they are": ["neutral", "happiness"],
}


@pytest.mark.parametrize("named", CLASSES)
def test_the_classes_of_the_settings_are_those_of_what_is_given_away(tmp_path, named):
    folder = shutil.copytree(Path(__file__).parent / "frozen" / "init-photos-grey", tmp_path / "release")
    config(lambda content: content["settings"]["data"].update(classes=CLASSES[named]))(folder)
    assert ("data.classes = " in verdict(folder)) == (named != "as they are")


def test_a_version_is_no_place_for_sentences(release):
    stated(idpgan="0.1.0. An audit has confirmed: proven epsilon = 0.01")(release)
    assert "not a version number" in verdict(release)
    stated(idpgan="0.4.1rc2.dev3+g1a2b")(release)  # negative control
    assert verdict(release) == ""


# The published method: no target, so that repeated steps add charges; and pixels that differ in price ---------------

PUBLISHED = {
    "method": {"name": "idp-gan-published"},
    "model": {"width": 4, "latent_dim": 4},
    "privacy": {"epsilon1": 0.5, "epsilon2": 0.5, "delta": 1e-5, "accept_unsound": True},
    "training": {"steps": 4, "tick_steps": 2, "batch_size": 8, "device": "cpu"},
    "release": {"samples": 10},
}


@pytest.mark.parametrize("noise", ["once", "per_step", "per_batch"])
def test_a_published_run_that_paid_for_repeated_steps_is_consistent(tmp_path, monkeypatch, noise):
    from idpgan import trainer
    from idpgan.training import state

    with monkeypatch.context() as patch:  # stopped before the release, and then continued elsewhere
        patch.setattr(trainer, "write_release", lambda *_, **__: None)
        path = train(tmp_path / "run", [f"privacy.noise={noise}"], PUBLISHED)
    monkeypatch.setattr(state, "machine_fingerprint", lambda: {"torch": "another"})
    (path / "state" / "state.pt").unlink()
    trainer.resume(path)
    folder = path / "release"
    events = events_of(folder)
    assert verdict(folder) == ""
    charged(*events[:1])(folder)  # negative control: labels left out
    assert verdict(folder) != ""
    charged(*(event.single for event in events))(folder)
    assert verdict(folder) != ""


def test_pixels_of_different_prices_have_a_least_price_together(tmp_path):
    settings = ["method.allocation=relevance", "data.public_share=0.2", "data.confirm_public=true"]
    folder = train(tmp_path / "run", [*settings, "privacy.noise=once", "privacy.label_epsilon=1.0"], PUBLISHED)
    folder = folder / "release"
    assert verdict(folder) == ""
    *pixels, label = events_of(folder)
    charged(*(dataclasses.replace(event, noise_multiplier=1e9) for event in pixels), label)(folder)
    assert "cost less than the settings can" in verdict(folder)
    charged(pixels[0], label)(folder)
    assert "not as many" in verdict(folder)


@pytest.mark.parametrize(
    ("data", "private", "public", "problem"),
    [
        ({}, 700, 0, None),
        ({}, 1001, 0, "1,001 images"),
        ({"public_share": 0.5, "confirm_public": True}, 600, 600, "1,200 images"),
        ({"public": "faces", "public_images": 50}, 700, 50, None),
        ({"public": "faces", "public_images": 50}, 700, 5, "num_public = 5"),
    ],
)
def test_numbers_of_images_follow_from_what_is_declared(data, private, public, problem):
    built = build_config(
        {
            "data": {"name": "folder", "num_images": 1000, "classes": [], **data},
            "method": {"name": "gaussian"},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
        },
        "a test",
    )
    settings = settings_of_run(plan_run(built, DataShape(Sizes(public, private, 0, 0), (1, 32, 32), ())))
    found = settings.problems({"model": built.model.to_json(), "samples": built.release.samples})
    assert found == [] if problem is None else problem in found[0]
