"""Attacks: was an image in the training data of a generator or a classifier, and which person is on a released image?

`attack(members, others, knowledge)` runs every row of `registry` on what the attacker knows: a pure function that gives
each image a score, higher for a member. `evaluate_scores` turns scores into numbers with intervals. `train_attacker`
trains an attacker that infers people or attributes from transformed images; `subspace_scores` finds people by the
spaces of released matrices. Attacks on disguised images, which tables of papers use alone, are in benchmarks/papers/.
All results are computed with private images: curator only. A failed attack proves nothing; only a guarantee does. The
names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names

if TYPE_CHECKING:
    from idpgan.attacks.evaluate import evaluate_scores as evaluate_scores
    from idpgan.attacks.inference import train_attacker as train_attacker
    from idpgan.attacks.registry import select_attacks as select_attacks
    from idpgan.attacks.run import attack as attack
    from idpgan.attacks.run import attack_model as attack_model

__getattr__ = lazy_names(
    __name__,
    {
        "attack": "run",
        "attack_model": "run",
        "evaluate_scores": "evaluate",
        "select_attacks": "registry",
        "train_attacker": "inference",
    },
)
