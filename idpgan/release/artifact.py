"""`Artifact`, the interface of everything that is given away: a generator, images or the answers of a stream.

A new kind is one class that implements `Artifact`, its row in a table ``KINDS`` beside it, which
`idpgan.kinds` names, and one section of the card.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from idpgan.errors import InputError
from idpgan.files import CONFIG, parse_json
from idpgan.release.statement import Settings, Statement


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
            and privacy.json, all of them untrusted; raises `InputError`.
    """

    artifact: type[Artifact]
    settings: Callable[[Any, Mapping[str, Any], Statement], Settings]


def describe_release(content: bytes, kinds: Mapping[str, Kind]) -> tuple[Artifact, dict[str, Any], Kind]:
    """Return what a config.json describes, without content, and the whole table; ``kinds`` are the known ones.

    Raises:
        InputError: If it describes nothing of a known kind.
    """
    try:
        document = parse_json(content)
    except ValueError as error:
        raise InputError(f"{CONFIG} does not describe what is given away ({error}).") from error
    name = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise InputError(f"{CONFIG} does not describe what is given away: its kind is none of {', '.join(kinds)}.")
    return kinds[name].artifact.from_description(document.get(name)), document, kinds[name]


def read_settings(config: Mapping[str, Any], kind: Kind, artifact: Artifact, statement: Statement) -> Settings:
    """Return the settings that a config.json holds.

    Raises:
        InputError: If config.json holds no settings, or settings that could not make such a release.
    """
    table = config.get("settings")
    if not isinstance(table, dict):
        raise InputError(f"{CONFIG} has no settings.")
    return kind.settings(table, artifact.describe(), statement)


def as_loaded(artifact: Any, name: str) -> Any:
    """Return the network of a released artifact, its attribute ``name``, as a loaded one is.

    It is on the CPU and in eval mode, and its weights train but for those that are not trained, such as released
    moments: averages of networks keep no such flags.
    """
    network = getattr(artifact, name).to("cpu").eval()
    described = getattr(artifact.from_description(json.loads(json.dumps(artifact.describe()))), name)
    fixed = {key for key, weight in described.named_parameters() if not weight.requires_grad}
    for key, weight in network.named_parameters():
        weight.requires_grad_(key not in fixed)
    return network
