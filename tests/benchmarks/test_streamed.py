"""benchmarks/streamed.py: its photos are as many as asked for, all different, and drawn once; its commands exist."""

import hashlib

import streamed

from idpgan.attacks.registry import select_attacks
from idpgan.trainer import load_config


def test_photos_are_drawn_once_and_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(streamed, "POOL", 4)
    monkeypatch.setattr(streamed, "CHUNK", 2)
    streamed.draw_photos(tmp_path, 10)
    files = sorted(tmp_path.rglob("*.jpg"))
    assert sorted(int(path.stem) for path in files) == list(range(10))
    assert len({hashlib.sha256(path.read_bytes()).digest() for path in files}) == 10
    monkeypatch.setattr(streamed, "draw", None)
    streamed.draw_photos(tmp_path, 10)


def test_its_commands_are_those_of_the_package(tmp_path):
    names = [name for name, _, _ in streamed.commands(tmp_path, 100)]
    assert names == ["prepare", "gaussian", "linear", "evaluate", "attack"]
    for name, method in (("gaussian", "gaussian"), ("linear", "scattering-linear")):
        assert load_config(tmp_path / f"{name}.toml").method.name == method
    assert len(select_attacks(streamed.ATTACKS)) == len(streamed.ATTACKS)
