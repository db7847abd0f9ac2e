"""Every command of README and docs is one that the program has; the examples of README, guide and methods run."""

import functools
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from idpgan.commands import app
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes
from tests.test_keys import sections

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
METHODS = sorted((ROOT / "docs" / "methods").glob("*.md"))
# A block, the file that it is the text of, and the reason why it is not run here, where they are said above it.
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?(?:^`(?P<file>[^`\n]+)`[^\n]*\n\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
# What a synopsis has and a command to be run has not: choices, optional parts, words for something else.
PLACEHOLDER = re.compile(r"[\[\]]|\S\|\S|\b[A-Z]{2,}\b|(?<=[ =])[A-Z]\b|\.\.\.")
# Commands of the README that are not run here, with the reason; a word that begins the command is enough.
NOT_RUN = {
    "make demo": "installs an environment; its commands are those of tests/test_wheel.py",
    "make test": "this is it",
    "make docs-check": "this is it",
    "make slow": "tests, not an example",
    "python3.11 -m venv": "installs an environment",
    "pip install": "installs; see tests/test_wheel.py",
    "git clone": "needs a network",
    "torchrun": "needs several processes for minutes",
    "idpgan train mnist": "needs MNIST and up to an hour",
    "idpgan train configs/mnist": "needs MNIST and up to an hour",
    "python benchmarks": "hours",
}
SECONDS = 1800  # of one command, on a machine that does other things too


def lines(text):
    """Return the commands of a block, continued lines joined, comments left out."""
    plain = (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in plain if line]


def commands(path):
    """Return the commands of a page."""
    blocks = BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [line for found in blocks if found["language"] in ("sh", "bash") for line in lines(found["text"])]


def calls(line):
    """Return what of a line calls the program: each a list of words."""
    return [shlex.split(part) for part in re.split(r"&&|;|>|<|\|\s", line) if part.split()[:1] == ["idpgan"]]


@functools.cache
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


# What a page takes for granted, beside the files of the checkout: names of `Stock`.
GIVEN = {
    "README.md": "photos",
    "giving-away.md": "config.toml",
    "own-data.md": "photos consenting48",
    "judging.md": "run",
    "matrix-publishers.md": "faces",
    "publish.md": "faces",
    "publishers.md": "faces",
    "receiver.md": "synthetic-faces faces48 others48",
    "report.md": "run",
    "sliding-windows.md": "faces",
    "which-epsilon.md": "config.toml",
    "which-method.md": "faces48",
}
# What a page's Python takes for granted.
GIVEN_NAMES = {
    "opacus.md": "import torch\nimages, labels = torch.rand(640, 1, 8, 8) * 2 - 1, torch.arange(640) % 10\n",
}


def write_photos(folder, num, people, side, seed):
    """Write photos of drawn people, a folder a person: stand-ins for what a reader has."""
    images = draw(num, side, 3, people=people, seed=seed)
    for number, (image, person) in enumerate(zip(images.images, images.identities.tolist(), strict=True)):
        path = folder / f"person {seed}-{person}" / f"{number}.png"  # nobody is in two folders
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_bytes(image))


FROM = {  # what -> of what, by which command
    "faces48": ("photos", "idpgan prepare photos faces48 --size 48 --folders person"),
    "others48": ("others", "idpgan prepare others others48 --size 48 --folders person"),
    "consenting48": ("others", "idpgan prepare others consenting48 --size 48 --folders person"),
    "config.toml": ("faces48", "idpgan init faces48 > config.toml"),
    "run": ("config.toml", "idpgan train config.toml --out run"),
    "synthetic-faces": ("run", "idpgan sample run --num 200 --out synthetic-faces"),
}
PHOTOS = {"photos": (240, 60, 64, 1), "others": (80, 20, 64, 2), "faces": (12, 3, 32, 3)}  # of people, px, seed


class Stock:
    """Makes what pages take for granted, each once, by the commands of the other pages."""

    def __init__(self, folder):
        self.folder = folder

    def find(self, name):
        """Return where something lies."""
        path = self.folder / name
        if not path.exists() and name in PHOTOS:
            write_photos(path, *PHOTOS[name])
        elif not path.exists():
            source, line = FROM[name]
            self.find(source)
            run(line, self.folder)
        return path


@pytest.fixture(scope="session")
def stock(tmp_path_factory):
    return Stock(tmp_path_factory.mktemp("stock"))


def run(line, folder):
    """Run a command as a reader does, with the program on the path."""
    program = folder / ".bin" / "idpgan"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m idpgan "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    roots = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def examples(path):
    """Return the blocks that are to be run or written: all, but of a method's page those before its second section."""
    text = path.read_text(encoding="utf-8")
    if path in METHODS:
        starts = [found.start() for found in re.finditer(r"^## ", text, re.M)]
        first = BLOCK.search(text)
        text = text[: next((start for start in starts if first and start > first.end()), len(text))]
    return [found for found in BLOCK.finditer(text) if not found["reason"]]


def follow(path, folder):
    """Do what a page says, in its order, and its Python at the end; return what was done."""
    done, script = [], ""
    for found in examples(path):
        if found["file"]:
            (folder / found["file"]).write_text(found["text"], encoding="utf-8")
        elif found["language"] in ("sh", "bash"):
            for line in lines(found["text"]):
                if not not_run(line) and not PLACEHOLDER.search(line):  # a synopsis: its options are looked at above
                    run(line, folder)
                    done.append(line)
        elif found["language"] == "python":
            script += found["text"]
    if script:
        (folder / "script.py").write_text(GIVEN_NAMES.get(path.name, "") + script, encoding="utf-8")
        run("python script.py", folder)
        done.append("python script.py")
    return done


def has_examples(path):
    return any(found["language"] in ("sh", "bash", "python") for found in examples(path))


@pytest.mark.docs
@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *GUIDE, *filter(has_examples, METHODS)], ids=lambda path: path.stem
)
def test_the_examples_of_a_page_run(path, stock, tmp_path):
    for name in ("configs", "checkpoints", "benchmarks", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in GIVEN.get(path.name, "").split():
        if name in PHOTOS:  # a folder's ledger, and a limit in it, belong to one page
            shutil.copytree(stock.find(name), tmp_path / name)
        else:
            (tmp_path / name).symlink_to(stock.find(name))
    assert follow(path, tmp_path)


@functools.cache
def known_keys():
    """Return the dotted keys of all configs."""
    return {f"{name}.{key}" for name, section in sections() for key in section.model_fields}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_config_of_a_page_has_keys_that_there_are(path):
    known = known_keys()
    for found in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if found["language"] == "toml":
            given = keys(tomllib.loads(found["text"]))
            assert [key for key in given if key not in known and key.rpartition(".")[0] not in known] == []


def keys(table, prefix=""):
    """Return the dotted keys of a table, down to those that have a value."""
    found = set()
    for key, value in table.items():
        found |= keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key}
    return found
