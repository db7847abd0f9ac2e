"""``idpgan rehearse``: a whole run on public stand-ins, for several epsilons, before any budget is spent.

Nothing private is read: what is declared of the data set sets shape, number and classes of drawn faces, portraits or
written digits (`idpgan.data.stand_ins`), which go through the method, the sampling and the evaluation of the real run.
A table says how useful the images would be at each epsilon, and what that epsilon lets an attacker do.
"""

from __future__ import annotations

import functools
import io
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
from idpgan.progress import Progress, duration, renamed, silent

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.data.images import Images
    from idpgan.data.load import Split
    from idpgan.privacy.risk import Risk
    from idpgan.training.config import RunConfig
    from idpgan.training.plan import RunPlan

_MOST_DRAWN = 10_000  # generated images that teach the classifier
_ROWS, _COLUMNS = 3, 10  # of the small grid of an epsilon
_Measures = tuple[float | None, float | None, float | None]  # accuracy, its spread, KID


@dataclass(frozen=True)
class RehearseOptions:
    """What to rehearse, and at which epsilons."""

    arguments: Annotated[tuple[str, ...], Argument(metavar="[CONFIG] [key.sub=value ...]", show_default=False)] = ()
    epsilon: tuple[float, ...] = option((0.3, 1.0, 3.0, 10.0), "Epsilons to try: 1 3 10.", metavar="E ...")
    seeds: int = option(1, "Fits of the classifier at each epsilon.")
    out: Path | None = option(None, "PNG of what each epsilon draws.", metavar="FILE.png")
    data_root: Path | None = option(None, "Where the data set lies (data.root).")
    device: str | None = option(None, "Where to compute (training.device): auto, cpu, cuda or cuda:1.")

    def __post_init__(self) -> None:
        refuse_below(self, seeds=1)
        for epsilon in self.epsilons:
            if not 0 < epsilon < float("inf"):
                raise InputError(f"--epsilon {epsilon:g} must be positive and finite.")
        if self.out is not None and self.out.suffix.lower() != ".png":
            raise InputError(f"--out {self.out} must be the name of a picture, FILE.png.")
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


@dataclass(frozen=True)
class Rehearsed:
    """What came of one epsilon.

    Attributes:
        accuracy: Of the classifier that generated images taught, on stand-ins that nothing was trained on; None for
            unlabeled images, or a method that releases a classifier: its own.
        accuracy_std: Over its fits; None for one.
        kid: To those stand-ins; None for a classifier. Compare within one rehearsal only.
        risk: What any attack finds at most; None where nothing is proven.
        seconds: How long training and sampling took.
    """

    epsilon: float
    delta: float
    accuracy: float | None
    accuracy_std: float | None
    kid: float | None
    risk: Risk | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        from idpgan.privacy.guarantee import number_to_json

        found = {key: number_to_json(value) if isinstance(value, float) else value for key, value in vars(self).items()}
        return {**found, "risk": self.risk and self.risk.to_json()}


@dataclass(frozen=True)
class Rehearsal:
    """The rehearsal of a config.

    Attributes:
        stand_ins: What stood in for the data, in words.
        majority: Accuracy of one constant answer; None for unlabeled images.
        real: Accuracy that the stand-ins themselves teach; None where there is none.
        rows: One for each epsilon, in their order.
        picture: PNG: a row of images for each epsilon, below one of stand-ins; None for a classifier.
    """

    method: str
    stand_ins: str
    num_private: int
    unit: str
    majority: float | None
    real: float | None
    rows: tuple[Rehearsed, ...]
    picture: bytes | None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict, without the picture."""
        table = {key: value for key, value in vars(self).items() if key not in ("rows", "picture")}
        return {**table, "rows": [row.to_json() for row in self.rows]}


@command
def rehearse(options: RehearseOptions, progress: Progress) -> Answer:
    """Try a config on public stand-ins at several epsilons, before any budget is spent: which epsilon?

    Drawn faces or written digits of the same size, number and classes go through the whole run; no private image is
    read. Every epsilon takes about as long as its training. Settings override the config.

    Example: idpgan rehearse config.toml --epsilon 1 10 --out rehearsal.png
    """
    done = rehearse_config(options, progress)
    return Answer(done, lambda: _tell(done, options))


def _tell(done: Rehearsal, options: RehearseOptions) -> None:
    real = "" if done.real is None else f" The stand-ins themselves teach {done.real:.1%}."
    constant = "" if done.majority is None else f" One constant answer: {done.majority:.1%}."
    print_lines(
        [f"Method {done.method} on {done.stand_ins}, unit {done.unit}. Nothing private was read.{real}{constant}"]
    )
    rows = [
        (
            f"{row.epsilon:g}",
            ""
            if row.accuracy is None
            else f"{row.accuracy:.1%}" + (f" ± {row.accuracy_std:.1%}" if row.accuracy_std else ""),
            "" if row.kid is None else f"{row.kid:.4f}",
            *(("100 %",) * 3 if row.risk is None else (most for _, most, _ in row.risk.rows())),
            duration(row.seconds),
        )
        for row in done.rows
    ]
    head = ("epsilon", "accuracy", "KID", "found at 1 %", "at 0.1 %", "guessed", "took")
    print_table(head, rows, frame=False)
    lines = [
        "accuracy: of a small CNN that the generated images taught, on stand-ins that nothing was trained on. On your "
        "images it will differ: compare the rows.",
    ]
    if risk := done.rows[0].risk:
        at_one, _, guess = (what for what, *_ in risk.rows())
        lines += [f"found: the most that any attack reaches: {at_one}, or 0.1 %.", f"guessed: {guess}."]
    lines += [] if options.out is None else [f"Look at: {options.out}"]
    print_lines(lines)


@own_state()
def rehearse_config(options: RehearseOptions, progress: Progress = silent) -> Rehearsal:
    """Rehearse a config at several epsilons; the picture is written if ``options.out`` says where.

    Raises:
        InputError: If the config cannot be rehearsed, found out before anything is drawn where possible.
    """
    from idpgan.data import load, stand_ins
    from idpgan.device import resolve_device
    from idpgan.files import check_writable, write_bytes_atomic
    from idpgan.metrics import fidelity
    from idpgan.metrics.cache import Cache
    from idpgan.release.outputs import refuse_closed
    from idpgan.trainer import load_config
    from idpgan.training.config import refuse_unsound
    from idpgan.training.plan import plan_run

    config = load_config(options.config, options.overrides)
    refuse_unsound(config)
    if options.out is not None:
        refuse_closed(options.out, f"--out {options.out}")
        check_writable(options.out)
    fidelity.check()
    device = resolve_device(config.training.device)
    shape = load.known_shape(config.data)
    configs = [_at(config, epsilon) for epsilon in options.epsilons]
    plans: list[RunPlan] = [plan_run(each, shape) for each in configs]
    for planned in plans:
        planned.check()
        _ = planned.price.epsilon  # an impossible delta or budget is refused here
    portraits = "people" in (config.data.public, config.model.simulator)
    split = stand_ins.stand_ins(shape, progress, portraits=portraits)
    rows, grids = [], [_grid(split.test)]
    with tempfile.TemporaryDirectory() as folder:  # of networks that were fitted to stand-ins
        measuring: Any = {"num_seeds": options.seeds, "cache": Cache(Path(folder)), "device": device}
        real = None
        if shape.classes:
            real, _, _ = _measured(split.private, split, ["utility"], renamed(progress, "stand-ins"), **measuring)
        for each, planned in zip(configs, plans, strict=True):
            name = f"epsilon {planned.price.budget.epsilon:g}" if planned.price.budget else "no budget"
            row, images = _rehearsed(
                each, planned, split, lambda *call, name=name: progress(f"{name}: {call[0]}", *call[1:]), **measuring
            )
            rows.append(row)
            grids += [] if images is None else [_grid(images)]
    picture = _picture(grids, rows) if len(grids) == len(rows) + 1 else None
    if options.out is not None and picture is not None:
        write_bytes_atomic(options.out, picture)
    kind = stand_ins.kind_of(shape, portraits)
    channels, height, width = shape.image_shape
    words = f"{shape.num_private:,} {kind}, {height} x {width} {'grey' if channels == 1 else 'color'}"
    labels = split.test.labels
    majority = None if labels is None else float(labels.bincount().max() / len(labels))
    unit = f"{plans[0].unit}, {plans[0].relation}"
    return Rehearsal(config.method.name, words, shape.num_private, unit, majority, real, tuple(rows), picture)


def _at(config: RunConfig, epsilon: float) -> RunConfig:
    """Return the config with another epsilon."""
    from idpgan.config import build

    if getattr(config.privacy, "epsilon", None) is None:
        raise ConfigError(
            f"method '{config.method.name}' has no privacy.epsilon to rehearse. Take a method that keeps to one."
        )
    table = config.model_dump(mode="json", exclude_none=True)
    table["privacy"]["epsilon"] = epsilon
    table["privacy"].pop("noise_multiplier", None)
    return build(type(config), table, "the rehearsal")


def _rehearsed(
    config: RunConfig, planned: RunPlan, split: Split, progress: Progress, **measuring: Any
) -> tuple[Rehearsed, Images | None]:
    """Train, draw and measure at one epsilon, by stand-ins that nothing was trained on."""
    from idpgan.trainer import train_on

    started = time.monotonic()
    product = train_on(config, split, progress).artifact(config.release)
    budget = planned.price.budget
    terms = (budget.epsilon, budget.delta) if budget else (math.inf, 0.0)
    if not hasattr(product, "generator"):
        test, images = split.test, None
        right = (product.classifier.logits(test.images).argmax(1).cpu() == test.labels).double().mean()
        found: _Measures = float(right), None, None
        seconds = time.monotonic() - started
    else:
        num = min(max(split.num_private, 1000), _MOST_DRAWN)
        images = product.generator.sample_images(num, seed=0, progress=progress)
        seconds = time.monotonic() - started
        labeled = images.labels is not None and split.classes
        found = _measured(images, split, ["utility"] * bool(labeled) + ["fidelity"], progress, **measuring)
    return Rehearsed(*terms, *found, risk_of(planned), seconds), images


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


def risk_of(planned: RunPlan) -> Risk | None:
    """Return what any attack on the run finds at most; None where nothing is proven."""
    from idpgan.privacy.risk import Risk

    events = planned.joint_events(planned.price.events)
    return Risk.of(events) if all(event.is_private for event in events) else None


def _grid(images: Images) -> Tensor:
    """Return a small grid, uint8 (C, H, W): classes in turn where there are some."""
    import torch

    from idpgan.data.images import make_grid

    chosen = torch.arange(min(_ROWS * _COLUMNS, len(images)))
    if images.labels is not None:
        by_class = images.labels.argsort(stable=True)
        counts = torch.bincount(images.labels, minlength=len(images.classes))
        starts = counts.cumsum(0) - counts
        kinds = torch.arange(_ROWS * _COLUMNS) % _COLUMNS % len(images.classes)
        turns = torch.arange(_ROWS * _COLUMNS) // min(_COLUMNS, len(images.classes))
        chosen = by_class[(starts[kinds] + turns % counts[kinds].clamp(min=1)).clamp(max=len(images) - 1)]
    return make_grid(images.images[chosen], _COLUMNS)


def _picture(grids: Sequence[Tensor], rows: Sequence[Rehearsed]) -> bytes:
    """Return a PNG: the stand-ins, and below them what is generated at each epsilon, with its numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.1 * len(grids)), dpi=100, layout="constrained")
    titles = ["public stand-ins"]
    for row in rows:
        useful = "" if row.accuracy is None else f", accuracy {row.accuracy:.1%}"
        found = "" if row.risk is None else f", {(shown := row.risk.rows()[0])[1]} at most are {shown[0]}"
        titles.append(f"epsilon {row.epsilon:g}{useful}{found}")
    for number, (grid, title) in enumerate(zip(grids, titles, strict=True)):
        axes = figure.add_subplot(len(grids), 1, number + 1)
        axes.imshow(grid.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
