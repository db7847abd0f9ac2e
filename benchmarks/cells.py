"""Cells of a benchmark's table: kept under the hash of their config and read back, so that a table can be restarted."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import idpgan
from idpgan import trainer
from idpgan.data.declared import shape_of_most
from idpgan.data.image_files import Files, read_files
from idpgan.data.images import to_unit
from idpgan.data.sources import face_folder
from idpgan.training.config import RunConfig

ORL = (40, 10, 112, 92)  # people, images each, height, width
PACKAGE = Path(idpgan.__file__).parent


def read_or_measure(
    cell: dict[str, Any], measure: Callable[[int], dict[str, Any]], code: str, folder: Path, *, any_code: bool = False
) -> dict[str, Any]:
    """Return a cell's row, from its file in a folder if the same code wrote one, and print it.

    Args:
        cell: The config, JSON values.
        measure: Computes the row's numbers from a noise seed that follows from the config.
        code: Hash of the source that the numbers come from; see `code_digest`.
        any_code: Whether the cells of other code are read too.
    """
    identity = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()
    path = folder / f"{identity[:16]}.json"
    row = json.loads(path.read_text()) if path.exists() else {}
    if not row or (row["code"] != code and not any_code):
        row = {**cell, **measure(int(identity[:8], 16)), "threads": torch.get_num_threads()}
        row |= {"load": round(os.getloadavg()[0], 1), "code": code}
        write_atomic(path, json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return row


def finish(config: RunConfig, path: Path, data_root: Path | None) -> None:
    """Train a config in ``path``: from the start, from where it was interrupted, or not at all if it is done."""
    if not (path / "config.toml").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        trainer.start(config, path)
    elif not (path / "release" / "privacy.json").exists():
        trainer.resume(path, data_root)


def code_digest(files: Iterable[Path]) -> str:
    """Return a hash of source files."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that an interrupted run leaves the old one or none."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def spread(rows: list[dict[str, Any]], number: str) -> tuple[float, float] | None:
    """Return mean and standard deviation over the seeds that have the number; None if none has."""
    values = [row[number] for row in rows if row.get(number) is not None]
    return (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0) if values else None


def load_orl(root: Path | None) -> tuple[Tensor, Tensor]:
    """Return ORL's images, float32 (400, 112, 92) in [0, 1], person after person, and their identities."""
    if root is None:
        raise SystemExit("--data-root is needed for the set 'orl': the folder that holds orl_faces/s1/1.pgm ...")
    from PIL import Image

    people, each = ORL[:2]
    files = [root / "orl_faces" / f"s{person + 1}" / f"{image + 1}.pgm" for person, image in np.ndindex(people, each)]
    images = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])
    return images.float() / 255, torch.arange(people).repeat_interleave(each)


def load_people(root: Path) -> tuple[Tensor, Tensor]:
    """Return the grey images of a face database, float32 (N, H, W) in [0, 1], person after person, and who they are.

    Any layout of `face-folder`; images of another size than the commonest, and unusable files, are left out.
    """
    paths = [(path, person) for person, own in enumerate(face_folder.scan(root).values()) for path in own]
    files = tuple(path for path, _ in paths)
    read, _ = read_files(Files(files), shape_of_most(root, files, 1))
    kept = ~read.is_null
    return to_unit(read.images[kept, 0]), torch.tensor([person for _, person in paths])[kept]


def parse_sets(texts: Sequence[str], known: Iterable[str], drawn: bool, root: Path | None) -> dict[str, Path | None]:
    """Return the folder of each set of ``--sets NAME=DIR NAME``; None where it is drawn, which has to be asked for.

    Raises:
        SystemExit: If a set is unknown, its folder is not there, or it would be drawn without ``--drawn``.
    """
    sets: dict[str, Path | None] = {}
    for text in texts:
        name, _, folder = text.partition("=")
        if name not in known:
            raise SystemExit(f"--sets {text}: there is no set '{name}'. Known: {', '.join(known)}.")
        if folder and not Path(folder).is_dir():
            raise SystemExit(f"--sets {text}: there is no folder {folder}.")
        if not folder and name == "orl" and root is not None:
            folder = str(root / "orl_faces")
        if not folder and not drawn:
            raise SystemExit(f"--sets {name}: name the folder of this set, {name}=DIR, or draw faces: --drawn.")
        sets[name] = Path(folder) if folder else None
    return sets


def data_digest(images: Tensor) -> str:
    """Return a hash of the images."""
    return hashlib.sha256(images.numpy().tobytes()).hexdigest()[:16]
