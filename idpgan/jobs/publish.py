"""``idpgan publish``: a folder of faces goes out under an epsilon, and the folder's ledger adds up.

The order is charge, read, compute, write. Before the charge only names and headers are read; it is durable before a
pixel is. What is in the files never ends a publication: one that cannot be used is published as a black image, at the
price of any other, and the curator is told on the terminal. The output folder appears as a whole with one rename:
whatever ends the program, there is the release with its charge, or a charge without a release. A restart is a
publication of its own, with fresh noise and a fresh charge; what the dead one had computed is deleted and was shown to
nobody.

Of several processes (`torchrun`) rank 0 does all of this, and the others publish their shares of the images, which it
sends them, each with noise of its own.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from idpgan.data import face_folder
from idpgan.data.declared import shape_of_most
from idpgan.data.image_files import Files, read_files
from idpgan.data.images import LONGEST_CLASS_NAME, make_grid, png_bytes, to_unit
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    check_writable,
    new_folder,
    printable,
    refuse_filled,
    write_bytes_atomic,
    write_text_atomic,
)
from idpgan.memory import check_memory
from idpgan.metrics import images as errors
from idpgan.privacy.folder_ledger import FolderLedger, Publication, Total, chains, ledger_of, total
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Unit, number_to_json
from idpgan.progress import Progress, silent
from idpgan.publish.best import best_method
from idpgan.publish.publisher import Offer, Release, method_info, offer, publish_shares, release
from idpgan.ranks import ALONE, LostRankError, Ranks
from idpgan.release.images import ImagesArtifact
from idpgan.release.outputs import refuse_closed
from idpgan.training.distributed import RanksDifferError

BEST = "best"
REPORT, SHEET = "report.json", "contact.png"
FORMAT = "idpgan publication 1"
SHOWN, COLUMNS = 32, 8  # pairs on the contact sheet; pictures in a row
_SSIM_LEAST = 11  # pixels a side
_BYTES_PER_PIXEL = 24  # while it is published: bytes, float32, and the noisy grid with its noise
_GROUPS = (1, 2, 5, 10)  # images of one person, as examples


@dataclass(frozen=True)
class Order:
    """What is to be published, and how.

    Attributes:
        folder: Images at any depth.
        method: Name of a publisher, or "best": what was best on drawn faces for this unit and epsilon.
        epsilon: Of this publication, per unit.
        unit: What one neighbor changes.
        out: A folder that is absent or empty.
        delta: In [0, 1/N).
        ledger: Of the folder; None = ``NAME.ledger.json`` beside it.
        size: (H, W) of the images, in px; None = that of most headers looked at, which is public then.
        color: Whether the images are color: their channels share epsilon and delta.
        keep_names: Whether names of files and folders are given away; else they are numbered.
        accept_unsound: Needed for a method that proves nothing.
        options: Of the method.
        device: Where images are decomposed and estimated: auto, cpu, cuda or cuda:1. Noise is drawn on the CPU.
    """

    folder: Path
    method: str
    epsilon: float
    unit: str
    out: Path
    delta: float = 0.0
    ledger: Path | None = None
    size: tuple[int, int] | None = None
    color: bool = False
    keep_names: bool = False
    accept_unsound: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def name(self) -> str:
        """Of the folder itself, whatever link leads there."""
        return self.folder.resolve().name

    @property
    def ledger_path(self) -> Path:
        """Where the folder's ledger lies."""
        return self.ledger if self.ledger is not None else ledger_of(self.folder)


@dataclass(frozen=True)
class Quote:
    """What a publication will be, known from names and sizes alone.

    Attributes:
        order: What was asked for.
        offer: The publisher's; its ``method`` is the one behind "best".
        files: Originals, in order.
        names: Of the released files, in the same order.
        shape: (C, H, W).
        before: Publications that stand on the folder's ledger.
        nested: Ledgers of the folders that it lies in or holds.
        total: What all of them and this one cost an image together.
    """

    order: Order
    offer: Offer
    files: tuple[Path, ...]
    names: tuple[str, ...]
    shape: tuple[int, int, int]
    before: tuple[Publication, ...]
    nested: tuple[FolderLedger, ...]
    total: Total

    @property
    def report(self) -> PrivacyReport:
        """The three numbers."""
        return self.offer.report()

    @property
    def largest_folder(self) -> int:
        """Most images that lie in one folder: a person's, where each folder is a person."""
        return max(Counter(path.parent for path in self.files).values())

    def person(self, images: int) -> Guarantee:
        """Return what is proven for a person with so many images."""
        return self.report.proven.for_group(images)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "method": self.offer.method,
            "options": self.offer.options.model_dump(mode="json"),
            "num_images": len(self.files),
            "image_shape": list(self.shape),
            "report": self.report.to_json(),
            "person": {str(k): number_to_json(self.person(k).epsilon) for k in sorted({*_GROUPS, self.largest_folder})},
            "ledger": str(self.order.ledger_path),
            "publications_before": [
                {"method": p.method, "unit": str(p.unit), "epsilon": p.epsilon, "delta": p.delta, "sound": p.sound}
                for p in self.before
            ],
            "nested_ledgers": {str(ledger.path): len(ledger.publications) for ledger in self.nested},
            "total": self.total.to_json(),
        }


def quote(order: Order) -> Quote:
    """Price a publication, and refuse all that can be refused without reading a pixel: what `publish` does first.

    Names of files are listed, and some headers are read for a size and warnings. Nothing is written.

    Raises:
        InputError: If anything of the order cannot be used.
    """
    channels = 3 if order.color else 1
    method = best_method(order.unit, order.epsilon / channels) if order.method == BEST else order.method
    _refuse_method(order, method)
    _refuse_places(order)
    files = face_folder.tree(order.folder)
    shape = shape_of_most(order.folder, files, channels, order.size)
    names = _names(order, files)
    sides = shape[1:] if channels == 1 else shape
    made = offer(
        method,
        len(files),
        sides,
        epsilon=order.epsilon,
        delta=order.delta,
        unit=order.unit,
        options=order.options,
    )
    artifact = ImagesArtifact(len(files), shape, names=names)  # refuses what no release can hold
    check_writable(order.out, sum(artifact.files().values()))
    check_writable(order.ledger_path)
    pixels = len(files) * math.prod(shape)
    check_memory(_BYTES_PER_PIXEL * pixels, f"publishing {len(files):,} images", "Publish a part of the folder.")
    ledger = FolderLedger.read(order.ledger_path, order.name)
    after = ledger.charged(_publication(order, made, len(files)))
    return Quote(order, made, files, names, shape, ledger.publications, *_together(order, after))


def _together(order: Order, ledger: FolderLedger) -> tuple[tuple[FolderLedger, ...], Total]:
    """Return the nested ledgers as they stand now, and the total of the charged ledger with them."""
    found = chains(order.folder, ledger)
    nested = {other.path: other for chain in found for other in chain[1:]}
    return tuple(nested.values()), total(found, Unit(order.unit))


@dataclass(frozen=True)
class Published:
    """A publication that is whole.

    Attributes:
        quote: What it was to be, with the total as it now stands.
        release: The folder to give away.
        curator: The folder that is the curator's alone.
        means: Mean entropy and errors over the images, by name.
    """

    quote: Quote
    release: Path
    curator: Path
    means: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        places = {"release": str(self.release), "curator": str(self.curator)}
        return {**self.quote.to_json(), **places, "curator_only": dict(self.means)}


def publish(order: Order, progress: Progress = silent, ranks: Ranks = ALONE) -> Published:
    """Publish a folder of images: charge, read, compute, write.

    ``ranks`` are the processes that share the images, seen by rank 0; the others `follow`.

    Raises:
        InputError: As `quote`, or if another publication of the folder is running. Nothing is charged then.
        LostRankError: If another process ends. The charge stands, and nothing is published.
        RanksDifferError: If another process runs other code. Likewise.
    """
    device = resolve_device(order.device, "--device")
    if device.type != "cpu" and not ranks.alone:
        raise InputError(f"--device {order.device}: the processes of torchrun publish on the CPU. Leave --device out.")
    quoted = quote(order)
    with FolderLedger.locked(order.ledger_path, order.name) as ledger, new_folder(order.out) as part:
        ledger = ledger.charged(_publication(order, quoted.offer, len(quoted.files)))
        ledger.write()  # the charge: from here on it stands, whatever happens
        # Nested ledgers are read after the charge: of two publications at once the later one's total has both.
        nested, together = _together(order, ledger)
        done = dataclasses.replace(quoted, before=ledger.publications[:-1], nested=nested, total=together)
        originals = _read(done, progress)
        released = _release(done, originals, ranks, device)
        released.write(part / "release", data=order.name if order.keep_names else "images", names=done.names)
        means = _write_curator(part / "curator", done, originals, released, ledger)
    return Published(done, order.out / "release", order.out / "curator", means)


def follow(ranks: Ranks) -> None:
    """Publish the shares that rank 0 sends, as another rank: nothing is read, charged, written or shown here."""
    publish_shares(ranks)


# Before anything is read ---------------------------------------------------------------------------------------


def _refuse_method(order: Order, method: str) -> None:
    """Refuse an unsound method without the user's word, and options where no method is named."""
    if order.method == BEST and order.options:
        raise InputError(
            f"method 'best' takes no options, got {', '.join(order.options)}. Name the method: '{method}'."
        )
    info = method_info(method)
    if info.sound is False and not order.accept_unsound:
        raise InputError(
            f"method '{method}' proves no privacy at all: {info.reason}. To publish with it all the same, give "
            "--accept-unsound; or take a sound method, such as 'best'."
        )


def _refuse_places(order: Order) -> None:
    """Refuse folders that lie in each other, and an output that is there."""
    source, out = order.folder.resolve(), order.out.parent.resolve() / order.out.name
    where = f"--out {order.out}"
    if not order.folder.is_dir():
        raise InputError(f"There is no folder {order.folder}. Name the folder of images.")
    if out == source or out.is_relative_to(source) or source.is_relative_to(out):
        raise InputError(f"{where} and the images in {order.folder} lie in each other. Choose a place beside them.")
    if not out.parent.is_dir():
        raise InputError(f"the folder {order.out.parent} does not exist. Make it first.")
    refuse_closed(order.out, where)
    refuse_filled(order.out)
    path = order.ledger_path
    ledger = path.parent.resolve() / path.name
    if ledger.is_relative_to(out) or ledger.is_relative_to(source):
        raise InputError(f"the ledger {path} lies in what is published or written. Keep it beside: --ledger FILE.")
    if not ledger.parent.is_dir() or ledger.is_dir():
        raise InputError(f"the ledger {path} is to be a file in a folder that exists. Name one with --ledger.")
    refuse_closed(path, f"--ledger {path}")


def _names(order: Order, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the released files: kept but for their endings, or numbered folder by folder."""
    relative = [PurePosixPath(path.relative_to(order.folder).as_posix()) for path in files]
    if order.keep_names:
        if not printable(order.name) or len(order.name) > LONGEST_CLASS_NAME:
            raise InputError(f"the folder's name {order.name[:80]!a} cannot stand in a card. Leave --keep-names out.")
        kept = [str(path.with_suffix(".png")) for path in relative]
        times = Counter(kept)
        for path, name in zip(files, kept, strict=True):
            if times[name] > 1:
                raise InputError(
                    f"{path} and another file would both be {name}. Rename one, or leave --keep-names out."
                )
        return tuple(kept)
    numbers: dict[PurePosixPath, str] = {}
    children: dict[tuple[PurePosixPath, bool], int] = {}  # of a folder: so many folders, so many files

    def number(path: PurePosixPath, is_file: bool) -> str:
        if path not in numbers:
            key = (path.parent, is_file)
            children[key] = children.get(key, 0) + 1
            above = "" if len(path.parts) == 1 else f"{number(path.parent, False)}/"
            numbers[path] = f"{above}{children[key]:04}"
        return numbers[path]

    return tuple(f"{number(path, True)}.png" for path in relative)


def _publication(order: Order, made: Offer, num: int) -> Publication:
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Publication(made.method, made.epsilon, made.delta, num, order.out.name, date, made.plan.events)


# Reading, releasing, writing -----------------------------------------------------------------------------------


def _read(quoted: Quote, progress: Progress) -> Tensor:
    """Return all images, uint8 (N, C, H, W); null records are black."""
    return read_files(Files(quoted.files), quoted.shape, progress=progress)[0].images


def _release(quoted: Quote, originals: Tensor, ranks: Ranks, device: torch.device) -> Release:
    """Publish what is charged."""
    order, made = quoted.order, quoted.offer
    values = to_unit(originals).to(device)
    try:
        released = release(
            values if order.color else values[:, 0],
            made.method,
            epsilon=order.epsilon,
            delta=order.delta,
            unit=order.unit,
            accept_unsound=order.accept_unsound,
            ranks=ranks,
            **order.options,
        )
    except (LostRankError, RanksDifferError) as error:
        raise type(error)(f"{error} Nothing was published, but the charge stands on {order.ledger_path}.") from error
    if released.events != made.plan.events:
        raise ArithmeticError("the publisher's charges are not those that were paid.")
    return dataclasses.replace(released, images=released.images.cpu())


def _write_curator(
    target: Path, quoted: Quote, originals: Tensor, released: Release, ledger: FolderLedger
) -> dict[str, float]:
    """Write what is computed from the originals without noise: the contact sheet and the errors; return their means."""
    pixels = released.to_uint8().reshape(originals.shape)
    columns = {
        "entropy_original": errors.entropy(originals),
        "entropy_released": errors.entropy(pixels),
        "mse": errors.mse(pixels, originals),
        "absolute_error": errors.absolute_error(released.images.reshape(originals.shape), originals),
        "relative_error": errors.relative_error(pixels, originals),  # of what is shown: clipped to bytes
        "histogram_distance": errors.histogram_distance(pixels, originals),
    }
    if min(originals.shape[-2:]) >= _SSIM_LEAST:
        columns["ssim"] = errors.ssim(pixels, originals)
    means = {name: float(values.mean()) for name, values in columns.items()}
    rows = [
        {
            "original": path.relative_to(quoted.order.folder).as_posix(),
            "released": name,
            **{measure: float(values[index]) for measure, values in columns.items()},
        }
        for index, (path, name) in enumerate(zip(quoted.files, quoted.names, strict=True))
    ]
    content = {
        "format": FORMAT,
        "curator_only": "computed from the private images without noise: covered by no epsilon",
        "mean": means,
        "notes": list(released.notes),
        "ledger": {
            "path": str(ledger.path),
            "publications": [publication.to_json() for publication in ledger.publications],
            "total": quoted.total.to_json(),
        },
        "images": rows,
    }
    pairs = torch.stack([originals[:SHOWN], pixels[:SHOWN]], dim=1).flatten(0, 1)
    target.mkdir(mode=PRIVATE_FOLDER)
    sheet = png_bytes(make_grid(pairs, min(len(pairs), COLUMNS)))
    write_bytes_atomic(target / SHEET, sheet, mode=PRIVATE_FILE)
    write_text_atomic(target / REPORT, json.dumps(content, indent=1, allow_nan=False) + "\n", mode=PRIVATE_FILE)
    return means
