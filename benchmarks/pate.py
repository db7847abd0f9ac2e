"""PATE (Papernot et al. 2017) beside a private classifier at the same epsilon, on the same images. JSON lines.

python benchmarks/pate.py configs/digits-scattering-linear.toml --epsilons 1 4 10 --seeds 0 1 2
python benchmarks/pate.py CONFIG data.root=DIR data.public_share=0.1 --teachers 250 --questions 1000

Of the config the [data] is taken: labeled images, of which `data.public_share` (0.2) is public. T teachers learn from
disjoint parts of the private ones. The public images, whose own labels nobody looks at, are asked about; each gets the
class with the most noisy votes (`papers.literature.teacher_votes`); a student learns from them. Teachers and student
are linear on scattering features (the paper's student is a GAN), as `scattering-linear`, which stands beside them: it
reads the same private images and no public ones. Epsilon is that of unit image, zero-out-one, and does not hang on the
votes. "plurality" asks without noise: what is lost to the parts alone, not private; "real labels" is the student who
is told the true classes of the public images. Judged on the test part, which nothing was chosen on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from papers.literature.teacher_votes import TeacherVotes
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from idpgan.config import apply_overrides, build, load_table
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_float
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.metrics.accuracy import measure_accuracy
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Budget, Ledger, Noise, Relation, Unit
from idpgan.trainer import train_on
from idpgan.training.config import RunConfig, build_config

INVERSE_PENALTY = 100.0  # of the logistic regressions; the features have norm 1
_AT_ONCE = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="whose [data] is taken")
    parser.add_argument("settings", nargs="*", default=[], help="data.key=value")
    parser.add_argument("--teachers", type=int, default=25)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--law", default="gaussian", choices=("gaussian", "laplace"))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 10.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the draw of the questions")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        split = load(data_of(arguments.config, arguments.settings))
    except InputError as error:
        parser.error(str(error))
    if not split.classes or split.test is None:
        parser.error(f"{arguments.config} names images without labels, or without a test part: teachers need both.")
    public, private, test = split.public.existing(), split.private, split.test.existing()
    if arguments.questions > len(public) or arguments.teachers > len(private):
        raise SystemExit(f"{len(public)} public images and {len(private)} private ones: lower --questions, --teachers.")
    network = LinearScattering(split.image_shape, split.classes)
    features = {name: features_of(network, part) for name, part in (("public", public), ("test", test))}
    named = named_by_teachers(network, private, features["public"], arguments.teachers)
    found: dict[str, list[float]] = {}
    for seed in arguments.seeds:
        asked = torch.randperm(len(public), generator=torch.Generator().manual_seed(seed))[: arguments.questions]
        plain = (
            TeacherVotes(arguments.questions, len(split.classes), arguments.law, 1.0).exact(named[:, asked]).argmax(1)
        )
        answers = {"real labels": public.labels[asked], "plurality": plain}
        for epsilon in arguments.epsilons:
            answers[f"pate, epsilon {epsilon:g}"] = paid(named[:, asked], len(split.classes), epsilon, arguments)
        for name, labels in answers.items():
            learned = student(features["public"][asked], labels, features["test"])
            accuracy = (learned == test.labels).double().mean().item()
            told = (labels == public.labels[asked]).double().mean().item()
            found.setdefault(name, []).append(accuracy)
            print(
                json.dumps({"who": name, "seed": seed, "labels_right": round(told, 4), "accuracy": round(accuracy, 4)})
            )
        for epsilon in arguments.epsilons:
            beside = train_on(config(epsilon, arguments.delta, seed), split).product
            found.setdefault(f"scattering-linear, epsilon {epsilon:g}", []).append(measure_accuracy(beside, test).mean)
    for name, values in found.items():
        spread = round(statistics.stdev(values), 4) if len(values) > 1 else None
        print(
            json.dumps({"who": name, "mean": round(statistics.fmean(values), 4), "spread": spread, "runs": len(values)})
        )


def data_of(path: Path, settings: list[str]) -> DataConfig:
    """Return the [data] of a config, a fifth of it public where it does not say."""
    table = apply_overrides(load_table(path), settings)["data"]
    return build(DataConfig, {"public_share": 0.2, **table, "confirm_public": True}, f"[data] of {path}")


def config(epsilon: float, delta: float, seed: int) -> RunConfig:
    """Return the config of the classifier beside."""
    table: dict[str, Any] = {
        "method": {"name": "scattering-linear"},
        "privacy": {"epsilon": epsilon, "delta": delta},
        "training": {"seed": seed, "device": "cpu"},
    }
    return build_config(table, "the classifier beside")


def features_of(network: LinearScattering, images: Images) -> Tensor:
    """Return the features of images, (N, D)."""
    with torch.no_grad():
        return torch.cat([network.features(to_float(part)) for part in images.images.split(_AT_ONCE)])


def named_by_teachers(network: LinearScattering, private: Images, public: Tensor, teachers: int) -> Tensor:
    """Return the class that each teacher names for each public image, int64 (T, N): secret.

    A record's teacher follows from its position; a null record teaches nobody.
    """
    known, rows = features_of(network, private), []
    for teacher in range(teachers):
        own = torch.arange(teacher, len(private), teachers)
        own = own[~private.is_null[own]]
        rows.append(student(known[own], private.labels[own], public))
    return torch.stack(rows)


def student(known: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Learn a linear classifier of labeled features, and return the class that it names for others, int64 (N,)."""
    if len(labels.unique()) < 2:  # nothing to tell apart
        return torch.full((len(asked),), int(labels[0]) if len(labels) else 0)
    fitted = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000).fit(known.numpy(), labels.numpy())
    return torch.from_numpy(fitted.predict(asked.numpy()).astype(np.int64))


def paid(named: Tensor, classes: int, epsilon: float, arguments: argparse.Namespace) -> Tensor:
    """Return the answers that a budget buys, charged to a ledger before they are drawn."""
    votes = TeacherVotes.calibrated(named.shape[1], classes, arguments.law, epsilon=epsilon, delta=arguments.delta)
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT, Budget(epsilon, arguments.delta))
    noise = Noise.system()
    return ledger.release([votes.event], lambda: {"labels": votes.release(named, noise)}, noise=noise)["labels"]


if __name__ == "__main__":
    main()
