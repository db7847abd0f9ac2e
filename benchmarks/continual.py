r"""Continual release: error of every mechanism against N, time against N, and what an unknown horizon costs.

One JSON line per figure. `error`: exact expected squared errors (mean over the answers, and largest) at epsilon = 1,
pure with Laplace noise, and at delta = 1e-6 with Gaussian noise calibrated by the accountant. `diagonal`: seconds for
the best weights, closed form against SLSQP (objective divided by its size), with their relative difference. `stream`:
values per second of `push` and seconds of `release`, discrete noise included. `horizon`: mean error with an unknown
horizon over that with a known one, by the weight of a block's total (`_LATER`).

OMP_NUM_THREADS=1 python benchmarks/continual.py [error diagonal stream horizon] [--plots docs] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from factorizations import MECHANISMS, error_table, sequential_quadratic
from torch import Tensor

from idpgan.continual import ContinualCounter, fast_diagonal, stream

ERROR_STEPS = (7, 31, 100, 127, 1023, 4095, 16_383, 65_535, 2**18 - 1, 2**20 - 1)
SOLVER_STEPS = (16, 32, 64, 128, 256, 512)  # 9 to 15 times longer with every doubling
DIAGONAL_STEPS = (16, 128, 1000, 10_000, 100_000, 10**6)
PUSHES = 200_000
COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8")


def main() -> None:
    parts: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
        "error": error, "diagonal": diagonal, "stream": streams, "horizon": horizon,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(parts)}; default all")
    parser.add_argument("--plots", type=Path, help="folder for continual-error.png and continual-time.png")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.parts or parts:
        rows[name] = []
        for row in parts[name](arguments):
            rows[name].append(row)
            print(json.dumps({"part": name, **row}), flush=True)
    if arguments.plots:
        plot(rows, arguments.plots)


def error(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for n in ERROR_STEPS:
        for row in error_table(n, 1.0, 1e-6):
            yield {"N": n, "mechanism": row.mechanism, "noise": row.noise, "mean": row.mean, "largest": row.largest}


def seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median time of a call after a burn-in."""
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def diagonal(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for n in DIAGONAL_STEPS:
        yield {"N": n, "solver": "fast_diagonal", "seconds": seconds(lambda n=n: fast_diagonal(n))}
    for n in SOLVER_STEPS:
        start = time.perf_counter()
        _, objective = sequential_quadratic(n)
        taken = time.perf_counter() - start
        difference = objective / fast_diagonal(n)[1] - 1
        yield {"N": n, "solver": "SLSQP", "seconds": taken, "relative_difference": difference}


def streams(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for known in (True, False):
        for n in (10**4, 10**6):
            values = torch.ones(n, dtype=torch.int64, device=arguments.device)

            def release(n: int = n, values: Tensor = values, known: bool = known) -> Tensor:
                return ContinualCounter(1.0, n if known else None).release(values)

            yield {
                "call": "release",
                "N": n,
                "horizon": known,
                "device": arguments.device,
                "seconds": seconds(release, 3),
            }
        counter = ContinualCounter(1.0, 10**6 if known else None)
        wall, busy = time.perf_counter(), time.process_time()
        for _ in range(PUSHES):
            counter.push(1)
        wall, busy = time.perf_counter() - wall, time.process_time() - busy
        yield {"call": "push", "horizon": known, "per_second": PUSHES / wall, "per_cpu_second": PUSHES / busy}


def horizon(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    chosen = stream._LATER
    for n in (127, 1023, 16_383, 2**20 - 1):
        known = ContinualCounter(1.0, n).variance(n).mean()
        for later in (0, 1, 2, 4, 8):
            stream._LATER = later
            yield {"N": n, "later": later, "ratio": float(ContinualCounter(1.0).variance(n).mean() / known)}
    stream._LATER = chosen


def plot(rows: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    if "error" in rows:
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
        for axis, noise, title in zip(
            axes, ("Laplace", "Gaussian"), ("epsilon = 1, Laplace", "epsilon = 1, delta = 1e-6, Gaussian"), strict=True
        ):
            for color, name in zip(COLORS, MECHANISMS, strict=True):
                of = [row for row in rows["error"] if (row["mechanism"], row["noise"]) == (name, noise)]
                axis.loglog([row["N"] for row in of], [row["mean"] for row in of], "o-", ms=3, color=color, label=name)
            axis.set(title=title, xlabel="N", ylim=(10, 1e6))
        axes[0].set_ylabel("mean squared error of a running count")
        axes[1].legend(fontsize=8)
        save(figure, folder / "continual-error.png")
    if "diagonal" in rows:
        figure, axis = plt.subplots(figsize=(5.5, 4))
        for solver in ("fast_diagonal", "SLSQP"):
            of = [row for row in rows["diagonal"] if row["solver"] == solver]
            axis.loglog([row["N"] for row in of], [row["seconds"] for row in of], "o-", ms=3, label=solver)
        axis.set(title="best weights of the Fenwick tree", xlabel="N", ylabel="seconds, one core")
        axis.legend()
        save(figure, folder / "continual-time.png")


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
