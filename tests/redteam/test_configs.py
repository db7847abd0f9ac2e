"""Mutated configs: each builds and dry-runs, or gives exactly one line; never another exception, never a hang.

Deterministic: case number n is the same everywhere. The default suite runs a slice, ``-m slow`` all of them.
"""

import contextlib
import copy
import datetime
import io
import math
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from idpgan.commands import main
from idpgan.training.config import Contained, load_method
from tests.redteam.alarm import within

CASES, SLICE = 2000, 60
SECONDS = 60  # a case that takes longer hangs; most of it would be the accountant's
CONFIGS = Path(__file__).parents[2] / "configs"
QUICK = ("digits-wgan-gp", "digits-idp-gan-published")  # whose price takes no search
SLOW = (
    "digits-wgan-gp",
    "digits-aggregate",
    "digits-aggregate-public",
    "digits-gaussian",
    "digits-evolution",
    "digits-idp-gan-published",
    "digits-dp-gan",
    "digits-diffusion",
    "faces-aggregate",
    "mnist-wgan-gp",
)
VALUES = [
    True, False, 0, 1, -1, 2, 7, 10, 64, 1000, 2**31, 2**63 - 1, -(2**63), 10**30, 0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-5,
    1e-320, 1e-30, 1e30, 1e308, math.inf, -math.inf, math.nan, "", " ", "x", "auto", "cuda", "image", "person", "none",
    "public", "yes", "100", "1e-5", "true", "digits", "faces", "mnist", "celeba", "folder", "face-folder", "wgan-gp",
    "dp-gan", "/dev/null", "/dev/zero", "no/such/place", "~", "a\0b", "a\nb", "\x1b[31m", "\u202e", "\ufeff",
    "e\u0301" * 200,
    "x" * 10_000, [], [1], [True], ["x"], [[1], [2]], [1, "a"], [0, -1, 10**20], {}, {"a": 1}, {"name": "x"},
    datetime.date(2024, 1, 1), datetime.time(1, 2, 3),
]  # fmt: skip
KEYS = [
    "",
    " ",
    "a b",
    "a.b",
    "steps ",
    "Steps",
    "stesp",
    "\uff53teps",
    "__class__",
    "model_config",
    "x" * 500,
    "é",
    "\0",
    "0",
]


def known_keys(name):
    """Keys of every section of a method's config; what contained releases cost is a list of sections."""
    fields = load_method(name).Settings.model_fields
    inner = {section: Contained if section == "contained" else field.annotation for section, field in fields.items()}
    return {section: list(kind.model_fields) for section, kind in inner.items()}


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def mutate_table(table, rng):
    """Change a few things in a table."""
    table = copy.deepcopy(table)
    name = table.get("method", {}).get("name", "wgan-gp")
    keys = known_keys(name)
    for _ in range(1 + int(rng.integers(3))):
        section = pick(rng, list(keys))
        inner = table.get(section)
        kind = int(rng.integers(8))
        if kind == 0:
            table[section] = pick(rng, VALUES)
        elif kind == 1:
            table.pop(section, None)
        elif not isinstance(inner, dict):
            table[section] = {pick(rng, keys[section]): pick(rng, VALUES)}
        elif kind == 2 and inner:
            inner.pop(pick(rng, list(inner)))
        elif kind == 3:
            inner[pick(rng, KEYS)] = pick(rng, VALUES)
        else:
            inner[pick(rng, keys[section])] = pick(rng, VALUES)
    return table


def mutate_bytes(content, rng):
    """Change a few bytes of a file."""
    content = bytearray(content)
    for _ in range(1 + int(rng.integers(4))):
        place = int(rng.integers(len(content) + 1))
        kind = int(rng.integers(4))
        if kind == 0:
            content[place:place] = bytes(rng.integers(0, 256, 1 + int(rng.integers(3)), dtype=np.uint8))
        elif kind == 1:
            del content[place : place + 1 + int(rng.integers(30))]
        elif kind == 2:
            content[place:place] = pick(
                rng, [b"[" * 5000, b"9" * 5000, b'"""', b"= ", b"\xff\xfe", b"\r", b"{" * 100, b"a.b.c.d.e.f.g.h.i=1\n"]
            )
        else:
            content[place:place] = content[: int(rng.integers(200))]
    return bytes(content)


def case(number, configs):
    """Return the content of a config file and further settings."""
    rng = np.random.default_rng([16, number])
    base = (CONFIGS / f"{pick(rng, configs)}.toml").read_text(encoding="utf-8")
    settings = []
    kind = int(rng.integers(4))
    if kind == 0:
        return mutate_bytes(base.encode(), rng), settings
    table = tomllib.loads(base)
    if kind == 1:
        keys = known_keys(table["method"]["name"])
        for _ in range(1 + int(rng.integers(3))):
            section = pick(rng, list(keys))
            key = pick(rng, [*keys[section], *KEYS])
            text = pick(rng, [str(value) for value in VALUES if not isinstance(value, str) or "\0" not in value])
            settings.append(f"{section}.{key}={text}")
        return base.encode(), settings
    return tomli_w.dumps(mutate_table(table, rng)).encode("utf-8", "surrogatepass"), settings


def outcome(arguments):
    """Run a command; returns (exit code, stderr). Anything but an exit is raised."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as ended:
            return ended.code or 0, err.getvalue()
    raise AssertionError("main ended without an exit code")


def attack(numbers, configs, folder):
    """Try cases; returns the numbers of those that built and a line for each that was answered wrongly."""
    built, wrong = [], []
    path = folder / "run.toml"
    for number in numbers:
        content, settings = case(number, configs)
        path.write_bytes(content)
        try:
            with within(SECONDS):
                code, err = outcome(["train", str(path), *settings, "--dry-run"])
        except BaseException as error:  # noqa: BLE001  # that is what this test looks for
            wrong.append(f"case {number}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if code == 0:
            built.append(number)
        elif code != 2 or err.count("\n") != 1 or not err.startswith("idpgan: ") or not err.strip().isprintable():
            wrong.append(f"case {number}: exit code {code}, {err[:300]!r}")
    return built, wrong


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, without the data sets of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDPGAN_DATA", raising=False)
    return tmp_path


def test_mutated_configs_build_or_give_one_line(place):
    built, wrong = attack(range(SLICE), QUICK, place)
    assert wrong == []
    assert 2 <= len(built) <= SLICE / 2  # most are wrong, some are harmless
    assert [path.name for path in place.iterdir()] == ["run.toml"]


@pytest.mark.slow
def test_all_mutated_configs_build_or_give_one_line(place):
    built, wrong = attack(range(CASES), SLOW, place)
    assert wrong == []
    assert CASES / 50 <= len(built) <= CASES / 2
    assert [path.name for path in place.iterdir()] == ["run.toml"]


def test_the_harness_can_fail(place, monkeypatch):
    def defect(*_):
        raise KeyError("defect")

    monkeypatch.setattr("idpgan.trainer.plan", defect)
    began = time.monotonic()
    _, wrong = attack(range(SLICE // 2), QUICK, place)
    assert wrong
    assert all("KeyError" in line for line in wrong)
    assert time.monotonic() - began < SECONDS
