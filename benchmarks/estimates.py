"""What the estimate of a run says beside what the run takes, each in a process of its own.

python benchmarks/estimates.py [CONFIG ...]

By the clock, and by processor seconds, which say the same on an idle machine (one thread: OMP_NUM_THREADS=1). One JSON
line: of each config the estimate, its range, what was spent on it, what the run took, and the ratio of both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIGS = ("digits-gaussian", "default", "digits-aggregate", "digits-diffusion", "digits-dp-gan", "mnist-gaussian")
CLOCKS = {"clock": time.monotonic, "processor": lambda: sum(os.times()[:4])}  # with what it has started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("configs", nargs="*", default=CONFIGS, metavar="CONFIG")
    parser.add_argument("--estimate", choices=CLOCKS, help=argparse.SUPPRESS)  # a child's work
    arguments = parser.parse_args()
    if arguments.estimate:
        print(json.dumps(estimated(arguments.configs[0], arguments.estimate)))
    else:
        print(json.dumps({name: compared(name) for name in arguments.configs}))


def estimated(name: str, by: str) -> dict[str, float]:
    """Estimate one run by a clock."""
    from idpgan import estimate
    from idpgan.data.load import known_shape
    from idpgan.trainer import load_config

    estimate.clock, config = CLOCKS[by], load_config(None if name == "default" else Path(name))
    begun = estimate.clock()
    found = estimate.expected(config, known_shape(config.data))
    return {"estimate": found.seconds, "least": found.least, "most": found.most, "spent": estimate.clock() - begun}


def compared(name: str) -> dict[str, dict[str, float]]:
    """Estimate a run by both clocks, and take it."""
    rows = {}
    for by in CLOCKS:
        child = [sys.executable, __file__, name, "--estimate", by]
        rows[by] = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    begun = {by: clock() for by, clock in CLOCKS.items()}
    with tempfile.TemporaryDirectory() as folder:
        train = [sys.executable, "-m", "idpgan", "train", *([] if name == "default" else [name])]
        subprocess.run([*train, "--out", str(Path(folder, "run"))], check=True, capture_output=True)
    for by, row in rows.items():
        row["took"] = CLOCKS[by]() - begun[by]
        row["ratio"] = row["estimate"] / row["took"]
    print(name, rows, file=sys.stderr)
    return {by: {key: round(value, 2) for key, value in row.items()} for by, row in rows.items()}


if __name__ == "__main__":
    main()
