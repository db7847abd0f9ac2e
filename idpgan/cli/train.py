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
from idpgan.ranks import refuse_several

if TYPE_CHECKING:
    from idpgan.jobs import Finished
    from idpgan.privacy.guarantee import PrivacyReport
    from idpgan.training.plan import RunPlan


def train(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG] [key.sub=value ...]", show_default=False)
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
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="Release class names that may be people's (data.keep_names).")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a generator or a classifier, and release it.

    Without a config the embedded default is trained. A config may be one of the package's, by its name (idpgan init
    NAME prints it). Settings override the config. Several GPUs or machines share the steps of one run by
    torchrun --nproc-per-node 8 -m idpgan train ...: docs/scale.md.

    Example: idpgan train mnist-wgan-gp training.steps=20000 --data-root ../shared/data
    """
    config_path, overrides = _parse(arguments or [])
    if accept_unsound:
        overrides.append("privacy.accept_unsound=true")
    if keep_names:
        overrides.append("data.keep_names=true")
    if device is not None:
        overrides.append(f"training.device={json.dumps(check_device(device, '--device'))}")
    if resume is not None and (config_path or overrides or out or dry_run):
        raise ConfigError("--resume continues a run as it was configured: give it alone, or with --data-root.")

    if data_root is not None:
        overrides.append(f"data.root={json.dumps(str(data_root))}")  # a JSON string is a TOML string

    from idpgan import jobs

    if dry_run:
        refuse_several("train --dry-run")
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

    from idpgan.training.distributed import joined

    with joined() as ranks, shown(quiet or as_json or not ranks.first) as progress:
        if not ranks.first:
            jobs.follow(ranks)
            return
        if resume is not None:
            finished = jobs.resume(resume, data_root, progress, ranks)
        else:
            finished = jobs.start(jobs.load_config(config_path, overrides), out, progress, ranks)
    _report(finished, as_json)


def _parse(arguments: list[str]) -> tuple[Path | None, list[str]]:
    files = [text for text in arguments if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"one config file at most, got {', '.join(files)}. A setting is written section.key=value.")
    return Path(files[0]) if files else None, [text for text in arguments if "=" in text]


def _describe(planned: RunPlan) -> str:
    """Say in words what a run will cost."""
    price, found = planned.price, planned.total
    where = f"unit {price.unit}, {price.relation}, {planned.shape.num_private:,} private images"
    if price.epsilon == float("inf"):
        return f"# Cost: epsilon is infinite, no guarantee ({where})."
    total = "" if found is None else f" In total, with the releases that it will contain: {found}."
    return f"# Cost: epsilon = {price.epsilon:.4g} at delta = {price.delta:.3g} ({where}).{total}"


def _report(finished: Finished, as_json: bool) -> None:
    run = finished.run
    if as_json:
        print_json(
            {
                "run": str(run.path),
                "ended": finished.outcome.ended,
                "step": finished.outcome.step,
                "release": str(run.release) if finished.released else None,
                "privacy": finished.privacy.to_json() if finished.privacy else None,
                "warning": finished.warning,
            }
        )
    else:
        print(finished.outcome.message)
        if finished.privacy is not None:
            print("\n".join(_ending(finished, finished.privacy)))
    if finished.outcome.ended == "interrupted":
        raise typer.Exit(TERMINATED if finished.outcome.signal == "SIGTERM" else INTERRUPTED)


def _ending(finished: Finished, privacy: PrivacyReport) -> list[str]:
    """Say where everything lies, what is proven of it, and what comes next."""
    from idpgan.release.generator import SAMPLES

    run = finished.run
    lines = [f"To give away: {run.release}   Curator only: the rest of {run.path}"]
    draws = (run.release / SAMPLES).is_file()
    looked_at = [run.release / name for name in (SAMPLES, "README.md") if (run.release / name).is_file()]
    lines.append(f"Look at: {' and '.join(map(str, looked_at))}")
    if finished.warning is not None:
        lines.append(f"Warning: {finished.warning}")
    if not privacy.private:
        lines.append(f"NOT PRIVATE: {privacy.reason}")
    next_ones = ["sample", "evaluate", "attack", "audit", "report"]
    left_out = {"sample": not draws, "attack": not finished.attackable, "audit": _nothing_claimed(privacy)}
    words = [word for word in next_ones if not left_out.get(word)]
    lines.append(f"Proven: {privacy.stated}. Next: idpgan {', '.join(words[:-1])} or {words[-1]} {run.path}")
    return lines


def _nothing_claimed(privacy: PrivacyReport) -> bool:
    return privacy.claimed is None and not privacy.proven.finite
