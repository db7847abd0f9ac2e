"""How long a run will take on this machine: a small part of it is done on random images, and its time is scaled up."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from idpgan.data.images import Images
from idpgan.data.load import DataShape, Split
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.training.config import RunConfig, load_method
from idpgan.training.plan import plan_run

SECONDS = 2.0  # that a probe of one method takes, or as long as its first step
_FEW, _MORE = 32, 160  # random images, to tell what grows with N from what does not
_BALANCED = 2_000  # generated images that a teacher looks at


def expected_seconds(config: RunConfig, shape: DataShape) -> float:
    """Return how long the training of a run will take.

    Nothing private is read: the probe trains on random images, and nothing of it is kept.

    Raises:
        InputError: If the probe cannot be done, with the refusal of the method or of the machine.
    """
    started = time.monotonic()
    few, more = (max(num, 4 * len(shape.classes) * num // _FEW) for num in (_FEW, _MORE))
    try:
        first, _ = _timed(config, shape, few, 0.0)
        second, step = _timed(config, shape, more, started + SECONDS)
    except RuntimeError as error:  # of torch: no memory, say
        raise InputError(f"{config.method.name} cannot be tried here ({str(error).splitlines()[0]}).") from error
    slope = max(second - first, 0.0) / (more - few)
    for_teacher = _BALANCED if getattr(config.method, "teacher_share", 0) else 0
    return max(first - slope * few, 0.0) + slope * (shape.num_private + for_teacher) + step * config.training.steps


def _timed(config: RunConfig, shape: DataShape, num: int, until: float) -> tuple[float, float]:
    """Return the seconds of the preparation for so many images, and of a step."""
    private, test = _noise(shape, num), _noise(shape, num, first=num)  # nobody is on two sides
    public = _noise(shape, min(shape.sizes.public, num), first=2 * num)
    split = Split(public, private, private.select(torch.arange(0)), test)
    terms = getattr(config.privacy, "delta", None)
    privacy = config.privacy.model_copy(update={} if terms is None else {"delta": min(terms, 0.1 / num)})
    probe = config.model_copy(update={"privacy": privacy})
    plan = plan_run(probe, split.shape)
    method = load_method(config.method.name).of(plan.config, split, device=resolve_device(config.training.device))
    prepared = _seconds(method.prepare)
    if not config.training.steps:
        return prepared, 0.0
    steps = [_seconds(lambda: method.step(1))]
    while time.monotonic() < until and len(steps) < min(config.training.steps, 50):
        steps.append(_seconds(lambda: method.step(len(steps) + 1)))
    return prepared + steps[0], min(steps)


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
