"""Steps per second of this checkout beside another one, in turns, on the same random or real images; one JSON line.

python benchmarks/side_by_side.py OTHER_CHECKOUT CONFIG.toml [key.sub=value ...] [--turns 9] [--steps 10] [--threads 1]

Two processes, one for each checkout, take turns of some steps, so that other load meets both. The figure is the median
over the turns of the ratio (this checkout / the other), of processor time where there is one thread. Burn-in: one turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def serve(config: str, settings: list[str], steps: int, threads: int) -> None:
    """Take a turn for every line that is read, and write its seconds."""
    import torch

    from idpgan import trainer
    from idpgan.data.load import load
    from idpgan.device import resolve_device
    from idpgan.training.config import load_method

    torch.set_num_threads(threads)
    loaded = trainer.load_config(Path(config), settings)
    method = load_method(loaded.method.name).of(
        loaded, load(loaded.data), device=resolve_device(loaded.training.device)
    )
    method.prepare()
    clock = time.process_time if threads == 1 else time.perf_counter
    step = 0
    for _ in sys.stdin:
        started = clock()
        for _ in range(steps):
            step += 1
            method.step(step)
        print(f"seconds {clock() - started}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("config")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.config, options.settings, options.steps, options.threads)
        return
    servers = []
    for checkout in (HERE, options.other.resolve()):
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(options.threads)}
        command = [sys.executable, __file__, "--serve", *sys.argv[1:]]
        servers.append(
            subprocess.Popen(
                command, env=environment, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )

    def turn(server: subprocess.Popen[str]) -> float:
        if server.stdin is None or server.stdout is None:
            raise RuntimeError("a server without pipes.")
        server.stdin.write("\n")
        server.stdin.flush()
        while True:
            line = server.stdout.readline()
            if not line:
                raise RuntimeError("a checkout ended before its turn.")
            if line.startswith("seconds "):
                return float(line.split()[1])

    taken = [[turn(server) for server in servers] for _ in range(options.turns + 1)][1:]
    for server in servers:
        if server.stdin is not None:
            server.stdin.close()
        server.wait()
    ours, theirs = (statistics.median(times) for times in zip(*taken, strict=True))
    ratios = sorted(other / own for own, other in taken)
    row = {"benchmark": "side by side", "config": options.config, "settings": options.settings}
    row |= {"steps_per_second": options.steps / ours, "other_steps_per_second": options.steps / theirs}
    row |= {"ratio": statistics.median(ratios), "lowest_ratio": ratios[0], "highest_ratio": ratios[-1]}
    row |= {"turns": options.turns, "steps": options.steps, "threads": options.threads, "load": os.getloadavg()[0]}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
