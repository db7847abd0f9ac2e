"""The folder to give away: the epsilon in its privacy.json covers everything in it.

The folder is whole or absent, whatever ends the program: it is filled under a hidden name beside its place and then
renamed.

Format 5 differs from 4 by the entries "risk" and "mark" of privacy.json (see `stated_risk` and `idpgan.release.mark`).
Format 4 differs from 3 in config.json, which holds no key that has its default (see `idpgan.config.Section.to_json`),
and in the entry "idpgan" of privacy.json, which names the code beside the version (see `idpgan.version`).
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from idpgan.errors import InputError
from idpgan.files import json_text, whole_folder, write_text_atomic
from idpgan.models.checkpoint import CONFIG, weight_bytes
from idpgan.models.generator import Generator
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.privacy.risk import Risk
from idpgan.release.artifact import Artifact
from idpgan.release.card import render_card
from idpgan.release.mark import KEY as MARK
from idpgan.release.mark import PICTURE, DigitalSource, Mark, identified_by, mark_of
from idpgan.release.settings import Settings
from idpgan.version import made_with

PRIVACY = "privacy.json"
CARD = "README.md"
FORMAT = "idpgan release 5"
FORMATS = ("idpgan release 3", "idpgan release 4", FORMAT)  # formats that can be read


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
        document = privacy_document(report, settings, events)
        _put_marks(folder, artifact, settings, document)
        seal(folder, document, artifact, card_text(report, document, artifact, settings))


def drawn_by(generator: Generator, picture: bytes) -> bytes:
    """Return a PNG that a generator drew, with the mark of its weights."""
    weights = hashlib.sha256(weight_bytes(generator)).hexdigest()
    return Mark(DigitalSource.TRAINED, made_with(), weights).on(picture)


def _put_marks(folder: Path, artifact: Artifact, settings: Settings, document: dict[str, Any]) -> None:
    """Mark all pictures of a folder, and say so in the content of its privacy.json."""
    pictures = [folder / name for name in artifact.files() if name.endswith(PICTURE)]
    if settings.mark is None or not pictures:
        return
    document[MARK] = settings.mark.value
    mark = mark_of(document, (folder / identified_by(artifact.files())).read_bytes())
    for picture in pictures:
        picture.write_bytes(mark.on(picture.read_bytes()))


def config_text(artifact: Artifact, settings: Settings) -> str:
    """Return config.json: the kind of artifact, its description, and the settings it was made with."""
    content = {"kind": artifact.kind, artifact.kind: artifact.describe(), "settings": settings.table}
    return json_text(content)


def privacy_document(report: PrivacyReport, settings: Settings, events: Sequence[Event]) -> dict[str, Any]:
    """Return the content of privacy.json but for the files' hashes: the three numbers, and what proves one of them."""
    return {
        "format": FORMAT,
        "idpgan": made_with(),
        "report": report.to_json(),
        "num_private": settings.num_private,
        "num_public": settings.num_public,
        "num_classes": settings.num_classes,
        "delta": settings.plan.price.delta,
        "unit": str(report.proven.unit),
        "relation": str(report.proven.relation),
        "events": [event.to_json() for event in events],
        "risk": None if (risk := stated_risk(report, settings, events)) is None else risk.to_json(),
    }


def stated_risk(report: PrivacyReport, settings: Settings, events: Sequence[Event]) -> Risk | None:
    """Return what any attack finds at most, by all charges that a receiver profits from; None where nothing holds."""
    return Risk.of(settings.plan.joint_events(events)) if report.private else None


def card_text(report: PrivacyReport, document: Mapping[str, Any], artifact: Artifact, settings: Settings) -> str:
    """Return README.md as it is written."""
    return render_card(report, document, settings, artifact.card, artifact)


def hashed_files(artifact: Artifact) -> tuple[str, ...]:
    """Return the names of all files that privacy.json holds the hashes of, in its order."""
    return (*artifact.files(), CONFIG, CARD)


def seal(folder: Path, document: Mapping[str, Any], artifact: Artifact, card: str) -> None:
    """Write card and privacy.json into a folder that holds the other files."""
    write_text_atomic(folder / CARD, card)
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in hashed_files(artifact)}
    write_text_atomic(folder / PRIVACY, privacy_text(document, hashes))


def privacy_text(document: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """Return privacy.json as it is written."""
    return json_text({**document, "files": dict(hashes)})


def remove_leftovers(target: Path) -> None:
    """Remove the hidden folders that a kill in `whole_folder` left beside ``target``."""
    for suffix in ("part", "old"):
        for item in target.parent.glob(f".{glob.escape(target.name)}.*.{suffix}"):
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
