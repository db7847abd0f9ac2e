"""A participant draws what only another one has: Hitaj, Ateniese, Perez-Cruz 2017, on `dssgd`. A JSON line an arm.

python benchmarks/papers/gan_attack.py CONFIG [KEY=VALUE ...] [--seeds 0 1 2]

"Deep models under the GAN: information leakage from collaborative deep learning", CCS 2017, on the images and by the
protocol of a config of `dssgd`. Two participants: the victim has the first half of the classes, the adversary the
others and one of his own, "fake". After each round he takes the server's network for a discriminator, trains a
generator to be taken for the victim's classes, and puts what it draws among his images as "fake": the victim's next
upload has to tell its classes from that. Nothing else than the protocol gives is used.

Judged by correlation with the mean real images of all classes: how many drawn images, and how many of the mean drawn
images, are nearest to the class that they should be. The control: the victim uploads nothing (a share of gradients of
0), so that the attack must fail: of K classes one in K is right by chance.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idpgan.classify import dssgd
from idpgan.data.images import Images, to_uint8, to_unit
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import DcganGenerator
from idpgan.models.optimizers import Adam
from idpgan.trainer import load_config
from idpgan.training.config import RunConfig

FAKES = 64  # images of the adversary's own class
LATENT, BATCH, DRAWN, SHOWN = 16, 64, 15, 400  # of the generator: z, batch, steps a round; images that are judged
LEAST_CLASSES = 4  # two on each side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="of dssgd, such as configs/digits-dssgd.toml")
    parser.add_argument("settings", nargs="*", default=[], help="section.key=value, such as training.steps=10")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        configs = [config_of(arguments.config, arguments.settings, seed) for seed in arguments.seeds]
        split = load(configs[0].data)
        check(split)
    except InputError as error:
        parser.error(str(error))
    for config in configs:
        for uploads in (True, False):
            drawn, accuracy = attacked(split, config, uploads)
            row = {"victim uploads": uploads, "seed": config.training.seed}
            row |= {"share": config.method.upload_share, "rounds": config.training.steps}
            row |= judged(drawn, split.private)
            print(json.dumps(row | {"accuracy of the server": round(accuracy, 4)}), flush=True)


def config_of(path: Path, settings: list[str], seed: int) -> RunConfig:
    """Return the config of a run of two participants."""
    config = load_config(path, [*settings, f"training.seed={seed}"])
    if config.method.name != "dssgd":
        raise InputError(f"{path} is of {config.method.name}: the attack is on dssgd. Take configs/digits-dssgd.toml.")
    return load_config(path, [*settings, f"training.seed={seed}", "method.participants=2"])


def check(split: Split) -> None:
    """Refuse images whose classes cannot be dealt out."""
    if len(split.classes) < LEAST_CLASSES or split.test is None:
        raise InputError(
            f"{len(split.classes)} classes and {'no' if split.test is None else 'a'} test part: the attack needs "
            f"{LEAST_CLASSES} classes, two on each side, and a test part."
        )
    victim = int((split.private.existing().labels < victims_of(split.private)).sum())
    if victim < FAKES:
        raise InputError(f"{victim} private images of the first half of the classes: the attack needs {FAKES}.")


def attacked(split: Split, config: RunConfig, uploads: bool) -> tuple[Tensor, float]:
    """Play the rounds; return what the adversary draws, float32 (n, C, H, W) in [0, 1], and the server's accuracy."""
    dealt, own = two_participants(split.private, uploads)
    seed, victims = config.training.seed, victims_of(split.private)
    method = dssgd.Method.of(
        config, Split(dealt.select(torch.arange(0)), dealt, split.holdout, split.test), device=torch.device("cpu")
    )
    model = ModelConfig(conditional=True, latent_dim=LATENT, width=16)
    generator = DcganGenerator(model, dealt.image_shape, victims, seed=seed)
    optimizer = Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    noise = torch.Generator().manual_seed(seed)
    for step in range(1, config.training.steps + 1):
        method.step(step)
        for _ in range(DRAWN):
            images, wanted = draw(generator, BATCH, noise, victims)
            loss = cross_entropy(method.newest(images), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():  # the adversary's own images
            method._images.images[own] = to_uint8(draw(generator, len(own), noise, victims)[0])
    with torch.no_grad():
        drawn = draw(generator.eval(), SHOWN, noise, victims)[0]
        right = method.newest.logits(split.test.images).argmax(1) == split.test.labels
    return to_unit(to_uint8(drawn)), float(right.double().mean())


def victims_of(images: Images) -> int:
    """Return how many classes the victim has: the first half."""
    return len(images.classes) // 2


def draw(generator: DcganGenerator, num: int, noise: torch.Generator, victims: int) -> tuple[Tensor, Tensor]:
    """Draw the victim's classes in turn; return images in [-1, 1], and which classes they should be."""
    wanted = torch.arange(num) % victims
    return generator.images(torch.randn(num, LATENT, generator=noise), wanted), wanted


def two_participants(images: Images, uploads: bool) -> tuple[Images, Tensor]:
    """Deal images to victim and adversary in turn; return them, and the positions of the adversary's fakes.

    Where the victim uploads nothing its records are null: it trains on none, and changes no parameter.
    """
    labels, victims = images.labels, victims_of(images)
    blank = torch.zeros(FAKES, *images.image_shape, dtype=torch.uint8)
    everything = Images(
        torch.cat([images.images, blank]),
        torch.cat([labels, torch.full((FAKES,), len(images.classes))]),
        (*images.classes, "fake"),
    )
    real = ~images.is_null
    victim = ((labels < victims) & real).nonzero()[:, 0]
    adversary = torch.cat([len(images) + torch.arange(FAKES), ((labels >= victims) & real).nonzero()[:, 0]])
    each = min(len(victim), len(adversary))
    dealt = everything.select(torch.stack([victim[:each], adversary[:each]], 1).flatten())
    own = 1 + 2 * torch.arange(FAKES)
    return dealt if uploads else dealt.zeroed_out(2 * torch.arange(each)), own


def judged(drawn: Tensor, images: Images) -> dict[str, Any]:
    """Say how much of what was drawn, (n, C, H, W), is nearest to the class that it should be."""
    victims, classes = victims_of(images), range(len(images.classes))
    wanted = torch.arange(len(drawn)) % victims
    real = torch.stack([to_unit(images.images[images.labels == number]).mean(0).flatten() for number in classes])
    ours = torch.stack([drawn[wanted == number].mean(0).flatten() for number in range(victims)])
    near, near_mean = (
        torch.corrcoef(torch.cat([part.flatten(1), real]))[: len(part), len(part) :] for part in (drawn, ours)
    )
    return {
        "drawn as their class": round(float((near.argmax(1) == wanted).double().mean()), 4),
        "means as their class": int((near_mean.argmax(1) == torch.arange(victims)).sum()),
        "correlation of the means": round(float(near_mean.diag().mean()), 3),
    }


if __name__ == "__main__":
    main()
