"""DP-SGD in which everything is Opacus' `PrivacyEngine`, beside ours on the same images. JSON lines.

python benchmarks/papers/opacus_plain.py configs/digits-dp-sgd.toml [KEY=VALUE ...] [--seeds 0 1 2] [--out DIR]

The baseline that many papers mean: `make_private_with_epsilon` with Opacus' Poisson sampler, clipping, floating-point
noise of PyTorch's generator, and PRV accountant. Network, images, epsilon, delta, clip, rate, momentum, batch and steps
are those of a config of `dp-sgd`, rounded up to whole epochs; what is released are the last weights (ours: their moving
average). ``--out`` writes a release of each seed by `from_opacus`, whose card says how it was trained and what is
vouched for; `idpgan verify` prices its steps anew. No seed of the noise is set: PyTorch takes it from the operating
system. ``--secure`` asks for Opacus' secure mode, which needs `torchcsprng`. Judged on the test part.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.host import unwarned
from idpgan.metrics.accuracy import measure_accuracy
from idpgan.models.private_classifier import GroupNormCnn, PrivateClassifier
from idpgan.privacy import from_opacus
from idpgan.release import write_model
from idpgan.trainer import load_config, train_on
from idpgan.training.config import RunConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="of dp-sgd, such as configs/digits-dp-sgd.toml")
    parser.add_argument("settings", nargs="*", default=[], help="section.key=value")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the initial weights")
    parser.add_argument("--out", type=Path, help="where the releases go; default: none is written")
    parser.add_argument("--secure", action="store_true", help="Opacus' secure mode")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        configs = [load_config(arguments.config, [*arguments.settings, f"training.seed={s}"]) for s in arguments.seeds]
        if configs[0].method.name != "dp-sgd":
            raise InputError(f"{arguments.config} is of {configs[0].method.name}. Take one of dp-sgd.")
        split = load(configs[0].data)
    except InputError as error:
        parser.error(str(error))
    found: dict[str, list[float]] = {}
    for config in configs:
        network, engine = trained(split.private.existing(), config, arguments.secure)
        with unwarned():
            epsilon = engine.get_epsilon(config.privacy.delta)
        row = {"seed": config.training.seed, "epsilon by Opacus": round(epsilon, 3)}
        if arguments.out is not None:
            folder = arguments.out / f"opacus-seed-{config.training.seed}"
            row["epsilon by idpgan"] = round(released(folder, network, engine, split, config), 3)
        for who, judged in (("Opacus alone", network), ("ours", train_on(config, split).product)):
            accuracy = measure_accuracy(judged, split.test.existing()).mean
            found.setdefault(who, []).append(accuracy)
            row[who] = round(accuracy, 4)
        print(json.dumps(row), flush=True)
    for who, values in found.items():
        spread = round(statistics.stdev(values), 4) if len(values) > 1 else None
        print(json.dumps({"who": who, "mean": round(statistics.fmean(values), 4), "spread": spread}))


def trained(private: Images, config: RunConfig, secure: bool) -> tuple[PrivateClassifier, PrivacyEngine]:
    """Train by Opacus alone; return the network and the engine that has counted its steps."""
    method, training = config.method, config.training
    network = GroupNormCnn(private.image_shape, private.classes, width=method.width, seed=training.seed)
    data = TensorDataset(to_float(private.images), private.labels)
    loader = DataLoader(data, batch_size=training.batch_size)
    epochs = math.ceil(training.steps / len(loader))
    with unwarned():
        engine = PrivacyEngine(accountant="prv", secure_mode=secure)
        module, optimizer, loader = engine.make_private_with_epsilon(
            module=network.train(),
            optimizer=torch.optim.SGD(network.parameters(), method.learning_rate, method.momentum),
            data_loader=loader,
            target_epsilon=config.privacy.epsilon,
            target_delta=config.privacy.delta,
            epochs=epochs,
            max_grad_norm=method.clip_norm,
        )
        for images, labels in (batch for _ in range(epochs) for batch in loader):
            optimizer.zero_grad()
            cross_entropy(module(images), labels).backward()
            optimizer.step()
    return module.to_standard_module().eval(), engine


def released(folder: Path, network: PrivateClassifier, engine: PrivacyEngine, split: Split, config: RunConfig) -> float:
    """Write the release, and return the epsilon at which idpgan prices its steps."""
    private = split.private.existing()
    folder.parent.mkdir(parents=True, exist_ok=True)
    report = write_model(
        folder,
        network,
        from_opacus(engine, unit="image", num_private=len(private)),
        num_private=len(private),
        image_shape=private.image_shape,
        classes=private.classes,
        fixed_seed=False,
        data=f"{config.data.name} (by Opacus' PrivacyEngine alone)",
        delta=config.privacy.delta,
    )
    return report.proven.epsilon


if __name__ == "__main__":
    main()
