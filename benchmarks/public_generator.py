"""A stand-in for "a good public generator": a GAN of photos that are declared public, evolved towards other people's.

python benchmarks/public_generator.py PHOTOS [--folder runs/public-generator] [--people 1500] [--steps 6000] [--seeds 3]

PHOTOS holds metadata.csv (file_name, expression, person) and its photos. 1,500 people are dealt to public/, the others
to private/, at 32 x 32 grey, smiling or neutral. A wgan-gp without noise learns from the public ones; `evolution` takes
it as a simulator of the user's own (`draw` below) and evolves it towards the private ones. All rows are judged by one
CNN (`idpgan.metrics.utility`) on the private folder's test people, whom no method sees. Each row is a JSON line,
printed and kept in the folder: a run that is stopped goes on where it was. A grid of each row lies beside them.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import math
import os
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import idpgan
from idpgan.config import build
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, make_grid, png_bytes, to_uint8
from idpgan.data.load import Split, load
from idpgan.metrics.utility import measure_utility
from idpgan.models.config import Purpose
from idpgan.trainer import resume as go_on
from idpgan.trainer import start, train_on
from idpgan.training.config import build_config

SIDE, CLASSES, TEST_PEOPLE = 32, ("neutral", "happiness"), 10
IMAGES, EPSILONS = 4000, (1.0, 3.0, 10.0)
FOLDER = "IDPGAN_PUBLIC_GENERATOR"  # variable that names the folder, for `draw`


def draw(z: Tensor, labels: Tensor) -> Tensor:
    """Draw as the public generator does: the simulator ``public_generator:draw``."""
    return _public_generator()(z, labels)


@functools.cache
def _public_generator() -> Any:
    return idpgan.load_generator(Path(os.environ[FOLDER]) / "gan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/public-generator"))
    parser.add_argument("--people", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="rows by name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.folder
    os.environ[FOLDER] = str(folder.resolve())
    if not (folder / "private").is_dir():
        deal(arguments.photos, folder, arguments.people)
    train_public(folder, arguments.steps)
    measure(folder, arguments.seeds, arguments.only)


def deal(photos: Path, folder: Path, num_public: int) -> None:
    """Write the folders; who is public is drawn by a fixed seed, and never by what is on a photo.

    The public photos are written twice: in one folder with their people, and for the generator in folders of classes,
    with a ``test/`` of few, so that it learns from all others.
    """
    with (photos / "metadata.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["expression"] in CLASSES]
    people = sorted({row["person"] for row in rows})
    random.Random(0).shuffle(people)
    public, few = set(people[:num_public]), set(people[:TEST_PEOPLE])
    writers = {}
    for number, row in enumerate(rows):
        name = "public" if row["person"] in public else "private"
        image = Image.open(photos / row["file_name"]).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
        part = "test" if row["person"] in few else "train"
        places = [folder / f"{name}.part"] + [folder / "classes" / part / row["expression"]] * (name == "public")
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
            image.save(place / f"{number:05d}.png")
        writers.setdefault(name, []).append({**row, "file_name": f"{number:05d}.png"})
    for name, kept in writers.items():
        with (folder / f"{name}.part" / "metadata.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["file_name", "expression", "person"])
            writer.writeheader()
            writer.writerows(kept)
        (folder / f"{name}.part").rename(folder / name)


def data_of(root: Path, **more: Any) -> dict[str, Any]:
    """Return [data] for one of the folders."""
    with (root / "metadata.csv").open(newline="") as file:
        people = [row["person"] for row in csv.DictReader(file)]
    own = {"name": "folder", "root": str(root.resolve()), "label": ["expression"], "classes": list(CLASSES)}
    declared = {"num_images": len(people), "num_people": len(set(people)), "image_size": SIDE, "channels": 1}
    return own | declared | {"split_by": "identity", "holdout_share": 0.0} | more


def train_public(folder: Path, steps: int) -> None:
    """Train the public generator, or go on with it."""
    out, root = folder / "gan", folder / "classes"
    data = {"name": "folder", "root": str(root.resolve()), "classes": list(CLASSES), "holdout_share": 0.0}
    table = {
        "data": data | {"num_images": len(list((root / "train").rglob("*.png"))), "image_size": SIDE, "channels": 1},
        "model": {"width": 24, "latent_dim": 64},
        "method": {"name": "wgan-gp", "critic_steps_per_generator_step": 3, "ema_decay": 0.995},
        "training": {"steps": steps, "batch_size": 48, "tick_steps": 200, "device": "cpu"},
    }
    if not out.exists():
        start(build_config(table, "the public generator"), out)
    elif not (out / "release" / "generator.safetensors").is_file():
        go_on(out)


# The rows ---------------------------------------------------------------------------------------------------------


def rows_of(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the config of each row; {} for images that cost nothing. The order is that of importance."""
    private = data_of(folder / "private")
    declared = {"public_root": str((folder / "public").resolve()), "public_disjoint": True}
    evolution = {
        "data": private,
        "model": {
            "generator": "population",
            "simulator": "public_generator:draw",
            "latent_dim": 64,
            "codes": 1000,
            "license": "declared public for this benchmark",
        },
        "method": {"name": "evolution", "threshold": 0.5, "first_variation": 0.5, "last_variation": 0.3},
        "training": {"device": "cpu", "steps": 3},
    }
    gaussian = {
        "data": private,
        "model": {"generator": "gaussian", "latent_dim": 160},
        "method": {"name": "gaussian", "teacher_share": 0.5, "candidates": 8},
        "training": {"device": "cpu"},
    }
    registered = {**gaussian, "model": {**gaussian["model"], "shape": 12}}
    photos = {**evolution, "data": private | declared}
    photos["model"] = {"generator": "population", "simulator": "public", "codes": 1000}
    yield "public photos", {}
    yield "public generator", {}
    for epsilon in EPSILONS:
        privacy = {"privacy": {"epsilon": epsilon, "delta": 1e-5}}
        yield f"evolution of the public generator, {epsilon:g}", evolution | privacy
        yield f"gaussian with a teacher, {epsilon:g}", gaussian | privacy
        yield f"the same, registered, {epsilon:g}", registered | privacy
        yield f"the same, public photos, {epsilon:g}", {**gaussian, "data": private | declared} | privacy
    for epsilon in EPSILONS:
        privacy = {"privacy": {"epsilon": epsilon, "delta": 1e-5}}
        yield f"evolution of the public photos, {epsilon:g}", photos | privacy
    yield "private photos", {}


def measure(folder: Path, seeds: int, only: list[str] | None) -> None:
    """Judge every row, all rows with one seed before the next seed."""
    split = load(build(DataConfig, data_of(folder / "private"), "private"))
    declared = {"public_root": str((folder / "public").resolve())}
    public = load(build(DataConfig, data_of(folder / "private", **declared), "public")).public
    done = folder / "rows.jsonl"
    known = (
        {(row["row"], row["seed"]): row for row in map(json.loads, done.read_text().splitlines())}
        if (done.is_file())
        else {}
    )
    for seed in range(seeds):
        for name, table in rows_of(folder):
            if (name, seed) in known or (only and not any(word in name for word in only)):
                continue
            images = images_of(name, table, seed, split, public)
            result = measure_utility(images, split.test.existing(), classifiers=("cnn",), seeds=(seed,))
            row = {"row": name, "seed": seed, "images": len(images), "accuracy": result.scores[0].accuracies[0]}
            row |= {"majority": result.majority, "test": result.num_test, "private": split.num_private}
            known[name, seed] = row
            with done.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
            if seed == 0:
                save_grid(folder, name, images)
    for name, _ in rows_of(folder):
        found = [row["accuracy"] for (of_row, _), row in known.items() if of_row == name]
        if found:
            error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
            print(f"| {name} | {100 * statistics.fmean(found):.1f} +- {100 * error:.1f} | {len(found)} |")


def images_of(name: str, table: dict[str, Any], seed: int, split: Split, public: Images) -> Images:
    """Return the images of a row: real ones as they are, else `IMAGES` drawn ones."""
    if name == "public photos":
        return public.existing()
    if name == "private photos":
        return split.private.existing()
    if name == "public generator":
        generator = _public_generator()
    else:
        training = {**table["training"], "seed": seed}
        config = build_config({**table, "training": training}, name)
        generator = train_on(config, load(config.data)).artifact(config.release).generator
    pixels = to_uint8(generator.sample(IMAGES, seed=seed, purpose=Purpose.TRAINING))
    return Images(pixels, generator.sample_labels(IMAGES), generator.classes)


def save_grid(folder: Path, name: str, images: Images) -> None:
    """Save 8 images of each class, smiling below neutral; those of real people stay in the folder."""
    chosen = torch.cat([torch.nonzero(images.labels == row)[:8, 0] for row in range(len(CLASSES))])
    tiles = images.images[chosen].repeat_interleave(2, 2).repeat_interleave(2, 3)
    (folder / f"{name.replace(' ', '-').replace(',', '')}.png").write_bytes(png_bytes(make_grid(tiles, 8)))


if __name__ == "__main__":
    main()
