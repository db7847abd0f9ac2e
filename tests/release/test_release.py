"""The release is whole or absent at every instant, says nothing it should not, and keeps what was added to it."""

import dataclasses
import itertools
import json
import math
import os
import re
import shutil
import stat
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from idpgan.audit.bounds import cap, epsilon_bound
from idpgan.commands.audit import check_release, write_into_release
from idpgan.data.images import check_class_names
from idpgan.errors import InputError
from idpgan.files import printable
from idpgan.kinds import verify
from idpgan.models.checkpoint import CONFIG, build_generator, load_generator, save_generator
from idpgan.models.config import ModelConfig
from idpgan.privacy.guarantee import EXACT, FLOATING_POINT, Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.noise import FIXED, SYSTEM
from idpgan.release.export import export_samples
from idpgan.release.folder import CARD, render_card, write_release
from idpgan.release.generator import GeneratorArtifact
from idpgan.release.statement import PRIVACY
from idpgan.run import RunFolder
from idpgan.synthesis.idp_published_plan import Settings as PublishedConfig
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.release.forging import PLAIN, config


@pytest.fixture
def ready(unreleased, tmp_path):
    """A copy of a run that has no release yet, and a function that writes it."""
    path, made = unreleased
    run = RunFolder(shutil.copytree(path, tmp_path / "run"))
    return run, lambda: write_release(run.release, *made)


@pytest.fixture
def snapshots(monkeypatch, tmp_path):
    """Copies of the run before and after every file and folder that is put in its place: what a kill there leaves."""
    taken, number = [], itertools.count()

    def frozen(original):
        def move(source, target, *rest):
            for step in (lambda: None, lambda: original(source, target, *rest)):
                step()
                taken.append(shutil.copytree(tmp_path / "run", tmp_path / f"killed{next(number)}", symlinks=True))

        return move

    monkeypatch.setattr(os, "replace", frozen(os.replace))
    monkeypatch.setattr(Path, "rename", frozen(Path.rename))
    return taken


def bound(right=3358):
    """What an audit of 100,000 runs per side proves by so many right guesses and 20 wrong ones."""
    return float(epsilon_bound(np.array(right), np.array(20), 50_000, 1e-5, 0.95))


def audit_of(right=3358, violation=False):
    basis = (
        f"lower bound at 0.95 confidence, cap {cap(50_000, 0.95, 1e-5):.2f}, 100000 runs per side, right {right} and "
        "wrong 20 times of 50000, exact log-likelihood ratio, one record absent against present"
    )
    guarantee = Guarantee(bound(right), 1e-5, Unit.IMAGE, Relation.ZERO_OUT, basis)
    return SimpleNamespace(guarantee=guarantee, violation=violation, result=SimpleNamespace(confidence=0.95))


def leftovers(run):
    return [item.name for item in run.iterdir() if item.name.startswith(".")]


def test_a_release_is_whole_or_absent_at_every_instant(ready, snapshots, unreleased):
    run, write = ready
    assert not run.release.exists()
    write()
    assert check_release(run.path).consistent
    assert len(snapshots) == 12  # before and after five files and the folder
    assert sum((copy / "release").exists() for copy in snapshots) == 1
    for copy in snapshots:
        assert not (copy / "release").exists() or verify(copy).consistent
    for copy in (snapshots[0], snapshots[5], snapshots[-2]):
        assert len(leftovers(copy)) == 1  # what the kill left
        write_release(RunFolder(copy).release, *unreleased[1])  # what a resumed run does
        assert verify(copy).consistent
        assert leftovers(copy) == []


def test_an_audited_value_enters_whole_or_not_at_all(ready, snapshots):
    run, write = ready
    write()
    snapshots.clear()
    write_into_release(run.path, audit_of())
    assert verify(run.path).report.audited.epsilon == bound()
    for copy in snapshots:
        if (copy / "release").exists():
            found = verify(copy)
            assert found.consistent
            assert found.report.audited is None or found.report.audited.epsilon == bound()


def test_an_exception_leaves_nothing_behind(ready, monkeypatch):
    run, write = ready

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("idpgan.release.folder.render_card", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert not run.release.exists()
    assert leftovers(run.path) == []


def test_a_release_is_not_written_over_and_a_second_audit_replaces_the_first(ready):
    run, write = ready
    write()
    write_into_release(run.path, audit_of())
    before = (run.release / PRIVACY).read_bytes()
    with pytest.raises(InputError, match="not written over"):
        write()
    assert (run.release / PRIVACY).read_bytes() == before
    write_into_release(run.path, audit_of(2000))
    assert verify(run.path).report.audited.epsilon == bound(2000)


def test_a_refuted_proof_enters_no_release(ready):
    run, write = ready
    write()
    before = (run.release / PRIVACY).read_bytes()
    with pytest.raises(InputError, match=r"exceeds the proven epsilon.*--confidence 0.9999.*withdraw"):
        write_into_release(run.path, audit_of(violation=True))
    assert (run.release / PRIVACY).read_bytes() == before


@pytest.mark.parametrize("what", ["card", "folder"])
def test_nothing_is_written_through_a_link(ready, tmp_path, what):
    run, write = ready
    write()
    if what == "card":
        target = tmp_path / "card.md"
        (run.release / CARD).rename(target)
        (run.release / CARD).symlink_to(target)
    else:
        target = tmp_path / "elsewhere"
        run.release.rename(target)
        run.release.symlink_to(target)
        target = target / CARD
    target.chmod(0o600)
    before = target.read_bytes()
    with pytest.raises(InputError, match=r"link"):
        write_into_release(run.path, audit_of())
    if what == "folder":
        with pytest.raises(InputError, match=r"not written over"):
            write()
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (before, 0o600)


# Class names ---------------------------------------------------------------------------------------------------

BAD_NAMES = ["", "a\0", "a\nb", "a\x7f", "x" * 201, "\udcff", "\u202eabc", "a\u2028b"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_class_names_that_no_card_can_show_are_refused_at_release_and_at_load(aggregate_run, tmp_path, name):
    generator = load_generator(aggregate_run)
    names = [name, *generator.classes[1:]]
    with pytest.raises(InputError, match="class name"):
        save_generator(tmp_path, generator, classes=names)
    assert list(tmp_path.iterdir()) == []
    save_generator(tmp_path, generator)
    content = json.loads((tmp_path / CONFIG).read_text())
    content["generator"]["classes"] = names
    (tmp_path / CONFIG).write_text(json.dumps(content))
    with pytest.raises(InputError, match="class name"):
        load_generator(tmp_path)


def test_ordinary_class_names_pass():
    check_class_names(["Übermut", "猫", "<b>", "../x", "x" * 200, "a b", "#1 [x](y) | `z`"])


def test_a_run_with_such_classes_is_refused_before_it_trains(monkeypatch, tmp_path):
    from tests.release.conftest import AGGREGATE, train

    def labeled(images, *_):
        return dataclasses.replace(images, classes=("a\udcff", *images.classes[1:]))

    monkeypatch.setattr("idpgan.data.load.labeled_by", labeled)
    with pytest.raises(InputError, match="class name"):
        train(tmp_path / "run", AGGREGATE)
    assert list(tmp_path.iterdir()) == []


# Card ----------------------------------------------------------------------------------------------------------

FACTS = types.SimpleNamespace(data="faces", method="idp-gan-aggregate", license=None, data_license=None, run=PLAIN)
STATED = {"num_private": 1295, "num_public": 0, "delta": 1e-5, "idpgan": "0.1.0", "risk": None, "mark": None}


def card(report, facts=FACTS, classes=("cat", "dog")):
    generator = build_generator(ModelConfig(width=4, latent_dim=4), (1, 8, 8), len(classes))
    generator.classes = classes
    return render_card(
        types.SimpleNamespace(report=report, **STATED), facts, "generator", GeneratorArtifact(generator, 8)
    )


def a_report(unit=Unit.IMAGE, relation=Relation.ZERO_OUT, epsilon=2.0):
    proven = Guarantee(epsilon, 1e-5 if epsilon < 1e9 else 0.0, unit, relation, "by accountant")
    return PrivacyReport(None, proven, None, "one release of noisy sums", epsilon < 1e9)


def test_a_card_for_people_does_not_say_that_people_are_not_covered():
    people, images = (card(a_report(unit)) for unit in (Unit.PERSON, Unit.IMAGE))
    assert "a person as a whole" in images  # negative control
    assert "a person as a whole" not in people
    assert "all images of one person" in people
    assert "beyond the stated cap" in people
    assert "which image is whose" in people
    assert "which image is whose" not in images


def test_a_class_that_ends_with_a_point_ends_the_sentence_with_one():
    assert "2 classes: Befund, o.B.\n" in card(a_report(), classes=("Befund", "o.B."))
    assert "2 classes: cat, dog.\n" in card(a_report())


def test_a_card_explains_neighbors_and_other_releases():
    text = " ".join(card(a_report()).split())
    assert "N of private images is public" in text
    assert "replaced by the null record" in text
    assert "copied or restored and continued, and every further run, is a release of its own" in text
    assert "delta = 1e-05, which is below 1/N for the N = 1,295" in text
    assert "null record" not in card(a_report(relation=Relation.REPLACE_ONE))


@pytest.mark.parametrize(
    ("name", "never"),
    [
        ("<script>alert(1)</script>", "<script"),
        ("[click](https://evil.example)", "[click]("),
        ("![x](https://evil.example/x.png)", "![x]"),
        ("`rm -rf`", " `rm"),
        ("**private**", " **private"),
        ("https://evil.example", "https://"),
        ("a | b", "a | b"),
    ],
)
def test_names_in_a_card_draw_and_link_nothing(name, never):
    assert never not in card(a_report(), classes=(name, "dog"))
    assert never not in body(card(a_report(), types.SimpleNamespace(**vars(FACTS) | {"data": name})))
    assert never not in card(dataclasses.replace(a_report(), reason=name, public_assumptions=(name,)))


def head(text):
    """The YAML head as a table: every line is a key and a JSON value, which YAML is a superset of."""
    lines = text.split("---\n")[1].splitlines()
    pairs = [re.fullmatch(r"([a-z_]+): (.*)", line).groups() for line in lines]
    return {key: json.loads(value) for key, value in pairs}


def body(text):
    return text.split("---\n", 2)[2]


HEADS = ["a\nlicense: mit", '"]\n---\nx: [', "x: y # z", "- a", "*a", "&a !!python", "café 猫", "\x85"]


@pytest.mark.parametrize("name", HEADS)
def test_no_name_adds_to_the_yaml_head(release, tmp_path, name):
    plain, spoilt = (
        head(card(a_report(), types.SimpleNamespace(**vars(FACTS) | {"method": text}))) for text in ("x", name)
    )
    assert spoilt == {**plain, "tags": [name if tag == "x" else tag for tag in plain["tags"]]}
    assert plain["license"] == "unknown"
    if printable(name):
        config(lambda content: content["generator"].update(classes=[name, *"abcdefghi"]))(release)
        export_samples(release, 3, tmp_path / "out.npz")
        export_samples(release, 3, tmp_path / "out", labels=[1])
        found = head((tmp_path / "out" / CARD).read_text())
        assert found["configs"][0]["data_files"] == [{"split": "train", "path": ["**/*.png"]}]
        assert "configs" not in head((tmp_path / f"out.{CARD}").read_text())  # the Hub reads no such archive


def test_the_head_says_what_is_private_and_what_is_not():
    assert "differential-privacy" in head(card(a_report()))["tags"]
    assert "not-private" in head(card(a_report(epsilon=math.inf)))["tags"]
    assert "differential-privacy" not in head(card(a_report(epsilon=math.inf)))["tags"]


@pytest.mark.parametrize("form", ["folder", "npz"])
def test_exported_images_have_a_card_without_commands_that_do_not_apply(release, tmp_path, form):
    out = tmp_path / ("out" if form == "folder" else "out.npz")
    export_samples(release, 20, out, seed=1)
    text = (out / CARD if form == "folder" else tmp_path / f"out.{CARD}").read_text()
    for word in ("verify", "load_generator", "safetensors", "samples.png", "privacy.json"):
        assert word not in text
        assert word in (release / CARD).read_text()  # negative control
    assert body(text).strip().startswith("# 20 generated images")
    assert "epsilon = 10" in text
    assert "These images were drawn from a generator" in text
    names = {path.name for path in (out.iterdir() if form == "folder" else tmp_path.glob("out*")) if path.is_file()}
    assert PRIVACY not in names


# What floating point leaves out --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "teacher", "word"),
    [
        ("dp-gan", None, EXACT),
        ("dp-gan-opacus", None, FLOATING_POINT),
        ("idp-gan-published", None, FLOATING_POINT),
        ("aggregate", 0.0, None),
        ("aggregate", 0.5, EXACT),
        ("gaussian", 0.0, None),
        ("gaussian", 0.5, EXACT),
    ],
)
def test_continuous_noise_is_called_private_only_with_a_word_on_floating_point(unreleased, name, teacher, word):
    from idpgan.config import load_table
    from idpgan.privacy.ledger import Ledger

    shape = unreleased[1][1].plan.shape
    table = load_table(Path(__file__).parents[2] / "configs" / f"digits-{name}.toml")
    table["privacy"] |= {"noise_multiplier": 1.0} if name.startswith("dp-gan") else {}
    if teacher is not None:
        table["method"]["teacher_share"] = teacher
    if isinstance(config := build_config(table, name), PublishedConfig):
        config = config.model_copy(update={"model": config.model.model_copy(update={"conditional": False})})
    plan = plan_run(config, shape)
    ledger = Ledger(plan.unit, plan.relation)
    for event in plan.events:
        ledger.charge(event.single if name.startswith("dp-gan") else event)
    report = plan.report_of(ledger.events, ledger.proven(1e-5), (SYSTEM, SYSTEM))
    assert report.private
    assert [each for each in (EXACT, FLOATING_POINT) if each in report.reason] == ([] if word is None else [word])
    older = [dataclasses.replace(event, grid=None) for event in ledger.events]  # steps of an earlier version
    assert (FLOATING_POINT in plan.report_of(older, ledger.proven(1e-5), (SYSTEM, SYSTEM)).reason) == (word is not None)
    assert not plan.report_of(ledger.events, ledger.proven(1e-5), (FIXED, FIXED)).private


@pytest.mark.parametrize("moment", [1, 2])
def test_a_signal_while_a_release_is_replaced_leaves_it_as_it_was(ready, monkeypatch, moment):
    run, write = ready
    write()
    before, calls, rename = (run.release / PRIVACY).read_bytes(), itertools.count(1), Path.rename

    def interrupted(source, target):
        if next(calls) == moment:
            raise KeyboardInterrupt
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_into_release(run.path, audit_of())
    assert (run.release / PRIVACY).read_bytes() == before
    assert leftovers(run.path) == []


def test_what_is_no_release_is_not_written_over(ready):
    run, write = ready
    run.release.mkdir()
    (run.release / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        write()
    assert (run.release / "thesis.tex").read_text() == "years of work"
    (run.release / "thesis.tex").unlink()
    write()
    assert verify(run.path).consistent
