"""Tables 1 to 6 and figures 6, 7 and 11 to 13 of Liu et al. (2021), measured: `paper_tables --paper liu-2021`.

Liu Chao, Yang Jing, Zhao Weinan, Zhang Yining, Li Jingyou, Mu Chunmiao (2021), "Face image publication based on
differential privacy", Wireless Communications and Mobile Computing, doi 10.1155/2021/6680701. Tables 1 to 3 are
precision, recall and F1 on ORL, 4 to 6 on Yale, by a small convolutional network: five released images of each person
train it (the first ones, on Yale five at random), the others are tested. Columns: LAP, SWP and sort-SWP, as they are,
after a mean filter (AF) and after a median filter (MF), 3 x 3. Yale is not at hand: in its place are drawn faces of its
15 people and 11 images each, at half its size, with half its window.

Of the tables one row survives, epsilon 3 (`PAPER_ROW`); the text does not say of which table. Its differences, 36.0 and
56.8 points, are nearest to what the conclusion states for "accuracy" on ORL, 35.01 and 56.63. All other cells are lost.

Beside the paper's columns: `swp-sound`, which proves its epsilon as LAP does; and the images without noise. A cell is a
method, an epsilon and a seed, of the noise, of the network and, on Yale, of the five images that train. The network
takes a minute for each cell: `--network-epsilons` names those that it judges; principal components and an SVM, a tenth
of a second, judge all. Errors are in grey levels; "total error" is the mean
squared error before clipping by LAP's: theorem 10 says that SWP's is at most 1.

The sorting of figure 7 (``--sas``): 57 random numbers, the first stays, the others are to stand in order of their
distance to it. Accuracy: share of the pairs that do (chance: half); the paper does not say how it counts, nor whether
epsilon is that of each draw or of all: both prices are shown, and what is left where a draw pays for the sensitivity
that its score has.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cells import PACKAGE, code_digest, data_digest, load_people, read_or_measure, spread, write_atomic
from papers.splits import first_images, random_images
from torch import Tensor

from idpgan.data.faces import draw_people
from idpgan.metrics.images import (
    absolute_error,
    grey_histograms,
    histogram_distance,
    mean_filter,
    median_filter,
    mse,
    relative_error,
)
from idpgan.metrics.recognition import recognize, recognize_by_network
from idpgan.privacy.noise import Noise
from idpgan.publish import METHODS, release
from idpgan.publish.sliding_windows import SCORE_SENSITIVITY, anneal, draw_order

PAPER, VERSION = "liu-2021", 2  # raise the version when a cell's meaning changes
# Tables, window, epochs of the network: as few as still recognize the images without noise.
SETS: dict[str, tuple[tuple[int, int, int], int, int]] = {"orl": ((1, 2, 3), 56, 20), "yale": ((4, 5, 6), 160, 15)}
DRAWN_WINDOW = 80  # of drawn faces in the place of Yale, which are of half its size
EPSILONS = (1.0, 2.0, 3.0, 4.0, 5.0)
ALGORITHMS = {"LAP": "lap", "SWP": "swp", "sort-SWP": "sort-swp"}
FILTERS = {"": lambda images: images, "AF": mean_filter, "MF": median_filter}
COMPONENTS = 50
JUDGED = {"precision": "Precision", "recall": "Recall", "f1": "F1"}
PAPER_ROW = {  # epsilon 3, percent
    "LAP": 17.55, "SWP": 53.56, "sort-SWP": 74.31,
    "LAP and AF": 29.32, "SWP and AF": 67.10, "sort-SWP and AF": 77.01,
    "LAP and MF": 43.29, "SWP and MF": 68.96, "sort-SWP and MF": 77.73,
}  # fmt: skip
SAS_NUMBERS, SAS_EPSILONS, SAS_TIMES, SAS_ARRAYS = 57, (0.4, 0.5, math.log(2), 1.0), (1, 2, 5, 10), 100


def run(arguments: argparse.Namespace) -> None:
    """Measure what is asked for; write tables and plots."""
    if arguments.sas:
        write_atomic(arguments.out / "sas.md", "\n".join(sorting(arguments.seeds)) + "\n")
        print((arguments.out / "sas.md").read_text(), end="")
        return
    rooms = ("publish/sliding_windows.py", "publish/sound/[nps]*.py", "metrics/[if]*.py", "models/classifier.py")
    own = [Path(__file__), PACKAGE / "metrics" / "recognition.py"]
    code = code_digest([*own, *sorted(file for room in rooms for file in PACKAGE.glob(room))])
    for name, folder in arguments.folders.items():
        images, identities = load_set(name, folder)
        title = name if folder else f"drawn faces in the place of {name}"
        rows = []
        for cell in cells(name, images, window_of(name, folder), arguments):
            measured = functools.partial(measure, cell, images, identities)
            rows.append(read_or_measure(cell, measured, code, arguments.out / "cells", any_code=arguments.any_code))
        write_atomic(
            arguments.out / f"windows-{name}.md",
            "\n".join(tables(name, title, window_of(name, folder), rows, arguments.epsilons)) + "\n",
        )
        plot(rows, arguments.out / f"windows-{name}-histograms.png")


def load_set(name: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    """Return float32 images (N, H, W) in [0, 1], person after person, and their identities; drawn without a folder."""
    if folder is not None:
        return load_people(folder)
    shape = (40, 10, 112, 92) if name == "orl" else (15, 11, 122, 160)
    drawn = draw_people(*shape, channels=1, seed=0)
    return drawn.images[:, 0].float() / 255, drawn.identities


def window_of(name: str, folder: Path | None) -> int:
    """Return the pixels of a window: the paper's, or half of Yale's on drawn faces of half its size."""
    return DRAWN_WINDOW if name == "yale" and folder is None else SETS[name][1]


def cells(name: str, images: Tensor, window: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the configs of all cells of a set, one seed after the other."""
    epochs = SETS[name][2]
    base = {"paper": PAPER, "set": name, "data": data_digest(images), "version": VERSION, "epochs": epochs}
    for seed in range(arguments.seeds):
        yield {**base, "method": "none", "epsilon": None, "seed": seed, "options": {}, "network": True}
        for epsilon in arguments.epsilons:
            network = epsilon in arguments.network_epsilons
            for method in (*ALGORITHMS.values(), "swp-sound"):
                options = {"law": "laplace"} if method == "lap" else {"window": window}
                yield {
                    **base,
                    "method": method,
                    "epsilon": epsilon,
                    "seed": seed,
                    "options": options,
                    "network": network,
                }


def measure(cell: dict[str, Any], images: Tensor, identities: Tensor, noise_seed: int) -> dict[str, Any]:
    """Release the images of one cell; judge them as they are and, where the paper does, filtered."""
    cpu, released, proven = time.process_time(), images, "infinite"
    if cell["method"] != "none":
        found = release(
            images,
            cell["method"],
            epsilon=cell["epsilon"],
            unit="pixel",
            accept_unsound=True,
            noise=Noise.fixed(noise_seed),
            **cell["options"],
        )
        released, proven = found.images, str(found.privacy.proven)
    train, test = (
        random_images(identities, 5, seed=cell["seed"]) if cell["set"] == "yale" else first_images(identities, 5)
    )
    row: dict[str, Any] = {"proven": proven, "total_error": float(mse(released, images).mean())}
    for short, filtered in FILTERS.items() if cell["method"] in ALGORITHMS.values() else [("", FILTERS[""])]:
        given = (filtered(released.clamp(0, 1)) * 255).round().to(torch.uint8)
        parts = (given[train], identities[train], given[test], identities[test])
        judges = {"svm": recognize(*parts, min(COMPONENTS, len(train)), seed=cell["seed"])}
        if cell["network"]:
            judges["network"] = recognize_by_network(*parts, epochs=cell["epochs"], seed=cell["seed"])
        here = {f"{judge} {name}": 100 * getattr(found, name) for judge, found in judges.items() for name in JUDGED}
        here["absolute_error"] = 255 * float(absolute_error(filtered(released), images).mean())
        here["relative_error"] = 255 * float(relative_error(given, images).mean())
        here["mse"] = float(mse(given, images).mean())
        here["histogram_distance"] = float(histogram_distance(given, images).mean())
        histogram = grey_histograms(given).sum(0) / given.numel()
        row |= {f"{name}{short and ' ' + short}": value for name, value in here.items()}
        row[f"histogram{short and ' ' + short}"] = [round(share, 6) for share in histogram.tolist()]
    return row | {"cpu_seconds": round(time.process_time() - cpu, 1)}


def of(rows: list[dict[str, Any]], method: str, epsilon: float | None) -> list[dict[str, Any]]:
    """Return the rows of a method at an epsilon, one for each seed."""
    return [row for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]


def shown(rows: list[dict[str, Any]], number: str, digits: int = 1) -> str:
    """Return mean and standard deviation over the seeds, in words."""
    found = spread(rows, number)
    return "" if found is None else f"{found[0]:.{digits}f} ± {found[1]:.{digits}f}"


def tables(name: str, title: str, window: int, rows: list[dict[str, Any]], epsilons: list[float]) -> list[str]:
    """Return the lines of the paper's three tables of a set, and of one of errors."""
    numbers, _, epochs = SETS[name]
    columns = [f"{label}{short and ' and ' + short}" for short in FILTERS for label in ALGORITHMS]
    clean, seeds = of(rows, "none", None), len({row["seed"] for row in rows})
    lines = [
        f"Set {title}, windows of {window} pixels, {epochs} epochs, seeds: {seeds}; percent, mean ± standard deviation."
    ]
    for number, (measure_, heading) in zip(numbers, JUDGED.items(), strict=True):
        reference = ", ".join(f"{judge} {shown(clean, f'{judge} {measure_}')}" for judge in ("network", "svm"))
        lines += ["", f"Table {number}: {heading}. Without noise: {reference}.", ""]
        lines += ["| epsilon | | " + " | ".join(columns) + " | `swp-sound` |", "|---" * (len(columns) + 3) + "|"]
        for epsilon in epsilons:
            survives = number == 1 and epsilon == 3
            paper = [f"{PAPER_ROW[column]:.2f}" if survives else "lost" for column in columns]
            lines.append(f"| {epsilon:g} | paper | " + " | ".join([*paper, ""]) + " |")
            for judge in ("network", "svm"):
                found = [
                    shown(of(rows, method, epsilon), f"{judge} {measure_}{short and ' ' + short}")
                    for short in FILTERS
                    for method in ALGORITHMS.values()
                ]
                found.append(shown(of(rows, "swp-sound", epsilon), f"{judge} {measure_}"))
                if any(found):
                    lines.append(f"| {epsilon:g} | ours, {judge} | " + " | ".join(found) + " |")
    lines += ["", "Errors; grey levels for the first two. Total error: mean squared, before clipping, by LAP's.", ""]
    lines += [
        "| epsilon | | absolute | relative | MSE, clipped | total error / LAP's | histogram | proven |",
        "|---" * 8 + "|",
    ]
    for epsilon in epsilons:
        lap = spread(of(rows, "lap", epsilon), "total_error")[0]
        for label, method in {**ALGORITHMS, "`swp-sound`": "swp-sound"}.items():
            group = of(rows, method, epsilon)
            for short in FILTERS:
                tail = short and " " + short
                if spread(group, f"mse{tail}") is None:
                    continue
                ratio = "" if short else f"{spread(group, 'total_error')[0] / lap:.3f}"
                cells = [shown(group, f"absolute_error{tail}"), shown(group, f"relative_error{tail}")]
                cells += [shown(group, f"mse{tail}", 4), ratio, shown(group, f"histogram_distance{tail}", 3)]
                finite = "infinite" if METHODS[method].sound is False else f"{epsilon:g}"
                lines.append(
                    f"| {epsilon:g} | {label}{short and ' and ' + short} | " + " | ".join([*cells, finite]) + " |"
                )
    return lines


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the grey histograms of all images of a set, as figures 11 to 13, at the middle epsilon."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    epsilon = epsilons[len(epsilons) // 2]
    figure, axes = plt.subplots(len(ALGORITHMS), len(FILTERS), figsize=(13, 8), layout="constrained", sharex=True)
    for line, (label, method) in zip(axes, ALGORITHMS.items(), strict=True):
        for axis, short in zip(line, FILTERS, strict=True):
            for name, group, key in (
                ("original", of(rows, "none", None), ""),
                (label, of(rows, method, epsilon), short),
            ):
                axis.plot(group[0][f"histogram{key and ' ' + key}"], label=name)
            axis.set(title=f"{label}{short and ' and ' + short}", ylim=(0, 0.03), xlabel="grey level")
            axis.legend()
    figure.suptitle(f"Liu et al. (2021), figures 11 to 13: share of pixels, epsilon {epsilon:g}, clipped to bytes")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def sorting(seeds: int) -> list[str]:
    """Return the lines of figure 7's table: accuracy by epsilon, by its price, and by how often annealing is run."""
    found = [sorted_arrays(seed) for seed in range(seeds)]
    executed = " | ".join(f"annealed {times} x" for times in SAS_TIMES)
    lines = [f"| epsilon | price | epsilon of all draws | as drawn | {executed} |", "|---" * (4 + len(SAS_TIMES)) + "|"]
    for row in found[0]:
        many = [[{"accuracy": seed[row][column]} for seed in found] for column in range(1 + len(SAS_TIMES))]
        lines.append("| " + " | ".join([*row, *(shown(column, "accuracy") for column in many)]) + " |")
    return lines


def prices(epsilon: float) -> dict[str, tuple[float, float]]:
    """Return what a draw gets and the sensitivity that it is paid for, by the names of the prices."""
    draws = SAS_NUMBERS - 1
    return {
        "each draw": (epsilon, 1.0),
        "split over the draws": (epsilon / draws, 1.0),
        "each draw, true sensitivity": (epsilon, SCORE_SENSITIVITY),
    }


def sorted_arrays(seed: int) -> dict[tuple[str, str, str], list[float]]:
    """Sort `SAS_ARRAYS` arrays in all ways; accuracy in percent as drawn, and after so many executions, by row."""
    noise = Noise.fixed(seed)
    numbers = noise.uniform((SAS_ARRAYS, SAS_NUMBERS))
    likeness = 1 - (numbers - numbers[:, :1]).abs()
    starts = {("", "annealing alone", ""): torch.arange(SAS_NUMBERS).expand(SAS_ARRAYS, -1)}
    for epsilon in SAS_EPSILONS:
        for name, (share, sensitivity) in prices(epsilon).items():
            proven = (SAS_NUMBERS - 1) * share * SCORE_SENSITIVITY / sensitivity
            starts[f"{epsilon:.3g}", name, f"{proven:,.4g}"] = draw_order(likeness, share, noise, sensitivity)
    order, many = torch.cat(list(starts.values())), likeness.repeat(len(starts), 1)
    columns = [accuracies(order, many, len(starts))]
    for times in range(1, max(SAS_TIMES) + 1):
        order = anneal(order, many, noise)
        columns += [accuracies(order, many, len(starts))] if times in SAS_TIMES else []
    return {row: list(cells) for row, cells in zip(starts, zip(*columns, strict=True), strict=True)}


def accuracies(order: Tensor, likeness: Tensor, rows: int) -> list[float]:
    """Return the `accuracy` of each of so many equal parts."""
    return [accuracy(*part) for part in zip(order.chunk(rows), likeness.chunk(rows), strict=True)]


def accuracy(order: Tensor, likeness: Tensor) -> float:
    """Return the share of pairs behind the first that stand in order of falling likeness, in percent."""
    along = likeness.gather(1, order)[:, 1:]
    one, other = torch.triu_indices(along.shape[1], along.shape[1], offset=1)
    return 100 * float((along[:, one] >= along[:, other]).double().mean())


if __name__ == "__main__":
    raise SystemExit(f"Run it as: python benchmarks/paper_tables.py --paper {PAPER} --data-root DIR [--sas]")
