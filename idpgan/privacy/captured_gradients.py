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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from idpgan.privacy.layer_gradients import (
    AffineCall,
    Call,
    ConvolutionCall,
    EmbeddingCall,
    LayerGradient,
    LinearCall,
    Materialized,
)
from idpgan.privacy.tiles import Way

Weights = Mapping[str, Tensor]
RecordLoss = Callable[..., Tensor]  # (weights, the tensors of one record) -> 0-d
BatchLoss = Callable[..., Tensor]  # (network, tensors of B rows each) -> (B,), row i a function of row i alone


@dataclass(frozen=True)
class Batch:
    """Records whose clipped gradients are part of a step's sum, for Opacus.

    Attributes:
        loss: Of the hooked network and a chunk of ``records``, (B,).
        records: Tensors of B rows each, B >= 0.
        null: bool (B,), which records are null: they keep their rows and add nothing. None = none.
    """

    loss: BatchLoss
    records: Sequence[Tensor]
    null: Tensor | None = None


class NotCapturedError(Exception):
    """The loss does something that is not captured; `torch.func` has to differentiate it."""


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
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    anchor = torch.zeros(len(records[0]), device=records[0].device, requires_grad=True)
    recorder = _Recorder(leaves)

    def watched(anchor: Tensor, *record: Tensor) -> Tensor:
        recorder.anchor = anchor
        with recorder:
            return loss(leaves, *record)

    try:
        with torch.enable_grad():
            losses = vmap(watched)(anchor, *(part.detach() for part in records))
            if losses.shape != anchor.shape:
                raise NotCapturedError("the loss of a record is not one number.")
            if losses.requires_grad:
                recorder.phase.final = True
                _, *rest = torch.autograd.grad(losses.sum(), [anchor, *leaves.values()], allow_unused=True)
                if any(part is not None for part in rest):
                    raise NotCapturedError("a weight is used outside the known layers.")
        return recorder.gradients(), losses.detach()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise NotCapturedError(str(error)) from error  # an error of the loss itself comes back from torch.func


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error means too little memory; on the CPU no error class of its own exists for it."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class _Phase:
    """Whether the one backward pass has begun: a gradient requested earlier belongs to the loss itself."""

    final = False


class _Recorder(TorchFunctionMode):
    """Computes known layers with cut weights, and keeps their inputs and output gradients.

    Attributes:
        anchor: (B,) inside ``vmap``: tells its level from others, and needs a gradient, so that all that follows does.
        phase: Of the capture.
    """

    def __init__(self, leaves: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.anchor, self.phase = torch.zeros(0), _Phase()
        self._names = {id(leaf): name for name, leaf in leaves.items()}
        self._leaves = leaves
        self._calls: dict[str, list[Call]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.flatten, Tensor.flatten) and args[0].dim() > 3:
            x, *args = args
            return func(self.watch(x, x), *args, **(kwargs or {}))
        layer = _LAYERS.get(func)
        if layer is None or not any(id(part) in self._names for part in (*args, *(kwargs or {}).values())):
            return func(*args, **(kwargs or {}))
        return layer(self, *args, **(kwargs or {}))

    def cut(self, weight: Any) -> Any:
        """Return a weight detached from the graph; return anything but a weight unchanged."""
        return weight.detach() if id(weight) in self._names else weight

    def watch(self, inputs: Tensor, output: Tensor, *calls: tuple[Tensor | None, Call]) -> Tensor:
        """Return the output; record its inputs and, later, its gradient as a call of the weight."""
        for weight, call in calls:
            if id(weight) in self._names:
                self._calls.setdefault(self._names[id(weight)], []).append(call)
        watched: Tensor = _Watch.apply(self.anchor, inputs, output, self.phase, [call for _, call in calls])
        return watched

    def gradients(self) -> dict[str, LayerGradient]:
        """Return what was captured, by weight; outputs that the losses do not depend on are left out."""
        found = {}
        for name, calls in self._calls.items():
            if any(type(call) is not type(calls[0]) for call in calls) or any(call.changed for call in calls):
                raise NotCapturedError("a weight is in layers of two kinds, or an input was changed in place.")
            used = [call for call in calls if call.arrived]
            if used:
                found[name] = used[0].gradient_of(used, self._leaves[name])
                if found[name].shape != self._leaves[name].shape:
                    raise NotCapturedError("a weight is broadcast.")
        return found


class _Watch(torch.autograd.Function):
    """Shows the recorder the plain tensors of all records under the one ``vmap`` around the loss."""

    @staticmethod
    def forward(*_: Any) -> NoReturn:
        raise NotCapturedError("a layer ran outside the recorder's vmap.")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing; functorch requires this method."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, anchor: Tensor, inputs: Tensor, output: Tensor, phase: _Phase, calls: list[Call]
    ) -> tuple[Tensor, int]:
        if in_dims[0] is None:
            raise NotCapturedError("another vmap is nested in the loss.")
        inputs, output = (
            part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in ((inputs, in_dims[1]), (output, in_dims[2]))
        )
        for call in calls:
            call.keep(inputs.detach())
        return _Tap.apply(output, anchor, phase, calls), 0

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise NotCapturedError("the loss differentiates by itself.")

    jvp = backward


class _Tap(torch.autograd.Function):
    """Passes a tensor through, and hands its gradient to the calls."""

    @staticmethod
    def forward(output: Tensor, anchor: Tensor, phase: _Phase, calls: list[Call]) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.phase, ctx.calls = inputs[2:]
        ctx.strides = output.stride()

    @staticmethod
    def vmap(*_: Any) -> NoReturn:
        raise NotCapturedError("another vmap is around the recorder's.")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        if not ctx.phase.final or torch.is_grad_enabled():
            raise NotCapturedError("the loss differentiates by itself.")
        if gradient.stride() != ctx.strides:
            gradient = torch.empty_strided(gradient.shape, ctx.strides, dtype=gradient.dtype, device=gradient.device).copy_(gradient)
        for call in ctx.calls:
            call.arrive(gradient)
        return gradient if ctx.needs_input_grad[0] else None, None, None, None


def channels_last(images: Tensor) -> Tensor:
    """Return the same numbers, (..., C, H, W), in the memory order (..., H, W, C)."""
    return images.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def _linear(recorder: _Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    if weight.dim() != 2 or not weight.numel():
        raise NotCapturedError("a linear layer whose weight is not a matrix, or an empty one.")
    output = functional.linear(input, recorder.cut(weight), recorder.cut(bias))
    return recorder.watch(input, output, (weight, LinearCall()), (bias, AffineCall()))


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
    call = ConvolutionCall(weight.shape[2:], [(int(down), int(across)) for down, across in pairs], groups)
    return recorder.watch(input, output, (weight, call), (bias, AffineCall(trailing=2)))


def _group_norm(
    recorder: _Recorder,
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    normal = functional.group_norm(input, num_groups, None, None, eps)
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


def _affine(recorder: _Recorder, normal: Tensor, weight: Tensor | None, bias: Tensor | None, trailing: int) -> Tensor:
    """Scale and shift what was normalized; ``trailing`` dimensions follow those of weight and bias."""
    scale, shift = (
        part if part is None else recorder.cut(part).view(*part.shape, *[1] * trailing) for part in (weight, bias)
    )
    output = normal if scale is None else normal * scale
    output = output if shift is None else output + shift
    return recorder.watch(normal, output, (weight, AffineCall(trailing, scales=True)), (bias, AffineCall(trailing)))


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
    return recorder.watch(input, output, (weight, EmbeddingCall()))


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
        NotCapturedError: If the way is "capture" and the loss cannot be captured.
    """
    if way == "capture" and len(records[0]):
        return capture(loss, weights, records)
    gradients, losses = per_example_gradients(loss, weights, records)
    return {name: Materialized(gradient) for name, gradient in gradients.items()}, losses
