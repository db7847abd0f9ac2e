"""``idpgan verify``: every kind of release; and what other commands open of one, checked before it is read."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from idpgan.host import own_state
from idpgan.release.artifact import Kind
from idpgan.release.verify import Verification, open_release, verify_release

if TYPE_CHECKING:
    from idpgan.models.generator import Generator

_FILES = {  # kind -> the file with its row in a table KINDS: no kind is read by the code of another
    "generator": "release.generator",
    "images": "publish.plan",
    "obfuscated": "publish.plan",
    "classifier": "release.classifier",
    "stream": "continual.settings",
    "model": "release.model",
}


class _Kinds(Mapping[str, Kind]):
    """All kinds of release by name; the code of one is imported when it is asked for."""

    def __getitem__(self, name: str) -> Kind:
        kind: Kind = importlib.import_module(f"idpgan.{_FILES[name]}").KINDS[name]
        return kind

    def __contains__(self, name: object) -> bool:
        return name in _FILES

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)


KINDS = _Kinds()


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
    from idpgan.metrics.source import kind_of
    from idpgan.release.contained import release_around
    from idpgan.release.generator import load_generator

    if kind_of(path) == "generator":
        return load_generator(path, module)
    if release := release_around(path):
        open_release(release, KINDS)
    return path
