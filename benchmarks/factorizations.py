r"""Mechanisms for all prefix sums of a stream as factorizations W = B M, with exact errors, for comparison with FDA.

Every mechanism is ``B (M x + z)``, z with the scale of the sensitivity of M, its largest column norm: L1 with Laplace
noise and pure epsilon, L2 with Gaussian noise and (epsilon, delta). The variance of answer t is ``||B_t||^2`` times the
squared sensitivity times the variance of one release of sensitivity 1. One event adds at most 1 to one value.

Noise in this file is floating point, because the file only compares mechanisms; `ContinualCounter` releases whole
counts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from idpgan.continual import fenwick
from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.event import Event
from idpgan.privacy.ledger import Ledger
from idpgan.privacy.mechanisms import Gaussian, Laplace
from idpgan.privacy.noise import Noise

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Factorization:
    """One way to write the n x n triangle of ones as B M; both are public.

    Attributes:
        norm: 1 (Laplace noise) or 2 (Gaussian noise): the norm of M's columns.
        sensitivity: Largest column norm of M.
        squares: ``||B_t||^2`` of answer t = 1 .. n, float64 (n,).
        strategy: (..., n) values to (..., k): M x.
        answers: (..., k) to (..., n): B z.
    """

    norm: int
    sensitivity: float
    squares: Tensor
    strategy: Linear
    answers: Linear

    @property
    def variance(self) -> Tensor:
        """Variance of each answer (n,), in variances of one release of sensitivity 1 under the same guarantee."""
        return self.squares * self.sensitivity**2

    def mechanism(self, noise_multiplier: float) -> Laplace | Gaussian:
        """Return the mechanism that adds noise to M x; for Laplace noise epsilon = 1 / noise_multiplier."""
        kind = Laplace if self.norm == 1 else Gaussian
        return kind(self.sensitivity, noise_multiplier, *fenwick.ADJACENCY)

    def release(self, values: Tensor, noise_multiplier: float, noise: Noise, ledger: Ledger | None = None) -> Tensor:
        """Release all prefix sums ``B (M x + z)``, (..., n) float64, of a whole series.

        Args:
            values: (..., n) floating point. Leading dimensions are series; an event is in one of them.
            noise_multiplier: Noise scale / sensitivity.
            ledger: Ledger that is charged first; None = a ledger in memory.
        """
        mechanism = self.mechanism(noise_multiplier)
        (Ledger(*fenwick.ADJACENCY) if ledger is None else ledger).charge(mechanism.event)
        return self.answers(mechanism(self.strategy(values.double()), noise))


def _same(values: Tensor) -> Tensor:
    return values


def _per_step(n: int, norm: int) -> Factorization:
    """Noise on every value: M = I, B = W."""
    squares = torch.arange(1, n + 1, dtype=torch.float64)
    return Factorization(norm, 1.0, squares, _same, lambda z: z.cumsum(-1))


def _per_output(n: int, norm: int) -> Factorization:
    """Noise on every answer: M = W, B = I."""
    return Factorization(norm, n ** (1 / norm), torch.ones(n, dtype=torch.float64), lambda x: x.cumsum(-1), _same)


def _fenwick(n: int, norm: int) -> Factorization:
    """Plain Fenwick tree; node for node the binary mechanism of Chan, Shi, Song (2011)."""
    squares = fenwick.prefix_sums(torch.ones(n, dtype=torch.float64))
    return Factorization(norm, n.bit_length() ** (1 / norm), squares, fenwick.node_sums, fenwick.prefix_sums)


def _binary_tree(n: int, norm: int) -> Factorization:
    """Complete binary tree over 2^m >= n leaves, as in the chapter (see `fenwick`): every value is in all m + 1 levels.

    Right children are charged but never used, so noise is drawn only for left children, the Fenwick nodes.
    """
    levels = (n - 1).bit_length() + 1
    return dataclasses.replace(_fenwick(n, norm), sensitivity=levels ** (1 / norm))


def _by_level(n: int, norm: int) -> Factorization:
    """Binary tree with a budget for each level, without a limit on n: the chapter's second tree of Chan, Shi, Song.

    The chapter says no more. A node of level l = 0, 1, ... gets the share ``6 / (pi (l + 1))^2``: all add up to 1.
    """
    step = torch.arange(1, n + 1)
    size = step & -step  # 2^level
    return _weighted(((6**0.5 / math.pi) / (size.double().log2().round() + 1)) ** (2 / norm), norm)


def _fda(n: int, norm: int) -> Factorization:
    """Fenwick tree with the weights that minimize the error (`fenwick.fast_diagonal`)."""
    return _weighted(fenwick.fast_diagonal(n, norm)[0], norm)


def _weighted(weights: Tensor, norm: int) -> Factorization:
    """Fenwick tree whose nodes have weights (n,) with columns of at most norm 1."""
    return Factorization(
        norm,
        1.0,
        fenwick.prefix_sums(weights**-2),
        lambda x: fenwick.node_sums(x) * weights,
        lambda z: fenwick.prefix_sums(z / weights),
    )


# Smooth binary mechanism --------------------------------------------------------------------------------------------


def smooth_height(n: int, norm: int) -> tuple[int, int]:
    """Return height and ones per leaf of the smooth binary mechanism with the least error for n steps.

    Every answer sums ``ones`` nodes, and every value lies in ``height - ones``. Andersson and Pagh (2023) use an even
    height and half ones, for Gaussian noise. Our search adds unequal shares and odd heights, which are never worse.
    """
    choices = [
        (ones * (height - ones) ** (2 / norm), height, ones)
        for height in range(1, 2 * n.bit_length() + 6)
        for ones in range(1, height)
        if math.comb(height, ones) > n
    ]
    _, height, ones = min(choices)
    return height, ones


@functools.lru_cache(maxsize=4)
def _smooth_nodes(n: int, height: int, ones: int) -> tuple[Tensor, Tensor, int]:
    """Return the nodes of each answer (n, ones) and of each value (n, height - ones), and the number of nodes.

    Leaves are the numbers with ``ones`` ones in ascending order. Value t lies at leaf t - 1. The left siblings along
    the path of leaf t, one for each of its ones, hold all earlier values. A node is (bit, leading bits down to it).
    """
    leaf, leaves = (1 << ones) - 1, []
    for _ in range(n + 1):
        leaves.append(leaf)
        lowest = leaf & -leaf
        carried = leaf + lowest
        leaf = carried + (carried & -carried) // (2 * lowest) - 1  # the next number with the same number of ones
    codes = np.array(leaves)[:, None]
    bits = np.arange(height)
    prefix, is_one = codes >> bits, (codes >> bits & 1).astype(bool)  # (n + 1, height)
    left = (prefix & ~1) * 64 + bits  # the left node of the pair at this bit
    used = left[1:][is_one[1:]]
    inside = left[:-1][~is_one[:-1]]
    nodes, places = np.unique(np.concatenate([used, inside]), return_inverse=True)
    used, inside = places[: len(used)].reshape(n, ones), places[len(used) :].reshape(n, height - ones)
    return torch.from_numpy(used), torch.from_numpy(inside), len(nodes)


def _smooth(n: int, norm: int) -> Factorization:
    """Smooth binary mechanism: a taller tree in which all leaves have equally many ones, so all errors are equal."""
    height, ones = smooth_height(n, norm)

    def strategy(x: Tensor) -> Tensor:
        _, inside, count = _smooth_nodes(n, height, ones)
        sums = x.new_zeros((*x.shape[:-1], count))
        return sums.index_add_(-1, inside.flatten(), x.repeat_interleave(height - ones, -1))

    def answers(z: Tensor) -> Tensor:
        return z[..., _smooth_nodes(n, height, ones)[0]].sum(-1)

    squares = torch.full((n,), float(ones), dtype=torch.float64)
    return Factorization(norm, (height - ones) ** (1 / norm), squares, strategy, answers)


# Trees with subtraction ---------------------------------------------------------------------------------------------


def _balanced_digits(n: int, base: int) -> Tensor:
    """Return the digits -(base - 1)/2 .. (base - 1)/2 of 1 .. n, lowest first, int64 (height, n)."""
    rest, rows = torch.arange(1, n + 1), []
    while bool(rest.any()):
        digit = (rest + base // 2) % base - base // 2
        rows.append(digit)
        rest = (rest - digit) // base
    return torch.stack(rows)


def _subtraction(n: int, norm: int) -> Factorization:
    """Tree with negative digits (Andersson, Pagh, Steiner, Torkamani 2025), in the odd base of least mean error.

    Answer t adds and subtracts as many nodes of level l as the balanced digit of t there says. Subtracted nodes hold
    values after t; they cancel, so the answer can be given at t, yet M is not triangular.
    """
    found = {base: _balanced_digits(n, base) for base in range(3, min(2 * n + 1, 33) + 1, 2)}
    errors = {base: float(d.abs().sum(0).double().mean()) * len(d) ** (2 / norm) for base, d in found.items()}
    base = min(errors, key=lambda candidate: errors[candidate])
    digits = found[base]
    height = len(digits)
    place = torch.arange(1, n + 1)
    bounds = []  # per level, the nodes between which prefix t adds (or, reversed, subtracts)
    for digit in digits:
        bounds.append((place, digit))
        place = (place - digit) // base
    sizes = [int(max(end.max(), (end - digit).max())) for end, digit in bounds]  # nodes of each level

    def strategy(x: Tensor) -> Tensor:
        parts, level_sums = [], x
        for size in sizes:
            padded = torch.nn.functional.pad(level_sums, (0, max(size - level_sums.shape[-1], 0)))
            parts.append(padded[..., :size])
            padded = torch.nn.functional.pad(padded, (0, -padded.shape[-1] % base))
            level_sums = padded.unflatten(-1, (-1, base)).sum(-1)
        return torch.cat(parts, -1)

    def answers(z: Tensor) -> Tensor:
        result = z.new_zeros((*z.shape[:-1], n))
        for part, (end, digit) in zip(z.split(sizes, -1), bounds, strict=True):
            running = torch.nn.functional.pad(part.cumsum(-1), (1, 0))
            result += running[..., end] - running[..., end - digit]
        return result

    return Factorization(norm, height ** (1 / norm), digits.abs().sum(0).double(), strategy, answers)


# Toeplitz -----------------------------------------------------------------------------------------------------------


def square_root_coefficients(n: int) -> Tensor:
    """Return the first n coefficients of ``1 / sqrt(1 - x)``, float64: ``f_k = f_(k-1) (1 - 1 / (2 k))``, f_0 = 1.

    Example:
        >>> square_root_coefficients(4).tolist()
        [1.0, 0.5, 0.375, 0.3125]
    """
    ratios = 1 - 0.5 / torch.arange(n, dtype=torch.float64)
    ratios[0] = 1.0
    return ratios.cumprod(0)


def _square_root(n: int, norm: int) -> Factorization:
    """B = M = the lower-triangular Toeplitz root of W (Fichtenberger, Henzinger, Upadhyay 2023), by FFT."""
    coefficients = square_root_coefficients(n)
    squares = coefficients.square().cumsum(0)

    def apply(values: Tensor) -> Tensor:
        product = torch.fft.rfft(coefficients, 2 * n) * torch.fft.rfft(values, 2 * n)
        return torch.fft.irfft(product, 2 * n)[..., :n]

    return Factorization(norm, float(coefficients.norm(p=norm)), squares, apply, apply)


# The best weights by a solver -----------------------------------------------------------------------------------

_NO_FURTHER_DESCENT = 8  # SLSQP's status when the line search ends at the rounding of the objective


def sequential_quadratic(n: int, norm: int = 1) -> tuple[Tensor, float]:
    """Solve `fenwick.fast_diagonal`'s problem by SQP (scipy's SLSQP), the chapter's reference: O(n^3) per iteration.

    The objective is divided by its value at the start, the plain Fenwick tree; unscaled, SLSQP stops infeasible.

    Raises:
        InputError: If n is above 4096.
        ArithmeticError: If SLSQP reports a failure.
    """
    fenwick.check_steps(n, fenwick.MOST_DENSE)
    power = 1 / fenwick.exponent_of(norm) - 1
    count = fenwick.uses(n).numpy()
    columns = fenwick.matrices(n)[1].T.numpy()
    start = torch.full((n,), 1.0 / n.bit_length(), dtype=torch.float64).numpy()
    scale = float((count / start**power).sum())
    found = minimize(
        lambda w: float((count / w**power).sum()) / scale,
        start,
        jac=lambda w: -power * count / w ** (power + 1) / scale,
        method="SLSQP",
        bounds=[(1e-6, 1.0)] * n,
        constraints={"type": "ineq", "fun": lambda w: 1 - columns @ w, "jac": lambda w: -columns},
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    if found.status not in (0, _NO_FURTHER_DESCENT):
        raise ArithmeticError(f"SLSQP stopped at n = {n}: {found.message}")
    feasible = found.x / (columns @ found.x).max()
    return torch.from_numpy(feasible ** (1 / norm)), float((count / feasible**power).sum())


# The table ----------------------------------------------------------------------------------------------------------

MECHANISMS: dict[str, Callable[[int, int], Factorization]] = {
    "noise per step": _per_step,
    "noise per output": _per_output,
    "binary tree": _binary_tree,
    "budget by level": _by_level,
    "fenwick": _fenwick,
    "fda": _fda,
    "smooth binary": _smooth,
    "subtraction tree": _subtraction,
    "square-root toeplitz": _square_root,
}


def factorization(name: str, n: int, norm: int = 1) -> Factorization:
    """Return the mechanism ``name`` of `MECHANISMS` for n steps; ``norm`` as in `Factorization`."""
    fenwick.check_steps(n)
    if name not in MECHANISMS or norm not in (1, 2):
        raise InputError(f"no mechanism {name!r} with norm {norm!r}; known: {', '.join(MECHANISMS)}; norms 1 and 2.")
    return MECHANISMS[name](n, norm)


@dataclass(frozen=True)
class Row:
    """Expected squared error of one mechanism: the mean and the maximum over the n answers."""

    mechanism: str
    noise: str
    mean: float
    largest: float


def error_table(n: int, epsilon: float, delta: float = 0.0) -> list[Row]:
    """Return the exact expected squared errors of all mechanisms at one guarantee, best mean first.

    The epsilon is that of the whole stream, unit event, zero-out-one. With delta = 0 only Laplace noise is used; with
    delta > 0 also Gaussian noise, calibrated by the accountant.
    """
    rows = [("Laplace", 1, 2 / epsilon**2)]
    if delta > 0:
        multiplier = calibrate(lambda m: [Event("gaussian", *fenwick.ADJACENCY, m)], epsilon, delta)
        rows.append(("Gaussian", 2, multiplier**2))
    table = []
    for noise, norm, unit in rows:
        for name in MECHANISMS:
            variance = factorization(name, n, norm).variance * unit
            table.append(Row(name, noise, float(variance.mean()), float(variance.max())))
    return sorted(table, key=lambda row: row.mean)
