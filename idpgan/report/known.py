"""What the files of a run say, read before anything is written about it; and the files that commands have left."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idpgan.data.load import DataShape, describe
from idpgan.errors import InputError
from idpgan.files import parse_json, read_plain
from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES
from idpgan.privacy.books import Books
from idpgan.privacy.guarantee import Guarantee, PrivacyReport
from idpgan.privacy.ledger import Budget
from idpgan.release.artifact import Artifact, Kind
from idpgan.release.folder import PRIVACY
from idpgan.release.received import Stated, describe_release, read_privacy
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig

MOST_BYTES = 1 << 27  # of a result file
OTHER_VERSION = (KeyError, TypeError, ValueError, IndexError, AttributeError)  # what a foreign result file may raise
Result = tuple[Mapping[str, Any] | None, str | None]


@dataclass(frozen=True)
class Known:
    """What the files of a run say.

    Attributes:
        run: The folder.
        config: Its settings.
        stated: What the release states; None before there is one.
        artifact: What the release describes; likewise.
        books: The ledger; None for a copy without state/.
        shape: What is public of the data, where no release says so.
        results: By name, the content of a result file, or why there is none; neither where there is no file.
    """

    run: RunFolder
    config: RunConfig
    stated: Stated | None
    artifact: Artifact | None
    books: Books | None
    shape: DataShape | None
    results: Mapping[str, Result]

    @property
    def name(self) -> str:
        """Of the run, as a command takes it."""
        return shlex.quote(str(self.run.path))

    @property
    def classes(self) -> tuple[str, ...]:
        """Of the data."""
        described = {} if self.artifact is None else self.artifact.describe()
        return tuple(described.get("classes") or (self.shape.classes if self.shape else ()))

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(C, H, W)."""
        described = {} if self.artifact is None else self.artifact.describe()
        found = described.get("image_shape") or (self.shape.image_shape if self.shape else None)
        return None if found is None else (found[0], found[1], found[2])

    @property
    def target(self) -> Budget | None:
        """What the run may spend; None = no limit."""
        return self.config.ledger_terms()[2]

    @property
    def delta(self) -> float:
        """Where epsilon is stated, as far as that is known."""
        if self.stated is not None:
            return float(self.stated.document["delta"])
        if self.shape is not None:
            return self.config.stated_delta(self.shape.num_private)
        target = None if self.books is None else self.books.terms.target
        return target.delta if target is not None else self.config.privacy.delta or 0.0

    @property
    def report(self) -> PrivacyReport | None:
        """The three numbers, the audited one from audit.json where the release does not state it."""
        if self.stated is None:
            return None
        told, (found, _) = self.stated.report, self.results["audit"]
        if told.audited is not None or found is None:
            return told
        try:
            result, (unit, relation) = found["result"], (told.proven.unit, told.proven.relation)
            basis = f"audit.json, confidence {result['confidence']:g}; the release does not state it yet"
            bound = Guarantee(float(result["epsilon_lower"]), float(result["delta"]), unit, relation, basis)
        except OTHER_VERSION:
            return told
        return dataclasses.replace(told, audited=bound)


def gathered(run: RunFolder, config: RunConfig, kinds: Mapping[str, Kind], formats: Mapping[str, str]) -> Known:
    """Read what the files of a run say.

    Args:
        run: The folder.
        config: Its settings.
        kinds: How each kind of release is read.
        formats: Of each result file, by the name of its path in the run.

    Raises:
        InputError: If the release or the ledger cannot be read.
    """
    stated = artifact = books = shape = None
    if (run.release / PRIVACY).is_file():
        stated = read_privacy(run.release / PRIVACY)
        artifact, _, _ = describe_release(read_plain(run.release / CONFIG, MOST_TEXT_BYTES), kinds)
    else:  # nothing says yet what is public of the data
        with contextlib.suppress(InputError):
            shape = describe(config.data)
    if run.ledger.is_file():
        books = Books.parse(read_plain(run.ledger, MOST_BYTES), run.ledger)
    results = {name: _read(getattr(run, name), form) for name, form in formats.items()}
    return Known(run, config, stated, artifact, books, shape, results)


def _read(path: Path, form: str) -> Result:
    """Return the content of a result file, or why there is none; neither where there is no file."""
    if not path.is_file():
        return None, None
    try:
        found = parse_json(read_plain(path, MOST_BYTES))
    except ValueError as error:  # InputErrors too
        return None, f"{path.name} cannot be read ({error})."
    if not isinstance(found, dict) or found.get("format") != form:
        return None, f"{path.name} was written by another version of idpgan."
    return found, None
