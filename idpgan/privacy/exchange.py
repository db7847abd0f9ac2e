"""Charges in words that other accountants read: rho, mu, and the tree of a `DpEvent` of the library dp_accounting.

The tree has the form of dp_accounting's own ``DpEvent.to_named_tuple``, as JSON objects, and its ``from_named_tuple``
takes it once they are named tuples again. Everything here is an upper bound, and where a way of counting has none that
is finite for a read, it says null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from idpgan.privacy.event import Event

_MODULE = "dp_accounting.dp_event"
_MOST_COPIES = 1000


def exchanged(events: Sequence[Event]) -> dict[str, Any]:
    """Return the mechanisms, their rho and mu together, and their tree, JSON-able.

    A mechanism's ``sensitivity`` is in whole grid steps where its noise is on a grid, and 1 where it was divided out;
    ``noise`` is the scale in the same unit, the standard deviation of Gaussian noise and b of Laplace noise.
    """
    rho, mu = [zcdp_rho(event) for event in events], [gdp_mu(event) for event in events]
    return {
        "mechanisms": [_mechanism(event) for event in events],
        "rho": None if None in rho else sum(filter(None, rho)),
        "mu": None if None in mu else math.hypot(*filter(None, mu)),
        "dp_event": _tree("ComposedDpEvent", events=[dp_event(event) for event in events]),
    }


def zcdp_rho(event: Event) -> float | None:
    """Return rho of zero-concentrated privacy for all reads of an event; None without a bound.

    Bun and Steinke (2016): 1 / (2 noise_multiplier^2) for Gaussian noise (proposition 1.6), epsilon^2 / 2 for what is
    epsilon-private (1.4), added up over reads. What sampling gains is not in it: steps of DP-SGD have None.
    """
    if event.kind == "gaussian" and event.noise_multiplier is not None:
        return event.count / (2 * event.noise_multiplier**2)
    return event.count * event.pure**2 / 2 if math.isfinite(event.pure) else None


def gdp_mu(event: Event) -> float | None:
    """Return mu of Gaussian privacy for all reads of an event: sqrt(count) / noise_multiplier of Gaussian noise alone.

    Dong, Roth and Su (2022), theorem 1 and corollary 2.
    """
    if event.kind == "gaussian" and event.noise_multiplier is not None:
        return math.sqrt(event.count) / event.noise_multiplier
    return None


def dp_event(event: Event) -> dict[str, Any]:
    """Return the `DpEvent` of all reads of an event.

    What is known by its pure epsilon alone is stated as randomized response between two answers, which no such
    mechanism exceeds (Kairouz, Oh and Viswanath 2015); a read with a delta of its own has no `DpEvent`. Repeated
    randomized response is written out: dp_accounting 0.6.0 prices `SelfComposedDpEvent` of it as one, whatever its
    count.
    """
    one = _single(event)
    if event.count > 1 and one["class_name"] == "RandomizedResponseDpEvent":
        known = event.count <= _MOST_COPIES
        return _tree("ComposedDpEvent", events=[one] * event.count) if known else _tree("UnsupportedDpEvent")
    return one if event.count == 1 else _tree("SelfComposedDpEvent", event=one, count=event.count)


def _single(event: Event) -> dict[str, Any]:
    multiplier, noise = event.noise_multiplier, {"noise_multiplier": event.noise_multiplier}
    if event.kind == "poisson-gaussian":
        step = _tree("GaussianDpEvent", **noise)
        return _tree("PoissonSampledDpEvent", sampling_probability=event.sample_rate, event=step)
    if event.kind == "discrete-laplace" and multiplier is not None and event.sensitivity is not None:
        parameter = 1 / (multiplier * event.sensitivity)
        return _tree("DiscreteLaplaceDpEvent", noise_parameter=parameter, sensitivity=event.sensitivity)
    if event.kind in ("gaussian", "laplace"):
        return _tree(f"{event.kind.capitalize()}DpEvent", **noise)
    if math.isfinite(event.pure):
        answers = event.categories or 2
        share = answers / (math.exp(min(event.pure, 700.0)) + answers - 1)  # of answers that are drawn at random
        return _tree("RandomizedResponseDpEvent", noise_parameter=share, num_buckets=answers)
    return _tree("UnsupportedDpEvent" if event.is_private else "NonPrivateDpEvent")


def _mechanism(event: Event) -> dict[str, Any]:
    if event.noise_multiplier is None:
        return event.to_json()
    sensitivity = event.sensitivity or 1
    return {**event.to_json(), "sensitivity": sensitivity, "noise": event.noise_multiplier * sensitivity}


def _tree(name: str, **fields: Any) -> dict[str, Any]:
    return {"module_name": _MODULE, "class_name": name, **fields}
