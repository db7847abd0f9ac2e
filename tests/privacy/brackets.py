"""A second accountant, to bracket the first: plain NumPy, losses rounded down or up to a grid, direct convolution.

Rounding every loss down (up) moves every loss of a composition down (up), and delta(eps) = E[(1 - e^(eps - loss))_+]
with it. So `epsilon_bracket` is a lower and an upper bound, k grid steps apart for k reads. No Fourier transform, no
connected dots, no code of the package.
"""

import math

import numpy as np
from scipy.stats import laplace, norm

_DROPPED = 1e-19  # per convolution: lost from the lower bracket, infinite loss in the upper one


class Continuous:
    """A loss with distribution function ``cdf`` and survival function ``sf`` under the law it is drawn from."""

    def __init__(self, cdf, sf, low, high):
        self.cdf, self.sf, self.low, self.high = cdf, sf, low, high

    def rounded(self, step, up):
        edges = step * np.arange(math.floor(self.low / step) - 1, math.ceil(self.high / step) + 2)
        upper_half = self.cdf(edges[:-1]) > 0.5
        masses = np.where(upper_half, -np.diff(self.sf(edges)), np.diff(self.cdf(edges)))
        first = round(edges[0] / step) + (1 if up else 0)
        if up:
            masses[0] += self.cdf(edges[:1])[0]
        return first, masses, float(self.sf(edges[-1:])[0]) if up else 0.0


class Atoms:
    """A loss with finitely many values."""

    def __init__(self, losses, masses):
        self.losses, self.masses = np.asarray(losses, dtype=float), np.asarray(masses, dtype=float)

    def rounded(self, step, up):
        # 1e-9 steps of slack: a loss on the grid stays there, whatever its last bit says
        places = (np.ceil(self.losses / step - 1e-9) if up else np.floor(self.losses / step + 1e-9)).astype(int)
        first = places.min()
        return first, np.bincount(places - first, weights=self.masses), 0.0


def laplace_loss(distance):
    place = lambda loss: (distance - loss) / 2  # noqa: E731
    return [
        Continuous(
            lambda loss: np.where(loss < -distance, 0.0, np.where(loss < distance, laplace.sf(place(loss)), 1.0)),
            lambda loss: np.where(loss < -distance, 1.0, np.where(loss < distance, laplace.cdf(place(loss)), 0.0)),
            -distance,
            distance,
        )
    ] * 2


def gaussian_loss(mu):
    law = norm(mu * mu / 2, mu)
    return [Continuous(law.cdf, law.sf, mu * mu / 2 - 9.5 * mu, mu * mu / 2 + 9.5 * mu)] * 2


def poisson_gaussian_loss(mu, rate, reach=9.5):
    def place(loss):
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = np.log1p(np.maximum(np.expm1(loss) / rate, -1.0))
        return inner / mu + mu / 2

    def loss_at(x):
        return math.log1p(rate * math.expm1(mu * x - mu * mu / 2))

    low, high = loss_at(-reach), loss_at(mu + reach)
    present = Continuous(
        lambda loss: (1 - rate) * norm.cdf(place(loss)) + rate * norm.cdf(place(loss) - mu),
        lambda loss: (1 - rate) * norm.sf(place(loss)) + rate * norm.sf(place(loss) - mu),
        low,
        high,
    )
    absent = Continuous(lambda loss: norm.sf(place(-loss)), lambda loss: norm.cdf(place(-loss)), -high, -low)
    return [present, absent]


def _atoms_of(masses, other):
    kept = (masses > 0) & (other > 0)
    return [Atoms(np.log(masses[kept] / other[kept]), masses[kept])] * 2


def discrete_laplace_loss(sensitivity, scale):
    x = np.arange(-60 * scale, 60 * scale + sensitivity)
    weights = lambda center: np.exp(-abs(x - center) / scale) * math.tanh(1 / (2 * scale))  # noqa: E731
    return _atoms_of(weights(0), weights(sensitivity))


def rounded_gaussian_loss(sensitivity, scale):
    x = np.arange(-12 * scale, 12 * scale + sensitivity)

    def masses(center):
        near = abs(x - center)
        return norm.sf((near - 0.5) / scale) - norm.sf((near + 0.5) / scale)

    return _atoms_of(masses(0), masses(sensitivity))


def randomized_response_loss(epsilon, categories):
    total = math.exp(epsilon) + categories - 1
    masses = np.array([math.exp(epsilon), 1.0, categories - 2]) / total
    return [Atoms([epsilon, -epsilon, 0.0], masses)] * 2


def _trim(first, masses, infinite, up):
    below, above = np.cumsum(masses), np.cumsum(masses[::-1])
    start, stop = np.searchsorted(below, _DROPPED), len(masses) - np.searchsorted(above, _DROPPED)
    kept = masses[start:stop].copy()
    if up:
        kept[0] += masses[:start].sum()
        infinite += masses[stop:].sum()
    return first + start, kept, infinite


def _convolve(one, other, up):
    product = np.convolve(one[1], other[1])
    return _trim(one[0] + other[0], product, one[2] + other[2] if up else 0.0, up)


def _delta(step, composed, epsilon):
    first, masses, infinite = composed
    losses = step * (first + np.arange(len(masses)))
    return infinite + float(np.sum(masses * -np.expm1(np.minimum(epsilon - losses, 0.0))))


def _compose(parts, step, up):
    total = None
    for loss, count in parts:
        power = _trim(*loss.rounded(step, up), up)
        while count:
            if count & 1:
                total = power if total is None else _convolve(total, power, up)
            count >>= 1
            if count:
                power = _convolve(power, power, up)
    return total


def epsilon_brackets(parts, deltas, step):
    """Return [(lower, upper)] of epsilon at each delta.

    Args:
        parts: [(both directions of a loss, count)].
        deltas: Where.
        step: Of the grid.
    """
    brackets = []
    for up in (False, True):
        directions = [_compose([(loss[way], count) for loss, count in parts], step, up) for way in (0, 1)]
        worst = []
        for delta in deltas:
            low, high = 0.0, 100.0
            for _ in range(40):
                middle = (low + high) / 2
                above = max(_delta(step, composed, middle) for composed in directions) > delta
                low, high = (middle, high) if above else (low, middle)
            worst.append(high)
        brackets.append(worst)
    return list(zip(*brackets, strict=True))
