r"""Mechanisms: frozen objects whose price, ``.event``, is known before ``mechanism(answer, noise)`` reads anything.

Every mechanism fails closed: an answer that is not finite raises, nothing is returned without noise, and no noise
code stands inside a ``try``. One call is one release of *all* entries of its argument. Independent rows of disjoint
records may be released in one batched call, which costs one event by parallel composition: for zero-out-one if the
choice of a record's row depends on that record alone, for any relation if it depends on the record's position alone.

Each mechanism's proof is in its docstring, with ``D ~ D'`` neighbors for its `unit` and `relation`. A `sensitivity` is
a declared constant in the unit of the answer, or in grid steps (`Grid`) with rounding included.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from scipy.special import ndtri

from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.lazy import torch
from idpgan.privacy.discrete import MAX_SCALE, discrete_laplace, rounded_gaussian
from idpgan.privacy.event import LARGEST, MOST, Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.noise import Noise

_MAX_STEPS = 1 << 53  # largest value on a grid, in steps: beyond it float64 skips integers


def check_positive(owner: str, name: str, value: Any) -> None:
    """Refuse anything but a positive and finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        raise InputError(f"{owner}: {name} = {value!r} must be a number, positive and finite.")


class Mechanism(ABC):
    """A randomized answer with a price: a frozen dataclass that checks its numbers by their types when it is made."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    # Range of the whole-number fields, as numbers and in words.
    whole: ClassVar = (1, MAX_SCALE, f"a whole number of grid steps in 1 .. {MAX_SCALE}; choose a coarser grid.")

    def __post_init__(self) -> None:
        self.check(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    @classmethod
    def check(cls, unit: Unit, relation: Relation, **values: Any) -> None:
        """Refuse fields of another type or out of range; a number must be positive and finite."""
        if not (isinstance(unit, Unit) and isinstance(relation, Relation)):
            raise InputError(f"{cls.__name__}: needs a Unit and a Relation, got {unit!r} and {relation!r}.")
        least, most, words = cls.whole
        for name, value in values.items():
            kind = cls.__dataclass_fields__[name].type
            if kind in ("int", int) and not (type(value) is int and least <= value <= most):
                raise InputError(f"{cls.__name__}: {name} = {value!r} must be {words}")
            if kind in ("float", float):
                check_positive(cls.__name__, name, value)

    @property
    @abstractmethod
    def event(self) -> Event:
        """Price of one call."""

    @abstractmethod
    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release ``answer``."""


def _miss(alpha: float, numbers: int) -> float:
    """Return how often one of k independent errors may be too large, if the largest may in a share alpha of cases."""
    if not 0 < alpha < 1 or not (type(numbers) is int and numbers >= 1):
        raise InputError(f"alpha = {alpha!r} must be in (0, 1), and numbers = {numbers!r} a whole number from 1 on.")
    return -math.expm1(math.log1p(-alpha) / numbers)


def _check_finite(answer: torch.Tensor) -> None:
    if not (answer.is_floating_point() and bool(answer.isfinite().all())):
        raise ValueError(f"the answer must be finite floating point (NaN + noise is still NaN), got {answer.dtype}.")


@dataclasses.dataclass(frozen=True)
class _Additive(Mechanism):
    """Continuous noise on real numbers, of scale ``noise_multiplier * sensitivity``."""

    sensitivity: float
    noise_multiplier: float
    unit: Unit
    relation: Relation
    law: ClassVar[str]  # kind of the event

    @property
    def event(self) -> Event:
        """Price of one call."""
        return Event(self.law, self.unit, self.relation, self.noise_multiplier)

    def within(self, alpha: float, numbers: int = 1) -> float:
        """Return the error that the largest of so many numbers' errors exceeds with probability alpha, in (0, 1).

        Exact for continuous noise. Dwork and Roth (2014, theorem 3.8) bound it for Laplace noise by the sum of the
        chances, ``scale log(numbers / alpha)``, which is little more.

        Example:
            >>> from idpgan.privacy import Unit
            >>> counts = Laplace(1.0, 1.0, Unit.IMAGE, Relation.REPLACE_ONE)  # 10,000 surnames at epsilon 1
            >>> round(counts.within(0.05, 10_000), 2)
            12.18
        """
        miss = _miss(alpha, numbers)
        reach = -math.log(miss) if self.law == "laplace" else -float(ndtri(miss / 2))
        return reach * self.noise_multiplier * self.sensitivity

    @own_state()
    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release a finite floating-point tensor of any shape; it is not clamped."""
        _check_finite(answer)
        drawn = noise.laplace(answer.shape) if self.law == "laplace" else noise.normal(answer.shape)
        drawn = drawn * (self.noise_multiplier * self.sensitivity)
        released = (answer.double() + drawn.to(answer.device)).to(answer.dtype)
        if not bool(released.isfinite().all()):
            raise ValueError(f"the noisy answer overflows {answer.dtype}; lower the noise scale or use float64.")
        return released


class Laplace(_Additive):
    """Continuous Laplace noise: ``answer + Lap(scale)`` with ``scale = noise_multiplier * sensitivity``.

    Formal guarantee: pure epsilon = 1 / noise_multiplier, since ``|log p(y)/p'(y)| <= ||f(D) - f(D')||_1 / scale``.
    (epsilon, delta): dominated by the one-dimensional pair Lap(0, 1), Lap(1 / noise_multiplier, 1) however the L1
    distance spreads over coordinates. Moving one coordinate after the other is a chain of one-dimensional
    location families; the noise is log-concave, so the chain's trade-off function equals that of the whole distance
    in one coordinate (group privacy, Dong, Roth, Su 2022, Theorem 2.14, tight under monotone likelihood ratio).
    Floating point leaks through low-order bits (Mironov 2012), so releases use `DiscreteLaplace`.

    Attributes:
        sensitivity: Bound on ``||f(D) - f(D')||_1``.
        noise_multiplier: Noise scale b / sensitivity.
    """

    law = "laplace"


class Gaussian(_Additive):
    """Continuous Gaussian noise: ``answer + N(0, std^2)`` with ``std = noise_multiplier * sensitivity``.

    Formal guarantee: for any pair of neighbors the answers differ by a vector of L2 norm <= sensitivity; rotation
    makes it one coordinate, so the pair N(0, 1), N(1 / noise_multiplier, 1) dominates (Balle and Wang 2018).

    Attributes:
        sensitivity: Bound on ``||f(D) - f(D')||_2``.
        noise_multiplier: Noise standard deviation / sensitivity.
    """

    law = "gaussian"


@dataclasses.dataclass(frozen=True)
class _OnGrid(Mechanism):
    """Whole noise on whole grid steps, drawn exactly."""

    sensitivity: float
    scale: int
    unit: Unit
    relation: Relation
    law: ClassVar[str]  # kind of the event

    @property
    def event(self) -> Event:
        """Price of one call."""
        steps = int(self.sensitivity) if self.law == "discrete-laplace" else None
        return Event(self.law, self.unit, self.relation, self.scale / self.sensitivity, sensitivity=steps)

    def within(self, alpha: float, numbers: int = 1) -> int:
        """Return the error, in grid steps, that the largest of so many exceeds with probability alpha at most."""
        miss = _miss(alpha, numbers)
        if self.law == "discrete-laplace":  # P(|x| > t) = 2 e^(-(t + 1) / scale) / (1 + e^(-1 / scale))
            steps = self.scale * math.log(2 / (miss * (1 + math.exp(-1 / self.scale)))) - 1
            return max(0, math.ceil(steps))
        return math.floor(-float(ndtri(miss / 2)) * self.scale + 0.5)

    @own_state()
    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release whole grid steps, int64, any shape; what could wrap around 64 bits is refused."""
        if answer.dtype != torch.int64 or bool((answer.abs() >= 1 << 61).any()):
            raise ValueError(
                f"the answer must be whole grid steps, int64, below 2^61 (Grid.round), got {answer.dtype}."
            )
        draw = discrete_laplace if self.law == "discrete-laplace" else rounded_gaussian
        drawn = draw(self.scale, answer.numel(), noise)
        if bool((drawn.abs() >= 1 << 61).any()):
            raise ValueError("the discrete noise left the 64-bit range.")
        return answer + drawn.reshape(answer.shape).to(answer.device)


@dataclasses.dataclass(frozen=True)
class DiscreteLaplace(_OnGrid):
    """Discrete Laplace noise on a grid, sampled exactly: ``steps + x`` with ``P(x) ~ exp(-|x| / scale)``.

    Formal guarantee: pure epsilon = sensitivity / scale. (epsilon, delta): the one-dimensional pair at distance
    ``sensitivity`` dominates, by the argument of `Laplace`, since the discrete distribution is log-concave too.

    Attributes:
        sensitivity: Bound on ``||f(D) - f(D')||_1`` in grid steps (`Grid.l1`).
        scale: Noise scale in whole grid steps, 1 .. 2^50.
    """

    sensitivity: int
    law = "discrete-laplace"


class RoundedGaussian(_OnGrid):
    """Gaussian noise rounded to the grid, sampled exactly: ``steps + round(Z)``, Z ~ N(0, scale^2) on each number.

    Formal guarantee: that of the continuous Gaussian of the same scale, however many numbers the answer has. On whole
    numbers ``x + round(Z) = round(x + Z)`` (a tie has probability 0), so the release is post-processing of x + Z, whose
    neighbors differ by at most `sensitivity` in L2; see `Gaussian`. The sampler is exact (Karney 2016, integers only),
    so it adds nothing to delta.

    Attributes:
        sensitivity: Bound on ``||f(D) - f(D')||_2`` in grid steps (`Grid.l2`).
        scale: Standard deviation of Z in whole grid steps, 1 .. 2^50.
    """

    law = "gaussian"


@dataclasses.dataclass(frozen=True)
class _Choice(Mechanism):
    """The choice of a large score, in floating point."""

    sensitivity: float
    epsilon: float
    unit: Unit
    relation: Relation
    monotone: bool = False

    @property
    def event(self) -> Event:
        """Price of one call."""
        return Event("exponential", self.unit, self.relation, pure_epsilon=self.epsilon)


class Exponential(_Choice):
    """Exponential mechanism: draws an index with ``P(i) ~ exp(epsilon * score_i / (2 sensitivity))``.

    Formal guarantee: pure epsilon (McSherry and Talwar 2007). The index is that of the largest score with Gumbel noise,
    which has the same law: report noisy max with Gumbel noise. Where all scores move in one direction, numerator and
    normalization of P(i) move by ``sensitivity`` at most each, and in the same direction: the factor 2 may be left out.

    Attributes:
        sensitivity: Bound on ``max_i |score_i(D) - score_i(D')|``.
        epsilon: Price of one draw.
        monotone: Whether, between any two neighbors, no score rises where another falls: counts under zero-out-one.
    """

    @own_state()
    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Choose among the last axis of finite scores (..., K), larger is better; int64 (...)."""
        _check_finite(answer)
        gumbel = -(-noise.uniform(answer.shape).log()).log()
        rate = self.epsilon / ((1 if self.monotone else 2) * self.sensitivity)
        return (answer.double() * rate + gumbel.to(answer.device)).argmax(-1)


class NoisyMax(_Choice):
    """Report noisy max: the index of the largest ``score_i + Lap(2 sensitivity / epsilon)``.

    Formal guarantee: pure epsilon (Dwork and Roth 2014, Claim 3.9: Lap(sensitivity / epsilon) where all scores move in
    one direction, twice that otherwise). The noisy maximum itself is not released.

    Attributes:
        sensitivity: Bound on ``max_i |score_i(D) - score_i(D')|``.
        epsilon: Price of one answer.
        monotone: Whether no score rises where another falls, as for `Exponential`.
    """

    @own_state()
    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Choose among the last axis of finite scores (..., K), larger is better; int64 (...)."""
        noisy = Laplace(self.sensitivity, (1 if self.monotone else 2) / self.epsilon, self.unit, self.relation)
        return noisy(answer.double(), noise).argmax(-1)


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """k-ary randomized response: the true label with probability ``e^eps / (e^eps + k - 1)``, else another.

    Formal guarantee: pure epsilon for the label of one record, replace-one (Warner 1965; Kairouz et al. 2014). The
    event refuses any other relation.

    Attributes:
        categories: Number of labels k >= 2; labels are 0 .. k - 1.
        epsilon: Price of one label.
    """

    categories: int
    epsilon: float
    unit: Unit = Unit.LABEL
    relation: Relation = Relation.REPLACE_ONE

    whole = (2, MOST, "a whole number in 2 .. 2^62.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon > 30:
            raise InputError(
                f"RandomizedResponse: epsilon = {self.epsilon} must be at most 30: above, it hides nothing."
            )

    @property
    def event(self) -> Event:
        """Price of one call."""
        return Event(
            "randomized-response", self.unit, self.relation, pure_epsilon=self.epsilon, categories=self.categories
        )

    @property
    def probabilities(self) -> tuple[float, float]:
        """Chance of the true label and of each other label, needed to invert the response."""
        odds = math.exp(self.epsilon)
        return odds / (odds + self.categories - 1), 1 / (odds + self.categories - 1)

    @own_state()
    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Randomize int64 labels in 0 .. categories - 1, any shape."""
        if answer.dtype != torch.int64 or bool(((answer < 0) | (answer >= self.categories)).any()):
            raise ValueError(f"labels must be int64 in 0 .. {self.categories - 1}.")
        odds = (self.categories - 1) * math.exp(-self.epsilon)
        lie_probability = odds / (1 + odds)
        # Rounded up: if lies are rarer than stated, even by 1e-16, delta grows by e^epsilon times that.
        bound = min(math.ceil(lie_probability * (1 + 2.0**-50) * MOST), MOST)
        lie = (noise.integers(MOST, answer.shape) < bound).to(answer.device)
        offset = 1 + noise.integers(self.categories - 1, answer.shape).to(answer.device)
        return torch.where(lie, (answer + offset) % self.categories, answer)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Multiples of a public ``step``, a power of two, so that scaling to and from steps is exact in float64.

    Rounding a real query moves each of its d coordinates by at most half a step. The difference of two neighbors moves
    by at most one step per coordinate, so the rounded query's sensitivity is ``sensitivity / step + d`` steps in L1 and
    ``sensitivity / step + sqrt(d)`` in L2 (triangle inequality). A sum of records that were rounded *before* summation
    is whole already: pass the norm bound of one rounded record and d = 0.
    """

    step: float

    def __post_init__(self) -> None:
        if not (0 < self.step < math.inf and math.frexp(self.step)[0] == 0.5):
            raise InputError(f"grid step = {self.step} must be a power of two, such as {2**-10}.")

    @classmethod
    def fine(cls, sensitivity: float, dimensions: int, *, norm: int, resolution: int = 1000) -> Self:
        """Return the coarsest grid on which rounding adds about 1/resolution to the sensitivity (at most 2/resolution).

        Args:
            sensitivity: Sensitivity of the unrounded query, a declared constant, > 0.
            dimensions: Number d of coordinates that one neighbor can change, >= 1.
            norm: 1 or 2.
            resolution: 1000 means that rounding costs 0.1 to 0.2 % of epsilon.
        """
        if not 0 < sensitivity < math.inf or dimensions < 1 or norm not in (1, 2):
            raise InputError(f"no grid for sensitivity {sensitivity}, {dimensions} dimensions, norm L{norm}.")
        widest = sensitivity / (resolution * (dimensions if norm == 1 else math.sqrt(dimensions)))
        return cls(2.0 ** math.floor(math.log2(widest)))

    def l1(self, sensitivity: float, dimensions: int) -> int:
        """Return the L1 sensitivity of the rounded query in whole steps (rounded up)."""
        return math.ceil(sensitivity / self.step) + dimensions

    def l2(self, sensitivity: float, dimensions: int) -> float:
        """Return the L2 sensitivity of the rounded query in steps."""
        return sensitivity / self.step + math.sqrt(dimensions)

    @own_state()
    def round(self, values: torch.Tensor) -> torch.Tensor:
        """Return the nearest number of steps, int64; raises `ValueError` if it is not finite or beyond 2^53."""
        steps = values.double() / self.step
        if not bool((steps.abs() < _MAX_STEPS).all()):  # NaN and infinity fail the comparison too
            raise ValueError(f"values must be finite and below 2^53 grid steps of {self.step:g}.")
        return steps.round().long()

    @own_state()
    def value(self, steps: torch.Tensor) -> torch.Tensor:
        """Return the real value of whole steps, float64: exact."""
        return steps.double() * self.step
