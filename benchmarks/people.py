"""Portraits of people who do not exist, moved onto a released law of real faces: what they teach, and how they look.

python benchmarks/people.py --data-root FACES --portraits NPZ --out CELLS [--group judge] [--rows ROW ...] [--seeds 0 1]

FACES is a folder that `idpgan prepare --align eyes` made, with the columns person and expression; NPZ holds portraits
of the same size, labels 0 (neutral) and 1 (smiling). An eighth of the people chooses settings, another eighth is looked
at once (--group judge), the others are the private ones. A row is LAW:EPSILON:DRAWN, such as plain:1:moved, or
plain:1:0.8 with that share drawn by the law; "real", "people" (no private image read) have no law.
CELLS/cells.jsonl has a line for each cell; what is there is kept.

With --fidelity faces are searched by the cascades that align, and by MTCNN (Zhang et al. 2016), another detector, where
`facenet_pytorch` (its wheel has the weights), `requests` and `tqdm` can be imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data import intake, sources
from idpgan.data.config import DataConfig
from idpgan.data.eyes import face_finder
from idpgan.data.face_drawing import LUMA
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import FeatureClassifier, fit_feature_classifier
from idpgan.metrics.fidelity import measure_fidelity
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.synthesis import gaussian
from idpgan.trainer import train_on
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

CLASSES = ("neutral", "happiness")
NUM, DETECTED = 6000, 300  # generated images that a judge learns from, and those that are searched for faces
GROUPS, CHOOSE, JUDGE = 8, 0, 1
MOST_MOVED = 3000
LATENT = {1: 160, 3: 240}  # numbers of the law by channels
EYES = np.array([[0.29, 0.38], [0.71, 0.38]])  # where `prepare --align eyes` puts them
LAWS: dict[str, dict[str, Any]] = {  # name -> [model], [method], [privacy] beside what all have
    "plain": {},
    "registered": {"model": {"drawing": "faces"}},
    "taught": {"model": {"drawing": "faces"}, "method": {"teacher_share": 0.5, "candidates": 4}},
    "person": {"privacy": {"unit": "person", "most_per_person": 10}},
}
DRAWN = {"law": 1.0, "moved": 0.0, "half": 0.5}  # the share that is drawn by the law itself


def faces(root: Path) -> Images:
    """Read all photos of one of the classes, with their people."""
    rows = (root / "metadata.csv").read_text().count("\n") - 1
    people = len({line.rsplit(",", 1)[1] for line in (root / "metadata.csv").read_text().splitlines()[1:]})
    declared: dict[str, Any] = {"name": "folder", "root": root, "num_images": rows, "num_people": people}
    size = Image.open(next(root.glob("*/*.png")))
    declared |= {"image_size": size.size[0], "channels": 1 if size.mode == "L" else 3}
    declared |= {"label": ["expression"], "classes": CLASSES}
    return sources.needed(DataConfig.model_validate(declared)).load(lambda *_: None).images.existing()


def tinted(images: Images) -> Images:
    """Return photos in grey, held as RGB, with the color of a skin in the middle, of each person another.

    The photos at hand have no colors; these stand in for them. Luma stays, and nothing depends on the expression.
    """
    rng = torch.Generator().manual_seed(0)
    skins = torch.tensor([1.30, 1.0, 0.81]) + torch.tensor([0.08, 0.0, 0.05]) * torch.randn(1 << 16, 3, generator=rng)
    grounds = 1 + 0.1 * torch.randn(1 << 16, 3, generator=rng)
    who, place = images.identities % (1 << 16), torch.linspace(-1, 1, images.images.shape[-1])
    face = torch.sigmoid(12 * (1 - (place[None, :] / 0.85).square() - ((place[:, None] - 0.1) / 1.15).square()))
    hues = torch.lerp(*(table[who][:, :, None, None] for table in (grounds, skins)), face)
    hues = hues / (hues * torch.tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
    pixels = (images.images * hues).round().clamp(0, 255).to(torch.uint8)
    return dataclasses.replace(images, images=pixels)


def in_grey(images: Images) -> Images:
    """Return images without colors: a network would read a smile from red lips, which tinted photos do not have."""
    luma = (images.images * torch.tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
    return dataclasses.replace(images, images=luma.round().to(torch.uint8))


def of_group(images: Images, *groups: int) -> Images:
    """Return the photos of the people of some of the eight groups, which are dealt by a hash of their numbers."""
    found = (images.identities * 2_654_435_761 >> 16) % GROUPS
    return images.select(torch.isin(found, torch.tensor(groups)))


def generator_of(law: str, epsilon: float, seed: int, private: Images, public: Images, out: Path) -> Any:
    """Release a law once, and return the method that did, with what it released."""
    parts = LAWS[law]
    table = {
        "data": {"name": "folder", "root": ".", "num_images": len(private), "image_size": private.image_shape[1],
                 "channels": private.image_shape[0], "classes": [*CLASSES], "label": ["expression"],
                 "public_root": "public", "public_disjoint": True},
        "model": {"generator": "gaussian", "latent_dim": LATENT[private.image_shape[0]], "drawing": "few-photos",
                  "moved": moved_of(public), **parts.get("model", {})},
        "method": {"name": "gaussian", "symmetric": True, **parts.get("method", {})},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, **parts.get("privacy", {})},
        "training": {"seed": seed},
    }  # fmt: skip
    if "unit" in table["privacy"]:
        people = len(private.identities.unique())
        table["data"] |= {"num_people": people, "split_by": "identity"}
    nobody = private.select(torch.arange(0))
    private = private if "unit" in table["privacy"] else dataclasses.replace(private, identities=None)
    split = Split(public, private, nobody, nobody)
    config, kept = build_config(table, "the row"), out / f"{law}-{epsilon:g}-{seed}.pt"
    if kept.is_file():
        method = gaussian.Method(plan_run(config, split.shape), split, ledger=None, device=torch.device("cpu"))
        method._take_released(torch.load(kept, weights_only=True))
        return method
    method = train_on(config, split)
    torch.save(method._released, kept)
    return method


def moved_of(public: Images) -> int:
    """Return how many portraits of each class are moved."""
    return min(MOST_MOVED, int(public.labels.bincount(minlength=2).min()))


def judge(images: Images, photos: Images, seed: int, epochs: int = 6) -> float:
    """Return the share of photos that a small CNN gets right, in %, after it learned from images."""
    return round(100 * float(told(images, photos, seed, epochs).float().mean()), 2)


def told(images: Images, photos: Images, seed: int, epochs: int = 6) -> Tensor:
    """Return which photos a small CNN gets right after it learned from images, (N,) bool."""
    torch.manual_seed(seed)

    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.MaxPool2d(2), nn.ReLU())

    channels = images.image_shape[0]
    network = nn.Sequential(
        block(channels, 32), block(32, 64), block(64, 128), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(128 * 9, len(CLASSES)),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    optimizer, steps = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-3), len(images) // 64
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * steps + 1)
    pixels, labels = to_float(images.images), images.labels
    for _ in range(epochs):
        for part in torch.randperm(len(images)).split(64)[:steps]:
            mirrored = torch.rand(len(part)) < 0.5
            shown = torch.where(mirrored[:, None, None, None], pixels[part].flip(3), pixels[part])
            shown = shown.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            functional.cross_entropy(network(shown), labels[part]).backward()
            optimizer.step()
            rates.step()
    network.eval()
    with torch.no_grad():
        return torch.cat([network(part).argmax(1) for part in to_float(photos.images).split(500)]) == photos.labels


def found_faces(images: Tensor) -> dict[str, float]:
    """Return how often a face, and both its eyes, are found in uint8 images (N, C, H, W), in %."""
    faces = eyes = 0
    with face_finder() as find:
        for image in images[:DETECTED]:
            grey = Image.fromarray(image.float().mean(0).round().byte().numpy())
            found = find(np.asarray(grey.resize((192, 192), Image.Resampling.BICUBIC)), 1)
            faces, eyes = faces + bool(found), eyes + bool(found and found[0].seen)
    num = min(len(images), DETECTED)
    return {"faces": round(100 * faces / num, 1), "eyes": round(100 * eyes / num, 1)}


def found_by_mtcnn(images: Tensor) -> dict[str, float]:
    """Return how often MTCNN finds a face, and one with its eyes within 6 % of the width of their places, in %."""
    if importlib.util.find_spec("facenet_pytorch") is None:
        return {}
    from facenet_pytorch import MTCNN

    detector, faces, eyes = MTCNN(select_largest=True, post_process=False, min_face_size=60), 0, 0
    for image in images[:DETECTED]:
        face = Image.fromarray(image.float().mean(0).round().byte().numpy()).resize(
            (192, 192), Image.Resampling.BICUBIC
        )
        framed = np.pad(np.asarray(face), 48, mode="edge")[..., None].repeat(3, 2)
        boxes, sure, points = detector.detect(framed, landmarks=True)
        if boxes is not None and sure[0] > 0.9:
            faces += 1
            eyes += bool(np.abs((points[0][:2] - 48) / 192 - EYES).max() < 0.06)
    num = min(len(images), DETECTED)
    return {"mtcnn_faces": round(100 * faces / num, 1), "mtcnn_eyes": round(100 * eyes / num, 1)}


def told_apart(images: Images, private: Images, photos: Images, seed: int) -> float:
    """Return how often a CNN that learned from private photos tells generated images from photos of others, in %."""
    half, num = len(images) // 2, len(photos)

    def both(drawn: Images, real: Images) -> Images:
        labels = torch.arange(2).repeat_interleave(torch.tensor([len(drawn), len(real)]))
        return Images(torch.cat([drawn.images, real.images]), labels, CLASSES)

    learned = both(images.select(torch.arange(half)), mixed_up(private, half))
    return judge(learned, both(images.select(torch.arange(half, half + num)), photos), seed, epochs=3)


def nearest(images: Images, **sets: Images) -> dict[str, float]:
    """Return the mean distance to the nearest image of each set, per pixel on [0, 1], and how often which is nearest.

    As many are taken of each set, by a fixed chance. An image that is drawn with no regard to any is as often nearest
    to each that has the same law.
    """
    num, rows = min(len(part) for part in sets.values()), flat(images.images[:2000])
    found = torch.stack([torch.cdist(rows, flat(mixed_up(part, num).images)).amin(1) for part in sets.values()])
    distances, shares = found.mean(1) / rows.shape[1] ** 0.5, found.argmin(0).bincount(minlength=len(sets)) / len(rows)
    return {
        f"{what}_{name}": round(float(value), 4)
        for what, values in (("distance", distances), ("nearest", shares))
        for name, value in zip(sets, values, strict=True)
    }


def flat(images: Tensor) -> Tensor:
    """Return uint8 images as rows of numbers in [0, 1]."""
    return images.flatten(1).float() / 255


def mixed_up(images: Images, num: int) -> Images:
    """Return some of the images, by a fixed chance."""
    return images.select(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:num])


def drawn(row: str, seed: int, private: Images, public: Images, out: Path) -> tuple[Images, Tensor]:
    """Return images to train on, and images to look at."""
    if row in ("real", "people"):
        images = mixed_up({"real": private, "people": public}[row], NUM)
        return images, images.images
    law, epsilon, how = row.split(":")
    method = generator_of(law, float(epsilon), seed, private, public, out)
    share = DRAWN[how] if how in DRAWN else float(how)
    generator: Generator = method.generator
    drawing = generator.config.drawn.model_copy(update={"plain_share": share})
    model = {"moved": moved_of(public) if share < 1 else 0, "drawing": drawing}
    generator.config = generator.config.model_copy(update=model)
    generator = method.artifact(method.plan.config.release).generator
    images = generator.sample_images(NUM, seed=seed)
    looked = generator.sample(DETECTED, seed=seed, purpose=Purpose.LOOKING)
    return images, (255 * (looked + 1) / 2).round().byte()


def spread(images: Tensor) -> float:
    """Return the mean distance between two of the images, per pixel on [0, 1]."""
    rows = flat(images[:1000])
    return round(float(torch.pdist(rows).mean() / rows.shape[1] ** 0.5), 4)


def likeness(images: Images, photos: Images) -> dict[str, float]:
    """Return how alike smiles and spectra of images and photos are.

    "smile" is the cosine between what a smile changes in the mean image below the eyes; "spectrum" is the mean distance
    between the decimal logarithms of the power of grey images by frequency.
    """
    smiles, powers = [], []
    for part in (images, photos):
        grey = part.images.float().mean(1)
        smile = grey[part.labels == 1].mean(0) - grey[part.labels == 0].mean(0)
        smiles.append(smile[round(EYES[0, 1] * len(smile)) :].flatten())
        window = torch.hann_window(len(smile), periodic=False)
        centered = (grey - grey.mean((1, 2), keepdim=True)) * window * window[:, None]
        power = torch.fft.fft2(centered).abs().square().mean(0)
        along = torch.fft.fftfreq(len(smile)) * len(smile)
        radius = (along.square() + along[:, None].square()).sqrt().round().long().flatten()
        sums = torch.zeros(int(radius.max()) + 1).index_add_(0, radius, power.flatten())
        powers.append((sums / radius.bincount())[1 : len(smile) // 2].log10())
    return {
        "smile": round(float(functional.cosine_similarity(*smiles, dim=0)), 3),
        "spectrum": round(float((powers[0] - powers[1]).abs().mean()), 3),
    }


def fidelity(images: Images, photos: Images, network: FeatureClassifier, cache: Cache) -> dict[str, float]:
    """Return KID, precision and recall by a network that learned from the private photos."""
    found = measure_fidelity(mixed_up(images, 2000), photos, network, cache=cache)
    return {name: round(float(getattr(found, name)), 4) for name in ("fid", "kid", "precision", "recall")}


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add what `read_sources` reads."""
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--portraits", type=Path, required=True)
    parser.add_argument("--group", choices=("choose", "judge"), default="choose")
    parser.add_argument("--tinted", action="store_true", help="grey photos in RGB get the colors of skin")


def read_sources(asked: argparse.Namespace) -> tuple[Images, Images, Images]:
    """Return the private photos, those that judge, and the portraits."""
    photos = faces(asked.data_root)
    photos = tinted(photos) if asked.tinted else photos
    private = of_group(photos, *sorted(set(range(GROUPS)) - {CHOOSE, JUDGE}))
    public = intake.gathered(asked.portraits, classes=None, what="portraits")
    judges = of_group(photos, CHOOSE if asked.group == "choose" else JUDGE)
    return private, judges, Images(public.images, public.labels, CLASSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sources(parser)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=["real", "people", "plain:1:law", "plain:1:moved", "plain:1:half"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--tag", default="", help="names a setting that is tried")
    parser.add_argument(
        "--quick", action="store_true", help="half of the images, two thirds of the epochs: to choose by"
    )
    parser.add_argument(
        "--fidelity", action="store_true", help="KID, recall, faces found, told from real, nearest images too"
    )
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    cells = asked.out / "cells.jsonl"
    private, judges, public = read_sources(asked)
    print(f"{len(private):,} private, {len(judges):,} judges, {len(public):,} portraits", flush=True)
    done = [json.loads(line) for line in cells.read_text().splitlines()] if cells.is_file() else []
    network, cache = None, Cache(asked.out / "cache")
    for row in asked.rows:
        for seed in asked.seeds:
            key = {"row": row, "seed": seed, "group": asked.group, "tag": asked.tag, "quick": asked.quick}
            if any(key.items() <= cell.items() for cell in done):
                continue
            images, looked = drawn(row, seed, private, public, asked.out)
            shown, asked_about = (in_grey(part) if asked.tinted else part for part in (images, judges))
            few = shown.select(torch.arange(NUM // 2))
            cnn = judge(few, asked_about, seed, epochs=4) if asked.quick else judge(shown, asked_about, seed)
            cell = key | {"cnn": cnn, "spread": spread(images.images)}
            if asked.fidelity:
                cell |= {**found_faces(looked), **found_by_mtcnn(looked), **likeness(images, judges)}
                others = {"private": private, "others": judges, "portraits": public}
                others.pop({"real": "private", "people": "portraits"}.get(row, ""), None)
                cell |= nearest(images, **others)
                cell["told_apart"] = told_apart(images, private, judges, seed)
                network = network or fit_feature_classifier(private, cache=cache)
                cell |= fidelity(images, judges, network, cache)
            with cells.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            print(json.dumps(cell), flush=True)


if __name__ == "__main__":
    main()
