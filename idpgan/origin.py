"""What a config states about the releases that it builds on: read from those releases, once.

A run builds on a release where ``data.public_generator`` names it, or where ``data.public_root`` holds images that it
released or that were drawn from it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idpgan.errors import ConfigError
from idpgan.files import WEIGHTS
from idpgan.models.pipeline_folder import describe_pipeline, is_pipeline
from idpgan.release.contained import contained_in, contained_in_export, said_format
from idpgan.release.export import MANIFEST, release_of
from idpgan.release.generator import GeneratorArtifact
from idpgan.release.statement import PRIVACY, read_privacy
from idpgan.training.config import Contained
from idpgan.training.plan import RunPlan

if TYPE_CHECKING:
    from idpgan.release.verify import Verification

_LAYOUT = {"generator", "latent_dim", "width", "drawing"}  # that an adapted generator has from what it adapts


def with_releases(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config's sections with [model.origin] and [[contained]] as stated by the releases that [data] names.

    A config that has these already, like that of a run, is returned unchanged.

    Raises:
        ConfigError: If a release does not verify, says nothing of its price, or is not one of a generator where
            ``data.public_generator`` names it.
        InputError: If a named release does not exist.
    """
    data, model = table.get("data"), table.get("model", {})
    if not isinstance(data, Mapping) or not isinstance(model, Mapping):
        return table
    path, root = data.get("public_generator"), data.get("public_root")
    wanted = model.get("simulator") == "generator" or model.get("trained")
    if isinstance(path, str) and not wanted:
        raise ConfigError(
            f"data.public_generator = '{path}' is for model.simulator = \"generator\" or model.trained. "
            "Set one of them, or leave it out."
        )
    if isinstance(path, str) and model.get("trained") and is_pipeline(Path(path).expanduser()):
        if "pipeline" in model:
            return table
        found = describe_pipeline(Path(path).expanduser(), str(model.get("license", "")))
        rest = {key: value for key, value in model.items() if key != "license"}
        return {**table, "model": {"generator": "pipeline", **rest, "pipeline": found}}
    if "contained" in table and (path is None or "origin" in model):
        return table
    contained: tuple[Contained, ...] = ()
    if isinstance(path, str):
        origin, contained = of_generator(Path(path).expanduser())
        if "origin" not in model:
            adapted = _LAYOUT & origin["model"].keys() if model.get("trained") else ()
            same = {key: origin["model"][key] for key in adapted}
            table = {**table, "model": {**same, **model, "origin": origin}}
    if isinstance(root, str):
        contained += of_public_folder(Path(root).expanduser())
    listed = [each.model_dump(mode="json", exclude_none=True) for each in contained]
    return {**table, "contained": listed} if listed else table


def is_denoiser(path: Path) -> bool:
    """Tell whether a public base is a network to adapt, a release or a folder of diffusers; else it holds images."""
    folder = path.expanduser()
    if not folder.exists():
        raise ConfigError(f"--base {path} is not there. Name a folder of images, a release or a folder of diffusers.")
    return is_pipeline(folder) or (release_of(folder) / PRIVACY).is_file()


def of_generator(path: Path) -> tuple[dict[str, Any], tuple[Contained, ...]]:
    """Return [model.origin] and [[contained]] for the release of a run or a release folder."""
    found = _verified(path, "public_generator")
    artifact, settings, proven = found.artifact, found.settings, found.report.proven
    if not isinstance(artifact, GeneratorArtifact) or settings is None:
        raise ConfigError(f"data.public_generator = '{path}' is not a release of a generator. Name one that is.")
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
    origin |= {"license": settings.data_license} if settings.data_license else {}
    return origin | ({"epsilon": proven.epsilon} if proven.finite else {}), _contained(path, found)


def of_public_folder(root: Path) -> tuple[Contained, ...]:
    """Return [[contained]] for a folder of public images: the release that holds or drew them, if any.

    A file in the folder or above it names that release. Images that were copied out of such a folder are public by the
    word of whoever names them.
    """
    for folder in (root.resolve(), *root.resolve().parents):
        said = said_format(folder / PRIVACY)
        if said is None or said.startswith("idpgan release "):
            return _contained(folder, _verified(folder, "public_root"))
        if (said_format(folder / MANIFEST) or "").startswith("idpgan samples "):
            return contained_in_export(folder / MANIFEST)
    return ()


def _verified(path: Path, key: str) -> Verification:
    from idpgan.kinds import verify  # imports every kind of release, and most runs need none

    found = verify(path)
    if found.problems:
        raise ConfigError(f"data.{key} = '{path}' does not verify: {found.problems[0]} Name a whole release.")
    return found


def _contained(path: Path, found: Verification) -> tuple[Contained, ...]:
    if found.settings is None:
        raise TypeError("a release that verifies has settings.")
    return contained_in(read_privacy(release_of(path) / PRIVACY), found.settings)


def check_total(plan: RunPlan) -> None:
    """Refuse a run that does not state what it contains, or whose contained releases leave the total without a proof.

    Raises:
        ConfigError: Naming what is missing, or how to declare that the contained release read nobody of these images.
    """
    config, root = plan.config, plan.config.data.public_root
    known = () if root is None else of_public_folder(root.expanduser())
    if not plan.names_origin or any(each not in config.contained for each in known):
        raise ConfigError(
            "the config builds on a release and does not say what that one contains. Leave model.origin and contained "
            "out of it, so that they are read from the release."
        )
    total = plan.total
    if total is not None and not total.finite and plan.price.epsilon < math.inf:
        raise ConfigError(
            "this run builds on a release (data.public_generator or data.public_root) of which nothing is proven for "
            f"unit {total.unit}, {total.relation}, so its total epsilon would be infinite. If nobody of the private "
            "images is among those that it was made from, declare it with data.public_disjoint = true; else name "
            "another one."
        )
