"""Simulators: programs that turn standard normal numbers into images, without having seen a private one.

A generator consists of a simulator and a population of its settings: an image is a small variation of a member's image.

Everything that varies in an image is one vector z of independent standard normal numbers. A variation of strength s is
``sqrt(1 - s^2) z + s e`` with fresh e: it is as likely under the simulator as z itself, near z for small s, and a new
draw for s = 1 (the proposal of Cotter, Roberts, Stuart and White, "MCMC methods for functions", 2013).

A simulator of the user: ``draw(z, labels) -> images`` and, if there is one, ``vary(images or z, strength)``.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data import fonts
from idpgan.data.face_drawing import render
from idpgan.data.faces import ATTRIBUTES, LEAST_SIDE, NUMBERS, look_of
from idpgan.data.images import to_float, to_uint8
from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig, classes_of
from idpgan.models.generator import Generator
from idpgan.models.initialize import seeded_init
from idpgan.models.own import taken
from idpgan.models.warp import NODES, move, moves_of
from idpgan.own_code import error_line, resolve

_AT_ONCE = 64  # images of a call of the user's code, unless the object has a ``batch_size``
_NOT = "not "
_CAMERA: Mapping[str, tuple[float, float]] = {  # uniform ranges
    "zoom": (0.9, 2.0),
    "aim_x": (-0.12, 0.12),  # head units, from the middle of the head
    "aim_y": (-0.05, 0.25),
    "gain": (0.5, 1.2),
    "offset": (-0.3, 0.3),  # of [-1, 1]
    "blur": (0.0, 2.0),  # passes of a mean over 3 x 3 pixels
}
_TINT = (0.15, 0.08)  # log contrast and brightness of a varied photo, standard deviations, on [-1, 1]


def uniform_of(z: Tensor) -> Tensor:
    """Turn standard normal numbers into uniform ones on [0, 1], any shape."""
    return torch.special.ndtr(z.double()).float()


def normal_of(uniform: Tensor) -> Tensor:
    """Turn numbers in (0, 1) into standard normal ones: the inverse of `uniform_of`."""
    return torch.special.ndtri(uniform.double()).float()


def _place(z: Tensor, num: int) -> Tensor:
    """Return which of several things the first number of vectors (B, numbers) chooses, (B,)."""
    return (uniform_of(z[:, 0]) * num).long().clamp(max=num - 1)


class Simulator(nn.Module):
    """Draws images from vectors of numbers.

    Args:
        image_shape: (C, H, W) in px.

    Attributes:
        name: Its name in ``model.simulator``.
        least_side: Least side of an image, px.
        numbers: Length of a vector.
        choices: How many of the first numbers make a discrete choice; a variation leaves them unchanged.
        looks: Names that a class can have so that `has_look` knows it.

    Raises:
        ConfigError: If it does not draw such images.
    """

    name: str
    least_side: int = 1
    numbers: int
    choices: int = 0
    looks: tuple[str, ...] = ()

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        self.image_shape = (int(image_shape[0]), int(image_shape[1]), int(image_shape[2]))
        if min(self.image_shape[1:]) < self.least_side:
            raise ConfigError(
                f'model.simulator = "{self.name}" draws images of {self.least_side} pixels a side or more, not '
                f"{self.image_shape[2]} x {self.image_shape[1]}."
            )

    def forward(self, z: Tensor) -> Tensor:
        """Draw images (B, C, H, W) in [-1, 1] from vectors (B, numbers), differentiable in most of the numbers."""
        raise NotImplementedError

    def knows(self, look: str) -> bool:
        """Whether the numbers of an image tell its look, "smiling" or "not smiling"."""
        return look.removeprefix(_NOT) in self.looks

    def has_look(self, z: Tensor, look: str) -> Tensor:
        """Return whether vectors (B, numbers) draw images of a known look, (B,) bool."""
        column = self._is(z, self.looks.index(look.removeprefix(_NOT)))
        return ~column if look.startswith(_NOT) else column

    def _is(self, z: Tensor, look: int) -> Tensor:
        raise NotImplementedError

    def vary(self, z: Tensor, fresh: Tensor, strength: float) -> Tensor:
        """Return vectors near z by fresh standard normal numbers, (B, numbers) each; `choices` stay."""
        varied = math.sqrt(1 - strength**2) * z + strength * fresh
        return torch.cat([z[:, : self.choices], varied[:, self.choices :]], 1)


class FaceSimulator(Simulator):
    """The drawn faces of `idpgan.data.faces`, without their grain, as a camera sees them.

    Six further numbers (`_CAMERA`) say how near the camera is, where it aims, and how bright and sharp the picture is.
    """

    name, least_side, numbers, looks = "faces", LEAST_SIDE, NUMBERS + len(_CAMERA), ATTRIBUTES

    def forward(self, z: Tensor) -> Tensor:
        """Draw faces; the look is computed on the CPU, so that it is the same on every device."""
        channels, height, width = self.image_shape
        uniform = uniform_of(z.cpu())
        look, _ = look_of(uniform[:, :NUMBERS], channels)
        low, high = torch.tensor(list(_CAMERA.values())).unbind(1)
        numbers = (low + (high - low) * uniform[:, NUMBERS:])[:, :, None, None].unbind(1)  # (B, 1, 1) each
        camera = dict(zip(_CAMERA, numbers, strict=True))
        look["scale"] = look["scale"] * camera["zoom"]
        look["shift_x"] = look["shift_x"] + camera["aim_x"]
        look["shift_y"] = look["shift_y"] - camera["aim_y"] * camera["zoom"]
        here = {name: column.to(z.device) for name, column in look.items()}
        drawn = render(here, height, width, channels).clamp_(0, 1)
        gain, offset, blur = (camera[name][:, None].to(z.device) for name in ("gain", "offset", "blur"))
        softer = functional.avg_pool2d(drawn, 3, 1, 1, count_include_pad=False)
        softest = functional.avg_pool2d(softer, 3, 1, 1, count_include_pad=False)
        drawn = torch.where(blur < 1, torch.lerp(drawn, softer, blur), torch.lerp(softer, softest, blur - 1))
        return ((2 * drawn - 1) * gain + offset).clamp_(-1, 1)

    def _is(self, z: Tensor, look: int) -> Tensor:
        _, attributes = look_of(uniform_of(z[:, :NUMBERS].cpu()), 1)
        return attributes[:, look].bool().to(z.device)


class FontSimulator(Simulator):
    """The pen of `idpgan.data.fonts`; its looks are the digits."""

    name, least_side = "fonts", fonts.LEAST_SIDE
    numbers, choices, looks = fonts.NUMBERS, fonts.CHOICES, fonts.CLASSES

    def forward(self, z: Tensor) -> Tensor:
        """Draw digits, the same in every channel."""
        channels, height, width = self.image_shape
        return (2 * fonts.render(uniform_of(z), height, width) - 1).expand(-1, channels, -1, -1)

    def _is(self, z: Tensor, look: int) -> Tensor:
        return fonts.digits_of(uniform_of(z)) == look


class PhotoSimulator(Simulator):
    """Public images, each moved, bent, brightened and darkened a little. The first number chooses the image.

    Args:
        num: Images that it holds; all black until they are set.
        strength: Of the motions: 1 is that of handwriting, 0 none.

    Attributes:
        photos: uint8 (num, C, H, W).
    """

    numbers, choices = 1 + 6 + 2 * NODES**2 + 2, 1

    def __init__(self, image_shape: Sequence[int], num: int, strength: float = 1.0) -> None:
        super().__init__(image_shape)
        self.strength = strength
        self.photos = nn.Buffer(torch.zeros(num, *self.image_shape, dtype=torch.uint8))

    def chosen(self, z: Tensor) -> Tensor:
        """Return which image each vector (B, numbers) is of, (B,)."""
        return _place(z, len(self.photos))

    def choosing(self, index: Tensor) -> Tensor:
        """Return the first number of vectors that choose these images, (B,)."""
        return normal_of((index.double() + 0.5) / len(self.photos))

    def forward(self, z: Tensor) -> Tensor:
        """Move the chosen images, then change contrast and brightness."""
        images = to_float(self.photos[self.chosen(z)])
        moved = move(images, moves_of(uniform_of(z[:, 1:7]), z[:, 7:-2], self.strength))
        contrast, brightness = (deviation * z[:, at] for deviation, at in zip(_TINT, (-2, -1), strict=True))
        return (moved * contrast.exp()[:, None, None, None] + brightness[:, None, None, None]).clamp(-1, 1)


class GeneratorSimulator(Simulator):
    """The latent numbers of a released generator; its looks are its classes.

    A vector is the number that chooses the class, if there are any, then the latent numbers, those that choose among a
    few things first.

    Args:
        generator: Without a teacher.

    Attributes:
        generator: In eval mode, whatever mode the simulator is in.
    """

    def __init__(self, generator: Generator) -> None:
        super().__init__(generator.image_shape)
        self.generator = generator.eval().requires_grad_(False)
        self.looks, self._conditional = generator.classes, bool(generator.num_classes)
        others = set(range(generator.latent_dim)) - set(generator.choosing)
        self._order = [*generator.choosing, *sorted(others)]
        self.numbers = generator.latent_dim + self._conditional
        self.choices = len(generator.choosing) + self._conditional

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: an image depends on its own vector alone."""
        return super().train(False)

    def forward(self, z: Tensor) -> Tensor:
        """Put the latent numbers in the generator's order, and let it draw."""
        latent = torch.empty_like(z[:, self._conditional :])
        latent[:, self._order] = z[:, self._conditional :]
        return self.generator(latent, _place(z, len(self.looks)) if self._conditional else None)

    def _is(self, z: Tensor, look: int) -> Tensor:
        return _place(z, len(self.looks)) == look


#: simulators that need only a program, by name: ``model.simulator``
DRAWN: Mapping[str, type[Simulator]] = {kind.name: kind for kind in (FaceSimulator, FontSimulator)}


def looks_known(model: ModelConfig) -> tuple[str, ...]:
    """Return the `Simulator.looks` of the simulator that a [model] names."""
    if model.origin is not None:
        return model.origin.classes
    return DRAWN[model.simulator].looks if model.simulator in DRAWN else ()


class PopulationGenerator(Generator):
    """Draw a member of the image's class by its share, vary its numbers, and let the simulator draw them.

    The first latent number chooses the member, the others vary it.

    Args:
        config: The [model] section: ``codes`` members a class, ``simulator`` and ``variation``.
        image_shape: (C, H, W) in px of any size that the simulator draws.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        simulator: Draws such images; a `PhotoSimulator` holds one image of every member, and no others.

    Attributes:
        members: (max(num_classes, 1), codes, numbers): what the simulator draws them from; before `set_population` its
            middle.
        shares: (max(num_classes, 1), codes): how often each is drawn, at least 0; a row of zeros is uniform.
        proposer: SHA-256 (hex) of the weights of the user's simulator that proposed the images; None where it has none.
    """

    proposer: str | None = None

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, simulator: Simulator) -> None:
        super().__init__(config, image_shape, num_classes, latent_dim=1 + simulator.numbers)
        rows, codes = max(self.num_classes, 1), config.codes
        self.choosing = (0,)
        self.simulator = simulator
        self.members = nn.Parameter(torch.zeros(rows, codes, simulator.numbers))
        self.shares = nn.Parameter(torch.ones(rows, codes))

    def set_population(self, members: Tensor, shares: Tensor, photos: Tensor | None = None) -> None:
        """Set members (rows, codes, numbers), shares (rows, codes), and of "public" each member's image.

        ``photos`` is uint8 (rows * codes, C, H, W); members then choose their own, whatever they chose before.
        """
        with torch.no_grad():
            self.members.copy_(members)
            self.shares.copy_(shares)
            if isinstance(self.simulator, PhotoSimulator) and photos is not None:
                self.simulator.photos.copy_(photos)
                own = self.simulator.choosing(torch.arange(len(photos)))
                self.members[:, :, 0] = own.view(self.shares.shape)

    def shows_public(self, z: Tensor) -> Tensor:
        """Return that all images are public pictures, or none; see `Generator.shows_public`."""
        return torch.full((len(z),), self.config.shows_public)

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw members by the first latent number, and vary them by the others."""
        rows = torch.zeros(len(z), dtype=torch.int64, device=z.device) if labels is None else labels
        heights = self.shares.clamp(min=0).double().cumsum(1)
        heights = torch.where(heights[:, -1:] > 0, heights, torch.ones_like(heights).cumsum(1))
        place = uniform_of(z[:, 0]).double()[:, None] * heights[rows, -1:]
        chosen = torch.searchsorted(heights[rows], place, right=True)[:, 0].clamp(max=self.shares.shape[1] - 1)
        return self.simulator(self.simulator.vary(self.members[rows, chosen], z[:, 1:], self.config.variation))


# Of the user -------------------------------------------------------------------------------------------------------


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
        self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, device: torch.device | str = "cpu"
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
        if not callable(self._draw) or self._varies not in (None, "z", "images"):
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
    things = [code]
    function = code if isinstance(code, types.FunctionType) else getattr(type(code), "draw", None)
    if isinstance(function, types.FunctionType):
        things += [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    things += list(getattr(code, "__dict__", {}).values()) if not isinstance(code, nn.Module) else []
    parts = [getattr(thing, "components", None) for thing in things]
    inner = [part.values() if isinstance(part, Mapping) else [thing] for part, thing in zip(parts, things, strict=True)]
    sha, found = hashlib.sha256(), False
    for module in (each for some in inner for each in some if isinstance(each, nn.Module)):
        for name, tensor in sorted(module.state_dict().items()):
            if isinstance(tensor, Tensor):
                content = tensor.detach().cpu().contiguous()
                sha.update(f"{name} {content.dtype} {tuple(content.shape)}\n".encode())
                sha.update(content.flatten().view(torch.uint8).numpy().tobytes())
                found = True
    return sha.hexdigest() if found else None
