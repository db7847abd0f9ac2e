"""On the stand-in for a GPU (tools/standin): one short case a family, and what a training step waits for and launches.

`make device` runs all of its cases, and the tests marked `gpu`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from idpgan.privacy.noise import ON_GPU

STANDIN = Path(__file__).parents[1] / "tools" / "standin"
CASES = [
    *(
        "wgan-gp",
        "gaussian",
        "verify",
        "sample",
        "evaluate",
        "attack",
        "publish",
        "obfuscate",
        "audit",
        "audit-steps",
    ),
    *("dp-gan", "dp-sgd", "diffusion"),
]
LIMITS = {"dp-gan": (4, 4, 700), "dp-sgd": (4, 4, 700), "diffusion": (4, 4, 700)}  # waits, copies, operators a step

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is None, reason="the stand-in takes the place of CUDA in a build for CUDA"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run pytest -m gpu"),
    pytest.mark.skipif(not shutil.which("c++") or not shutil.which("ninja"), reason="no compiler of C++, or no ninja"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each case did: name -> its line."""
    path = os.pathsep.join([str(STANDIN / "on"), str(STANDIN.parents[1])])
    told = subprocess.run(
        [sys.executable, STANDIN / "quick.py", tmp_path_factory.mktemp("standin")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    assert lines, told.stderr[-2000:]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("name", CASES)
def test_a_command_runs_on_a_gpu(found, name):
    assert found[name]["code"] == 0, found[name]["said"]


def test_a_card_says_that_no_real_gpu_has_run_the_tests(found, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "standin0" / "gaussian" / "release"
    assert ON_GPU.name in (folder / "README.md").read_text()
    assert json.loads((folder / "privacy.json").read_text())["report"]["private"]


@pytest.mark.parametrize("name", LIMITS)
def test_a_step_waits_copies_and_launches_no_more_than_it_must(found, name):
    figures = [found[name][kind] for kind in ("waits", "copies", "operators")]
    assert all(figure <= limit for figure, limit in zip(figures, LIMITS[name], strict=True)), figures
