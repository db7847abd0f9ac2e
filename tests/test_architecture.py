"""Imports go down the floors, never up, and never sideways between two rooms of one floor."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from idpgan import publish

PACKAGE = Path(__file__).parents[1] / "idpgan"
FLOORS = (  # from the ground up; no room imports one of its own floor
    ("errors", "host", "removed"),
    ("device",),
    ("files", "lazy", "checks", "config", "methods", "own_code", "progress", "ranks", "version"),
    ("run",),
    ("numerics",),
    ("data",),
    ("portraits", "privacy"),
    ("models",),
    ("training",),
    ("metrics", "attacks", "audit"),
    ("release",),
    ("private",),
    ("classify", "continual"),
    ("synthesis", "publish"),
    ("report", "kinds"),
    ("origin",),
    ("trainer",),
    ("commands",),
    ("__main__", "__init__"),
)
MOST_TO_VERIFY = 65  # modules of the package that `verify` of published images may import
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imported_rooms(source):
    """Names of the rooms that a source text imports, at the top or inside a function; type-checking blocks too."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise AssertionError("relative imports hide the floor")
            names = [node.module] if node.module != "idpgan" else [f"idpgan.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("idpgan.")}
    return rooms


def violations(room, source):
    return [
        f"{room} imports {other}"
        for other in sorted(imported_rooms(source))
        if other != room and FLOOR_OF[other] >= FLOOR_OF[room]
    ]


def test_imports_go_down():
    files = [(path, path.relative_to(PACKAGE).parts[0].removesuffix(".py")) for path in PACKAGE.rglob("*.py")]
    assert {room for _, room in files} == set(FLOOR_OF), "give every room a floor"
    assert [(path, found) for path, room in files for found in violations(room, path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("privacy", "from idpgan.synthesis import METHODS"),
        ("audit", "def f():\n    from idpgan.metrics.utility import evaluate"),
        ("models", "import idpgan.commands"),
        ("data", "from idpgan import trainer"),
        ("files", "from idpgan.run import RunFolder"),
    ],
)
def test_the_test_can_fail(room, source):
    assert violations(room, source)


@pytest.fixture(scope="module")
def size():
    """The tool that draws the graph of imports; those inside functions count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PACKAGE.parent / "tools"))
        return importlib.import_module("size")


@pytest.fixture(scope="module")
def graph(size):
    return size.file_graph(size.read(PACKAGE))


def circles(size, graph):
    """Circles of files, and those among neighboring folders and files."""
    return size.circles(graph) + [circle for folders in size.folder_graphs(graph) for circle in size.circles(folders)]


def test_no_files_and_no_folders_import_each_other_in_a_circle(size, graph):
    assert circles(size, graph) == []


@pytest.mark.parametrize(
    ("file", "other", "circle"),
    [
        ("training/config.py", "training/plan.py", {"training/config.py", "training/plan.py"}),
        ("privacy/event.py", "training/fit.py", {"privacy/", "training/"}),
    ],
)
def test_a_circle_is_found(size, graph, file, other, circle):
    """Negative control: one more import closes a circle."""
    found = circles(size, {**graph, file: graph[file] | {other}})
    assert any(circle <= set(names) for names in found)


def test_no_file_is_too_long():
    long = {str(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: lines for path, lines in long.items() if lines > 500} == {}


LIGHT = [
    *("import idpgan.config, idpgan.data.config", "import idpgan", "from idpgan.publish import METHODS"),
    *("import idpgan.training.config", "import idpgan.models.config", "import idpgan.run", "import idpgan.continual"),
    *("from idpgan.commands import main", "main(['--help'])", "main(['methods'])", "main(['methods', '--json'])"),
    "main(['--version'])",
]
ONE_BY_ONE = """
import contextlib, sys
heavy = {"torch", "torchvision", "sklearn", "scipy", "dp_accounting", "opacus", "matplotlib", "pandas"}
for number, code in enumerate(sys.argv[1:]):
    with contextlib.suppress(SystemExit):
        exec(code)
    found = sorted((heavy if number else heavy | {"numpy"}) & set(sys.modules))
    assert not found, f"{code} imports {found}"
"""


def test_what_computes_nothing_imports_nothing_heavy():
    for codes, heavy in ((LIGHT, ""), (["import scipy"], "import scipy imports ['numpy', 'scipy']")):
        done = subprocess.run([sys.executable, "-c", ONE_BY_ONE, *codes], capture_output=True, text=True, check=False)
        assert bool(done.returncode) is bool(heavy), done.stderr
        assert heavy in done.stderr


VERIFY = """
import sys
from idpgan.commands import main
try:
    main(["verify", sys.argv[1]])
except SystemExit as end:
    assert not end.code
print("torch" in sys.modules, "PIL" in sys.modules, sum(name.partition(".")[0] == "idpgan" for name in sys.modules))
"""


@pytest.mark.parametrize(("method", "computes"), [("lap", "False"), ("dct", "True")])
def test_verify_of_published_images_imports_what_it_needs(tmp_path, method, computes):
    """It needs hashes, a model, the accountant and a reader of PNG files; tensors where the plan is made of them."""
    publish.release(torch.full((2, 8, 8), 0.5), method, epsilon=10.0).write(tmp_path / "release")
    arguments = [sys.executable, "-c", VERIFY, str(tmp_path / "release")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    with_torch, pictures, ours = done.stdout.splitlines()[-1].split()
    assert (with_torch, pictures) == (computes, "True")
    assert int(ours) <= MOST_TO_VERIFY
