"""Networks of the user in place of ours: ``model.generator = "package.module:Class"``, and critics likewise.

The class, or a function that returns a module, is called with those of ``image_shape``, ``num_classes``, ``latent_dim``
and ``width`` that it has parameters for. A generator is then called as ``network(z)``, a conditional one as
``network(z, labels)``, and returns images (B, C, H, W) in [-1, 1]; a critic as ``network(images)`` or
``network(images, labels)``, and returns one score an image. `idpgan.models.validate` tries both before a run begins.

A release holds no code: `GeneratorOutline` has the names, types and shapes of the weights, and takes the code from
whoever loads it. The networks of a training loop of somebody's own are `ForeignClassifier` and `ForeignGenerator`.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from idpgan import own_code
from idpgan.config import Section, build
from idpgan.errors import ConfigError, InputError
from idpgan.models import validate
from idpgan.models.config import ModelConfig, classes_of, labels_error
from idpgan.models.generator import Generator
from idpgan.models.initialize import seeded_init
from idpgan.models.private_classifier import PrivateClassifier

NETWORK = "network."  # of the weights in their file, as `OwnGenerator` has them
_MOST_BYTES = 1 << 34
_Pixels = tuple[float, float]  # the numbers by which a module knows black and white


class OwnGenerator(Generator):
    """A generator whose network is the user's.

    Args:
        given: A class, a function that returns a module, or a module, whose weights are the first ones; None = what
            ``config.generator`` names.
        image_shape: (C, H, W) in px of any size that the network draws.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Of the initial weights.

    Raises:
        ConfigError: In one line, if no module comes of it.
    """

    def __init__(
        self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0, given: Any = None
    ) -> None:
        super().__init__(config, image_shape, num_classes, config.latent_dim)
        facts = {"image_shape": self.image_shape, "num_classes": self.num_classes, "width": config.width}
        facts["latent_dim"] = config.latent_dim
        what = f"model.generator = '{config.generator}'" if given is None else "module"
        code = own_code.resolve(config.generator, "model.generator") if given is None else given
        self.network = _built(code, what, facts, seed, stream=0)

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Let the network draw; refuse images of another shape."""
        drawn = self.network(z) if labels is None else self.network(z, labels)
        wanted = (len(z), *self.image_shape)
        if not isinstance(drawn, Tensor) or drawn.shape != wanted or not drawn.is_floating_point():
            actual = f"{drawn.dtype} {tuple(drawn.shape)}" if isinstance(drawn, Tensor) else type(drawn).__name__
            raise InputError(f"it draws {actual}, and the data wants floating point {wanted}")
        return drawn


class OwnCritic(nn.Module):
    """A critic of the user, with the interface of `idpgan.models.dcgan.Critic`; arguments as of `OwnGenerator`."""

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.image_shape = (int(image_shape[0]), int(image_shape[1]), int(image_shape[2]))
        self.num_classes = classes_of(config, num_classes)
        facts = {"image_shape": self.image_shape, "num_classes": self.num_classes, "width": config.width}
        code = own_code.resolve(config.critic, "model.critic")
        self.network = _built(code, f"model.critic = '{config.critic}'", facts, seed, stream=1)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Score images (B, C, H, W) in [-1, 1], (B,); higher means more real."""
        if (labels is None) == bool(self.num_classes):
            raise labels_error("critic", self.num_classes)
        scores = self.network(images) if labels is None else self.network(images, labels)
        if not isinstance(scores, Tensor) or scores.shape not in ((len(images),), (len(images), 1)):
            actual = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(f"it gives {actual} for {len(images)} images, not one score each")
        return scores.flatten()


class OwnFeatures(nn.Module):
    """Features of images by the user's code, in eval mode: one vector an image, a function of that image alone.

    Args:
        path: Of a class, a module, or a function, which takes images (B, C, H, W) in [-1, 1].
        image_shape: (C, H, W) in px.

    Raises:
        ConfigError: In one line, if it gives something else.
    """

    def __init__(self, path: str, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        what = f"method.embedding = '{path}'"
        code = own_code.resolve(path, "method.embedding")
        if isinstance(code, type):
            code = _made(code, what, {"image_shape": image_shape}, seed=0)
        self._code = code.requires_grad_(False) if isinstance(code, nn.Module) else code
        self.eval()
        validate.validate_features(self, image_shape, what)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, (B, D)."""
        vectors = self._code(images)
        if not isinstance(vectors, Tensor) or vectors.ndim < 2 or len(vectors) != len(images):
            actual = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
            raise InputError(f"it gives {actual} for {len(images)} images, not a vector each")
        return vectors.flatten(1).float()


def _built(code: Any, what: str, facts: dict[str, Any], seed: int, stream: int) -> nn.Module:
    """Make the user's module, and refuse one that cannot be trained."""
    module = copy.deepcopy(code) if isinstance(code, nn.Module) else _made(code, what, facts, seed, stream)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{what} makes a {type(module).__name__}, not a torch.nn.Module.")
    weights = dict(module.named_parameters())
    if not weights:
        raise ConfigError(
            f"{what} has no weights that could be trained. A program that draws is a simulator for method "
            "evolution: model.simulator."
        )
    frozen = [name for name, weight in weights.items() if not weight.requires_grad or weight.dtype != torch.float32]
    if frozen:
        raise ConfigError(
            f"{what}: every weight is trained, in float32, and '{frozen[0]}' is frozen or of another type. "
            "Register what is not trained as a buffer."
        )
    return module


def _made(code: Any, what: str, facts: dict[str, Any], seed: int, stream: int = 0) -> Any:
    """Call the user's class or function on the CPU, its initial weights by the seed."""
    try:
        with torch.device("cpu"), seeded_init(seed, stream):
            return code(**taken(code, facts))
    except Exception as error:  # code of the user may raise anything
        raise ConfigError(
            f"{what} cannot be built: {own_code.error_line(error)}. It is called with those of {', '.join(facts)} that "
            "it has parameters for; give the others defaults."
        ) from error


def taken(code: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that a class or function has parameters for."""
    if getattr(code, "__init__", None) is nn.Module.__init__:  # its signature promises to take anything
        return {}
    parameters = inspect.signature(code).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return facts
    return {parameter.name: facts[parameter.name] for parameter in parameters if parameter.name in facts}


def check_own(model: ModelConfig, image_shape: Sequence[int], num_classes: int, *, private_critic: bool) -> None:
    """Build and try the networks of a [model] that are the user's, on numbers that are drawn; nothing is read.

    Args:
        private_critic: Whether the critic is trained with a guarantee for each record.

    Raises:
        ConfigError: In one line, with what is wrong.
    """
    for network, again in zip(*(_own(model, image_shape, num_classes, seed=0) for _ in range(2)), strict=True):
        if isinstance(network, OwnGenerator):
            validate.validate_generator(network, f"model.generator = '{model.generator}'")
        else:
            validate.validate_critic(network, f"model.critic = '{model.critic}'", private=private_critic)
        others = again.state_dict()
        for name, tensor in network.state_dict().items():
            if tensor.shape != others[name].shape or not torch.equal(tensor.nan_to_num(), others[name].nan_to_num()):
                raise ConfigError(
                    f"'{name.removeprefix('network.')}' of {type(network.network).__name__} differs between two builds "
                    "of one seed. Draw initial weights by torch alone."
                )


def computation(
    model: ModelConfig, paths: Sequence[str], image_shape: Sequence[int], num_classes: int, seed: int
) -> str:
    """Return a text that is equal where code of the user computes the same; "" where there is none.

    It hangs on the weights that the code begins with, on images and scores, and on their gradients. Code that nothing
    vouches for gets another text at every call: code without a file, networks that draw random numbers in training, and
    everything but networks.

    Args:
        paths: All code that the run uses.
    """
    if not paths:
        return ""
    if set(paths) - {model.generator, model.critic} or own_code.source_digest(paths) is None:
        return secrets.token_hex(16)
    sha = hashlib.sha256()
    for network in _own(model, image_shape, num_classes, seed):
        shape = (model.latent_dim,) if isinstance(network, OwnGenerator) else network.image_shape
        inputs = validate.probe(shape, network.num_classes)
        if validate.is_random(network.train(), inputs):
            return secrets.token_hex(16)
        for mode in (False, True):
            out = network.train(mode)(*inputs)
            gradients = torch.autograd.grad(out.square().sum(), list(network.parameters()), allow_unused=True)
            for tensor in (*network.state_dict().values(), out, *(one for one in gradients if one is not None)):
                sha.update(tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def _own(model: ModelConfig, image_shape: Sequence[int], num_classes: int, seed: int) -> list[OwnGenerator | OwnCritic]:
    kinds = ((OwnGenerator, model.generator), (OwnCritic, model.critic))
    return [kind(model, image_shape, num_classes, seed=seed) for kind, path in kinds if own_code.is_own_code(path)]


# In a release -----------------------------------------------------------------------------------------------------


class TensorShape(Section):
    """One tensor: its shape and the name of its type, such as "float32"."""

    shape: tuple[Annotated[int, Field(ge=0, le=1 << 40)], ...] = Field(max_length=8)
    dtype: Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]

    @property
    def bytes(self) -> int:
        """Size."""
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


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
    if sum(tensor.bytes for tensor in shapes.values()) > _MOST_BYTES:
        raise InputError(f"the tensors of generator have more than {_MOST_BYTES:,} bytes.")
    with torch.device("meta"):
        return {name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype)) for name, tensor in shapes.items()}


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
        network = {f"{NETWORK}{name}": tensor for name, tensor in self.tensors.items()}
        return {**network, **super().state_dict(*args, **kwargs)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take the weights, and give a teacher its own."""
        network = {name: tensor for name, tensor in state_dict.items() if name.startswith(NETWORK)}
        self.tensors = {name.removeprefix(NETWORK): tensor for name, tensor in network.items()}
        others = {name: tensor for name, tensor in state_dict.items() if name not in network}
        return super().load_state_dict(others, strict=strict, assign=assign)

    def with_code(self, module: Any) -> Generator:
        """Return the generator with its network, on the CPU, in eval mode.

        Args:
            module: The class, a function that makes the network, a network, or its path "package.module:Class", which
                is imported.

        Raises:
            InputError: If it has not these weights, or cannot be used; see `validate_generator`.
        """
        given = own_code.resolve(module, "module") if isinstance(module, str) else module
        generator = OwnGenerator(self.config, self.image_shape, self.num_classes, given=given)
        if outline_of(generator.network.state_dict()) != outline_of(self.tensors):
            name = getattr(given, "__name__", type(given).__name__)
            raise InputError(
                f"{name} has other weights than this release, by name, type or shape. It was made by "
                f"{self.config.generator}: name that code."
            )
        generator.network.load_state_dict(self.tensors)
        validate.validate_generator(generator, "module")
        generator.classes = self.classes
        return (generator if self.teacher is None else generator.taught_by(self.teacher, self.candidates)).eval()

    @property
    def missing(self) -> InputError:
        """What is said where the code is needed."""
        return needs_code(self.config.generator)

    @property
    def unchecked(self) -> str:
        """What `verify` cannot check."""
        return (
            f"{self.config.generator} is code of whoever wrote the release and was not run: the picture was not drawn "
            "again, and that it shows what the generator draws is their word"
        )

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Refuse to draw."""
        raise self.missing

    def _batches(self, *_: Any) -> Iterator[Tensor]:
        raise self.missing

    def _repr_png_(self) -> None:
        return None


def needs_code(path: str) -> InputError:
    """Say that a generator cannot draw without its makers' code."""
    return InputError(
        f"This generator draws by code that is not in its release, {path}, and what a release names is never imported. "
        f"If you have that code and trust it, name it yourself: load_generator(FOLDER, module=...) or --module {path}."
    )


# Of somebody's own training loop -----------------------------------------------------------------------------------


class ForeignClassifier(PrivateClassifier):
    """A module that maps images to logits (B, K).

    Args:
        module: Called with float images (B, C, H, W).
        image_shape: (C, H, W).
        classes: Names.
        pixels: The numbers by which the module knows black and white.
    """

    network = "foreign"

    def __init__(self, module: nn.Module, image_shape: Sequence[int], classes: Sequence[str], pixels: _Pixels) -> None:
        super().__init__(image_shape, classes)
        self.module, self.pixels = module, pixels

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of images in [-1, 1]."""
        black, white = self.pixels
        logits: Tensor = self.module(black + (images + 1) * ((white - black) / 2))
        if logits.shape != (len(images), len(self.classes)):
            raise InputError(
                f"The module maps {len(images)} images to {tuple(logits.shape)}, and a classifier of "
                f"{len(self.classes)} classes gives ({len(images)}, {len(self.classes)})."
            )
        return logits


class ForeignGenerator(Generator):
    """A module that maps latent vectors (B, latent_dim), and labels (B,) if it has classes, to images (B, C, H, W).

    Args:
        module: Called as ``module(z)`` or ``module(z, labels)``.
        image_shape: (C, H, W).
        classes: Names; empty = unconditional.
        latent_dim: Standard normal numbers per image.
        pixels: The numbers by which the module means black and white; images are clamped to them.
    """

    def __init__(
        self, module: nn.Module, image_shape: Sequence[int], classes: Sequence[str], latent_dim: int, pixels: _Pixels
    ) -> None:
        super().__init__(ModelConfig(conditional=bool(classes)), image_shape, len(classes), latent_dim)
        self.classes, self.module, self.pixels = tuple(classes), module, pixels

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Return images in [-1, 1]."""
        drawn: Tensor = self.module(z) if labels is None else self.module(z, labels)
        if drawn.shape != (len(z), *self.image_shape):
            raise InputError(
                f"The module draws images of shape {tuple(drawn.shape[1:])}, and image_shape is {self.image_shape}."
            )
        black, white = self.pixels
        return ((drawn - black) * (2 / (white - black)) - 1).clamp(-1, 1)
