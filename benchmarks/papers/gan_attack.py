"""A participant draws what only another one has: Hitaj, Ateniese, Perez-Cruz 2017, on `dssgd`. A JSON line an arm.

python benchmarks/papers/gan_attack.py [--share 0.1] [--rounds 40] [--wanted 3] [--seeds 0 1 2]

"Deep models under the GAN: information leakage from collaborative deep learning", CCS 2017, on scikit-learn's digits.
Two participants: the victim has the digits 0 to 4, the adversary 5 to 9 and a class of his own, "fake". After each
round he takes the server's network for a discriminator, trains a generator to be taken for one of the victim's digits,
and puts what it draws among his images as "fake": the victim's next upload has to tell its digit from that. Nothing
else than the protocol gives is used.

Judged by a network that knows all digits: how much of what is drawn it takes for the wanted digit; and by the
correlation of the mean drawn image with that of the digit, less that with the nearest other digit. The control: the
victim uploads nothing (a share of gradients of 0), so that the attack must fail.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idpgan.attacks.inference import Attacker, train_attacker
from idpgan.classify.dssgd import Dssgd
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
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--wanted", type=int, default=3, choices=range(VICTIM), help="a digit of the victim")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    split = load(DataConfig(name="digits"))
    pixels, labels = to_unit(split.private.images), split.private.labels
    judge = train_attacker([(pixels, labels)], epochs=15, mirror=False)
    for seed in arguments.seeds:
        for shares in (True, False):
            drawn, accuracy = attacked(split, arguments.wanted, arguments.share, arguments.rounds, seed, shares)
            row = {"victim uploads": shares, "seed": seed, "share": arguments.share, "rounds": arguments.rounds}
            found = judged(drawn, judge, split.private, arguments.wanted)
            print(json.dumps(row | found | {"accuracy of the server": round(accuracy, 4)}), flush=True)


def attacked(split: Split, wanted: int, share: float, rounds: int, seed: int, uploads: bool) -> tuple[Tensor, float]:
    """Play the rounds; return what the adversary draws, (n, 1, 8, 8) in [0, 1], and the server's accuracy."""
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
    method = Dssgd.of(
        config, Split(dealt.select(torch.arange(0)), dealt, split.holdout, split.test), device=torch.device("cpu")
    )
    model = ModelConfig(conditional=False, latent_dim=LATENT, width=16)
    generator = DcganGenerator(model, dealt.image_shape, 0, seed=seed)
    optimizer = Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    noise = torch.Generator().manual_seed(seed)
    for step in range(1, rounds + 1):
        method.step(step)
        for _ in range(DRAWN):
            images = generator.images(torch.randn(BATCH, LATENT, generator=noise), None)
            loss = cross_entropy(method.newest(images), torch.full((BATCH,), wanted))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            fakes = generator.images(torch.randn(len(own), LATENT, generator=noise), None)
        method._images.images[own] = to_uint8(fakes)  # the adversary's own images
    with torch.no_grad():
        drawn = generator.eval().images(torch.randn(SHOWN, LATENT, generator=noise), None)
        right = method.newest.logits(split.test.images).argmax(1) == split.test.labels
    return to_unit(to_uint8(drawn)), float(right.double().mean())


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


def judged(drawn: Tensor, judge: Attacker, images: Images, wanted: int) -> dict[str, Any]:
    """Say how much of what was drawn is taken for the wanted digit, and how near its mean is to that of the digit."""
    truth = torch.full((len(drawn),), wanted)
    means = torch.stack([to_unit(images.images[images.labels == label]).mean(0).flatten() for label in range(FAKE)])
    near = torch.corrcoef(torch.cat([drawn.mean(0).flatten()[None], means]))[0, 1:]
    others = near[torch.arange(FAKE) != wanted].max()
    return {
        "taken for the digit": round(judge.infer(drawn, truth).accuracy, 4),
        "correlation": round(float(near[wanted]), 3),
        "above the nearest other": round(float(near[wanted] - others), 3),
    }


if __name__ == "__main__":
    main()
