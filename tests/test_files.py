"""Files that are written whole or not at all, and their hashes."""

import errno
import hashlib
import os
import stat
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idpgan import files
from idpgan.errors import InputError
from idpgan.files import append_line, check_writable, sha256_file, write_bytes_atomic, write_text_atomic


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@given(content=st.binary(max_size=2000))
def test_written_bytes_are_read_back_and_hashed(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.bin"
    write_bytes_atomic(path, b"old")
    write_bytes_atomic(path, content)
    assert path.read_bytes() == content
    assert sha256_file(path) == hashlib.sha256(content).hexdigest()


def test_text_is_utf8_with_its_own_line_ends(tmp_path):
    write_text_atomic(tmp_path / "text", "naïve\nε\r\n")
    assert (tmp_path / "text").read_bytes() == "naïve\nε\r\n".encode()


@pytest.mark.parametrize("exception", [OSError, KeyboardInterrupt])
def test_an_interrupted_write_keeps_the_old_content(tmp_path, monkeypatch, exception):
    path = tmp_path / "state.pt"
    write_bytes_atomic(path, b"old")

    def interrupted(descriptor) -> None:
        seen.append((path.read_bytes(), os.fstat(descriptor).st_size))
        raise exception

    seen = []
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(exception):
        write_bytes_atomic(path, b"half of the new")
    assert seen == [(b"old", 15)]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.pt"]

    def plain() -> None:
        with path.open("wb") as file:
            file.write(b"half of the new")
            file.flush()
            os.fsync(file.fileno())

    with pytest.raises(exception):  # negative control: a plain write loses it
        plain()
    assert path.read_bytes() != b"old"


def test_a_write_that_cannot_be_moved_leaves_nothing(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk"):
        write_bytes_atomic(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == []


def test_content_and_folder_are_flushed_in_the_right_order(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"), fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replace"), replace(*paths)))
    write_bytes_atomic(tmp_path / "ledger.json", b"{}")
    assert done == ["file", "replace", "folder"]


def test_permissions_follow_the_umask_unless_secret(tmp_path):
    previous = os.umask(0o027)
    try:
        write_bytes_atomic(tmp_path / "plain", b"")
        write_bytes_atomic(tmp_path / "secret", b"", mode=0o600)
    finally:
        os.umask(previous)
    assert mode(tmp_path / "plain") == 0o640
    assert mode(tmp_path / "secret") == 0o600


def test_hash_of_a_known_text_and_of_a_missing_file(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert sha256_file(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(InputError, match="missing cannot be read"):
        sha256_file(tmp_path / "missing")


def test_an_appended_line_is_whole_and_the_curators_alone(tmp_path):
    for line in ("one", "two"):
        append_line(tmp_path / "log.txt", line)
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"
    assert mode(tmp_path / "log.txt") == 0o600


def test_a_place_that_refuses_files_is_named_as_it_was_asked_for(tmp_path, monkeypatch):
    def refuse(**where):
        raise OSError(errno.EROFS, "Read-only file system", f"{where['dir']}/tmp1234")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OSError, match="Read-only") as refused:
        check_writable(tmp_path / "out")
    assert (refused.value.errno, refused.value.filename) == (errno.EROFS, str(tmp_path / "out"))


def test_a_folder_that_another_took_for_dead_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    lock, taken = files.file_lock, []

    def late(path, **options):
        if not taken:
            taken.append(path)
            path.rmdir()
        return lock(path, **options)

    monkeypatch.setattr(files, "file_lock", late)
    with files.new_folder(tmp_path / "new") as part:
        (part / "x").write_text("whole")
    assert (tmp_path / "new" / "x").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
