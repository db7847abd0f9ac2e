"""One picture a paper: what the publishers make of one face.

`000`: the original and the six methods of Zhang, Fu and Meng (2020), side by side, as its figures 1 and 2. `liu-2021`:
the three methods of Liu et al. (2021), as released, mean-filtered and median-filtered, as its figures 8 to 10, and the
similarities of all windows, as they lie and sorted, as its figures 4 and 5. Only `lap` is private, for one pixel.

python benchmarks/paper_pictures.py --paper 000 --picture FACE.png --epsilon 1 --out figure.png   # or a drawn face
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from idpgan.data.faces import draw_people
from idpgan.data.image_files import decode
from idpgan.data.images import to_unit
from idpgan.metrics.images import mean_filter, median_filter
from idpgan.privacy.noise import Noise
from idpgan.publish import release
from idpgan.publish.sliding_windows import cut, similarity

METHODS = {
    "000": ("lap-published", "lrm", "mm", "lra", "sra", "esra"),
    "liu-2021": ("lap", "swp", "sort-swp"),
}
FILTERS = {"as released": lambda images: images, "mean filter": mean_filter, "median filter": median_filter}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", choices=METHODS, required=True)
    parser.add_argument("--picture", type=Path, help="grey or color; default: a drawn face of 112 x 92")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--window", type=int, default=56, help="liu-2021: pixels; they divide the picture")
    parser.add_argument("--seed", type=int, default=0, help="of the noise of these pictures, which nobody publishes")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    face = read(arguments.picture)
    name = "a drawn face" if arguments.picture is None else arguments.picture.name
    figure = publishers(face, arguments) if arguments.paper == "000" else windows(face, arguments)
    figure.suptitle(f"{name}, epsilon {arguments.epsilon:g} (claimed)")
    figure.savefig(arguments.out, dpi=80)


def read(picture: Path | None) -> Tensor:
    """Return one grey picture, float32 (1, H, W) in [0, 1]; a drawn face without a file."""
    if picture is None:
        return draw_people(1, 1, 112, 92, channels=1, seed=0).images[0].float() / 255
    return to_unit(torch.from_numpy(decode(picture, 1)))


def made(face: Tensor, method: str, arguments: argparse.Namespace) -> Tensor:
    """Return what a method releases of the picture, clipped."""
    options = {"window": arguments.window} if "swp" in method else {"law": "laplace"} if method == "lap" else {}
    unit = "column" if arguments.paper == "000" else "pixel"
    noise = Noise.fixed(arguments.seed)
    terms = {"epsilon": arguments.epsilon, "unit": unit, "accept_unsound": True, "noise": noise}
    return release(face, method, **terms, **options).images.clamp(0, 1)


def publishers(face: Tensor, arguments: argparse.Namespace) -> Figure:
    """Draw the original and the six methods side by side."""
    names = ("original", *METHODS["000"])
    figure = Figure(figsize=(2.2 * len(names), 3.2), layout="constrained")
    for name, axis in zip(names, figure.subplots(1, len(names)), strict=True):
        show(axis, face if name == "original" else made(face, name, arguments), name)
    return figure


def windows(face: Tensor, arguments: argparse.Namespace) -> Figure:
    """Draw three methods under three filters, and the similarities of the windows to the first, unsorted and sorted."""
    names = METHODS["liu-2021"]
    figure = Figure(figsize=(9, 12), layout="constrained")
    axes = figure.subplots(len(names) + 1, len(FILTERS))
    for line, name in zip(axes, names, strict=False):
        found = made(face, name, arguments)
        for axis, (label, filtered) in zip(line, FILTERS.items(), strict=True):
            show(axis, filtered(found), f"{name}, {label}")
    found = cut(face * 255, arguments.window)[0]
    likeness = similarity(found[:1].expand_as(found), found)
    show(axes[-1][0], face, "original")
    for axis, values, label in zip(
        axes[-1][1:], (likeness, likeness.sort(descending=True).values), ("unsorted", "sorted"), strict=True
    ):
        axis.plot(values.tolist(), lw=0.8)
        axis.set(title=f"similarity to the first window, {label}", xlabel="window")
        axis.title.set_fontsize("small")
    return figure


def show(axis: Axes, picture: Tensor, title: str) -> None:
    axis.imshow(picture[0].numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(title, fontsize="small")
    axis.axis("off")


if __name__ == "__main__":
    main()
