"""Which place a picture shows is hidden: Pittaluga, Koppal, Chakrabarti 2019, on Places-365. A JSON line an encoder.

idpgan prepare PLACES places64 --size 64 --folders label      # a folder for each kind of place
python benchmarks/papers/places.py places64 [--hide arch army_base airport_terminal airfield] [--steps 1000]

Nobody may give Places-365 away: bring the pictures, ten kinds of places as in the paper, or any other kinds. A question
is whether a picture shows one kind, asked of as many pictures of it as of the others together. Each of four encoders
(`adversarial-encoder`) hides the answer for one kind; a fifth hides the second kind and keeps the third, with alpha =
1/4; a blur stands beside. Judged by networks that are trained afresh on what goes out, on other pictures: one on the
hidden question, and one on each other question of `--hide`. Chance is a half.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from idpgan.attacks.inference import train_attacker
from idpgan.data.declared import shape_of_most
from idpgan.data.image_files import Files, read_files
from idpgan.data.images import to_unit
from idpgan.data.metadata import read_rows
from idpgan.publish import make_obfuscator

HIDDEN = ("arch", "army_base", "airport_terminal", "airfield")
ALPHA = 0.25  # of the fifth encoder
Change = Callable[[Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of `idpgan prepare ... --folders label`")
    parser.add_argument("--hide", nargs="+", default=HIDDEN, help="kinds of places: at least three")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=20, help="of the networks that judge")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, kinds, names = read(arguments.folder)
    if len(arguments.hide) < 3 or not set(arguments.hide) <= set(names):
        raise SystemExit(f"--hide {' '.join(arguments.hide)}: name three kinds or more of {', '.join(names)}.")
    known = torch.arange(len(images)) % 2 == 0  # of each kind every other picture, as they lie in the folder's order
    for name, change in changes(images[known], kinds[known], names, arguments):
        learned, shown = change(images[known]), change(images[~known])
        row: dict[str, object] = {"encoder": name, "seed": arguments.seed}
        for kind in arguments.hide:
            few, truth = question(kinds[known], names.index(kind))
            asked, answers = question(kinds[~known], names.index(kind))
            reader = train_attacker([(learned[few], truth)], epochs=arguments.epochs, seed=arguments.seed)
            row[kind] = round(reader.infer(shown[asked], answers).accuracy, 4)
            row[f"{kind}, trained on"] = round(reader.infer(learned[few], truth).accuracy, 4)
        print(json.dumps(row), flush=True)


def changes(
    images: Tensor, kinds: Tensor, names: list[str], arguments: argparse.Namespace
) -> Iterator[tuple[str, Change]]:
    """Yield what is compared: clear pictures, a blur, an encoder for each kind, and one that keeps another."""
    shape = tuple(images.shape[1:])
    yield "none", lambda shown: shown
    yield "blur, sigma 3", make_obfuscator("blur", shape, sigma=3.0).transform
    second, third = arguments.hide[1:3]
    alone = [(kind, kind, 0.0, f"hides {kind}") for kind in arguments.hide]
    for hidden, kept, alpha, title in (*alone, (second, third, ALPHA, f"hides {second}, keeps {third}")):
        encoder = make_obfuscator(
            "adversarial-encoder", shape, num_utilities=2, num_identities=2,
            alpha=alpha, steps=arguments.steps, width=arguments.width, batch_size=32, seed=arguments.seed,
        )  # fmt: skip
        few, secret = question(kinds, names.index(hidden))
        encoder.fit(images[few], (kinds[few] == names.index(kept)).long(), secret)
        yield title, encoder.transform


def question(kinds: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """Return the positions of all pictures of a kind and of as many others, and which they are: int64 (n,) each."""
    right, others = (kinds == kind).nonzero()[:, 0], (kinds != kind).nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(kind))[: len(right)]]
    chosen = torch.cat([right, drawn])
    return chosen, (kinds[chosen] == kind).long()


def read(folder: Path) -> tuple[Tensor, Tensor, list[str]]:
    """Return pictures, float32 (N, C, H, W) in [0, 1], their kinds, int64 (N,), and the names of these."""
    rows = read_rows(folder, ["label"])
    images, _ = read_files(Files(rows.paths), shape_of_most(folder, rows.paths, 3))
    names = sorted({value for value in rows.values[0] if value})
    there = [place for place, value in enumerate(rows.values[0]) if value and not images.is_null[place]]
    kinds = torch.tensor([names.index(rows.values[0][place]) for place in there])
    order = torch.argsort(kinds, stable=True)
    return to_unit(images.images[there])[order], kinds[order], names


if __name__ == "__main__":
    main()
