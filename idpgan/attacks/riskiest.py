"""The members that attacks find most easily, each with the generated images nearest to it. For the curator only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.attack import Membership, Outcome
from idpgan.attacks.distances import nearest_neighbors
from idpgan.data.images import Images

NEAREST = 5  # generated images beside each member


@dataclass(frozen=True)
class Record:
    """One member.

    Attributes:
        names: Where it is found: file names, or positions.
        equal: Whether a generated image is equal to it.
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

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict without the images."""
        return {
            "names": list(self.names),
            "equal": self.equal,
            "levels": dict(self.levels),
            "distances": list(self.distances),
        }


def most_exposed(
    images: Membership,
    samples: Images | None,
    outcomes: Sequence[Outcome],
    num: int,
    names: Sequence[Sequence[str]] | None = None,
) -> tuple[Record, ...]:
    """Return the ``num`` members that are found most easily, the first one first.

    First come members that are equal to a generated image, then those whose score by any attack fewest others reach;
    equal ones are ordered by the geometric mean over the attacks. Attacks that score people, or judge a choice of
    records, say nothing of a single member and are left out; so is a member that a costly attack did not judge.

    Args:
        images: Members and others, in the order in which they were judged.
        samples: Generated images; without them there are no records.
        names: Of each member; None = its position among the members, from 1.
    """
    if samples is None or num == 0:
        return ()
    levels, members = _levels(outcomes, len(images.members)), images.members.to("cpu")
    drawn = set(samples.digests())
    equal = torch.tensor([digest in drawn for digest in members.digests()])
    table = torch.stack([torch.ones(len(members)), *levels.values()])  # a row of ones where no attack says anything
    lowest, mean = table.min(0).values.tolist(), table.log().mean(0).tolist()
    order = sorted(range(len(members)), key=lambda i: (not equal[i], lowest[i], mean[i]))[:num]
    chosen = members.images[torch.tensor(order)]
    squares, where = nearest_neighbors(chosen.to(samples.images.device), samples.images, NEAREST)
    distances = (squares.sqrt() * 127.5).tolist()  # [-1, 1] spans 255 levels
    return tuple(
        Record(
            (f"image {i + 1:,}",) if names is None else tuple(names[i]),
            bool(equal[i]),
            {name: round(float(level[i]), 6) for name, level in levels.items()},
            tuple(round(distance, 3) for distance in distances[place]),
            chosen[place : place + 1],
            samples.images[where[place]].cpu(),
        )
        for place, i in enumerate(order)
    )


def _levels(outcomes: Sequence[Outcome], num: int) -> dict[str, Tensor]:
    """Return, by attack, the share of others that score at least as high as each member, (num,); 1 where unjudged."""
    found = {}
    for each in outcomes:
        if each.scores is None or each.attack.by_person or "shadows" in each.attack.needs:
            continue
        members, others = each.scores
        ordered = others.sort().values
        reached = len(others) - torch.searchsorted(ordered, members.contiguous(), side="left")
        level = torch.ones(num)
        level[: len(members)] = (reached + 1) / (len(others) + 1)
        found[each.attack.name] = level
    return found
