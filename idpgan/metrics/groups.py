"""Accuracy, fidelity and share by group: for each value of a column of the curator's table, with intervals.

Which group a real image is of, the table says. Of an image under test nobody knows it: a classifier of the real images
reads it off, and how often that classifier is right about real images that it never saw stands beside. Where it reads
a group off a share s of images, finds it on a share t of those real images that are of the group, and on a share f of
those that are not, the group makes up ``(s - f) / (t - f)`` of the images (Rogan and Gladen 1978), if images under test
are read as well as real ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idpgan.data.images import Images
from idpgan.data.load import Split, place
from idpgan.errors import InputError
from idpgan.metrics.accuracy import CONFIDENCE, Fairness, draws_of, measure_fairness, share_interval
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import (
    FeatureClassifier,
    class_probabilities,
    extract_features,
    fit_feature_classifier,
    fit_named,
    full_training_set,
    recipe,
)
from idpgan.metrics.fidelity import covered_reals
from idpgan.metrics.metric import Judging, MetricResult, MetricTable
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.training.fit import predict

_PROTOCOL, _CLASSIFIER, _SEEDS = "by-group/1", "cnn", 3
NOTES = (
    "groups: these numbers say something of each group of the private images without noise. They are for the curator, "
    "covered by no epsilon, and never in release/",
    f"groups: each interval holds by itself at {CONFIDENCE:.0%} confidence; of many groups some differ by chance",
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A share, with its interval of Clopper and Pearson, in which images of one person stand or fall together."""

    value: float
    interval: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Group:
    """One value of the column.

    Attributes:
        num_real: Real judging images of the group.
        real_share: Their share of all judging images with a value.
        accuracy: On them, of classifiers trained on the images under test, or of the classifier under test.
        coverage: Share of them near which an image under test lies, as `NearestScores.coverage` has it.
        read: Share of the images under test that the classifier of groups reads as this group.
        found: Share of the real images of the group that it reads so.
        mistaken: Share of the real images of other groups that it reads so.
        share: Share of the images under test that are of the group, corrected for both.
    """

    value: str
    num_real: int
    real_share: Measured
    accuracy: Measured | None = None
    coverage: Measured | None = None
    read: Measured | None = None
    found: Measured | None = None
    mistaken: Measured | None = None
    share: Measured | None = None


@dataclasses.dataclass(frozen=True)
class GroupsResult(MetricResult):
    """What was measured by group. Curator only.

    Attributes:
        column: Of the curator's table.
        unknown: Judging images without a value, which are left out.
        fairness: Of decisions between two classes about two groups; None of other numbers of them.
        notes: What a reader has to know.
    """

    column: str
    groups: tuple[Group, ...]
    num_images: int
    num_real: int
    unknown: int
    fairness: Fairness | None = None
    notes: tuple[str, ...] = NOTES


@dataclasses.dataclass(frozen=True)
class Grouped:
    """Real images that judge, (n,), each with its group.

    Attributes:
        images: With the labels of the data set.
        group: int64 (n,), places in ``values``.
        draws: int64 (n,), equal for images that stand or fall together.
        unknown: Images that were left out, since the table has no value for them.
    """

    column: str
    values: tuple[str, ...]
    images: Images
    group: Tensor
    draws: np.ndarray
    unknown: int

    @classmethod
    def of(cls, column: str, real: Images, groups: Images) -> Grouped:
        """Join two readings of one part, one with the labels of the data set and one with the groups as labels.

        Raises:
            InputError: If they are not of the same positions, or no image has a value.
        """
        if len(real) != len(groups) or groups.labels is None:
            raise InputError(f"--by {column} does not give each image of the data set a value.")
        there = ~real.is_null & ~groups.is_null
        if not bool(there.any()):
            raise InputError(f"--by {column}: no image that judges has a value.")
        images, unknown = real.select(there), int((~real.is_null & groups.is_null).sum())
        images = dataclasses.replace(images, null=None)
        return cls(column, groups.classes, images, groups.labels[there], draws_of(images), unknown)

    def share(self, hits: np.ndarray, among: np.ndarray) -> Measured | None:
        """Return the share of hits (n,), in [0, 1] each, among some of the images, bool (n,); None among none."""
        return measured(hits[among], self.draws[among])

    def result(
        self,
        num_images: int,
        right: np.ndarray | None,
        row: Callable[[int, np.ndarray], dict[str, Measured | None]],
    ) -> GroupsResult:
        """Return the result; ``row`` measures a group, by its number and which images are of it, bool (n,)."""
        found = []
        for number, value in enumerate(self.values):
            mine = self.group.numpy() == number
            real = measured(mine.astype(float), self.draws)
            if real is not None:
                found.append(Group(value, int(mine.sum()), real, **row(number, mine)))
        fairness = self._fairness(right)
        return GroupsResult(self.column, tuple(found), num_images, len(self.group), self.unknown, fairness)

    def _fairness(self, right: np.ndarray | None) -> Fairness | None:
        """Return how fair decisions are of which each is right on the average of classifiers, (n,)."""
        truth = self.images.labels
        if right is None or truth is None or len(self.images.classes) != 2:
            return None
        if len(self.values) != 2 or len(self.group.unique()) != 2:
            return None
        decided = torch.from_numpy(np.where(truth.numpy() == 1, right, 1 - right))
        return measure_fairness(decided, truth, self.group)


def measured(hits: np.ndarray, draws: np.ndarray) -> Measured | None:
    """Return the mean of hits (n,), in [0, 1] each, with its interval; None of none."""
    if not len(hits):
        return None
    return Measured(float(hits.mean()), share_interval(hits, np.unique(draws, return_inverse=True)[1]))


def measure_groups(judging: Judging, grouped: Grouped, groups: Split) -> GroupsResult:
    """Measure images by group.

    Args:
        judging: What images are measured with; its judges need not be those of the groups.
        grouped: The real images that judge.
        groups: The data set with the groups as its classes, for the classifier that reads them off.
    """
    right = _right(judging, grouped.images)
    images, judges = (place(each, judging.device) for each in (judging.images, grouped.images))
    covered = covered_reals(images, judges, judging.network, judging.cache, judging.progress)
    reader = fit_feature_classifier(
        place(full_training_set(groups, judging.part), judging.device),
        cache=judging.cache,
        device=judging.device,
        progress=judging.progress,
    )
    seen, real = (_read(reader, each, judging) for each in (images, judges))
    draws = draws_of(judging.images)

    def row(number: int, mine: np.ndarray) -> dict[str, Measured | None]:
        read = measured((seen == number).astype(float), draws)
        found, mistaken = (grouped.share((real == number).astype(float), side) for side in (mine, ~mine))
        return {
            "accuracy": None if right is None else grouped.share(right, mine),
            "coverage": grouped.share(covered.astype(float), mine),
            "read": read,
            "found": found,
            "mistaken": mistaken,
            "share": corrected(read, found, mistaken),
        }

    return grouped.result(len(images), right, row)


def judged_groups(classifier: PrivateClassifier, grouped: Grouped) -> GroupsResult:
    """Measure by group how often a released classifier is right."""
    labels = grouped.images.labels
    if labels is None:
        raise InputError("There are no labeled images to judge by.")
    right = classifier.logits(grouped.images.images).argmax(1).cpu().eq(labels).double().numpy()
    return grouped.result(len(labels), right, lambda _, mine: {"accuracy": grouped.share(right, mine)})


def corrected(read: Measured | None, found: Measured | None, mistaken: Measured | None) -> Measured | None:
    """Return the share of a group that is read off images, corrected for the errors of the reading.

    The interval is that of the three intervals' worst corners: all of [0, 1] where the reading may tell nothing.
    """
    if read is None or found is None or mistaken is None:
        return None

    def share(s: float, t: float, f: float) -> float:
        return min(max((s - f) / (t - f), 0.0), 1.0)

    (s_low, s_high), (t_low, t_high), (f_low, f_high) = read.interval, found.interval, mistaken.interval
    if found.value <= mistaken.value:
        return Measured(read.value, (0.0, 1.0))
    interval = (share(s_low, t_high, f_high), share(s_high, t_low, f_low)) if t_low > f_high else (0.0, 1.0)
    return Measured(share(read.value, found.value, mistaken.value), interval)


def _right(judging: Judging, judges: Images) -> np.ndarray | None:
    """Return how often classifiers of the images under test recognize each judging image, (n,); None unlabeled."""
    images, labels = judging.images, judges.labels
    if images.labels is None or labels is None:
        return None
    truth, digests = labels.to(judging.device), {"images": images.digest(), "test": judges.digest()}

    def compute(seed: int) -> dict[str, Tensor]:
        title = f"by group: {_CLASSIFIER}, seed {seed}"
        on_device = place(images, judging.device)
        model, _ = fit_named(
            _CLASSIFIER, on_device, seed=seed, device=judging.device, progress=judging.progress, what=title
        )
        return {"right": predict(model, judges.images.to(judging.device)).argmax(dim=1).eq(truth).cpu()}

    cache, rights = judging.cache or Cache(None), []
    for seed in range(judging.num_seeds or _SEEDS):
        config = recipe(_CLASSIFIER, len(images), seed).model_dump(mode="json")
        key = {"protocol": _PROTOCOL, "config": config, **digests}
        rights.append(cache.get("by-group", key, lambda seed=seed: compute(seed))["right"].double())  # type: ignore[misc]
    return torch.stack(rights).mean(0).numpy()


def _read(reader: FeatureClassifier, images: Images, judging: Judging) -> np.ndarray:
    """Return the group that is read off each image, (n,)."""
    features = extract_features(reader, images, cache=judging.cache, progress=judging.progress)
    return np.asarray(class_probabilities(reader, features).argmax(1).numpy())


_HEADS = {
    "real_share": "share of the real",
    "accuracy": "accuracy",
    "coverage": "coverage",
    "read": "read off",
    "found": "reader right",
    "mistaken": "reader wrong",
    "share": "share, corrected",
}


def table(found: Mapping[str, Any]) -> MetricTable | None:
    """Return the table of what was measured by group."""
    result = found.get("groups")
    if not result:
        return None
    shown = [name for name in _HEADS if any(group[name] for group in result["groups"])]
    rows = tuple(
        (f"{group['value']} ({group['num_real']:,})", *(_shown(group[name]) for name in shown))
        for group in result["groups"]
    )
    lines = (
        "accuracy: on the real images of the group. coverage: share of them near which an image under test lies",
        "read off: share of the images under test that a classifier of the real images takes for this group; it is "
        "right about 'reader right' of the real images of the group, and takes 'reader wrong' of the others for it; "
        "corrected: for both errors, if it reads these images as it reads real ones",
    )
    read: tuple[str, ...] = lines if "read" in shown else ("accuracy: on the real images of the group",)
    if fair := result.get("fairness"):
        less = fair["accuracy"] - fair["discrimination"]
        read += (
            f"decisions are right in {fair['accuracy']:.1%}, and {fair['discrimination']:.1%} apart between the two "
            f"groups, whatever is right: {less:.1%} by Edwards and Storkey (2016)",
        )
    missing = (f"without a value in the table, and left out: {result['unknown']:,} images",) * bool(result["unknown"])
    return MetricTable(
        f"By {result['column']}: {result['num_real']:,} real {found['part']} images; [95 % interval]",
        (result["column"], *(_HEADS[name] for name in shown)),
        rows,
        (*read, *missing),
    )


def _shown(measured: Mapping[str, Any] | None) -> str:
    if measured is None:
        return "-"
    low, high = measured["interval"]
    return f"{measured['value']:.1%} [{low:.1%}, {high:.1%}]"
