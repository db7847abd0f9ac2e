"""Audit cases of what the GANs release: all data-free, on constructed worst-case neighbors.

A generator is computed from what its method released of the private images, so a bound on that release is what the
generator can be held to; attacking it is stronger than attacking the generator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor, nn

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, Entry, Request, guarantees
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import EXACT, Maker, Nearness, Statistic, WithinBatch
from idpgan.data.images import Images
from idpgan.models.config import ModelConfig
from idpgan.models.perturbed import Draw, ImageShape, PixelNoise, first_layer, paper_sensitivity
from idpgan.privacy import DiscreteLaplace, Guarantee, Noise, Relation, Unit
from idpgan.privacy.sums import CellSums, Law
from idpgan.synthesis.local.channel import Channel, Projection, Terms, build_channel

_CELLS, _DIMENSIONS = 10, 64  # of the aggregate release that stands for all
_LOCAL_SHAPE: ImageShape = (1, 8, 8)
_PUBLISHED_SHAPE: ImageShape = (1, 28, 28)
_PUBLISHED_BATCH = 256  # |L|
_ACCESSES = 4  # of per_step, where no run says how many; more than that is never simulated


# idp-gan-aggregate ---------------------------------------------------------------------------------------------------


def aggregate_case(sums: CellSums, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of one release of cell sums.

    One bystander; the target's vector is three times too long, so that the clip is tested too. Under replace-one it
    turns into its opposite (or, where no coordinate may be negative, into an orthogonal one in another cell).

    Args:
        sums: The release.
        request: Epsilon and delta that were asked for.
        claimed: None = what was asked for.
    """
    grid, mechanism, pair = sums.grid, sums.mechanism, _pair(sums)

    def release(totals: Tensor, noise: Noise) -> Tensor:
        return grid.value(mechanism(totals, noise))

    scale, laplace = mechanism.scale * grid.step, isinstance(mechanism, DiscreteLaplace)

    def exact(data: Tensor, neighbor: Tensor) -> Statistic:
        unit = scale if laplace else 2 * scale**2
        statistic = Nearness(grid.value(data), grid.value(neighbor), order=1 if laplace else 2, unit=unit)
        statistic.name = EXACT
        return statistic

    asked, proven = guarantees(request, sums.event)
    notes = (
        f"{sums.num_cells} cells of {sums.dimensions} numbers; sums that do not differ get independent noise and were "
        "not simulated",
    )
    return AuditCase(
        "idp-gan-aggregate", pair, claimed or asked, proven, release, (exact,), entrywise=True, notes=notes,
        events=(sums.event,),
    )  # fmt: skip


def differing_totals(sums: CellSums) -> tuple[Tensor, Tensor]:
    """Return the sums that differ between the neighbors of `aggregate_case`, in grid steps, int64 (n,) each."""
    pair = _pair(sums)
    differ = pair.data != pair.neighbor
    return pair.data[differ], pair.neighbor[differ]


def _pair(sums: CellSums) -> Pair:
    """Return the neighbors of `aggregate_case`."""
    axis = torch.zeros(sums.dimensions, dtype=torch.float64)
    axis[0] = 3.0
    if sums.relation is Relation.ZERO_OUT:
        name, absent, present = neighbors.ABSENT, None, (axis, 0)
    elif sums.nonnegative:
        name, absent, present = neighbors.MOVED, (axis, sums.num_cells - 1), (axis, 0)
    else:
        name, absent, present = neighbors.OPPOSITE, (-axis, 0), (axis, 0)
    return Pair(name, _totals(sums, absent), _totals(sums, present))


def _totals(sums: CellSums, target: tuple[Tensor, int] | None) -> Tensor:
    """Return the exact sums of a bystander and perhaps a target, in grid steps, int64 (num_cells, dimensions)."""
    person = sums.unit is Unit.PERSON
    copies = sums.most_per_unit if person and target is not None else 1
    bystander = torch.full((1, sums.dimensions), 0.5 / sums.dimensions, dtype=torch.float64)
    vectors, cells, weights = bystander, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    if target is not None:
        vector, cell = target
        vectors = torch.cat([vectors, vector.expand(copies, -1)])
        cells = torch.cat([cells, torch.full((copies,), cell)])
        weights = torch.cat([weights, torch.full((copies,), 1 / copies, dtype=torch.float64)])
    return sums._exact_sum(vectors, cells, weights if person else None).long()  # all of the release but its noise


def _aggregate(request: Request) -> AuditCase:
    """Return the case of a small aggregate release."""
    unit, relation = request.unit or Unit.IMAGE, request.relation or Relation.ZERO_OUT
    sums = CellSums.calibrated(
        _CELLS,
        _DIMENSIONS,
        cast(Law, request.law),
        epsilon=request.epsilon,
        delta=request.delta or 0.0,
        unit=unit,
        relation=relation,
        most_per_unit=20 if unit is Unit.PERSON else 1,
    )
    return aggregate_case(sums, request)


# idp-gan-local -------------------------------------------------------------------------------------------------------


class _ImageAndLabel(Statistic):
    """Exact log-likelihood ratio of noisy coefficients, and of the randomized label in the last column."""

    def __init__(self, channel: Channel, images: Tensor, labels: Tensor | None) -> None:
        self.name = EXACT
        steps = channel.encode(images).double() / channel.terms.grid.step  # (2, k)
        laplace, scale = isinstance(channel.mechanism, DiscreteLaplace), float(channel.mechanism.scale)
        order, unit = (1, scale) if laplace else (2, 2 * scale**2)
        self._near, self._labels = Nearness(steps[0], steps[1], order=order, unit=unit), labels
        self._epsilon = channel.terms.label_epsilon or 0.0

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        if self._labels is None:
            return self._near(outputs)
        hits = (outputs[:, -1:] == self._labels).double()  # (R, 2)
        return self._near(outputs[:, :-1]) + (hits[:, 1] - hits[:, 0]) * self._epsilon


def local_case(channel: Channel, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of one image, and its label where one is released, going through the channel.

    Args:
        channel: The channel.
        request: Epsilon and delta that were asked for.
        claimed: None = what was asked for.
    """
    terms, shape = channel.terms, channel.image_shape
    image = _hard_image(channel)
    labels = None if terms.response is None else torch.tensor([0.0, 1.0])
    rows = torch.stack([image, -image])  # (2, n)
    data = rows if labels is None else torch.cat([rows, labels[:, None]], 1)
    name = neighbors.NEGATIVE if labels is None else neighbors.NEGATIVE_AND_LABEL

    def release(values: Tensor, noise: Noise) -> Tensor:
        steps = channel.release(values[:, : image.numel()].reshape(-1, *shape), noise).double()
        if terms.response is None:
            return steps
        label = terms.response(values[:, -1].long(), noise)
        return torch.cat([steps, label[:, None].double()], 1)

    maker: Maker = lambda one, other: _ImageAndLabel(channel, rows.view(2, *shape), labels)  # noqa: E731
    events = tuple(terms.events(channel.mechanism))
    asked, proven = guarantees(request, *events)
    pair = Pair(name, data[0], data[1])
    return AuditCase("idp-gan-local", pair, claimed or asked, proven, release, (maker,), events=events)


def _hard_image(channel: Channel) -> Tensor:
    """Return the image (n,) that, against its negative, moves as few coefficients as possible as far as is allowed."""
    terms, pixels = channel.terms, len(channel.center)
    if channel.basis is not None:
        return channel.basis[:, 0].sign()
    image = torch.zeros(pixels)
    norm = channel.bounds[0].item()
    filled = {"clamp": pixels, "l1": norm, "l2": norm**2}[terms.bound]
    image[: min(pixels, math.ceil(filled))] = 1.0
    return image


def _local(request: Request) -> AuditCase:
    """Return the case of an 8 x 8 image without label."""
    bound = cast(Literal["clamp", "l1", "l2"], request.law)
    terms = Terms(math.prod(_LOCAL_SHAPE), bound, request.epsilon, request.delta or 0.0)
    none = Images(torch.empty(0, *_LOCAL_SHAPE, dtype=torch.uint8), None, ())
    return local_case(build_channel(terms, "pixels", _LOCAL_SHAPE, none, None if bound == "clamp" else 1.0), request)


def channel_of(
    terms: Terms, projection: Projection, shape: ImageShape, clip_norm: float | None, *, public: bool
) -> Channel:
    """Return a run's channel, with noise in the place of its public images, if it has some: they set basis and bounds.

    Args:
        terms: Of the run.
        projection: Of the run.
        shape: (C, H, W).
        clip_norm: Of the run.
        public: Whether the run has public images.
    """
    count = 2 * terms.num_coefficients if public else 0
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randint(256, (count, *shape), generator=rng, dtype=torch.uint8)
    return build_channel(terms, projection, shape, Images(drawn, None, ()), clip_norm)


# idp-gan-published ---------------------------------------------------------------------------------------------------


def published_case(
    pixels: PixelNoise, accesses: int, delta: float, claimed: Guarantee, notes: tuple[str, ...] = ()
) -> AuditCase:
    """Return the case of the noisy pixels of one image: a black one against a white one.

    Args:
        pixels: The noise.
        accesses: The most often that an image may be drawn.
        delta: Where epsilon is stated.
        claimed: eps1 + eps2.
        notes: Further notes.
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


def _published(request: Request) -> AuditCase:
    """Return the case of the paper's noise on MNIST: 5 x 5 convolution, |L| = 256, eps1 = eps2 = epsilon / 2."""
    layer = first_layer("conv", ModelConfig(), _PUBLISHED_SHAPE)
    scale = paper_sensitivity(cast(nn.Conv2d, layer), _PUBLISHED_SHAPE) / (request.epsilon / 2 * _PUBLISHED_BATCH)
    pixels = PixelNoise(_PUBLISHED_SHAPE, scale, cast(Draw, request.draw))
    claimed = Guarantee(request.epsilon, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "Yang, Zhou and Ning: eps1 + eps2")
    notes = (f"MNIST's size, |L| = {_PUBLISHED_BATCH}, eps1 = eps2; scale of the noise {scale:.4g} on [-1, 1]",)
    return published_case(pixels, _ACCESSES, request.delta or 0.0, claimed, notes)


GAN_CASES: dict[str, Entry] = {
    "idp-gan-aggregate": Entry(
        _aggregate,
        (Unit.IMAGE, Unit.PERSON),
        (Relation.ZERO_OUT, Relation.REPLACE_ONE),
        delta=1e-5,
        options={"law": ("gaussian", "laplace")},
        pure=("laplace",),
    ),
    "idp-gan-local": Entry(
        _local,
        (Unit.IMAGE,),
        (Relation.REPLACE_ONE,),
        delta=1e-5,
        options={"law": ("clamp", "l1", "l2")},
        pure=("l1",),
    ),
    "idp-gan-published": Entry(
        _published,
        (Unit.IMAGE,),
        (Relation.REPLACE_ONE,),
        delta=1e-5,
        options={"draw": ("once", "per_step", "per_batch")},
    ),
}
