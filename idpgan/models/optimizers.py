"""Adam, AdamW and SGD of PyTorch without its compiler, which takes a second of every command to import.

`torch.optim` marks some methods as not to be compiled, and the first call of a marked method imports the compiler. The
classes here call the methods behind the marks (``functools.wraps`` keeps them as ``__wrapped__``): the same code, the
same bits and the same state. ``differentiable=True`` alone is not theirs: a step never records its own gradient.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch import optim


class _Unmarked(optim.Optimizer):
    """What all optimizers of PyTorch have in common."""

    add_param_group = unwrap(optim.Optimizer.add_param_group)
    zero_grad = unwrap(optim.Optimizer.zero_grad)
    state_dict = unwrap(optim.Optimizer.state_dict)
    load_state_dict = unwrap(optim.Optimizer.load_state_dict)


class Adam(_Unmarked, optim.Adam):
    """`torch.optim.Adam`."""

    step = torch.no_grad()(unwrap(optim.Adam.step))


class AdamW(_Unmarked, optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(unwrap(optim.AdamW.step))


class SGD(_Unmarked, optim.SGD):
    """`torch.optim.SGD`."""

    step = torch.no_grad()(unwrap(optim.SGD.step))
