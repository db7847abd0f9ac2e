"""How many photos `prepare --align eyes` puts in place a second: this checkout beside another one, in turns.

python benchmarks/prepare_eyes.py --photos FOLDER --against CHECKOUT [--num 120] [--side 350] [--rounds 3]

FOLDER is searched for JPEGs; the first of them, squared to --side px, are prepared at 48 x 48 by one and by two
threads on as many cores. One JSON line holds medians over the rounds: photos a second by the clock, photos a second of
processor time (which others on the machine disturb less), and how many photos were placed by both eyes. A first round
of each is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent.parent
ONE_RUN = """
import json, os, sys, time
from pathlib import Path
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[3])])
from idpgan.commands.prepare import PrepareOptions, prepare_photos
import cv2, numpy, PIL.Image, torch
started = time.monotonic(), time.process_time()
done = prepare_photos(Path(sys.argv[1]), Path(sys.argv[2]), PrepareOptions("48", grey=True, align="eyes"))
took = time.monotonic() - started[0], time.process_time() - started[1]
print(json.dumps([done.num_photos / took[0], done.num_photos / took[1], done.aligned["eyes"]]))
"""


def squared(source: Path, target: Path, num: int, side: int) -> None:
    """Write photos of one size."""
    for number, path in enumerate(sorted(source.rglob("*.jpg"))[:num]):
        with Image.open(path) as photo:
            photo.convert("RGB").resize((side, side), Image.Resampling.BICUBIC).save(target / f"{number:05}.jpg")


def once(checkout: Path, photos: Path, cores: int) -> list[float]:
    """Prepare the photos by the code of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ONE_RUN, str(photos), f"{folder}/out", str(cores)]
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), *sys.path[1:]])}
        run = subprocess.run(command, env=settings, cwd=checkout, capture_output=True, text=True, check=True)
    result: list[float] = json.loads(run.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--num", type=int, default=120)
    parser.add_argument("--side", type=int, default=350)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    sides = {"here": HERE, "against": asked.against.resolve()}
    cells = [(cores, name) for cores in (1, 2) for name in sides]
    found: dict[tuple[int, str], list[list[float]]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        squared(asked.photos, Path(folder), asked.num, asked.side)
        for _ in range(1 + asked.rounds):
            for cores, name in cells:
                found[cores, name].append(once(sides[name], Path(folder), cores))
    line: dict[str, object] = {"photos": asked.num, "side": asked.side, "load": round(os.getloadavg()[0], 1)}
    for (cores, name), rounds in found.items():
        by_clock, by_processor, eyes = (round(statistics.median(column), 1) for column in zip(*rounds[1:], strict=True))
        line[f"{name}, {cores}"] = {"a second": by_clock, "a processor second": by_processor, "eyes": eyes}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
