"""Seconds and memory of five commands on drawn faces that lie on disk; one JSON line for each command and number.

    python benchmarks/streamed.py FOLDER --num 2000 10000 [--only prepare gaussian linear evaluate attack]

Each number N has a folder of N JPEG photos, 96 x 112 in color, smiling or neutral: 10,000 that `idpgan.data.faces`
draws once, then the same ones moved by some pixels. The commands run one after the other, as processes of one thread:
``prepare`` to 96 x 96; ``train`` of gaussian and of scattering-linear (with 2 directions of 8, so that it ends today);
``evaluate`` of gaussian, the fidelity by an autoencoder's features with 20 steps of its fit (by itself it takes at most
3,000, whatever N); ``attack`` of gaussian on 500 members by the attacks whose work grows as N.

``cpu_seconds`` are those of the process, which others on the machine disturb least. ``peak_mib`` is the most that it
had in memory, pages of mapped files included, which the system takes back where memory is short; ``peak_own_mib`` is
without them, looked up 20 times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from idpgan.data.face_looks import ATTRIBUTES
from idpgan.data.faces import draw

SIDE, HEIGHT = 96, 112
POOL, CHUNK = 10_000, 1_000  # faces that are drawn, and drawn at once
CLASSES = ("neutral", "smiling")
CONFIG = """
[data]
name = "folder"
root = "{root}"
num_images = {num}
image_size = 96
channels = 3
classes = ["neutral", "smiling"]

[privacy]
epsilon = 1.0
delta = 1e-6

[method]
name = """
METHODS = {"gaussian": '"gaussian"\n', "linear": '"scattering-linear"\ndirections = 2\n'}
ATTACKS = ("nearest-sample", "nearest-in-features", "neighborhood-count", "copies", "density-ratio", "trace")
SHORT_FIT = (
    "import runpy; from idpgan.metrics import features as networks; "
    "networks.FEWEST_STEPS = networks.MOST_STEPS = 20; runpy.run_module('idpgan', run_name='__main__')"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, nargs="+", default=[2_000, 10_000])
    parser.add_argument("--only", nargs="+", help="some of the commands, each on what the last one before it made")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for num in arguments.num:
        place = arguments.folder / str(num)
        place.mkdir(parents=True, exist_ok=True)
        draw_photos(place / "photos", num)
        for name, made, command in commands(place, num):
            if arguments.only and name not in arguments.only:
                continue
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            row = {"benchmark": "streamed", "command": name, "num": num, **measured(command, place / f"{name}.log")}
            row["cpu_seconds_per_1000"] = row["cpu_seconds"] / num * 1_000
            print(json.dumps({**row, "load": os.getloadavg()[0]}), flush=True)


def draw_photos(folder: Path, num: int) -> None:
    """Draw the photos that are missing, a chunk at a time."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for start in range(0, min(num, POOL), CHUNK):
        done = folder / f".{start}"
        if done.exists():
            continue
        faces = draw(CHUNK, (HEIGHT, SIDE), seed=start)
        smiles = [] if faces.attributes is None else faces.attributes[:, ATTRIBUTES.index("smiling")].tolist()
        for copy in range(-(-num // POOL)):
            moved = faces.images.roll((copy % 4, copy // 4), (2, 3))
            for index, (pixels, smile) in enumerate(zip(moved, smiles, strict=True), copy * POOL + start):
                if index < num:
                    path = folder / CLASSES[smile] / f"{index:06d}.jpg"
                    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path, quality=90)
        done.touch()


def commands(place: Path, num: int) -> list[tuple[str, Path | None, list[Any]]]:
    """Return name, what is removed before, and arguments of each command."""
    faces, gaussian, linear, cache = (place / name for name in ("faces", "gaussian", "linear", "cache"))
    for name, method in METHODS.items():
        text = CONFIG.format(root=faces, num=num) + method
        (place / f"{name}.toml").write_text(text, encoding="utf-8")
    run, judged = ["-m", "idpgan"], ["--only", "fidelity", "--features", "autoencoder", "--cache", cache]
    attacks = [word for name in ATTACKS for word in ("--attack", name)]
    return [
        ("prepare", faces, [*run, "prepare", place / "photos", faces, "--size", SIDE, "--folders", "label"]),
        ("gaussian", gaussian, [*run, "train", place / "gaussian.toml", "--out", gaussian]),
        ("linear", linear, [*run, "train", place / "linear.toml", "--out", linear]),
        ("evaluate", cache, ["-c", SHORT_FIT, "evaluate", gaussian, *judged]),
        ("attack", None, [*run, "attack", gaussian, "--most", 500, "--samples", num * 72 // 100, *attacks]),
    ]


def measured(command: list[Any], log: Path) -> dict[str, float]:
    """Run a command of the package; return its seconds and its peaks in MiB."""
    words = [sys.executable, *map(str, command), "--no-progress"]
    started, own = time.perf_counter(), 0
    with log.open("w", encoding="utf-8") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(words, env=environment, stdout=file, stderr=subprocess.STDOUT)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            own = max(own, own_bytes(process.pid))
            time.sleep(0.05)
    _, status, used = ended
    if status:
        raise SystemExit(f"{' '.join(words)} failed; see {log}")
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
        "peak_own_mib": own / 2**20,
    }


def own_bytes(pid: int) -> int:
    """Return the memory of a process without pages of files on disk; 0 if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


if __name__ == "__main__":
    main()
