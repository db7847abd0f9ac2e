"""Cases without a release: attacks, audits, evaluation, reports, preparation, tables, command parameters, names."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from box import Box, Case

TINY = [
    *("training.steps=4", "training.tick_steps=2", "training.batch_size=20", "release.samples=10"),
    *("model.width=4", "model.latent_dim=4"),
]
AGGREGATE = [*TINY, "model.codes=5", "method.moments=6", "method.fourier=20", "method.metric_steps=[2]"]
RUNS = {
    "aggregate": ["default", *AGGREGATE],
    "wgan-gp": ["digits-wgan-gp", *TINY],
    "gaussian": ["digits-gaussian", "model.latent_dim=12"],
}
CLASSIFIERS = {
    "scattering": ["digits-scattering-linear"],
    "pgd": ["digits-pgd", *TINY[:3], "method.width=4", "method.attack_steps=2"],
}
ONE_RUN = """
[data]
name = "digits"
[method]
name = "dp-sgd"
[privacy]
epsilon = 3.0
delta = 1e-5
[training]
steps = 10
batch_size = 256
tick_steps = 5
"""
PUBLIC_NAMES = (
    *("idpgan.publish.release", "idpgan.publish.METHODS", "idpgan.publish.batched_svd", "idpgan.synthesis.METHODS"),
    *(f"idpgan.continual.{name}" for name in ("fast_diagonal", "ContinualCounter")),
    *(f"idpgan.privacy.{name}" for name in ("Ledger", "Event", "Guarantee", "PrivacyReport", "Unit", "Relation")),
    *("idpgan.metrics.inception_score", "idpgan.attacks.evaluate_scores", "idpgan.audit.audit"),
    *("idpgan.load_generator", "idpgan.load_classifier", "idpgan.SyntheticDataset"),
)


def looking_cases(tree: Path) -> Iterator[Case]:
    """Yield the cases."""
    for name, arguments in RUNS.items():
        yield Case(f"look at {name}", look_at(arguments))
    for name, arguments in CLASSIFIERS.items():
        yield Case(f"look at the classifier {name}", look_at_classifier(arguments))
    yield Case("attack with a reference", attack_with_reference)
    yield Case("audit a run", audit_run)
    for name in audited(tree):
        yield Case(f"audit {name}", audit_of(name))
    yield Case("audit one run", audit_one_run)
    yield Case("prepare", prepare)
    yield Case("init", init)
    yield Case("methods", lambda box: box.run("methods", "--json") and None)
    yield Case("parameters", parameters)
    yield Case("public names", public_names)


def look_at(arguments: list[str]) -> Callable[[Box], None]:
    """Train a small run, and attack, evaluate and report it."""

    def act(box: Box) -> None:
        box.run("train", *arguments, "--out", "run", says="")
        box.run("attack", "run", "--attack", "all", "--samples", "100", "--most", "20", "--most-costly", "5", "--json")
        limits = ["--seeds", "1", "--splits", "2"]
        box.run("evaluate", "run", "--num", "100", *limits, "--json")
        box.run("report", "run", "--json")
        box.run("sample", "run", "--num", "10", "--seed", "3", "--out", "pictures", "--json")
        box.run("sample", "run", "--num", "10", "--seed", "3", "--labels", "3,5", "--out", "some.npz", "--json")

    return act


def look_at_classifier(arguments: list[str]) -> Callable[[Box], None]:
    """Train a small classifier, and attack, evaluate and report it."""

    def act(box: Box) -> None:
        box.run("train", *arguments, "--out", "run", says="")
        box.run("attack", "run", "--attack", "all", "--most", "20", "--json")
        box.run("evaluate", "run", "--json")
        box.run("report", "run", "--json")

    return act


def attack_with_reference(box: Box) -> None:
    """Calibrate attacks by a second generator, given or trained."""
    box.run("train", *RUNS["wgan-gp"], "--out", "run", says="")
    box.run("train", *RUNS["wgan-gp"], "training.seed=1", "--out", "other", says="")
    common = ["attack", "run", "--attack", "nearest-sample-calibrated", "--samples", "60", "--most", "20", "--json"]
    box.run(*common, "--reference", "other")
    box.run(*common, "--train-reference")


def audited(tree: Path) -> list[str]:
    """Return every name that `idpgan audit` accepts, from its error message for an unknown name."""
    command = [sys.executable, "-m", "idpgan", "audit", "nothing-of-this-name"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    return done.stderr.partition("Known: ")[2].strip().removesuffix(".").split(", ")


def audit_of(name: str) -> Callable[[Box], None]:
    """Audit a method with few runs under a fixed noise."""
    return lambda box: box.run("audit", name, "--runs", "100", "--seed", "1", "--epsilon", "2", "--json") and None


def audit_run(box: Box) -> None:
    """Audit the release of a run."""
    box.run("train", "digits-gaussian", "model.latent_dim=12", "--out", "run", says="")
    box.run("audit", "run", "--runs", "100", "--seed", "1", "--release", "--json")
    box.run("verify", "run", "--json")


def audit_one_run(box: Box) -> None:
    """Audit by one training."""
    box.run("audit", "dp-gan", "--one-run", "--canaries", "100", "--seed", "1", "--epsilon", "2", "--json")
    (box.folder / "run.toml").write_text(ONE_RUN, encoding="utf-8")
    box.run("audit", "run.toml", "--one-run", "--canaries", "20", "--seed", "1", "--json")


PREPARED = (["--folders", "person"], ["--grey", "--crop", "none", "--folders", "none"], ["--folders", "label"], [])


def prepare(box: Box) -> None:
    """Make images of one size out of photos."""
    for number, arguments in enumerate(PREPARED):
        box.run("prepare", str(box.data / "photos"), f"made{number}", "--size", "28", *arguments, "--json")


def init(box: Box) -> None:
    """Print a config for a folder and for every kind of data; each is read again."""
    for folder in ("classes", "table", "faces"):
        shutil.copytree(box.data / folder, box.folder / folder)
        box.run("init", folder, "--json")
    for source in ("mnist", "digits", "fonts", "celeba"):
        box.run("init", source, "--json")
    for path in ("classes", "table", "faces"):
        shutil.rmtree(box.folder / path)


def parameters(box: Box) -> None:
    """Record name, type and default of every parameter of every command, and its help text separately."""
    import typer

    from idpgan.commands import app

    group: Any = typer.main.get_command(app)
    for name, command in {"": group, **group.commands}.items():
        for param in command.params:
            described = getattr(param, "type_descriptor", None)  # in newer versions of typer; else a type of click
            kind = getattr(described, "annotation", None) or param.type
            facts = {
                "options": sorted([*param.opts, *param.secondary_opts]),
                "type": getattr(kind, "__name__", str(kind)),
                "default": repr(param.default) if not callable(param.default) else "computed",
                "required": bool(param.required),
                "many": bool(getattr(param, "multiple", False) or param.nargs != 1),
                "metavar": param.metavar,
            }
            box.say(f"{name} {param.name}", facts)
            box.say(f"words {name} {param.name}", getattr(param, "help", None))
        box.say(f"words {name}", command.help)


def public_names(box: Box) -> None:
    """Record which of the names that scripts use exist."""
    for name in PUBLIC_NAMES:
        module, _, attribute = name.rpartition(".")
        box.say(name, hasattr(importlib.import_module(module), attribute))
