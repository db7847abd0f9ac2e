"""A QR code is the secret of a picture: Raval, Machanavajjhala, Cox 2017, on CIFAR-10's horses and airplanes.

python benchmarks/papers/qr_codes.py [--tar cifar10.tar --out DIR] [--pictures 10000] [--asked 2000] [--steps 1000]

The tar is that of `benchmarks/cifar.py`; without it faces are drawn, smiling or not, in the place of horses and
airplanes. Every picture is there twice: as it is (X_U), and with a random QR code on a random place (X_S). `obfuscator`
learns to make both look like X_U. Judged on other pictures: how often a network tells whether there was a code (static:
it knows clear pictures; adaptive: obfuscated ones), how many codes OpenCV still reads, and whether the kind of picture
is still told. A JSON line a row: clear pictures, a blur, and the obfuscator with each seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from cifar import unpacked

from idpgan.attacks.inference import train_attacker
from idpgan.data.faces import draw
from idpgan.data.image_files import decode
from idpgan.data.images import to_unit
from idpgan.publish import make_obfuscator

SIDE, KINDS = 32, ("airplane", "horse")
READ = 200  # codes that OpenCV is asked to read, at four times their size
Pictures = tuple[Tensor, Tensor]  # float32 (N, 3, SIDE, SIDE) in [0, 1], and int64 (N,): which kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tar", type=Path, help="CIFAR-10; default: drawn faces")
    parser.add_argument("--out", type=Path, help="where the tar is unpacked")
    parser.add_argument("--pictures", type=int, default=10_000, help="to learn from")
    parser.add_argument("--asked", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=1000, help="of the obfuscator")
    parser.add_argument("--epochs", type=int, default=10, help="of attackers and judges")
    parser.add_argument("--weight", type=float, default=0.5, help="lambda")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.tar is None:
        known, asked = drawn(arguments.pictures, 1), drawn(arguments.asked, 2)
    else:
        folder = unpacked(arguments.tar, arguments.out / "images")
        known, asked = cifar(folder / "train", arguments.pictures), cifar(folder / "test", arguments.asked)
    rng = np.random.default_rng(0)
    coded = with_codes(known[0], rng), with_codes(asked[0], rng)
    blur = make_obfuscator("blur", (3, SIDE, SIDE), sigma=2.0)
    judged = Judged(known, asked, coded, arguments.epochs)
    judged.row("clear", lambda images: images, 0)
    judged.row("blur, sigma 2", blur.transform, 0)
    for seed in arguments.seeds:
        method = make_obfuscator(
            "obfuscator", (3, SIDE, SIDE), num_utilities=2, num_identities=2,
            towards=0, width=16, steps=arguments.steps, weight=arguments.weight, seed=seed,
        )  # fmt: skip
        images, secret = both(known[0], coded[0])
        method.fit(images, known[1].repeat(2), secret)
        judged.row(f"obfuscator, {arguments.steps} steps, lambda {arguments.weight:g}", method.transform, seed)


class Judged:
    """What attackers and judges make of pictures, obfuscated in one way or another."""

    def __init__(self, known: Pictures, asked: Pictures, coded: tuple[Tensor, Tensor], epochs: int) -> None:
        self.epochs, self.kinds = epochs, (known[1].repeat(2), asked[1].repeat(2))
        self.known, self.asked = both(known[0], coded[0]), both(asked[0], coded[1])
        self.static = train_attacker([self.known], epochs=epochs, mirror=False)

    def row(self, name: str, change: Callable[[Tensor], Tensor], seed: int) -> None:
        """Print a row."""
        (clear, secret), (pictures, truth) = self.known, self.asked
        learned, shown = change(clear), change(pictures)
        adaptive = train_attacker([(learned, secret)], epochs=self.epochs, mirror=False, seed=seed)
        reader = train_attacker([(learned, self.kinds[0])], epochs=self.epochs, seed=seed)
        found: dict[str, Any] = {
            "row": name,
            "seed": seed,
            "static": self.static.infer(shown, truth).accuracy,
            "adaptive": adaptive.infer(shown, truth).accuracy,
            "codes read": codes_read(shown[truth == 1]),
            "kind told": reader.infer(shown, self.kinds[1]).accuracy,
            "changed": float((shown - pictures).abs().mean()),
            "changed without a code": float((shown - pictures)[truth == 0].abs().mean()),
            "asked": len(shown),
        }
        print(json.dumps(found), flush=True)


def both(plain: Tensor, coded: Tensor) -> tuple[Tensor, Tensor]:
    """Return pictures without and with a code, and which they are: 0 or 1."""
    return torch.cat([plain, coded]), torch.arange(2).repeat_interleave(len(plain))


def cifar(folder: Path, num: int) -> Pictures:
    """Return the first pictures of both kinds, half of each."""
    paths = [path for kind in KINDS for path in sorted((folder / kind).iterdir())[: num // 2]]
    pixels = torch.from_numpy(np.stack([decode(path, 3, (SIDE, SIDE)) for path in paths]))
    return to_unit(pixels), torch.tensor([KINDS.index(path.parent.name) for path in paths])


def drawn(num: int, seed: int) -> Pictures:
    """Return drawn faces in color, smiling or not."""
    images = draw(num, SIDE, 3, people=num, seed=seed)
    return to_unit(images.images), images.attributes[:, images.attribute_names.index("smiling")].long()


def with_codes(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Put a QR code of 17 random digits on a random place of each image: 21 modules of a pixel, a white edge of 2."""
    parameters = cv2.QRCodeEncoder_Params()
    parameters.version = 1
    encoder, coded = cv2.QRCodeEncoder.create(parameters), images.clone()
    for image in coded:
        code = torch.from_numpy(encoder.encode("".join(map(str, rng.integers(0, 10, 17))))) / 255
        side = len(code)
        top, left = rng.integers(0, SIDE - side + 1, 2)
        image[:, top : top + side, left : left + side] = code
    return coded


def codes_read(images: Tensor) -> float:
    """Return the share of the first images whose code OpenCV reads."""
    detector, grey = cv2.QRCodeDetector(), (images[:READ].mean(1) * 255).round().to(torch.uint8).numpy()
    large = [cv2.resize(image, None, fx=4, fy=4, interpolation=cv2.INTER_NEAREST) for image in grey]
    return float(np.mean([bool(detector.detectAndDecode(image)[0]) for image in large]))


if __name__ == "__main__":
    main()
