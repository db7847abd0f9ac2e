"""``idpgan audit --one-run`` and ``--exposure``: train once with canaries, and measure what the model knows of them.

*One run*: each canary is in or out by a coin. Gradient canaries go through the steps of a method's audit case, without
any data: the attacker sees every noisy gradient. Image canaries are mislabeled holdout images among the private ones of
a config's own data, for any method: the attacker sees the trained critic, or samples only.

*Exposure*: all canaries are in. They are random members of a declared space: pictures of black and white blocks with
random labels. The trained network is never released: its folder is deleted, and the network is dropped.

Private images are read except with gradient canaries, and then the result is for the curator. Scores are the critic's
(for a classifier: the log-odds of the label, in the same order as minus the loss) and, for a generator, the distance of
the nearest sample.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.exposure import FLOOR, LEAST_REFERENCES, Exposure, Extraction, exposure, rank_of_first
from idpgan.attacks.membership import nearest_sample
from idpgan.audit.cases import AuditCase, doubt
from idpgan.audit.one_run import CanaryKind, OneRunResult, appended, audit_one_run, make_canaries
from idpgan.checks import whole
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.methods import METHODS
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, number_to_json
from idpgan.progress import Progress, silent
from idpgan.trainer import critic_of, load_config, plan, train_on
from idpgan.training.method import Method, NoCriticError

FORMAT = "idpgan exposure 1"
_GRADIENTS, _IMAGES = 5000, 500  # canaries, unless told
_BLOCKS = 8  # blocks per side of a canary
MOST_UNKNOWN = 16  # bits of a secret that a search completes
_SAMPLES = 5000  # samples among which the nearest is searched
_READ = "Private images were read: this result is for the curator."
_NOT_FOR_RELEASE = "what was trained holds constructed secrets: it is not a product, was never released, and is dropped"

Score = Callable[[Any, Images], Tensor]  # (trained model, images) -> (n,), higher = known better


def by_critic(method: Method, images: Images) -> Tensor:
    """Score images by the trained critic, (n,); all 0 if the critic does not see single images."""
    try:
        critic = critic_of(method)
    except NoCriticError:
        return torch.zeros(len(images))
    device = next(method.product.parameters()).device
    labels = None if images.labels is None else images.labels.to(device)
    with torch.no_grad():
        return critic(to_float(images.images).to(device), labels).cpu()


def by_nearest_sample(method: Method, images: Images) -> Tensor:
    """Score images by how near the nearest generated image comes, (n,); all 0 for a classifier, which draws nothing."""
    generator: Any = method.product
    if not isinstance(generator, Generator):
        return torch.zeros(len(images))
    samples = generator.sample(_SAMPLES, seed=0, purpose=Purpose.TRAINING)
    samples = samples[0] if isinstance(samples, tuple) else samples
    return nearest_sample(to_float(images.images), samples.cpu())


SCORES: dict[str, Score] = {"critic": by_critic, "nearest sample": by_nearest_sample}


def _is_of_coins(proof: Guarantee | Event) -> bool:
    """Whether its neighbors are those of a coin: an image, or a null record in its place."""
    return (proof.unit, proof.relation) == (Unit.IMAGE, Relation.ZERO_OUT)


@dataclass(frozen=True)
class OneRun:
    """The result of one run with canaries.

    Attributes:
        proven: What the accountant proves.
        results: The bound of each attack, by name.
        data_free: Whether no private image was read.
        notes: What a reader has to know.
    """

    method: str
    proven: Guarantee
    results: Mapping[str, OneRunResult]
    data_free: bool
    notes: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether a coin decides between the neighbors of the proof."""
        return _is_of_coins(self.proven)

    @property
    def violation(self) -> bool:
        """Whether a bound refutes the proof, or the code."""
        return self.comparable and any(result.highest > self.proven.epsilon for result in self.results.values())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "method": self.method,
            "unit": str(self.proven.unit),
            "relation": str(self.proven.relation),
            "delta": self.proven.delta,
            "proven": number_to_json(self.proven.epsilon),
            "audited": {name: result.to_json() for name, result in self.results.items()},
            "data_free": self.data_free,
            "violation": self.violation,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the bound of each attack beside what is proven, as sentences."""
        lines = [f"{self.method}, one run: proven {self.proven}"]
        for name, result in self.results.items():
            lines.append(
                f"{name}: epsilon >= {result.epsilon_lower:.4f} (cap {result.cap:.2f}): {result.correct} of "
                f"{result.guesses} guesses right about {result.canaries} canaries, confidence {result.confidence:g}"
            )
            if (found := result.fdp) is not None:
                lines.append(
                    f"{name}, f-DP: epsilon >= {found.epsilon_lower:.4f} if the law is {found.law}: {found.correct} of "
                    f"{found.guesses} guesses right"
                )
        lines += [f"note: {note}" for note in self.notes] + [_READ] * (not self.data_free)
        if self.violation:
            confidence = min(result.confidence for result in self.results.values())
            lines.append(f"VIOLATION: a bound exceeds the proven epsilon. {doubt(confidence)}")
        return lines


@own_state()
def gradients_once(
    case: AuditCase,
    canaries: int | None = None,
    *,
    confidence: float = 0.95,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> OneRun:
    """Audit a case that trains by one training with gradient canaries, or sums by one release with a cell for each.

    The method takes noisy gradients or sums of the private images. ``canaries`` is m, None = 5,000; ``seed`` fixes
    coins and noise.

    Raises:
        InputError: If the case is neither, or a number is out of range.
    """
    if case.rows is None and not (case.entrywise and _is_of_coins(case.proven)):
        raise InputError(
            f"'{case.method}' has no steps to put gradient canaries in, nor sums of images that are in or null. Give a "
            "config file: it is trained once, with canary images."
        )
    canaries = _GRADIENTS if canaries is None else canaries
    result = case.run_once(canaries, confidence=confidence, seed=seed, device=device)
    return OneRun(
        case.method, case.proven, {"sums" if case.rows is None else "gradients of every step": result}, True, case.notes
    )


@own_state()
def images_once(
    path: Path,
    canaries: int | None = None,
    *,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
) -> OneRun:
    """Train a config once on its own data, with canary images among the private ones. Curator only.

    ``canaries`` is m, None = 500, or as many as there are holdout images. The confidence is that of each bound by
    itself; ``seed`` fixes the coins.

    Raises:
        InputError: If the config cannot be run, or has no guarantee.
    """
    config = load_config(path)
    if sentence := METHODS[config.method.name].nothing_to_audit:
        raise InputError(sentence)
    split = load(config.data)
    canaries = min(_IMAGES, len(split.holdout.existing().distinct())) if canaries is None else canaries
    kind: CanaryKind = "noise" if split.private.labels is None else "mislabeled"
    trained: list[Method] = []

    def train(split: Any) -> Method:
        trained.append(train_on(config, split, progress))
        return trained[0]

    def charged(method: Method) -> Sequence[Event]:
        events = method.ledger.events
        return events if all(_is_of_coins(event) for event in events) else ()

    results = audit_one_run(
        split,
        make_canaries(split, canaries, kind),
        train,
        SCORES,
        delta=plan(config).price.delta,
        confidence=confidence,
        seed=seed,
        charged=charged,
    )
    proven = trained[0].privacy().proven
    found = OneRun(config.method.name, proven, results, False)
    notes = [f"{canaries} {kind} holdout images, in or out by coins, among {split.num_private:,} private ones"]
    if not found.comparable:
        notes.append(f"a coin makes a null record, the proof is for {proven.unit}, {proven.relation}: no verdict")
    return dataclasses.replace(found, notes=tuple(notes))


@dataclass(frozen=True)
class CanarySpace:
    """All pictures of B x B blocks, each black or white, with each label: ``2^(B^2) max(K, 1)`` members.

    Attributes:
        image_shape: (C, H, W).
        classes: Names of the K classes; empty = no labels.
    """

    image_shape: tuple[int, int, int]
    classes: tuple[str, ...] = ()

    @property
    def bits(self) -> float:
        """log2 of the number of members."""
        return math.prod(self._blocks) + math.log2(max(len(self.classes), 1))

    def draw(self, num: int, seed: int) -> Images:
        """Draw different members, uniformly."""
        rng = torch.Generator().manual_seed(seed)
        blocks = torch.randint(2, (num, *self._blocks), generator=rng, dtype=torch.uint8)
        while len(blocks.flatten(1).unique(dim=0)) < num:
            blocks = torch.randint(2, (num, *self._blocks), generator=rng, dtype=torch.uint8)
        labels = torch.randint(len(self.classes), (num,), generator=rng) if self.classes else None
        return Images(self._painted(blocks), labels, self.classes)

    def completions(self, member: Images, unknown: int, seed: int) -> Images:
        """Return all 2^unknown members that differ from one at most in so many blocks, drawn by seed; itself first.

        Raises:
            InputError: If there are fewer blocks.
        """
        rows, columns = self._blocks
        if not 1 <= unknown <= min(MOST_UNKNOWN, rows * columns):
            raise InputError(
                f"{unknown} unknown blocks must be in 1 .. {min(MOST_UNKNOWN, rows * columns)}: all ways to fill them "
                f"are tried, and a secret has {rows} x {columns}."
            )
        places = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed))[:unknown]
        flips = torch.zeros(1 << unknown, rows * columns, dtype=torch.uint8)
        flips[:, places] = (torch.arange(1 << unknown)[:, None] >> torch.arange(unknown) & 1).to(torch.uint8)
        labels = None if member.labels is None else member.labels.expand(len(flips))
        return Images(member.images ^ self._painted(flips.view(-1, rows, columns)), labels, member.classes)

    @property
    def _blocks(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return min(_BLOCKS, self.image_shape[1]), min(_BLOCKS, self.image_shape[2])

    def _painted(self, blocks: Tensor) -> Tensor:
        """Return images of blocks, 0 or 1, uint8 (n, rows, columns): black and white, (n, C, H, W)."""
        (rows, columns), (channels, height, width) = self._blocks, self.image_shape
        down, across = torch.arange(height) * rows // height, torch.arange(width) * columns // width
        return (255 * blocks)[:, None, down][..., across].expand(len(blocks), channels, height, width).contiguous()


def with_canaries(split: Split, canaries: Images, repeats: int) -> Split:
    """Append each canary ``repeats`` times to the private images; each copy is a person of its own.

    Raises:
        InputError: If the private images carry attributes, which canaries lack.
    """
    private = split.private
    if private.attributes is not None:
        raise InputError("exposure needs images without attributes: a canary has none. Take other data.")
    copies = canaries.select(torch.arange(len(canaries)).repeat(repeats))
    if private.identities is not None:
        first = int(private.identities.max()) + 1
        copies = dataclasses.replace(copies, identities=first + torch.arange(len(copies)))
    return dataclasses.replace(split, private=appended(private, copies))


@dataclass(frozen=True)
class ExposureReport:
    """The result of one training with canaries; never for release, as the training is not private.

    Attributes:
        method: Name.
        proven: What the accountant proves of the training, canaries included; None = no guarantee was asked for.
        results: Exposure by score.
        canaries: m.
        repeats: How often each was in.
        extractions: What a search found, by score; empty where none was asked for.
        notes: What a reader has to know.
    """

    method: str
    proven: Guarantee | None
    results: Mapping[str, Exposure]
    canaries: int
    repeats: int
    extractions: Mapping[str, Extraction] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = (_NOT_FOR_RELEASE,)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "format": FORMAT,
            "curator_only": True,
            "for_release": False,
            "method": self.method,
            "proven": self.proven.to_json() if self.proven else None,
            "canaries": self.canaries,
            "repeats": self.repeats,
            "exposure": {name: result.to_json() for name, result in self.results.items()},
            "extraction": {name: found.to_json() for name, found in self.extractions.items()},
            "floor": FLOOR,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return how well the secrets are known, by each score, as sentences."""
        lines = [f"{self.method}: {self.canaries} secrets, {self.repeats} times each; proven {self.proven}"]
        for name, result in self.results.items():
            fit = "" if result.fits else ", which does not fit the references: do not trust it"
            lines.append(
                f"{name}: mean exposure {result.by_rank.mean():.2f} bits by rank among {result.references:,} (never "
                f"seen: {FLOOR:.2f}), most {result.by_rank.max():.2f}; {result.extrapolated.mean():.2f} by a "
                f"skew-normal law{fit}"
            )
        for name, search in self.extractions.items():
            ours, others = search.extracted
            lines.append(
                f"{name}: {ours} of {len(search.ranks)} secrets extracted, each out of {2**search.unknown_bits:,} ways "
                f"to fill its {search.unknown_bits} unknown blocks (never seen: {others} of {len(search.never_seen)})"
            )
        if not self.results:
            lines.append("No score tells one image from another, so nothing was measured.")
        return [*lines, *(f"note: {note}" for note in self.notes), _READ]


def expose(
    split: Split,
    train: Callable[[Split], Any],
    scores: Mapping[str, Score],
    *,
    canaries: int = 20,
    references: int = 1000,
    repeats: int = 1,
    unknown: int = 0,
    seed: int = 0,
) -> tuple[Any, dict[str, Exposure], dict[str, Extraction]]:
    """Train with canaries; return what was trained, and exposure and extraction by each score that says anything.

    Args:
        split: Data set.
        train: Maps a split to whatever is scored.
        scores: Higher = known better.
        canaries: m, 1 .. 1000.
        references: n, other members of the space: 100 .. 100,000.
        repeats: How often each canary is in the training data, 1 .. 1000.
        unknown: Blocks of a canary that a search completes, at most 16; 0: none is made.
        seed: Of the draw from the space; public.
    """
    whole(canaries, "canaries", 1, 1000)
    whole(references, "references", LEAST_REFERENCES, 100_000)
    whole(repeats, "repeats", 1, 1000)
    space = CanarySpace(split.image_shape, split.classes)
    if unknown:
        space.completions(space.draw(1, seed), unknown, seed)  # refused before the training
    drawn = space.draw(canaries + references, seed)
    trained = train(with_canaries(split, drawn.select(torch.arange(canaries)), repeats))
    found: dict[str, Exposure] = {}
    for name, score in scores.items():
        given = score(trained, drawn)
        if bool((given != given[0]).any()):
            found[name] = exposure(given[:canaries], given[canaries:], space.bits)
    both = drawn.select(torch.arange(min(2 * canaries, len(drawn))))
    searched = {}
    for name in found if unknown else ():
        ranks = search(space, both, functools.partial(scores[name], trained), unknown, seed)
        searched[name] = Extraction(unknown, ranks[:canaries], ranks[canaries:])
    return trained, found, searched


def search(space: CanarySpace, members: Images, score: Callable[[Images], Tensor], unknown: int, seed: int) -> Tensor:
    """Return the place of each member, int64 (n,), among all ways to fill so many of its blocks, best known first."""
    places = []
    for place in range(len(members)):
        member = members.select(torch.tensor([place]))
        places.append(rank_of_first(score(space.completions(member, unknown, seed + place))))
    return torch.tensor(places)


@own_state()
def exposure_of(
    path: Path,
    *,
    canaries: int = 20,
    references: int = 1000,
    repeats: int = 1,
    unknown: int = 0,
    seed: int = 0,
    progress: Progress = silent,
) -> ExposureReport:
    """Train a config once on its own data, with canaries among the private images. Curator only, never released.

    Arguments are those of `expose`.

    Raises:
        InputError: If the config cannot be run, or the data have attributes.
    """
    config = load_config(path)
    trained, results, extractions = expose(
        load(config.data, progress),
        lambda split: train_on(config, split, progress),
        SCORES,
        canaries=canaries,
        references=references,
        repeats=repeats,
        unknown=unknown,
        seed=seed,
    )
    proven = trained.privacy().proven
    return ExposureReport(config.method.name, proven, results, canaries, repeats, extractions)
