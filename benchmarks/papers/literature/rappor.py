r"""RAPPOR: counts of strings that never leave the devices (Erlingsson, Pihur, Korolova 2014).

"RAPPOR: randomized aggregatable privacy-preserving ordinal response", CCS 2014. A device hashes its value into a Bloom
filter of its cohort (h hash functions, k bits), randomizes every bit once and *keeps* that permanent response, and
sends a freshly randomized copy of it whenever it reports. The curator sees reports only: unit and relation are those of
local privacy, one device's value replaced by any other.

With ``B`` a bit, ``B'`` the permanent and S the reported one:
``P(B' = 1) = 1 - f/2`` if B = 1, ``f/2`` if B = 0; ``P(S = 1) = q`` if B' = 1, ``p`` if B' = 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.noise import Noise

_COIN = 1 << 62
_LEAST = 2.0**-8  # a float64 from here to 1 is a whole multiple of 2^-61: coins have exactly the stated chance
_MOST_BITS = 1 << 16
_SAFE = 1 + 2.0**-40  # covers what a few floating-point operations may round down


@dataclass(frozen=True)
class Rappor:
    """The randomizer of a device and its prices.

    Formal guarantee, replace-one: two values' Bloom filters differ in at most h bits each way, and every bit is
    randomized by itself. So the likelihood ratio of n reports is at most the h-th power of the product of the largest
    ratio of a bit that is set and of one that is not; see `epsilon`. It holds per *distinct value* (a device whose
    value changes pays for every one), and only while the permanent response is kept: a fresh one for each report costs
    ``epsilon(1)`` every time.

    Attributes:
        bits: k, size of the Bloom filter.
        hashes: h, hash functions.
        cohorts: Number of cohorts, each with hash functions of its own; public, chosen without looking at the value.
        f: Chance that a bit of the permanent response is a fair coin, 2^-7 .. 1.
        p: Chance to report 1 where the permanent response is 0, 2^-8 .. 1 - 2^-8.
        q: Chance to report 1 where the permanent response is 1, above p.
        unit: What one device's value is.
    """

    bits: int = 128
    hashes: int = 2
    cohorts: int = 8
    f: float = 0.5
    p: float = 0.5
    q: float = 0.75
    unit: Unit = Unit.LABEL

    def __post_init__(self) -> None:
        for name, most in (("bits", _MOST_BITS), ("hashes", self.bits), ("cohorts", _MOST_BITS)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InputError(f"Rappor: {name} = {value!r} must be a whole number of 1 .. {most}.")
        for name, least, most_chance in (("f", 2 * _LEAST, 1.0), ("p", _LEAST, 1 - _LEAST), ("q", _LEAST, 1 - _LEAST)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most_chance:
                raise InputError(f"Rappor: {name} = {value!r} must be a number in [{least:g}, {most_chance:g}].")
        if not self.p < self.q:
            raise InputError(f"Rappor: p = {self.p:g} must be below q = {self.q:g}, or reports say nothing.")
        if not isinstance(self.unit, Unit):
            raise InputError(f"Rappor: needs a Unit, got {self.unit!r}.")

    @property
    def chances(self) -> tuple[float, float]:
        """Return (q*, p*): the chance of a reported 1 where the Bloom filter has 1, and where it has 0."""
        lie = self.f / 2
        return (1 - lie) * self.q + lie * self.p, lie * self.q + (1 - lie) * self.p

    def epsilon(self, reports: int | None = 1) -> float:
        """Return the pure epsilon of so many reports of one value from one permanent response; None = any number.

        The ratio of a set bit is largest if all n reports are 1, that of an unset bit if all are 0, since each such
        report raises the odds of the permanent bit most:
        ``h ln[(a q^n + b p^n) / (b q^n + a p^n)] + h ln[(a p_^n + b q_^n) / (b p_^n + a q_^n)]`` with ``a = 1 - f/2``,
        ``b = f/2``, ``p_ = 1 - p``, ``q_ = 1 - q``. The paper has both ends: one report costs
        ``h ln[q* (1 - p*) / (p* (1 - q*))]``, any number ``2 h ln[(1 - f/2) / (f/2)]``, the price of the permanent
        response itself.

        Example:
            >>> rappor = Rappor(hashes=1, f=0.5, p=0.5, q=0.75)
            >>> round(rappor.epsilon(1), 4), round(rappor.epsilon(None), 4)
            (0.5371, 2.1972)
        """
        keep, lie = 1 - self.f / 2, self.f / 2
        if reports is None:
            return 2 * self.hashes * math.log1p((1 - self.f) / lie) * _SAFE
        if type(reports) is not int or not 1 <= reports <= 1 << 62:
            raise InputError(f"reports = {reports!r} must be a whole number of at least 1, or None for any number.")
        total = 0.0
        for more in (self.q, 1 - self.p):  # chance, under the likelier bit, of each of the reports, which are all alike
            log_odds = reports * math.log1p(-(self.q - self.p) / more)  # accurate if p is near q
            total += math.log1p((1 - self.f) * -math.expm1(log_odds) / (lie + keep * math.exp(log_odds)))
        return self.hashes * total * _SAFE

    def event(self, reports: int | None = 1) -> Event | None:
        """Return the price of so many reports of one value as an event; None if f = 1, where they cost nothing."""
        epsilon = self.epsilon(reports)
        return Event("pure", self.unit, Relation.REPLACE_ONE, pure_epsilon=epsilon) if epsilon > 0 else None

    def bloom(self, value: str, cohort: int) -> Tensor:
        """Return the Bloom filter of a value in a cohort, bool (bits,): a public function.

        The h bits are distinct, so that ``hashes`` of them are set in each filter.
        """
        if not isinstance(value, str) or type(cohort) is not int or not 0 <= cohort < self.cohorts:
            raise InputError(f"a Bloom filter needs a text and a cohort of 0 .. {self.cohorts - 1}, got {cohort!r}.")
        found, number = torch.zeros(self.bits, dtype=torch.bool), 0
        while int(found.sum()) < self.hashes:
            digest = hashlib.sha256(f"{cohort} {number} {value}".encode()).digest()
            found[int.from_bytes(digest[:16], "big") % self.bits] = True
            number += 1
        return found

    def permanent(self, blooms: Tensor, noise: Noise) -> Tensor:
        """Randomize Bloom filters, bool (n, bits), once and for all: what a device keeps for its value."""
        coin, lie = noise.integers(2, blooms.shape) == 1, _coin(self.f, blooms, noise)
        return torch.where(lie, coin, blooms)

    def instantaneous(self, permanent: Tensor, noise: Noise) -> Tensor:
        """Draw one report of each permanent response, bool (n, bits)."""
        return torch.where(permanent, _coin(self.q, permanent, noise), _coin(self.p, permanent, noise))

    def report(self, values: Sequence[str], cohorts: Sequence[int], noise: Noise) -> Tensor:
        """Return one report of each device from a permanent response of its own, bool (n, bits)."""
        known = {pair: self.bloom(*pair) for pair in set(zip(values, cohorts, strict=True))}
        blooms = torch.stack([known[pair] for pair in zip(values, cohorts, strict=True)])
        return self.instantaneous(self.permanent(blooms, noise), noise)


def _coin(chance: float, like: Tensor, noise: Noise) -> Tensor:
    """Draw coins of exactly this chance, bool."""
    if like.dtype != torch.bool:
        raise ValueError(f"bits must be bool, got {like.dtype}.")
    return noise.integers(_COIN, like.shape) < int(chance * _COIN)


@dataclass(frozen=True)
class Decoded:
    """How many devices have each candidate value.

    Attributes:
        counts: (M,) float64, least squares among the candidates that were kept; 0 for the others.
        standard_errors: (M,), of those counts, from the coins alone; NaN for the others.
    """

    counts: Tensor
    standard_errors: Tensor


@typed
def decode(rappor: Rappor, reports: Tensor, cohorts: Tensor, candidates: Sequence[str]) -> Decoded:
    """Estimate how many devices have each candidate value: post-processing of reports.

    The paper's decoding: bit counts of each cohort are freed of the coins' bias, ``t = (c - p* N) / (q* - p*)``, and
    regressed on the candidates' Bloom filters; a first fit chooses candidates, a second one by least squares gives
    counts and standard errors. The first fit is non-negative least squares instead of the lasso, as that needs no
    choice of a penalty. Values outside the candidates add to the residuals.

    Args:
        rappor: What the devices ran.
        reports: (n, bits) bool, one per device.
        cohorts: (n,) int64, theirs.
        candidates: M different values, at most the number of bits of all cohorts together.

    Raises:
        InputError: If these do not fit together.
    """
    shape = (len(cohorts), rappor.bits)
    if reports.dtype != torch.bool or tuple(reports.shape) != shape or cohorts.dtype != torch.int64:
        raise InputError(
            f"reports must be bool {shape} with int64 cohorts, got {reports.dtype} {tuple(reports.shape)}."
        )
    if len(cohorts) == 0 or not bool(((cohorts >= 0) & (cohorts < rappor.cohorts)).all()):
        raise InputError(f"there must be reports, and cohorts of 0 .. {rappor.cohorts - 1}.")
    if not 1 <= len(set(candidates)) == len(candidates) <= rappor.bits * rappor.cohorts:
        raise InputError("candidates must be different values, no more than bits of all cohorts together.")
    true, false = rappor.chances
    sizes = torch.bincount(cohorts, minlength=rappor.cohorts).double()
    counts = torch.zeros(rappor.cohorts, rappor.bits, dtype=torch.float64)
    counts.index_add_(0, cohorts, reports.double())
    unbiased = ((counts - false * sizes[:, None]) / (true - false)).numpy().ravel()
    blooms = [[rappor.bloom(value, cohort) for value in candidates] for cohort in range(rappor.cohorts)]
    # A device of candidate m is in cohort j with its share of all devices.
    shares = (sizes / sizes.sum())[:, None, None]
    filters = torch.stack([torch.stack(row) for row in blooms]).double() * shares  # (cohorts, M, bits)
    design = filters.movedim(1, 2).reshape(-1, len(candidates)).numpy()
    first, _ = nnls(design, unbiased)
    (kept,) = np.nonzero(first > 0)
    found, errors = np.zeros(len(candidates)), np.full(len(candidates), np.nan)
    if len(kept):
        inverse = np.linalg.pinv(design[:, kept])
        share = np.clip(counts.numpy() / np.maximum(sizes.numpy()[:, None], 1), 0, 1)
        variances = (sizes.numpy()[:, None] * share * (1 - share)).ravel() / (true - false) ** 2
        found[kept] = inverse @ unbiased
        errors[kept] = np.sqrt((inverse**2) @ variances)
    return Decoded(torch.from_numpy(found), torch.from_numpy(errors))
