"""The audit of idp-gan-local: one image, and its label where one is released, through the channel."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import Maker, WithLabel, likelihood_ratio
from idpgan.data.images import Images
from idpgan.models.perturbed import ImageShape
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.synthesis.local.channel import Bound, Channel, ChannelPrivacy, Projection, build_channel
from idpgan.synthesis.local.method import LocalRun

_SHAPE: ImageShape = (1, 8, 8)  # of the image that stands for all


def channel_case(channel: Channel, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of one image, and its label where one is released, going through the channel."""
    privacy, shape = channel.privacy, channel.image_shape
    image = _hard_image(channel)
    labels = None if privacy.response is None else torch.tensor([0.0, 1.0])
    rows = torch.stack([image, -image])  # (2, n)
    data = rows if labels is None else torch.cat([rows, labels[:, None]], 1)
    name = neighbors.NEGATIVE if labels is None else neighbors.NEGATIVE_AND_LABEL

    def release(values: Tensor, noise: Noise) -> Tensor:
        steps = channel.release(values[:, : image.numel()].reshape(-1, *shape), noise).double()
        if privacy.response is None:
            return steps
        label = privacy.response(values[:, -1].long(), noise)
        return torch.cat([steps, label[:, None].double()], 1)

    coefficients = channel.encode(rows.view(2, *shape)).double() / privacy.grid.step  # (2, k)
    statistic = likelihood_ratio(channel.mechanism)(coefficients[0], coefficients[1])
    if labels is not None and privacy.response is not None:
        statistic = WithLabel(statistic, labels, privacy.response.epsilon)
    maker: Maker = lambda one, other: statistic  # noqa: E731
    events = tuple(privacy.events(channel.mechanism))
    asked, proven = guarantees(request, *events)
    pair = Pair(name, data[0], data[1])
    return AuditCase("idp-gan-local", pair, claimed or asked, proven, release, (maker,), events=events)


def _hard_image(channel: Channel) -> Tensor:
    """Return the image (n,) that, against its negative, moves as few coefficients as possible as far as is allowed."""
    privacy, pixels = channel.privacy, len(channel.center)
    if channel.basis is not None:
        return channel.basis[:, 0].sign()
    image = torch.zeros(pixels)
    norm = channel.bounds[0].item()
    filled = {"clamp": pixels, "l1": norm, "l2": norm**2}[privacy.bound]
    image[: min(pixels, math.ceil(filled))] = 1.0
    return image


def data_free_channel(
    privacy: ChannelPrivacy, projection: Projection, shape: ImageShape, clip_norm: float | None, *, public: bool
) -> Channel:
    """Return a run's channel, with noise in the place of its public images, if it has some: they set basis and bounds.

    ``public`` says whether the run has public images; ``shape`` is (C, H, W).
    """
    count = 2 * privacy.num_coefficients if public else 0
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randint(256, (count, *shape), generator=rng, dtype=torch.uint8)
    return build_channel(privacy, projection, shape, Images(drawn, None, ()), clip_norm)


def _build(request: Request) -> AuditCase:
    """Return the case of a small image without label."""
    bound = cast(Bound, request.law)
    privacy = ChannelPrivacy(math.prod(_SHAPE), bound, request.epsilon, request.delta or 0.0)
    clip_norm = None if bound == "clamp" else 1.0
    return channel_case(data_free_channel(privacy, "pixels", _SHAPE, clip_norm, public=False), request)


def _of_run(config: LocalRun, facts: RunFacts) -> AuditCase:
    """Return the case of the channel that a run's images go through."""
    method, privacy = config.method, config.channel_privacy(facts.image_shape, facts.num_classes, facts.num_private)
    public = bool(config.data.public_share or config.data.public_root)
    channel = data_free_channel(privacy, method.projection, facts.image_shape, method.clip_norm, public=public)
    return channel_case(channel, Request(privacy.epsilon, privacy.delta), facts.claimed)


AUDIT = Entry(
    _build,
    (Unit.IMAGE,),
    (Relation.REPLACE_ONE,),
    delta=1e-5,
    options={"law": ("clamp", "l1", "l2")},
    pure=("l1",),
    of_run=_of_run,
)
