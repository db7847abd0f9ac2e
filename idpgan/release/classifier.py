"""A classifier as an artifact: its weights, its architecture, and the names of its classes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from pydantic import Field

from idpgan.config import Section, build
from idpgan.data.images import check_class_names
from idpgan.errors import InputError
from idpgan.files import CONFIG, write_bytes_atomic
from idpgan.models.checkpoint import (
    CLASSIFIER_WEIGHTS,
    is_classifier,
    most_weight_bytes,
    put_weights,
    weight_bytes,
)
from idpgan.models.private_classifier import PrivateClassifier, described_classifier
from idpgan.release.artifact import Kind
from idpgan.release.settings import run_from_release
from idpgan.release.verify import open_release


class _Described(Section):
    """The entry "classifier" of config.json."""

    network: str = Field(max_length=40)
    options: dict[str, int]
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...] = Field(min_length=2, max_length=1 << 16)


class ClassifierArtifact:
    """A classifier; an `idpgan.release.artifact.Artifact`.

    Args:
        classifier: What is given away, in eval mode.
    """

    kind: ClassVar[str] = "classifier"
    card: ClassVar[str] = "classifier"

    def __init__(self, classifier: PrivateClassifier) -> None:
        self.classifier = classifier

    def files(self) -> Mapping[str, int]:
        """Return the weights file with the most bytes it can have."""
        return {CLASSIFIER_WEIGHTS: most_weight_bytes(self.classifier)}

    def describe(self) -> dict[str, Any]:
        """Return the network with its options, the shape of its images, and the classes."""
        made = self.classifier
        return {
            "network": made.network,
            "options": made.options(),
            "image_shape": list(made.image_shape),
            "classes": list(made.classes),
        }

    def write(self, folder: Path) -> None:
        """Write the weights."""
        write_bytes_atomic(folder / CLASSIFIER_WEIGHTS, weight_bytes(self.classifier))

    @classmethod
    def from_description(cls, described: Any) -> Self:
        """Check network, shape and classes; the classifier is on torch's meta device until `read`."""
        checked = build(_Described, described, f"classifier of {CONFIG}")
        check_class_names(checked.classes)
        return cls(described_classifier(checked.network, checked.options, checked.image_shape, checked.classes))

    def read(self, files: Mapping[str, bytes]) -> list[str]:
        """Read the weights."""
        put_weights(self.classifier, files[CLASSIFIER_WEIGHTS], Path(CLASSIFIER_WEIGHTS), what="classifier")
        self.classifier.eval()
        return []


KINDS = {ClassifierArtifact.kind: Kind(ClassifierArtifact, run_from_release)}


def load_classifier(path: str | os.PathLike[str]) -> PrivateClassifier:
    """Load a released classifier on the CPU, in eval mode; no code is run, and no data is needed.

    Args:
        path: A run folder (its ``release/`` is read), a release folder, or ``classifier.safetensors`` in it.

    Returns:
        The classifier: ``.predict(images)``, ``.probabilities(images)``, ``.classes``, and ``.privacy``, the report of
        its release. Hashes and settings were compared and the price was computed again, as `idpgan verify` does.

    Raises:
        InputError: If no classifier was released there, a file is missing or damaged, or the release was changed.
    """
    source = Path(path)
    if not is_classifier(source):
        raise InputError(
            f"{source} is not a released classifier: there is no {CLASSIFIER_WEIGHTS}. Name a finished run of a "
            "classifier, or its release folder."
        )
    folder = source if source.is_dir() else source.parent
    folder = folder if (folder / CLASSIFIER_WEIGHTS).is_file() else folder / "release"
    release = open_release(folder, KINDS)
    artifact = cast(ClassifierArtifact, release.artifact)
    artifact.read(release.files)
    artifact.classifier.privacy = release.stated.report
    return artifact.classifier
