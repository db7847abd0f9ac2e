"""In which numbers the products of a record's gradient are computed: float32, or what tensor cores take.

A proof of exact steps (`idpgan.privacy.dpsgd`) asks that a row follows from its record alone, and measures the norm of
the row that is there: any numbers will do for a network's forward and backward pass. Norms, factors, rounding and sums
stay as they are. Only products are computed in fewer bits, as with autocast (Micikevicius et al. 2018, "Mixed precision
training"); what stands between them is float32, so that no other loop has other numbers in a vector than at its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch.nn import functional
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

    On the CPU nothing changes.
    """
    cudnn = torch.backends.cudnn
    parts = torch.backends.cuda.matmul, cudnn.conv  # type: ignore[attr-defined]  # made at run time
    before, chosen = [part.fp32_precision for part in parts], (cudnn.deterministic, cudnn.benchmark)
    for part in parts:
        part.fp32_precision = kind
    cudnn.deterministic, cudnn.benchmark = True, False  # kernels chosen by shape alone, without atomic additions
    try:
        yield
    finally:
        for part, value in zip(parts, before, strict=True):
            part.fp32_precision = value
        cudnn.deterministic, cudnn.benchmark = chosen


def full_precision() -> AbstractContextManager[None]:
    """Compute matrix products and convolutions of a CUDA device in IEEE float32 inside the block.

    A GPU's TF32 keeps 10 bits of 23: clip factors and features rounded to TF32 can exceed their norm by 2^-11.
    """
    return gpu_products("ieee")


def products_in(precision: Precision) -> AbstractContextManager[Any]:
    """Compute the products of a network in this precision inside the block; "tf32" is a setting of the device."""
    return _InBfloat16() if precision == "bf16" else contextlib.nullcontext()


class _InBfloat16(TorchFunctionMode):
    """Rounds the float32 factors of products to bfloat16, also those of their gradients, and returns float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        found = func(*map(_rounded, args), **{name: _rounded(part) for name, part in (kwargs or {}).items()})
        return found.float() if found.dtype == torch.bfloat16 else found


def _rounded(part: Any) -> Any:
    return part.bfloat16() if isinstance(part, torch.Tensor) and part.dtype == torch.float32 else part


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
