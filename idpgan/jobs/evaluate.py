"""``idpgan evaluate``: images or a classifier under test, against the real data set that they stand for.

Everything here is computed with private images: evaluation.json is for the curator only.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from idpgan import metrics
from idpgan.config import apply_overrides, build, load_table
from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.load import Split, load, place
from idpgan.device import check_device, resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.files import PRIVATE_FILE, check_writable, parse_json, read_plain, write_text_atomic
from idpgan.metrics import BenchmarkSettings, Cache
from idpgan.metrics.cache import default_folder
from idpgan.metrics.dpimagebench import FULL, NUM_IMAGES, PUBLISHED_SIDES, SMALL, benchmark_delta, check_benchmark
from idpgan.metrics.evaluation import CURATOR_NOTE, METRICS, Evaluation, Features, default_metrics
from idpgan.metrics.features import Part
from idpgan.metrics.fitting import RECIPES
from idpgan.metrics.source import kind_of, read_images
from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES, is_classifier
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.guarantee import number_to_json
from idpgan.progress import Progress, renamed, silent
from idpgan.release.classifier import load_classifier
from idpgan.release.export import release_of
from idpgan.release.folder import PRIVACY
from idpgan.release.outputs import check_output
from idpgan.release.received import Stated, read_privacy
from idpgan.run import describe_environment

FORMAT = "idpgan evaluation 1"
ONLY = ("utility", "inception", "fidelity")
PROTOCOLS = ("idpgan", "dpimagebench")
_RUN_CONFIG = "config.toml"


@dataclass(frozen=True)
class Options:
    """What to measure, and against what.

    Attributes:
        data: Name of the real data set; None is that of the config.
        data_root: Where it lies now; None is where the config says.
        config: A run, a release or a TOML file whose [data] says what is public about the real images; None is the
            source itself, where it is a run or a release.
        settings: ``data.key=value``, on top of that.
        part: Which real images judge.
        only: One of `ONLY`; None is all that can be measured.
        ceiling: Also measure the real private images.
        floor: Also measure the utility of the public images alone.
        num: Images to draw from a generator; None is the number of private ones, and 60,000 by "dpimagebench".
        seeds: Fits of each classifier; None is 3, and 1 by "dpimagebench".
        classifiers: Kinds that utility is measured with; None is all of ours.
        protocol: One of `PROTOCOLS`: ours, or the utility of DPImageBench alone.
        full: Networks and epochs of "dpimagebench" in their published size, for a GPU.
        benchmark: Other networks and epochs for "dpimagebench".
        splits: Of the inception score.
        features: Network of the fidelity; ``weights`` is the file of Inception-v3.
        pixel_range: Of float images.
        cache: Cache folder; None is the user's.
        classifier_run: A released classifier to stand beside the images: what a user gets who only wants a classifier.
        out: JSON file to write; None is evaluation.json of a run, and nothing otherwise.
    """

    data: str | None = None
    data_root: Path | None = None
    config: Path | None = None
    settings: tuple[str, ...] = ()
    part: Part = "test"
    only: str | None = None
    ceiling: bool = False
    floor: bool = False
    num: int | None = None
    seeds: int | None = None
    classifiers: tuple[str, ...] | None = None
    protocol: str = PROTOCOLS[0]
    full: bool = False
    benchmark: BenchmarkSettings | None = None
    splits: int = 10
    features: Features = "auto"
    weights: Path | None = None
    pixel_range: str = "auto"
    device: str = "auto"
    cache: Path | None = None
    classifier_run: Path | None = None
    out: Path | None = None


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


def evaluate_source(source: Path, options: Options | None = None, progress: Progress = silent) -> Evaluated:
    """Measure the images of a run, a release, a folder or an npz file; nothing is written but the cache.

    Raises:
        InputError: If something cannot be measured; found out before the first computation where possible.
    """
    options = options or Options()
    _check(options)
    device = resolve_device(options.device, "--device")
    if is_classifier(source):
        return _evaluate_classifier(source, options, device, progress)
    beside = None if options.classifier_run is None else load_classifier(options.classifier_run).to(device)
    kind, config, out = kind_of(source), data_config(source, options), _checked_out(source, options.out)
    if options.num is not None and kind != "generator":
        raise InputError(
            f"--num {options.num} is for generators, but {source} is a {kind}: all of its images are taken."
        )
    started = time.monotonic()
    split = load(config, progress)
    about: dict[str, Any] = {}
    num, measured = split.num_private, _evaluate_ours
    if options.protocol == "dpimagebench":
        check_benchmark(split.image_shape, split.classes, split.num_private)
        num, measured = NUM_IMAGES, _evaluate_dpimagebench
        about["privacy"] = _benchmark_privacy(source, kind, split.num_private)
    images = read_images(
        source,
        split.image_shape,
        split.classes,
        num=num if options.num is None else options.num,
        device=device,
        pixel_range=options.pixel_range,
        progress=renamed(progress, "images under test"),
    )
    evaluation = measured(images, split, options, device, progress)
    if beside is not None:
        accuracy = metrics.measure_accuracy(beside, getattr(split, options.part))
        evaluation = dataclasses.replace(evaluation, classifier=accuracy)
        about["classifier_run"] = {"source": str(options.classifier_run), **_guarantee(beside)}
    facts = {
        "source": str(source),
        "kind": kind,
        **about,
        "data": config.model_dump(mode="json"),
        "num_images": len(images),
        "images_digest": images.digest(),
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(str(device)),
    }
    return Evaluated(evaluation, facts, out)


def _evaluate_ours(
    images: Images, split: Split, options: Options, device: torch.device, progress: Progress
) -> Evaluation:
    return metrics.evaluate_images(
        images,
        split,
        _metrics(options, split.classes),
        part=options.part,
        num_seeds=3 if options.seeds is None else options.seeds,
        classifiers=tuple(RECIPES) if options.classifiers is None else options.classifiers,
        splits=options.splits,
        features=options.features,
        weights=options.weights,
        cache=Cache(options.cache or default_folder()),
        device=device,
        progress=progress,
    )


def _evaluate_dpimagebench(
    images: Images, split: Split, options: Options, device: torch.device, progress: Progress
) -> Evaluation:
    judges: Images = getattr(split.existing(), options.part)
    if len(judges) == 0:
        raise InputError(f"There are no {options.part} images to judge by. Set data.holdout_share.")
    result = metrics.measure_dpimagebench(
        place(images, device),
        place(judges, device),
        settings=options.benchmark or (FULL if options.full else SMALL),
        seeds=range(1 if options.seeds is None else options.seeds),
        cache=Cache(options.cache or default_folder()),
        device=device,
        progress=progress,
    )
    notes = [
        CURATOR_NOTE,
        "the best of three is chosen by the accuracy itself, as the published rows are: it is too high by that choice",
        "the epoch of each fit is chosen on held-back generated images; the published rows chose it on 5,000 real "
        "validation images",
    ]
    if not result.full:
        notes.append("networks and epochs are smaller than the benchmark's; --full takes its own, on a GPU")
    if result.num_images != NUM_IMAGES:
        notes.append(f"{result.num_images:,} images were taken; the published rows took {NUM_IMAGES:,}")
    if not set(split.image_shape[1:]) <= set(PUBLISHED_SIDES):
        notes.append("the benchmark has images of 28 x 28 and 32 x 32 pixels: no published row is of these")
    return Evaluation(**dict.fromkeys(METRICS), part=options.part, notes=tuple(notes), dpimagebench=result)


def _benchmark_privacy(source: Path, kind: str, num_private: int) -> dict[str, Any]:
    """Return what the charges of a release prove, at its own delta and at the benchmark's.

    A folder or an npz file has no charges: there is only the benchmark's delta for the private images of the data set.
    """
    document = release_of(source) / PRIVACY
    if kind != "generator" or not document.is_file():
        return {"num_private": num_private, "own": None, "benchmark": {"delta": benchmark_delta(num_private)}}
    stated = read_privacy(document)
    num_private = stated.document["num_private"]
    return {
        "num_private": num_private,
        "own": _proven(stated, stated.document["delta"]),
        "benchmark": _proven(stated, benchmark_delta(num_private)),
    }


def _proven(stated: Stated, delta: float) -> dict[str, Any]:
    epsilon = number_to_json(compose_epsilon(stated.events, delta))
    return {"epsilon": epsilon, "delta": delta, "unit": str(stated.unit), "relation": str(stated.relation)}


def _evaluate_classifier(source: Path, options: Options, device: torch.device, progress: Progress) -> Evaluated:
    """Measure how often a released classifier is right about the real images that judge."""
    unfit = {"--only": options.only, "--num": options.num, "--weights": options.weights}
    unfit |= {"--ceiling": options.ceiling or None, "--floor": options.floor or None}
    unfit["--classifier-run"] = options.classifier_run
    unfit["--protocol"] = None if options.protocol == PROTOCOLS[0] else options.protocol
    given = [name for name, value in unfit.items() if value is not None]
    if given:
        raise InputError(
            f"{source} has released a classifier, which is measured by its accuracy: leave {given[0]} out."
        )
    config, out = data_config(source, options), _checked_out(source, options.out)
    started, classifier = time.monotonic(), load_classifier(source).to(device)
    images = getattr(load(config, progress), options.part)
    accuracy = metrics.measure_accuracy(classifier, images)
    evaluation = Evaluation(
        **dict.fromkeys(METRICS),
        part=options.part,
        notes=(CURATOR_NOTE,),
        classifier=accuracy,
    )
    facts = {
        "source": str(source),
        "kind": "classifier",
        "classifier_run": {"source": str(source), **_guarantee(classifier)},
        "data": config.model_dump(mode="json"),
        "num_images": accuracy.num_images,
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(str(device)),
    }
    return Evaluated(evaluation, facts, out)


def _guarantee(classifier: PrivateClassifier) -> dict[str, Any]:
    """Return what is proven for a loaded classifier."""
    proven = classifier.privacy.proven
    return {"epsilon": number_to_json(proven.epsilon), "delta": proven.delta, "unit": str(proven.unit)}


def write_evaluation(evaluated: Evaluated) -> None:
    """Write evaluation.json, if there is a place for it."""
    if evaluated.out is not None:
        text = json.dumps(evaluated.to_json(), indent=2, allow_nan=False) + "\n"
        write_text_atomic(evaluated.out, text, mode=PRIVATE_FILE)


def data_config(source: Path, options: Options) -> DataConfig:
    """Return the [data] section of a run or a release, with what the options say put in."""
    wrong = [setting for setting in options.settings if not setting.startswith("data.")]
    if wrong:
        raise ConfigError(f"the setting '{wrong[0]}' is not for evaluate: write data.key=value.")
    table = _data_table(source) if options.config is None else _named_table(options.config)
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


def _named_table(path: Path) -> dict[str, Any]:
    """Return [data] of what --config names, which must have one."""
    if path.suffix == ".toml":
        table = load_table(path).get("data")
        if isinstance(table, dict):
            return dict(table)
    elif table := _data_table(path):
        return table
    raise ConfigError(f"--config {path} has no [data] section. Name a run, a release or a TOML config.")


def _data_table(path: Path) -> dict[str, Any]:
    """Return [data] of a run or a release; empty for anything else.

    A release says what is public (size, classes, number of images), never where the private images lie: a path in it
    would be somebody else's, and is dropped.
    """
    if (path / _RUN_CONFIG).is_file():
        table = load_table(path / _RUN_CONFIG).get("data", {})
        return dict(table) if isinstance(table, dict) else {}
    release = path if path.is_dir() else path.parent  # the weights themselves may be named
    config = release / CONFIG
    if not config.is_file() or not (path.is_dir() or path.suffix == ".safetensors"):
        return {}
    document: Any = parse_json(read_plain(config, MOST_TEXT_BYTES, follow=True))
    for key in ("settings", "data"):
        document = document.get(key) if isinstance(document, dict) else None
    return {} if not isinstance(document, dict) else {k: v for k, v in document.items() if not k.endswith("root")}


def _metrics(options: Options, classes: Sequence[str]) -> list[str]:
    wanted = [options.only] if options.only else list(default_metrics(classes))
    if options.ceiling:
        wanted += ["ceiling"] * (options.only != "fidelity" and bool(classes))
        wanted += ["fidelity_ceiling"] * ("fidelity" in wanted)
    return wanted + ["floor"] * options.floor


def _checked_out(source: Path, out: Path | None) -> Path | None:
    """Return where to write, which is never a release, a run's state, or what another command made."""
    if out is None:
        if not (source / _RUN_CONFIG).is_file():
            return None
        out = source / "evaluation.json"
    check_output(out, FORMAT, [source])
    check_writable(out)
    return out


def _check(options: Options) -> None:
    """Refuse impossible options before anything is read."""
    check_device(options.device, "--device")
    for name, value, allowed in (
        ("--only", options.only or ONLY[0], ONLY),
        ("--part", options.part, ("test", "holdout")),
        ("--features", options.features, ("auto", "classifier", "autoencoder", "inception-v3")),
        ("--protocol", options.protocol, PROTOCOLS),
        *(("--classifier", classifier, tuple(RECIPES)) for classifier in options.classifiers or ()),
    ):
        if value not in allowed:
            raise InputError(f"{name} {value} is unknown. Known: {', '.join(allowed)}.")
    _check_counts(options.seeds, options.classifiers)
    if (options.features == "inception-v3") != (options.weights is not None):
        raise InputError("--features inception-v3 and --weights FILE go together: nothing is downloaded. Give both.")
    _check_protocol(options)


def _check_counts(seeds: int | None, classifiers: Sequence[str] | None) -> None:
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds} must be at least 1.")
    if classifiers is not None and (not classifiers or len(set(classifiers)) < len(classifiers)):
        raise InputError(f"--classifier {', '.join(classifiers)}: name at least one, none twice.")


def _check_protocol(options: Options) -> None:
    """Refuse options of the other protocol."""
    ours, defaults = options.protocol == PROTOCOLS[0], Options()
    names = {"full": "--full", "benchmark": "benchmark"} if ours else {
        "only": "--only",
        "ceiling": "--ceiling",
        "floor": "--floor",
        "classifiers": "--classifier",
        "splits": "--splits",
        "features": "--features",
    }  # fmt: skip
    given = [shown for name, shown in names.items() if getattr(options, name) != getattr(defaults, name)]
    if given and ours:
        raise InputError(f"{given[0]} is for --protocol dpimagebench: give both, or leave it out.")
    if given:
        raise InputError(
            f"{given[0]} is not for --protocol dpimagebench, which measures the utility of its own three classifiers "
            "alone. Leave one of the two out."
        )
