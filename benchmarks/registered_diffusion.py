"""Diffusion that starts at a registered release of faces: what its steps add, and all of the budget in one release.

Every cell trains one run on a folder of `registered_faces.py` and prints one JSON line, kept in --out (`cells`):

- the release of all of the budget by `gaussian`, with the same settings; beside it the photos themselves, brought into
  place, cut to the released coefficients and bent back: what a perfect law of these coefficients would have;
- a curve over the steps of `diffusion`, from step 0, the release that it starts from: KID and FID by the features of
  the set's own classifier, the denoising loss of photos that judge, and, of the steps since the point before, the mean
  length of the mean clipped gradient. Beside it the length of the noise of one step and of the mean of all, in clip
  norms;
- with --noiseless the same curve without noise on the steps: how far they could lead.

KID and FID are for the curator, and so is the choice of a step. ``--group`` is as in `registered_faces.py`.

python benchmarks/registered_diffusion.py --data-root FOLDER --out CELLS [--group choose] [--seeds 0 1 2] [--noiseless]
    [--epsilon 10] [--steps 40] [--batch-size 1024] [--every 20] [--samples 2000]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cells import PACKAGE, code_digest, read_or_measure
from registered_faces import CLASSES, data_of, parts
from torch import Tensor

from idpgan.data.images import Images, to_float, to_uint8
from idpgan.data.load import Split
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import fit_feature_classifier
from idpgan.metrics.fidelity import measure_fidelity
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.models.registration import bent_back
from idpgan.privacy import Noise
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.synthesis.diffusion.method import Diffusion
from idpgan.synthesis.gaussian import GaussianMoments
from idpgan.training.config import build_config

MODEL = {"latent_dim": 160, "shape": 12}
_JUDGED = 500  # photos whose denoising loss is taken

Judge = Callable[[Tensor], dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--group", choices=("choose", "judge"), default="choose")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--noiseless", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    split = parts(arguments.data_root, arguments.group)
    judge = judge_of(split, Cache(arguments.out / "cache"))
    files = [*(PACKAGE / "synthesis").glob("*.py"), *(PACKAGE / "synthesis" / "diffusion").glob("*.py")]
    code = code_digest(sorted([*files, PACKAGE / "models" / "diffusion.py"]))
    shared = {name: getattr(arguments, name) for name in ("group", "epsilon", "samples")}
    steps = {name: getattr(arguments, name) for name in ("steps", "batch_size", "every", "noiseless")}
    for seed in arguments.seeds:
        whole = {"row": "gaussian", **shared, "seed": seed}
        read_or_measure(whole, lambda _, cell=whole: released(cell, split, judge), code, arguments.out)
        cell = {"row": "diffusion", **shared, **steps, "seed": seed}
        read_or_measure(cell, lambda _, cell=cell: curve(cell, split, judge), code, arguments.out)


def judge_of(split: Split, cache: Cache) -> Judge:
    """Return a function that scores images against the photos that judge, by the set's own classifier."""
    real, photos = split.private.existing(), split.test.existing()
    network = fit_feature_classifier(Images(real.images, real.labels, CLASSES), cache=cache)

    def judge(images: Tensor) -> dict[str, float]:
        found = measure_fidelity(Images(to_uint8(images)), photos, network, cache=cache)
        return {"kid": round(found.kid, 4), "fid": round(found.fid, 3)}

    return judge


def config_of(cell: dict[str, Any], **sections: dict[str, Any]) -> Any:
    """Return the config of a cell."""
    table = {
        "data": data_of(Path("/")).model_dump(mode="json", exclude_none=True),
        "privacy": {"epsilon": cell["epsilon"], "delta": 1e-5},
        **sections,
    }
    return build_config(table, "a cell")


def drawn(cell: dict[str, Any], generator: Generator) -> Tensor:
    """Return images of a generator, the same noise for all."""
    return generator.sample(cell["samples"], seed=0, purpose=Purpose.TRAINING)


def released(cell: dict[str, Any], split: Split, judge: Judge) -> dict[str, Any]:
    """Score a registered release on all of the budget."""
    method = {"name": "gaussian", "symmetric": True}
    config = config_of(cell, model={"generator": "gaussian", **MODEL}, method=method)
    run = GaussianMoments.of(config, split, device=torch.device("cpu"), noise=Noise.fixed(cell["seed"]))
    run.prepare()
    photos = split.test.existing()
    coefficients = run.moments.coefficients(to_float(photos.images), photos.labels).float()
    texture, shapes = coefficients.split([coefficients.shape[1] - 2 * MODEL["shape"], 2 * MODEL["shape"]], dim=1)
    again = bent_back((texture @ run.moments.basis.T.float()).view(-1, *split.image_shape), shapes).clamp(-1, 1)
    return {**judge(drawn(cell, run.generator)), "photos of these coefficients": judge(again)}


def curve(cell: dict[str, Any], split: Split, judge: Judge) -> dict[str, Any]:
    """Train a diffusion and score it from step 0 on."""
    config = config_of(
        cell,
        model={"generator": "diffusion", "width": 32, **MODEL},  # as init proposes
        method={"name": "diffusion", "symmetric": True, "draws": 1},
        training={"steps": cell["steps"], "batch_size": cell["batch_size"]},
    )
    run = Diffusion.of(config, split, device=torch.device("cpu"), noise=Noise.fixed(cell["seed"]))
    run.prepare()
    plan, weights = run.dpsgd, run.plan.num_weights
    noise = plan.noise_multiplier * math.sqrt(weights) / plan.divisor
    if cell["noiseless"]:
        run.dpsgd = dataclasses.replace(plan, noise_multiplier=1e-9)
    facts = {"private": len(split.private), "weights": weights, "learning_rate": round(run.plan.learning_rate, 6)}
    facts |= {"noise of a step": round(noise, 4), "noise of all": round(noise / math.sqrt(cell["steps"]), 4)}
    return facts | {"curve": list(points(cell, run, split, judge))}


def points(cell: dict[str, Any], run: Diffusion, split: Split, judge: Judge) -> Iterator[dict[str, Any]]:
    """Yield the scores before the first step, and after every so many."""
    photos = split.test.existing().select(torch.arange(_JUDGED))
    images, lengths, started = to_float(photos.images), watched(run), time.monotonic()
    for step in range(cell["steps"] + 1):
        if step:
            run.ledger.charge(run.step_event())
            run.step(step)
        if step % cell["every"] == 0:
            point = {"step": step, "seconds": round(time.monotonic() - started, 1), **judge(drawn(cell, run.generator))}
            point["loss"] = round(run.generator.denoising_loss(images, photos.labels).mean().item(), 5)
            if lengths:
                point["mean clipped gradient"] = round(sum(lengths) / len(lengths), 4)
                lengths.clear()
            print(cell["seed"], point, flush=True)
            yield point


def watched(run: Diffusion) -> list[float]:
    """Return a list to which every step adds the length of its mean clipped gradient before noise, in clip norms."""
    lengths: list[float] = []

    class Watched(DPSGDPlan):
        def noisy_gradients(self, weights: Any, sums: Any, normal: Any) -> None:
            total = torch.cat([part.flatten() for part in sums.values()]).norm().item()
            lengths.append(total / self.divisor / self.clip_norm)
            super().noisy_gradients(weights, sums, normal)

    run.dpsgd = Watched(**{field.name: getattr(run.dpsgd, field.name) for field in dataclasses.fields(run.dpsgd)})
    return lengths


if __name__ == "__main__":
    main()
