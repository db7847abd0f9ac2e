"""ARDEN's accuracy against the proven epsilon of the image that is asked about. One JSON line a cell.

python benchmarks/arden_curve.py [--data digits mnist] [--data-root DIR] [--epsilons 1 3 10 30 100] [--features 4 16]
    [--seeds 0] [--out runs/arden-curve] [--table]

The paper's setting: a cloud classifies noisy features, which the phone sends of each test image, at a pure epsilon
(unit image, replace-one). Settings are those of configs/DATA-arden.toml. How the cloud was trained:

    plain      on labeled public images, without noise
    noisy      on the same, with noisy training
    private    and on private images, each perturbed once at that epsilon, their labels at privacy.label_epsilon besides
    response   no cloud: the phone runs a whole network of public images, and sends its answer by randomized response

Epsilon "none" is the same without noise. Cells are kept in --out and read back.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from pathlib import Path
from typing import Any, cast

import torch
from cells import PACKAGE, code_digest, read_or_measure
from torch import Tensor

from idpgan.classify.arden import Arden, ArdenPlan, falling, fit_phone, noisy_loss
from idpgan.classify.arden import ArdenRun as Config
from idpgan.data.images import to_float
from idpgan.data.load import Split, load
from idpgan.models.private_classifier import SplitCnn, nullify
from idpgan.privacy import Noise, RandomizedResponse
from idpgan.privacy.collaborative import FeatureNoise
from idpgan.trainer import load_config

TRAININGS = ("plain", "noisy", "private", "response")
CODE = [PACKAGE / "privacy/collaborative.py", PACKAGE / "models/private_classifier.py"]
CODE += sorted((PACKAGE / "classify/arden").glob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "mnist"], choices=["digits", "mnist"])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0, 10.0, 30.0, 100.0])
    parser.add_argument("--features", nargs="+", type=int, default=[4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/arden-curve"))
    parser.add_argument("--table", action="store_true", help="print a table of the means at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    code, rows = code_digest([*CODE, Path(__file__)]), []
    for data, features, seed in itertools.product(options.data, options.features, options.seeds):
        curve = Curve(data, options.data_root, features, seed)
        for epsilon, training in itertools.product([None, *options.epsilons], TRAININGS):
            if training in ("noisy", "private") and epsilon is None:
                continue
            cell = {"data": data, "features": features, "seed": seed, "epsilon": epsilon, "training": training}
            rows.append(read_or_measure(cell, functools.partial(curve.measure, cell), code, options.out))
    if options.table:
        print("\n".join(table(rows)))


class Curve:
    """All cells of a data set, a number of features and a seed: they share the phone's part."""

    def __init__(self, data: str, root: Path | None, features: int, seed: int) -> None:
        self._data, self._features, self._seed = data, features, seed
        self._root = [] if root is None or data == "digits" else [f"data.root={json.dumps(str(root))}"]

    def _config(self, *settings: str) -> Config:
        own = (f"method.features={self._features}", f"training.seed={self._seed}", "training.device=cpu")
        config = load_config(PACKAGE / "configs" / f"{self._data}-arden.toml", [*self._root, *own, *settings])
        return cast(Config, config)

    @functools.cached_property
    def split(self) -> Split:
        """The data; null records are in the private part only."""
        return load(self._config().data)

    @functools.cached_property
    def whole(self) -> SplitCnn:
        """Both parts, trained on public images without noise."""
        config = self._config()
        network = ArdenPlan(config, self.split.shape).classifier(self.split.image_shape, self.split.classes)
        rng = torch.Generator().manual_seed(self._seed + 1)
        fit_phone(network, self.split.public.existing(), config.method.phone_steps, rng)
        return network.eval()

    def measure(self, cell: dict[str, Any], noise_seed: int) -> dict[str, Any]:
        """Return the accuracy of a cell on the test images."""
        noise, epsilon, training = Noise.fixed(noise_seed), cell["epsilon"], cell["training"]
        test, rate = self.split.test.existing(), self._config().method.nullification
        row: dict[str, Any] = {"public": len(self.split.public), "private": self.split.num_private, "test": len(test)}
        if epsilon is not None and training != "response":
            channel = FeatureNoise(self._features, epsilon)
            row |= {"proven": channel.mechanism.event.pure, "claimed": channel.claimed(rate)}
        if training == "response":
            answers = self.whole.predict(test.images)
            if epsilon is not None:
                answers = RandomizedResponse(len(self.split.classes), min(epsilon, 30.0))(answers, noise)
        else:
            network = self._private(epsilon, noise) if training == "private" else self._public(epsilon, training)
            with torch.no_grad():
                sent = (
                    torch.cat([network.features(to_float(batch)) for batch in test.images.split(1000)])
                    if epsilon is None
                    else network.perturb(test.images, epsilon, nullification=rate, noise=noise)
                )
            answers = network.predict_features(sent)
        return row | {"accuracy": (answers == test.labels).double().mean().item()}

    def _private(self, epsilon: float, noise: Noise) -> SplitCnn:
        """Train by the method itself: public images with noisy training, private ones perturbed once."""
        label = self._config().privacy.label_epsilon
        config = self._config(f"privacy.epsilon={epsilon + label}")
        method = Arden.of(config, self.split, device=torch.device("cpu"), noise=noise)
        method.prepare()
        for step in range(1, config.training.steps + 1):
            method.step(step)
        return method.product

    def _public(self, epsilon: float | None, training: str) -> SplitCnn:
        """Train the cloud's part afresh on public images."""
        config = self._config()
        network = ArdenPlan(config, self.split.shape).classifier(self.split.image_shape, self.split.classes).eval()
        network.phone.load_state_dict(self.whole.phone.state_dict())
        optimizer = torch.optim.Adam(network.cloud.parameters(), config.method.learning_rate)
        channel = FeatureNoise(self._features, 1e9 if epsilon is None else epsilon)
        noisy = training == "noisy"
        weight, rate = (config.method.clean_weight, config.method.nullification) if noisy else (1.0, 0.0)
        public, rng = self.split.public.existing(), torch.Generator().manual_seed(self._seed + 2)
        labels, clean = cast(Tensor, public.labels), _features(network, public.images)
        for step in range(1, config.training.steps + 1):
            falling(optimizer, config.method.learning_rate, step, config.training.steps)
            chosen = torch.randint(len(public), (config.training.batch_size,), generator=rng)
            sent = _features(network, public.images[chosen], rate, rng) if rate else clean[chosen]
            loss = noisy_loss(
                network.cloud, clean[chosen], sent, labels[chosen], channel, rng,
                clean_weight=weight, radius=config.method.radius,
            )  # fmt: skip
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        return network


@torch.no_grad()
def _features(network: SplitCnn, images: Tensor, rate: float = 0.0, rng: torch.Generator | None = None) -> Tensor:
    pixels = to_float(images)
    coins = torch.rand((len(pixels), 1, *pixels.shape[2:]), generator=rng) if rate else pixels
    return network.features(nullify(pixels, coins, rate))


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a markdown table of mean accuracies, a line for each epsilon."""
    lines = [f"| data | features | proven | claimed | {' | '.join(TRAININGS)} |", "|" + "---|" * (4 + len(TRAININGS))]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["features"], row["epsilon"]), []).append(row)
    for (data, features, epsilon), cells in groups.items():
        claimed = next((f"{row['claimed']:.3g}" for row in cells if "claimed" in row), "no noise")
        found = {name: [row["accuracy"] for row in cells if row["training"] == name] for name in TRAININGS}
        shown = [f"{100 * sum(each) / len(each):.1f} %" if each else "" for each in found.values()]
        proven = "no noise" if epsilon is None else f"{epsilon:g}"
        lines.append(f"| {data} | {features} | {proven} | {claimed} | {' | '.join(shown)} |")
    return lines


if __name__ == "__main__":
    main()
