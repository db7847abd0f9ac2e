"""Which members stand in the synthetic images: equal, or after changes that a distance of pixels does not see through.

A copy may be turned, mirrored, cropped, moved, scaled, recompressed, grey, brighter, of other contrast, or noisy. The
middle of each image is looked for in the synthetic images, at several places and scales, in all eight orientations:
first coarsely, by matrix products of small descriptors that compare all pairs; then the few best pairs finely, by
correlation at all places, with slow changes of brightness taken out, which independent images share.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as layers

from idpgan.attacks.distances import check_comparable
from idpgan.data.images import Images
from idpgan.device import cat
from idpgan.progress import Progress, silent

FALSE_ALARMS = 0.01  # share of the others that is taken for copies, at most
LEAST_CORRELATION = 0.7  # of a copy
CERTAIN, LEAST_CERTAIN = 0.9, 10  # correlation of copies that need no test; least synthetic images that are such ones
APART = 0.4  # by so much above the best of the others, a smaller one is certain too, down to 0.8: scaling blurs a copy
FLAT = 4.0  # grey levels of standard deviation, below which an image shows nothing that could be recognized
ORIENTATIONS = tuple(
    mirror + turn
    for mirror in ("", "mirrored, ")
    for turn in ("not turned", "turned by 90 degrees", "turned by 180 degrees", "turned by 270 degrees")
)
_SIDE, _MIDDLE, _CELLS = 32, 22, 8  # px of all images here, of the middle that is looked for; cells of its descriptor
_VIEWS = ((1.0, (-4, -2, 0, 2, 4)), (0.9, (-2, 0, 2)), (1.11, (0,)))  # scale, and px that the middle may have moved
_SCALES = (0.9, 0.95, 1.0, 1.055, 1.11)
_LARGEST = 36  # px, of the last scale
_WIDTHS = 0.7, 2.0  # px of the Gaussians between which details lie
_CONTRAST, _FINE_CONTRAST = 1.0, 2.0  # grey levels: weaker patterns correlate less
_PAIRS, _BLOCK, _BATCH = 4, (512, 1024), 1024


@dataclass(frozen=True)
class Copies:
    """Members and others that stand in the synthetic images.

    Attributes:
        equal: Whether each member is a synthetic image pixel by pixel, perhaps turned or mirrored; bool (n,). Images
            that are nearly constant are not counted.
        found: Whether each member is in a synthetic image, equal or changed; bool (n,).
        changes: How each member was turned to fit best, a name of `ORIENTATIONS`.
        places: The synthetic image that fits each member best, int64 (n,).
        correlations: How well it fits, (n,), 1 at most.
        equal_of_others: Whether each of the others is equal to a synthetic image; bool (m,).
        found_of_others: Whether each of the others is found, by the same threshold; bool (m,).
        threshold: The correlation above which an image is found: at most 1 % of the others are.
        highest_of_others: The highest correlation of one of the others.
    """

    equal: Tensor
    found: Tensor
    changes: tuple[str, ...]
    places: Tensor
    correlations: Tensor
    equal_of_others: Tensor
    found_of_others: Tensor
    threshold: float
    highest_of_others: float

    @property
    def false_alarms(self) -> float:
        """Share of the others that is found."""
        return float(self.found_of_others.float().mean())

    def people(self, members: Tensor, others: Tensor) -> dict[str, list[int]]:
        """Return of how many people an image is found, and how many there are: members', others'.

        Args:
            members: The person on each member, (n,).
            others: The person on each of the others, (m,).
        """
        sides = ((self.found, members), (self.found_of_others, others))
        counts = [len(people[where].unique()) for where, people in sides]
        return {"found_people": counts, "people": [len(people.unique()) for _, people in sides]}

    def certain(self) -> Copies | None:
        """Return those copies of members, and of nobody else, that are facts whatever images hang together; or None.

        One that is equal is one, where none of the others is. Changed ones fit better than any of the others does, and
        are ten synthetic images at least: what looks like a copy may be one that looks like a burst.
        """
        threshold = max(CERTAIN - 0.1, min(CERTAIN, self.highest_of_others + APART), self.highest_of_others)
        found = (self.correlations > threshold) | self.equal
        several = len(self.places[found].unique()) >= LEAST_CERTAIN
        if bool(self.equal_of_others.any()) or not (several or bool(self.equal.any())):
            return None
        found = found if several else self.equal
        none = torch.zeros_like(self.found_of_others)
        return dataclasses.replace(self, found=found, found_of_others=none, threshold=threshold)

    def to_json(self, names: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Return a JSON-able dict; ``names`` says where each member is found in its source, and so do ``members``."""
        members = [
            {
                "member": list(names[i]),
                "synthetic": int(self.places[i]),
                "equal": bool(self.equal[i]),
                "change": self.changes[i],
                "correlation": round(float(self.correlations[i]), 4),
            }
            for i in self.found.nonzero()[:, 0].tolist()
        ]
        counts = {"equal_members": int(self.equal.sum()), "equal_others": int(self.equal_of_others.sum())}
        counts |= {"found_members": int(self.found.sum()), "found_others": int(self.found_of_others.sum())}
        rates = {"threshold": round(self.threshold, 4), "false_alarms": round(self.false_alarms, 5)}
        return {**counts, **rates, "members": members}


def find_copies(members: Images, others: Images, synthetic: Images, *, progress: Progress = silent) -> Copies:
    """Look for members in synthetic images, and for others, which show how often independent images look like copies.

    Raises:
        InputError: If a set is empty, or shapes differ.
    """
    for side in (members, others):
        check_comparable(side.images, synthetic.images)
    num = len(members)
    both = cat([members.images, others.images])
    known = equal_to(both, synthetic)
    scores, places, turned = search(both, synthetic.images, progress)
    equal = torch.tensor([match is not None for match in known])
    for i in equal.nonzero()[:, 0].tolist():
        scores[i], (places[i], turned[i]) = 1.0, known[i]
    ranked = scores[num:].sort(descending=True).values
    threshold = max(LEAST_CORRELATION, float(ranked[int(FALSE_ALARMS * len(others))]))
    found = (scores > threshold) | equal
    return Copies(
        equal=equal[:num],
        found=found[:num],
        changes=tuple(ORIENTATIONS[i] for i in turned[:num].tolist()),
        places=places[:num],
        correlations=scores[:num],
        equal_of_others=equal[num:],
        found_of_others=found[num:],
        threshold=threshold,
        highest_of_others=float(ranked[0]),
    )


def oriented(images: Tensor, orientation: int) -> Tensor:
    """Return images (..., H, W) in one of the eight orientations, by its number in `ORIENTATIONS`."""
    return torch.rot90(images.flip(-1) if orientation >= 4 else images, orientation % 4, (-2, -1))


def equal_to(images: Tensor, synthetic: Images) -> list[Any]:
    """Return (synthetic image, orientation) for each image that is equal to one, in an orientation; None for others."""
    places: dict[bytes, int] = {}
    for place, digest in enumerate(synthetic.digests()):
        places.setdefault(digest, place)
    matches: list[Any] = [None] * len(images)
    for orientation in reversed(range(len(ORIENTATIONS))):  # as it is, if that fits too
        turned = oriented(images, orientation)
        if turned.shape[1:] == images.shape[1:]:
            for i, digest in enumerate(Images(turned.contiguous()).digests()):
                matches[i] = (places[digest], orientation) if digest in places else matches[i]
    flat = (images.float().flatten(1).std(1, correction=0) < FLAT).tolist()
    return [None if nothing else match for match, nothing in zip(matches, flat, strict=True)]


def search(images: Tensor, cloud: Tensor, progress: Progress = silent) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best correlation of each image with an image of the cloud, its place there, and the orientation.

    Images (n, C, H, W) and cloud (S, C, H, W) are uint8; all three results are (n,), on the CPU.
    """
    mine, theirs = _grey(images), _grey(cloud.to(images.device))
    places, turned = _candidates(mine, theirs, progress)
    scores = torch.empty(places.shape, device=mine.device)
    rows = torch.arange(len(mine), device=mine.device)[:, None].expand_as(places).flatten()
    for part in torch.arange(len(rows), device=mine.device).split(_BATCH):
        planes = torch.empty(len(part), _SIDE, _SIDE, device=mine.device)
        for orientation in range(len(ORIENTATIONS)):
            chosen = turned.flatten()[part] == orientation
            planes[chosen] = oriented(mine[rows[part[chosen]]], orientation)
        scores.view(-1)[part] = _correlation(planes, theirs[places.flatten()[part]])
        progress("copies, best pairs", int(part[-1]) + 1, len(rows))
    best = scores.argmax(1, keepdim=True)
    score, place, way = (part.gather(1, best)[:, 0].cpu() for part in (scores, places, turned))
    return score, place, way


def _candidates(mine: Tensor, theirs: Tensor, progress: Progress) -> tuple[Tensor, Tensor]:
    """Return the synthetic images, and the orientations, with the largest correlations of descriptors: (n, 4) each."""
    rows = _cells(1.0, 0).to(mine)
    turned = torch.stack([_unit(rows @ oriented(mine, i) @ rows.T) for i in range(len(ORIENTATIONS))])
    views = []
    for scale, moves in _VIEWS:
        sides = {move: _cells(scale, move).to(theirs) for move in moves}
        views += [_unit(sides[down] @ theirs @ sides[right].T) for down, right in itertools.product(moves, moves)]
    seen, places, orientations = torch.stack(views).mT.contiguous(), list[Tensor](), list[Tensor]()
    for start in range(0, len(mine), _BLOCK[0]):
        tops = []
        for first in range(0, len(theirs), _BLOCK[1]):
            best = torch.full((0,), -1.0)
            for number, each in enumerate(turned[:, start : start + _BLOCK[0]]):
                here = each @ seen[0, :, first : first + _BLOCK[1]]
                for view in seen[1:, :, first : first + _BLOCK[1]]:
                    torch.maximum(here, each @ view, out=here)
                if number == 0:
                    best, which = here, torch.zeros_like(here, dtype=torch.int64)
                else:
                    which.masked_fill_(here > best, number)
                    torch.maximum(best, here, out=best)
            values, index = best.topk(min(_PAIRS, best.shape[1]))
            tops.append((values, index + first, which.gather(1, index)))
        values, index, number_of = (torch.cat(parts, 1) for parts in zip(*tops, strict=True))
        chosen = values.topk(min(_PAIRS, values.shape[1])).indices
        places.append(index.gather(1, chosen))
        orientations.append(number_of.gather(1, chosen))
        progress("copies, all pairs", min(start + _BLOCK[0], len(mine)), len(mine))
    return torch.cat(places), torch.cat(orientations)


def _correlation(planes: Tensor, others: Tensor) -> Tensor:
    """Return the largest correlation of the middle of each plane with a place in its other, over the scales: (P,)."""
    size = (_LARGEST, _LARGEST)
    mine = _middle(_details(planes, 1.0))
    mine = mine - mine.mean((-2, -1), keepdim=True)
    energy = mine.square().mean((-2, -1)) + _FINE_CONTRAST**2
    wave, best = torch.fft.rfft2(mine, s=size).conj(), torch.full((len(planes),), -1.0, device=planes.device)
    for scale in _SCALES:
        other = _details(others, scale)
        places = other.shape[-1] - _MIDDLE + 1
        window = torch.ones(places, other.shape[-1]).triu().tril(_MIDDLE - 1).to(other) / _MIDDLE
        products = torch.fft.irfft2(torch.fft.rfft2(other, s=size) * wave, s=size)[:, :places, :places] / _MIDDLE**2
        mean, squares = (window @ plane @ window.T for plane in (other, other.square()))
        theirs = (squares - mean.square()).clamp(min=0) + _FINE_CONTRAST**2
        best = torch.maximum(best, (products / (energy[:, None, None] * theirs).sqrt()).flatten(1).amax(1))
    return best


def _grey(images: Tensor) -> Tensor:
    """Return images as grey planes (n, 32, 32), in grey levels."""
    weights = torch.tensor([0.299, 0.587, 0.114] if images.shape[1] == 3 else [1.0], device=images.device)
    size = (_SIDE, _SIDE)
    parts = [torch.einsum("nchw,c->nhw", part.float(), weights)[:, None] for part in images.split(_BATCH)]
    return torch.cat([layers.interpolate(part, size, mode="bilinear", antialias=True)[:, 0] for part in parts])


def _middle(planes: Tensor) -> Tensor:
    """Return the middle of planes (n, side, ...): 22 rows, and columns where there are as many."""
    edge = (planes.shape[1] - _MIDDLE) // 2
    return planes[:, edge : edge + _MIDDLE, edge : edge + _MIDDLE]


def _unit(cells: Tensor) -> Tensor:
    """Return cells (n, 8, 8) without their mean, as rows of length 1 unless the contrast is weak: (n, 64)."""
    cells = cells.flatten(1) - cells.mean((-2, -1))[:, None]
    return cells / (cells.norm(dim=1, keepdim=True) + _CONTRAST * _CELLS)


# Everything below is linear along each side of an image, so that a small matrix on both sides of it does the work.


@functools.cache
def _scaled(scale: float) -> Tensor:
    """Return the matrix that resamples 32 px to another scale: (side, 32)."""
    return layers.interpolate(
        torch.eye(_SIDE)[None, None], (round(_SIDE * scale), _SIDE), mode="bilinear", antialias=True
    )[0, 0]


@functools.cache
def _cells(scale: float, move: int) -> Tensor:
    """Return the matrix that gives the means of the 8 cells of the middle at a scale, moved by some px: (8, 32)."""
    whole = _scaled(scale)
    edge = (len(whole) - _MIDDLE) // 2 + move
    return layers.adaptive_avg_pool1d(whole[edge : edge + _MIDDLE].T[None], _CELLS)[0].T.contiguous()


@functools.cache
def _blurred(side: int, width: float) -> Tensor:
    """Return the matrix that blurs by a Gaussian: (side, side), rows of sum 1."""
    line = torch.arange(side).float()
    weights = (line - line[:, None]).square().div(-2 * width**2).exp()
    weights = weights.where(weights > 1e-30, 0.0)  # a processor is slow at numbers that are nearly 0
    return weights / weights.sum(1, keepdim=True)


def _details(planes: Tensor, scale: float) -> Tensor:
    """Return planes at a scale with what changes slowly, and what noise and resampling destroy, taken out."""
    whole = _scaled(scale)
    fine, slow = ((_blurred(len(whole), width) @ whole).to(planes) for width in _WIDTHS)
    return fine @ planes @ fine.T - slow @ planes @ slow.T
