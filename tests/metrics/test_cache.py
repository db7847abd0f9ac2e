import stat

import pytest
import torch

from idpgan.errors import InputError
from idpgan.metrics.cache import Cache, default_folder


def compute(value, calls):
    def run():
        calls.append(value)
        return {"value": torch.tensor([value])}

    return run


def test_what_is_known_is_not_computed_again(tmp_path):
    calls = []
    for _ in range(2):  # a new object reads what an old one wrote
        assert Cache(tmp_path / "new").get("thing", {"a": 1, "b": [2]}, compute(7, calls))["value"].item() == 7
    assert Cache(tmp_path / "new").get("thing", {"b": [2], "a": 1}, compute(8, calls))["value"].item() == 7
    assert calls == [7]


def test_another_key_is_another_entry(tmp_path):
    calls = []
    cache = Cache(tmp_path)
    for kind, key in (("thing", {"a": 1}), ("thing", {"a": 2}), ("other", {"a": 1})):
        cache.get(kind, key, compute(len(calls), calls))
    assert calls == [0, 1, 2]


def test_without_a_folder_nothing_is_kept():
    calls = []
    for _ in range(2):
        Cache(None).get("thing", {}, compute(1, calls))
    assert calls == [1, 1]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_file_is_computed_again_and_mended(tmp_path, damage):
    calls, cache = [], Cache(tmp_path)
    cache.get("thing", {}, compute(1, calls))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    for _ in range(2):
        assert cache.get("thing", {}, compute(1, calls))["value"].item() == 1
    assert calls == [1, 1]


def test_only_the_curator_can_read_it(tmp_path):
    Cache(tmp_path / "new").get("thing", {}, compute(1, []))
    (path,) = (tmp_path / "new").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) & 0o077 == 0


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cache folder .*file/below .* IDPGAN_CACHE"):
        Cache(tmp_path / "file" / "below").get("thing", {}, compute(1, []))


def test_the_default_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("IDPGAN_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("IDPGAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "idpgan"
