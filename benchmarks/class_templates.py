"""Handwriting by `gaussian`: as it lies, brought into place on one template, and on a template of each class.

Every cell trains one run and judges what it draws by the holdout part, the part for choosing; one JSON line each, kept
in --out (`cells`). Noise is secret and new in every cell; the seed is that of networks and samples.

python benchmarks/class_templates.py --config digits-gaussian --out CELLS [--data-root DIR] [--epsilon 1 10]
    [--seeds 0 1 2] [--num 6000] [--rows "no shape" ...]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from cells import PACKAGE, code_digest, read_or_measure
from sweep import CONFIGS

from idpgan import trainer
from idpgan.commands.evaluate import EvaluateOptions, evaluate_source

ROWS = {"no shape": []} | {
    f"{templates}, shape {shape}": [f"model.shape={shape}", f"method.templates={templates}"]
    for shape in (3, 6, 12)
    for templates in ("one", "class")
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="digits-gaussian")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--num", type=int, help="images to draw; default: as many as are private")
    parser.add_argument("--rows", nargs="+", default=[*ROWS], choices=[*ROWS])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    code = code_digest(sorted((PACKAGE / "synthesis").glob("*.py")))
    for seed in arguments.seeds:
        for epsilon in arguments.epsilon:
            for row in arguments.rows:
                settings = [*ROWS[row], f"privacy.epsilon={epsilon}", f"training.seed={seed}"]
                cell = {"config": arguments.config, "row": row, "epsilon": epsilon, "seed": seed, "num": arguments.num}
                read_or_measure(cell, lambda _, settings=settings: measure(settings, arguments), code, arguments.out)


def measure(settings: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Train a run, judge it by the holdout part, and return accuracy and fidelity."""
    root = [] if arguments.data_root is None else [f"data.root={json.dumps(str(arguments.data_root))}"]
    config = trainer.load_config(CONFIGS / f"{arguments.config}.toml", [*root, *settings])
    options = EvaluateOptions(
        part="holdout", classifier=("cnn",), seeds=1, num=arguments.num, data_root=arguments.data_root
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        trainer.start(config, run)
        for only in ("utility", "fidelity"):
            measured = evaluate_source(run, replace(options, only=only)).evaluation.to_json()
            found[only] = measured[only]
    return found


if __name__ == "__main__":
    main()
