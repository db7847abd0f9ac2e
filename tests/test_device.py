import ctypes
import subprocess
import sys

import pytest
import torch

from idpgan.device import check_device, resolve_device
from idpgan.errors import ConfigError
from idpgan.training import distributed


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def an_apple(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("name", "device"), [("auto", "cuda"), ("cuda", "cuda"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_a_device_that_is_here(name, device):
    assert resolve_device(name) == torch.device(device)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_the_gpu_of_a_process_of_torchrun_is_that_of_its_rank_on_the_machine(name, monkeypatch):
    current = []
    told = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for key, value in told.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    for function in ("init_process_group", "new_group", "destroy_process_group"):
        monkeypatch.setattr(distributed.dist, function, lambda *_, **__: None)
    with distributed.joined() as ranks:
        device = resolve_device(name)
        distributed.check_own_gpu(device, ranks)
    assert current == [1]  # what torch takes for a device without a number
    assert device.index is None  # a number would pin every process to that GPU


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_here_is_one_line_with_those_that_are():
    with pytest.raises(ConfigError, match=r"^--device is cuda:2, but .* cpu, cuda:0, cuda:1; auto takes the best\.$"):
        resolve_device("cuda:2", "--device")


@pytest.mark.usefixtures("an_apple")
def test_mps_is_for_what_needs_no_float64():
    with pytest.raises(ConfigError, match=r"mps, which has no float64.*Take auto or cpu"):
        resolve_device("mps")
    assert resolve_device("mps", float64=False) == torch.device("mps")
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "CPU", "", "cpu:0", "cuda:1\n", "tpu"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(ConfigError, match=r"is unknown\. Known: auto, cpu, cuda, cuda:NUMBER or mps"):
        check_device(name)


FAULTS = """
import resource
from idpgan import device
for prepare in (lambda: None, device.keep_freed_memory):
    prepare()
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [bytearray(8 << 20) for _ in range(10)]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_freed_memory_is_kept_for_the_next_step():
    """80 MiB have 20,480 pages; the C library gives them back by itself, and every page is a fault again."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert kept < 1_000 < 10_000 < given_back
