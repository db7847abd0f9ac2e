"""Read the images under test, whoever made them: a generator that draws them, or what `data.intake` takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import torch

from idpgan.data.images import Images, numbered_by
from idpgan.data.intake import Range, gathered
from idpgan.errors import DataError, InputError
from idpgan.files import WEIGHTS
from idpgan.models.generator import Generator
from idpgan.progress import Progress, silent

Kind = Literal["generator", "folder", "npz"]


def kind_of(path: Path) -> Kind:
    """Tell what lies at a path, without reading it.

    Raises:
        InputError: If nothing is there, or a file of another kind.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist. Name a run, a release, a folder of images or an npz file.")
    if path.is_dir():
        is_run = (path / "config.toml").is_file() or (path / "release").is_dir()
        return "generator" if is_run or (path / WEIGHTS).is_file() else "folder"
    if not path.is_file():
        raise InputError(
            f"{path} is a pipe, socket or device. Name a run, a release, a folder of images or an npz file."
        )
    if path.suffix == ".npz":
        return "npz"
    if path.name == WEIGHTS:
        return "generator"
    raise InputError(f"{path} is not an npz file. Name a run, a release, a folder of images or an npz file.")


def read_images(
    source: Any,
    image_shape: tuple[int, int, int] | None = None,
    classes: tuple[str, ...] | None = None,
    *,
    num: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    pixel_range: Range = None,
    what: str = "images",
    labeled: bool = True,
    progress: Progress = silent,
) -> Images:
    """Read the images under test, and make sure that they can be compared with a data set, if one is described.

    Args:
        source: A generator: images are drawn, the classes in turn. Or what `gathered` takes: a folder has one folder of
            images per class, named like the class, or unlabeled images; the labels of an npz file without ``classes``
            mean those of the data set (`idpgan.data.labels`).
        image_shape: (C, H, W) of the data set; None takes images of any shape.
        classes: Classes of the data set; none drops all labels, None takes those of the source.
        num, seed, device: How many images are drawn, by which seed, and where.
        pixel_range, what, labeled: See `gathered`.

    Returns:
        The images, on the CPU, with the labels and classes of the data set, or unlabeled.

    Raises:
        InputError: If nothing can be read, or images or labels do not fit the data set. The message names the file.
    """
    is_own_code = isinstance(source, str | os.PathLike)
    if is_own_code and kind_of(Path(source)) == "generator":
        raise InputError(f"{source} holds a generator: load it with idpgan.load_generator, and give that.")
    if isinstance(source, Generator):
        if num < 1:
            raise InputError(f"{num} images are too few to judge a generator by. Ask for more with --num.")
        images = source.to(device).sample_images(num, seed=seed, progress=progress)
    else:
        images = gathered(
            source,
            classes=classes if is_own_code else None,
            pixel_range=pixel_range,
            what=what,
            private=False,
            labeled=labeled and classes != (),
            progress=progress,
        )
    name = str(source) if is_own_code else what
    if image_shape not in (None, images.image_shape):
        raise DataError(
            f"{name}: images have the shape (C, H, W) = {images.image_shape}, but the data set has {image_shape}. "
            "Nothing is resized or converted here."
        )
    if classes is None:
        return images
    return numbered_by(images, classes, name) if images.labels is not None and classes else Images(images.images)
