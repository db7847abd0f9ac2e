"""Every command of README and docs is one that the program has; those of README.md run, one after the other."""

import inspect
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from idpgan.cli import app
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
# What a synopsis has and a command to be run has not: choices, optional parts, words for something else.
PLACEHOLDER = re.compile(r"[\[\]|]|\b[A-Z]{2,}\b|(?<=[ =])[A-Z]\b|\.\.\.")
# Commands of the README that are not run here, with the reason; a word that begins the command is enough.
NOT_RUN = {
    "make demo": "installs an environment; its commands are those of tests/test_wheel.py",
    "make test": "this is it",
    "make docs-check": "this is it",
    "make slow": "tests, not an example",
    "pip install": "installs; see tests/test_wheel.py",
    "git clone": "needs a network",
    "torchrun": "needs several processes for minutes",
    "idpgan doctor --benchmark": "minutes; see tests/test_benchmark.py",
    "idpgan train mnist": "needs MNIST and up to an hour",
    "idpgan train configs/mnist": "needs MNIST and up to an hour",
    "python benchmarks": "hours",
}
SECONDS = 900  # of one command


def commands(path, languages=("sh", "bash")):
    """Return the commands of a page, continued lines joined, comments left out."""
    found = []
    for language, text in BLOCK.findall(path.read_text(encoding="utf-8")):
        if language in languages:
            lines = text.replace("\\\n", " ").splitlines()
            found += [line for line in (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in lines) if line]
    return found


def calls(line):
    """Return what of a line calls the program: each a list of words."""
    return [shlex.split(part) for part in re.split(r"&&|;|>|<|\|\s", line) if part.split()[:1] == ["idpgan"]]


def options_of():
    """Return the options of every command."""
    group = typer.main.get_command(app)
    return {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in group.commands.items()
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_and_option_of_a_page_exists(path):
    known = options_of()
    for line in commands(path):
        for _, name, *words in calls(line.replace("[", " ").replace("]", " ")):
            if name.startswith("-"):
                continue
            assert name in known, line
            given = {word.partition("=")[0] for word in words if word.startswith("-")}
            assert given <= {*known[name], "--help", "-h"}, line


def test_the_check_of_commands_can_fail(tmp_path):
    (tmp_path / "x.md").write_text("```sh\nidpgan train --frobnicate 3  # a comment\nidpgan dance\n```\n")
    with pytest.raises(AssertionError, match="frobnicate"):
        test_every_command_and_option_of_a_page_exists(tmp_path / "x.md")
    assert commands(tmp_path / "x.md") == ["idpgan train --frobnicate 3", "idpgan dance"]


def not_run(line):
    return next((reason for start, reason in NOT_RUN.items() if line.startswith(start)), None)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder as a new user has it: the checkout's files, photos of drawn people in a folder each, and the program."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("configs", "checkpoints", "benchmarks", "docs"):
        (folder / name).symlink_to(ROOT / name)
    images = draw(240, 64, 3, people=60, seed=1)
    for number, (image, person) in enumerate(zip(images.images, images.identities.tolist(), strict=True)):
        path = folder / "photos" / f"person {person}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_bytes(image))
    (folder / "bin").mkdir()
    program = folder / "bin" / "idpgan"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m idpgan "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def environment(world):
    path = os.pathsep.join([str(world / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    roots = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PATH": path, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1"}


@pytest.mark.docs
def test_the_commands_of_the_readme_run(world):
    ran = []
    for line in commands(ROOT / "README.md"):
        if not_run(line) or PLACEHOLDER.search(line):
            continue  # a synopsis: its options are looked at above
        done = subprocess.run(
            ["bash", "-c", line], cwd=world, env=environment(world), capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        ran.append(line)
    assert len(ran) >= 3, ran


@pytest.mark.docs
def test_the_python_of_the_readme_runs(world, monkeypatch):
    monkeypatch.chdir(world)
    (world / "OUT").mkdir(exist_ok=True)
    names = {"images": torch.rand(4, 48, 48)}
    blocks = [text for language, text in BLOCK.findall((ROOT / "README.md").read_text()) if language == "python"]
    assert blocks
    for block in blocks:
        exec(compile(inspect.cleandoc(block), "README.md", "exec"), names)  # a block goes on where the last one ended
