"""``idpgan verify``: every kind of release; and what other commands open of one, checked before it is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from idpgan.continual.settings import StreamTable
from idpgan.host import own_state
from idpgan.metrics.source import kind_of
from idpgan.models.generator import Generator
from idpgan.publish.plan import PublicationTable
from idpgan.release import classifier, generator, model
from idpgan.release.answers import AnswersArtifact
from idpgan.release.artifact import Kind
from idpgan.release.contained import release_around
from idpgan.release.images import ImagesArtifact
from idpgan.release.verify import Verification, open_release, verify_release


@own_state()
def verify(path: Path) -> Verification:
    """Verify a release of any kind; see `verify_release`."""
    return verify_release(path, KINDS)


def opened(path: Path, module: str | None = None) -> Path | Generator:
    """Return the generator of a run or release, or the path of images, once the release that holds them was checked.

    ``module`` is the code of a generator that is its makers' own; see `idpgan.load_generator`.

    Raises:
        InputError: If nothing is there, or the release was changed.
    """
    if kind_of(path) == "generator":
        return generator.load_generator(path, module)
    if release := release_around(path):
        open_release(release, KINDS)
    return path


class ObfuscatedImages(ImagesArtifact):
    """Images that went through an obfuscator, as versions before 0.4.0 called them; they are `ImagesArtifact` now."""

    kind: ClassVar[str] = "obfuscated"


KINDS: Mapping[str, Kind] = {
    **generator.KINDS,
    ImagesArtifact.kind: Kind(ImagesArtifact, PublicationTable.from_release),
    ObfuscatedImages.kind: Kind(ObfuscatedImages, PublicationTable.from_release),
    **classifier.KINDS,
    AnswersArtifact.kind: Kind(AnswersArtifact, StreamTable.from_release),
    **model.KINDS,
}
