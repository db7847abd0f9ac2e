"""How well a training knows random secrets in it (Carlini et al. 2019, "The secret sharer"): exposure and extraction.

python benchmarks/papers/exposure.py CONFIG [--canaries 20] [--repeats 1] [--extract 12] [--seed 0] [--json]

All canaries are in the training. They are random members of a declared space: pictures of 8 x 8 black and white blocks
with random labels. Exposure is log2((n + 1) / rank) among n = 1,000 others that were not trained on (1.44 bits on
average if nothing was learned, 9.97 at most), and beyond that by the tail of a fitted law. ``--extract`` searches all
ways to fill so many missing blocks. It bounds no epsilon; the coins of ``idpgan audit --one-run`` do. Private images
are read: the result is the curator's. What was trained is dropped: its folder is deleted, nothing is released.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from idpgan.audit.one_run import appended
from idpgan.checks import whole
from idpgan.commands.canaries import SCORES, Score
from idpgan.data.images import Images
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.privacy.guarantee import Guarantee
from idpgan.trainer import load_config, train_on
from papers.literature.exposure import FLOOR, LEAST_REFERENCES, Exposure, Extraction, exposure, rank_of_first

FORMAT = "idpgan exposure 1"
MOST_UNKNOWN = 16  # bits of a secret that a search completes
_BLOCKS = 8  # blocks per side of a canary
_NOT_FOR_RELEASE = "what was trained holds constructed secrets: it is not a product, was never released, and is dropped"


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
        return [
            *lines,
            *(f"note: {note}" for note in self.notes),
            "Private images were read: this result is for the curator.",
        ]


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


def exposure_of(
    path: Path,
    *,
    canaries: int = 20,
    references: int = 1000,
    repeats: int = 1,
    unknown: int = 0,
    seed: int = 0,
) -> ExposureReport:
    """Train a config once on its own data, with canaries among the private images. Curator only, never released.

    Arguments are those of `expose`.

    Raises:
        InputError: If the config cannot be run, or the data have attributes.
    """
    config = load_config(path)
    trained, results, extractions = expose(
        load(config.data),
        lambda split: train_on(config, split),
        SCORES,
        canaries=canaries,
        references=references,
        repeats=repeats,
        unknown=unknown,
        seed=seed,
    )
    proven = trained.privacy().proven
    return ExposureReport(config.method.name, proven, results, canaries, repeats, extractions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--canaries", type=int, default=20, help="secrets, 1 .. 1000")
    parser.add_argument("--repeats", type=int, default=1, help="how often each secret is in the training")
    parser.add_argument("--extract", type=int, default=0, help="blocks of each secret that a search completes")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of the secrets")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        found = exposure_of(
            asked.config, canaries=asked.canaries, repeats=asked.repeats, unknown=asked.extract, seed=asked.seed
        )
    except InputError as error:
        raise SystemExit(f"exposure: {error}") from None
    print(json.dumps(found.to_json()) if asked.json else "\n".join(found.lines()))


if __name__ == "__main__":
    main()
