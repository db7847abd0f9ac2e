"""What two processes do together in test_commands.py: rank 0 leads a command, the other follows."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from idpgan.attacks import distances
from idpgan.attacks.attack import Knowledge, Membership, run_attack
from idpgan.attacks.registry import select_attacks
from idpgan.audit.distinguish import audit
from idpgan.commands import audit as audit_job
from idpgan.commands.audit import AuditOptions
from idpgan.commands.publish import PublishOptions, publish_folder
from idpgan.data.images import Images
from idpgan.privacy import Noise
from idpgan.publish import publisher, release
from idpgan.publish.publisher import publish_shares
from idpgan.ranks import ALONE, LostRankError, Ranks
from idpgan.training.distributed import RanksDifferError

IMAGES = torch.full((64, 20, 16), 0.5)
ATTACKS = ("nearest-sample", "nearest-sample-calibrated", "neighborhood-count", "density-ratio")
RUNS = 4001


def commands(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Publish, audit and attack, one after the other; at last the other rank is killed in a publication."""
    found: dict[str, Any] = {"published": _published(ranks), "attacks": _attacked(ranks)}
    found |= {"noiseless": _noiseless(ranks), "learned": _learned(ranks), "laplace": _laplace(ranks)}
    _led(ranks, lambda: publish_folder(order(folder, "whole"), ranks=ranks), publish_shares)
    found |= _other_code(ranks)
    torch.save(found, folder / f"found{ranks.rank}.pt")
    if not ranks.first:
        ranks.gather_rows = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        publish_shares(ranks)
    try:
        publish_folder(order(folder, "torn"), ranks=ranks)
    except LostRankError as error:
        return {"lost": str(error)}
    return {}


def order(folder: Path, out: str) -> PublishOptions:
    """Return what is asked for of the folder of images."""
    return PublishOptions((str(folder / "faces"),), "lap", 1.0, "pixel", folder / out)


def _led(ranks: Ranks, lead: Callable[[], Any], follow: Callable[[Ranks], None]) -> Any:
    """Let rank 0 do something, and the other follow it to its end."""
    if not ranks.first:
        return follow(ranks)
    done = lead()
    ranks.end()
    ranks.busy = False  # another command begins
    return done


def _published(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Publish images by both ranks; "of each": what each of them made of all, where nothing is shared."""

    def publish(images: torch.Tensor, seed: int, by: Ranks = ALONE) -> torch.Tensor:
        options: dict[str, Any] = {"epsilon": 1.0, "unit": "pixel"}
        return release(images, "lap", noise=Noise.fixed(seed), ranks=by, **options).images

    both = _led(ranks, lambda: publish(IMAGES, 10, ranks), lambda _: publish_shares(ranks, Noise.fixed(11)))
    of_each = publish(IMAGES, 10 + ranks.rank) - IMAGES
    ranks.sum([of_each])
    shares, one_key = ([publish(IMAGES[:32], 10 + step * half) for half in range(2)] for step in (1, 0))
    found = {"shares": torch.cat(shares), "one key": torch.cat(one_key), "noise of each": of_each}
    return found if both is None else {**found, "both": both}


def _other_code(ranks: Ranks) -> dict[str, str]:
    """Publish with a rank whose code draws noise for twice the epsilon."""
    plan, found = publisher.plan_release, {}
    if not ranks.first:
        publisher.plan_release = lambda method, shape, unit, epsilon, *rest: plan(
            method, shape, unit, 2 * epsilon, *rest
        )
    try:
        _led(ranks, lambda: release(IMAGES, "lap", epsilon=1.0, unit="pixel", ranks=ranks), publish_shares)
    except RanksDifferError as error:
        found, ranks.busy = {"differs": str(error)}, False
    except SystemExit:
        pass  # rank 0 says it
    publisher.plan_release = plan
    return found


def _attacked(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Score members and others by both ranks, and by rank 0 alone."""
    draws = torch.Generator().manual_seed(0)
    parts = [torch.randint(256, (num, 1, 8, 8), generator=draws, dtype=torch.uint8) for num in (31, 31, 60, 200, 190)]
    members, others, reference, samples, calibrating = (Images(part, None, ()) for part in parts)
    known = Knowledge(samples=samples, reference=reference, reference_samples=calibrating)

    def score(by: Ranks) -> dict[str, torch.Tensor]:
        outcomes = [
            run_attack(attack, dataclasses.replace(known, ranks=by), Membership(members, others, reference))
            for attack in select_attacks(ATTACKS)
        ]
        return {found.attack.name: torch.cat(found.scores or ()) for found in outcomes}

    both = _led(ranks, lambda: score(ranks), distances.follow)
    return {} if both is None else both | {f"{name} alone": scores for name, scores in score(ALONE).items()}


def _noiseless(ranks: Ranks) -> dict[str, Any]:
    """Audit a mechanism without noise, and count its runs on this rank."""
    played = []

    def mechanism(rows: torch.Tensor) -> torch.Tensor:
        played.append(len(rows))
        return rows

    result = audit(mechanism, torch.zeros(1), torch.ones(1), runs=RUNS, ranks=ranks)
    return {"runs": sum(played[2:]), "result": result.to_json()}  # but the two calls that try it


def _learned(ranks: Ranks) -> dict[str, Any]:
    """Audit by statistics that learn from outputs."""
    draws = torch.Generator().manual_seed(ranks.rank)

    def mechanism(rows: torch.Tensor) -> torch.Tensor:
        return rows + torch.randn(rows.shape, generator=draws)

    found: dict[str, Any] = audit(mechanism, torch.zeros(5), torch.ones(5), runs=RUNS, ranks=ranks).to_json()
    return found


def _laplace(ranks: Ranks) -> dict[str, Any]:
    """Audit a mechanism by its name, and keep the first outputs of this rank."""
    made, outputs = audit_job.case_of, []

    def kept(*source: Any) -> Any:
        case = made(*source)

        def noisy(rows: torch.Tensor, noise: Noise) -> torch.Tensor:
            outputs.append(case.release(rows, noise))
            return outputs[-1]

        return dataclasses.replace(case, release=noisy)

    audit_job.case_of = kept
    options = AuditOptions(epsilon=1.0, runs=RUNS, seed=5)
    audited = _led(ranks, lambda: audit_job.play("laplace", options, ranks=ranks), audit_job.follow)
    audit_job.case_of = made
    return {"first": outputs[0].flatten()[:8].clone(), "result": {} if audited is None else audited.result.to_json()}
