"""What the machine refuses: one line, a sensible exit code, nothing half-written, and no result lost."""

import builtins
import errno
import io
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan import trainer
from idpgan.commands import command, main
from idpgan.metrics.cache import Cache
from idpgan.metrics.evaluation import METRICS, Evaluation

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def one_line(result, *words, code=2):
    """The exit code, and one line on stderr with all the words."""
    found, _, err = result
    assert (found, err.count("\n")) == (code, 1), result
    assert err.startswith("idpgan: ")
    assert all(word in err for word in words), err
    return True


def leftovers(folder):
    """Files that are not whole, or hidden ones that nobody asked for."""
    hidden = [path for path in folder.rglob(".*") if path.suffix != ".lock"]  # a lock stays, empty
    return [str(path) for path in [*hidden, *folder.rglob("*.part")]]


@pytest.fixture
def disk_full_at(monkeypatch):
    """Make the n-th write (n = 0, 1, ...) of a file fail as on a full disk; a folder that is flushed is no write."""

    def install(n):
        seen, fsync = [0], os.fsync

        def failing(descriptor):
            seen[0] += not stat.S_ISDIR(os.fstat(descriptor).st_mode)
            if seen[0] > n:
                raise OSError(*FULL.args)
            return fsync(descriptor)

        monkeypatch.setattr(os, "fsync", failing)

    return install


@pytest.fixture
def npz(tmp_path):
    """A few synthetic digits."""
    path = tmp_path / "digits.npz"
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(40) % 10)
    return path


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_disk_full_while_training_leaves_a_run_that_goes_on(run, tiny, tmp_path, disk_full_at, monkeypatch, n):
    out = tmp_path / "run"
    with monkeypatch.context():
        disk_full_at(n)
        assert one_line(run("train", *tiny, "--out", out), "No space left")
    monkeypatch.undo()
    assert leftovers(tmp_path) == []
    if (out / "state" / "ledger.json").is_file():
        code, _, _ = run("train", "--resume", out)
        assert (code, (out / "release" / "privacy.json").is_file()) == (0, True)


def test_disk_full_after_computing_loses_no_evaluation(run, npz, tmp_path, disk_full_at, monkeypatch):
    computed = Evaluation(dict.fromkeys(METRICS), part="test", notes=("took minutes",))
    monkeypatch.setattr("idpgan.metrics.evaluate_images", lambda *_, **__: computed)
    disk_full_at(0)
    out = tmp_path / "scores.json"
    found = run("evaluate", npz, "--data", "digits", "--out", out)
    assert one_line(found, "scores.json", "No space left")
    assert "took minutes" in json.loads(found[1])["notes"]
    assert not out.exists()
    assert leftovers(tmp_path) == []


def test_a_full_disk_costs_the_cache_and_not_the_result(tmp_path, disk_full_at, caplog):
    disk_full_at(0)
    found = Cache(tmp_path).get("thing", {}, lambda: {"value": torch.ones(1)})
    assert found["value"].item() == 1
    assert "is not kept" in caplog.text


def test_disk_full_after_computing_loses_no_attack(run, finished_run, tmp_path, disk_full_at):
    copy = shutil.copytree(finished_run, tmp_path / "run")
    disk_full_at(0)
    found = run("attack", copy, "--attack", "nearest-sample", "--samples", 200, "--most", 50, "--no-progress")
    assert one_line(found, "attack.json", "No space left")
    assert json.loads(found[1])["attacks"]
    assert not (copy / "attack.json").exists()
    assert leftovers(copy) == []


@pytest.mark.parametrize("name", ["out.npz", "out"])
def test_disk_full_while_sampling_leaves_nothing(run, finished_run, tmp_path, disk_full_at, monkeypatch, name):
    disk_full_at(0)
    monkeypatch.setattr("pathlib.Path.write_bytes", lambda *_: (_ for _ in ()).throw(OSError(*FULL.args)))
    assert one_line(run("sample", finished_run, "--num", 3, "--out", tmp_path / name), "No space left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "sample", "evaluate", "attack", "audit"])
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_computed(
    run, tiny, finished_run, npz, tmp_path, monkeypatch, command
):
    arguments = {
        "train": [*tiny, "--out", tmp_path / "new" / "run"],
        "sample": [finished_run, "--num", 3, "--out", tmp_path / "x.npz"],
        "evaluate": [npz, "--data", "digits", "--out", tmp_path / "x.json"],
        "attack": [finished_run],
        "audit": [finished_run],
    }[command]

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "somewhere")

    def computed(*_, **__):
        pytest.fail("computed before the place was tried")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for name in ("idpgan.trainer.load", "idpgan.data.load.load", "idpgan.models.checkpoint.load_generator"):
        monkeypatch.setattr(name, computed)
    before = sorted(path.name for path in tmp_path.iterdir())
    if command == "audit":  # of a run without a guarantee it says so, and writes nothing
        assert run("audit", *arguments)[0] == 0
    else:
        place = finished_run if command == "attack" else tmp_path  # as it was named, not the file that was tried
        assert one_line(run(command, *arguments), str(place), "Read-only")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.fixture
def unreadable(monkeypatch):
    """Make every file of a name unreadable, whoever runs the tests."""

    def install(name, number=errno.EACCES):
        def wrap(opened):
            def opening(file, *args, **kwargs):
                if isinstance(file, str | os.PathLike) and os.path.basename(os.fspath(file)) == name:
                    raise OSError(number, os.strerror(number), os.fspath(file))
                return opened(file, *args, **kwargs)

            return opening

        monkeypatch.setattr(builtins, "open", wrap(builtins.open))
        monkeypatch.setattr(io, "open", wrap(io.open))
        monkeypatch.setattr(os, "open", wrap(os.open))

    return install


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("config.toml", ["train", "--resume", "RUN"]),
        ("ledger.json", ["train", "--resume", "RUN"]),
        ("state.pt", ["train", "--resume", "RUN"]),
        ("generator.safetensors", ["sample", "RUN", "--num", "2", "--out", "TMP/x.npz"]),
        ("config.json", ["sample", "RUN", "--num", "2", "--out", "TMP/x.npz"]),
        ("config.toml", ["evaluate", "RUN"]),
        ("config.toml", ["attack", "RUN"]),
        ("config.toml", ["audit", "RUN"]),
        ("privacy.json", ["verify", "RUN"]),
    ],
)
def test_a_file_that_cannot_be_read_is_named(run, finished_run, tmp_path, unreadable, name, command, number):
    copy = shutil.copytree(finished_run, tmp_path / "run")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    words = [word.replace("RUN", str(copy)).replace("TMP", str(tmp_path)) for word in command]
    unreadable(name, number)
    result = run(*words)
    assert one_line(result, os.strerror(number))
    assert name in result[2]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert all(path.read_bytes() == content for path, content in before.items() if path.name != name)


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (MemoryError("Unable to allocate 9 GiB"), 2, "not enough memory (Unable to allocate 9 GiB)"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), 2, "not enough memory"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), 2, "could not be written"),
        (KeyboardInterrupt(), 130, "Ctrl-C"),
        (command.Terminated(), 143, "SIGTERM"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, "closed it"),
        (OSError(errno.ENOSPC, "No space left", "/a\nb/.x.json.0123456789abcdef.part"), 2, "x.json: No space left"),
        (OSError("no number at all"), 2, "no number at all"),
    ],
)
def test_every_command_ends_in_one_line(run, monkeypatch, error, code, word):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("idpgan.commands.doctor.examine", fail)
    assert one_line(run("doctor"), word, code=code)


def test_sigterm_while_arguments_are_read_is_one_line_too(run, monkeypatch):
    def stopped(*_, **__):
        raise command.Terminated

    monkeypatch.setattr("idpgan.commands._group", lambda: stopped)
    assert one_line(run("doctor"), "SIGTERM", code=143)


@pytest.mark.parametrize("error", [ZeroDivisionError("defect"), RuntimeError("defect"), KeyError("defect")])
def test_a_defect_stays_a_traceback(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("idpgan.commands.doctor.examine", fail)
    from idpgan.commands import main

    with pytest.raises(type(error), match="defect"):
        main(["doctor"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_images_are_read_leaves_nothing(run, tiny, tmp_path, monkeypatch, number, code):
    def stopped(*_):
        os.kill(os.getpid(), number)

    before, held = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(trainer, "load", stopped)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
    try:
        assert one_line(run("train", *tiny, "--out", tmp_path / "run"), "stopped by", code=code)
    finally:
        signal.signal(signal.SIGINT, held)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_training_saves_and_says_which(run, tiny, tmp_path, monkeypatch, number, code):
    def stopping(self, what, done, total, note=""):
        if (what, done, note) == ("training steps", 12, ""):
            os.kill(os.getpid(), number)

    monkeypatch.setattr("idpgan.progress.Lines.__call__", stopping)
    found, out, err = run("train", *tiny, "--out", tmp_path / "run")
    assert (found, err) == (code, "")
    assert "--resume" in out


IMPORTS = """
import os, signal, sys
class Finder:
    left = {left}
    def find_spec(self, name, *_):
        Finder.left -= name == {name!r} if {name!r} else 1
        if not Finder.left:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["idpgan", "doctor"]
from idpgan.__main__ import main
main()
"""
MOMENTS = [("typer", 1), ("torch", 1)]
LATER = [
    ("numpy", 1),
    ("numpy.random.mtrand", 1),
    ("torch._C", 1),
    ("torch.optim", 1),
    ("pydantic", 1),
    ("idpgan.device", 1),
]
LATER += [("", left) for left in (25, 50, 150, 300, 450, 600, 750, 900, 1100, 1300, 1500)]


@pytest.mark.parametrize(("name", "left"), [*MOMENTS, *(pytest.param(*each, marks=pytest.mark.slow) for each in LATER)])
def test_ctrl_c_while_a_command_is_imported_is_one_line(tmp_path, name, left):
    """At the import of a module, or at the so-many-th import of all."""
    code = IMPORTS.format(name=name, left=left)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    if not name and not done.returncode:
        pytest.skip("all was imported by then")
    assert (done.returncode, done.stderr.count("\n")) == (130, 1), done.stderr
    assert done.stderr.startswith("idpgan: stopped by Ctrl-C; ")


def test_what_a_signal_became_in_an_import_is_the_signal(run, monkeypatch):
    """Bindings make an ImportError of it, say; without a signal it stays what it is."""
    came = []

    def broken(*_, **__):
        try:
            if came:
                os.kill(os.getpid(), came.pop())
        except BaseException as error:
            raise ImportError("a binding could not be initialized") from error
        raise ImportError("no such module")

    held = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("idpgan.commands.doctor.examine", broken)
    try:
        came.append(signal.SIGINT)
        assert one_line(run("doctor"), "stopped by Ctrl-C", code=130)
        with pytest.raises(ImportError, match="no such module"):
            run("doctor")
        monkeypatch.setattr("idpgan.commands._group", lambda: broken)
        came.append(signal.SIGINT)
        assert one_line(run("doctor"), "nothing was begun", code=130)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background
        came.append(signal.SIGINT)
        with pytest.raises(ImportError, match="no such module"):
            run("doctor")
    finally:
        signal.signal(signal.SIGINT, held)


def test_a_closed_pipe_and_a_full_disk_behind_stdout():
    command = f"{sys.executable} -m idpgan methods --json"
    full = subprocess.run(["sh", "-c", f"{command} > /dev/full"], capture_output=True, text=True)
    assert (full.returncode, full.stderr.count("\n")) == (2, 1)
    assert "No space left" in full.stderr
    closed = subprocess.run(
        ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (closed.returncode, closed.stderr.count("\n")) == (141, 1)


CLOSED = """
import os, sys
import idpgan.commands
assert (sys.stdin, sys.stdout) == (None, None)
idpgan.commands.open_missing_streams()
assert os.open(os.devnull, os.O_RDONLY) > 2  # no file of ours gets the number of a stream
idpgan.commands.main(["methods", "--json"])
"""


@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_the_null_device(closed):
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(CLOSED)} {closed}"
    assert subprocess.run(command, shell=True, timeout=60).returncode == 0


def test_doctor_and_evaluate_say_what_cannot_be_imported(run, npz, monkeypatch):
    """Installed, but of another build."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchmetrics.image.fid", None)
    code, out, _ = run("doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(out)}
    assert (code, found["torchvision"]["good"]) == (1, False)
    assert "cannot be imported" in found["torchvision"]["found"]
    assert found["torchvision"]["mend"].startswith('pip install --force-reinstall "torchvision<')
    assert '"torch<' in found["torchvision"]["mend"]  # one build of both
    assert found["numpy"]["mend"] is None
    assert f"     mend: {found['torchvision']['mend']}" in run("doctor")[1].splitlines()
    assert found["numpy"]["good"]
    assert one_line(run("evaluate", npz, "--data", "digits", "--only", "fidelity"), "torchmetrics cannot be imported")


def test_an_unknown_option_is_one_line(run):
    assert one_line(run("train", "--stesp", "3"), "--stesp")
    assert one_line(run("trian"), "trian")
    assert one_line(run("sample", "x", "--num", "many", "--out", "y"), "--num")


def test_names_that_are_no_text_are_one_line(run, tiny):
    for name in ("a\udcffb", "a\nb"):
        assert one_line(run("train", *tiny, f"data.root={name}", "data.name=folder"))


def test_a_device_that_is_not_there_is_blamed_on_its_own_option(run, npz, finished_run, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert one_line(run("evaluate", npz, "--data", "digits", "--device", "cuda"), "--device is cuda")
    assert one_line(run("attack", finished_run, "--device", "cuda"), "--device is cuda")
    assert one_line(run("audit", "laplace", "--epsilon", 1, "--device", "cuda"), "--device is cuda")


def test_an_audit_of_more_runs_than_anyone_waits_for_is_refused(run):
    assert one_line(run("audit", "laplace", "--epsilon", 1, "--runs", 10**21), "--runs")


def test_doctor_says_what_is_not_installed(run, monkeypatch):
    from importlib import metadata

    version = metadata.version

    def gone(name):
        if name == "safetensors":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", gone)
    code, out, _ = run("doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(out)}
    assert (code, found["safetensors"]["good"]) == (1, False)
    assert found["safetensors"]["mend"] == 'pip install "safetensors>=0.5"'
    assert "GiB free" in found["memory"]["found"]


def test_doctor_says_how_to_mend_pytorch_itself(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, _ = run("doctor")
    assert code == 1
    assert "BAD  torch: " in out
    assert 'mend: pip install --force-reinstall "torch<' in out


@pytest.mark.slow
def test_a_real_disk_that_is_full(run, tiny, tmp_path):
    """One run on a small file system in memory; skipped where none may be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1300k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        result = run("train", *tiny, "model.width=64", "--out", place / "run")
        assert one_line(result, "No space left")
        assert leftovers(place) == []
    finally:
        subprocess.run(["umount", place], check=True)


def test_verify_says_which_file_it_cannot_read(run, finished_run, tmp_path, unreadable):
    copy = shutil.copytree(finished_run, tmp_path / "run")
    unreadable("samples.png")
    code, out, err = run("verify", copy)
    assert (code, err) == (1, "")
    assert "samples.png cannot be read (Permission denied)" in out


class Console(io.BytesIO):
    """What stands behind stdout: a file, or a terminal."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-16"])
def test_what_is_sent_into_a_file_is_utf8_whatever_the_console(tmp_path, monkeypatch, encoding, terminal):
    """`init > config.toml` in a console of Windows: `train` reads it. A terminal itself keeps its encoding."""
    for number in range(30):
        place = tmp_path / "photos" / ("Ärger", "λ ☂")[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(place)
    behind = Console(terminal)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(behind, encoding=encoding))
    with pytest.raises(SystemExit) as ended:
        main(["init", str(tmp_path / "photos"), "--epsilon", "3"])
    assert not ended.value.code
    sys.stdout.flush()
    text = behind.getvalue().decode(encoding if terminal else "utf-8")
    shown = {"ascii": ["\\xc4rger", "\\u03bb \\u2602"], "cp1252": ["Ärger", "\\u03bb \\u2602"]}
    for name in shown.get(encoding, ["Ärger", "λ ☂"]) if terminal else ["Ärger", "λ ☂"]:
        assert name in text
    if not terminal:
        assert sorted(tomllib.loads(text)["data"]["classes"]) == ["Ärger", "λ ☂"]
