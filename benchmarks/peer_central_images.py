"""Central images of DP-FETA and FETA-Pro in the same game: claimed, proven, audited.

python benchmarks/peer_central_images.py [--runs 100000] [--out benchmarks/results/audits/peer-central-images.json]

What the peers release (SunnierLee/DP-FETA, extract_mean.py, commit 26ee67ef60b9d9562e00a0dd9ebaff10c2a8e724, and the
class CentralDataset of 2019ChenGong/Feta-Pro, data/dataset_loader.py, commit 280243d9432b6011439f9e9467eddf89b1afe9cf),
implemented here anew from the description of the mechanism alone: of each of ``rounds`` Poisson batches (rate
q = batch_size / N), for every class the mean of the batch's images of that class, at 14 x 14 pixels in [0, 1], plus
Gaussian noise of standard deviation ``sigma sqrt(D) / (batch_size // classes)`` on each of the D pixels, clamped to
[0, 1] and rounded. The mean is divided by the *actual* number of images of the class in the batch; the noise is sized
for the number ``batch_size // classes``. A class without an image in the batch has the mean of nothing, NaN, which
becomes black. Claimed is what the code states: ``rounds`` steps of a Poisson-sampled Gaussian mechanism of noise
multiplier ``sigma`` at rate q (its ``privacy_history``), priced by our accountant at the peers' delta, 1 / (N ln N).

The game: neighbors under zero-out-one differ in one white image of a class whose other images are black. Played is that
class alone: all others are equal and independent. The attacker sees the clamped bytes, and scores by their sum over all
rounds or by the brightest round. Enlarging, median filter and sharpening follow in the peers' code and are left out:
they cannot show more.

With 6,000 images in the class, as in MNIST, a batch has about as many of them as the noise is sized for; with 20 it
has about 2, and the noise is sized for 600.

Proven: noise that does not grow with the sensitivity of what is released has no finite epsilon for all data sets. For
classes of a declared least size it may; that size is not part of the claim.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.audit import audit
from idpgan.audit.bounds import share_text
from idpgan.audit.statistics import Column
from idpgan.files import write_text_atomic
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.tradeoff import proven_separation

PIXELS = 14 * 14
SIZES = (6_000, 600, 60, 20)
PEERS = ("SunnierLee/DP-FETA extract_mean.py 26ee67ef", "2019ChenGong/Feta-Pro data/dataset_loader.py 280243d9")


@dataclass(frozen=True)
class CentralImages:
    """Settings of the peers for MNIST, and the class that is played.

    Attributes:
        images: N.
        size: Images of the class, the target among them.
    """

    size: int
    images: int = 60_000
    classes: int = 10
    batch_size: int = 6_000
    rounds: int = 5
    sigma: float = 5.0

    @property
    def rate(self) -> float:
        """Return q."""
        return self.batch_size / self.images

    @property
    def noise_std(self) -> float:
        """Return the standard deviation of the noise on each pixel."""
        return self.sigma * math.sqrt(PIXELS) / (self.batch_size // self.classes)

    @property
    def event(self) -> Event:
        """Return what the code charges."""
        return Event("poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, self.sigma, self.rounds, self.rate)

    def release(self, present: Tensor, rng: torch.Generator) -> Tensor:
        """Return what the attacker takes of the class's images, for runs (R, 1) of 0 or 1: the two scores, (R, 2).

        The target is a white image, the others are black; the mean of no image is NaN, whose bytes are 0.
        """
        shape = (len(present), self.rounds)
        rate = torch.full(shape, self.rate)
        others = torch.binomial(torch.full(shape, float(self.size - 1)), rate, generator=rng)
        target = (torch.rand(shape, generator=rng) < self.rate) * present.float()
        count = others + target
        noise = torch.randn(*shape, PIXELS, generator=rng) * self.noise_std
        noisy = (target / count)[:, :, None] + noise  # 0 / 0 is NaN
        shown = (noisy.clamp(0, 1) * 255).floor().nan_to_num(0.0).mean(2)  # (R, rounds)
        return torch.stack([shown.sum(1), shown.amax(1)], 1).double()


def played(setting: CentralImages, runs: int, seed: int) -> dict[str, Any]:
    """Return claimed, proven and audited of one class."""
    rng, delta = torch.Generator().manual_seed(seed), 1 / (setting.images * math.log(setting.images))
    claimed = compose_epsilon([setting.event], delta)
    statistics = (lambda *_: Column(0, "brightness of all rounds"), lambda *_: Column(1, "brightest round"))
    found = audit(
        lambda present: setting.release(present, rng),
        torch.zeros(1),
        torch.ones(1),
        runs=runs,
        delta=delta,
        statistics=statistics,
        rows=2000,
    )
    mu = found.separation.mu_lower
    claimed_mu = proven_separation((setting.event,), found.separation.fpr_high, claimed, delta)
    refuted = found.epsilon_lower > claimed or mu > claimed_mu
    numbers = {"claimed": claimed, "proven": "inf", "audited": found.epsilon_lower, "cap": found.cap}
    numbers |= {"claimed_mu": claimed_mu, "audited_mu": mu, "refuted": refuted}
    return {**asdict(setting), "delta": delta, **numbers, "result": found.to_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000, help="per side, half of them counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| images of the class | claimed | proven | audited | audited separation, of what the claim allows |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        row = played(CentralImages(size), arguments.runs, arguments.seed)
        rows.append(row)
        bold = "**" if row["refuted"] else ""
        share = share_text(row["audited_mu"], row["claimed_mu"])
        audited = f"{bold}{row['audited']:.3g}{bold} | {row['audited_mu']:.3g} of {row['claimed_mu']:.3g} ({share})"
        print(f"| {size:,} | {row['claimed']:.3g} | infinite | {audited} |", flush=True)
    if arguments.out is not None:
        document = {"sources": PEERS, "classes": rows}
        write_text_atomic(arguments.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
