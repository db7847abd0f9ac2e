"""Training beside other programs: the threads that the package takes, against all of them, waiting busily.

python benchmarks/busy.py --jobs 3 --repeats 3

Each of the five runs of digits is trained with all threads that wait busily ("before": what PyTorch does by itself), on
one thread, and as the command does it now, by turns, so that whatever else the machine does meets all of them. One JSON
line a run: seconds from start to end, and seconds of processor; then the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RUNS = {  # config -> steps, enough for ten seconds on a quiet machine
    "default": 500,
    "digits-dp-gan": 300,
    "digits-diffusion": 8,
    "digits-gaussian": None,
    "digits-evolution": None,
}
WAYS = {
    "before": {"OMP_NUM_THREADS": str(os.cpu_count()), "GOMP_SPINCOUNT": "300000"},
    "one": {"OMP_NUM_THREADS": "1"},
    "now": {},
}
_ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def jobs(count: int) -> Iterator[None]:
    """Keep so many processes computing in the block."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measured(config: str, way: str) -> dict[str, float]:
    """Train a run in a process of its own; return its seconds, and those of the processor."""
    steps = RUNS[config]
    settings = [] if steps is None else [f"training.steps={steps}", f"training.tick_steps={steps}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "idpgan", "train", config, "--out", f"{folder}/run", *settings]
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            env=kept | {"PYTHONPATH": str(_ROOT)} | WAYS[way],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return {"seconds": time.monotonic() - began, "processor": used.ru_utime + used.ru_stime}


def main() -> None:
    """Measure by turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=0, help="processes that compute beside")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=list(RUNS))
    options = parser.parse_args()
    for config in options.runs:
        results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        with jobs(options.jobs):
            for _ in range(options.repeats):
                for way, of_way in results.items():
                    of_way.append(measured(config, way))
                    facts = {"config": config, "way": way, "jobs": options.jobs, "load": round(os.getloadavg()[0], 1)}
                    print(json.dumps(facts | {key: round(value, 1) for key, value in of_way[-1].items()}), flush=True)
        for key in ("seconds", "processor"):
            medians = {way: round(statistics.median(one[key] for one in of_way), 1) for way, of_way in results.items()}
            print(json.dumps({"config": config, "jobs": options.jobs, "median": key} | medians), flush=True)


if __name__ == "__main__":
    main()
