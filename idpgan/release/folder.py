"""The folder to give away: everything in it is covered by the epsilon that stands in its privacy.json.

The folder is whole or absent: it is filled under a hidden name beside its place and then renamed, whatever ends the
program in between.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from idpgan.errors import InputError
from idpgan.files import whole_folder, write_text_atomic
from idpgan.models.checkpoint import CONFIG
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.release.artifact import Artifact
from idpgan.release.card import CardFacts, render_card
from idpgan.release.settings import Settings

PRIVACY = "privacy.json"
CARD = "README.md"
FORMAT = "idpgan release 3"


def write_release(
    target: Path, artifact: Artifact, settings: Settings, report: PrivacyReport, events: Sequence[Event]
) -> None:
    """Write what is given away: the artifact's files, config.json, card, and privacy.json with the others' hashes.

    Nothing here is computed from private data except through what a ledger has charged: ``events`` paid for the
    artifact, its picture is drawn from it, and the settings are public.

    Args:
        target: The folder to be.
        artifact: What is given away.
        settings: What it was made with.
        report: The three numbers.
        events: What was charged, so that anyone can compute the proven epsilon again.

    Raises:
        InputError: If a release lies there, or anything that is no part of one. What is left of one without
            privacy.json is replaced, and what a kill left beside it is removed.
    """
    remove_leftovers(target)
    if os.path.lexists(target):
        _refuse_to_replace(target, hashed_files(artifact))
    with whole_folder(target) as folder:
        artifact.write(folder)
        write_text_atomic(folder / CONFIG, config_text(artifact, settings))
        version = importlib.metadata.version("idpgan")
        seal(folder, privacy_document(report, settings, events, version=version), artifact, settings)


def _refuse_to_replace(target: Path, names: Sequence[str]) -> None:
    """Refuse to replace what is more than the remains of a release with files of these names."""
    if target.is_symlink() or not target.is_dir() or os.path.lexists(target / PRIVACY):
        raise InputError(
            f"{target} exists already, and a release is not written over. Move it away or choose another name."
        )
    inner = {name.split("/")[0] for name in names if "/" in name}
    found = (item.relative_to(target).as_posix() for item in target.rglob("*"))
    foreign = sorted(set(found) - {*names, *inner})
    if foreign:
        raise InputError(
            f"{target} holds {foreign[0]!a}, which is no part of a release. Move it away or choose another name."
        )


def config_text(artifact: Artifact, settings: Settings) -> str:
    """Return config.json: the kind of artifact, its description, and the settings it was made with."""
    content = {"kind": artifact.kind, artifact.kind: artifact.describe(), "settings": settings.to_json()}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def privacy_document(
    report: PrivacyReport, settings: Settings, events: Sequence[Event], *, version: str
) -> dict[str, Any]:
    """Return the content of privacy.json but for the files' hashes: the three numbers, and what proves one of them."""
    return {
        "format": FORMAT,
        "idpgan": version,
        "report": report.to_json(),
        "num_private": settings.num_private,
        "num_public": settings.num_public,
        "num_classes": settings.num_classes,
        "delta": settings.delta,
        "unit": str(report.proven.unit),
        "relation": str(report.proven.relation),
        "events": [event.to_json() for event in events],
    }


def card_facts(document: Mapping[str, Any], settings: Settings) -> CardFacts:
    """Return what the card says of the data, from what else is released."""
    return CardFacts(
        data=settings.data,
        method=settings.method,
        num_private=document["num_private"],
        num_public=document["num_public"],
        delta=document["delta"],
        version=document["idpgan"],
    )


def card_text(report: PrivacyReport, document: Mapping[str, Any], artifact: Artifact, settings: Settings) -> str:
    """Return README.md as it is written."""
    facts = card_facts(document, settings)
    return render_card(report, facts, artifact.subject(facts))


def hashed_files(artifact: Artifact) -> tuple[str, ...]:
    """Return the names of all files that privacy.json holds the hashes of, in its order."""
    return (*artifact.files(), CONFIG, CARD)


def seal(folder: Path, document: Mapping[str, Any], artifact: Artifact, settings: Settings) -> None:
    """Write card and privacy.json into a folder that holds the other files."""
    report = PrivacyReport.from_json(document["report"])
    write_text_atomic(folder / CARD, card_text(report, document, artifact, settings))
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in hashed_files(artifact)}
    write_text_atomic(folder / PRIVACY, privacy_text(document, hashes))


def privacy_text(document: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """Return privacy.json as it is written."""
    return json.dumps({**document, "files": dict(hashes)}, indent=2, allow_nan=False) + "\n"


def remove_leftovers(target: Path) -> None:
    """Remove the hidden folders that a kill in `whole_folder` left beside ``target``."""
    for suffix in ("part", "old"):
        for item in target.parent.glob(f".{glob.escape(target.name)}.*.{suffix}"):
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
