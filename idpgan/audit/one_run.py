r"""Audit of a whole training in one run, with canaries that are included by independent coins.

`Steinke, Nasr, Jagielski (2023), "Privacy auditing with one (1) training run" <https://arxiv.org/abs/2305.08846>`_: m
canaries are each included with probability 1/2; the attacker scores them, says "in" of the highest and "out" of the
lowest scores, and abstains on the rest. If the training is (epsilon, delta)-DP in each coin, the number V of correct
guesses among r guesses is bounded (their Theorem 5.2): with W ~ Binomial(r, e^eps / (1 + e^eps)),

.. math:: P[V \ge v] \le P[W \ge v] + 2 m \delta \max_{1 \le i \le v} \tfrac{1}{i} P[v > W \ge v - i].

The lower bound is the largest epsilon for which that probability stays below 1 - confidence. The numbers of guesses are
fixed before the coins are read; several numbers share the error probability evenly.

Each coin is one step of zero-out-one: a canary that is out is a *null record* at its position, so that the number of
positions, which every method takes as public, is the same for all coins. Replacing a record is two such steps, so this
audit does not test a bound under replace-one. A black-box attacker scores by samples or generator, a white-box one by
the critic or by the gradients; this module needs only the scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from idpgan import checks
from idpgan.checks import typed
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.privacy.noise import Noise

CanaryKind = Literal["holdout", "mislabeled", "noise"]
_CANARY_KINDS = ("holdout", "mislabeled", "noise")
_HALVINGS = 40  # bisection steps for epsilon: relative accuracy 1e-12
_T = TypeVar("_T")


@dataclass(frozen=True)
class Trial:
    """A data set with canaries in it, before training.

    Attributes:
        canaries: All m of them.
        included: (m,) bool, the coins. Secret until the guesses are made.
    """

    split: Split
    canaries: Images
    included: Tensor


@dataclass(frozen=True)
class OneRunResult:
    """A lower bound of epsilon from one run, with everything needed to recompute it.

    Attributes:
        epsilon_lower: With probability `confidence` no (epsilon, delta) guarantee with a smaller epsilon holds.
        cap: The bound if every guess were right.
        guesses: r, the number of guesses that gave the bound.
        correct: v, the number of right guesses.
        canaries: m.
        tried: Numbers of guesses that were tried, each at error probability (1 - confidence) / len(tried).
        confidence: Over the coins and the training.
        relation: "zero-out-one", always.
    """

    epsilon_lower: float
    cap: float
    guesses: int
    correct: int
    canaries: int
    tried: tuple[int, ...]
    delta: float
    confidence: float
    relation: str = "zero-out-one"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return dataclasses.asdict(self)


@typed
def make_canaries(split: Split, num: int, kind: CanaryKind = "mislabeled", *, seed: int = 0) -> Images:
    """Make canaries: records that a model knows only if it was trained on them.

    They come from the holdout: "holdout" takes ordinary images, "mislabeled" gives them the next class, "noise" draws
    every pixel, with the labels of ordinary ones. Canaries may be public, and so may ``seed``; the coins must not.

    Raises:
        InputError: If the holdout has too few images, or no labels to change.
    """
    if kind not in _CANARY_KINDS:
        raise InputError(f"There are no canaries of the kind '{kind}'. Known: {', '.join(_CANARY_KINDS)}.")
    holdout = split.holdout.existing().distinct()  # a copy shows nothing that its original does not
    if not 1 <= num <= len(holdout):
        raise InputError(f"{num} canaries must be in 1 .. {len(holdout)}, the number of different holdout images.")
    images = holdout.select(torch.arange(num))
    if kind == "mislabeled":
        if images.labels is None:
            raise InputError("Mislabeled canaries need labels, and the data set has none. Take noise or holdout.")
        return dataclasses.replace(images, labels=(images.labels + 1) % len(images.classes))
    if kind == "noise":
        rng = torch.Generator().manual_seed(seed)
        drawn = torch.randint(256, images.images.shape, generator=rng, dtype=torch.uint8)
        return dataclasses.replace(images, images=drawn)
    return images


@typed
def insert_canaries(split: Split, canaries: Images, *, seed: int | None = None) -> Trial:
    """Toss a coin for each canary, and append all to the private images, excluded ones as null records.

    All later steps use the trial's split, so that any method works. No canary may be in a part used for training.
    ``seed`` is as in `toss`.

    Raises:
        InputError: If there are no canaries, or they do not fit the private images.
    """
    private = split.private
    for what, found, expected in (
        ("the shape (C, H, W)", canaries.image_shape, private.image_shape),
        ("the classes", canaries.classes, private.classes),
        ("identities", canaries.identities is not None, private.identities is not None),
        ("the attributes", canaries.attribute_names, private.attribute_names),
    ):
        if found != expected:
            raise InputError(f"The canaries have {what} {found}, but the private images have {expected}.")
    if len(canaries) == 0:
        raise InputError("There are no canaries. Give at least one.")
    included = toss(len(canaries), seed)
    everybody = appended(private, canaries)
    out = len(private) + torch.nonzero(~included)[:, 0]
    return Trial(dataclasses.replace(split, private=everybody.zeroed_out(out)), canaries, included)


def appended(private: Images, canaries: Images) -> Images:
    """Return one set of images, with the labels, identities and attributes that the private ones have."""
    names = [name for name in ("labels", "identities", "attributes") if getattr(private, name) is not None]
    joined: dict[str, Any] = {
        name: torch.cat([getattr(private, name), getattr(canaries, name)]) for name in ("images", *names)
    }
    parts = [
        torch.zeros(len(part), dtype=torch.bool) if part.null is None else part.null for part in (private, canaries)
    ]
    null = None if private.null is None and canaries.null is None else torch.cat(parts)
    return dataclasses.replace(private, **joined, null=null)


def toss(num: int, seed: int | None = None) -> Tensor:
    """Return ``num`` fair coins, bool; ``seed`` fixes them, for tests; None is the operating system's entropy."""
    if seed is None:
        return Noise.system().uniform((num,)) < 0.5
    return torch.rand(num, generator=torch.Generator().manual_seed(seed)) < 0.5


@typed
def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """Bound the probability of this many correct guesses under (epsilon, delta)-DP training (Theorem 5.2).

    Of m ``canaries`` r <= m are guessed, abstentions not counted, and v <= r guesses are ``correct``.

    Example:
        >>> round(p_value(10, 10, 10, 0.0), 6)  # ten fair coins
        0.000977
    """
    if not 0 <= correct <= guesses <= canaries or epsilon < 0 or not 0 <= delta <= 1:
        raise InputError(
            f"correct {correct} <= guesses {guesses} <= canaries {canaries}, epsilon {epsilon} >= 0 and delta {delta} "
            "in [0, 1] must hold."
        )
    from scipy.stats import binom  # half a second to import

    chance = 1 / (1 + np.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))  # P[v > W >= v - i], i = 1 .. v
    slack = float(np.max(below / np.arange(1, correct + 1)))
    return min(tail + 2 * canaries * delta * slack, 1.0)


@typed
def epsilon_from_guesses(
    canaries: int, guesses: int, correct: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that this many correct guesses refute; 0 if none; see `p_value`.

    The bound holds with probability ``confidence``, over coins and training.

    Example:
        >>> round(epsilon_from_guesses(1000, 1000, 1000), 2)  # all right: log(0.05^(1/r) / (1 - 0.05^(1/r)))
        5.81
    """
    error = 1 - confidence

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > 1000:  # delta = 0 and an absurd number of guesses
            return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@typed
def audit_guesses(
    scores: Tensor,
    included: Tensor,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
) -> OneRunResult:
    """Bound epsilon from below by an attack's scores of the canaries.

    Of r guesses the r/2 highest scores are called "in" and the r/2 lowest "out"; the others are abstentions. Ties are
    broken by position, which the coins do not depend on.

    Args:
        scores: (m,), higher = more likely included; they may depend on the coins only through the training.
        included: (m,) bool, the coins.
        guesses: Numbers r to try, chosen before scores and coins are known; None is m, m/4 and m/20. They share the
            error probability.

    Raises:
        InputError: If scores are NaN or do not fit the coins, or a number is out of range.
    """
    if included.ndim != 1 or included.dtype != torch.bool:
        raise InputError(f"The coins must be bool (m,), got {included.dtype} {tuple(included.shape)}.")
    num = len(included)
    if scores.shape != (num,) or bool(scores.isnan().any()):
        raise InputError(f"The scores must be {num} numbers, one per canary and none NaN, got {tuple(scores.shape)}.")
    if not 0 < confidence < 1 or not 0 <= delta <= 1:
        raise InputError(f"confidence {confidence} must be in (0, 1) and delta {delta} in [0, 1].")
    if guesses is not None:
        guesses = [checks.whole(r, "guesses", 1) for r in guesses]
    chosen = {max(2, num // share) for share in (1, 4, 20)} if guesses is None else set(guesses)
    tried = tuple(sorted(min(r, num) for r in chosen)) if guesses is None else tuple(sorted(chosen))
    if not tried or not 1 <= tried[0] <= tried[-1] <= num:
        raise InputError(f"Numbers of guesses {list(tried)} must be in 1 .. {num}, the number of canaries.")
    each = 1 - (1 - confidence) / len(tried)
    order = scores.cpu().argsort(descending=True, stable=True)
    truth = included.cpu()[order]
    best: tuple[float, int, int] = (-1.0, 0, 0)
    for r in tried:
        top = (r + 1) // 2
        correct = int(truth[:top].sum()) + int((~truth[num - (r - top) :]).sum() if r > top else 0)
        found = epsilon_from_guesses(num, r, correct, delta=delta, confidence=each)
        best = max(best, (found, r, correct))
    epsilon, r, correct = best
    cap = max(epsilon_from_guesses(num, r, r, delta=delta, confidence=each) for r in tried)
    return OneRunResult(epsilon, cap, r, correct, num, tried, delta, confidence)


@typed
def audit_one_run(
    split: Split,
    canaries: Images,
    train: Callable[[Split], _T],
    attacks: Mapping[str, Callable[[_T, Images], Tensor]],
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
    seed: int | None = None,
) -> dict[str, OneRunResult]:
    """Train once with canaries, attack the result, and bound epsilon from below by each attack.

    Args:
        split: The data set without canaries.
        canaries: See `make_canaries`.
        train: Any training: gets the data set with the coins' canaries, returns whatever the attacks take.
        attacks: By name: (what was trained, all canaries) -> scores (m,), higher = rather in. They do not get the
            coins. Black box: samples or generator; white box: the critic.
        delta: Of the guarantee under test, for zero-out-one.
        confidence: Of each bound by itself; all bounds rest on the same coins.
        guesses: See `audit_guesses`.
        seed: See `toss`.
    """
    trial = insert_canaries(split, canaries, seed=seed)
    trained = train(trial.split)
    return {
        name: audit_guesses(
            attack(trained, trial.canaries), trial.included, delta=delta, confidence=confidence, guesses=guesses
        )
        for name, attack in attacks.items()
    }
