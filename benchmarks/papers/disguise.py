"""Reconstruction of disguised images, whose blocks were permuted and multiplied by secret matrices of one key.

The method is that of Sharma and Chen, "Poster: Image disguising for privacy-preserving deep learning" (2018),
arXiv:1902.01878, who claim that a disguised image cannot be reconstructed; the attacks are ours. The attacker knows the
method and the side of a block, never the key. `known_plaintext` knows some pairs of an image and its disguise; `jigsaw`
knows only disguised images, and reorders permuted blocks by their edges.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from idpgan.checks import typed, whole
from idpgan.errors import InputError

_RIDGE = 1e-10  # of the mean variance: keeps flat blocks solvable


@dataclasses.dataclass(frozen=True)
class Key:
    """The key as the attacker has recovered it.

    Attributes:
        order: int64 (K,): the original block (numbered row by row) that was moved to each place.
        decoders: (K, b + 1, b): maps a row of the disguised block at each place, and 1, to the row of the original.
        block: Side of a block, px.
    """

    order: Tensor
    decoders: Tensor
    block: int

    @typed
    def reconstruct(self, disguised: Tensor) -> Tensor:
        """Return originals, (N, C, H, W) in [0, 1], of disguised images (N, C, H, W)."""
        _check(disguised, self.block)
        rows = _with_one(_rows(disguised, self.block))  # (K, N C b, b + 1)
        decoded = rows @ self.decoders.to(rows)
        blocks = torch.empty_like(decoded)
        blocks[self.order.to(decoded.device)] = decoded
        (num, channels, height, width), block = disguised.shape, self.block
        cut = blocks.reshape(height // block, width // block, num, channels, block, block)
        return cut.permute(2, 3, 0, 4, 1, 5).reshape(num, channels, height, width).clamp(0, 1)  # undoes `_rows`


@typed
def known_plaintext(originals: Tensor, disguised: Tensor, block: int) -> Key:
    """Find the key from pairs by least squares.

    Every block of the original is regressed on every block of the disguise, row on row: K x K regressions of b + 1
    unknowns, all at once from sums of products. The permutation is the assignment with the least residuals; the
    regressions that belong to it are the decoders.

    Args:
        originals: (M, C, H, W) floating point. From M C >= 2 or so the M C b rows outnumber the b + 1 unknowns.
        disguised: The same images, disguised under one key.
        block: Side of a block, px.

    Raises:
        InputError: If shapes do not fit together.
    """
    from scipy.optimize import linear_sum_assignment

    _check(originals, block)
    _check(disguised, block)
    if originals.shape != disguised.shape:
        raise InputError(f"originals are {tuple(originals.shape)}, their disguises {tuple(disguised.shape)}.")
    wanted = _rows(originals, block).double()  # (K, n, b)
    given = _with_one(_rows(disguised, block).double())  # (K, n, b + 1)
    own = given.transpose(1, 2) @ given
    ridge = _RIDGE * own.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(block + 1).to(own)
    cross = torch.einsum("kni,snj->ksij", given, wanted)  # (K places, K blocks, b + 1, b)
    solved = torch.linalg.solve((own + ridge)[:, None], cross)
    explained = (cross * solved).sum((2, 3))
    residual = wanted.square().sum((1, 2))[None] - explained
    places, blocks = linear_sum_assignment(residual.cpu().numpy())
    order = torch.as_tensor(blocks)
    return Key(order, solved[torch.as_tensor(places), order].float().cpu(), block)


@typed
def jigsaw(disguised: Tensor, block: int, *, typical: Tensor | None = None, starts: int = 8) -> Key:
    """Put permuted blocks in order without any original: neighbors differ least along their common edge.

    Differences are means over all images, which share one permutation. Several first blocks are tried. From each, a
    picture is grown greedily, smallest difference first, within a frame of the known size; the picture with the
    smallest sum of edge differences wins. Where left and right edges of the originals are alike, as backgrounds are,
    the picture may be shifted cyclically; a typical image shows by how much. Where blocks were also multiplied, edges
    carry no information and the attack fails.

    Args:
        disguised: (N, C, H, W) floating point, one permutation for all.
        block: Side of a block, px.
        typical: (C, H, W), the mean of public images of the same kind; None leaves the picture as it was grown.
        starts: First blocks that are tried, at most K.
    """
    _check(disguised, block)
    whole(starts, "starts", 1)
    height, width = disguised.shape[2] // block, disguised.shape[3] // block
    rows = _rows(disguised, block).float()  # (K, n, b)
    cut = rows.view(height * width, -1, block, block)  # (K, N C, b, b)
    across = _differences(cut[..., :, -1], cut[..., :, 0])  # (K, K): mismatch of the second block right of the first
    below = _differences(cut[..., -1, :], cut[..., 0, :])
    tried = torch.linspace(0, height * width - 1, min(starts, height * width)).round().long().unique()
    grown = [_grow(across, below, (height, width), int(first)) for first in tried]
    edges = [
        float(across[placed[:, :-1], placed[:, 1:]].sum() + below[placed[:-1], placed[1:]].sum()) for placed in grown
    ]
    grid = grown[edges.index(min(edges))]
    if typical is not None:
        means = _rows(disguised.mean(0, keepdim=True).cpu(), block).flatten(1)  # (K, numbers)
        wanted = _rows(typical[None].to(means), block).flatten(1)
        turns = [grid.roll((y, x), (0, 1)) for y in range(height) for x in range(width)]
        grid = min(turns, key=lambda turned: float((means[turned.flatten()] - wanted).square().sum()))
    order = torch.empty(height * width, dtype=torch.int64)
    order[grid.flatten()] = torch.arange(height * width)
    identity = torch.cat([torch.eye(block), torch.zeros(1, block)]).expand(height * width, -1, -1)
    return Key(order, identity.clone(), block)


def _differences(ends: Tensor, begins: Tensor) -> Tensor:
    """Return mean squared differences of all edges (K, n, b) to all others, (K, K); infinite on the diagonal."""
    first, second = ends.flatten(1).double(), begins.flatten(1).double()
    apart = torch.cdist(first, second).square() / first.shape[1]
    return apart.fill_diagonal_(torch.inf).cpu()


def _grow(across: Tensor, below: Tensor, frame: tuple[int, int], first: int) -> Tensor:
    """Grow a picture from its first block; return the block at each place, int64 (h, w)."""
    height, width = frame
    canvas = torch.full((2 * height + 1, 2 * width + 1), -1)  # a margin around all that can be reached
    canvas[height, width] = first
    free = torch.ones(len(across), dtype=torch.bool)
    free[first] = False
    box = [height, height, width, width]
    for _ in range(len(across) - 1):
        best = (torch.inf, 0, 0, 0)
        for y, x in _open_places(canvas, box, frame):
            costs = torch.zeros(len(across), dtype=torch.float64)
            neighbors = 0
            for dy, dx, table in ((0, -1, across), (-1, 0, below), (0, 1, across.T), (1, 0, below.T)):
                beside = int(canvas[y + dy, x + dx])
                if beside >= 0:
                    costs, neighbors = costs + table[beside], neighbors + 1
            mean = (costs / neighbors).masked_fill(~free, torch.inf)
            found = int(mean.argmin())
            best = min(best, (float(mean[found]), y, x, found))
        _, y, x, found = best
        canvas[y, x], free[found] = found, False
        box = [min(box[0], y), max(box[1], y), min(box[2], x), max(box[3], x)]
    return canvas[box[0] : box[1] + 1, box[2] : box[3] + 1]


def _open_places(canvas: Tensor, box: list[int], frame: tuple[int, int]) -> list[tuple[int, int]]:
    """List the empty places beside a block that keep the picture within its frame."""
    filled = canvas >= 0
    beside = torch.zeros_like(filled)
    beside[1:] |= filled[:-1]
    beside[:-1] |= filled[1:]
    beside[:, 1:] |= filled[:, :-1]
    beside[:, :-1] |= filled[:, 1:]
    top, bottom, left, right = box
    places = [(int(y), int(x)) for y, x in (beside & ~filled).nonzero()]
    (height, width), last = frame, (canvas.shape[0] - 1, canvas.shape[1] - 1)
    return [
        (y, x)
        for y, x in places
        if 0 < y < last[0]
        and 0 < x < last[1]
        and max(bottom, y) - min(top, y) < height
        and max(right, x) - min(left, x) < width
    ]


def _rows(images: Tensor, block: int) -> Tensor:
    """Return the rows of all blocks, (K, N C b, b)."""
    num, channels, height, width = images.shape
    cut = images.reshape(num, channels, height // block, block, width // block, block)
    return cut.permute(2, 4, 0, 1, 3, 5).reshape(-1, num * channels * block, block)


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)


def _check(images: Tensor, block: int) -> None:
    if images.ndim != 4 or not images.is_floating_point() or len(images) == 0:
        raise InputError(f"images must be floating point (N, C, H, W), got {images.dtype} {tuple(images.shape)}.")
    whole(block, "block", 2)
    if images.shape[2] % block or images.shape[3] % block:
        raise InputError(f"block = {block} must divide both sides of {images.shape[3]} x {images.shape[2]} images.")
