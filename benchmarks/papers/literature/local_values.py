"""Local release of several values of a device: counts of k labels, and means of k numbers.

Every device perturbs its own record, and whoever collects sees nothing else (Ye, Meng, Zhu, Huo 2018, a survey). With k
values in a record the budget is split, epsilon / k for each; or one of the k is drawn and takes all of it, which has
about a k-th of the variance (Duchi, Jordan, Wainwright 2013; Nguyen et al. 2016, arXiv:1606.05053).

Formal guarantee: unit one device's record, any other in its place, pure epsilon. A drawn value is chosen without a look
at the record and goes through a mechanism of pure epsilon, so that the ratio of chances is at most e^epsilon for each
choice, and for their mixture. Split, the k prices add up.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from idpgan.checks import whole
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import DiscreteLaplace, Grid, RandomizedResponse
from idpgan.privacy.noise import Noise

_MOST = 1 << 16  # values of a record


class Reports(NamedTuple):
    """What N devices send: ``which`` of the values, int64 (N, m), and these, perturbed, (N, m); m is 1 or k."""

    which: Tensor
    values: Tensor


@dataclass(frozen=True)
class _Record:
    """What one device perturbs of its k values.

    Attributes:
        num_values: k, 1 .. 65,536.
        epsilon: Of the whole record, > 0.
        split: Whether all k values are sent at epsilon / k each; else one that is drawn, at epsilon.
        unit: What one device's record is.
    """

    num_values: int
    epsilon: float
    split: bool = False
    unit: Unit = Unit.PERSON

    def __post_init__(self) -> None:
        whole(self.num_values, "num_values", 1, _MOST)
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"epsilon = {self.epsilon} must be positive and finite.")

    def _send(self, values: Tensor, noise: Noise) -> Reports:
        """Return all values (N, k) of each device, or one that is drawn."""
        if values.ndim != 2 or values.shape[1] != self.num_values:
            raise InputError(f"records must be (N, {self.num_values}), got {tuple(values.shape)}.")
        if self.split:
            return Reports(torch.arange(self.num_values).expand(values.shape), values)
        which = noise.integers(self.num_values, (len(values), 1))
        return Reports(which, values.gather(1, which))

    def _mean(self, reports: Reports, numbers: Tensor) -> Tensor:
        """Return the mean of numbers (N, m, ...) by value, (k, ...); NaN where no device sent a value."""
        which, each = reports.which.flatten(), numbers.flatten(0, 1).double()
        total = torch.zeros(self.num_values, *each.shape[1:], dtype=torch.float64).index_add_(0, which, each)
        count = which.bincount(minlength=self.num_values)
        return total / count.view(-1, *[1] * (total.ndim - 1))


@dataclass(frozen=True)
class LocalNumbers(_Record):
    """Means of k numbers in [-1, 1]: discrete Laplace noise on a public grid; see the module."""

    grid: ClassVar[Grid] = Grid.fine(2.0, 1, norm=1, resolution=10_000)  # rounding costs 0.01 to 0.02 % of epsilon

    @functools.cached_property
    def mechanism(self) -> DiscreteLaplace:
        """The noise of all numbers that a device sends, in grid steps."""
        sent = self.num_values if self.split else 1
        distance = self.grid.l1(2.0 * sent, sent)
        return DiscreteLaplace(distance, math.ceil(distance / self.epsilon), self.unit, Relation.REPLACE_ONE)

    @property
    def event(self) -> Event:
        """Price of one report of a device."""
        return self.mechanism.event

    @own_state()
    def report(self, records: Tensor, noise: Noise) -> Reports:
        """Perturb records, floating point (N, k); numbers are clipped to [-1, 1], and NaN counts as 0."""
        sent = self._send(records.cpu().double().nan_to_num(0.0).clamp(-1, 1), noise)
        return Reports(sent.which, self.grid.value(self.mechanism(self.grid.round(sent.values), noise)))

    def means(self, reports: Reports) -> Tensor:
        """Return unbiased means of the numbers, (k,) float64; NaN where no device sent a number."""
        return self._mean(reports, reports.values)


@dataclass(frozen=True)
class LocalLabels(_Record):
    """Frequencies of k labels of c values each: randomized response; see the module.

    Attributes:
        categories: c >= 2.
    """

    categories: int = 2

    @functools.cached_property
    def mechanism(self) -> RandomizedResponse:
        """The response to one label."""
        return RandomizedResponse(self.categories, self.epsilon / (self.num_values if self.split else 1), self.unit)

    @property
    def event(self) -> Event:
        """Price of one report of a device."""
        return self.mechanism.event.repeated(self.num_values if self.split else 1)

    @own_state()
    def report(self, records: Tensor, noise: Noise) -> Reports:
        """Perturb records, int64 (N, k) in 0 .. c - 1."""
        sent = self._send(records.cpu(), noise)
        return Reports(sent.which, self.mechanism(sent.values, noise))

    def shares(self, reports: Reports) -> Tensor:
        """Return the unbiased share of each value of each label, (k, c) float64; it may lie outside of [0, 1]."""
        true, other = self.mechanism.probabilities
        return (self._mean(reports, one_hot(reports.values, self.categories)) - other) / (true - other)
