"""The audit of idp-gan-published: the noisy pixels of one image, black against white."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import EXACT, Nearness, Statistic, WithinBatch
from idpgan.models.config import ModelConfig
from idpgan.models.perturbed import PIXEL_RANGE, Draw, ImageShape, PixelNoise, first_layer, paper_sensitivity
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.synthesis.published.config import PublishedRun, most_accesses, pixel_noise

_SHAPE: ImageShape = (1, 28, 28)
_BATCH = 256  # |L|
_ACCESSES = 4  # of per_step, where no run says how many; more than that is never simulated


def pixels_case(
    pixels: PixelNoise, accesses: int, delta: float, claimed: Guarantee, notes: tuple[str, ...] = ()
) -> AuditCase:
    """Return the case of the noisy pixels of one image: a black one against a white one.

    ``accesses`` is the most often that an image may be drawn, ``delta`` where epsilon is stated, ``claimed`` the
    paper's.
    """
    shape, beta = pixels.image_shape, pixels.allocation or (1.0,) * pixels.num_pixels
    black, white = torch.full(shape, -1.0), torch.full(shape, 1.0)
    proven = pixels.proven(delta, accesses)
    if pixels.draw == "per_batch":
        pair = Pair(neighbors.BLACK_IN_BATCH, *_batches(black, white))
        batched = (WithinBatch,)
        return AuditCase("idp-gan-published", pair, claimed, proven, _shared(pixels), batched, notes=notes)
    times = 1 if pixels.draw == "once" else min(accesses, _ACCESSES)
    if pixels.draw == "per_step" and times < accesses:
        notes += (f"{times} of at most {accesses} accesses were simulated: what they show holds for all",)

    def release(values: Tensor, noise: Noise) -> Tensor:
        return pixels(values.reshape(-1, *shape), noise).view_as(values)

    def exact(data: Tensor, neighbor: Tensor) -> Statistic:
        scale = pixels.scale / torch.tensor(beta, dtype=torch.float64).repeat(times)
        statistic = Nearness(data, neighbor, unit=pixels.scale if pixels.allocation is None else scale)
        statistic.name = EXACT
        return statistic

    pair = Pair(neighbors.BLACK, black.expand(times, *shape), white.expand(times, *shape))
    return AuditCase("idp-gan-published", pair, claimed, proven, release, (exact,), notes=notes)


def _batches(black: Tensor, white: Tensor) -> tuple[Tensor, Tensor]:
    """Return two batches of two images that differ in the first one."""
    return torch.stack([black, black]), torch.stack([white, black])


def _shared(pixels: PixelNoise) -> Callable[[Tensor, Noise], Tensor]:
    """Return a release of many batches of two in one call: run r's images are channels r C .. (r + 1) C - 1.

    The call shares its one draw between the two images of every batch, and draws channels independently.
    """

    def release(values: Tensor, noise: Noise) -> Tensor:
        runs, two, channels, height, width = values.shape
        stacked = values.transpose(0, 1).reshape(two, runs * channels, height, width)
        allocation = None if pixels.allocation is None else pixels.allocation * runs
        wide = dataclasses.replace(pixels, image_shape=(runs * channels, height, width), allocation=allocation)
        return wide(stacked, noise).view(two, runs, channels, height, width).transpose(0, 1)

    return release


def _build(request: Request) -> AuditCase:
    """Return the case of the paper's noise on MNIST: 5 x 5 convolution, |L| = 256, eps1 = eps2 = epsilon / 2."""
    layer = first_layer("conv", ModelConfig(), _SHAPE)
    scale = paper_sensitivity(cast(nn.Conv2d, layer), _SHAPE) / (request.epsilon / 2 * _BATCH)
    pixels = PixelNoise(_SHAPE, scale, cast(Draw, request.draw))
    claimed = _claim(request.epsilon)
    notes = (f"MNIST's size, |L| = {_BATCH}, eps1 = eps2; scale of the noise {scale:.4g} on [-1, 1]",)
    return pixels_case(pixels, _ACCESSES, request.delta or 0.0, claimed, notes)


def _of_run(config: PublishedRun, facts: RunFacts) -> AuditCase:
    privacy, pixels = config.privacy, pixel_noise(config, facts.image_shape)
    if config.method.allocation == "relevance":
        allocation = tuple(facts.prepared_tensor("allocation").tolist())
        pixels = dataclasses.replace(pixels, allocation=allocation)
    notes: tuple[str, ...] = (f"scale of the noise {pixels.scale:.4g} for a range of {PIXEL_RANGE:g}",)
    if config.model.conditional and facts.num_classes:
        notes += ("labels were left out: what the pixels show holds for both together",)
    claimed = facts.claimed or _claim(privacy.epsilon1 + privacy.epsilon2)
    return pixels_case(pixels, most_accesses(config, facts.num_private), facts.delta, claimed, notes)


def _claim(epsilon: float) -> Guarantee:
    return Guarantee(epsilon, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "Yang, Zhou and Ning: eps1 + eps2")


AUDIT = Entry(
    _build,
    (Unit.IMAGE,),
    (Relation.REPLACE_ONE,),
    delta=1e-5,
    options={"draw": ("once", "per_step", "per_batch")},
    of_run=_of_run,
)
