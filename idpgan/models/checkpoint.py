"""Released generators: weights as safetensors, shapes as JSON; loading runs no code and needs no data and no GPU.

The generator families by name, ``model.generator``, and the least memory that training one beside a critic takes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from idpgan.config import Section, build
from idpgan.data.annotations import POINTS
from idpgan.data.images import check_class_names
from idpgan.errors import ConfigError, InputError
from idpgan.files import (
    CONFIG,
    MOST_TEXT_BYTES,
    WEIGHTS,
    parse_json,
    pasted,
    read_plain,
    write_bytes_atomic,
    write_text_atomic,
)
from idpgan.models.config import ModelConfig, Origin, classes_of, of_release
from idpgan.models.dcgan import Critic, DcganGenerator
from idpgan.models.diffusion import DiffusionGenerator
from idpgan.models.gaussian import GaussianGenerator, RefinedGenerator
from idpgan.models.generator import MOST_CANDIDATES, Generator
from idpgan.models.initialize import without_weights
from idpgan.models.own import NETWORK, GeneratorOutline, OwnCritic, OwnGenerator, outline_of, outlined
from idpgan.models.pictures import ANNOTATIONS, Asked, HeldPictures, PicturesGenerator
from idpgan.models.pipelines import PipelineGenerator, PipelineOutline
from idpgan.models.private_classifier import described_classifier
from idpgan.models.simulators import DRAWN, GeneratorSimulator, PhotoSimulator, PopulationGenerator, Simulator
from idpgan.models.varied import MovedGenerator, VariedGenerator
from idpgan.models.warp import WarpGenerator
from idpgan.own_code import is_own_code

GENERATORS: Mapping[str, Callable[..., Generator]] = {
    "dcgan": DcganGenerator,
    "diffusion": DiffusionGenerator,
    "gaussian": GaussianGenerator,
    "pictures": PicturesGenerator,
    "pipeline": PipelineGenerator,
    "refined": RefinedGenerator,
    "warp": WarpGenerator,
}
_COPIES = 4  # of each weight: itself, its gradient, and Adam's two averages
_FLOAT = 4  # bytes


def build_generator(config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> Generator:
    """Build a generator of the family that the config names.

    Arguments and errors are those of `DcganGenerator`; "gaussian", "refined", "diffusion", "population" and your own
    have any size.
    """
    if is_own_code(config.generator):
        return OwnGenerator(config, image_shape, num_classes, seed=seed)
    if config.generator == "population":
        members = max(classes_of(config, num_classes), 1) * config.codes
        simulator = build_simulator(config, image_shape, members)
        return PopulationGenerator(config, image_shape, num_classes, simulator)
    return GENERATORS[config.generator](config, image_shape, num_classes, seed=seed)


def build_critic(
    config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0
) -> Critic | OwnCritic:
    """Build the critic that a [model] names; arguments and errors are those of `DcganGenerator`."""
    kind = OwnCritic if is_own_code(config.critic) else Critic
    return kind(config, image_shape, num_classes, seed=seed)


def build_simulator(model: ModelConfig, image_shape: Sequence[int], num_photos: int) -> Simulator:
    """Build the simulator of a population; "public" holds so many images, "generator" has arbitrary weights.

    A population that a simulator of the user proposed holds the chosen images, as one of public images does: whoever
    receives it does not need it. So do portraits in releases of 0.3.0.

    Raises:
        ConfigError: If it does not draw such images.
    """
    if model.simulator in ("public", "people") or is_own_code(model.simulator):
        return PhotoSimulator(image_shape, num_photos, model.warp)
    if model.origin is None:
        return DRAWN[model.simulator](image_shape)
    generator = build_origin(model.origin, image_shape)
    if generator.num_classes:
        generator.classes = model.origin.classes
    return GeneratorSimulator(generator)


def build_origin(origin: Origin, image_shape: Sequence[int]) -> Generator:
    """Build the released generator that a run builds on, with arbitrary weights.

    Raises:
        ConfigError: If it draws images of another shape.
    """
    if tuple(image_shape) != origin.image_shape:
        known, given = (" x ".join(map(str, shape)) for shape in (origin.image_shape, image_shape))
        raise ConfigError(
            f"the generator of data.public_generator draws images of {known} (channels x height x width), and those of "
            f"the data have {given}. Name one of the same shape."
        )
    return build_generator(origin.model, origin.image_shape, len(origin.classes))


def generator_bytes(model: ModelConfig, image_shape: Sequence[int], num_classes: int) -> int:
    """Return the bytes that training a generator keeps, whatever the batch, without building it."""
    with (
        contextlib.nullcontext() if is_own_code(model.generator) else without_weights()
    ):  # foreign code may want numbers
        weights = build_generator(model, image_shape, num_classes).parameters()
    return _COPIES * _FLOAT * sum(weight.numel() for weight in weights)


def critic_sizes(model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int) -> list[int]:
    """Return how many numbers each weight of a critic has, without building it."""
    with contextlib.nullcontext() if is_own_code(model.critic) else without_weights():
        return [weight.numel() for weight in build_critic(model, image_shape, num_classes).parameters()]


def batch_bytes(model: ModelConfig, image_shape: Sequence[int], batch_size: int) -> int:
    """Return the least bytes of a batch: the feature maps next to the image, at half its size and with gradients."""
    channels, height, width = image_shape
    return batch_size * _FLOAT * (math.prod((channels, height, width)) + model.width * height * width // 2)


_MOST_HEADER_BYTES = 1 << 20  # of the weights, beside the numbers
CLASSIFIER_WEIGHTS = "classifier.safetensors"
_AGAIN = "Copy the release folder again, or release the generator again"


class _Teacher(Section):
    """The entry "teacher" of a described generator."""

    network: str
    options: dict[str, Any]
    candidates: int = Field(ge=1, le=MOST_CANDIDATES)


class _Proposer(Section):
    """The entry "proposer" of a described population: the hash of a simulator's weights."""

    proposer: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")


class _Asked(Section):
    """The entry "asked" of described pictures: one for each class."""

    asked: tuple[Asked, ...]

    def of(self, rows: int) -> tuple[Asked, ...]:
        if len(self.asked) != rows:
            raise InputError(f"generator.asked has {len(self.asked)} parts, and not one for each of {rows} classes.")
        return self.asked


def save_generator(
    path: str | os.PathLike[str],
    generator: Generator,
    *,
    classes: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write ``generator.safetensors`` and ``config.json``, each whole or not at all.

    Only the generator's own parameters and buffers are written, as CPU tensors. Files that are there already are
    replaced.

    Args:
        path: The release folder; made if it is missing.
        classes: Names of the classes; None = ``generator.classes``.
        extra: Further top-level entries of ``config.json``; JSON values, all of them will be public.

    Raises:
        InputError: If the class names do not fit (see `check_class_names`), or ``extra`` has a key "generator".
    """
    if extra and "generator" in extra:
        raise InputError("The key 'generator' of config.json describes the generator itself. Name the entry otherwise.")
    content = {"generator": describe(generator, classes), **(extra or {})}
    config = json.dumps(content, indent=2, allow_nan=False) + "\n"
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes_atomic(folder / WEIGHTS, weight_bytes(generator))
    write_text_atomic(folder / CONFIG, config)


def describe(generator: Generator, classes: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the entry "generator" of ``config.json``; arguments and errors as of `save_generator`."""
    names = list(generator.classes if classes is None else classes)
    if len(names) != generator.num_classes:
        raise InputError(f"{len(names)} class names were given for a generator of {generator.num_classes} classes.")
    check_class_names(names)
    described: dict[str, Any] = {
        "model": generator.config.to_json(),
        "image_shape": list(generator.image_shape),
        "classes": names,
    }
    if _without_network(generator.config):
        own = {name: one for name, one in generator.state_dict().items() if name.startswith(NETWORK)}
        described["tensors"] = outline_of({name.removeprefix(NETWORK): one for name, one in own.items()})
    if isinstance(generator, PopulationGenerator) and is_own_code(generator.config.simulator):
        described["proposer"] = generator.proposer
    if isinstance(generator, PicturesGenerator) and generator.asked:
        described["asked"] = [one.model_dump(mode="json") for one in generator.asked]
    if generator.annotated:
        described["landmarks"] = len(POINTS)
    if (teacher := generator.teacher) is not None:
        named = {"network": teacher.network, "options": teacher.options()}
        described["teacher"] = {**named, "candidates": generator.candidates}
    return described


def _without_network(model: ModelConfig) -> bool:
    """Tell whether a generator's network is not in its release: it is the user's code, or a public pipeline."""
    return is_own_code(model.generator) or model.pipeline is not None


def weight_bytes(network: nn.Module) -> bytes:
    """Return the weights of a network as the content of a safetensors file."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()})


def load_generator(path: str | os.PathLike[str], module: Any = None) -> Generator:
    """Load a generator on the CPU, in eval mode; `idpgan.load_generator` adds what protects its training images.

    Args:
        path: A run folder (its ``release/`` is read), a release folder, or ``generator.safetensors`` beside its
            ``config.json``.
        module: The code of a generator that is its makers' own; see `GeneratorOutline.with_code`.

    Raises:
        InputError: If a file is missing, damaged, of another program, or a pickle.
    """
    weights = find_weights(Path(path))
    config = weights.with_name(CONFIG)
    if not config.exists():
        raise InputError(f"{config} is missing: it holds the generator's shapes and lies beside the weights. {_AGAIN}.")
    generator = describe_generator(read_plain(config, MOST_TEXT_BYTES, follow=True), config)
    return with_weights(generator, read_plain(weights, most_weight_bytes(generator), follow=True), weights, module)


def with_weights(generator: Generator, content: bytes, path: Path, module: Any = None) -> Generator:
    """Return a described generator, in eval mode, with the weights of the file ``path`` and the code of ``module``.

    Raises:
        InputError: If they do not fit together.
    """
    put_weights(generator, content, path)
    if isinstance(generator, GeneratorOutline):
        if module is None:
            raise generator.missing
        return generator.with_code(module)
    if module is not None:
        raise InputError(f"{path} needs no code of your own: it is a generator of idpgan. Leave module out.")
    return generator.eval()


def find_weights(path: Path) -> Path:
    """Return the path of the weights file of a run folder, a release folder or a file."""
    if is_classifier(path):
        raise InputError(
            f"{path} has released a classifier, which draws no images. Load it with idpgan.load_classifier, or measure "
            f"it: idpgan evaluate {pasted(path)}."
        )
    if path.is_dir():
        for weights in (path / "release" / WEIGHTS, path / WEIGHTS):
            if weights.is_file():
                return weights
        if (path / "state").is_dir():
            raise InputError(
                f"The run {path} has released no generator yet ({path / 'release' / WEIGHTS} is missing). "
                "Finish it with --resume: a generator is released at the end."
            )
        if (path / "model.safetensors").is_file():
            raise InputError(
                f"{path} holds a model of its writer's own code. Make the module and load it with "
                "idpgan.release.load_model(folder, module)."
            )
        raise InputError(f"{path} is neither a run nor a release folder: it holds no {WEIGHTS}. Name one that does.")
    if not path.exists():
        raise InputError(f"{path} does not exist. Name a run folder, a release folder or its {WEIGHTS}.")
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path} is not loaded: only .safetensors files are, since others (pickles such as .pt or .pkl) can run "
            f"code when they are opened. Name a run folder, a release folder or its {WEIGHTS}."
        )
    return path


def is_classifier(path: Path) -> bool:
    """Tell whether a run, a release folder or a file of weights is that of a classifier, without reading it."""
    if path.is_dir():
        return any((folder / CLASSIFIER_WEIGHTS).is_file() for folder in (path / "release", path))
    return path.name == CLASSIFIER_WEIGHTS and path.is_file()


def describe_generator(content: bytes, path: Path) -> Generator:
    """Make the generator that the content of a ``config.json`` describes, without weights, on torch's meta device.

    The generator has shapes only, so that a forged config cannot allocate much memory; `put_weights` adds the weights.

    Raises:
        InputError: If the content describes no generator; ``path`` is named.
    """
    try:
        described = parse_json(content)["generator"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not describe a generator of idpgan ({error}). {_AGAIN}.") from error
    return build_described(described, path)


def build_described(described: Any, path: Path) -> Generator:
    """Make the generator of an entry "generator"; see `describe_generator`."""
    if not isinstance(described, dict) or not {"model", "image_shape", "classes"} <= described.keys():
        raise InputError(f"{path} does not describe a generator of idpgan (model, image_shape and classes). {_AGAIN}.")
    shape, classes, model = described["image_shape"], described["classes"], described["model"]
    if not (isinstance(shape, list) and all(type(number) is int for number in shape)):
        raise InputError(f"{path}: image_shape = {shape!r} must be three whole numbers. {_AGAIN}.")
    if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise InputError(f"{path}: classes = {classes!r} must be a list of names. {_AGAIN}.")
    if not isinstance(model, dict):
        raise InputError(f"{path}: model = {model!r} must be a table. {_AGAIN}.")
    try:
        config = build(ModelConfig, of_release(model), "generator.model")
        if _without_network(config):  # code that a release names is not imported
            kind = GeneratorOutline if config.pipeline is None else PipelineOutline
            generator: Generator = kind(config, shape, len(classes), outlined(described.get("tensors")))
        else:
            with without_weights():
                generator = build_generator(config, shape, len(classes))
                if config.drawn.varied:
                    generator = VariedGenerator(generator)
                if held := config.moved or config.drawn.agreed:
                    generator = MovedGenerator(generator, held)
                if isinstance(generator, HeldPictures) and described.get("landmarks") == len(POINTS):
                    generator.hold_annotations()
        if len(classes) != generator.num_classes:
            raise InputError(f"an unconditional generator has no classes, but {len(classes)} are named. {_AGAIN}.")
        check_class_names(classes)
        generator.classes = tuple(classes)
        if isinstance(generator, PopulationGenerator) and is_own_code(config.simulator):
            generator.proposer = build(_Proposer, {"proposer": described.get("proposer")}, "generator").proposer
        if isinstance(generator, PicturesGenerator) and "asked" in described:
            generator.asked = build(_Asked, {"asked": described["asked"]}, "generator").of(max(len(classes), 1))
        if "teacher" not in described:
            return generator
        wanted = build(_Teacher, described["teacher"], "generator.teacher")
        teacher = described_classifier(wanted.network, wanted.options, generator.image_shape, generator.classes)
        return generator.taught_by(teacher, wanted.candidates)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def most_weight_bytes(network: nn.Module) -> int:
    """Return the largest size in bytes of a file of a network's weights."""
    tensors = network.state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + _MOST_HEADER_BYTES


def put_weights(network: nn.Module, content: bytes, path: Path, *, what: str = "generator") -> None:
    """Put the tensors of a safetensors file into a network without weights, if they are the right ones.

    Raises:
        InputError: If they are not this generator's, or not finite; ``path`` is named.
    """
    tensors = read_tensors(content, path)
    expected = network.state_dict()
    wrong = sorted(expected.keys() ^ tensors.keys())
    wrong += [
        name
        for name, tensor in expected.items()
        if name in tensors and (tensor.shape, tensor.dtype) != (tensors[name].shape, tensors[name].dtype)
    ]
    if wrong:
        raise InputError(
            f"{path} does not hold the {what} that {CONFIG} beside it describes: '{wrong[0]}' is missing, not "
            f"expected or of another shape ({len(wrong)} of {len(expected)} tensors). {_AGAIN}."
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"{path} holds numbers that are not finite in '{name}': its training diverged.")
    network.load_state_dict(tensors, assign=True)


def read_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file that holds nothing else.

    Raises:
        InputError: If the file is damaged, or is not, byte for byte, what safetensors writes for its tensors: no
            epsilon covers a text in its header. ``path`` is named.
    """
    try:
        tensors = load(content)
    except (SafetensorError, KeyError) as error:  # KeyError: a data type that torch does not have
        raise InputError(f"{path} is damaged or no safetensors file ({error}). {_AGAIN}.") from error
    plain = save(tensors)
    if plain != content:
        raise InputError(
            f"{path} holds more than its tensors, such as a text in its header: it has {len(content):,} bytes, and its "
            f"tensors alone are written as other {len(plain):,}. {_AGAIN}."
        )
    return tensors


def origin_weights(path: Path | None, origin: Origin) -> dict[str, Tensor]:
    """Return the weights of the generator of a release, on the CPU; those of a teacher beside it are left out.

    Raises:
        ConfigError: If they are not those that ``origin`` names, or no folder is named.
        InputError: If they are missing or damaged.
    """
    if path is None:
        raise ConfigError("a config with model.origin needs data.public_generator: the folder of its release.")
    weights = find_weights(path.expanduser())
    described = weights.with_name(CONFIG)
    generator = describe_generator(read_plain(described, MOST_TEXT_BYTES, follow=True), described)
    content = read_plain(weights, most_weight_bytes(generator), follow=True)
    if hashlib.sha256(content).hexdigest() != origin.weights:
        raise ConfigError(
            f"data.public_generator = '{path}' holds other weights than model.origin names. Name the release that the "
            "run began with, or leave model.origin out of the config, so that it is read anew."
        )
    put_weights(generator, content, weights)
    law = generator
    while isinstance(law, MovedGenerator | VariedGenerator):
        law = law.law
    return {name: tensor for name, tensor in law.state_dict().items() if not name.startswith(("teacher.", ANNOTATIONS))}
