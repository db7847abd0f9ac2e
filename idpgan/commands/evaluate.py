"""``idpgan evaluate``: images or a classifier under test, against the real data set that they stand for.

Everything here is computed with private images: evaluation.json is for the curator only.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idpgan.commands.command import (
    RANGE,
    Answer,
    Device,
    command,
    given,
    kept,
    option,
    print_lines,
    print_table,
    refuse_below,
)
from idpgan.device import check_device, resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.files import check_writable, parse_json, read_plain, write_private_json
from idpgan.progress import Progress, renamed, silent
from idpgan.run import RunFolder, describe_environment

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from idpgan.data.config import DataConfig
    from idpgan.data.load import Split
    from idpgan.metrics.evaluation import Evaluation
    from idpgan.metrics.predictions import Judges
    from idpgan.models.private_classifier import PrivateClassifier

FORMAT = "idpgan evaluation 1"
_MOST_COLUMNS = 5  # of a table that is as wide as 80 signs; one with more is turned on its side
_KNOWN = {
    "part": ("test", "holdout"),
    "features": ("auto", "classifier", "autoencoder", "inception-v3"),
    "protocol": ("idpgan", "dpimagebench"),
}


@dataclass(frozen=True)
class EvaluateOptions:
    """What to measure, and against what."""

    settings: Annotated[tuple[str, ...], typer.Argument(metavar="[data.key=value ...]", show_default=False)] = ()
    data: str | None = option(None, "Real data set; default: that of the run.", metavar="NAME")
    data_root: Path | None = option(None, "Where the data set lies (data.root).")
    config: Path | None = option(None, "Run, release or TOML whose [data] declares the real images.")
    part: str = option("test", "Real images that judge: test, or holdout to choose settings.")
    only: str | None = option(None, "Measure just this: utility, inception, fidelity or recognition.")
    ceiling: bool = option(False, "Also measure the real private images.")
    floor: bool = option(False, "Also the utility of the public images alone.")
    num: int | None = option(None, "Images to draw from a run; default: as many as are private, or as the protocol.")
    predictions: Path | None = option(None, "Also write what a classifier says of each real image.", metavar="FILE.csv")
    by: str | None = option(
        None, "Also how often that is right by a column, such as glasses, with fairlearn.", metavar="COLUMN"
    )
    protocol: str = option("idpgan", "idpgan, or dpimagebench: the best of its three classifiers on 60,000 images.")
    full: bool = option(
        False, "The whole protocol, as for published figures; of dpimagebench its own size: hours on a GPU."
    )
    seeds: int | None = option(None, "Fits of each classifier; default: 1, and 3 with --full; 1 by dpimagebench.")
    classifiers: tuple[str, ...] = option(
        (), "Kind for utility: cnn, resnet, logistic; may be repeated. Default: cnn; with --full all.", "--classifier"
    )
    splits: int = option(10, "Splits of the inception score.")
    features: str = option("auto", "Network of the fidelity: auto, classifier, autoencoder or inception-v3.")
    weights: Path | None = option(None, "Weights file of inception-v3.")
    pixel_range: str = option("auto", RANGE, "--range")
    device: Device = "auto"
    module: str | None = option(None, "Code of a generator of its makers' own, package.module:Class.")
    classifier_run: Path | None = option(
        None, "Released classifier to stand beside the utility of images.", metavar="RUN"
    )
    out: Path | None = option(None, "JSON file to write; default for a run: its evaluation.json.")

    def __post_init__(self) -> None:
        check_device(self.device, "--device")
        for name, values in _KNOWN.items():
            if getattr(self, name) not in values:
                raise InputError(f"--{name} {getattr(self, name)} is unknown. Known: {', '.join(values)}.")
        refuse_below(self, seeds=1)
        if len(set(self.classifiers)) < len(self.classifiers):
            raise InputError(f"--classifier {', '.join(self.classifiers)}: name none twice.")
        if (self.features == "inception-v3") != (self.weights is not None):
            raise InputError(
                "--features inception-v3 and --weights FILE go together: nothing is downloaded. Give both."
            )
        ours = given(self, "only", "ceiling", "floor", "classifiers", "splits", "features", "by", "predictions")
        if self.protocol == "dpimagebench" and ours:
            raise InputError(
                f"{ours[0]} is not for --protocol dpimagebench, which measures the utility of its own three "
                "classifiers alone. Leave one of the two out."
            )

    @property
    def quick(self) -> bool:
        """Whether fewer images and fits are taken than the protocol asks for."""
        return self.protocol == "idpgan" and not self.full


@command
def evaluate(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR|FILE.npz", help="Images, or what draws them.")],
    options: EvaluateOptions,
    progress: Progress,
) -> Answer:
    """Measure how useful, how varied and how real images are, or how often a released classifier is right.

    The numbers are for the curator only.

    Quick by default, from at most 6,000 images by one network, with an interval; --full is the whole protocol.

    Utility: accuracy on real held-out images of classifiers trained on these images. Inception score: with a
    classifier trained on all real training images. Fidelity: FID, KID, precision, recall, density and coverage
    against the real held-out images. Recognition (--only): accuracy, precision, recall and F1 of principal components
    with an SVM that is trained on these images and asked about the real ones. No epsilon covers these numbers.

    With --protocol dpimagebench only utility is measured, by that benchmark's classifiers, and epsilon is stated at its
    delta of 1 / (n ln n): rows for its tables.

    With --predictions FILE.csv a row is written for each real image that judges: its class, and the class that one
    classifier trained on these images (or the released one) gives it. With --by COLUMN that classifier's accuracy
    stands for each value of that column of metadata.csv too, with intervals: who is served worse.

    Example: idpgan evaluate synthetic.npz --data mnist --data-root ../shared/data --ceiling
    """
    evaluated = evaluate_source(source, options, progress)
    content = evaluated.to_json()
    with kept(content):
        evaluated.write()

    def show() -> None:
        print(f"{source} ({content['num_images']:,} images) against {content['data']['name']}")
        if content.get("drawn_for") == "looking":
            print("These images were drawn to be looked at; to train on: idpgan sample --for training.")
        elif content.get("drawn_for") == "training":
            print("Images are drawn for training.")
        print_evaluation(content)

    return Answer(content, show)


def print_evaluation(content: Mapping[str, Any]) -> None:
    """Print the tables of all that was measured, what they rest on, and what a reader has to know."""
    from idpgan.metrics.evaluation import metric_notes, metric_tables

    plain = str.maketrans({"±": "+-", "↑": "", "↓": ""})
    for table in metric_tables(content):
        print_lines([table.caption.translate(plain)])
        rows = [[cell.translate(plain) for cell in row] for row in (table.head, *table.rows)]
        if len(table.head) > _MOST_COLUMNS:
            rows = [list(column) for column in zip(*rows, strict=True)]
        print_table([heading.strip() for heading in rows[0]], rows[1:])
        print_lines([line.translate(plain) for line in table.lines])
    print_lines([f"note: {note}" for note in metric_notes(content)])


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

    def write(self) -> None:
        """Write evaluation.json, if there is a place for it."""
        if self.out is not None:
            write_private_json(self.out, self.to_json())


def evaluate_source(source: Path, options: EvaluateOptions | None = None, progress: Progress = silent) -> Evaluated:
    """Measure the images of a run, a release, a folder or an npz file; nothing is written but the cache.

    Raises:
        InputError: If something cannot be measured; checked before the first computation where possible.
    """
    from idpgan import kinds, metrics
    from idpgan.metrics import cache, dpimagebench, predictions, quick
    from idpgan.metrics.accuracy import measure_accuracy
    from idpgan.metrics.features import RECIPES
    from idpgan.metrics.source import kind_of, read_images
    from idpgan.models.checkpoint import is_classifier
    from idpgan.models.config import Purpose
    from idpgan.release.classifier import load_classifier
    from idpgan.release.export import purpose_of

    options = options or EvaluateOptions()
    _check_names(options)
    _check_predictions(source, options)
    device = resolve_device(options.device, "--device")
    if is_classifier(source):
        return _evaluate_classifier(source, options, device, progress)
    beside = None if options.classifier_run is None else load_classifier(options.classifier_run).to(device)
    kind, config, out = kind_of(source), data_config(source, options), _checked_out(source, options)
    if options.num is not None and kind != "generator":
        raise InputError(
            f"--num {options.num} is for generators, but {source} is a {kind}: all of its images are taken."
        )
    started, under_test = time.monotonic(), kinds.opened(source, options.module)
    split, about = _loaded(config, options, progress), dict[str, Any]()
    judges = _judges(config, split, options)
    num, wanted = split.num_private, _metrics(options, split.classes)
    seeds, classifiers = options.seeds, options.classifiers or tuple(RECIPES)
    if options.quick:
        num, split = min(num, quick.IMAGES), quick.fewer_to_train_on(split)
        seeds, classifiers = options.seeds or 1, options.classifiers or quick.CLASSIFIERS
    if options.protocol == "dpimagebench":
        dpimagebench.check_benchmark(split.image_shape, split.classes, split.num_private)
        num, wanted = dpimagebench.NUM_IMAGES, ["dpimagebench"]
        about["privacy"] = _benchmark_privacy(source, kind, split.num_private)
    num = num if options.num is None else options.num
    images = read_images(
        under_test,
        split.image_shape,
        split.classes,
        num=num,
        device=device,
        pixel_range=options.pixel_range,
        progress=renamed(progress, "images under test"),
    )
    images = quick.fewer(images) if options.quick and options.num is None else images
    store = cache.Cache(cache.default_folder())
    part: Any = options.part
    network: Any = options.features
    evaluation = metrics.evaluate_images(
        images,
        split,
        wanted,
        part=part,
        splits=options.splits,
        features=network,
        weights=options.weights,
        full=options.full,
        num_seeds=seeds,
        classifiers=classifiers,
        cache=store,
        device=device,
        progress=progress,
    )
    evaluation = quick.noted(evaluation) if options.quick else evaluation
    if beside is not None:
        accuracy = {"classifier": measure_accuracy(beside, getattr(split, options.part))}
        evaluation = dataclasses.replace(evaluation, results={**evaluation.results, **accuracy})
        about["classifier_run"] = _guarantee(options.classifier_run, beside)
    if judges is not None:
        predicted = predictions.predicted_by_fit(images, judges.images, classifiers[0], store, device, progress)
        evaluation = _with_predictions(evaluation, judges, predicted, options)
    about |= {"num_images": len(images), "images_digest": images.digest(), "quick": options.quick}
    about["drawn_for"] = Purpose.TRAINING if kind == "generator" else purpose_of(source) or None
    return Evaluated(evaluation, _facts(source, kind, config, about, device, started), out)


def _metrics(options: EvaluateOptions, classes: tuple[str, ...]) -> list[str]:
    """Return the names of what is measured."""
    from idpgan.metrics.evaluation import default_metrics

    wanted = [options.only] if options.only else list(default_metrics(classes))
    if options.ceiling:
        wanted += ["ceiling"] * (options.only != "fidelity" and bool(classes))
        wanted += ["fidelity_ceiling"] * ("fidelity" in wanted)
    return wanted + ["floor"] * options.floor


def _check_names(options: EvaluateOptions) -> None:
    """Refuse unknown names of metrics and classifiers before anything is read."""
    from idpgan.metrics.evaluation import METRICS
    from idpgan.metrics.features import RECIPES

    alone = [name for name, row in METRICS.items() if row.source == "images" and name != "dpimagebench"]
    only = [] if options.only is None else [options.only]
    for flag, names, known in (("--only", only, alone), ("--classifier", options.classifiers, [*RECIPES])):
        for name in names:
            if name not in known:
                raise InputError(f"{flag} {name} is unknown. Known: {', '.join(known)}.")


def _benchmark_privacy(source: Path, kind: str, num_private: int) -> dict[str, Any]:
    """Return what the charges of a release prove, at its own delta and at the benchmark's.

    A folder or an npz file has no charges: there is only the benchmark's delta for the private images of the data set.
    """
    from idpgan.metrics.dpimagebench import benchmark_delta
    from idpgan.privacy.accounting import compose_epsilon
    from idpgan.privacy.guarantee import number_to_json
    from idpgan.release.export import release_of
    from idpgan.release.statement import PRIVACY, read_privacy

    document = release_of(source) / PRIVACY
    if kind != "generator" or not document.is_file():
        return {"num_private": num_private, "own": None, "benchmark": {"delta": benchmark_delta(num_private)}}
    stated = read_privacy(document)
    num_private = stated.num_private
    adjacency = {"unit": str(stated.unit), "relation": str(stated.relation)}
    proven = {
        whose: {"epsilon": number_to_json(compose_epsilon(stated.events, delta)), "delta": delta, **adjacency}
        for whose, delta in (("own", stated.delta), ("benchmark", benchmark_delta(num_private)))
    }
    return {"num_private": num_private, **proven}


def _evaluate_classifier(source: Path, options: EvaluateOptions, device: torch.device, progress: Progress) -> Evaluated:
    """Measure how often a released classifier is right about the real held-out images."""
    from idpgan.metrics.accuracy import measure_accuracy
    from idpgan.metrics.evaluation import CURATOR_NOTE, Evaluation
    from idpgan.release.classifier import load_classifier

    if unfit := given(options, "only", "num", "weights", "ceiling", "floor", "classifier_run", "protocol"):
        raise InputError(
            f"{source} has released a classifier, which is measured by its accuracy: leave {unfit[0]} out."
        )
    config, out = data_config(source, options), _checked_out(source, options)
    started, classifier = time.monotonic(), load_classifier(source).to(device)
    part: Any = options.part
    split = _loaded(config, options, progress)
    judges = _judges(config, split, options)
    accuracy = measure_accuracy(classifier, getattr(split, part))
    evaluation = Evaluation({"classifier": accuracy}, part, (CURATOR_NOTE,))
    if judges is not None:
        predicted = classifier.logits(judges.images.images).argmax(1).cpu()
        evaluation = _with_predictions(evaluation, judges, predicted, options)
    about = {"classifier_run": _guarantee(source, classifier), "num_images": accuracy.num_images}
    return Evaluated(evaluation, _facts(source, "classifier", config, about, device, started), out)


def _judges(config: DataConfig, split: Split, options: EvaluateOptions) -> Judges | None:
    """Return the real images that predictions are about, if any are asked for; refuse what cannot be done with them."""
    from idpgan.metrics.predictions import Judges

    wanted = options.predictions is not None or options.by is not None
    part: Any = options.part
    return Judges.of(config, split, part, options.by) if wanted else None


def _with_predictions(
    evaluation: Evaluation, judges: Judges, predicted: Tensor, options: EvaluateOptions
) -> Evaluation:
    """Write the rows, and add what is measured by group."""
    from idpgan.metrics.predictions import measure_groups, write_predictions

    if options.predictions is not None:
        write_predictions(options.predictions, judges, predicted)
    if options.by is None:
        return evaluation
    by_group = measure_groups(options.by, judges, predicted)
    return dataclasses.replace(evaluation, results={**evaluation.results, "by_group": by_group})


def _check_predictions(source: Path, options: EvaluateOptions) -> None:
    """Refuse rows in a release or in the place of another file, and groups without the library that measures them."""
    from idpgan.data.config import folders_of
    from idpgan.metrics.predictions import check_fairlearn
    from idpgan.release.folder import refuse_place

    path = options.predictions
    if path is not None:
        refuse_place(path, f"--predictions {path}", folders_of(vars(data_config(source, options))))
        if path.exists() or path.suffix.lower() != ".csv":
            raise InputError(f"--predictions {path} must be a new file that ends with .csv. Choose another name.")
        check_writable(path)
    if options.by is not None:
        check_fairlearn()


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
    from idpgan.privacy.guarantee import number_to_json

    proven = classifier.privacy.proven
    epsilon = number_to_json(proven.epsilon)
    return {"source": str(source), "epsilon": epsilon, "delta": proven.delta, "unit": str(proven.unit)}


def _loaded(config: DataConfig, options: EvaluateOptions, progress: Progress) -> Split:
    """Load the real images; those of the run itself were warned of when it was trained."""
    from idpgan.data.load import load, load_again

    others = given(options, "data", "data_root", "config", "settings")
    return load(config, progress) if others else load_again(config, progress)


def data_config(source: Path, options: EvaluateOptions) -> DataConfig:
    """Return the [data] section of a run or a release, with the options applied."""
    from idpgan.config import apply_overrides, build, load_table
    from idpgan.data.config import DataConfig

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
    from idpgan.config import load_table
    from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES

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


def _checked_out(source: Path, options: EvaluateOptions) -> Path | None:
    """Return where to write: never into a release or a run's state, never over the result of another command."""
    from idpgan.data.config import folders_of
    from idpgan.release.folder import check_output

    run, out, images = RunFolder(source), options.out, None
    if out is None and run.config.is_file():
        out = run.evaluation
    elif out is not None:
        images = [*folders_of(vars(data_config(source, options))), *([] if run.config.is_file() else [source])]
    if out is None:
        return None
    check_output(out, FORMAT, [source], images=images)
    check_writable(out)
    return out
