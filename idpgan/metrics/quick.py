"""A quick evaluation: fewer images and one fit, with the interval that the real images which judge leave open."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.metrics.accuracy import CONFIDENCE, share_interval
from idpgan.metrics.evaluation import Evaluation
from idpgan.metrics.utility import UtilityResult

IMAGES = 6_000
CLASSIFIERS = ("cnn",)


def fewer(images: Images) -> Images:
    """Return `IMAGES` of a set, drawn by a fixed seed, in their order; all of a smaller one."""
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:IMAGES]
    return images if len(images) <= IMAGES else images.select(chosen.sort().values)


def fewer_to_train_on(split: Split) -> Split:
    """Return a split with fewer real images to train on; those that judge are all there."""
    split = split.existing()
    return dataclasses.replace(split, public=fewer(split.public), private=fewer(split.private))


def noted(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation that says last that it is quick, and how sure it is."""
    found = evaluation.results.get("utility")
    note = f"quick: {IMAGES:,} images of a kind at most; --full takes all, three classifiers and three fits of each"
    if isinstance(found, UtilityResult):
        right = round(found.chosen.accuracies[0] * found.num_test)
        low, high = share_interval(np.arange(found.num_test) < right, np.arange(found.num_test))
        note += f": {found.chosen.name} {right / found.num_test:.1%}, {CONFIDENCE:.0%} interval {low:.1%} to {high:.1%}"
    return dataclasses.replace(evaluation, notes=(*evaluation.notes, note))
