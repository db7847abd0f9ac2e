"""Attacks: was this image among those that a generator was trained on?

Every attack is a pure function that gives each image a score, higher for a member; `evaluate_scores` turns the scores
of members and non-members into numbers with intervals. All of that is computed with private images: curator only. An
attack that fails proves nothing; a guarantee does. The names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.attacks.evaluate import AttackResult, evaluate_scores, roc_curve
    from idpgan.attacks.membership import (
        calibrate,
        classifier_confidence,
        critic_score,
        density_ratio,
        nearest_sample,
        neighborhood_count,
    )
    from idpgan.attacks.reconstruction import latent_reconstruction
    from idpgan.attacks.registry import ATTACKS, Attack, Knowledge, select_attacks

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackResult",
    "Knowledge",
    "calibrate",
    "classifier_confidence",
    "critic_score",
    "density_ratio",
    "evaluate_scores",
    "latent_reconstruction",
    "nearest_sample",
    "neighborhood_count",
    "roc_curve",
    "select_attacks",
]

_MODULES = {
    "ATTACKS": "registry",
    "Attack": "registry",
    "AttackResult": "evaluate",
    "Knowledge": "registry",
    "calibrate": "membership",
    "classifier_confidence": "membership",
    "critic_score": "membership",
    "density_ratio": "membership",
    "evaluate_scores": "evaluate",
    "latent_reconstruction": "reconstruction",
    "nearest_sample": "membership",
    "neighborhood_count": "membership",
    "roc_curve": "evaluate",
    "select_attacks": "registry",
}

__getattr__ = lazy_names(__name__, _MODULES)
