"""``idpgan audit --one-run``: train once with canaries, each in or out by a coin, and measure what the model knows.

Gradient canaries go through the steps of a method's audit case, without any data: the attacker sees every noisy
gradient. Image canaries are mislabeled holdout images among the private ones of a config's own data, for any method:
the attacker sees the trained critic, or samples only.

Private images are read except with gradient canaries, and then the result is for the curator. Scores are the critic's
(for a classifier: the log-odds of the label, in the same order as minus the loss) and, for a generator, the distance of
the nearest sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.membership import nearest_sample
from idpgan.audit.cases import AuditCase, doubt
from idpgan.audit.one_run import CanaryKind, OneRunResult, audit_one_run, make_canaries
from idpgan.data.images import Images, to_float
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.methods import METHODS
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, number_to_json
from idpgan.progress import Progress, silent
from idpgan.trainer import critic_of, load_config, plan, train_on
from idpgan.training.method import Method, NoCriticError

_GRADIENTS, _IMAGES = 5000, 500  # canaries, unless told
_SAMPLES = 5000  # samples among which the nearest is searched
_READ = "Private images were read: this result is for the curator."

Score = Callable[[Any, Images], Tensor]  # (trained model, images) -> (n,), higher = known better


def by_critic(method: Method, images: Images) -> Tensor:
    """Score images by the trained critic, (n,); all 0 if the critic does not see single images."""
    try:
        critic = critic_of(method)
    except NoCriticError:
        return torch.zeros(len(images))
    device = next(method.product.parameters()).device
    labels = None if images.labels is None else images.labels.to(device)
    with torch.no_grad():
        return critic(to_float(images.images).to(device), labels).cpu()


def by_nearest_sample(method: Method, images: Images) -> Tensor:
    """Score images by how near the nearest generated image comes, (n,); all 0 for a classifier, which draws nothing."""
    generator: Any = method.product
    if not isinstance(generator, Generator):
        return torch.zeros(len(images))
    samples = generator.sample(_SAMPLES, seed=0, purpose=Purpose.TRAINING)
    samples = samples[0] if isinstance(samples, tuple) else samples
    return nearest_sample(to_float(images.images), samples.cpu())


SCORES: dict[str, Score] = {"critic": by_critic, "nearest sample": by_nearest_sample}


def _is_of_coins(proof: Guarantee | Event) -> bool:
    """Whether its neighbors are those of a coin: an image, or a null record in its place."""
    return (proof.unit, proof.relation) == (Unit.IMAGE, Relation.ZERO_OUT)


@dataclass(frozen=True)
class OneRun:
    """The result of one run with canaries.

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
        """Whether a coin decides between the neighbors of the proof."""
        return _is_of_coins(self.proven)

    @property
    def violation(self) -> bool:
        """Whether a bound refutes the proof, or the code."""
        return self.comparable and any(result.highest > self.proven.epsilon for result in self.results.values())

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

    def lines(self) -> list[str]:
        """Return the bound of each attack beside what is proven, as sentences."""
        lines = [f"{self.method}, one run: proven {self.proven}"]
        for name, result in self.results.items():
            lines.append(
                f"{name}: epsilon >= {result.epsilon_lower:.4f} (cap {result.cap:.2f}): {result.correct} of "
                f"{result.guesses} guesses right about {result.canaries} canaries, confidence {result.confidence:g}"
            )
            if (bound := result.fdp) is not None:
                lines.append(
                    f"{name}, f-DP: epsilon >= {bound.epsilon_lower:.4f} if the law is {bound.law}: {bound.correct} of "
                    f"{bound.guesses} guesses right"
                )
        lines += [f"note: {note}" for note in self.notes] + [_READ] * (not self.data_free)
        if self.violation:
            confidence = min(result.confidence for result in self.results.values())
            lines.append(f"VIOLATION: a bound exceeds the proven epsilon. {doubt(confidence)}")
        return lines


def gradients_once(
    case: AuditCase,
    canaries: int | None = None,
    *,
    confidence: float = 0.95,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> OneRun:
    """Audit a case that trains by one training with gradient canaries, or sums by one release with a cell for each.

    The method takes noisy gradients or sums of the private images. ``canaries`` is m, None = 5,000; ``seed`` fixes
    coins and noise.

    Raises:
        InputError: If the case is neither, or a number is out of range.
    """
    if case.rows is None and not (case.entrywise and _is_of_coins(case.proven)):
        raise InputError(
            f"'{case.method}' has no steps to put gradient canaries in, nor sums of images that are in or null. Give a "
            "config file: it is trained once, with canary images."
        )
    canaries = _GRADIENTS if canaries is None else canaries
    result = case.run_once(canaries, confidence=confidence, seed=seed, device=device)
    return OneRun(
        case.method, case.proven, {"sums" if case.rows is None else "gradients of every step": result}, True, case.notes
    )


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
    if sentence := METHODS[config.method.name].nothing_to_audit:
        raise InputError(sentence)
    split = load(config.data)
    canaries = min(_IMAGES, len(split.holdout.existing().distinct())) if canaries is None else canaries
    kind: CanaryKind = "noise" if split.private.labels is None else "mislabeled"
    trained: list[Method] = []

    def train(split: Any) -> Method:
        trained.append(train_on(config, split, progress))
        return trained[0]

    def charged(method: Method) -> Sequence[Event]:
        events = method.ledger.events
        return events if all(_is_of_coins(event) for event in events) else ()

    results = audit_one_run(
        split,
        make_canaries(split, canaries, kind),
        train,
        SCORES,
        delta=plan(config).price.delta,
        confidence=confidence,
        seed=seed,
        charged=charged,
    )
    proven = trained[0].privacy().proven
    result = OneRun(config.method.name, proven, results, False)
    notes = [f"{canaries} {kind} holdout images, in or out by coins, among {split.num_private:,} private ones"]
    if not result.comparable:
        notes.append(f"a coin makes a null record, the proof is for {proven.unit}, {proven.relation}: no verdict")
    return dataclasses.replace(result, notes=tuple(notes))
