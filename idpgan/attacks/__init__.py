"""Attacks: was this image among those that a generator or a classifier was trained on, and who is on a released one?

Every membership attack is a pure function that gives each image a score, higher for a member; `evaluate_scores` turns
the scores of members and non-members into numbers with intervals. `train_attacker` makes the attacker who asks for
people or attributes on transformed images, `known_plaintext` and `jigsaw` reconstruct disguised ones. All of that is
computed with private images: curator only. An attack that fails proves nothing; a guarantee does. The names below are
loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.attacks.attack import Attack, Outcome, run_attack
    from idpgan.attacks.disguise import jigsaw, known_plaintext
    from idpgan.attacks.evaluate import AttackResult, evaluate_scores, roc_curve
    from idpgan.attacks.exposure import Exposure, exposure, rank_exposure
    from idpgan.attacks.inference import Attacker, Inference, person_disjoint, picture_disjoint, train_attacker
    from idpgan.attacks.knowledge import Knowledge, Membership, choose_members
    from idpgan.attacks.losses import loss_calibrated, loss_threshold
    from idpgan.attacks.membership import (
        calibrate,
        classifier_confidence,
        critic_score,
        density_ratio,
        nearest_sample,
        neighborhood_count,
    )
    from idpgan.attacks.reconstruction import latent_reconstruction
    from idpgan.attacks.registry import ATTACKS, select_attacks
    from idpgan.attacks.roc_plot import roc_png

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackResult",
    "Attacker",
    "Exposure",
    "Inference",
    "Knowledge",
    "Membership",
    "Outcome",
    "calibrate",
    "choose_members",
    "classifier_confidence",
    "critic_score",
    "density_ratio",
    "evaluate_scores",
    "exposure",
    "jigsaw",
    "known_plaintext",
    "latent_reconstruction",
    "loss_calibrated",
    "loss_threshold",
    "nearest_sample",
    "neighborhood_count",
    "person_disjoint",
    "picture_disjoint",
    "rank_exposure",
    "roc_curve",
    "roc_png",
    "run_attack",
    "select_attacks",
    "train_attacker",
]

_MODULES = {
    "ATTACKS": "registry",
    "Attack": "attack",
    "AttackResult": "evaluate",
    "Exposure": "exposure",
    "Attacker": "inference",
    "Inference": "inference",
    "Knowledge": "knowledge",
    "Membership": "knowledge",
    "Outcome": "attack",
    "calibrate": "membership",
    "choose_members": "knowledge",
    "classifier_confidence": "membership",
    "critic_score": "membership",
    "density_ratio": "membership",
    "evaluate_scores": "evaluate",
    "exposure": "exposure",
    "jigsaw": "disguise",
    "known_plaintext": "disguise",
    "latent_reconstruction": "reconstruction",
    "loss_calibrated": "losses",
    "loss_threshold": "losses",
    "nearest_sample": "membership",
    "neighborhood_count": "membership",
    "rank_exposure": "exposure",
    "person_disjoint": "inference",
    "picture_disjoint": "inference",
    "roc_curve": "evaluate",
    "roc_png": "roc_plot",
    "run_attack": "attack",
    "select_attacks": "registry",
    "train_attacker": "inference",
}

__getattr__ = lazy_names(__name__, _MODULES)
