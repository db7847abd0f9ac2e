"""The measuring tools of `tools/`: what `size` counts, and that `net` sees what differs and nothing else."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TOOLS = Path(__file__).parents[1] / "tools"
FILES = {
    "__init__.py": """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from house.cellar import pump
""",
    "cellar/__init__.py": "",
    "cellar/pump.py": """
'''A docstring
of two lines.'''

# a comment
from house import roof

flow = lambda: roof
""",
    "roof.py": """
def tile():
    def nail():
        from house.cellar.pump import flow
        return flow
    return nail
""",
    "door.py": """
import house.roof

class Door:
    def open(self):
        "Say so."
        return 1
""",
}


@pytest.fixture
def tool(monkeypatch):
    """Import a file of the tools, as a script would."""

    def load(name):
        for folder in (TOOLS, TOOLS / "recording"):
            monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        return module

    return load


@pytest.fixture
def house(tmp_path):
    """A package of five files in which an import within a function closes a circle."""
    for name, text in FILES.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "house"


def test_size_counts_code_lines_functions_and_circles(tool, house):
    found = tool("size").measure(house)
    assert (found["code_lines"], found["files"]) == (3 + 0 + 2 + 5 + 4, 5)
    assert (found["functions"], found["assigned_lambdas"]) == (4, 1)  # tile, nail, open, flow
    assert found["file_circles"] == [["cellar/pump.py", "roof.py"]]
    assert found["folder_circles"] == [["cellar/", "roof.py"]]
    assert found["rooms"]["cellar"] == {"lines": 2, "files": 2, "functions": 1}


def test_size_lists_no_circle_where_imports_go_one_way(tool, house):
    (house / "cellar" / "pump.py").write_text("")
    found = tool("size").measure(house)
    assert (found["file_circles"], found["folder_circles"]) == ([], [])


def record(tool, folder, epsilon, grey, seconds):
    """What `net` reads of a small run folder."""
    folder.mkdir()
    privacy = {"proven": {"epsilon": epsilon}, "seconds": seconds, "where": f"{folder}/run", "files": {"a": str(grey)}}
    (folder / "privacy.json").write_text(json.dumps(privacy))
    Image.fromarray(np.full((4, 4), grey, np.uint8)).save(folder / "a.png")
    np.savez(folder / "a.npz", images=np.full(3, grey))
    return tool("reading").Reader({str(folder): "CASE"}).folder(folder, "case")


def differing(tool, first, second, skip=""):
    """Names of what `net` finds between two recordings of one case."""
    return [found.name for found in tool("net").differences({"case": first}, {"case": second}, skip)]


def test_net_reads_the_same_where_only_time_and_place_differ(tool, tmp_path):
    first = record(tool, tmp_path / "one", 1.0, 3, 0.5)
    assert first == record(tool, tmp_path / "two", 1.0, 3, 0.7)
    assert first["case/privacy.json.proven.epsilon"] == 1.0
    assert differing(tool, first, first) == []


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"epsilon": 2.0, "grey": 3}, ["case/privacy.json.proven.epsilon"]),
        ({"epsilon": 1.0, "grey": 4}, ["case/a.npz#images", "case/a.png"]),
    ],
)
def test_net_names_what_differs(tool, tmp_path, changed, names):
    first = record(tool, tmp_path / "one", 1.0, 3, 0.5)
    second = record(tool, tmp_path / "two", **changed, seconds=0.5)
    assert differing(tool, first, second) == names
    assert differing(tool, first, second, skip="case") == []
    assert differing(tool, first, {}) == sorted(first)
