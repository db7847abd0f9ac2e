"""The folder to give away: everything in it is covered by the epsilon that stands in its privacy.json.

The folder is whole or absent: it is filled under a hidden name beside its place and then renamed, whatever ends the
program in between.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from idpgan.data.load import DataShape, Split
from idpgan.errors import InputError
from idpgan.files import whole_folder, write_text_atomic
from idpgan.models.checkpoint import CONFIG, WEIGHTS, save_generator
from idpgan.models.generator import Generator
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.privacy.ledger import Ledger
from idpgan.release.card import CardFacts, render_card
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig
from idpgan.training.method import Method
from idpgan.training.samples import write_samples

PRIVACY = "privacy.json"
CARD = "MODEL_CARD.md"
SAMPLES = "samples.png"
FORMAT = "idpgan release 2"
FILES = (WEIGHTS, CONFIG, SAMPLES, CARD)  # what privacy.json holds the hashes of
_WHERE_FILES_LIE = {"root", "public_root"}


def write_release(
    run: RunFolder, config: RunConfig, method: Method, ledger: Ledger, *, delta: float, split: Split
) -> None:
    """Write ``release/``: generator, config, sample grid, model card, and privacy.json with the others' hashes.

    Nothing here is computed from private images except through what the ledger has charged: the generator is the
    method's output, the samples are drawn from it, and N, image size and classes are declared public. A release that
    stands already is left as it is: the run was finished then, and an audited value may have been added since.

    Args:
        run: The run.
        config: Its config; paths on the curator's machine are left out of the released copy.
        method: Gives generator and privacy report.
        ledger: Its events are released, so that anyone can recompute the proven epsilon.
        delta: Where epsilon is stated.
        split: Only its declared sizes are used.

    Raises:
        InputError: If something else lies where the release is to be.
    """
    remove_leftovers(run.release)
    if (run.release / PRIVACY).is_file() and not run.release.is_symlink():
        return
    foreign = [item.name for item in run.release.iterdir()] if run.release.is_dir() else []
    foreign = sorted(set(foreign) - {*FILES, PRIVACY})
    if foreign:
        raise InputError(
            f"{run.release} holds {foreign[0]!a}, which is no part of a release. Move it away, and resume."
        )
    generator, shape = cast(Generator, method.generator), split.shape
    public = public_settings(config)
    with whole_folder(run.release) as folder:
        save_generator(folder, generator, extra={"run": public})
        write_samples(folder / SAMPLES, generator, num=config.release.samples)
        version = importlib.metadata.version("idpgan")
        document = privacy_document(method.privacy(), shape, ledger.events, delta=delta, version=version)
        seal(folder, document, card_facts(document, config, generator))


def public_settings(config: RunConfig) -> dict[str, Any]:
    """Return a config as it is released: without where files lie on the curator's machine."""
    public = config.model_dump(mode="json", exclude_none=True)
    public["data"] = {key: value for key, value in public["data"].items() if key not in _WHERE_FILES_LIE}
    return public


def privacy_document(
    report: PrivacyReport, shape: DataShape, events: Sequence[Event], *, delta: float, version: str
) -> dict[str, Any]:
    """Return the content of privacy.json but for the files' hashes: the three numbers, and what proves one of them."""
    unit, relation = report.proven.unit, report.proven.relation
    return {
        "format": FORMAT,
        "idpgan": version,
        "report": report.to_json(),
        "num_private": shape.num_private,
        "num_public": shape.sizes.public,
        "num_classes": len(shape.classes),
        "delta": delta,
        "unit": str(unit),
        "relation": str(relation),
        "events": [event.to_json() for event in events],
    }


def card_facts(document: Mapping[str, Any], config: RunConfig, generator: Generator) -> CardFacts:
    """Return what the card says, from what else is released."""
    return CardFacts(
        data=config.data.name,
        method=config.method.name,
        image_shape=generator.image_shape,
        classes=generator.classes,
        num_private=document["num_private"],
        num_public=document["num_public"],
        delta=document["delta"],
        version=document["idpgan"],
    )


def seal(folder: Path, document: Mapping[str, Any], facts: CardFacts) -> None:
    """Write card and privacy.json into a folder that holds the other files."""
    report = PrivacyReport.from_json(document["report"])
    write_text_atomic(folder / CARD, render_card(report, facts))
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    write_text_atomic(folder / PRIVACY, privacy_text(document, hashes))


def privacy_text(document: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """Return privacy.json as it is written."""
    return json.dumps({**document, "files": dict(hashes)}, indent=2, allow_nan=False) + "\n"


def remove_leftovers(target: Path) -> None:
    """Remove the hidden folders that a kill in `whole_folder` left beside ``target``."""
    for suffix in ("part", "old"):
        for item in target.parent.glob(f".{target.name}.*.{suffix}"):
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
