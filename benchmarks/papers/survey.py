"""What surveys list and no method uses: shown by OpenDP (the extra `survey`) where it has the thing, else by ours.

python benchmarks/papers/survey.py WHAT

| WHAT | rows | what | by |
|---|---|---|---|
| sensitivity | 40 | global, local and smooth, of the median | ours; OpenDP has global ones |
| response | 44 | randomized response; RAPPOR | OpenDP; n reports of RAPPOR and decoding ours |
| local | 45 | several values of a device, means | ours: OpenDP draws none of k, and takes 0.2 ms a value |
| counts | 55 | l1 sensitivity, histograms, the largest of k errors | OpenDP |
| selection | 56 | report noisy max, by permute and flip | OpenDP |
| composition | 57 | basic, advanced, optimal | OpenDP adds up; the theorems ours |
| divergences | 54, 58 | of two laws, by name; post-processing | ours: OpenDP's are names of measures |

Proofs and brute force are in the tests of the same names: `pytest -m papers tests/papers`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import opendp.prelude as dp
import torch

sys.path.append(str(Path(__file__).parents[1]))
from idpgan.privacy import Noise, Relation, Unit
from papers.literature import composition as theorems
from papers.literature import divergences as laws
from papers.literature.local_values import LocalNumbers
from papers.literature.rappor import Rappor, decode
from papers.literature.smooth_sensitivity import SmoothMedian, local_sensitivity, smooth_sensitivity

dp.enable_features("contrib")
PAIR = (Unit.IMAGE, Relation.REPLACE_ONE)


def sensitivity() -> None:
    """The median of numbers in [0, 1] at epsilon 1, beside Laplace noise for the global sensitivity."""
    for num in (101, 1001):
        values = 0.5 + 0.1 * torch.randn(num, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values = values.clamp(0, 1)
        mechanism = SmoothMedian(0.0, 1.0, 1.0, *PAIR)
        bounds = [smooth_sensitivity(values, 0.0, 1.0, beta).item() for beta in (mechanism.beta, 0.0)]
        released = mechanism(values.expand(300, num), Noise.system())
        laplace = dp.m.make_laplace(dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), bounds[1])
        error = (released - values.median()).abs().median()
        print(
            f"{num} values: local {local_sensitivity(values, 0.0, 1.0).item():.4f}, smooth {bounds[0]:.4f}, global "
            f"{bounds[1]:g}; error {error:.4f}, of OpenDP's Laplace noise at epsilon {laplace.map(bounds[1]):g} "
            f"{math.log(2) * bounds[1]:.4f}"
        )


def response() -> None:
    """Randomized response and RAPPOR: prices, and counts of strings that never leave the devices."""
    answer = dp.m.make_randomized_response(["horse", "airplane", "ship"], prob=0.5)
    given = [answer("horse") for _ in range(2000)]
    print(f"randomized response: epsilon {answer.map(1):.4f}, true in {given.count('horse') / 20:.1f} % of answers")
    rappor = Rappor(bits=64, hashes=2, cohorts=8, f=0.25, p=0.25, q=0.75)
    kept = dp.m.make_randomized_response_bitvec(dp.bitvector_domain(max_weight=2), dp.discrete_distance(), f=0.25)
    print(f"RAPPOR: one report {rappor.epsilon(1):.4f}, eight {rappor.epsilon(8):.4f}, any number ", end="")
    print(f"{rappor.epsilon(None):.4f} (OpenDP: {kept.map(1):.4f})")
    values, noise = ["a"] * 8000 + ["b"] * 4000, Noise.system()
    cohorts = noise.integers(8, (len(values),))
    found = decode(rappor, rappor.report(values, cohorts.tolist(), noise), cohorts, ["a", "b", "c"])
    print(f"decoded {[round(count) for count in found.counts.tolist()]} of [8000, 4000, 0]")


def local() -> None:
    """Means of four numbers of a device: one that is drawn with all of epsilon, or each with a quarter."""
    records = torch.tensor([-0.8, -0.1, 0.3, 0.9]).expand(40_000, 4)
    for split in (False, True):
        method = LocalNumbers(4, 1.0, split)
        means = method.means(method.report(records, Noise.system()))
        print(f"{'all four' if split else 'one drawn'}: {[round(mean, 3) for mean in means.tolist()]} at epsilon 1")


def counts() -> None:
    """A histogram of 10,000 surnames at epsilon 1: the largest of all errors (Dwork and Roth 2014, theorem 3.8)."""
    names = [str(number) for number in range(10_000)]
    count = dp.t.make_count_by_categories(
        dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance(), names, null_category=False
    )
    histogram = count >> dp.m.then_laplace(scale=1.0)
    errors = np.abs(np.array(histogram(names)) - 1)
    print(f"epsilon {histogram.map(1):g}: largest error {errors.max()}", end="")
    print(f", above {dp.laplacian_scale_to_accuracy(1.0, 0.05 / len(names)):.2f} in 5 of 100 by the sum of chances")


def selection() -> None:
    """The largest of four scores, each of which one record moves by 1: permute and flip (McKenna, Sheldon 2020)."""
    chosen = dp.m.make_noisy_max(
        dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int), dp.max_divergence(), scale=4.0
    )
    found = np.bincount([chosen([0, 3, 5, 4]) for _ in range(2000)], minlength=4)
    print(f"epsilon {chosen.map(1):g}: scores 0, 3, 5, 4 are chosen {found.tolist()} times of 2,000")


def composition() -> None:
    """The joint price of k reads: basic, advanced (3.20), and the best that epsilon alone can tell."""
    for epsilon, count, delta in ((0.1, 100, 1e-5), (0.01, 2000, 1e-6), (1.0, 10, 1e-5)):
        read = dp.m.make_laplace(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=1 / epsilon)
        basic = dp.c.make_composition([read] * count).map(1)
        advanced, closed = (
            theorem(epsilon, 0.0, count, delta)[0]
            for theorem in (theorems.advanced_composition, theorems.closed_form_composition)
        )
        best = theorems.optimal_composition(epsilon, 0.0, count, delta)
        print(f"{count} of {epsilon:g}, delta {delta:g}: basic {basic:.4f}, advanced {advanced:.4f}, ", end="")
        print(f"closed form {closed:.4f}, optimal {best:.4f}")


def divergences() -> None:
    """Two points of the simplex, their losses by name, and what is left of them after two outcomes are merged."""
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.3, 0.6])
    merge = np.array([[1, 0], [1, 0], [0, 1]])
    for name, first, second in (("as released", p, q), ("post-processed", p @ merge, q @ merge)):
        print(
            f"{name}: KL {laws.kl_divergence(first, second):.4f}, max {laws.max_divergence(first, second):.4f}, max "
            f"beyond delta 0.1 {laws.approximate_max_divergence(first, second, 0.1):.4f}, statistical distance "
            f"{laws.statistical_distance(first, second):.4f}"
        )


SHOWN: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (sensitivity, response, local, counts, selection, composition, divergences)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=SHOWN)
    SHOWN[parser.parse_args().what]()


if __name__ == "__main__":
    main()
