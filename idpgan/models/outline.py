"""Networks whose code is not in a release: the names, types and shapes of their weights, and what needs no code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from idpgan.config import Section, build
from idpgan.errors import InputError
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.own import OwnGenerator
from idpgan.models.validate import validate_generator
from idpgan.own_code import resolve

NETWORK = "network."  # of the weights in their file, as `OwnGenerator` has them
_MOST_BYTES = 1 << 34


class TensorShape(Section):
    """One tensor: its shape and the name of its type, such as "float32"."""

    shape: tuple[Annotated[int, Field(ge=0, le=1 << 40)], ...] = Field(max_length=8)
    dtype: Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]

    @property
    def empty(self) -> Tensor:
        """Such a tensor, without content."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device="meta")

    @property
    def bytes(self) -> int:
        """Size."""
        return math.prod(self.shape) * torch.empty((), dtype=getattr(torch, self.dtype)).element_size()


class _Tensors(Section):
    """The entry "tensors" of a described generator."""

    tensors: dict[Annotated[str, Field(max_length=300)], TensorShape] = Field(min_length=1, max_length=100_000)


def outline_of(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return the type and the shape of every tensor of a state dict, by name, for config.json."""
    return {
        name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in tensors.items()
    }


def outlined(described: Any) -> dict[str, Tensor]:
    """Return tensors without content, on torch's meta device, of what `outline_of` returned; it is untrusted input.

    Raises:
        InputError: If it is anything else.
    """
    shapes = build(_Tensors, {"tensors": described}, "generator").tensors
    sizes = [math.prod(each.shape) * getattr(torch, each.dtype).itemsize for each in shapes.values()]
    if sum(sizes) > _MOST_BYTES:
        raise InputError(f"the tensors of generator have more than {_MOST_BYTES:,} bytes.")
    return {name: each.empty for name, each in shapes.items()}


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
