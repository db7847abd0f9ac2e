"""Portraits that lie in a folder with their traits, as `idpgan people` writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from idpgan.data.annotations import MASKS, POINTS, POSE, Annotations
from idpgan.data.image_files import Files, Shape, read_files
from idpgan.data.images import Images
from idpgan.data.intake import npz_arrays
from idpgan.data.metadata import METADATA, read_rows
from idpgan.errors import DataError
from idpgan.portraits.traits import COLUMNS, Traits
from idpgan.progress import Progress, silent


def read(root: Path, image_shape: Shape, progress: Progress = silent) -> tuple[Tensor, Traits]:
    """Read portraits, uint8 (N, C, H, W), and the traits that each was drawn by, float32 (N,) each.

    Args:
        root: The folder; rows of its table without a file are left out.
        image_shape: (C, H, W) in px that all have.

    Raises:
        DataError: If the table lacks a trait, or an image is damaged or has another size.
    """
    again = "Draw a folder anew: idpgan people PORTRAITS"
    table = read_rows(root, COLUMNS, f"{root} is no folder of portraits with their traits. {again}")
    there = [index for index, path in enumerate(table.paths) if path.exists()]
    if not there:
        raise DataError(f"{root} holds none of the portraits that {METADATA} names. {again}.")
    images, refused = read_files(
        Files(tuple(table.paths[index] for index in there)), image_shape, progress=progress, private=False
    )
    for file in refused:
        raise DataError(file.reason)
    try:
        columns = [torch.tensor([float(column[index]) for index in there]) for column in table.values]
    except ValueError as error:
        raise DataError(f"{root / METADATA}: a trait is no number ({error}). {again}.") from error
    traits = dict(zip(COLUMNS, columns, strict=True))
    if odd := next((name for name, column in traits.items() if not bool(column.isfinite().all())), None):
        raise DataError(f"{root / METADATA}: the trait '{odd}' has a number that is not finite. {again}.")
    return images.images, traits


def annotated(root: Path, public: Tensor) -> Annotations | None:
    """Return where the parts of public pictures lie, as `idpgan people --landmarks` wrote it; None where it did not.

    Args:
        root: The folder of the portraits.
        public: Some of them in any order, uint8 (N, C, H, W); each is known by its pixels.

    Raises:
        DataError: If the file is damaged, or lacks one of them.
    """
    if not (root / MASKS).is_file():
        return None
    stored = npz_arrays(root / MASKS, {name: (name,) for name in ("file_name", *Annotations._fields)})
    names = stored.pop("file_name", np.array([])).astype(str).flatten().tolist()
    num, side = len(names), public.shape[2:]
    wanted = {"landmarks": ("f4", num, len(POINTS), 2), "masks": ("u1", num, *side), "pose": ("f4", num, len(POSE))}
    kinds = {name: (values.dtype.str[1:], *values.shape) for name, values in stored.items()}
    images, _ = read_files(Files(tuple(root / name for name in names)), (public.shape[1], *side), private=False)
    at = {digest: row for row, digest in enumerate(images.digests())}
    index = [at.get(digest, -1) for digest in Images(public).digests()]
    if kinds != wanted or min(index) < 0 or not all(np.isfinite(values).all() for values in stored.values()):
        raise DataError(
            f"{root / MASKS} does not say where the parts of all {len(public):,} public portraits lie. Draw the folder "
            f"anew (idpgan people --landmarks), or take {MASKS} away."
        )
    return Annotations(*(torch.from_numpy(stored[name])[index] for name in Annotations._fields))
