"""Cells of figures 2 to 4 of the IDP-GAN paper: one method at one epsilon and seed, trained, drawn and measured once.

A cell is named by the hash of its config and of how it is judged. Its result, its picture and its run lie in one
folder; a finished cell is read back, an interrupted run continues, and a cell that another process is at is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cells import finish
from measured import describe_run, origin, read_json

from idpgan import load_generator
from idpgan.commands.evaluate import EvaluateOptions, evaluate_source
from idpgan.config import apply_overrides, load_table
from idpgan.data.config import DataConfig
from idpgan.data.images import make_grid, png_bytes, to_uint8
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.files import file_lock, write_bytes_atomic, write_text_atomic
from idpgan.metrics.cache import Cache
from idpgan.metrics.evaluation import evaluate_images
from idpgan.run import describe_environment
from idpgan.training.config import RunConfig, build_config

CONFIGS = Path(__file__).parents[1] / "configs"
EPSILONS = (0.3, 1.0, 3.0, 11.0)
REAL = "real"
ROWS_OF_SAMPLES = 2
JUDGING = 3.0  # minutes
# Networks narrower and runs shorter than the paper's 20,000 steps, for a CPU; as in docs/methods/idp-gan-published.md.
SHORT = ["training.steps=2000", "training.batch_size=64", "training.tick_steps=500", "model.width=16"]
FASTER = ["method.learning_rate=5e-4", "method.ema_decay=0.98", "method.critic_steps_per_generator_step=2"]
SHORT_LAPLACE = [*SHORT, *FASTER]
SHORT_GAN = [*SHORT[:1], *SHORT[2:], "model.width=32"]


AS_TRAINED = "idp-gan-aggregate model.drawing=plain"  # its config draws more widely than it trains
FEW_STEPS = "training.steps=500"  # what a shared CPU does by Opacus; our engine beside it at the same steps
ZHANG, ZHANG_SOUND = "dp-gan-zhang", "dp-gan method.groups=5"  # as published; its groups clipped together
# Narrower and shorter than the paper's, for a CPU.
SHORT_ZHANG = ["training.steps=2000", "method.public_steps=1000", "model.width=16", "method.critic_width=8"]
OURS, BY_OPACUS = f"dp-gan {FEW_STEPS}", f"dp-gan method.engine=opacus {FEW_STEPS}"


class Plan(NamedTuple):
    """How a method is run: its config of ``configs/``, settings on top, minutes of one core that it takes about."""

    config: str
    settings: list[str]
    minutes: float
    private: bool = True


PLANS: dict[str, dict[str, Plan]] = {
    "mnist": {
        "gaussian": Plan("mnist-gaussian", [], 2),
        "idp-gan-published": Plan("mnist-idp-gan-published", SHORT_LAPLACE, 4),
        "wgan-gp": Plan("mnist-wgan-gp", SHORT_GAN, 6, private=False),
        "idp-gan-aggregate": Plan("mnist-aggregate-no-public", [], 12),
        AS_TRAINED: Plan("mnist-aggregate-no-public", ["model.drawing=plain"], 12),
        ZHANG: Plan("mnist-dp-gan-zhang", SHORT_ZHANG, 60),
        ZHANG_SOUND: Plan("mnist-dp-gan-zhang", [*SHORT_ZHANG, "method.name=dp-gan"], 60),
        "dp-gan": Plan("mnist-dp-gan", ["training.steps=3500"], 18),
        OURS: Plan("mnist-dp-gan", [FEW_STEPS], 5),
        BY_OPACUS: Plan("mnist-dp-gan-opacus", [FEW_STEPS], 8),
    },
    "faces-wild": {
        "gaussian": Plan("faces-wild-gaussian", [], 2),
        "idp-gan-published": Plan("mnist-idp-gan-published", SHORT_LAPLACE, 5),
        "idp-gan-aggregate": Plan("faces-wild-aggregate", [], 5),
        "wgan-gp": Plan("mnist-wgan-gp", SHORT_GAN, 7, private=False),
        ZHANG: Plan("mnist-dp-gan-zhang", SHORT_ZHANG, 60),
        ZHANG_SOUND: Plan("mnist-dp-gan-zhang", [*SHORT_ZHANG, "method.name=dp-gan"], 60),
        "dp-gan": Plan("mnist-dp-gan", ["training.steps=3500"], 20),
        OURS: Plan("mnist-dp-gan", [FEW_STEPS], 5),
        BY_OPACUS: Plan("mnist-dp-gan-opacus", [FEW_STEPS], 8),
    },
    "celeba": {
        "gaussian": Plan("mnist-gaussian", [], 10),
        "idp-gan-published": Plan("celeba-idp-gan-published", SHORT_LAPLACE, 15),
        "idp-gan-aggregate": Plan("celeba-aggregate", [], 30),
        "wgan-gp": Plan("celeba-wgan-gp", SHORT_GAN, 15, private=False),
        ZHANG: Plan("celeba-dp-gan-zhang", SHORT_ZHANG, 120),
        ZHANG_SOUND: Plan("celeba-dp-gan-zhang", [*SHORT_ZHANG, "method.name=dp-gan"], 120),
        "dp-gan": Plan("celeba-dp-gan", ["training.steps=3500"], 40),
    },
    "digits": {
        "gaussian": Plan("digits-gaussian", [], 1),
        "idp-gan-published": Plan("digits-idp-gan-published", [], 1),
        "wgan-gp": Plan("digits-wgan-gp", [], 1, private=False),
        "idp-gan-aggregate": Plan("digits-aggregate", [], 1),
        ZHANG: Plan("digits-dp-gan-zhang", [], 2),
        ZHANG_SOUND: Plan("digits-dp-gan-zhang", ["method.name=dp-gan"], 2),
        "dp-gan": Plan("digits-dp-gan", [], 1),
    },
}
DATA = {"celeba": "celeba-aggregate"}  # whose [data] takes the place of another data set's; else that of `gaussian`
PHOTOS = ("faces-wild", "celeba")  # people who may be recognized
BUSY = "another process is at it"
SLOW = (AS_TRAINED, ZHANG, ZHANG_SOUND, "dp-gan", OURS, BY_OPACUS)  # one seed


class Cell(NamedTuple):
    """One method at one epsilon (None = no privacy) and seed."""

    data: str
    method: str
    epsilon: float | None
    seed: int

    @property
    def minutes(self) -> float:
        """Minutes of one core that it takes about, judging included."""
        return JUDGING + (0.0 if self.method == REAL else PLANS[self.data][self.method].minutes)


def cells(data: str, methods: list[str], epsilons: list[float], seeds: list[int]) -> list[Cell]:
    """Return the cells of the figures, in the order in which they are made: first seed first, then the fast ones."""
    found = []
    for method in methods:
        private = method != REAL and PLANS[data][method].private
        for epsilon in epsilons if private else [None]:
            of_method = seeds[:1] if method in (*SLOW, REAL) else seeds
            found += [Cell(data, method, epsilon, seed) for seed in of_method]
    return sorted(found, key=lambda cell: (seeds.index(cell.seed), cell.minutes))


def cell_config(cell: Cell, arguments: argparse.Namespace) -> RunConfig:
    """Return the config of a cell: the checked-in one with the plan's settings, its budget, seed and data."""
    plan = PLANS[cell.data][cell.method]
    table = load_table(CONFIGS / f"{plan.config}.toml")
    ground = ground_table(cell.data)
    if table["data"]["name"] != ground["data"]["name"]:
        public = {key: table["data"][key] for key in ("public_share", "confirm_public") if key in table["data"]}
        table["data"] = {**ground["data"], **public}
        if "delta" in table.get("privacy", {}):
            table["privacy"]["delta"] = ground["privacy"]["delta"]  # below 1/N of these images
    if arguments.data_root is not None:
        table["data"]["root"] = str(arguments.data_root)
    table = apply_overrides(table, plan.settings)
    training = table.setdefault("training", {})
    if arguments.steps is not None and training.get("steps"):
        training |= {"steps": arguments.steps, "tick_steps": max(1, arguments.steps // 4)}
        if "aggregate_steps" in table["method"]:
            table["method"]["aggregate_steps"] = arguments.steps // 2
    training |= {"seed": cell.seed, "device": arguments.device}
    if cell.epsilon is not None:
        table["privacy"] |= budget(cell)
    return build_config(table, f"the cell {tuple(cell)}")


def ground_table(data: str) -> dict[str, Any]:
    """Return the config whose [data] all methods of a figure have."""
    return load_table(CONFIGS / f"{DATA.get(data, f'{data}-gaussian')}.toml")


def budget(cell: Cell) -> dict[str, Any]:
    """Return the [privacy] keys that spend epsilon; the published form in halves, the local label a fifth of it."""
    epsilon = cell.epsilon
    if epsilon is None:
        return {}
    if cell.method == "idp-gan-published":
        return {"epsilon1": epsilon / 2, "epsilon2": epsilon / 2}
    return {"epsilon": epsilon}


def names(cell: Cell, arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Return where a cell's run and its result lie."""
    if cell.method == REAL:
        identity = hashlib.sha256(f"real {cell.data}".encode()).hexdigest()
    else:
        identity = cell_config(cell, arguments).identity()
    judged = f"{arguments.samples} {arguments.classifiers} {arguments.judges}"
    asked = hashlib.sha256(judged.encode()).hexdigest()[:8]
    return arguments.out / identity[:16], arguments.out / f"{identity[:16]}-{asked}.json"


def minutes_left(cell: Cell, arguments: argparse.Namespace) -> float:
    """Return the minutes that a missing cell takes about: a run that is finished is only judged."""
    trained = (names(cell, arguments)[0] / "release" / "privacy.json").exists()
    return JUDGING if trained else cell.minutes


def kept(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return what an earlier call found, if any."""
    _, result = names(cell, arguments)
    return read_json(result) if result.exists() else None


def failed(cell: Cell, arguments: argparse.Namespace) -> str | None:
    """Return why a cell could not be made, if an earlier call found that out. Remove the file to try again."""
    path = names(cell, arguments)[1].with_suffix(".failed")
    return path.read_text(encoding="utf-8") if path.exists() else None


def make(cell: Cell, arguments: argparse.Namespace) -> str:
    """Train, draw and judge a cell, unless another process is at it; return what came of it, in a few words."""
    run, result = names(cell, arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        with file_lock(f"{run}.lock", busy=BUSY):
            if not result.exists():
                found = real(cell, arguments) if cell.method == REAL else trained(cell, run, arguments)
                found = {**cell._asdict(), "judges": arguments.judges, "classifiers": arguments.classifiers, **found}
                write_text_atomic(result, json.dumps(found, indent=1) + "\n")
    except InputError as error:
        if str(error) != BUSY:
            write_text_atomic(result.with_suffix(".failed"), f"{error}\n")
        return str(error)
    return f"{(time.monotonic() - started) / 60:.1f} minutes"


def trained(cell: Cell, run: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train a run, or go on with it, and return what `idpgan evaluate` says of its images."""
    finish(cell_config(cell, arguments), run, arguments.data_root)
    generator = load_generator(run)
    columns = max(generator.num_classes, 1) if generator.num_classes > 4 else 8
    drawn = to_uint8(generator.sample(ROWS_OF_SAMPLES * columns, seed=0))
    write_bytes_atomic(run.with_suffix(".png"), png_bytes(make_grid(drawn, columns)))
    evaluated = evaluate_source(
        run,
        EvaluateOptions(
            data_root=arguments.data_root,
            full=True,
            num=arguments.samples,
            seeds=arguments.judges,
            classifiers=tuple(arguments.classifiers),
            device=arguments.device,
        ),
    )
    evaluated.write()
    found = describe_run(run, evaluated.to_json(), run / "evaluation.json")
    full = load_table(CONFIGS / f"{PLANS[cell.data][cell.method].config}.toml").get("training", {}).get("steps", 0)
    return {**found.pop("row"), **found, **cell._asdict(), "config_steps": full}


def real(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """Judge as many real private images in the same way; no picture of them is made."""
    root = {} if arguments.data_root is None else {"root": str(arguments.data_root)}
    split = load(DataConfig(**ground_table(cell.data)["data"], **root))
    private = split.existing().private
    chosen = torch.randperm(len(private), generator=torch.Generator().manual_seed(0))[: arguments.samples]
    evaluation = evaluate_images(
        private.select(chosen),
        split,
        num_seeds=arguments.judges,
        classifiers=tuple(arguments.classifiers),
        cache=Cache(arguments.out / "cache"),
        device="cpu" if arguments.device == "auto" else arguments.device,
    )
    found = {name: value for name, value in evaluation.to_json().items() if value}
    environment = origin(describe_environment("cpu"), arguments.out)  # written just now
    return {**found, "num_images": len(chosen), "evaluation": environment}
