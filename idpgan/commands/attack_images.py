"""``idpgan attack SYNTHETIC --members DIR --others DIR``: attack images that any tool has made, and `idpgan.attack`.

The attacker has the synthetic images and, perhaps, real images that are neither members nor others. Everything here is
computed with private images: the result is for the curator only.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from idpgan.attacks import run
from idpgan.attacks.copies import find_copies
from idpgan.attacks.findings import CAUTION, COPIES, Findings
from idpgan.attacks.independence import check_independent
from idpgan.attacks.knowledge import Knowledge, people_of
from idpgan.attacks.outcome import corrected, least_images
from idpgan.attacks.registry import select_attacks
from idpgan.checks import whole
from idpgan.commands.fit import FittedGenerator
from idpgan.data.images import Images
from idpgan.data.intake import Range
from idpgan.data.metadata import METADATA, read_rows
from idpgan.data.sources.folder import scanned
from idpgan.device import check_device, resolve_device
from idpgan.errors import InputError
from idpgan.kinds import opened
from idpgan.metrics.source import kind_of, read_images
from idpgan.progress import Progress, silent
from idpgan.run import describe_environment

SAMPLES = 10_000  # that are drawn, unless told
LEAST_SAMPLES, LEAST_REFERENCE = 3, 40
_COINCIDENCE = 0.01  # share of images that may be equal by chance: tiny or drawn ones
_SIDES = "synthetic", "members", "others", "reference"
_POSSIBLE = {"samples", "sample_labels", "reference", "reference_samples", "reference_labels"}  # to be known


def attack(
    synthetic: Any,
    members: Any,
    others: Any,
    reference: Any = None,
    *,
    attacks: Sequence[str] | str = "all",
    most: int = 10_000,
    samples: int = SAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
    pixel_range: Range = None,
    device: str = "auto",
    riskiest: int = 0,
    progress: Progress = silent,
) -> Findings:
    """Attack images that any tool has made: can the images they were made from be told from images that were not used?

    Nothing is written, and nothing is charged: this is for the curator, who has the private images.

    Args:
        synthetic: The made images, as `idpgan.evaluate` takes them, or what draws them.
        members: Images that they were made from; all or some.
        others: Images of the same kind that were not used, from the same source: a difference in source would be found
            in the place of membership.
        reference: Real images that are neither; with them more attacks are possible. At least 40.
        attacks: By name (`idpgan attack --help`), or "all".
        most: Members and others that are judged, at most.
        samples: Images that are drawn, where ``synthetic`` draws them.
        confidence: Of all intervals together.
        seed: Of what attacks draw, and of the choice where there are more images than are judged.
        pixel_range: Of images that are not bytes; see `idpgan.evaluate`.
        riskiest: So many members that are found most easily are in the result, with their images.

    Raises:
        InputError: If images cannot be read or compared, are on two sides, or are too few to show anything; or if they
            are no independent draws and no people are known, unless members are copied: that needs no statistic.

    Example:
        >>> import numpy as np
        >>> real = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
        >>> found = attack(real[:30], real[:30], real[30:], attacks=["nearest-sample"])
        >>> found.leak, found.best.auc.value
        (True, 1.0)
    """
    check_device(device, "device")
    for name, value, least in (
        ("seed", seed, 0),
        ("samples", samples, LEAST_SAMPLES),
        ("most", most, 2),
        ("riskiest", riskiest, 0),
    ):
        whole(value, name, least)
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence} must be in (0, 1).")
    named = zip(_SIDES, (synthetic, members, others, reference), strict=True)
    sources = {name: source for name, source in named if source is not None}
    started, where = time.monotonic(), resolve_device(device, "device")
    rows = select_attacks((attacks,) if isinstance(attacks, str) else attacks)
    rows = tuple(row for row in rows if set(row.needs) <= _POSSIBLE)
    people: dict[str, int] = {}
    read = dict[str, Images]()
    for name, source in sources.items():
        opened_source = _opened(source)
        images = read_images(
            opened_source,
            what=name,
            num=samples,
            seed=seed,
            device=where,
            pixel_range=pixel_range,
            labeled=name == "synthetic",  # other classes may be called otherwise
            progress=progress,
        )
        read[name] = _with_people(images, opened_source, people)
    all_members = read["members"]
    judged, notes = _chosen(read, most, seed)
    knowledge, of_people = _knowledge(read, seed, where), people_of(*judged) is not None
    reasons = [row.missing(knowledge, people_known=of_people) for row in rows]
    _refuse_few(read, len(judged[0]), reasons.count(None), confidence)
    if None not in reasons:
        why = "; ".join(dict.fromkeys(map(str, reasons))) or "all need a run"
        raise InputError(f"None of these attacks can be run: {why}.")
    names = _names(all_members, sources["members"], judged[0])
    try:
        if not of_people:
            check_independent(judged[0].images, judged[1].images, seed=seed)
    except InputError as dependent:
        members_there, others_there = (side.to(where) for side in judged)
        copied = find_copies(members_there, others_there, knowledge.needed("samples"), progress=progress)
        if (certain := copied.certain()) is None:
            raise
        findings = Findings((), None, {"copies": {**certain.to_json(names), "certain": True}})
        notes.append(f"no statistic holds, and none was made: {dependent}")
    else:
        findings = run.attack(
            *judged,
            knowledge,
            rows,
            copies=True,
            names=names,
            riskiest=riskiest,
            confidence=confidence,
            device=where,
            progress=progress,
        )
    facts = {
        **{
            name: str(source) if isinstance(source, str | Path) else f"{name} ({type(source).__name__})"
            for name, source in sources.items()
        },
        "num_members": len(judged[0]),
        "num_others": len(judged[1]),
        "num_samples": len(read["synthetic"]),
        "num_reference": len(read["reference"]) if "reference" in read else 0,
        **findings.facts,
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(where.type),
    }
    if of_people:
        notes.append("the brackets are those of people: images of one person are not independent")
    return dataclasses.replace(findings, facts=facts, notes=(*notes, *CAUTION))


def _names(images: Images, source: Any, chosen: Images) -> list[list[str]]:
    """Return where each chosen image is found in its source: the files of a folder, or positions from 1; all copies."""
    if isinstance(source, str | os.PathLike) and kind_of(Path(source)) == "folder":
        names = [str(path.relative_to(source)) for path in scanned(Path(source)).paths]
    else:
        names = [f"image {place:,}" for place in range(1, 1 + len(images))]
    places: dict[bytes, list[str]] = {}
    for digest, name in zip(images.digests(), names, strict=True):
        places.setdefault(digest, []).append(name)
    return [places[digest] for digest in chosen.digests()]


def _opened(source: Any) -> Any:
    """Return what `read_images` takes of whatever describes images."""
    source = source.generator if isinstance(source, FittedGenerator) else source
    return opened(Path(source)) if isinstance(source, str | os.PathLike) else source


def _with_people(images: Images, path: Any, people: dict[str, int]) -> Images:
    """Add who is on each image, where a folder's metadata.csv says so; ``people`` numbers the names of all folders."""
    if not isinstance(path, Path) or not (path / METADATA).is_file():
        return images
    records = read_rows(path, ())
    if records.people is None:
        return images
    who = dict(zip(records.paths, (records.person_names[number] for number in records.people), strict=True))
    numbers = [people.setdefault(who[file], len(people)) for file in scanned(path).paths]
    return dataclasses.replace(images, identities=torch.tensor(numbers))


def _chosen(read: dict[str, Images], most: int, seed: int) -> tuple[tuple[Images, Images], list[str]]:
    """Return as many members as others, in random order, after refusing what cannot be compared."""
    shape, notes = read["members"].image_shape, list[str]()
    for name, images in read.items():
        if images.image_shape != shape:
            raise InputError(
                f"the {name} images are (C, H, W) = {images.image_shape} and the members {shape}: nothing is resized "
                "or converted here. Give all images one size and one kind of color (idpgan prepare does)."
            )
    for name in ("members", "others"):
        once = read[name].distinct()
        if copied := len(read[name]) - len(once):
            notes.append(f"{copied:,} of the {len(read[name]):,} {name} are exact copies of others of them: left out")
        read[name] = once
    known = {name: set(read[name].digests()) for name in _SIDES[1:] if name in read}
    for name, other in itertools.combinations(known, 2):
        shared = len(known[name] & known[other])
        if shared > _COINCIDENCE * min(len(known[name]), len(known[other])):
            raise InputError(
                f"{shared:,} images are among {name} and {other} both: no attack could tell which they are. Take them "
                "out of both."
            )
        if shared:
            notes.append(f"{shared} images are among {name} and {other} both, which makes every attack look weaker")
    num = min(len(read["members"]), len(read["others"]), most)
    rng = torch.Generator().manual_seed(seed)
    both = read["members"], read["others"]
    sides = [side.select(torch.randperm(len(side), generator=rng)[:num]) for side in both]
    sides = [Images(side.images, identities=side.identities) for side in sides]  # classes may have other names
    people = [side.identities for side in sides]
    if (people[0] is None) != (people[1] is None):
        sides = [Images(side.images) for side in sides]
    return (sides[0], sides[1]), notes


def _knowledge(read: dict[str, Images], seed: int, device: torch.device) -> Knowledge:
    samples, reference = read["synthetic"].to(device), read.get("reference")
    if len(samples.classes) < 2:  # nothing to tell apart
        samples = Images(samples.images)
    missing = "give real images that are neither members nor others as reference"
    reference = None if reference is None else reference.to(device)
    plain = None if reference is None else Images(reference.images)  # no generator: the images themselves calibrate
    return Knowledge(
        samples=samples,
        reference=reference,
        reference_samples=plain,
        seed=seed,
        why_not={
            "reference": missing,
            "reference_samples": missing,
            "sample_labels": "the synthetic images have no labels",
            "reference_labels": "needs the labeled images of a reference generator",
        },
    )


def _refuse_few(read: dict[str, Images], judged: int, attacks: int, confidence: float) -> None:
    """Refuse sets that are too small to show anything, and say how many would."""
    least, alpha = least_images(attacks, confidence, COPIES), 1 - corrected(attacks, confidence, COPIES)
    for name in ("members", "others"):
        if len(read[name]) < least or judged < least:
            few = min(len(read[name]), judged)
            raise InputError(
                f"{few} {name} are too few: {attacks} attacks together show nothing below {least} members and "
                f"{least} others, even if they are always right; {math.ceil(math.log(alpha / 4) / math.log(0.99)):,} "
                "of each also show who is found at 1% false alarms."
            )
    if len(read["synthetic"]) < LEAST_SAMPLES:
        raise InputError(f"{len(read['synthetic'])} synthetic images are too few: {LEAST_SAMPLES} are needed at least.")
    if "reference" in read and len(read["reference"]) < LEAST_REFERENCE:
        raise InputError(
            f"{len(read['reference'])} reference images are too few to say what is ordinary: {LEAST_REFERENCE} are "
            "needed. Leave them out, or give more."
        )
