"""``idpgan audit``: any method by name, or a finished run's own release with its own settings.

An audit of a run reads its config, and of `state/` only shapes and allocation: constructed neighbours, no image. Its
result is therefore as public as the settings are, and may stand in the release.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idpgan.audit.cases import CASES, AuditCase, Audited, Entry, Request
from idpgan.data.load import known_shape
from idpgan.errors import InputError
from idpgan.gan.idp_terms import Config as PublishedConfig
from idpgan.gan.idp_terms import most_accesses, pixel_noise
from idpgan.models.checkpoint import CONFIG
from idpgan.models.perturbed import PIXEL_RANGE, ImageShape
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.report.audits import GAN_CASES, aggregate_case, channel_of, local_case, published_case
from idpgan.report.card import replace_audited
from idpgan.report.publisher_audits import PUBLISHER_CASES
from idpgan.report.release import CARD, PRIVACY
from idpgan.report.verify import verify_release
from idpgan.run import RunFolder, sha256_file, write_text_atomic

if TYPE_CHECKING:
    from idpgan.gan.config import RunConfig

FORMAT = "idpgan audit 1"
AUDITABLE: dict[str, Entry] = {**CASES, **GAN_CASES, **PUBLISHER_CASES}


def method_case(name: str, request: Request) -> AuditCase:
    """Return the case of a method.

    Raises:
        InputError: If there is none of that name, or it cannot be asked for that.
    """
    if name not in AUDITABLE:
        from idpgan.config import nearest_hint

        raise InputError(f"'{name}' is neither a run nor a method that can be audited. {nearest_hint(name, AUDITABLE)}")
    return AUDITABLE[name].case(name, request)


@dataclasses.dataclass(frozen=True)
class _Facts:
    """What is public about a run's data."""

    image_shape: ImageShape
    num_classes: int
    num_private: int
    delta: float


def run_case(path: Path) -> AuditCase:
    """Return the case of what a run released of its private images.

    Raises:
        InputError: If it is no run, or its method adds no noise.
    """
    from idpgan.jobs import load_config, plan

    run = RunFolder.open(path)
    config = load_config(run.config)
    name = config.method.name
    makers = {
        "idp-gan-aggregate": _aggregate_run,
        "idp-gan-local": _local_run,
        "idp-gan-published": _published_run,
    }
    if name not in makers:
        raise InputError(f"method '{name}' of {path} adds no noise, so there is no guarantee to audit.")
    document = _released(run)
    if document is None:
        shape = known_shape(config.data)
        facts = _Facts(shape.image_shape, len(shape.classes), shape.num_private, plan(config).delta)
        claimed = None
    else:
        generator = json.loads((run.release / CONFIG).read_text(encoding="utf-8"))["generator"]
        channels, height, width = generator["image_shape"]
        classes = len(generator["classes"])
        facts = _Facts((channels, height, width), classes, document["num_private"], document["delta"])
        claimed = PrivacyReport.from_json(document["report"]).claimed
    return makers[name](run, config, facts, claimed)


def _released(run: RunFolder) -> dict[str, Any] | None:
    """Return privacy.json of a finished run."""
    path = run.release / PRIVACY
    if not path.is_file():
        return None
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _prepared(run: RunFolder) -> Any:
    """Open what `prepare` released, for shapes and allocation."""
    from safetensors import safe_open

    if not run.prepared.is_file():
        raise InputError(
            f"{run.path} has released nothing yet ({run.prepared.name} is missing). Let it start training."
        )
    return safe_open(run.prepared, framework="pt")


def _aggregate_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    from idpgan.gan.idp_aggregate import AggregateConfig, AggregatePrivacy
    from idpgan.privacy.sums import CellSums

    method, terms = config.method, config.privacy
    if not (isinstance(method, AggregateConfig) and isinstance(terms, AggregatePrivacy)):
        raise TypeError("an aggregate run has an aggregate config.")
    with _prepared(run) as tensors:
        cells, dimensions = tensors.get_slice("sums").get_shape()
    sums = CellSums.calibrated(
        cells,
        dimensions,
        method.law,
        epsilon=terms.epsilon,
        delta=terms.delta,
        unit=terms.unit,
        relation=terms.relation,
        most_per_unit=terms.most_per_person if terms.unit is Unit.PERSON else 1,
    )
    return aggregate_case(sums, Request(terms.epsilon, terms.delta), claimed)


def _local_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    from idpgan.gan.idp_local import Config

    if not isinstance(config, Config):
        raise TypeError("a local run has a local config.")
    terms = config.terms(facts.image_shape, facts.num_classes, facts.num_private)
    public = bool(config.data.public_share or config.data.public_root)
    channel = channel_of(terms, config.method.projection, facts.image_shape, config.method.clip_norm, public=public)
    return local_case(channel, Request(terms.epsilon, terms.delta), claimed)


def _published_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    if not isinstance(config, PublishedConfig):
        raise TypeError("a published run has a published config.")
    pixels = pixel_noise(config, facts.image_shape)
    if config.method.allocation == "relevance":
        with _prepared(run) as tensors:
            allocation = tuple(tensors.get_tensor("allocation").tolist())
        pixels = dataclasses.replace(pixels, allocation=allocation)
    terms = config.privacy
    notes: tuple[str, ...] = (f"scale of the noise {pixels.scale:.4g} for a range of {PIXEL_RANGE:g}",)
    if config.model.conditional and facts.num_classes:
        notes += ("labels were left out: what the pixels show holds for both together",)
    said = claimed or Guarantee(
        terms.epsilon1 + terms.epsilon2, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "seed 004: eps1 + eps2"
    )
    accesses = most_accesses(config, facts.num_private)
    return published_case(pixels, accesses, facts.delta, said, notes)


def audit_document(audited: Audited) -> dict[str, Any]:
    """Return the content of audit.json."""
    return {"format": FORMAT, "data_free": True, **audited.to_json()}


def write_audit(run: Path, audited: Audited) -> Path:
    """Write a run's audit.json; return where."""
    path = RunFolder.open(run).audit
    write_text_atomic(path, json.dumps(audit_document(audited), indent=2, allow_nan=False) + "\n")
    return path


def check_release(run: Path) -> None:
    """Refuse a run whose release is missing or does not verify, before anything is computed for it.

    Raises:
        InputError: Naming the first problem.
    """
    folder = RunFolder.open(run).release
    problems = verify_release(folder).problems
    if problems:
        raise InputError(f"{folder} does not verify, so no audited value is written into it: {problems[0]}")


def write_into_release(run: Path, audited: Audited) -> None:
    """Put the audited value into a run's privacy.json and model card.

    Both files are replaced whole, the card first; privacy.json then holds its new hash. A crash between the two is seen
    by ``idpgan verify``, and mended by doing it again.

    Raises:
        InputError: If the release does not fit the audit.
    """
    folder = RunFolder.open(run).release
    document = json.loads((folder / PRIVACY).read_text(encoding="utf-8"))
    report = dataclasses.replace(PrivacyReport.from_json(document["report"]), audited=audited.guarantee)
    card = replace_audited((folder / CARD).read_text(encoding="utf-8"), audited.guarantee)
    write_text_atomic(folder / CARD, card)
    document["report"] = report.to_json()
    document["files"][CARD] = sha256_file(folder / CARD)
    write_text_atomic(folder / PRIVACY, json.dumps(document, indent=2, allow_nan=False) + "\n")
