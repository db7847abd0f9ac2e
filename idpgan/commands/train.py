"""``idpgan train``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idpgan.commands.command import INTERRUPTED, TERMINATED, Answer, command, given, option, print_lines, print_table
from idpgan.device import check_device
from idpgan.errors import ConfigError
from idpgan.files import pasted
from idpgan.progress import Progress
from idpgan.ranks import ALONE, Ranks, launched, refuse_several

if TYPE_CHECKING:
    from idpgan.trainer import Finished
    from idpgan.training.config import RunConfig
    from idpgan.training.plan import RunPlan


@dataclass(frozen=True)
class TrainOptions:
    """What to train and where, or which run to continue."""

    arguments: Annotated[
        tuple[str, ...], typer.Argument(metavar="[CONFIG] [key.sub=value ...]", show_default=False)
    ] = ()
    out: Path | None = option(None, "Run folder; default: runs/DATA-METHOD-TIME.")
    resume: Path | None = option(None, "Continue an interrupted run.", metavar="RUN")
    dry_run: bool = option(False, "Print config and cost in epsilon, read no image.")
    epsilon: tuple[float, ...] = option((), "With --dry-run, a table of these epsilons: 1 3 10.", metavar="E ...")
    data_root: Path | None = option(None, "Where the data set lies (data.root).")
    device: str | None = option(None, "Where to compute (training.device): auto, cpu, cuda or cuda:1.")
    accept_unsound: bool = option(False, "Run a method that proves nothing.")

    def __post_init__(self) -> None:
        files = self._files
        if len(files) > 1:
            raise ConfigError(
                f"one config file at most, got {', '.join(files)}. A setting is written section.key=value."
            )
        if self.epsilon and not self.dry_run:
            raise ConfigError(
                "--epsilon belongs to --dry-run, which compares. To train at one: privacy.epsilon=3, say."
            )
        if wrong := [epsilon for epsilon in self.epsilons if not 0 < epsilon < math.inf]:
            raise ConfigError(f"--epsilon {wrong[0]:g} must be positive and finite.")
        if self.device is not None:
            check_device(self.device, "--device")
        if self.resume is not None and given(self, "arguments", "accept_unsound", "device", "out", "dry_run"):
            raise ConfigError("--resume continues a run as it was configured: give it alone, or with --data-root.")

    @property
    def config(self) -> Path | None:
        """The config; None = the default."""
        return next(map(Path, self._files), None)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Those to compare, each once; numbers among the arguments are further ones, as in ``--epsilon 1 3 10``."""
        further = map(_number, self.arguments) if self.epsilon else ()
        return tuple(dict.fromkeys((*self.epsilon, *(number for number in further if number is not None))))

    @property
    def _files(self) -> list[str]:
        further = [text for text in self.arguments if self.epsilon and _number(text) is not None]
        return [text for text in self.arguments if "=" not in text and text not in further]

    @property
    def overrides(self) -> list[str]:
        """All settings, with those that have an option of their own last."""
        from idpgan.training.config import at_root

        settings = [text for text in self.arguments if "=" in text]
        settings += ["privacy.accept_unsound=true"] * self.accept_unsound
        settings += [] if self.device is None else [f"training.device={json.dumps(self.device)}"]
        return settings + at_root(self.data_root)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@command
def train(options: TrainOptions, progress: Progress) -> Answer | None:
    """Train a generator or a classifier, and release it.

    Without a config the embedded default is trained. A config may be one of the package's, by its name (idpgan init
    NAME prints it). Settings override the config. Several GPUs or machines share the steps of one run by
    torchrun --nproc-per-node 8 -m idpgan train ...: docs/reference/scale.md.

    Example: idpgan train mnist-wgan-gp training.steps=20000 --data-root ../shared/data
    """
    from idpgan import trainer
    from idpgan.config import dump_toml

    if options.dry_run:
        refuse_several("train --dry-run")
        config = trainer.load_config(options.config, options.overrides)
        if options.epsilons:
            return _compared(config, options.epsilons)
        planned = trainer.plan(config, options.out)
        priced = {"config": config.model_dump(mode="json"), "plan": planned.to_json()}
        lines = [*_describe(planned), *(f"# Taken as public: {phrase}." for phrase in trainer.sources(planned))]
        return Answer(priced, lambda: print(dump_toml(config), *lines, sep="\n"))
    with _processes() as ranks:
        if not ranks.first:
            trainer.follow(ranks)
            return None
        if options.resume is not None:
            finished = trainer.resume(options.resume, options.data_root, progress, ranks)
        else:
            config = trainer.load_config(options.config, options.overrides)
            planned = trainer.plan(config, options.out)
            for phrase in trainer.sources(planned):
                print(f"Taken as public: {phrase}.", file=sys.stderr)
            finished = trainer.start(config, options.out, progress, ranks, planned=planned)
    outcome, run, privacy = finished.outcome, finished.run, finished.privacy
    value: dict[str, Any] = {
        "run": str(run.path),
        "ended": outcome.ended,
        "step": outcome.step,
        "release": str(run.release) if finished.released else None,
        "privacy": privacy.to_json() if privacy else None,
        "warning": finished.warning,
    }
    stopped = TERMINATED if outcome.signal == "SIGTERM" else INTERRUPTED
    code = stopped if outcome.ended == "interrupted" else 0
    return Answer(value, lambda: print(outcome.message, *_ending(finished), sep="\n"), code)


def _compared(config: RunConfig, epsilons: tuple[float, ...]) -> Answer:
    """Show what each epsilon leaves of the signal and lets an attacker guess, from config and declared facts alone."""
    from idpgan.data.load import known_shape
    from idpgan.methods import load
    from idpgan.privacy.tradeoff import Risk
    from idpgan.training.config import refuse_unsound
    from idpgan.training.plan import plan_run

    refuse_unsound(config)
    shape, rows = known_shape(config.data), list[dict[str, Any]]()
    for epsilon in epsilons:
        planned: RunPlan = plan_run(_at(config, epsilon), shape)
        planned.check()
        signal, events = planned.signal, planned.joint_events(planned.price.events)
        figure = None if signal is None or not 0 < signal.figure < math.inf else signal.figure
        private = all(event.is_private for event in events)
        rows.append({
            "epsilon": epsilon, "signal_to_noise": figure,
            "noise_below": None if figure is None else math.ceil(shape.num_private / figure),
            "right_guesses": math.ceil(100 * Risk.of(events).best_guess) if private else 100,
        })  # fmt: skip
    taught = getattr(load(config.method.name).Method, "taught", None)

    where = f"unit {planned.unit}, {planned.relation}, {shape.num_private:,} private images"
    guess = "whether a record was used" if planned.relation == "zero-out-one" else "which of two contents a record has"
    lines = (
        f"{config.method.name}, {where}. Signal: docs/reference/signal.md.",
        f"Right guesses: {guess}, by the surest attacker there can be; a coin: 50.",
        f"Measured on other images (docs/results/measured.md): {taught or 'see there'}.",
    )

    def show() -> None:
        head = "epsilon", "signal to noise", "nothing but noise below", "right guesses"
        print_table(head, [_cells(**row) for row in rows], frame=False)
        print_lines(lines)

    return Answer({"method": config.method.name, "epsilons": rows, "measured": taught}, show)


def _cells(epsilon: float, signal_to_noise: float | None, noise_below: int | None, right_guesses: int) -> list[str]:
    signal, least = "not known", "not known"
    if signal_to_noise is not None:
        signal, least = f"{signal_to_noise:.3g}", f"{noise_below:,} images"
    return [f"{epsilon:g}", signal, least, f"{right_guesses} of 100"]


def _at(config: RunConfig, epsilon: float) -> RunConfig:
    """Return the config with another epsilon."""
    from idpgan.config import build

    if getattr(config.privacy, "epsilon", None) is None:
        raise ConfigError(f"method '{config.method.name}' has no privacy.epsilon to set. Leave --epsilon out.")
    table = config.model_dump(mode="json", exclude_none=True)
    table["privacy"]["epsilon"] = epsilon
    table["privacy"].pop("noise_multiplier", None)
    return build(type(config), table, "--epsilon")


@contextmanager
def _processes() -> Iterator[Ranks]:
    """Meet the other processes of `torchrun`; without it there is one, and PyTorch is not imported."""
    if launched()[1] == 1:
        yield ALONE
        return
    from idpgan.training.distributed import joined

    with joined() as ranks:
        yield ranks


def _describe(planned: RunPlan) -> list[str]:
    """Say in words what a run will cost, and how much can be learned."""
    price, all_charges, signal = planned.price, planned.total, planned.signal
    where = f"unit {price.unit}, {price.relation}, {planned.shape.num_private:,} private images"
    if price.epsilon == float("inf"):
        lines = [f"# Cost: epsilon is infinite, no guarantee ({where})."]
    else:
        total = "" if all_charges is None else f" In total, with the releases that it will contain: {all_charges}."
        lines = [f"# Cost: epsilon = {price.epsilon:.4g} at delta = {price.delta:.3g} ({where}).{total}"]
    if signal is not None:
        lines.append(f"# Signal to noise: {signal.figure:.3g} at most (docs/reference/signal.md).")
        lines += [f"# {signal.advice}"] if signal.advice else []
        lines += [f"# Warning: {signal.warning}"] if signal.warning else []
        lines += [f"# Expect {signal.foretold}"] if signal.foretold else []
    return lines


def _ending(finished: Finished) -> list[str]:
    """Say where everything lies, what is proven of it, and what comes next; nothing where nothing was released."""
    from idpgan.release.mark import SAMPLES

    run, privacy = finished.run, finished.privacy
    if privacy is None:
        return []
    shown = [run.release / name for name in (SAMPLES, "README.md") if (run.release / name).is_file()]
    lines = [
        f"To give away: {run.release}   Curator only: the rest of {run.path}",
        f"Look at: {' and '.join(map(str, shown))}",
    ]
    lines += [] if finished.warning is None else [f"Warning: {finished.warning}"]
    if not finished.license:
        lines.append('License: the card says "unknown". State one: release.license="cc-by-4.0", say, and data.license.')
    lines += [] if privacy.private else [f"NOT PRIVATE: {privacy.reason}"]
    fitting = {
        "sample": (run.release / SAMPLES).is_file(),
        "evaluate": True,
        "attack": finished.attackable,
        "audit": privacy.claimed is not None or privacy.proven.finite,
        "report": True,
    }
    words = [word for word, fits in fitting.items() if fits]
    return [*lines, f"Proven: {privacy.stated}. Next: idpgan {', '.join(words[:-1])} or {words[-1]} {pasted(run.path)}"]
