"""A generator as an artifact: its weights, its shapes, and a grid of images that it draws."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from idpgan.config import build
from idpgan.errors import InputError
from idpgan.files import CONFIG, WEIGHTS, write_bytes_atomic
from idpgan.models import checkpoint
from idpgan.models.adapters import RANK
from idpgan.models.checkpoint import (
    build_described,
    describe,
    find_weights,
    most_weight_bytes,
    put_weights,
    weight_bytes,
    with_weights,
)
from idpgan.models.generator import Generator
from idpgan.models.own import GeneratorOutline
from idpgan.models.pipelines import LORA_FILE, lora_bytes
from idpgan.release.artifact import Kind
from idpgan.release.mark import SAMPLES, decode_png, most_png_bytes
from idpgan.release.settings import run_from_release
from idpgan.release.statement import PRIVACY
from idpgan.release.verify import Opened, is_bare, open_release
from idpgan.training.config import ReleaseConfig
from idpgan.training.stats import cell_maxima, sample_grid_shape, sample_grids, write_samples

_LOG = logging.getLogger(__name__)
_PIXEL_TOLERANCE = 2  # of 255 grey levels: another machine rounds its sums in another way


class GeneratorArtifact:
    """A generator in eval mode and a grid of ``samples`` images, rounded up to full rows; see `Artifact`.

    Attributes:
        unchecked: What `read` could not check, one sentence; None where it checked all.
    """

    kind: ClassVar[str] = "generator"
    card: ClassVar[str] = "generator"
    unchecked: str | None = None

    def __init__(self, generator: Generator, samples: int) -> None:
        self.generator = generator
        self.samples = samples

    def files(self) -> Mapping[str, int]:
        """Return the weights, the grid, and LoRA as diffusers reads it, each with the most bytes it can have."""
        grid = sample_grid_shape(self.generator, num=self.samples)
        most = most_weight_bytes(self.generator)
        lora = {LORA_FILE: most} if self._has_lora else {}
        return {WEIGHTS: most, SAMPLES: most_png_bytes(grid), **lora}

    @property
    def _has_lora(self) -> bool:
        pipeline, parts = self.generator.config.pipeline, self.generator.config.trained
        return pipeline is not None and any(RANK.fullmatch(part) for part in parts)

    def describe(self) -> dict[str, Any]:
        """Return the shapes of the networks, the classes, and how many images the grid shows."""
        return {**describe(self.generator), "samples": self.samples}

    def write(self, folder: Path) -> None:
        """Write the weights, the grid, and LoRA as diffusers reads it."""
        lora = lora_bytes(self.generator)
        if lora is not None:
            write_bytes_atomic(folder / LORA_FILE, lora)
        write_bytes_atomic(folder / WEIGHTS, weight_bytes(self.generator))
        write_samples(folder / SAMPLES, self.generator, num=self.samples)

    @classmethod
    def from_description(cls, described: Any) -> Self:
        """Check shapes and classes; the generator is on torch's meta device until `read`."""
        generator = build_described(described, Path(CONFIG))
        samples = build(ReleaseConfig, {"samples": described.get("samples")}, f"generator of {CONFIG}").samples
        return cls(generator, samples)

    def read(self, files: Mapping[str, bytes]) -> list[str]:
        """Read the weights and draw the grid again: the epsilon covers no other picture."""
        put_weights(self.generator, files[WEIGHTS], Path(WEIGHTS))
        if self._has_lora and files[LORA_FILE] != lora_bytes(self.generator):
            return [f"{LORA_FILE} does not hold the adapters of {WEIGHTS}."]
        if isinstance(self.generator, GeneratorOutline):
            return self._undrawn(files[SAMPLES])
        # Where a teacher scores two candidates equally, another machine may choose the other one. The generator draws
        # both, so the guarantee covers a grid with either.
        expected = sample_grids(self.generator.eval(), num=self.samples)  # (candidates, C, H, W)
        try:
            found = decode_png(files[SAMPLES], (expected.shape[1], expected.shape[2], expected.shape[3]))
        except ValueError as error:
            return [f"{SAMPLES} {error}."]
        distance = cell_maxima((found.int() - expected.int()).abs(), self.generator.image_shape)
        if int(distance.amin(0).max()) > _PIXEL_TOLERANCE:
            return [f"{SAMPLES} is not the grid that the generator draws."]
        return []

    def _undrawn(self, picture: bytes) -> list[str]:
        """Check the size of a picture that cannot be drawn again."""
        try:
            decode_png(picture, sample_grid_shape(self.generator, num=self.samples))
        except ValueError as error:
            return [f"{SAMPLES} {error}."]
        self.unchecked = cast(GeneratorOutline, self.generator).unchecked
        return []


KINDS = {GeneratorArtifact.kind: Kind(GeneratorArtifact, run_from_release)}


def load_generator(path: str | os.PathLike[str], module: Any = None) -> Generator:
    """Load a released generator on the CPU, in eval mode; no code of the release is run, and no data is needed.

    Args:
        path: A run folder (its ``release/`` is read), a release folder, or ``generator.safetensors`` beside its
            ``config.json``.
        module: For a generator whose network is its makers' own code: that class, a function or module, or its path
            "package.module:Class", which is then imported. What a release names is never imported.

    Returns:
        The generator: ``.sample(num, labels, seed)``, ``.classes``, and ``.privacy``, the report of its release, or
        None where there is none. Hashes and settings were compared and the price was computed again; `idpgan verify`
        also draws the picture again, and reads the card.

    Raises:
        InputError: If a file is missing, damaged, of another program, or a pickle, or the release was changed.
    """
    return open_generator(path, module)[0]


def open_generator(path: str | os.PathLike[str], module: Any = None) -> tuple[Generator, Opened | None]:
    """Return a generator, and the release that it was loaded from; None for bare weights, which are warned of.

    Arguments and errors are those of `load_generator`.
    """
    weights = find_weights(Path(path))
    if is_bare(weights):
        generator = checkpoint.load_generator(weights, module)
        _LOG.warning(
            "%s holds no %s: what protects its training images, if anything, is not known. Hand on neither it nor what "
            "it draws without asking whoever made it.", weights.parent, PRIVACY,
        )  # fmt: skip
        return generator, None
    if weights.name != WEIGHTS:
        raise InputError(f"{weights} is not the {WEIGHTS} of the release that it lies in. Name that one.")
    release = open_release(weights.parent, KINDS)
    described = cast(GeneratorArtifact, release.artifact).generator
    generator = with_weights(described, release.files[WEIGHTS], weights, module)
    generator.privacy = release.stated.report
    return generator, release
