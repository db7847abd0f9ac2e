"""What is proposed follows from public facts alone, and has the settings of the rows of the package's own tables."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from idpgan.commands.init import InitOptions, config_for
from idpgan.config import packaged
from idpgan.data.load import DataShape, Sizes
from idpgan.methods import CLASSIFIER
from idpgan.synthesis.facts import DIGITS
from idpgan.synthesis.starter import BEST, Facts, has_template, starter_for
from idpgan.trainer import load_config
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

SPLITS = {
    "mnist": (Sizes(0, 54_000, 6_000, 10_000), (1, 28, 28), tuple("0123456789")),
    "digits": (Sizes(0, 1_295, 143, 359), (1, 8, 8), tuple("0123456789")),
    "faces_photos": (Sizes(0, 8_089, 0, 1_767), (1, 32, 32), ("neutral", "happiness")),
    "few faces": (Sizes(0, 300, 0, 80), (1, 112, 92), tuple("abcdefgh")),
    "unlabeled": (Sizes(0, 8_000, 0, 80), (3, 48, 48), ()),
}
ROWS = {  # the best row of a table that needs no public image, and draws images; README and docs/reference/signal.md
    "mnist": ("mnist-aggregate-no-public", {}),
    "digits": ("digits-gaussian", {}),
    "faces_photos": ("faces-wild-gaussian", {"teacher_share": 0.5, "candidates": 4}),
}


def facts_of(name):
    return Facts(DataShape(*SPLITS[name]), None, name in DIGITS)


def made(name, facts, data=None, method=BEST):
    return build_config({"data": data or {"name": "digits"}, **starter_for(facts, method).table}, name)


@pytest.mark.parametrize("name", ROWS)
def test_the_proposed_settings_are_those_of_the_best_measured_row(name):
    chosen = made(name, facts_of(name))
    config, changed = ROWS[name]
    row = load_config(Path(config), []) if name != "faces_photos" else build_config(tomllib.loads(packaged(config)), "")
    wanted = {**row.method.to_json(), **changed}
    assert chosen.method.model_copy(update={}) == type(row.method)(**{**wanted, "name": row.method.name})
    shown = {"conditional": chosen.model.conditional, "drawing": chosen.model.drawing}
    assert chosen.model == row.model.model_copy(update=shown)
    drawn = [config.model.drawn.model_copy(update={"truncation": None}) for config in (chosen, row)]
    assert drawn[0] == drawn[1]  # but for what is looked at, which measures nothing
    assert chosen.training.steps == row.training.steps


@pytest.mark.parametrize("method", [BEST, "gaussian", "diffusion", "evolution", "idp-gan-aggregate", CLASSIFIER])
@pytest.mark.parametrize("name", SPLITS)
def test_every_template_can_be_planned(name, method):
    facts = facts_of(name)
    if method == BEST or has_template(method, facts):
        plan_run(made(name, facts, method=method), facts.shape).check()
        assert not re.search(r"[$|]", starter_for(facts, method).text)  # all is filled in
    else:
        assert method == CLASSIFIER or not facts.handwriting
        assert not facts.shape.classes or method == "idp-gan-aggregate"


def test_a_classifier_of_many_images_takes_the_settings_of_its_measured_row():
    for name in ("mnist", "digits"):
        row = load_config(Path(f"{name}-scattering-linear"), [])
        chosen = made(name, facts_of(name), method=CLASSIFIER)
        assert (chosen.method, chosen.training) == (row.method, row.training)


def test_few_images_or_none_of_a_class_get_no_teacher():
    for name in ("few faces", "unlabeled", "digits"):
        assert "teacher_share" not in starter_for(facts_of(name)).table["method"]


def test_more_records_bear_more_coefficients_and_people_are_the_records_of_unit_person():
    def proposed(num, classes=0, per_person=None, aligned=False, side=48, epsilon=3.0):
        shape = DataShape(Sizes(0, num, 0, 100), (1, side, side), tuple(map(str, range(classes))))
        return starter_for(Facts(shape, per_person, False, aligned, epsilon)).table["model"]["latent_dim"]

    counts = [proposed(num) for num in (100, 1_000, 3_000, 8_000, 10**6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (40, 240)
    assert proposed(6_000, 7, aligned=True) > proposed(6_000, 7)  # two blocks, each with a lower edge
    assert proposed(8_000, classes=2) == proposed(8_000, classes=2, aligned=True) == 160  # half is for a teacher
    assert proposed(8_000, classes=10) < proposed(8_000)
    assert proposed(8_000, per_person=4) == proposed(2_000) < proposed(8_000)
    assert proposed(10**6, side=8) == 40  # of 64 pixels
    at = [proposed(3_000, epsilon=epsilon) for epsilon in (0.3, 1.0, 3.0, 10.0)]
    assert at == sorted(at)
    assert at[0] < at[2] == proposed(3_000) < at[3]


def test_ten_digits_get_the_digits_of_a_pen_and_others_do_not(tmp_path):
    options = InitOptions(data_root=tmp_path)
    digits, clothes = (config_for(name, options).table for name in ("mnist", "fashion-mnist"))
    assert (digits["data"]["public"], digits["model"]["drawing"]) == ("fonts", "pen")
    assert digits["method"]["pretrain_steps"] == 0
    assert clothes["method"]["name"] == "gaussian"  # not handwriting
    assert "public" not in clothes["data"]
    assert clothes["model"]["drawing"] == "photos"
    assert "public" not in config_for("mnist", dataclasses.replace(options, method="gaussian")).table["data"]


def test_photos_in_color_are_drawn_with_their_contrasts():
    def proposed(num, channels, **keys):
        shape = DataShape(Sizes(0, num, 0, 100), (channels, 32, 32), tuple(map(str, range(10))))
        return starter_for(Facts(shape, None, False, **keys)).table["model"]

    lit, grey = proposed(20_000, 3, epsilon=1.0), proposed(20_000, 1, epsilon=1.0)
    assert lit["drawing"] == grey["drawing"] == "photos"
    assert 40 < lit["latent_dim"] <= proposed(10**6, 3)["latent_dim"] == 120
    assert proposed(19_999, 1)["drawing"] == "few-photos"  # nothing was gained of these
    assert proposed(20_000, 3, aligned=True)["drawing"] == "faces"


def test_public_photos_are_chosen_by_a_teacher_or_moved():
    def proposed(public, classes=4, num=2_000, channels=3, **keys):
        shape = DataShape(Sizes(public, num, 0, 100), (channels, 32, 32), tuple(map(str, range(classes))))
        facts = Facts(shape, None, False, **keys)
        table = {"data": {"name": "digits", "public_root": "x", "public_labels": {}}, **starter_for(facts).table}
        plan_run(build_config(table, "a test"), shape).check()
        return {**table["model"], **table["method"]}

    assert proposed(2_000)["drawing"] == proposed(2_000, num=400)["drawing"] == "public-photos"
    assert proposed(2_000, channels=1)["teacher_share"] >= 0.5  # of few images too: it chooses
    few, unlabeled = proposed(1_999), proposed(5_000, classes=0, num=30_000)
    assert (few["drawing"], "teacher_share" in few, "moved" in few) == ("photos", False, False)
    assert (unlabeled["drawing"], unlabeled["moved"]) == ("few-photos", 5_000)
    assert proposed(4_000, portraits=True)["drawing"] == "photos"
    assert proposed(4_000, classes=2, aligned=True)["drawing"] == "faces"


def test_portraits_are_asked_for_where_noise_drowns_a_law_and_suffice_where_it_drowns_all():
    def facts(epsilon, num=6_991, public=12_000, **keys):
        shape = DataShape(Sizes(public, num, 0, 1_805), (1, 48, 48), ("neutral", "happiness"), has_people=True)
        return Facts(
            shape, keys.pop("per_person", None), False, **({"aligned": True, "portraits": True} | keys), epsilon=epsilon
        )

    names = {epsilon: starter_for(facts(epsilon)).name for epsilon in (0.02, 0.05, 0.2, 1.0, 10.0)}
    assert names == {0.02: "portraits", 0.05: "portraits", 0.2: "portraits", 1.0: "portraits", 10.0: "faces"}
    assert [facts(epsilon).portraits_suffice for epsilon in names] == [True, True, True, False, False]
    assert starter_for(facts(0.2, num=100_000)).name == "faces"
    of_people = facts(1.0, per_person=30.0)  # has the noise of a person
    assert (starter_for(of_people).name, of_people.portraits_suffice) == ("portraits", True)
    few = facts(0.2, public=299)  # of which no principal components are taken: a law
    assert (starter_for(few).name, few.portraits_suffice) == ("faces", True)
    assert not facts(1.0, public=299).portraits_suffice
    assert starter_for(facts(0.2, portraits=False)).name == "faces"
    assert starter_for(facts(0.2, aligned=False)).name == "photos"
    assert not any(facts(0.02, **{name: False}).portraits_suffice for name in ("portraits", "aligned"))
    assert starter_for(facts(10.0), "traits").table["method"] == {"name": "traits"}
    assert not has_template("traits", facts(10.0, portraits=False))


def test_many_classes_are_brought_into_place():
    def proposed(classes, channels=3, num=20_000, **keys):
        shape = DataShape(Sizes(0, num, 0, 100), (channels, 32, 32), tuple(map(str, range(classes))))
        facts = Facts(shape, None, False, **keys)
        plan_run(made("folder", facts), shape).check()
        return starter_for(facts).table

    many, few, grey, small = proposed(43), proposed(10), proposed(43, 1), proposed(100)
    assert many["method"]["templates"] == "class"
    for placed in (many, grey):
        assert placed["model"]["drawing"] == "many-classes"
    assert not {"teacher_share"} & set(proposed(43, num=80_000)["method"])  # no teacher was measured beside places
    assert "teacher_share" in proposed(10, num=80_000)["method"]
    for other in (few, small, proposed(10, 1, num=80_000)):
        assert other["model"]["drawing"] == "photos"
        assert "template_share" not in other["method"]
    assert many["model"]["latent_dim"] >= proposed(43, epsilon=0.3)["model"]["latent_dim"]


def test_the_config_of_the_pictures_of_faces_is_what_init_proposes():
    """README's picture is of what init writes for such a folder, but for epsilon, the split and names of people."""
    config = build_config(tomllib.loads(packaged("faces-aligned-gaussian")), "")
    data = config.data
    mean = data.num_images / data.num_people
    for private, holdout in ((8_185, 0), (7_393, 792)):  # of that folder, as the config splits it and as init does
        shape = DataShape(Sizes(0, private, holdout, 1_805), (1, 48, 48), data.classes, has_people=True)
        proposed = made("faces", Facts(shape, None, handwriting=False, aligned=True))
        for section in ("model", "method", "privacy", "training"):
            assert getattr(proposed, section) == getattr(config, section)
        people = {"name": "faces", "split_by": "identity"}
        of_people = made("faces", Facts(shape, mean, handwriting=False, aligned=True), people)
        assert (of_people.privacy.unit, of_people.privacy.most_per_person) == ("person", 3)
        assert of_people.method == config.method
        assert of_people.model == config.model.model_copy(update={"latent_dim": 80})


def test_writing_of_large_classes_has_a_template_of_each_class():
    def proposed(num, classes="0123456789", handwriting=True):
        shape = DataShape(Sizes(0, num, 0, 100), (1, 28, 28), tuple(classes))
        return starter_for(Facts(shape, None, handwriting), "gaussian").table

    written = proposed(20_000)
    assert (written["model"]["drawing"], written["method"]["templates"]) == ("handwriting", "class")
    assert "symmetric" not in written["method"]
    for other in (proposed(9_000), proposed(20_000, classes=""), proposed(20_000, handwriting=False)):
        assert other["model"]["drawing"] in ("photos", "few-photos")
        assert "templates" not in other["method"]
    shape = DataShape(Sizes(0, 20_000, 0, 100), (1, 28, 28), tuple("0123456789"))
    plan_run(made("writing", Facts(shape, None, handwriting=True)), shape).check()
