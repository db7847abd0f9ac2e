"""Figures 2 to 4 of the IDP-GAN paper: what the methods draw over epsilon, and how good it is.

Yang Yunlu, Zhou Yajian, Ning Hua, "Image Data Mining Method Supporting Differential Privacy", section 3.3.

How we read them. *Figures 2 and 3*: samples of IDP-GAN at three values of epsilon between 0.3 and 11, on MNIST and on
CelebA. *Figure 4*: the inception score of IDP-GAN, dp-GAN, WGAN and real images over epsilon, on both. Ours are at
0.3, 1, 3 and 11, with all our generators, and with accuracy and FID beside the inception score; --data celeba reads
the folder of whoever has CelebA, 48 x 48, and 32 x 32 grey photos of faces (--data faces-wild) took its place here. No
picture of real faces, or of faces drawn without privacy, is made.

The epsilon of idp-gan-published is the *claimed* one, eps1 + eps2 in halves; the column `proven` has what is proven.
Runs are shorter than their configs' where the table says so ("2,000 of 20,000"). Scores: the classifier of all real
training images (inception score, FID on its features) and --classifiers trained on the generated images (accuracy), all
on --samples images. Everything printed is computed with private images: for the curator.

Cells are kept in --out and read back; --budget-minutes says how long to go on making new ones, the first seed and the
fast methods first (0 draws what is there), --most-cells how many. --commit keeps it in benchmarks/results/figures/,
beside what stands there.

python benchmarks/paper_figures.py --figure 2 --data-root DIR --out runs/figures --budget-minutes 120
python benchmarks/paper_figures.py --figure 3 --data celeba --data-root CELEBA --out runs/figures
python benchmarks/paper_figures.py --figure 3 --data-root FACES --out runs/figures --budget-minutes 0
python benchmarks/paper_figures.py --figure 4 --data mnist --data-root DIR --out runs/figures --seeds 0 1 2 --commit
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

import torch
from measured import RESULTS, summary
from sample_cells import (
    BUSY,
    EPSILONS,
    PHOTOS,
    PLANS,
    REAL,
    SLOW,
    Cell,
    cell_config,
    cells,
    failed,
    kept,
    make,
    minutes_left,
    names,
)

from idpgan.files import write_bytes_atomic, write_text_atomic

MISSING = "not measured"
HEAD = ["method", "epsilon", "seeds", "steps", "proven", "inception score", "accuracy", "FID"]
SCORES = {"inception": "inception score", "accuracy cnn": "accuracy of a CNN", "fid": "FID, own features"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=int, required=True, choices=(2, 3, 4))
    parser.add_argument("--data", choices=tuple(PLANS), help="default: mnist, and faces-wild for figure 3")
    parser.add_argument(
        "--data-root", type=Path, help="where the files of MNIST or CelebA, or the photos and metadata.csv, lie"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/figures"), help="runs, results and pictures")
    parser.add_argument("--methods", nargs="+", choices=(REAL, *PLANS["mnist"]), help="default: all of --data")
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help=f"the first one alone for {', '.join(SLOW)}")
    parser.add_argument("--samples", type=int, default=10_000, help="generated images that are judged")
    parser.add_argument("--classifiers", nargs="+", default=["cnn"])
    parser.add_argument("--judges", type=int, default=1, help="fits of each classifier")
    parser.add_argument("--steps", type=int, help="of every method that trains; default: those of `PLANS`")
    parser.add_argument("--budget-minutes", type=float, default=float("inf"))
    parser.add_argument("--most-cells", type=int, help="new cells at most")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the cells and whether they are there; make none")
    parser.add_argument("--commit", action="store_true", help="write the results to benchmarks/results/figures/")
    arguments = parser.parse_args()
    arguments.data = arguments.data or ("faces-wild" if arguments.figure == 3 else "mnist")
    torch.set_num_threads(arguments.threads)
    planned = [REAL, *PLANS[arguments.data]]
    methods = arguments.methods or planned
    if unknown := [method for method in methods if method not in planned]:
        parser.error(f"--data {arguments.data} has no cell of {', '.join(unknown)}; it has: {', '.join(planned)}")
    wanted = cells(arguments.data, methods, arguments.epsilons, arguments.seeds)
    if arguments.list:
        for cell in wanted:
            state = "there" if kept(cell, arguments) else failed(cell, arguments) or "missing"
            print(*cell, names(cell, arguments)[0].name, state.strip())
        return
    make_missing(wanted, arguments)
    found = {cell: row for cell in wanted if (row := kept(cell, arguments)) is not None}
    stem = f"figure{arguments.figure}-{arguments.data}"
    print("\n".join(table(wanted, list(found.values()))))
    if found:
        draw = score_picture if arguments.figure == 4 else sample_picture
        write_bytes_atomic(arguments.out / f"{stem}.png", draw(wanted, found, arguments))
        print(f"{arguments.out / stem}.png: {len(found)} of {len(wanted)} cells")
    if arguments.commit:
        write_results(wanted, found, arguments)


def make_missing(wanted: list[Cell], arguments: argparse.Namespace) -> None:
    """Make what is missing, in order, while there is time for it."""
    started, made = time.monotonic(), 0
    for cell in wanted:
        left = arguments.budget_minutes - (time.monotonic() - started) / 60
        if made == arguments.most_cells or kept(cell, arguments) or failed(cell, arguments):
            continue
        if minutes_left(cell, arguments) > left:
            continue
        came = make(cell, arguments)
        made += came != BUSY
        print(f"{' '.join(map(str, cell))}: {came}", flush=True)


def write_results(wanted: list[Cell], found: dict[Cell, dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Keep the numbers of all cells for the tables of docs/, beside those committed before that are still the same's.

    So a call with other seeds or methods, or without the old cells in --out, loses nothing; a cell of another config,
    or judged otherwise, goes.
    """
    asked, rows = list(wanted), dict(found)
    path = RESULTS / "figures" / f"{arguments.data}.json"
    for cell, row in committed(arguments.data) if path.exists() else ():
        if cell.method not in (REAL, *PLANS[arguments.data]):
            continue  # a method that the figures no longer have
        asked.append(cell)
        if row is not None and cell not in rows and unchanged(cell, row, arguments):
            rows[cell] = row
    asked = sorted({*asked}, key=lambda cell: (cell.seed, cell.minutes, cell.method, cell.epsilon or 0))
    there = [rows[cell] for cell in asked if cell in rows]
    document = {"format": "idpgan figure cells 1", "wanted": [list(cell) for cell in asked], "cells": there}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, json.dumps(document, indent=1) + "\n")


def committed(data: str) -> list[tuple[Cell, dict[str, Any] | None]]:
    """Return the cells that were wanted and what of them was committed."""
    wanted, rows = read_cells(data)
    by_cell = {Cell(*(row[name] for name in Cell._fields)): row for row in rows}
    return [(cell, by_cell.get(cell)) for cell in wanted]


def unchanged(cell: Cell, row: dict[str, Any], arguments: argparse.Namespace) -> bool:
    """Return whether a committed result is of the config and the judges of today."""
    if (row["classifiers"], row["judges"]) != (arguments.classifiers, arguments.judges):
        return False
    if cell.method == REAL:  # of few real images all
        return bool(row["num_images"] <= arguments.samples)
    identity = cell_config(cell, arguments).identity()
    return (row["num_images"], row["config_sha256"]) == (arguments.samples, identity)


def read_cells(data: str) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Return the cells that were wanted and the results of those that were committed."""
    document = json.loads((RESULTS / "figures" / f"{data}.json").read_text(encoding="utf-8"))
    return [Cell(*cell) for cell in document["wanted"]], document["cells"]


def read_table(data: str) -> list[str]:
    """Return the lines of the table of committed cells."""
    return table(*read_cells(data))


def table(wanted: list[Cell], rows: list[dict[str, Any]]) -> list[str]:
    """Return Markdown: a line for each method and epsilon, whether its cells are there or not."""
    order = [REAL, *PLANS["mnist"]]
    points = sorted({(cell.method, cell.epsilon) for cell in wanted}, key=lambda p: (order.index(p[0]), p[1] or 0))
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for method, epsilon in points:
        mine = [row for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]
        first = [f"`{method}`" if method != REAL else "real images", "" if epsilon is None else f"{epsilon:g}"]
        lines.append(f"| {' | '.join([*first, *(numbers(mine) if mine else [MISSING, *[''] * 5])])} |")
    return lines


def numbers(rows: list[dict[str, Any]]) -> list[str]:
    """Return seeds, steps, proven epsilon and scores of one method at one epsilon."""
    found, one = summary(rows), rows[0]
    accuracy = next(name for name in found if name.startswith("accuracy "))
    return [
        str(len(rows)),
        steps(one),
        proven(one),
        "{:.2f} +- {:.2f}".format(*inception(rows)),
        shown(found[accuracy], 100, 1) + " %",
        shown(found["fid"], 1, 2) if "fid" in found else MISSING,
    ]


def inception(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the mean and its error: the spread of the seeds, or that of the ten splits of an only one."""
    found = summary(rows)["inception"]
    return found["mean"], rows[0]["inception"]["std"] if found["std"] is None else found["std"]


def shown(score: dict[str, Any], unit: float, digits: int) -> str:
    """Return mean and spread."""
    spread = "" if score["std"] is None else f" +- {unit * score['std']:.{digits}f}"
    return f"{unit * score['mean']:.{digits}f}{spread}"


def steps(row: dict[str, Any]) -> str:
    """Return the steps, and beside them those of the config where they are more."""
    if not row.get("steps"):
        return "none"
    full = row["config_steps"]
    return f"{row['steps']:,}" + (f" of {full:,}" if full != row["steps"] else "")


def proven(row: dict[str, Any]) -> str:
    """Return what is proven, with its unit and relation."""
    guarantee = (row.get("privacy") or {}).get("proven")
    if guarantee is None:
        return "nothing"
    epsilon = guarantee["epsilon"]
    if epsilon == "inf":
        return "infinite"
    return f"{epsilon:.4g} ({guarantee['unit']}, {guarantee['relation']})"


def sample_picture(wanted: list[Cell], found: dict[Cell, dict[str, Any]], arguments: argparse.Namespace) -> bytes:
    """Draw generated images, a row for each method and a column for each epsilon; a missing cell says so."""
    from matplotlib.figure import Figure
    from PIL import Image

    shown_cells = [cell for cell in wanted if drawable(cell) and cell.seed == arguments.seeds[0]]
    methods = [method for method in PLANS[arguments.data] if any(cell.method == method for cell in shown_cells)]
    sheet = Figure(figsize=(3.2 * len(arguments.epsilons), 1.15 * len(methods)), layout="constrained")
    grid = sheet.subplots(len(methods), len(arguments.epsilons), squeeze=False)
    for row, method in zip(grid, methods, strict=True):
        mine = {cell.epsilon: cell for cell in shown_cells if cell.method == method}
        for axes, epsilon in zip(row, arguments.epsilons, strict=True):
            axes.set(xticks=[], yticks=[])
            cell = mine.get(epsilon, mine.get(None) if epsilon == arguments.epsilons[0] else None)
            title = f"{method}, epsilon {epsilon:g}" if None not in mine else f"{method}, no privacy"
            if cell in found:
                path = names(cell, arguments)[0].with_suffix(".png")
                axes.imshow(Image.open(path), cmap="gray", interpolation="nearest")
                axes.set_xlabel(beside(found[cell]), fontsize="x-small")
            elif cell is not None:
                axes.text(0.5, 0.5, MISSING, ha="center", va="center", color="grey", transform=axes.transAxes)
            if cell is None:
                axes.set_axis_off()
            else:
                axes.set_title(title, fontsize="x-small")
    return png(sheet)


def beside(row: dict[str, Any]) -> str:
    """Return what stands beside the paper's claimed epsilon: the inception score and the epsilon that is proven."""
    return f"IS {inception([row])[0]:.2f}, proven epsilon {proven(row).split()[0]}"


def drawable(cell: Cell) -> bool:
    """Return whether a picture of a cell may be shown: no real faces, and none that were drawn without privacy."""
    return cell.method != REAL and (cell.data not in PHOTOS or PLANS[cell.data][cell.method].private)


def score_picture(wanted: list[Cell], found: dict[Cell, dict[str, Any]], arguments: argparse.Namespace) -> bytes:
    """Draw each score over epsilon with its error; what has no epsilon is a line across, what is missing an x below."""
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(4.2 * len(SCORES), 4.2), layout="constrained")
    for axes, (score, title) in zip(sheet.subplots(1, len(SCORES)), SCORES.items(), strict=True):
        for place, method in enumerate(dict.fromkeys(cell.method for cell in wanted)):
            color, points = f"C{place}", {}
            for cell in wanted:
                if cell.method == method and cell in found:
                    points.setdefault(cell.epsilon, []).append(found[cell])
            measured = {epsilon: value for epsilon, rows in points.items() if (value := with_error(rows, score))}
            if None in measured:
                axes.axhline(measured[None][0], color=color, linestyle="--" if method == REAL else ":", label=method)
            elif measured:
                x = sorted(measured)
                y, error = zip(*(measured[epsilon] for epsilon in x), strict=True)
                axes.errorbar(x, y, error, color=color, marker="o", capsize=2, label=method)
            absent = sorted({cell.epsilon for cell in wanted if cell.method == method} - {*measured, None})
            below, named = [0.02 * (place + 1)] * len(absent), None if measured else method
            axes.plot(absent, below, "x", color=color, label=named, transform=axes.get_xaxis_transform())
        axes.set(xscale="log", xlabel="epsilon (claimed)", title=title, xticks=arguments.epsilons)
        axes.set_xticks(arguments.epsilons, [f"{epsilon:g}" for epsilon in arguments.epsilons])
        axes.minorticks_off()
        if score == "fid":
            axes.set_yscale("log")
    handles, labels = sheet.axes[0].get_legend_handles_labels()
    sheet.legend(handles, labels, loc="outside lower center", ncols=8, fontsize="small", title="x: not measured")
    return png(sheet)


def with_error(rows: list[dict[str, Any]], score: str) -> tuple[float, float] | None:
    """Return a score and its error bar."""
    found = summary(rows).get(score)
    if found is None:
        return None
    return inception(rows) if score == "inception" else (found["mean"], found["std"] or 0.0)


def png(sheet: Any) -> bytes:
    """Return a matplotlib figure as a PNG file."""
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
