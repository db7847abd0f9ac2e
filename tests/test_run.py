import getpass
import json
import os
import platform
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from idpgan.errors import InputError
from idpgan.files import file_lock
from idpgan.run import RunFolder, _git_commit, describe_environment, passing_folder
from tests.training.toy import Stopped, stopping_at

CONFIG = "[training]\nsteps = 3\n"
ENVIRONMENT = {"python": "3"}


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Run folders


def test_a_new_run_is_the_curators_alone_but_for_its_release(tmp_path):
    previous = os.umask(0o002)
    try:
        run = RunFolder.create(tmp_path / "runs" / "a", CONFIG, ENVIRONMENT)
    finally:
        os.umask(previous)
    assert run.config.read_text() == CONFIG
    assert json.loads(run.environment.read_text()) == ENVIRONMENT
    assert mode(run.path) == 0o711  # others may pass through to release/
    assert mode(run.state_dir) == mode(run.samples) == 0o700
    assert mode(run.config) == mode(run.environment) == 0o600
    assert not run.release.exists()  # whole or absent: it is made when there is something to release
    assert RunFolder.open(run.path) == run


def test_paths_are_those_of_the_architecture(tmp_path):
    run = RunFolder(tmp_path)
    names = {
        "config": "config.toml",
        "environment": "environment.json",
        "stats": "stats.jsonl",
        "log": "log.txt",
        "tensorboard": "tensorboard",
        "samples": "samples",
        "state_dir": "state",
        "state": "state/state.pt",
        "prepared": "state/prepared.safetensors",
        "ledger": "state/ledger.json",
        "release": "release",
        "evaluation": "evaluation.json",
        "attack": "attack.json",
        "audit": "audit.json",
        "report": "report.html",
    }
    assert {name: getattr(run, name).relative_to(tmp_path).as_posix() for name in names} == names


def test_an_empty_folder_may_become_a_run(tmp_path):
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", CONFIG, ENVIRONMENT)


def test_a_used_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("dear")
    with pytest.raises(InputError, match=r"is not empty \(thesis\.tex\).*--resume"):
        RunFolder.create(tmp_path / "used", CONFIG, ENVIRONMENT)
    assert os.listdir(tmp_path / "used") == ["thesis.tex"]


def test_an_existing_run_is_refused_and_left_alone(tmp_path):
    run = RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT)
    with pytest.raises(InputError, match=r"is a run already.*--resume"):
        RunFolder.create(run.path, "other", ENVIRONMENT)
    assert run.config.read_text() == CONFIG


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        RunFolder.create(tmp_path / "file", CONFIG, ENVIRONMENT)
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder.create(tmp_path / "file" / "below", CONFIG, ENVIRONMENT)
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder.create_unique("mnist", "wgan-gp", CONFIG, root=tmp_path / "file", environment=ENVIRONMENT)


def test_what_is_no_run_is_not_opened(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not a run folder"):
        RunFolder.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a run folder"):
        RunFolder.open(tmp_path / "file")


def test_default_names_are_unique_also_in_one_moment(tmp_path):
    runs = []

    def create() -> None:
        runs.append(RunFolder.create_unique("my faces/1", "idp-gan", CONFIG, root=tmp_path, environment=ENVIRONMENT))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {run.path.name for run in runs}
    assert len(names) == 8
    assert all(name.startswith("my-faces-1-idp-gan-2") for name in names)
    assert all(run.path.parent == tmp_path for run in runs)


def test_of_two_processes_that_make_one_run_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("idpgan.run.refuse_used", lambda run: None)  # both found the folder empty
    RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT)
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder.create(tmp_path / "run", "other", ENVIRONMENT)
    assert RunFolder.open(tmp_path / "run").config.read_text() == CONFIG


# Environment


def test_environment_is_json_without_names_of_people_hosts_or_folders():
    described = describe_environment()
    text = json.dumps(described)
    assert described["python"] == platform.python_version()
    assert described["versions"]["torch"].startswith("2.")
    assert described["versions"]["idpgan"]
    assert described["device"] == "cpu"
    assert described["threads"] >= 1
    assert os.path.expanduser("~") not in text
    assert os.getcwd() not in text
    words = set(text.replace('"', " ").replace(",", " ").split())
    assert platform.node() not in words
    assert getpass.getuser() not in words


def test_git_commit_is_that_of_the_package_or_none(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    module = tmp_path / "package" / "run.py"
    module.parent.mkdir()
    module.write_text("1")
    monkeypatch.setattr("idpgan.run.__file__", str(module))
    monkeypatch.setattr("idpgan.run._git_commit", _git_commit.__wrapped__)  # asked once a process
    assert describe_environment()["git"] is None  # in the folder of a repository, but not part of it
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert describe_environment()["git"] == {"commit": git("rev-parse", "HEAD"), "changed": False}
    module.write_text("2")
    assert describe_environment()["git"]["changed"] is True
    monkeypatch.setenv("PATH", "")
    assert describe_environment()["git"] is None


def test_one_process_at_a_time_trains_a_run(tmp_path):
    run = RunFolder.create(tmp_path / "run", "", {})
    with run.locked(), pytest.raises(InputError, match="Another process"), RunFolder.open(run.path).locked():
        pass
    with run.locked():  # free again
        pass


@pytest.mark.parametrize("number", range(1, 4))
def test_a_folder_whose_making_was_killed_may_be_used_again(tmp_path, number):
    with stopping_at(number, Stopped()), pytest.raises(Stopped):
        RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT, ledger="{}")
    assert any((tmp_path / "run").iterdir())
    (tmp_path / "run" / ".config.toml.0123456789abcdef.part").write_text("half")  # what SIGKILL leaves besides
    run = RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT, ledger="{}")
    assert run.config.read_text() == CONFIG
    assert run.ledger.read_text() == "{}"
    assert not list(run.path.rglob("*.part"))


@pytest.mark.parametrize("name", ["thesis.tex", "state/thesis.tex", "release/generator.safetensors", "samples/a.png"])
def test_what_holds_anything_else_is_not_taken_for_such_a_folder(tmp_path, name):
    for folder in ("state", "samples", "release"):
        (tmp_path / folder).mkdir()
    (tmp_path / name).write_text("dear")
    with pytest.raises(InputError, match="is not empty"):
        RunFolder.create(tmp_path, CONFIG, ENVIRONMENT)
    assert (tmp_path / name).read_text() == "dear"


def test_a_folder_that_another_process_is_making_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with file_lock(tmp_path / "run"), pytest.raises(InputError, match="Another process is making"):
        RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT)
    RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT)


HOLDS = """
import sys, time
from idpgan.run import passing_folder
with passing_folder() as folder:
    (folder / "images").write_text("private")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_leaves_goes_at_the_next_call_and_nothing_else_does(tmp_path, monkeypatch):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", HOLDS]
    others = {tmp_path / "idpgan-private-mine", tmp_path / "idpgan-private-link", tmp_path / "target"}
    for name in ("idpgan-private-mine", "target"):  # a folder of the user's own, and one that a link leads to
        (tmp_path / name).mkdir()
    (tmp_path / "target" / "alive").touch()
    (tmp_path / "idpgan-private-link").symlink_to(tmp_path / "target")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as killed:
        left = Path(killed.stdout.readline().strip())
        with passing_folder() as mine:
            assert (left / "images").is_file()  # its process lives
            assert stat.S_IMODE(mine.stat().st_mode) == 0o700
        assert not mine.exists()
        killed.kill()
    assert (left / "images").is_file()
    with passing_folder() as mine:
        assert set(tmp_path.iterdir()) == others | {mine}


def test_a_fork_that_ends_leaves_the_folder_to_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with passing_folder() as mine:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    assert mine.exists()
