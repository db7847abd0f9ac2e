"""How much memory is needed and how much is free: asked before anything large is read or charged."""

from __future__ import annotations

import os
from pathlib import Path

from idpgan.errors import InputError

GIB = 1 << 30
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


def free_memory(device: str = "cpu") -> int | None:
    """Return the free bytes of the machine, of its container or of the GPU; None if they are unknown."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    known = [number for number in (_free_of_machine(), *map(_free_of_container, _CGROUPS)) if number is not None]
    return min(known, default=None)


def _free_of_machine() -> int | None:
    """Return what Linux calls available; on other systems all memory of the machine, which is at least a limit."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _free_of_container(files: tuple[str, str]) -> int | None:
    """Return what a container's limit leaves; None without one."""
    try:
        limit, used = (Path(name).read_text(encoding="ascii").strip() for name in files)
        return max(int(limit) - int(used), 0)
    except (OSError, ValueError):  # "max" means no limit
        return None
