"""Memory is asked before anything large is read, and the refusal names estimate and limit."""

import pytest
from PIL import Image

from idpgan import memory
from idpgan.data import faces, folder
from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.errors import InputError
from idpgan.memory import GIB, check_memory, free_memory
from idpgan.models import ModelConfig, build_generator
from idpgan.models.dcgan import Critic
from idpgan.models.families import critic_bytes, generator_bytes
from tests.redteam.test_files import png_of_size


def test_what_fits_passes_and_what_does_not_is_told(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 * GIB)
    check_memory(3 * GIB, "A thing", "Take less.")
    with pytest.raises(InputError, match=r"A thing would need at least 3\.5 GiB .* 3\.0 GiB are free\. Take less\."):
        check_memory(7 * GIB // 2, "A thing", "Take less.")


def test_the_smallest_limit_counts(tmp_path, monkeypatch):
    free = free_memory()
    assert 0 < free < 1 << 50
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("1000\n")
    used.write_text("400\n")
    monkeypatch.setattr(memory, "_CGROUPS", ((str(limit), str(used)),))
    assert free_memory() == 600
    limit.write_text("max\n")
    assert free_memory() > 600


def test_the_estimate_of_networks_is_what_they_have():
    model, shape = ModelConfig(width=16), (1, 28, 28)
    generator, critic = build_generator(model, shape, 10), Critic(model, shape, 10)
    assert generator_bytes(model, shape, 10) == 4 * sum(p.numel() * 4 for p in generator.parameters())
    assert critic_bytes(model, shape, 10) == sum(p.numel() * 4 for p in critic.parameters())


def test_large_images_are_refused_before_they_are_read(tmp_path, monkeypatch):
    for index in range(20):
        (tmp_path / f"{index}.png").write_bytes(png_of_size(9000, 9000))  # a few bytes that declare 81 million
    monkeypatch.setattr(memory, "free_memory", lambda device: 2 * GIB)
    monkeypatch.setattr(folder, "read_files", lambda *_: pytest.fail("read"))
    with pytest.raises(InputError, match=r"20 images .* 3\.0 GiB .* 2\.0 GiB are free"):
        describe(DataConfig(name="folder", root=tmp_path, num_images=20, image_size=9000, channels=1, classes=()))


def test_reading_asks_too(tmp_path, monkeypatch):
    for index in range(3):
        Image.new("L", (8, 8)).save(tmp_path / f"{index}.png")
    monkeypatch.setattr("idpgan.data.image_files.check_memory", memory.check_memory)
    monkeypatch.setattr(memory, "free_memory", lambda device: 100)
    with pytest.raises(InputError, match="3 images of 8 x 8"):
        load(DataConfig(name="folder", root=tmp_path, num_images=3, image_size=8, channels=1, classes=()))
    with pytest.raises(InputError, match="1,000,000 faces of 48 x 48"):
        faces.describe(DataConfig(name="faces", num_images=1_000_000))
