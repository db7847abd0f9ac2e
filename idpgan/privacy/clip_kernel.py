"""Scale, cut to whole numbers and sum the records' rows in one kernel, in Triton: a GPU reads each number once.

The torch form of `idpgan.privacy.layer_gradients` reads and writes every number eight times in the place of this. The
sum is one of integers of 32 bits, so it does not hang on the order in which programs add their parts. `holds` compares
both forms on the device itself before the first is used; where they differ in a bit, or Triton is not there, the torch
form stays. A CPU has it in Triton's interpreter alone, for tests.
"""

from __future__ import annotations

import functools
import sys

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS, _ROWS = 1024, 64  # of one program


@triton.jit
def _add(rows, factors, total, count, width, stride, columns: tl.constexpr, part: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    first = tl.program_id(1) * part
    inside = column < width
    added = column * 0  # int32; `tl.zeros` is a kernel of its own, compiled when Triton is imported
    for step in range(part):
        record = first + step
        factor = tl.load(factors + record, mask=record < count, other=0.0)
        number = tl.load(rows + record.to(tl.int64) * stride + column, mask=inside & (record < count), other=0.0)
        number = tl.where(factor > 0, number, 0.0)  # of a record that does not count, which may be a NaN
        added += (number * factor).to(tl.int32)  # toward zero
    tl.atomic_add(total + column, added, mask=inside)


def add_scaled(rows: Tensor, factors: Tensor, total: Tensor) -> None:
    """Add ``sum_i trunc(f_i g_i)`` to int32 (width,), for rows g_i (k, width) float32 and f_i >= 0, float32 (k,).

    Each product rounds to float32 as IEEE 754 has it and is less than 2^31, so it is the number of the torch form. A
    row of factor 0 adds zero, whatever it holds.
    """
    count, width = rows.shape
    grid = triton.cdiv(width, _COLUMNS), triton.cdiv(count, _ROWS)
    if count and width:
        with torch.cuda.device_of(rows):  # where Triton starts a kernel; nothing for the interpreter's CPU
            _add[grid](rows, factors, total, count, width, rows.stride(0), columns=_COLUMNS, part=_ROWS)


@functools.cache
def holds(device: torch.device) -> bool:
    """Tell whether the kernel gives the torch form's sums on this device, by public numbers; say on stderr if not."""
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(130, 1500, generator=draws) * torch.logspace(-40, 4, 130)[:, None]
    factors = 2.0**30 / 130 / rows.abs().amax(1).clamp(min=1e-28) * torch.rand(130, generator=draws)
    rows[3], rows[4, 7], factors[3:5] = torch.nan, torch.inf, 0.0
    whole = torch.where(factors[:, None] > 0, rows, 0.0).mul_(factors[:, None]).int()
    found = torch.zeros(1500, dtype=torch.int32, device=device)
    try:
        add_scaled(rows.to(device), factors.to(device), found)
        if torch.equal(found.cpu(), whole.sum(0, dtype=torch.int32)):
            return True
        why = "its sums differ from torch's"
    except Exception as error:  # noqa: BLE001 (Triton's compilers fail in many ways; the torch form is the proven one)
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:120]
    print(f"{device}: clipped sums go without the Triton kernel ({why}); steps are slower.", file=sys.stderr)
    return False
