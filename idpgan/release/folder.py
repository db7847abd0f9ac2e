"""The folder to give away: the epsilon in its privacy.json covers everything in it.

The folder is whole or absent, whatever ends the program: it is filled under a hidden name beside its place and then
renamed.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from idpgan.errors import InputError
from idpgan.files import CONFIG, json_text, whole_folder, write_bytes_atomic, write_text_atomic
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.release.artifact import Artifact
from idpgan.release.card import render_card
from idpgan.release.mark import PICTURE, DigitalSource, Mark, identified_by
from idpgan.release.statement import PRIVACY, Settings, Statement
from idpgan.version import made_with

if TYPE_CHECKING:
    from idpgan.models.generator import Generator

CARD = "README.md"


def write_release(
    target: Path, artifact: Artifact, settings: Settings, report: PrivacyReport, events: Sequence[Event]
) -> None:
    """Write the folder to give away: the artifact's files, config.json, card, and privacy.json with the others' hashes.

    Nothing here is computed from private data except through what a ledger has charged: ``events`` paid for the
    artifact, its picture is drawn from it, and the settings are public. With the events anyone can compute the proven
    epsilon again.

    Raises:
        InputError: If ``target`` holds a release, or anything that does not belong to a release. An incomplete release
            without privacy.json is replaced, and what a kill left beside it is removed.
    """
    remove_leftovers(target)
    if target.is_symlink() or os.path.lexists(target / PRIVACY) or (os.path.lexists(target) and not target.is_dir()):
        raise InputError(
            f"{target} exists already, and a release is not written over. Move it away or choose another name."
        )
    names = hashed_files(artifact)
    inner = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    found = (item.relative_to(target).as_posix() for item in target.rglob("*"))
    if foreign := sorted(set(found) - {*names, *inner}):
        raise InputError(
            f"{target} holds {foreign[0]!a}, which is not part of a release. Move it away or choose another name."
        )
    with whole_folder(target) as folder:
        artifact.write(folder)
        write_text_atomic(folder / CONFIG, config_text(artifact, settings))
        statement = Statement.of(settings, artifact.describe(), artifact.files(), report, events)
        _put_marks(folder, artifact, statement)
        seal(folder, statement, artifact, card_text(statement, artifact, settings))


def drawn_by(generator: Generator, picture: bytes) -> bytes:
    """Return a PNG that a generator drew, with the mark of its weights."""
    from idpgan.models.checkpoint import weight_bytes

    weights = hashlib.sha256(weight_bytes(generator)).hexdigest()
    return Mark(DigitalSource.TRAINED, made_with(), weights).on(picture)


def _put_marks(folder: Path, artifact: Artifact, statement: Statement) -> None:
    """Mark all pictures of a folder, where it is stated that they are."""
    mark = statement.mark_by((folder / identified_by(artifact.files())).read_bytes())
    if mark is None:
        return
    for picture in [folder / name for name in artifact.files() if name.endswith(PICTURE)]:
        picture.write_bytes(mark.on(picture.read_bytes()))


def config_text(artifact: Artifact, settings: Settings) -> str:
    """Return config.json: the kind of artifact, its description, and the settings it was made with."""
    content = {"kind": artifact.kind, artifact.kind: artifact.describe(), "settings": settings.table}
    return json_text(content)


def card_text(statement: Statement, artifact: Artifact, settings: Settings) -> str:
    """Return README.md as it is written."""
    return render_card(statement, settings, artifact.card, artifact)


def hashed_files(artifact: Artifact) -> tuple[str, ...]:
    """Return the names of all files that privacy.json holds the hashes of, in its order."""
    return (*artifact.files(), CONFIG, CARD)


def seal(folder: Path, statement: Statement, artifact: Artifact, card: str) -> None:
    """Write card and privacy.json into a folder that holds the other files."""
    write_text_atomic(folder / CARD, card)
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in hashed_files(artifact)}
    write_bytes_atomic(folder / PRIVACY, statement.but(files=hashes).content)


def remove_leftovers(target: Path) -> None:
    """Remove the hidden folders that a kill in `whole_folder` left beside ``target``."""
    for suffix in ("part", "old"):
        for item in target.parent.glob(f".{glob.escape(target.name)}.*.{suffix}"):
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
