"""The commands as a user meets them: exit codes, one line on bad input, nothing half-written."""

import importlib.metadata
import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

import idpgan
from idpgan.commands import app
from idpgan.data.load import load
from idpgan.version import made_with
from tests.data.layouts import declared


def refused(result, *words):
    """Exit code 2, nothing on stdout, one line on stderr with all the words."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("idpgan: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    return True


@pytest.mark.parametrize(
    "command", ["train", "sample", "evaluate", "audit", "report", "ledger", "methods", "verify", "doctor"]
)
def test_every_command_has_help_with_an_example(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Example: idpgan" in out


def test_the_script_for_training_heads_its_help_with_its_own_name():
    script = Path(__file__).parents[2] / "train.py"
    said = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True).stdout
    assert "Usage: train.py [OPTIONS] [[CONFIG]" in said
    refused = subprocess.run([sys.executable, str(script), "nowhere"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("idpgan: Cannot read the config file nowhere")


def test_help_shows_every_word_of_it(run, monkeypatch):
    """What stands in brackets is no markup."""
    monkeypatch.setenv("COLUMNS", "300")
    for name, command in get_command(app).commands.items():
        shown = " ".join(run(name, "--help")[1].split())
        texts = [getattr(each, "help", None) or "" for each in command.params]
        assert [text for text in texts if text.replace("\\[", "[") not in shown] == [], name


def test_the_version_is_printed(run):
    assert run("--version") == (0, f"idpgan {made_with()}\n", "")
    assert made_with().startswith(importlib.metadata.version("idpgan"))


COMPLETED = {  # what a shell sends, and where the words to be completed stand in it
    "bash": lambda words: {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)},
    "zsh": lambda words: {"_TYPER_COMPLETE_ARGS": words},
    "fish": lambda words: {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


@pytest.mark.parametrize("shell", COMPLETED)
def test_a_shell_completes_commands_options_and_methods(shell):
    def completed(words):
        env = {"_IDPGAN_COMPLETE": f"complete_{shell}", **COMPLETED[shell](words)}
        return CliRunner().invoke(app, [], env=env, prog_name="idpgan").stdout

    assert "publish" in completed("idpgan pub")
    assert "prepare" not in completed("idpgan pub")
    assert "--method" in completed("idpgan publish --me")
    assert "lap-wiener" in completed("idpgan publish faces --method lap")
    assert "blur" in completed("idpgan publish faces --method ")


def test_the_last_line_says_what_is_proven_and_what_comes_next(run, tmp_path):
    settings = ["method.moments=4", "method.fourier=8", "model.width=4", "model.codes=4", "training.steps=2"]
    for epsilon, noise in ((10, False), (0.01, True)):
        path = tmp_path / str(epsilon)
        code, out, err = run("train", *settings, f"privacy.epsilon={epsilon}", "--out", path)
        assert code == 0
        last = out.splitlines()[-1]
        proven = json.loads((path / "release" / "privacy.json").read_text())["report"]["proven"]
        assert last == (
            f"Proven: epsilon = {proven['epsilon']:.4g}, delta = 1e-05 (unit image, zero-out-one). "
            f"Next: idpgan sample, evaluate, attack, audit or report {path}"
        )
        assert ("Warning: the result will be noise" in out) == noise
        assert "training steps: 2 of 2" in err


def test_the_last_line_promises_nothing_where_nothing_is_proven(run, tiny, tmp_path):
    _, out, _ = run("train", *tiny, "data.holdout_share=0", "--out", tmp_path / "run")
    *_, said, last = out.splitlines()
    assert said.startswith("NOT PRIVATE: ")
    assert last == (
        "Proven: epsilon = infinite (unit image, replace-one). "
        f"Next: idpgan sample, evaluate or report {tmp_path / 'run'}"
    )


def test_the_report_says_where_it_lies(run, finished_run):
    code, out, _ = run("report", finished_run, "--json")
    assert (code, json.loads(out)) == (0, {"report": str(finished_run / "report.html")})
    code, out, _ = run("report", finished_run)
    assert (code, out) == (0, f"Curator only: {finished_run / 'report.html'}\n")
    assert refused(run("report", finished_run / "release"), "neither a run nor the output")


def test_the_run_folder_is_as_documented(finished_run):
    names = {path.name for path in finished_run.iterdir()}
    assert {"config.toml", "environment.json", "stats.jsonl", "log.txt", "samples", "state", "release"} <= names
    assert {path.name for path in (finished_run / "release").iterdir()} == {
        "generator.safetensors",
        "config.json",
        "privacy.json",
        "README.md",
        "samples.png",
    }


def test_the_release_says_nothing_of_the_curators_machine(finished_run):
    text = (finished_run / "release" / "config.json").read_text() + (finished_run / "release" / "README.md").read_text()
    assert str(finished_run.parent) not in text
    assert "NOT private" in text


def test_a_second_run_in_the_same_place_is_refused(run, finished_run, tiny):
    before = sorted(path.name for path in finished_run.rglob("*"))
    assert refused(run("train", *tiny, "--out", finished_run), "--resume")
    assert sorted(path.name for path in finished_run.rglob("*")) == before


def test_resuming_a_finished_run_changes_no_weight(run, finished_run, tmp_path):
    copy = shutil.copytree(finished_run, tmp_path / "run")
    code, out, _ = run("train", "--resume", copy, "--json")
    assert (code, json.loads(out)["step"]) == (0, 20)
    weights = "release/generator.safetensors"
    assert (copy / weights).read_bytes() == (finished_run / weights).read_bytes()


def test_dry_run_prices_the_run_and_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("train", "--dry-run", "--json")
    plan = json.loads(out)["plan"]
    assert (code, plan["unit"], plan["relation"], plan["num_private"]) == (0, "image", "zero-out-one", 1295)
    assert 9.9 < plan["epsilon"] <= 10.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["training.stesp=4"], ["training.stesp", "Did you mean 'steps'"]),
        (["nothing.toml"], ["nothing.toml"]),
        (["a.toml", "b.toml"], ["one config file at most"]),
        (["data.name=mnits"], ["mnits", "mnist"]),
        (["method.name=wgan"], ["wgan-gp"]),
        (["data.public_share=0.1"], ["confirm_public"]),
        (["privacy.delta=0.5"], ["below 1/N"]),
        (["training.steps=0"], ["training.steps"]),
        (["method.features=public"], ["needs public images"]),
        (["privacy.epsilon=0"], ["privacy.epsilon"]),
        (["--resume", "no-such-run"], ["no-such-run"]),
        (["--resume", "x", "training.steps=3"], ["--resume"]),
    ],
)
def test_bad_training_input_is_one_line_and_no_folder(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert refused(run("train", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_sample_writes_png_folders_with_manifest_and_card(run, finished_run, tmp_path):
    code, _, _ = run("sample", finished_run, "--num", 30, "--out", tmp_path / "out", "--seed", 3)
    assert code == 0
    files = sorted((tmp_path / "out").rglob("*.png"))
    assert len(files) == 30
    with Image.open(files[0]) as image:
        assert image.size == (8, 8)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["classes"] == {str(digit): 3 for digit in range(10)}
    assert manifest["privacy"]["private"] is False
    assert (tmp_path / "out" / "README.md").is_file()
    again = load(declared(tmp_path / "out"))  # an exported folder is a data set
    assert (again.classes, again.image_shape) == (tuple("0123456789"), (1, 8, 8))


def test_sample_writes_npz_reproducibly(run, finished_run, tmp_path):
    for name in ("a.npz", "b.npz"):
        assert (
            run(
                "sample", finished_run / "release", "--num", 7, "--out", tmp_path / name, "--seed", 1, "--labels", "3,4"
            )[0]
            == 0
        )
    with np.load(tmp_path / "a.npz", allow_pickle=False) as a, np.load(tmp_path / "b.npz", allow_pickle=False) as b:
        assert a["images"].shape == (7, 8, 8, 1)
        assert a["images"].dtype == np.uint8
        assert a["labels"].tolist() == [3, 4, 3, 4, 3, 4, 3]
        assert (a["images"] == b["images"]).all()
    assert (tmp_path / "a.manifest.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--num", "0", "--out", "x"], "--num 0"),
        (["--num", "1", "--out", "x", "--labels", "10"], "0 to 9"),
        (["--num", "1", "--out", "x", "--labels", "a"], "'a' is not a class"),
        (["--num", "1", "--out", "gone/x"], "does not exist"),
        (["--num", "1", "--out", "."], "exists already"),
    ],
)
def test_bad_sample_input_writes_nothing(run, finished_run, tmp_path, monkeypatch, arguments, word):
    monkeypatch.chdir(tmp_path)
    assert refused(run("sample", finished_run, *arguments), word)
    assert list(tmp_path.iterdir()) == []


def test_a_released_generator_loads_without_data_or_run(finished_run, tmp_path):
    moved = shutil.copytree(finished_run / "release", tmp_path / "release")
    images = idpgan.load_generator(moved).sample(5, seed=1)
    assert images.shape == (5, 1, 8, 8)


def test_methods_lists_every_method_with_its_three_words(run):
    code, out, _ = run("methods", "--json")
    rows = json.loads(out)
    assert code == 0
    for row in rows:
        assert set(row) == {"name", "family", "units", "relation", "sound", "claimed", "proven", "reason"}
    sound = {row["name"]: row["sound"] for row in rows}
    assert (sound["wgan-gp"], sound["dp-gan"], sound["idp-gan-published"]) == (None, True, False)
    claims_less = {"idp-gan-published", "dp-gan-zhang", "dssgd", "arden"}  # than is proven
    assert {row["sound"] for row in rows if row["proven"] != "inf" and row["name"] not in claims_less} == {True}


@pytest.mark.parametrize("columns", [40, 80, 300])
def test_methods_are_readable_on_a_terminal_of_any_width(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run("methods")
    blocks = dict(block.split("\n", 1) for block in out.rstrip().split("\n\n"))
    assert code == 0
    assert max(map(len, out.splitlines())) <= min(columns, 100)
    assert "idp-gan-aggregate (generator, sound)" in blocks  # a name in eight columns was broken into three lines
    assert "  claimed  nothing" in blocks["wgan-gp (generator, no promise)"]
    assert "  proven   inf" in blocks["wgan-gp (generator, no promise)"]
    for row in json.loads(run("methods", "--json")[1]):
        (block,) = [text for head, text in blocks.items() if head.startswith(f"{row['name']} (")]
        assert row["reason"] in " ".join(block.split())


def test_no_command_at_all_is_said_in_words(run):
    code, _, err = run()
    assert (code, err) == (2, "idpgan: A command is missing. See --help.\n")


def test_verify_accepts_an_untouched_release(run, finished_run):
    code, out, _ = run("verify", finished_run, "--json")
    assert (code, json.loads(out)["consistent"]) == (0, True)
    assert run("verify", finished_run)[1].splitlines()[-1] == "consistent"


def _edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda r: (r / "samples.png").write_bytes(b"x"), "samples.png was changed"),
        (lambda r: (r / "README.md").unlink(), "README.md is missing"),
        (lambda r: (r / "stats.jsonl").write_text("loss"), "no epsilon covers it"),
        (lambda r: _edit(r / "privacy.json", lambda d: d["report"]["proven"].update(epsilon=1.0)), "the events cost"),
        (lambda r: _edit(r / "privacy.json", lambda d: d["report"]["proven"].update(unit="pixel")), "unit pixel"),
    ],
)
def test_verify_finds_what_was_tampered_with(run, finished_run, tmp_path, damage, word):
    release = shutil.copytree(finished_run / "release", tmp_path / "release")
    damage(release)
    code, out, _ = run("verify", release)
    assert code == 1
    assert word in out


def test_verify_refuses_foreign_events(run, finished_run, tmp_path):
    release = shutil.copytree(finished_run / "release", tmp_path / "release")
    _edit(release / "privacy.json", lambda d: d["events"].append({**d["events"][0], "relation": "x"}))
    assert refused(run("verify", release), "relation")
    assert refused(run("verify", tmp_path.parent), "not a release")


def test_doctor_is_content_here(run):
    code, out, _ = run("doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(out)}
    assert code == 0
    assert found["accountant"]["found"].startswith("6.76878")  # the last digit is the grid's
    assert "operating system" in found["noise"]["found"]


def test_doctor_says_in_ten_lines_what_this_machine_has_and_trains_nothing(run, monkeypatch):
    monkeypatch.setattr("idpgan.trainer.train", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.setattr("torch.Tensor.backward", lambda *_, **__: pytest.fail("trained"))
    lines = run("doctor")[1].splitlines()
    assert [line.split(":")[0] for line in lines] == [
        lines[0].split(":")[0], "ok   device", "ok   memory", "ok   data sets"
    ]  # fmt: skip
    assert re.fullmatch(r"ok   \d+ checks: .*", lines[0])
    assert "cores" in lines[1]


@pytest.mark.parametrize("command", ["sample", "train"])
def test_a_gpu_that_is_not_here_is_refused_before_anything_is_written(run, finished_run, tmp_path, command):
    out = tmp_path / "drawn"
    arguments = [finished_run, "--num", "2"] if command == "sample" else ["data.name=digits"]
    assert refused(run(command, *arguments, "--out", out, "--device", "cuda:99"), "is cuda:99", "This machine has cpu")
    assert refused(run(command, *arguments, "--out", out, "--device", "gpu"), "--device gpu is unknown")
    assert not out.exists()


ROOT = Path(__file__).parents[2]
CHECKPOINTS = sorted(path for path in (ROOT / "checkpoints").iterdir() if path.is_dir())
OF_0_1_0 = sorted((ROOT / "tests" / "release" / "checkpoints-0.1.0").iterdir())
WITHOUT_PRIVACY = ("faces-idp-gan-published-eps1", "faces-wgan-gp")  # of drawn faces, who are nobody


@pytest.mark.parametrize("release", [*CHECKPOINTS, *OF_0_1_0], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_released_generators_that_come_with_the_package_verify(run, release):
    code, out, _ = run("verify", release, "--json")
    report = json.loads(out)["report"]
    assert (code, report["private"]) == (0, release.name not in WITHOUT_PRIVACY)
    if report["private"]:
        assert report["proven"]["unit"] == "image"
        budget = float(release.name.rpartition("-eps")[2])
        assert report["audited"]["epsilon"] < report["proven"]["epsilon"] <= budget
    else:
        assert report["proven"] is None or report["proven"]["epsilon"] == "inf"
        assert "NOT private" in (release / "README.md").read_text(encoding="utf-8")
        assert json.loads((release / "config.json").read_text(encoding="utf-8"))["settings"]["data"]["name"] == "faces"
    generator = idpgan.load_generator(release)
    assert generator.sample(2, seed=1).shape == (2, *generator.image_shape)
    assert sum(file.stat().st_size for file in release.iterdir()) < 1_100_000


def test_what_comes_with_the_package_is_of_one_late_version():
    versions = {json.loads((path / "privacy.json").read_text(encoding="utf-8"))["idpgan"] for path in CHECKPOINTS}
    assert {version.partition("+")[0] for version in versions} == {"0.4.0"}
    assert {*WITHOUT_PRIVACY, "faces-dp-gan-eps10"} < {path.name for path in CHECKPOINTS}


@pytest.mark.parametrize("place", ["state/ledger.json", "release/scores.json", "config.toml", "log.txt"])
def test_out_is_never_a_file_of_the_run(run, finished_run, place):
    path = finished_run / place
    before = path.read_bytes() if path.exists() else None
    code, out, err = run("evaluate", finished_run, "--out", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (path.read_bytes() if path.exists() else None) == before


def test_out_is_never_the_input(run, tmp_path):
    path = tmp_path / "images.npz"
    path.write_text('{"format": "idpgan evaluation 1"}')
    code, _, err = run("evaluate", path, "--data", "digits", "--out", path)
    assert (code, "to be read" in err) == (2, True)


def test_attack_writes_over_its_own_result_only(run, finished_run, tmp_path):
    copy = shutil.copytree(finished_run, tmp_path / "run")
    (copy / "attack.json").write_text("mine")
    code, _, err = run("attack", copy)
    assert code == 2
    assert "not an earlier result" in err
    assert (copy / "attack.json").read_text() == "mine"


def test_the_log_names_null_records_once(run, tiny, tmp_path):
    for index in range(20):
        place = tmp_path / "photos" / "ab"[index % 2] / f"{index}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), index).save(place)
    place.write_bytes(b"")
    folder = ["data.name=folder", f"data.root={tmp_path / 'photos'}", "data.image_size=8", "data.channels=1"]
    folder += ["data.num_images=20", 'data.classes=["a", "b"]', "training.batch_size=4", "training.steps=1"]
    out = tmp_path / "run"
    assert run("train", *tiny, *folder, "--out", out)[0] == 0
    assert run("train", "--resume", out)[0] == 0
    assert (out / "log.txt").read_text().count("null record: ") == 1


def test_warnings_are_plain_lines_whatever_an_import_configures(run, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    run("methods", "--json")
    logging.basicConfig(format="%(asctime)s:%(levelname)s:%(message)s")  # as Opacus does
    logging.getLogger("idpgan").warning("a file stands as a null record")
    assert capsys.readouterr().err == "a file stands as a null record\n"
