"""The sections of a config file that every method has. Light: the command line reads it without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from idpgan.config import Section, build, digest, nearest_hint
from idpgan.data.config import WHERE_FILES_LIE, DataConfig
from idpgan.device import check_device
from idpgan.errors import ConfigError
from idpgan.methods import METHODS, load, methods_of
from idpgan.models.config import ModelConfig, classes_of, pyramid_of
from idpgan.training.contained import MOST_CONTAINED, Contained

if TYPE_CHECKING:
    from idpgan.data.load import DataShape
    from idpgan.privacy.event import Event
    from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
    from idpgan.privacy.ledger import Budget
    from idpgan.privacy.noise import Source
    from idpgan.training.signal import Signal


MOST_STEPS = 100_000_000  # more than a year at three a second
CHOOSE_DELTA = (
    "It is part of this method's guarantee, so it must be chosen: below 1/N for N private images, usually the smaller "
    "of 1e-5 and 1 / (10 N)."
)


class MethodConfig(Section):
    """[method]: the method's own settings.

    Attributes:
        name: A name in `idpgan.methods`; each method narrows it to its own.
    """

    name: str


class PrivacyConfig(Section):
    """[privacy]: methods with noise add their parameters, which have no defaults.

    Attributes:
        delta: Where epsilon is stated; None is ``min(1e-5, 1 / (10 N))`` for N private images.
        accept_unsound: Must be true for a method of which a paper claims an epsilon that nothing proves.
    """

    delta: float | None = Field(None, gt=0, lt=1)
    accept_unsound: bool = False


class ReleaseConfig(Section):
    """[release]: what the folder to give away holds besides generator and report.

    Attributes:
        samples: Images in samples.png and in the grid of each tick, rounded up to full rows.
    """

    samples: int = Field(64, ge=1, le=4096)


class TrainingConfig(Section):
    """How long, how large, how often, where.

    Attributes:
        steps: Critic steps of the whole run. Progress is counted in them, because they are what costs budget.
        batch_size: Real images per critic step; also the number of generated images per step.
        tick_steps: Critic steps between two ticks: save, statistics, epsilon, sample grid, metrics.
        seed: Seeds initial weights, latent vectors and batch order. Never privacy noise: a published seed would let
            anyone subtract it.
        device: "auto" (the GPU where there is one, else the CPU), "cpu", "cuda" or "cuda:1". All is float32 or float64.
        diverged_above: A statistic whose mean over a tick is larger than this (or not finite) stops the run.
            Losses are of order 1 to 100.
    """

    steps: int = Field(10_000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(64, ge=1, le=1_000_000)
    tick_steps: int = Field(500, ge=1, le=MOST_STEPS)
    seed: int = Field(0, ge=0, lt=2**63)
    device: Annotated[str, AfterValidator(check_device)] = "auto"
    diverged_above: float = Field(1e8, gt=0)


class RunConfig(Section):
    """A whole config file. A method's ``Config`` narrows `method` and `privacy` and plans the run's charges.

    Attributes:
        contained: Releases that the run's release contains; `idpgan train` reads them where [data] names them.
    """

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig
    privacy: PrivacyConfig = PrivacyConfig()
    training: TrainingConfig = TrainingConfig()
    release: ReleaseConfig = ReleaseConfig()
    contained: Annotated[tuple[Contained, ...], Field(max_length=MOST_CONTAINED)] = ()

    def identity(self) -> str:
        """Return the SHA-256 (hex) that names the run: all settings but where the files lie, which may move."""
        nowhere = dict.fromkeys(WHERE_FILES_LIE)
        return digest(self.model_copy(update={"data": self.data.model_copy(update=nowhere)}))

    def to_json(self) -> dict[str, Any]:
        """See `Section.to_json`; the names of data and method are there, whatever is the default."""
        named = {
            key: {"name": part.name, **part.to_json()} for key, part in (("data", self.data), ("method", self.method))
        }
        return named | {key: value for key, value in super().to_json().items() if key not in named}

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """Return unit, relation and target of the run's ledger.

        Unit and relation are those of [privacy], or of the method's row where it leaves no choice; the target is the
        epsilon and delta of [privacy], None where the method has no epsilon to keep to.
        """
        from idpgan.data.load import describe  # here, as below: this module is light
        from idpgan.privacy.guarantee import Relation, Unit
        from idpgan.privacy.ledger import Budget

        row, privacy = METHODS[self.method.name], self.privacy
        unit = getattr(privacy, "unit", None) or Unit(row.units[0])
        relation = getattr(privacy, "relation", None) or Relation(row.relation)
        epsilon, delta = getattr(privacy, "epsilon", None), privacy.delta
        if epsilon is None:
            return unit, relation, None
        if delta is None:
            found = describe(self.data)
            delta = self.stated_delta(found.num_private if found else 1)
        return unit, relation, Budget(epsilon, delta)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """Return the very events that the run charges if it does all its steps, known without reading an image."""
        raise NotImplementedError

    def claimed(self, shape: DataShape) -> Guarantee | None:
        """Return what the paper states; of a method that calibrates its noise, the budget that was asked for."""
        from idpgan.privacy.guarantee import Guarantee

        unit, relation, target = self.ledger_terms()
        if target is None:
            return None
        return Guarantee(target.epsilon, target.delta, unit, relation, "privacy.epsilon of the config")

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """Return in one sentence what the proven number rests on."""
        raise NotImplementedError

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """Return what the guarantee takes as public, one phrase each."""
        raise NotImplementedError

    def report(
        self, shape: DataShape, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]
    ) -> PrivacyReport:
        """Return the privacy report of a run; `verify` derives it again.

        Args:
            events: All charges of the run.
            proven: The guarantee that they prove.
            noise: Sources of the noise, in the order of the method's parts.
        """
        from idpgan.privacy.guarantee import PrivacyReport

        return PrivacyReport(
            claimed=self.claimed(shape),
            proven=proven,
            audited=None,
            reason=self.reason(shape, events, noise),
            private=proven.finite and noise[0].private,
            public_assumptions=self.public_assumptions(shape, noise),
        )

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """Return what of a release's description of its product does not follow from the settings, one sentence each.

        Args:
            described: What an `idpgan.release.artifact.Artifact` says of itself, well formed.
        """
        problems, teacher = [], described.get("teacher")
        if (None if teacher is None else teacher.get("candidates")) != self.candidates:
            problems.append("the generator has another teacher than the run's, or chooses among other candidates.")
        if described.get("model") != self.model.to_json():
            problems.append("the generator is not of the run's [model].")
        if described.get("samples") != self.release.samples:
            problems.append(f"{described.get('samples')} samples are shown, not release.samples.")
        return problems

    @property
    def candidates(self) -> int | None:
        """Images that the released generator draws for each one that its teacher chooses; None without a teacher."""
        return None

    def stated_delta(self, num_private: int) -> float:
        """Return the delta at which epsilon is stated: the configured one, or the default for N private images.

        Raises:
            InputError: If the configured one is not below 1/N.
        """
        from idpgan.privacy.guarantee import check_delta, default_delta

        delta = self.privacy.delta
        if delta is None:
            return default_delta(num_private)
        check_delta(delta, num_private)
        return delta

    def check(self, shape: DataShape) -> None:
        """Refuse a config that the data's public shape or the machine's memory cannot serve.

        A dry run calls it, and the constructor of every method before anything else, so that both refuse the same.

        Raises:
            ConfigError: If the networks are not built for such images, or labels are asked for and missing.
            InputError: If the memory does not suffice.
        """
        from idpgan.device import resolve_device
        from idpgan.memory import check_memory
        from idpgan.models.families import batch_bytes, generator_bytes

        classes = classes_of(self.model, len(shape.classes))
        pyramid_of(shape.image_shape)
        needed = generator_bytes(self.model, shape.image_shape, classes)
        batch = batch_bytes(self.model, shape.image_shape, self.training.batch_size)
        check_memory(
            needed + batch,
            f"model.width = {self.model.width} with training.batch_size = {self.training.batch_size:,}",
            "Lower one of them.",
            str(resolve_device(self.training.device)),
        )

    def signal_to_noise(self, shape: DataShape) -> Signal | None:
        """Return the largest signal of a class against the noise; None if it is unknown.

        It follows from config and declared sizes alone, and `check` has passed.
        """
        return None

    @property
    def plans_exactly(self) -> bool:
        """Whether `planned_events` are the very events; else they are an upper bound that public images refine."""
        return True


class NonPrivateRun(RunConfig):
    """A whole config file of a method that reads raw images without noise at every step: nothing is promised."""

    @property
    def raw_read(self) -> Event:
        """What a step is charged as."""
        from idpgan.privacy.event import Event
        from idpgan.privacy.guarantee import Relation, Unit

        return Event.non_private(METHODS[self.method.name].reason, Unit.IMAGE, Relation.REPLACE_ONE)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """Return a read for each step."""
        return (self.raw_read.repeated(self.training.steps),)

    def report(
        self, shape: DataShape, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]
    ) -> PrivacyReport:
        """Return a report that claims and proves nothing."""
        from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit

        nothing = Guarantee(float("inf"), 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "raw images are read without noise")
        reason = METHODS[self.method.name].reason
        return PrivacyReport(claimed=None, proven=nothing, audited=None, reason=reason, private=False)


def load_method(name: str) -> Any:
    """Return the class of a method that `idpgan train` knows, an `idpgan.training.method.Method`.

    Raises:
        ConfigError: If there is none of that name; the message names the nearest one.
    """
    known = methods_of("gan", "classifier")
    if name not in known:
        raise ConfigError(f"method.name = '{name}' is no known method. {nearest_hint(name, known)}")
    return load(name)


def build_config(table: Mapping[str, Any], where: str) -> RunConfig:
    """Build the config class of the method that the table names.

    Args:
        table: The sections as read from TOML.
        where: Names the table in messages, for example the file.

    Raises:
        ConfigError: If method.name is missing or unknown, or a key or value is refused.
    """
    section = table.get("method", {})
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str):
        known = ", ".join(methods_of("gan", "classifier"))
        raise ConfigError(f"{where} names no method. Set method.name to one of: {known}.")
    config: RunConfig = build(load_method(name).Config, table, where)
    return config


def refuse_unsound(config: RunConfig) -> None:
    """Refuse a method whose paper claims what nothing proves, unless the user says so.

    Raises:
        ConfigError: Saying what is proven, and how to run it all the same.
    """
    info = METHODS[config.method.name]
    if info.sound is False and not config.privacy.accept_unsound:
        raise ConfigError(
            f"method '{info.name}' is unsound: {info.reason}. Its proven epsilon is {info.proven}. To run it all "
            "the same, set privacy.accept_unsound = true or give --accept-unsound."
        )
