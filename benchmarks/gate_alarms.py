"""How often the gate fails harmless images: blind attacks, members and others of one distribution.

    python benchmarks/gate_alarms.py [--draws 40]

Every failure is false. The attacks of a real gate share their images, and so fail more seldom.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch

from idpgan.attacks.attack import Outcome, best_of
from idpgan.attacks.gate import Limit
from idpgan.attacks.registry import ATTACKS
from idpgan.report.attacked_images import COPIES

LIMITS = {
    "leak": Limit(),
    "0.02@0.01": Limit(0.02),
    "0.05@0.01": Limit(0.05),
    "0.1@0.01 --upper-end": Limit(0.1, upper_end=True),
    "0.05@0.01 --upper-end": Limit(0.05, upper_end=True),
}
ATTACKERS = 15  # independent of each other: the worst case of attacks that share their images


def main() -> None:
    """Print one row per number of images a side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40)
    draws, rng, row = parser.parse_args().draws, torch.Generator().manual_seed(1), ATTACKS["nearest-sample"]
    print("| images a side |", " | ".join(LIMITS), "|")
    for num in (200, 500, 1000, 2000):
        failed = Counter[str]()
        for _ in range(draws):
            blind = [Outcome(row, scores=(part[0], part[1])) for part in torch.randn(ATTACKERS, 2, num, generator=rng)]
            best = best_of(blind, further=COPIES)
            failed.update(name for name, limit in LIMITS.items() if limit.judge(blind, best, COPIES).name == "failed")
        print(f"| {num:,} |", " | ".join(str(failed[name]) for name in LIMITS), "|", flush=True)


if __name__ == "__main__":
    main()
