"""``idpgan verify``: every kind of release, and how the settings that stand in one are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idpgan.continual.settings import StreamTable
from idpgan.data.config import WHERE_FILES_LIE
from idpgan.data.load import SOURCES, DataShape, Sizes
from idpgan.errors import ConfigError
from idpgan.host import own_state
from idpgan.obfuscate.settings import ObfuscatedArtifact, ObfuscationTable
from idpgan.publish.plan import PublicationTable
from idpgan.release.answers import AnswersArtifact
from idpgan.release.artifact import Kind
from idpgan.release.classifier import ClassifierArtifact
from idpgan.release.generator import GeneratorArtifact
from idpgan.release.images import ImagesArtifact
from idpgan.release.model import KIND as MODEL
from idpgan.release.model import ModelArtifact
from idpgan.release.settings import Settings, settings_of_run
from idpgan.release.verify import Verification, verify_release
from idpgan.training.config import build_config, refuse_unsound
from idpgan.training.plan import plan_run

_PUBLIC_ELSEWHERE = "public"  # placeholder for data.public_root, which is not released


@own_state()
def verify(path: Path) -> Verification:
    """Verify a release of any kind; see `verify_release`."""
    return verify_release(path, KINDS)


def read_run(table: Any, described: Mapping[str, Any], document: Mapping[str, Any]) -> Settings:
    """Return the settings of a run, from its entry in config.json.

    Raises:
        InputError: If the entry is not the config of a run, or `idpgan train` refuses it.
    """
    data, num_public = table.get("data"), document["num_public"]
    if not isinstance(data, dict) or set(WHERE_FILES_LIE) & set(data):
        raise ConfigError("config.json has no [data], or names folders of the machine that the run was trained on.")
    if num_public and not (data.get("public_share") or data.get("public")):  # they came from a separate folder
        table = {**table, "data": {**data, "public_root": _PUBLIC_ELSEWHERE}}
    config = build_config(table, "config.json")
    if config.data.name not in SOURCES:
        raise ConfigError(f"config.json: data.name = {ascii(config.data.name)[:60]} is not a known data set.")
    refuse_unsound(config)
    channels, height, width = described["image_shape"]
    classes = tuple(described["classes"]) or tuple(map(str, range(document["num_classes"])))
    sizes = Sizes(num_public, document["num_private"], 0, 0)
    return settings_of_run(plan_run(config, DataShape(sizes, (channels, height, width), classes)))


KINDS: Mapping[str, Kind] = {
    GeneratorArtifact.kind: Kind(GeneratorArtifact, read_run),
    ImagesArtifact.kind: Kind(ImagesArtifact, PublicationTable.from_release),
    ObfuscatedArtifact.kind: Kind(ObfuscatedArtifact, ObfuscationTable.from_release),
    ClassifierArtifact.kind: Kind(ClassifierArtifact, read_run),
    AnswersArtifact.kind: Kind(AnswersArtifact, StreamTable.from_release),
    ModelArtifact.kind: MODEL,
}
