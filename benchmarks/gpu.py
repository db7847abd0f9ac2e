"""Ten minutes of a GPU, one JSON file: what only hardware tells, and what it takes.

Facts that proofs rest on, SVD, steps a second and peak memory by size (`gpu_steps.py`), the clipped step beside plain
and Opacus (`clipped_step.py`), the GPU tests, and methods on MNIST at epsilon 1 and 10, if any are named. Each part is
a process of its own with what is left of the time. The file is written anew after every part, so that a machine that
goes away leaves what was measured. A part that failed says so with its last lines. Runs lie in DIR/runs: one that was
interrupted is resumed, and a finished one is not trained again.

python benchmarks/gpu.py --out DIR [--minutes 10] [--data-root DIR --methods diffusion]
python benchmarks/gpu.py --out DIR --device cpu --quick     a try-out: digits, few images, the smallest size

A method is a config of `configs/`, mnist-METHOD.toml; one that is not there is told and left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idpgan.config import config_names
from idpgan.device import resolve_device
from idpgan.files import write_text_atomic
from idpgan.run import describe_environment

FORMAT = "idpgan gpu 1"
ROOT = Path(__file__).parents[1]
EPSILONS = ("1.0", "10.0")
LAST = 2000  # characters of what a part that failed has printed
CASES = (  # method, side of the images, width: 0.2, 10 and 100 million weights of `dp-gan`'s critic
    *(("dp-gan", "28", "74"), ("dp-gan", "64", "17"), ("dp-gan", "64", "122"), ("dp-gan", "128", "60")),
    *(("dp-sgd", "28", "64"), ("dp-sgd", "64", "256"), ("diffusion", "28", "64"), ("diffusion", "64", "128")),
    ("lora", "64", "128"),  # of a pipeline of diffusers, where it is installed
    *(("dp-gan", "28", "555"), ("dp-gan", "64", "384"), ("dp-gan", "128", "192")),
)
GRAPHED = CASES[0], CASES[4], CASES[6], CASES[2]  # with chunks as CUDA graphs too, which no run asks for
QUICK_TESTS = "tests/test_device.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="gpu.json and the runs")
    parser.add_argument("--data-root", type=Path, help="where the files of MNIST lie")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="of every run")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together")
    parser.add_argument("--quick", action="store_true", help="the same parts on little, to try the script out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    measured = Parts(options.out / "gpu.json", options.device, time.monotonic() + 60 * options.minutes)
    by_size(measured, options)
    measured.add("tests", pytest_command(options.quick))
    for epsilon, method in itertools.product(reversed(EPSILONS), options.methods):
        train_and_judge(measured, method, epsilon, options)
    raise SystemExit(0 if measured.good else 1)


def by_size(measured: Parts, options: argparse.Namespace) -> None:
    """Measure what a device alone tells, small sizes first: a size that does not fit says so and ends nothing else."""
    steps = [sys.executable, "benchmarks/gpu_steps.py", "--device", options.device]
    measured.add("facts", [*steps, "facts"])
    measured.add("svd", [*steps, "svd"])
    if not options.quick:
        measured.add("clipped step", [sys.executable, "benchmarks/clipped_step.py", "--device", options.device])
    for case in CASES[:1] if options.quick else CASES:
        little = ["--steps", "6", "--images", "128"] if options.quick else []
        measured.add(f"steps: {', '.join(case)}", [*steps, *little, "step", *case])
        if case in GRAPHED:
            measured.add(f"steps with graphs: {', '.join(case)}", [*steps, *little, "--graphs", "step", *case])


class Parts:
    """What was measured so far, in a file from the first part on.

    Args:
        path: Of the file.
        device: Where to compute.
        until: By `time.monotonic`, when the last part must have ended.
    """

    def __init__(self, path: Path, device: str, until: float) -> None:
        self._path, self._until = path, until
        environment = describe_environment(str(resolve_device(device, "--device")))
        self._found: dict[str, Any] = {"format": FORMAT, "environment": environment, "parts": {}}

    @property
    def good(self) -> bool:
        """Whether every part was measured."""
        return all(part["good"] for part in self._found["parts"].values())

    def add(self, name: str, command: Sequence[str]) -> bool:
        """Run a command for as long as is left, keep what it printed, and return whether it succeeded."""
        started, left = time.monotonic(), self._until - time.monotonic()
        if left <= 0:
            return self.keep(name, good=False, why="no time was left")
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            return self.keep(name, good=False, why="the time ran out", seconds=round(left, 1))
        seconds, good = round(time.monotonic() - started, 1), done.returncode == 0
        found = {"found": printed(done.stdout)} if good else {"why": (done.stdout + done.stderr)[-LAST:]}
        return self.keep(name, good=good, seconds=seconds, **found)

    def keep(self, name: str, *, good: bool, **found: Any) -> bool:
        """Write a part into the file, say how it went, and return whether it was good."""
        self._found["parts"][name] = {"good": good, **found}
        write_text_atomic(self._path, json.dumps(self._found, indent=1) + "\n")
        print(f"{'ok ' if good else 'BAD'} {name} {found.get('seconds', 0)} s {found.get('why', '')}", flush=True)
        return good


def printed(text: str) -> Any:
    """Return the JSON document that a command printed, alone or in its last line, or else that line."""
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            return json.loads(part)
        except json.JSONDecodeError:
            continue
    return text.strip().rpartition("\n")[2]


def idpgan(command: str) -> list[str]:
    """Return the start of a command line of this very package."""
    return [sys.executable, "-m", "idpgan", command]


def pytest_command(quick: bool) -> list[str]:
    """Return the command that runs all tests that need a GPU; quick: some that need none."""
    chosen = [QUICK_TESTS] if quick else ["-m", "gpu"]
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]


def train_and_judge(measured: Parts, method: str, epsilon: str, options: argparse.Namespace) -> None:
    """Train one method at one epsilon, and let a CNN judge as many of its images as the set has."""
    name, data = f"{method} epsilon {epsilon}", "digits" if options.quick else "mnist"
    if f"{data}-{method}" not in config_names():
        known = [each.partition("-")[2] for each in config_names() if each.startswith(f"{data}-")]
        measured.keep(name, good=False, why=f"there is no config {data}-{method}; of {data}: {', '.join(known)}")
        return
    run = options.out.resolve() / "runs" / f"{data}-{method}-eps{epsilon}"
    root = [] if options.data_root is None else ["--data-root", str(options.data_root.resolve())]
    start = [f"{data}-{method}", f"privacy.epsilon={epsilon}", *options.settings, "--device", options.device]
    train = ["--resume", str(run)] if (run / "config.toml").exists() else [*start, "--out", str(run)]
    trained = (run / "release" / "privacy.json").exists() or measured.add(
        f"{name}: train", [*idpgan("train"), *train, *root]
    )
    judge = ["--full", "--only", "utility", "--classifier", "cnn", "--seeds", "1", "--device", options.device, *root]
    judge += ["--num", "100"] if options.quick else ["--num", "60000"]
    if trained:
        measured.add(f"{name}: judge", [*idpgan("evaluate"), str(run), *judge, "--json"])


if __name__ == "__main__":
    main()
