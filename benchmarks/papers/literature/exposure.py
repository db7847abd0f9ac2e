r"""Secret-sharer exposure: how much better a model knows canaries that it was trained on than others of their space.

`Carlini, Liu, Erlingsson, Kos, Song (2019), "The secret sharer" <https://arxiv.org/abs/1802.08232>`_. Canaries are
drawn at random from a declared space R and put into the training data; scores (higher = known better, such as minus the
loss) of canaries are compared with those of other members of R that no model has seen. Exposure is
``log2 |R| - log2 rank``, in bits: ``log2 |R|`` for the best known of all, and 1.44 on average where nothing was
memorized (`FLOOR`). A secret is *extracted* where a search finds it: of all members that agree with what the attacker
knows, it is the best known (`Extraction`).

Nothing is trained here: `papers.exposure` does that.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import log_ndtr, logsumexp
from scipy.stats import kstest, skewnorm
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError

FLOOR = 1 / math.log(2)  # mean exposure of a canary that was never seen: its rank is uniform
LEAST_REFERENCES = 100
_POINTS = 4_001  # of the tail's integral


@dataclass(frozen=True)
class Exposure:
    """Exposures of m canaries against n references, in bits.

    Attributes:
        by_rank: (m,) float64, at most ``log2(n + 1)``.
        extrapolated: (m,) float64, at most `space_bits`: a tail of a skew-normal law fitted to the references.
        references: n.
        space_bits: log2 |R|.
        shape: Parameters of the fitted law: skewness parameter, location, scale.
        ks_statistic: Distance of the references from the fitted law (Kolmogorov and Smirnov).
        ks_p_value: Its p-value; parameters were fitted, so it is too large. Below 0.01 the fit is poor.
    """

    by_rank: Tensor
    extrapolated: Tensor
    references: int
    space_bits: float
    shape: tuple[float, float, float]
    ks_statistic: float
    ks_p_value: float

    @property
    def fits(self) -> bool:
        """Whether the extrapolation may be trusted."""
        return self.ks_p_value >= 0.01

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        lists = {name: facts[name].tolist() for name in ("by_rank", "extrapolated")}
        most = math.log2(self.references + 1)
        return {**facts, **lists, "shape": list(self.shape), "most_by_rank": most, "floor": FLOOR, "fits": self.fits}


@dataclass(frozen=True)
class Extraction:
    """A search for secrets of which all but some bits are known: all ways to complete them, best known first.

    The paper follows the likeliest tokens by a shortest path. An image has no order of tokens, so that every completion
    is scored.

    Attributes:
        unknown_bits: b; there are 2^b completions of each secret.
        ranks: (m,) int64, places of the secrets among their completions, from 1; 1 is extracted.
        never_seen: (m,) int64, the same of members that were not in the training: the control, uniform on 1 .. 2^b.
    """

    unknown_bits: int
    ranks: Tensor
    never_seen: Tensor

    @property
    def extracted(self) -> tuple[int, int]:
        """How many secrets come first, and how many of the control."""
        return int((self.ranks == 1).sum()), int((self.never_seen == 1).sum())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        lists = {name: getattr(self, name).tolist() for name in ("ranks", "never_seen")}
        first = dict(zip(("extracted", "extracted_never_seen"), self.extracted, strict=True))
        return {"unknown_bits": self.unknown_bits, **lists, **first}


def rank_of_first(scores: Tensor) -> int:
    """Return the place, from 1, of the first of scores (n,), higher = earlier; ties count against it."""
    return int((scores >= scores[0]).sum())


def _check(scores: Tensor, references: Tensor, least: int) -> tuple[np.ndarray, np.ndarray]:
    for name, values in (("scores", scores), ("references", references)):
        if values.ndim != 1 or not bool(values.isfinite().all()):
            raise InputError(f"{name} must be finite numbers in one row, got {tuple(values.shape)}.")
    if len(scores) < 1 or len(references) < least:
        raise InputError(
            f"exposure needs a canary and at least {least} references, got {len(scores)} and {len(references)}."
        )
    return scores.double().cpu().numpy(), references.double().cpu().numpy()


@typed
def rank_exposure(scores: Tensor, references: Tensor) -> Tensor:
    """Return ``log2((n + 1) / rank)`` of each canary among itself and n references, (m,) float64.

    This estimates the exposure in the whole space, up to its ceiling ``log2(n + 1)`` (the paper's "approximation by
    sampling"). Ties count against the canary.

    Args:
        scores: (m,) of the canaries, higher = known better.
        references: (n,) of other members of their space.

    Example:
        >>> rank_exposure(torch.tensor([9.0, -1.0]), torch.arange(7.0)).tolist()
        [3.0, 0.0]
    """
    ours, others = _check(scores, references, 1)
    ordered = np.sort(others)
    rank = 1 + len(ordered) - np.searchsorted(ordered, ours, side="left")
    return torch.from_numpy(np.log2((len(ordered) + 1) / rank))


@typed
def exposure(scores: Tensor, references: Tensor, space_bits: float = math.inf) -> Exposure:
    """Return exposures by rank and by extrapolation (the paper's "approximation by distribution modeling").

    A skew-normal law is fitted to the references' scores; the extrapolated exposure is minus log2 of its mass above the
    canary's score, so that it goes beyond what n references can show.

    Args:
        scores: (m,) of the canaries, higher = known better.
        references: (n,) of other members of their space, n >= 100.
        space_bits: log2 |R|, the most that exposure can be.

    Raises:
        InputError: If the scores are not finite, too few, or all the same.
    """
    ours, others = _check(scores, references, LEAST_REFERENCES)
    if not space_bits > 0:
        raise InputError(f"space_bits = {space_bits} must be above 0.")
    center, spread = float(np.mean(others)), float(np.std(others))
    if not spread > 1e-12 * max(1.0, abs(center)):
        raise InputError("all references have the same score, so that no rank says anything. Take another score.")
    shape, location, scale = map(float, skewnorm.fit((others - center) / spread))
    z = ((ours - center) / spread - location) / scale
    bits = -np.array([_log_tail(float(x), shape) for x in z]) / math.log(2)
    test = kstest((others - center) / spread, skewnorm(shape, location, scale).cdf)
    return Exposure(
        rank_exposure(scores, references),
        torch.from_numpy(np.clip(bits, 0.0, space_bits)),
        len(others),
        space_bits,
        (shape, center + spread * location, spread * scale),
        float(test.statistic),
        float(test.pvalue),
    )


def _log_tail(z: float, shape: float) -> float:
    """Return the log of the mass of the skew-normal law above z: an integral of its log-density, exact in the tail."""
    width = max(12.0 - z, 40 / (1 + max(z, 0.0) * (1 + max(-shape, 0.0) ** 2)))
    places = z + np.linspace(0.0, width, _POINTS)
    log_density = math.log(2) - places**2 / 2 - math.log(2 * math.pi) / 2 + log_ndtr(shape * places)
    weights = np.full(_POINTS, width / (_POINTS - 1))
    weights[[0, -1]] /= 2
    return min(float(logsumexp(log_density, b=weights)), 0.0)
