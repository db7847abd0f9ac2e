"""Public pictures that a private teacher agrees with, drawn beside a released law: post-processing of both.

A program that draws digits, or a public folder, has edges and shapes that no released law has, and draws some things
that are unlike the private images. The teacher has learned from these what each class looks like, so it chooses: of
the public pictures of a class those that it finds to be of it, likelier than not. Without labels, all public pictures
are asked of every class. The pictures stay as they are, which serves where they are of the same kind as the private
images: what is moved onto the law instead (`idpgan.synthesis.move`) loses what it knew of edges.
"""

from __future__ import annotations

import math

import torch

from idpgan.data.images import Images
from idpgan.errors import ConfigError
from idpgan.memory import check_memory
from idpgan.models.generator import Generator
from idpgan.models.moved import MovedGenerator
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.synthesis.move import pool_of
from idpgan.training.plan import RunPlan

_SURE = 0.5  # the least probability of its class that all are alike from


def agreed(law: Generator, public: Images, teacher: PrivateClassifier, *, seed: int) -> MovedGenerator:
    """Return a generator that draws public pictures beside what a law draws, `Drawing.agreed` of each class.

    Args:
        law: Of the same classes as the teacher.
        public: Of the same shape. Of a class whose pictures the teacher mostly refuses, the likeliest are taken.
        seed: Of which are taken, where more are agreed with.
    """
    num, rng = law.config.drawn.agreed, torch.Generator().manual_seed(seed)
    result = MovedGenerator(law, num).to(next(law.parameters()).device)
    for row in range(law.num_classes):
        pool = pool_of(public, row)
        pool = pool[torch.randperm(len(pool), generator=rng)]
        sure = teacher.probabilities(pool)[:, row].cpu().clamp(max=_SURE)
        result.pictures[row] = pool[sure.argsort(descending=True, stable=True)[:num]]
    return result.eval().requires_grad_(False)


def check_agreed(plan: RunPlan) -> None:
    """Refuse to choose among public pictures that are not there, or more than memory holds; no image has been read."""
    num, public, shape = plan.config.model.drawn.agreed, plan.shape.sizes.public, plan.shape.image_shape
    what = f'model.drawing = "{plan.config.model.drawing}"'
    check_memory(num * max(plan.classes, 1) * math.prod(shape), what, 'Set model.drawing = "handwriting".')
    if num > public:
        raise ConfigError(
            f"{what} chooses {num:,} public images of each class, and there are {public:,} public images. Name some as "
            'data.public_root, draw more with data.public, or set model.drawing = "handwriting".'
        )
