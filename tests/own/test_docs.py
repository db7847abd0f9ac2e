"""The network and the renderer of docs/methods/own-generator.md work; the rest is read."""

import ast
import re
import sys
from pathlib import Path

import pytest

import idpgan
from idpgan.kinds import verify
from idpgan.release.export import export_samples
from idpgan.trainer import load_config, start

PAGE = (Path(__file__).parents[2] / "docs" / "methods" / "own-generator.md").read_text(encoding="utf-8")
FILES = dict(
    re.findall(r"^`([a-z]+\.(?:py|toml))`[^\n]*\n\n```[a-z]+\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's own folder, which no path leads to but the current one."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("mynet", "mypen"):
        sys.modules.pop(name, None)


def test_the_page_has_its_files():
    assert set(FILES) == {"mynet.py", "mynet.toml", "mypen.py", "mypen.toml"}


def test_a_network_is_trained_and_drawn_from(folder):
    config = load_config(folder / "mynet.toml", ["training.steps=3", "privacy.noise_multiplier=0.7"])
    start(config, folder / "run")
    assert verify(folder / "run").problems == ()
    manifest = export_samples(folder / "run", 10, folder / "digits.npz", seed=1, module="mynet:Linear")
    assert manifest["num"] == 10
    linear = sys.modules["mynet"].Linear
    assert idpgan.load_generator(folder / "run", module=linear).sample(2, seed=0).shape == (2, 1, 8, 8)


def test_a_renderer_is_evolved(folder):
    start(load_config(folder / "mypen.toml"), folder / "run")
    assert verify(folder / "run").problems == ()
    sys.modules.pop("mypen")
    assert idpgan.load_generator(folder / "run").sample(30, seed=0).shape == (30, 1, 8, 8)


def test_every_example_is_python():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        ast.parse(block)
