"""In which numbers the products of a record's gradient are computed: float32, or what tensor cores take.

A proof of exact steps (`idpgan.privacy.dpsgd`) asks that a row follows from its record alone, and measures the norm of
the row that is there: any numbers will do for a network's forward and backward pass. Norms, factors, rounding and sums
stay as they are. Only products are computed in fewer bits, as with autocast (Micikevicius et al. 2018, "Mixed precision
training"); what stands between them is float32, so that no other loop has other numbers in a vector than at its end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from idpgan.errors import ConfigError

Precision = Literal["float32", "tf32", "bf16"]
_AMPERE = 8, 0  # the first GPUs with TF32


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that a device does not have.

    Raises:
        ConfigError: Naming both.
    """
    gpu = device.type == "cuda"
    here = {
        "float32": True,
        "tf32": gpu and torch.cuda.get_device_capability(device) >= _AMPERE,
        "bf16": device.type == "cpu" or (gpu and torch.cuda.is_bf16_supported(including_emulation=False)),
    }
    if not here[precision]:
        known = ", ".join(name for name, has in here.items() if has)
        raise ConfigError(f'training.precision = "{precision}", which {device} does not have. It has {known}.')


@contextlib.contextmanager
def gpu_products(kind: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Compute matrix products and convolutions of float32 on a CUDA device so in the block, by one kernel a shape.

    The setting belongs to the process: of several threads the innermost block of each counts, and "ieee" wins, since
    norms are proven in it. On the CPU nothing changes.
    """
    block = object()
    with _lock:
        if not _blocks:
            _of_host[:] = _set()
        _blocks[block] = threading.get_ident(), kind
        _apply()
    try:
        yield
    finally:
        with _lock:
            del _blocks[block]
            _apply()


def _apply() -> None:
    """Set what the open blocks ask for, and what the host had set where there is none."""
    kinds = set(dict(_blocks.values()).values())  # a later block of a thread hides the earlier ones
    kind = "ieee" if "ieee" in kinds else "tf32"
    _set((kind, kind, True, False) if kinds else _of_host)  # kernels chosen by shape alone, without atomic additions


def _set(values: Sequence[Any] = ()) -> list[Any]:
    """Return the precision of products, that of convolutions, and how kernels are chosen; set them first, if given."""
    backends: Any = torch.backends  # parts of it are made at run time
    parts = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn, backends.cudnn
    named = list(zip(parts, ("fp32_precision", "fp32_precision", "deterministic", "benchmark"), strict=True))
    for (part, name), value in zip(named, values, strict=False):
        setattr(part, name, value)
    return [getattr(part, name) for part, name in named]


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute matrix products and convolutions of a CUDA device in IEEE float32 inside the block.

    A GPU's TF32 keeps 10 bits of 23: clip factors and features rounded to TF32 can exceed their norm by 2^-11.
    """
    with gpu_products("ieee"):
        yield


def products_in(precision: Precision) -> AbstractContextManager[Any]:
    """Compute the products of a network in this precision inside the block; "tf32" is a setting of the device."""
    return _InBfloat16() if precision == "bf16" else contextlib.nullcontext()


def products_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return in which numbers a product of such factors is computed here: what is multiplied out later keeps to it."""
    return torch.bfloat16 if dtype == torch.float32 and _inside.depth else dtype


class _InBfloat16(TorchFunctionMode):
    """Rounds the float32 factors of products to bfloat16, also those of their gradients, and returns float32."""

    def __enter__(self) -> Any:
        _inside.depth += 1
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        _inside.depth -= 1
        return super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        found = func(*map(_rounded, args), **{name: _rounded(part) for name, part in (kwargs or {}).items()})
        return found.float() if found.dtype == torch.bfloat16 else found


def _rounded(part: Any) -> Any:
    return part.bfloat16() if isinstance(part, torch.Tensor) and part.dtype == torch.float32 else part


@contextlib.contextmanager
def attention_by(*kernels: SDPBackend) -> Iterator[None]:
    """Attend by one of these kernels in the block. The switch belongs to the process, so threads take turns."""
    with _kernels, sdpa_kernel(list(kernels)):
        yield


class _Depth(threading.local):
    """How many blocks of bfloat16 a thread is in."""

    depth = 0


_lock, _kernels, _inside = threading.Lock(), threading.RLock(), _Depth()
_blocks, _of_host = dict[object, tuple[int, str]](), list[Any]()  # open blocks of `gpu_products`; what was set before
_PRODUCTS = {
    functional.linear,
    functional.conv2d,
    functional.conv_transpose2d,
    functional.scaled_dot_product_attention,
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.bmm,
    torch.Tensor.bmm,
}
