"""The small products of a clipped step by every route that this processor has, at the shapes of three critics.

A record's gradient in a layer is (p, R) x (R, d), and a step makes one for each of 256 records and their fakes. The
routes take turns, and a figure is the least of the turns, in processor milliseconds of one thread: it hangs on other
load least. Beside them the one product that plain training takes, of all records together, which gives no record's own.
One JSON line: routes by critic, blocks of records, then MKL's settings, each in a process of its own.

python benchmarks/products.py [--widths 16 32 64] [--turns 9] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.privacy import layer_gradients
from idpgan.privacy.captured_gradients import capture
from idpgan.privacy.layer_gradients import ConvolutionCall, LayerGradient, Outer, blocks
from idpgan.synthesis.critic_loss import CriticLoss

BATCH, BLOCK = 256, 32
BLOCKS = 8, 16, 32, 64, 128
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "MKL: AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL: AVX512": {"MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "MKL: reproducible AVX2": {"MKL_CBWR": "AVX2"},
    "oneDNN: AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}
Pair = tuple[Tensor, Tensor]  # (k, p, R) and (k, R, d)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="of the critics")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one turn, one setting, blocks of 32")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # without the other settings
    options = parser.parse_args()
    torch.set_num_threads(1)
    turns = 1 if options.quick else options.turns
    result: dict[str, Any] = {"routes": {}, "rows by block": {}}
    for width in options.widths:
        gradients = captured(width)
        weights = sum(gradient.numbers for gradient in gradients.values())
        result["routes"][weights] = routes(gradients, turns)
        if not options.alone:
            result["rows by block"][weights] = by_block(gradients, (BLOCK,) if options.quick else BLOCKS, turns)
    if not options.alone:
        result["settings"] = {} if options.quick else by_setting(options)
        result["machine"] = {"processor": processor(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
        result["torch"] = torch.__version__
    print(json.dumps(result))


def captured(width: int) -> dict[str, LayerGradient]:
    """Return what a step captures of 256 pairs of an image and its fake."""
    critic = Critic(ModelConfig(width=width), (1, 28, 28), 10)
    real, fake = torch.randn(2, BATCH, 1, 28, 28, generator=torch.Generator().manual_seed(1)).tanh()
    labels, loss = torch.arange(BATCH) % 10, CriticLoss(critic, "non-saturating", penalty=0.0, paired=True)
    return capture(loss.of_record, dict(critic.named_parameters()), [real, labels, fake, real[:, 0, 0, 0], labels])[0]


def routes(gradients: dict[str, LayerGradient], turns: int) -> dict[str, float]:
    """Return the milliseconds that all products of a step take by each route, patches copied before."""
    calls = [call for gradient in gradients.values() if isinstance(gradient, Outer) for call in gradient._calls]
    pairs = list[Pair]()
    for call in calls:
        for start in range(0, BATCH, BLOCK):  # the next block overwrites the factors of the last one
            left, right = call.factors(slice(start, start + BLOCK))
            pairs.append((left.clone(), right.clone()))
    outs = [torch.empty(len(left), left.shape[1], right.shape[2]) for left, right in pairs]
    contenders: dict[str, Callable[[], object]] = {
        "torch.bmm": lambda: [torch.bmm(*pair, out=out) for pair, out in zip(pairs, outs, strict=True)],
        "baddbmm": lambda: [torch.baddbmm(out, *pair, beta=0) for pair, out in zip(pairs, outs, strict=True)],
        "einsum": lambda: [torch.einsum("kpr,krd->kpd", *pair) for pair in pairs],
        "bmm, transposed": lambda: [torch.bmm(right.mT, left.mT) for left, right in pairs],
        "mm, record by record": lambda: [
            torch.mm(a, b, out=c)
            for (left, right), out in zip(pairs, outs, strict=True)
            for a, b, c in zip(left, right, out, strict=True)
        ],
        "NumPy (OpenBLAS)": lambda: [
            np.matmul(left.numpy(), right.numpy(), out=out.numpy())
            for (left, right), out in zip(pairs, outs, strict=True)
        ],
        "oneDNN, grouped convolution": lambda: grouped_all(calls),
        "grouped convolution, torch.backends.mkldnn off": lambda: grouped_all(calls, onednn=False),
        "all records in one product": lambda: [
            torch.mm(left.movedim(1, 0).flatten(1), right.flatten(0, 1)) for left, right in pairs
        ],
    }
    return least(contenders, turns)


def grouped_all(calls: Sequence[object], *, onednn: bool = True) -> list[Tensor]:
    """Return `grouped` of all convolutions, by oneDNN or by PyTorch's own kernel."""
    before = torch.backends.mkldnn.set_flags(_enabled=onednn)[0]  # `flags` warns on builds without an Intel GPU
    try:
        return [grouped(call) for call in calls if isinstance(call, ConvolutionCall)]
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)


def grouped(call: ConvolutionCall) -> Tensor:
    """Return the gradients of a convolution's records as a convolution of images by output gradients, a group each."""
    (down, across), padding, (y, x) = call.places
    images = call.inputs.reshape(-1, *call.inputs.shape[-3:])
    outputs = call.gradient.reshape(-1, *call.gradient.shape[-3:])
    num, channels = images.shape[:2]
    found = conv2d(
        images.transpose(0, 1).contiguous(),  # (C, n, H, W): channels are the batch, images the groups
        outputs.flatten(0, 1).unsqueeze(1),
        stride=(y, x),
        padding=padding,
        dilation=(down, across),
        groups=num,
    )
    return found[..., : call.kernel[0], : call.kernel[1]].view(channels, num, -1, *call.kernel)


def by_block(gradients: dict[str, LayerGradient], sizes: Sequence[int], turns: int) -> dict[str, float]:
    """Return the milliseconds of all rows, patches and products, with so many records in a block at most."""

    def rows(size: int) -> None:
        layer_gradients._MOST_TOGETHER, layer_gradients._BLOCK_BYTES = (size, size), (1 << 30, 1 << 30)
        for gradient in gradients.values():
            for call in getattr(gradient, "_calls", ()):
                if isinstance(call, ConvolutionCall):
                    call._buffers = None
        for _ in blocks(gradients, BATCH):
            pass

    before = layer_gradients._MOST_TOGETHER, layer_gradients._BLOCK_BYTES
    try:
        return least({str(size): lambda size=size: rows(size) for size in sizes}, turns)  # type: ignore[misc]
    finally:
        layer_gradients._MOST_TOGETHER, layer_gradients._BLOCK_BYTES = before


def least(contenders: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Let contenders take turns, one to warm up, and return the least processor milliseconds of each."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + turns):
        for name, call in contenders.items():
            started = time.process_time()
            call()
            taken[name].append(time.process_time() - started)
    return {name: round(1000 * min(times[1:]), 2) for name, times in taken.items()}


def by_setting(options: argparse.Namespace) -> dict[str, Any]:
    """Return the routes under each setting of MKL and oneDNN, which are read when they are loaded."""
    found = {}
    command = [sys.executable, __file__, "--alone", "--turns", str(options.turns)]
    for name, more in SETTINGS.items():
        environment = {**os.environ, **more, "OMP_NUM_THREADS": "1"}
        widths = ["--widths", *map(str, options.widths)]
        done = subprocess.run([*command, *widths], env=environment, capture_output=True, text=True, check=True)
        rows = json.loads(done.stdout)["routes"]
        found[name] = {weights: {key: row[key] for key in ("torch.bmm", KEPT)} for weights, row in rows.items()}
    return found


KEPT = "oneDNN, grouped convolution"


def processor() -> str:
    """Return the processor's name."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
