"""``idpgan publish``: a folder of images is released, and the folder's ledger adds up all publications.

An obfuscator proves nothing: its charge is one read without a proof, which makes every total of the folder infinite.

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
from idpgan.commands.command import Answer, Certificate, PrivateKey, command, completing, given, option
from idpgan.errors import InputError
from idpgan.files import pasted, printable
from idpgan.methods import METHODS, methods_of
from idpgan.progress import Progress, silent

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from idpgan.data.images import Images
    from idpgan.privacy.folder_ledger import FolderLedger, Publication, Total
    from idpgan.privacy.guarantee import Guarantee, PrivacyReport
    from idpgan.publish.obfuscators.obfuscator import Obfuscator
    from idpgan.publish.plan import PublicationPlan
    from idpgan.publish.publisher import Release

BEST = "best"
FORMAT = "idpgan publication 1"
_SSIM_LEAST = 11  # least pixels per side for SSIM
_BYTES_PER_PIXEL = 24  # memory during publication: bytes, float32, and the noisy grid with its noise
_SOUND, _UNSOUND = (
    [row.name for row in methods_of("publisher").values() if row.sound is wanted] for wanted in (True, False)
)
_OBFUSCATORS = [*methods_of("obfuscator")]
_NAMES = f"Sound: {', '.join(_SOUND)}; proving nothing: {', '.join(_UNSOUND)}, blur ..."
_GROUPS = (1, 2, 5, 10)  # example numbers of images of one person


@dataclass(frozen=True)
class PublishOptions(folder.FolderOptions):
    """What to publish, and how."""

    arguments: folder.FolderAndSettings
    method: Annotated[
        str,
        Option(
            help=f"best = by tests on drawn faces. {_NAMES}",
            autocompletion=completing(BEST, *_SOUND, *_UNSOUND, *_OBFUSCATORS),
        ),
    ]
    out: Annotated[Path, Option(help="Output folder: absent or empty.")]
    epsilon: float | None = option(None, "Of this publication, per unit; needed, but not of obfuscators.")
    unit: str | None = option(None, "What is protected: pixel, column or image; needed, but not of obfuscators.")
    delta: float = option(0.0, "Below 1/N for N images, usually the smaller of 1e-5 and 1 / (10 N); 0 is pure.")
    ledger: folder.FolderLedgerFile = None
    size: str | None = option(
        None, "Height and width in px; others are null records. Default: most headers'.", metavar="SIDE|HxW"
    )
    color: bool = option(False, "Color images; their channels share the budget.")
    keep_names: bool = option(False, "Give names of files and folders away.")
    accept_unsound: bool = option(False, "Publish by a method that proves nothing.")
    keep: str | None = option(None, "For obfuscators, of metadata.csv: what stays readable.", metavar="COLUMN")
    hide: str = option("person", "For obfuscators, of metadata.csv: what is to be hidden.", metavar="COLUMN")
    fitted: Path | None = option(
        None, "curator/ of an earlier call: take its obfuscator's weights or key.", metavar="DIR"
    )
    device: str = option("cpu", "Where to compute: auto, cpu, cuda or cuda:1; noise is the CPU's.")
    no_mark: bool = option(False, "Do not say in the pictures that they are artificial.")
    sign: Certificate = None
    key: PrivateKey = None

    def __post_init__(self) -> None:
        _ = self.folder, self.sides
        claims = self.method == BEST or (self.method in METHODS and METHODS[self.method].claimed is not None)
        missing = [f"--{name}" for name in ("epsilon", "unit") if getattr(self, name) is None]
        if claims and missing:
            raise InputError(f"publish needs {' and '.join(missing)}, such as --epsilon 10 --unit image.")

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
        people: Who or which photo is on each original, where its table says so.
        network: The obfuscator that changes the images; None for a method with noise.
        labels: What it is to be fitted on.
    """

    options: PublishOptions
    plan: PublicationPlan
    files: tuple[Path, ...]
    names: tuple[str, ...]
    shape: tuple[int, int, int]
    ledger: FolderLedger
    nested: tuple[FolderLedger, ...]
    total: Total
    people: tuple[int, ...] | None = None
    network: Obfuscator | None = None
    labels: folder.Labels | None = None

    @property
    def before(self) -> tuple[Publication, ...]:
        """Publications that stand on the folder's ledger."""
        return self.ledger.publications[:-1]

    @property
    def report(self) -> PrivacyReport:
        """The three numbers."""
        return self.plan.report()

    @property
    def most_of_one(self) -> int:
        """Most images of one person by the table, else in one folder: a person's, where each folder is a person."""
        return max(Counter(self.people or (path.parent for path in self.files)).values())

    def person(self, images: int) -> Guarantee:
        """Return what is proven for a person with so many images."""
        return self.report.proven.for_group(images)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        from idpgan.privacy.guarantee import number_to_json

        return {
            "method": self.plan.method,
            "options": self.plan.options.public(),
            "num_images": len(self.files),
            "image_shape": list(self.shape),
            "report": self.report.to_json(),
            "person": {str(k): number_to_json(self.person(k).epsilon) for k in sorted({*_GROUPS, self.most_of_one})},
            "ledger": str(self.options.ledger_path),
            "publications_before": [
                {"method": p.method, "unit": str(p.pair[0]), "epsilon": p.epsilon, "delta": p.delta, "sound": p.sound}
                for p in self.before
            ],
            "nested_ledgers": {str(ledger.path): len(ledger.publications) for ledger in self.nested},
            "total": self.total.to_json(),
            **({"parameters": self.network.num_parameters, "steps": self.network.steps} if self.network else {}),
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

    Publications of one folder add up on its ledger. Obfuscators, such as blur, prove nothing, and the card says so.

    Example: idpgan publish faces --method best --epsilon 10 --unit image --out published
    """
    if dry_run:
        quoted = quote(options)
        return Answer(quoted, lambda: print(*_describe(quoted), sep="\n"))
    if options.accept_unsound and options.method in METHODS and not METHODS[options.method].sound:
        folder.ask_before_marking(options, options.method)
    published = publish_folder(options, progress)
    return Answer(published, lambda: print(*_describe(published.quote), *_next(published), sep="\n"))


def _describe(quoted: Quote) -> list[str]:
    """Say what is published and what it costs."""
    made, report, (channels, height, width) = quoted.plan, quoted.report, quoted.shape
    kind, network = "color" if channels == 3 else "grey", quoted.network
    trained = f", {network.num_parameters:,} parameters, {network.steps:,} steps" if network and network.steps else ""
    lines = [
        f"{len(quoted.files):,} {kind} images of {height} x {width}, method {made.method}{trained}",
        f"unit:    {report.proven.unit} ({report.proven.relation})",
        f"claimed: {report.claimed or 'nothing'}",
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
    most, unit = quoted.most_of_one, quoted.report.proven.unit
    whose = "person with most" if quoted.people else "largest folder"
    price = quoted.person(most)
    delta = f", delta = {price.delta:.3g}" if price.delta else ""
    suffix = "" if unit == "image" else f", for the same {unit} of each"
    return f"k images of one person cost k epsilon; the {most} of the {whose}: {price.epsilon:.4g}{delta}{suffix}"


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


def _next(published: Published) -> list[str]:
    """Say where everything lies, how far it is from the originals, what is proven of it, and what comes next."""
    means = [f"  {name.replace('_', ' '):<19} {value:.4g}" for name, value in published.means.items()]
    out, release = published.release.parent, pasted(published.release)
    return [
        f"To give away: {published.release}   Curator only: {published.curator}",
        "Curator only, means over the images:",
        *means,
        f"Look at: {published.curator / 'contact.png'}",
        f"Proven: {published.quote.report.proven}. Next: idpgan verify {release}, idpgan report {pasted(out)}",
    ]


def quote(options: PublishOptions) -> Quote:
    """Price a publication, and refuse all that can be refused without reading a pixel: what `publish` does first.

    Names of files are listed, and some headers are read for a size and warnings. Nothing is written.

    Raises:
        InputError: If anything of the options cannot be used.
    """
    from idpgan.data import declared
    from idpgan.device import check_memory
    from idpgan.privacy.folder_ledger import FolderLedger, chains, refuse_beyond
    from idpgan.publish import plan
    from idpgan.release.images import ImagesArtifact

    channels = 3 if options.color else 1
    method = _named(options, channels)
    info = plan.method_info(method)
    if not info.sound and not options.accept_unsound:
        raise InputError(
            f"method '{method}' proves no privacy at all: {info.reason}. To publish with it all the same, give "
            "--accept-unsound; or take a sound method, such as 'best'."
        )
    folder.check_places(options)
    kind = plan.load_publisher(method).obfuscator
    network, labels, people, settings = None, None, None, options.settings
    if kind is None:
        if unfit := given(options, "keep", "hide", "fitted"):
            raise InputError(f"{unfit[0]} is for obfuscators, and '{method}' is none. Leave it out.")
        rows = folder.listed(options.folder)
        files, people = rows.paths, rows.people
    else:
        files, labels = folder.labeled_files(
            options.folder, kind, options.keep, options.hide, fits=options.fitted is None
        )
    shape = declared.shape_of_most(options.folder, files, channels, options.sides, " --color keeps colors.")
    if kind is not None:
        network = folder.obfuscator_for(method, shape, labels, options.fitted, settings)
        settings = network.config.to_json()
    names = _names(options, files)
    planned = plan.offer(
        method,
        len(files),
        shape if options.color else shape[1:],
        epsilon=options.epsilon,
        delta=options.delta,
        unit=options.unit,
        options=settings,
    )
    folder.check_room(options, ImagesArtifact(len(files), shape, names=names))  # refuses what no release can hold
    pixels = len(files) * math.prod(shape)
    check_memory(_BYTES_PER_PIXEL * pixels, f"publishing {len(files):,} images", "Publish a part of the folder.")
    row = folder.expense(options, planned.method, len(files), planned.price.events, planned.epsilon, planned.delta)
    ledger = FolderLedger.read(options.ledger_path, options.name).charged(row)
    refuse_beyond(options.folder, chains(options.folder, ledger), [row])
    nested, together = _together(planned, options, ledger)
    return Quote(options, planned, files, names, shape, ledger, nested, together, people, network, labels)


def _named(options: PublishOptions, channels: int) -> str:
    """Return the name of the method, that behind "best" where it is asked for."""
    from idpgan.publish.plan import best_method

    if options.method != BEST or options.unit is None or options.epsilon is None:
        return options.method
    method = best_method(options.unit, options.epsilon / channels)
    if options.settings:
        raise InputError(
            f"method 'best' takes no options, got {', '.join(options.settings)}. Name the method: '{method}'."
        )
    return method


def _together(
    planned: PublicationPlan, options: PublishOptions, ledger: FolderLedger
) -> tuple[tuple[FolderLedger, ...], Total]:
    """Return the nested ledgers as they stand now, and the total of the charged ledger with them."""
    from idpgan.privacy.folder_ledger import chains, total

    ledgers = chains(options.folder, ledger)
    nested = {other.path: other for chain in ledgers for other in chain[1:]}
    return tuple(nested.values()), total(ledgers, planned.price.unit)


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


def publish_folder(options: PublishOptions, progress: Progress = silent) -> Published:
    """Publish a folder of images: charge, read, compute, write.

    Raises:
        InputError: As `quote`, or if another publication of the folder is running. Nothing is charged then.
    """
    from idpgan.device import resolve_device
    from idpgan.release.signature import signer_of

    device = resolve_device(options.device, "--device")
    signer = signer_of(options.sign, options.key, marked=not options.no_mark)
    quoted = quote(options)
    with folder.charged(options, quoted.ledger.publications[-1]) as (ledger, part):
        # Nested ledgers are read after the charge: of two concurrent publications the later one's total has both.
        nested, together = _together(quoted.plan, options, ledger)
        charged = dataclasses.replace(quoted, ledger=ledger, nested=nested, total=together)
        images, landmarks = folder.read_images(charged.files, charged.shape, progress), None
        if charged.network is not None and charged.network.landmarked:
            images, landmarks = folder.with_landmarks(options, charged.files, images)
        originals = images.images
        released = _release(charged, images, landmarks, device, progress)
        name = options.name if options.keep_names else "images"
        released.write(part / "release", name, charged.names, not options.no_mark, signer)
        report = _report(charged, originals, released)
        folder.write_curator(part / "curator", originals, released.to_uint8().reshape(originals.shape), report)
        if charged.network is not None:
            charged.network.save(part / "curator")
    return Published(charged, options.out / "release", options.out / "curator", report["mean"])


def _release(
    quoted: Quote, images: Images, landmarks: Tensor | None, device: torch.device, progress: Progress
) -> Release:
    """Publish the images after the charge; an obfuscator is fitted first, where it has something to learn."""
    from idpgan.data.images import to_unit
    from idpgan.privacy.noise import Noise
    from idpgan.publish import publisher

    network, changed, values = quoted.network, None, to_unit(images.images).to(device)
    if network is not None:
        if quoted.labels is not None:
            positions, keep, hide = folder.labeled(images, quoted.labels)
            marks = None if landmarks is None else landmarks[positions]
            network.fit(values[positions], keep, hide, landmarks=marks, device=device, progress=progress)
        changed = network.to(device).transform(values, landmarks=landmarks)
    originals = values if quoted.options.color else values[:, 0]
    released = publisher.release_planned(quoted.plan, originals, Noise.system(), changed)
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
    records = [
        {
            "original": path.relative_to(quoted.options.folder).as_posix(),
            "released": name,
            **{measure: float(values[index]) for measure, values in columns.items()},
        }
        for index, (path, name) in enumerate(zip(quoted.files, quoted.names, strict=True))
    ]
    secrets = () if quoted.network is None else ("the weights or the key beside this file undo what was done",)
    return {
        "format": FORMAT,
        "curator_only": "computed from the private images without noise: covered by no epsilon",
        "mean": {name: float(values.mean()) for name, values in columns.items()},
        "notes": [*released.notes, *secrets],
        "ledger": {
            "path": str(quoted.ledger.path),
            "publications": [publication.to_json() for publication in quoted.ledger.publications],
            "total": quoted.total.to_json(),
        },
        "images": records,
    }
