"""Portraits that lie in a folder with their traits, as `idpgan people` writes it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from idpgan.data.image_files import Files, Shape, read_files
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
