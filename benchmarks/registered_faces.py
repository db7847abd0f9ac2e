"""Photos of faces with their eyes in place: how well generated ones teach smiles, and how near they are to real ones.

Every cell trains one run, draws 6,000 images, and prints one JSON line, kept in --out (`cells`), so that the table can
be restarted. The folder is one of `idpgan prepare`, 48 x 48 grey, with a metadata.csv (file_name, expression, person).
``--group choose`` judges on a fifth of the people of the private part, whose photos are then left out of training: for
choosing settings. ``--group judge`` judges on the people of the test part, at whom no choice has looked.

python benchmarks/registered_faces.py --data-root FOLDER --out CELLS [--group choose] [--epsilon 1 10] [--seeds 0]
    [--rows gaussian registered ...]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from cells import PACKAGE, code_digest, read_or_measure
from torch import Tensor

from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import Split, load
from idpgan.metrics.cache import Cache, default_folder
from idpgan.metrics.features import extract_features, fit_feature_classifier, recipe
from idpgan.metrics.fidelity import kernel_distance, nearest_scores
from idpgan.models.classifier import build_classifier
from idpgan.privacy import Noise
from idpgan.synthesis.gaussian import GaussianMoments
from idpgan.training.config import build_config
from idpgan.training.fit import fit_classifier, predict

CLASSES, NUM = ("neutral", "happiness"), 6000
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "gaussian": {"model": {"latent_dim": 160}},
    "gaussian with a teacher": {"model": {"latent_dim": 160}, "method": {"teacher_share": 0.5}},
    "registered": {"model": {"latent_dim": 160, "shape": 12}},
    "registered with a teacher": {"model": {"latent_dim": 160, "shape": 12}, "method": {"teacher_share": 0.5}},
    "symmetric": {"model": {"latent_dim": 160, "shape": 12}, "method": {"symmetric": True}},
    "symmetric, 80": {"model": {"latent_dim": 80, "shape": 12}, "method": {"symmetric": True}},
    "symmetric, 300": {"model": {"latent_dim": 300, "shape": 12}, "method": {"symmetric": True}},
} | {
    "symmetric with a teacher" + (f", {size}" if size != 160 else ""): {
        "model": {"latent_dim": size, "shape": 12},
        "method": {"symmetric": True, "teacher_share": 0.5},
    }
    for size in (160, 40, 80, 120, 200)
}
REAL = "real photos"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--group", choices=("choose", "judge"), default="choose")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", nargs="+", default=[REAL, *ROWS], choices=[REAL, *ROWS])
    parser.add_argument("--unit", choices=("image", "person"), default="image")
    parser.add_argument("--cap", type=int, default=10, help="photos of a person that count, for unit person")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    split, code = parts(arguments.data_root, arguments.group), code_digest(sorted((PACKAGE / "synthesis").glob("*.py")))
    for seed in arguments.seeds:
        for row in arguments.rows:
            for epsilon in arguments.epsilon if row != REAL else [0.0]:
                cell = {"group": arguments.group, "row": row, "epsilon": epsilon, "seed": seed, "unit": arguments.unit}
                cell |= ROWS.get(row, {}) | ({"cap": arguments.cap} if arguments.unit == "person" else {})
                read_or_measure(cell, lambda _, cell=cell: measure(cell, split), code, arguments.out)


def parts(root: Path, group: str) -> Split:
    """Return private photos, and those that judge as the test part."""
    split = load(data_of(root))
    if group == "judge":
        return split
    people = split.private.identities
    if people is None:
        raise SystemExit("the folder names no people.")
    everybody = people.unique()
    judges = everybody[torch.randperm(len(everybody), generator=torch.Generator().manual_seed(11))]
    chosen = torch.isin(people, judges[: round(0.2 * len(judges))])
    nobody = split.private.select(torch.arange(0))
    return Split(nobody, split.private.select(~chosen), nobody, split.private.select(chosen))


def data_of(root: Path) -> DataConfig:
    """Return the section [data] of the folder."""
    return DataConfig(
        name="folder", root=root, num_images=9990, num_people=4493, image_size=48, channels=1, label=("expression",),
        classes=CLASSES, split_by="identity", holdout_share=0.0,
    )  # fmt: skip


def measure(cell: dict[str, Any], split: Split) -> dict[str, Any]:
    """Make the images of a cell and judge them."""
    started, real = time.monotonic(), split.private.existing()
    if cell["row"] == REAL:
        made = real.select(torch.randperm(len(real), generator=torch.Generator().manual_seed(cell["seed"]))[:NUM])
        made = Images(made.images, made.labels, CLASSES)
    else:
        made = generated(cell, split)
    ready = time.monotonic() - started
    found = {"seconds": round(ready, 1), "accuracy": accuracy(made, split.test.existing(), cell["seed"])}
    if cell["group"] == "judge":
        found["told apart"] = told_apart(made, real, cell["seed"])
    network = fit_feature_classifier(Images(real.images, real.labels, CLASSES), cache=Cache(default_folder()))
    judged = split.test.existing()
    features, of_real = (extract_features(network, Images(part.images)).double() for part in (made, judged))
    mean, std = of_real.mean(0), of_real.std(0).clamp(min=1e-6)
    near = nearest_scores((features - mean) / std, (of_real - mean) / std)
    found["kid"] = kernel_distance((features - mean) / std, (of_real - mean) / std)[0]
    return found | {"precision": near.precision, "recall": near.recall}


def generated(cell: dict[str, Any], split: Split) -> Images:
    """Train the run of a cell, with noise of its seed, and draw from it."""
    table = {
        "data": data_of(Path("/")).model_dump(mode="json", exclude_none=True),
        "model": {"generator": "gaussian"} | cell.get("model", {}),
        "method": {"name": "gaussian"} | cell.get("method", {}),
        "privacy": {
            "epsilon": cell["epsilon"],
            "delta": 1e-5,
            "unit": cell["unit"],
            "most_per_person": cell.get("cap", 10),
        },
    }
    config = build_config(table, "a cell")
    method = GaussianMoments.of(config, split, device=torch.device("cpu"), noise=Noise.fixed(cell["seed"]))
    method.prepare()
    generator = method.artifact(config.release).generator
    return Images(to_uint8(generator.sample(NUM, seed=cell["seed"])), torch.arange(NUM) % 2, CLASSES)


def accuracy(images: Images, judged: Images, seed: int) -> float:
    """Return the share of photos that a CNN finds the class of, trained on images and their mirror images."""
    return _fitted(images.images, images.labels, judged.images, judged.labels, seed)


def told_apart(made: Images, real: Images, seed: int) -> float:
    """Return how often a CNN tells generated images from real ones that it has not seen; 0.5 = not at all."""
    num = min(len(made), len(real))
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed))
    train, test = order[: num // 2], order[num // 2 :]

    def both(index: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([made.images[index], real.images[index]]), torch.arange(2).repeat_interleave(len(index))

    return _fitted(*both(train), *both(test), seed)


def _fitted(images: Tensor, labels: Tensor | None, judged: Tensor, truth: Tensor | None, seed: int) -> float:
    if labels is None or truth is None:
        raise SystemExit("the photos have no labels.")
    model = build_classifier("cnn", (1, 48, 48), 2, seed=seed)
    fit_classifier(model, images, labels, config=recipe("cnn", len(images), seed), augment=mirrored)
    return float((predict(model, judged).argmax(1) == truth).double().mean())


def mirrored(batch: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror every image of a batch with probability 1/2."""
    flip = torch.rand(len(batch), generator=rng) < 0.5
    return torch.where(flip.view(-1, 1, 1, 1), batch.flip(-1), batch)


if __name__ == "__main__":
    main()
