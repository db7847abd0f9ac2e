"""The nearest candidate of each record, exactly: whole numbers, whose products add up without rounding in any order.

With numbers of at most 127 and at most 256 coordinates, ``2 q.c - |c|^2`` is a whole number below 2^24 in size, and so
is every partial sum: float32 holds them all, on the CPU and on a GPU. So which candidate is nearest depends on the
record and on the candidates alone, never on the batch, the other records, or the machine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.privacy.dpsgd import full_precision

LEVELS = 127  # largest absolute value of a coordinate
MOST_DIMENSIONS = 256
_TILE = {"cpu": (512, 2048), "cuda": (16_384, 8192)}  # records and candidates at once: 4 MiB of scores on the CPU


def nearest(records: Tensor, candidates: Tensor) -> Tensor:
    """Return the number of the nearest candidate of each record, int64 (N,), the first among equals.

    No N x M matrix is ever held.

    Args:
        records: int8 (N, D), D <= `MOST_DIMENSIONS`, any device.
        candidates: int8 (M, D), M >= 1, on the same device.
    """
    if records.dtype != torch.int8 or candidates.dtype != torch.int8 or records.shape[1] != candidates.shape[1]:
        raise ValueError(f"records and candidates are int8 of one length, got {records.shape} and {candidates.shape}.")
    if records.shape[1] > MOST_DIMENSIONS or not len(candidates):
        raise ValueError(f"there are 1 to {MOST_DIMENSIONS} coordinates and at least one candidate.")
    rows, columns = _TILE.get(records.device.type, _TILE["cuda"])
    parts = [(part.float(), part.float().square().sum(1)) for part in candidates.split(columns)]
    found = torch.empty(len(records), dtype=torch.int64, device=records.device)
    with full_precision():
        for start in range(0, len(records), rows):
            queries = 2 * records[start : start + rows].float()
            best, index = queries.new_full((len(queries),), -torch.inf), found[start : start + rows]
            for number, (values, squares) in enumerate(parts):
                score, place = torch.addmm(-squares, queries, values.T).max(1)
                better = score > best
                index[better] = place[better] + number * columns
                best = torch.where(better, score, best)
    return found
