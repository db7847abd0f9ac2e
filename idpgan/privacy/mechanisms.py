r"""Mechanisms: frozen objects whose price, ``.event``, is known before ``mechanism(answer, noise)`` reads anything.

Every mechanism fails closed: an answer that is not finite raises, nothing is returned without noise, and no noise
code stands inside a ``try``. One call is one release of *all* entries of its argument. Independent rows of disjoint
records may be released in one batched call, which costs one event by parallel composition: for zero-out-one if the
choice of a record's row depends on that record alone, for any relation if it depends on the record's position alone.

Each mechanism's proof is in its docstring, with ``D ~ D'`` neighbors for its `unit` and `relation`. A `sensitivity` is
a declared constant in the unit of the answer, or in grid steps (`Grid`) with rounding included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from idpgan.errors import InputError
from idpgan.privacy.discrete import (
    MAX_GAUSSIAN_SCALE,
    MAX_LAPLACE_SCALE,
    discrete_laplace,
    rounded_gaussian,
)
from idpgan.privacy.event import LARGEST, MOST, Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.noise import Noise

_COIN = 1 << 62  # equally likely values of a coin


class Mechanism(Protocol):
    """A randomized answer with a price."""

    @property
    def event(self) -> Event:
        """What one call costs."""
        ...

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release ``answer``."""
        ...


def _check_positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
            raise InputError(f"{owner}: {name} = {value!r} must be a number, positive and finite.")


def _check_whole(owner: str, most: int, **values: int) -> None:
    for name, value in values.items():
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(
                f"{owner}: {name} = {value!r} must be a whole number of grid steps in 1 .. {most}; "
                "choose a coarser grid."
            )


def _check_neighbors(owner: str, unit: Unit, relation: Relation) -> None:
    if not (isinstance(unit, Unit) and isinstance(relation, Relation)):
        raise InputError(f"{owner}: needs a Unit and a Relation, got {unit!r} and {relation!r}.")


def _check_finite(answer: torch.Tensor) -> None:
    if not (answer.is_floating_point() and bool(answer.isfinite().all())):
        raise ValueError(f"the answer must be finite floating point (NaN + noise is still NaN), got {answer.dtype}.")


def _add(answer: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Add float64 noise, and refuse a result that is not finite."""
    released = (answer.double() + noise.to(answer.device)).to(answer.dtype)
    if not bool(released.isfinite().all()):
        raise ValueError(f"the noisy answer overflows {answer.dtype}; lower the noise scale or use float64.")
    return released


@dataclass(frozen=True)
class Laplace:
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

    sensitivity: float
    noise_multiplier: float
    unit: Unit
    relation: Relation

    def __post_init__(self) -> None:
        _check_neighbors("Laplace", self.unit, self.relation)
        _check_positive("Laplace", sensitivity=self.sensitivity, noise_multiplier=self.noise_multiplier)

    @property
    def event(self) -> Event:
        """Price of one call."""
        return Event("laplace", self.unit, self.relation, self.noise_multiplier)

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release a finite floating-point tensor of any shape; it is not clamped."""
        _check_finite(answer)
        first, second = noise.uniform((2, *answer.shape))
        laplace = second.div_(first).log_()  # log u' - log u: a difference of two exponentials is Laplace
        return _add(answer, laplace.mul_(self.noise_multiplier * self.sensitivity))


@dataclass(frozen=True)
class Gaussian:
    """Continuous Gaussian noise: ``answer + N(0, std^2)`` with ``std = noise_multiplier * sensitivity``.

    Formal guarantee: for any pair of neighbors the answers differ by a vector of L2 norm <= sensitivity; rotation
    makes it one coordinate, so the pair N(0, 1), N(1 / noise_multiplier, 1) dominates (Balle and Wang 2018).

    Attributes:
        sensitivity: Bound on ``||f(D) - f(D')||_2``.
        noise_multiplier: Noise standard deviation / sensitivity.
    """

    sensitivity: float
    noise_multiplier: float
    unit: Unit
    relation: Relation

    def __post_init__(self) -> None:
        _check_neighbors("Gaussian", self.unit, self.relation)
        _check_positive("Gaussian", sensitivity=self.sensitivity, noise_multiplier=self.noise_multiplier)

    @property
    def event(self) -> Event:
        """Price of one call."""
        return Event("gaussian", self.unit, self.relation, self.noise_multiplier)

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release a finite floating-point tensor of any shape; it is not clamped."""
        _check_finite(answer)
        return _add(answer, noise.normal(answer.shape) * (self.noise_multiplier * self.sensitivity))


def _add_steps(steps: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Add integer noise to an integer answer, refusing anything that could wrap around 64 bits."""
    if bool((noise.abs() >= 1 << 61).any()):
        raise ValueError("the discrete noise left the 64-bit range.")
    return steps + noise.reshape(steps.shape).to(steps.device)


def _check_steps(steps: torch.Tensor) -> None:
    if steps.dtype != torch.int64 or bool((steps.abs() >= 1 << 61).any()):
        raise ValueError(f"the answer must be whole grid steps, int64, below 2^61 (Grid.round), got {steps.dtype}.")


@dataclass(frozen=True)
class DiscreteLaplace:
    """Discrete Laplace noise on a grid, sampled exactly: ``steps + x`` with ``P(x) ~ exp(-|x| / scale)``.

    Formal guarantee: pure epsilon = sensitivity / scale. (epsilon, delta): the one-dimensional pair at distance
    ``sensitivity`` dominates, by the argument of `Laplace`, since the discrete distribution is log-concave too.

    Attributes:
        sensitivity: Bound on ``||f(D) - f(D')||_1`` in grid steps (`Grid.l1`).
        scale: Noise scale in whole grid steps, 1 .. 2^50.
    """

    sensitivity: int
    scale: int
    unit: Unit
    relation: Relation

    def __post_init__(self) -> None:
        _check_neighbors("DiscreteLaplace", self.unit, self.relation)
        _check_whole("DiscreteLaplace", MAX_LAPLACE_SCALE, sensitivity=self.sensitivity, scale=self.scale)

    @property
    def event(self) -> Event:
        """Price of one call."""
        multiplier = self.scale / self.sensitivity
        return Event("discrete-laplace", self.unit, self.relation, multiplier, sensitivity=self.sensitivity)

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release whole grid steps, int64, any shape."""
        _check_steps(answer)
        return _add_steps(answer, discrete_laplace(self.scale, answer.numel(), noise))


@dataclass(frozen=True)
class RoundedGaussian:
    """Gaussian noise rounded to the grid, sampled exactly: ``steps + round(Z)``, Z ~ N(0, scale^2) on each number.

    Formal guarantee: that of the continuous Gaussian of the same scale, however many numbers the answer has. On whole
    numbers ``x + round(Z) = round(x + Z)`` (a tie has probability 0), so the release is post-processing of x + Z, whose
    neighbors differ by at most `sensitivity` in L2; see `Gaussian`. The sampler is exact (Karney 2016, integers only),
    so nothing is added to delta for it.

    Attributes:
        sensitivity: Bound on ``||f(D) - f(D')||_2`` in grid steps (`Grid.l2`).
        scale: Standard deviation of Z in whole grid steps, 1 .. 2^50.
    """

    sensitivity: float
    scale: int
    unit: Unit
    relation: Relation

    def __post_init__(self) -> None:
        _check_neighbors("RoundedGaussian", self.unit, self.relation)
        _check_positive("RoundedGaussian", sensitivity=self.sensitivity)
        _check_whole("RoundedGaussian", MAX_GAUSSIAN_SCALE, scale=self.scale)

    @property
    def event(self) -> Event:
        """Price of one call."""
        return Event("gaussian", self.unit, self.relation, self.scale / self.sensitivity)

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release whole grid steps, int64, any shape."""
        _check_steps(answer)
        return _add_steps(answer, rounded_gaussian(self.scale, answer.numel(), noise))


@dataclass(frozen=True)
class Exponential:
    """Exponential mechanism: draws an index with ``P(i) ~ exp(epsilon * score_i / (2 sensitivity))``.

    Formal guarantee: pure epsilon (McSherry and Talwar 2007). Sampled as the index of the largest score with Gumbel
    noise, which is the same law: report noisy max with Gumbel noise. Where all scores move in one direction, numerator
    and normalization of P(i) move by ``sensitivity`` at most each, and in the same direction: 2 may be left out.

    Attributes:
        sensitivity: Bound on ``max_i |score_i(D) - score_i(D')|``.
        epsilon: Price of one draw.
        monotone: Whether, between any two neighbors, no score rises where another falls: counts under zero-out-one.
    """

    sensitivity: float
    epsilon: float
    unit: Unit
    relation: Relation
    monotone: bool = False

    def __post_init__(self) -> None:
        _check_neighbors("Exponential", self.unit, self.relation)
        _check_positive("Exponential", sensitivity=self.sensitivity, epsilon=self.epsilon)

    @property
    def event(self) -> Event:
        """Price of one draw."""
        return Event("exponential", self.unit, self.relation, pure_epsilon=self.epsilon)

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Choose among the last axis of finite scores (..., K), larger is better; int64 (...)."""
        _check_finite(answer)
        gumbel = -(-noise.uniform(answer.shape).log()).log()
        rate = self.epsilon / ((1 if self.monotone else 2) * self.sensitivity)
        return (answer.double() * rate + gumbel.to(answer.device)).argmax(-1)


@dataclass(frozen=True)
class NoisyMax:
    """Report noisy max: the index of the largest ``score_i + Lap(2 sensitivity / epsilon)``.

    Formal guarantee: pure epsilon (Dwork and Roth 2014, Claim 3.9: Lap(sensitivity / epsilon) where all scores move in
    one direction, twice that otherwise). The noisy maximum itself is not released. `selection.PermuteAndFlip` is never
    worse, and exact.

    Attributes:
        sensitivity: Bound on ``max_i |score_i(D) - score_i(D')|``.
        epsilon: Price of one answer.
        monotone: See `Exponential`.
    """

    sensitivity: float
    epsilon: float
    unit: Unit
    relation: Relation
    monotone: bool = False

    def __post_init__(self) -> None:
        _check_neighbors("NoisyMax", self.unit, self.relation)
        _check_positive("NoisyMax", sensitivity=self.sensitivity, epsilon=self.epsilon)

    @property
    def event(self) -> Event:
        """Price of one answer."""
        return Event("exponential", self.unit, self.relation, pure_epsilon=self.epsilon)

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Choose among the last axis of finite scores (..., K), larger is better; int64 (...)."""
        noisy = Laplace(self.sensitivity, (1 if self.monotone else 2) / self.epsilon, self.unit, self.relation)
        return noisy(answer.double(), noise).argmax(-1)


@dataclass(frozen=True)
class RandomizedResponse:
    """k-ary randomized response: the true label with probability ``e^eps / (e^eps + k - 1)``, else another one.

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

    def __post_init__(self) -> None:
        _check_neighbors("RandomizedResponse", self.unit, self.relation)
        _check_positive("RandomizedResponse", epsilon=self.epsilon)
        if type(self.categories) is not int or not 2 <= self.categories <= MOST:
            raise InputError(
                f"RandomizedResponse: categories = {self.categories!r} must be a whole number in 2 .. 2^62."
            )
        if self.epsilon > 30:
            raise InputError(
                f"RandomizedResponse: epsilon = {self.epsilon} must be at most 30: above, it hides nothing."
            )

    @property
    def event(self) -> Event:
        """Price of one label."""
        return Event(
            "randomized-response", self.unit, self.relation, pure_epsilon=self.epsilon, categories=self.categories
        )

    @property
    def probabilities(self) -> tuple[float, float]:
        """Chance of the true label, and of each other one, for whoever inverts the response."""
        odds = math.exp(self.epsilon)
        return odds / (odds + self.categories - 1), 1 / (odds + self.categories - 1)

    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Randomize int64 labels in 0 .. categories - 1, any shape."""
        if answer.dtype != torch.int64 or bool(((answer < 0) | (answer >= self.categories)).any()):
            raise ValueError(f"labels must be int64 in 0 .. {self.categories - 1}.")
        odds = (self.categories - 1) * math.exp(-self.epsilon)
        lie_probability = odds / (1 + odds)
        # Rounded up: a lie rarer than stated, were it by 1e-16, costs e^epsilon times that in delta.
        bound = min(math.ceil(lie_probability * (1 + 2.0**-50) * _COIN), _COIN)
        lie = (noise.integers(_COIN, answer.shape) < bound).to(answer.device)
        offset = 1 + noise.integers(self.categories - 1, answer.shape).to(answer.device)
        return torch.where(lie, (answer + offset) % self.categories, answer)
