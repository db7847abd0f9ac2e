"""Two commands at once with one place for what they write: one wins, and the other takes nothing and leaves nothing."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import idpgan
from idpgan import files
from idpgan.commands import fit, main, process_ledger
from idpgan.commands import init as init_module
from idpgan.commands.one_call import publish_images
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.kinds import verify
from idpgan.privacy import books
from idpgan.release import export
from idpgan.run import RunFolder
from idpgan.trainer import load_config
from tests.portraits.made_head import made_head

GREY = (np.arange(40 * 64).reshape(40, 8, 8) * 7 % 249).astype(np.uint8)
HIDDEN = files, "_make_part_folder"
CLAIM = "idpgan: "


def photos(place, num=4):
    if not place.exists():
        place.mkdir(parents=True)
        for index in range(num):
            Image.fromarray(GREY[index].repeat(4, 0).repeat(4, 1)).save(place / f"{index}.png")
    return place


def command(*arguments):
    """Run a command line; bad input is an exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    if ended.value.code:
        raise InputError("see stderr")


def stream(who, out):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(f"{who}\n"))
        command("stream", "--epsilon", 1, "--horizon", 20, "--out", out)


COMMANDS = {  # what writes (of the winner, 1, or the loser, 0), and where the loser stands when the winner passes it
    "train": (lambda who, out: command("train", "digits-gaussian", f"training.seed={who}", "--out", out),
              (RunFolder, "create")),
    "publish": (lambda who, out: command("publish", photos(out.parent / f"f{who}"), "--method", "lap", "--epsilon", 1,
                                         "--unit", "image", "--out", out), HIDDEN),
    "publish_images": (lambda who, out: publish_images(GREY + np.uint8(who), epsilon=1.0, unit="image", method="lap",
                                                       out=out, progress=False), HIDDEN),
    "prepare": (lambda who, out: command("prepare", photos(out.parent / f"f{who}", 4 + who), out, "--size", 28,
                                         "--folders", "none"), HIDDEN),
    "people": (lambda who, out: command("people", out, "-n", 1 + who, "--size", 32), HIDDEN),
    "stream": (stream, HIDDEN),
    "fit.save": (lambda who, out: fitted().save(out), HIDDEN),
    "sample": (lambda who, out: command("sample", "checkpoints/digits-aggregate-eps10", "--num", 3 + who, "--out", out),
               HIDDEN),
    "sample to out.npz": (lambda who, out: command("sample", "checkpoints/digits-aggregate-eps10", "--num", 3 + who,
                                                   "--out", out), (export, "new_file")),
    "init to out.toml": (lambda who, out: command("init", "digits-gaussian" if who else "digits", "--out", out),
                         (init_module, "config_for")),
}  # fmt: skip


def fitted(made={}):  # noqa: B006
    return made.setdefault(0, idpgan.fit(GREY, epsilon=2.0, method="gaussian", progress=False))


def written(place):
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.parts[-2][:1] != "f"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(process_ledger, "_DONE", [])
    monkeypatch.setattr("idpgan.portraits.render.read_head", made_head)


@pytest.mark.parametrize("name", COMMANDS)
def test_of_two_at_once_one_wins_and_the_other_takes_nothing_and_leaves_nothing(tmp_path, monkeypatch, capsys, name):
    (job, (where, what)), out = COMMANDS[name], tmp_path / ([*name.split(" to ")][1:] or ["out"])[0]
    fitted()
    real, won = getattr(where, what), {}

    def passed(*arguments, **options):
        monkeypatch.setattr(where, what, real)
        job(1, out)
        won.update(written(tmp_path))
        return real(*arguments, **options)

    monkeypatch.setattr(where, what, passed)
    with pytest.raises(InputError) as refused:
        job(0, out)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(CLAIM)] or [str(refused.value)]
    assert len(said) == 1
    assert str(out.with_suffix("")) in said[0]
    kept = {path: content for path, content in written(tmp_path).items() if not path.name.endswith((".json", ".lock"))}
    assert kept == {path: content for path, content in won.items() if path in kept}
    assert set(won) <= set(written(tmp_path))
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.old"))
    if name in ("train", "publish", "publish_images", "stream", "fit.save"):
        release = out / "release" if (out / "release").is_dir() else out
        assert verify(release).problems == ()


def test_a_failure_after_the_name_was_taken_leaves_nothing(tmp_path, monkeypatch):
    (job, _), out = COMMANDS["sample to out.npz"], tmp_path / "out.npz"
    real = export.write_bytes_atomic

    def full(path, content):
        real(path, content)
        if path == out:  # the disk refuses to flush the folder, say
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(export, "write_bytes_atomic", full)
    with pytest.raises(InputError):
        job(0, out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["prepare", pytest.param("train", marks=pytest.mark.slow)])
def test_of_two_processes_at_once_exactly_one_wins(tmp_path, name):
    """Both begin together; whoever comes first, the folder is whole and of one of them."""
    source, out = photos(tmp_path / "f", 30), tmp_path / "out"
    arguments = {"prepare": ["prepare", source, out, "--size", "28", "--folders", "none"],
                 "train": ["train", "digits-gaussian", "--out", out]}[name]  # fmt: skip
    line = [sys.executable, "-m", "idpgan", *map(str, arguments)]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate()[1] for each in both]
    assert sorted(each.returncode for each in both) == [0, 2], said
    (lost,) = (text for each, text in zip(both, said, strict=True) if each.returncode)
    assert sum(line.startswith(CLAIM) for line in lost.splitlines()) == 1
    assert "Traceback" not in lost
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "out"]
    if name == "train":
        assert verify(out / "release").problems == ()
    else:
        assert len(list(out.glob("*.png"))) == 30
        assert json.loads((out / "prepared.json").read_text())


def test_the_holder_of_one_ledger_takes_no_half_written_file_of_another(tmp_path):
    """Names that begin alike, and names with the letters of patterns."""
    parts = [tmp_path / f".{name}.{'a' * 16}.part" for name in ("a*.json", "ab.json", "a*.json.state", "x.a*.json")]
    for part in parts:
        part.write_text("of a writer")
    with books.locked(tmp_path / "a*.json"):
        assert [part.exists() for part in parts] == [False, True, True, True]
    assert os.listdir(tmp_path)


def test_what_another_process_writes_is_not_replaced_and_what_it_fills_is_not_removed(tmp_path):
    def write(text, between=lambda: None):
        with files.whole_folder(tmp_path / "out") as folder:
            (folder / "a").write_text(text)
            between()

    with pytest.raises(InputError, match="another process"):
        write("mine", between=lambda: write("theirs"))
    assert (tmp_path / "out" / "a").read_text() == "theirs"
    with files.whole_folder(tmp_path / "new") as filled:
        files.remove_dead(tmp_path)
        files.remove_dead(tmp_path, "new")
        assert filled.exists()
    write("new")  # negative control: alone it replaces
    assert (tmp_path / "out" / "a").read_text() == "new"


@pytest.mark.parametrize(("is_there", "number"), [(False, 1), (True, 1), (True, 2)])
def test_what_comes_between_the_look_and_the_renames_is_one_line(tmp_path, monkeypatch, is_there, number):
    target, rename, calls = tmp_path / "out", Path.rename, []
    if is_there:
        target.mkdir()

    def late(self, new):
        calls.append(self)
        if len(calls) == number:
            shutil.rmtree(target, ignore_errors=True)  # the other process puts the old folder aside
            if number == 1 + is_there:  # and its own in place
                target.mkdir()
                (target / "a").write_text("theirs")
        return rename(self, new)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(InputError, match="another process"), files.whole_folder(target) as folder:
        (folder / "a").write_text("mine")
    assert not target.exists() or (target / "a").read_text() == "theirs"
    assert not list(tmp_path.glob(".*"))


def test_a_disk_that_refuses_a_rename_is_not_called_another_process(tmp_path, monkeypatch):
    def full(self, new):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"), files.whole_folder(tmp_path / "out"):
        pass


@pytest.mark.parametrize("is_there", [False, True])
def test_the_only_copy_that_a_kill_left_between_two_renames_goes_back(tmp_path, is_there):
    old, target = tmp_path / f".release.{'a' * 16}.old", tmp_path / "release"
    old.mkdir()
    (old / "a").write_text("old")
    if is_there:  # the kill came after the second rename
        target.mkdir()
        (target / "a").write_text("new")
    files.remove_dead(tmp_path, "release")
    assert (target / "a").read_text() == ("new" if is_there else "old")
    assert os.listdir(tmp_path) == ["release"]


def test_a_run_that_cannot_be_made_takes_nothing_of_the_run_that_another_made_meanwhile(tmp_path, monkeypatch):
    """Between the failure and the clean-up nobody can come."""
    seen, out = [], tmp_path / "run"

    def full(path, text, **options):
        raise OSError(28, "No space left on device", str(path))

    def removed(path, **options):
        try:
            with files.file_lock(out, busy="in use"):
                seen.append("free")
        except InputError:
            seen.append("locked")

    monkeypatch.setattr(files, "write_text_atomic", full)
    monkeypatch.setattr("shutil.rmtree", removed)
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder.create(out, "", {})
    assert seen == ["locked"]


LABELS = np.arange(len(GREY)) % 2
QUICK = {"epsilon": 2.0, "method": "gaussian", "progress": False}


@pytest.mark.parametrize("winner", ["has its run", "has written its images", "takes a folder of that name"])
def test_of_two_fits_with_one_name_the_loser_takes_nothing_away(tmp_path, monkeypatch, winner):
    """The winner passes the loser between the loser's look at the name and its first write."""
    file, shape = tmp_path / "run.images.safetensors", fit.known_shape

    def passed(*args, **options):
        monkeypatch.setattr(fit, "known_shape", shape)
        if winner == "has its run":
            idpgan.fit(255 - GREY, LABELS, out=tmp_path / "run", **QUICK)
        elif winner == "has written its images":
            file.write_bytes(b"of the winner")
        else:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "config.toml").write_text("of the winner")
        return shape(*args, **options)

    monkeypatch.setattr(fit, "known_shape", passed)
    with pytest.raises(InputError, match=r"another process|is not empty|exists already|already"):
        idpgan.fit(GREY, LABELS, out=tmp_path / "run", **QUICK)
    if winner == "has its run":
        assert verify(tmp_path / "run").problems == ()
        assert load(load_config(tmp_path / "run" / "config.toml").data).num_private == len(GREY)
    else:
        assert file.exists() == (winner == "has written its images")
        assert winner != "takes a folder of that name" or (tmp_path / "run" / "config.toml").exists()
