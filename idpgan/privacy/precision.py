"""Full float32 where a bound on private numbers is enforced: a GPU's TF32 keeps 10 bits of 23, and may exceed it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute matrix products and convolutions of a CUDA device in IEEE float32 inside the block.

    Clip factors and features that are rounded to TF32 can exceed their norm by 2^-11. On the CPU nothing changes.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
