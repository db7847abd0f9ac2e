r"""The audit of DP-SGD steps: canary gradients at every step, through the method's own step code.

One training plays many games at once. The network has one weight per canary, and the gradient of canary j is nonzero
only at weight j, with a norm far above C: clipping reduces it to C. A record that is present goes through its own
Poisson coin, the clipped sum, the noise and the division of `DPSGDPlan`; one that is absent is a null record at the
same position. So number j of every noisy gradient is N(0, s^2) for an absent canary and ``(1 - q) N(0, s^2) + q N(C,
s^2)`` for a present one, independent of all other canaries: the dominating pair of the Poisson-sampled Gaussian
mechanism. The attacker sees the gradient of every step (Nasr et al. 2023, gradient canaries), and its score is the
exact log-likelihood ratio, the sum over steps of ``log(1 - q + q exp((y - 1/2) / sigma^2))``, y in units of C.

The weights never move (a learning rate of `STILL`), so that every step's gradient is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from idpgan.audit import cases, entry, neighbors
from idpgan.audit.statistics import EXACT, RANGE, Column, Maker
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit
from idpgan.privacy.noise import Noise

Training = Callable[[int], Tensor]  # number of a step, from 1 -> the attacker's view of each canary in it, (R,)
Make = Callable[[Split, DPSGDPlan, int, Noise, torch.device], Training]  # the number is of steps

STILL = 1e-30  # learning rate
SLOPE = 100.0  # gradient of a canary / clip norm: far above 1
NO_LIMIT = 1e12  # an epsilon above that of any step
SHAPE = (1, 8, 8)
_CLASSES = ("0", "1")  # every canary has the first class
_BITS = 40  # pixels that hold the number of a canary
_MOST_STEPS = 10_000  # simulated steps: some minutes
_CALLS = 10_000  # approximate steps of all trainings of one audit: some minutes
_MOST_RUNS = 50_000  # default limit
_STATISTICS: tuple[Maker, ...] = (
    lambda one, other: Column(0, EXACT),
    lambda one, other: Column(1, RANGE),
)


class CanaryNetwork(nn.Module):
    """Scores canary j by weight j, and anything that is not a canary by 0.

    Args:
        canaries: How many; one weight each.
        slope: Score per weight.
        copies: Weights of each canary, in tensors of their own.
    """

    num_classes = 0
    image_shape = SHAPE

    def __init__(self, canaries: int, slope: float, copies: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(canaries))
        for copy in range(1, copies):
            self.register_parameter(f"copy{copy}", nn.Parameter(torch.zeros(canaries)))
        self.slope = slope

    def forward(self, images: Tensor) -> Tensor:
        """Score images (B, C, H, W), (B,)."""
        pixels = images.flatten(1)
        canary = (pixels.abs() == 1).all(1)  # other images are never all black and white
        places = 2 ** torch.arange(_BITS, device=images.device)  # no buffer: Opacus refuses layers that have one
        number = ((pixels[:, :_BITS] > 0).long() * places).sum(1) % len(self.weight)
        scores = torch.stack([weight[number] for weight in self.parameters()]).sum(0)
        return torch.where(canary, self.slope * scores, 0.0)


def canary_images(canaries: int) -> Images:
    """Return black and white images, each of which spells its number in binary."""
    numbers = torch.arange(canaries)[:, None]
    images = torch.zeros(canaries, math.prod(SHAPE), dtype=torch.uint8)
    images[:, :_BITS] = ((numbers >> torch.arange(_BITS)) & 1) * 255
    return Images(images.view(-1, *SHAPE))


@dataclass(frozen=True)
class CanarySteps:
    """The quantities that determine the privacy of a method's steps, and how the method plays them.

    Attributes:
        code: What was played and what was omitted, in one sentence.
        make: Makes a training of a method whose network scores canaries.
        sample_rate: q.
        noise_multiplier: sigma.
        count: Steps of the run.
        clip_norm: C.
    """

    code: str
    make: Make
    sample_rate: float
    noise_multiplier: float
    count: int
    clip_norm: float

    def training(self, present: Tensor, noise: Noise) -> Training:
        """Begin a training with canaries that are present or null records: what an attacker sees, in units of C.

        Null records pad the set until a batch is expected to hold one record.

        Args:
            present: (R,) bool.
            noise: Of the training: coins and Gaussian noise.
        """
        num = max(len(present), math.ceil(1 / self.sample_rate))
        null = torch.ones(num, dtype=torch.bool)
        null[: len(present)] = ~present.cpu()
        canaries = Images(canary_images(num).images, torch.zeros(num, dtype=torch.int64), _CLASSES).zeroed_out(null)
        nobody, divisor = canaries.select(torch.arange(0)), max(1, round(self.sample_rate * num))
        dpsgd = DPSGDPlan(self.sample_rate, self.clip_norm, divisor, self.noise_multiplier)
        seen = self.make(Split(nobody, canaries, nobody, nobody), dpsgd, self.simulated, noise, present.device)
        return lambda number: seen(number)[: len(present)].double() * (divisor / self.clip_norm)

    @property
    def simulated(self) -> int:
        """Steps that are played."""
        return min(self.count, _MOST_STEPS)

    @property
    def event(self) -> Event:
        """The charge for all steps."""
        return Event(
            "poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, self.noise_multiplier, self.count, self.sample_rate
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader."""
        part = ""
        if self.simulated < self.count:
            part = f"{self.simulated:,} of {self.count:,} steps were simulated: what they show holds for all"
        plan = f"sample rate {self.sample_rate:g}, noise multiplier {self.noise_multiplier:.4g}, {self.count:,} steps"
        return (plan, self.code, part) if part else (plan, self.code)

    def play(self, present: Tensor, noise: Noise) -> Tensor:
        """Train once with canaries that are present or null records.

        Args:
            present: (R,) bool.
            noise: Of the training: coins and Gaussian noise.

        Returns:
            (R, 2) float64 on the CPU: each canary's log-likelihood ratio of presence, and the range of its numbers over
            the steps, which is 0 if noise is drawn once and reused.
        """
        step = self.training(present, noise)
        score = torch.zeros(len(present), dtype=torch.float64, device=present.device)
        least, most = score + math.inf, score - math.inf
        rest = torch.full_like(score, math.log1p(-self.sample_rate) if self.sample_rate < 1 else -math.inf)
        for number in range(1, self.simulated + 1):
            seen = step(number).double()  # in units of C
            shifted = (seen - 0.5) / self.noise_multiplier**2 + math.log(self.sample_rate)
            score += torch.logaddexp(shifted, rest)  # the log-likelihood ratio of one step's numbers
            torch.minimum(least, seen, out=least)
            torch.maximum(most, seen, out=most)
        return torch.stack([score, most - least], 1).cpu()


def canary_case(
    method: str,
    steps: CanarySteps,
    request: entry.Request,
    claimed: Guarantee | None = None,
    *,
    events: Sequence[Event] = (),
    play: Callable[[Tensor, Noise], Tensor] | None = None,
) -> cases.AuditCase:
    """Return the case of a training whose records are canaries.

    Args:
        method: The audited method.
        steps: Its DP-SGD steps.
        request: Epsilon and delta that were asked for.
        claimed: None = the requested guarantee.
        events: All that it releases; () = its steps alone.
        play: Trains once; see `CanarySteps.play`, which is the default.
    """
    events, play = tuple(events) or (steps.event,), play or steps.play
    asked, proven = cases.guarantees(request, *events)
    one = torch.ones(1, dtype=torch.float64)
    # Canaries of one training: per-record gradients are of about q canaries^2 numbers. Runs take about _CALLS steps.
    rows = int(min(max(math.sqrt(1.6e6 / steps.sample_rate), 1000), 8000)) // 2 * 2
    runs = min(_MOST_RUNS, max(2, _CALLS // steps.simulated) // 2 * rows)

    def release(values: Tensor, noise: Noise) -> Tensor:
        return play(values[:, 0] > 0, noise)

    return cases.AuditCase(
        method, neighbors.Pair(neighbors.CANARY, 0 * one, one),
        claimed or asked, proven, release, _STATISTICS,
        notes=steps.notes, events=events, runs=runs, rows=rows,
    )  # fmt: skip
