"""The settings that determine all numbers of a release: those of the run or method, and public facts of the data."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from idpgan.data import sources
from idpgan.data.config import WHERE_FILES_LIE
from idpgan.data.drawn import count_public
from idpgan.data.load import DataShape, Sizes
from idpgan.errors import ConfigError
from idpgan.release.mark import of_pictures
from idpgan.release.statement import Settings, Statement
from idpgan.training.config import build_config, refuse_unsound
from idpgan.training.plan import RunPlan, plan_run

_PUBLIC_ELSEWHERE = "public"  # placeholder for data.public_root, which is not released


def settings_of_run(plan: RunPlan) -> Settings:
    """Return the settings of a run of `idpgan train`, as they are released.

    The table is the config, with the class names of the data's public shape, and without the paths on the curator's
    machine.
    """
    config, shape = plan.config, plan.shape
    data, declared = config.data, config.data.classes
    if declared and declared != shape.classes and len(declared) == len(shape.classes):
        public = dict(zip(declared, shape.classes, strict=True))
        labels = data.public_labels and {public[name]: look for name, look in data.public_labels.items()}
        data = data.model_copy(update={"classes": shape.classes, "public_labels": labels})
    table = config.model_copy(update={"data": data}).to_json()
    table["data"] = {key: value for key, value in table["data"].items() if key not in WHERE_FILES_LIE}
    return Settings(
        data=config.data.name,
        method=config.method.name,
        num_private=shape.num_private,
        num_public=shape.sizes.public,
        num_classes=len(shape.classes),
        num_pixels=math.prod(shape.image_shape),
        table=table,
        plan=plan,
        problems=functools.partial(_problems_of_run, plan),
        run=config,
        license=config.release.license,
        data_license=config.data.license,
        mark=of_pictures(config.model, data.public is not None) if config.release.mark else None,
    )


def run_from_release(table: Any, described: Mapping[str, Any], statement: Statement) -> Settings:
    """Return the settings of a run, from its entry in config.json; see `idpgan.release.artifact.Kind`.

    Raises:
        InputError: If the entry is not the config of a run, or `idpgan train` refuses it.
    """
    data, num_public = table.get("data"), statement.num_public
    if not isinstance(data, dict) or set(WHERE_FILES_LIE) & set(data):
        raise ConfigError("config.json has no [data], or names folders of the machine that the run was trained on.")
    if num_public and not (data.get("public_share") or data.get("public")):  # they came from a separate folder
        table = {**table, "data": {**data, "public_root": _PUBLIC_ELSEWHERE}}
    config = build_config(table, "config.json", earlier=True)
    named, made = config.data.classes, tuple(described["classes"])
    if named is not None and named != made and config.model.conditional:
        raise ConfigError(
            f"config.json: data.classes = {', '.join(named)[:80]!a}, and what is given away has the classes "
            f"{', '.join(made)[:80]!a}."
        )
    if config.data.name not in sources.NAMES:
        raise ConfigError(f"config.json: data.name = {ascii(config.data.name)[:60]} is not a known data set.")
    refuse_unsound(config)
    channels, height, width = described["image_shape"]
    classes = tuple(described["classes"]) or tuple(map(str, range(statement.num_classes or 0)))
    sizes = Sizes(num_public, statement.num_private, 0, 0)
    return settings_of_run(plan_run(config, DataShape(sizes, (channels, height, width), classes)))


def _problems_of_run(plan: RunPlan, described: Mapping[str, Any]) -> list[str]:
    """Return what of a description, and of the declared numbers, does not follow from a run's settings."""
    problems, data = plan.misdescribed(described), plan.config.data
    num_private, num_public = plan.shape.num_private, plan.shape.sizes.public
    if not plan.names_origin:
        problems.append(
            "a released generator is in the release, and contained does not have the charges that it states: the "
            "total is unknown."
        )
    if (data.public_share or data.public) and not num_public:
        problems.append("num_public = 0, but the settings have public images.")
    elif data.public and num_public != count_public(data):
        problems.append(f"num_public = {num_public:,}, but {count_public(data):,} public ones are drawn.")
    taken = num_private + (num_public if data.public_share else 0)
    if data.num_images is not None and taken > data.num_images:
        problems.append(f"{taken:,} images are of the run, but data.num_images = {data.num_images:,}.")
    return problems
