"""Releases that other code made: with a key fewer and other words they verify, with other numbers they do not."""

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
from idpgan.continual import ContinualCounter
from idpgan.jobs.audit import write_into_release
from idpgan.jobs.verify import verify
from idpgan.obfuscate.settings import ObfuscatedArtifact, ObfuscationTable
from idpgan.privacy.event import Event
from idpgan.release.folder import made_with, write_release
from idpgan.release.words import compare_cards
from tests.publish.pictures import pictures
from tests.release.forging import (
    charged,
    config,
    document_of,
    edit,
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
CHECKPOINTS = sorted((ROOT / "checkpoints").iterdir())

# What a later version may have done: text of the package -> what stands there then.
LATER = {
    "    warp: float = Field(": "    bend: float = Field(default=0.1, ge=0)\n    warp: float = Field(",
    "    holdout_share: Share = 0.1\n": "    holdout_share: Share = 0.1\n    sorted_by: str | None = None\n",
    "    diverged_above: float = Field(": "    patience: int = Field(3, ge=1)\n    diverged_above: float = Field(",
    "    most_per_person: int = Field(20": "    loudness: float = 1.0\n    most_per_person: int = Field(20",
    "    moments: int = Field(": "    bouts: int = Field(2, ge=1)\n    moments: int = Field(",
    'f"one release of noisy sums{': 'f"a single release of sums with noise{',
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
        "import json, sys; from pathlib import Path; from idpgan.jobs.verify import verify\n"
        "found = [verify(Path(path)) for path in sys.argv[1:]]\n"
        "print(json.dumps([[list(each.problems), list(each.words)] for each in found]))"
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
    said = ObfuscationTable.model_validate(table)
    made = said.settings(said.plan())
    artifact = ObfuscatedArtifact.of(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    events = made.plan.price.events
    write_release(folder / "obfuscated", artifact, made, made.plan.report_of(events, None, ()), events)
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
    "not private": report(private=False),
    "number in the reason": report(reason="noise of 512 bits"),
    "assumption dropped": report(public_assumptions=[]),
    "N": stated(num_private=200_000),
    "noise": other_event(noise_multiplier=50.0),
    "charges": lambda f: charged(*[Event.from_json(e) for e in document_of(f)["events"]] * 2)(f),
    "settings": config(lambda c: c["settings"]["privacy"].update(epsilon=0.01)),
    "model": config(lambda c: c["generator"]["model"].update(warp=0.1)),
    "card": epsilon_in_card,
    "sentence with an epsilon": sentence("Another accountant has found epsilon = 0.01."),
    "link": sentence("[Certified](https://example.org) as safe."),
}


@pytest.mark.slow
def test_a_later_version_verifies_what_was_released_before(later, small):
    folders = [*CHECKPOINTS, *small]
    for folder, (problems, words) in zip(folders, later(*folders), strict=True):
        assert problems == [], folder.name
        assert words or folder.name == "obfuscated"
        assert verify(folder).problems == verify(folder).words == ()


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


def test_what_is_shown_of_other_words(small, tmp_path, monkeypatch):
    """A sentence without a number may be a lie: nothing can tell, so it is shown, and so is what was left out."""
    folder = shutil.copytree(small[0], tmp_path / "release")
    sentence("Nobody needs noise.")(folder)
    assert "is not the card" in verdict(folder)  # this very code made it, and did not write that
    monkeypatch.setattr("idpgan.release.verify.made_with", lambda: "9.0+0123456789ab")
    assert verdict(folder) == ""
    text = (folder / "README.md").read_text()
    put_file(folder, "README.md", text.replace("- settings chosen by looking at results on the private data\n", ""))
    assert verify(folder).words == (
        "README.md: + Nobody needs noise.",
        "README.md: - - settings chosen by looking at results on the private data",
    )
    told = CliRunner().invoke(app, ["verify", str(folder)])
    assert told.exit_code == 0
    assert f"words:      of idpgan {made_with()}, not of this version" in told.stdout
    assert "  README.md: + Nobody needs noise." in told.stdout
    assert json.loads(CliRunner().invoke(app, ["verify", str(folder), "--json"]).stdout)["words"] == list(
        verify(folder).words
    )
    edit(
        folder, lambda document: document["report"].update(reason=document["report"]["reason"].replace("noisy", "neat"))
    )
    assert any("neat sums" in line for line in verify(folder).words)
    assert verdict(folder) == ""


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_folder_of_another_version_is_found_out(release, monkeypatch, name):
    monkeypatch.setattr("idpgan.release.verify.made_with", lambda: "9.0+0123456789ab")
    forge, word = FORGED[name]
    forge(release)
    assert word in verdict(release)


CARD = (CHECKPOINTS[0] / "README.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("research software.", "research code.", "is not for a card to say"),
        ('license: "unknown"\n', 'license: "mit"\n', "is not for a card to say"),
        ("---\n\n#", 'base_model: "x"\n---\n\n#', "is not for a card to say"),
        ('"differential-privacy"', '"not-private"', "is not for a card to say"),
        ("| claimed |", "| claimed once |", "is not for a card to say"),
        ("| audited", "|  audited", "is not for a card to say"),
        ("\n\n## Privacy", "\n\n**NOT private.**\n\n## Privacy", "does not say whether it is private"),
        ("the image size", "the size 8 by 8 and 12", "states a number of its own"),
        ("the image size", "the size \uff10.\uff10\uff11", "states a number of its own"),
        ("the image size", "the size <b>of images</b>", "is not for a card to say"),
        ("the image size", "the size \x1b[2J", "cannot be printed"),
        ("the image size", "the size \udcff", "cannot be printed"),
        ("seed=1", "seed=12345", None),
        ("seed=1)", "seed=1)  # epsilon = 1", "states a number of its own"),
        ("What is taken as public:", "What everybody knows:", None),
        ("What is taken as public:", "", None),
        ("## Privacy", "\n" * 3000, "lines"),
    ],
)
def test_a_card_of_other_words(old, new, said):
    assert compare_cards(CARD, CARD) == ([], [])
    assert old in CARD
    problems, lines = compare_cards(CARD.replace(old, new, 1), CARD)
    assert (problems == [] and lines) if said is None else said in problems[0]


def test_a_head_that_has_grown_since_is_no_problem():
    assert compare_cards(CARD.replace('library_name: "idpgan"\n', ""), CARD)[0] == []
    assert compare_cards(CARD.replace('license: "unknown"\n', ""), CARD)[0] != []


def test_an_audit_leaves_the_other_words_of_a_release_alone(aggregate_run, tmp_path, monkeypatch):
    path = shutil.copytree(aggregate_run, tmp_path / "run")
    folder = path / "release"
    stated(idpgan="0.1.0")(folder)
    sentence("Handle with care.")(folder)
    assert len(verify(folder).words) == 1
    write_into_release(path, audit_of())
    card = (folder / "README.md").read_text()
    assert "Handle with care." in card
    assert "not measured" not in card
    assert verdict(folder) == ""
    assert load_generator(folder).privacy.audited == audit_of().guarantee
    assert document_of(folder)["idpgan"] == "0.1.0"


# The accountant of another version ----------------------------------------------------------------------------------


def test_a_price_above_what_is_now_proven_is_accepted(release):
    said(epsilon=11.0)(release)
    found = verify(release)
    assert found.consistent
    assert (found.report.proven.epsilon, round(found.recomputed)) == (11.0, 10)
    said(epsilon=9.9)(release)
    assert "the events cost epsilon = 9.99" in verdict(release)


def test_more_noise_than_is_now_needed_is_accepted_at_the_price_of_the_plan(release):
    event = Event.from_json(document_of(release)["events"][0])
    price = document_of(release)["report"]["proven"]["epsilon"]
    other_event(noise_multiplier=event.noise_multiplier * 1.05)(release)
    assert "not those of the settings" in verdict(release)
    said(epsilon=price)(release)
    assert verdict(release) == ""
    other_event(noise_multiplier=event.noise_multiplier * 1.2)(release)
    said(epsilon=price)(release)
    assert "not those of the settings" in verdict(release)
