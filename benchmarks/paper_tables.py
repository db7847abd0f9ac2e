"""The tables of a paper, measured: one JSON line per cell, plots and tables.

`--paper liu-2021` is Liu et al. (2021), sliding windows: see `window_tables`.

`--paper 000` is Zhang Xiaojian, Fu Congcong, Meng Xiaofeng (2020), "Face image publication combining matrix
factorization and differential privacy", Journal of Image and Graphics 25(4), doi:10.11834/jig.190308: its figures 3 to
9, and its theorems by simulation. The figures themselves are lost; what they show is read from the text. Figures 3 to 8
are CMU, ORL, Yale, Yale B, Faces95 and Faces94, each with panels (a) "accurate" (the English abstract: precision), (b)
recall and (c) F1-score of an SVM on
principal components, against epsilon 0.1, 0.5, 0.9, 1.3, with the images without noise as reference; both halves of
each person's images are released, the first half trains. Figure 9 is the entropy of one image of each set, drawn at
random, against epsilon. Entropy and recognition take what is given away, clipped to 8 bits. Of the six sets only ORL is
here; the others are read from whoever has them (`--sets yale=DIR`, any layout of `face-folder`), or are drawn faces of
the sizes of Table 1, with `--drawn`: the titles say which. `--ranks` is the sweep over SRA's rank alone: `rank_sweep`.

Beside the six algorithms stand, so that every table has honest rows: `lap` (proven) for the unit pixel and for the unit
column, which the paper claims; and each image's own mean grey, which is not a release but what a method must beat.
`identified` is the attack that matches subspaces with a clean gallery, the training half (`idpgan.attacks.subspace`);
`linked` the same where the gallery holds the very images that were released; "columns" compares column spaces only,
which is what MM and LRM leave open, and "8bit" takes what is given away clipped.

A cell is kept under the hash of its config and read back; cells of other code are computed anew (or read: --any-code).
LRA is slow: one seed by default, and fewer sweeps than the paper's 100, which the rows say. LRM's factors depend on
neither epsilon nor noise and are computed once per set: its `seconds` are those of the noise and the product.

python benchmarks/paper_tables.py --paper 000 --out runs/tables --sets orl=DIR yale=DIR [--seeds 5]
python benchmarks/paper_tables.py --paper 000 --out runs/tables --sets orl=DIR --ranks 1 2 5 10 20 50 full
python benchmarks/paper_tables.py --paper 000 --out runs/tables --drawn --sets yale cmu
python benchmarks/paper_tables.py --paper liu-2021 --out runs/tables --sets orl=DIR yale=DIR [--sas]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import rank_sweep
import torch
import window_tables
from cells import PACKAGE, data_digest, load_people, parse_sets, read_or_measure, spread, write_atomic
from cells import code_digest as hash_of
from paper_theory import theorems
from torch import Tensor

from idpgan.attacks.subspace import identified, subspace_scores
from idpgan.data.faces import draw_people
from idpgan.metrics.images import entropy, histogram_distance, mse, psnr, ssim
from idpgan.metrics.recognition import halves, recognize
from idpgan.privacy.matrix import column_norm, noisy_product
from idpgan.privacy.noise import Noise
from idpgan.publish import release
from idpgan.publish.matrix import LrmOptions, lrm_factors

VERSION = 2  # raise when a cell's meaning changes
# Table 1: figure, people, images each, height, width.
SETS: dict[str, tuple[int, int, int, int, int]] = {
    "orl": (4, 40, 10, 112, 92),  # the real one
    "orl-drawn": (4, 40, 10, 112, 92),
    "yale": (5, 15, 10, 231, 195),
    "cmu": (3, 20, 32, 120, 128),
    "yale-b": (6, 30, 30, 192, 168),
    "faces95": (7, 72, 20, 200, 180),
    "faces94": (8, 152, 20, 200, 180),
}
SMALL = ("orl", "yale", "cmu")
METHODS: dict[str, dict[str, Any]] = {
    "lap-published": {},
    "lrm": {},
    "mm": {},
    "lra": {},
    "sra": {"rank": 100},  # the tables' rank: on these sets it compresses little or nothing; see --ranks
    "esra": {},
    "lap": {"unit": "pixel"},
    "lap-column": {"unit": "column"},
}
REFERENCES = ("none", "constant")  # without noise; each image's own mean: no epsilon, one seed
EPSILONS = (0.1, 0.5, 0.9, 1.3)
ATTACKED_SEEDS = 1  # the attack costs more than all the rest, and hardly depends on the noise
ATTACKED_IMAGES = 200
COMPONENTS = 50
THEORY_SWEEPS = 100  # of LRA, on few images: the paper's
FIGURES = {"precision": "(a) precision", "recall": "(b) recall", "f1": "(c) F1", "accuracy": "accuracy"}
NUMBERS = (
    "accuracy", "precision", "recall", "f1", "entropy", "entropy_single", "mse", "mse_unclipped", "psnr", "ssim",
    "histogram_distance", "identified", "identified_columns", "identified_8bit", "linked", "linked_columns", "seconds",
)  # fmt: skip


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    (arguments.out / "cells").mkdir(parents=True, exist_ok=True)
    if arguments.paper == window_tables.PAPER:
        window_tables.run(arguments)
        return
    for name, folder in arguments.folders.items():
        images, identities = load_set(name, folder)
        title = (
            f"{name}, {len(images)} images" if folder else f"drawn faces of the sizes of {name.removesuffix('-drawn')}"
        )
        out = arguments.out / (name if folder else f"{name.removesuffix('-drawn')}-drawn")
        if arguments.ranks:
            write_ranks(name, images, identities, arguments, out, title)
            continue
        rows = [
            read_or_measure(
                cell,
                functools.partial(measure, cell, images, identities),
                code_digest(),
                arguments.out / "cells",
                any_code=arguments.any_code,
            )
            for cell in cells(name, images, arguments)
        ]
        write_table(rows, out)
        plot(rows, out, name, title)
        if not arguments.no_theory:
            theory(name, images, identities, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", choices=["000", window_tables.PAPER], required=True)
    parser.add_argument("--data-root", type=Path, help="holds orl_faces/s1/1.pgm ..., for a set 'orl' without a folder")
    parser.add_argument("--drawn", action="store_true", help="draw faces in the place of sets without a folder")
    parser.add_argument("--out", type=Path, default=Path("runs/tables"))
    parser.add_argument(
        "--sets", nargs="+", metavar="NAME=DIR", help=f"000: {', '.join(SETS)}; {window_tables.PAPER}: orl, yale"
    )
    parser.add_argument("--epsilons", nargs="+", type=float)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--any-code", action="store_true", help="read cells back that other code computed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--network-epsilons", nargs="*", type=float, default=window_tables.EPSILONS)
    parser.add_argument("--sas", action="store_true", help=f"{window_tables.PAPER}: only the sorting of figure 7")
    of_000 = parser.add_argument_group("of 000")
    of_000.add_argument("--methods", nargs="+", choices=[*METHODS, *REFERENCES], default=[*REFERENCES, *METHODS])
    of_000.add_argument("--lra-seeds", type=int, default=1)
    of_000.add_argument("--lra-sweeps", type=int, default=30, help="the paper: 100; below 10 it has not settled")
    of_000.add_argument("--ranks", nargs="+", metavar="R", help="only SRA at these ranks, whole numbers or full")
    of_000.add_argument("--no-theory", action="store_true", help="leave the theorems out")
    arguments = parser.parse_args()
    of_windows = arguments.paper == window_tables.PAPER
    known, usual = (window_tables.SETS,) * 2 if of_windows else (SETS, SMALL)
    arguments.epsilons = arguments.epsilons or (window_tables.EPSILONS if of_windows else EPSILONS)
    if not arguments.sas:
        arguments.folders = parse_sets(arguments.sets or usual, known, arguments.drawn, arguments.data_root)
    return arguments


def load_set(name: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    """Return float32 images (N, H, W) in [0, 1], person after person, and their identities; drawn without a folder."""
    if folder is not None:
        return load_people(folder)
    _, people, each, height, width = SETS[name]
    drawn = draw_people(people, each, height, width, channels=1, seed=0)
    return drawn.images[:, 0].float() / 255, drawn.identities


def write_ranks(
    name: str, images: Tensor, identities: Tensor, arguments: argparse.Namespace, out: Path, title: str
) -> None:
    """Measure SRA at each rank and epsilon; write table and picture."""
    full = min(images.shape[1:])
    ranks = sorted({full if text == "full" else min(int(text), full) for text in arguments.ranks})
    base = {"sweep": "ranks", "set": name, "data": data_digest(images), "version": VERSION}
    code = code_digest(Path(rank_sweep.__file__))
    rows = []
    for seed, epsilon, rank in itertools.product(range(arguments.seeds), arguments.epsilons, ranks):
        cell = {**base, "epsilon": epsilon, "seed": seed, "options": {"rank": rank}}
        measured = functools.partial(rank_sweep.sweep, cell, images, identities)
        rows.append(read_or_measure(cell, measured, code, arguments.out / "cells", any_code=arguments.any_code))
    rank_sweep.write(rows, out.with_name(f"{out.name}-ranks"), title)


def cells(name: str, images: Tensor, arguments: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Return the configs of all cells of a set, one seed of all methods after the other."""
    base = {"paper": arguments.paper, "set": name, "data": data_digest(images), "version": VERSION}
    for seed, method, epsilon in itertools.product(range(arguments.seeds), arguments.methods, arguments.epsilons):
        options = {"sweeps": arguments.lra_sweeps} if method == "lra" else METHODS.get(method, {})
        if method in REFERENCES:
            if seed == 0 and epsilon == arguments.epsilons[0]:
                yield {**base, "method": method, "epsilon": None, "seed": 0, "options": {}}
        elif seed < (arguments.lra_seeds if method == "lra" else arguments.seeds):
            yield {**base, "method": method, "epsilon": epsilon, "seed": seed, "options": options}


def code_digest(*more: Path) -> str:
    """Return a hash of the source files that a cell's numbers come from (faces are in the data's own hash)."""
    rooms = [*PACKAGE.glob("publish/**/*.py"), *PACKAGE.glob("metrics/[ir]*.py")]
    return hash_of(
        [
            *sorted(rooms),
            PACKAGE / "privacy" / "matrix.py",
            PACKAGE / "attacks" / "subspace.py",
            *more,
        ]
    )


def measure(cell: dict[str, Any], images: Tensor, identities: Tensor, noise_seed: int) -> dict[str, Any]:
    """Release the images of one cell and judge them."""
    started, cpu = time.perf_counter(), time.process_time()
    released, privacy = publish(cell, images, noise_seed)
    row: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 2), **privacy}
    given = (released.clamp(0, 1) * 255).round().to(torch.uint8)
    train, test = halves(identities)
    components = min(COMPONENTS, len(train))
    found = recognize(given[train], identities[train], given[test], identities[test], components)
    row |= {name: getattr(found, name) for name in ("accuracy", "precision", "recall", "f1")}
    bits = entropy(given)
    row |= {"entropy": float(bits.mean()), "entropy_single": float(bits[single(images)])}
    row["mse_unclipped"] = float(mse(released, images).mean())
    for judge in (mse, psnr, ssim, histogram_distance):
        row[judge.__name__] = float(judge(given, images).mean())
    row["psnr"] = row["psnr"] if np.isfinite(row["psnr"]) else None
    if cell["seed"] < ATTACKED_SEEDS:
        row |= attack(released, given, images, identities)
    return row | {"cell_cpu_seconds": round(time.process_time() - cpu, 2)}  # judging included


def publish(cell: dict[str, Any], images: Tensor, noise_seed: int) -> tuple[Tensor, dict[str, Any]]:
    """Return the released images, unclipped, and their privacy in words."""
    if cell["method"] == "none":
        return images, {"claimed": None, "proven": "infinite"}
    if cell["method"] == "constant":
        return images.mean(dim=(1, 2), keepdim=True).expand_as(images), {"claimed": None, "proven": "infinite"}
    method = cell["method"].removesuffix("-column")
    noise = Noise.fixed(noise_seed)
    asked = images[:1] if method == "lrm" else images  # one image tells LRM's privacy
    found = release(asked, method, epsilon=cell["epsilon"], accept_unsound=True, noise=noise, **cell["options"])
    privacy = {"claimed": str(found.privacy.claimed), "proven": str(found.privacy.proven)}
    if method == "lrm":
        left, right = shared_factors(images)
        return noisy_product(left, right, column_norm(right) / cell["epsilon"], noise), privacy
    return found.images.float(), privacy


@functools.lru_cache(maxsize=1)  # of the set at hand: a tensor is its own key
def shared_factors(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return LRM's factors, which all of its cells of a set share."""
    return lrm_factors(images, LrmOptions().iterations)


def single(images: Tensor) -> int:
    """Return the image of figure 9: drawn once for each size of a set."""
    return int(np.random.default_rng(9).integers(len(images)))


def attack(released: Tensor, given: Tensor, images: Tensor, identities: Tensor) -> dict[str, float]:
    """Match the test half, as released, with the clean training half, and with the originals themselves."""
    train, test = halves(identities)
    probes = test[torch.linspace(0, len(test) - 1, min(ATTACKED_IMAGES, len(test))).long()]
    everyone = torch.arange(len(identities))
    raw, clipped = released[probes], given[probes].float() / 255
    rates = {}
    for name, probe, gallery, match, names in (
        ("identified", raw, train, "pairs", identities),
        ("identified_columns", raw, train, "columns", identities),
        ("identified_8bit", clipped, train, "pairs", identities),
        ("linked", raw, test, "pairs", everyone),
        ("linked_columns", raw, test, "columns", everyone),
    ):
        scores = subspace_scores(probe, images[gallery], match=match)
        rates[name] = float(identified(scores, names[probes], names[gallery]).double().mean())
    return rates


def grouped(rows: list[dict[str, Any]]) -> dict[tuple[str, float | None], list[dict[str, Any]]]:
    """Return rows by method and epsilon, in the order of `METHODS`."""
    order = [*REFERENCES, *METHODS]
    keys = sorted({(row["method"], row["epsilon"]) for row in rows}, key=lambda key: (order.index(key[0]), key[1] or 0))
    return {key: [row for row in rows if (row["method"], row["epsilon"]) == key] for key in keys}


def write_table(rows: list[dict[str, Any]], path: Path) -> None:
    """Write one CSV and one markdown table: mean and standard deviation over seeds."""
    table, lines = [["method", "epsilon", "proven", "seeds", *NUMBERS]], []
    for (method, epsilon), group in grouped(rows).items():
        cells = [f"{found[0]:.4g}±{found[1]:.2g}" if (found := spread(group, number)) else "" for number in NUMBERS]
        epsilon_text = "" if epsilon is None else f"{epsilon:g}"
        table.append([method, epsilon_text, group[0]["proven"].replace(",", ""), str(len(group)), *cells])
    lines = ["| " + " | ".join(line) + " |" for line in table]
    lines.insert(1, "|" + " --- |" * len(table[0]))
    write_atomic(path.with_suffix(".md"), "\n".join(lines) + "\n")
    write_atomic(path.with_suffix(".csv"), "\n".join(",".join(line) for line in table) + "\n")


def plot(rows: list[dict[str, Any]], path: Path, name: str, title: str) -> None:
    """Draw the panels of the set's figure and of figure 9, error bars one standard deviation over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = {**FIGURES, "entropy_single": "figure 9: entropy of one image (bit)", "mse": "MSE, clipped"}
    figure, axes = plt.subplots(2, 3, figsize=(15, 8.5), layout="constrained")
    for axis, (number, title) in zip(axes.flat, panels.items(), strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            points = [(key[1], spread(group, number)) for key, group in grouped(rows).items() if key[0] == method]
            if method in REFERENCES:
                style = {"color": "black", "linestyle": "--" if method == "none" else ":"}
                axis.axhline(points[0][1][0], label=method, **style)
            else:
                x, y = [point[0] for point in points], [point[1] for point in points]
                axis.errorbar(x, [p[0] for p in y], [p[1] for p in y], label=method, marker="o", capsize=2)
        axis.set(title=title, xlabel="epsilon (claimed)")
        if number == "mse":
            axis.set_yscale("log")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(
        f"Zhang, Fu, Meng (2020), figure {SETS[name][0]} and 9: {title}. Only 'lap', 'lap-column' are private."
    )
    figure.savefig(path.with_suffix(".png"), dpi=80)
    plt.close(figure)


def theory(name: str, images: Tensor, identities: Tensor, arguments: argparse.Namespace) -> None:
    """Check the paper's theorems on a set; print and keep the rows."""
    path = arguments.out / f"{name}-theorems.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    config = {"version": VERSION, "code": code_digest(), "sweeps": THEORY_SWEEPS, "epsilons": arguments.epsilons}
    config = json.loads(json.dumps(config))
    if kept.get("config") != config:
        found = theorems(images, identities, sweeps=THEORY_SWEEPS, epsilons=arguments.epsilons)
        kept = {"config": config, "rows": found}
        write_atomic(path, json.dumps(kept, indent=1) + "\n")
    for row in kept["rows"]:
        print(json.dumps({"set": name, **row}), flush=True)


if __name__ == "__main__":
    main()
