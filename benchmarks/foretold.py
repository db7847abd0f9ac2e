"""What `idpgan.training.plan.Signal.look` foretells, against what somebody sees who does not see its word.

python benchmarks/foretold.py draw FOLDER     # 25 runs; a picture each under a random name, the key in FOLDER/key.json
python benchmarks/foretold.py join FOLDER     # the table; FOLDER/judged.json has the judge's word by random name

The rule was frozen in the commit before this script's first run. A judge looks at FOLDER/*.png alone, knows the five
kinds of images (originals-*.png), and says of each picture: "pictures" if most images show what they are; "blobs" if
there are smooth shapes that few would name; "noise" if nothing of the kind is seen.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from idpgan import trainer
from idpgan.data import faces, fonts
from idpgan.data.images import Images, make_grid, to_uint8
from idpgan.data.load import DataShape, Sizes, Split
from idpgan.synthesis.starter import Facts, starter_for
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

SIDE, PER_CLASS, COLUMNS = 32, 8, 16
SIZES = ((600, 3.0), (2_500, 1.0), (2_500, 10.0), (12_000, 1.0), (12_000, 10.0))
WORDS = ("noise", "blobs", "pictures")


def _grid(num: int, rng: torch.Generator, jitter: float, smallest: float) -> tuple[Tensor, Tensor]:
    """Return radius and angle (num, H, W) about a point of each image, in units of its size, after a random turn."""
    steps = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    shift = (torch.rand(2, num, 1, 1, generator=rng) * 2 - 1) * jitter
    size = smallest + (1 - smallest) * torch.rand(num, 1, 1, generator=rng)
    turn = torch.rand(num, 1, 1, generator=rng) * 2 * math.pi
    y, x = (y - shift[0]) / size, (x - shift[1]) / size
    return (x.square() + y.square()).sqrt(), torch.atan2(y, x) + turn


def flowers(num: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Petals of a color on green that varies; five kinds by petals and color, anywhere and of any size."""
    kinds = torch.arange(num) % 5
    radius, angle = _grid(num, rng, 0.4, 0.5)
    petals = torch.tensor([4, 5, 6, 8, 12])[kinds].view(-1, 1, 1)
    edge = 0.55 + 0.25 * torch.cos(petals * angle)
    colors = torch.tensor([[0.9, 0.2, 0.3], [0.9, 0.8, 0.2], [0.6, 0.3, 0.9], [0.95, 0.95, 0.95], [0.95, 0.5, 0.1]])
    color = (colors[kinds] + 0.15 * torch.randn(num, 3, generator=rng)).clamp(0, 1).view(num, 3, 1, 1)
    ground = torch.tensor([0.15, 0.4, 0.15]).view(1, 3, 1, 1) * (0.4 + torch.rand(num, 1, 1, 1, generator=rng))
    coarse = torch.rand(num, 3, 6, 6, generator=rng) * 0.35
    ground = ground + torch.nn.functional.interpolate(coarse, (SIDE, SIDE), mode="bilinear")
    petal, heart = ((edge - radius) * 12).sigmoid()[:, None], ((0.18 - radius) * 20).sigmoid()[:, None]
    image = ground * (1 - petal) + color * petal
    return image * (1 - heart) + torch.tensor([0.4, 0.25, 0.05]).view(1, 3, 1, 1) * heart, kinds


def xrays(num: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Chests: two dark lungs, ribs, a spine and a heart, never twice in one place; every second with a bright spot."""
    kinds, steps = torch.arange(num) % 2, torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(steps, steps, indexing="ij")

    def varied(middle: float, spread: float) -> Tensor:
        return (middle + spread * torch.randn(num, generator=rng)).view(num, 1, 1)

    y, x = y[None] - varied(0, 0.12), (x[None] - varied(0, 0.1)) / varied(1, 0.1)
    lung = sum(
        (-(((x - side * 0.42) / 0.3).square() + (y / varied(0.65, 0.06)).square()) * 1.5).exp() for side in (-1, 1)
    )
    ribs = (torch.sin(y * varied(16, 1.5) + varied(0, 1.5) + 2 * x.abs()) > 0.4) * 0.12 * lung
    spine = (-(x / 0.09).square()).exp() * 0.3
    heart = (-(((x - 0.15) / varied(0.25, 0.04)).square() + ((y - 0.3) / 0.3).square())).exp() * 0.5
    place = torch.where(torch.rand(num, generator=rng) < 0.5, -0.42, 0.42).view(num, 1, 1)
    spot = (-((x - place).square() + (y - varied(0, 0.25)).square()) / 0.02).exp() * 0.5 * kinds.view(num, 1, 1)
    image = varied(0.65, 0.06) - 0.5 * lung + ribs + spine + heart + spot
    return image[:, None] + 0.03 * torch.randn(num, 1, SIDE, SIDE, generator=rng), kinds


def signs(num: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Signs with a border on a street's colors: a red triangle, a blue disc, a yellow square, a red octagon."""
    kinds = torch.arange(num) % 4
    steps = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    shift = (torch.rand(2, num, 1, 1, generator=rng) * 2 - 1) * 0.3
    size = 0.45 + 0.4 * torch.rand(num, 1, 1, generator=rng)
    y, x = (y - shift[0]) / size, (x - shift[1]) / size
    corners = torch.stack(
        [
            torch.maximum(y - 0.6, 0.87 * x.abs() - 0.5 * y - 0.5) + 0.3,
            (x.square() + y.square()).sqrt() - 0.7,
            torch.maximum(x.abs(), y.abs()) - 0.65,
            torch.maximum(torch.maximum(x.abs(), y.abs()), (x.abs() + y.abs()) / 1.42) - 0.75,
        ]
    )
    inside = corners[kinds, torch.arange(num)][:, None]
    colors = torch.tensor([[0.95, 0.95, 0.95], [0.1, 0.3, 0.8], [0.95, 0.85, 0.1], [0.8, 0.1, 0.1]])
    borders = torch.tensor([[0.85, 0.1, 0.1], [0.95, 0.95, 0.95], [0.1, 0.1, 0.1], [0.95, 0.95, 0.95]])
    coarse = torch.rand(num, 1, 5, 5, generator=rng) + 0.3 * torch.rand(num, 3, 5, 5, generator=rng)
    ground = torch.nn.functional.interpolate(coarse, (SIDE, SIDE), mode="bilinear") * 0.6
    light = 0.5 + 0.5 * torch.rand(num, 1, 1, 1, generator=rng)
    sign, face = (-inside * 25).sigmoid(), ((-inside - 0.13) * 25).sigmoid()
    paint = borders[kinds].view(num, 3, 1, 1) * (1 - face) + colors[kinds].view(num, 3, 1, 1) * face
    return ground * (1 - sign) + light * paint * sign, kinds


def of_kind(kind: str, num: int) -> tuple[Tensor, Tensor]:
    """Return uint8 images (num, C, 32, 32) of a kind, and their classes."""
    rng = torch.Generator().manual_seed(1)
    if kind == "faces":
        drawn = faces.draw_people(-(-num // 4), 4, SIDE, SIDE, seed=1)
        return drawn.images[:num], torch.arange(num) % 4 // 2
    if kind == "digits":
        written = fonts.draw(num, SIDE, seed=1)
        return written.images, written.labels
    images, labels = {"flowers": flowers, "xrays": xrays, "signs": signs}[kind](num, rng)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8), labels


def run(kind: str, num: int, epsilon: float) -> tuple[Tensor, dict[str, object]]:
    """Train what `init` proposes, without a teacher; return some images of each class, and what was foretold."""
    images, labels = of_kind(kind, num)
    names = tuple(str(number) for number in range(int(labels.max()) + 1))
    private = Images(images, labels, names)
    nobody = private.select(torch.arange(0))
    split = Split(nobody, private, nobody, nobody)
    shape = DataShape(Sizes(0, num, 0, 0), tuple(images.shape[1:]), names)
    facts = Facts(shape, None, kind == "digits", kind == "faces", epsilon, digits=kind == "digits")
    table = starter_for(facts).table
    table["method"].pop("teacher_share", None)  # a teacher chooses among images, and takes minutes
    for name in ("teacher_steps", "teacher_batch_size", "candidates"):
        table["method"].pop(name, None)
    config = build_config({**table, "data": {"name": "digits", **table.get("data", {})}}, "the benchmark")
    signal, began = plan_run(config, shape).signal, time.monotonic()
    method = trainer.train_on(config, split)
    generator = method.artifact(config.release).generator
    drawn = [generator.sample(PER_CLASS, labels=label, seed=label) for label in range(len(names))]
    facts = {
        "set": kind,
        "images": num,
        "epsilon": epsilon,
        "method": config.method.name,
        "figure": round(signal.figure, 2),
        "numbers": None if signal.numbers is None else round(signal.numbers, 1),
        "foretold": signal.look,
        "seconds": round(time.monotonic() - began, 1),
    }
    return to_uint8(torch.cat(drawn)), facts


def _picture(images: Tensor, path: Path) -> None:
    grid = make_grid(images, COLUMNS).repeat_interleave(3, 1).repeat_interleave(3, 2)
    Image.fromarray(grid.permute(1, 2, 0).numpy().squeeze()).save(path)


def draw(folder: Path) -> None:
    """Make all runs that the folder lacks, in random order and under random names."""
    folder.mkdir(exist_ok=True)
    names, key_file = random.Random(), folder / "key.json"  # names that nobody foresees
    key = json.loads(key_file.read_text()) if key_file.exists() else {}
    kinds = ("faces", "digits", "flowers", "xrays", "signs")
    done = {(case["set"], case["images"], case["epsilon"]) for case in key.values()}
    cases = [(kind, *size) for kind in kinds for size in SIZES if (kind, *size) not in done]
    names.shuffle(cases)
    for kind in kinds:
        _picture(of_kind(kind, 32)[0], folder / f"originals-{kind}.png")
    for case in cases:
        images, facts = run(*case)
        name = f"{names.randrange(16**6):06x}"
        _picture(images, folder / f"{name}.png")
        key[name] = facts
        key_file.write_text(json.dumps(key, indent=1) + "\n")
        print(len(key), file=sys.stderr)


def join(folder: Path) -> None:
    """Print every case, and the confusion table."""
    key, judged = (json.loads((folder / name).read_text()) for name in ("key.json", "judged.json"))
    for case in sorted((key[name] | {"judged": judged[name]} for name in key), key=str):
        print(json.dumps(case))
    pairs = Counter((key[name]["foretold"], judged[name]) for name in key)
    print("| foretold | judged noise | blobs | pictures |\n|---|---|---|---|")
    for word in WORDS:
        print(f"| {word} | " + " | ".join(str(pairs[word, seen]) for seen in WORDS) + " |")
    print(f"right: {sum(pairs[word, word] for word in WORDS)} of {len(key)}")


def main() -> None:
    """Draw or join."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "join"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    (draw if options.what == "draw" else join)(options.folder)


if __name__ == "__main__":
    main()
