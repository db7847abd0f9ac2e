"""`Artifact`, the interface of everything that is given away: a generator, images or the answers of a stream.

A new kind is one class that implements `Artifact`, one row in `idpgan.kinds.KINDS`, and one section of the card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from idpgan.release.settings import Settings


class Artifact(Protocol):
    """What is given away, without the proof of its epsilon.

    An artifact made from a released object is complete. An artifact that `from_description` makes from an untrusted
    config.json knows only which files it must have; `read` loads their content.

    Attributes:
        kind: Names it in config.json, and the entry that describes it.
        card: Names what ``templates/README.md`` says of it, which uses only what `describe` returns.
    """

    kind: ClassVar[str]
    card: ClassVar[str]

    def files(self) -> Mapping[str, int]:
        """Return the names of its files, ``/`` between folder and name, each with the most bytes that it can have."""

    def describe(self) -> dict[str, Any]:
        """Return its description for config.json, JSON values: enough to read its files. All of them are public."""

    def write(self, folder: Path) -> None:
        """Write its files into a folder."""

    @classmethod
    def from_description(cls, described: Any) -> Self:
        """Return the artifact that a config.json describes, without content.

        Raises:
            InputError: If ``described`` is not what `describe` returns; it is untrusted input.
        """

    def read(self, files: Mapping[str, bytes]) -> list[str]:
        """Load the content of its files, which is untrusted; return what does not fit, one sentence each.

        Raises:
            InputError: If the rest cannot be checked.
        """


@dataclass(frozen=True)
class Kind:
    """How a release of one kind is read.

    Attributes:
        artifact: The class.
        settings: Returns the `Settings` that config.json holds, from its entry "settings", the artifact's description
            and the content of privacy.json, all of them untrusted; raises `InputError`.
    """

    artifact: type[Artifact]
    settings: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Settings]
