"""A simulator of the user: ``draw(z, labels) -> images`` and, if there is one, ``vary(images or z, strength)``.

What the config names may be a function ``draw``, an object with ``draw`` and perhaps ``vary``, a module that draws, or
a class of one of these, which is made with those of ``image_shape``, ``num_classes`` and ``latent_dim`` that it has
parameters for. ``z`` is (B, numbers), standard normal, with ``numbers`` of the object or else ``model.latent_dim``;
``labels`` (B,) are numbers of classes, None without; a ``draw(z)`` gets none. Images are (B, C, H, W), floating point
in [-1, 1] or uint8.

Without ``vary`` an image is varied by its z. A ``vary`` whose first parameter is called ``z`` returns other z; one
whose first parameter is called ``images`` returns other images, and z stays behind (Lin et al. 2024, image to image).
It may take ``labels`` too. Nothing needs to be a function of z alone: every image is drawn once, and the drawn one is
what is voted for and released.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from idpgan.data.images import to_float, to_uint8
from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig, classes_of
from idpgan.models.initialize import seeded_init
from idpgan.models.own import taken
from idpgan.models.simulators import Simulator
from idpgan.own_code import error_line, resolve

_AT_ONCE = 64  # images of a call, unless the object has a ``batch_size``
_KINDS = ("z", "images")


class OwnSimulator(Simulator):
    """The user's simulator. A vector is the class, the numbers z, and the pixels that were drawn from them.

    Args:
        device: Where z lies when the code is called.

    Attributes:
        weights: SHA-256 (hex) of the weights that are found in it; None where there are none.

    Raises:
        ConfigError: In one line, if it cannot be made, or does not draw such images.
    """

    def __init__(
        self,
        config: ModelConfig,
        image_shape: Sequence[int],
        num_classes: int,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(image_shape)
        self._pixels = math.prod(self.image_shape)
        self.name, self._device, self.num_classes = config.simulator, device, classes_of(config, num_classes)
        facts = {"image_shape": self.image_shape, "num_classes": self.num_classes, "latent_dim": config.latent_dim}
        code = resolve(config.simulator, "model.simulator")
        with seeded_init(0):
            self._code = self._called(code, **taken(code, facts)) if isinstance(code, type) else code
        if isinstance(self._code, nn.Module):
            self._code.eval()
        self._latent = int(getattr(self._code, "numbers", config.latent_dim))
        self._at_once = int(getattr(self._code, "batch_size", _AT_ONCE))
        self._draw: Callable[..., Any] = getattr(self._code, "draw", self._code)
        self._vary: Callable[..., Any] | None = getattr(self._code, "vary", None)
        self._varies = None if self._vary is None else next(iter(inspect.signature(self._vary).parameters), "")
        if not callable(self._draw) or self._varies not in (None, *_KINDS):
            raise self._refused("it has no draw(z, labels), or a vary whose first parameter is neither z nor images")
        self._labeled = _takes_two(getattr(self._draw, "forward", self._draw))
        self.choices = int(bool(self.num_classes))
        self.numbers = self.choices + self._latent + self._pixels
        self.weights = weights_of(self._code)

    def start(self, num: int, row: int, rng: torch.Generator) -> Tensor:
        """Draw ``num`` first vectors of a class, (num, numbers) on the CPU."""
        z = torch.randn(num, self._latent, generator=rng)
        return self._vectors(torch.full((num,), row), z, int(torch.randint(1 << 31, (), generator=rng)))

    def forward(self, z: Tensor) -> Tensor:
        """Return the images of vectors: they were drawn already."""
        return z[:, -self._pixels :].view(-1, *self.image_shape)

    def pictures(self, z: Tensor) -> Tensor:
        """Return the images of vectors (B, numbers), uint8 (B, C, H, W)."""
        return to_uint8(self(z))

    def vary(self, z: Tensor, fresh: Tensor, strength: float) -> Tensor:
        """Draw variations; the code's own chance is seeded by the fresh numbers."""
        labels, latent = z[:, : self.choices].sum(1).long(), slice(self.choices, self.choices + self._latent)
        seed = int(fresh[0, 0].view(torch.int32)) & 0x7FFFFFFF if len(z) else 0
        if self._vary is None:
            return self._vectors(labels, super().vary(z, fresh, strength)[:, latent], seed)
        given = z[:, latent] if self._varies == "z" else self(z)
        takes = inspect.signature(self._vary).parameters
        parts = []
        with seeded_init(seed):
            for part, of_part in zip(given.split(self._at_once), labels.split(self._at_once), strict=True):
                more = {"labels": self._shown(of_part)} if "labels" in takes else {}
                parts.append(self._called(self._vary, part.to(self._device), strength, **more))
        if self._varies == "z":
            return self._vectors(labels, torch.cat([part.cpu().float() for part in parts]), seed)
        return torch.cat([z[:, : latent.stop], self._checked(parts, len(z))], 1)

    def _vectors(self, labels: Tensor, z: Tensor, seed: int) -> Tensor:
        """Draw images of z, and return the vectors."""
        if z.shape != (len(labels), self._latent) or not bool(z.isfinite().all()):
            raise self._refused(f"vary returned z of shape {tuple(z.shape)} or numbers that are not finite")
        with seeded_init(seed, stream=1):
            parts = [
                self._called(self._draw, part.to(self._device), *[self._shown(of_part)][: self._labeled])
                for part, of_part in zip(z.split(self._at_once), labels.split(self._at_once), strict=True)
            ]
        return torch.cat([labels[:, None].float()[:, : self.choices], z, self._checked(parts, len(z))], 1)

    def _shown(self, labels: Tensor) -> Tensor | None:
        return labels.to(self._device) if self.num_classes else None

    def _checked(self, parts: Sequence[Any], num: int) -> Tensor:
        """Return images as float32 (num, pixels) on the grid of 256 levels; refuse anything else."""
        shapes = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
        wanted = [(len(some), *self.image_shape) for some in torch.arange(num).split(self._at_once)]
        if shapes != wanted:
            raise self._refused(f"it returned {shapes[0]}, and images of {wanted[0]} were asked for")
        images = torch.cat([to_float(part) if part.dtype == torch.uint8 else part.float() for part in parts]).cpu()
        if not bool(images.isfinite().all()):
            raise self._refused("it returned pixels that are not finite")
        if float(images.abs().max()) > 1.001:
            raise self._refused(f"it returned pixels up to {float(images.abs().max()):.3g}, and they lie in [-1, 1]")
        return to_float(to_uint8(images)).flatten(1)

    @torch.no_grad()
    def _called(self, code: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return code(*args, **kwargs)
        except Exception as error:  # code of the user may raise anything
            raise self._refused(error_line(error)) from error

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(f"model.simulator = '{self.name}' cannot be used: {reason}.")


def _takes_two(draw: Callable[..., Any]) -> bool:
    """Tell whether draw(z, labels) can be called, and not only draw(z)."""
    try:
        inspect.signature(draw).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def weights_of(code: Any) -> str | None:
    """Return the SHA-256 (hex) of the weights of all modules that an object or a function holds; None without any.

    These are the object itself, its attributes, the global names that a function uses, and the components of pipelines.
    """
    sha, found = hashlib.sha256(), False
    for module in _modules(code):
        for name, tensor in sorted(module.state_dict().items()):
            if isinstance(tensor, Tensor):
                content = tensor.detach().cpu().contiguous()
                sha.update(f"{name} {content.dtype} {tuple(content.shape)}\n".encode())
                sha.update(content.flatten().view(torch.uint8).numpy().tobytes())
                found = True
    return sha.hexdigest() if found else None


def _modules(code: Any) -> Iterator[nn.Module]:
    things = [code]
    function = code if isinstance(code, types.FunctionType) else getattr(type(code), "draw", None)
    if isinstance(function, types.FunctionType):
        things += [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    things += list(getattr(code, "__dict__", {}).values()) if not isinstance(code, nn.Module) else []
    for thing in things:
        components = getattr(thing, "components", None)
        inner = components.values() if isinstance(components, Mapping) else [thing]
        yield from (each for each in inner if isinstance(each, nn.Module))
