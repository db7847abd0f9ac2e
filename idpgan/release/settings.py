"""The settings that determine all numbers of a release: those of the run or method, and public facts of the data."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from idpgan.data import sources
from idpgan.data.config import WHERE_FILES_LIE
from idpgan.data.drawn import count_public
from idpgan.data.load import DataShape, Sizes
from idpgan.errors import ConfigError
from idpgan.privacy.plan import Plan
from idpgan.release.mark import DigitalSource
from idpgan.training.config import RunConfig, build_config, refuse_unsound
from idpgan.training.plan import RunPlan, plan_run

_PUBLIC_ELSEWHERE = "public"  # placeholder for data.public_root, which is not released


@dataclass(frozen=True)
class Settings:
    """The settings from which charges, delta and report of a release follow.

    `idpgan.release.folder.write_release` writes them, and `idpgan.release.verify` derives every number from them again.

    Attributes:
        data: Name of the data, one printable line.
        method: Name of the method.
        num_private: N >= 1, the number of private records: public.
        num_public: Number of public images, which nothing protects.
        num_classes: Number of public classes; 0 = no labels.
        num_pixels: Numbers in one record, each of which may have a price of its own.
        table: The settings as written to config.json: JSON values, all of them public.
        plan: The plan, which also makes the report; if it asks for a delta of 1/N or more, its price is refused.
        problems: Maps an artifact's description to its parts that do not follow from the settings, one sentence each.
        run: The config, where a run made the release.
        license: Of the release, as its maker states it; None = unknown.
        data_license: Of the private images, likewise.
        mark: What the mark on the pictures says made them; None = they carry none.
    """

    data: str
    method: str
    num_private: int
    num_public: int
    num_classes: int
    num_pixels: int
    table: Mapping[str, Any]
    plan: Plan
    problems: Callable[[Mapping[str, Any]], list[str]]
    run: RunConfig | None = None
    license: str | None = None
    data_license: str | None = None
    mark: DigitalSource | None = DigitalSource.TRAINED


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
        mark=DigitalSource.TRAINED if config.release.mark else None,
    )


def run_from_release(table: Any, described: Mapping[str, Any], document: Mapping[str, Any]) -> Settings:
    """Return the settings of a run, from its entry in config.json; see `idpgan.release.artifact.Kind`.

    Raises:
        InputError: If the entry is not the config of a run, or `idpgan train` refuses it.
    """
    data, num_public = table.get("data"), document["num_public"]
    if not isinstance(data, dict) or set(WHERE_FILES_LIE) & set(data):
        raise ConfigError("config.json has no [data], or names folders of the machine that the run was trained on.")
    if num_public and not (data.get("public_share") or data.get("public")):  # they came from a separate folder
        table = {**table, "data": {**data, "public_root": _PUBLIC_ELSEWHERE}}
    config = build_config(table, "config.json", earlier=True)
    if config.data.name not in sources.NAMES:
        raise ConfigError(f"config.json: data.name = {ascii(config.data.name)[:60]} is not a known data set.")
    refuse_unsound(config)
    channels, height, width = described["image_shape"]
    classes = tuple(described["classes"]) or tuple(map(str, range(document["num_classes"])))
    sizes = Sizes(num_public, document["num_private"], 0, 0)
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
