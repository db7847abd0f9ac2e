r"""The attacker's statistics of one output: a score that should be higher on the neighbor.

By Neyman and Pearson the log-likelihood ratio is optimal if the density is known. Otherwise the choosing half of the
runs selects one of several statistics.

A *maker* is any ``callable(data, neighbor) -> Statistic``; the classes below are makers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from idpgan.errors import InputError
from idpgan.lazy import torch
from idpgan.numerics.svd import safe_svd
from idpgan.privacy.mechanisms import (
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Grid,
    Laplace,
    RandomizedResponse,
    RoundedGaussian,
)

if TYPE_CHECKING:
    from torch import Tensor

_MOST_LINEAR = 1024  # numbers of an output up to which their covariance is estimated
_MOST_OUTCOMES = 4096  # distinct outcomes
_MOST_FITTED = 5000  # outputs per side that the classifier learns from


# Names of the statistics that runs are audited by: a release may say these, and `verify` refuses others.
EXACT, WITHIN_BATCH, RANGE = "exact log-likelihood ratio", "difference within the batch", "range over the steps"
UPLOADED = "sum of what is uploaded"
OF_RUNS = (EXACT, WITHIN_BATCH, RANGE, UPLOADED)


class Statistic:
    """A score of outputs; higher should mean neighbor, but the game tries both directions.

    Attributes:
        name: The printed name.
        learns: Whether `fit` must be called, with outputs that are used for nothing else.
    """

    name: str = ""
    learns: bool = False

    def __init__(self, *neighbors: Tensor) -> None:
        """Ignore the data and its neighbor; most statistics override this and use them."""

    def fit(self, data_outputs: Tensor, neighbor_outputs: Tensor) -> bool:
        """Learn from outputs (F, *out) of each side; False = the statistic does not apply to such outputs."""
        return True

    def __call__(self, outputs: Tensor) -> Tensor:
        """Score outputs (R, *out): (R,) floating point."""
        raise NotImplementedError


Maker = Callable[["Tensor", "Tensor"], Statistic]


def _flat(outputs: Tensor) -> Tensor:
    return outputs.flatten(1).double() if outputs.ndim > 1 else outputs.double()[:, None]


class Nearness(Statistic):
    """How much nearer the output is to the neighbor than to the data, in the sum of |differences|^order.

    The log-likelihood ratio up to scale: order 1 of Laplace noise, order 2 of Gaussian noise, discrete ones included.
    ``unit`` divides it: Laplace's scale (one, or one per number), or twice the Gaussian variance.
    """

    def __init__(self, data: Tensor, neighbor: Tensor, *, order: int = 1, unit: float | Tensor = 1.0) -> None:
        self.name = f"nearness (L{order})"
        self._order, self._unit = order, unit
        self._data, self._neighbor = data.flatten().double(), neighbor.flatten().double()

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        flat = _flat(outputs)
        if self._order == 2:  # |y - x|^2 - |y - x'|^2 is linear in y
            middle = (self._data + self._neighbor) / 2
            return (flat - middle) @ ((self._neighbor - self._data) * (2 / self._unit))
        near = (flat - self._data).abs_() - (flat - self._neighbor).abs_()
        return (near / self._unit).sum(1) if isinstance(self._unit, torch.Tensor) else near.sum(1) / self._unit


@dataclass(eq=False)
class Column(Statistic):
    """One number of an output (R, n) that is already a score, for releases reduced to their relevant part."""

    number: int
    name: str

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        return outputs[:, self.number]


@dataclass(eq=False)
class WithLabel(Statistic):
    """Exact log-likelihood ratio of noisy values and, in the last column, a label by randomized response.

    Attributes:
        of_values: Exact log-likelihood ratio of the columns before.
        labels: (2,), that of the data and that of the neighbor.
        epsilon: Of the response.
    """

    of_values: Statistic
    labels: Tensor
    epsilon: float
    name: str = EXACT

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        hits = (outputs[:, -1:] == self.labels).double()  # (R, 2)
        return self.of_values(outputs[:, :-1]) + (hits[:, 1] - hits[:, 0]) * self.epsilon


@dataclass(eq=False)
class LogProbability(Statistic):
    """Log-likelihood ratio (K,) of a single outcome in 0 .. K - 1, from its exact probabilities."""

    log_ratio: Tensor
    name: str = EXACT

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        return self.log_ratio.double()[outputs.flatten().to(self.log_ratio.device)]


def likelihood_ratio(mechanism: object, grid: Grid | None = None) -> Maker:
    """Return the maker of the exact log-likelihood ratio of one of our mechanisms.

    ``grid`` is that of a discrete mechanism whose neighbors are in steps and whose outputs are in values; None = both
    alike.

    Raises:
        InputError: If its density is not known in closed form.
    """

    def make(data: Tensor, neighbor: Tensor) -> Statistic:
        if isinstance(mechanism, Laplace | Gaussian | DiscreteLaplace | RoundedGaussian):
            gaussian = isinstance(mechanism, Gaussian | RoundedGaussian)  # rounding leaves the ratio within 1 / scale
            if isinstance(mechanism, Laplace | Gaussian):
                scale = mechanism.noise_multiplier * mechanism.sensitivity
            else:
                scale = float(mechanism.scale) * (grid.step if grid else 1.0)
            if grid is not None:
                data, neighbor = grid.value(data), grid.value(neighbor)
            unit = 2 * scale**2 if gaussian else scale
            statistic: Statistic = Nearness(data, neighbor, order=2 if gaussian else 1, unit=unit)
            statistic.name = EXACT
            return statistic
        if isinstance(mechanism, Exponential):
            rate = mechanism.epsilon / ((1 if mechanism.monotone else 2) * mechanism.sensitivity)
            log_odds = [(scores.double() * rate).log_softmax(-1) for scores in (data, neighbor)]
            return LogProbability(log_odds[1] - log_odds[0])
        if isinstance(mechanism, RandomizedResponse):
            hot = [torch.nn.functional.one_hot(x.flatten()[0], mechanism.categories).double() for x in (data, neighbor)]
            return LogProbability((hot[1] - hot[0]) * mechanism.epsilon)
        raise InputError(f"the density of {type(mechanism).__name__} is not known in closed form; choose a statistic.")

    return make


class Outcomes(Statistic):
    """How often the same output was seen on each side, for mechanisms with few outcomes or few seeds."""

    name, learns = "frequency of outcomes", True

    def fit(self, data_outputs: Tensor, neighbor_outputs: Tensor) -> bool:
        """See `Statistic`."""
        keys = [self._keys(outputs) for outputs in (data_outputs, neighbor_outputs)]
        self._known, inverse = np.unique(np.concatenate(keys), return_inverse=True)
        if len(self._known) > min(_MOST_OUTCOMES, len(inverse) // 4):
            return False
        split = len(keys[0])
        counts = [np.bincount(part, minlength=len(self._known)) for part in (inverse[:split], inverse[split:])]
        self._scores = np.log((counts[1] + 0.5) / (counts[0] + 0.5))
        return True

    @staticmethod
    def _keys(outputs: Tensor) -> np.ndarray:
        """Return one comparable key per output: its bytes, or the number itself."""
        flat = np.ascontiguousarray(outputs.reshape(len(outputs), -1).cpu().numpy())
        if flat.shape[1] == 1:
            return flat[:, 0]  # sorts a hundred times faster
        return flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`; an unseen output scores 0."""
        keys = self._keys(outputs)
        place = np.searchsorted(self._known, keys).clip(max=len(self._known) - 1)
        return torch.from_numpy(np.where(self._known[place] == keys, self._scores[place], 0.0))


class Linear(Statistic):
    """Fisher's linear discriminant of the outputs: finds directions in which there is little or no noise."""

    name, learns = "linear discriminant", True

    def fit(self, data_outputs: Tensor, neighbor_outputs: Tensor) -> bool:
        """See `Statistic`."""
        sides = [_flat(outputs) for outputs in (data_outputs, neighbor_outputs)]
        size = sides[0].shape[1]
        if size > min(_MOST_LINEAR, len(sides[0]) // 4) or not all(bool(side.isfinite().all()) for side in sides):
            return False
        means = [side.mean(0) for side in sides]
        centered = torch.cat([side - mean for side, mean in zip(sides, means, strict=True)])
        covariance = centered.T @ centered / len(centered)
        ridge = 1e-12 * covariance.diagonal().mean() + 1e-30
        self._weights = torch.linalg.solve(
            covariance + ridge * torch.eye(size, dtype=torch.float64, device=covariance.device), means[1] - means[0]
        )
        self._middle = (means[0] + means[1]) / 2
        return bool(self._weights.isfinite().all())

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        return (_flat(outputs) - self._middle) @ self._weights


class Classifier(Statistic):
    """A small network that learns to distinguish the two sides, for outputs of unknown form."""

    name, learns = "learned classifier", True

    def fit(self, data_outputs: Tensor, neighbor_outputs: Tensor) -> bool:
        """See `Statistic`."""
        from idpgan.training.fit import FitConfig, fit_classifier

        sides = [_flat(outputs[:_MOST_FITTED]) for outputs in (data_outputs, neighbor_outputs)]
        inputs = torch.cat(sides)
        if not bool(inputs.isfinite().all()):
            return False
        self._mean, self._std = inputs.mean(0), inputs.std(0).clamp(min=1e-30)
        labels = torch.arange(2).repeat_interleave(len(sides[0]))
        from idpgan.models.initialize import seeded_init

        nn = torch.nn
        with seeded_init(0, stream=0):
            network = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))
        fitted = fit_classifier(network.to(inputs.device), self._standard(inputs), labels, config=FitConfig(epochs=5))
        self._network = fitted.model
        return True

    def _standard(self, flat: Tensor) -> Tensor:
        return ((flat - self._mean) / self._std).clamp(-1e3, 1e3).float()

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        with torch.inference_mode():
            logits: Tensor = self._network(self._standard(_flat(outputs)))
        return logits[:, 1] - logits[:, 0]


class SubspaceDistance(Statistic):
    """How much nearer the output's leading column space is to the neighbor's than to the data's.

    For publishers of matrices (..., m, n) that leave singular vectors without noise. With U the first ``rank`` left
    singular vectors of non-zero value, distance is ``||U_output U_output^T - U_x U_x^T||_F^2``.
    """

    def __init__(self, data: Tensor, neighbor: Tensor, *, rank: int = 2) -> None:
        if data.ndim < 2:
            raise InputError(f"the subspace test is for matrices, got shape {tuple(data.shape)}.")
        self.name = f"subspace distance (rank {rank})"
        self._rank = rank
        self._bases = [self._basis(x.reshape(-1, *x.shape[-2:])) for x in (data, neighbor)]

    def _basis(self, matrices: Tensor) -> Tensor:
        """Return leading left singular vectors (..., m, r), those of singular value 0 set to 0."""
        left, values, _ = safe_svd(matrices.double())
        kept = values[..., : self._rank] > 1e-9 * values[..., :1]
        return left[..., : self._rank] * kept[..., None, :]

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        bases = self._basis(outputs.reshape(len(outputs), -1, *outputs.shape[-2:]))  # (R, C, m, r)
        # |P - Q|^2 = rank P + rank Q - 2 |U^T V|^2, and the output's rank cancels in the difference.
        far = [basis.square().sum() - 2 * (bases.mT @ basis).square().flatten(1).sum(1) for basis in self._bases]
        return far[0] - far[1]


class OutputRank(Statistic):
    """Numerical rank of the output, summed over its matrices: detects factors sized by the private image."""

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        if data.ndim < 2:
            raise InputError(f"the rank test is for matrices, got shape {tuple(data.shape)}.")
        self.name = "rank of the output"

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`; singular values below 1e-9 of the largest count as zero."""
        values = torch.linalg.svdvals(outputs.reshape(len(outputs), -1, *outputs.shape[-2:]).double())
        return (values > 1e-9 * values[..., :1]).flatten(1).sum(1).double()


class NoiseScale(Statistic):
    """Log of the mean |output - data| where both neighbors are equal: detects noise whose scale depends on the data."""

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        self._equal = (data == neighbor).flatten()
        if not bool(self._equal.any()):
            raise InputError("the scale test needs entries that are equal on both neighbors.")
        self.name = "scale of the noise"
        self._values = data.flatten()[self._equal].double()

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`; an output without noise scores -690."""
        return (_flat(outputs)[:, self._equal] - self._values).abs().mean(1).clamp(min=1e-300).log()


class WithinBatch(Statistic):
    """Nearness of the *difference* of the first two records of an output (R, 2+, ...): shared noise cancels."""

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        if data.ndim < 1 or len(data) < 2:
            raise InputError("the within-batch test needs at least two records.")
        self.name = WITHIN_BATCH
        self._nearness = Nearness(data[0] - data[1], neighbor[0] - neighbor[1])

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        return self._nearness(outputs[:, 0].double() - outputs[:, 1].double())


class LowOrderBits(Statistic):
    """The coarsest power of two of which all numbers of the output are multiples.

    Floating-point noise has fine steps near zero; adding a value coarsens them (Mironov 2012). This statistic finds the
    leak in *every* continuous mechanism in floating point, a correct one included, so it is used only on request.
    """

    name = "low-order bits"

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`: log2 of that power, (R,)."""
        # Bits as integers, bits of the mantissa, bias of the exponent
        layouts = {torch.float32: (torch.int32, 23, 127), torch.float64: (torch.int64, 52, 1023)}
        if outputs.dtype not in layouts:
            raise InputError(f"the low-order bits of {outputs.dtype} say nothing.")
        integer, mantissa_bits, bias = layouts[outputs.dtype]
        bits = outputs.reshape(len(outputs), -1).contiguous().view(integer).long()
        exponent = (bits >> mantissa_bits) & (2 * bias + 1)
        mantissa = (bits & ((1 << mantissa_bits) - 1)) | (1 << mantissa_bits)
        lowest = (mantissa & -mantissa).double().log2()
        return (lowest + exponent.double() - mantissa_bits - bias).amin(1)


def usual(data: Tensor, output: Tensor) -> list[Maker]:
    """Return the statistics to try if none is given.

    The shape of ``output``, one output without its row dimension, says whether it can be compared with the data.
    """
    makers: list[Maker] = [Outcomes, Linear]
    if output.numel() == data.numel():
        makers += [Nearness, lambda one, other: Nearness(one, other, order=2)]
    else:
        makers.append(Classifier)
    return makers
