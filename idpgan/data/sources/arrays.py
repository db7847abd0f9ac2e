"""`arrays`: images that were in memory, as `idpgan.fit` takes them, kept in one file of tensors for a run to read.

    images   uint8 (N, C, H, W)
    labels   int64 (N,), positions in `data.classes`; absent where these are []
    people   int64 (N,), who is on each image; absent where nobody said so
    null     bool (N,), positions that hold the null record; absent where none does

`intake.gathered` makes the images that are written. A label that is none of the classes makes a null record. All images
are for training; the set brings no test images.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from idpgan.data.config import DataConfig
from idpgan.data.declared import own_root, shown
from idpgan.data.images import Images
from idpgan.data.source import DataSet, PublicFacts, Source, in_memory
from idpgan.errors import ConfigError, DataError, InputError
from idpgan.files import PRIVATE_FILE

SUFFIX = ".safetensors"


def find(config: DataConfig) -> DataSet | None:
    """Compare the declared keys with the file's header; return None if the file is missing. No pixel is read."""
    path = own_root(config, "tensors")
    if not path.is_file():
        return None
    with _as_written(path), safe_open(path, "pt") as file:
        num, channels, height, width = file.get_slice("images").get_shape()
        people = file.get_tensor("people") if "people" in file.keys() else None  # noqa: SIM118  # not a mapping
        labeled = "labels" in file.keys()  # noqa: SIM118
    counts = () if people is None else tuple(torch.unique(people, return_counts=True)[1].tolist())
    actual: dict[str, object] = {"num_images": num, "channels": channels}
    actual |= {"num_people": len(counts)} if counts else {}
    for key, value in actual.items():
        if getattr(config, key) != value:
            declared = getattr(config, key)
            raise DataError(
                f"data.{key} = {shown(declared) if declared is not None else 'nothing'}, but {path} holds {value}. "
                f"Declare data.{key} = {value}, if that is right."
            )
    if config.classes is None or bool(config.classes) != labeled:
        raise ConfigError(
            f"data.classes must be declared for data.name = 'arrays', and {path} has {'' if labeled else 'no '}labels: "
            "name the classes in the order of the labels, or set []."
        )
    facts = PublicFacts(num, 0, (channels, height, width), config.classes, people=counts)
    return DataSet(facts, lambda progress: in_memory(read_file(path, config.classes or ())).load(progress))


def read_file(path: Path, classes: Sequence[str]) -> Images:
    """Return the images of a file; a label that is none of the classes makes a null record."""
    with _as_written(path):
        tensors = load_file(path)
        labels = tensors.get("labels") if classes else None
        outside = None if labels is None else (labels < 0) | (labels >= len(classes))
        labels = labels if labels is None or outside is None else labels.masked_fill(outside, 0)
        images = Images(tensors["images"], labels, tuple(classes) if labels is not None else (), tensors.get("people"))
    nulls = [null for null in (outside, tensors.get("null")) if null is not None]
    return images.zeroed_out(torch.stack(nulls).any(0)) if nulls and bool(torch.stack(nulls).any()) else images


def read_public(path: Path) -> Images:
    """Return public images and their classes; their null records are left out."""
    return read_file(path, classes_of(path)).existing(least=1)


def classes_of(path: Path) -> tuple[str, ...]:
    """Return the names of the classes that a file says, none for unlabeled images."""
    with _as_written(path), safe_open(path, "pt") as file:
        return tuple(map(str, json.loads((file.metadata() or {}).get("classes", "[]"))))


@contextlib.contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Refuse a file that `write` has not written, whatever fails while it is read."""
    try:
        yield
    except DataError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a file of images as idpgan.fit writes it ({error}). Name another.") from error


def write(path: Path, images: Images) -> None:
    """Write images to a new file that only its owner can read.

    Raises:
        InputError: If another process has made a file of that name.
    """
    tensors = {"images": images.images, "labels": images.labels, "people": images.identities, "null": images.null}
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    except FileExistsError as error:
        raise InputError(f"{path} is there: another process may be using that name. Choose another for out.") from error
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, path, metadata={"classes": json.dumps(images.classes)})
    path.chmod(PRIVATE_FILE)


SOURCE = Source(find, "There is no file {root} of images as idpgan.fit writes it. Name another.")
