"""``idpgan audit --one-run``: one training with canaries in it, each in or out by a coin.

Two kinds. Gradient canaries go through the steps of a method's audit case, without any data: the attacker sees every
noisy gradient. Image canaries are mislabeled holdout images among the private ones of a config's own data, for
any method: the attacker sees the trained critic, or samples only. The second kind reads private images, and its result
is for the curator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from idpgan.audit.cases import AuditCase
from idpgan.audit.one_run import CanaryKind, OneRunResult, audit_one_run, make_canaries
from idpgan.data.images import Images
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.jobs import load_config, plan, train_on
from idpgan.jobs.audit import nothing_to_audit
from idpgan.jobs.critics import by_critic, by_nearest_sample
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, number_to_json
from idpgan.progress import Progress, silent
from idpgan.training.method import Method

_USUAL = {"gradients": 5000, "images": 500}


@dataclass(frozen=True)
class OneRun:
    """What one run with canaries showed.

    Attributes:
        proven: What the accountant proves.
        results: The bound of each attack, by name.
        data_free: Whether no private image was read.
        notes: What a reader has to know.
    """

    method: str
    proven: Guarantee
    results: Mapping[str, OneRunResult]
    data_free: bool
    notes: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether a coin is one step between the neighbors of the proof: an image, in or a null record."""
        return (self.proven.unit, self.proven.relation) == (Unit.IMAGE, Relation.ZERO_OUT)

    @property
    def violation(self) -> bool:
        """Whether a bound refutes the proof, or the code."""
        return self.comparable and any(result.epsilon_lower > self.proven.epsilon for result in self.results.values())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "method": self.method,
            "unit": str(self.proven.unit),
            "relation": str(self.proven.relation),
            "delta": self.proven.delta,
            "proven": number_to_json(self.proven.epsilon),
            "audited": {name: result.to_json() for name, result in self.results.items()},
            "data_free": self.data_free,
            "violation": self.violation,
            "notes": list(self.notes),
        }


def gradients_once(
    case: AuditCase, canaries: int | None = None, *, confidence: float = 0.95, seed: int | None = None
) -> OneRun:
    """Play a case that is a training in one training, with gradient canaries.

    The method takes noisy gradients of the private images. ``canaries`` is m, None = 5,000; ``seed`` fixes coins and
    noise.

    Raises:
        InputError: If the case is no training, or a number is out of range.
    """
    if case.rows is None:
        raise InputError(
            f"'{case.method}' has no steps to put gradient canaries in. Give a config file: it is trained once, with "
            "canary images."
        )
    canaries = _USUAL["gradients"] if canaries is None else canaries
    result = case.run_once(canaries, confidence=confidence, seed=seed)
    return OneRun(case.method, case.proven, {"gradients of every step": result}, True, case.notes)


def images_once(
    path: Path,
    canaries: int | None = None,
    *,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
) -> OneRun:
    """Train a config once on its own data, with canary images among the private ones. Curator only.

    ``canaries`` is m, None = 500, or as many as there are holdout images. The confidence is that of each bound by
    itself; ``seed`` fixes the coins.

    Raises:
        InputError: If the config cannot be run, or has no guarantee.
    """
    config = load_config(path)
    nothing = nothing_to_audit(config.method.name)
    if nothing:
        raise InputError(nothing)
    split = load(config.data)
    canaries = min(_USUAL["images"], len(split.holdout)) if canaries is None else canaries
    kind: CanaryKind = "noise" if split.private.labels is None else "mislabeled"
    trained: list[Method] = []

    def train(split: Any) -> Method:
        trained.append(train_on(config, split, progress))
        return trained[0]

    attacks: dict[str, Callable[[Method, Images], Tensor]] = {"critic": by_critic, "nearest sample": by_nearest_sample}
    delta = plan(config).delta
    results = audit_one_run(
        split, make_canaries(split, canaries, kind), train, attacks, delta=delta, confidence=confidence, seed=seed
    )
    proven = trained[0].privacy().proven
    found = OneRun(config.method.name, proven, results, False)
    notes = [f"{canaries} {kind} holdout images, in or out by coins, among {split.num_private:,} private ones"]
    if not found.comparable:
        notes.append(f"a coin makes a null record, the proof is for {proven.unit}, {proven.relation}: no verdict")
    return dataclasses.replace(found, notes=tuple(notes))
