"""Private Evolution: how long it takes, and what its images teach, beside their floor and `gaussian`.

python benchmarks/evolution.py speed [--records 60000] [--candidates 10000] [--iterations 10] [--threads 2]
python benchmarks/evolution.py utility CONFIG.toml [--data-root DIR] [--seeds 3] [--images 10000] [key.sub=value ...]
    [--floor]                                     the first candidates, before any vote, in place of the chosen ones

`speed` runs whole iterations on drawn digits of 28 x 28 in a 256-dimensional embedding, the embedding of all records
included. `utility` trains one run for each seed, trains a CNN on its images, and tests it on the test part. Each prints
JSON lines; a run with the same code and settings is read back from runs/evolution.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from idpgan.config import build
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import load
from idpgan.metrics.utility import measure_utility
from idpgan.synthesis.evolution.method import Evolution, EvolutionTraining
from idpgan.trainer import load_config, train_on
from idpgan.training.config import build_config
from idpgan.training.state import code_digest

GOAL = 600.0  # seconds for 10,000 candidates x 60,000 records x 10 iterations on two cores
CACHE = Path("runs/evolution")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    speed = parts.add_parser("speed")
    speed.add_argument("--records", type=int, default=60_000)
    speed.add_argument("--candidates", type=int, default=10_000, help="of all ten classes together")
    speed.add_argument("--iterations", type=int, default=10)
    speed.add_argument("--threads", type=int, default=2)
    speed.add_argument("--one-class", action="store_true", help="everybody compares with all candidates")
    utility = parts.add_parser("utility")
    utility.add_argument("config", type=Path)
    utility.add_argument("overrides", nargs="*")
    utility.add_argument("--data-root", type=Path)
    utility.add_argument("--seeds", type=int, default=3)
    utility.add_argument("--images", type=int, default=10_000)
    utility.add_argument("--classifier", default="cnn")
    utility.add_argument("--floor", action="store_true")
    arguments = parser.parse_args()
    if arguments.part == "speed":
        measure_speed(arguments)
    else:
        measure_images(arguments)


def measure_speed(arguments: argparse.Namespace) -> None:
    """Time all iterations, everything included that a run computes after its private images are read."""
    torch.set_num_threads(arguments.threads)
    rows = 1 if arguments.one_class else 10
    config = build_config(
        {
            "data": {"name": "fonts", "num_images": round(arguments.records / 0.8), "holdout_share": 0.0},
            "model": {
                "generator": "population",
                "simulator": "fonts",
                "codes": arguments.candidates // rows,
                "conditional": not arguments.one_class,
            },
            "method": {"name": "evolution"},
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "training": build(EvolutionTraining, {"steps": arguments.iterations}, "training").model_dump(),
        },
        "the benchmark",
    )
    split = load(config.data)
    wall, cpu = time.perf_counter(), time.process_time()
    method = Evolution.of(config, split, device=torch.device("cpu"))
    marks = []
    for step in range(1, arguments.iterations + 1):
        method.ledger.charge(method.step_event())
        method.step(step)
        marks.append(time.process_time() - cpu)
    seconds = time.perf_counter() - wall
    row = {
        "benchmark": "evolution speed",
        "records": len(split.private),
        "candidates": arguments.candidates,
        "classes": rows,
        "iterations": arguments.iterations,
        "dimensions": method._embed.size,
        "threads": arguments.threads,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "cpu_seconds_to_first_vote": round(marks[0], 1),
        "reached": seconds <= GOAL,
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
    }
    print(json.dumps(row))


def measure_images(arguments: argparse.Namespace) -> None:
    """Print the accuracy of each seed, and their mean."""
    root = [] if arguments.data_root is None else [f"data.root={json.dumps(str(arguments.data_root))}"]
    found = []
    for seed in range(arguments.seeds):
        config = load_config(arguments.config, [*arguments.overrides, *root, f"training.seed={seed}"])
        spec = [config.identity(), code_digest(), arguments.images, arguments.classifier, arguments.floor]
        path = CACHE / f"{hashlib.sha256(json.dumps(spec).encode()).hexdigest()[:16]}.json"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(judged(config, seed, arguments)))
        row = json.loads(path.read_text())
        found.append(row["accuracy"])
        print(json.dumps(row), flush=True)
    spread = statistics.stdev(found) if len(found) > 1 else None
    print(json.dumps({"mean": statistics.fmean(found), "spread_of_runs": spread, "seeds": len(found)}))


def judged(config: Any, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how a classifier does that is trained on the images of one run."""
    split = load(config.data)
    if arguments.floor:
        method: Any = Evolution.of(config, split, device=torch.device("cpu"))
    else:
        method = train_on(config, split)
    generator = method.generator
    drawn = Images(
        to_uint8(generator.sample(arguments.images, seed=seed)),
        generator.sample_labels(arguments.images),
        generator.classes,
    )
    result = measure_utility(drawn, split.test.existing(), classifiers=(arguments.classifier,), seeds=(seed,))
    return {
        "benchmark": "evolution utility",
        "config": str(arguments.config),
        "method": config.method.name,
        "floor": arguments.floor,
        "epsilon": config.privacy.epsilon,
        "images": arguments.images,
        "seed": seed,
        "accuracy": result.scores[0].accuracies[0],
        "majority": result.majority,
        "test": result.num_test,
    }


if __name__ == "__main__":
    main()
