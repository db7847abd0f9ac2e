"""``idpgan attack`` as a user meets it."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from idpgan import trainer
from idpgan.attacks.knowledge import choose_members
from idpgan.attacks.registry import select_attacks
from idpgan.data.load import load

ATTACKS = {attack.name: attack for attack in select_attacks(["all"])}
ELSEWHERE = {  # need people, a teacher, a denoiser, sums, shadows
    name
    for name, row in ATTACKS.items()
    if row.by_person or {"teacher", "denoiser", "sums", "shadows"} & set(row.needs)
}
CONFIGS = Path(__file__).parents[2] / "configs"
QUICK = ["--samples", 60, "--most", 30, "--most-costly", 4]


@pytest.fixture
def copied(finished_run, tmp_path):
    """A finished run of its own."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture(autouse=True)
def quick_fit(monkeypatch):
    """Classifiers of six epochs."""
    from idpgan.attacks.losses import fitted_classifier

    def quickly(images, config, steps, *rest):
        return fitted_classifier(images, config, 1, *rest)

    monkeypatch.setattr("idpgan.attacks.losses.fitted_classifier", quickly)


def test_all_attacks_are_run_and_written_for_the_curator(run, copied):
    before = {path.name: path.read_bytes() for path in (copied / "release").iterdir()}
    code, out, err = run("attack", copied, *QUICK, "--train-reference")
    assert code == 0
    assert "to compare images, besides what is trained" in err.partition("attacks: 0 of ")[2].partition("\n")[0]
    assert (
        "training steps: 20 of 20" in err
    )  # of the reference generator, one line per tick; more where the machine is slow
    for word in (*ATTACKS, "n too small", "AUC", "Curator only", "proves nothing"):
        assert word in out
    written = json.loads((copied / "attack.json").read_text())
    assert written["curator_only"] is True
    assert set(written["attacks"]) == set(ATTACKS)
    skipped = {name for name, row in written["attacks"].items() if row["skipped"] is not None}
    assert skipped == ELSEWHERE
    assert all(0 <= row["auc"] <= 1 for name, row in written["attacks"].items() if name not in skipped)
    assert written["best"]["attacks"] == len(written["attacks"]) - len(skipped)
    assert f"strongest of {written['best']['attacks']} attacks" in out
    assert written["num_members"] == written["num_non_members"] == 30
    assert written["attacks"]["latent-reconstruction"]["num_members"] == 4
    assert written["attacks"]["critic-score"]["access"] == "white box"
    assert (copied / "attack.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name: path.read_bytes() for path in (copied / "release").iterdir()} == before
    # The reference generator is kept, and used again.
    kept = (copied / "reference" / "generator.safetensors").stat().st_mtime_ns
    code, out, _ = run("attack", copied, *QUICK, "--train-reference", "--attack", "nearest-sample-calibrated", "--json")
    assert code == 0
    assert (copied / "reference" / "generator.safetensors").stat().st_mtime_ns == kept
    again = json.loads(out)["attacks"]["nearest-sample-calibrated"]
    assert again["auc"] == written["attacks"]["nearest-sample-calibrated"]["auc"]


def test_what_cannot_be_run_is_skipped_with_its_reason(run, copied):
    shutil.rmtree(copied / "state")
    names = ["--attack", "critic-score", "--attack", "nearest-sample-calibrated", "--attack", "nearest-sample"]
    code, out, _ = run("attack", copied, *QUICK, *names, "--json")
    assert code == 0
    found = json.loads(out)
    assert "state/" in found["attacks"]["critic-score"]["skipped"]
    assert "--train-reference" in found["attacks"]["nearest-sample-calibrated"]["skipped"]
    assert found["attacks"]["nearest-sample"]["skipped"] is None
    assert any("without state/" in note for note in found["notes"])


def test_an_unconditional_generator_has_no_labels_to_classify(run, tiny, tmp_path):
    path = tmp_path / "run"
    assert run("train", *tiny, "model.conditional=false", "--out", path)[0] == 0
    code, out, _ = run("attack", path, *QUICK, "--json")
    assert code == 0
    attacks = json.loads(out)["attacks"]
    assert "unconditional" in attacks["classifier-confidence"]["skipped"]
    assert attacks["critic-score"]["skipped"] is None
    assert attacks["latent-reconstruction"]["skipped"] is None


def test_bad_input_is_one_line_and_nothing_is_written(run, copied, tmp_path):
    unfinished = shutil.copytree(copied, tmp_path / "unfinished")
    (unfinished / "release" / "generator.safetensors").unlink()
    without = shutil.copytree(copied, tmp_path / "without")
    text = (without / "config.toml").read_text()
    (without / "config.toml").write_text(text.replace("holdout_share = 0.1", "holdout_share = 0.0"))
    other = shutil.copytree(copied, tmp_path / "other")
    (other / "config.toml").write_text(text.replace("holdout_share = 0.1", "holdout_share = 0.2"))
    for arguments, words in (
        ([tmp_path / "nothing"], "does not exist"),
        ([tmp_path], "not a run folder"),
        ([copied / "config.toml"], "is a file, not a run. Say what its images were made from: --members"),
        ([unfinished], "is not finished"),
        ([without], "no holdout"),
        ([other], "not those that"),
        ([copied, "--attack", "critic-scor"], "Did you mean 'critic-score'"),
        ([copied, "--samples", 2], "--samples 2"),
        ([copied, "--most", 1], "--most 1"),
        ([copied, "--device", "tpu"], "--device tpu"),
        ([copied, "--seed", -1], "--seed = -1"),
        ([copied, "--confidence", 1.5], "--confidence 1.5"),
        ([copied, "--reference", copied], "was trained on"),
        ([copied, "--reference", copied, "--train-reference"], "exclude each other"),
    ):
        code, out, err = run("attack", *arguments, *([] if "--most" in arguments else ["--most", 30]))
        assert (code, out) == (2, ""), arguments
        assert err.startswith("idpgan: ")
        assert err.count("\n") == 1
        assert words in err
    assert not list(tmp_path.rglob("attack.json"))


def test_members_non_members_and_reference_are_disjoint():
    split = load(trainer.load_config(CONFIGS / "digits-wgan-gp.toml", ["data.holdout_share=0.6"]).data)
    members, others, reference = choose_members(split, 100)
    assert len(members) == len(others) == 100
    assert torch.equal(members.images, split.private.images[:100])
    assert torch.equal(others.images, split.holdout.images[:100])
    assert len(reference) == len(split.test) + len(split.holdout) - 100
    assert torch.equal(reference.images[len(split.test) :], split.holdout.images[100:])


def test_a_run_has_a_gate_and_a_list_of_its_riskiest_records(run, copied):
    before = {path.name: path.read_bytes() for path in (copied / "release").iterdir()}
    asked = [*QUICK, "--attack", "nearest-sample", "--riskiest", 3]
    code, out, _ = run("attack", copied, *asked, "--fail-above", "0.5@0.01")
    assert code == 4  # 30 others show no rate at 1 % false alarms
    assert "GATE UNDECIDED (exit code 4)" in out
    assert "riskiest 1: image " in out
    written = json.loads((copied / "attack.json").read_text())
    assert (written["gate"]["verdict"], len(written["riskiest"])) == ("undecided", 3)
    assert {path.name: path.read_bytes() for path in (copied / "release").iterdir()} == before
    code, out, _ = run("attack", copied, *asked, "--fail-above", "leak", "--confidence", 0.999, "--json")
    assert (code, json.loads(out)["gate"]["exit_code"]) == (0, 0)
    assert run("report", copied)[0] == 0
    assert "Members that are found most easily" in (copied / "report.html").read_text()
