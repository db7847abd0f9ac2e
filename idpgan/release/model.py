"""A model of somebody's own training loop as an artifact: its tensors and their shapes; its code stays with its owner.

idpgan saw neither the training nor the data, so the charges are the word of whoever wrote the release. No code of the
release is run: `write_model` and `load_model` call the module that the caller hands over.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import pydantic
import torch
from pydantic import AfterValidator, Field
from safetensors.torch import save
from torch import Tensor, nn

from idpgan.checks import whole
from idpgan.config import Section, build
from idpgan.data.images import LONGEST_CLASS_NAME, check_class_names
from idpgan.errors import InputError
from idpgan.files import CONFIG, printable, write_bytes_atomic
from idpgan.models.checkpoint import read_tensors
from idpgan.models.own import ForeignClassifier, ForeignGenerator, TensorShape, outline_of
from idpgan.models.validate import validate_private_critic
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import FLOATING_POINT, Guarantee, PrivacyReport, check_delta, default_delta
from idpgan.privacy.ledger import Ledger
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Plan, Price
from idpgan.release.artifact import Kind
from idpgan.release.folder import refuse_place, write_release
from idpgan.release.statement import Settings, Statement
from idpgan.release.verify import open_release

TENSORS = "model.safetensors"
METHOD = "own-loop"
_MOST_BYTES = 1 << 34
_HEADER_BYTES = 1 << 22
_WORD = "the word of whoever wrote this release"


def _one_line(text: str) -> str:
    if not printable(text):
        raise ValueError(f"{text!a} must be one printable line")
    return text


_Name = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_one_line)]


class Described(Section):
    """The entry "model" of config.json.

    Attributes:
        role: What the module does.
        module: The path of its class, for the reader: never imported.
        image_shape: (C, H, W).
        classes: Names; empty for an unconditional generator.
        latent_dim: Of a generator; None for a classifier.
        pixels: The numbers by which the module knows black and white.
        tensors: By name.
    """

    role: Literal["classifier", "generator"]
    module: _Name
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...] = Field((), max_length=1 << 16)
    latent_dim: int | None = Field(None, ge=1, le=1 << 20)
    pixels: tuple[float, float] = (-1.0, 1.0)
    tensors: dict[_Name, TensorShape] = Field(min_length=1, max_length=100_000)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if (self.latent_dim is None) != (self.role == "classifier"):
            raise ValueError("a generator has a latent_dim, and a classifier has none")
        if self.role == "classifier" and len(self.classes) < 2:
            raise ValueError("a classifier needs the names of its classes, two or more")
        if not all(1 <= side <= 1 << 16 for side in self.image_shape) or self.image_shape[0] not in (1, 3):
            raise ValueError(f"image_shape = {self.image_shape} must be (1 or 3, height, width)")
        if self.pixels[0] == self.pixels[1]:
            raise ValueError(f"pixels = {self.pixels} must be two numbers, that of black and that of white")
        if sum(tensor.bytes for tensor in self.tensors.values()) > _MOST_BYTES:
            raise ValueError(f"the tensors have more than {_MOST_BYTES:,} bytes")
        check_class_names(self.classes)
        return self

    def wrapped(self, module: nn.Module) -> ForeignClassifier | ForeignGenerator:
        """Return the module as a classifier or generator of this package, in eval mode."""
        if self.latent_dim is None:
            return ForeignClassifier(module, self.image_shape, self.classes, self.pixels).eval()
        return ForeignGenerator(module, self.image_shape, self.classes, self.latent_dim, self.pixels).eval()


class ModelArtifact:
    """The tensors of a module of somebody's own code; an `idpgan.release.artifact.Artifact`."""

    kind: ClassVar[str] = "model"
    card: ClassVar[str] = "model"

    def __init__(self, described: Described, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.described, self.tensors = described, tensors

    def files(self) -> Mapping[str, int]:
        """Return the file of tensors with the most bytes it can have."""
        return {TENSORS: sum(tensor.bytes for tensor in self.described.tensors.values()) + _HEADER_BYTES}

    def describe(self) -> dict[str, Any]:
        """Return what `Described` holds; image shape and classes always."""
        made = self.described
        return {**made.to_json(), "classes": list(made.classes)}

    def write(self, folder: Path) -> None:
        """Write the tensors."""
        if self.tensors is None:
            raise TypeError("an artifact without content cannot be written.")
        write_bytes_atomic(folder / TENSORS, save(dict(self.tensors)))

    @classmethod
    def from_description(cls, described: Any) -> Self:
        """Check the description; the tensors are None until `read`."""
        return cls(build(Described, described, f"model of {CONFIG}"))

    def read(self, files: Mapping[str, bytes]) -> list[str]:
        """Read the tensors, and compare them with their description; no code of the module is run."""
        self.tensors = read_tensors(files[TENSORS], Path(TENSORS))
        wrong = _unlike(self.described, self.tensors)
        return [f"{TENSORS} does not hold what {CONFIG} describes: {wrong}."] if wrong else []

    @property
    def unchecked(self) -> str:
        """What `verify` cannot check, one sentence."""
        return (
            f"{self.described.module} is code of whoever wrote the release and was not run: its tensors were compared "
            "with their description, and no picture was drawn or image classified again"
        )

    @property
    def class_name(self) -> str:
        """The name of the module's class, as it may stand in a block of code."""
        name = self.described.module.rpartition(".")[2]
        shown = "".join(sign for sign in name if sign.isascii() and (sign.isalnum() or sign == "_"))
        return shown[:60] or "of the writer"


def _unlike(described: Described, tensors: Mapping[str, Tensor]) -> str | None:
    """Return the first difference between tensors and their description."""
    for name in sorted({*described.tensors} ^ {*tensors}):
        return f"{name[:80]!a} is missing or not expected"
    shapes = outline_of(tensors)
    for name, wanted in described.tensors.items():
        if shapes[name] != wanted.to_json():
            return f"{name[:80]!a} has another shape or type"
        if tensors[name].is_floating_point() and not bool(tensors[name].isfinite().all()):
            return f"{name[:80]!a} holds numbers that are not finite"
    return None


# What is said of the training ------------------------------------------------------------------------------------


class ModelTable(Section):
    """What config.json says of the training of a model.

    Attributes:
        data: Name of the data, for the card.
        num_private: N.
        delta: Where epsilon is stated.
        fixed_seed: Whether somebody may know the seed of the noise.
        events: All charges, as of `Event.to_json`.
    """

    data: _Name = Field(max_length=LONGEST_CLASS_NAME)
    num_private: int = Field(ge=1, le=1 << 40)
    delta: float = Field(ge=0, lt=1)
    fixed_seed: bool
    events: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=1000)

    @classmethod
    def from_release(cls, table: Any, described: Mapping[str, Any], statement: Statement) -> Settings:
        """Return the settings that a config.json holds; see `idpgan.release.artifact.Kind`."""
        return build(cls, table, CONFIG).settings(described)

    def settings(self, described: Mapping[str, Any]) -> Settings:
        """Return the settings of the release of a described model."""
        check_delta(self.delta, self.num_private, "delta")
        events = tuple(Event.from_json(event) for event in self.events)
        if len({(event.unit, event.relation) for event in events}) > 1:
            raise InputError("events of different units or relations do not compose. Give those of one pair.")
        plan = OwnLoop(Price(events[0].unit, events[0].relation, self.delta, None, events), self.fixed_seed)
        classes, pixels = len(described["classes"]), math.prod(described["image_shape"])
        return Settings(
            self.data, METHOD, self.num_private, 0, classes, pixels, self.to_json(), plan, lambda described: []
        )


@dataclass(frozen=True)
class OwnLoop(Plan):
    """What a training outside of this package is said to have cost."""

    said: Price
    fixed_seed: bool

    @property
    def price(self) -> Price:
        """The charges that the writer states."""
        return self.said

    def report_of(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return a report that says who vouches for what."""
        seed = "a FIXED SEED, so it can be subtracted" if self.fixed_seed else "a seed that nobody knows"
        return PrivacyReport(
            claimed=None,
            proven=proven,
            audited=None,
            reason=(
                f"idpgan did not see the training and priced what it was told: the charges are {_WORD}; "
                f"{FLOATING_POINT}; noise: drawn by the training loop from {seed}, {_WORD}"
            ),
            private=proven.finite and not self.fixed_seed,
            public_assumptions=(
                "that the training read the private images in these charges alone, drew each by a secret coin of its "
                f"own where they say so, and clipped and noised as they say: {_WORD}",
                "the settings and the code of the training: epsilon covers no choice by looking at private images",
            ),
        )


KINDS = {ModelArtifact.kind: Kind(ModelArtifact, ModelTable.from_release)}


# Writing and loading ---------------------------------------------------------------------------------------------


def write_model(
    folder: str | os.PathLike[str],
    module: nn.Module,
    events: Sequence[Event],
    *,
    num_private: int,
    image_shape: Sequence[int],
    classes: Sequence[str] = (),
    latent_dim: int | None = None,
    fixed_seed: bool,
    data: str = "private",
    delta: float | None = None,
    pixels: tuple[float, float] = (-1.0, 1.0),
) -> PrivacyReport:
    """Write the release of a classifier or generator that was trained in a loop of your own, and return its report.

    The folder has the tensors (safetensors), a card, and the charges; `idpgan verify` accepts it. You vouch for the
    charges: that the training read the private images in no other way.

    Args:
        folder: Where the release goes; it must not exist.
        module: What is given away. A `GradSampleModule` is taken off. A classifier maps (B, C, H, W) to logits (B, K);
            a generator maps (B, latent_dim), and labels (B,) where there are classes, to images.
        events: All that it cost, such as `idpgan.privacy.from_opacus` returns.
        num_private: N, the number of private records, public.
        image_shape: (C, H, W).
        classes: Names in the order of the labels; none = an unconditional generator.
        latent_dim: Of a generator; None = a classifier.
        fixed_seed: Whether the noise came from a seed that somebody knows, such as that of ``torch.manual_seed``: the
            release is then marked not private.
        data: Name of the data, for the card.
        delta: Where epsilon is stated; None is ``min(1e-5, 1 / (10 N))``.
        pixels: The numbers by which the module knows black and white: (-1, 1), or (0, 1), or those of a normalization.

    Raises:
        InputError: If a part of this cannot be released; nothing is written then.
    """
    refuse_place(Path(folder), str(folder))
    module = getattr(module, "_module", module) if hasattr(module, "to_standard_module") else module
    num_private = whole(num_private, "num_private", 1)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    described = build(
        Described,
        {
            "role": "classifier" if latent_dim is None else "generator",
            "module": f"{type(module).__module__}.{type(module).__qualname__}",
            "image_shape": list(image_shape),
            "classes": list(classes),
            "latent_dim": latent_dim,
            "pixels": list(pixels),
            "tensors": outline_of(tensors),
        },
        "write_model",
    )
    if wrong := _unlike(described, tensors):
        raise InputError(f"The module cannot be released: {wrong}.")
    _try(module, described)
    delta = default_delta(num_private) if delta is None else float(delta)
    charged = [event.to_json() for event in events]
    table = {
        "data": data, "num_private": num_private, "delta": delta, "fixed_seed": fixed_seed, "events": charged,
    }  # fmt: skip
    artifact = ModelArtifact(described, tensors)
    settings = build(ModelTable, table, "write_model").settings(artifact.describe())
    ledger = Ledger(settings.plan.price.unit, settings.plan.price.relation)
    for event in events:
        ledger.charge(event)
    report = settings.plan.report_of(ledger.events, ledger.proven(delta), ())
    write_release(Path(folder), artifact, settings, report, ledger.events)
    return report


def _try(module: nn.Module, described: Described) -> None:
    """Refuse a module that does not do what is said of it, and a classifier whose layers keep or mix records."""
    if described.role == "classifier":
        validate_private_critic(module, image_shape=described.image_shape, num_classes=0)
    training, device = module.training, next(module.parameters()).device
    try:
        network = described.wrapped(module)
        with torch.no_grad():
            if isinstance(network, ForeignClassifier):
                network(torch.zeros(2, *described.image_shape, device=device))
            else:
                labels = torch.zeros(2, dtype=torch.int64, device=device) if described.classes else None
                network(torch.zeros(2, network.latent_dim, device=device), labels)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"The module cannot be released as a {described.role}: called with two records it raises "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error
    finally:
        module.train(training)


def load_model(folder: str | os.PathLike[str], module: nn.Module) -> ForeignClassifier | ForeignGenerator:
    """Put the tensors of a release into a module of its class, and return it as a classifier or generator.

    Args:
        folder: A release that `write_model` wrote.
        module: Of the class that the card names, made by you; its tensors are overwritten.

    Returns:
        ``.predict(images)`` and ``.probabilities(images)`` of a classifier, ``.sample(num, labels, seed)`` of a
        generator, on the CPU, in eval mode; and ``.privacy``, the report as the release states it.

    Raises:
        InputError: If the folder holds no such release, something in it was changed, or the module has other tensors.
    """
    path = Path(folder)
    if not (path / TENSORS).exists():
        raise InputError(f"{path} is no release of a model of somebody's own: it holds no {TENSORS}.")
    release = open_release(path, KINDS)
    artifact = cast(ModelArtifact, release.artifact)
    for problem in artifact.read(release.files):
        raise InputError(problem)
    if wrong := _unlike(artifact.described, module.state_dict()):
        raise InputError(f"{type(module).__name__} is not the module of this release: {wrong}.")
    module.load_state_dict(dict(artifact.tensors or {}))
    network = artifact.described.wrapped(module.cpu())
    network.privacy = release.stated.report
    return network
