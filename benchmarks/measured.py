"""Results that are committed: what `idpgan evaluate` found about the runs of one row, numbers only.

A file ``benchmarks/results/NAME.json`` holds one row: method, data, the config of ``configs/`` that it comes from and
the settings that differ, what is claimed and proven, and for every run its config hash, seed, commit, machine, date and
scores. `readme_tables.py` writes the tables from these files. No path, no image, no name of a person stands in them.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from idpgan import trainer
from idpgan.commands.evaluate import FORMAT as EVALUATION
from idpgan.config import load_table
from idpgan.data.config import WHERE_FILES_LIE
from idpgan.files import write_text_atomic
from idpgan.training.config import RunConfig

ROOT = Path(__file__).parents[1]
RESULTS, CONFIGS = Path(__file__).parent / "results", ROOT / "configs"
FORMAT = "idpgan result 1"
SCORES = ("utility", "ceiling", "inception", "fidelity", "fidelity_ceiling", "classifier")
PER_RUN = ("training.seed", "training.device", "training.tick_steps", "release.samples")  # no settings of the row


def make_result(name: str, evaluations: Sequence[Path], runs: Sequence[Path] = ()) -> dict[str, Any]:
    """Return one row from evaluations (JSON of `idpgan evaluate`) of one or more runs of one config.

    Several evaluations of the same run and the same images are put together.

    Args:
        name: Of the row: lower-case words with hyphens.
        runs: The folder of each evaluation's run, where it is not the one that the evaluation names or lies in; of
            images that no run made the config (TOML) by which they were judged.
    """
    if not re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", name):
        raise SystemExit(f"--row {name}: lower-case letters, digits, dots and hyphens, as in mnist-gaussian-eps1.")
    if runs and len(runs) != len(evaluations):
        raise SystemExit(f"--runs names {len(runs)} folders for {len(evaluations)} evaluations. Name one for each.")
    found: dict[Path, dict[str, Any]] = {}
    for index, path in enumerate(evaluations):
        evaluation = read_evaluation(path)
        run = runs[index] if runs else run_of(path, evaluation)
        found[run] = together(found.get(run), describe_run(run, evaluation, path), path)
    described = [row.pop("row") for row in found.values()]
    for run, other in zip(found, described, strict=True):
        if other != described[0]:
            differing = [key for key in other if other[key] != described[0][key]]
            raise SystemExit(
                f"{run} is not a run of this row: its {', '.join(differing)} differ. Give it a row of its own."
            )
    row = {"format": FORMAT, "name": name, **described[0], "runs": list(found.values())}
    return row | {"summary": summary(row["runs"])}


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return what `idpgan evaluate` wrote."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if document.get("format") != EVALUATION:
        raise SystemExit(f"{path} is not an evaluation: it does not say '{EVALUATION}'. Name a run's evaluation.json.")
    if document.get("quick"):
        raise SystemExit(f"{path} is a quick evaluation, and rows are by the whole protocol: --full.")
    return document


def run_of(path: Path, evaluation: dict[str, Any]) -> Path:
    """Return the run that an evaluation is of."""
    for folder in (path.parent, Path(evaluation["source"])):
        if (folder / "config.toml").is_file() and (folder / "release" / "privacy.json").is_file():
            return folder
    raise SystemExit(
        f"{path} is of {evaluation['source']}, which is not a finished run here. Name its folder with --runs."
    )


def describe_run(run: Path, evaluation: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what one run adds to its row; ``row`` holds what all runs of the row have in common.

    Of images that no run made, such as people alone, ``run`` is the config that declares the images which judge.
    """
    if run.suffix == ".toml":
        return describe_images(run, evaluation, path)
    config = trainer.load_config(run / "config.toml")
    privacy = read_json(run / "release" / "privacy.json")
    step, seconds = trained(run)
    name, overrides = nearest_config(config)
    common = {
        "method": config.method.name,
        "data": config.data.name,
        "config": name,
        "overrides": overrides,
        "steps": step,
        "num_private": privacy["num_private"],
        "privacy": {
            "claimed": stated(privacy, "claimed"),
            "proven": stated(privacy, "proven"),
            "private": privacy["report"]["private"],
        },
        "part": evaluation["part"],
        "num_images": evaluation["num_images"],
    }
    made = {
        "config_sha256": config.identity(),
        "seed": config.training.seed,
        "train_seconds": seconds,
        "images_digest": evaluation.get("images_digest"),
        "training": origin(read_json(run / "environment.json"), run / "release" / "privacy.json"),
        "evaluation": origin(evaluation["environment"], path),
    }
    return {"row": common, **made, **{score: evaluation[score] for score in SCORES if evaluation.get(score)}}


def describe_images(config: Path, evaluation: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what images add to their row for which no private image was read."""
    loaded, made = trainer.load_config(config), origin(evaluation["environment"], path)
    row = {"method": "none", "data": loaded.data.name, "config": nearest_config(loaded)[0], "overrides": []}
    row |= {"part": evaluation["part"], "num_images": evaluation["num_images"]}
    scores = {score: evaluation[score] for score in SCORES if evaluation.get(score)}
    return {"row": row, "config_sha256": loaded.identity(), "seed": 0, "training": made, "evaluation": made, **scores}


def trained(run: Path) -> tuple[int, float | None]:
    """Return steps and seconds of a run; a release in closed form has no steps, and its time is not kept."""
    stats = run / "stats.jsonl"
    if not stats.is_file():
        return 0, None
    last = json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])
    return last["step"], last["seconds"]


def together(before: dict[str, Any] | None, new: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return two evaluations of the same images as one; a score that both have must be the same."""
    if before is None:
        return new
    for key in ("images_digest", *SCORES):
        if key in before and key in new and before[key] != new[key]:
            raise SystemExit(f"{path}: its {key} is another one than in the evaluation before of the same run.")
    return {**new, **before}


def nearest_config(config: RunConfig) -> tuple[str, list[str]]:
    """Return the config of ``configs/`` that needs the fewest settings to become this one, and these settings.

    One of the same data set is taken before any other.
    """
    mine = flat(config.model_dump(mode="json"))
    found: list[tuple[bool, int, str, list[str]]] = []
    for path in sorted(CONFIGS.glob("*.toml")):
        if "trained" in load_table(path).get("model", {}):
            continue  # it adapts a base, whose folder whoever trains names
        other = trainer.load_config(path)
        if other.method.name == config.method.name:
            theirs = flat(other.model_dump(mode="json"))
            keys = sorted(key for key in {*mine, *theirs} if key not in PER_RUN and mine.get(key) != theirs.get(key))
            settings = [f"{key}={json.dumps(mine.get(key))}" for key in keys]
            found.append((other.data.name != config.data.name, len(settings), f"configs/{path.name}", settings))
    if not found:
        raise SystemExit(f"configs/ has no config of {config.method.name}. Add the one that the run was made with.")
    return min(found)[2:]


def flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return ``section.key`` -> value, without the places of this machine."""
    found = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{key}.")
        elif key not in WHERE_FILES_LIE:
            found[before + key] = value
    return found


def origin(environment: dict[str, Any], written: Path) -> dict[str, Any]:
    """Return commit, machine and day of what a command wrote."""
    git = environment.get("git") or {}
    return {
        "commit": git.get("commit"),
        "changed": git.get("changed"),
        "date": datetime.fromtimestamp(written.stat().st_mtime, UTC).strftime("%Y-%m-%d"),
        "machine": {key: environment.get(key) for key in ("device_name", "cuda", "cpus", "threads")},
        "versions": environment["versions"],
    }


def stated(privacy: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return a guarantee of a privacy.json with its delta, unit and relation, without its basis."""
    guarantee, shared = privacy["report"][name], ("delta", "unit", "relation")
    whole = guarantee and {key: privacy[key] for key in shared if key in privacy} | guarantee
    return whole and {key: value for key, value in whole.items() if key != "basis"}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each score of the row: its mean, and its spread over the runs, or over the judges of the only one.

    ``std`` is None where there is one value. ``values`` are the means of the runs.
    """
    found = {}
    for name, per_run in sorted(values_of(runs).items()):
        means = [statistics.fmean(values) for values in per_run]
        spread_of, values = ("runs", means) if len(means) > 1 else ("judges", per_run[0])
        std = statistics.stdev(values) if len(values) > 1 else None
        found[name] = {"mean": statistics.fmean(means), "std": std, "spread_of": spread_of, "values": means}
    return found


def values_of(runs: Sequence[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Return for each score the values of each run that has it: one a judge."""
    found: dict[str, list[list[float]]] = {}
    for run in runs:
        for kind, prefix in (("utility", ""), ("ceiling", "ceiling ")):
            for score in (run.get(kind) or {"scores": ()})["scores"]:
                found.setdefault(f"{prefix}accuracy {score['name']}", []).append(score["accuracies"])
        if "utility" in run:
            found.setdefault("majority", []).append([run["utility"]["majority"]])
        if "classifier" in run:
            found.setdefault("accuracy classifier", []).append([run["classifier"]["accuracy"]])
            found.setdefault("majority", []).append([run["classifier"]["majority"]])
        if "inception" in run:
            found.setdefault("inception", []).append([run["inception"]["mean"]])
        for kind, prefix in (("fidelity", ""), ("fidelity_ceiling", "ceiling ")):
            for name in ("fid", "kid", "precision", "recall") if kind in run else ():
                found.setdefault(prefix + name, []).append([run[kind][name]])
    return found


def write_result(row: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a row's file and return its path."""
    path = folder / f"{row['name']}.json"
    write_text_atomic(path, json.dumps(row, indent=1) + "\n")
    return path


def read_results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return all committed rows by name."""
    return {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def commits(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the commits that the runs of rows were trained with."""
    return sorted({run["training"]["commit"][:7] for row in rows for run in row["runs"] if run["training"]["commit"]})
