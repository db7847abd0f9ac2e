"""Peers beside each other in one run: error, similarity, entropy and recognition against epsilon, as Markdown tables.

python benchmarks/peers.py --set drawn|ORL_FOLDER [--units pixel column image] [--epochs 20] [--noise-seeds 3]

`pix` is DP-Pix (Fan 2018) and `dct` noise on cosine coefficients, each with the estimate under the public model of
drawn faces; `lap` is plain Laplace noise on pixels; `best` is what ``--method best`` takes. `constant`, each image's
own mean grey, is not a release at all, but what every method must beat; `none` is the images themselves. Everything is
judged after clipping to bytes. Recognition: five released images of each person train, the others are tested, by
principal components and SVM, and by the network of `idpgan.models.classifier`. A cell is the mean over noise seeds;
recognition, which differs most, has its standard deviation beside it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from papers.splits import first_images
from torch import Tensor

from idpgan.data.face_folder import scan
from idpgan.data.faces import draw_people
from idpgan.data.image_files import decode
from idpgan.data.images import to_unit
from idpgan.metrics.images import entropy, mse, ssim
from idpgan.metrics.recognition import recognize, recognize_by_network
from idpgan.privacy.noise import Noise
from idpgan.publish import release
from idpgan.publish.best import best_method

EPSILONS = {"pixel": (0.1, 1.0, 10.0), "column": (1.0, 10.0, 100.0), "image": (1.0, 10.0, 100.0)}
PEERS = ("lap", "dct", "pix", "best")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="drawn")
    parser.add_argument("--units", nargs="*", default=list(EPSILONS))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=41, help="of the drawn faces")
    parser.add_argument("--noise-seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pixels, people = faces(arguments.set, arguments.seed)
    print("| unit | eps | method | MSE | SSIM | entropy | PCA and SVM | network |\n|---|---|---|---|---|---|---|---|")
    for unit, epsilon, name, releases in rows(pixels, arguments.units, arguments.noise_seeds):
        found = [judged(given, pixels, people, arguments.epochs) for given in releases]
        print(f"| {unit} | {epsilon} | {name} | {shown(found)} |", flush=True)


def faces(name: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return grey faces, uint8 (N, m, n), and who is on them."""
    if name == "drawn":
        drawn = draw_people(40, 10, 112, 92, seed=seed)
        return drawn.images[:, 0], torch.arange(40).repeat_interleave(10)
    files = list(scan(Path(name)).values())
    pixels = torch.stack([torch.from_numpy(decode(path, 1)[0].copy()) for paths in files for path in paths])
    return pixels, torch.arange(len(files)).repeat_interleave(torch.tensor([len(paths) for paths in files]))


def rows(pixels: Tensor, units: list[str], seeds: int) -> Iterator[tuple[str, str, str, Iterator[Tensor]]]:
    """Yield unit, epsilon, name and what is given away, once for each noise seed."""
    yield "", "", "`none`", iter([pixels])
    yield "", "", "`constant`", iter([pixels.float().mean((1, 2), keepdim=True).round().byte().expand_as(pixels)])
    for unit in units:
        for epsilon in EPSILONS[unit]:
            for name in PEERS:
                method = best_method(unit, epsilon) if name == "best" else name
                if name == "best" and method in PEERS:
                    continue
                written = f"best: `{method}`" if name == "best" else f"`{name}`"
                yield unit, f"{epsilon:g}", written, released(pixels, method, unit, epsilon, seeds)


def released(pixels: Tensor, method: str, unit: str, epsilon: float, seeds: int) -> Iterator[Tensor]:
    """Yield a release for each noise seed, uint8."""
    for seed in range(seeds):
        yield release(to_unit(pixels), method, epsilon=epsilon, unit=unit, noise=Noise.fixed(seed)).to_uint8()


def judged(given: Tensor, pixels: Tensor, people: Tensor, epochs: int) -> tuple[float, ...]:
    """Return error, similarity, entropy, and what is recognized by components and by the network."""
    train, test = first_images(people, 5)
    parts = (given[train], people[train], given[test], people[test])
    means = [float(measure.mean()) for measure in (mse(given, pixels), ssim(given, pixels), entropy(given))]
    return (*means, recognize(*parts).accuracy, recognize_by_network(*parts, epochs=epochs).accuracy)


def shown(found: list[tuple[float, ...]]) -> str:
    """Return the cells of a row."""
    error, similarity, bits, *recognized = zip(*found, strict=True)
    mean = statistics.fmean
    cells = [f"{mean(error):.4f}", f"{mean(similarity):.2f}", f"{mean(bits):.2f}"]
    for shares in recognized:
        spread = f" ± {100 * statistics.stdev(shares):.1f}" if len(shares) > 1 else ""
        cells.append(f"{100 * mean(shares):.1f}{spread}")
    return " | ".join(cells)


if __name__ == "__main__":
    main()
