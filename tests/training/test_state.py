"""state.pt: whole or not at all, no code in it, refused when damaged or foreign."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idpgan.device import computing_on
from idpgan.errors import InputError
from idpgan.privacy import Event, Ledger, Noise, Relation, Unit
from idpgan.training.state import SavedState, StateStore, machine_fingerprint, nonfinite, run_fingerprint
from idpgan.version import code_digest
from tests.training.toy import bits, new_run

FINGERPRINT = {"config": "aaaa", "private data": "bbbb", "device": "cpu"}


def saved(method=None, step=3):
    return SavedState(step, {"w": torch.arange(500.0)} if method is None else method, 4, {"seconds": 1.5})


def store_of(run, fingerprint=FINGERPRINT):
    """Open the store as another process would."""
    ledger = Ledger(Unit.IMAGE, Relation.REPLACE_ONE, path=run.ledger, owner="test")
    return StateStore(run, fingerprint, ledger)


@pytest.fixture
def run(tmp_path):
    return new_run(tmp_path / "run")


plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.floats(width=32), max_size=4).map(torch.tensor), st.integers(0, 9).map(torch.tensor),
)  # fmt: skip
keys = st.text(max_size=3) | st.integers(0, 9)
nested = st.dictionaries(
    st.text(max_size=5).filter(lambda key: key != "prepared"),
    st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)),
    max_size=4,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(nested)
def test_what_is_saved_is_loaded(tmp_path_factory, method):
    run = new_run(tmp_path_factory.mktemp("state") / "run")
    store_of(run).save(saved(method))
    loaded = store_of(run).load()
    assert repr(bits(loaded.method)) == repr(bits(method))  # repr: NaN is equal to itself
    assert (loaded.step, loaded.ledger_position, loaded.recorder) == (3, 4, {"seconds": 1.5})


def test_the_file_is_secret_and_needs_no_unpickling(run):
    store_of(run).save(saved())
    assert stat.S_IMODE(run.state.stat().st_mode) == 0o600
    assert torch.load(run.state, weights_only=True)["fingerprint"] == FINGERPRINT


@pytest.mark.parametrize("value", [np.float64(1.0), np.zeros(2), b"", {1, 2}, {(1,): 2}, Unit.IMAGE, object()])
def test_what_could_not_be_loaded_again_is_not_saved(run, value):
    store_of(run).save(saved())
    before = run.state.read_bytes()
    with pytest.raises(TypeError, match=r"'method\.a\.1'"):
        store_of(run).save(saved({"a": [0, value]}))
    assert run.state.read_bytes() == before


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_the_previous_state_is_kept_until_the_new_one_is_whole(run, monkeypatch, failing):
    store = store_of(run)
    store.save(saved(step=1))

    def fail(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space"):
            store.save(saved(step=2))
    loaded = store_of(run).load()
    assert (loaded.step, loaded.exact) == (1, True)
    assert {path.name for path in run.state_dir.iterdir()} == {"state.pt", "ledger.json", ".ledger.json.lock"}


def test_what_a_killed_writer_left_is_removed(run):
    store_of(run).save(saved())
    for name in ("state.new.pt", "ledger.json", "prepared.new.safetensors"):
        (run.state_dir / f".{name}.0123456789abcdef.part").write_bytes(b"half")
    (run.state_dir / "prepared.new.safetensors").write_bytes(b"no ledger names it")
    with run.locked():
        assert store_of(run).load().exact
    assert {path.name for path in run.state_dir.iterdir()} == {"state.pt", "ledger.json", ".ledger.json.lock", "lock"}


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("moment", range(1, 4))
def test_a_kill_while_saving_leaves_the_old_or_the_new_state_whole_and_named(run, monkeypatch, moment):
    store_of(run).save(saved(step=1))
    moves, replace = [], os.replace

    def killed(*paths):
        moves.append(paths)
        if len(moves) == moment:  # the new state under its second name, the ledger, the new state under its name
            raise Killed
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            store_of(run).save(saved(step=2))
    loaded = store_of(run).load()
    assert (loaded.step, loaded.exact) == (2 if moment == 3 else 1, True)
    assert not (run.state_dir / "state.new.pt").exists()


def test_an_older_state_another_machine_and_a_gpu_are_not_repeated_exactly(run, monkeypatch):
    store_of(run).save(saved(step=1))
    older = run.state.read_bytes()
    store_of(run).save(saved(step=2))
    newest = run.state.read_bytes()
    assert store_of(run).load().exact
    run.state.write_bytes(older)
    assert not store_of(run).load().exact
    run.state.write_bytes(newest)
    if hasattr(os, "sched_getaffinity"):
        for threads, exact in ((2, False), (1, True)):  # one thread computes the same on a machine of any width
            with monkeypatch.context() as patch, computing_on(threads):
                store_of(run).save(saved(step=2))
                assert store_of(run).load().exact
                patch.setattr(os, "sched_getaffinity", lambda _: {99})
                assert store_of(run).load().exact == exact
        store_of(run).save(saved(step=2))
    for name in ("MKL_CBWR", "OMP_THREAD_LIMIT", "GOMP_CPU_AFFINITY", "GLIBC_TUNABLES", "OMP_DYNAMIC"):
        monkeypatch.setenv(name, "true")
        assert not store_of(run).load().exact
        if name == "OMP_DYNAMIC":  # the next process may get other threads by the same setting
            store_of(run).save(saved(step=2))
            assert not store_of(run).load().exact
            monkeypatch.delenv(name)
            store_of(run).save(saved(step=2))
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert not store_of(run).load().exact
    finally:
        torch.set_num_threads(threads)
    assert store_of(run).load().exact

    gpu = FINGERPRINT | {"device": "cuda"}
    other = new_run(run.path.with_name("on-a-gpu"))
    store_of(other, gpu).save(saved())
    assert not store_of(other, gpu).load().exact


def test_a_ledger_lowered_or_of_another_release_does_not_fit_the_state(run):
    ledger = Ledger(Unit.IMAGE, Relation.REPLACE_ONE, path=run.ledger, owner="test")
    event = Event("laplace", Unit.IMAGE, Relation.REPLACE_ONE, 10.0)
    ledger.release([event], lambda: {"sums": torch.ones(3)}, noise=Noise.fixed(1))
    StateStore(run, FINGERPRINT, ledger).save(saved({"prepared": ledger.released()}))
    run.ledger.unlink()
    other = Ledger(Unit.IMAGE, Relation.REPLACE_ONE, path=run.ledger, owner="test")
    other.release([event], lambda: {"sums": torch.zeros(3)}, noise=Noise.fixed(2))
    with pytest.raises(InputError, match="another release"):
        store_of(run).load()


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({**FINGERPRINT, "config": "cccc"}, "config: aaaa saved, cccc now"),
        ({**FINGERPRINT, "private data": "cccc"}, "private data: bbbb saved, cccc now"),
        ({**FINGERPRINT, "code": "cccc"}, "code: nothing saved, cccc now"),
        ({"config": "aaaa"}, "private data: bbbb saved, nothing now"),
    ],
)
def test_another_fingerprint_is_refused_by_name(run, now, words):
    store_of(run).save(saved())
    with pytest.raises(InputError, match=words) as error:
        store_of(run, now).load()
    assert "start a new run" in str(error.value)


def test_a_truncated_file_is_refused(run):
    store_of(run).save(saved())
    whole = run.state.read_bytes()
    for length in range(0, len(whole), 61):
        run.state.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"Cannot resume from .*state\.pt"):
            store_of(run).load()


def test_a_flipped_bit_is_refused_wherever_it_matters(run):
    store_of(run).save(saved())
    whole, refused, unnoticed = run.state.read_bytes(), 0, 0
    rng = np.random.default_rng(5)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        run.state.write_bytes(damaged)
        unnoticed += torch_alone_reads_something_else(run.state)
        try:
            loaded = store_of(run).load()
        except InputError:
            refused += 1
        else:  # a time stamp or padding
            assert bits(loaded.method) == bits(saved().method)
    assert refused > 50
    assert unnoticed > 30  # negative control: torch.load alone does not look at the checksums


def torch_alone_reads_something_else(path):
    try:
        return bits(torch.load(path, weights_only=True)["method"]) != bits(saved().method)
    except Exception:  # noqa: BLE001  # whatever it raises, it noticed
        return False


@pytest.mark.parametrize("content", [b"", b"hello", "state of another program"])
def test_a_foreign_file_is_refused(run, content):
    if isinstance(content, bytes):
        run.state.write_bytes(content)
    else:
        torch.save({"model": content}, run.state)
    with pytest.raises(InputError, match=r"Cannot resume from .*state\.pt"):
        store_of(run).load()


def test_a_state_of_another_format_is_refused(run):
    store_of(run).save(saved())
    content = torch.load(run.state, weights_only=True)
    torch.save({**content, "format": 99}, run.state)
    with pytest.raises(InputError, match="format 99"):
        store_of(run).load()


def released(run):
    """Release sums, and save a state that goes on from them."""
    ledger = Ledger(Unit.IMAGE, Relation.REPLACE_ONE, path=run.ledger, owner="test")
    sums = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).t()
    event = Event("laplace", Unit.IMAGE, Relation.REPLACE_ONE, 10.0)
    prepared = ledger.release([event], lambda: {"sums": sums}, noise=Noise.fixed(1))
    StateStore(run, FINGERPRINT, ledger).save(saved({"w": torch.ones(1), "prepared": prepared}))
    return sums


def test_what_prepare_released_is_written_once_and_comes_back(run):
    sums = released(run)
    written = run.prepared.stat().st_mtime_ns, run.prepared.stat().st_ino
    assert "prepared" not in torch.load(run.state, weights_only=True)["method"]
    assert stat.S_IMODE(run.prepared.stat().st_mode) == 0o600
    resumed = store_of(run)
    method = resumed.load().method
    assert torch.equal(method["prepared"]["sums"], sums)
    resumed.save(saved(method))
    assert (run.prepared.stat().st_mtime_ns, run.prepared.stat().st_ino) == written
    assert store_of(run).load().method.keys() == {"w", "prepared"}


def test_what_was_not_released_by_the_ledger_is_not_saved(run):
    with pytest.raises(TypeError, match="not released by the ledger"):
        store_of(run).save(saved({"prepared": {"sums": torch.ones(3)}}))


@pytest.mark.parametrize(("damage", "words"), [("missing", "it is missing"), ("changed", "not what the ledger names")])
def test_other_prepared_sums_are_refused(run, damage, words):
    released(run)
    if damage == "missing":
        run.prepared.unlink()
    else:
        content = bytearray(run.prepared.read_bytes())
        content[-1] ^= 1
        run.prepared.write_bytes(content)
    with pytest.raises(InputError, match=words):
        store_of(run).load()


def test_nonfinite_names_the_tensors():
    state = {
        "good": torch.ones(2),
        "rng": torch.zeros(3, dtype=torch.uint8),
        "nets": {"a": torch.tensor([1.0, float("nan")]), "list": [torch.tensor(float("inf")), torch.ones(1)]},
        "number": float("nan"),
        "empty": torch.ones(0),
    }
    assert nonfinite(state) == ["nets.a", "nets.list.0"]
    assert nonfinite({"number": 1}) == []


def test_the_fingerprints_name_what_must_be_equal_and_what_decides_over_bits():
    fingerprint = run_fingerprint(config="c", private_data="d", public_data="p", device=torch.device("cpu"))
    data = {"private data": "d", "public data": "p"}
    assert fingerprint == {"config": "c", **data, "code": code_digest(), "device": "cpu"}
    machine = machine_fingerprint()
    assert machine == machine_fingerprint()
    assert machine["torch"] == torch.__version__
    assert {type(value) for value in machine.values()} == {str}  # torch's own version class could not be loaded
    products = torch.backends.mkldnn.matmul
    before = products.fp32_precision
    try:
        torch.set_float32_matmul_precision("high")
        assert machine_fingerprint() != machine
        torch.set_float32_matmul_precision("highest")  # the same as before, though torch may have called it otherwise
        assert machine_fingerprint() == machine
    finally:
        products.fp32_precision = before


def test_the_code_digest_sees_every_file(tmp_path, monkeypatch):
    package = tmp_path / "idpgan"
    (package / "training").mkdir(parents=True)
    monkeypatch.setattr("idpgan.version.__file__", str(package / "version.py"))
    digests = []
    for name, content in [("a.py", "x = 1"), ("a.py", "x = 2"), ("training/b.py", ""), ("notes.txt", "no code")]:
        (package / name).write_text(content)
        digests.append(code_digest.__wrapped__())
    assert len(set(digests)) == 3
    assert digests[2] == digests[3]
