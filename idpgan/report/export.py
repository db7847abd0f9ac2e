"""Synthetic images for others to use: PNG class folders or npz, each with a manifest and the model card."""

from __future__ import annotations

import io
import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idpgan.data.images import to_uint8
from idpgan.errors import InputError
from idpgan.models.checkpoint import load_generator
from idpgan.models.generator import Generator
from idpgan.report.release import CARD, PRIVACY
from idpgan.run import sha256_file, write_bytes_atomic, write_text_atomic
from idpgan.training.samples import png_bytes

MANIFEST = "manifest.json"
_BATCH = 1000


def export_samples(
    source: Path,
    num: int,
    out: Path,
    *,
    labels: Sequence[int] | None = None,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Draw images from a released generator and write them.

    Args:
        source: A run, a release folder or its generator.safetensors.
        num: Number of images, >= 1.
        out: ``FILE.npz`` (images uint8 (N, H, W, C), labels int64 (N,); manifest and card beside it), or a new folder
            (``<class>/000000.png``, or the images themselves where the generator is unconditional).
        labels: Classes to draw, cycled; None = all, equally often.
        seed: Of the latent vectors; None = fresh entropy.
        progress: Called with (images done, images in all).

    Returns:
        The manifest.

    Raises:
        InputError: If an argument cannot be used or ``out`` exists; nothing is written then.
    """
    if num < 1:
        raise InputError(f"--num {num} must be at least 1.")
    if out.exists():
        raise InputError(f"{out} exists already and is not written over. Choose another name or remove it.")
    if not out.parent.is_dir():
        raise InputError(f"the folder {out.parent} does not exist. Make it first.")
    generator = load_generator(source)
    chosen = _labels(generator, num, labels)
    seed = secrets.randbits(63) if seed is None else seed
    manifest = _manifest(source, generator, num, chosen, seed)
    drawn = generator.sample(num, chosen, seed, batch_size=min(num, _BATCH), progress=progress)
    write = _write_npz if out.suffix == ".npz" else _write_folder
    write(out, to_uint8(drawn), chosen, generator, manifest, _release_of(source))
    return manifest


def _labels(generator: Generator, num: int, labels: Sequence[int] | None) -> torch.Tensor | None:
    if labels is None:
        return generator.sample_labels(num)
    if not generator.num_classes:
        raise InputError("--labels was given, but this generator is unconditional. Leave it out.")
    wrong = [label for label in labels if not 0 <= label < generator.num_classes]
    if wrong or not labels:
        raise InputError(f"--labels {wrong or 'is empty'}: classes are 0 .. {generator.num_classes - 1}.")
    return torch.tensor(labels)[torch.arange(num) % len(labels)]


def _release_of(source: Path) -> Path:
    folder = source if source.is_dir() else source.parent
    return folder / "release" if (folder / "release").is_dir() else folder


def _manifest(source: Path, generator: Generator, num: int, labels: torch.Tensor | None, seed: int) -> dict[str, Any]:
    release = _release_of(source)
    privacy = release / PRIVACY
    counts = torch.bincount(labels, minlength=generator.num_classes).tolist() if labels is not None else []
    return {
        "format": "idpgan samples 1",
        "num": num,
        "seed": seed,
        "image_shape": list(generator.image_shape),
        "classes": dict(zip(generator.classes, counts, strict=True)) if counts else {},
        "generator_sha256": sha256_file(release / "generator.safetensors"),
        "privacy": json.loads(privacy.read_text(encoding="utf-8"))["report"] if privacy.is_file() else None,
    }


def _write_npz(
    out: Path,
    images: torch.Tensor,
    labels: torch.Tensor | None,
    generator: Generator,
    manifest: dict[str, Any],
    release: Path,
) -> None:
    arrays: dict[str, Any] = {"images": images.permute(0, 2, 3, 1).numpy()}
    if labels is not None:
        arrays |= {"labels": labels.numpy(), "classes": np.array(generator.classes)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_text_atomic(out.with_suffix(".manifest.json"), json.dumps(manifest, indent=2) + "\n")
    if (release / CARD).is_file():
        write_bytes_atomic(out.with_suffix(f".{CARD}"), (release / CARD).read_bytes())
    write_bytes_atomic(out, buffer.getvalue())  # last: where it lies, its manifest does


def _write_folder(
    out: Path,
    images: torch.Tensor,
    labels: torch.Tensor | None,
    generator: Generator,
    manifest: dict[str, Any],
    release: Path,
) -> None:
    """Fill a hidden folder beside ``out`` and rename it: ``out`` holds all images or does not exist."""
    for name in generator.classes:
        if name != Path(name).name or name.startswith("."):
            raise InputError(f"the class name {name!r} cannot be a folder name. Write an .npz instead.")
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        digits = len(str(len(images) - 1))
        for index, image in enumerate(images):
            folder = part / generator.classes[int(labels[index])] if labels is not None else part
            folder.mkdir(exist_ok=True)
            (folder / f"{index:0{digits}d}.png").write_bytes(png_bytes(image))
        (part / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for name in (CARD, PRIVACY):
            if (release / name).is_file():
                shutil.copyfile(release / name, part / name)
        part.chmod(0o755)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
