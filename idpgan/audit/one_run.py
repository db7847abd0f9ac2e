r"""Audit of a whole training in one run, with canaries that are included by independent coins: two bounds.

`Steinke, Nasr, Jagielski (2023), "Privacy auditing with one (1) training run" <https://arxiv.org/abs/2305.08846>`_: m
canaries are each included with probability 1/2; the attacker scores them, says "in" of the highest and "out" of the
lowest scores, and abstains on the rest. If the training is (epsilon, delta)-DP in each coin, the number V of correct
guesses among r guesses is bounded (their Theorem 5.2): with W ~ Binomial(r, e^eps / (1 + e^eps)),

.. math:: P[V \ge v] \le P[W \ge v] + 2 m \delta \max_{1 \le i \le v} \tfrac{1}{i} P[v > W \ge v - i].

The lower bound is the largest epsilon for which that probability stays below 1 - confidence. The numbers of guesses are
fixed before the coins are read; several numbers share the error probability evenly.

`Mahloujifar, Melis, Chaudhuri (2025), "Auditing f-differential privacy in one run"
<https://arxiv.org/abs/2410.22235>`_: a law tells more than one (epsilon, delta). Let g(t) be the least false-positive
rate that it leaves to a test of true-positive rate t, convex, in both directions, and p_i the probability of i right
guesses. Turn one coin over: its right guess becomes a wrong one, and i right guesses become i - 1. Averaged over the
coins that is, for every v,

.. math:: \sum_{i \ge v} \tfrac{r - i + 1}{m} p_{i-1} \ge g\Bigl(\sum_{i \ge v} \tfrac{i}{m} p_i\Bigr).

If v or more right guesses had probability 1 - confidence, then these inequalities would force mass upon v - 1, v - 2,
... in turn, at least so much. The law is refuted if more than 1 is forced. `refutes` is that recursion, the same as in
Google's jax_privacy (`epsilon_one_run_fdp`), whose values the tests hold. The laws that are tried are the mechanism's
own events with less and less noise, so the bound says: *if the noise is of this kind*, epsilon is at least so much.

Each coin is one step of zero-out-one: a canary that is out is a *null record* at its position, so that the number of
positions, which every method takes as public, is the same for all coins. Replacing a record is two such steps, so this
audit does not test a bound under replace-one. A black-box attacker scores by
samples or generator, a white-box one by the critic or by the gradients; this module needs only the scores.
"""

from __future__ import annotations

import dataclasses
import math
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
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.noise import Noise
from idpgan.privacy.tradeoff import tradeoff

CanaryKind = Literal["holdout", "mislabeled", "noise"]
_CANARY_KINDS = ("holdout", "mislabeled", "noise")
_HALVINGS = 40  # bisection steps for epsilon: relative accuracy 1e-12
_GAUSSIAN_HALVINGS, _COMPOSED_HALVINGS = 24, 6  # of a law's noise: to 1e-7, or 1 % where each law is composed anew
_LEAST_STRENGTH, _MOST_STRENGTH = 2.0**-10, 2.0**10
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
class LawBound:
    """A lower bound of epsilon from the same guesses, for a law; see `refutes`.

    Attributes:
        epsilon_lower: With the result's confidence the law has no less epsilon at the result's delta.
        law: "Gaussian", or "the mechanism's own".
        guesses: r, the number of guesses that gave the bound.
        correct: v, the number of right guesses.
    """

    epsilon_lower: float
    law: str
    guesses: int
    correct: int


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
        confidence: Over the coins and the training, of each of the two bounds by itself.
        relation: "zero-out-one".
        fdp: The second bound; None if no law was given.
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
    fdp: LawBound | None = None

    @property
    def highest(self) -> float:
        """The higher one of the two bounds."""
        return max(self.epsilon_lower, self.fdp.epsilon_lower if self.fdp else 0.0)

    def __repr__(self) -> str:
        second, sure = "", f"{self.confidence:g} confident"
        if self.fdp is not None:
            second = f", epsilon >= {self.fdp.epsilon_lower:.4g} if the law is {self.fdp.law}"
            sure = f"each of the two {sure}"
        return (
            f"<OneRunResult: epsilon >= {self.epsilon_lower:.4g}{second} at delta = {self.delta:g} ({sure}, "
            f"at most {self.cap:.4g} could be found with {self.canaries:,} canaries)>"
        )

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


def insert_canaries(split: Split, canaries: Images, *, seed: int | None = None) -> Trial:
    """Toss a coin for each canary, and append all to the private images, excluded ones as null records.

    All later steps use the trial's split, so that any method works. No canary may be in a part used for training.
    ``seed`` is as in `toss`.

    Raises:
        InputError: If there are no canaries, or they do not fit the private images.
    """
    private = split.private
    for what, actual, expected in (
        ("the shape (C, H, W)", canaries.image_shape, private.image_shape),
        ("the classes", canaries.classes, private.classes),
        ("identities", canaries.identities is not None, private.identities is not None),
        ("the attributes", canaries.attribute_names, private.attribute_names),
    ):
        if actual != expected:
            raise InputError(f"The canaries have {what} {actual}, but the private images have {expected}.")
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


Law = Callable[[float], float]  # true-positive rate -> least false-positive rate of any test, convex


def refutes(law: Law, canaries: int, guesses: int, correct: int, error: float) -> bool:
    """Return whether a law gives this many ``correct`` guesses, or more, less than ``error`` probability.

    See the module; m ``canaries``, r ``guesses``.
    """
    right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
    for number in range(correct - 1, -1, -1):
        if right + wrong > guesses / canaries:
            return True
        forced = law(min(right, 1.0))
        if forced <= wrong:  # nothing is forced from here on
            return False
        right, wrong = right + number / (guesses - number) * (forced - wrong), forced
    return right + wrong > guesses / canaries


def law_of(events: Sequence[Event], least: float) -> tuple[Law, bool]:
    """Return the law of these events, and whether it is a Gaussian one, in closed form.

    Any other comes from the accountant's curve down to delta = ``least``: it lies above the true one, so that it is
    refuted later.
    """
    curve = tradeoff(tuple(events), (least,)).both_ways
    return lambda rate: curve.misses(1 - rate), curve.mu < math.inf


def has_law(events: Sequence[Event], delta: float) -> bool:
    """Return whether all events are noise that can be scaled, and have an epsilon at this delta; for `bound_law`."""
    noise = bool(events) and all(event.noise_multiplier is not None for event in events)
    return noise and (delta > 0 or not any("gaussian" in event.kind for event in events))


def bound_law(
    canaries: int, right: Mapping[int, int], events: Sequence[Event], *, delta: float, error: float
) -> LawBound:
    """Return the largest epsilon of the events' law, with noise scaled, that these guesses refute; 0 if none.

    Args:
        canaries: m.
        right: Number of right guesses by number of guesses; each refutes at ``error``.
        events: See `has_law`; for one Gaussian event of any noise the laws are all Gaussian ones.
        delta: Where epsilon is stated.
        error: 1 - confidence of each number of guesses.
    """

    def scaled(strength: float) -> list[Event]:
        return [
            dataclasses.replace(event, noise_multiplier=(event.noise_multiplier or 0) / strength) for event in events
        ]

    def refuting(strength: float) -> int:  # the number of guesses; 0 if none
        law = law_of(scaled(strength), min(1e-6, error / 1000))[0]
        return next((r for r, v in right.items() if refutes(law, canaries, r, v, error)), 0)

    is_gaussian = law_of(events, 0.5)[1]
    name = "Gaussian" if is_gaussian else "the mechanism's own"
    if not any(refutes(lambda rate: rate, canaries, r, v, error) for r, v in right.items()):  # mere guessing
        return LawBound(0.0, name, *max(right.items()))
    low, best = 1.0, refuting(1.0)
    while best and low < _MOST_STRENGTH and (more := refuting(2 * low)):
        low, best = 2 * low, more
    while not best and low > _LEAST_STRENGTH:
        low /= 2
        best = refuting(low)
    if not best:
        return LawBound(0.0, name, *max(right.items()))
    high = 2 * low
    for _ in range(_GAUSSIAN_HALVINGS if is_gaussian else _COMPOSED_HALVINGS):
        middle = math.sqrt(low * high)
        refuted = refuting(middle)
        low, high, best = (middle, high, refuted) if refuted else (low, middle, best)
    return LawBound(compose_epsilon(scaled(low), delta), name, best, right[best])


def audit_guesses(
    scores: Tensor,
    included: Tensor,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
    events: Sequence[Event] = (),
) -> OneRunResult:
    """Bound epsilon from below by an attack's scores of the canaries.

    Of r guesses the r/2 highest scores are called "in" and the r/2 lowest "out"; the others are abstentions. Ties are
    broken by position, which the coins do not depend on.

    Args:
        scores: (m,), higher = more likely included; they may depend on the coins only through the training.
        included: (m,) bool, the coins.
        guesses: Numbers r to try, chosen before scores and coins are known; None is m, m/4 and m/20. They share the
            error probability.
        events: What a coin's canary is hidden by, for the second bound; () or one that is no noise (see `has_law`) =
            without that bound.

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
    strict = 1 - (1 - confidence) / len(tried)
    order = scores.cpu().argsort(descending=True, stable=True)
    truth = included.cpu()[order]
    best: tuple[float, int, int] = (-1.0, 0, 0)
    right: dict[int, int] = {}
    for r in tried:
        top = (r + 1) // 2
        right[r] = correct = int(truth[:top].sum()) + int((~truth[num - (r - top) :]).sum() if r > top else 0)
        bound = epsilon_from_guesses(num, r, correct, delta=delta, confidence=strict)
        best = max(best, (bound, r, correct))
    epsilon, r, correct = best
    cap = max(epsilon_from_guesses(num, r, r, delta=delta, confidence=strict) for r in tried)
    fdp = bound_law(num, right, events, delta=delta, error=1 - strict) if has_law(events, delta) else None
    return OneRunResult(epsilon, cap, r, correct, num, tried, delta, confidence, fdp=fdp)


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
    charged: Callable[[_T], Sequence[Event]] = lambda trained: (),
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
        charged: Returns the ``events`` of `audit_guesses`: what the training was charged for an image, zero-out-one.
    """
    trial = insert_canaries(split, canaries, seed=seed)
    trained = train(trial.split)
    events = charged(trained)
    return {
        name: audit_guesses(
            attack(trained, trial.canaries),
            trial.included,
            delta=delta,
            confidence=confidence,
            guesses=guesses,
            events=events,
        )
        for name, attack in attacks.items()
    }
