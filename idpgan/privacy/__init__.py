"""Guarantees, events, mechanisms, noise, accounting and the ledger: the only room that decides what is private.

Words and symbols:

| name in code       | symbol    | meaning                                                         |
|--------------------|-----------|-----------------------------------------------------------------|
| `epsilon`, `delta` | eps, delta| privacy parameters, always with a `Unit` and a `Relation`       |
| `sensitivity`      | Delta     | largest distance between answers on neighbors, a constant      |
| `scale`            | b, sigma  | Laplace parameter or Gaussian standard deviation                |
| `noise_multiplier` | b/Delta   | scale / sensitivity, no unit                                    |
| `sample_rate`      | q         | Poisson inclusion probability                                   |
| `clip_norm`        | C         | bound on one record's contribution                              |
"""

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names

if TYPE_CHECKING:
    from idpgan.privacy.accounting import calibrate, compose_epsilon
    from idpgan.privacy.dpsgd import DPSGDPlan
    from idpgan.privacy.event import Event
    from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, check_delta, default_delta
    from idpgan.privacy.ledger import Budget, BudgetError, Ledger
    from idpgan.privacy.matrix import MatrixMechanism
    from idpgan.privacy.mechanisms import (
        DiscreteLaplace,
        Exponential,
        Gaussian,
        Grid,
        Laplace,
        Mechanism,
        NoisyMax,
        RandomizedResponse,
        RoundedGaussian,
    )
    from idpgan.privacy.noise import Noise
    from idpgan.privacy.opacus_history import from_opacus
    from idpgan.privacy.selection import SparseVector

__all__ = [
    "Budget",
    "BudgetError",
    "DPSGDPlan",
    "DiscreteLaplace",
    "Event",
    "Exponential",
    "Gaussian",
    "Grid",
    "Guarantee",
    "Laplace",
    "Ledger",
    "MatrixMechanism",
    "Mechanism",
    "Noise",
    "NoisyMax",
    "PrivacyReport",
    "RandomizedResponse",
    "Relation",
    "RoundedGaussian",
    "SparseVector",
    "Unit",
    "calibrate",
    "check_delta",
    "compose_epsilon",
    "default_delta",
    "from_opacus",
]

_MODULES = {
    "Budget": "ledger",
    "BudgetError": "ledger",
    "DPSGDPlan": "dpsgd",
    "DiscreteLaplace": "mechanisms",
    "Event": "event",
    "Exponential": "mechanisms",
    "Gaussian": "mechanisms",
    "Grid": "mechanisms",
    "Guarantee": "guarantee",
    "Laplace": "mechanisms",
    "Ledger": "ledger",
    "MatrixMechanism": "matrix",
    "Mechanism": "mechanisms",
    "Noise": "noise",
    "NoisyMax": "mechanisms",
    "PrivacyReport": "guarantee",
    "RandomizedResponse": "mechanisms",
    "Relation": "guarantee",
    "RoundedGaussian": "mechanisms",
    "SparseVector": "selection",
    "Unit": "guarantee",
    "calibrate": "accounting",
    "check_delta": "guarantee",
    "compose_epsilon": "accounting",
    "default_delta": "guarantee",
    "from_opacus": "opacus_history",
}

if not TYPE_CHECKING:  # a type checker shall find names that do not exist
    __getattr__ = lazy_names(__name__, _MODULES, checked=False)
