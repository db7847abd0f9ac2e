"""The audit of arden: what leaves a phone whose features are all at the bound, or all at its negative."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.neighbors import FEATURES, FEATURES_AND_LABEL, Pair
from idpgan.audit.statistics import Maker, WithLabel, likelihood_ratio
from idpgan.classify.arden.config import ArdenConfig, ArdenRun
from idpgan.privacy import Guarantee, Noise, RandomizedResponse, Relation, Unit
from idpgan.privacy.collaborative import FeatureNoise

_FEATURES = 16  # of an image that stands for all


def _case(
    channel: FeatureNoise, response: RandomizedResponse | None, request: Request, claimed: Guarantee | None
) -> AuditCase:
    mechanism, bound = channel.mechanism, round(1 / channel.grid.step)
    lowest, highest = (torch.full((channel.features,), side, dtype=torch.float64) for side in (-1.0, 1.0))
    statistic = likelihood_ratio(mechanism)(lowest * bound, highest * bound)
    pair, events = Pair(FEATURES, lowest, highest), [mechanism.event]
    if response is not None:
        labels = torch.tensor([0.0, 1.0], dtype=torch.float64)
        statistic = WithLabel(statistic, labels, response.epsilon)
        pair = Pair(FEATURES_AND_LABEL, torch.cat([lowest, labels[:1]]), torch.cat([highest, labels[1:]]))
        events.append(response.event)

    def release(values: Tensor, noise: Noise) -> Tensor:
        steps = channel.release(values[:, : channel.features], noise).double()
        if response is None:
            return steps
        return torch.cat([steps, response(values[:, -1].long(), noise)[:, None].double()], 1)

    asked, proven = guarantees(request, *events)
    if claimed is None:
        claimed = dataclasses.replace(asked, epsilon=channel.claimed(ArdenConfig().nullification))
    maker: Maker = lambda one, other: statistic  # noqa: E731
    notes = (f"{channel.features} features; claimed is what the paper states, the price of one of them",)
    return AuditCase("arden", pair, claimed, proven, release, (maker,), notes=notes, events=tuple(events))


def _build(request: Request) -> AuditCase:
    return _case(FeatureNoise(_FEATURES, request.epsilon), None, request, None)


def _of_run(config: ArdenRun, facts: RunFacts) -> AuditCase:
    request = Request(config.privacy.epsilon, facts.delta)
    return _case(config.channel(facts.num_classes), config.response(facts.num_classes), request, facts.claimed)


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.REPLACE_ONE,), of_run=_of_run)
