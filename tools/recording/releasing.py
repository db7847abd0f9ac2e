"""Cases that release without training: every publisher, obfuscator and stream."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from box import Box, Case


@functools.cache
def methods(tree: Path) -> list[dict[str, Any]]:
    """Return the output of `idpgan methods --json`, run in a separate process."""
    command = [sys.executable, "-m", "idpgan", "methods", "--json"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def names_of(tree: Path, family: str) -> list[str]:
    """Return the names of a family's methods."""
    return [row["name"] for row in methods(tree) if row["family"] == family]


def releasing_cases(tree: Path) -> Iterator[Case]:
    """Yield the cases."""
    yield from publishing(tree)
    yield from obfuscating(tree)
    yield from streams()


# Publishers -------------------------------------------------------------------------------------------------------

OPTIONS = {  # settings of publishers; each is a separate case
    "lap": ("law=gaussian",),
    "dct": ("frequencies=10", "law=gaussian"),
    "fourier": ("frequencies=9",),
    "wavelet": ("levels=3",),
    "pix": ("block=4",),
    "quadtree": ("depth=2",),
    "face-parts": ("block=8", "inside=0.5"),
    "eigenfaces": ("components=5",),
    "codebook": ("codewords=64",),
    "lra": ("sweeps=5 learning_rate=0.02",),
    "sra": ("rank=3", "rank=3 refine=false"),
    "esra": ("refine=false",),
    "lrm": ("iterations=3",),
    "swp": ("window=4 step=2", "threshold=0.5"),
    "sort-swp": ("window=4",),
    "swp-sound": ("window=10", "compare=0.6"),
    "sort-swp-sound": ("window=10 sort=0.3",),
}
QUICK = {"lra": ("sweeps=5",), "sra": ("rank=5",)}


def publishing(tree: Path) -> Iterator[Case]:
    """Every publisher with every unit and option, in color and with names; repeated publications; ``best``."""

    def act_of(name: str, unit: str, options: str, folder: str = "faces", flags: str = "") -> Callable[[Box], None]:
        def act(box: Box) -> None:
            delta = "1e-6" if "gaussian" in options else "0"
            publish(box, name, unit, folder, *options.split(), *flags.split(), "--epsilon", "5", "--delta", delta)

        return act

    for row in methods(tree):
        if row["family"] != "publisher":
            continue
        name, usual = row["name"], " ".join(QUICK.get(row["name"], ()))
        for unit in row["units"]:
            yield Case(f"publish {name} {unit}", act_of(name, unit, usual))
        for options in OPTIONS.get(name, ()):
            yield Case(f"publish {name} {options}", act_of(name, row["units"][0], options))
        yield Case(f"publish {name} in color", act_of(name, row["units"][-1], usual, "colors", "--color --keep-names"))
        yield Case(f"publish {name} wide", act_of(name, row["units"][0], usual, "wide"))
    for unit in ("pixel", "column", "image"):
        yield Case(f"publish best {unit}", act_of("best", unit, ""))
    yield Case("publish the same folder again", publish_again)


def publish(box: Box, name: str, unit: str, folder: str, *arguments: str) -> None:
    """Publish a copy of a folder, verify the release, and gather the report."""
    shutil.copytree(box.data / folder, box.folder / "faces")
    common = ["publish", "faces", "--method", name, "--unit", unit, "--accept-unsound", *arguments]
    box.run(*common, "--out", "out", "--dry-run", "--json")
    if box.run(*common, "--out", "out", "--json"):
        return
    shutil.rmtree(box.folder / "faces")
    box.run("verify", "out/release", "--json")


def publish_again(box: Box) -> None:
    """Add up several publications and an obfuscation on one ledger; reused output names are refused."""
    shutil.copytree(box.data / "faces", box.folder / "faces")
    for number, (name, epsilon) in enumerate((("lap", "1"), ("dct", "2.5"), ("codebook", "3"), ("sra", "1"))):
        unit = "column" if name == "sra" else "image"
        given = ["--method", name, "--epsilon", epsilon, "--unit", unit, "--accept-unsound"]
        box.run("publish", "faces", *given, "--out", f"out{number}", "--json")
    box.run("obfuscate", "faces", "--method", "blur", "--out", "blurred", "--accept-unsound", "--json")
    box.run("publish", "faces", "--method", "lap", "--epsilon", "1", "--unit", "pixel", "--out", "out5", "--json")
    box.run("publish", "faces", "--method", "lap", "--epsilon", "1", "--unit", "pixel", "--out", "out5", "--json")
    box.run("report", "out0", "--json")


# Obfuscators ------------------------------------------------------------------------------------------------------


def obfuscating(tree: Path) -> Iterator[Case]:
    """Every obfuscator, and a second call with its saved weights or key."""

    def act_of(name: str) -> Callable[[Box], None]:
        def act(box: Box) -> None:
            shutil.copytree(box.data / "table", box.folder / "faces")
            if name != "gp-gan":
                (box.folder / "faces/landmarks.csv").unlink()
            given = ["obfuscate", "faces", "--method", name, "--accept-unsound"]
            if box.run(*given, "--out", "out", "--json"):
                small = ["width=2", "steps=2", "batch_size=8", "--keep", "mood"]
                box.run(*given, *small, "--out", "out", "--json")
            box.run("verify", "out/release", "--json")
            box.run(*given, "--fitted", "out/curator", "--out", "again", "--json")
            shutil.rmtree(box.folder / "faces")

        return act

    for name in names_of(tree, "obfuscator"):
        yield Case(f"obfuscate {name}", act_of(name))


# Streams ----------------------------------------------------------------------------------------------------------

VALUES = "\n".join(str((7 * number) % 5) for number in range(40)) + "\n"


def streams() -> Iterator[Case]:
    """Integer and real counts, with and without a horizon, in blocks, continued, repeated and released."""

    def act_of(*arguments: str) -> Callable[[Box], None]:
        def act(box: Box) -> None:
            common = ["stream", *arguments, "--state", "kept.state"]
            box.run(*common, stdin=VALUES, says="text")
            box.run(*common, "--json", stdin="3\n1\n")
            box.run(*common, "--first", "38", "--out", "out", "--json", stdin=VALUES[-4:] + "3\n")
            box.run("verify", "out", "--json")
            box.run("stream", "--epsilon", "9", "--state", "kept.state", stdin="1\n", says="text")
            (box.folder / "kept.state").unlink(missing_ok=True)

        return act

    for name, arguments in {
        "with a horizon": ("--epsilon", "1", "--horizon", "100"),
        "without a horizon": ("--epsilon", "0.5"),
        "of real values": ("--epsilon", "2", "--horizon", "64", "--real"),
        "in blocks": ("--epsilon", "1", "--horizon", "50", "--block", "8"),
    }.items():
        yield Case(f"stream {name}", act_of(*arguments))
