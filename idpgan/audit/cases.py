"""The cases of audits: a mechanism with its worst-case neighbors, its claim and its proof.

An entry (`idpgan.audit.entry`) turns a request into a *case*, one game to play. A *pair* is the two neighbors of a
case, and an *adjacency* defines neighbors by a unit and a relation. Every method and every publisher has its own entry;
``CASES`` holds those of the privacy mechanisms.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idpgan.audit import neighbors, statistics
from idpgan.audit.bounds import (
    AuditResult,
    Separation,
    cap,
    epsilon_bound,
    is_nearly_gaussian,
    share_text,
)
from idpgan.audit.distinguish import audit, check_runs
from idpgan.audit.entry import USUAL_RUNS, Entry, Request
from idpgan.audit.neighbors import PAIRS, Pair
from idpgan.audit.one_run import OneRunResult, audit_guesses, toss
from idpgan.audit.statistics import Maker, Nearness, Outcomes, likelihood_ratio
from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate, compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, number_to_json
from idpgan.privacy.mechanisms import (
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Grid,
    Laplace,
    Mechanism,
    NoisyMax,
    RandomizedResponse,
    RoundedGaussian,
)
from idpgan.privacy.noise import Noise
from idpgan.privacy.tradeoff import gaussian_epsilon, proven_separation
from idpgan.progress import Progress, silent

MOST_CANARIES = 20_000  # canaries of one call: per-record gradients grow with their square
IMAGE_SHAPE = (112, 92)  # px of ORL
_STEPS = 1000  # sensitivity of the discrete mechanisms, in grid steps
_CHOICES = 20  # choices of the exponential mechanism and noisy max
_CATEGORIES = 10


@dataclass(frozen=True)
class AuditCase:
    """One game to play.

    Attributes:
        claimed: The claim of a paper, or the requested epsilon; None = no claim.
        proven: What the accountant proves.
        release: Maps (R, *shape) and a noise source to R independent outputs.
        statistics: Makers of statistics to choose from.
        entrywise: See `audit`.
        notes: Notes for the reader, one sentence each.
        events: The events of the release, for the proven trade-off curve; empty = only (epsilon, delta) is known.
        runs: Default number of runs per side, which takes seconds, or a few minutes if a run is a training.
        rows: See `audit`.
        law: What the outputs of this very pair follow, as events whose curve is exact, where the proof has to allow
            more than this pair shows; empty = the events themselves.
    """

    method: str
    pair: Pair
    claimed: Guarantee | None
    proven: Guarantee
    release: Callable[[Tensor, Noise], Tensor]
    statistics: tuple[Maker, ...]
    entrywise: bool = False
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    runs: int = USUAL_RUNS
    rows: int | None = None
    law: tuple[Event, ...] = ()

    @property
    def delta(self) -> float:
        """The delta at which epsilon is bounded: that of the proof, or of the claim if nothing is proven."""
        return self.proven.delta if self.proven.finite or self.claimed is None else self.claimed.delta

    def run(
        self,
        runs: int | None = None,
        *,
        confidence: float = 0.95,
        seed: int | None = None,
        threads: int = 1,
        device: torch.device | str = "cpu",
        progress: Progress = silent,
    ) -> Audited:
        """Play the case's game.

        Args:
            runs: Per side; None = those of the case.
            seed: Fixes the noise, for a reproducible result; None = noise from the operating system.
            threads: Each has its own noise.
            device: Where the outputs are computed; the noise is the CPU's everywhere.

        Raises:
            InputError: If a number is out of range.
        """
        runs = self.runs if runs is None else runs
        check_runs(runs, self.delta, confidence)
        first = 1000 * seed if seed is not None else 0
        sources = [Noise.system() if seed is None else Noise.fixed(first + i) for i in range(threads)]
        players = [lambda rows, source=source: self.release(rows, source) for source in sources]
        result = audit(
            players,
            self.pair.data.to(device),
            self.pair.neighbor.to(device),
            runs=runs,
            delta=self.delta,
            confidence=confidence,
            statistics=self.statistics,
            entrywise=self.entrywise,
            rows=self.rows,
            progress=progress,
        )
        return Audited(self, result)

    def run_once(
        self,
        canaries: int,
        *,
        confidence: float = 0.95,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> OneRunResult:
        """Play the game once with many canaries, each included or not by its own coin; see `one_run`.

        All ``canaries`` share one call of `release`; if the case is a training, one training. ``seed`` fixes coins and
        noise.

        Raises:
            InputError: If a number is out of range.
        """
        if isinstance(canaries, bool) or not isinstance(canaries, int) or not 10 <= canaries <= MOST_CANARIES:
            raise InputError(
                f"canaries = {str(canaries)[:40]} must be a whole number of 10 .. {MOST_CANARIES:,} in one run."
            )
        coins = toss(canaries, seed)
        source = Noise.system() if seed is None else Noise.fixed(seed * 1000)
        data, neighbor = self.pair.data.to(device), self.pair.neighbor.to(device)
        if self.entrywise:  # each canary has cells of its own; numbers that do not differ say nothing
            differ = data != neighbor
            data, neighbor = data[differ], neighbor[differ]
        played = torch.where(coins.to(device).view(-1, *[1] * data.ndim), neighbor, data)
        scores = self.statistics[0](data, neighbor)(self.release(played, source)).cpu()
        guesses = [canaries // share for share in (4, 10, 20) if canaries >= 5 * share] or [canaries]
        return audit_guesses(
            scores, coins, delta=self.delta, confidence=confidence, guesses=guesses, events=self.events
        )


@dataclass(frozen=True)
class Audited:
    """A case and the two bounds from its game."""

    case: AuditCase
    result: AuditResult

    def __repr__(self) -> str:
        verdict = "refutes the proof" if self.violation else "within the proof"
        return f"<Audited: {self.result!r} of proven {self.case.proven}, {verdict}>"

    @property
    def guarantee(self) -> Guarantee:
        """The lower bound, in the same form as the claimed and the proven epsilon."""
        result, proven = self.result, self.case.proven
        basis = (
            f"lower bound at {result.confidence} confidence, cap {result.cap:.2f}, {result.runs} runs per side, right "
            f"{result.true_positives} and wrong {result.false_positives} times of {result.held_out}, "
            f"{result.statistic}, {self.case.pair.name}"
        )
        if math.isfinite(self.proven_mu):
            separation = result.separation
            basis += (
                f"; {share_text(separation.mu_lower, self.proven_mu)} of the proven separation: "
                f"{separation.mu_lower:.4f} of {self.proven_mu:.4f} standard deviations, right "
                f"{separation.true_positives} and wrong {separation.false_positives} times"
            )
        return Guarantee(result.epsilon_lower, result.delta, proven.unit, proven.relation, basis)

    @functools.cached_property
    def proven_mu(self) -> float:
        """The separation that the proof allows at the audited rate; see `proven_separation`."""
        proven, events = self.case.proven, self.case.events
        if not proven.finite or not 0 < self.result.separation.fpr_high < 1:
            return math.inf
        return proven_separation(events, self.result.separation.fpr_high, proven.epsilon, proven.delta)

    @functools.cached_property
    def exact_mu(self) -> float | None:
        """The separation of the simulated pair's own law at the audited rate, where it is not that of the proof."""
        law, rate = self.case.law, self.result.separation.fpr_high
        if not law or not 0 < rate < 1:
            return None
        return proven_separation(law, rate, compose_epsilon(law, self.case.proven.delta), self.case.proven.delta)

    @property
    def implied_epsilon(self) -> float | None:
        """The epsilon implied by the audited separation for Gaussian noise; None for other noise."""
        if not is_nearly_gaussian(self.case.events) or not self.result.delta:
            return None
        return gaussian_epsilon(self.result.separation.mu_lower, self.result.delta)

    @property
    def violation(self) -> bool:
        """Whether one of the two bounds refutes the proof, or the code."""
        if self.result.epsilon_lower > self.case.proven.epsilon:
            return True
        return self.result.separation.mu_lower > self.proven_mu

    @property
    def exceeds_claim(self) -> bool:
        """Whether the audit refutes the claim."""
        return self.case.claimed is not None and self.result.epsilon_lower > self.case.claimed.epsilon

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        if self.violation:
            what = "epsilon" if self.result.epsilon_lower > self.case.proven.epsilon else "separation"
            return f"VIOLATION: the audited {what} exceeds the proven one. {doubt(self.result.confidence)}"
        if self.exceeds_claim:
            return "The audited epsilon exceeds the claimed one: the claim is false. Nothing proven is refuted."
        return "Nothing is refuted. This proves nothing: epsilon may lie anywhere between audited and proven."

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        case, result = self.case, self.result
        return {
            "method": case.method,
            "neighbors": case.pair.name,
            "unit": str(case.proven.unit),
            "relation": str(case.proven.relation),
            "claimed": number_to_json(case.claimed.epsilon) if case.claimed else None,
            "proven": number_to_json(case.proven.epsilon),
            "audited": result.epsilon_lower,
            "proven_mu": number_to_json(self.proven_mu),
            "exact_mu": self.exact_mu,
            "audited_mu": result.separation.mu_lower,
            "share": share_text(result.separation.mu_lower, self.proven_mu),
            "epsilon_if_gaussian": self.implied_epsilon,
            "violation": self.violation,
            "exceeds_claim": self.exceeds_claim,
            "verdict": self.verdict,
            "notes": list(case.notes),
            "result": result.to_json(),
        }


def doubt(confidence: float) -> str:
    """Explain a bound above the proven epsilon: a bound may be too high by chance."""
    return (
        f"Proof or code is wrong, or chance: a bound of confidence {confidence:g} is too high in up to "
        f"{100 * (1 - confidence):.3g} of 100 audits. Repeat it with --confidence 0.9999: a defect stays."
    )


_BASIS = re.compile(
    r"lower bound at (0\.\d{1,20}) confidence, cap (\d+\.\d\d), (\d{1,12}) runs per side, "
    r"right (\d{1,12}) and wrong (\d{1,12}) times of (\d{1,12}), (.+?)"
    r"(?:; (\d{1,6} %) of the proven separation: (\d{1,6}\.\d{4}) of (\d{1,6}\.\d{4}) standard deviations, "
    r"right (\d{1,12}) and wrong (\d{1,12}) times)?"
)


def stated_share(stated: Guarantee) -> tuple[str, str, str] | None:
    """Return the share of the proven separation in the text of `Audited.guarantee`, the audited and the proven one.

    None where an earlier version wrote the text, or nothing is proven.
    """
    match = _BASIS.fullmatch(stated.basis)
    return None if match is None or match[8] is None else (match[8], match[9], match[10])


def audited_again(stated: Guarantee) -> str | None:
    """Recompute the bound stated by `Audited.guarantee` from the counts in its text.

    Returns None, or the reason why no audit of a run can have written this bound.
    """
    match = _BASIS.fullmatch(stated.basis)
    known = {f"{statistic}, {pair}" for statistic in statistics.OF_RUNS for pair in neighbors.OF_RUNS}
    if match is None or match[7] not in known:
        return "the audited value does not rest on what an audit of a run writes."
    runs, right, wrong, held_out = (int(match[place]) for place in (3, 4, 5, 6))
    if held_out != runs // 2 or held_out < 1 or max(right, wrong) > held_out:
        return "the audited value rests on impossible counts."
    confidence, delta = float(match[1]), stated.delta
    epsilon = max(float(epsilon_bound(np.array(right), np.array(wrong), held_out, delta, confidence)), 0.0)
    if f"{cap(held_out, confidence, delta):.2f}" != match[2]:
        return "the audited value states another cap than its number of runs has."
    if not math.isclose(epsilon, stated.epsilon, rel_tol=1e-6, abs_tol=1e-9):
        return f"the counts of the audit prove epsilon >= {epsilon:.6g}, not {stated.epsilon:.6g}."
    return None if match[8] is None else _separated_again(match, held_out, confidence)


def _separated_again(match: re.Match[str], held_out: int, confidence: float) -> str | None:
    """Recompute the separation from its own counts, and the share from both numbers; None if they agree."""
    right, wrong = int(match[11]), int(match[12])
    if max(right, wrong) > held_out:
        return "the audited separation rests on impossible counts."
    again = Separation.of_counts((wrong, right), held_out, confidence, "", 0.0, 1)
    if f"{again.mu_lower:.4f}" != match[9]:
        return f"the counts of the audit prove a separation of {again.mu_lower:.4f}, not {match[9]}."
    proven = float(match[10])
    if again.mu_lower > proven + 1e-4:
        return "the audited separation exceeds the proven one: the proof would be refuted."
    shares = {share_text(again.mu_lower, max(proven + error, 1e-9)) for error in (-5e-5, 0.0, 5e-5)}
    return None if match[8] in shares else f"{match[8]} is not the share that {match[9]} is of {match[10]}."


def guarantees(request: Request, *events: Event) -> tuple[Guarantee, Guarantee]:
    """Return the requested guarantee, and the guarantee that the events prove at the request's delta."""
    delta, adjacency = request.delta or 0.0, (events[0].unit, events[0].relation)
    claimed = Guarantee(request.epsilon, delta, *adjacency, "asked for")
    epsilon = compose_epsilon(events, delta)
    proven = Guarantee(epsilon, delta if math.isfinite(epsilon) else 0.0, *adjacency, f"accountant, {events[0].kind}")
    return claimed, proven


def released_case(
    method: str,
    request: Request,
    events: Sequence[Event],
    pair: Pair,
    release: Callable[[Tensor, Noise], Tensor],
    statistic: Maker,
    claimed: Guarantee | None = None,
    **more: Any,
) -> AuditCase:
    """Return the case of a release that these events price; claim None = the request."""
    requested, proven = guarantees(request, *events)
    return AuditCase(method, pair, claimed or requested, proven, release, (statistic,), events=tuple(events), **more)


def asked_of(config: Any) -> Request:
    """Return the epsilon and delta that a run keeps to, as a request."""
    return Request(config.privacy.epsilon, config.privacy.delta)


def _adjacency(request: Request) -> tuple[Unit, Relation]:
    return request.unit or Unit.IMAGE, request.relation or Relation.REPLACE_ONE


def _scalar(name: str, kind: Any, request: Request) -> AuditCase:
    """Return the case of noise on one number of sensitivity 1, or of a thousand steps for a discrete mechanism."""
    discrete = kind in (DiscreteLaplace, RoundedGaussian)

    def mechanism_of(multiplier: float) -> Mechanism:
        if discrete:
            steps = _STEPS if kind is DiscreteLaplace else float(_STEPS)
            made: Mechanism = kind(steps, math.ceil(multiplier * _STEPS), *_adjacency(request))
        else:
            made = kind(1.0, multiplier, *_adjacency(request))
        return made

    budget = request.epsilon, request.delta or 0.0
    mechanism = mechanism_of(calibrate(lambda multiplier: [mechanism_of(multiplier).event], *budget))
    zero = torch.zeros(1, dtype=torch.int64 if discrete else torch.float64)
    pair = Pair("0 against the sensitivity", zero, zero + (_STEPS if discrete else 1))
    claimed, proven = guarantees(request, mechanism.event)
    ratio = likelihood_ratio(mechanism)
    return AuditCase(name, pair, claimed, proven, mechanism, (ratio,), events=(mechanism.event,))


def _selection(name: str, kind: type[Exponential] | type[NoisyMax], request: Request) -> AuditCase:
    """Return the case of a choice among scores of sensitivity 1: one rises by 1, all others fall by 1."""
    mechanism = kind(1.0, request.epsilon, *_adjacency(request))
    scores = torch.ones(_CHOICES, dtype=torch.float64)
    scores[0] = 0.0
    maker: Maker = Outcomes if isinstance(mechanism, NoisyMax) else likelihood_ratio(mechanism)
    pair = Pair("one score worst against the same score best", scores, 1 - scores)
    claimed, proven = guarantees(request, mechanism.event)
    return AuditCase(name, pair, claimed, proven, mechanism, (maker,), events=(mechanism.event,))


def _randomized_response(request: Request) -> AuditCase:
    """Return the case of one label out of ten."""
    mechanism = RandomizedResponse(_CATEGORIES, request.epsilon, *_adjacency(request))
    pair = Pair("label 0 against label 1", torch.tensor([0]), torch.tensor([1]))
    claimed, proven = guarantees(request, mechanism.event)
    ratio = likelihood_ratio(mechanism)
    return AuditCase("randomized-response", pair, claimed, proven, mechanism, (ratio,), events=(mechanism.event,))


def _lap(request: Request) -> AuditCase:
    """Return the case of Laplace noise on every pixel of a 112 x 92 image in [0, 1] (the publisher `lap`).

    Noise is sized for the L1 distance of the unit where delta is 0, else for each of its pixels by their joint PLD.
    """
    unit, relation = _adjacency(request)
    rows, columns = IMAGE_SHAPE
    touched = {Unit.PIXEL: 1, Unit.COLUMN: rows, Unit.IMAGE: rows * columns}[unit]
    count, distance = (1, touched) if not request.delta else (touched, 1)  # number of releases, L1 distance of each
    discrete = request.law == "discrete-laplace"
    grid = Grid.fine(distance, distance, norm=1) if discrete else Grid(1.0)
    steps = grid.l1(distance, distance)

    def mechanism_of(multiplier: float) -> Mechanism:
        if discrete:
            return DiscreteLaplace(steps, math.ceil(multiplier * steps), unit, relation)
        return Laplace(float(distance), multiplier, unit, relation)

    budget = request.epsilon, request.delta or 0.0
    mechanism = mechanism_of(calibrate(lambda multiplier: [mechanism_of(multiplier).event.repeated(count)], *budget))
    scale = (mechanism.event.noise_multiplier or 0.0) * (steps * grid.step if discrete else distance)

    def release(values: Tensor, noise: Noise) -> Tensor:
        inside = values.clamp(0, 1)
        return grid.value(mechanism(grid.round(inside), noise)) if discrete else mechanism(inside, noise)

    pair = PAIRS[request.pair or "extremes"](IMAGE_SHAPE, unit)
    event = mechanism.event.repeated(count)
    claimed, proven = guarantees(request, event)
    maker: Maker = lambda data, neighbor: Nearness(data, neighbor, unit=scale)  # noqa: E731
    notes = ("pixels that do not differ are independent of everything and were not simulated",)
    return AuditCase("lap", pair, claimed, proven, release, (maker,), entrywise=True, notes=notes, events=(event,))


CASES: dict[str, Entry] = {
    "laplace": Entry(functools.partial(_scalar, "laplace", Laplace)),
    "gaussian-noise": Entry(functools.partial(_scalar, "gaussian-noise", Gaussian), delta=1e-5),
    "discrete-laplace": Entry(functools.partial(_scalar, "discrete-laplace", DiscreteLaplace)),
    "rounded-gaussian": Entry(functools.partial(_scalar, "rounded-gaussian", RoundedGaussian), delta=1e-5),
    "exponential": Entry(functools.partial(_selection, "exponential", Exponential)),
    "noisy-max": Entry(functools.partial(_selection, "noisy-max", NoisyMax)),
    "randomized-response": Entry(_randomized_response, (Unit.LABEL,), (Relation.REPLACE_ONE,)),
    "lap": Entry(
        _lap,
        (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE),
        (Relation.REPLACE_ONE,),
        options={"pair": tuple(PAIRS), "law": ("discrete-laplace", "laplace")},
    ),
}
