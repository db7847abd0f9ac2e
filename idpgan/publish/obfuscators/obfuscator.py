"""The base of all obfuscators: a module that is fitted if it can learn, and then changes images."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor, nn

from idpgan import files
from idpgan.checks import typed
from idpgan.config import Section, build
from idpgan.device import own_random_state
from idpgan.errors import InputError
from idpgan.models import checkpoint
from idpgan.models.initialize import torch_seed
from idpgan.privacy import Noise
from idpgan.progress import Progress, silent
from idpgan.publish.plan import Options, Publisher, as_published, check_together, load_publisher
from idpgan.release.mark import DigitalSource

SETTINGS, WEIGHTS = "obfuscator.json", "obfuscator.safetensors"
MOST_CLASSES = 100_000  # people, or values of a label
_MOST_BYTES = 1 << 20  # largest size of the settings
_BATCH = 500


class Obfuscator(nn.Module, ABC):
    """Changes images (N, C, H, W), float32 in [0, 1], into images of the same shape and range.

    Its state dict holds everything that it has learned or keeps secret, without the networks that only help `fit`.

    Args:
        config: Of the method.
        image_shape: (C, H, W).
        num_utilities: Values of the label to be kept; 0 if nothing is fitted.
        num_identities: People, or values of the label to be hidden; 0 if nothing is fitted.

    Attributes:
        Config: Of its options.
        name: Row of `idpgan.methods`.
        trained: Whether `fit` must be called before `transform`.
        landmarked: Whether images are drawn from their landmarks; `transform` then reads only the landmarks.
        steps: Training steps taken; 0 where nothing is fitted.
        training_parameters: Number of parameters that `fit` trained, those of adversaries included.
    """

    Config: ClassVar[type[Options]]
    name: ClassVar[str]
    trained: ClassVar[bool] = False
    landmarked: ClassVar[bool] = False

    def __init__(
        self, config: Any, image_shape: tuple[int, int, int], num_utilities: int = 0, num_identities: int = 0
    ) -> None:
        super().__init__()
        self.config, self.image_shape = config, image_shape
        self.num_utilities, self.num_identities = num_utilities, num_identities
        self.steps, self.training_parameters = 0, 0

    @typed
    def fit(
        self,
        images: Tensor,
        utilities: Tensor,
        identities: Tensor,
        *,
        landmarks: Tensor | None = None,
        device: torch.device | str = "cpu",
        progress: Progress = silent,
    ) -> None:
        """Train on the images of known people; does nothing for a method without training.

        Training gives no privacy guarantee: the trained networks stay with the curator.

        Args:
            images: (N, C, H, W) float32 in [0, 1].
            utilities: int64 (N,), in [0, num_utilities): what is to stay readable.
            identities: int64 (N,), in [0, num_identities): what is to be hidden.
            landmarks: float32 (N, K, 2), x and y in px from the left upper corner; for a method that is landmarked.

        Raises:
            InputError: If images, labels or landmarks do not fit, or fewer than two images.
        """
        self._check(images, landmarks)
        limits = (("utilities", utilities, self.num_utilities), ("identities", identities, self.num_identities))
        for what, labels, num in limits:
            if labels.dtype != torch.int64 or labels.shape != (len(images),):
                got = f"{labels.dtype} {tuple(labels.shape)}"
                raise InputError(f"the {what} of {len(images)} images must be int64 ({len(images)},), got {got}.")
            if self.trained and (int(labels.min()) < 0 or int(labels.max()) >= num):
                raise InputError(f"the {what} must be in [0, {num - 1}], found up to {int(labels.max())}.")
        if not self.trained:
            return
        if len(images) < 2:
            raise InputError("one image is too few to train on. Give at least two.")
        self.to(device)
        with own_random_state(device):
            torch.manual_seed(torch_seed(self.config.seed, 1))
            inputs = images if landmarks is None else landmarks
            self._fit(images.to(device), inputs.to(device), utilities.to(device), identities.to(device), progress)
        self.eval()
        if any(
            not bool(tensor.isfinite().all()) for tensor in self.state_dict().values() if tensor.is_floating_point()
        ):
            raise InputError(f"'{self.name}' diverged: its weights are not numbers. Lower learning_rate.")

    @typed
    def transform(self, images: Tensor, *, landmarks: Tensor | None = None, seed: int | None = None) -> Tensor:
        """Change images: (N, C, H, W) float32 in [0, 1] to the same, on the device of the input.

        Args:
            landmarks: As in `fit`: a landmarked method reads them instead of the images.
            seed: Seed of the random draws of each call (noise, target people); None = fresh. Privacy does not depend on
                it, since nothing is proven.

        Raises:
            InputError: If images or landmarks are not of this shape or range, too few, or `fit` has not been called.
        """
        self._check(images, landmarks)
        check_together(self.name, len(images), self.config)
        if self.trained and not self.steps:
            raise InputError(f"'{self.name}' has learned nothing yet: call fit first, or load what was fitted.")
        self.eval()
        first = next((tensor.device for tensor in self.state_dict().values()), images.device)
        rng = torch.Generator().manual_seed(torch_seed(secrets.randbits(62) if seed is None else seed, 2))
        with torch.inference_mode():
            inputs = images if landmarks is None else landmarks
            batch = _BATCH if self.config.together == 1 else len(inputs)
            changed = torch.cat(
                [self._transform(part.to(first), rng).to(images.device) for part in inputs.split(batch)]
            )
        return changed.clone()  # a clone made outside inference mode works with autograd

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the transformation."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save(self, folder: Path) -> None:
        """Write settings and weights (or the secret key) into a folder for the curator only."""
        settings = {
            "method": self.name,
            "image_shape": list(self.image_shape),
            "num_utilities": self.num_utilities,
            "num_identities": self.num_identities,
            "steps": self.steps,
            "training_parameters": self.training_parameters,
            "options": self.config.model_dump(mode="json"),
        }
        files.write_bytes_atomic(folder / WEIGHTS, checkpoint.weight_bytes(self), mode=files.PRIVATE_FILE)
        files.write_text_atomic(folder / SETTINGS, json.dumps(settings, indent=2) + "\n", mode=files.PRIVATE_FILE)

    @abstractmethod
    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Change one batch of images (or landmarks, if landmarked) on the module's device; ``rng`` is on the CPU."""

    def _fit(self, images: Tensor, inputs: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        """Train; ``inputs`` is what `_transform` gets. Torch's random state is seeded."""

    def _check(self, images: Tensor, landmarks: Tensor | None) -> None:
        if images.dtype != torch.float32 or images.shape[1:] != self.image_shape or len(images) == 0:
            got = f"{images.dtype} {tuple(images.shape)}"
            raise InputError(f"images must be float32 (N, {', '.join(map(str, self.image_shape))}), got {got}.")
        low, high = torch.stack(images.aminmax()).tolist()
        if not (low >= 0 and high <= 1):  # also true for NaN
            raise InputError(f"pixels must lie in [0, 1], found [{low:g}, {high:g}]; divide bytes by 255 first.")
        num = len(images)
        if (landmarks is not None) != self.landmarked:
            raise InputError(
                f"'{self.name}' draws faces from their landmarks: give them, float32 (N, K, 2), in px."
                if self.landmarked
                else f"'{self.name}' knows no landmarks. Leave them out."
            )
        if landmarks is None:
            return
        if landmarks.dtype != torch.float32 or landmarks.ndim != 3 or (len(landmarks), landmarks.shape[2]) != (num, 2):
            got = f"{landmarks.dtype} {tuple(landmarks.shape)}"
            raise InputError(f"the landmarks of {num} images must be float32 ({num}, K, 2), got {got}.")
        if landmarks.shape[1] == 0 or not bool(landmarks.isfinite().all()):
            raise InputError("landmarks must be finite numbers of px, at least one for each image.")


def make_obfuscator(
    name: str,
    image_shape: tuple[int, int, int],
    *,
    num_utilities: int = 0,
    num_identities: int = 0,
    **options: Any,
) -> Obfuscator:
    """Make an obfuscator of `idpgan methods` for images of one shape (C, H, W).

    Args:
        num_utilities: Values of the label that stays readable; for methods that are trained.
        num_identities: People, or values of the label to be hidden; for methods that are trained.
        **options: Of the method's ``Config``.

    Raises:
        InputError: If name, shape or an option cannot be used.

    Example:
        >>> blurred = make_obfuscator("blur", (1, 8, 8), sigma=2.0).transform(torch.ones(3, 1, 8, 8))
        >>> blurred.shape
        torch.Size([3, 1, 8, 8])
    """
    kind = load_publisher(name).obfuscator
    if kind is None:
        raise InputError(f"'{name}' is no obfuscator: it publishes with `idpgan.publish.release`.")
    config = build(kind.Config, options, f"the options of '{name}'")
    channels, height, width = image_shape
    config.check((height, width))
    if channels not in (1, 3) or min(height, width) < 1:
        raise InputError(f"images of shape {image_shape} are neither grey (1, H, W) nor color (3, H, W).")
    if kind.trained and not (2 <= num_utilities <= MOST_CLASSES and 2 <= num_identities <= MOST_CLASSES):
        raise InputError(
            f"'{name}' is trained on labels: it needs at least 2 values to keep and 2 people to hide, got "
            f"{num_utilities} and {num_identities}."
        )
    method: Obfuscator = kind(config, (channels, height, width), num_utilities, num_identities)
    return method


class _Saved(Section):
    """The file `SETTINGS`."""

    method: str
    image_shape: list[int] = pydantic.Field(min_length=3, max_length=3)
    num_utilities: int = pydantic.Field(ge=0, le=MOST_CLASSES)
    num_identities: int = pydantic.Field(ge=0, le=MOST_CLASSES)
    steps: int = pydantic.Field(ge=0)
    training_parameters: int = pydantic.Field(ge=0)
    options: dict[str, Any]


def load_obfuscator(folder: Path) -> Obfuscator:
    """Load what `Obfuscator.save` wrote, without executing code.

    Raises:
        InputError: If a file is missing, damaged or of another kind.
    """
    for name in (SETTINGS, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} holds no obfuscator: {name} is missing. Name a folder curator/ of an earlier run."
            )
    try:
        table = files.parse_json(files.read_plain(folder / SETTINGS, _MOST_BYTES))
    except ValueError as error:  # includes InputError
        raise InputError(f"{folder / SETTINGS} is damaged: {error}.") from error
    saved = build(_Saved, table, str(folder / SETTINGS))
    channels, height, width = saved.image_shape
    obfuscator = make_obfuscator(
        saved.method,
        (channels, height, width),
        num_utilities=saved.num_utilities,
        num_identities=saved.num_identities,
        **saved.options,
    )
    content = files.read_plain(folder / WEIGHTS, checkpoint.most_weight_bytes(obfuscator))
    checkpoint.put_weights(obfuscator, content, folder / WEIGHTS, what="obfuscator")
    obfuscator.steps, obfuscator.training_parameters = saved.steps, saved.training_parameters
    return obfuscator.eval()


def without_proof(kind: type[Obfuscator]) -> Publisher:
    """Return an obfuscator as a publisher, which claims and proves nothing; one that is trained has to be fitted."""

    def algorithm(images: Tensor, epsilon: float, options: Options, noise: Noise) -> Tensor:
        height, width = images.shape[-2:]
        grey_or_color = images.reshape(len(images), -1, height, width).float()
        shape = (grey_or_color.shape[1], height, width)
        changed = make_obfuscator(kind.name, shape, **options.model_dump()).transform(grey_or_color)
        return changed.view_as(images)

    made_by = DigitalSource.COMPOSITE if kind.trained else DigitalSource.ENHANCED
    plan = as_published(kind.name, algorithm, "nothing is claimed", whole=True)
    return Publisher(kind.Config, plan, source=made_by, obfuscator=kind)
