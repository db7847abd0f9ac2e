"""A run that is killed while it computes features of private images: a resume takes them, and nothing else changes."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import pickle
import secrets
import stat

import pytest
import torch
from safetensors.torch import load_file, save_file

from idpgan import trainer
from idpgan.privacy import Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.run import RunFolder
from idpgan.training import kept_features
from idpgan.training.kept_features import NOT_KEPT, KeptFeatures
from tests.small_runs import config_of
from tests.training.toy import Stopped, books

RUNS = {  # and the parts of features that are done when it is killed
    "gaussian": 2,
    "gaussian, taught": 7,  # within those of the teacher, which come after the sums
    "aggregate, taught": 2,  # moved by coins
    "photos": 2,
    "evolution": 2,
    "scattering-linear": 2,
}
KEPT = "kept by the interrupted run"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Every part of the features is kept at once, and is small."""
    monkeypatch.setattr(kept_features, "_SECONDS", 0.0)
    for place in ("synthesis.moments._MOST_ROWS", "synthesis.feature_sums._TILE", "classify.scattering_linear._ROWS"):
        monkeypatch.setattr(f"idpgan.{place}", 300)


def restart_noise(monkeypatch):
    """Let what follows draw the keys that the process before drew: else no two runs could be compared."""
    numbers = itertools.count()
    monkeypatch.setattr(
        secrets, "token_bytes", lambda size=32: hashlib.shake_256(f"key {next(numbers)}".encode()).digest(size)
    )


def stopping_after(parts, error):
    """Return a progress that raises after so many parts of features, and notes all that it is told."""
    told = []

    def progress(what, done, total, note=""):
        if "features" in what:
            told.append((what, done, note))
            if len(told) == parts:
                raise error

    return progress, told


def given(path):
    """Return all bytes of a release, and the ledger."""
    files = sorted(file for file in (path / "release").rglob("*") if file.is_file())
    return {file.name: file.read_bytes() for file in files}, books(RunFolder(path))


def interrupted(name, path, monkeypatch):
    """Begin a run that is killed within its features."""
    restart_noise(monkeypatch)
    progress, told = stopping_after(RUNS[name], Stopped())
    with pytest.raises(Stopped):
        trainer.start(config_of(name), path, progress)
    return told


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_with_its_features_and_ends_as_if_it_had_not_been(name, tmp_path, monkeypatch):
    restart_noise(monkeypatch)
    whole, _ = stopping_after(0, None)
    trainer.start(config_of(name), tmp_path / "whole", whole)
    run = RunFolder(tmp_path / "killed")
    before = interrupted(name, run.path, monkeypatch)
    files = list(run.features.iterdir())
    assert files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(run.features.stat().st_mode) == 0o700
    assert not (run.path / "release").exists()

    restart_noise(monkeypatch)
    progress, told = stopping_after(0, None)
    trainer.resume(run.path, progress=progress)
    taken = [(what, done) for what, done, note in told if note == KEPT]
    assert taken[-1] in [(what, done) for what, done, _ in before[-2:]]  # at most one part was lost
    assert given(run.path) == given(tmp_path / "whole")
    assert not run.features.exists()
    assert not (tmp_path / "whole" / "state" / "features").exists()


def test_features_that_a_resume_would_not_compute_are_not_taken(tmp_path, monkeypatch):
    restart_noise(monkeypatch)
    trainer.start(config_of("gaussian"), tmp_path / "whole")
    run = RunFolder(tmp_path / "killed")
    interrupted("gaussian", run.path, monkeypatch)
    (file,) = run.features.iterdir()
    sums = load_file(file)
    save_file(sums | {"total": sums["total"] + 1_000_000}, file)  # forged
    restart_noise(monkeypatch)
    progress, told = stopping_after(0, None)
    trainer.resume(run.path, progress=progress)
    assert not [note for _, _, note in told if note]
    assert given(run.path) == given(tmp_path / "whole")


def test_a_stop_by_hand_says_that_features_are_kept(tmp_path):
    progress, _ = stopping_after(2, KeyboardInterrupt())
    finished = trainer.start(config_of("gaussian"), tmp_path / "run", progress)
    assert "nothing was released or charged, and the features computed until then are kept." in finished.outcome.message


# One store of features ------------------------------------------------------------------------------------------------

ROWS = torch.arange(20.0).view(10, 2)


def computed(first):
    yield from ROWS[first:].split(3)


def rows_of(kept, name="a", fixed=()):
    """Return the rows, and how many were kept."""
    told = [0]
    parts = kept.rows(name, 10, computed, fixed=fixed, progress=lambda _, done, __, note="": note and told.append(done))
    return torch.cat(list(parts)), told[-1]


def killed(folder, bound, parts=2, fixed=()):
    """Compute so many parts and no more."""
    rows = KeptFeatures(folder, bound).rows("a", 10, computed, fixed=fixed)
    for _ in range(parts + 1):  # the next one is computed, and lost
        next(rows)


@pytest.mark.parametrize(("parts", "rows"), [(1, 3), (2, 6), (3, 9)])
def test_what_was_computed_is_taken_up_to_the_last_whole_part(tmp_path, parts, rows):
    killed(tmp_path / "kept", {"images": "a"}, parts)
    found, kept = rows_of(KeptFeatures(tmp_path / "kept", {"images": "a"}))
    assert torch.equal(found, ROWS)
    assert kept == rows
    assert rows_of(KeptFeatures(tmp_path / "kept", {"images": "a"}))[1] == 10  # a second resume computes nothing


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def forged(path):
    save_file({"rows": torch.zeros(3, 2)}, path, {"bound": "0" * 64, "content": "0" * 64})


def linked(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGE = {
    "a flipped bit": flipped,
    "forged rows": forged,
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"rows": 1})),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "a link": linked,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_features_are_computed_again(tmp_path, damage):
    killed(tmp_path / "kept", {"images": "a"}, 3)
    damage(tmp_path / "kept" / "a-3.safetensors")
    found, kept = rows_of(KeptFeatures(tmp_path / "kept", {"images": "a"}))
    assert torch.equal(found, ROWS)
    assert kept == 3  # up to the damage


@pytest.mark.parametrize(
    ("bound", "fixed"), [({"images": "b"}, [torch.ones(2)]), ({"images": "a"}, [torch.zeros(2)]), ({}, [torch.ones(2)])]
)
def test_features_of_other_images_or_another_map_are_not_taken_and_are_removed(tmp_path, bound, fixed):
    killed(tmp_path / "kept", {"images": "a"}, fixed=[torch.ones(2)])
    assert rows_of(KeptFeatures(tmp_path / "kept", bound), fixed=fixed)[1] == 0
    killed(tmp_path / "again", {"images": "a"}, fixed=[torch.ones(2)])
    assert (
        rows_of(KeptFeatures(tmp_path / "again", {"images": "a"}), fixed=[torch.ones(2)])[1] == 6
    )  # the same ones are


def test_a_disk_without_room_ends_no_run(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    kept = KeptFeatures(tmp_path / "kept", {})
    assert torch.equal(rows_of(kept)[0], ROWS)
    assert [record.message.count("No space left") for record in caplog.records] == [1]


def test_short_work_is_not_kept_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_features, "_SECONDS", 60.0)
    rows_of(KeptFeatures(tmp_path / "kept", {}))
    assert not (tmp_path / "kept").exists()


def test_sums_that_were_all_kept_get_fresh_noise(tmp_path):
    """Nothing with noise is kept, so that no kill lets anybody see the same noise, or choose among draws."""
    sums = CellSums(2, 3, "gaussian", 1.0, Unit.IMAGE, Relation.ZERO_OUT)
    vectors, cells = torch.rand(9, 3, generator=torch.Generator().manual_seed(0)) / 2, torch.arange(9) % 2

    def batches(first=0):
        return ((vectors[i : i + 3], cells[i : i + 3], None) for i in range(first, 9, 3))

    kept = KeptFeatures(tmp_path / "kept", {})
    first, second, again = (kept.released(sums, batches, 9, Noise.fixed(seed)) for seed in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(first, NOT_KEPT.released(sums, batches, 9, Noise.fixed(1)))
