"""Speed of the drawn faces: one JSON line with the median of the repeats, the device and the machine's load.

python benchmarks/faces.py [--num 10000] [--size 48] [--channels 3] [--threads 2] [--device cpu] [--repeats 3]
python benchmarks/faces.py --sheet docs/faces.png          writes the contact sheet of the docs instead
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path

import torch

from idpgan.data.faces import draw
from idpgan.data.images import Images

GOAL = 10.0  # seconds for 10,000 RGB faces of 48 x 48 on two cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sheet", type=Path, help="write a contact sheet and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.sheet is not None:
        write_sheet(arguments.sheet)
        return
    draw(200, arguments.size, arguments.channels, device=arguments.device)  # burn-in
    walls, cores = zip(*(timed(arguments) for _ in range(arguments.repeats)), strict=True)
    seconds = statistics.median(walls)
    goal = (arguments.num, arguments.size, arguments.channels, arguments.device) == (10_000, 48, 3, "cpu")
    row = {
        "benchmark": "faces",
        **{name: getattr(arguments, name) for name in ("num", "size", "channels", "threads", "device", "repeats")},
        "seconds": round(seconds, 2),
        "cpu_seconds": round(statistics.median(cores), 2),
        "images_per_second": round(arguments.num / seconds),
        "peak_memory_mib": peak_memory(arguments.device),
        "reached": seconds <= GOAL if goal else None,
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else None,
    }
    print(json.dumps(row))


def timed(arguments: argparse.Namespace) -> tuple[float, float]:
    """Return wall and processor seconds of one drawing, on a GPU until it is done."""
    wall, cpu = time.perf_counter(), time.process_time()
    people = max(1, arguments.num // 10)
    draw(arguments.num, arguments.size, arguments.channels, people=people, device=arguments.device)
    if arguments.device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def peak_memory(device: str) -> int:
    """Return the most memory that was held, MiB: of the GPU, or of the process."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def write_sheet(path: Path) -> None:
    """Write six people with four pictures each at 112 x 92, above 69 people at 48 x 48."""
    from PIL import Image

    large, small = draw(size=(112, 92), people=6, per_person=4, seed=2), draw(69, 48, seed=3)
    pixels = [grid(large, 12), grid(small, 23)]
    sheet = Image.new("RGB", (max(part.shape[1] for part in pixels), sum(part.shape[0] for part in pixels)), "white")
    top = 0
    for part in pixels:
        sheet.paste(Image.fromarray(part.numpy()), (0, top))
        top += part.shape[0]
    sheet.quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)


def grid(images: Images, columns: int) -> torch.Tensor:
    """Return full rows of the images as one picture, uint8 (H, W, 3)."""
    _, height, width = images.image_shape
    rows = len(images) // columns
    cells = images.images[: rows * columns].view(rows, columns, 3, height, width)
    return cells.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, 3)


if __name__ == "__main__":
    main()
