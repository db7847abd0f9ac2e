"""Synthetic images for others to use: PNG class folders or npz, each with a manifest and a card of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idpgan.data.annotations import MASKS, Annotations, arrays_of, write_annotations
from idpgan.data.images import png_bytes, to_uint8
from idpgan.data.labels import are_ambiguous, numbers, position_of
from idpgan.data.metadata import FILE_NAME, LABEL, LANDMARKS, MANIFEST, METADATA, SAMPLES, written
from idpgan.device import GIB, free_memory, resolve_device
from idpgan.errors import InputError
from idpgan.files import (
    MOST_TEXT_BYTES,
    check_writable,
    json_text,
    new_file,
    new_folder,
    parse_json,
    read_plain,
    refuse_existing,
    sha256_file,
    write_bytes_atomic,
)
from idpgan.models.checkpoint import find_weights
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.progress import Progress, silent
from idpgan.release.contained import KEY, contained_in
from idpgan.release.folder import CARD, images_of, refuse_place, render_card
from idpgan.release.generator import open_generator
from idpgan.release.mark import KEY as MARK
from idpgan.release.mark import DigitalSource, Mark, of_public, together
from idpgan.release.signature import Signer
from idpgan.release.verify import Opened
from idpgan.version import made_with

SOFT_LABELS = "soft_labels.csv"  # in an export to a folder
FORMAT = f"{SAMPLES} 2"
BESIDE = (MANIFEST, CARD)  # beside an npz file, or in the folder
_BATCH = 1000
_BYTES_PER_NUMBER = 8  # float32, uint8, and what is made of it
_FILE_SUFFIXES = frozenset(
    [".csv", ".gif", ".jpeg", ".jpg", ".json", ".npy", ".png", ".safetensors", ".tif", ".tiff", ".txt", ".webp", ".zip"]
)
_LONGEST_NAME = 60  # characters of a folder's name: at most 240 bytes
_UNSAFE = re.compile(r'^[\s.=+\-@~]|[\x00-\x1f<>:"/\\|?*]|[\s.]$')
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?")  # on Windows
_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class _Drawn:
    """The images and labels to write."""

    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor | None  # int64 (N,)
    classes: tuple[str, ...]
    probabilities: Tensor | None  # (N, K)
    manifest: bytes
    card: bytes | None
    mark: Mark | None  # of all together
    sources: Sequence[DigitalSource | None] = ()  # what made each, where they are marked
    annotations: Annotations | None = None

    def marked(self, index: int, png: bytes) -> bytes:
        """Return the PNG of an image with its own mark; a public picture as it was has none."""
        source = None if self.mark is None else self.sources[index]
        return png if self.mark is None or source is None else dataclasses.replace(self.mark, source=source).on(png)


def export_samples(
    source: Path,
    num: int,
    out: Path,
    *,
    labels: Sequence[int] | str | None = None,
    seed: int | None = None,
    soft_labels: bool = False,
    landmarks: bool = False,
    purpose: str = Purpose.LOOKING,
    device: str = "cpu",
    module: Any = None,
    marked: bool = True,
    signer: Signer | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Draw images from a released generator, write them, all of them or none, and return the manifest.

    Args:
        source: A run, a release folder or its generator.safetensors.
        num: Number of images, >= 1.
        out: ``FILE.npz`` (images uint8 (N, H, W, C), labels int64 (N,) by number; manifest and card beside it), or a
            new folder (``<class>/000000.png``, or the images themselves where the generator is unconditional, and
            metadata.csv).
        labels: Classes to draw, cycled: numbers, or one text of names and numbers between commas (see `parse_labels`);
            None = all, equally often.
        seed: Of the latent vectors; None = fresh entropy.
        soft_labels: Also write the probability that the generator's teacher gives each class: the array
            ``probabilities`` (N, K) of an .npz, or the file ``soft_labels.csv`` of a folder.
        landmarks: Also write where the parts of moved or drawn portraits lie, as `idpgan people` does: arrays of an
            .npz, or ``landmarks.csv`` and ``masks.npz`` of a folder. Of an image of the law alone nothing is known.
        purpose: What the images are for, which says how widely they are drawn; see `Drawing.truncation`.
        device: Where images are drawn.
        module: The code of a generator that is its makers' own; see `idpgan.load_generator`.
        marked: Whether files say in a form for machines that the images are artificial; see `idpgan.release.mark`.
        signer: What signs the PNGs of a folder; see `idpgan.release.signature`.

    Raises:
        InputError: If an argument cannot be used, the release was changed, or anything that is to be written exists;
            nothing is written then.
    """
    if purpose not in list(Purpose):
        raise InputError(f"--for {purpose} is unknown: {', '.join(Purpose)}.")
    where = resolve_device(device, "--device", float64=False)
    check_writable(out)
    if num < 1:
        raise InputError(f"--num {num} must be at least 1.")
    if signer is not None and _is_npz(out):
        raise InputError(f"--sign is for pictures, and an .npz file has none. Name a folder: --out {out.stem}.")
    _refuse_place(out, source)
    generator, release = open_generator(source, module)
    generator = generator.to(where)
    _refuse_memory(generator, num)
    chosen = _positions(generator, num, labels)
    if soft_labels and generator.teacher is None:
        raise InputError(
            f"--soft-labels: {source} has no teacher that could give them. Train with method.teacher_share above 0, or "
            "leave them out."
        )
    if landmarks and not generator.annotated:
        raise InputError(
            f"--landmarks: {source} holds none. Train with portraits of idpgan people --landmarks, or leave it out."
        )
    seed, card = secrets.randbits(63) if seed is None else seed, None
    manifest = _manifest(find_weights(source), release, generator, num, chosen, seed)
    names = None if chosen is None else [generator.classes[place] for place in chosen.tolist()]
    with _noted(generator, landmarks) as (public, parts):
        pixels = to_uint8(
            generator.sample(num, names, seed, batch_size=min(num, _BATCH), progress=progress, purpose=Purpose(purpose))
        )
    run = None if release is None else release.settings.run
    kinds = DigitalSource.TRAINED, of_public(generator.config, formula=bool(run and run.data.public))
    sources = [kinds[shown] for shown in public]
    made_by = together(sources)
    mark = Mark(made_by, made_with(), manifest["generator_sha256"], signer) if marked and made_by else None
    manifest[MARK] = mark and mark.to_json()
    if generator.config.drawn.truncation is not None:  # only there does the purpose make a difference
        manifest["purpose"] = str(purpose)
    if release is not None:
        described = release.artifact.describe()
        mixed = len(set(sources)) > 1
        shown = {"num": num, "folder": not _is_npz(out), "mark": mark and mark.source, "mixed": mixed} | {
            key: described[key] for key in ("image_shape", "classes")
        }
        card = render_card(release.stated, release.settings, "samples", shown).encode()
    told = generator.teacher.probabilities(pixels).cpu() if soft_labels and generator.teacher is not None else None
    known = Annotations(*map(torch.cat, zip(*parts, strict=True))) if parts else None
    drawn = _Drawn(pixels, chosen, generator.classes, told, json_text(manifest).encode(), card, mark, sources, known)
    (_write_npz if _is_npz(out) else _write_folder)(out, drawn)
    return manifest


@contextlib.contextmanager
def _noted(generator: Generator, landmarks: bool) -> Iterator[tuple[list[bool], list[Annotations]]]:
    """Yield which of the images that are drawn are public pictures, and where their parts lie, if that is asked for."""
    public, parts = list[bool](), list[Annotations]()

    def note(model: Any, latent: Any, _: Tensor) -> None:
        public.extend(model.shows_public(latent[0])[:: model.candidates].tolist())  # in this all candidates are alike
        if landmarks:
            parts.append(Annotations(*(part[:: model.candidates] for part in model.annotations(*latent))))

    with generator.register_forward_hook(note):
        yield public, parts


# Refusals before anything is drawn ------------------------------------------------------------------------------


def _refuse_place(out: Path, source: Path) -> None:
    """Refuse to write over anything, and a folder that looks like a file."""
    for path in (out, *(_beside(out, name) for name in BESIDE)):
        if os.path.lexists(path) or path == out:
            refuse_existing(path)
    refuse_place(out, f"--out {out}", images_of(source))
    if out.suffix.lower() in _FILE_SUFFIXES:
        raise InputError(
            f"--out {out} looks like a {out.suffix} file, but images are written as an .npz file or as a folder of "
            f"PNGs. Name it {out.with_suffix('.npz').name} or {out.stem}."
        )


def manifest_of(out: Path) -> Path:
    """Return where the manifest of exported images lies."""
    return _beside(out, MANIFEST)


def card_of(out: Path) -> Path:
    """Return where the card of exported images lies."""
    return _beside(out, CARD)


def purpose_of(source: Path) -> str:
    """Return what images were drawn for, as the manifest of an export says; empty if nothing says it."""
    path = manifest_of(source)
    try:
        manifest = parse_json(read_plain(path, MOST_TEXT_BYTES, follow=True)) if path.is_file() else None
    except ValueError:  # a folder of images may have a manifest of another program
        return ""
    return str(manifest.get("purpose", "")) if isinstance(manifest, dict) else ""


def _beside(out: Path, name: str) -> Path:
    """Return where manifest or card lies: beside an npz file, or in the folder."""
    return out.with_suffix(f".{name}") if _is_npz(out) else out / name


def _is_npz(out: Path) -> bool:
    return out.suffix.lower() == ".npz"


def _refuse_memory(generator: Generator, num: int) -> None:
    per_image = math.prod(generator.image_shape) * _BYTES_PER_NUMBER
    free = free_memory()
    if free is not None and num * per_image > free:
        raise InputError(
            f"--num {num:,} needs {num * per_image / GIB:,.1f} GiB of memory, and {free / GIB:,.1f} GiB are free: "
            f"at most {free // per_image:,} images at once. Draw fewer, several times, each with another --seed."
        )


def folder_names(classes: Sequence[str]) -> list[str]:
    """Return a name for the folder of each class that every system can unpack; metadata.csv has the true ones."""
    taken, names = {*map(str.lower, (*BESIDE, METADATA, SOFT_LABELS, LANDMARKS, MASKS))}, list[str]()
    for name in classes:
        safe = _UNSAFE.sub("_", name[:_LONGEST_NAME])
        safe = f"_{safe}" if _RESERVED.fullmatch(safe.lower()) else safe
        wanted, number = safe, 2
        while unicodedata.normalize("NFKC", wanted).casefold() in taken:
            wanted, number = f"{safe}_{number}", number + 1
        taken.add(unicodedata.normalize("NFKC", wanted).casefold())
        names.append(wanted)
    return names


def parse_labels(text: str, classes: Sequence[str]) -> list[int]:
    """Return the positions of the classes that a text like ``"cat, dog"`` or ``"3,5"`` asks for.

    Each part between commas is the name of a class, or else its number (`idpgan.data.labels`). Names may contain commas
    ("glasses, no smiling"): the longest name that fits wins.

    Raises:
        InputError: If a part is neither.
    """
    names = {_parts(name): place for place, name in enumerate(classes)}
    longest, parts = max(map(len, names), default=1), _parts(text)
    positions, start = [], 0
    while start < len(parts):
        fitting = [parts[start : start + n] for n in range(1, longest + 1) if parts[start : start + n] in names]
        part = parts[start]
        number = int(part) if _NUMBER.fullmatch(part) else part
        positions.append(names[fitting[-1]] if fitting else position_of(number, classes, "--labels"))
        start += len(fitting[-1]) if fitting else 1
    return positions


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _positions(generator: Generator, num: int, labels: Sequence[int] | str | None) -> Tensor | None:
    if labels is None:
        return generator.positions(num)
    if not generator.num_classes:
        raise InputError("--labels was given, but this generator is unconditional. Leave it out.")
    if not labels and not isinstance(labels, str):
        raise InputError("--labels is empty. Name a class, or leave it out.")
    chosen = (
        parse_labels(labels, generator.classes)
        if isinstance(labels, str)
        else [position_of(label, generator.classes, "--labels") for label in labels]
    )
    return torch.tensor(chosen)[torch.arange(num) % len(chosen)]


# What is written -----------------------------------------------------------------------------------------------


def release_of(source: Path) -> Path:
    """Return the release folder of a run, of itself, or of a file in it."""
    folder = source if source.is_dir() else source.parent
    return folder / "release" if (folder / "release").is_dir() else folder


def _manifest(
    weights: Path,
    release: Opened | None,
    generator: Generator,
    num: int,
    labels: Tensor | None,
    seed: int,
) -> dict[str, Any]:
    counts = torch.bincount(labels, minlength=generator.num_classes).tolist() if labels is not None else []
    contained = () if release is None else contained_in(release.stated, release.settings)
    return {
        "format": FORMAT,
        "num": num,
        "seed": seed,
        "image_shape": list(generator.image_shape),
        "classes": dict(zip(generator.classes, counts, strict=True)) if counts else {},
        "generator_sha256": sha256_file(weights),
        "privacy": None if release is None else release.stated.report.to_json(),
        KEY: [each.model_dump(mode="json") for each in contained],
    }


def _write_npz(out: Path, drawn: _Drawn) -> None:
    arrays: dict[str, Any] = {"images": drawn.images.permute(0, 2, 3, 1).numpy()}
    if drawn.labels is not None:
        called = torch.tensor(numbers(drawn.classes))
        arrays |= {"labels": called[drawn.labels].numpy(), "classes": np.array(drawn.classes)}
        if called.tolist() != list(range(len(called))) or are_ambiguous(drawn.classes):
            arrays["positions"] = drawn.labels.numpy()  # nobody can take one for the other
    if drawn.probabilities is not None:
        arrays["probabilities"] = drawn.probabilities.float().numpy()
    if drawn.mark is not None:
        uris = [source.uri if source else "" for source in drawn.sources]
        arrays["digital_source_type"] = np.array(uris if len(set(uris)) > 1 else uris[0])
    if drawn.annotations is not None:
        arrays |= arrays_of(drawn.annotations)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    with contextlib.ExitStack() as claimed:  # after a signal or on a full disk none of them remains
        for name, content in _texts(drawn).items():
            claimed.enter_context(new_file(_beside(out, name)))
            write_bytes_atomic(_beside(out, name), content)
        refuse_existing(out)
        try:
            write_bytes_atomic(out, buffer.getvalue())  # written last: where the npz file exists, its manifest does
        except BaseException:
            out.unlink(missing_ok=True)  # of whoever claimed its manifest
            raise


def _texts(drawn: _Drawn) -> dict[str, bytes]:
    """Return manifest and card by name."""
    return {MANIFEST: drawn.manifest} | ({} if drawn.card is None else {CARD: drawn.card})


def _write_folder(out: Path, drawn: _Drawn) -> None:
    """Fill a hidden folder beside ``out`` and rename it: ``out`` holds all images or does not exist."""
    with new_folder(out) as part:
        digits = len(str(len(drawn.images) - 1))
        names, folders = [], folder_names(drawn.classes)
        for index, image in enumerate(drawn.images):
            folder = part / folders[int(drawn.labels[index])] if drawn.labels is not None else part
            folder.mkdir(exist_ok=True)
            path = folder / f"{index:0{digits}d}.png"
            path.write_bytes(drawn.marked(index, png_bytes(image)))
            names.append(path.relative_to(part).as_posix())
        labels = [] if drawn.labels is None else [[drawn.classes[number]] for number in drawn.labels.tolist()]
        header = [FILE_NAME, LABEL] if labels else [FILE_NAME]
        rows = [[name, *label] for name, label in zip(names, labels or [[]] * len(names), strict=True)]
        (part / METADATA).write_bytes(written(header, rows).encode())
        if drawn.probabilities is not None:
            shares = zip(names, drawn.probabilities.tolist(), strict=True)
            rows = [[name, *(f"{share:.6g}" for share in row)] for name, row in shares]
            (part / SOFT_LABELS).write_bytes(written([FILE_NAME, *drawn.classes], rows, end="\r\n").encode())
        if drawn.annotations is not None:
            write_annotations(part, names, drawn.annotations)
        for name, content in _texts(drawn).items():
            (part / name).write_bytes(content)
