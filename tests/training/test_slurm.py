"""The batch script of docs/reference/scale.md with real `torchrun`, and SLURM's commands played by three lines each."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from idpgan.config import dump_toml
from idpgan.training.stats import read_stats
from tests.training import pairs

SCRIPT = Path(__file__).parents[2] / "docs" / "reference" / "slurm.sh"
SRUN = '#!/bin/bash\nshift\necho $$ > "$PID_FILE"\nexec "$@"\n'
SCONTROL = '#!/bin/bash\n[ "$1" = show ] && echo localhost || echo "$@" >> "$ASKED"\n'


def write_command(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


def wait_for(condition, process, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.2)


@pytest.mark.slow
def test_a_job_at_its_time_limit_saves_is_queued_again_and_finishes(tmp_path):
    write_command(tmp_path, "srun", SRUN)
    write_command(tmp_path, "scontrol", SCONTROL)
    steps = {"steps": 60, "tick_steps": 5}
    table = {**pairs.RUNS["dp-gan"], "training": {**pairs.FAST, **steps}, "privacy": {**pairs.SAMPLED, "epsilon": 1.0}}
    (tmp_path / "config.toml").write_text(dump_toml(pairs.build_config(table, "a test")))
    run, asked, pid = tmp_path / "run", tmp_path / "asked", tmp_path / "pid"
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    slurm |= {"SLURM_JOB_ID": str(os.getpid()), "ASKED": str(asked), "PID_FILE": str(pid), "PYTHON": sys.executable}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def job():
        command = ["bash", str(SCRIPT), str(tmp_path / "config.toml"), str(run)]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=SCRIPT.parents[1]
        )

    first = job()
    wait_for(lambda: (run / "stats.jsonl").exists() and read_stats(run / "stats.jsonl"), first)
    os.kill(int(pid.read_text()), signal.SIGTERM)
    said = first.communicate(timeout=100)[0]
    assert first.returncode == 0, said
    assert asked.read_text() == f"requeue {shlex.quote(slurm['SLURM_JOB_ID'])}\n"
    assert "Stopped by SIGTERM after step" in said

    second = job()
    said = second.communicate(timeout=300)[0]
    assert second.returncode == 0, said
    assert "Finished 60 steps." in said
    events = json.loads((run / "release" / "privacy.json").read_text())["events"]
    assert [event["count"] for event in events] == [60]  # the stop was orderly: nothing is charged twice
    assert job().communicate(timeout=60)[0] == f"{run} is finished.\n"
    assert asked.read_text().count("requeue") == 1


@pytest.mark.slow
def test_a_job_that_fails_is_not_queued_again(tmp_path):
    write_command(tmp_path, "srun", SRUN)
    write_command(tmp_path, "scontrol", SCONTROL)
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    slurm |= {"SLURM_JOB_ID": "7", "ASKED": str(tmp_path / "asked"), "PID_FILE": str(tmp_path / "pid")}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}
    command = ["bash", str(SCRIPT), str(tmp_path / "missing.toml"), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=SCRIPT.parents[1], timeout=100)
    assert done.returncode == 1
    assert done.stderr.count("idpgan: ") == 1  # one rank says it
    assert not (tmp_path / "asked").exists()
