"""What a newcomer stumbled over, each with its test."""

import shlex

import pytest
from PIL import Image

from idpgan.commands import folder
from idpgan.commands.evaluate import EvaluateOptions, data_config
from idpgan.commands.publish import PublishOptions
from idpgan.data import source
from idpgan.data.source import Refused, warn_of_null, warn_once
from idpgan.errors import InputError
from idpgan.host import own_state

QUICK = ["digits-gaussian", "release.samples=4", "--no-progress"]


@pytest.fixture(scope="module")
def run_with_blanks(tmp_path_factory):
    return tmp_path_factory.mktemp("my runs") / "first run"


def test_printed_commands_can_be_pasted(run, run_with_blanks):
    code, out, _ = run("train", *QUICK, "--out", run_with_blanks)
    assert code == 0
    assert shlex.split(out.splitlines()[-1].split(" or ")[-1])[-1] == str(run_with_blanks)
    code, _, error = run("train", *QUICK, "--out", run_with_blanks)
    assert code == 2
    assert f"--resume {shlex.quote(str(run_with_blanks))}," in error
    photos = run_with_blanks.parent / "a's photos"
    (photos / "x").mkdir(parents=True)
    for index in range(3):
        Image.new("L", (40, 30 + index)).save(photos / "x" / f"{index}.png")
    said = run("init", photos)[2]
    assert shlex.split(said.split("idpgan prepare ")[1])[0] == str(photos)


def test_a_file_beside_a_run_is_judged_by_the_runs_data(run, run_with_blanks):
    if not run_with_blanks.exists():
        run("train", *QUICK, "--out", run_with_blanks)
    for name in ("synthetic.npz", "synthetic"):
        assert data_config(run_with_blanks / name, EvaluateOptions()).name == "digits"
    with pytest.raises(InputError, match="--data is missing"):
        data_config(run_with_blanks.parent / "synthetic.npz", EvaluateOptions())


def test_a_license_is_stated_or_said_to_be_unknown(run, tmp_path):
    code, out, _ = run("train", *QUICK, "--out", tmp_path / "none")
    assert 'the card says "unknown"' in out
    card = (tmp_path / "none" / "release" / "README.md").read_text()
    assert 'license: "unknown"' in card
    assert "License: unknown" in card
    stated = ['release.license="cc-by-4.0"', 'data.license="CC0"']
    code, out, _ = run("train", *QUICK, *stated, "--out", tmp_path / "stated")
    assert code == 0
    assert "unknown" not in out
    card = (tmp_path / "stated" / "release" / "README.md").read_text()
    assert 'license: "cc-by-4.0"' in card
    assert "The private images have the license CC0" in card
    assert run("verify", tmp_path / "stated" / "release")[0] == 0
    release = tmp_path / "stated" / "release" / "README.md"
    release.write_text(card.replace('license: "cc-by-4.0"', 'license: "mit"'))
    assert run("verify", tmp_path / "stated" / "release")[0] == 1  # negative control
    assert run("train", *QUICK, 'release.license="a\\nb"', "--dry-run")[0] == 2


def test_what_a_null_record_is_stands_there_once_and_the_count_each_time(caplog, tmp_path):
    source._warn.cache_clear()
    files = [Refused(tmp_path / f"{index}.png", f"{index}.png is empty.") for index in range(3)]
    for _ in range(3):
        warn_of_null(files, 100)
    assert caplog.text.count("3 of 100 files cannot be used as declared") == 3
    assert caplog.text.count("Null records keep their positions") == 1


def test_a_second_call_in_one_process_says_again_what_a_null_record_is_and_what_it_warns_of(caplog, tmp_path):
    files = [Refused(tmp_path / "0.png", "0.png is empty.")]
    for _ in range(2):
        with own_state():
            for _ in range(2):
                warn_of_null(files, 100)
                warn_once("of the same folder")
    assert caplog.text.count("Null records keep their positions") == 2
    assert caplog.text.count("of the same folder") == 2


def test_the_log_names_some_null_records_and_counts_the_rest(run, tmp_path, caplog):
    (tmp_path / "images").mkdir()
    for index in range(80):
        path = tmp_path / "images" / f"{index:02}.png"
        Image.new("L", (28, 28)).save(path) if index % 2 else path.write_bytes(b"")
    settings = ["data.name=folder", f"data.root={str(tmp_path / 'images')!r}".replace("'", '"'), "data.num_images=80"]
    settings += ["data.image_size=28", "data.channels=1", "data.classes=[]", "model.conditional=false"]
    settings += ["privacy.delta=1e-3", "model.latent_dim=4"]
    assert run("train", *QUICK, *settings, "--out", tmp_path / "run")[0] == 0
    source._warn.cache_clear()
    attacking = ("--most", 9, "--samples", 20, "--attack", "nearest-sample", "--no-progress")
    assert "is empty" in caplog.text
    caplog.clear()
    run("attack", tmp_path / "run", *attacking)
    assert [record.getMessage() for record in caplog.records] == [
        "40 files stand as null records; log.txt of the run has the reasons."
    ]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("null record: ") == 20
    assert "null records: 40 in all" in log
    assert run("report", tmp_path / "run")[0] == 0
    assert "40 files could not be used" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("answer", ["n", "y"])
def test_a_trial_without_a_proof_is_asked_about_before_it_marks_the_ledger(tmp_path, monkeypatch, answer):
    (tmp_path / "faces").mkdir()
    asked = []

    class Terminal:
        def isatty(self):
            return True

    def confirm(text, **_):
        asked.append(text)
        return answer == "y"

    monkeypatch.setattr(folder.sys, "stdin", Terminal())
    monkeypatch.setattr(folder.sys, "stderr", Terminal())
    monkeypatch.setattr(folder.typer, "confirm", confirm)
    options = PublishOptions((str(tmp_path / "faces"),), "blur", tmp_path / "out", accept_unsound=True)
    if answer == "y":
        folder.ask_before_marking(options, "blur")
    else:
        with pytest.raises(InputError, match="nothing was published or charged"):
            folder.ask_before_marking(options, "blur")
    assert "total of" in asked[0]
    assert "infinite" in asked[0]


NEEDED = {
    "publish": ("--method (", "--out (", "lap-wiener", "Sound: ", "blur", "--epsilon 10 --unit image"),
    "sample": (("--num (", "--out (")),
}


@pytest.mark.parametrize("name", NEEDED)
def test_all_that_is_missing_is_asked_for_at_once(run, name):
    code, out, err = run(name, *([] if name == "sample" else ["faces"]))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [words for words in NEEDED[name] if words not in err] == []
    assert "DIR" not in err  # it is given


def test_what_is_there_is_not_asked_for_and_a_wrong_value_is_named_first(run):
    _, _, err = run("publish", "faces", "--out", "out")
    assert err.startswith("idpgan: publish needs --method (")
    assert "--out (" not in err
    for method in ("lap", "best", "sra"):
        asked = ("publish", "faces", "--out", "out", "--method", method, "--accept-unsound")
        assert run(*asked)[2] == "idpgan: publish needs --epsilon and --unit, such as --epsilon 10 --unit image.\n"
        assert "publish needs --unit, such" in run(*asked, "--epsilon", 1)[2]
    assert "Invalid value for '--epsilon'" in run("publish", "faces", "--epsilon", "x")[2]
    assert "No such option: --epsilom" in run("publish", "--epsilom", "1")[2]
