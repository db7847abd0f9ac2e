"""Compute devices: the same names on the command line and in a config, checked in one place."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from idpgan.errors import ConfigError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
DEVICES = "auto, cpu, cuda, cuda:NUMBER or mps"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of `mallopt`
_INEXACT = (  # variables with which NVIDIA's libraries compute float32 or float64 by other numbers than asked for
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
)
_NAME = re.compile(r"auto|cpu|mps|cuda(:(0|[1-9]\d{0,2}))?")


def check_device(name: str, key: str = "training.device") -> str:
    """Return the name of a device, present or not; raise a `ConfigError` if the name is unknown."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{key} {name[:40]} is unknown. Known: {DEVICES}.")
    return name


def resolve_device(name: str, key: str = "training.device", *, float64: bool = True) -> torch.device:
    """Return the device that a key or an option names; "auto" is the GPU where there is one, else the CPU.

    What follows computes, so freed memory is kept from here on (`keep_freed_memory`).

    Args:
        name: One of `DEVICES`.
        float64: Whether float64 is needed there, as for sums of clipped gradients, bounds and metrics.

    Raises:
        ConfigError: If the name is unknown, the device not here, or without the precision that is needed: mps lacks
            float64, and variables of the environment can take it from a GPU.
    """
    import torch

    check_device(name, key)
    keep_freed_memory()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = ("cuda" if count else "cpu") if name == "auto" else name
    here = ["cpu", *(f"cuda:{index}" for index in range(count)), *["mps"] * torch.backends.mps.is_available()]
    if (name if name != "cuda" else "cuda:0") not in here:
        why = "torch sees no GPU here" if name.startswith("cuda") and not count else "it is not here"
        raise ConfigError(f"{key} is {name}, but {why}. This machine has {', '.join(here)}; auto takes the best.")
    if name == "mps" and float64:
        raise ConfigError(
            f"{key} is mps, which has no float64, and this computes in it: sums and bounds that privacy rests on. "
            "Take auto or cpu."
        )
    inexact = [variable for variable in _INEXACT if os.environ.get(variable, "0") not in ("", "0")]
    if name.startswith("cuda") and float64 and inexact:
        raise ConfigError(
            f"{key} is {name}, and the environment sets {inexact[0]} = {os.environ[inexact[0]][:40]}: products are "
            "then not exact where sums and bounds that privacy rests on need it. Unset it, or take cpu."
        )
    return torch.device(name)


def is_gpu(device: torch.device) -> bool:
    """Tell whether the host hands its work to another processor, and waits where it asks for an answer."""
    return device.type != "cpu"


def by_device(device: torch.device, cpu: T, gpu: T) -> T:
    """Return a size for a processor, whose caches it fits, or for a GPU, which it fills."""
    return gpu if is_gpu(device) else cpu


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU, in bytes."""
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def own_random_state(device: torch.device | str) -> AbstractContextManager[None]:
    """Keep torch's global random state: what a block draws from it, on the device too, is undone at its end."""
    import torch

    return torch.random.fork_rng(devices=[device] if is_gpu(torch.device(device)) else [])


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU on a device; a GPU takes it from page-locked memory, while the host goes on."""
    return tensor.pin_memory().to(device, non_blocking=True) if is_gpu(device) else tensor.to(device)


@functools.cache
def keep_freed_memory() -> None:
    """Tell the C library to keep memory that is freed, up to 2 GiB, where it is glibc; do nothing elsewhere.

    By default it gives the memory of a step's activations back to the system and asks for it again at the next step,
    page by page: thousands of faults, a sixth of a step's time.
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is not None and hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(_M_TRIM_THRESHOLD, (2 << 30) - 1)
