"""What the normal laws of `gaussian` know of classes, from exact sums and noise of floats: settings are chosen by it.

Linear discriminants of the law as images lie, and with --cnn N the small ResNet of DPImageBench on N drawn images, both
asked about training images that are kept for choosing. Nothing is released here: no ledger is charged, and no figure is
private.

python benchmarks/laws.py --images FOLDER [--choose 2500] [--epsilons 1 10] [--share 1] [--cnn 10000]
    [model.key=value ... method.template_share=0.25]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.commands.init import InitOptions, config_for
from idpgan.config import apply_overrides
from idpgan.data.images import Images, to_float
from idpgan.data.load import load
from idpgan.metrics.dpimagebench import SMALL
from idpgan.models.classifier import build_residual
from idpgan.models.config import ModelConfig
from idpgan.models.gaussian import GaussianGenerator
from idpgan.privacy import Event, Noise, Relation, Unit, calibrate
from idpgan.privacy.sums import CellSums
from idpgan.private.shares import noise_on
from idpgan.synthesis.moments import MomentMap, Normals, estimate_normals, private_moments
from idpgan.synthesis.template import ROUNDS, TemplateMap, release_template
from idpgan.training.config import build_config
from idpgan.training.fit import fit_classifier

EPOCHS, DELTA = 8, 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=[], help="of [model]: model.drawing=photos model.latent_dim=120")
    parser.add_argument("--images", type=Path, required=True, help="a folder of train/CLASS/*.png")
    parser.add_argument("--choose", type=int, default=2500, help="training images that judge")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--share", type=float, default=1.0, help="of the budget, for the law")
    parser.add_argument("--cnn", type=int, default=0, help="drawn images of a network; 0: none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = config_for(str(options.images), InitOptions()).table
    config = build_config(apply_overrides(table, options.settings), "the laws of a benchmark")
    images = load(config.data).private
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(7))
    judge, private = images.select(order[: options.choose]), images.select(order[options.choose :])
    for epsilon in options.epsilons:
        found = asked(config, private, judge, epsilon, options)
        print(config.model.latent_dim, config.model.drawing, found, flush=True)


def asked(config: Any, private: Images, judge: Images, epsilon: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is found at one epsilon."""
    model, drawn, share = config.model, config.model.drawn, options.share
    moments = MomentMap(private.images.shape[1:], model.latent_dim, shape=drawn.shape, light=drawn.light)
    if drawn.shape:
        moments.set_template(template(private, moments, config.method, epsilon))
        share -= config.method.template_share
    normals = estimated(exact(private, moments), moments, epsilon, share)
    found: dict[str, Any] = {"epsilon": epsilon}
    if not drawn.shape:
        found["discriminants"] = discriminants(normals, moments, judge)
    if options.cnn:
        found["cnn"] = network(normals, model, judge, options.cnn)
    return found


def exact(private: Images, moments: MomentMap) -> Tensor:
    """Return the sums of vectors of each class, without noise."""
    sums = torch.zeros(len(private.classes), moments.dimensions, dtype=torch.float64)
    for vectors, rows, _ in private_moments(private, moments, conditional=True, cap=None):
        sums.index_add_(0, rows, vectors)
    return sums


def estimated(sums: Tensor, moments: MomentMap, epsilon: float, share: float) -> Normals:
    """Return the laws of sums with the noise of a share of the budget, of seed 0."""
    std = multiplier_at(epsilon) / math.sqrt(share)
    noise = torch.randn(sums.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return estimate_normals(sums + std * noise, moments, std)


def multiplier_at(epsilon: float) -> float:
    """Return the noise multiplier of the whole budget."""
    return calibrate(lambda noise: [Event("gaussian", Unit.IMAGE, Relation.ZERO_OUT, noise)], epsilon, DELTA)


def template(private: Images, moments: MomentMap, method: Any, epsilon: float) -> Tensor:
    """Return the templates that a config asks for, with the noise of its share of the budget, of seed 0."""
    cells = len(private.classes) if method.templates == "class" else 1
    noise = noise_on(method.template_share, multiplier_at(epsilon), ROUNDS)
    size = TemplateMap(moments).dimensions
    sums = CellSums(cells, size, "gaussian", noise, Unit.IMAGE, Relation.ZERO_OUT)
    return release_template(sums, moments, private, None, Noise.fixed(0))


def discriminants(normals: Normals, moments: MomentMap, judge: Images) -> float:
    """Return how many images linear discriminants with the mean covariance find, in percent."""
    within = (normals.factor @ normals.factor.mT).mean(0)
    within = within + 0.01 * within.diagonal().diag()
    directions = torch.linalg.solve(within, normals.mean.T)
    scores = moments.coefficients(to_float(judge.images)) @ directions - (normals.mean.T * directions).sum(0) / 2
    return percent(scores.argmax(1), judge)


def network(normals: Normals, config: ModelConfig, judge: Images, num: int) -> float:
    """Return how many images the small ResNet finds, in percent."""
    shape, classes = judge.images.shape[1:], len(judge.classes)
    generator = GaussianGenerator(config, shape, classes)
    generator.set_moments(normals.mean, normals.factor)
    drawn = generator.sample_images(num, seed=1)
    model = build_residual(SMALL.networks["resnet"], tuple(shape), classes, seed=0)
    fit = SMALL.fit_config(0).model_copy(update={"epochs": EPOCHS, "ema_decay": 0.99})
    found = fit_classifier(model, drawn.images, drawn.labels, config=fit).model
    with torch.no_grad():
        return percent(torch.cat([found(to_float(part)).argmax(1) for part in judge.images.split(500)]), judge)


def percent(told: Tensor, judge: Images) -> float:
    return round(100 * float((told == judge.labels).double().mean()), 1)


if __name__ == "__main__":
    main()
