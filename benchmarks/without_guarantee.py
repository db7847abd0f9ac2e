"""What people do in the place of a guarantee beside the private methods: utility kept against identity leaked.

python benchmarks/without_guarantee.py measure --set faces-wild|drawn|orl [--data-root DIR] [--only NAME ...]
                                    prints a JSON line a cell; a cell that runs/without-guarantee holds is read back
python benchmarks/without_guarantee.py table [--any-code] [--out benchmarks/results/without-a-guarantee.md]
                                    prints the Markdown tables of what has been measured, or puts them into the page
python benchmarks/without_guarantee.py plot --out docs/without-a-guarantee.png [--any-code]
python benchmarks/without_guarantee.py sheet --out docs/without-a-guarantee-drawn.png       examples, drawn faces only

faces-wild needs a folder of 32 x 32 grey photos with metadata.csv (file_name, expression, person). Known people are
those with at least 8 photos, at most 30 of each are taken; every other photo of theirs is the attacker's and what the
trained obfuscators are fitted on, the rest is asked about. Everybody else is a stranger: two thirds of them teach a
network the expression (smiling or neutral) on released images, the others test it. Attackers and judges are one network
(`idpgan.attacks.train_attacker`); the static one knows clear images, the adaptive one released ones as well. A
generator releases nobody's image, so that there is nobody to re-identify: for it stands the area under the ROC curve by
which the nearest of its images tells private photos from strangers' (1/2 is chance; releasing the private photos
themselves is 1). orl (orl_faces/s1/1.pgm ... below the data root, 40 people with 10 photos, brought to 32 x 32) has
neither an expression nor strangers: re-identification alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from without_guarantee_cells import CACHE, GENERATED, LABELED, ROWS, SETS, TRAINED, absent, cell

BEGIN, END = "<!-- tables: written by benchmarks/without_guarantee.py -->", "<!-- end of tables -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("measure", "table", "plot", "sheet"))
    parser.add_argument("--set", choices=SETS, default="drawn")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--only", nargs="*", help="first words of rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--any-code", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    CACHE.mkdir(parents=True, exist_ok=True)
    if arguments.do == "measure":
        for row in ROWS:
            if absent(arguments.set, row) is None and (not arguments.only or row.startswith(tuple(arguments.only))):
                cell(row, arguments)
    elif arguments.do == "table":
        text = "\n\n".join([*(table(name, arguments) for name in SETS), *details(arguments)])
        if arguments.out is None:
            print(text)
        else:
            head, rest = arguments.out.read_text(encoding="utf-8").split(BEGIN)
            arguments.out.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    elif arguments.do == "plot":
        plot(arguments)
    else:
        sheet(arguments)


def read(name: str, arguments: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Return all rows that a set can have; None for one that is missing."""
    given = argparse.Namespace(**{**vars(arguments), "set": name})
    with contextlib.redirect_stdout(io.StringIO()):
        return {row: cell(row, given, compute=False) for row in ROWS if absent(name, row) is None}


def share(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{100 * value['accuracy']:.1f} %"


def interval(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{share(value)} ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def auc_of(row: dict[str, Any]) -> float | None:
    return row["membership"]["auc"] if "membership" in row else None


def table(name: str, arguments: argparse.Namespace) -> str:
    """Return the Markdown table of a set."""
    rows = read(name, arguments)
    lines = [
        f"**{name}**\n",
        "| | expression kept | the same by a clear-trained network | re-identified, static | re-identified, adaptive | "
        "private told from strangers (AUC) | processor seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for label in ROWS:
        why, row = absent(name, label), rows.get(label)
        if row is None:
            lines.append(f"| {label} | {'missing' if why is None else f'- ({why})'} | | | | | |")
            continue
        auc = auc_of(row)
        lines.append(
            f"| {label} | {interval(row.get('mood'))} | {share(row.get('mood_static'))} | {share(row.get('static'))} | "
            f"{interval(row.get('adaptive'))} | {'-' if auc is None else f'{auc:.3f}'} | {row['cpu_seconds']} |"
        )
    clear = rows["clear"]
    if clear is not None:
        mood, person = (
            f"{100 * clear[what]['chance']:.1f} %" if what in clear else "-" for what in ("mood", "adaptive")
        )
        lines.append(f"| *chance* | {mood} | | | {person} | 0.5 | |")
    return "\n".join(lines)


def details(arguments: argparse.Namespace) -> list[str]:
    """Return the tables of the trained networks and of reconstruction."""
    trained = [
        "| | trained parameters | of them of the transformation itself | steps | fitted in, processor seconds | "
        "mean change of a pixel |",
        "|---|---|---|---|---|---|",
    ]
    undone = [
        "| | error of the mean face | of `jigsaw`, no pair known | of `known_plaintext`, 64 pairs | re-identified "
        "before | and after reconstruction, static attacker |",
        "|---|---|---|---|---|---|",
    ]
    for name in SETS:
        for label, row in read(name, arguments).items():
            if row is not None and label in TRAINED:
                trained.append(
                    f"| {label}, {name} | {row['training_parameters']:,} | {row['parameters']:,} | {row['steps']:,} | "
                    f"{row['fit_cpu_seconds']} | {row['changed']:.3f} |"
                )
            if row is not None and "error_jigsaw" in row:
                undone.append(
                    f"| {label}, {name} | {row['error_mean_image']:.4f} | {row['error_jigsaw']:.4f} | "
                    f"{row['error_known_plaintext']:.5f} | {share(row['static'])} | "
                    f"{share(row['after_known_plaintext'])} |"
                )
    rows = [row for name in SETS for row in read(name, arguments).values()]
    minutes = sum(row["cpu_seconds"] for row in rows if row is not None) / 60
    missing = sum(row is None for row in rows)
    said = f"All cells together took {minutes:.0f} minutes of one core" + (f"; {missing} missing." if missing else ".")
    return ["\n".join(trained), "\n".join(undone), said]


def leaked(row: dict[str, Any], clear: dict[str, Any]) -> float:
    """Return the leak as a share of what clear images leak: 0 is chance."""
    auc = auc_of(row)
    if auc is not None:
        return 2 * auc - 1
    chance = clear["adaptive"]["chance"]
    return (row["adaptive"]["accuracy"] - chance) / (clear["adaptive"]["accuracy"] - chance)


def plot(arguments: argparse.Namespace) -> None:
    """Draw utility against leak, a panel a set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(LABELED), figsize=(13, 5.5), sharey=True)
    for axis, name in zip(axes, LABELED, strict=True):
        rows = {label: row for label, row in read(name, arguments).items() if row is not None}
        axis.set_title(name)
        axis.set_xlabel("identity leaked, share of what clear images leak")
        if "clear" not in rows:
            continue
        axis.margins(x=0.12, y=0.12)
        axis.axhline(100 * rows["clear"]["mood"]["chance"], color="0.7", lw=1, ls=":")
        axis.axvline(0, color="0.7", lw=1, ls=":")
        for label, row in rows.items():
            private = label.split(",")[0] in (*GENERATED, "lap", "codebook")
            x, y = leaked(row, rows["clear"]), 100 * row["mood"]["accuracy"]
            axis.plot(x, y, "o" if private else "^", color="tab:blue" if private else "tab:red")
            axis.annotate(label, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6, rotation=35)
    axes[0].set_ylabel("expression recognized, %")
    figure.suptitle("blue: a proven epsilon; red: none")
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=90)


def sheet(arguments: argparse.Namespace) -> None:
    """Write a row of examples for each method, of drawn faces."""
    from PIL import Image, ImageDraw

    strips = [(row, CACHE / f"drawn {row}.png") for row in ROWS if (CACHE / f"drawn {row}.png").is_file()]
    pictures = [(row, Image.open(path)) for row, path in strips]
    height = max(picture.height for _, picture in pictures)
    page = Image.new("L", (150 + pictures[0][1].width, height * len(pictures)), 255)
    pen = ImageDraw.Draw(page)
    for index, (row, picture) in enumerate(pictures):
        page.paste(picture, (150, index * height))
        pen.text((4, index * height + height // 2 - 5), row, fill=0)
    page.save(arguments.out, optimize=True)


if __name__ == "__main__":
    main()
