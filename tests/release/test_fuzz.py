"""Releases damaged at random: refused in one line or found out, never a traceback."""

import copy
import json
import math
import random
import shutil

import pytest
from torch import nn

from idpgan import publish
from idpgan.continual import ContinualCounter
from idpgan.privacy import Event, Relation, Unit
from idpgan.release import write_model
from tests.publish.pictures import pictures
from tests.release.forging import put, verdict

JUNK = [
    None, True, False, 0, -1, 1, 2, 0.5, 1e308, -1e308, 10**400, -(10**400), 1 << 64, "", "x", "inf", "\0", "\ud800",
    "a\nb", "x" * 5000, [], {}, [[]], {"x": {}}, [None], ["x", 1], {"": None}, {"epsilon": 1},
]  # fmt: skip


def paths(value, here=()):
    """All places in a JSON value, the value itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*here, key)
        yield from paths(inner, (*here, key))


def mutated(value, rng):
    """A copy with one place replaced by junk, removed, or doubled."""
    changed = copy.deepcopy(value)
    *parents, last = rng.choice(list(paths(value)))
    inner = changed
    for key in parents:
        inner = inner[key]
    action = rng.random()
    if action < 0.8:
        inner[last] = rng.choice(JUNK)
    elif action < 0.9:
        del inner[last]
    elif isinstance(inner, list):
        inner.append(inner[last])
    else:
        inner[f"{last}x"] = inner[last]
    return changed


@pytest.fixture(scope="module")
def other_releases(tmp_path_factory):
    """A publisher's images, a stream's answers, and a model of somebody's own loop."""
    folder = tmp_path_factory.mktemp("others")
    publish.release(pictures(3, 4, 5), "lap", epsilon=1.0).write(folder / "images")
    counter = ContinualCounter(1.0)
    counter.write(folder / "stream", counter.release([1, 2, 3]))
    steps = Event("poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, 1.0, 100, 0.05)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    write_model(
        folder / "model", module, [steps], num_private=90, image_shape=(1, 8, 8), classes=("a", "b"), fixed_seed=False
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "stream", "model"])
def test_damaged_publications_and_streams_give_no_traceback(other_releases, tmp_path, kind):
    rng = random.Random(0)
    for index in range(300):
        folder = shutil.copytree(other_releases / kind, tmp_path / str(index))
        if rng.random() < 0.7:
            name = rng.choice(["privacy.json", "config.json"])
            before = json.loads((folder / name).read_text())
            after = mutated(before, rng)
            (folder / name).write_text(json.dumps(after, indent=2) + "\n")
            unchanged = same(before, after)
        else:
            path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
            content = bytearray(path.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            name, unchanged = path.name, False
        if name != "privacy.json":
            assert unchanged or verdict(folder), name
            put(folder, json.loads((folder / "privacy.json").read_text()))  # a forger mends the hash
            verdict(folder)
        else:
            assert unchanged or verdict(folder), name
        shutil.rmtree(folder)


def same(first, second):
    return json.dumps(first) == json.dumps(second)


def states_more(before, after):
    """Whether nothing differs but a risk that is higher, as of an earlier accountant, and noise by rounding."""
    lower = copy.deepcopy(after)
    try:
        lower["risk"]["best_guess"] = min(after["risk"]["best_guess"], before["risk"]["best_guess"])
        for rate, share in before["risk"]["found"].items():
            lower["risk"]["found"][rate] = min(share, after["risk"]["found"][rate])
        for charge, charged in zip(lower["events"], before["events"], strict=True):
            if math.isclose(charge["noise_multiplier"], charged["noise_multiplier"], rel_tol=1e-6):
                charge["noise_multiplier"] = charged["noise_multiplier"]
        return same(before, lower)
    except (KeyError, TypeError, ValueError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_damaged_tables_give_no_traceback(aggregate_run, tmp_path, seed):
    rng = random.Random(seed)
    for index in range(150):
        name = rng.choice(["privacy.json", "config.json"])
        folder = shutil.copytree(aggregate_run / "release", tmp_path / str(index))
        before = json.loads((folder / name).read_text())
        after = mutated(before, rng)
        (folder / name).write_text(json.dumps(after, indent=2) + "\n")
        if name == "config.json":
            put(folder, json.loads((folder / "privacy.json").read_text()))
        found = verdict(folder)
        if name == "privacy.json" and not states_more(before, after):
            assert found, after
        if name == "config.json" and not found:  # what changes no charge may be another run's: seeds, steps, rates
            cap = {"most_per_person": 20}  # of unit person, which this run is not
            assert after["settings"]["privacy"] | cap == before["settings"]["privacy"] | cap
            assert after["generator"]["model"] == before["generator"]["model"]
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_are_found(aggregate_run, tmp_path, seed):
    rng = random.Random(seed)
    names = sorted(path.name for path in (aggregate_run / "release").iterdir())
    for index in range(100):
        folder = shutil.copytree(aggregate_run / "release", tmp_path / str(index))
        path = folder / rng.choice(names)
        content = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 1, 10])):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
        before = (aggregate_run / "release" / path.name).read_bytes()
        if path.read_bytes() != before:
            known = path.name == "privacy.json" and not verdict(folder)
            assert states_more(*map(json.loads, (before, path.read_bytes()))) if known else verdict(folder), path.name
            if path.name != "privacy.json":
                put(folder, json.loads((folder / "privacy.json").read_text()))  # a forger mends the hash
                verdict(folder)
        shutil.rmtree(folder)
