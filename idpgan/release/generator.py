"""A generator as an artifact: its weights, its shapes, and a grid of images that it draws."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from idpgan.checks import typed
from idpgan.config import build
from idpgan.errors import InputError
from idpgan.files import write_bytes_atomic
from idpgan.models import checkpoint
from idpgan.models.checkpoint import (
    CONFIG,
    WEIGHTS,
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
from idpgan.models.simulators import PopulationGenerator
from idpgan.own_code import is_own_code
from idpgan.release.artifact import Kind
from idpgan.release.card import CardFacts, Subject, plain, shown_shape
from idpgan.release.folder import PRIVACY
from idpgan.release.png import SAMPLES, decode_png, most_png_bytes
from idpgan.release.settings import run_from_release
from idpgan.release.verify import Opened, is_bare, open_release
from idpgan.training.config import ReleaseConfig
from idpgan.training.samples import cell_maxima, sample_grid_shape, sample_grids, write_samples

_LOG = logging.getLogger(__name__)
_PIXEL_TOLERANCE = 2  # of 255 grey levels: another machine rounds its sums in another way


class GeneratorArtifact:
    """A generator in eval mode and a grid of ``samples`` images, rounded up to full rows; see `Artifact`.

    Attributes:
        unchecked: What `read` could not check, one sentence; None where it checked all.
    """

    kind: ClassVar[str] = "generator"
    unchecked: str | None = None

    def __init__(self, generator: Generator, samples: int) -> None:
        self.generator = generator
        self.samples = samples

    def files(self) -> Mapping[str, int]:
        """Return the weights and the grid, each with the most bytes it can have."""
        grid = sample_grid_shape(self.generator, num=self.samples)
        return {WEIGHTS: most_weight_bytes(self.generator), SAMPLES: most_png_bytes(grid)}

    def describe(self) -> dict[str, Any]:
        """Return the shapes of the networks, the classes, and how many images the grid shows."""
        return {**describe(self.generator), "samples": self.samples}

    def write(self, folder: Path) -> None:
        """Write the weights and the grid."""
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
        path = self.generator.config.generator
        self.unchecked = (
            f"{path} is code of whoever wrote the release and was not run: the picture was not drawn again, and that "
            f"{SAMPLES} shows what the generator draws is their word"
        )
        return []

    def subject(self, facts: CardFacts) -> Subject:
        """Return the subject of a model card."""
        made, one_class, drawing, own, more = self.generator, "", "", "", ""  # drawing: how images are drawn
        if is_own_code(path := made.config.generator):
            own = (
                f"\nIts network is code of its makers, `{path}`, which is not in this folder: name it where you load, "
                "after reading it.\n"
            )
            more = f', module="{path}"'
        if isinstance(made, PopulationGenerator) and is_own_code(made.config.simulator):
            own = _proposed(made)
        shape = ", ".join(map(str, made.image_shape))
        if made.classes:
            one_class = "images = generator.sample(100, labels=0, seed=1)  # of one class, by its number or its name\n"
        if made.config.truncation is not None:
            drawing = (
                f"Images are drawn to be looked at, with {made.config.truncation:g} of the spread; to train on, draw "
                f'them with\n`purpose="training"`, {made.config.temperature:g} of it.\n'
            )
        if made.teacher is not None:
            drawing += (
                f"For every image {made.candidates} are drawn, and a private classifier, which lies in the same file, "
                "chooses the one that looks most\nlike its class.\n"
            )
        return Subject(
            title=f"Generator of {facts.data} images, method {facts.method}",
            heading="The generator",
            section=(
                f"{shown_shape(made.image_shape)}, {shown_classes(made.classes)}.\n{drawing}{own}"
                f"Weights in `{WEIGHTS}`, shapes and the run's settings in `{CONFIG}`, a grid of generated images in\n"
                f"`{SAMPLES}`.\n\n```python\nimport idpgan\n"
                f'generator = idpgan.load_generator("FOLDER"{more})\n'
                f"images = generator.sample(100, seed=1)  # (100, {shape}) in [-1, 1]\n{one_class}"
                "generator.privacy  # claimed, proven and audited\n"
                f'data = idpgan.SyntheticDataset("FOLDER", num=1000{more})  # a torch.utils.data.Dataset\n```'
            ),
            covered=(
                "Images drawn from this generator are covered by the **proven** guarantee below, however many are "
                "drawn."
            ),
            unprotected=(
                "Do not hand this generator, or images drawn from it, to anyone who may not see the training images."
            ),
            head={"library_name": "idpgan", "pipeline_tag": "unconditional-image-generation"},
            tags=("synthetic-images",),
            picture=SAMPLES,
            public=public_of_a_run(facts),
        )


KINDS = {GeneratorArtifact.kind: Kind(GeneratorArtifact, run_from_release)}


@typed
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


def _proposed(made: PopulationGenerator) -> str:
    """Say which simulator of the user proposed the images of a population."""
    stated = (
        f"license as stated by whoever made this release: {plain(made.config.license)}"
        if made.config.license
        else ("no license was stated")
    )
    weights = f"SHA-256 of its weights: `{made.proposer}`" if made.proposer else "no weights were found in it"
    return (
        f"\nThe images that it varies were drawn by the simulator `{made.config.simulator}` ({stated};\n{weights}), "
        "and chosen by the votes. That program\nis not in this folder and is not needed.\n"
    )


def public_of_a_run(facts: CardFacts) -> tuple[str, ...]:
    """Return which facts about its data every run takes as public."""
    return (
        f"the number of private images ({facts.num_private:,}) and their order, the image size, the channels and the "
        "list of classes",
    )


def shown_classes(classes: tuple[str, ...]) -> str:
    """Return class names as Markdown."""
    if not classes:
        return "unconditional"
    return f"conditional on {len(classes)} classes: {', '.join(map(plain, classes))}"
