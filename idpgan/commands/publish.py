"""``idpgan publish``: a folder of faces is released under an epsilon, and the folder's ledger adds up all publications.

The order of steps and the output folders are those of `idpgan.commands.folder`. A restart is a new publication, with
fresh noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from idpgan.commands import folder
from idpgan.commands.command import Answer, command, completing, option
from idpgan.errors import InputError
from idpgan.files import pasted, printable
from idpgan.host import own_state
from idpgan.methods import METHODS, methods_of
from idpgan.progress import Progress, silent

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from idpgan.privacy.folder_ledger import FolderLedger, Publication, Total
    from idpgan.privacy.guarantee import Guarantee, PrivacyReport
    from idpgan.publish.plan import PublicationPlan
    from idpgan.publish.publisher import Release

BEST = "best"
FORMAT = "idpgan publication 1"
_SSIM_LEAST = 11  # least pixels per side for SSIM
_BYTES_PER_PIXEL = 24  # memory during publication: bytes, float32, and the noisy grid with its noise
_SOUND, _UNSOUND = (
    [row.name for row in methods_of("publisher").values() if row.sound is wanted] for wanted in (True, False)
)
_NAMES = f"Sound: {', '.join(_SOUND)}; proving nothing: {', '.join(_UNSOUND)}"
_GROUPS = (1, 2, 5, 10)  # example numbers of images of one person


@dataclass(frozen=True)
class PublishOptions(folder.FolderOptions):
    """What to publish, and how."""

    arguments: folder.FolderAndSettings
    method: Annotated[
        str,
        Option(help=f"best = by tests on drawn faces. {_NAMES}.", autocompletion=completing(BEST, *_SOUND, *_UNSOUND)),
    ]
    epsilon: Annotated[float, Option(help="Of this publication, per unit.")]
    unit: Annotated[str, Option(help="What is protected: pixel, column or image.")]
    out: Annotated[Path, Option(help="Output folder: absent or empty.")]
    delta: float = option(0.0, "Below 1/N for N images, usually the smaller of 1e-5 and 1 / (10 N); 0 is pure.")
    ledger: folder.FolderLedgerFile = None
    size: str | None = option(
        None, "Height and width in px; others are null records. Default: most headers'.", metavar="SIDE|HxW"
    )
    color: bool = option(False, "Color images; their channels share the budget.")
    keep_names: bool = option(False, "Give names of files and folders away.")
    accept_unsound: bool = option(False, "Publish by a method that proves nothing.")
    device: str = option("cpu", "Where to compute: auto, cpu, cuda or cuda:1; noise is the CPU's.")
    no_mark: bool = option(False, "Do not say in the pictures that they are artificial.")

    def __post_init__(self) -> None:
        _ = self.folder, self.sides

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width in px."""
        return None if self.size is None else folder.sides(self.size)


@dataclass(frozen=True)
class Quote:
    """What a publication will be, known from names and sizes alone.

    Attributes:
        options: What was asked for.
        plan: What is released; its ``method`` is the one behind "best".
        files: Originals, in order.
        names: Of the released files, in the same order.
        shape: (C, H, W).
        ledger: Of the folder, with this publication as the last one.
        nested: Ledgers of the folders that it lies in or holds.
        total: What all of them and this one cost an image together.
    """

    options: PublishOptions
    plan: PublicationPlan
    files: tuple[Path, ...]
    names: tuple[str, ...]
    shape: tuple[int, int, int]
    ledger: FolderLedger
    nested: tuple[FolderLedger, ...]
    total: Total

    @property
    def before(self) -> tuple[Publication, ...]:
        """Publications that stand on the folder's ledger."""
        return self.ledger.publications[:-1]

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
        from idpgan.privacy.guarantee import number_to_json

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

    def __repr__(self) -> str:
        return f"<Published: {self.release}, proven {self.quote.report.proven}>"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        places = {"release": str(self.release), "curator": str(self.curator)}
        return {**self.quote.to_json(), **places, "curator_only": dict(self.means)}


@command
def publish(
    options: PublishOptions,
    dry_run: Annotated[bool, Option("--dry-run", help="Price and check: read no pixel, write nothing.")] = False,
    *,
    progress: Progress,
) -> Answer:
    """Publish every image of a folder under differential privacy: OUT/release to give away, OUT/curator to keep.

    Publications of one folder add up on its ledger.

    Example: idpgan publish faces --method best --epsilon 10 --unit image --out published
    """
    if dry_run:
        quoted = quote(options)
        return Answer(quoted, lambda: print(*_describe(quoted), sep="\n"))
    if options.accept_unsound and METHODS.get(options.method) and not METHODS[options.method].sound:
        folder.ask_before_marking(options, options.method)
    done = publish_folder(options, progress)
    return Answer(done, lambda: print(*_describe(done.quote), *_next(done), sep="\n"))


def _describe(quoted: Quote) -> list[str]:
    """Say what is published and what it costs."""
    made, report, (channels, height, width) = quoted.plan, quoted.report, quoted.shape
    claimed = report.claimed or report.proven
    kind = "color" if channels == 3 else "grey"
    lines = [
        f"{len(quoted.files):,} {kind} images of {height} x {width}, method {made.method}",
        f"unit:    {report.proven.unit} ({report.proven.relation})",
        f"claimed: {claimed}",
        f"proven:  {report.proven}",
        f"person:  {_person(quoted)}",
        f"ledger:  {quoted.options.ledger_path}: {_total(quoted)}",
    ]
    if not report.private:
        lines.insert(1, f"NOT PRIVATE: {report.reason}")
    return lines


def _person(quoted: Quote) -> str:
    """Say what several images of one person cost."""
    if not quoted.report.proven.finite:
        return "nothing is proven for anybody"
    most, unit = quoted.largest_folder, quoted.report.proven.unit
    price = quoted.person(most)
    delta = f", delta = {price.delta:.3g}" if price.delta else ""
    each = "" if unit == "image" else f", for the same {unit} of each"
    return f"k images of one person cost k epsilon; the {most} of the largest folder: {price.epsilon:.4g}{delta}{each}"


def _total(quoted: Quote) -> str:
    """Say what all publications of the folder, and of those around and inside it, cost together."""
    total, before = quoted.total, quoted.before
    text = f"{len(before) + 1} publication{'s' if before else ''}"
    if total.elsewhere:
        text += f", and {total.elsewhere} of folders around or inside it at the dearest place"
    text += f", in total {total}"
    others = (item for ledger in quoted.nested for item in ledger.publications)
    unsound = [item.method for item in (*before, *others) if not item.sound]
    if unsound:
        text += f"; unsound before: {', '.join(unsound)}"
    return text


def _next(done: Published) -> list[str]:
    """Say where everything lies, how far it is from the originals, what is proven of it, and what comes next."""
    means = [f"  {name.replace('_', ' '):<19} {value:.4g}" for name, value in done.means.items()]
    out = done.release.parent
    return [
        f"To give away: {done.release}   Curator only: {done.curator}",
        "Curator only, means over the images:",
        *means,
        f"Look at: {done.curator / 'contact.png'}",
        f"Proven: {done.quote.report.proven}. Next: idpgan verify {pasted(done.release)}, idpgan report {pasted(out)}",
    ]


@own_state()
def quote(options: PublishOptions) -> Quote:
    """Price a publication, and refuse all that can be refused without reading a pixel: what `publish` does first.

    Names of files are listed, and some headers are read for a size and warnings. Nothing is written.

    Raises:
        InputError: If anything of the options cannot be used.
    """
    from idpgan.data import declared
    from idpgan.data.sources import face_folder
    from idpgan.memory import check_memory
    from idpgan.privacy.folder_ledger import FolderLedger, chains, refuse_beyond
    from idpgan.publish import best, plan
    from idpgan.release.images import ImagesArtifact

    channels = 3 if options.color else 1
    named = options.method != BEST
    method = options.method if named else best.best_method(options.unit, options.epsilon / channels)
    if options.settings and not named:
        raise InputError(
            f"method 'best' takes no options, got {', '.join(options.settings)}. Name the method: '{method}'."
        )
    info = plan.method_info(method)
    if info.sound is False and not options.accept_unsound:
        raise InputError(
            f"method '{method}' proves no privacy at all: {info.reason}. To publish with it all the same, give "
            "--accept-unsound; or take a sound method, such as 'best'."
        )
    folder.check_places(options)
    files = face_folder.tree(options.folder)
    shape = declared.shape_of_most(options.folder, files, channels, options.sides)
    names = _names(options, files)
    made = plan.offer(
        method,
        len(files),
        shape if options.color else shape[1:],
        epsilon=options.epsilon,
        delta=options.delta,
        unit=options.unit,
        options=options.settings,
    )
    folder.check_room(options, ImagesArtifact(len(files), shape, names=names))  # refuses what no release can hold
    pixels = len(files) * math.prod(shape)
    check_memory(_BYTES_PER_PIXEL * pixels, f"publishing {len(files):,} images", "Publish a part of the folder.")
    row = folder.expense(options, made.method, len(files), made.price.events, made.epsilon, made.delta)
    ledger = FolderLedger.read(options.ledger_path, options.name).charged(row)
    refuse_beyond(options.folder, chains(options.folder, ledger), [row])
    return Quote(options, made, files, names, shape, ledger, *_together(options, ledger))


def _together(options: PublishOptions, ledger: FolderLedger) -> tuple[tuple[FolderLedger, ...], Total]:
    """Return the nested ledgers as they stand now, and the total of the charged ledger with them."""
    from idpgan.privacy.folder_ledger import chains, total
    from idpgan.privacy.guarantee import Unit

    found = chains(options.folder, ledger)
    nested = {other.path: other for chain in found for other in chain[1:]}
    return tuple(nested.values()), total(found, Unit(options.unit))


def _names(options: PublishOptions, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the released files: kept but for their endings, or numbered folder by folder."""
    from idpgan.data.images import LONGEST_CLASS_NAME

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


@own_state()
def publish_folder(options: PublishOptions, progress: Progress = silent) -> Published:
    """Publish a folder of images: charge, read, compute, write.

    Raises:
        InputError: As `quote`, or if another publication of the folder is running. Nothing is charged then.
    """
    from idpgan.device import resolve_device

    device = resolve_device(options.device, "--device")
    quoted = quote(options)
    with folder.charged(options, quoted.ledger.publications[-1]) as (ledger, part):
        # Nested ledgers are read after the charge: of two concurrent publications the later one's total has both.
        nested, together = _together(options, ledger)
        done = dataclasses.replace(quoted, ledger=ledger, nested=nested, total=together)
        originals = folder.read_images(done.files, done.shape, progress).images
        released = _release(done, originals, device)
        name = options.name if options.keep_names else "images"
        released.write(part / "release", data=name, names=done.names, mark=not options.no_mark)
        report = _report(done, originals, released)
        folder.write_curator(part / "curator", originals, released.to_uint8().reshape(originals.shape), report)
    return Published(done, options.out / "release", options.out / "curator", report["mean"])


def _release(quoted: Quote, originals: Tensor, device: torch.device) -> Release:
    """Publish the images after the charge."""
    from idpgan.data.images import to_unit
    from idpgan.privacy.noise import Noise
    from idpgan.publish import publisher

    options, values = quoted.options, to_unit(originals).to(device)
    released = publisher.release_planned(quoted.plan, values if options.color else values[:, 0], Noise.system())
    return dataclasses.replace(released, images=released.images.cpu())


def _report(quoted: Quote, originals: Tensor, released: Release) -> dict[str, Any]:
    """Return what is computed from the originals without noise: the errors of each image, and their means."""
    from idpgan.metrics import images as errors

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
            "path": str(quoted.ledger.path),
            "publications": [publication.to_json() for publication in quoted.ledger.publications],
            "total": quoted.total.to_json(),
        },
        "images": rows,
    }
