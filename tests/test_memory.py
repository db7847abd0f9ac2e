"""Memory is asked before anything large is read, and the refusal names estimate and limit."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from idpgan import device
from idpgan.data import sources
from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.data.sources import folder
from idpgan.device import GIB, check_memory, free_memory
from idpgan.errors import InputError
from idpgan.models import ModelConfig, build_generator
from idpgan.models.checkpoint import critic_sizes, generator_bytes
from idpgan.models.dcgan import Critic
from tests.redteam.test_files import png_of_size


def test_what_fits_passes_and_what_does_not_is_told(monkeypatch):
    monkeypatch.setattr(device, "free_memory", lambda device: 3 * GIB)
    check_memory(3 * GIB, "A thing", "Take less.")
    with pytest.raises(InputError, match=r"A thing would need at least 3\.5 GiB .* 3\.0 GiB are free\. Take less\."):
        check_memory(7 * GIB // 2, "A thing", "Take less.")


def test_the_smallest_limit_counts(tmp_path, monkeypatch):
    free = free_memory()
    assert 0 < free < 1 << 50
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("1000\n")
    used.write_text("400\n")
    monkeypatch.setattr(device, "_CGROUPS", ((str(limit), str(used)),))
    assert free_memory() == 600
    limit.write_text("max\n")
    assert free_memory() > 600


def test_the_estimate_of_networks_is_what_they_have():
    model, shape = ModelConfig(width=16), (1, 28, 28)
    generator, critic = build_generator(model, shape, 10), Critic(model, shape, 10)
    assert generator_bytes(model, shape, 10) == 4 * sum(p.numel() * 4 for p in generator.parameters())
    assert critic_sizes(model, shape, 10) == [p.numel() for p in critic.parameters()]


def test_large_images_are_refused_before_they_are_read(tmp_path, monkeypatch):
    for index in range(20):
        (tmp_path / f"{index}.png").write_bytes(png_of_size(9000, 9000))  # a few bytes that declare 81 million
    monkeypatch.setattr(device, "free_memory", lambda device: GIB // 2)
    monkeypatch.setattr(device.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2 * GIB))
    monkeypatch.setattr(folder, "read_files", lambda *_: pytest.fail("read"))
    large = DataConfig(name="folder", root=tmp_path, num_images=20, image_size=9000, channels=1, classes=())
    with pytest.raises(InputError, match=r"20 images .* 3\.0 GiB of disk .* 2\.0 GiB are free .* TMPDIR"):
        describe(large)
    monkeypatch.setattr(device, "LARGEST", 2 * GIB)  # in memory
    with pytest.raises(InputError, match=r"20 images .* 3\.0 GiB of memory, and 0\.5 GiB are free"):
        describe(large)


def test_reading_asks_too(tmp_path, monkeypatch):
    for index in range(3):
        Image.new("L", (8, 8)).save(tmp_path / f"{index}.png")
    monkeypatch.setattr(device, "free_memory", lambda device: 100)
    with pytest.raises(InputError, match="3 images of 8 x 8"):
        load(DataConfig(name="folder", root=tmp_path, num_images=3, image_size=8, channels=1, classes=()))
    monkeypatch.setattr(device.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(InputError, match="1,000,000 faces of 48 x 48"):
        sources.find(DataConfig(name="faces", num_images=1_000_000))


# Tensors larger than memory ---------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder of temporary files, where every tensor goes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(device, "LARGEST", 0)
    return folder


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64, torch.bool])
def test_a_tensor_in_a_file_is_like_one_in_memory(scratch, dtype, monkeypatch):
    found = device.zeros((3, 4, 2), dtype)
    assert torch.equal(found, torch.zeros(3, 4, 2, dtype=dtype))
    monkeypatch.setattr(device, "_BLOCK", 16)  # one row or two at a time
    rows = torch.randint(2, (7, 4, 2)).to(dtype)
    for index in (torch.tensor([6, 0, 0, 3]), rows[:, 0, 0].bool(), torch.arange(0)):
        taken = device.take(rows, index)
        assert torch.equal(taken, rows[index])
        assert taken.is_contiguous()
    assert torch.equal(device.cat([rows, rows[:2], rows[:0]]), torch.cat([rows, rows[:2], rows[:0]]))
    found[1] = 1
    assert int(found.sum()) == 8  # it can be written


def test_the_file_has_no_name_and_its_space_is_given_back(scratch):
    found = device.zeros((4, 1 << 20), torch.uint8)
    assert list(scratch.iterdir()) == []
    assert open_files(scratch) == 1  # the negative control: it is on that disk
    del found
    assert open_files(scratch) == 0


def test_what_is_let_go_is_on_disk_and_not_in_memory(scratch):
    found, own = device.zeros((4, 1 << 22), torch.uint8), torch.ones(1 << 22)
    found.copy_(torch.arange(1, 5)[:, None])
    assert in_memory(scratch) == 16 << 20
    device.let_go(own, found)
    assert in_memory(scratch) == 0
    assert own.all()  # a tensor in memory is left alone
    assert found.view(4, -1).double().mean(1).tolist() == [1, 2, 3, 4]
    device.let_go(found[:2])  # a view of the first rows lies at the same address
    assert in_memory(scratch) == 0


def in_memory(folder):
    """Bytes of a folder's mapped files that are resident."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [index for index, line in enumerate(lines) if str(folder) in line]
    resident = (next(line for line in lines[start:] if line.startswith("Rss:")) for start in starts)
    return sum(int(line.split()[1]) << 10 for line in resident)


def open_files(folder):
    """How many mapped files of this process lie in a folder."""
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_full_disk_is_one_line(scratch, monkeypatch):
    def full(descriptor, start, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"No temporary file of 2\.0 GiB .*No space left on device.*TMPDIR"):
        device.zeros((2, GIB), torch.uint8)
    monkeypatch.setenv("TMPDIR", str(scratch / "gone"))
    with pytest.raises(InputError, match=r"gone \(No such file"):
        device.zeros((2,), torch.uint8)
