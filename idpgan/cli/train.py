"""``idpgan train``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.cli.faults import INTERRUPTED, TERMINATED
from idpgan.cli.output import AsJson, Quiet, print_json
from idpgan.device import check_device
from idpgan.errors import ConfigError
from idpgan.progress import shown

if TYPE_CHECKING:
    from idpgan.jobs import Finished, Plan


def train(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key.sub=value ...]", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/DATA-METHOD-TIME.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue an interrupted run.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print config and cost in epsilon, read no image.")
    ] = False,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set lies (data.root).")] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to compute (training.device): auto, cpu, cuda or cuda:1.")
    ] = None,
    accept_unsound: Annotated[bool, typer.Option("--accept-unsound", help="Run a method that proves nothing.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a generator or a classifier, and release it.

    Without a config the embedded default is trained. Settings override the config.

    Example: idpgan train configs/mnist-wgan-gp.toml training.steps=20000 --data-root ../shared/data
    """
    config_path, overrides = _parse(arguments or [])
    if accept_unsound:
        overrides.append("privacy.accept_unsound=true")
    if device is not None:
        overrides.append(f"training.device={json.dumps(check_device(device, '--device'))}")
    if resume is not None and (config_path or overrides or out or dry_run):
        raise ConfigError("--resume continues a run as it was configured: give it alone, or with --data-root.")

    if data_root is not None:
        overrides.append(f"data.root={json.dumps(str(data_root))}")  # a JSON string is a TOML string

    from idpgan import jobs

    if dry_run:
        config = jobs.load_config(config_path, overrides)
        planned = jobs.plan(config, out)
        if as_json:
            print_json({"config": config.model_dump(mode="json"), "plan": planned.to_json()})
        else:
            from idpgan.config import dump_toml

            print(dump_toml(config))
            print(_describe(planned))
            if planned.signal is not None:
                print(f"# Signal to noise: {planned.signal.figure:.3g} at most (docs/signal.md).")
                if planned.signal.warning:
                    print(f"# Warning: {planned.signal.warning}")
        return

    with shown(quiet or as_json) as progress:
        if resume is not None:
            finished = jobs.resume(resume, data_root, progress)
        else:
            finished = jobs.start(jobs.load_config(config_path, overrides), out, progress)
    _report(finished, as_json)


def _parse(arguments: list[str]) -> tuple[Path | None, list[str]]:
    files = [text for text in arguments if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"one config file at most, got {', '.join(files)}. A setting is written section.key=value.")
    return Path(files[0]) if files else None, [text for text in arguments if "=" in text]


def _describe(planned: Plan) -> str:
    """Say in words what a run will cost."""
    where = f"unit {planned.unit}, {planned.relation}, {planned.num_private:,} private images"
    if planned.epsilon == float("inf"):
        return f"# Cost: epsilon is infinite, no guarantee ({where})."
    return f"# Cost: epsilon = {planned.epsilon:.4g} at delta = {planned.delta:.3g} ({where})."


def _report(finished: Finished, as_json: bool) -> None:
    run = finished.run
    if as_json:
        print_json(
            {
                "run": str(run.path),
                "ended": finished.outcome.ended,
                "step": finished.outcome.step,
                "release": str(run.release) if finished.released else None,
            }
        )
    else:
        print(finished.outcome.message)
        if finished.released:
            print(f"To give away: {run.release}   Curator only: the rest of {run.path}")
            shown = [run.release / name for name in ("samples.png", "README.md") if (run.release / name).is_file()]
            print(f"Look at: {' and '.join(map(str, shown))}")
    if finished.outcome.ended == "interrupted":
        raise typer.Exit(TERMINATED if finished.outcome.signal == "SIGTERM" else INTERRUPTED)
