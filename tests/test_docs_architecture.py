"""docs/reference/architecture.md: its picture has all rooms, and each addition works in a copy of the package."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_architecture import FLOORS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
PAGE = (FOLDER / "architecture.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^\[`(?P<new>[^`\n]+)`\]\((?P<example>[^)\n]+)\)$"  # a new file, whose text is that of a file beside the page
    r"|(?:^`(?P<path>[^`\n]+)`\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
ADDITIONS = re.findall(r"^## (Add .*)$", PAGE, re.M)
RUNNER = """
import contextlib, io, json, shlex, sys
import torch
from idpgan.commands import main
torch.set_num_threads(1)
results = {}
for title, jobs in json.load(sys.stdin).items():
    for kind, text in jobs:
        if kind == "python":
            exec(text, {})
            continue
        for line in text.splitlines():
            said, code = io.StringIO(), 0
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    main(shlex.split(line)[1:])
                except SystemExit as end:
                    code = end.code or 0
            results.setdefault(title, []).append([line, code, said.getvalue()])
print(json.dumps(results))
"""


class Block(NamedTuple):
    path: str | None  # of the file that it writes or changes
    language: str
    text: str


def blocks(title):
    """Return the blocks of one section."""
    section = re.split(r"^## ", PAGE.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    return [
        Block(found["new"], Path(found["new"]).suffix[1:], (FOLDER / found["example"]).read_text(encoding="utf-8"))
        if found["new"]
        else Block(found["path"], found["language"], found["text"])
        for found in BLOCK.finditer(section)
    ]


def apply(diff, path):
    """Put each new line behind the line of the file that stands before it in the diff."""
    lines, at = path.read_text(encoding="utf-8").splitlines(), -1
    for line in diff.splitlines():
        if line.startswith("+"):
            at += 1
            lines.insert(at, line[1:])
        else:
            at = lines.index(line[1:])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """Make all additions in one copy of the package, and use them: title -> (command, exit code, output)."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "idpgan", copy / "idpgan", ignore=shutil.ignore_patterns("__pycache__"))
    uses = {}
    for title in ADDITIONS:
        for block in blocks(title):
            if block.path is None:
                uses.setdefault(title, []).append((block.language, block.text))
            elif block.language == "diff":
                apply(block.text, copy / block.path)
            else:
                assert not (copy / block.path).exists()
                (copy / block.path).parent.mkdir(exist_ok=True)
                (copy / block.path).write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(uses),
        capture_output=True,
        text=True,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_there_is_an_example_of_every_addition_and_no_other_file():
    written = {
        Path(block.path).name for title in ADDITIONS for block in blocks(title) if block.language in ("py", "toml")
    }
    assert written == {path.name for path in (FOLDER / "additions").iterdir()}
    assert {"Add a method", "Add a publisher", "Add an attack", "Add a data source"} <= set(ADDITIONS)


@pytest.mark.parametrize("title", ADDITIONS)
def test_an_addition_is_one_file_or_folder_one_registry_row_and_one_config(title):
    changed = [block for block in blocks(title) if block.path and block.language == "diff"]
    written = [block.path for block in blocks(title) if block.path and block.language == "py"]
    configs = [block.path for block in blocks(title) if block.path and block.language == "toml"]
    assert len(changed) == (title != "Add a data source")  # whose file says its name
    for block in changed:
        rows = [line[1:] for line in block.text.splitlines() if line.startswith("+") and "import" not in line]
        assert len(rows) == 1 or isinstance(ast.literal_eval("".join(rows).strip().rstrip(",")), tuple)
    assert len(written) == 1 or (len({Path(path).parent for path in written}) == 1 and "__init__.py" in written[0])
    assert len(configs) == (title == "Add a method")


@pytest.mark.parametrize("title", ADDITIONS)
def test_an_addition_works(title, used):
    assert used[title], "nothing was run"
    for command, code, said in used[title]:
        assert code == 0, f"{command}\n{said}"


def test_what_was_added_is_named_in_what_it_says(used):
    said = {title: "\n".join(text for _, _, text in commands) for title, commands in used.items()}
    assert "Finished 2 steps" in said["Add a method"]
    assert "consistent" in said["Add a method"]
    assert "k-nearest" in said["Add an attack"]
    assert "Contrast: standard deviation" in said["Add a metric"]
    assert "144 private images" in said["Add a data source"]


def test_the_picture_has_every_room_and_no_other():
    picture = PAGE.split("```text\n", 1)[1].split("```", 1)[0]
    drawn = {name for line in picture.splitlines() for name in re.findall(r"(?:^|\s)(\w+)(?:/|\.py)(?=\s|$)", line)}
    assert drawn == {room for floor in FLOORS for room in floor} - {"__main__", "__init__"}
