import pytest
import torch

from idpgan.device import check_device, resolve_device
from idpgan.errors import ConfigError


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
