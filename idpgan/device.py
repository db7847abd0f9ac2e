"""Compute devices by their names, how much memory is needed and free, and tensors larger than memory.

A tensor of more than `LARGEST` bytes lies in a temporary file that is mapped into memory. The system keeps in memory
what is used of it, writes the rest to the disk, and takes the pages back where memory is short. The file has no name:
nobody else opens it, and its space is free again when the tensor or the process ends, in whatever way. So no copy of a
private image outlives a command, and none can be out of date.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from idpgan.errors import ConfigError, InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


T = TypeVar("T")
DEVICES = "auto, cpu, cuda, cuda:NUMBER or mps"
_random_state, _thread_counts = threading.RLock(), threading.Lock()
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


@contextlib.contextmanager
def own_random_state(device: torch.device | str) -> Iterator[None]:
    """Keep torch's global random state: what a block draws from it, on the device too, is undone at its end.

    The state belongs to the process, so the blocks of several threads take turns.
    """
    import torch

    with _random_state, torch.random.fork_rng(devices=[device] if is_gpu(torch.device(device)) else []):
        yield


@contextlib.contextmanager
def computing_on(threads: int) -> Iterator[None]:
    """Let torch compute on so many threads in the block, see `set_threads`; then on as many as before."""
    import torch

    before = torch.get_num_threads()
    set_threads(threads)
    try:
        yield
    finally:
        if before != threads:
            set_threads(before)


def set_threads(count: int) -> None:
    """Let torch compute on so many threads where this thread calls it, and nowhere else.

    ``torch.set_num_threads`` sets the count of all threads to come as well, which would put back for good, at the end
    of a block of their own, what they had found at their birth. So that count is read, and set again, by new threads.
    """
    import torch

    with _thread_counts:
        torch.get_num_threads()  # a thread takes over the common count at its first call, in place of its own
        common = _of_new_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        if common != count:
            _of_new_thread(lambda: torch.set_num_threads(common))


def _of_new_thread(call: Callable[[], T]) -> T:
    """Return what a call returns in a thread that has done nothing else."""
    found = list[T]()
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


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


GIB = 1 << 30
LARGEST = 1 << 29  # bytes of a tensor that lies in memory: 18,000 color images of 96 x 96
_BLOCK = 1 << 24  # bytes that are copied at once
_MAPPED: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()  # by the address of its first byte
_CGROUPS = (  # memory limits of a container, cgroup version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def check_memory(needed: int, what: str, way_out: str, device: str = "cpu") -> None:
    """Refuse work that cannot fit into memory, before it begins.

    Args:
        needed: Bytes, a lower estimate.
        what: What needs them, as the subject of a sentence.
        way_out: What to do, as a sentence.

    Raises:
        InputError: If less is free.
    """
    free = free_memory(device)
    if free is not None and needed > free:
        raise InputError(
            f"{what} would need at least {needed / GIB:,.1f} GiB of memory, and {free / GIB:,.1f} GiB are free. "
            f"{way_out}"
        )


def check_room(num_bytes: int, copies: int, what: str, way_out: str) -> None:
    """Refuse tensors that fit neither into memory nor, where each has over `LARGEST` bytes, onto the disk.

    Args:
        num_bytes: Size of one tensor.
        copies: How many of them there are at once.

    Raises:
        InputError: As `check_memory`.
    """
    if num_bytes <= LARGEST:
        check_memory(copies * num_bytes, what, way_out)
        return
    folder = _scratch()
    free = shutil.disk_usage(folder).free
    if copies * num_bytes > free:
        raise InputError(
            f"{what} would need {copies * num_bytes / GIB:,.1f} GiB of disk for temporary files, and {free / GIB:,.1f} "
            f"GiB are free in {folder}. {way_out} Or set TMPDIR to a folder on a larger disk."
        )


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return zeros; on the CPU those of more than `LARGEST` bytes lie in a temporary file.

    Raises:
        InputError: If the disk has no room for them.
    """
    import numpy as np
    import torch

    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes <= LARGEST or torch.device(device).type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    try:
        with tempfile.TemporaryFile(dir=_scratch()) as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and would be a crash later
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                os.ftruncate(file.fileno(), num_bytes)
            pages = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise InputError(
            f"No temporary file of {num_bytes / GIB:,.1f} GiB can be made in {_scratch()} ({error.strerror or error}). "
            "Make room there, or set TMPDIR to a folder on a larger disk."
        ) from error
    found = torch.from_numpy(np.frombuffer(pages, np.uint8)).view(dtype).view(*shape)
    _MAPPED[found.data_ptr()] = pages
    return found


def let_go(*tensors: Tensor) -> None:
    """Give back the memory of tensors in temporary files, after a pass over all of them; what they hold stays there."""
    for tensor in tensors:
        pages = _MAPPED.get(tensor.data_ptr())
        if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Return ``rows[index]``, a copy, where `zeros` would put it; the index is int64 (B,) or bool (N,)."""
    import torch

    index = index.nonzero()[:, 0] if index.dtype == torch.bool else index
    row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
    if rows.device.type != "cpu" or len(index) * row_bytes <= LARGEST:
        return rows[index]
    copied, done = zeros((len(index), *rows.shape[1:]), rows.dtype), 0
    for part in index.split(max(1, _BLOCK // row_bytes)):
        copied[done : done + len(part)] = rows[part]
        done += len(part)
        let_go(rows, copied)
    return copied


def cat(parts: Sequence[Tensor]) -> Tensor:
    """Return ``torch.cat(parts)``, where `zeros` would put it."""
    import torch

    num_bytes = sum(part.numel() * part.element_size() for part in parts)
    if parts[0].device.type != "cpu" or num_bytes <= LARGEST:
        return torch.cat(list(parts))
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    found = torch.cat(list(parts), out=zeros(shape, parts[0].dtype))
    let_go(found, *parts)
    return found


def _scratch() -> str:
    """Return the folder of temporary files: /tmp is in memory on many systems, and /var/tmp is not."""
    return os.environ.get("TMPDIR") or ("/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir())


def free_memory(device: str = "cpu") -> int | None:
    """Return the free bytes of the machine, of its container or of the GPU; None if they are unknown."""
    if device != "cpu":
        import torch

        return free_bytes(torch.device(device))
    known = []
    with contextlib.suppress(AttributeError, ValueError, OSError):  # at least a limit, where nothing else is known
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for files in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # no container; "max" means no limit
            limit, used = (Path(name).read_text(encoding="ascii").strip() for name in files)
            known.append(max(int(limit) - int(used), 0))
    return min(known, default=None)
