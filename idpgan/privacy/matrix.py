r"""The matrix mechanism ``B (M X + Z)``: one place for the matrix publishers and for continual release.

A workload ``W = B M`` is answered through a strategy ``M``, noise ``Z`` goes on the strategy's answers, and ``B`` turns
them into answers of the workload (Li et al. 2015). The mechanism is private if ``B`` and ``M`` are public.

The published image publishers (`idpgan.publish.matrix`) have the same form, ``B (L + Z)``, with both factors computed
from the private image and the noise sized by its own ``L``. They use only `noisy_product`, which guarantees nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.lazy import torch
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import Laplace
from idpgan.privacy.noise import Noise


def column_norm(matrices: torch.Tensor) -> torch.Tensor:
    """Return the largest column L1 norm ``max_j sum_i |M_ij|``, the papers' "Delta_1", of matrices (..., k, n)."""
    return matrices.abs().sum(-2).amax(-1)


def add_laplace(answer: torch.Tensor, scale: torch.Tensor, noise: Noise) -> torch.Tensor:
    """Return ``answer + scale * Lap(1)``; a scale of 0 adds nothing, and this function promises nothing.

    Args:
        answer: Floating point, any shape.
        scale: >= 0, broadcast against ``answer``, on its device; the scale may depend on the data.

    Raises:
        ValueError: If answer, scale or result is not finite, or a scale is negative.
    """
    if not bool(answer.isfinite().all() & scale.isfinite().all() & (scale >= 0).all()):
        raise ValueError("answer and scale must be finite, and the scale at least 0.")
    noisy = (answer.double() + scale.double() * noise.laplace(answer.shape).to(answer.device)).to(answer.dtype)
    if not bool(noisy.isfinite().all()):
        raise ValueError(f"the noisy answer overflows {answer.dtype}; raise epsilon or use float64.")
    return noisy


def noisy_product(B: torch.Tensor | None, L: torch.Tensor, scale: torch.Tensor, noise: Noise) -> torch.Tensor:
    """Return ``B (L + scale * Lap(1))``, (..., m, n), for a batch of factors.

    Args:
        B: (..., m, k); None is the identity.
        L: (..., k, n).
        scale: Noise scale of each matrix, (...).

    Raises:
        ValueError: If an input or the result is not finite.
    """
    noisy = add_laplace(L, scale[..., None, None], noise)
    return noisy if B is None else B @ noisy


@dataclass(frozen=True, eq=False)
class MatrixMechanism:
    r"""``B (M X + Z)`` with public ``B`` and ``M`` and Laplace noise ``Z`` of scale ``||M||_1 d / epsilon``.

    Formal guarantee: pure epsilon = 1 / noise_multiplier, for the change of X that ``distance`` bounds.

    Proof. Let X and X' be neighbors, ``sum_ij |X_ij - X'_ij| <= d``. Column c of ``M (X - X')`` is
    ``sum_t (X - X')_tc M_t`` with M_t the columns of M, so by the triangle inequality its L1 norm is at most
    ``sum_t |(X - X')_tc| ||M||_1``. Summed over the columns: ``||M X - M X'||_1 <= ||M||_1 d``, reached where the whole
    change sits on the largest column of M. So M X is released by a Laplace mechanism of that sensitivity (`Laplace`),
    and multiplying by the public B is post-processing. A B or M computed from X breaks the proof: it is not a constant.

    Attributes:
        B: Public, (m, k), floating point.
        M: Public strategy, (k, p), not zero.
        noise_multiplier: Noise scale / (||M||_1 d).
        distance: d: largest entrywise L1 distance of X between neighbors, a declared constant.
    """

    B: torch.Tensor
    M: torch.Tensor
    noise_multiplier: float
    distance: float
    unit: Unit
    relation: Relation

    def __post_init__(self) -> None:
        if self.B.ndim != 2 or self.M.ndim != 2 or self.B.shape[1] != self.M.shape[0]:
            raise InputError(f"B (m, k) and M (k, p) do not fit: {tuple(self.B.shape)}, {tuple(self.M.shape)}.")
        if not bool(self.B.isfinite().all() & self.M.isfinite().all()) or not bool(self.M.any()):
            raise InputError("B and M must be finite, and M must not be zero.")

    @property
    def sensitivity(self) -> float:
        """Bound on ``||M X - M X'||_1``."""
        return float(column_norm(self.M.double())) * self.distance

    @property
    def mechanism(self) -> Laplace:
        """The noise on ``M X``."""
        return Laplace(self.sensitivity, self.noise_multiplier, self.unit, self.relation)

    @property
    def event(self) -> Event:
        """Price of one call."""
        return self.mechanism.event

    @own_state()
    def expected_error(self, columns: int = 1) -> float:
        """Return the expected squared error, summed over all answers of ``columns`` columns.

        ``2 tr(B^T B) scale^2`` per column (Li et al. 2015). Zhang, Fu and Meng (2020), eq. 7, state the error of one
        column for all n.
        """
        scale = self.noise_multiplier * self.sensitivity
        return columns * 2 * scale**2 * float(self.B.double().square().sum())

    @own_state()
    def __call__(self, answer: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Release ``B (M X + Z)``, (..., m, q), for X = ``answer``, (..., p, q) floating point.

        A vector has q = 1. Leading dimensions are separate records.

        Raises:
            ValueError: If X is not finite or does not fit M.
        """
        if answer.ndim < 2 or answer.shape[-2] != self.M.shape[1]:
            raise ValueError(f"X must be (..., {self.M.shape[1]}, q), got {tuple(answer.shape)}.")
        noisy = self.mechanism(self.M.to(answer) @ answer, noise)
        return self.B.to(answer) @ noisy
