"""Scattering features, a teacher and sampling with it: this tree beside another commit, in turns; a JSON line each.

    python benchmarks/scattering.py [--against main] [--threads 1 2] [--only "sample"] [--turns 7]
    python benchmarks/scattering.py --profile "28 x 28"

Two processes live through all turns, one in each tree, and each turn asks both for the same work. A ratio is the median
over turns of the other's seconds over ours, with the least and the greatest; ``of_least`` that of the least seconds,
which other load disturbs least. ``cpu`` are seconds of the
processor; with more than one thread only ``clock`` means something.

``--profile`` says where one thread of this tree spends its time: processor microseconds of an image, medians of turns.
What a part of the features takes in its place stands beside ``bare``, the same operations each on its own, the least of
twenty in a row, when a cache holds as much as it can: the floor of that part on this machine at this load.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
BURNT = 2  # turns that do not count
SHAPES = {"28 x 28": (1, 28, 28), "32 x 32 in color": (3, 32, 32), "64 x 64": (1, 64, 64), "112 x 92": (1, 112, 92)}
IMAGES = {"28 x 28": 256, "32 x 32 in color": 64, "64 x 64": 32, "112 x 92": 16}  # of a turn


def features(size: str) -> tuple[int, Callable[[], Any]]:
    """Return a number of images, and what computes their features."""
    from idpgan.models.private_classifier import LinearScattering

    network, images = LinearScattering(SHAPES[size], ("a", "b")), torch.rand(IMAGES[size], *SHAPES[size])

    def call() -> None:
        with torch.no_grad():
            network.features(images)

    return len(images), call


def generate(size: str, candidates: int = 4) -> tuple[int, Callable[[], Any]]:
    """Return a number of images, and what draws them as configs/mnist-aggregate-no-public.toml does, best of 4."""
    from idpgan.models.config import ModelConfig
    from idpgan.models.families import build_generator
    from idpgan.models.private_classifier import LinearScattering

    config = ModelConfig(generator="warp", latent_dim=16, codes=20, warp=0.7, temperature=2.5)
    generator, num = build_generator(config, SHAPES[size], 10).eval(), IMAGES[size]
    if candidates > 1:
        teacher = LinearScattering(SHAPES[size], generator.classes)
        torch.nn.init.normal_(teacher.weight)
        return num, lambda: generator.taught_by(teacher, candidates).sample(num, seed=1)
    return num, lambda: generator.sample(4 * num, seed=1)


def teach(size: str) -> tuple[int, Callable[[], Any]]:
    """Return a number of private images, and what trains a teacher on them: features, and 20 steps on half of them."""
    from idpgan.data.images import Images
    from idpgan.privacy import Noise, Unit
    from idpgan.synthesis.teacher import TeacherSteps, fit_teacher

    pixels = torch.randint(0, 256, (4 * IMAGES[size], *SHAPES[size]), dtype=torch.uint8)
    private = Images(pixels, torch.arange(len(pixels)) % 10, tuple(map(str, range(10))))
    teaching, device = TeacherSteps(0.5, Unit.IMAGE, 20, 0.5, 1.0), torch.device("cpu")
    return len(private), lambda: fit_teacher(teaching, private, None, device=device, noise=Noise.system())


def profile(size: str, turns: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each part: of sampling with a teacher, of a teacher's fit, and of the features that both need."""
    from idpgan.models.private_classifier import LinearScattering

    (num, taught), (_, drawn), (private, fit) = generate(size), generate(size, 1), teach(size)
    network, images = LinearScattering(SHAPES[size], tuple(map(str, range(10)))), torch.rand(4 * num, *SHAPES[size])

    @torch.no_grad()
    def features() -> None:
        network.features(images)

    parts: dict[str, tuple[int, Callable[[], Any]]] = {
        "sampling": (num, taught),
        "sampling: its candidates": (num, drawn),
        "sampling: their log odds": (num, lambda: network.logits(images)),
        "a teacher: features and 20 steps": (private, fit),
        "features": (len(images), features),
    }
    found: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(BURNT + turns):
        for name, (count, call) in parts.items():
            found[name].append(1e6 * seconds(call) / count)
    for name, times in found.items():
        yield {"part": name, "us": round(statistics.median(times[BURNT:]), 1)}
    yield from profile_tile(network._scattering[0], turns)


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of the processor that a call takes."""
    started = time.process_time()
    call()
    return time.process_time() - started


def profile_tile(scattering: Any, turns: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of operation of a tile, and the sum: all numbers are those of one image."""
    kinds = {"to": "into the Fourier basis", "from": "out of it", "mean": "low pass and pooling"}
    kinds |= {"copy_": "copies into groups", "cat": "order of the maps"}
    axes = {each.data_ptr(): name.split("_")[2] for name, each in scattering.named_buffers() if "psi" not in name}
    ((tape,),) = scattering._tapes.values()
    in_place = zip(*[[seconds(step) for step in tape._steps] for _ in range(20 * turns)], strict=True)
    rows, all_of_it = dict[str, list[float]](), [0.0] * 5
    for step, times in zip(tape._steps, list(in_place), strict=True):
        sizes = [each.numel() for each in tree_leaves((step.args, step.keywords)) if isinstance(each, torch.Tensor)]
        name, flops = kinds.get(step.func.__name__, "moduli"), 0
        if step.func in (torch.mm, torch.bmm):
            left = step.args[0]
            name, flops = kinds.get(axes.get(left.data_ptr(), ""), "filters"), 2 * left.shape[-1] * sizes[-1]
        bare = min(seconds(step) for _ in range(20))
        measured = 1, 1e6 * statistics.median(times), 1e6 * bare, flops / 1e6, 4 * sum(sizes) / 1e6
        for row in (rows.setdefault(name, [0.0] * 5), all_of_it):
            row[:] = [old + new for old, new in zip(row, measured, strict=True)]
    images = tape._result.shape[2] / scattering.image_shape[0]
    for name, (calls, us, bare, mflop, megabytes) in [*rows.items(), ("all of it", all_of_it)]:
        facts = {"part": f"features: {name}", "calls_of_a_tile": calls, "us": us / images, "bare_us": bare / images}
        facts |= {"mflop": mflop / images, "megabytes": megabytes / images, "gflops": mflop / us * 1e3}
        yield {key: value if isinstance(value, str) else round(value, 2) for key, value in facts.items()}


WORKS: dict[str, Callable[[], tuple[int, Callable[[], Any]]]] = {
    **{f"features, {size}": functools.partial(features, size) for size in SHAPES},
    "sample, 28 x 28, best of 4": lambda: generate("28 x 28"),
    "sample, 28 x 28, its 4 candidates alone": lambda: generate("28 x 28", 1),
    "sample, 32 x 32 in color, best of 4": lambda: generate("32 x 32 in color"),
    "teacher, 28 x 28": lambda: teach("28 x 28"),
    "teacher, 32 x 32 in color": lambda: teach("32 x 32 in color"),
}  # fmt: skip


def serve(threads: int) -> None:
    """Do one work for each line of the input, and print images, seconds of the clock, and of the processor."""
    from idpgan.device import resolve_device

    resolve_device("cpu")  # as every command does first
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    made: dict[str, tuple[int, Callable[[], Any]]] = {}
    for line in sys.stdin:
        name = line.strip()
        made[name] = made.get(name) or WORKS[name]()
        num, call = made[name]
        clock, processor = time.perf_counter(), time.process_time()
        call()
        print(json.dumps([num, time.perf_counter() - clock, time.process_time() - processor]), flush=True)


@contextmanager
def other_tree(commit: str) -> Iterator[Path]:
    """Check a commit out beside this tree, for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def measure(trees: list[Path], threads: int, names: list[str], turns: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each work."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(threads)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    servers = [
        subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads)}, **pipes)
        for tree in trees
    ]

    def asked(server: Any, name: str) -> list[float]:
        print(name, file=server.stdin, flush=True)
        found: list[float] = json.loads(server.stdout.readline())
        return found

    try:
        for name in names:
            taken = [[asked(server, name) for server in servers] for _ in range(BURNT + turns)][BURNT:]
            row: dict[str, Any] = {"what": name, "threads": threads, "load": round(os.getloadavg()[0], 1)}
            for column, clock in ((1, "clock"), (2, "cpu")):
                ours, theirs = ([turn[side][column] for turn in taken] for side in (0, 1))
                ratios = [there / here for here, there in zip(ours, theirs, strict=True)]
                row[f"{clock}_ratio"] = [round(pick(ratios), 2) for pick in (statistics.median, min, max)]
                row[f"{clock}_ratio_of_least"] = round(min(theirs) / min(ours), 2)
                row[f"images_per_{clock}_second"] = [
                    round(taken[0][0][0] / statistics.median(seconds)) for seconds in (ours, theirs)
                ]
            yield row
    finally:
        for server in servers:
            server.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="main", help="commit to measure beside this tree")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="part of the names of what is measured")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--profile", choices=SHAPES, help="where this tree spends its time, at one size")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    if arguments.profile:
        from idpgan.device import resolve_device

        resolve_device("cpu")
        torch.set_num_threads(1)
        for row in profile(arguments.profile, arguments.turns):
            print(json.dumps(row), flush=True)
        return
    names = [name for name in WORKS if arguments.only in name]
    with other_tree(arguments.against) as tree:
        for threads in arguments.threads:
            for row in measure([ROOT, tree], threads, names, arguments.turns):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
