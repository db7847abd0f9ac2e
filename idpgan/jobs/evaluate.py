"""``idpgan evaluate``: images or a classifier under test, against the real data set that they stand for.

Everything here is computed with private images: evaluation.json is for the curator only.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from idpgan import metrics
from idpgan.config import apply_overrides, build, load_table
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.device import resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.files import check_writable, parse_json, read_plain, write_private_json
from idpgan.host import own_state
from idpgan.jobs.options import EvaluateOptions, given
from idpgan.kinds import opened
from idpgan.metrics.accuracy import measure_accuracy
from idpgan.metrics.cache import Cache, default_folder
from idpgan.metrics.dpimagebench import NUM_IMAGES, benchmark_delta, check_benchmark
from idpgan.metrics.evaluation import CURATOR_NOTE, METRICS, Evaluation, default_metrics
from idpgan.metrics.features import RECIPES
from idpgan.metrics.source import kind_of, read_images
from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES, is_classifier
from idpgan.models.config import Purpose
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.guarantee import number_to_json
from idpgan.progress import Progress, renamed, silent
from idpgan.release.classifier import load_classifier
from idpgan.release.export import purpose_of, release_of
from idpgan.release.folder import PRIVACY
from idpgan.release.outputs import check_output
from idpgan.release.received import read_privacy
from idpgan.run import RunFolder, describe_environment

FORMAT = "idpgan evaluation 1"


@dataclass(frozen=True)
class Evaluated:
    """What was measured, ``facts`` that say what was compared with what, and the file to write, if any."""

    evaluation: Evaluation
    facts: dict[str, Any]
    out: Path | None

    def to_json(self) -> dict[str, Any]:
        """Return the content of evaluation.json."""
        facts = dict(self.facts)
        ending = {name: facts.pop(name) for name in ("seconds", "environment")}
        return {"format": FORMAT, **facts, **self.evaluation.to_json(), **ending}


@own_state()
def evaluate_source(source: Path, options: EvaluateOptions | None = None, progress: Progress = silent) -> Evaluated:
    """Measure the images of a run, a release, a folder or an npz file; nothing is written but the cache.

    Raises:
        InputError: If something cannot be measured; checked before the first computation where possible.
    """
    options = options or EvaluateOptions()
    _check_names(options)
    device = resolve_device(options.device, "--device")
    if is_classifier(source):
        return _evaluate_classifier(source, options, device, progress)
    beside = None if options.classifier_run is None else load_classifier(options.classifier_run).to(device)
    kind, config, out = kind_of(source), data_config(source, options), _checked_out(source, options.out)
    if options.num is not None and kind != "generator":
        raise InputError(
            f"--num {options.num} is for generators, but {source} is a {kind}: all of its images are taken."
        )
    started, under_test = time.monotonic(), opened(source, options.module)
    split, about = load(config, progress), dict[str, Any]()
    num, wanted = split.num_private, _metrics(options, split.classes)
    if options.protocol == "dpimagebench":
        check_benchmark(split.image_shape, split.classes, split.num_private)
        num, wanted = NUM_IMAGES, ["dpimagebench"]
        about["privacy"] = _benchmark_privacy(source, kind, split.num_private)
    images = read_images(
        under_test,
        split.image_shape,
        split.classes,
        num=num if options.num is None else options.num,
        device=device,
        pixel_range=options.pixel_range,
        progress=renamed(progress, "images under test"),
    )
    evaluation = metrics.evaluate_images(
        images,
        split,
        wanted,
        part=options.part,  # type: ignore[arg-type]  # the words are checked by the options
        num_seeds=options.seeds,
        classifiers=options.classifier or tuple(RECIPES),
        splits=options.splits,
        features=options.features,  # type: ignore[arg-type]
        weights=options.weights,
        full=options.full,
        cache=Cache(options.cache or default_folder()),
        device=device,
        progress=progress,
    )
    if beside is not None:
        beside_it = {"classifier": measure_accuracy(beside, getattr(split, options.part))}
        evaluation = dataclasses.replace(evaluation, results={**evaluation.results, **beside_it})
        about["classifier_run"] = _guarantee(options.classifier_run, beside)
    about |= {"num_images": len(images), "images_digest": images.digest()}
    about["drawn_for"] = Purpose.TRAINING if kind == "generator" else purpose_of(source) or None
    return Evaluated(evaluation, _facts(source, kind, config, about, device, started), out)


def _check_names(options: EvaluateOptions) -> None:
    """Refuse unknown names of metrics and classifiers before anything is read."""
    alone = [name for name, row in METRICS.items() if row.source == "images" and name != "dpimagebench"]
    only = [] if options.only is None else [options.only]
    for flag, names, known in (("--only", only, alone), ("--classifier", options.classifier, [*RECIPES])):
        for name in names:
            if name not in known:
                raise InputError(f"{flag} {name} is unknown. Known: {', '.join(known)}.")


def _benchmark_privacy(source: Path, kind: str, num_private: int) -> dict[str, Any]:
    """Return what the charges of a release prove, at its own delta and at the benchmark's.

    A folder or an npz file has no charges: there is only the benchmark's delta for the private images of the data set.
    """
    document = release_of(source) / PRIVACY
    if kind != "generator" or not document.is_file():
        return {"num_private": num_private, "own": None, "benchmark": {"delta": benchmark_delta(num_private)}}
    stated = read_privacy(document)
    num_private = stated.document["num_private"]
    adjacency = {"unit": str(stated.unit), "relation": str(stated.relation)}
    proven = {
        whose: {"epsilon": number_to_json(compose_epsilon(stated.events, delta)), "delta": delta, **adjacency}
        for whose, delta in (("own", stated.document["delta"]), ("benchmark", benchmark_delta(num_private)))
    }
    return {"num_private": num_private, **proven}


def _evaluate_classifier(source: Path, options: EvaluateOptions, device: torch.device, progress: Progress) -> Evaluated:
    """Measure how often a released classifier is right about the real held-out images."""
    if unfit := given(options, "only", "num", "weights", "ceiling", "floor", "classifier_run", "protocol"):
        raise InputError(
            f"{source} has released a classifier, which is measured by its accuracy: leave {unfit[0]} out."
        )
    config, out = data_config(source, options), _checked_out(source, options.out)
    started, classifier = time.monotonic(), load_classifier(source).to(device)
    accuracy = measure_accuracy(classifier, getattr(load(config, progress), options.part))
    part: Any = options.part
    evaluation = Evaluation({"classifier": accuracy}, part, (CURATOR_NOTE,))
    about = {"classifier_run": _guarantee(source, classifier), "num_images": accuracy.num_images}
    return Evaluated(evaluation, _facts(source, "classifier", config, about, device, started), out)


def _facts(
    source: Path, kind: str, config: DataConfig, about: Mapping[str, Any], device: torch.device, started: float
) -> dict[str, Any]:
    """Return what evaluation.json says beside the results."""
    return {
        "source": str(source),
        "kind": kind,
        **about,
        "data": config.model_dump(mode="json"),
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(str(device)),
    }


def _guarantee(source: Path | None, classifier: PrivateClassifier) -> dict[str, Any]:
    """Return what is proven for a classifier that was loaded from a run."""
    proven = classifier.privacy.proven
    epsilon = number_to_json(proven.epsilon)
    return {"source": str(source), "epsilon": epsilon, "delta": proven.delta, "unit": str(proven.unit)}


def write_evaluation(evaluated: Evaluated) -> None:
    """Write evaluation.json, if the result has an output path."""
    if evaluated.out is not None:
        write_private_json(evaluated.out, evaluated.to_json())


def data_config(source: Path, options: EvaluateOptions) -> DataConfig:
    """Return the [data] section of a run or a release, with the options applied."""
    wrong = [setting for setting in options.settings if not setting.startswith("data.")]
    if wrong:
        raise ConfigError(f"the setting '{wrong[0]}' is not for evaluate: write data.key=value.")
    if (named := options.config) is None:
        table = _data_table(source)
    else:
        found = load_table(named).get("data") if named.suffix == ".toml" else _data_table(named) or None
        if not isinstance(found, dict):
            raise ConfigError(f"--config {named} has no [data] section. Name a run, a release or a TOML config.")
        table = dict(found)
    if options.data is not None and options.data != table.get("name"):
        table = {"name": options.data}  # the other keys were meant for another data set
    if options.data_root is not None:
        table["root"] = options.data_root
    config = build(DataConfig, apply_overrides({"data": table}, options.settings)["data"], "[data]")
    if "name" not in config.model_fields_set:
        raise ConfigError(
            f"--data is missing: {source} does not say which real images to compare with. Name them, or a run, a "
            "release or a config that does with --config."
        )
    return config


def _data_table(path: Path) -> dict[str, Any]:
    """Return [data] of a run or a release, or of the run that something lies in; empty for anything else.

    A release says what is public (size, classes, number of images), never where the private images lie: a path in it
    would be one of another machine, and is dropped.
    """
    is_release = (path if path.is_dir() else path.parent).joinpath(CONFIG).is_file()
    for run in (RunFolder(path), *(() if is_release else (RunFolder(path.absolute().parent),))):
        if run.config.is_file():
            table = load_table(run.config).get("data", {})
            return dict(table) if isinstance(table, dict) else {}
    release = path if path.is_dir() else path.parent  # the weights themselves may be named
    config = release / CONFIG
    if not config.is_file() or not (path.is_dir() or path.suffix == ".safetensors"):
        return {}
    document: Any = parse_json(read_plain(config, MOST_TEXT_BYTES, follow=True))
    for key in ("settings", "data"):
        document = document.get(key) if isinstance(document, dict) else None
    return {} if not isinstance(document, dict) else {k: v for k, v in document.items() if not k.endswith("root")}


def _metrics(options: EvaluateOptions, classes: Sequence[str]) -> list[str]:
    wanted = [options.only] if options.only else list(default_metrics(classes))
    if options.ceiling:
        wanted += ["ceiling"] * (options.only != "fidelity" and bool(classes))
        wanted += ["fidelity_ceiling"] * ("fidelity" in wanted)
    return wanted + ["floor"] * options.floor


def _checked_out(source: Path, out: Path | None) -> Path | None:
    """Return where to write: never into a release or a run's state, never over the result of another command."""
    run = RunFolder(source)
    if out is None and run.config.is_file():
        out = run.evaluation
    if out is None:
        return None
    check_output(out, FORMAT, [source])
    check_writable(out)
    return out
