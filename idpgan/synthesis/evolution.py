"""evolution: a public simulator proposes candidates, and the private images vote for the nearest ones.

Private Evolution (`Lin, Gopi, Kulkarni, Nori and Yekhanin (2024), "Differentially private synthetic data via foundation
model APIs 1: images" <https://arxiv.org/abs/2305.15560>`_) with a simulator in place of a foundation model (Lin et al.
2025, "Differentially private synthetic data via APIs 3: using simulators instead of foundation models").

An iteration: every private image votes for the nearest candidate of its class in a public embedding (`nearest`); the
histogram of the votes gets noise (`votes`, where the proof is); counts below a threshold become 0; the candidates with
votes survive and have children, which differ from them less and less (`population`). The votes are the only private
reads, each charged beforehand; the vectors of the private images are computed after the first charge, once, and stay in
the process. The release is the last candidates and their noisy shares: settings of a simulator, not a network.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

import torch
from pydantic import BeforeValidator
from torch import Tensor

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.config import key
from idpgan.data.drawn import PAPERS
from idpgan.data.load import Split
from idpgan.device import check_memory
from idpgan.errors import ConfigError
from idpgan.models.checkpoint import build_generator, build_simulator, generator_bytes, origin_weights
from idpgan.models.config import ModelConfig, or_own, shown_or_own
from idpgan.models.initialize import torch_seed
from idpgan.models.own import OwnFeatures
from idpgan.models.scattering import scattering_shape
from idpgan.models.simulators import (
    GeneratorSimulator,
    OwnSimulator,
    PhotoSimulator,
    PopulationGenerator,
    Simulator,
    looks_known,
)
from idpgan.own_code import is_own_code, path_of
from idpgan.privacy import Event
from idpgan.privacy.noise import Source
from idpgan.private import released_once
from idpgan.ranks import ALONE, Ranks
from idpgan.release.generator import GeneratorArtifact
from idpgan.removed import gone
from idpgan.synthesis import product, sums_audit
from idpgan.synthesis.population import first_candidates, next_candidates, thresholded
from idpgan.synthesis.votes import (
    DRAWN,
    LEAST_SIDE,
    MOST_DIMENSIONS,
    Embedding,
    Votes,
    nearest,
    private_vectors,
    steps_of,
    votes_case,
)
from idpgan.training import method
from idpgan.training.config import DELTA_ABOVE_ZERO, MOST_STEPS, ReleaseConfig, settings
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan, Signal

_RNG_STREAM, _EMBEDDING_STREAM = 12, 13  # of training.seed
_DRAWN_AT_ONCE = 512  # images of a call of the simulator
_FIRST, _LAST = 0.6, 0.2  # how much children differ after the first iteration, and after the last but one
_AUDITED_CANDIDATES, _AUDITED_STEPS = 200, 8  # where no run says how many


def _check_simulator(config: Any) -> None:
    """Refuse another generator."""
    released_once.refuse_shared_people(config)
    released_once.refuse_other_generator(config, "population")


Settings = settings(
    "evolution",
    method=[
        {
            "threshold": key(
                float, 2.0, "Standard deviations of the noise below which a noisy count is set to 0.", ge=0, le=100
            ),
            "embedding": key(
                Annotated[str, BeforeValidator(path_of), or_own("scattering"), shown_or_own("scattering")],
                "scattering",
                'Where images are compared: "scattering", or your own features of images, "package.module:Class".',
            ),
        }
    ],
    privacy=[released_once.KEYS, DELTA_ABOVE_ZERO],
    training=[
        {
            "steps": key(int, 8, "Iterations, each of which is a vote: fewer have less noise.", ge=1, le=MOST_STEPS),
            "tick_steps": key(int, 1, "Iterations between two ticks.", ge=1, le=MOST_STEPS),
        }
    ],
    model=ModelConfig(generator="population", codes=200),  # codes: candidates of a class
    checks=[_check_simulator],
    dropped={"lookahead": 0, "looks": None, "first_variation": _FIRST, "last_variation": _LAST},
)


class Plan(RunPlan):
    """What a run of evolution costs: a histogram of votes in each iteration."""

    @property
    def reads_public(self) -> bool:  # type: ignore[override]  # it follows from the settings
        """Whether candidates are public images."""
        return bool(self.config.model.simulator == "public")

    @functools.cached_property
    def votes(self) -> Votes:
        """One iteration's release, with the least noise that keeps all of them to [privacy]."""
        config = self.config
        return Votes.calibrated(
            self.rows, config.model.codes, config.training.steps, **released_once.terms(config.privacy)
        )

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of all votes."""
        return (self.votes.event.repeated(self.config.training.steps),)

    @property
    def signal(self) -> Signal:
        """The votes of a class against the noise on them, in one iteration."""
        return released_once.signal_of(self, self.votes.noise_std * math.sqrt(self.votes.candidates), "the votes")

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name what is released, and where its noise came from."""
        return f"a noisy histogram of votes at each iteration; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name simulator and embedding, and what of public images is released."""
        model = self.config.model
        what = "public images" if model.simulator == "public" else f"the program that draws {model.simulator}"
        what = PAPERS["people"].removesuffix(".") if model.simulator == "people" else what  # a release of 0.3.0
        if is_own_code(model.simulator):
            what = f"{model.simulator}, of which whoever made this release says that it has seen no private image"
        embedding = f" {self.config.method.embedding}" if is_own_code(self.config.method.embedding) else ""
        assumptions = [f"the simulator ({what}) and the embedding{embedding}, fixed before any private image"]
        if model.origin is not None:
            assumptions = ["the embedding, learned on images of the released generator that the release contains"]
        if model.simulator == "public":
            assumptions.append("the public images; the release contains some of them")
        return (*assumptions, *released_once.capped(self.config))

    def check(self) -> None:
        """Refuse what the data cannot give and the machine cannot hold; any image size will do."""
        self.refuse_idle_public()
        shape, model, classes = self.shape, self.config.model, self.classes
        if went := gone(f'model.simulator = "{model.simulator}"'):
            raise ConfigError(went)
        if min(shape.image_shape[1:]) < LEAST_SIDE:
            raise ConfigError(
                f"images of {shape.image_shape[2]} x {shape.image_shape[1]} pixels are too small for the embedding: "
                f"each side must be {LEAST_SIDE} or more."
            )
        if model.simulator == "public" and not shape.sizes.public:
            raise ConfigError(
                'model.simulator = "public" needs public images, and there are none. Name a folder of them as '
                "data.public_root, set data.public_share and confirm_public, or take a simulator that draws."
            )
        released_once.check_people(self)
        candidate_bytes = 0
        if is_own_code(model.simulator):
            simulator = OwnSimulator(model, shape.image_shape, classes)
            simulator.start(2, 0, torch.Generator().manual_seed(0))
            # Members, children, and what is saved of them
            candidate_bytes = 3 * 4 * self.rows * model.codes * simulator.numbers
        if is_own_code(self.config.method.embedding):
            OwnFeatures(self.config.method.embedding, shape.image_shape)
        features = math.prod(scattering_shape(shape.image_shape, 1, 8))
        needed = generator_bytes(model, shape.image_shape, classes) + MOST_DIMENSIONS * shape.num_private
        needed += 4 * 3 * DRAWN * features + candidate_bytes
        check_memory(needed, f"model.codes = {model.codes:,} of {shape.num_private:,} images", "Lower it.")


class Method(method.Method):
    """The method as the loop sees it; see `idpgan.training.method.Method`. A step is an iteration.

    Args:
        split: The private part is read in steps; the public part is what "public" draws from.
        ledger: The loop charges it before each step.
        device: Where images are drawn, embedded and compared. Candidates and counts are on the CPU.
        noise: None = the operating system's.

    Attributes:
        generator: The candidates of the last vote, in eval mode.
        votes: The mechanism of an iteration.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    took = "4 minutes on one core for 54,000 digits of 28 x 28"
    taught = "a small network 89.4 % at epsilon 1, by digits of 28 x 28"
    NOISY_STEPS = True
    SAVED = ("members", "vectors", "shares", "rng", "noise")

    generator: PopulationGenerator

    plan: Plan

    def _set_up(self, split: Split) -> None:
        config, self._private, self._public = self.plan.config, split.private, split.public
        released_once.refuse_people_in_two_parts(self.plan.unit, split)
        generator = build_generator(config.model, split.image_shape, len(split.classes)).to(self.device)
        self.generator = cast(PopulationGenerator, generator).eval().requires_grad_(False)
        self.generator.classes = split.classes if self.generator.num_classes else ()
        self.votes = self.plan.votes
        # The simulator of the candidates: unlike that of the release, it holds all public images.
        simulator: Simulator
        if is_own_code(config.model.simulator):
            simulator = OwnSimulator(config.model, split.image_shape, len(split.classes), self.device)
        else:
            simulator = build_simulator(config.model, split.image_shape, len(split.public))
        if isinstance(simulator, PhotoSimulator):
            simulator.photos.copy_(split.public.images)
        if isinstance(simulator, GeneratorSimulator) and config.model.origin is not None:  # a released one serves both
            simulator.generator.load_state_dict(origin_weights(config.data.public_generator, config.model.origin))
            self.generator.simulator.load_state_dict(simulator.state_dict())
        self._simulator = simulator.eval().to(self.device)
        self._rng = torch.Generator().manual_seed(torch_seed(config.training.seed, _RNG_STREAM))
        known = looks_known(config.model)
        # A class that bears the name of a look begins with it; any other with all kinds, and the votes choose.
        self._looks = {name: name for name in self.generator.classes if name.removeprefix("not ") in known}
        self._members = first_candidates(
            self._simulator,
            self.votes.candidates,
            self.generator.classes,
            self._looks,
            split.public.labels,
            self._rng,
        )  # (rows, M, numbers)
        self._vectors: Tensor | None = None  # of the members, int8 (rows, M, D)
        self._embedding: Embedding | None = None
        self._records: Tensor | None = None  # of the private images of this rank, int8 (N, D): secret
        self._ranks: Ranks = ALONE
        self.generator.proposer = simulator.weights if isinstance(simulator, OwnSimulator) else None
        self._give(torch.ones(self._members.shape[:2]))

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the candidates of the last vote, and what draws them."""
        return product.artifact(self.generator, self._run, config)

    def share_steps(self, ranks: Ranks) -> None:
        """See `SharesSteps`: each rank embeds the private images of its share and counts their votes."""
        if self._run.own_code and not ranks.alone:
            raise ConfigError("code of your own may draw other images in each process. Start it without torchrun.")
        self._ranks = ranks

    def step_event(self) -> Event:
        """Return the price of one histogram of votes."""
        return self.votes.event

    def step(self, step: int) -> Stats:
        """Make the next candidates from those of the last vote, and let the private images vote for them."""
        if step > 1:
            self._breed(step)
        noisy = self._vote(self._candidate_vectors())  # the only line that reads private images
        threshold = self._run.method.threshold * self.votes.noise_std
        self._give(thresholded(noisy, threshold))
        chosen = (noisy >= threshold).double()
        return {"chosen_share": chosen.mean(), "votes_of_chosen": (noisy * chosen).sum() / chosen.sum().clamp(min=1)}

    def _vote(self, vectors: Tensor) -> Tensor:
        """Release the noisy counts of the votes for candidates int8 (rows, M, D); the loop has charged them."""
        private, rows, share = self._private, len(vectors), self._ranks.share(len(self._private))
        if self._records is None:
            num = share.stop - share.start

            def computed(first: int) -> Iterator[Tensor]:
                return private_vectors(private, self._embed, slice(share.start + first, share.stop))

            name, fixed = f"votes-{share.start}", self._embed.fixed
            parts = self.kept.rows(name, num, computed, fixed=fixed, progress=self.progress)
            self._records = torch.cat([part.to(self.device) for part in parts])
        labels = torch.zeros(len(self._records), dtype=torch.int64)
        if rows > 1 and private.labels is not None:
            labels = private.labels[share].cpu()
        chosen = torch.zeros_like(labels)
        for row in range(rows):
            members = torch.nonzero(labels == row)[:, 0]
            chosen[members] = nearest(self._records[members.to(self.device)], vectors[row].to(self.device)).cpu()
        cap, counts = released_once.cap_of(self._run.privacy), None
        if cap is not None:  # number of counted images of each record's person
            kept, of_person = released_once.shares(private, cap)
            counts = torch.zeros(len(private), dtype=torch.int64)
            if of_person is not None:
                counts[kept] = of_person[kept].reciprocal().round().long()
        weights = steps_of(counts, private.null, len(private))
        return self.votes.release(chosen, labels, weights[share], self.noise, self._ranks)

    # What follows is public, or post-processing of the counts ----------------------------------------------------

    @property
    def _embed(self) -> Embedding:
        """The embedding, learned on drawn images when it is first used."""
        if self._embedding is None:
            path, shape = self._run.method.embedding, self._data.image_shape
            features = OwnFeatures(path, shape) if is_own_code(path) else None
            self._embedding = Embedding(shape, self._draw_any, self.device, features)
        return self._embedding

    def _draw_any(self, num: int) -> Tensor:
        """Draw images to learn the embedding on; of a simulator of the user, take candidates that it has drawn."""
        rng = torch.Generator().manual_seed(torch_seed(self._run.training.seed, _EMBEDDING_STREAM))
        if isinstance(self._simulator, OwnSimulator):
            candidates = self._members.flatten(0, 1)
            return self._draw(candidates[torch.randperm(len(candidates), generator=rng)[:num]])
        return self._draw(torch.randn(num, self._simulator.numbers, generator=rng))

    def _draw(self, z: Tensor) -> Tensor:
        """Draw images (B, C, H, W) of vectors (B, numbers) on the CPU."""
        with torch.no_grad():
            return torch.cat([self._simulator(part.to(self.device)) for part in z.split(_DRAWN_AT_ONCE)])

    def _breed(self, step: int) -> None:
        """Replace the members by those with votes and their children, which differ less from step to step."""
        last = self._run.training.steps
        share = (step - 2) / (last - 2) if last > 2 else 1.0
        strength = float(_FIRST ** (1 - share) * _LAST**share)
        bred = [
            next_candidates(self._simulator, members, counts, strength, self._rng)
            for members, counts in zip(self._members, self._shares, strict=True)
        ]
        self._members, origin = (torch.stack(parts) for parts in zip(*bred, strict=True))
        if self._vectors is not None:
            kept = origin.clamp(min=0)[:, :, None].expand(-1, -1, self._vectors.shape[2])
            self._vectors = self._vectors.gather(1, kept)
            if (origin < 0).any():
                self._vectors[origin < 0] = self._embedded(self._members[origin < 0])

    def _candidate_vectors(self) -> Tensor:
        """Return the vectors of the members, int8 (rows, M, D)."""
        if self._vectors is None:
            self._vectors = self._embedded(self._members.flatten(0, 1)).view(*self._members.shape[:2], -1)
        self._ranks.from_first([self._vectors])  # machines may round differently
        return self._vectors

    def _embedded(self, members: Tensor) -> Tensor:
        """Return the vectors of members (B, numbers), int8 (B, D): of all classes at once, as tiles are padded."""
        return torch.cat([self._embed(self._draw(part)).cpu() for part in members.split(_DRAWN_AT_ONCE)])

    def _give(self, counts: Tensor) -> None:
        """Put the members and their shares, (rows, M) at least 0, into the generator."""
        self._shares = counts
        members, photos = self._members, None
        if isinstance(self._simulator, PhotoSimulator):
            photos = self._simulator.photos[self._simulator.chosen(self._members.flatten(0, 1))]
        if isinstance(self._simulator, OwnSimulator):
            photos = self._simulator.pictures(self._members.flatten(0, 1))
        if photos is not None and not isinstance(self._simulator, PhotoSimulator):
            members = torch.zeros(self.generator.members.shape)  # the images as they were drawn
        self.generator.set_population(members, counts / counts.sum(1, keepdim=True), photos)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        if self._run.own_code:
            self._vectors = None  # they are of another embedding, where that draws or computes anew
        self._give(self._shares)


# The audit: the votes of a small run, or those of a run ---------------------------------------------------------------


def _audit(request: Request) -> AuditCase:
    terms = sums_audit.terms_of(request)
    votes = Votes.calibrated(sums_audit.CLASSES, _AUDITED_CANDIDATES, _AUDITED_STEPS, **terms)
    return votes_case(votes, _AUDITED_STEPS, request)


def _audit_of_run(config: Any, facts: RunFacts) -> AuditCase:
    return votes_case(Plan(config, facts.shape).votes, config.training.steps, asked_of(config), facts.claimed)


AUDIT = Entry(_audit, sums_audit.UNITS, sums_audit.RELATIONS, delta=1e-5, of_run=_audit_of_run)
