"""What a config that names a released generator as its simulator says of it: read from the release, once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idpgan.errors import ConfigError
from idpgan.jobs.verify import verify
from idpgan.models.checkpoint import WEIGHTS
from idpgan.release.generator import GeneratorArtifact


def with_origin(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sections of a config with [model.origin] as the release of ``data.public_generator`` says.

    A config that has [model.origin] already, as that of a run has, is returned as it is.

    Raises:
        ConfigError: If the release does not verify, is none of a generator, or nothing draws with it.
        InputError: If there is none.
    """
    data, model = table.get("data"), table.get("model", {})
    path = data.get("public_generator") if isinstance(data, Mapping) else None
    if not isinstance(path, str) or not isinstance(model, Mapping):
        return table
    if model.get("simulator") != "generator":
        raise ConfigError(
            f"data.public_generator = '{path}' is for model.simulator = \"generator\". Set that, or leave it out."
        )
    return table if "origin" in model else {**table, "model": {**model, "origin": origin_of(Path(path).expanduser())}}


def origin_of(path: Path) -> dict[str, Any]:
    """Return [model.origin] for the release of a run or a release folder, after `verify` found nothing wrong."""
    found = verify(path)
    if found.problems:
        raise ConfigError(
            f"data.public_generator = '{path}' does not verify: {found.problems[0]} Name a whole release."
        )
    artifact, settings, proven = found.artifact, found.settings, found.report.proven
    if not isinstance(artifact, GeneratorArtifact) or settings is None:
        raise ConfigError(f"data.public_generator = '{path}' is no release of a generator. Name one that is.")
    generator = artifact.generator
    origin = {
        "model": generator.config.to_json(),
        "image_shape": list(generator.image_shape),
        "classes": list(generator.classes),
        "weights": hashlib.sha256(found.files[WEIGHTS]).hexdigest(),
        "num_private": settings.num_private,
        "delta": proven.delta,
        "unit": str(proven.unit),
        "relation": str(proven.relation),
    }
    return origin | ({"epsilon": proven.epsilon} if proven.finite else {})
