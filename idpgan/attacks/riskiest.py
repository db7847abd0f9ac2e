"""The members that attacks find most easily, each with the generated images nearest to it. For the curator only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.copies import Copies
from idpgan.attacks.distances import nearest_neighbors
from idpgan.attacks.outcome import Outcome
from idpgan.data.images import Images

NEAREST = 5  # generated images beside each member


@dataclass(frozen=True)
class Record:
    """One member.

    Attributes:
        names: Where it is found: file names, or positions.
        equal: Whether a generated image is equal to it, as it is or turned or mirrored.
        copied: How it stands in a generated image, changed: a name of `copies.ORIENTATIONS`; empty if it was not found.
        levels: By attack: the share of others that score at least as high, the member counted with them.
        distances: To the nearest generated images, ascending: root mean square, in grey levels.
        image: uint8 (1, C, H, W).
        nearest: uint8 (k, C, H, W).
    """

    names: tuple[str, ...]
    equal: bool
    levels: Mapping[str, float]
    distances: tuple[float, ...]
    image: Tensor
    nearest: Tensor
    copied: str = ""

    def __str__(self) -> str:
        near = f"the nearest generated image at {self.distances[0]:.1f} grey levels"
        how = "equal to a generated image" if self.equal else f"in a generated image ({self.copied})"
        return f"{', '.join(self.names)}: {how if self.equal or self.copied else near}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict without the images."""
        return {
            "names": list(self.names),
            "equal": self.equal,
            "copied": self.copied,
            "levels": dict(self.levels),
            "distances": list(self.distances),
        }


def most_exposed(
    members: Images,
    samples: Images | None,
    outcomes: Sequence[Outcome],
    num: int,
    names: Sequence[Sequence[str]],
    copied: Copies | None = None,
) -> tuple[Record, ...]:
    """Return the ``num`` members that are found most easily, the first one first.

    First come members that are equal to a generated image, then those that stand in one after changes, each beside that
    image; then those whose score by any attack fewest others reach;
    equal ones are ordered by the geometric mean over the attacks. Attacks that score people, or judge a choice of
    records, say nothing of a single member and are left out; so is a member that a costly attack did not judge.

    Args:
        members: In the order in which they were judged.
        samples: Generated images; without them there are no records.
        names: Of each member.
        copied: Which of them stand in generated images; None = only equal ones are known.
    """
    if samples is None or num == 0:
        return ()
    levels, members = _levels(outcomes, len(members)), members.to("cpu")
    drawn = set(samples.digests())
    equal = torch.tensor([digest in drawn for digest in members.digests()])
    in_images = torch.zeros_like(equal) if copied is None else copied.found
    equal = equal if copied is None else equal | copied.equal
    table = torch.stack([torch.ones(len(members)), *levels.values()])  # a row of ones where no attack says anything
    lowest, mean = table.min(0).values.tolist(), table.log().mean(0).tolist()
    order = sorted(range(len(members)), key=lambda i: (not equal[i], not in_images[i], lowest[i], mean[i]))[:num]
    chosen = members.images[torch.tensor(order)]
    where = nearest_neighbors(chosen.to(samples.images.device), samples.images, NEAREST)[1].cpu()
    if copied is not None:
        for place, i in enumerate(order):
            if in_images[i] and not bool((where[place] == copied.places[i]).any()):  # the image that it stands in
                where[place] = torch.cat([copied.places[i : i + 1], where[place, :-1]])
    near = samples.images.cpu()[where]  # (num, k, C, H, W)
    squares = (near.float() - chosen[:, None].float()).square().flatten(2).mean(2)
    squares, nearer = squares.sort(1)
    return tuple(
        Record(
            tuple(names[i]),
            bool(equal[i]),
            {name: round(float(level[i]), 6) for name, level in levels.items()},
            tuple(round(float(square) ** 0.5, 3) for square in squares[place]),
            chosen[place : place + 1],
            near[place, nearer[place]],
            copied.changes[i] if copied is not None and in_images[i] else "",
        )
        for place, i in enumerate(order)
    )


def _levels(outcomes: Sequence[Outcome], num: int) -> dict[str, Tensor]:
    """Return, by attack, the share of others that score at least as high as each member, (num,); 1 where unjudged."""
    levels = {}
    for outcome in outcomes:
        if outcome.scores is None or outcome.attack.by_person or "shadows" in outcome.attack.needs:
            continue
        members, others = outcome.scores
        ordered = others.sort().values
        reached = len(others) - torch.searchsorted(ordered, members.contiguous(), side="left")
        level = torch.ones(num)
        level[: len(members)] = (reached + 1) / (len(others) + 1)
        levels[outcome.attack.name] = level
    return levels
