"""What gets noise: the exact answers that reach a mechanism or a noisy step, kept while something is released."""

import contextlib
import dataclasses
import math

import torch

from idpgan.privacy import DPSGDPlan, Event
from idpgan.privacy import mechanisms as known

RESPONSE = 0  # the "norm" of a randomized response: so many labels changed
ORDERS = {
    known.Laplace: 1,
    known.DiscreteLaplace: 1,
    known.Gaussian: 2,
    known.RoundedGaussian: 2,
    known.Exponential: math.inf,
    known.RandomizedResponse: RESPONSE,
}


@dataclasses.dataclass(frozen=True)
class Read:
    """One exact answer before its noise, the norm by which answers of neighbors may differ, and the price of the noise.

    A noisy step has no price of its own here.
    """

    kind: str
    answer: torch.Tensor
    sensitivity: float
    order: float
    event: Event | None = None

    def moved(self, other):
        """How far a neighbor's answer lies away, in this norm."""
        assert (self.kind, self.sensitivity, self.order) == (other.kind, other.sensitivity, other.order)
        difference = (self.answer - other.answer).double().flatten()
        return torch.linalg.vector_norm(difference, ord=self.order).item()


def unpaid(reads, events):
    """Return the reads with less noise than was charged, or of another kind: a price that no charge names."""
    charged = [dataclasses.replace(event, count=1) for event in events]
    return [read for read in reads if read.event and dataclasses.replace(read.event, count=1) not in charged]


@contextlib.contextmanager
def watched(monkeypatch):
    """Give a list of what reaches any mechanism and any noisy step, in order."""
    seen, noisy_step = [], DPSGDPlan.noisy_step

    def watching(call):
        def reading(mechanism, answer, noise, *rest):
            order = ORDERS[type(mechanism)]
            sensitivity = 1.0 if order == RESPONSE else float(mechanism.sensitivity)
            seen.append(Read(type(mechanism).__name__, answer.clone(), sensitivity, order, mechanism.event))
            return call(mechanism, answer, noise, *rest)

        return reading

    def stepping(plan, optimizer, weights, sums, noise):
        answer = torch.cat([sums[name].flatten() for name in weights]) * plan.step
        seen.append(Read("noisy step", answer, plan.clip_norm, 2))
        noisy_step(plan, optimizer, weights, sums, noise)

    with monkeypatch.context() as patch:
        for kind in ORDERS:
            patch.setattr(kind, "__call__", watching(kind.__call__))
        patch.setattr(DPSGDPlan, "noisy_step", stepping)
        yield seen
