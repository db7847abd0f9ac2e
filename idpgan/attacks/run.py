"""Run attacks: members and as many others are mixed, each attack scores them by what it knows, and is judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks import losses, outcome
from idpgan.attacks.copies import find_copies
from idpgan.attacks.distances import nearest_neighbors
from idpgan.attacks.findings import COPIES, Findings
from idpgan.attacks.independence import check_independent
from idpgan.attacks.knowledge import Attack, Computed, Knowledge, draw, joined, people_of
from idpgan.attacks.membership import nearest_in_features
from idpgan.attacks.outcome import Outcome
from idpgan.attacks.registry import ATTACKS, select_attacks
from idpgan.attacks.riskiest import most_exposed
from idpgan.attacks.shadows import Shadows
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.progress import Progress, counted, duration, silent, within

_PROBED, _CLOUDS = 256, (512, 2048)  # images that are timed, with so many synthetic ones
_SECONDS = 1_000_000  # pairs that take seconds


def attack(
    members: Images,
    others: Images,
    knowledge: Knowledge,
    rows: Sequence[Attack] | None = None,
    *,
    copies: bool = False,
    names: Sequence[Sequence[str]] | None = None,
    riskiest: int = 0,
    most_costly: int = 1_000,
    confidence: float = 0.95,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Findings:
    """Score members and others in one set, where no attack can tell them apart, and judge the scores; curator only.

    Args:
        members: Images that were used, uint8.
        others: As many images of the same distribution that were not.
        knowledge: What the attacker has besides.
        rows: Attacks of `registry`; None = all on what is known. One that needs more is skipped, with the reason.
        copies: Whether it is also searched, by generated images, which members stand in one; every interval then holds
            together with all others, and is that of `corrected`.
        names: Of each member, for the list of the riskiest; None = its position, from 1.
        riskiest: So many members that are found most easily are in the result.
        most_costly: Members that are judged, at most, by an attack that optimizes for each image.
        confidence: Of each interval; of all together with ``copies``.
        device: Where the images are compared.
    """
    if rows is None:
        rows = select_attacks(["all"], "generator" if knowledge.classifier is None else "classifier")
    if names is None:
        names = [(f"image {place:,}",) for place in range(1, 1 + len(members))]
    people, computed = people_of(members, others), Computed()
    possible = [row for row in rows if row.missing(knowledge, people_known=people is not None) is None]
    further, total = COPIES * copies, len(rows) + copies
    confidence_each = outcome.corrected(len(possible), confidence, further) if copies else confidence
    if knowledge.samples is not None:
        seconds = expected_time(members, knowledge, device)
        note = "in all" if copies else "at most to compare images, besides what is trained"
        progress("attacks", 0, total, f"{seconds} {note}")
    judged = (
        _outcome(row, members, others, knowledge, computed, most_costly, confidence_each, device, progress)
        for row in rows
    )
    outcomes = tuple(counted(judged, progress, "attacks", total))
    best, copied, facts = outcome.best_of(outcomes, confidence, further), None, dict[str, Any]()
    if copies:
        sides = members.to(device), others.to(device)
        copied = find_copies(*sides, knowledge.needed("samples"), progress=progress)
        facts["nearest_record"] = _nearest_record(*sides, knowledge, computed)
        facts["copies"] = copied.to_json(names) | ({} if people is None else copied.people(*people))
    risky = most_exposed(members, knowledge.samples, outcomes, riskiest, names, copied) if riskiest else ()
    return Findings(outcomes, best, facts, riskiest=risky)


def _outcome(
    row: Attack,
    members: Images,
    others: Images,
    knowledge: Knowledge,
    computed: Computed,
    most_costly: int,
    confidence: float,
    device: torch.device | str,
    progress: Progress,
) -> Outcome:
    """Run one attack, if it can be run."""
    people = people_of(members, others)
    reason = row.missing(knowledge, people_known=people is not None)
    if reason is not None:
        return Outcome(row, skipped=reason)
    if "shadows" in row.needs:  # they were trained with and without these records alone
        shadows: Shadows = knowledge.needed("shadows")
        members, others = shadows.members, shadows.non_members
        people = people_of(members, others)
    started = time.monotonic()
    num = min(len(members), most_costly if row.costly else len(members))
    index = torch.arange(num)
    both = joined(members.select(index), others.select(index)).to(device)
    scores = row.scores(both, knowledge, within(progress, row.name), computed).float().cpu()
    sides = scores[:num], scores[num:]
    groups = None if people is None else (people[0][:num], people[1][:num])
    if row.by_person and groups is not None:
        means = [outcome.mean_of_people(side, who) for side, who in zip(sides, groups, strict=True)]
        fewer = min(map(len, means))
        sides, groups = (means[0][:fewer], means[1][:fewer]), None
    result = outcome.judged(sides, groups, confidence)
    return Outcome(row, result, None, time.monotonic() - started, sides, groups)


def _nearest_record(members: Images, others: Images, knowledge: Knowledge, computed: Computed) -> dict[str, Any]:
    """Return medians of the distance to the nearest synthetic image, in grey levels, and how many are equal to one."""
    nearest = dict[str, Any]()
    scores = -ATTACKS["nearest-sample"].scores(joined(members, others), knowledge, silent, computed).cpu()
    for name, squares in zip(("members", "others"), scores.split(len(members)), strict=True):
        nearest[name] = round(float(squares.sqrt().median()) * 127.5, 3)  # [-1, 1] spans 255 levels
        nearest[f"equal_{name}"] = int((squares == 0).sum())
    return nearest


def expected_time(members: Images, knowledge: Knowledge, device: torch.device | str) -> str:
    """Say how long all attacks that compare images take, from some that are compared with few and more synthetic ones.

    Each pair of an image in question and a synthetic one is compared three times as a whole (distances, and those of
    the next attack and of near copies) and once as a copy; features are computed of all images.
    """
    samples, judged = knowledge.needed("samples").images, 2 * len(members)
    if judged * len(samples) < _SECONDS:
        return "seconds"
    reference = 0 if knowledge.reference is None else len(knowledge.reference)
    some, clouds = members.images[:_PROBED].to(device), [samples[:few] for few in _CLOUDS]

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


def attack_model(
    model: Generator | PrivateClassifier,
    members: Images,
    others: Images,
    reference: Images | None = None,
    *,
    attacks: Sequence[str] = ("all",),
    samples: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Outcome, ...]:
    """Ask who was in a model's training data, by every attack that needs no more than the model; curator only.

    Args:
        model: What `idpgan.load_generator`, `idpgan.load_classifier` or `idpgan.release.load_model` return.
        members: Images that it was trained on, uint8.
        others: As many images of the same distribution that it was not trained on. Exact copies on a side are left out,
            each image being one draw.
        reference: Further such images that the attacker knows; None = none.
        attacks: Names, or "all".
        samples: Images that are drawn from a generator.

    Raises:
        InputError: If members and others are not equally many, two at least, or are not independent draws
            (`independence.check_independent`) and have no people.
    """
    if len(members) != len(others) or len(members) < 2:
        raise InputError(f"{len(members)} members and {len(others)} others: give as many of both, two at least.")
    members, others = members.distinct(), others.distinct()
    fewer = torch.arange(min(len(members), len(others)))
    members, others = members.select(fewer), others.select(fewer)
    known = None if reference is None or len(reference) < losses.LEAST_REFERENCE else reference
    if isinstance(model, PrivateClassifier):
        knowledge = Knowledge(classifier=model.logits, reference=known, seed=seed)
    else:
        drawn = draw(model, samples, seed, progress, "generated images")
        knowledge = Knowledge(samples=drawn, generator=model, reference=known, seed=seed)
    if people_of(members, others) is None:
        check_independent(members.images, others.images, seed=seed)
    rows = select_attacks(attacks, "classifier" if isinstance(model, PrivateClassifier) else "generator")
    return attack(members, others, knowledge, rows, progress=progress).outcomes
