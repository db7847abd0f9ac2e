"""Releases that other code made: with a key fewer and other words they verify, with other fields they do not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from idpgan import load_generator, publish
from idpgan.commands import app
from idpgan.commands.audit import write_into_release
from idpgan.continual import ContinualCounter
from idpgan.kinds import verify
from idpgan.publish.plan import PublicationTable
from idpgan.release.folder import write_release
from idpgan.release.images import ObfuscatedImages
from idpgan.version import made_with
from tests.publish.pictures import pictures
from tests.release.forging import (
    charged,
    config,
    document_of,
    edit,
    events_of,
    other_event,
    put_file,
    report,
    said,
    stated,
    verdict,
)
from tests.release.test_release import audit_of
from tests.release.test_verify import FORGED

ROOT = Path(__file__).parents[2]
CHECKPOINTS = sorted((ROOT / "tests" / "release" / "checkpoints-0.1.0").iterdir())  # of another version

# What a later version may have done: text of the package -> what stands there then.
LATER = {
    "    warp: float = Field(": "    bend: float = Field(default=0.1, ge=0)\n    warp: float = Field(",
    "    holdout_share: Share = 0.1\n": "    holdout_share: Share = 0.1\n    sorted_by: str | None = None\n",
    "    precision: Literal[": "    patience: int = Field(3, ge=1)\n    precision: Literal[",
    "    most_per_person: int = Field(20": "    loudness: float = 1.0\n    most_per_person: int = Field(20",
    "    moments: int = Field(": "    bouts: int = Field(2, ge=1)\n    moments: int = Field(",
    "one release of noisy sums{": "a single release of sums with noise{",
    "one release of noisy sums of moments{": "a single release of moments with noise{",
    '"the feature map (': '"the map of features (',
    "privacy.epsilon of the config": "the epsilon of [privacy]",
    "weighted Fenwick tree with exact": "a weighted Fenwick tree, exact",
    "privacy loss accounting of ": "by privacy losses: ",
    'f"accountant, {': 'f"by the accountant, {',
    "What epsilon does not cover:": "Not covered by epsilon:",
    "Weights in `": "The weights lie in `",
}  # fmt: skip


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """A function that verifies folders with a later version of the package, in another process."""
    place = tmp_path_factory.mktemp("later")
    package = shutil.copytree(ROOT / "idpgan", place / "idpgan", ignore=shutil.ignore_patterns("__pycache__"))
    texts = {path: path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".md")}
    for old, new in LATER.items():
        assert any(old in text for text in texts.values()), f"{old!a} is nowhere: name another word"
        texts = {path: text.replace(old, new) for path, text in texts.items()}
    for path, text in texts.items():
        path.write_text(text)
    code = (
        "import json, sys; from pathlib import Path; from idpgan.kinds import verify\n"
        "found = [verify(Path(path)) for path in sys.argv[1:]]\n"
        "print(json.dumps([[list(each.problems), list(each.unchecked)] for each in found]))"
    )

    def verified(*folders):
        environment = {**os.environ, "PYTHONPATH": str(place)}
        command = [sys.executable, "-c", code, *map(str, folders)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, env=environment)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    return verified


@pytest.fixture(scope="module")
def small(aggregate_run, tmp_path_factory):
    """One small release of every kind but a classifier, made by this version."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copytree(aggregate_run / "release", folder / "generator")
    publish.release(pictures(3, 4, 5), "lap", epsilon=1.0).write(folder / "images")
    counter = ContinualCounter(1.0)
    counter.write(folder / "stream", counter.release([1, 2, 3]))
    table = {"data": "x", "method": "pixelate", "num": 2, "shape": [1, 8, 8], "options": {}}
    said = PublicationTable.model_validate(table)
    made = said.settings(said.plan())
    artifact = ObfuscatedImages.of(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    events = made.plan.price.events
    write_release(folder / "obfuscated", artifact, made, made.plan.report(), events)
    return sorted(folder.iterdir())


def epsilon_in_card(folder):
    card = (folder / "README.md").read_text()
    put_file(folder, "README.md", card.replace("epsilon = 10, delta", "epsilon = 0.01, delta", 1))


def sentence(words):
    """Put a sentence into the card, and mend the hash."""
    return lambda folder: put_file(
        folder,
        "README.md",
        (folder / "README.md").read_text().replace("## The generator", f"{words}\n\n## The generator"),
    )


LIES = {
    "proven lower": said(epsilon=0.01),
    "unit": said(unit="person"),
    "relation": said(relation="replace-one"),
    "delta": said(delta=1e-9),
    "claimed": lambda f: edit(f, lambda d: d["report"]["claimed"].update(epsilon=0.1)),
    "assumption dropped": report(public_assumptions=[]),
    "N": stated(num_private=200_000),
    "noise": other_event(noise_multiplier=50.0),
    "charges": lambda f: charged(*events_of(f) * 2)(f),
    "settings": config(lambda c: c["settings"]["privacy"].update(epsilon=0.01)),
    "model": config(lambda c: c["generator"]["model"].update(warp=0.1)),
    "card": epsilon_in_card,
}


@pytest.mark.slow
def test_a_later_version_verifies_what_was_released_before(later, small):
    folders = [*CHECKPOINTS, *small]
    for folder, (problems, unchecked) in zip(folders, later(*folders), strict=True):
        assert problems == [], folder.name
        assert "only fields and hashes were compared" in unchecked[0]
        assert verify(folder).problems == (), folder.name
        assert (verify(folder).unchecked == ()) == (folder not in CHECKPOINTS)


@pytest.mark.slow
def test_a_later_version_finds_other_numbers(later, small, tmp_path):
    sources = [next(folder for folder in CHECKPOINTS if "digits" in folder.name), small[0]]
    assert small[0].name == "generator"
    for source in sources:
        for name, forge in LIES.items():
            forge(shutil.copytree(source, tmp_path / source.name / name))
    folders = sorted(tmp_path.glob("*/*"))
    found = later(*folders)
    assert len(folders) == 2 * len(LIES)
    assert [folder for folder, (problems, _) in zip(folders, found, strict=True) if not problems] == []


def test_prose_of_another_version_is_not_checked_and_verify_says_so(small, tmp_path, monkeypatch):
    folder = shutil.copytree(small[0], tmp_path / "release")
    sentence("Nobody needs noise.")(folder)
    assert "is not the card" in verdict(folder)  # this very code made it, and did not write that
    monkeypatch.setattr("idpgan.release.verify.made_with", lambda: "9.0+0123456789ab")
    edit(folder, lambda document: document["report"].update(reason="no noise is needed"))
    card_text = (folder / "README.md").read_text()
    put_file(folder, "README.md", card_text)
    assert verdict(folder) == ""
    said = CliRunner().invoke(app, ["verify", str(folder)])
    assert said.exit_code == 0
    assert f"not checked: the sentences of report and card are those of idpgan {made_with()}" in said.stdout
    assert (
        "only fields and hashes"
        in json.loads(CliRunner().invoke(app, ["verify", str(folder), "--json"]).stdout)["unchecked"]
    )


# Nothing but sentences, or less than is true: a fixed seed would say so too.
PROSE = {"basis edited", "reason edited", "fixed seed passed off"}
WITHOUT_PROSE = {"private flag": "a risk where none"}  # a fixed seed would say so too, and state no risk


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_folder_of_another_version_is_found_out(release, monkeypatch, name):
    monkeypatch.setattr("idpgan.release.verify.made_with", lambda: "9.0+0123456789ab")
    forge, word = FORGED[name]
    forge(release)
    assert (verdict(release) == "") if name in PROSE else (WITHOUT_PROSE.get(name, word) in verdict(release))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("research software.", "research code.", True),
        ('license: "unknown"\n', 'license: "mit"\n', True),
        ('license: "unknown"\n', "", True),
        ('library_name: "idpgan"\n', "", False),  # a head that has grown since
        ('"differential-privacy"', '"not-private"', True),
        ("| claimed |", "| claimed once |", True),
        ("| audited", "|  audited", True),
        ("epsilon = 10, delta", "epsilon = 1, delta", True),
        ("\n\n## Privacy", "\n\n**NOT private.**\n\n## Privacy", True),
        ("\n\n## Privacy", "\n\n| claimed | epsilon = 0.1 |\n\n## Privacy", True),
        ("the image size", "the size \x1b[2J", True),
        ("seed=1", "seed=12345", False),
        ("What is taken as public:", "What everybody knows:", False),
        ("What is taken as public:", "", False),
    ],
)
def test_of_a_card_of_another_version_the_fields_are_compared(release, monkeypatch, old, new, found):
    monkeypatch.setattr("idpgan.release.verify.made_with", lambda: "9.0+0123456789ab")
    card = (release / "README.md").read_text()
    assert old in card
    put_file(release, "README.md", card.replace(old, new, 1))
    assert ("is not the card" in verdict(release)) == found


def test_an_audit_leaves_the_other_words_of_a_release_alone(aggregate_run, tmp_path, monkeypatch):
    path = shutil.copytree(aggregate_run, tmp_path / "run")
    folder = path / "release"
    stated(idpgan="0.4.1")(folder)
    sentence("Handle with care.")(folder)
    assert verdict(folder) == ""
    write_into_release(path, audit_of())
    card = (folder / "README.md").read_text()
    assert "Handle with care." in card
    assert "not measured" not in card
    assert verdict(folder) == ""
    assert load_generator(folder).privacy.audited == audit_of().guarantee
    assert document_of(folder)["idpgan"] == "0.4.1"


def test_what_an_older_format_does_not_say_is_named_in_the_verdict(release):
    assert not verify(release).unchecked
    stated(idpgan="0.2.0", format="idpgan release 4")(release)
    edit(release, lambda table: [table.pop(name) for name in ("risk", "mark")])
    assert "neither risk nor marks" in verify(release).to_json()["unchecked"]


# The accountant of another version ----------------------------------------------------------------------------------


def test_a_price_above_what_is_now_proven_is_accepted(release):
    said(epsilon=11.0)(release)
    found = verify(release)
    assert found.consistent
    assert (found.report.proven.epsilon, round(found.recomputed)) == (11.0, 10)
    said(epsilon=9.9)(release)
    assert "the events cost epsilon = 9.99" in verdict(release)
