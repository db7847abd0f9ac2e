"""What is given away is one kind of thing: an `Artifact`, be it a generator, images or the answers of a stream.

A new kind is one class that does what `Artifact` asks, and one row in `idpgan.jobs.verify.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from idpgan.release.card import CardFacts, Subject
from idpgan.release.settings import Settings


class Artifact(Protocol):
    """What is given away, apart from the proof of its epsilon.

    An artifact that is made from a released thing is whole. One that `from_description` makes of an untrusted
    config.json knows only which files it must have; `read` gives it their content.

    Attributes:
        kind: Names it in config.json, and the entry that describes it.
    """

    kind: ClassVar[str]

    def files(self) -> Mapping[str, int]:
        """Return its own files, ``/`` between folder and name, each with the most bytes that it can have."""

    def describe(self) -> dict[str, Any]:
        """Return what config.json says of it, JSON values: enough to read its files. All of it is public."""

    def write(self, folder: Path) -> None:
        """Write its files into a folder."""

    def subject(self, facts: CardFacts) -> Subject:
        """Return what the card says of it; only what `describe` returns is known of it."""

    @classmethod
    def from_description(cls, described: Any) -> Self:
        """Return the artifact that a config.json describes, without content.

        Raises:
            InputError: If ``described`` is not what `describe` returns; it is checked as an enemy's.
        """

    def read(self, files: Mapping[str, bytes]) -> list[str]:
        """Take the content of its files, an enemy's; return what of it does not fit, one sentence each.

        Raises:
            InputError: If the rest cannot be checked.
        """


@dataclass(frozen=True)
class Kind:
    """How a release of one kind is read.

    Attributes:
        artifact: The class.
        settings: Returns the `Settings` that config.json holds, from its entry "settings", the artifact's description
            and the content of privacy.json, all of them an enemy's; raises `InputError`.
    """

    artifact: type[Artifact]
    settings: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Settings]
