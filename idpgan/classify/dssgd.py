"""dssgd: distributed selective stochastic gradient descent.

Shokri and Shmatikov 2015, "Privacy-preserving deep learning". Participants with images of their own share one network
through a server. Each participant in turn downloads a share of the server's parameters, does one epoch of gradient
descent on its images, and uploads a few of the changes, which the server adds. All uploads are public; the images never
leave a participant.

With noise, `Sharing.release` makes the uploads. Positions are dealt to participants in turn, so under replace-one an
image affects the uploads of one participant only: a round costs as much as one participant's uploads, and the costs of
rounds add up. Parameters that a participant does not download (download_share below 1) stay with it and enter only its
own uploads.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from idpgan.audit import neighbors, statistics
from idpgan.audit.cases import AuditCase, released_case
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.classify import classifier
from idpgan.config import key
from idpgan.data import images, load
from idpgan.errors import ConfigError, InputError
from idpgan.models import initialize, optimizers
from idpgan.models.private_classifier import PrivateClassifier, ReluCnn, ReluMlp
from idpgan.privacy import DiscreteLaplace, Event, Guarantee, Noise, Relation, SparseVector, Unit
from idpgan.privacy.collaborative import SharingScales, sharing_epsilon, sharing_scales
from idpgan.privacy.noise import Source
from idpgan.training import method
from idpgan.training.config import MOST_STEPS, settings
from idpgan.training.method import Stats
from idpgan.training.plan import RunPlan

_ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)
_RAW = Event.non_private("dssgd without noise uploads raw gradients", *_ADJACENCY)
_STEPS = 1 << 16  # grid steps of the bound
_UPLOADS = 1000  # of an audit's example round, used without a run
_PLAYED, _ROWS = 4000, 200  # rounds that an audit plays, and of one call


Settings = settings(
    "dssgd",
    method=[
        {
            "participants": key(
                int,
                30,
                "Each holds an equal share of the positions, dealt in turn; never fewer than one image.",
                ge=1,
                le=10_000,
            ),
            "network": key(
                Literal["cnn", "mlp"],
                "cnn",
                '"cnn" has two convolutions, "mlp" two hidden layers, which are the paper\'s at width 8.',
            ),
            "width": key(
                int,
                8,
                'Feature maps of the first convolution; of "mlp", an eighth of the last hidden layer.',
                ge=1,
                le=1024,
            ),
            "upload_share": key(
                float, 0.1, "theta_u, share of the parameters that a participant uploads in a round.", gt=0, le=1
            ),
            "download_share": key(
                float,
                1.0,
                "theta_d, share of the parameters that it takes from the server before; the rest stay its own.",
                gt=0,
                le=1,
            ),
            "selection": key(
                Literal["largest", "random"],
                "largest",
                'Without noise: "largest" changes, or a "random" choice among those above `threshold`.',
            ),
            "threshold": key(float, 1e-4, 'tau, of "random" selection, and of the comparisons with noise.', ge=0),
            "bound": key(float, 0.01, "gamma: every change is clipped to [-bound, bound]; a constant.", gt=0),
            "order": key(
                Literal["round-robin", "random", "asynchronous"],
                "round-robin",
                '"round-robin", "random" (another order each round), or "asynchronous": all start from the same.',
            ),
            "learning_rate": key(float, 0.05, "Of local gradient descent.", gt=0),
            "local_batch_size": key(int, 32, "Images of a local step.", ge=1, le=1_000_000),
        }
    ],
    privacy=[
        {
            "epsilon": key(
                float | None,
                None,
                "What a participant spends in a round, over all that it uploads; None = no noise.",
                gt=0,
                le=1e9,
            ),
        }
    ],
    training=[
        {
            "steps": key(
                int,
                20,
                "Rounds, in each of which every participant goes once through its images and uploads; each is charged.",
                ge=1,
                le=MOST_STEPS,
            ),
            "tick_steps": 5,
        }
    ],
)


@dataclass(frozen=True)
class Sharing:
    """Selective upload of changes: what a participant uploads, and what that costs.

    Without noise: the largest c, or a random c of those above the threshold. With noise (Shokri and Shmatikov 2015,
    figure 12): changes are clipped to [-bound, bound] and rounded to a grid, and the parameters are dealt to c random
    blocks, whatever the data. In each block a sparse vector with a threshold of its own finds the first |change| above
    it, and that change is uploaded with Laplace noise, clipped again. The blocks are ours (the paper scans one list,
    from one upload to the next): at most c uploads at the same price, but c comparisons run in parallel.

    Formal guarantee (with noise): other images of the participant move each of its clipped changes by at most 2 bound,
    whatever the local training does, and its absolute value by less. So each block costs a `SparseVector` of one
    positive and a `DiscreteLaplace`, and the c blocks add up (`collaborative.sharing_epsilon`).

    Attributes:
        parameters: d.
        uploads: c <= d, the most uploads in a round.
        bound: gamma.
        threshold: tau.
        largest: How to choose without noise.
        epsilon: Epsilon of a round; None = no noise.
    """

    parameters: int
    uploads: int
    bound: float
    threshold: float
    largest: bool
    epsilon: float | None

    @functools.cached_property
    def scales(self) -> tuple[int, int, int]:
        """Scales of the noise in grid steps: threshold, comparison, value; those of the paper, rounded up."""
        if self.epsilon is None:
            raise ValueError("without an epsilon there is no noise.")
        paper = sharing_scales(self.epsilon * (1 - 2.0**-40), self.uploads, float(_STEPS))
        return math.ceil(paper.threshold), math.ceil(paper.comparison), math.ceil(paper.value)

    @property
    def event(self) -> Event | None:
        """The price of a round; None without noise."""
        if self.epsilon is None:
            return None
        scales = SharingScales(*map(float, self.scales))
        return Event("pure", *_ADJACENCY, pure_epsilon=sharing_epsilon(scales, self.uploads, float(_STEPS), 1))

    def select(self, change: Tensor, rng: torch.Generator) -> Tensor:
        """Return the uploads of changes (d,) without noise, the rest 0; ``rng`` makes the random choice."""
        size = change.abs()
        score = size if self.largest else torch.rand(len(size), generator=rng) * (size > self.threshold)
        chosen = score.topk(self.uploads).indices
        chosen = chosen[score[chosen] > 0]
        kept = torch.zeros_like(change)
        kept[chosen] = change[chosen].clamp(-self.bound, self.bound)
        return kept

    def release(self, changes: Tensor, noise: Noise) -> Tensor:
        """Return the noisy uploads of changes (R, d), float, of R independent participants: (R, d), the rest 0.

        A change that is not finite counts as 0, so that uploads exist whatever the images are.
        """
        finite = torch.where(changes.isfinite(), changes.double(), 0.0)
        steps = (finite.clamp(-self.bound, self.bound) / self.bound * _STEPS).round().long()
        threshold, comparison, value = self.scales
        participants, block = len(steps), -(-self.parameters // self.uploads)
        order = torch.stack([noise.uniform((self.parameters,)).argsort() for _ in range(participants)])
        places = torch.full((participants, self.uploads * block), -1)  # -1: a place that no parameter fills
        places[:, : self.parameters] = order
        places = places.reshape(participants, block, self.uploads).mT.reshape(participants * self.uploads, block)
        owner = torch.arange(participants).repeat_interleave(self.uploads)
        there = places >= 0
        sizes = torch.where(there, steps.abs()[owner[:, None], places.clamp(min=0)], 0)
        vector = SparseVector(2 * _STEPS, threshold, comparison, 1, *_ADJACENCY)
        above = vector(sizes, noise, round(self.threshold / self.bound * _STEPS)) == 1
        hit, first = (above & there).any(1), (above & there).long().argmax(1)
        named = places[torch.arange(len(places)), first]
        values = DiscreteLaplace(2 * _STEPS, value, *_ADJACENCY)(steps[owner, named.clamp(min=0)], noise)
        released = values.clamp(-_STEPS, _STEPS).double() / _STEPS * self.bound
        uploads = torch.zeros(changes.shape, dtype=torch.float64)
        uploads[owner[hit], named[hit]] = released[hit]
        return uploads.to(changes.dtype)


class Plan(RunPlan):
    """The plan of a run of dssgd, which has no budget: the paper states no total."""

    budget = None

    @functools.cached_property
    def sharing(self) -> Sharing:
        """How changes are chosen and uploaded."""
        method = self.config.method
        with initialize.without_weights():
            network = self.classifier(self.shape.image_shape, self.shape.classes)
        parameters = sum(weight.numel() for weight in network.parameters())
        uploads, largest = max(1, math.floor(method.upload_share * parameters)), method.selection == "largest"
        return Sharing(parameters, uploads, method.bound, method.threshold, largest, self.config.privacy.epsilon)

    @property
    def round_event(self) -> Event:
        """The price of a round: participants hold disjoint positions, so the costliest one counts."""
        return self.sharing.event or _RAW

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of all rounds."""
        return (self.round_event.repeated(self.config.training.steps),)

    @property
    def claimed(self) -> Guarantee | None:
        """What the paper states for one parameter of one round."""
        epsilon, basis = self.config.privacy.epsilon, "Shokri and Shmatikov 2015, section 8: per uploaded parameter"
        return None if epsilon is None else Guarantee(epsilon / self.sharing.uploads, 0.0, *_ADJACENCY, basis)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Say what the paper counts, and where the noise came from."""
        reason = self.row.reason
        return reason if self.config.privacy.epsilon is None else f"{reason}; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name who holds what, and the settings."""
        return "which positions lie with which participant", "the settings"

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return a network without normalization."""
        kind = ReluMlp if self.config.method.network == "mlp" else ReluCnn
        return kind(image_shape, classes, width=self.config.method.width, seed=self.config.training.seed)

    def check(self) -> None:
        """Refuse what no classifier supports, and participants without an image."""
        way_out = "Lower method.participants, method.width or method.local_batch_size."
        classifier.check(self, self.classifier, self.step_bytes, way_out)
        participants, num_private = self.config.method.participants, self.shape.num_private
        if participants > num_private:
            raise ConfigError(
                f"method.participants = {participants} is above the {num_private} private images. Lower it."
            )

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the described network with that of [method]."""
        return classifier.misdescribed(self.classifier, described)

    def step_bytes(self, network: PrivateClassifier) -> int:
        """Count every participant's parameters, and a local batch."""
        method, (_, height, width) = self.config.method, network.image_shape
        weights = sum(weight.numel() for weight in network.parameters())
        batch: int = 8 * method.local_batch_size * method.width * height * width
        return 8 * (method.participants + 8) * weights + batch


class Method(method.Method):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        plan: Of the run.
        split: Only its private part is read.
        ledger: Charged by the loop, a round at a time.
        device: Where network and data live; uploads are drawn on the CPU.
        noise: Source of the noise. None = AES-256-CTR.
    """

    UNNOISED = ("loss", "uploaded")
    SAVED = ("newest", "local", "rng", "noise")

    plan: Plan

    def _set_up(self, split: load.Split) -> None:
        self._images = load.place(split.private, self.device)
        self.newest = self.plan.classifier(split.image_shape, split.classes).eval().to(self.device)
        self.sharing = self.plan.sharing
        self._rng = classifier.seeded(self._run)
        server = parameters_to_vector(self.newest.parameters()).detach()
        self._local = server.repeat(self.config.participants, 1)  # (P, d)

    @property
    def product(self) -> PrivateClassifier:
        """The released classifier."""
        return self.newest

    artifact, critic_scores = classifier.artifact, classifier.critic_scores

    @property
    def noises(self) -> tuple[Noise, ...]:
        """The source of the uploads' noise; empty without noise."""
        return () if self.sharing.epsilon is None else (self.noise,)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The noise sources of the steps."""
        return (self.source,) * len(self.noises)

    def step_event(self) -> Event:
        """The price of a round: every step is a round."""
        return self.plan.round_event

    def step(self, step: int) -> Stats:
        """Do a round: each participant downloads, trains, and uploads."""
        many = self.config.participants
        order = torch.arange(many) if self.config.order == "round-robin" else torch.randperm(many, generator=self._rng)
        server = parameters_to_vector(self.newest.parameters()).detach().clone()
        before, losses, uploaded = server.clone(), [], 0
        for participant in order.tolist():
            source = before if self.config.order == "asynchronous" else server
            taken = torch.rand(len(server), generator=self._rng) < self.config.download_share
            start = torch.where(taken.to(self.device), source, self._local[participant])
            trained, loss = self._train(start, self.shard(participant))
            if self.sharing.epsilon is not None:  # stopping would be visible to all: diverged weights keep the start
                trained = torch.where(trained.isfinite(), trained, start)
            self._local[participant] = trained
            shared = self._upload((trained - start).cpu())
            server += shared.to(self.device)
            uploaded += int(shared.count_nonzero())
            losses += [loss] if self.sharing.epsilon is None or bool(loss.isfinite()) else []
        vector_to_parameters(server, self.newest.parameters())
        mean = {"loss": torch.stack(losses).double().nanmean()} if losses else {}
        return {**mean, "uploaded": torch.tensor(uploaded / many)}

    def shard(self, participant: int) -> Tensor:
        """Return the positions of a participant, int64: every ``participants``-th one, null records among them."""
        return torch.arange(participant, len(self._images), self.config.participants)

    def _upload(self, change: Tensor) -> Tensor:
        """Return a participant's upload, (d,)."""
        if self.sharing.epsilon is None:
            return self.sharing.select(change, self._rng)
        return self.sharing.release(change[None], self.noise)[0]

    def _train(self, start: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Train one epoch on images from given parameters; return the new parameters (d,) and the mean loss.

        Null records are dropped after the shuffle: all participants share its random numbers, and those that others
        draw must not depend on which records are null here.
        """
        vector_to_parameters(start.clone(), self.newest.parameters())
        optimizer = optimizers.SGD(self.newest.parameters(), self.config.learning_rate)
        total, steps = torch.zeros((), device=self.device), 0
        shuffled = positions[torch.randperm(len(positions), generator=self._rng)]
        shuffled = shuffled if self._images.null is None else shuffled[~self._images.null.cpu()[shuffled]]
        for chosen in shuffled.split(self.config.local_batch_size):
            if len(chosen) == 0:
                continue
            batch = self._images.select(chosen).to(self.device)
            loss = cross_entropy(self.newest(images.to_float(batch.images)), cast(Tensor, batch.labels))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total, steps = total + loss.detach(), steps + 1
        return parameters_to_vector(self.newest.parameters()).detach().clone(), total / steps


# The audit: what a participant uploads in a round, whose changes are all 0 or all at the bound -----------------------


def _uploads_case(sharing: Sharing, rounds: int, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    if sharing.event is None:
        raise InputError("dssgd without noise has no guarantee to audit. Set privacy.epsilon.")
    event = sharing.event.repeated(rounds)
    one = Guarantee(request.epsilon / sharing.uploads, request.delta or 0.0, event.unit, event.relation, "asked for")
    most = torch.full((sharing.parameters,), sharing.bound, dtype=torch.float64)

    def release(changes: Tensor, noise: Noise) -> Tensor:
        return sharing.release(changes, noise).sum(1, keepdim=True)

    notes = (
        f"one round is played, the proof is for {rounds}; {sharing.uploads:,} uploads at most",
        "claimed is what the paper states for one uploaded parameter",
    )
    return released_case(
        "dssgd", request, (event,), neighbors.Pair(neighbors.SILENT, torch.zeros_like(most), most), release,
        lambda *_: statistics.Column(0, statistics.UPLOADED), claimed or one, notes=notes, runs=_PLAYED, rows=_ROWS,
    )  # fmt: skip


def _build(request: Request) -> AuditCase:
    return _uploads_case(Sharing(_UPLOADS, _UPLOADS, 0.01, 1e-4, True, request.epsilon), 1, request)


def _of_run(config: Any, facts: RunFacts) -> AuditCase:
    sharing = Plan(config, facts.shape).sharing
    played = dataclasses.replace(sharing, parameters=sharing.uploads)  # one to a block: each may be uploaded
    request = Request(config.privacy.epsilon or 1.0, facts.delta)
    return _uploads_case(played, config.training.steps, request, facts.claimed)


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.REPLACE_ONE,), of_run=_of_run)
