"""What portraits drawn by method `traits` teach, beside portraits alone and beside a law with portraits moved onto it.

python benchmarks/traits.py --data-root FACES --portraits FOLDER --out CELLS [--rows ROW ...] [--sets 0 1] [--seeds 0 1]

FACES is a folder that `idpgan prepare --align eyes` made, with the columns person and expression; FOLDER is one of
`idpgan people`, of the same size. People are split as in `people.py`: six eighths are private, one chooses settings,
one judges. Each CNN is scored on both, and the scores on the last are written to sealed.jsonl, to be read once.

Rows: "even" (the floor: portraits drawn near even parents, as method traits draws, and no private image is read),
"traits:EPSILON" (configs/faces-aligned-traits.toml), "person:EPSILON" (the same, unit one person),
"law:EPSILON" (what `idpgan init` proposes beside portraits: registered, a teacher, half of the images drawn by the law
and half portraits moved onto it),
"both:EPSILON" (of one budget: traits with 5 % of it, squared, and their portraits moved onto the law of the rest),
"moved:EPSILON" (the same, moved portraits alone), "real".
6,000 images of each row teach; pictures of a release are taken as they lie in it. What is there is kept.

With --fidelity the sets are looked at besides, by photos of the group that chooses, into fidelity.jsonl: what
`people.py --fidelity` measures, and how often ridge regression on histograms of orientations, which learned from
private photos, tells an image from a photo of others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import people
import torch
from torch import Tensor

from idpgan import portraits
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import fit_feature_classifier
from idpgan.models.initialize import torch_seed
from idpgan.models.orientations import orientations
from idpgan.privacy.tradeoff import gaussian_epsilon, gaussian_mu
from idpgan.trainer import train_on
from idpgan.training.config import build_config

DELTA, SHARE = 1e-5, 0.05  # the share of traits where a law has the rest, of mu squared
STEP = 0.06  # of synthesis.traits
RIDGE = 1e-2  # of the linear judge, per image


def released(epsilon: float, seed: int, private: Images, root: Path, unit: str = "image") -> Images:
    """Return the pictures of a release of method traits, `people.NUM` in all."""
    num = len(private.identities.unique())
    of_person = {"most_per_person": math.ceil(len(private) / num)} if unit == "person" else {}  # as `idpgan init` does
    declared = {"name": "folder", "root": ".", "num_images": len(private), "image_size": private.image_shape[1]}
    declared |= {"channels": private.image_shape[0], "classes": [*people.CLASSES], "label": ["expression"]}
    declared |= {"public_root": str(root), "public_disjoint": True}
    declared |= {"public_labels": {"neutral": "not smiling", "happiness": "smiling"}}
    table = {
        "data": declared,
        "model": {"generator": "pictures", "codes": people.NUM // 2},
        "method": {"name": "traits"},
        "privacy": {"epsilon": epsilon, "delta": DELTA, "unit": unit, **of_person},
        "training": {"seed": seed},
    }
    if of_person:
        declared |= {"num_people": num, "split_by": "identity"}
    else:
        private = dataclasses.replace(private, identities=None)
    nobody = private.select(torch.arange(0))
    method = train_on(build_config(table, "the row"), Split(alone(root, private), private, nobody, nobody))
    return mixed(method.artifact(method.plan.config.release).generator.pictures, seed)


def mixed(pictures: Tensor, seed: int) -> Images:
    """Return pictures (2, N, C, H, W) as images in an order by chance."""
    order = torch.randperm(2 * len(pictures[0]), generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(2).repeat_interleave(len(pictures[0]))
    return Images(pictures.flatten(0, 1)[order], labels[order], people.CLASSES)


def alone(root: Path, private: Images) -> Images:
    """Return all portraits of the folder, in an order by chance."""
    images, traits = portraits.read(root, private.image_shape)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return Images(images[order], traits["smiling"].long()[order], people.CLASSES)


def even(seed: int, private: Images, root: Path) -> Images:
    """Return portraits near others that are chosen evenly: the floor."""
    _, traits = portraits.read(root, private.image_shape)
    rng = torch.Generator().manual_seed(torch_seed(seed, 91))
    own = [torch.nonzero(traits["smiling"] == row)[:, 0] for row in range(2)]
    parents = torch.cat([rows[torch.randint(len(rows), (people.NUM // 2,), generator=rng)] for rows in own])
    near = portraits.near({name: column[parents] for name, column in traits.items()}, STEP, rng)
    drawn = portraits.draw(near, private.image_shape[1], private.image_shape[0], torch_seed(seed, 92))
    return mixed(drawn.view(2, -1, *private.image_shape), seed)


def images_of(row: str, seed: int, private: Images, root: Path, out: Path) -> Images:
    """Return what a row teaches by; a set that was drawn is kept."""
    kept = out / f"{row.replace(':', '-')}-{seed}.npz"
    if kept.is_file():
        found = np.load(kept)
        return Images(torch.tensor(found["images"]), torch.tensor(found["labels"]), people.CLASSES)
    what, _, given = row.partition(":")
    if what == "real":
        images = people.mixed_up(private, people.NUM)
    elif what == "even":
        images = even(seed, private, root)
    elif what in ("traits", "person"):
        images = released(float(given), seed, private, root, "person" if what == "person" else "image")
    else:
        epsilon, public = float(given), alone(root, private)
        if what != "law":
            mu = gaussian_mu(epsilon, DELTA)
            epsilon = round(gaussian_epsilon(mu * (1 - SHARE) ** 0.5, DELTA), 6)
            public = images_of(f"traits:{gaussian_epsilon(mu * SHARE**0.5, DELTA):.6g}", seed, private, root, out)
        how = "moved" if what == "moved" else "half"
        images, _ = people.drawn(f"taught:{epsilon}:{how}", seed, private, public, out / "laws")
    np.savez(kept, images=images.images.numpy(), labels=images.labels.numpy())
    return images


def looked_at(images: Images, private: Images, others: Images, public: Images, out: Path) -> dict[str, float]:
    """Return how a set looks beside photos of others: faces found, KID, recall, nearest images, who tells it apart."""
    shown, cache = people.mixed_up(images, people.DETECTED).images, Cache(out / "cache")
    network = fit_feature_classifier(private, cache=cache)
    found = {**people.found_faces(shown), **people.found_by_mtcnn(shown), "spread": people.spread(images.images)}
    found |= people.nearest(images, private=private, others=others, portraits=public)
    found |= people.fidelity(images, others, network, cache)
    return found | {
        "told_apart": people.told_apart(images, private, others, 0),
        "told_apart_linear": told_linearly(images, private, others),
    }


def told_linearly(images: Images, private: Images, others: Images) -> float:
    """Return how often a linear judge of histograms, which learned from private photos, is right, in %."""
    num, half = len(others), len(images) // 2
    learned, asked = (
        torch.cat([orientations(to_float(part)).double() for side in sides for part in side.images.split(500)])
        for sides in (
            (images.select(torch.arange(half)), people.mixed_up(private, half)),
            (images.select(torch.arange(half, half + num)), others),
        )
    )
    center, signs = learned.mean(0), torch.tensor([1.0, -1.0]).double()
    products = (learned - center).T @ (learned - center) / len(learned)
    slope = (learned - center).T @ signs.repeat_interleave(half) / len(learned)
    judge = torch.linalg.solve(products + RIDGE * products.diagonal().mean() * torch.eye(len(products)), slope)
    right = ((asked - center) @ judge).sign() == signs.repeat_interleave(num)
    return round(100 * float(right.float().mean()), 2)


def add_fidelity(
    row: str, number: int, private: Images, others: Images, public: Images, asked: argparse.Namespace
) -> None:
    """Write a line of a set, unless it is there."""
    cell, file = {"row": row, "set": number}, asked.out / "fidelity.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    if any(cell.items() <= other.items() for other in done):
        return
    images = images_of(row, number, private, asked.portraits, asked.out)
    line = json.dumps(cell | looked_at(images, private, others, public, asked.out))
    with file.open("a") as lines:
        lines.write(line + "\n")
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--portraits", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=["even", "traits:10", "law:10", "traits:1", "law:1", "traits:0.2"])
    parser.add_argument("--sets", nargs="+", type=int, default=[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="of judges")
    parser.add_argument("--fidelity", action="store_true", help="how the sets look, too")
    parser.add_argument("--tinted", action="store_true", help="grey photos in RGB get the colors of skin")
    asked = parser.parse_args()
    (asked.out / "laws").mkdir(parents=True, exist_ok=True)
    photos = people.faces(asked.data_root)
    photos = people.tinted(photos) if asked.tinted else photos
    private = people.of_group(photos, *sorted(set(range(people.GROUPS)) - {people.CHOOSE, people.JUDGE}))
    chosen = {"choose": people.CHOOSE, "judge": people.JUDGE}
    groups = {name: people.of_group(photos, group) for name, group in chosen.items()}
    pixels, labels = (torch.cat([getattr(part, name) for part in groups.values()]) for name in ("images", "labels"))
    both = Images(pixels, labels, people.CLASSES)
    files = {name: asked.out / ("cells.jsonl" if name == "choose" else "sealed.jsonl") for name in groups}
    print(
        f"{len(private):,} private; " + ", ".join(f"{len(part):,} {name}" for name, part in groups.items()), flush=True
    )
    public = alone(asked.portraits, private)
    for number in asked.sets:
        for row in asked.rows:
            if asked.fidelity:
                add_fidelity(row, number, private, groups["choose"], public, asked)
            for seed in asked.seeds:
                cell = {"row": row, "set": number, "seed": seed}
                file = files["choose"]
                done = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
                if any(cell.items() <= other.items() for other in done):
                    continue
                started, images = time.process_time(), images_of(row, number, private, asked.portraits, asked.out)
                shown, judges = (people.in_grey(part) if asked.tinted else part for part in (images, both))
                drawn, right = time.process_time(), people.told(shown.select(torch.arange(people.NUM)), judges, seed)
                scores = right.split([len(part) for part in groups.values()])
                took = {"drawn_s": round(drawn - started), "judged_s": round(time.process_time() - drawn)}
                for name, score in zip(groups, scores, strict=True):
                    with files[name].open("a") as lines:
                        lines.write(
                            json.dumps(cell | {"cnn": round(100 * float(score.float().mean()), 2)} | took) + "\n"
                        )
                print(json.dumps(cell | {"cnn": round(100 * float(scores[0].float().mean()), 2)} | took), flush=True)


if __name__ == "__main__":
    main()
