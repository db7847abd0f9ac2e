"""The audit of dssgd: what a participant uploads in a round, whose changes are all 0 or all at the bound."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.neighbors import SILENT, Pair
from idpgan.audit.statistics import UPLOADED, Column
from idpgan.classify.dssgd.config import DssgdRun
from idpgan.classify.dssgd.sharing import Sharing
from idpgan.errors import InputError
from idpgan.privacy import Guarantee, Noise, Relation, Unit

_UPLOADS = 1000  # of a round that stands for all
_RUNS, _ROWS = 4000, 200


def _case(sharing: Sharing, rounds: int, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    if sharing.event is None:
        raise InputError("dssgd without noise has no guarantee to audit. Set privacy.epsilon.")
    event = sharing.event.repeated(rounds)
    asked, proven = guarantees(request, event)
    if claimed is None:
        claimed = dataclasses.replace(asked, epsilon=request.epsilon / sharing.uploads)
    most = torch.full((sharing.parameters,), sharing.bound, dtype=torch.float64)

    def release(changes: Tensor, noise: Noise) -> Tensor:
        return sharing.release(changes, noise).sum(1, keepdim=True)

    notes = (
        f"one round is played, the proof is for {rounds}; {sharing.uploads:,} uploads at most",
        "claimed is what the paper states for one uploaded parameter",
    )
    pair = Pair(SILENT, torch.zeros_like(most), most)
    return AuditCase(
        "dssgd", pair, claimed, proven, release, (lambda *_: Column(0, UPLOADED),),
        notes=notes, events=(event,), runs=_RUNS, rows=_ROWS,
    )  # fmt: skip


def _build(request: Request) -> AuditCase:
    sharing = Sharing(_UPLOADS, _UPLOADS, 0.01, 1e-4, True, request.epsilon)
    return _case(sharing, 1, request)


def _of_run(config: DssgdRun, facts: RunFacts) -> AuditCase:
    sharing = config.sharing(facts.image_shape, [str(number) for number in range(facts.num_classes)])
    played = dataclasses.replace(sharing, parameters=sharing.uploads)  # one to a block: each may be uploaded
    request = Request(config.privacy.epsilon or 1.0, facts.delta)
    return _case(played, config.training.steps, request, facts.claimed)


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.REPLACE_ONE,), of_run=_of_run)
