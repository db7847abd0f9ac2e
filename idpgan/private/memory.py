"""How much memory a step takes, and so how many records' gradients may be in memory at once.

A processor's system promises more memory than it has, so `fitting` extrapolates from steps of one record and of two.
For a GPU `forecast` says it before a run, by public numbers alone: the method is built on torch's meta device, whose
tensors have sizes and no numbers, and takes a step there. Counted are the bytes of all tensors that live at once, of
weights, activations, gradients of records, their sum and its noise; not workspaces of libraries, nor fragments.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from idpgan import methods
from idpgan.data.images import Images
from idpgan.data.load import GPU_SHARE, DataShape, Split
from idpgan.device import GIB, free_bytes, free_memory, resolve_device
from idpgan.errors import InputError
from idpgan.models.initialize import without_weights
from idpgan.own_code import is_own_code
from idpgan.privacy import Ledger, Noise
from idpgan.privacy.tiles import rows_at_once, sizes
from idpgan.training.plan import RunPlan

_META, _GPU = torch.device("meta"), torch.device("cuda")
_USABLE = 0.8  # of the free memory: libraries have buffers of their own, and freed memory lies in pieces


@dataclass(frozen=True)
class Forecast:
    """What the steps of a run will take of a GPU's memory.

    Attributes:
        at_once: Records whose gradients are in memory at once; see also ``asked``.
        asked: So many would be, were there memory enough.
        needed: Bytes of a step, with all that the run keeps.
        free: Bytes.
    """

    at_once: int
    asked: int
    needed: int
    free: int

    def __str__(self) -> str:
        fewer = f", and not {self.asked:,}, for which the memory is short" if self.at_once < self.asked else ""
        return (
            f"Gradients of {self.at_once:,} records are in memory at once{fewer}: a step takes about "
            f"{self.needed / GIB:,.3g} of {self.free / GIB:,.3g} GiB that are free."
        )


def forecast(plan: RunPlan) -> Forecast | None:
    """Return what the steps of a run on CUDA will take; None where no step has gradients of records, or none is known.

    Raises:
        InputError: If not even the gradient of one record fits.
    """
    config, device = plan.config, resolve_device(plan.config.training.device)
    foreign = is_own_code(config.model.generator) or is_own_code(config.model.critic) or config.model.pipeline
    steps = hasattr(methods.load(plan.row.name).Method, "trial") and getattr(config.method, "engine", "") != "opacus"
    if device.type != "cuda" or foreign or not steps:
        return None
    try:
        return forecast_in(plan, free_bytes(device))
    except (RuntimeError, NotImplementedError):  # an operation without sizes: a trial on the device decides
        return None


def forecast_in(plan: Any, free: int) -> Forecast:
    """Return the forecast for so many free bytes; see `forecast`."""
    rate, num = plan.dpsgd.sample_rate, plan.shape.num_private
    images = num * math.prod(plan.shape.image_shape)
    images = images if images <= GPU_SHARE * free else 0  # else they stay where they are
    at_once = asked = sizes(rate, num, rows_at_once(plan.config.method, _GPU), _GPU)[1]
    block = max(1, min(1024, GIB // (4 * _weights(plan))))  # of records that share memory
    many = _line(lambda some: step_bytes(plan, some), 2 * block, 4 * block) if at_once > 4 * block else None

    def bytes_of(some: int) -> int:  # a step of many blocks takes a minute, even without numbers
        return images + (step_bytes(plan, some) if many is None or some <= 4 * block else many(some))

    while at_once > 1 and bytes_of(at_once) > _USABLE * free:
        at_once = sizes(rate, num, at_once // 2, _GPU)[1]
    needed = bytes_of(at_once)
    if needed > _USABLE * free:
        raise InputError(
            f"a step of {plan.row.name} would need about {needed / GIB:,.3g} GiB with the gradient of a single record, "
            f"and {free / GIB:,.3g} GiB are free, of which {_USABLE:.0%} can be used. Take a smaller network, smaller "
            "images or a larger GPU."
        )
    return Forecast(at_once, asked, needed, free)


def step_bytes(plan: RunPlan, num: int) -> int:
    """Return the most bytes that live at once where a method is made and takes a step on so many random records."""
    return most_bytes(lambda: _made(plan).trial(num))


def _weights(plan: RunPlan) -> int:
    """Return how many numbers the steps move."""
    return sum(weight.numel() for weight in _made(plan).weights().values())


def _made(plan: RunPlan) -> Any:
    """Return the method of a plan without numbers."""
    none, some = _blank(plan.shape, 0), _blank(plan.shape, 1)
    split, ledger = Split(some, some, none, none), Ledger(plan.unit, plan.relation)
    with without_weights():
        return methods.load(plan.row.name).Method(plan, split, ledger=ledger, device=_META, noise=Noise.fixed(0))


def _blank(shape: DataShape, num: int) -> Images:
    """Return so many images without numbers."""
    labels = torch.zeros(num, dtype=torch.int64, device=_META) if shape.classes else None
    pixels = torch.zeros(num, *shape.image_shape, dtype=torch.uint8, device=_META)
    return Images(pixels, labels=labels, classes=shape.classes)


def fitting(most: int, step: Callable[[int], object], device: torch.device) -> int:
    """Return how many records' gradients the free memory will hold at once by forecast: ``most``, or half, and so on.

    The forecast is from steps of one record and of two, which any machine holds. A processor's system promises more
    memory than it has, and ends the process that uses it: a chunk that is too large is no error that could be caught,
    as it is on a GPU.

    Args:
        most: At least 1.
        step: Computes the gradients of so many records.
    """
    free = free_memory(str(device))
    if free is None or most == 1:
        return most
    bytes_of = _line(lambda num: most_bytes(lambda: step(num)), 1, 2)
    while most > 1 and bytes_of(most) > _USABLE * free:
        most //= 2
    return most


def _line(bytes_of: Callable[[int], int], few: int, more: int) -> Callable[[int], int]:
    """Return the bytes of any number of records along the line through two of them.

    Memory grows along a line at most: what grows slower is shared by a block of records.
    """
    least, most = bytes_of(few), bytes_of(more)
    return lambda num: least + (num - few) * max(most - least, 0) // (more - few)


def most_bytes(call: Callable[[], object]) -> int:
    """Return the most bytes of new tensors that there are at once while a function is called."""
    with _Allocated() as seen:
        call()
    return seen.most


class _Allocated(TorchDispatchMode):
    """Counts the memory of tensors that operations return, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self._living: dict[int, int] = {}
        self._now = self.most = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no, since the mark for PyTorch's compiler imports it at the first call, which takes a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._living:
                self._living[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                self.most = max(self.most, self._now)
                weakref.finalize(storage, self._freed, storage._cdata)
        return made

    def _freed(self, storage: int) -> None:
        self._now -= self._living.pop(storage)
