"""A finished run, trained once for all tests of commands."""

from pathlib import Path

import pytest

from idpgan.commands import main

WGAN_GP = str(Path(__file__).parents[2] / "configs" / "digits-wgan-gp.toml")
TINY = [
    WGAN_GP,
    "training.steps=20",
    "training.tick_steps=10",
    "training.batch_size=16",
    "model.width=8",
    "release.samples=10",
]


@pytest.fixture
def run(capsys):
    """Run a command; returns (exit code, stdout, stderr)."""

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return command


@pytest.fixture(scope="session")
def tiny():
    """Settings of a run of a second or two."""
    return TINY


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Run folder of a finished non-private run on the embedded digits."""
    path = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as ended:
        main(["train", *TINY, "--out", str(path)])
    assert ended.value.code == 0
    return path
