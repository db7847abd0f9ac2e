"""``idpgan audit``: any method by name, or a finished run's own release with its own settings.

An audit of a run reads its config, and of `state/` only shapes and allocation: constructed neighbors, no image. Its
result is therefore as public as the settings are, and may stand in the release.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idpgan.audit.cases import CASES, AuditCase, Audited, Entry, Request
from idpgan.data.load import DataShape, known_shape
from idpgan.data.split import Sizes
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, read_plain, whole_folder, write_bytes_atomic, write_text_atomic
from idpgan.jobs import load_config, plan
from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES, WEIGHTS, describe_generator
from idpgan.models.perturbed import PIXEL_RANGE, ImageShape
from idpgan.privacy.guarantee import Guarantee, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.publish.audits import PUBLISHER_CASES
from idpgan.release.folder import PRIVACY, SAMPLES, card_facts, remove_leftovers, seal
from idpgan.release.received import read_privacy, release_config
from idpgan.release.verify import Verification, verify_release
from idpgan.run import RunFolder
from idpgan.synthesis import METHODS
from idpgan.synthesis.aggregate.config import sums_of
from idpgan.synthesis.aggregate.method import AggregateConfig, AggregatePrivacy
from idpgan.synthesis.audits import GAN_CASES, aggregate_case, channel_of, local_case, published_case
from idpgan.synthesis.dp_gan.method import Config as DpGanRun
from idpgan.synthesis.gaussian.audit import CASES as GAUSSIAN_CASES
from idpgan.synthesis.gaussian.audit import case_of as gaussian_case
from idpgan.synthesis.gaussian.config import Config as GaussianRun
from idpgan.synthesis.hybrid.method import Config as HybridRun
from idpgan.synthesis.local.method import Config as LocalRun
from idpgan.synthesis.published.config import Config as PublishedConfig
from idpgan.synthesis.published.config import most_accesses, pixel_noise
from idpgan.synthesis.step_audits import STEP_CASES, Steps, hybrid_case, steps_case

if TYPE_CHECKING:
    from idpgan.training.config import RunConfig

FORMAT = "idpgan audit 2"
AUDITABLE: dict[str, Entry] = {**CASES, **GAN_CASES, **GAUSSIAN_CASES, **STEP_CASES, **PUBLISHER_CASES}


def nothing_to_audit(what: str | Path) -> str | None:
    """Return why a method, or that of a run's folder, has no guarantee to audit, one sentence; None where it has."""
    name = load_config(RunFolder.open(what).config).method.name if isinstance(what, Path) else what
    info = METHODS.get(name)
    if info is None or info.claimed is not None or info.proven != "inf":
        return None
    return f"{info.reason}, so there is no guarantee to audit."


def method_case(name: str, request: Request) -> AuditCase:
    """Return the case of a method.

    Raises:
        InputError: If there is none of that name, it has no guarantee, or it cannot be asked for that.
    """
    nothing = nothing_to_audit(name)
    if nothing:
        raise InputError(nothing)
    if name not in AUDITABLE:
        from idpgan.config import nearest_hint

        raise InputError(f"'{name}' is neither a run nor a method. {nearest_hint(name, [*AUDITABLE, *METHODS])}")
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
        InputError: If it is no run, its method has no guarantee, or it has released nothing yet.
    """
    run = RunFolder.open(path)
    config = load_config(run.config)
    name = config.method.name
    nothing = nothing_to_audit(name)
    if nothing:
        raise InputError(nothing)
    if not (run.release / PRIVACY).is_file():
        shape = known_shape(config.data)
        facts = _Facts(shape.image_shape, len(shape.classes), shape.num_private, plan(config).delta)
        claimed = None
    else:
        stated = read_privacy(run.release / PRIVACY)
        content = read_plain(run.release / CONFIG, MOST_TEXT_BYTES)
        generator = describe_generator(content, run.release / CONFIG)
        private, delta = stated.document["num_private"], stated.document["delta"]
        facts = _Facts(generator.image_shape, len(generator.classes), private, delta)
        claimed = stated.report.claimed
    return RUN_CASES[name](run, config, facts, claimed)


def _prepared(run: RunFolder) -> Any:
    """Open what `prepare` released, for shapes and allocation."""
    from safetensors import SafetensorError, safe_open

    if not run.prepared.is_file():
        raise InputError(
            f"{run.path} has released nothing yet ({run.prepared.name} is missing). Let it start training."
        )
    try:
        return safe_open(run.prepared, framework="pt")
    except SafetensorError as error:
        raise InputError(f"{run.prepared} is damaged ({error}). Restore it from a copy.") from error


def _aggregate_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    method, terms = config.method, config.privacy
    if not (isinstance(method, AggregateConfig) and isinstance(terms, AggregatePrivacy)):
        raise TypeError("an aggregate run has an aggregate config.")
    return aggregate_case(_sums(run, method, terms), Request(terms.epsilon, terms.delta), claimed)


def _sums(run: RunFolder, method: AggregateConfig, terms: AggregatePrivacy) -> CellSums:
    """Return the mechanism of a release of sums that was made."""
    with _prepared(run) as tensors:
        cells, dimensions = tensors.get_slice("sums").get_shape()
    return sums_of(method, terms, cells, dimensions)


def _steps(config: DpGanRun) -> Steps:
    """Return the critic steps of a run of dp-gan, or of that part of a hybrid run."""
    event = config.step_event()
    return Steps(config.method, event.sample_rate or 0.0, event.noise_multiplier or 0.0, config.training.steps)


def _dp_gan_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    if not isinstance(config, DpGanRun):
        raise TypeError("a dp-gan run has a dp-gan config.")
    return steps_case(_steps(config), Request(config.privacy.epsilon, config.privacy.delta), claimed)


def _hybrid_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    if not isinstance(config, HybridRun):
        raise TypeError("a hybrid run has a hybrid config.")
    first, second = config.aggregate_part(), config.dp_gan_part(known_shape(config.data))
    request = Request(config.privacy.epsilon, config.privacy.delta)
    return hybrid_case(_sums(run, first.method, first.privacy), _steps(second), request, claimed)


def _gaussian_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    if not isinstance(config, GaussianRun):
        raise TypeError("a gaussian run has a gaussian config.")
    classes = tuple(map(str, range(facts.num_classes)))
    return gaussian_case(config, DataShape(Sizes(0, facts.num_private, 0, 0), facts.image_shape, classes), claimed)


def _local_run(run: RunFolder, config: RunConfig, facts: _Facts, claimed: Guarantee | None) -> AuditCase:
    if not isinstance(config, LocalRun):
        raise TypeError("a local run has a local config.")
    terms = config.terms(facts.image_shape, facts.num_classes, facts.num_private)
    public = bool(config.data.public_share or config.data.public_root or config.data.public)
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


RUN_CASES: dict[str, Callable[[RunFolder, RunConfig, _Facts, Guarantee | None], AuditCase]] = {
    "idp-gan-aggregate": _aggregate_run,
    "idp-gan-local": _local_run,
    "idp-gan-published": _published_run,
    "dp-gan": _dp_gan_run,
    "gaussian": _gaussian_run,
    "hybrid": _hybrid_run,
}


def audit_document(audited: Audited) -> dict[str, Any]:
    """Return the content of audit.json."""
    return {"format": FORMAT, "data_free": True, **audited.to_json()}


def write_audit(run: Path, audited: Audited) -> Path:
    """Write a run's audit.json; return where."""
    path = RunFolder.open(run).audit
    write_text_atomic(path, json.dumps(audit_document(audited), indent=2, allow_nan=False) + "\n", mode=PRIVATE_FILE)
    return path


def check_release(run: Path) -> Verification:
    """Return what is found of a run's release; refuse one that is missing or does not verify.

    Raises:
        InputError: Naming the first problem.
    """
    folder = RunFolder.open(run).release
    if folder.is_symlink():
        raise InputError(f"{folder} is a symbolic link, and nothing is written through one.")
    found = verify_release(folder)
    if not found.consistent:
        raise InputError(
            f"{folder} does not verify, so no audited value is written into it: {found.problems[0]} If it was left so "
            f"by a crash, remove it: idpgan train --resume {run} writes it again."
        )
    return found


def write_into_release(run: Path, audited: Audited) -> None:
    """Put the audited value into a run's privacy.json and model card.

    The release is written anew from the very files that were verified, and replaced as a whole.

    Raises:
        InputError: If the release does not verify, or the audit refutes what it says.
    """
    if audited.violation:
        raise InputError("The audit refutes the proven epsilon, so nothing was written into the release. Withdraw it.")
    folder = RunFolder.open(run)
    with folder.locked():
        remove_leftovers(folder.release)
        found = check_release(run)
        stated = read_privacy(folder.release / PRIVACY)
        report = dataclasses.replace(found.report, audited=audited.guarantee)
        config = release_config(found.files[CONFIG], stated.document["num_public"])
        generator = describe_generator(found.files[CONFIG], folder.release / CONFIG)
        document = {name: value for name, value in stated.document.items() if name != "files"}
        document["report"] = report.to_json()
        with whole_folder(folder.release) as part:
            for name in (WEIGHTS, CONFIG, SAMPLES):
                write_bytes_atomic(part / name, found.files[name])
            seal(part, document, card_facts(document, config, generator))
