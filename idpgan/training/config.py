"""The sections of a config file that every method has. Light to import: the command line reads it without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from idpgan.config import Keys, Section, build, digest, key, nearest_hint, section
from idpgan.data.config import WHERE_FILES_LIE, DataConfig, License
from idpgan.device import check_device
from idpgan.errors import ConfigError
from idpgan.methods import EARLIER, load, methods_of, names_of, row_of
from idpgan.models.config import ModelConfig, of_release
from idpgan.own_code import is_own_code
from idpgan.removed import gone

if TYPE_CHECKING:
    from idpgan.privacy.totals import Part

MOST_EVENTS, MOST_CONTAINED = 20, 20  # a forged longer list may take long to price
MOST_STEPS = 100_000_000  # more than a year at three steps a second
CHOOSE_DELTA = (
    "It is part of this method's guarantee, so it must be chosen: below 1/N for N private images, usually the smaller "
    "of 1e-5 and 1 / (10 N)."
)

DELTA_ABOVE_ZERO: Keys = {
    "delta": key(
        float,
        ...,
        "Below 1/N for N private images, usually ``min(1e-5, 1 / (10 N))``; above 0, as the noise is Gaussian.",
        gt=0,
        lt=1,
        hint=CHOOSE_DELTA,
    )
}
"""delta in [privacy] of a method whose noise is Gaussian."""


class MethodConfig(Section):
    """[method]: the method's own settings.

    Attributes:
        name: A name in `idpgan.methods`; each method narrows it to its own.
    """

    name: str


ENGINE: Keys = {
    "engine": key(
        Literal["idpgan", "opacus"],
        "idpgan",
        'What finds, clips and sums the gradients of single records: "idpgan", or "opacus", the library that most use. '
        "Coins, noise and price are the same.",
    ),
    "secure_mode": key(
        bool,
        False,
        "Whether each number of the noise is half the sum of four, as in Opacus' mode of that name; the source of the "
        'numbers is the same. "opacus" only.',
    ),
}
"""Keys of [method] of a method whose steps are those of DP-SGD by either engine; `check_engine` checks them."""


def check_engine(method: Any) -> None:
    """Refuse a mode of Opacus for another engine; raises `ConfigError`."""
    if method.secure_mode and method.engine != "opacus":
        raise ConfigError(
            'method.secure_mode = true is a mode of Opacus. Set method.engine = "opacus", or leave it out.'
        )


class PrivacyConfig(Section):
    """[privacy]: methods with noise add their parameters, which have no defaults.

    Attributes:
        delta: Where epsilon is stated, below 1/N for N private images; None is ``min(1e-5, 1 / (10 N))``.
        accept_unsound: Must be true for a method of which a paper claims an epsilon that nothing proves.
    """

    delta: float | None = Field(None, gt=0, lt=1)
    accept_unsound: bool = False


class ReleaseConfig(Section):
    """[release]: what the folder to give away holds besides generator and report.

    Attributes:
        samples: Images in samples.png and in the grid of each tick, rounded up to full rows.
        license: Under which the release is given away, such as "cc-by-4.0"; None = unknown, and the card says so.
        mark: Whether pictures say in a form for machines that they are artificial; see `idpgan.release.mark`.
    """

    samples: int = Field(64, ge=1, le=4096)
    license: License | None = None
    mark: bool = True


class TrainingConfig(Section):
    """How long, how large, how often, where.

    Attributes:
        steps: Critic steps of the whole run. Progress is counted in them, because they are what costs budget.
        batch_size: Real images per critic step; also the number of generated images per step.
        tick_steps: Critic steps between two ticks: save, statistics, epsilon, sample grid, metrics.
        seed: Seeds initial weights, latent vectors and batch order. Never privacy noise: a published seed would let
            anyone subtract it.
        device: "auto" (the GPU where there is one, else the CPU), "cpu", "cuda" or "cuda:1". All is float32 or float64,
            but for ``precision``.
        precision: Of the products in the gradients of single records: "float32", or "tf32" and "bf16" where the device
            has them. Norms, clipping, sums and noise are as exact with each.
    """

    DROPPED: ClassVar[Mapping[str, Any]] = {"diverged_above": 1e8}

    steps: int = Field(10_000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(64, ge=1, le=1_000_000)
    tick_steps: int = Field(500, ge=1, le=MOST_STEPS)
    seed: int = Field(0, ge=0, lt=2**63)
    device: Annotated[str, AfterValidator(check_device)] = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"


class Contained(Section):
    """[[contained]]: a release that another one contains, as it states itself; `idpgan train` writes this section.

    The config's declarations decide whether they count, never the images. Whoever takes a release as public must
    declare that it read none of the people in the private images (``data.public_disjoint``). Otherwise its charges
    stand first on the run's ledger, and the total of both is stated wherever the run's own epsilon is. Deciding by a
    digest of the private images would itself be a leak, and one changed record would evade it.

    Attributes:
        method: Its method.
        num_private: Private images that it was made from; None: nothing says so.
        num_public: Images that it called public, drawn ones aside: nothing protects them.
        delta: Where it states its epsilon.
        events: All that it charged, see `idpgan.privacy.Event`; more than 20 kinds as one of its epsilon and delta.
    """

    method: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    num_private: Annotated[int, Field(ge=1)] | None = None
    num_public: int = Field(0, ge=0)
    delta: float = Field(ge=0, lt=1)
    events: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=MOST_EVENTS)

    @field_validator("events")
    @classmethod
    def _check_events(cls, events: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        from idpgan.privacy.totals import Part  # imported here and below, as this module must be light to import

        return tuple(Part.from_json({"delta": 0.0, "events": events}).to_json()["events"])

    @property
    def part(self) -> Part:
        """Its charges."""
        from idpgan.privacy.totals import Part

        return Part.from_json({"delta": self.delta, "events": self.events})


class RunConfig(Section):
    """A whole config file; `settings` makes that of a method, and the method's ``Plan`` says what the run costs.

    Attributes:
        contained: Releases that the run's release contains; `idpgan train` reads them where [data] names them.
        ABILITIES: What the method can do beyond others: "move" (it releases a normal distribution, onto which public
            images can be moved), "adapt" (steps on few weights of a public network), "record-gradients" (a gradient of
            each record by itself, in numbers of any precision).
    """

    ABILITIES: ClassVar[frozenset[str]] = frozenset()

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig
    privacy: PrivacyConfig = PrivacyConfig()
    training: TrainingConfig = TrainingConfig()
    release: ReleaseConfig = ReleaseConfig()
    contained: Annotated[tuple[Contained, ...], Field(max_length=MOST_CONTAINED)] = ()

    @model_validator(mode="after")
    def _check_ability(self) -> Self:
        """Refuse what the method cannot do with a model."""
        model, method = self.model, self.method
        has_teacher = bool(getattr(method, "teacher_share", 0))
        if model.moved and "move" not in self.ABILITIES:
            raise ConfigError(
                f"model.moved = {model.moved} needs method gaussian, which releases a normal distribution, and this is "
                f"{method.name}. Set model.moved = 0."
            )
        if model.drawn.agreed and not has_teacher:
            raise ConfigError(
                f'model.drawing = "{model.drawing}" takes public images that a teacher finds to be of their class: set '
                'method.teacher_share above 0, or model.drawing = "handwriting".'
            )
        if model.drawn.detail and has_teacher:
            raise ConfigError(
                f'model.drawing = "{model.drawing}" draws edges that no private image has, and a teacher would choose '
                'by them. Set method.teacher_share = 0, or model.drawing = "photos".'
            )
        if model.trained and "adapt" not in self.ABILITIES:
            raise ConfigError(
                f"model.trained = {list(model.trained)} adapts a public network by method diffusion, and this is "
                f"{method.name}. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        able = "record-gradients" in self.ABILITIES and getattr(self.method, "engine", "idpgan") == "idpgan"
        if self.training.precision != "float32" and not able:
            raise ConfigError(
                f'training.precision = "{self.training.precision}" is for methods that make the gradient of each '
                f"record by itself, and {self.method.name} does not, or not by its own engine. Leave it out."
            )
        return self

    @property
    def counted(self) -> tuple[Part, ...]:
        """Charges of contained releases that may have read the private images: none where all is declared."""
        return () if self.data.public_disjoint else tuple(release.part for release in self.contained)

    @property
    def own_code(self) -> tuple[str, ...]:
        """Paths of the user's code that the run uses, of [model] and of the method's own settings."""
        values = (getattr(self.method, name) for name in type(self.method).model_fields)
        return (*self.model.own_code, *(value for value in values if isinstance(value, str) and is_own_code(value)))

    def identity(self) -> str:
        """Return the SHA-256 (hex) that names the run: all settings except the paths of files, which may move."""
        nowhere = dict.fromkeys(WHERE_FILES_LIE)
        return digest(self.model_copy(update={"data": self.data.model_copy(update=nowhere)}))

    def to_json(self) -> dict[str, Any]:
        """See `Section.to_json`; the names of data and method are always written, also if they are the default."""
        named = {
            key: {"name": part.name, **part.to_json()} for key, part in (("data", self.data), ("method", self.method))
        }
        return named | {key: value for key, value in super().to_json().items() if key not in named}


def settings(
    name: str,
    *,
    method: Sequence[Keys] = (),
    privacy: Sequence[Keys] = (),
    training: Sequence[Keys] = (),
    model: ModelConfig | None = None,
    checks: Iterable[Callable[[Any], None]] = (),
    method_checks: Iterable[Callable[[Any], None]] = (),
    dropped: Mapping[str, Any] | None = None,
    abilities: Iterable[str] = (),
) -> Any:
    """Return the ``Settings`` of a method: a `RunConfig` with the method's keys beside those that all methods have.

    Args:
        name: Of the method.
        method: Its keys in [method]; those of later ones in the place of earlier ones.
        privacy: Its keys in [privacy].
        training: Its keys, or other defaults, in [training].
        model: Its default of [model].
        checks: Raise a `ConfigError` where sections do not fit together; called with the whole config, in their order.
        method_checks: The same for [method] alone.
        dropped: Keys of [method] of earlier versions; see `Section.DROPPED`.
        abilities: See `RunConfig`.
    """
    parts: dict[str, tuple[type[Section], Sequence[Keys], Iterable[Callable[[Any], None]]]] = {
        "method": (MethodConfig, ({"name": key(Literal[name], name, "Of the method.")}, *method), method_checks),
        "privacy": (PrivacyConfig, privacy, ()),
        "training": (TrainingConfig, training, ()),
    }
    sections: dict[str, Any] = {} if model is None else {"model": model}
    for part, (base, keys, of_part) in parts.items():
        if keys:
            made = section(base, *keys, checks=of_part, dropped=dropped if part == "method" else None)
            complete = not any(field.is_required() for field in made.model_fields.values())
            sections[part] = key(made, made() if complete else ..., f"[{part}] of {name}.")
    made = section(RunConfig, sections, checks=checks)
    made.ABILITIES = frozenset(abilities)
    return made


def section_of(config: Any, name: str) -> Any:
    """Return the class of a section of a method's ``Settings``."""
    return config.model_fields[name].annotation


def load_method(name: str) -> Any:
    """Return the module of a method that `idpgan train` knows: its ``Settings``, ``Plan`` and ``Method``.

    Raises:
        ConfigError: If there is none of that name; the message names the nearest one.
    """
    known = methods_of("generator", "classifier")
    if name not in known:
        if went := gone(f'method.name = "{name}"'):
            raise ConfigError(went)
        by_family = names_of("generator", "classifier")
        raise ConfigError(f"method.name = '{name}' is not a known method. {nearest_hint(name, known, by_family)}")
    return load(name)


def build_config(
    table: Mapping[str, Any], where: str, settings: Sequence[str] = (), *, earlier: bool = False
) -> RunConfig:
    """Build the config class of the method that the table names.

    Args:
        table: The sections as read from TOML.
        where: Names the table in messages, for example the file.
        settings: That were put into the table; see `idpgan.config.build`.
        earlier: Whether the table is of a release or a run that an earlier version made: its method may have gone
            since, and its way of drawing may be numbers.

    Raises:
        ConfigError: If method.name is missing or unknown, or a key or value is refused.
    """
    section = table.get("method", {})
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str):
        known = names_of("generator", "classifier")
        raise ConfigError(f"{where} names no method. Set method.name to one of: {known}.")
    if earlier and isinstance(model := table.get("model"), Mapping):
        table = {**table, "model": of_release(model)}
    method = load(name) if earlier and name in EARLIER else load_method(name)
    config: RunConfig = build(method.Settings, table, where, settings)
    return config


def refuse_unsound(config: RunConfig) -> None:
    """Refuse a method whose paper claims an epsilon without a proof, unless the user accepts it.

    Raises:
        ConfigError: Saying what is proven, and how to run it all the same.
    """
    info = row_of(config.method.name)
    if info.sound is False and not config.privacy.accept_unsound:
        raise ConfigError(
            f"method '{info.name}' is unsound: {info.reason}. Its proven epsilon is {info.proven}. To run it all "
            "the same, set privacy.accept_unsound = true or give --accept-unsound."
        )


def at_root(data_root: Path | None) -> list[str]:
    """Return the setting ``data.root``, which says where a data set lies; none if the data set has not moved."""
    return [] if data_root is None else [f"data.root={json.dumps(str(data_root))}"]  # a JSON string is a TOML string
