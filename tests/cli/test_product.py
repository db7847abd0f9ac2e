"""The product: every artifact that a command writes is fed to every command that could take it.

Each pair ends well, or with one clear line and exit code 1 or 2; no pair ends with a traceback, and where one is
refused, nothing is written.
"""

import io
import itertools
import os
import shutil
import sys

import pytest
import torch

from idpgan.commands import main
from idpgan.data.images import png_bytes
from tests.portraits.made_head import made_head

RUN = "run"
TAKES = {  # what is asked of an artifact, and which of them it takes; OUT is a new place
    "prepare {} OUT --size 8 --grey --folders none": (
        *("prepared", "run", "release", "samples", "published", "published images", "obfuscated", "fitted", "people"),
    ),
    "init {}": ("prepared", "samples"),
    "train {} --dry-run": ("config",),
    "train digits-gaussian data.name=folder data.root={} data.label=label data.num_images=40 data.image_size=8 "
    "data.channels=1 data.classes=['0','1','2','3','4','5','6','7','8','9'] --dry-run": ("samples",),
    "train digits-aggregate data.public_root={} --dry-run": ("npz", "samples"),
    "train digits-evolution model.simulator=generator data.public_generator={} --dry-run": ("run", "release"),
    "train --resume {}": ("run",),
    "sample {} --num 2 --out OUT": ("run", "release", "weights"),
    "evaluate {} --only inception --data digits": (*("prepared", "run", "release", "weights", "npz", "samples"),),
    "attack {} --attack nearest-sample": ("run",),
    "attack {} --members prepared --others unused --attack nearest-sample --samples 50": (
        *("prepared", "run", "release", "weights", "npz", "samples"),
    ),
    "attack npz.npz --members {} --others unused --attack nearest-sample": ("prepared", "npz"),
    "recognize {} prepared --attack pca-svm": ("published", "obfuscated"),
    "recognize published {} --attack pca-svm": ("prepared",),
    "audit {} --runs 100": ("run",),
    "report {}": ("run", "published", "obfuscated"),
    "publish {} --method lap --epsilon 10 --unit image --out OUT": ("prepared", "samples", "people"),
    "publish prepared --method blur --accept-unsound --fitted {} --out OUT": ("fitted",),
    "people {} -n 1 --size 32": (),
    "stream --epsilon 1 --horizon 9 --state {}": ("stream",),
    "ledger {}": (
        *("prepared", "run", "release", "samples", "published", "published images", "obfuscated", "fitted", "people"),
        "answers",
    ),
    "verify {}": ("run", "release", "published", "published images", "obfuscated", "answers"),
}
MADE = {  # artifact -> where it lies, below one folder
    "prepared": "prepared",
    "run": "run",
    "release": "run/release",
    "weights": "run/release/generator.safetensors",
    "npz": "npz.npz",
    "samples": "samples",
    "published": "published",
    "published images": "published/release",
    "obfuscated": "obfuscated",
    "fitted": "obfuscated/curator",
    "people": "people",
    "stream": "stream.state",
    "answers": "answers",
    "report": "run/report.html",
    "ledger": "prepared.ledger.json",
    "config": "config.toml",
    "result": "result.json",
    "evaluation": "run/evaluation.json",
}


def called(command, stdin=""):
    """Run a command in this process; returns its exit code, stdout and stderr."""
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(stdin), io.StringIO(), io.StringIO()
    try:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in command])
        return ended.value.code or 0, sys.stdout.getvalue(), sys.stderr.getvalue()
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams


@pytest.fixture(scope="module")
def made(tmp_path_factory, small_run):
    """One of each artifact, below one folder, which is the current one."""
    base, rng = tmp_path_factory.mktemp("product"), torch.Generator().manual_seed(0)
    shutil.copytree(small_run("gaussian"), base / "run")
    for side in ("photos", "others"):
        for number, image in enumerate(torch.randint(0, 256, (36, 3, 12, 12), generator=rng, dtype=torch.uint8)):
            place = base / side / f"p{number % 9}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(png_bytes(image) if side == "others" or number else b"no picture")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        patch.setattr("idpgan.portraits.render.read_head", made_head)
        for command, stdin in (
            ("prepare photos prepared --size 8 --grey --folders person", ""),
            ("prepare others unused --size 8 --grey --folders person", ""),
            ("init prepared --out config.toml --epsilon 8 --unit image", ""),
            ("sample run --num 40 --out npz.npz", ""),
            ("sample run --num 40 --out samples", ""),
            ("publish prepared --method lap --epsilon 10 --unit image --out published", ""),
            ("publish prepared --method blur --accept-unsound --out obfuscated", ""),
            ("people people -n 2 --size 32", ""),
            ("stream --epsilon 1 --horizon 9 --state stream.state --out answers", "3\n0\n"),
            ("attack npz.npz --members prepared --others unused --attack nearest-sample --out result.json", ""),
            ("evaluate run --only inception", ""),
            ("report run", ""),
        ):
            code, _, said = called(command.split(), stdin)
            assert code == 0, (command, said)
        assert [name for name, place in MADE.items() if not os.path.exists(place)] == []
        yield base


def everything(folder):
    """Return size and time of all files; locks, which are empty, come and go."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    files = ((path, os.stat(path)) for path in paths)  # a third of the test's time with pathlib
    return {path: (status.st_size, status.st_mtime_ns) for path, status in files if status.st_size}


HEAVY = [("attack {} --attack nearest-sample", "run")]
PAIRS = [
    pytest.param(*pair, marks=[pytest.mark.slow] * (pair in HEAVY), id=f"{pair[0].split()[0]} {number}, {pair[1]}")
    for number, command in enumerate(TAKES)
    for pair in itertools.product([command], MADE)
]


@pytest.mark.parametrize(("command", "artifact"), PAIRS)
def test_each_pair_ends_well_or_in_one_line(made, tmp_path, command, artifact):
    out, before = tmp_path / "out", everything(made)
    words = [str(out) if word == "OUT" else word.replace("{}", MADE[artifact]) for word in command.split()]
    code, said, error = called(words, "3\n")
    print(words, code, said, error)
    refusals = [line for line in error.splitlines() if line.startswith("idpgan: ")]
    assert (code == 0) == (artifact in TAKES[command])
    assert len(refusals) == bool(code)
    if code:
        assert code in (1, 2)
        assert said == ""
        assert not out.exists()
        assert everything(made) == before
