r"""A population of evolution to start from: votes of the private images choose what the generator is pre-trained on.

Where nothing is public a "warp" generator begins at random codes. The images of a population that noisy votes have
chosen (`idpgan.synthesis.evolution`) take the place of public ones: its decoder and codes learn them, and then match
the released sums. Sums and votes are one release on one ledger: all of it is priced before a private image is read, and
charged with the result.

Budget, as for a teacher (`idpgan.synthesis.teacher`): with s the share of the squared signal, T votes of noise
multiplier ``m sqrt(T / s)`` are together as private as one Gaussian release of ``m / sqrt(s)``. What is charged are the
events, and m is the least with which all of them together stay within (epsilon, delta).

Sensitivity of a vote: `idpgan.synthesis.evolution.votes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from idpgan.data.images import Images, to_uint8
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.families import build_generator
from idpgan.models.generator import Generator
from idpgan.privacy import Event, Ledger, Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.evolution.config import EvolutionConfig, EvolutionPrivacy, EvolutionRun, EvolutionTraining
from idpgan.synthesis.evolution.method import Evolution
from idpgan.synthesis.evolution.votes import Votes
from idpgan.synthesis.terms import AggregatePrivacy
from idpgan.training.config import MOST_STEPS

if TYPE_CHECKING:
    from idpgan.synthesis.aggregate.config import AggregateConfig, AggregateRun

POPULATION = "population."  # of the names of what is released
_SEED = 0  # of the images that are drawn of the population


class EvolvedConfig(EvolutionConfig):
    """[method.evolution]: the votes that choose what the generator starts from.

    Attributes:
        steps: Iterations, each of which is a vote.
        codes: Candidates of each class.
        images: Drawn of the population to learn from.
    """

    steps: int = Field(8, ge=1, le=MOST_STEPS)
    codes: int = Field(200, ge=1, le=65536)
    images: int = Field(6000, ge=1, le=1_000_000)


@dataclass(frozen=True)
class Voting:
    """The votes of a run, but for their noise.

    Attributes:
        share: s of the budget, in (0, 1).
        steps: T, how many.
        most_per_unit: Public cap on the images of one person; 1 for unit image.
    """

    share: float
    steps: int
    unit: Unit
    relation: Relation
    most_per_unit: int

    def votes(self, multiplier: float, rows: int = 1, candidates: int = 1) -> Votes:
        """Return one vote for m = ``multiplier``; its price does not depend on how many candidates there are."""
        noise = multiplier * math.sqrt(self.steps / self.share)
        return Votes(rows, candidates, noise, self.unit, self.relation, self.most_per_unit)

    def event(self, multiplier: float) -> Event:
        """Return the price of all votes."""
        return self.votes(multiplier).event.repeated(self.steps)

    def multiplier_beside(self, sums: CellSums, teacher: float) -> float:
        """Return m of sums that leave this share, and ``teacher`` to a teacher."""
        return sums.noise_multiplier * math.sqrt(1 - teacher - self.share)


def voting_of(method: AggregateConfig, privacy: AggregatePrivacy) -> Voting | None:
    """Return the votes of a run; None without them."""
    if not method.evolution_share:
        return None
    most = privacy.most_per_person if privacy.unit is Unit.PERSON else 1
    return Voting(method.evolution_share, method.evolution.steps, privacy.unit, privacy.relation, most)


def vote_events(voting: Voting | None, sums: CellSums, teacher: float) -> tuple[Event, ...]:
    """Return what is charged for the votes beside the sums; nothing without them."""
    return () if voting is None else (voting.event(voting.multiplier_beside(sums, teacher)),)


def check_evolution_terms(config: AggregateRun) -> None:
    """Refuse a start from a population that cannot be learned or priced.

    Raises:
        ConfigError: Unless there is a generator to pre-train, Gaussian noise, and a share for the sums.
    """
    method, share = config.method, config.method.evolution_share
    if not share:
        return
    if method.teacher_share + share > 0.95:
        raise ConfigError(
            f"method.teacher_share = {method.teacher_share:g} and method.evolution_share = {share:g} leave hardly "
            "anything of the budget to the sums: together they may be 0.95 at most."
        )
    if config.model.generator != "warp" or not method.pretrain_steps:
        raise ConfigError(
            f'method.evolution_share = {share:g} is for what a "warp" generator is pre-trained on: set '
            'model.generator = "warp" and method.pretrain_steps above 0, or method.evolution_share = 0.'
        )
    if method.law != "gaussian" or not config.privacy.delta:
        raise ConfigError(
            f"method.evolution_share = {share:g} needs Gaussian noise and privacy.delta above 0, which votes are "
            "priced with. Set them, or method.evolution_share = 0."
        )
    evolution_run(config)  # refuses looks and simulators that do not go together


def evolution_run(config: AggregateRun) -> EvolutionRun:
    """Return the evolution part as a config of its own; its own budget is not used."""
    own, privacy = config.method.evolution, config.privacy
    names = EvolutionConfig.model_fields
    return EvolutionRun(
        data=config.data,
        model=_model(config.model, own),
        method=EvolutionConfig(**{name: getattr(own, name) for name in names}),
        privacy=EvolutionPrivacy(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            unit=privacy.unit,
            relation=privacy.relation,
            most_per_person=privacy.most_per_person,
        ),
        training=EvolutionTraining(steps=own.steps, seed=config.training.seed, device=config.training.device),
    )


def _model(model: ModelConfig, own: EvolvedConfig) -> ModelConfig:
    return model.model_copy(update={"generator": "population", "codes": own.codes})


def chosen_population(
    config: EvolutionRun, votes: Votes, private: Images, public: Images, *, device: torch.device, noise: Noise
) -> dict[str, Tensor]:
    """Let the private images vote, and return the population's tensors; the release that it is part of pays."""
    nobody = private.select(torch.arange(0))
    method = Evolution(
        config,
        Split(public, private, nobody, nobody),
        ledger=Ledger(votes.unit, votes.relation),  # the caller's ledger, not this one, has paid
        device=device,
        noise=noise,
        votes=votes,
    )
    for step in range(1, config.training.steps + 1):
        method.step(step)
    return {f"{POPULATION}{name}": tensor.cpu() for name, tensor in method.generator.state_dict().items()}


def images_of(
    released: Mapping[str, Tensor], config: AggregateRun, image_shape: Sequence[int], classes: Sequence[str]
) -> Images:
    """Draw the images of a released population: post-processing."""
    part = _model(config.model, config.method.evolution)
    generator: Generator = build_generator(part, image_shape, len(classes))
    generator.load_state_dict(
        {name.removeprefix(POPULATION): tensor for name, tensor in released.items() if name.startswith(POPULATION)}
    )
    num, names = config.method.evolution.images, tuple(classes) if generator.num_classes else ()
    return Images(to_uint8(generator.sample(num, seed=_SEED)), generator.sample_labels(num), names)
