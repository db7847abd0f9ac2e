"""``idpgan rehearse``: a whole run on public stand-ins, for several epsilons, before any budget is spent.

Nothing private is read: what is declared of the data set sets shape, number and classes of drawn faces, portraits or
written digits (`idpgan.data.stand_ins`), which go through the method, the sampling and the evaluation of the real run.
A table and a page (`idpgan.report.rehearsal`) say how useful the images would be at each epsilon, and what that epsilon
lets an attacker do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from idpgan.commands.command import Answer, command, option, print_lines, print_table, refuse_below
from idpgan.commands.train import TrainOptions
from idpgan.errors import ConfigError, InputError
from idpgan.host import own_state
from idpgan.progress import Progress, counted, duration, silent, within

if TYPE_CHECKING:
    from idpgan.data.images import Images
    from idpgan.data.load import DataShape, Split
    from idpgan.report.rehearsal import Rehearsal, Rehearsed, Repeated
    from idpgan.training.config import RunConfig
    from idpgan.training.plan import RunPlan

_MOST_DRAWN = 10_000  # generated images, or stand-ins, that teach a classifier
_UNITS = ("image", "person", "photo")
_Measures = tuple[float | None, float | None, float | None]  # accuracy, its spread, KID


@dataclass(frozen=True)
class RehearseOptions:
    """What to rehearse, and at which epsilons."""

    arguments: Annotated[tuple[str, ...], Argument(metavar="[CONFIG] [key.sub=value ...]", show_default=False)] = ()
    epsilon: tuple[float, ...] = option(
        (0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0), "Epsilons to try: 1 3 10.", metavar="E ..."
    )
    unit: tuple[str, ...] = option((), "Units to try; default: all that method and data have.", metavar="image|person")
    seeds: int = option(1, "Fits of the classifier at each epsilon.")
    out: Path | None = option(Path("rehearsal.html"), "Page to write.", metavar="FILE.html")
    data_root: Path | None = option(None, "Where the data set lies (data.root).")
    device: str | None = option(None, "Where to compute (training.device): auto, cpu, cuda or cuda:1.")

    def __post_init__(self) -> None:
        refuse_below(self, seeds=1)
        for epsilon in self.epsilons:
            if not 0 < epsilon < float("inf"):
                raise InputError(f"--epsilon {epsilon:g} must be positive and finite.")
        if unknown := [unit for unit in self.unit if unit not in _UNITS]:
            raise InputError(f"--unit {unknown[0]} is unknown. Known: {', '.join(_UNITS)}.")
        if self.out is not None and self.out.suffix.lower() != ".html":
            raise InputError(f"--out {self.out} must be the name of a page, FILE.html.")
        _ = self._train

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Epsilons to try, each once; numbers among the arguments are further ones, as in ``--epsilon 1 3 10``."""
        further = tuple(number for text in self.arguments if (number := _number(text)) is not None)
        named = self.epsilon if not further or self.epsilon != type(self).epsilon else ()
        return tuple(dict.fromkeys((*named, *further)))

    @functools.cached_property
    def _train(self) -> TrainOptions:
        arguments = tuple(text for text in self.arguments if _number(text) is None)
        return TrainOptions(arguments, data_root=self.data_root, device=self.device)

    @property
    def config(self) -> Path | None:
        """The config; None = the default."""
        return self._train.config

    @property
    def overrides(self) -> list[str]:
        """All settings."""
        return self._train.overrides


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@command
def rehearse(options: RehearseOptions, progress: Progress) -> Answer:
    """Try a config on public stand-ins at several epsilons, before any budget is spent: which epsilon?

    Drawn faces or written digits of the same size, number and classes go through the whole run; no private image is
    read. A table is printed, and a page written on which to choose. Every epsilon of every unit takes about as long as
    its training. Settings override the config.

    Example: idpgan rehearse config.toml --epsilon 1 10 --out rehearsal.html
    """
    done = rehearse_config(options, progress)
    return Answer(done, lambda: _tell(done, options))


def _tell(done: Rehearsal, options: RehearseOptions) -> None:
    from idpgan.report.rehearsal import rehearsal_table

    real = "" if done.real is None else f" The stand-ins themselves teach {done.real:.1%}."
    constant = "" if done.majority is None else f" One constant answer: {done.majority:.1%}."
    units = " and ".join(dict.fromkeys(f"{row.unit}, {row.relation}" for row in done.rows))
    print_lines([f"Method {done.method} on {done.stand_ins}, unit {units}. Nothing private was read.{real}{constant}"])
    table = rehearsal_table(done)
    took = [duration(row.seconds) for row in done.rows]
    rows = [(*cells, seconds) for cells, seconds in zip(table.rows, took, strict=True)]
    print_table((*table.head, "took"), rows, frame=False)
    lines = [
        "accuracy: of a small CNN that the generated images taught, on stand-ins that nothing was trained on. On your "
        "images it will differ: compare the rows.",
    ]
    if risk := done.rows[0].risk:
        at_one, _, guess = (what for what, *_ in risk.rows())
        lines += [f"found: the most that any attack reaches: {at_one}, or 0.1 %.", f"guessed: {guess}."]
    lines += [] if options.out is None else [f"To choose on: {options.out}"]
    print_lines(lines)


@own_state()
def rehearse_config(options: RehearseOptions, progress: Progress = silent) -> Rehearsal:
    """Rehearse a config at several epsilons; the page is written if ``options.out`` says where.

    Raises:
        InputError: If the config cannot be rehearsed, found out before anything is drawn where possible.
    """
    import torch

    from idpgan.data import load, stand_ins
    from idpgan.device import resolve_device
    from idpgan.files import check_writable, write_text_atomic
    from idpgan.metrics import fidelity
    from idpgan.metrics.cache import Cache
    from idpgan.release.outputs import check_page
    from idpgan.report.rehearsal import FORMAT, Rehearsal, rehearsal_page, some_of
    from idpgan.synthesis.facts import eyes_of
    from idpgan.trainer import load_config
    from idpgan.training.config import refuse_unsound

    config = load_config(options.config, options.overrides)
    refuse_unsound(config)
    if options.out is not None:
        check_page(options.out, FORMAT)
        check_writable(options.out)
    fidelity.check()
    device = resolve_device(config.training.device)
    shape, per_person = load.known_shape(config.data), load.per_person(config.data)
    plans = [
        _planned(_at(config, epsilon, unit, per_person), shape)
        for unit in options.unit or _units(config, shape)
        for epsilon in options.epsilons
    ]
    portraits = "people" in (config.data.public, config.model.simulator)
    drawing: Any = {"portraits": portraits, "eyes": eyes_of(config.data), "per_person": per_person}
    split = stand_ins.stand_ins(shape, progress, **drawing)
    judged = dataclasses.replace(
        split, private=split.private.select(torch.arange(min(len(split.private), _MOST_DRAWN)))
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:  # of networks that were fitted to stand-ins
        measuring: Any = {"num_seeds": options.seeds, "cache": Cache(Path(folder)), "device": device}
        real = None
        if shape.classes:
            real, _, _ = _measured(judged.private, judged, ["utility"], within(progress, "stand-ins"), **measuring)
        for planned in counted(plans, progress, "rehearsals", len(plans)):
            budget = planned.price.budget
            name = f"{planned.unit}, epsilon {budget.epsilon:g}" if budget else "no budget"
            rows.append(_rehearsed(planned, split, judged, within(progress, name), **measuring))
    kind = stand_ins.kind_of(shape, portraits)
    channels, height, width = shape.image_shape
    words = f"{shape.num_private:,} {kind}, {height} x {width} {'grey' if channels == 1 else 'color'}"
    labels = split.test.labels
    majority = None if labels is None else float(labels.bincount().max() / len(labels))
    facts: Any = {"majority": majority, "real": real, "shown": some_of(split.private)}
    facts["chosen"] = getattr(config.privacy, "epsilon", None)  # `_at` has refused a method without
    done = Rehearsal(config.method.name, words, shape.num_private, rows=tuple(rows), **facts)
    if options.out is not None:
        write_text_atomic(options.out, rehearsal_page(done))
    return done


def _units(config: RunConfig, shape: DataShape) -> list[str]:
    """Return the units that method and data have, the config's first."""
    from idpgan.methods import METHODS

    own = getattr(config.privacy, "unit", None)
    if own is None:
        return [METHODS[config.method.name].units[0]]
    if shape.of_photos or not shape.has_people or config.data.split_by != "identity":
        return [str(own)]
    return list(dict.fromkeys([str(own), *(unit for unit in METHODS[config.method.name].units if unit in _UNITS[:2])]))


def _planned(config: RunConfig, shape: DataShape) -> RunPlan:
    from idpgan.training.plan import plan_run

    planned: RunPlan = plan_run(config, shape)
    planned.check()
    _ = planned.price.epsilon  # an impossible delta or budget is refused here
    return planned


def _at(config: RunConfig, epsilon: float, unit: str, per_person: float | None) -> RunConfig:
    """Return the config with another epsilon and unit, whose cap is that of `idpgan init` where it had none."""
    from idpgan.config import build

    if getattr(config.privacy, "epsilon", None) is None:
        raise ConfigError(
            f"method '{config.method.name}' has no privacy.epsilon to rehearse. Take a method that keeps to one."
        )
    table = config.model_dump(mode="json", exclude_none=True)
    privacy = table["privacy"]
    if privacy.get("unit", unit) != unit:
        privacy["unit"] = unit
        if unit != "image" and per_person is not None:
            privacy["most_per_person"] = math.ceil(per_person)
    privacy["epsilon"] = epsilon
    privacy.pop("noise_multiplier", None)
    return build(type(config), table, "the rehearsal")


def _rehearsed(planned: RunPlan, split: Split, judged: Split, progress: Progress, **measuring: Any) -> Rehearsed:
    """Train, draw and measure at one epsilon, by stand-ins that nothing was trained on."""
    from idpgan.report.rehearsal import Rehearsed, some_of
    from idpgan.trainer import train_on

    started, config = time.monotonic(), planned.config
    product = train_on(config, split, progress).artifact(config.release)
    budget = planned.price.budget
    terms = (budget.epsilon, budget.delta) if budget else (math.inf, 0.0)
    shown = None
    if not hasattr(product, "generator"):
        test = split.test
        right = (product.classifier.logits(test.images).argmax(1).cpu() == test.labels).double().mean()
        found: _Measures = float(right), None, None
        seconds = time.monotonic() - started
    else:
        num = min(max(split.num_private, 1000), _MOST_DRAWN)
        images = product.generator.sample_images(num, seed=0, progress=progress)
        seconds = time.monotonic() - started
        labeled = images.labels is not None and split.classes
        found = _measured(images, judged, ["utility"] * bool(labeled) + ["fidelity"], progress, **measuring)
        shown = some_of(images)
    return Rehearsed(planned.unit, planned.relation, *terms, *found, repeated(planned), seconds, shown)


def _measured(images: Images, split: Split, names: Sequence[str], progress: Progress, **measuring: Any) -> _Measures:
    """Return the accuracy that images teach the small CNN, its spread, and the KID; None where it is not asked for."""
    import torch

    from idpgan.metrics.evaluation import evaluate_images

    results: Any = evaluate_images(images, split, names, classifiers=("cnn",), progress=progress, **measuring).results
    kid = results["fidelity"].kid if "fidelity" in names else None
    if "utility" not in names:
        return None, None, kid
    accuracies = torch.tensor(results["utility"].scores[0].accuracies, dtype=torch.float64)
    return float(accuracies.mean()), float(accuracies.std()) if len(accuracies) > 1 else None, kid


def repeated(planned: RunPlan) -> tuple[Repeated, ...]:
    """Return what the run costs once and several times; nothing where nothing is proven."""
    from idpgan.report.rehearsal import TIMES, Repeated

    events = planned.joint_events(planned.price.events)
    if not all(event.is_private for event in events):
        return ()
    return tuple(Repeated.of(events, times, planned.delta) for times in TIMES)
