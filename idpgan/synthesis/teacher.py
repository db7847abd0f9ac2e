r"""A private teacher: a linear classifier on scattering features that says what a generated image shows.

Images that match released sums lie near the images of their class, and some lie nearer to those of another. A
classifier of the private images tells them apart, and a linear one costs little (`classify.scattering_linear`). It is
trained once, on a share of the budget, is released with the generator, and labels what the generator draws: training
another classifier on these labels is distillation (Hinton, Vinyals and Dean, "Distilling the knowledge in a neural
network", 2015), and all of it is post-processing.

Budget: a share of the squared signal. Gaussian releases of noise multipliers ``m / sqrt(s_i)`` together are as private
as one of m if the shares s_i add up to 1 (Dong, Roth and Su, "Gaussian differential privacy", 2022, corollary 3.3), and
T releases of ``m sqrt(T / s)`` as one of ``m / sqrt(s)``. Steps that draw each record by a coin of chance q take
``1 / sqrt(ln(1 + s / (q^2 T m^2)))``, which in the limit of many steps is as private (Bu, Dong, Long and Su, "Deep
learning with Gaussian differential privacy", 2020, theorem 5). The ledger charges the events, not this rule, and m is
the least with which all of them together stay within (epsilon, delta).

Why more steps cost no noise: T steps of rate r and full batches move a weight by r T times a gradient and by noise of
r sqrt(T) sigma C / N, and sigma grows with sqrt(T). So at the same r T there is the same noise, and shorter steps
follow the descent more closely. What they cost is time, which a draw of q N images pays for.

Sensitivity of a step: `classify.scattering_linear`; for unit person each image's clipped gradient is weighted by its
share of the person (`DPSGDPlan.clipped_outer_sum`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from idpgan.classify import scattering_linear
from idpgan.config import Keys, key
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.models.config import Purpose
from idpgan.models.generator import MOST_CANDIDATES, Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Event, Ledger, Relation, Unit
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.private.released_once import shares as shares_of
from idpgan.progress import Progress, counted, renamed, silent
from idpgan.training.config import MOST_STEPS, section_of
from idpgan.training.method import Method as Run

_NO_LIMIT = 1e6
_BALANCED_ON, _ROUNDS = 2000, 100  # images, and steps of an iteration that halves the error in each
_LOOKED_AT = 500  # images between two words on progress
TEACHER = "teacher"  # of the names of what is released
_SETTINGS: Any = scattering_linear.Settings
_SECTION, _TRAINING = (section_of(_SETTINGS, name)() for name in ("method", "training"))

KEYS: Keys = {
    "teacher_share": key(
        float,
        0.0,
        "Share of the budget that a private classifier gets, which chooses among what the generator draws; 0 = none. "
        "See `idpgan.synthesis.teacher`.",
        ge=0,
        le=0.95,
    ),
    "candidates": key(
        int,
        4,
        "Images that the released generator draws for each one that the classifier chooses.",
        ge=1,
        le=MOST_CANDIDATES,
    ),
    "teacher_steps": key(
        int,
        _TRAINING.steps,
        "Steps of noisy gradient descent of that classifier. More cost no budget, but time: 400 where the package "
        "proposes a config.",
        ge=1,
        le=MOST_STEPS,
    ),
    "teacher_batch_size": key(
        int,
        _TRAINING.batch_size,
        "Expected number of images in such a step, each drawn by a coin; all of them up to so many, and always for a "
        "larger unit than image. 5,000 where the package proposes a config.",
        ge=1,
        le=_TRAINING.batch_size,
    ),
}
"""[method] of a method that may release a teacher."""


def noise_on(share: float, multiplier: float, count: int = 1, rate: float = 1.0) -> float:
    """Return the noise multiplier of each of so many equal releases on a share of the budget.

    Args:
        share: s in (0, 1], of all of them together.
        multiplier: m, of everything together.
        count: T.
        rate: q, the chance of each record to be in a release.
    """
    if rate == 1:
        return multiplier * math.sqrt(count / share)
    return 1 / math.sqrt(math.log1p(share / (rate**2 * count * multiplier**2)))


@dataclasses.dataclass(frozen=True)
class TeacherSteps:
    """The steps of a teacher: what they read, and what they cost.

    Attributes:
        share: s in (0, 1).
        unit: What one record is.
        steps: T.
        sample_rate: q, the chance of each image to be in a step.
        multiplier: m, of everything together.
    """

    share: float
    unit: Unit
    steps: int
    sample_rate: float
    multiplier: float

    @classmethod
    def of(cls, method: Any, unit: Unit, num_private: int, multiplier: float) -> TeacherSteps:
        """Return those that a config asks for; the coins of one person's images would not be those of a person."""
        rate = min(1.0, method.teacher_batch_size / max(num_private, 1)) if unit is Unit.IMAGE else 1.0
        return cls(method.teacher_share, unit, method.teacher_steps, rate, multiplier)

    def plan(self, num_private: int) -> DPSGDPlan:
        """Return the steps for N private images."""
        noise = noise_on(self.share, self.multiplier, self.steps, self.sample_rate)
        divisor = max(1, round(self.sample_rate * num_private))
        return DPSGDPlan(self.sample_rate, _SECTION.clip_norm, divisor, noise, self.unit)

    @property
    def event(self) -> Event:
        """Price of all steps."""
        return self.plan(1).event.repeated(self.steps)


def fit_teacher(teaching: TeacherSteps | None, private: Images, cap: int | None, run: Run) -> dict[str, Tensor]:
    """Train the teacher and return its weights (K, D) by name, none where there is none.

    The release that this is part of pays `TeacherSteps.event`.

    Args:
        private: Labeled; all of them are read at every step.
        cap: Images of one person that count, for unit person; None for unit image.
        run: The method whose release it is: its device, its source of coins and noise, what it keeps and tells.
    """
    if teaching is None:
        return {}
    counting, shares = shares_of(private, cap)
    private, shares = private.select(counting), None if shares is None else shares[counting]
    plan, nobody, steps = teaching.plan(len(private)), private.select(torch.arange(0)), teaching.steps
    privacy = {"epsilon": _NO_LIMIT, "delta": 0.5 / max(len(private), 1), "noise_multiplier": plan.noise_multiplier}
    batch_size = min(plan.divisor, _TRAINING.batch_size)
    method = scattering_linear.Method.of(  # no limit here: the caller's ledger, not this one, limits the cost
        _SETTINGS(method=_SECTION, privacy=privacy, training={"steps": steps, "batch_size": batch_size}),
        Split(nobody, private, nobody, nobody),
        ledger=Ledger(plan.unit, Relation.ZERO_OUT),
        device=run.device,
        noise=run.noise,
        shares=shares,
    )
    method.dpsgd, method.kept, method.progress = plan, run.kept, renamed(run.progress, "features for the teacher")
    for step in range(1, steps + 1):
        method.step(step)
        run.progress("teacher steps", step, steps)
    return {TEACHER: method.product.weight.detach().cpu()}


def balanced(teacher: LinearScattering, generator: Generator, progress: Progress = silent) -> LinearScattering:
    """Return the teacher with a bias that makes it find all classes equally often in generated images.

    Generated images differ from private ones: if they are smoother, a teacher takes most of them for the class whose
    images are smoother. The classes are drawn equally often, so its prior is corrected until its mean probability of
    each class is the same (Saerens, Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a priori
    probabilities", 2002). It looks at generated images only.
    """
    device, constant = teacher.weight.device, teacher.features(torch.zeros(1, *teacher.image_shape))[0, -1]
    drawing = generator.taught_by(teacher, 1)  # draws as widely as beside a teacher, and lets it choose nothing
    drawn = drawing.sample(_BALANCED_ON, seed=0, purpose=Purpose.TRAINING).split(_LOOKED_AT)
    batches = counted(drawn, progress, "balance the teacher", _BALANCED_ON, len)
    logits = torch.cat([teacher.logits(part) for part in batches]).double()
    bias = torch.zeros(logits.shape[1], dtype=torch.float64, device=device)
    for _ in range(_ROUNDS):
        bias -= ((logits + bias).softmax(1).mean(0) * logits.shape[1]).log()
    weight = teacher.weight.detach().clone()
    weight[:, -1] += (bias / constant).to(weight.dtype)
    return teacher_of(weight, teacher.image_shape, teacher.classes).to(device)


def teacher_of(weight: Tensor, image_shape: Sequence[int], classes: Sequence[str]) -> LinearScattering:
    """Return the teacher with weights that were released."""
    teacher = LinearScattering(image_shape, classes)
    with torch.no_grad():
        teacher.weight.copy_(weight)
    return teacher.eval().requires_grad_(False)
