"""evolution: a public simulator proposes candidates, and the private images vote for the nearest ones.

Private Evolution (`Lin, Gopi, Kulkarni, Nori and Yekhanin (2024), "Differentially private synthetic data via foundation
model APIs 1: images" <https://arxiv.org/abs/2305.15560>`_) with a simulator in place of a foundation model (Lin et al.
2025, "Differentially private synthetic data via APIs 3: using simulators instead of foundation models").

An iteration: every private image votes for the nearest candidate of its class in a public embedding (`nearest`); the
histogram of the votes gets noise (`votes`, where the proof is); counts below a threshold become 0; the candidates with
votes go on and have children, which differ from them less and less (`population`). The votes are the only private
reads, each charged before it; the vectors of the private images are computed after the first charge, once, and stay in
the process. What is released is the last candidates and their noisy shares: a simulator with settings, no network.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.models.checkpoint import origin_weights
from idpgan.models.families import build_generator, build_simulator
from idpgan.models.initialize import torch_seed
from idpgan.models.simulators import GeneratorSimulator, PhotoSimulator, PopulationGenerator, Simulator
from idpgan.privacy import Event, Ledger, Noise, Unit
from idpgan.ranks import ALONE, Ranks
from idpgan.synthesis.aggregate.cells import refuse_people_in_two_parts, shares
from idpgan.synthesis.evolution.config import EvolutionRun
from idpgan.synthesis.evolution.embedding import Embedding, private_vectors
from idpgan.synthesis.evolution.nearest import nearest
from idpgan.synthesis.evolution.population import first_candidates, next_candidates, thresholded
from idpgan.synthesis.evolution.starter import suggest
from idpgan.synthesis.evolution.votes import Votes, steps_of
from idpgan.synthesis.product import GivesGenerator
from idpgan.training.method import Stats

_RNG_STREAM, _EMBEDDING_STREAM = 12, 13  # of training.seed
_DRAWN_AT_ONCE = 512  # images of a call of the simulator


class Evolution(GivesGenerator):
    """The method as the loop sees it; see `idpgan.training.method.Method`. A step is an iteration.

    Args:
        split: The private part is read in steps; the public part is what "public" draws from.
        ledger: The loop charges it before each step.
        device: Where images are drawn, embedded and compared. Candidates and counts are on the CPU.
        noise: None = the operating system's.
        votes: The mechanism of an iteration; None = what all of [privacy] pays for.

    Attributes:
        generator: The candidates of the last vote, in eval mode.
        votes: The mechanism of an iteration.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    Config = EvolutionRun
    suggest = staticmethod(suggest)

    generator: PopulationGenerator

    NOISY_STEPS = True

    def __init__(
        self,
        config: EvolutionRun,
        split: Split,
        *,
        ledger: Ledger,
        device: torch.device,
        noise: Noise | None = None,
        votes: Votes | None = None,
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self._private, self._public = split.private, split.public
        if config.privacy.unit is Unit.PERSON:
            refuse_people_in_two_parts(split)
        generator = build_generator(config.model, split.image_shape, len(split.classes)).to(device)
        self.generator = cast(PopulationGenerator, generator).eval().requires_grad_(False)
        self.generator.classes = split.classes if self.generator.num_classes else ()
        self.votes = votes or config.votes(len(split.classes))
        self._simulator = self._build_simulator()
        self._rng = torch.Generator().manual_seed(torch_seed(config.training.seed, _RNG_STREAM))
        self._members = first_candidates(
            self._simulator,
            self.votes.candidates,
            self.generator.classes,
            config.looks_of(self.generator.classes),
            self._public.labels,
            self._rng,
        )  # (rows, M, numbers)
        self._vectors: Tensor | None = None  # of the members, int8 (rows, M, D)
        self._embedding: Embedding | None = None
        self._records: Tensor | None = None  # of the private images of this rank, int8 (N, D): secret
        self._ranks: Ranks = ALONE
        self._give(torch.ones(self._members.shape[:2]))

    def _build_simulator(self) -> Simulator:
        """Build the simulator of the candidates: unlike that of the release, it holds all public images.

        A released generator is in both.
        """
        model = self._run.model
        simulator = build_simulator(model, self._data.image_shape, len(self._public))
        if isinstance(simulator, PhotoSimulator):
            simulator.photos.copy_(self._public.images)
        if isinstance(simulator, GeneratorSimulator) and model.origin is not None:
            weights = origin_weights(self._run.data.public_generator, model.origin)
            simulator.generator.load_state_dict(weights)
            self.generator.simulator.load_state_dict(simulator.state_dict())
        return simulator.eval().to(self.device)

    def share_steps(self, ranks: Ranks) -> None:
        """See `SharesSteps`: each rank embeds the private images of its share and counts their votes."""
        self._ranks = ranks

    def step_event(self) -> Event:
        """Return the price of one histogram of votes."""
        return self.votes.event

    def step(self, step: int) -> Stats:
        """Make the next candidates from those of the last vote, and let the private images vote for them."""
        counts = self._shares
        if step > 1:
            self._breed(counts, step)
        vectors = self._candidate_vectors()
        noisy = self._vote(vectors)  # the only line that reads private images
        self._give(thresholded(noisy, self._run.method.threshold * self.votes.noise_std))
        chosen = (noisy >= self._run.method.threshold * self.votes.noise_std).double()
        return {"chosen_share": chosen.mean(), "votes_of_chosen": (noisy * chosen).sum() / chosen.sum().clamp(min=1)}

    # The private read --------------------------------------------------------------------------------------------

    def _vote(self, vectors: Tensor) -> Tensor:
        """Release the noisy counts of the votes for candidates int8 (rows, M, D); the loop has charged them."""
        private, rows, share = self._private, len(vectors), self._ranks.share(len(self._private))
        if self._records is None:
            self._records = torch.cat(list(private_vectors(private, self._embed, share)))
        labels = torch.zeros(len(self._records), dtype=torch.int64)
        if rows > 1 and private.labels is not None:
            labels = private.labels[share].cpu()
        chosen = torch.zeros_like(labels)
        for row in range(rows):
            own = torch.nonzero(labels == row)[:, 0]
            chosen[own] = nearest(self._records[own.to(self.device)], vectors[row].to(self.device)).cpu()
        return self.votes(chosen, labels, self._weights(private)[share], self.noise, self._ranks)

    def _weights(self, private: Images) -> Tensor:
        """Return the grid steps of each record's vote."""
        privacy = self._run.privacy
        if privacy.unit is not Unit.PERSON:
            return steps_of(None, private.null, len(private))
        kept, share = shares(private, privacy.most_per_person)
        counts = torch.zeros(len(private), dtype=torch.int64)
        if share is not None:
            counts[kept] = share[kept].reciprocal().round().long()
        return steps_of(counts, private.null, len(private))

    # What follows is public, or post-processing of the counts ----------------------------------------------------

    @property
    def _embed(self) -> Embedding:
        """The embedding, learned on drawn images when it is first used."""
        if self._embedding is None:
            rng = torch.Generator().manual_seed(torch_seed(self._run.training.seed, _EMBEDDING_STREAM))
            self._embedding = Embedding(
                self._data.image_shape,
                lambda num: self._draw(torch.randn(num, self._simulator.numbers, generator=rng)),
                self.device,
            )
        return self._embedding

    def _draw(self, z: Tensor) -> Tensor:
        """Draw images (B, C, H, W) of vectors (B, numbers) on the CPU."""
        with torch.no_grad():
            return torch.cat([self._simulator(part.to(self.device)) for part in z.split(_DRAWN_AT_ONCE)])

    def _breed(self, counts: Tensor, step: int) -> None:
        """Replace the members by those with votes and their children."""
        bred, strength = [], self._strength(step)
        for row, (members, of_row) in enumerate(zip(self._members, counts, strict=True)):
            made, origin = next_candidates(self._simulator, members, of_row, strength, self._rng)
            bred.append(made)
            if self._vectors is not None:
                self._vectors[row] = self._vectors[row][origin.clamp(min=0)]
                new = torch.nonzero(origin < 0)[:, 0]
                if len(new):
                    self._vectors[row, new] = self._embedded(made[new])
        self._members = torch.stack(bred)

    def _strength(self, step: int) -> float:
        """Return how much the children before a step differ from their parents."""
        config, last = self._run.method, self._run.training.steps
        share = (step - 2) / (last - 2) if last > 2 else 1.0
        return float(config.first_variation ** (1 - share) * config.last_variation**share)

    def _candidate_vectors(self) -> Tensor:
        """Return the vectors of the members, int8 (rows, M, D)."""
        if self._vectors is None:
            self._vectors = torch.stack([self._embedded(members) for members in self._members])
        self._ranks.from_first([self._vectors])  # one machine may round where another does not
        return self._vectors

    def _embedded(self, members: Tensor) -> Tensor:
        """Return the vectors of members (B, numbers), int8 (B, D), or of the mean of their variations."""
        ahead, strength = self._run.method.lookahead, self._run.model.variation
        if not ahead:
            return self._embed(self._draw(members)).cpu()
        total = torch.zeros(len(members), self._embed.size)
        for _ in range(ahead):
            fresh = torch.randn(members.shape, generator=self._rng)
            total += self._embed.coordinates(self._draw(self._simulator.vary(members, fresh, strength))).cpu()
        return Embedding.rounded(total / ahead)

    def _give(self, counts: Tensor) -> None:
        """Put the members and their shares, (rows, M) at least 0, into the generator."""
        self._shares = counts
        photos = None
        if isinstance(self._simulator, PhotoSimulator):
            photos = self._simulator.photos[self._simulator.chosen(self._members.flatten(0, 1))]
        self.generator.set_population(self._members, counts / counts.sum(1, keepdim=True), photos)

    def state(self) -> dict[str, Any]:
        """Return members, their vectors and shares, random state and the state of the noise source."""
        return {
            "members": self._members,
            "vectors": self._vectors,
            "shares": self._shares,
            "rng": self._rng.get_state(),
            "noise": self.noise.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self._members, self._vectors = state["members"], state["vectors"]
        self._rng.set_state(state["rng"])
        self.noise.load_state(state["noise"])
        self._give(state["shares"])
