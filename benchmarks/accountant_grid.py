"""The accountant on a grid of sampled Gaussian steps: more steps cost more, and what they cost is near the truth.

python benchmarks/accountant_grid.py [--out runs/accountant_grid] [--deltas 1e-5 1e-7 1e-9]

Noise multipliers 0.3 to 20, sampling rates 1e-5 to 1, 1 to 1,000,000 steps. What it truly costs is computed without the
package: one step, and steps that everybody is in, by their closed curves; others by inverting a Laplace transform
(tests/privacy/inversion.py); where that converges too slowly, between the lower and the upper bound of dp_accounting's
composition. One JSON line per cell; a cell that is there already, for the same code, is read back. The last line is the
sum. Exit code 1: a cell costs less than the truth, more than 1.05 times it + 0.01, or more than one of more steps.

In a row, ``of_allowed`` is ``(epsilon - truth) / (0.05 truth + 0.01)``: above 1 is too much.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_accounting.pld import privacy_loss_distribution as dp_pld
from scipy.special import log_ndtr, ndtr

import idpgan
from idpgan.privacy import Event, Relation, Unit, compose_epsilon
from tests.privacy.inversion import SampledGaussians

SIGMAS = (0.3, 0.4358, 0.6, 0.8, 1.0, 1.5, 3.0, 8.0, 20.0)
RATES = (1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0)
COUNTS = (1, 2, 3, 6, 7, 30, 60, 61, 1000, 30_000, 10**6)
SHARE, SLACK = 0.05, 0.01
LEFT = 1e-4  # share of an inverted delta that its quadrature may leave out
BLOCKS = {True: 8, False: 300}  # of the inversion, for few steps, which can be bracketed too, and for many
FEW = 100
Curve = Callable[[float], float]


def price(sigma: float, rate: float, count: int, delta: float) -> float:
    """Return what the package says."""
    pair = (Unit.IMAGE, Relation.ZERO_OUT)
    return compose_epsilon([Event("poisson-gaussian", *pair, sigma, count, sample_rate=rate)], delta)


# The truth -----------------------------------------------------------------------------------------------------


def gaussian(mu: float) -> Curve:
    """Return the curve of N(mu, 1) against N(0, 1): Balle and Wang 2018, Theorem 8."""
    return lambda epsilon: float(
        ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
    )


def one_step(sigma: float, rate: float) -> Curve:
    """Return the larger curve of both directions between (1 - q) N(0, 1) + q N(mu, 1) and N(0, 1), q < 1."""
    mu = 1 / sigma

    def place(odds: float) -> float:
        return math.log(odds / rate) / mu + mu / 2

    def delta(epsilon: float) -> float:
        x, factor = place(math.expm1(epsilon) + rate), math.expm1(epsilon) + rate
        forward = rate * float(ndtr(mu - x)) - factor * float(ndtr(-x))
        left = math.expm1(-epsilon) + rate  # a loss of the other direction is below -log(1 - q)
        if left <= 0:
            return forward
        x, most = place(left), math.exp(epsilon)
        return max(forward, (1 - most * (1 - rate)) * float(ndtr(x)) - most * rate * float(ndtr(x - mu)))

    return delta


def solved(curve: Curve, delta: float, near: float) -> float:
    """Return the epsilon at which a falling curve reaches delta, to about 1e-6 of it; 0 where the curve starts below.

    Where ``near`` is a good guess two values of the curve do.
    """
    if near == 0 or curve(near) <= 0:
        if curve(0.0) <= delta:
            return 0.0
        near = max(near, 1e-6)

    def excess(epsilon: float) -> float:
        return math.log(max(curve(epsilon), 1e-300) / delta)

    width = 1e-4 * near + 1e-9
    low, high = near - width, near
    at_low, at_high = excess(low), excess(high)
    for _ in range(60):
        guess = high + at_high * (high - low) / (at_low - at_high)  # a falling curve, nearly straight
        if abs(guess - high) <= 4 * width:
            return max(guess, 0.0)
        low, at_low, high = high, at_high, max(guess, 0.0)
        at_high = excess(high)
        if high == 0 and at_high <= 0:
            return 0.0
        if abs(high - low) < 1e-12:
            break
    raise ArithmeticError("the curve is not solved")


def library(sigma: float, rate: float, count: int, delta: float, pessimistic: bool, interval: float) -> float:
    """Return the bound of dp_accounting from above or from below."""
    options: dict[str, Any] = {"sampling_prob": rate, "value_discretization_interval": interval}
    options |= {"pessimistic_estimate": pessimistic, "use_connect_dots": pessimistic}
    single = dp_pld.from_gaussian_mechanism(sigma, **options)
    return float(single.self_compose(count).get_epsilon_for_delta(delta))


def truth(sigma: float, rate: float, count: int, delta: float, near: float) -> tuple[str, float, float]:
    """Return how it was found, and the least and the largest epsilon that may be the true one."""
    if rate == 1 or count == 1:
        exact = solved(gaussian(math.sqrt(count) / sigma) if rate == 1 else one_step(sigma, rate), delta, near)
        return "closed curve", exact * (1 - 1e-6), exact
    try:
        for finer in (1, 4):
            blocks = BLOCKS[count < FEW] * finer
            curve = functools.cache(SampledGaussians(sigma, rate, count, LEFT, blocks, finer).delta)
            found = solved(curve, delta, near)
            if curve(near) <= delta * (1 + 2 * LEFT):  # not below; wide steps can only make it seem so
                return "inverted", min(found, near), found
        return "inverted", found, found
    except ArithmeticError:
        interval = min(max(0.3 * (SHARE * near + SLACK) / count, 1e-4), 1e-3)  # rounds each read down by that much
        low, high = (library(sigma, rate, count, delta, way, interval) for way in (False, True))
        return "bracketed", low, max(low, min(high, near))


# The grid ------------------------------------------------------------------------------------------------------


def play(sigma: float, rate: float, count: int, delta: float) -> dict[str, Any]:
    """Return the row of one cell. Of a bracket its lower end stands for the truth above, too."""
    started = time.perf_counter()
    epsilon = price(sigma, rate, count, delta)
    between = time.perf_counter()
    way, low, high = truth(sigma, rate, count, delta, epsilon)
    used = (epsilon - low) / (SHARE * low + SLACK)
    row = {"sigma": sigma, "rate": rate, "count": count, "delta": delta, "epsilon": epsilon, "way": way}
    row |= {"truth": [low, high], "of_allowed": used, "below": epsilon < low, "above": used > 1}
    ended = time.perf_counter()
    return row | {"seconds": [round(between - started, 3), round(ended - between, 3)]}


def code() -> str:
    """Return the SHA-256 of the accountant's sources and of this file."""
    files = [*sorted((Path(idpgan.__file__).parent / "privacy").glob("*.py")), Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts, the worst cells, and every violation."""
    groups = itertools.groupby(rows, key=lambda row: (row["sigma"], row["rate"], row["delta"]))
    falls = [
        [*key, few["count"], more["count"]]
        for key, group in groups
        for few, more in itertools.pairwise(group)
        if few["epsilon"] > more["epsilon"] * (1 + 1e-9)
    ]
    priced = [row for row in rows if row["truth"][0] > 0.1]
    worst = max(rows, key=lambda row: row["of_allowed"])
    ratio = max(priced, key=lambda row: row["epsilon"] / row["truth"][0], default=None)
    ways = sorted({row["way"] for row in rows})
    return {
        "cells": len(rows),
        "ways": {way: sum(row["way"] == way for row in rows) for way in ways},
        "falls": falls,
        "below": [row for row in rows if row["below"]],
        "above": [row for row in rows if row["above"]],
        "worst_of_allowed": worst,
        "worst_ratio_above_0.1": ratio and {**ratio, "ratio": ratio["epsilon"] / ratio["truth"][0]},
        "slowest_price": max(row["seconds"][0] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/accountant_grid"))
    parser.add_argument("--deltas", type=float, nargs="+", default=[1e-5, 1e-7, 1e-9])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # dp_accounting says which algorithm it takes
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{code()[:16]}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    known = {tuple(row[key] for key in ("sigma", "rate", "count", "delta")): row for row in map(json.loads, lines)}
    rows = []
    with path.open("a") as file:
        for sigma, rate, delta, count in itertools.product(SIGMAS, RATES, arguments.deltas, COUNTS):
            cell = (sigma, rate, count, delta)
            if cell not in known:
                known[cell] = play(*cell)
                print(json.dumps(known[cell]), file=file, flush=True)
            rows.append(known[cell])
    total = summed(rows)
    print(json.dumps(total))
    sys.exit(1 if total["falls"] or total["below"] or total["above"] else 0)


if __name__ == "__main__":
    main()
