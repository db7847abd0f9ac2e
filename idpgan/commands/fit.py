"""`idpgan.fit` and `idpgan.fit_classifier`: from images in memory, or a folder, to a private generator or classifier.

What is done is what `idpgan train` does: the same plan, ledger with a target, refusals and release. The run lies in a
folder of this process that goes when the process ends, or at the next call after it was killed. With ``out`` the run
stays, and images in memory lie beside it, in a file that only its owner can read, so that the commands can go on.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from idpgan import trainer
from idpgan.checks import typed
from idpgan.commands.process_ledger import Records, Together, charge, records_of, refuse_limited_paths
from idpgan.config import apply_overrides, nearest_hint
from idpgan.data import intake
from idpgan.data.config import DataConfig
from idpgan.data.declared import declared_by, say_taken
from idpgan.data.images import Images
from idpgan.data.intake import Range
from idpgan.data.load import Split, known_shape, load
from idpgan.data.source import DataSet, in_memory, warn_once
from idpgan.data.sources import arrays
from idpgan.errors import InputError
from idpgan.files import new_folder, refuse_existing
from idpgan.host import own_state
from idpgan.methods import CLASSIFIER, METHODS, methods_of
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.origin import with_releases
from idpgan.privacy.books import Books
from idpgan.privacy.guarantee import PrivacyReport, default_delta
from idpgan.progress import Progress, shown
from idpgan.release.artifact import as_loaded
from idpgan.release.dataset import DRAWN, SyntheticDataset
from idpgan.release.folder import refuse_place
from idpgan.run import RunFolder, private_folder, refuse_used
from idpgan.synthesis.facts import as_prepared, facts_of
from idpgan.synthesis.starter import BEST, Facts, has_template, starter_for
from idpgan.training.config import RunConfig, build_config
from idpgan.training.plan import RunPlan

AUTO = "auto"
F = TypeVar("F", bound="Fitted")


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was trained, and its release.

    Attributes:
        privacy: Claimed, proven and audited, as the release states them.
        method: Its name.
        num_private: N.
        release: The folder to give away, an ordinary release; `save` copies it.
        run: The curator's run folder; None where ``out`` was not given.
        images: The folder that it was trained on, and that of its public images; none for images in memory.
        together: What all releases of these images in this process cost; None for the first.
        family: Of its method, and what its network is called.
    """

    family: ClassVar[str]
    privacy: PrivacyReport
    method: str
    num_private: int
    release: Path
    run: Path | None
    images: tuple[Path, ...]
    together: Together | None

    def report(self) -> str:
        """Return what is known of the privacy, and where everything lies, as text; for the curator."""
        lines = [f"method: {self.method}, {self.num_private:,} private images", str(self.privacy)]
        lines += [f"taken as public: {phrase}" for phrase in self.privacy.public_assumptions]
        lines += [] if self.together is None else [str(self.together)]
        where = f"{self.release}   curator only: the rest of {self.run}"
        if self.run is None:
            where = "what .save(FOLDER) writes; it was made in a folder that goes with this process"
        return "\n".join([*lines, f"to give away: {where}"])

    @typed
    def save(self, folder: Path) -> Path:
        """Copy the release to a new folder, which `idpgan verify` reads and anybody may have; return it.

        Raises:
            InputError: If something lies there, or the folder around it does not exist.
        """
        refuse_existing(folder)
        refuse_place(folder, str(folder), self.images)
        with new_folder(folder) as part:
            shutil.copytree(self.release, part, dirs_exist_ok=True)
        return folder

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: method '{self.method}', proven {self.privacy.stated}>"


@dataclass(frozen=True, eq=False, repr=False)
class FittedGenerator(Fitted):
    """A private generator; `idpgan.load_generator` returns the same one from the saved release.

    Attributes:
        generator: The network.
    """

    family: ClassVar = "generator"
    generator: Generator

    @property
    def classes(self) -> tuple[str, ...]:
        """Names; empty for unlabeled images."""
        return self.generator.classes if self.generator.num_classes else ()

    @own_state()
    def sample(
        self, num: int, labels: Any = None, seed: int | None = None, *, purpose: Purpose = Purpose.LOOKING
    ) -> Tensor:
        """Draw images, float32 (num, C, H, W) in [-1, 1]; see `Generator.sample`. However many are drawn, they cost 0.

        Labels are those of `sample_labels`, the classes in turn, unless they are given. What trains or measures
        something on the images asks for ``purpose="training"``.
        """
        return self.generator.sample(num, labels, seed, purpose=purpose)

    @own_state()
    def sample_labels(self, num: int) -> Tensor | None:
        """Return the labels of ``sample(num)``, int64 (num,), as `Generator.sample_labels`; None if unlabeled."""
        return self.generator.sample_labels(num)

    @own_state()
    def to_dataset(self, num: int = DRAWN, seed: int | None = None) -> Any:
        """Draw images to train on, as a Hugging Face `Dataset`; see `SyntheticDataset.to_dataset`."""
        return SyntheticDataset(self.generator, num=num, seed=seed).to_dataset()

    def _repr_png_(self) -> bytes | None:
        """Show 64 generated images in a notebook."""
        return self.generator._repr_png_()


@dataclass(frozen=True, eq=False, repr=False)
class FittedClassifier(Fitted):
    """A private classifier; `idpgan.load_classifier` returns the same one from the saved release.

    Attributes:
        classifier: The network.
    """

    family: ClassVar = "classifier"
    classifier: PrivateClassifier

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, in the order of the columns of `probabilities`."""
        return self.classifier.classes

    @own_state()
    def predict(self, images: Any, *, pixel_range: Range = None) -> Tensor:
        """Return the likeliest class of each image, int64 (N,), by its number; images as `fit` takes them.

        The number is what the class is called by, 1 to 10 for labels 1 to 10; where labels were texts, its position in
        `classes`.
        """
        return self.classifier.predict(intake.gathered(images, pixel_range=pixel_range, labeled=False).images)

    def predict_names(self, images: Any, *, pixel_range: Range = None) -> list[str]:
        """Return the name of the likeliest class of each image; images as `fit` takes them."""
        return self.classifier.predict_names(intake.gathered(images, pixel_range=pixel_range, labeled=False).images)

    @own_state()
    def probabilities(self, images: Any, *, pixel_range: Range = None) -> Tensor:
        """Return the probability of each class, (N, K); images as `fit` takes them."""
        return self.classifier.probabilities(intake.gathered(images, pixel_range=pixel_range, labeled=False).images)


def fit(
    images: Any,
    labels: Any = None,
    *,
    epsilon: float,
    delta: float | None = None,
    unit: str | None = None,
    people: Any = None,
    method: str = AUTO,
    public: Any = None,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    progress: bool = True,
    classes: Sequence[str] | None = None,
    pixel_range: Range = None,
    handwriting: bool = False,
    settings: Sequence[str] = (),
) -> FittedGenerator:
    """Train a private generator of images, and release it.

    Args:
        images: A NumPy array or a tensor (N, H, W), (N, H, W, C) or (N, C, H, W), a list of images, PIL pictures or
            paths, a torch or Hugging Face data set or a DataLoader of one, an npz file (its path; see
            `idpgan.data.intake.gathered`), or a folder of images (its path), which is read and split as `idpgan init`
            proposes: a part is held back for judging. Of the others all images are used.
        labels: Classes of images in memory, N whole numbers or texts, or the name of a column of a data set or of a
            folder's table ("subfolders": they are the classes, however many); None = those of a data set, those that
            `idpgan init` proposes for a folder, or unlabeled.
        epsilon: Above 0; see `unit`.
        delta: Below 1/N; None = the smaller of 1e-5 and 1 / (10 N).
        unit: "image", or "person": all images of a person together. None is "image" where nobody is known; it must be
            said where the folder, or `people`, tells who is on each image.
        people: Who is on each image in memory, N whole numbers or texts, or the name of a column: public.
        method: A generator of `idpgan methods`; "auto" chooses by what is public, as `idpgan init --method best`.
        public: Images that nothing protects, of the same kinds as ``images``; a pair (images, labels) for labeled ones.
        out: A new run folder, which the commands take; None = a folder that goes with this process (killed: at the
            next call).
        device: "auto", "cpu", "cuda" or "cuda:1".
        progress: Show it on stderr.
        classes: Names of the classes; see `idpgan.data.intake.gathered`. They are public, and released. Without them,
            and ``data.image_size`` and ``data.channels`` in ``settings``, these are taken from the images and said to.
        pixel_range: What black and white are in images that are not bytes: "unit", "symmetric", "bytes", or two
            numbers. It is never taken from the images.
        handwriting: Whether images are strokes on an even ground, as of a pen: digits, letters. Names of classes do not
            say so, since clothes are called 0 to 9 too.
        settings: Further settings of the config, each ``"section.key=value"``.

    Returns:
        The generator, with ``sample``, ``privacy``, ``report()`` and ``save(folder)``.

    Raises:
        InputError: If an argument or the data cannot be used. Nothing private was read for a release, or charged, then.
        KeyboardInterrupt: If it was interrupted; a run in ``out`` can be resumed.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits()
        >>> made = fit(digits.images, digits.target, epsilon=3.0, pixel_range=(0, 16), progress=False)
        >>> made.sample(20, seed=1).shape, made.privacy.proven.epsilon <= 3.0
        (torch.Size([20, 1, 8, 8]), True)
    """
    given = _Given(epsilon, delta, unit, people, public, out, device, classes, pixel_range, handwriting, settings)
    with shown(off=not progress) as show:
        return _train(images, labels, method, FittedGenerator, given, show)


def fit_classifier(
    images: Any,
    labels: Any = None,
    *,
    epsilon: float,
    delta: float | None = None,
    unit: str | None = None,
    method: str = CLASSIFIER,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    progress: bool = True,
    classes: Sequence[str] | None = None,
    pixel_range: Range = None,
    settings: Sequence[str] = (),
) -> FittedClassifier:
    """Train a private classifier of images, and release it; arguments and errors as of `fit`. Its unit is one image.

    Returns:
        The classifier, with ``predict``, ``probabilities``, ``privacy``, ``report()`` and ``save(folder)``.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits()
        >>> made = fit_classifier(digits.images, digits.target, epsilon=3.0, pixel_range=(0, 16), progress=False)
        >>> bool((made.predict(digits.images[:20], pixel_range=(0, 16)) < 10).all())
        True
    """
    given = _Given(epsilon, delta, unit, None, None, out, device, classes, pixel_range, False, settings)
    with shown(off=not progress) as show:
        return _train(images, labels, method, FittedClassifier, given, show)


@dataclass(frozen=True)
class _Given:
    """The arguments that both calls have."""

    epsilon: float
    delta: float | None
    unit: str | None
    people: Any
    public: Any
    out: str | os.PathLike[str] | None
    device: str
    classes: Sequence[str] | None
    pixel_range: Range
    handwriting: bool
    settings: Sequence[str]


def _train(images: Any, labels: Any, method: str, kind: type[F], given: _Given, progress: Progress) -> F:
    """Train and release; images in memory are written to a file only beside a run that stays."""
    _check(method, kind.family, given)
    read = tuple(folder for folder in map(_folder, (images, given.public)) if folder is not None)
    out = Path(tempfile.mkdtemp(dir=private_folder()), "run") if given.out is None else Path(given.out)
    refuse_place(out, f"out = {out}", read)
    if given.out is None:
        warn_once(
            f"Without out=... this works in {private_folder()}, which only you can read. It is removed when the "
            "process ends, or was killed and another one calls `fit`: keep a release with .save(FOLDER)."
        )
    with _kept_while_running(out, given.out is None) as (files, written):
        data = _data(images, labels, given, files, progress)
        config = _config(method, kind.family, data, given)
        shape = known_shape(config.data, data.set, public=data.public)
        planned, split = trainer.plan(config, out, shape), None
        if data.images is not None or data.public is not None:
            split = load(config.data, data_set=data.set, public=data.public)
        for path, part in zip(files, (data.images, data.public), strict=True):
            if given.out is not None and part is not None:
                arrays.write(path, part)
                written.append(path)
        finished, together = _started(planned, split, out, data.records, progress)
    if finished.privacy is None:
        gone = "Stopped; without out=... nothing of the run is kept, and what it had charged is spent."
        raise KeyboardInterrupt(gone if given.out is None else finished.outcome.message)
    network: Any = as_loaded(finished.artifact, kind.family)
    network.privacy, kept = finished.privacy, None if given.out is None else out
    make: Callable[..., F] = kind  # with the network as one more argument
    about = finished.privacy, config.method.name, planned.shape.num_private, finished.run.release
    return make(*about, kept, read, together, network)


@contextmanager
def _kept_while_running(out: Path, passing: bool) -> Iterator[tuple[tuple[Path, Path], list[Path]]]:
    """Give the places of images, and a list for what this call writes there: it goes, unless its own run names it."""
    files = out.with_name(f"{out.name}.images{arrays.SUFFIX}"), out.with_name(f"{out.name}.public{arrays.SUFFIX}")
    for path in files:
        refuse_existing(path)
    run, written = RunFolder(out), list[Path]()
    refuse_used(run)
    try:
        yield files, written
    finally:
        passed = [path for path in out.glob("*") if path != run.release] if passing else []  # the noise among them
        config = run.config.read_text(encoding="utf-8") if run.config.is_file() else ""
        for path in (*passed, *(path for path in written if path.name not in config)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _check(method: str, family: str, given: _Given) -> None:
    """Refuse what names and numbers alone tell."""
    known = methods_of(family)
    if method != AUTO and method not in known:
        call = "fit" if family == "generator" else "fit_classifier"
        other = "fit_classifier" if family == "generator" else "fit"
        elsewhere = method in methods_of("classifier" if family == "generator" else "generator")
        hint = f"`idpgan.{other}` does." if elsewhere else nearest_hint(method, known)
        raise InputError(f"method = '{method}' is not one that `{call}` trains. {hint}")
    if method != AUTO and not known[method].sound:
        raise InputError(
            f"method = '{method}' does not keep to the epsilon that it is given: {known[method].reason}. Take a sound "
            "one (idpgan methods), or train it as a config by `idpgan train`."
        )
    if given.unit not in (None, "image", "person"):
        raise InputError(f"unit = '{given.unit}' is unknown to `fit`. Known: image, person.")


def _folder(images: Any) -> Path | None:
    """Return the folder that was named; None for images in memory."""
    if not isinstance(images, str | os.PathLike) or intake.is_npz(images):
        return None
    path = Path(images)
    if not path.is_dir():
        raise InputError(
            f"There is no folder {path}. Name the folder of images, or give an array, a tensor or a data set."
        )
    return path


class _Data(NamedTuple):
    """What is trained on: [data] of the config, what is public of it, and what of it is in memory."""

    table: dict[str, Any]
    facts: Facts
    records: Records
    images: Images | None
    public: Images | None

    @property
    def set(self) -> DataSet | None:
        """The images in memory, as a source would give them."""
        return None if self.images is None else in_memory(self.images)


def _data(images: Any, labels: Any, given: _Given, files: tuple[Path, Path], progress: Progress) -> _Data:
    """Gather images in memory, or see what `idpgan init` proposes for a folder; ``files`` are what [data] names."""
    source, gathered, public = _folder(images), None, None
    declared = declared_by(given.settings, given.classes, labels)
    if source is not None:
        extra = ["labels"] if labels is not None and not isinstance(labels, str) else []
        extra += [name for name in ("people", "pixel_range") if getattr(given, name) is not None]
        if extra:
            raise InputError(
                f"{extra[0]} is for images in memory; a folder says it itself (idpgan prepare). Leave it out."
            )
        seen, facts = facts_of(str(source), label=declared.get("label"), declared=as_prepared(source) | declared)
        table, records = {key: setting.value for key, setting in seen.settings.items()}, records_of(source)
        found = {key for key, setting in seen.settings.items() if setting.found}
    else:
        refuse_limited_paths(images)
        facts_given = {"people": given.people, "classes": declared.get("classes"), "pixel_range": given.pixel_range}
        gathered = intake.gathered(images, labels, **facts_given, progress=progress)
        table, facts, records = *_of_images(gathered, files[0]), records_of(gathered)
        found = {"image_size", "channels", *(["classes"] if gathered.labels is not None else [])} - declared.keys()
    table |= say_taken(found)
    facts = facts.of_handwriting() if given.handwriting else facts
    if given.public is not None:
        if (root := _folder(given.public)) is None:
            root, labeled = files[1], isinstance(given.public, tuple) and len(given.public) == 2
            names = facts.shape.classes if labeled else None
            public = intake.gathered(given.public, pixel_range=given.pixel_range, classes=names, what="public images")
            public = public.existing(least=1)
        table = {**table, "public_root": str(root.absolute())}
        table |= {} if public is None or public.classes else {"public_labels": {}}
        config, data_set = DataConfig.model_validate(table), None if gathered is None else in_memory(gathered)
        facts = dataclasses.replace(facts, shape=known_shape(config, data_set, public=public))
    return _Data(table, facts, records, gathered, public)


def _of_images(images: Images, file: Path) -> tuple[dict[str, Any], Facts]:
    """Return [data] and facts of images in memory: all of them are private, and for training."""
    channels, height, width = images.image_shape
    table: dict[str, Any] = {
        "name": "arrays",
        "root": str(file.absolute()),
        "num_images": len(images),
        "image_size": height if height == width else [height, width],
        "channels": channels,
        "classes": list(images.classes),
        "holdout_share": 0.0,
    }
    per_person = None
    if images.identities is not None:
        num_people = len(torch.unique(images.identities))
        per_person = len(images) / num_people
        table |= {"num_people": num_people, "split_by": "identity"}
    return table, Facts(known_shape(DataConfig.model_validate(table), in_memory(images)), per_person, handwriting=False)


def _config(method: str, family: str, data: _Data, given: _Given) -> RunConfig:
    """Return the config that the method proposes for such data, under the budget that was asked for."""
    facts = data.facts
    if given.unit is None and facts.per_person is not None:
        raise InputError(
            'unit is missing, and who is on each image is known. Say unit="person", which protects all images of a '
            'person together, as `idpgan init` proposes, or unit="image", which protects each of them by itself.'
        )
    if given.unit == "person" and facts.per_person is None:
        raise InputError('unit = "person" needs to know who is on each image: give people=..., or unit="image".')
    unit = given.unit or "image"
    if unit == "image":
        facts = dataclasses.replace(facts, per_person=None)
    if isinstance(given.epsilon, int | float) and 0 < given.epsilon < math.inf:  # others are refused by the config
        facts = dataclasses.replace(facts, epsilon=float(given.epsilon))
    table: dict[str, Any] = {"method": {"name": method}, "privacy": {}}
    if method == AUTO or has_template(method, facts):
        table = starter_for(facts, BEST if method == AUTO else method).table
        written = facts.of_handwriting()
        doubtful = method == AUTO and written.digits and facts.shape.image_shape[0] == 1
        if doubtful and starter_for(written).table != table:
            warn_once("Classes called 0 to 9 may be anything: if these are digits, handwriting=True draws them better.")
        method = table["method"]["name"]
    elif family == "generator":
        table["model"] = {"conditional": bool(facts.shape.classes)}
    if unit not in METHODS[method].units:
        raise InputError(f'method = "{method}" protects one {METHODS[method].units[0]}. Set unit to that.')
    delta = default_delta(facts.shape.num_private) if given.delta is None else given.delta
    table["privacy"] |= {"epsilon": given.epsilon, "delta": delta}
    table["data"] = {**data.table, **table.get("data", {})}
    table["training"] = {**table.get("training", {}), "device": given.device}
    return build_config(with_releases(apply_overrides(table, given.settings)), "the call of idpgan.fit")


def _started(
    planned: RunPlan, split: Split | None, out: Path, records: Records, progress: Progress
) -> tuple[trainer.Finished, Together | None]:
    """Train, and note in this process whatever was charged, also where it failed."""
    run, together = RunFolder(out), None
    try:
        finished = trainer.start(planned.config, out, progress, planned=planned, split=split)
    finally:
        if run.ledger.is_file():
            books = Books.parse(run.ledger.read_bytes(), run.ledger)
            terms, most = books.terms, getattr(planned.config.privacy, "most_per_person", 1)
            delta = terms.target.delta if terms.target else 0.0
            together = charge(records, tuple(books.entries), delta, terms.unit, terms.relation, most)
    return finished, together
