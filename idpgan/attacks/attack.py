"""One attack: its row in the registry, what the attacker knows, how it is run, its result; the strongest of many."""

from __future__ import annotations

import dataclasses
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idpgan.attacks.evaluate import AttackResult, Interval, evaluate_scores, roc_curve, thinned_curve
from idpgan.attacks.shadows import Shadows
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.memory import cat
from idpgan.models.generator import Generator
from idpgan.progress import Progress, renamed, silent, within
from idpgan.training.method import CriticScores, ReleasedSums

RATE = 0.01  # false-positive rate of the second measure
_MEASURES = 2  # AUC, and the true-positive rate at `RATE`
WORDS = {
    "samples": "generated images",
    "generator": "the generator",
    "critic": "the trained critic",
    "classifier": "the released classifier",
    "denoiser": "the denoiser inside a released generator",
    "teacher": "the classifier inside a released generator",
    "sums": "the sums that were released, and the map of an image to what it adds",
    "shadows": "shadow generators",
    "reference": "real images that are neither members nor non-members",
    "reference_samples": "images of a reference generator",
    "reference_generator": "a reference generator",
    "sample_labels": "labeled generated images",
    "reference_labels": "labeled images of a reference generator",
    "people": "the person on each image, and nobody on both sides",
}
_LABELS = {"sample_labels": "samples", "reference_labels": "reference_samples"}


@dataclass(frozen=True)
class Knowledge:
    """What the attacker has besides the images in question, all on one device.

    Attributes:
        samples: Generated images, with labels if the generator is conditional.
        classifier: Logits (n, K) of the released classifier for images (n, C, H, W).
        critic: Scores of the trained critic, for an attacker inside (white box).
        denoiser: Losses (n,) of a released generator that draws by diffusion, of images and labels.
        teacher: Logits of the classifier that chooses among what a released generator draws.
        sums: What a method released of sums over the private images.
        shadows: Generators trained with and without the images in question.
        reference: Real images of the same distribution, neither members nor non-members.
        reference_samples: Images of ``reference_generator``, which was trained on other images of the same
            distribution; where there is no such generator, the reference images themselves may take their place.
        why_not: One sentence why the run cannot provide an attribute, by its name.
        scored: Scores that were computed from this very knowledge, which calibrated attacks and others start from; see
            `scores`. Other knowledge, as of `dataclasses.replace`, begins without any.
    """

    samples: Images | None = None
    generator: Generator | None = None
    classifier: Callable[[Tensor], Tensor] | None = None
    critic: CriticScores | None = None
    denoiser: Callable[[Tensor, Tensor | None], Tensor] | None = None
    teacher: Callable[[Tensor], Tensor] | None = None
    sums: ReleasedSums | None = None
    shadows: Shadows | None = None
    reference: Images | None = None
    reference_samples: Images | None = None
    reference_generator: Generator | None = None
    seed: int = 0
    why_not: Mapping[str, str] = field(default_factory=dict)
    scored: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def scores(self, score: Score, images: Images, progress: Progress) -> Tensor:
        """Return the scores of images, (n,), computed once for the same images."""
        key = score, images.digest()
        if key not in self.scored:
            self.scored[key] = score(self, images, progress)
        progress("scores", len(images), len(images))
        return self.scored[key]

    def missing(self, name: str) -> str | None:
        """Return why an attribute, or a name in "..._labels", is missing; None if it is present."""
        if name in _LABELS:
            images = getattr(self, _LABELS[name])
            there = images is None or images.labels is not None
        else:
            there = getattr(self, name) is not None
        return None if there else self.why_not.get(name, f"needs {WORDS[name]}")

    def needed(self, name: str) -> Any:
        """Return an attribute that `missing` has found present."""
        found = getattr(self, name)
        if found is None:
            raise InputError(f"This attack needs {WORDS[name]}, and there are none.")
        return found


class Membership(NamedTuple):
    """Real images of one distribution, grouped by their relation to the attacked generator.

    Attributes:
        members: The first private images; the generator was trained on them.
        non_members: Equally many holdout images; the generator was not trained on them.
        reference: The test part and the rest of the holdout: neither of the two, and known to the attacker.
    """

    members: Images
    non_members: Images
    reference: Images

    @property
    def people(self) -> tuple[Tensor, Tensor] | None:
        """People on the images of both sides, (n,) each; None if identities are unknown or somebody is on both."""
        members, others = self.members.identities, self.non_members.identities
        if members is None or others is None or bool(torch.isin(members, others).any()):
            return None
        return members, others


def choose_members(split: Split, most: int) -> Membership:
    """Return members and non-members, at most so many of each, and the reference; all parts are in random order.

    Raises:
        InputError: If there are fewer than 2 of each.
    """
    num = min(split.num_private, len(split.holdout), most)
    if num < 2:
        raise InputError(
            f"{split.num_private} private and {len(split.holdout)} holdout images: 2 of each are needed to attack."
        )
    rest = split.holdout.select(torch.arange(num, len(split.holdout)))
    index = torch.arange(num)
    return Membership(split.private.select(index), split.holdout.select(index), joined(split.test, rest))


def joined(*parts: Images) -> Images:
    """Return one set of images and labels."""
    labels = [part.labels for part in parts if part.labels is not None]
    images = cat([part.images for part in parts])
    return Images(images, torch.cat(labels) if labels else None, parts[0].classes)


def draw(generator: Generator, num: int, seed: int, progress: Progress, what: str) -> Images:
    """Draw labeled images, and leave them on the generator's device."""
    images = generator.sample_images(num, seed=seed, progress=renamed(progress, what))
    return images.to(next(generator.parameters()).device)


Score = Callable[[Knowledge, Images, Progress], Tensor]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        access: "black box" (images, or logits, only), "partial black box" (the generator), "white box" (the critic).
        needs: Attributes of `Knowledge`, or names in "..._labels", without which it cannot be run.
        score: Maps (knowledge, images to be judged, progress) to scores (n,), higher = member.
        costly: Whether it optimizes for each image, so that fewer images are judged.
        target: What it attacks: "generator" or "classifier".
        by_person: Whether it judges all images of a person as one set: its score of a person is the mean over them.
    """

    name: str
    access: str
    needs: tuple[str, ...]
    paper: str
    score: Score
    costly: bool = False
    target: str = "generator"
    by_person: bool = False

    def missing(self, knowledge: Knowledge, images: Membership | None = None) -> str | None:
        """Return why this attack cannot be run, on these images if they are given, or None if it can."""
        if self.by_person and images is not None and images.people is None:
            return f"needs {WORDS['people']}"
        reasons = (knowledge.missing(name) for name in self.needs)
        return next((reason for reason in reasons if reason is not None), None)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attack; a skipped one has a reason in ``skipped`` and neither result nor scores.

    Attributes:
        seconds: Run time.
        scores: Scores of members and of non-members, (n,) each, float32 on the CPU; of people, for an attack on people.
        people: People on the images that were scored, (n,) each; None where each score is independent.
    """

    attack: Attack
    result: AttackResult | None = None
    skipped: str | None = None
    seconds: float = 0.0
    scores: tuple[Tensor, Tensor] | None = None
    people: tuple[Tensor, Tensor] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; "roc" holds the points (false-positive rate, true-positive rate) of the curve."""
        facts = {"access": self.attack.access, "paper": self.attack.paper, "seconds": round(self.seconds, 2)}
        curve = {} if self.scores is None else {"roc": thinned_curve(*self.scores)}
        return {**facts, "skipped": self.skipped, **(self.result.to_json() if self.result else {}), **curve}


@own_state()
def run_attack(
    attack: Attack,
    knowledge: Knowledge,
    images: Membership,
    *,
    most_costly: int = 1_000,
    confidence: float = 0.95,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Outcome:
    """Score members and non-members in one set, where the attack cannot tell them apart, and evaluate the scores.

    At most ``most_costly`` members are judged by an attack that optimizes for each image.
    """
    reason = attack.missing(knowledge, images)
    if reason is not None:
        return Outcome(attack, skipped=reason)
    if "shadows" in attack.needs:  # they were trained with and without these records alone
        shadows: Shadows = knowledge.needed("shadows")
        images = Membership(shadows.members, shadows.non_members, images.reference)
    started = time.monotonic()
    num = min(len(images.members), most_costly if attack.costly else len(images.members))
    index = torch.arange(num)
    both = joined(images.members.select(index), images.non_members.select(index)).to(device)
    scores = knowledge.scores(attack.score, both, within(progress, attack.name)).float().cpu()
    sides, people = (scores[:num], scores[num:]), images.people
    groups = None if people is None else (people[0][:num], people[1][:num])
    if attack.by_person and groups is not None:
        each = [mean_of_people(side, who) for side, who in zip(sides, groups, strict=True)]
        fewer = min(map(len, each))
        sides, groups = (each[0][:fewer], each[1][:fewer]), None
    result = judged(sides, groups, confidence)
    return Outcome(attack, result, None, time.monotonic() - started, sides, groups)


def mean_of_people(scores: Tensor, people: Tensor) -> Tensor:
    """Return the mean score of each person, (P,), in the order in which people first appear in ``people`` (n,).

    Raises:
        InputError: If there is not one person per score.
    """
    if scores.ndim != 1 or people.shape != scores.shape:
        raise InputError(f"{tuple(scores.shape)} scores need as many people, got {tuple(people.shape)}.")
    numbers = {person: place for place, person in enumerate(dict.fromkeys(people.tolist()))}
    index = torch.tensor([numbers[person] for person in people.tolist()])
    total = torch.zeros(len(numbers), dtype=torch.float64).index_add_(0, index, scores.double().cpu())
    return (total / torch.bincount(index, minlength=len(numbers))).float()


def judged(sides: tuple[Tensor, Tensor], groups: tuple[Tensor, Tensor] | None, confidence: float) -> AttackResult:
    """Evaluate the scores of members and non-members, (n,) each, and the people whose images these are, if any."""
    members, others = (None, None) if groups is None else groups
    return evaluate_scores(*sides, confidence=confidence, member_groups=members, non_member_groups=others)


def roc_png(outcomes: Sequence[Outcome]) -> bytes:
    """Draw the ROC curves of all attacks that were run, both axes logarithmic: the left end is what matters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    run = [(found.attack.name, found.result, found.scores) for found in outcomes if found.result and found.scores]
    floor = 0.5 / max([result.num_members for _, result, _ in run] or [50])
    for name, result, scores in run:
        false, true = roc_curve(*scores)
        axes.step(false.clip(floor), true.clip(floor), where="post", label=f"{name} {result.auc:.3f}")
    axes.plot([floor, 1], [floor, 1], color="grey", linestyle=":", label="a guess 0.500")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title="Membership inference: AUC")
    axes.legend(fontsize="small", loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


# The strongest of several attacks, corrected for having been chosen (Bonferroni) --------------------------------------


@dataclass(frozen=True)
class Strongest:
    """The attack that is best by one measure.

    Attributes:
        name: Name of the attack.
        value: Value of the measure.
        interval: Its interval at the corrected confidence.
    """

    name: str
    value: float
    interval: Interval


@dataclass(frozen=True)
class Best:
    """What the strongest of k attacks shows, at a confidence that holds for all of them together.

    Whoever tries k attacks and reports the best one will find something in images that nobody leaked. Each of the
    ``2 k`` intervals (two measures each) therefore has the confidence ``1 - (1 - confidence) / (2 k)``, so that all of
    them cover what they estimate with the confidence asked for (Bonferroni): no scores are spent on choosing.

    Attributes:
        attacks: k, those that were run.
        confidence: Confidence of all intervals together.
        auc: The strongest by the area under the ROC curve.
        tpr: The strongest by the true-positive rate at a false-positive rate of 1 %; None with too few non-members.
        leak: Whether one of the two lies above what a guess reaches, in spite of its interval.
    """

    attacks: int
    confidence: float
    auc: Strongest
    tpr: Strongest | None

    @property
    def leak(self) -> bool:
        """See the class."""
        return self.auc.interval[0] > 0.5 or (self.tpr is not None and self.tpr.interval[0] > RATE)

    def __str__(self) -> str:
        """Say which attacks are strongest, in one sentence."""
        (low, high), auc = self.auc.interval, f"{self.auc.name} with AUC {self.auc.value:.3f}"
        rate = ""
        if self.tpr is not None:
            ends = f"{self.tpr.interval[0]:.1%} to {self.tpr.interval[1]:.1%}"
            rate = f"; {self.tpr.name} with {self.tpr.value:.1%} of the members at 1% false positives ({ends})"
        return (
            f"strongest of {self.attacks} attacks, at {self.confidence:g} confidence for all together (Bonferroni): "
            f"{auc} ({low:.3f} to {high:.3f}){rate}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {**dataclasses.asdict(self), "correction": "Bonferroni", "leak": self.leak, "in_words": str(self)}


def corrected(attacks: int, confidence: float, further: int = 0) -> float:
    """Return the confidence of each interval with which all hold together, and so many ``further`` statements."""
    return 1 - (1 - confidence) / (_MEASURES * max(attacks, 1) + further)


def best_of(outcomes: Sequence[Outcome], confidence: float = 0.95, further: int = 0) -> Best | None:
    """Return the strongest of the attacks that were run, by each measure; None if none was.

    Strongest is the one with the highest lower end: an attack on few records may have a high figure by chance.

    Args:
        confidence: Confidence of all intervals together, and of so many ``further`` statements.
    """
    run = [found for found in outcomes if found.scores is not None]
    if not run:
        return None
    strict = corrected(len(run), confidence, further)
    results = [(found.attack.name, judged(found.scores, found.people, strict)) for found in run if found.scores]
    areas = [Strongest(name, result.auc, result.auc_interval) for name, result in results]
    rates = [
        Strongest(name, value, interval)
        for name, result in results
        if (value := result.tpr_at_fpr[RATE]) is not None and (interval := result.tpr_intervals[RATE]) is not None
    ]
    auc, tpr = (max(kind, key=lambda each: (each.interval[0], each.value), default=None) for kind in (areas, rates))
    return None if auc is None else Best(len(run), confidence, auc, tpr)


def least_images(attacks: int, confidence: float = 0.95, further: int = 0) -> int:
    """Return how many members, and as many others, can show anything: with fewer not even a sure attack would.

    n pairs that are all won prove ``AUC >= (alpha / 2)^(1 / n)`` (`evaluate`), which is above one half from here on.
    """
    alpha = 1 - corrected(attacks, confidence, further)
    return math.ceil(math.log2(2 / alpha) + 1e-9)
