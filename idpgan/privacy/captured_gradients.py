r"""Per-record gradients from one backward pass that captures known layers: no weight is differentiated.

The gradient of record i in a layer's weight is ``sum_r a_r x_r^T`` over the layer's inputs x_r and the gradients a_r of
its outputs (`idpgan.privacy.layer_gradients`). Both come out of one backward pass of all records (book-keeping: Bu et
al. 2023, "Differentially private optimization on large model at small cost").

Why no use of a weight is missed (which would make a norm too small). The loss runs under ``vmap``, so a row of whatever
a layer sees belongs to one record, however often the record passes the layer. A known layer is computed with weights
that are cut from the graph, and its uses of them are captured. Every other use of a weight leads, in the graph, to the
weight itself: if any gradient arrives there, the capture is refused. It is also refused if the loss differentiates by
itself, nests another ``vmap``, or changes a captured tensor in place. `torch.func`, which knows every layer, then takes
over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch._C import _functorch
from torch.func import grad_and_value, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from idpgan.device import is_gpu
from idpgan.privacy import layer_gradients as layers
from idpgan.privacy.layer_gradients import Call, LayerGradient
from idpgan.privacy.precision import attention_by
from idpgan.privacy.tiles import Way

Weights = Mapping[str, Tensor]
RecordLoss = Callable[..., Tensor]  # (weights, the tensors of one record) -> 0-d
BatchLoss = Callable[..., Tensor]  # (network, tensors of B rows each) -> (B,), row i a function of row i alone


@dataclass(frozen=True)
class Batch:
    """Records whose clipped gradients are part of a step's sum, for Opacus.

    Attributes:
        loss: The loss of the hooked network and a chunk of ``records``, (B,).
        records: Tensors of B rows each, B >= 0.
        null: bool (B,), which records are null: they keep their rows and add nothing. None = none.
    """

    loss: BatchLoss
    records: Sequence[Tensor]
    null: Tensor | None = None


class NotCapturedError(Exception):
    """The loss does something that is not captured; `torch.func` has to differentiate it."""

    instead: Way = "vmap"


def capture(
    loss: Callable[..., Tensor], weights: Mapping[str, Tensor], records: Sequence[Tensor]
) -> tuple[dict[str, LayerGradient], Tensor]:
    """Return the gradients of every record, not yet multiplied out, by weight, and the losses (B,).

    A weight without an entry is one that the loss does not depend on. The arguments are those of
    `per_example_gradients`; B >= 1.

    Raises:
        NotCapturedError: If the loss uses a weight in another way than in ``linear``, ``conv2d``, ``group_norm``,
            ``layer_norm`` and ``embedding`` of `torch.nn.functional`.
    """
    recorder = _Recorder(weights, len(records[0]))

    def watched(*record: Tensor) -> Tensor:
        with recorder:
            return loss(recorder.leaves, *record)

    try:
        with torch.enable_grad():
            losses = vmap(watched)(*(part.detach() for part in records))
            if losses.shape != (len(records[0]),):
                raise NotCapturedError("the loss of a record is not one number.")
            recorder.differentiate(losses)
        return recorder.gradients(), losses.detach()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise NotCapturedError(str(error)) from error  # an error of the loss itself comes back from torch.func
    finally:
        recorder.outputs.clear()  # their hooks lead back here: all activations would wait for the garbage collector


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error means too little memory; on the CPU no error class of its own exists for it."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class _Recorder(TorchFunctionMode):
    """Computes known layers with cut weights, and keeps their inputs and output gradients.

    Attributes:
        leaves: The weights that the loss gets. No gradient may arrive there.
    """

    def __init__(self, weights: Mapping[str, Tensor], batch: int) -> None:
        super().__init__()
        self._batch = batch
        # What follows a weight needs a gradient, so that its layer has one; those of the cut ones are never computed.
        self.leaves, self._cut = ({n: w.detach().requires_grad_() for n, w in weights.items()} for _ in range(2))
        self._names = {id(leaf): name for name, leaf in self.leaves.items()}
        self._calls: dict[str, list[Call]] = {}
        self.outputs: list[tuple[Tensor, int, list[Call]]] = []  # with its version
        self._final = False  # a gradient requested before the one backward pass belongs to the loss itself

    def __enter__(self) -> Self:
        self._level = _functorch.maybe_current_level() or 0  # of the vmap over the records
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _SHAPES and args and args[0].dim() > 2:  # its gradient comes back in another order of memory
            return func(self.watch(args[0], args[0]).contiguous(), *args[1:], **(kwargs or {}))
        if func is functional.scaled_dot_product_attention:
            return _attention(self, *args, **(kwargs or {}))
        layer = _LAYERS.get(func)
        ours = func is functional.group_norm or self.has(*args, *(kwargs or {}).values())
        if layer is None or not ours:
            return func(*args, **(kwargs or {}))
        return layer(self, *args, **(kwargs or {}))

    def has(self, *parts: Any) -> bool:
        """Tell whether a weight is among these."""
        return any(id(part) in self._names for part in parts)

    def cut(self, weight: Any) -> Any:
        """Return a weight cut from its leaf; return anything but a weight unchanged."""
        return self._cut[self._names[id(weight)]] if id(weight) in self._names else weight

    def watch(self, inputs: Tensor, output: Tensor, *calls: tuple[Tensor | None, Call]) -> Tensor:
        """Return the output; record its inputs and, later, its gradient as a call of the weight."""
        inputs, output = self.of_all(inputs), self.of_all(output)
        own = [(weight, call) for weight, call in calls if id(weight) in self._names]  # the others may be frozen
        for weight, call in own:
            call.keep(inputs.detach())
            self._calls.setdefault(self._names[id(weight)], []).append(call)
        if output.requires_grad:
            output.register_hook(functools.partial(self._arrived, output.stride()))
            if own:
                self.outputs.append((output, output._version, [call for _, call in own]))
        return self.of_one(output)

    def of_one(self, part: Tensor) -> Tensor:
        """Return what the vmap shows of a tensor of all records, (B, ...)."""
        return _functorch._add_batch_dim(part, 0, self._level)

    def of_all(self, part: Tensor) -> Tensor:
        """Return the plain tensor of all records, (B, ...), of what the vmap shows of one record."""
        found, dim = _functorch._unwrap_batched(part, self._level)
        if _functorch.maybe_current_level() != self._level or _functorch.is_functorch_wrapped_tensor(found):
            raise NotCapturedError("another vmap, or a gradient, is inside of the loss or around it.")
        return found.expand(self._batch, *found.shape).contiguous() if dim is None else found.movedim(dim, 0)

    def _arrived(self, strides: tuple[int, ...], gradient: Tensor) -> Tensor:
        """Return an output's gradient in the output's order of memory, in which all that follows is faster."""
        if not self._final or torch.is_grad_enabled():
            raise NotCapturedError("the loss differentiates by itself.")
        if gradient.stride() == strides:
            return gradient
        return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)

    def differentiate(self, losses: Tensor) -> None:
        """Give all calls the gradients of their outputs, by one backward pass."""
        if not losses.requires_grad:
            return
        if any(output._version != version for output, version, _ in self.outputs):  # it is another node of the graph
            raise NotCapturedError("an output was changed in place.")
        self._final = True
        outputs = [output for output, *_ in self.outputs]
        found = torch.autograd.grad(losses.sum(), [*outputs, *self.leaves.values()], allow_unused=True)
        if any(part is not None for part in found[len(outputs) :]):
            raise NotCapturedError("a weight is used outside the known layers.")
        for (*_, calls), gradient in zip(self.outputs, found, strict=False):
            for call in calls if gradient is not None else ():
                call.arrive(gradient)

    def gradients(self) -> dict[str, LayerGradient]:
        """Return what was captured, by weight; outputs that the losses do not depend on are left out."""
        found = {}
        for name, calls in self._calls.items():
            if any(type(call) is not type(calls[0]) for call in calls) or any(call.changed for call in calls):
                raise NotCapturedError("a weight is in layers of two kinds, or an input was changed in place.")
            used = [call for call in calls if call.arrived]
            if used:
                found[name] = used[0].gradient_of(used, self.leaves[name])
                if found[name].shape != self.leaves[name].shape:
                    raise NotCapturedError("a weight is broadcast.")
        return found


def channels_last(images: Tensor) -> Tensor:
    """Return the same numbers, (..., C, H, W), in the memory order (..., H, W, C)."""
    return images.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def _linear(recorder: _Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    if weight.dim() != 2 or not weight.numel():
        raise NotCapturedError("a linear layer whose weight is not a matrix, or an empty one.")
    output = functional.linear(input, recorder.cut(weight), recorder.cut(bias))
    return recorder.watch(input, output, (weight, layers.LinearCall()), (bias, layers.AffineCall()))


def _conv2d(
    recorder: _Recorder,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str):
        raise NotCapturedError("a convolution whose padding has a name.")
    input = input.movedim(-3, -1).contiguous().movedim(-1, -3)  # noqa: A001
    last = channels_last(recorder.cut(weight))
    output = functional.conv2d(input, last, recorder.cut(bias), stride, padding, dilation, groups)
    pairs = [(each, each) if isinstance(each, int) else (each * 2)[:2] for each in (stride, padding, dilation)]
    call = layers.ConvolutionCall(weight.shape[2:], [(int(down), int(across)) for down, across in pairs], groups)
    return recorder.watch(input, output, (weight, call), (bias, layers.AffineCall(trailing=2)))


def _group_norm(
    recorder: _Recorder,
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    images = recorder.of_all(input)  # in any order of memory, which torch does not do under vmap
    if not recorder.has(weight, bias):
        normal = functional.group_norm(images.flatten(0, 1), num_groups, weight, bias, eps)
        return recorder.of_one(normal.unflatten(0, images.shape[:2]))
    normal = functional.group_norm(images.flatten(0, 1), num_groups, None, None, eps)
    normal = recorder.of_one(normal.unflatten(0, images.shape[:2]))
    return _affine(recorder, normal, weight, bias, normal.dim() - 2)


def _layer_norm(
    recorder: _Recorder,
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _affine(recorder, functional.layer_norm(input, normalized_shape, None, None, eps), weight, bias, 0)


def _attention(recorder: _Recorder, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
    """Attend by a processor's fused kernel, which `vmap` does not find: no table of all pairs is kept for each record.

    A GPU's kernels add up gradients in an order that is not fixed.
    """
    plain = not args and options.get("attn_mask") is None and not options.get("dropout_p")
    if not plain or is_gpu(query.device) or query.dim() != 4:
        return functional.scaled_dot_product_attention(query, key, value, *args, **options)
    parts = [recorder.of_all(part) for part in (query, key, value)]
    with attention_by(SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        q, k, v = (part.flatten(0, 1) for part in parts)
        found = functional.scaled_dot_product_attention(q, k, v, **options)
    return recorder.of_one(found.unflatten(0, parts[0].shape[:2]))


def _affine(recorder: _Recorder, normal: Tensor, weight: Tensor | None, bias: Tensor | None, trailing: int) -> Tensor:
    """Scale and shift what was normalized; ``trailing`` dimensions follow those of weight and bias."""
    scale, shift = (
        part if part is None else recorder.cut(part).view(*part.shape, *[1] * trailing) for part in (weight, bias)
    )
    output = normal if scale is None else normal * scale
    output = output if shift is None else output + shift
    return recorder.watch(
        normal, output, (weight, layers.AffineCall(trailing, scales=True)), (bias, layers.AffineCall(trailing))
    )


def _embedding(
    recorder: _Recorder,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if padding_idx is not None or max_norm is not None or scale_grad_by_freq or sparse:
        raise NotCapturedError("an embedding with options.")
    output = functional.embedding(input, recorder.cut(weight))
    return recorder.watch(input, output, (weight, layers.EmbeddingCall()))


_SHAPES = torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape, Tensor.view
_LAYERS: dict[Any, Callable[..., Tensor]] = {
    functional.linear: _linear,
    functional.conv2d: _conv2d,
    functional.group_norm: _group_norm,
    functional.layer_norm: _layer_norm,
    functional.embedding: _embedding,
}


def per_example_gradients(
    loss: RecordLoss, weights: Weights, records: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """Differentiate a loss for every record on its own: gradients, (B, *shape) each, and losses, (B,).

    Args:
        loss: Called as ``loss(weights, *record)``; may itself differentiate with `torch.func.grad`.
        weights: What is differentiated for; not changed.
        records: Tensors of B rows each, B >= 0.
    """
    weights = {name: weight.detach() for name, weight in weights.items()}
    if not len(records[0]):
        some = next(iter(weights.values()))
        return {name: weight.new_zeros(0, *weight.shape) for name, weight in weights.items()}, some.new_zeros(0)
    in_dims = (None, *[0] * len(records))
    gradients, losses = vmap(grad_and_value(loss), in_dims=in_dims)(weights, *records)
    return gradients, losses


def record_gradients(
    loss: RecordLoss, weights: Weights, records: Sequence[Tensor], way: Way
) -> tuple[Mapping[str, LayerGradient], Tensor]:
    """Return the gradients of every record by weight, in a form that can be clipped and summed, and the losses (B,).

    Raises:
        NotCapturedError: If the way is not "vmap" and the loss cannot be captured.
    """
    if way != "vmap" and len(records[0]):
        return capture(loss, weights, records)
    gradients, losses = per_example_gradients(loss, weights, records)
    return {name: layers.Materialized(gradient) for name, gradient in gradients.items()}, losses
