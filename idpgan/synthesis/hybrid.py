r"""Hybrid: one noisy release of sums, a generator trained on it, then dp-GAN from that generator.

A share of the budget pays for the release of `idp-gan-aggregate`; its training is post-processing. The rest pays for
the critic steps of `dp-gan`, whose noise is the least with which *both together* stay within epsilon: one ledger, unit
image, zero-out-one throughout. Sensitivities: 1 for the sums with their counts (`privacy.sums`), C for a critic step
(`privacy.dpsgd`). Public pictures are moved (`synthesis.move`) onto what the trained generator draws, as far as the
noise of the sums lets them: that of the critic steps has no closed form, and holds back no shift.

The first ``method.aggregate_steps`` steps of the run are those of the aggregate form and read nothing private; only the
remaining ones are charged. Share, steps and learning rates are settings: choose them on public images.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.data.load import Split, known_shape
from idpgan.errors import ConfigError
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Event, Ledger, Noise, Relation, Unit
from idpgan.privacy.dpsgd import least_noise
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.private.people import AggregatePrivacy
from idpgan.ranks import Ranks
from idpgan.synthesis.aggregate.config import AggregateConfig, AggregatePlan, AggregateRun, AggregateTraining
from idpgan.synthesis.aggregate.method import IdpAggregate
from idpgan.synthesis.dp_gan.config import DpGanConfig, DpGanPlan, DpGanPrivacy, DpGanRun
from idpgan.synthesis.dp_gan.method import DpGan, canaries
from idpgan.synthesis.moments import NormalsNoise
from idpgan.synthesis.product import GivesGenerator
from idpgan.synthesis.sums_audit import sums_case
from idpgan.training.config import CHOOSE_DELTA, MethodConfig, PrivacyConfig, RunConfig
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan, Signal


class HybridConfig(MethodConfig):
    """[method] of hybrid.

    Attributes:
        share: Of epsilon, for the release of sums (at the same delta); in (0, 1).
        aggregate_steps: First steps of the run, on the released sums alone.
        aggregate_batch_size: Images generated in each of them; a multiple of the number of classes.
        match: Weight of the match with the released sums, beside the critic's score, in the generator's steps of
            dp-gan: without it they forget what the sums say before the critic knows better. 0 = none.
        aggregate: [method.aggregate], as [method] of idp-gan-aggregate.
        dp_gan: [method.dp_gan], as [method] of dp-gan; its warm-up lets the critic catch up with the generator.
    """

    RELEASES_LAW = True

    name: Literal["hybrid"] = "hybrid"
    share: float = Field(0.1, gt=0, lt=1)
    aggregate_steps: int = Field(2000, ge=1)
    aggregate_batch_size: int = Field(250, ge=1)
    match: float = Field(100.0, ge=0)
    aggregate: AggregateConfig = AggregateConfig()
    dp_gan: DpGanConfig = DpGanConfig(critic_warmup=300)


class HybridPrivacy(PrivacyConfig):
    """[privacy] of hybrid; unit image, zero-out-one.

    Attributes:
        epsilon: Of everything together.
        delta: Of everything together, below 1/N for N private images, usually ``min(1e-5, 1 / (10 N))``; above 0, as
            the noise is Gaussian.
        sample_rate: q, the chance of each image to be in a critic step; None = ``training.batch_size``, which is the
            divisor, of the N private images.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1, description=CHOOSE_DELTA)
    sample_rate: float | None = Field(None, gt=0, le=1)


class HybridRun(RunConfig):
    """A whole config file of hybrid."""

    method: HybridConfig = HybridConfig()
    privacy: HybridPrivacy

    @model_validator(mode="after")
    def _check_steps(self) -> HybridRun:
        if self.method.dp_gan.looks_at_public:
            raise ConfigError("method.dp_gan.groups and public_steps are for dp-gan alone. Set both to 0.")
        if self.training.steps <= self.method.aggregate_steps:
            raise ConfigError(
                f"training.steps = {self.training.steps} counts both parts, so it must be above "
                f"method.aggregate_steps = {self.method.aggregate_steps}; the rest are critic steps of dp-gan."
            )
        return self


class HybridPlan(RunPlan):
    """The plan of a run of hybrid: the plans of both parts, where the second has the budget that the first leaves."""

    SOURCES, OWN_CRITIC = 2, "private"

    @functools.cached_property
    def first(self) -> AggregatePlan:
        """The release of sums, and the training on it."""
        config = self.config
        own = {"steps": config.method.aggregate_steps, "batch_size": config.method.aggregate_batch_size}
        delta = 0.0 if config.method.aggregate.law == "laplace" else config.privacy.delta  # Laplace noise is pure
        part = AggregateRun(
            data=config.data,
            model=config.model.model_copy(update={"critic": "dcgan"}),  # it is for the second part
            method=config.method.aggregate,
            privacy=AggregatePrivacy(epsilon=config.method.share * config.privacy.epsilon, delta=delta),
            training=AggregateTraining(**(config.training.model_dump() | own)),
        )
        return AggregatePlan(part, self.shape)

    @functools.cached_property
    def second(self) -> DpGanPlan:
        """The critic steps."""
        config, privacy = self.config, self.config.privacy
        steps = config.training.steps - config.method.aggregate_steps
        part = DpGanRun(
            data=config.data,
            model=config.model.model_copy(update={"moved": 0, "origin": None}),  # for both parts together
            method=config.method.dp_gan,
            privacy=DpGanPrivacy(epsilon=privacy.epsilon, delta=privacy.delta, sample_rate=privacy.sample_rate),
            training=config.training.model_copy(update={"steps": steps}),
        )
        plan = DpGanPlan(part, self.shape, self.first.events)
        plan.reads_public = True  # whether anything does is asked of the first part
        return plan

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of the release, then of the critic steps."""
        return (*self.first.events, *self.second.events)

    @property
    def signal(self) -> Signal:
        """The better of both parts' figures."""
        return max((self.first.signal, self.second.signal), key=lambda signal: signal.figure)

    @property
    def candidates(self) -> int | None:
        """Images that the released generator draws for each one that its teacher chooses; None without a teacher."""
        return self.first.candidates

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name both parts."""
        return f"{self.first.reason(events, sources[:1])}; then {self.second.reason(events, sources[1:])}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name what both parts take as public."""
        return (*self.first.assumptions(sources[:1]), *self.second.assumptions(sources[1:]))

    def check(self) -> None:
        """Refuse what either of the parts refuses."""
        self.first.check()
        self.second.check()


class Hybrid(GivesGenerator):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: The private part is read in `prepare` and in the charged critic steps; the public part freely.
        ledger: Charged by `prepare`, and by the loop for each critic step after the aggregate's.
        noise: Source of all noise and coins. None = the operating system's for the release, and that of dp-gan.

    Attributes:
        aggregate: The first part.
        dp_gan: The second part.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    Config, Plan = HybridRun, HybridPlan

    UNNOISED = DpGan.UNNOISED

    def __init__(
        self, plan: HybridPlan, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        self.aggregate = IdpAggregate(plan.first, split, ledger=ledger, device=device, noise=noise)
        self.dp_gan = DpGan(plan.second, split, ledger=ledger, device=device, noise=noise)
        super().__init__(plan, split, ledger=ledger, device=device, noise=self.aggregate.noise)
        self.dp_gan.generator.config = plan.config.model  # also what is moved onto it
        if self.config.match:  # the generator also minimizes the weighted loss of the released sums
            self.dp_gan.extra_loss = lambda generator: self.config.match * self.aggregate.match_loss(generator)
        self.candidates = plan.candidates
        self._done = 0  # steps of both parts

    @property
    def generator(self) -> Generator:  # type: ignore[override]  # one of its parts'
        """The averaged generator of the part that was trained last."""
        return self.dp_gan.generator if self._done > self.config.aggregate_steps else self.aggregate.generator

    @property
    def normals_noise(self) -> NormalsNoise:
        """That of the sums; see `GivesGenerator`."""
        return self.aggregate.normals_noise

    @property
    def generator_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Those of both parts."""
        return (*self.aggregate.generator_optimizers, *self.dp_gan.generator_optimizers)

    @property
    def teacher(self) -> LinearScattering | None:  # type: ignore[override]  # its part's
        """The teacher that was released with the sums."""
        return self.aggregate.teacher

    def share_steps(self, ranks: Ranks) -> None:
        """Let each rank take its share of the steps of both parts."""
        self.aggregate.share_steps(ranks)
        self.dp_gan.share_steps(ranks)

    def prepare(self) -> None:
        """Release the noisy sums together with their charge."""
        self.aggregate.progress = self.progress
        self.aggregate.prepare()

    @property
    def noises(self) -> tuple[Noise, ...]:
        """Secret noise is drawn by the steps of dp-gan; the aggregate draws only for its release."""
        return self.dp_gan.noises

    def settle(self, exact: bool) -> bool:
        """See `Method`: dp-gan's steps alone read records."""
        return self.dp_gan.settle(exact)

    def step_event(self) -> Event | None:
        """An event of dp-gan; None during the aggregate's steps."""
        return None if self._done < self.config.aggregate_steps else self.dp_gan.step_event()

    def step(self, step: int) -> Stats:
        """Do a step of the part whose turn it is; the first of dp-gan takes over the generator."""
        self._done = step
        own = step - self.config.aggregate_steps
        if own <= 0:
            return self.aggregate.step(step)
        if own == 1:
            self.dp_gan.start_from(self.aggregate.generator)
        return self.dp_gan.step(own)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the scores of dp-gan's critic."""
        return self.dp_gan.critic_scores(images, labels)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The noise sources of the aggregate, then of dp-gan."""
        return self.aggregate.source, self.dp_gan.source

    def state(self) -> dict[str, Any]:
        """Return the states of both parts; what was released is kept once."""
        first = self.aggregate.state()
        return {
            "prepared": first.pop("prepared"),
            "aggregate": first,
            "dp_gan": self.dp_gan.state(),
            "done": self._done,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.aggregate.load_state({**state["aggregate"], "prepared": state["prepared"]})
        self.dp_gan.load_state(state["dp_gan"])
        self._done = state["done"]


# The audit: the release of sums, and the critic steps ----------------------------------------------------------------


def _build(request: Request) -> AuditCase:
    """Return the case of short steps on what a release of sums at a tenth of epsilon leaves of a request."""
    delta = request.delta or 0.0
    share = AggregatePrivacy(epsilon=HybridConfig().share * request.epsilon, delta=delta)
    sums = CellSums.calibrated(10, 64, "gaussian", **share.terms)
    sigma = least_noise(request.epsilon, delta, 0.3, 50, (sums.event,))  # nearly Gaussian
    return sums_case("hybrid", sums, request, steps=canaries(DpGanConfig(), 0.3, sigma, 50))


def _of_run(config: HybridRun, facts: RunFacts) -> AuditCase:
    plan = HybridPlan(config, known_shape(config.data))
    first, second = plan.first, plan.second
    first.sums = first.of_cells(*facts.prepared_shape("sums"))
    steps = canaries(
        second.config.method, second.dpsgd.sample_rate, second.dpsgd.noise_multiplier, second.config.training.steps
    )
    template, teaching = first.template_events, first.teaching
    return sums_case(
        "hybrid", first.sums, asked_of(config), facts.claimed, template=template, teaching=teaching, steps=steps
    )


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5, of_run=_of_run)
