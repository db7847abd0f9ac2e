"""docs/idpgan.ipynb runs from top to bottom, and is stored without outputs."""

import json
import os
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "idpgan.ipynb"
SECONDS = 300  # of the whole notebook, which takes less than 60 on a free core


def test_no_output_is_stored():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert [cell["outputs"] for cell in code if cell["outputs"] or cell["execution_count"]] == []


def test_it_has_the_lines_of_the_readme():
    readme = (NOTEBOOK.parents[1] / "README.md").read_text(encoding="utf-8")
    lines = re.search(r"^```python\n(.*?)^```$", readme, re.M | re.S)[1].strip()
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert lines in ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own programs
def test_the_notebook_runs_and_shows_pictures(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOK.parents[1]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2  # the generator and a plot
    said = "".join(output.get("text", "") for output in outputs)
    for words in (
        "proven: epsilon = 3",
        "2 releases of these images",
        "logistic",
        "nearest-sample",
        "consistent: epsilon",
    ):
        assert words in said
    shown = "".join(output["text"] for output in outputs if output.get("name") == "stderr")  # progress
    assert "Warning" not in shown
