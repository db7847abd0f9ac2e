"""Disks that cannot flush a folder or lock a file: told before the charge, or no matter; never a charge for nothing."""

import errno
import fcntl
import os
import stat

import pytest

from idpgan import files
from idpgan.commands.command import explain
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes
from idpgan.errors import InputError
from idpgan.privacy import Event, Ledger, Relation, Unit

LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


@pytest.fixture
def faces(tmp_path):
    for number, image in enumerate(draw(4, 28, 1, seed=3).images):
        path = tmp_path / "faces" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png_bytes(image))
    return tmp_path / "faces"


@pytest.fixture
def unflushed(monkeypatch):
    """Let every flush of a folder fail with an error."""

    def install(number):
        fsync = os.fsync

        def refuses(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", refuses)
        monkeypatch.setattr(files, "_UNFLUSHED", set())

    return install


@pytest.fixture
def lockless(monkeypatch):
    def install(number):
        def refuses(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", refuses)

    return install


def commands(faces, tmp_path):
    """What writes to a disk, and what it makes."""
    out = tmp_path / "out"
    return {
        "publish": (("publish", faces, "--method", "lap", "--epsilon", 1, "--unit", "image", "--out", out), "release"),
        "obfuscator": (("publish", faces, "--method", "blur", "--accept-unsound", "--out", out), "release"),
        "prepare": (("prepare", faces, out, "--size", 28), "metadata.csv"),
    }


@pytest.mark.parametrize("command", ["publish", "obfuscator", "prepare"])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_disk_that_cannot_flush_folders_is_named_once_in_the_log(
    run, faces, tmp_path, unflushed, caplog, command, number
):
    """`publish` charged at each attempt and released nothing; `prepare` reported an error over a whole folder."""
    unflushed(number)
    arguments, made = commands(faces, tmp_path)[command]
    code, _, error = run(*arguments)
    assert (code, (tmp_path / "out" / made).exists()) == (0, True), error
    assert caplog.text.count("cannot flush folders") == 1


@pytest.mark.parametrize("command", ["publish", "obfuscator", "prepare"])
def test_any_other_refusal_of_a_folder_is_told_before_the_charge(run, faces, tmp_path, unflushed, command):
    """A control: a failing disk is no old disk."""
    unflushed(errno.EIO)
    code, _, error = run(*commands(faces, tmp_path)[command][0])
    assert (code, error.count("\n")) == (2, 1)
    assert os.strerror(errno.EIO) in error
    assert "None" not in error
    assert sorted(os.listdir(tmp_path)) == ["faces"]


@pytest.mark.parametrize("command", ["publish", "obfuscator"])
@pytest.mark.parametrize("number", LOCKLESS)
def test_a_ledger_on_a_disk_without_locks_is_refused_before_the_charge(run, faces, tmp_path, lockless, command, number):
    """It said "None" or "a file or the output"."""
    lockless(number)
    code, _, error = run(*commands(faces, tmp_path)[command][0])
    assert (code, error.count("\n")) == (2, 1)
    for words in ("faces.ledger.json", "no lock", os.strerror(number), "--ledger FILE"):
        assert words in error
    assert sorted(os.listdir(tmp_path)) == ["faces"]


def test_prepare_needs_no_lock(run, faces, tmp_path, lockless):
    lockless(errno.ENOLCK)
    assert run(*commands(faces, tmp_path)["prepare"][0])[0] == 0


def test_a_run_and_a_stream_without_locks_are_one_sentence_and_charge_nothing(run, tmp_path, lockless, monkeypatch):
    lockless(errno.ENOLCK)
    monkeypatch.setattr("sys.stdin", iter(["3\n"]))
    asked = {
        "run": ("train", "digits-gaussian", "--out", tmp_path / "run"),
        "state": ("stream", "--epsilon", 1, "--state", tmp_path / "state"),
    }
    for name, arguments in asked.items():
        code, said, error = run(*arguments)
        assert (code, said, error.count("\n")) == (2, "", 1), error
        for words in (name, "no lock", "another disk"):
            assert words in error
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_ledger_in_a_program_without_locks_is_one_sentence_and_charges_nothing(tmp_path, lockless):
    lockless(errno.ENOLCK)
    ledger = Ledger(Unit.IMAGE, Relation.REPLACE_ONE, path=tmp_path / "ledger.json")
    with pytest.raises(InputError, match=r"no lock.* Name a place on another disk"):
        ledger.charge(Event("pure", Unit.IMAGE, Relation.REPLACE_ONE, pure_epsilon=1.0))
    assert (ledger.events, (tmp_path / "ledger.json").exists()) == ((), False)


@pytest.mark.parametrize("write", [files.append_line, files.write_text_atomic])
def test_an_error_of_a_write_names_its_file(tmp_path, monkeypatch, write):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as refused:
        write(tmp_path / "file.txt", "text")
    assert refused.value.filename == str(tmp_path / "file.txt")


@pytest.mark.parametrize("fill", [files.new_folder, files.whole_folder])
def test_an_error_while_a_folder_is_filled_names_the_folder(tmp_path, fill):
    with pytest.raises(OSError, match="No space left") as refused, fill(tmp_path / "out"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(explain(refused.value)).startswith(f"{tmp_path / 'out'}: No space left")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), OSError("odd"), OSError()])
def test_an_error_without_a_file_is_never_of_none(error):
    said = str(explain(error))
    assert "None" not in said
    assert "a file or the output" not in said
    assert said.startswith("the system refused a call that names no file: ")
