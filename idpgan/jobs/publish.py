"""``idpgan publish``: a folder of faces is released under an epsilon, and the folder's ledger adds up all publications.

The order of steps and the output folders are those of `idpgan.jobs.pipeline`. A restart is a new publication, with
fresh noise.

With several processes (`torchrun`) rank 0 does all of this. It sends the other ranks their shares of the images, and
each rank publishes its share with noise of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from idpgan.data import face_folder
from idpgan.data.declared import shape_of_most
from idpgan.data.images import LONGEST_CLASS_NAME, to_unit
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.files import printable
from idpgan.host import own_state
from idpgan.jobs.options import PublishOptions
from idpgan.jobs.pipeline import charged, check_room, expense, read_images, refuse_places, write_curator
from idpgan.memory import check_memory
from idpgan.metrics import images as errors
from idpgan.privacy.folder_ledger import FolderLedger, Publication, Total, chains, total
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Unit, number_to_json
from idpgan.privacy.noise import Noise
from idpgan.progress import Progress, silent
from idpgan.publish.best import best_method
from idpgan.publish.plan import PublicationPlan, method_info, offer
from idpgan.publish.publisher import Release, publish_shares, release_planned
from idpgan.ranks import ALONE, LostRankError, Ranks
from idpgan.release.images import ImagesArtifact
from idpgan.training.distributed import RanksDifferError

BEST = "best"
FORMAT = "idpgan publication 1"
_SSIM_LEAST = 11  # least pixels per side for SSIM
_BYTES_PER_PIXEL = 24  # memory during publication: bytes, float32, and the noisy grid with its noise
_GROUPS = (1, 2, 5, 10)  # example numbers of images of one person


@dataclass(frozen=True)
class Quote:
    """What a publication will be, known from names and sizes alone.

    Attributes:
        options: What was asked for.
        plan: What is released; its ``method`` is the one behind "best".
        files: Originals, in order.
        names: Of the released files, in the same order.
        shape: (C, H, W).
        before: Publications that stand on the folder's ledger.
        nested: Ledgers of the folders that it lies in or holds.
        total: What all of them and this one cost an image together.
    """

    options: PublishOptions
    plan: PublicationPlan
    files: tuple[Path, ...]
    names: tuple[str, ...]
    shape: tuple[int, int, int]
    before: tuple[Publication, ...]
    nested: tuple[FolderLedger, ...]
    total: Total

    @property
    def report(self) -> PrivacyReport:
        """The three numbers."""
        return self.plan.report()

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
            "method": self.plan.method,
            "options": self.plan.options.model_dump(mode="json"),
            "num_images": len(self.files),
            "image_shape": list(self.shape),
            "report": self.report.to_json(),
            "person": {str(k): number_to_json(self.person(k).epsilon) for k in sorted({*_GROUPS, self.largest_folder})},
            "ledger": str(self.options.ledger_path),
            "publications_before": [
                {"method": p.method, "unit": str(p.pair[0]), "epsilon": p.epsilon, "delta": p.delta, "sound": p.sound}
                for p in self.before
            ],
            "nested_ledgers": {str(ledger.path): len(ledger.publications) for ledger in self.nested},
            "total": self.total.to_json(),
        }


@own_state()
def quote(options: PublishOptions) -> Quote:
    """Price a publication, and refuse all that can be refused without reading a pixel: what `publish` does first.

    Names of files are listed, and some headers are read for a size and warnings. Nothing is written.

    Raises:
        InputError: If anything of the options cannot be used.
    """
    channels = 3 if options.color else 1
    named = options.method != BEST
    method = options.method if named else best_method(options.unit, options.epsilon / channels)
    if options.settings and not named:
        raise InputError(
            f"method 'best' takes no options, got {', '.join(options.settings)}. Name the method: '{method}'."
        )
    info = method_info(method)
    if info.sound is False and not options.accept_unsound:
        raise InputError(
            f"method '{method}' proves no privacy at all: {info.reason}. To publish with it all the same, give "
            "--accept-unsound; or take a sound method, such as 'best'."
        )
    refuse_places(
        options,
        elsewhere="Choose a place beside them.",
        inside="lies in what is published or written. Keep it beside: --ledger FILE.",
        nowhere="is to be a file in a folder that exists. Name one with --ledger.",
    )
    files = face_folder.tree(options.folder)
    shape = shape_of_most(options.folder, files, channels, options.sides)
    names = _names(options, files)
    made = offer(
        method,
        len(files),
        shape if options.color else shape[1:],
        epsilon=options.epsilon,
        delta=options.delta,
        unit=options.unit,
        options=options.settings,
    )
    check_room(options, ImagesArtifact(len(files), shape, names=names))  # refuses what no release can hold
    pixels = len(files) * math.prod(shape)
    check_memory(_BYTES_PER_PIXEL * pixels, f"publishing {len(files):,} images", "Publish a part of the folder.")
    ledger = FolderLedger.read(options.ledger_path, options.name)
    after = ledger.charged(_expense(options, made, len(files)))
    return Quote(options, made, files, names, shape, ledger.publications, *_together(options, after))


def _expense(options: PublishOptions, plan: PublicationPlan, num: int) -> Publication:
    return expense(options, plan.method, num, plan.price.events, plan.epsilon, plan.delta)


def _together(options: PublishOptions, ledger: FolderLedger) -> tuple[tuple[FolderLedger, ...], Total]:
    """Return the nested ledgers as they stand now, and the total of the charged ledger with them."""
    found = chains(options.folder, ledger)
    nested = {other.path: other for chain in found for other in chain[1:]}
    return tuple(nested.values()), total(found, Unit(options.unit))


def _names(options: PublishOptions, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the released files: kept but for their endings, or numbered folder by folder."""
    relative = [PurePosixPath(path.relative_to(options.folder).as_posix()) for path in files]
    if options.keep_names:
        if not printable(options.name) or len(options.name) > LONGEST_CLASS_NAME:
            raise InputError(f"the folder's name {options.name[:80]!a} cannot stand in a card. Leave --keep-names out.")
        kept = [str(path.with_suffix(".png")) for path in relative]
        times = Counter(kept)
        for path, name in zip(files, kept, strict=True):
            if times[name] > 1:
                raise InputError(
                    f"{path} and another file would both be {name}. Rename one, or leave --keep-names out."
                )
        return tuple(kept)
    numbers: dict[PurePosixPath, str] = {}
    children: dict[tuple[PurePosixPath, bool], int] = {}  # numbers of folders and of files in each folder

    def number(path: PurePosixPath, is_file: bool) -> str:
        if path not in numbers:
            key = (path.parent, is_file)
            children[key] = children.get(key, 0) + 1
            above = "" if len(path.parts) == 1 else f"{number(path.parent, False)}/"
            numbers[path] = f"{above}{children[key]:04}"
        return numbers[path]

    return tuple(f"{number(path, True)}.png" for path in relative)


@dataclass(frozen=True)
class Published:
    """A complete publication.

    Attributes:
        quote: Its quote, with the total as it now stands.
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


@own_state()
def publish(options: PublishOptions, progress: Progress = silent, ranks: Ranks = ALONE) -> Published:
    """Publish a folder of images: charge, read, compute, write.

    ``ranks`` are the processes that share the images, seen by rank 0; the others `follow`.

    Raises:
        InputError: As `quote`, or if another publication of the folder is running. Nothing is charged then.
        LostRankError: If another process ends. The charge stands, and nothing is published.
        RanksDifferError: If another process runs other code. Likewise.
    """
    device = resolve_device(options.device, "--device")
    if device.type != "cpu" and not ranks.alone:
        raise InputError(
            f"--device {options.device}: the processes of torchrun publish on the CPU. Leave --device out."
        )
    quoted = quote(options)
    with charged(options, _expense(options, quoted.plan, len(quoted.files))) as (ledger, part):
        # Nested ledgers are read after the charge: of two concurrent publications the later one's total has both.
        nested, together = _together(options, ledger)
        done = dataclasses.replace(quoted, before=ledger.publications[:-1], nested=nested, total=together)
        originals = read_images(done.files, done.shape, progress).images
        released = _release(done, originals, ranks, device)
        name = options.name if options.keep_names else "images"
        released.write(part / "release", data=name, names=done.names)
        report = _report(done, originals, released, ledger)
        write_curator(part / "curator", originals, released.to_uint8().reshape(originals.shape), report)
    return Published(done, options.out / "release", options.out / "curator", report["mean"])


def follow(ranks: Ranks) -> None:
    """Publish the shares that rank 0 sends to this rank: nothing is read, charged, written or shown here."""
    publish_shares(ranks)


def _release(quoted: Quote, originals: Tensor, ranks: Ranks, device: torch.device) -> Release:
    """Publish the images after the charge."""
    options, values = quoted.options, to_unit(originals).to(device)
    try:
        released = release_planned(quoted.plan, values if options.color else values[:, 0], Noise.system(), ranks)
    except (LostRankError, RanksDifferError) as error:
        raise type(error)(f"{error} Nothing was published, but the charge stands on {options.ledger_path}.") from error
    return dataclasses.replace(released, images=released.images.cpu())


def _report(quoted: Quote, originals: Tensor, released: Release, ledger: FolderLedger) -> dict[str, Any]:
    """Return what is computed from the originals without noise: the errors of each image, and their means."""
    pixels = released.to_uint8().reshape(originals.shape)
    columns = {
        "entropy_original": errors.entropy(originals),
        "entropy_released": errors.entropy(pixels),
        "mse": errors.mse(pixels, originals),
        "absolute_error": errors.absolute_error(released.images.reshape(originals.shape), originals),
        "relative_error": errors.relative_error(pixels, originals),  # error of the shown pixels, clipped to bytes
        "histogram_distance": errors.histogram_distance(pixels, originals),
    }
    if min(originals.shape[-2:]) >= _SSIM_LEAST:
        columns["ssim"] = errors.ssim(pixels, originals)
    rows = [
        {
            "original": path.relative_to(quoted.options.folder).as_posix(),
            "released": name,
            **{measure: float(values[index]) for measure, values in columns.items()},
        }
        for index, (path, name) in enumerate(zip(quoted.files, quoted.names, strict=True))
    ]
    return {
        "format": FORMAT,
        "curator_only": "computed from the private images without noise: covered by no epsilon",
        "mean": {name: float(values.mean()) for name, values in columns.items()},
        "notes": list(released.notes),
        "ledger": {
            "path": str(ledger.path),
            "publications": [publication.to_json() for publication in ledger.publications],
            "total": quoted.total.to_json(),
        },
        "images": rows,
    }
