r"""A private choice of the layers that LoRA stands beside: each record votes for some, and those with most votes learn.

With "votes:K:R" among ``model.trained`` LoRA of rank R stands beside all layers at first. Before the first step one
noisy count of votes is released, K layers with the most votes keep theirs, and the rest stays zero, never to be moved.
A record votes for the K layers where its gradient is longest against what is usual. The gradient is that of its loss in
LoRA's factor that starts at zero, by noise that is the same for all records; usual is the mean norm over images that
the public generator draws.

Sensitivity, L2, zero-out-one: 1. A record's vector has K entries of ``1 / sqrt(K)``, and zeros: its norm is 1, whatever
the record. It is a function of that record, of the public network and of public constants, and a null record has the
vector zero. All records are in one cell (`idpgan.privacy.sums`, which also has the proof of what is computed), so
zeroing one out moves the counts by sqrt(K). What is chosen follows from the noisy counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from idpgan.data.images import Images
from idpgan.models.adapters import voted
from idpgan.privacy import Noise
from idpgan.privacy.captured_gradients import NotCapturedError, Weights, record_gradients
from idpgan.privacy.layer_gradients import blocks
from idpgan.privacy.sums import CellSums
from idpgan.privacy.tiles import Way
from idpgan.synthesis.moments import private_moments


class VoteMap:
    """The votes of images.

    Args:
        network: Adapted, with candidates.
        loss: Of one record, by weights.
        records: Makes what the loss takes of images (B, C, H, W) in [-1, 1] and their classes (B,), row by row.
        chosen: K.

    Attributes:
        dimensions: M, the candidates.
        usual: Mean norm of a record's gradient in each, (M,) float64; ones until `learn` is called.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[..., Tensor],
        records: Callable[[Tensor, Tensor], Sequence[Tensor]],
        chosen: int,
    ) -> None:
        layers = voted(network)
        self._weights: Weights = {f"{name}.up.weight": layer.up.weight.detach() for name, layer in layers.items()}
        self._loss, self._records, self._chosen = loss, records, chosen
        self._way: Way = "capture"
        self.dimensions = len(self._weights)
        self.usual = torch.ones(self.dimensions, dtype=torch.float64)

    def learn(self, images: Tensor, rows: Tensor) -> None:
        """Take what is usual from public images (B, C, H, W) of classes (B,), and how gradients can be found."""
        try:
            found = self.lengths(images, rows)
        except NotCapturedError:
            self._way = "vmap"
            found = self.lengths(images, rows)
        self.usual = found.mean(0).clamp(min=torch.finfo(torch.float32).tiny)

    def lengths(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the norms of the gradients of images (B, C, H, W) of classes (B,), (B, M) float64."""
        found, losses = record_gradients(self._loss, self._weights, self._records(images, rows), self._way)
        lengths = losses.new_zeros(len(losses), self.dimensions, dtype=torch.float64)
        places = [[*self._weights].index(name) for name in found]
        for some, parts in blocks(found, len(losses)):
            lengths[some, places] = torch.stack([torch.linalg.vector_norm(part.double(), dim=1) for part in parts], 1)
        return lengths

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """Map images (B, C, H, W) of classes (B,) to their votes (B, M) float64, of norm 1."""
        lengths = self.lengths(images, rows) / self.usual.to(images.device)
        first = lengths.nan_to_num().topk(self._chosen, dim=1).indices
        return torch.zeros_like(lengths).scatter_(1, first, 1 / math.sqrt(self._chosen))


def release_votes(sums: CellSums, votes: VoteMap, private: Images, tile: int, noise: Noise) -> Tensor:
    """Release the noisy share of the records that vote for each candidate, times N and 1 / sqrt(K), (M,) float64.

    Args:
        sums: One cell of M numbers.
        private: Read here, after the release was charged.
        tile: Images whose gradients are in memory at once.
    """
    found = private_moments(private, votes, conditional=True, cap=None, tile=tile)
    return sums.release(((vectors, torch.zeros_like(rows), None) for vectors, rows, _ in found), noise)[0]


def keep_chosen(network: nn.Module, counts: Tensor, chosen: int) -> None:
    """Freeze the candidates of an adapted network but for those with the largest of the released counts (M,)."""
    kept = set(counts.topk(chosen).indices.tolist())
    for place, layer in enumerate(voted(network).values()):
        for factor in (layer.down, layer.up):
            factor.requires_grad_(place in kept)
