"""How many planted copies are found after each innocent change, and how many images that are no copies.

python benchmarks/copies.py PHOTOS CIFAR_TAR MNIST_FOLDER [--others 2000] [--out FILE.json]

200 members stand, changed, among 200 fresh synthetic images; 200 more members and all others do not. Of each set: the
share found of the planted under each change, and of the members and others that are not there (false alarms). The last
line is the time of a whole attack on CIFAR-10: 2,000 members, 2,000 others, 10,000 synthetic images.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from idpgan.attacks.copies import ORIENTATIONS, find_copies, oriented
from idpgan.commands.attack_images import attack
from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.load import load
from idpgan.files import write_text_atomic

NUM, TOTAL, SIDE = 200, 14_000, 48
RNG = np.random.default_rng(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--others", type=int, default=2_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for name, images in sets(arguments):
        members, fresh, others = images[: 2 * NUM], images[2 * NUM : 3 * NUM], images[3 * NUM :][: arguments.others]
        found[name] = {}
        for change, function in CHANGES.items():
            made = torch.cat([function(members[:NUM]), fresh])
            copies = find_copies(Images(members), Images(others), Images(made))
            shares = [float(part.float().mean()) for part in (copies.found[:NUM], copies.found[NUM:])]
            found[name][change] = [*shares, copies.false_alarms]
            print(f"| {name} | {change} | {' | '.join(f'{share:.1%}' for share in found[name][change])} |", flush=True)
    found["seconds"] = {"2,000 and 2,000 with 10,000": timed(arguments, 2_000, 10_000)}
    print(json.dumps(found["seconds"]), flush=True)
    if arguments.out is not None:
        write_text_atomic(arguments.out, json.dumps(found, indent=1) + "\n")


def timed(arguments: argparse.Namespace, num: int, drawn: int) -> float:
    """Return the seconds of a whole attack on color objects: so many members, as many others, so many made ones."""
    images = next(each for name, each in sets(arguments) if name == "CIFAR-10")
    members, others, synthetic = images[: 2 * num + drawn].split([num, num, drawn])
    started = time.monotonic()
    attack(synthetic, members, others)
    return round(time.monotonic() - started, 1)


def sets(arguments: argparse.Namespace) -> Iterator[tuple[str, Tensor]]:
    """Yield photos, color objects and digits by name, uint8 (n, C, H, W), in a random order."""
    files = sorted(path for path in arguments.photos.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    yield arguments.photos.name, tensors(Image.open(files[i]) for i in RNG.permutation(len(files))[:TOTAL])
    with tarfile.open(arguments.cifar) as tar:
        rows = [row for row in tar.getmembers() if row.isfile() and row.name.lower().endswith((".png", ".jpg"))]
        chosen = sorted(RNG.permutation(len(rows))[:TOTAL])
        photos = tensors((Image.open(io.BytesIO(tar.extractfile(rows[i]).read())) for i in chosen), 32)  # type: ignore
        yield "CIFAR-10", photos[torch.from_numpy(RNG.permutation(len(photos)))]
    yield "MNIST", load(DataConfig(name="mnist", root=arguments.mnist)).private.images[:TOTAL]


def tensors(pictures: Any, side: int = SIDE) -> Tensor:
    size = (side, side)
    found = [np.asarray(each.convert("RGB").resize(size, Image.Resampling.BILINEAR)) for each in pictures]
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()


def each(function: Callable[[Image.Image], Image.Image]) -> Callable[[Tensor], Tensor]:
    """Return a change of pictures as one of tensors."""

    def change(images: Tensor) -> Tensor:
        pictures = (Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()) for image in images)
        return (
            torch.stack([torch.from_numpy(np.array(function(each))) for each in pictures])
            .view(len(images), *images.shape[2:], -1)
            .permute(0, 3, 1, 2)
        )

    return change


def crop(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    left, top = RNG.integers(0, width - round(0.9 * width) + 1, 2)
    part = picture.crop((left, top, left + round(0.9 * width), top + round(0.9 * height)))
    return part.resize(picture.size, Image.Resampling.BILINEAR)


def smaller(picture: Image.Image) -> Image.Image:
    """Return the picture at nine tenths of its size, in the middle of an edge of its own color."""
    width, height = picture.size
    small = np.asarray(picture.resize((round(0.9 * width), round(0.9 * height)), Image.Resampling.BILINEAR))
    edges = [
        ((of - now) // 2, of - now - (of - now) // 2) for of, now in zip((height, width), small.shape, strict=False)
    ]
    return Image.fromarray(np.pad(small, edges + [(0, 0)] * (small.ndim - 2), mode="edge"))


def resampled(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    small = picture.resize((round(0.75 * width), round(0.75 * height)), Image.Resampling.BILINEAR)
    return small.resize(picture.size, Image.Resampling.BILINEAR)


def jpeg(picture: Image.Image) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=50)
    return Image.open(io.BytesIO(file.getvalue())).convert(picture.mode)


def moved(images: Tensor) -> Tensor:
    by, size = images.shape[-1] // 8, images.shape[-2:]
    padded = torch.nn.functional.pad(images.float(), (by, by, by, by), mode="replicate").to(torch.uint8)
    corners = RNG.choice([0, 2 * by], (len(images), 2))
    return torch.stack([p[:, y : y + size[0], x : x + size[1]] for p, (y, x) in zip(padded, corners, strict=True)])


def rounded(images: Tensor) -> Tensor:
    return images.round().clamp(0, 255).to(torch.uint8)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: (lambda x, i=i: oriented(x, i).contiguous()) for i, name in enumerate(ORIENTATIONS)},  # type: ignore[misc]
    "cropped to nine tenths": each(crop),
    "moved by an eighth": moved,
    "moved by an eighth, around the edge": lambda x: x.roll((x.shape[-2] // 8, -(x.shape[-1] // 8)), (-2, -1)),
    "smaller by a tenth": each(smaller),
    "resampled at three quarters": each(resampled),
    "JPEG 50": each(jpeg),
    "grey": lambda x: rounded(x.float().mean(1, keepdim=True)).expand_as(x).contiguous(),
    "brighter by 40": lambda x: rounded(x.float() + 40),
    "darker by 40": lambda x: rounded(x.float() - 40),
    "contrast x 1.5": lambda x: rounded((x.float() - 128) * 1.5 + 128),
    "contrast x 0.5": lambda x: rounded((x.float() - 128) * 0.5 + 128),
    "noise of 8 levels": lambda x: rounded(x.float() + torch.from_numpy(RNG.normal(0, 8, x.shape))),
    "mirrored, cropped, JPEG 50": lambda x: each(jpeg)(each(crop)(x.flip(-1))),
}


if __name__ == "__main__":
    main()
