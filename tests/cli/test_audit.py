"""``idpgan audit`` as a user meets it."""

import json
import shutil
from pathlib import Path

import pytest

from idpgan.audit.entry import Request
from idpgan.commands import audit
from idpgan.config import dump_toml
from idpgan.kinds import verify as verify_release
from idpgan.run import RunFolder
from idpgan.trainer import load_config

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = ["training.tick_steps=2", "training.steps=2", "release.samples=10"]


@pytest.fixture(scope="module")
def aggregate_run(small_run, tmp_path_factory):
    """A finished aggregate run on the embedded digits."""
    return shutil.copytree(small_run("idp-gan-aggregate"), tmp_path_factory.mktemp("audit") / "run")


def test_a_method_is_audited_beside_claim_and_proof(run):
    code, out, _ = run("audit", "laplace", "--epsilon", 1, "--runs", 20_000, "--seed", 1)
    assert code == 0
    for word in (
        "claimed",
        "proven",
        "audited",
        "cap at this number of runs: 7.90",
        "never measured",
        "proves nothing",
    ):
        assert word in out
    code, out, _ = run("audit", "laplace", "--epsilon", 1, "--runs", 20_000, "--seed", 1, "--json")
    found = json.loads(out)
    assert 0.85 < found["audited"] <= found["proven"] == 1.0
    assert found["result"]["held_out"] == 10_000


def test_a_false_claim_is_said_in_words(capsys):
    audit.print_audited(audit.method_case("idp-gan-published", Request(1.0, draw="per_batch")).run(1000))
    out = capsys.readouterr().out
    assert "the claim is false" in out
    assert "infinite" in out


def test_a_violation_ends_with_exit_code_one(run, monkeypatch):
    from idpgan.audit import cases
    from idpgan.privacy import Noise

    monkeypatch.setattr(Noise, "system", staticmethod(lambda: Noise.fixed(1)))
    monkeypatch.setattr(cases, "compose_epsilon", lambda events, delta: 0.5)
    code, out, _ = run("audit", "laplace", "--epsilon", 1, "--runs", 10_000)
    assert code == 1
    assert "VIOLATION" in out
    assert "up to 5 of 100 audits" in out  # at confidence 0.95 a sound method gets there too
    assert "--confidence 0.9999" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["laplac", "--epsilon", "1"], ["laplac", "laplace"]),
        (["laplace"], ["--epsilon is missing"]),
        (["laplace", "--epsilon", "1", "--runs", "5"], ["--runs 5"]),
        (["laplace", "--epsilon", "1", "--runs", str(10**21)], ["--runs 1000", "1,000,000,000"]),
        (["laplace", "--epsilon", "1", "--canaries", "50"], ["--one-run"]),
        (["laplace", "--epsilon", "1", "--one-run"], ["no steps"]),
        (["dp-gan", "--epsilon", "1", "--one-run", "--runs", "500"], ["--runs does not go with --one-run"]),
        (["dp-gan", "--epsilon", "1", "--one-run", "--canaries", "10" * 20], ["--canaries 1010"]),
        (["dp-gan", "--epsilon", "1", "--unit", "person"], ["no unit person"]),
        (["laplace", "--epsilon", "1", "--unit", "planet"], ["planet"]),
        (["laplace", "--epsilon", "1", "--release"], ["--release is for runs"]),
        (["lap", "--epsilon", "1", "--unit", "label"], ["no unit label"]),
        (["laplace", "--epsilon", "1", "--device", "tpu"], ["--device tpu"]),
    ],
)
def test_bad_input_is_one_line(run, arguments, words):
    code, out, err = run("audit", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("idpgan: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_a_run_is_audited_with_its_own_settings(run, aggregate_run):
    before = {path.name: path.read_bytes() for path in (aggregate_run / "release").iterdir()}
    code, out, _ = run("audit", aggregate_run, "--runs", 4000, "--seed", 1, "--json")
    assert code == 0
    written = json.loads((aggregate_run / "audit.json").read_text())
    assert {key: written[key] for key in json.loads(out)} == json.loads(out)
    assert written["data_free"] is True
    release = json.loads(before["privacy.json"])["report"]
    assert written["proven"] == pytest.approx(release["proven"]["epsilon"])
    assert written["claimed"] == (release["claimed"] or {"epsilon": 2.0})["epsilon"]
    assert {path.name: path.read_bytes() for path in (aggregate_run / "release").iterdir()} == before


def test_a_data_free_audit_may_enter_the_release(run, aggregate_run, tmp_path):
    copy = shutil.copytree(aggregate_run, tmp_path / "run")
    for seed in (1, 2):  # a second audit replaces the first one's value
        assert run("audit", copy, "--runs", 4000, "--seed", seed, "--release", "--json")[0] == 0
    audited = json.loads((copy / "audit.json").read_text())["audited"]
    found = verify_release(copy / "release")
    assert found.problems == ()
    assert found.report.audited.epsilon == audited
    card = (copy / "release" / "README.md").read_text()
    assert f"| audited (lower bound found by attack) | epsilon = {audited:.4g}" in card
    assert "not measured" not in card
    assert run("verify", copy)[0] == 0


def test_a_violation_is_shown_and_does_not_enter_the_release(run, aggregate_run, tmp_path, monkeypatch):
    from idpgan.audit.cases import Audited

    copy = shutil.copytree(aggregate_run, tmp_path / "run")
    before = (copy / "release" / "privacy.json").read_bytes()
    monkeypatch.setattr(Audited, "violation", True)
    code, out, _ = run("audit", copy, "--runs", 1000, "--release")
    assert code == 1
    assert "audited (lower bound)" in out
    assert "Nothing was written into the release" in out
    assert json.loads((copy / "audit.json").read_text())["audited"] >= 0
    assert (copy / "release" / "privacy.json").read_bytes() == before


def test_a_damaged_release_and_foreign_options_are_refused(run, aggregate_run, tmp_path):
    copy = shutil.copytree(aggregate_run, tmp_path / "run")
    (copy / "release" / "samples.png").write_bytes(b"x")
    code, _, err = run("audit", copy, "--runs", 1000, "--release")
    assert (code, "does not verify" in err) == (2, True)
    assert not (copy / "audit.json").exists() or (aggregate_run / "audit.json").exists()
    code, _, err = run("audit", aggregate_run, "--epsilon", 1)
    assert (code, "its own settings" in err) == (2, True)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_method_without_a_guarantee_says_so_in_one_true_sentence(run, finished_run, as_json):
    for what in ("wgan-gp", finished_run):
        code, out, _ = run("audit", what, *["--json"][: int(as_json)])
        assert code == 0
        assert "wgan-gp trains on the raw images without noise, so there is no guarantee to audit." in out
        assert not as_json or json.loads(out)["audited"] is None
    assert not (finished_run / "audit.json").exists()


def test_a_dp_gan_run_is_audited_with_its_own_settings(run, tmp_path):
    """A run that has not begun will do: nothing is read of it but its settings."""
    settings = ["training.steps=3", "privacy.noise_multiplier=1.0", "method.loss=wgan-gp"]
    config = load_config(CONFIGS / "digits-dp-gan.toml", settings)
    path = RunFolder.create(tmp_path / "run", dump_toml(config)).path
    code, out, _ = run("audit", path, "--runs", 1000, "--json", "--seed", 1)
    found = json.loads(out)
    assert code == 0
    assert (found["method"], found["claimed"]) == ("dp-gan", 10.0)
    assert found["audited"] <= found["proven"] < 10
    assert "sample rate 0.05, noise multiplier 1, 3 steps" in found["notes"]
    assert json.loads((path / "audit.json").read_text())["data_free"] is True
    code, out, _ = run("audit", path, "--one-run", "--canaries", 200, "--json")
    assert (code, json.loads(out)["data_free"]) == (0, True)


@pytest.mark.slow  # its noise is solved for over two parts
def test_a_run_of_a_release_and_steps_is_audited_with_its_own_settings(run, tmp_path):
    small = ["training.steps=20", "training.tick_steps=10", "release.samples=10", "model.width=4"]
    path = tmp_path / "run"
    assert run("train", CONFIGS / "digits-diffusion.toml", *small, "--out", path)[0] == 0
    code, out, _ = run("audit", path, "--runs", 1000, "--json", "--seed", 1)
    found = json.loads(out)
    assert (code, found["method"]) == (0, "diffusion")
    assert found["audited"] <= found["proven"] == pytest.approx(10.0, rel=1e-3)
    assert any("20 steps" in note for note in found["notes"])


@pytest.mark.slow  # trains
def test_a_config_is_trained_once_with_canaries(run, tmp_path):
    config = load_config(CONFIGS / "digits-dp-gan.toml", ["training.steps=2", "privacy.noise_multiplier=1.0"])
    path = tmp_path / "small.toml"
    path.write_text(dump_toml(config))
    code, out, _ = run("audit", path, "--one-run", "--canaries", 40)
    assert code == 0
    for words in (
        "critic: epsilon >=",
        "critic, f-DP: epsilon >=",
        "mechanism's own",
        "nearest sample: epsilon >=",
        "40 mislabeled",
        "for the curator",
    ):
        assert words in out


def test_a_published_run_is_audited_too(run, tmp_path):
    path = tmp_path / "run"
    settings = [CONFIGS / "digits-idp-gan-published.toml", *SMALL, "model.width=8"]
    assert run("train", *settings, "--accept-unsound", "--out", path)[0] == 0
    code, out, _ = run("audit", path, "--runs", 1000, "--json", "--seed", 1)
    assert code == 0
    assert json.loads(out)["method"] == "idp-gan-published"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("release/privacy.json", b"{"),
        ("release/privacy.json", b"{}"),
        ("release/config.json", b"{}"),
        ("state/prepared.safetensors", b"x"),
    ],
)
def test_a_damaged_run_is_one_line(run, aggregate_run, tmp_path, file, content):
    copy = shutil.copytree(aggregate_run, tmp_path / "run")
    (copy / file).write_bytes(content)
    code, _, err = run("audit", copy, "--runs", 1000)
    assert (code, err.count("\n"), file.split("/")[1] in err) == (2, 1, True)


@pytest.mark.parametrize(("command", "file"), [("train", "stats.jsonl"), ("attack", "state/prepared.safetensors")])
def test_damaged_bytes_in_a_run_are_one_line(run, aggregate_run, tmp_path, command, file):
    copy = shutil.copytree(aggregate_run, tmp_path / "run")
    (copy / file).write_bytes(b"\xff\n")
    code, _, err = run(command, *["--resume"] * (command == "train"), copy)
    assert (code, err.count("\n"), file.split("/")[0] in err) == (2, 1, True)
