"""How long a run will take on this machine: a small part of it is done on random images, and its time is scaled up."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from idpgan.data.images import Images
from idpgan.data.load import DataShape, Split
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.models.generator import Generator
from idpgan.training.config import RunConfig, load_method
from idpgan.training.plan import plan_run
from idpgan.training.samples import sample_grid

SECONDS = 2.0  # that a probe of one method takes, or as long as its first step
_FEW, _TIMES = 64, 4  # random images of the smallest preparation, and how many times as many the next one has
_MOST_STEPS = 50  # that are tried


class _Stages(NamedTuple):
    """Seconds of a small run."""

    prepare: float  # features, release, teacher: what grows with the images
    step: float  # mean, the first left out: some methods do more every few steps
    show: float  # the samples of one tick
    finish: float  # what is released is made


def expected_seconds(config: RunConfig, shape: DataShape) -> float:
    """Return how long the training of a run will take, from a probe of each stage at two sizes or more.

    Nothing private is read: the probe trains on random images, and nothing of it is kept. To read the files is not
    counted.

    Raises:
        InputError: If the probe cannot be done, with the refusal of the method or of the machine.
    """
    started, total, training = time.monotonic(), shape.num_private, config.training
    few = max(_FEW, 4 * len(shape.classes), 2 * training.batch_size)
    few = more = min(few, total) if total else few
    try:
        _stages(config, shape, few, 0.0)  # the first of a process pays for imports and buffers
        low = high = _stages(config, shape, few, started + SECONDS)
        while more < total and high.prepare < SECONDS / 2:
            more = min(_TIMES * more, total)
            high = _stages(config, shape, more, 0.0)
    except RuntimeError as error:  # of torch: no memory, say
        raise InputError(f"{config.method.name} cannot be tried here ({str(error).splitlines()[0]}).") from error
    slope = max(high.prepare - low.prepare, 0.0) / max(more - few, 1)
    ticks = math.ceil(training.steps / training.tick_steps)
    return high.prepare + slope * (total - more) + low.step * training.steps + high.show * ticks + high.finish


def _stages(config: RunConfig, shape: DataShape, num: int, until: float) -> _Stages:
    """Time the stages of a run on so many random images; steps are taken until a time, and at least two."""
    private, test = _noise(shape, num), _noise(shape, num, first=num)  # nobody is on two sides
    public = _noise(shape, min(shape.sizes.public, num), first=2 * num)
    split = Split(public, private, private.select(torch.arange(0)), test)
    terms = getattr(config.privacy, "delta", None)
    privacy = config.privacy.model_copy(update={} if terms is None else {"delta": min(terms, 0.1 / num)})
    plan = plan_run(config.model_copy(update={"privacy": privacy}), split.shape)
    method = load_method(config.method.name).of(plan.config, split, device=resolve_device(config.training.device))
    prepare, steps = _seconds(method.prepare), list[float]()
    while len(steps) < min(config.training.steps, _MOST_STEPS) and (len(steps) < 2 or time.monotonic() < until):
        steps.append(_seconds(lambda: method.step(len(steps) + 1)))
    step = statistics.fmean(steps[1:] or steps or [0.0])
    generator = method.product
    draws = isinstance(generator, Generator)
    show = _seconds(lambda: sample_grid(generator, num=config.release.samples)) if draws else 0.0
    return _Stages(prepare, step, show, _seconds(lambda: method.artifact(config.release)))


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _noise(shape: DataShape, num: int, first: int = 0) -> Images:
    """Return random images of a shape, each of one person, from number ``first`` on."""
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (num, *shape.image_shape), generator=rng, dtype=torch.uint8)
    labels = torch.arange(num) % len(shape.classes) if shape.classes else None
    images = Images(pixels, labels, shape.classes)
    return dataclasses.replace(images, identities=first + torch.arange(num)) if shape.has_people else images
