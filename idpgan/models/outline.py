"""Networks whose code is not in a release: the names, types and shapes of their weights, and what needs no code."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.own import OwnGenerator
from idpgan.models.validate import validate_generator
from idpgan.own_code import resolve

_TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8,
                 torch.int8, torch.int16, torch.int32, torch.int64)
}  # fmt: skip
NETWORK = "network."  # of the weights in their file, as `OwnGenerator` has them
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", re.ASCII)
_MOST_TENSORS, _MOST_NUMBERS, _MOST_SIDES, _LONGEST_NAME = 10_000, 1 << 34, 8, 300


def outline_of(tensors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Return the type and the shape of every tensor of a state dict, by name: ["float32", 64, 3, 3]."""
    return {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in tensors.items()}


def outlined(described: Any) -> dict[str, Tensor]:
    """Return tensors without content, on torch's meta device, of what `outline_of` returned; it is untrusted input.

    Raises:
        InputError: If it is anything else.
    """
    if not isinstance(described, dict) or not 1 <= len(described) <= _MOST_TENSORS:
        raise InputError(f"tensors must be a table of 1 to {_MOST_TENSORS:,} names.")
    tensors, left = {}, _MOST_NUMBERS
    for name, entry in described.items():
        kind, shape = (entry[0], entry[1:]) if isinstance(entry, list) and entry else (None, [])
        fits = len(shape) <= _MOST_SIDES and all(type(side) is int and 0 <= side <= left for side in shape)
        if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name) or kind not in list(_TYPES) or not fits:
            raise InputError(f'tensors: {name[:80]!a} has no type and shape like ["float32", 64, 3, 3].')
        left -= math.prod(shape)
        if left < 0:
            raise InputError(f"tensors: they hold more than {_MOST_NUMBERS:,} numbers.")
        tensors[name] = torch.empty(shape, dtype=_TYPES[kind], device="meta")
    return tensors


class GeneratorOutline(Generator):
    """A generator of a release whose network is somebody else's code: its weights, which draw nothing by themselves.

    Args:
        tensors: As of `outlined`.
    """

    def __init__(
        self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__(config, image_shape, num_classes, config.latent_dim)
        self.tensors = dict(tensors)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # it has overloads
        """Return the weights, and those of a teacher."""
        own = {f"{NETWORK}{name}": tensor for name, tensor in self.tensors.items()}
        return {**own, **super().state_dict(*args, **kwargs)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take the weights, and give a teacher its own."""
        own = {name: tensor for name, tensor in state_dict.items() if name.startswith(NETWORK)}
        self.tensors = {name.removeprefix(NETWORK): tensor for name, tensor in own.items()}
        others = {name: tensor for name, tensor in state_dict.items() if name not in own}
        return super().load_state_dict(others, strict=strict, assign=assign)

    def with_code(self, module: Any) -> Generator:
        """Return the generator with its network, on the CPU, in eval mode.

        Args:
            module: The class, a function that makes the network, a network, or its path "package.module:Class", which
                is imported.

        Raises:
            InputError: If it has not these weights, or cannot be used; see `validate_generator`.
        """
        given = resolve(module, "module") if isinstance(module, str) else module
        made = OwnGenerator(self.config, self.image_shape, self.num_classes, given=given)
        if outline_of(made.network.state_dict()) != outline_of(self.tensors):
            name = getattr(given, "__name__", type(given).__name__)
            raise InputError(
                f"{name} has other weights than this release, by name, type or shape. It was made by "
                f"{self.config.generator}: name that code."
            )
        made.network.load_state_dict(self.tensors)
        validate_generator(made, "module")
        made.classes = self.classes
        return (made if self.teacher is None else made.taught_by(self.teacher, self.candidates)).eval()

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Refuse to draw."""
        raise needs_code(self.config.generator)

    def _batches(self, *_: Any) -> Iterator[Tensor]:
        raise needs_code(self.config.generator)

    def _repr_png_(self) -> None:
        return None


def needs_code(path: str) -> InputError:
    """Say that a generator cannot draw without its makers' code."""
    return InputError(
        f"This generator draws by code that is not in its release, {path}, and what a release names is never imported. "
        f"If you have that code and trust it, name it yourself: load_generator(FOLDER, module=...) or --module {path}."
    )
