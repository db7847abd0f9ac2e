"""The folder to give away: everything in it is covered by the epsilon that stands in its privacy.json."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any, cast

from idpgan.data.load import Split
from idpgan.gan.config import RunConfig
from idpgan.models.checkpoint import CONFIG, WEIGHTS, save_generator
from idpgan.models.generator import Generator
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.privacy.ledger import Ledger
from idpgan.report.card import write_card
from idpgan.run import RunFolder, sha256_file, write_text_atomic
from idpgan.training.method import Method
from idpgan.training.samples import write_samples

PRIVACY = "privacy.json"
CARD = "MODEL_CARD.md"
SAMPLES = "samples.png"
FORMAT = "idpgan release 1"
FILES = (WEIGHTS, CONFIG, SAMPLES, CARD)  # what privacy.json holds the hashes of
_WHERE_FILES_LIE = {"root", "public_root"}


def write_release(
    run: RunFolder, config: RunConfig, method: Method, ledger: Ledger, *, delta: float, split: Split
) -> None:
    """Write ``release/``: generator, config, sample grid, model card and, last, privacy.json with the others' hashes.

    Nothing here is computed from private images except through what the ledger has charged: the generator is the
    method's output, the samples are drawn from it, and N, image size and classes are declared public.

    Args:
        run: The run.
        config: Its config; paths on the curator's machine are left out of the released copy.
        method: Gives generator and privacy report.
        ledger: Its events are released, so that anyone can recompute the proven epsilon.
        delta: Where epsilon is stated.
        split: Only its declared sizes are used.
    """
    generator = cast(Generator, method.generator)
    public = config.model_dump(mode="json", exclude_none=True)
    public["data"] = {key: value for key, value in public["data"].items() if key not in _WHERE_FILES_LIE}
    report = method.privacy()
    save_generator(run.release, generator, extra={"run": public})
    write_samples(run.release / SAMPLES, generator, num=config.release.samples)
    write_card(
        run.release / CARD, report, public, generator, num_private=split.num_private, num_public=len(split.public)
    )
    document = privacy_document(run.release, report, ledger, delta=delta, num_private=split.num_private)
    write_text_atomic(run.release / PRIVACY, json.dumps(document, indent=2, allow_nan=False) + "\n")


def privacy_document(
    folder: Path, report: PrivacyReport, ledger: Ledger, *, delta: float, num_private: int
) -> dict[str, Any]:
    """Return the content of privacy.json: the three numbers, the events that prove one of them, and file hashes."""
    return {
        "format": FORMAT,
        "idpgan": importlib.metadata.version("idpgan"),
        "report": report.to_json(),
        "num_private": num_private,
        "delta": delta,
        "unit": str(ledger.unit),
        "relation": str(ledger.relation),
        "events": [event.to_json() for event in ledger.events],
        "files": {name: sha256_file(folder / name) for name in FILES},
    }
