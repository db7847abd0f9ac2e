"""Re-identification of released images: their column and row spaces are matched with those of clean images.

SRA and ESRA (and LRM and MM, where an image has more rows than its rank) put noise on a few numbers and multiply these
by noise-free factors of the private image. Whatever the noise, the released image lies in the space of those factors,
so it can be matched with a gallery of clean photographs of the same people, equally well at every epsilon. Measured:
docs/methods/matrix-publishers.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.numerics.svd import safe_svd

Match = Literal["pairs", "columns", "rows"]
_ROUNDING = 4.0  # singular values below this many eps * max(m, n) of the largest are the product's rounding errors
_CHUNK_NUMBERS = 1 << 25  # of the largest intermediate


def subspace_scores(released: Tensor, gallery: Tensor, *, match: Match = "pairs", gallery_rank: int = 20) -> Tensor:
    r"""Score every pair of a released image and a gallery image; higher: more likely the same person.

    With the released image's singular vectors ``u_i, v_i`` up to its numerical rank, and G the gallery image cut to its
    leading singular values, the score is the share of ``||G||_F^2`` that lies

    * "columns": in the span of the ``u_i``: ``sum_i ||u_i^T G||^2``; 1 for the image that SRA was made of. It says
      nothing where the released image has full row rank, as any noisy image with n >= m has.
    * "rows": in the span of the ``v_i``.
    * "pairs": in the span of the matrices ``u_i v_i^T``: ``sum_i (u_i^T G v_i)^2``. Noise on the singular values keeps
      each pair together, so this stays sharp where both spans are the whole space. Values that were made equal
      (isotonic refinement) mix their pairs, which costs a little accuracy.

    The singular values of the released image are not used: under the published methods they are noise. The match works
    best on the unclipped release; clipping to 8 bits destroys the rank, and with it most of the evidence.

    Args:
        released: (N, m, n) floating point, as released, not clipped.
        gallery: (G, m, n) clean images of the same people, on other pictures than the released ones.
        match: What is compared, see above.
        gallery_rank: Leading singular values of each gallery image that are used, at least 1; fewer if it has fewer.

    Returns:
        (N, G) in [0, 1], dtype of ``released``; 0 for a black image on either side.

    Raises:
        InputError: If shapes do not fit, images are not finite floating point, or an option is out of range.
    """
    _check(released, gallery, match, gallery_rank)
    left, values, right = safe_svd(released)
    tolerance = _ROUNDING * max(released.shape[-2:]) * torch.finfo(released.dtype).eps
    kept = values > tolerance * values[:, :1]  # those beyond an image's numerical rank become zero
    most = max(1, int(kept.sum(1).max()))
    left, right = (part[:, :, :most] * kept[:, None, :most] for part in (left, right.mT))  # (N, m, r), (N, n, r)
    vectors, values, rows = safe_svd(gallery.to(released))
    rank = min(gallery_rank, values.shape[1])
    values, rows = values[:, :rank], rows[:, :rank]
    columns, energy = vectors[:, :, :rank] * values[:, None], values.square().sum(1)
    energy = torch.where(energy > 0, energy, 1)
    scores = released.new_empty(len(released), len(gallery))
    step = max(1, _CHUNK_NUMBERS // (len(released) * left.shape[2] * max(rank, released.shape[2])))
    for start in range(0, len(gallery), step):
        part = slice(start, start + step)
        if match == "columns":
            shares = _projected(left, columns[part])
        elif match == "rows":
            shares = _projected(right, rows[part].mT * values[part, None])
        else:
            # sum_i (u_i^T G v_i)^2 for all pairs, with G = columns rows.
            num, height, pairs = left.shape
            of_columns = columns[part].transpose(0, 1).reshape(height, -1)
            of_rows = rows[part].permute(2, 0, 1).reshape(rows.shape[2], -1)
            products = (left.mT.reshape(num * pairs, height) @ of_columns) * (
                right.mT.reshape(num * pairs, -1) @ of_rows
            )  # (N r, g k)
            shares = products.view(num, pairs, len(columns[part]), -1).sum(3).square().sum(1)
        scores[:, part] = shares / energy[part]
    return scores.clamp_(0, 1)


def identified(scores: Tensor, identities: Tensor, gallery_identities: Tensor) -> Tensor:
    """Tell for each released image whether the best gallery image is of the right person, bool (N,).

    Its mean is the rank-one identification rate; a guess succeeds with the person's share of the gallery. Tied scores
    count as False. Scores are (N, G), higher for more likely.

    Raises:
        InputError: If the shapes do not fit.
    """
    if identities.ndim != 1 or gallery_identities.ndim != 1:
        raise InputError("identities and gallery_identities must be one number per image each.")
    if scores.ndim != 2 or scores.shape != (len(identities), len(gallery_identities)) or 0 in scores.shape:
        sizes = f"{len(identities)} released and {len(gallery_identities)} gallery images"
        raise InputError(f"Scores must be (N, G) for {sizes}, got {tuple(scores.shape)}.")
    best, place = scores.max(dim=1)
    return (gallery_identities[place] == identities) & (best > scores.amin(dim=1))


def _projected(basis: Tensor, vectors: Tensor) -> Tensor:
    """Return ``||basis_a^T vectors_b||_F^2`` for all pairs, (N, g)."""
    num, side, rank = basis.shape
    products = basis.mT.reshape(num * rank, side) @ vectors.transpose(0, 1).reshape(side, -1)
    return products.view(num, rank, len(vectors), -1).square().sum((1, 3))


def _check(released: Tensor, gallery: Tensor, match: str, gallery_rank: int) -> None:
    for name, images in (("released", released), ("gallery", gallery)):
        if images.ndim != 3 or 0 in images.shape or images.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"The {name} images must be floating point (float32 or float64) (N, m, n) with N >= 1, "
                f"got {images.dtype} {tuple(images.shape)}."
            )
        if not bool(images.isfinite().all()):
            raise InputError(f"The {name} images have pixels that are NaN or infinite.")
    if released.shape[1:] != gallery.shape[1:]:
        raise InputError(f"Released images are {tuple(released.shape[1:])}, gallery images {tuple(gallery.shape[1:])}.")
    if match not in ("pairs", "columns", "rows"):
        raise InputError(f"There is no match '{match}': use 'pairs', 'columns' or 'rows'.")
    if gallery_rank < 1:
        raise InputError(f"gallery_rank = {gallery_rank} must be at least 1.")
