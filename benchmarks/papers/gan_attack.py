"""A participant draws what only another one has: Hitaj, Ateniese, Perez-Cruz 2017, on `dssgd`. A JSON line an arm.

python benchmarks/papers/gan_attack.py [--share 0.1] [--rounds 20] [--seeds 0 1 2]

"Deep models under the GAN: information leakage from collaborative deep learning", CCS 2017, on scikit-learn's digits.
Two participants: the victim has the digits 0 to 4, the adversary 5 to 9 and a class of his own, "fake". After each
round he takes the server's network for a discriminator, trains a generator to be taken for the victim's digits, and
puts what it draws among his images as "fake": the victim's next upload has to tell its digits from that. Nothing else
than the protocol gives is used.

Judged by correlation with the mean real images of all ten digits: how many drawn images, and how many of the five mean
drawn images, are nearest to the digit that they should be. The control: the victim uploads nothing (a share of
gradients of 0), so that the attack must fail: one in ten is right by chance.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idpgan.classify import dssgd
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_uint8, to_unit
from idpgan.data.load import Split, load
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import DcganGenerator
from idpgan.models.optimizers import Adam
from idpgan.training.config import build_config

FAKE, FAKES = 10, 64  # the adversary's own class, and so many images of it
LATENT, BATCH, DRAWN, SHOWN = 16, 64, 15, 400  # of the generator: z, batch, steps a round; images that are judged
VICTIM = 5  # digits below are the victim's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.1, help="of the changes that a participant uploads")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    split = load(DataConfig(name="digits"))
    for seed in arguments.seeds:
        for uploads in (True, False):
            drawn, accuracy = attacked(split, arguments.share, arguments.rounds, seed, uploads)
            row = {"victim uploads": uploads, "seed": seed, "share": arguments.share, "rounds": arguments.rounds}
            row |= judged(drawn, split.private)
            print(json.dumps(row | {"accuracy of the server": round(accuracy, 4)}), flush=True)


def attacked(split: Split, share: float, rounds: int, seed: int, uploads: bool) -> tuple[Tensor, float]:
    """Play the rounds; return what the adversary draws, float32 (n, 1, 8, 8) in [0, 1], and the server's accuracy."""
    dealt, own = two_participants(split.private, uploads)
    config = build_config(
        {
            "data": {"name": "digits"},
            "method": {"name": "dssgd", "participants": 2, "upload_share": share, "bound": 1.0},
            "privacy": {"accept_unsound": True},
            "training": {"steps": rounds, "seed": seed},
        },
        "the benchmark",
    )
    method = dssgd.Method.of(
        config, Split(dealt.select(torch.arange(0)), dealt, split.holdout, split.test), device=torch.device("cpu")
    )
    model = ModelConfig(conditional=True, latent_dim=LATENT, width=16)
    generator = DcganGenerator(model, dealt.image_shape, VICTIM, seed=seed)
    optimizer = Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    noise = torch.Generator().manual_seed(seed)
    for step in range(1, rounds + 1):
        method.step(step)
        for _ in range(DRAWN):
            images, wanted = draw(generator, BATCH, noise)
            loss = cross_entropy(method.newest(images), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            method._images.images[own] = to_uint8(draw(generator, len(own), noise)[0])  # the adversary's own images
    with torch.no_grad():
        drawn = draw(generator.eval(), SHOWN, noise)[0]
        right = method.newest.logits(split.test.images).argmax(1) == split.test.labels
    return to_unit(to_uint8(drawn)), float(right.double().mean())


def draw(generator: DcganGenerator, num: int, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the victim's digits in turn; return images in [-1, 1], and which digits they should be."""
    wanted = torch.arange(num) % VICTIM
    return generator.images(torch.randn(num, LATENT, generator=noise), wanted), wanted


def two_participants(images: Images, uploads: bool) -> tuple[Images, Tensor]:
    """Deal digits to victim and adversary in turn; return them, and the positions of the adversary's fakes.

    Where the victim uploads nothing its records are null: it trains on none, and changes no parameter.
    """
    labels = images.labels
    blank = torch.zeros(FAKES, *images.image_shape, dtype=torch.uint8)
    everything = Images(
        torch.cat([images.images, blank]),
        torch.cat([labels, torch.full((FAKES,), FAKE)]),
        (*images.classes, "fake"),
    )
    victim = (labels < VICTIM).nonzero()[:, 0]
    adversary = torch.cat([len(images) + torch.arange(FAKES), (labels >= VICTIM).nonzero()[:, 0]])
    each = min(len(victim), len(adversary))
    dealt = everything.select(torch.stack([victim[:each], adversary[:each]], 1).flatten())
    own = 1 + 2 * torch.arange(FAKES)
    return dealt if uploads else dealt.zeroed_out(2 * torch.arange(each)), own


def judged(drawn: Tensor, images: Images) -> dict[str, Any]:
    """Say how much of what was drawn, (n, 1, 8, 8), is nearest to the digit that it should be."""
    wanted = torch.arange(len(drawn)) % VICTIM
    real = torch.stack([to_unit(images.images[images.labels == digit]).mean(0).flatten() for digit in range(FAKE)])
    ours = torch.stack([drawn[wanted == digit].mean(0).flatten() for digit in range(VICTIM)])
    near, near_mean = (
        torch.corrcoef(torch.cat([part.flatten(1), real]))[: len(part), len(part) :] for part in (drawn, ours)
    )
    return {
        "drawn as their digit": round(float((near.argmax(1) == wanted).double().mean()), 4),
        "means as their digit": int((near_mean.argmax(1) == torch.arange(VICTIM)).sum()),
        "correlation of the means": round(float(near_mean.diag().mean()), 3),
    }


if __name__ == "__main__":
    main()
