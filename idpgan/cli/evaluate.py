"""``idpgan evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idpgan.cli.output import AsJson, Device, Quiet, kept, print_json
from idpgan.progress import shown

if TYPE_CHECKING:
    from rich.console import Console

    from idpgan.jobs.evaluate import Evaluated
    from idpgan.metrics import BenchmarkResult, Evaluation, FidelityResult


def evaluate(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR|FILE.npz", help="Images, or what draws them.")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[data.key=value ...]", show_default=False)] = None,
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Real data set; default: that of the run.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set lies (data.root).")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Run, release or TOML whose [data] declares the real images.")
    ] = None,
    part: Annotated[str, typer.Option(help="Real images that judge: test, or holdout to choose settings.")] = "test",
    only: Annotated[str | None, typer.Option(help="Measure just this: utility, inception or fidelity.")] = None,
    ceiling: Annotated[bool, typer.Option("--ceiling", help="Also measure the real private images.")] = False,
    floor: Annotated[bool, typer.Option("--floor", help="Also the utility of the public images alone.")] = False,
    num: Annotated[
        int | None, typer.Option(help="Images to draw from a run; default: as many as are private, or as the protocol.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="idpgan, or dpimagebench: the best of its three classifiers on 60,000 images.")
    ] = "idpgan",
    full: Annotated[
        bool, typer.Option("--full", help="dpimagebench in its published size: hours on a GPU, days on a CPU.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Fits of each classifier; default: 3, and 1 by dpimagebench.")
    ] = None,
    classifier: Annotated[
        list[str] | None, typer.Option(help="Kind for utility: cnn, resnet, logistic; may be repeated. Default: all.")
    ] = None,
    splits: Annotated[int, typer.Option(help="Splits of the inception score.")] = 10,
    features: Annotated[
        str, typer.Option(help="Network of the fidelity: auto, classifier, autoencoder or inception-v3.")
    ] = "auto",
    weights: Annotated[Path | None, typer.Option(help="Weights file of inception-v3.")] = None,
    pixel_range: Annotated[
        str, typer.Option("--range", help="Of float images: unit [0, 1], symmetric [-1, 1] or auto.")
    ] = "auto",
    device: Device = "auto",
    cache: Annotated[Path | None, typer.Option(help="Cache folder; default: $IDPGAN_CACHE or ~/.cache/idpgan.")] = None,
    classifier_run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Released classifier to stand beside the utility of images.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file to write; default for a run: its evaluation.json.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure how useful, how varied and how real images are, or how often a released classifier is right.

    The numbers are for the curator only.

    Utility: accuracy on real held-out images of classifiers trained on these images. Inception score: with a
    classifier trained on all real training images. Fidelity: FID, KID, precision, recall, density and coverage
    against the real held-out images. No epsilon covers these numbers.

    With --protocol dpimagebench only utility is measured, by that benchmark's classifiers, and epsilon is stated at its
    delta of 1 / (n ln n): rows for its tables.

    Example: idpgan evaluate synthetic.npz --data mnist --data-root ../shared/data --ceiling
    """
    from idpgan.jobs.evaluate import Options, evaluate_source, write_evaluation

    options = Options(
        data=data,
        data_root=data_root,
        config=config,
        settings=tuple(settings or ()),
        part=part,  # type: ignore[arg-type]  # the words are checked by the job
        only=only,
        ceiling=ceiling,
        floor=floor,
        num=num,
        seeds=seeds,
        classifiers=tuple(classifier) if classifier else None,
        protocol=protocol,
        full=full,
        splits=splits,
        features=features,  # type: ignore[arg-type]
        weights=weights,
        pixel_range=pixel_range,
        device=device,
        cache=cache,
        classifier_run=classifier_run,
        out=out,
    )
    with shown(quiet or as_json) as progress:
        evaluated = evaluate_source(source, options, progress)
    with kept(evaluated.to_json()):
        write_evaluation(evaluated)
    if as_json:
        print_json(evaluated.to_json())
    else:
        facts = evaluated.facts
        if facts["kind"] == "classifier":
            _print_classifier(evaluated)
            return
        beside = _shown_guarantee(facts) if classifier_run is not None else ""
        title = f"{source} ({facts['num_images']:,} images) against {facts['data']['name']}"
        if evaluated.evaluation.dpimagebench is not None:
            _print_benchmark(evaluated.evaluation, evaluated.evaluation.dpimagebench, title, facts["privacy"], beside)
            return
        _print(evaluated.evaluation, title, beside)


def _print_classifier(evaluated: Evaluated) -> None:
    """Print the accuracy of a released classifier, beside what a constant answer gets."""
    from rich.console import Console

    console, accuracy, facts = Console(markup=False), evaluated.evaluation.classifier, evaluated.facts
    if accuracy is None:
        raise TypeError("a classifier under test has an accuracy.")
    low, high = accuracy.interval
    console.print(
        f"{facts['source']} ({_shown_guarantee(facts)}): accuracy {accuracy.mean:.2%} [{low:.2%}, {high:.2%}] on "
        f"{accuracy.num_images:,} real {evaluated.evaluation.part} images of {facts['data']['name']}, 95 % confidence",
        soft_wrap=True,
    )
    console.print(f"always the majority: {accuracy.majority:.2%}")
    for note in evaluated.evaluation.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _print_benchmark(
    evaluation: Evaluation, result: BenchmarkResult, title: str, privacy: dict[str, Any], beside: str
) -> None:
    """Print the three accuracies, what a reader quotes of them, and epsilon at the benchmark's delta."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)
    table = Table("classifier", "parameters", "accuracy", "held back", title=f"{title}, protocol {result.protocol}")
    for score in result.scores:
        spread = f" +- {score.std:.2%}" if score.std is not None else ""
        held_back = sum(score.held_back_accuracies) / len(result.seeds)
        table.add_row(score.name, f"{score.num_parameters:,}", f"{score.mean:.2%}{spread}", f"{held_back:.2%}")
    table.add_row("always the majority", "", f"{result.majority:.2%}", "")
    if evaluation.classifier is not None:
        table.add_row(f"no images: private classifier, {beside}", "", f"{evaluation.classifier.mean:.2%}", "")
    console.print(table)
    console.print(
        f"best of three: {result.best.mean:.2%} ({result.best.name}); mean of three {result.mean:.2%} +- "
        f"{result.std:.2%}; chosen on held-back generated images: {result.chosen.mean:.2%} ({result.chosen.name})",
        soft_wrap=True,
    )
    console.print(
        f"accuracy on {result.num_test:,} real {evaluation.part} images, {len(result.seeds)} seed(s)", soft_wrap=True
    )
    proven, own = privacy["benchmark"], privacy["own"]
    if own is None:
        said = "no epsilon is known: the images come without the charges of a release"
    else:
        said = f"epsilon {_number(proven['epsilon'])}, unit {proven['unit']}, {proven['relation']}; at the run's own "
        said += f"delta {own['delta']:.3g}: epsilon {_number(own['epsilon'])}"
    console.print(
        f"at delta = 1 / (n ln n) = {proven['delta']:.4g}, n = {privacy['num_private']:,}: {said}", soft_wrap=True
    )
    for note in evaluation.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _number(epsilon: float | str) -> str:
    """Write an epsilon, which may be "inf"."""
    return epsilon if isinstance(epsilon, str) else f"{epsilon:.4g}"


def _shown_guarantee(facts: dict[str, Any]) -> str:
    """Write what protects a classifier."""
    run = facts["classifier_run"]
    return f"epsilon {_number(run['epsilon'])}, delta {run['delta']:.3g}, unit {run['unit']}"


def _print(evaluation: Evaluation, title: str, beside: str = "") -> None:
    """Print a table of accuracies, inception score and fidelity, then what a reader has to know."""
    from rich.console import Console

    console = Console(markup=False)
    _print_utility(evaluation, title, console, beside)
    if evaluation.inception is not None:
        score = evaluation.inception
        error = "" if score.standard_error is None else f" +- {score.standard_error:.3f} (standard error)"
        console.print(f"inception score {score.mean:.3f}{error}, {score.splits} split(s), at most {score.num_classes}")
        console.print(
            f"feature classifier sha256 {score.classifier_sha256}, {score.classifier_accuracy:.2%} on held-back images",
            soft_wrap=True,
        )
    _print_fidelity(evaluation, title, console)
    measured = (evaluation.inception, evaluation.fidelity, evaluation.fidelity_ceiling)
    notes = [note for result in measured if result is not None for note in result.notes]
    for note in dict.fromkeys((*evaluation.notes, *notes)):
        console.print(f"note: {note}", soft_wrap=True)


def _print_utility(evaluation: Evaluation, title: str, console: Console, beside: str) -> None:
    """Print accuracies by kind of classifier, and what a constant answer gets, or a private classifier by itself.

    Args:
        evaluation: Perhaps with a private classifier.
        title: Of the table.
        console: Where to print.
        beside: Guarantee of the private classifier.
    """
    from rich.table import Table

    columns = ("utility", "ceiling", "floor")
    results = {name: result for name in columns if (result := getattr(evaluation, name)) is not None}
    headings = {"utility": "these images", "ceiling": "real private (ceiling)", "floor": "public (floor)"}
    if not results:
        return
    table = Table("classifier, trained on", *(headings[name] for name in results), title=title)
    for scores in zip(*(result.scores for result in results.values()), strict=True):
        spread = [f" +- {score.std:.2%}" if score.std is not None else "" for score in scores]
        table.add_row(scores[0].name, *(f"{s.mean:.2%}{text}" for s, text in zip(scores, spread, strict=True)))
    first = next(iter(results.values()))
    table.add_row("always the majority", *([f"{first.majority:.2%}"] * len(results)))
    if evaluation.classifier is not None:
        table.add_row(f"no images: private classifier, {beside}", f"{evaluation.classifier.mean:.2%}")
    console.print(table)
    console.print(
        f"accuracy on {first.num_test:,} real {evaluation.part} images, mean +- std over {len(first.seeds)} seed(s)"
    )


def _print_fidelity(evaluation: Evaluation, title: str, console: Console) -> None:
    """Print fidelity beside that of the real private images, and what it was computed with."""
    from rich.table import Table

    results: list[tuple[str, FidelityResult | None]] = [
        ("these images", evaluation.fidelity),
        ("real private (ceiling)", evaluation.fidelity_ceiling),
    ]
    measured = [(name, result) for name, result in results if result is not None]
    if not measured:
        return
    table = Table("fidelity", "FID", "KID", "prec.", "recall", "density", "cover.", title=title)
    for name, score in measured:
        rest = (score.precision, score.recall, score.density, score.coverage)
        table.add_row(name, f"{score.fid:.3f}", f"{score.kid:.4f}", *(f"{number:.3f}" for number in rest))
    console.print(table)
    for name, score in measured:
        console.print(
            f"{name}: {score.num_images:,} against {score.num_real:,} real {score.part} images; {score.num_nearest:,} "
            "of each in KID and neighbors",
            soft_wrap=True,
        )
    score = measured[0][1]
    resized = "not resized" if score.resize is None else f"resized to {score.resize} x {score.resize}"
    console.print(
        f"features: {score.num_features} of {score.network}, images {resized}, sha256 {score.features_sha256}",
        soft_wrap=True,
    )
