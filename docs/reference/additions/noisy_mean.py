"""The method `noisy-mean`.

Guarantee. Neighbors differ in one image, which is zeroed out. The sum of all images, pixels 0 .. 255 of D numbers, then
moves by at most 255 sqrt(D) in L2. It is released once, with Gaussian noise rounded to whole numbers
(`RoundedGaussian`). All training is post-processing.
"""

import functools
import math

import torch

from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import Nearness
from idpgan.config import key
from idpgan.data.images import to_float
from idpgan.privacy import Relation, Unit
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.mechanisms import RoundedGaussian
from idpgan.private.released_once import ReleasedOnce
from idpgan.synthesis import product
from idpgan.synthesis.networks import AdamSettings, Generators
from idpgan.training.config import settings
from idpgan.training.plan import RunPlan

ADJACENCY = (Unit.IMAGE, Relation.ZERO_OUT)


def noisy_sum(image_shape, epsilon, delta):
    """Return the release with the least noise that keeps to (epsilon, delta)."""
    sensitivity = 255 * math.sqrt(math.prod(image_shape))

    def scaled(multiplier):
        return RoundedGaussian(sensitivity, math.ceil(multiplier * sensitivity), *ADJACENCY)

    return scaled(calibrate(lambda m: [scaled(m).event], epsilon, delta))


Settings = settings(
    "noisy-mean",
    method=[{"learning_rate": key(float, 1e-3, "Of Adam.", gt=0)}],
    privacy=[
        {
            "epsilon": key(float, ..., "Of the one release.", gt=0),
            "delta": key(float, ..., "Below 1/N for N private images, usually `min(1e-5, 1 / (10 N))`.", gt=0, lt=1),
        }
    ],
)


class Plan(RunPlan):
    """What a run does and costs; `RunPlan` makes the ledger's terms, the dry run and the report of it."""

    @functools.cached_property
    def mechanism(self):
        return noisy_sum(self.shape.image_shape, self.budget.epsilon, self.budget.delta)

    @functools.cached_property
    def events(self):
        return (self.mechanism.event,)

    def reason(self, events, sources):
        return "one noisy sum"


class Method(ReleasedOnce):
    """Its `prepare` charges the plan's events and keeps what `_release` returns; its steps read nothing else."""

    SAVED = ("networks", "noise")

    def _set_up(self, split):
        super()._set_up(split)
        adam, self.num_private = AdamSettings(self.config.learning_rate, 0.9, 0.999), split.num_private
        self.networks = Generators(
            self.plan.config, split.shape, device=self.device, adam=adam, ema_decay=0.99, stream=2
        )
        self.generator = self.networks.average  # what is given away

    def _release(self):
        total = self._take_private().existing().images.sum(0, dtype=torch.int64)
        return {"sum": self.plan.mechanism(total, self.noise)}

    def step(self, step):
        mean = (self._released["sum"] / self.num_private).clamp(0, 255).to(torch.uint8)
        fakes, _ = self.networks.fakes(self._run.training.batch_size)
        loss = (fakes.mean(0) - to_float(mean).to(fakes.device)).square().mean()
        self.networks.step_generator(loss)
        return {"loss": loss.detach()}

    def artifact(self, config):
        return product.artifact(self.generator, self._run, config)


def audit_case(request):
    """Return the case of ``idpgan audit``: the release itself, of one white image and of none."""
    mechanism = noisy_sum((1, 2, 2), request.epsilon, request.delta)

    def release(sums, noise):
        return mechanism(sums.long(), noise).double()

    pair = Pair("one white image, zeroed out", torch.full((4,), 255.0), torch.zeros(4))
    claimed, proven = guarantees(request, mechanism.event)
    return AuditCase("noisy-mean", pair, claimed, proven, release, (Nearness,), events=(mechanism.event,))


AUDIT = Entry(audit_case, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5)
