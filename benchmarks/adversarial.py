"""Attack a finished run's classifier by changed inputs: accuracy under PGD, and DeepFool's rho. One JSON line.

python benchmarks/adversarial.py RUN [--data-root DIR] [--num 1000] [--radius 0.3] [--steps 40]

Judged on the test part, which nothing was trained or chosen on.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import idpgan
from idpgan.attacks.adversarial import accuracy, deepfool, pgd
from idpgan.data.load import load
from idpgan.run import RunFolder
from idpgan.trainer import load_config


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--num", type=int, default=1000)
    parser.add_argument("--radius", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    root = [] if options.data_root is None else [f"data.root={json.dumps(str(options.data_root))}"]
    config = load_config(RunFolder.open(options.run).config, root)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = idpgan.load_classifier(options.run).requires_grad_(False).to(device)
    test = load(config.data).test.existing()
    test = test.select(torch.arange(min(options.num, len(test)))).to(device)
    started = time.monotonic()
    attacked = pgd(network, test.images, test.labels, radius=options.radius, steps=options.steps)
    after_pgd = time.monotonic()
    fooled = deepfool(network, test.images)
    print(
        json.dumps(
            {
                "run": str(options.run),
                "method": config.method.name,
                "images": len(test),
                "accuracy": accuracy(network, test.images, test.labels),
                "radius": options.radius,
                "steps": options.steps,
                "accuracy_under_pgd": accuracy(network, attacked, test.labels),
                "rho": fooled.robustness,
                "fooled": fooled.success.float().mean().item(),
                "seconds_pgd": round(after_pgd - started, 1),
                "seconds_deepfool": round(time.monotonic() - after_pgd, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
