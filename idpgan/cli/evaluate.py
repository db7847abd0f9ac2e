"""``idpgan evaluate``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.cli.output import AsJson, Quiet, kept, print_json
from idpgan.errors import ConfigError, InputError
from idpgan.progress import renamed, shown

FORMAT = "idpgan evaluation 1"

if TYPE_CHECKING:
    from idpgan.data.config import DataConfig
    from idpgan.metrics import Evaluation


def evaluate(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR|FILE.npz", help="Images, or what draws them.")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[data.key=value ...]", show_default=False)] = None,
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Real data set; default: that of the run.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set lies (data.root).")] = None,
    only: Annotated[str | None, typer.Option(help="Measure just this: utility or inception.")] = None,
    ceiling: Annotated[bool, typer.Option("--ceiling", help="Also the utility of the real private images.")] = False,
    floor: Annotated[bool, typer.Option("--floor", help="Also the utility of the public images alone.")] = False,
    num: Annotated[int | None, typer.Option(help="Images to draw from a run; default: as many as are private.")] = None,
    seeds: Annotated[int, typer.Option(help="Fits of each classifier.")] = 3,
    splits: Annotated[int, typer.Option(help="Splits of the inception score.")] = 10,
    pixel_range: Annotated[
        str, typer.Option("--range", help="Of float images: unit [0, 1], symmetric [-1, 1] or auto.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu or cuda.")] = "auto",
    cache: Annotated[Path | None, typer.Option(help="Cache folder; default: $IDPGAN_CACHE or ~/.cache/idpgan.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file to write; default for a run: its evaluation.json.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure how useful and how varied images are, against a real data set. The numbers are for the curator only.

    Utility: accuracy on real test images of classifiers trained on these images. Inception score: with a classifier
    trained on all real training images. No epsilon covers these numbers.

    Example: idpgan evaluate synthetic.npz --data mnist --data-root ../shared/data --ceiling
    """
    _check_choice("--only", only or "utility", ("utility", "inception"))
    _check_choice("--device", device, ("auto", "cpu", "cuda"))
    if seeds < 1:
        raise InputError(f"--seeds {seeds} must be at least 1.")

    from idpgan.data.load import load
    from idpgan.files import PRIVATE_FILE, check_writable, write_text_atomic
    from idpgan.metrics import Cache, evaluate_images, read_images
    from idpgan.metrics.cache import default_folder
    from idpgan.metrics.source import kind_of
    from idpgan.run import describe_environment
    from idpgan.training.method import resolve_device

    kind = kind_of(source)
    config = _data_config(source, data, data_root, settings or [])
    out = _checked_out(source, out)
    if num is not None and kind != "generator":
        raise InputError(f"--num {num} is for generators, but {source} is a {kind}: all of its images are taken.")
    if out is not None:
        check_writable(out)
    where, started = resolve_device(device, "--device"), time.monotonic()
    with shown(quiet or as_json) as progress:
        split = load(config, progress)
        images = read_images(
            source,
            split.image_shape,
            split.classes,
            num=split.num_private if num is None else num,
            device=where,
            pixel_range=pixel_range,
            progress=renamed(progress, "images under test"),
        )
        metrics = [only] if only else ["utility", "inception"]
        metrics += ["ceiling"] * ceiling + ["floor"] * floor
        evaluation = evaluate_images(
            images,
            split,
            metrics,
            num_seeds=seeds,
            splits=splits,
            cache=Cache(cache or default_folder()),
            device=where,
            progress=progress,
        )
    result = {
        "format": FORMAT,
        "source": str(source),
        "kind": kind,
        "data": config.model_dump(mode="json"),
        "num_images": len(images),
        "images_digest": images.digest(),
        **evaluation.to_json(),
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(str(where)),
    }
    if out is not None:
        with kept(result):
            write_text_atomic(out, json.dumps(result, indent=2, allow_nan=False) + "\n", mode=PRIVATE_FILE)
    if as_json:
        print_json(result)
    else:
        _print(evaluation, f"{source} ({len(images):,} images) against {config.name}")


def _check_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse what is none of the allowed words."""
    if value not in allowed:
        raise InputError(f"{option} {value} is unknown. Known: {', '.join(allowed)}.")


def _data_config(source: Path, data: str | None, data_root: Path | None, settings: list[str]) -> DataConfig:
    """Return the [data] section: that of the run, if it is one, with what the options say put in."""
    from idpgan.config import apply_overrides, build, load_table
    from idpgan.data.config import DataConfig

    wrong = [setting for setting in settings if not setting.startswith("data.")]
    if wrong:
        raise ConfigError(f"the setting '{wrong[0]}' is not for evaluate: write data.key=value.")
    run_config = source / "config.toml"
    table = {"data": load_table(run_config).get("data", {}) if run_config.is_file() else {}}
    if data is not None and data != table["data"].get("name"):
        table = {"data": {"name": data}}  # the other keys were meant for another data set
    if data_root is not None:
        table["data"]["root"] = data_root
    config = build(DataConfig, apply_overrides(table, settings)["data"], "[data]")
    if "name" not in config.model_fields_set:
        raise ConfigError(f"--data is missing: {source} does not say which real images to compare with.")
    return config


def _checked_out(source: Path, out: Path | None) -> Path | None:
    """Return where to write, which is never a release, a run's state, or what another command made."""
    from idpgan.release.outputs import check_output

    if out is None:
        if not (source / "config.toml").is_file():
            return None
        out = source / "evaluation.json"
    check_output(out, FORMAT, [source])
    return out


def _print(evaluation: Evaluation, title: str) -> None:
    """Print a table of accuracies, then the inception score, then what a reader has to know."""
    from rich.console import Console
    from rich.table import Table

    console, columns = Console(markup=False), ("utility", "ceiling", "floor")
    results = {name: result for name in columns if (result := getattr(evaluation, name)) is not None}
    headings = {"utility": "these images", "ceiling": "real private (ceiling)", "floor": "public (floor)"}
    if results:
        table = Table("classifier, trained on", *(headings[name] for name in results), title=title)
        for scores in zip(*(result.scores for result in results.values()), strict=True):
            spread = [f" +- {score.std:.2%}" if score.std is not None else "" for score in scores]
            table.add_row(scores[0].name, *(f"{s.mean:.2%}{text}" for s, text in zip(scores, spread, strict=True)))
        console.print(table)
        console.print(
            f"accuracy on real test images, mean +- std over {len(next(iter(results.values())).seeds)} seed(s)"
        )
    if evaluation.inception is not None:
        score = evaluation.inception
        error = "" if score.standard_error is None else f" +- {score.standard_error:.3f} (standard error)"
        console.print(f"inception score {score.mean:.3f}{error}, {score.splits} split(s), at most {score.num_classes}")
        console.print(
            f"feature classifier sha256 {score.classifier_sha256}, {score.classifier_accuracy:.2%} on held-back images",
            soft_wrap=True,
        )
    for note in (*evaluation.notes, *(evaluation.inception.notes if evaluation.inception else ())):
        console.print(f"note: {note}", soft_wrap=True)
