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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.attack import Attack, Knowledge, Membership, best_of, corrected, joined, least_images, run_attack
from idpgan.attacks.copies import find_copies
from idpgan.attacks.distances import nearest_neighbors
from idpgan.attacks.independence import check_independent
from idpgan.attacks.membership import nearest_in_features
from idpgan.attacks.registry import ATTACKS, select_attacks
from idpgan.attacks.riskiest import most_exposed
from idpgan.checks import whole
from idpgan.commands.fit import FittedGenerator
from idpgan.data.images import Images
from idpgan.data.intake import Range
from idpgan.data.metadata import METADATA, read_rows
from idpgan.data.sources.folder import scanned
from idpgan.device import check_device, resolve_device
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.kinds import opened
from idpgan.metrics.source import kind_of, read_images
from idpgan.progress import Progress, counted, duration, silent
from idpgan.report.attacked_images import CAUTION, COPIES, ImagesAttack
from idpgan.run import describe_environment

SAMPLES = 10_000  # that are drawn, unless told
LEAST_SAMPLES, LEAST_REFERENCE = 3, 40
_PROBED, _CLOUDS = 256, (512, 2048)  # images that are timed, with so many synthetic ones
_SECONDS = 1_000_000  # pairs that take seconds
_COINCIDENCE = 0.01  # share of images that may be equal by chance: tiny or drawn ones
_SIDES = "synthetic", "members", "others", "reference"
_POSSIBLE = {"samples", "sample_labels", "reference", "reference_samples", "reference_labels"}  # to be known


@own_state()
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
) -> ImagesAttack:
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
        InputError: If images cannot be read or compared, are on two sides, or are too few to show anything.

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
    given = dict(zip(_SIDES, (synthetic, members, others, reference), strict=True))
    sources = {name: source for name, source in given.items() if source is not None}
    started, where = time.monotonic(), resolve_device(device, "device")
    asked = (attacks,) if isinstance(attacks, str) else attacks
    rows = [row for row in select_attacks(asked) if set(row.needs) <= _POSSIBLE]
    people: dict[str, int] = {}
    drawn: Any = {"num": samples, "seed": seed, "device": where, "pixel_range": pixel_range, "progress": progress}
    read = {name: _read(name, source, people, **drawn) for name, source in sources.items()}
    all_members = read["members"]
    images, notes = _chosen(read, most, seed)
    names = _names(all_members, sources["members"], images.members)
    knowledge = _knowledge(read, seed, where)
    possible = [row for row in rows if row.missing(knowledge, images) is None]
    _refuse_few(read, images, possible, confidence)
    if images.people is None:
        check_independent(images.members.images, images.non_members.images, seed=seed)
    judging: Any = {"confidence": corrected(len(possible), confidence, COPIES), "device": where, "progress": progress}
    progress("attacks", 0, len(rows) + 1, f"{expected_time(images, knowledge, where)} in all")
    outcomes = tuple(
        run_attack(row, knowledge, images, **judging) for row in counted(rows, progress, "attacks", len(rows) + 1)
    )
    best = best_of(outcomes, confidence, COPIES)
    if best is None:
        reasons = dict.fromkeys(str(found.skipped) for found in outcomes)
        raise InputError(f"None of these attacks can be run: {'; '.join(reasons) or 'all need a run'}.")
    sides = images.members.to(where), images.non_members.to(where)
    copied = find_copies(*sides, knowledge.needed("samples"), progress=progress)
    facts = {
        **{
            name: str(source) if isinstance(source, str | Path) else f"{name} ({type(source).__name__})"
            for name, source in sources.items()
        },
        "num_members": len(images.members),
        "num_others": len(images.non_members),
        "num_samples": len(read["synthetic"]),
        "num_reference": len(read["reference"]) if "reference" in read else 0,
        "nearest_record": _nearest_record(images, knowledge, where),
        "copies": copied.to_json(names) | ({} if images.people is None else copied.people(*images.people)),
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(where.type),
    }
    if images.people is not None:
        notes.append("the brackets are those of people: images of one person are not independent")
    risky = most_exposed(images, knowledge.samples, outcomes, riskiest, names, copied)
    return ImagesAttack(outcomes, best, facts, (*notes, *CAUTION), riskiest=risky)


def expected_time(images: Membership, knowledge: Knowledge, device: torch.device) -> str:
    """Say how long all attacks that compare images take, from some that are compared with few and more synthetic ones.

    Each pair of an image in question and a synthetic one is compared three times as a whole (distances, and those of
    the next attack and of near copies) and once as a copy; features are computed of all images.
    """
    samples, judged = knowledge.needed("samples").images, 2 * len(images.members)
    if judged * len(samples) < _SECONDS:
        return "seconds"
    reference = 0 if knowledge.reference is None else len(knowledge.reference)
    some, clouds = images.members.images[:_PROBED].to(device), [samples[:few] for few in _CLOUDS]

    def expected(work: Callable[[Tensor], Any], compared: int) -> float:
        """Return the seconds of all images in question: a part for each pair, and a part for each image."""
        first, second = (_seconds(work, cloud) for cloud in clouds)
        pair = max(0.0, second - first) / max(1, len(clouds[1]) - len(clouds[0]))
        return (pair * compared + max(0.0, first - pair * len(clouds[0]))) * judged / len(some)

    near = expected(lambda cloud: nearest_neighbors(some, cloud, 1), 3 * (len(samples) + judged + 2 * reference))
    copies = expected(lambda cloud: find_copies(Images(some), Images(some[:1]), Images(cloud)), len(samples))
    row = _seconds(lambda cloud: nearest_in_features(some, cloud), clouds[0]) / (len(some) + len(clouds[0]))
    return f"about {duration(near + copies + row * (2 * len(samples) + 2 * judged + reference))}"


def _seconds(work: Callable[[Tensor], Any], cloud: Tensor) -> float:
    work(cloud)
    started = time.monotonic()
    work(cloud)
    return time.monotonic() - started


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


def _read(name: str, source: Any, people: dict[str, int], **how: Any) -> Images:
    """Return images of whatever describes them; their people are those of a folder's metadata.csv, by name."""
    source = source.generator if isinstance(source, FittedGenerator) else source
    source = opened(Path(source)) if isinstance(source, str | os.PathLike) else source
    found = read_images(source, what=name, labeled=name == "synthetic", **how)  # other classes may be called otherwise
    return _with_people(found, source, people) if isinstance(source, Path) else found


def _with_people(images: Images, path: Path, people: dict[str, int]) -> Images:
    """Add who is on each image, where a folder's metadata.csv says so; ``people`` numbers the names of all folders."""
    if not (path / METADATA).is_file():
        return images
    rows = read_rows(path, ())
    if rows.people is None or len(rows.people) != len(images):
        return images
    names = (rows.person_names[number] for number in rows.people)
    numbers = [people.setdefault(name, len(people)) for name in names]
    return dataclasses.replace(images, identities=torch.tensor(numbers))


def _chosen(read: dict[str, Images], most: int, seed: int) -> tuple[Membership, list[str]]:
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
    sides = [each.select(torch.randperm(len(each), generator=rng)[:num]) for each in (read["members"], read["others"])]
    sides = [Images(each.images, identities=each.identities) for each in sides]  # classes may have other names
    both = [each.identities for each in sides]
    if (both[0] is None) != (both[1] is None):
        sides = [Images(each.images) for each in sides]
    return Membership(sides[0], sides[1], read.get("reference", Images(read["members"].images[:0]))), notes


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


def _refuse_few(read: dict[str, Images], images: Membership, rows: Sequence[Attack], confidence: float) -> None:
    """Refuse sets that are too small to show anything, and say how many would."""
    least, alpha = least_images(len(rows), confidence, COPIES), 1 - corrected(len(rows), confidence, COPIES)
    for name in ("members", "others"):
        if len(read[name]) < least or len(images.members) < least:
            few = min(len(read[name]), len(images.members))
            raise InputError(
                f"{few} {name} are too few: {len(rows)} attacks together show nothing below {least} members and "
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


def _nearest_record(images: Membership, knowledge: Knowledge, device: torch.device) -> dict[str, Any]:
    """Return medians of the distance to the nearest synthetic image, in grey levels, and how many are equal to one."""
    found: dict[str, Any] = {}
    both = joined(images.members, images.non_members).to(device)
    scores = -knowledge.scores(ATTACKS["nearest-sample"].score, both, silent).cpu()  # an attack may have found them
    for name, squares in zip(("members", "others"), scores.split(len(images.members)), strict=True):
        found[name] = round(float(squares.sqrt().median()) * 127.5, 3)  # [-1, 1] spans 255 levels
        found[f"equal_{name}"] = int((squares == 0).sum())
    return found
