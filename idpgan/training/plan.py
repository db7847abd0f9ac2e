"""What a run will do and cost: the base of all methods' plans, its largest signal, and releases that it contains."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from idpgan.data.drawn import PAPERS
from idpgan.data.load import DataShape
from idpgan.device import check_memory, resolve_device
from idpgan.errors import ConfigError
from idpgan.methods import load, row_of
from idpgan.models import checkpoint, own
from idpgan.models.config import classes_of, pyramid_of
from idpgan.own_code import error_line, is_own_code
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, check_delta, default_delta
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Budget, Price
from idpgan.privacy.precision import check_precision
from idpgan.privacy.totals import Part, joint_events, total
from idpgan.training.config import RunConfig

_LARGE_STEP = 1 << 20  # numbers in the feature maps of a batch beside the images; benchmarks/busy.py
_CLOUDS, _GHOSTS, _PICTURES = 60, 20, 60  # numbers above the noise, see `Signal.look`; docs/reference/signal.md
_LEAST = 1.0  # below this figure the noise on a class is longer than the longest sum of its records


@dataclass(frozen=True)
class Signal:
    """The signal-to-noise figure of a run; docs/reference/signal.md has formula and threshold.

    A record adds a vector of length at most 1 to the sum of its class, so the n records of a class add up to at most n.
    The figure is that length over the expected length of the noise on it: an upper bound, whatever the images are.

    Attributes:
        records: n, declared records (images, or people) per declared class.
        classes: Declared classes, 1 without.
        noise: Expected length of the noise on the sum of a class, in records.
        source: What the noise is on: "the release" or "the DP-SGD steps".
        record: "images" or "people".
        advice: A sentence on how much should be trained; None where there is no choice.
        numbers: How many numbers of an image stand above the noise, if they share its variance evenly; None = unknown.
        in_place: Whether images show one thing in one place (faces with aligned eyes, strokes), or are moved pictures.
    """

    records: float
    classes: int
    noise: float
    source: str
    record: str = "images"
    advice: str | None = None
    numbers: float | None = None
    in_place: bool = False

    @property
    def foretold(self) -> str | None:
        """Say that noise or blobs will come out, and what would give pictures; None if pictures, or unknown.

        By public numbers alone, so the card says it too. The rule was frozen before it was judged, see `look`.
        """
        look = self.look
        if look in (None, "pictures") or self.numbers is None:
            return None
        more = (_PICTURES / self.numbers) ** 1.5
        if self.in_place:
            ways = f"about {more:.2g} times as many {self.record} give pictures, or a larger epsilon"
        else:
            ways = "pictures take one thing in one place, or public ones of the same kind (data.public_root)"
            ways = f"about {more:.2g} times as many {self.record} give blobs; {ways}" if look == "noise" else ways
        what = "clouds and noise" if look == "noise" else "blobs, of which few show what they are"
        return f"{what}: about {self.numbers:,.0f} numbers of an image stand above the noise; {ways}."

    @property
    def look(self) -> Literal["noise", "blobs", "pictures"] | None:
        """What images will look like: a rule of `numbers` alone, judged by benchmarks/foretold.py; None = unknown."""
        if self.figure < _LEAST:
            return "noise"
        if self.numbers is None:
            return None
        if self.in_place:
            return "noise" if self.numbers < _GHOSTS else "blobs" if self.numbers < _PICTURES else "pictures"
        return "noise" if self.numbers < _CLOUDS else "blobs"

    @property
    def figure(self) -> float:
        """Signal / noise."""
        return self.records / self.noise if self.noise > 0 else math.inf

    @property
    def warning(self) -> str | None:
        """Return a sentence that the result must be noise, and what to change; None if the figure is high enough."""
        if self.figure >= _LEAST:
            return None
        few = math.floor(self.classes * self.figure)
        ways = []
        if self.classes > 1:
            ways.append(f"at most {few} classes" if few > 1 else "no classes (model.conditional = false)")
        ways.append(f"about {1 / self.figure:.2g} times as many {self.record}")
        if self.record == "people":
            ways.append('privacy.unit = "image", if a person needs no more')
        ways += ["a larger epsilon", "public images (data.public, data.public_root)"]
        where = f" in each of {self.classes} classes" if self.classes > 1 else ""
        return (
            f"the result will be noise: {self.records:.3g} {self.record}{where} against the noise of {self.source}, "
            f"which is as long as {self.noise:.3g} of them (signal to noise {self.figure:.2g}, least {_LEAST:g}). "
            "What helps: "
            f"{'; '.join(ways)}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "figure": self.figure if math.isfinite(self.figure) else None,
            "least": _LEAST,
            "records_per_class": self.records,
            "classes": self.classes,
            "noise": self.noise,
            "source": self.source,
            "warning": self.warning,
            "foretold": self.foretold,
        }


def plan_run(config: RunConfig, shape: DataShape, given: Sequence[Event] = ()) -> Any:
    """Return the `RunPlan` of a config for data of a shape."""
    return load(config.method.name).Plan(config, shape, given)


class RunPlan:
    """What a run will do and cost; the plan of a method overrides what differs.

    Attributes:
        config: The run's config.
        shape: What is public about the data.
        given: Charges that another part has already planned on the same ledger.
        row: Of the method; see `idpgan.methods.row_of`.
        unit: That of [privacy], or of the row where [privacy] leaves no choice; likewise ``relation``.
        exact: Whether `events` are the very charges; else they are an upper bound that public images refine.
        contained: See `RunConfig.counted`.
        SOURCES: Number of sources that the noise of the method's parts comes from.
        reads_public: Whether the public images are used for anything; else `data.public_share` is refused.
        OWN_CRITIC: Which critic of the user the method takes: none, any, or one that keeps records apart.
    """

    SOURCES: ClassVar[int] = 1
    reads_public: bool = False
    OWN_CRITIC: ClassVar[Literal["none", "any", "private"]] = "none"

    def __init__(self, config: Any, shape: DataShape, given: Sequence[Event] = ()) -> None:
        self.config, self.shape, self.given, self.row = config, shape, tuple(given), row_of(config.method.name)
        self.unit = getattr(config.privacy, "unit", None) or Unit(self.row.units[0])
        self.relation = getattr(config.privacy, "relation", None) or Relation(self.row.relation)
        if shape.of_photos and self.unit is not Unit.PHOTO:
            units = self.row.units
            raise ConfigError(
                "the rows of the data are faces that were cut out of photos, and a photo has several: unit "
                f"{self.unit} would protect one face of it. "
                + (
                    'Set privacy.unit = "photo".'
                    if Unit.PHOTO in units
                    else f"{config.method.name} has no unit photo: prepare one face a photo, or take gaussian, "
                    "evolution or idp-gan-aggregate."
                )
            )
        self.exact = True
        self.memory: Any = None  # a `private.memory.Forecast`, where one was made
        self.contained: tuple[Part, ...] = config.counted

    @property
    def classes(self) -> int:
        """Number of classes, 0 without labels; raises a `ConfigError` where labels are asked for and missing."""
        return classes_of(self.config.model, len(self.shape.classes))

    @property
    def rows(self) -> int:
        """Classes that are told apart, 1 without."""
        return max(self.classes, 1)

    # The price -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def price(self) -> Price:
        """What stands on the run's ledger if it does all its steps."""
        delta, budget = self.delta, self.budget  # an impossible delta is reported first
        return Price(self.unit, self.relation, delta, budget, self.events, self.exact, self.contained)

    @property
    def delta(self) -> float:
        """Where epsilon is stated: the configured delta, or the default for N private images.

        Raises:
            InputError: If the configured one is not below 1/N.
        """
        delta, num_private = self.config.privacy.delta, self.shape.num_private
        if delta is None:
            return default_delta(num_private)
        check_delta(delta, num_private)
        return float(delta)

    @property
    def budget(self) -> Budget | None:
        """The epsilon and delta of [privacy]; None where the method has no target epsilon."""
        epsilon = getattr(self.config.privacy, "epsilon", None)
        return None if epsilon is None else Budget(epsilon, self.delta)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The very charges of a run that does all its steps, known without reading an image.

        By default each step reads raw images, as those of a method that promises nothing.
        """
        return (self.raw_read.repeated(self.config.training.steps),)

    @property
    def raw_read(self) -> Event:
        """The charge for a step that reads raw images without noise."""
        return Event.non_private(self.row.reason, Unit.IMAGE, Relation.REPLACE_ONE)

    @property
    def step_threads(self) -> int:
        """Threads of torch in the steps: one where these are small, so that none waits for another at each operation.

        It follows from sizes alone, so a resumed run takes as many. A user's ``OMP_NUM_THREADS`` stands.
        """
        threads, (_, height, width) = torch.get_num_threads(), self.shape.image_shape
        numbers = self.config.training.batch_size * height * width * self.config.model.width
        return threads if os.environ.get("OMP_NUM_THREADS") or numbers >= _LARGE_STEP else 1

    @property
    def signal(self) -> Signal | None:
        """The largest signal of a class against the noise, by config and declared sizes alone; None = unknown."""
        return None

    def to_json(self) -> dict[str, Any]:
        """Return what ``idpgan train --dry-run --json`` says of the run."""
        signal, whole = self.signal, self.total
        return {
            "num_private": self.shape.num_private,
            **self.price.to_json(),
            "signal_to_noise": signal.to_json() if signal else None,
            "total": whole.to_json() if whole else None,
        }

    # What is said of it --------------------------------------------------------------------------------------------

    def report_of(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return the privacy report of a run, with the total where its release contains others."""
        sources, whole = sources[: self.SOURCES], self.total_of(events)
        if self.row.sound is None:
            proven = Guarantee(math.inf, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "raw images are read without noise")
        finite = proven.finite and (whole is None or whole.finite)
        return PrivacyReport(
            claimed=self.claimed,
            proven=proven,
            audited=None,
            reason=self.reason(events, sources),
            private=finite and all(source.private for source in sources),
            public_assumptions=(*self.assumptions(sources), *self.declared),
            contained=() if whole is None else tuple(part.proven for part in self.contained),
            total=whole,
        )

    @property
    def claimed(self) -> Guarantee | None:
        """What the paper states; for a method that calibrates its noise, the budget that was asked for."""
        if self.budget is None:
            return None
        basis = "privacy.epsilon of the config"
        return Guarantee(self.budget.epsilon, self.budget.delta, self.unit, self.relation, basis)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Return in one sentence what the proven number rests on: by default the reason of the row."""
        return self.row.reason

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Return what the guarantee takes as public, one phrase each."""
        return ()

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """Return the parts of a product's description that do not follow from the settings, one sentence each.

        Args:
            described: The description by an `idpgan.release.artifact.Artifact`, well formed.
        """
        problems, teacher, config = [], described.get("teacher"), self.config
        if (None if teacher is None else teacher.get("candidates")) != self.candidates:
            problems.append("the generator has another teacher than the run's, or chooses among other candidates.")
        if described.get("model") != config.model.to_json():
            problems.append("the generator is not of the run's [model].")
        if described.get("samples") != config.release.samples:
            problems.append(f"{described.get('samples')} samples are shown, not release.samples.")
        return problems

    @property
    def candidates(self) -> int | None:
        """Images that the released generator draws for each one that its teacher chooses; None without a teacher."""
        method = self.config.method
        return method.candidates if getattr(method, "teacher_share", 0) else None

    # What it needs -------------------------------------------------------------------------------------------------

    def check_precision(self) -> None:
        """Refuse a precision that the device does not have."""
        check_precision(self.config.training.precision, resolve_device(self.config.training.device))

    def check(self) -> None:
        """Refuse what the data's public shape or the machine's memory cannot serve; `verify` never asks.

        Raises:
            ConfigError: If the networks are not built for such images, or labels are asked for and missing.
            InputError: If the memory does not suffice.
        """
        self.refuse_idle_public()
        model, training, image_shape = self.config.model, self.config.training, self.shape.image_shape
        classes = self.classes
        if is_own_code(model.critic) and self.OWN_CRITIC == "none":
            raise ConfigError(f"model.critic = '{model.critic}', but method {self.row.name} has a critic of its own.")
        if not is_own_code(model.generator):
            pyramid_of(image_shape)
        own.check_own(model, image_shape, classes, private_critic=self.OWN_CRITIC == "private")
        self.check_precision()
        check_memory(
            checkpoint.generator_bytes(model, image_shape, classes)
            + checkpoint.batch_bytes(model, image_shape, training.batch_size),
            f"model.width = {model.width} with training.batch_size = {training.batch_size:,}",
            "Lower one of them.",
            str(resolve_device(training.device)),
        )
        if training.batch_size == 1:
            self._refuse_batch_statistics()

    def refuse_idle_public(self) -> None:
        """Refuse to take the protection of images that nothing would read."""
        share = self.config.data.public_share
        if share and not self.reads_public:
            raise ConfigError(
                f"data.public_share = {share:g} takes all protection from that share of the private images, and "
                f"{self.row.name} with these settings reads no public image. Set data.public_share = 0."
            )

    def _refuse_batch_statistics(self) -> None:
        """Refuse a generator that cannot be trained on one image at a time: batch normalization needs two."""
        generator = checkpoint.build_generator(
            self.config.model, self.shape.image_shape, len(self.shape.classes)
        ).train()
        labels = torch.zeros(1, dtype=torch.int64) if generator.num_classes else None
        try:
            generator(torch.zeros(1, generator.latent_dim), labels)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"training.batch_size = 1, and model.generator = '{self.config.model.generator}' cannot be trained on "
                f"one image at a time: {error_line(error)}. Set training.batch_size to 2 or more."
            ) from error

    # Releases that it contains -------------------------------------------------------------------------------------

    @functools.cached_property
    def total(self) -> Guarantee | None:
        """What `events` and the charges of contained releases prove together; None if no contained release counts."""
        return self.total_of(self.price.events)

    def total_of(self, events: Sequence[Event]) -> Guarantee | None:
        """Return what the charges of a run and of contained releases prove together; None if no such release counts.

        Raises:
            InputError: If their deltas together are not below 1/N.
        """
        if not self.contained:
            return None
        parts = (Part(tuple(events), self.delta), *self.contained)
        most, delta = self._most_per_person, self.delta or None
        whole = total([parts], self.unit, self.relation, delta=delta, most_per_person=most).whole
        check_delta(whole.delta, self.shape.num_private, "privacy.delta together with that of the contained releases")
        return whole

    def joint_events(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Return the charges of a run and of contained releases as charges of the run's unit and relation."""
        whole = self.total_of(events)
        if whole is None:
            return tuple(events)
        return joint_events((Part(tuple(events), self.delta), *self.contained), whole, self._most_per_person)

    @property
    def names_origin(self) -> bool:
        """Whether the generator that the run builds on, if any, is among the contained releases of the config."""
        origin = self.config.model.origin
        if origin is None:
            return True
        stated = (origin.num_private, origin.unit, origin.relation)
        return any((release.num_private, *map(str, release.part.pair)) == stated for release in self.config.contained)

    @property
    def images_per_person(self) -> int | None:
        """The cap on a person's images that a contained release must keep to; None where there is none."""
        capped = self.unit.of_images and any(part.pair[0] is Unit.IMAGE for part in self.contained)
        return self._most_per_person if capped else None

    @property
    def _most_per_person(self) -> int:
        return getattr(self.config.privacy, "most_per_person", 1)

    @property
    def declared(self) -> list[str]:
        """What the config declares about public images, a prior and contained releases, one phrase each."""
        data, model, person = self.config.data, self.config.model, self.unit is Unit.PERSON
        phrases = [data.as_found] if data.taken else []
        if self.shape.sizes.public and not data.public_share and data.public is None:
            disjoint = data.public_disjoint or (person and data.confirm_public)
            shown = ", and that nobody of the private ones is on them" if disjoint else ""
            stated = f", license {data.public_license}" if data.public_license else ""
            phrases.append(
                f"that the images of data.public_root are public{shown}{stated}: the word of whoever made this release"
            )
        if data.public not in (None, "faces"):
            phrases.append(f"the drawn public images: {PAPERS[data.public]}")
        roles = {
            f"denoiser that was adapted ({', '.join(model.trained)})": bool(model.trained),
            "generator that drew what was moved": bool(model.moved) and model.simulator == "generator",
        }
        for role in (role for role, holds in roles.items() if holds and model.origin is not None):
            stated = f", license {model.origin.license}" if model.origin.license else ""
            phrases.append(
                f"the {role}: a {model.origin.model.generator} generator, weights of SHA-256 {model.origin.weights}, "
                f"learned from {model.origin.num_private:,} images{stated}"
            )
        if model.pipeline is not None:
            stated = model.pipeline.license or "not stated"
            phrases.append(
                f"the pipeline that was adapted ({', '.join(model.trained)}): {model.pipeline.kind}, weights of "
                f"SHA-256 {model.pipeline.weights}, license {stated}; that nobody of the private images is among what "
                "it learned from: the word of whoever made this release"
            )
        for release in self.config.contained:
            proven, what = release.part.proven, f"the contained release of method {release.method}"
            if data.public_disjoint:
                phrases.append(
                    f"that nobody of the private images is among the {release.num_private or 'unknown'} images of "
                    f"{what} (data.public_disjoint): its {proven} is not counted"
                )
            elif self.unit.of_images and proven.unit is Unit.IMAGE:
                phrases.append(f"the cap of {self._most_per_person} images of one {self.unit} in {what} too")
            if release.num_public and not data.public_disjoint:
                phrases.append(f"that the {release.num_public:,} public images of {what} are none of the private ones")
        return phrases
