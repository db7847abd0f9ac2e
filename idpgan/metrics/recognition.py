"""Recognition of people: by principal components and a support vector machine, or by a small convolutional network.

Zhang, Fu and Meng judge faces in the first way, Liu et al. (2021) in the second (`recognize_by_network`).

Zhang Xiaojian, Fu Congcong, Meng Xiaofeng (2020), "Face image publication combining matrix factorization and
differential privacy", Journal of Image and Graphics 25(4), doi:10.11834/jig.190308, section 4. The numbers need the
private images' identities: for the curator only, covered by no epsilon.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from idpgan.data.images import Images, to_unit
from idpgan.device import own_random_state
from idpgan.errors import InputError
from idpgan.metrics.metric import Judging, Metric, MetricResult, MetricTable
from idpgan.models.classifier import build_recognizer
from idpgan.models.initialize import torch_seed
from idpgan.training.fit import FitConfig, fit_classifier, predict

Solver = Literal["randomized", "full"]
_COMPONENTS = 50  # of the measure; fewer where there are fewer images
_LEAST_SIDE = 16  # pixels, of the network's images
_DROPOUT = 3  # stream of the seed; 0 to 2 are for weights, order and augmentation
_STEPS_PER_EPOCH, _MIN_BATCH = 8, 4  # of the network: few images get small batches, and so as many steps
_NO_VARIANCE = 1e-10  # of the first component's; float32 leaves about 1e-13 where there is none


@dataclasses.dataclass(frozen=True)
class Recognition(MetricResult):
    """How well test images were recognized. Curator only.

    Attributes:
        accuracy: Share of test images given to the right person, in [0, 1].
        precision: Macro average over people; a person who is never predicted counts as 0.
        recall: Macro average over people; equal to `accuracy` where everybody has equally many test images.
        f1: Macro average over people of the harmonic mean of precision and recall.
        num_people: People in the training images; chance is about one in that many.
        num_train: Training images.
        num_test: Test images.
        components: Principal components kept; None where a network recognized.
        ranks: Rank curve: the share of test images whose person is among the first k that the recognizer names, for
            k = 1 .. `num_people`; a tie counts against it.
    """

    accuracy: float
    precision: float
    recall: float
    f1: float
    num_people: int
    num_train: int
    num_test: int
    components: int | None
    ranks: tuple[float, ...]


def halves(identities: Tensor) -> tuple[Tensor, Tensor]:
    """Split a set within each person: the first floor(k/2) of k images to train on, the rest to test (section 4.1).

    Args:
        identities: int64 (N,), a number per person, in the order of the images; people may be interleaved.

    Returns:
        Indices of training and of test images, int64, each in ascending order.

    Raises:
        InputError: If there are fewer than two people, or a person has fewer than two images.

    Example:
        >>> halves(torch.tensor([7, 7, 5, 5, 5, 7, 7]))
        (tensor([0, 1, 2]), tensor([3, 4, 5, 6]))
    """
    people, inverse, counts = people_of(identities)
    single = people[counts < 2]
    if len(single):
        raise InputError(
            f"Person {int(single[0])} has 1 image ({len(single)} of {len(people)} people have), but one to train on "
            "and one to test with are needed. Leave such people out."
        )
    first = place_of(inverse, counts) < counts[inverse] // 2
    return first.nonzero().flatten(), (~first).nonzero().flatten()


def recognize(
    train: Tensor,
    train_identities: Tensor,
    test: Tensor,
    test_identities: Tensor,
    components: int = 50,
    *,
    penalty: float = 10.0,
    solver: Solver = "randomized",
    seed: int = 0,
) -> Recognition:
    """Recognize people by whitened principal components and an SVM with a radial kernel (section 4.2).

    The components are fitted on the training images alone. The paper states neither their number, nor the kernel, nor
    the penalty: ours are 50, radial with scikit-learn's width ("scale") and C = 10.

    scikit-learn uses the randomized solver for images by default, and so do this project's numbers; its result depends
    on the seed: ORL without noise has accuracy 0.85 with seed 0, 0.845 to 0.87 with seeds 0 to 7, and 0.86 with the
    exact solver ("full"). Differences of 0.02 between two cells of a table are within this spread.

    Args:
        train: Floating point or uint8 (N, ...), any finite scale; the classifier does not notice a change of scale.
        train_identities: int64 (N,), at least two people; everybody in ``test_identities`` is one of them.
        components: Principal components, in [1, min(N, numbers per image)].
        penalty: C of the SVM, > 0.

    Raises:
        InputError: If shapes do not fit, there are fewer than two people, a tested person was not trained on, there are
            more components than images, or a pixel is NaN or infinite.
    """
    _check(train, train_identities, test, test_identities, components, penalty)
    if not 0 <= seed < 1 << 32:
        raise InputError(f"seed = {seed} must be in [0, 2^32).")
    scores = scores_by_svm(train, train_identities, test, components, penalty=penalty, solver=solver, seed=seed)
    return _scored(scores, train_identities, test_identities, components)


def scores_by_svm(
    train: Tensor,
    identities: Tensor,
    test: Tensor,
    components: int = 50,
    *,
    penalty: float = 10.0,
    solver: Solver = "randomized",
    seed: int = 0,
) -> Tensor:
    """Return how likely each person is on each test image, (N, P), people ascending: `recognize` without checks."""
    from sklearn.decomposition import PCA
    from sklearn.svm import SVC

    known, people = identities.cpu().unique(return_inverse=True)
    rows, queries = (images.detach().cpu().flatten(1).float().numpy() for images in (train, test))
    if np.ptp(rows, axis=0).max() == 0:
        return torch.zeros(len(queries), len(known))  # identical images distinguish no people, and have no components
    pca = PCA(components, whiten=True, svd_solver=solver, random_state=seed).fit(rows)
    # Images of lower rank than `components`: whitening would blow up the rounding errors of the rest.
    kept = pca.explained_variance_ > _NO_VARIANCE * pca.explained_variance_[0]
    svm = SVC(C=penalty, kernel="rbf", gamma="scale").fit(pca.transform(rows)[:, kept], people.numpy())
    decisions = torch.from_numpy(svm.decision_function(pca.transform(queries)[:, kept]))
    if decisions.ndim == 1:  # of two people one number says both
        return torch.stack([-decisions, decisions], 1)
    return decisions


def recognize_by_network(
    train: Tensor,
    train_identities: Tensor,
    test: Tensor,
    test_identities: Tensor,
    *,
    epochs: int = 40,
    seed: int = 0,
    device: str = "cpu",
) -> Recognition:
    """Recognize people by a small convolutional network, as Liu et al. (2021), section 4.3, judge what they publish.

    The network is `idpgan.models.classifier`, trained from fresh weights on the training images alone; the epoch that
    recognizes those best is taken. The paper states neither layers nor training.

    Args:
        train: (N, H, W) or (N, C, H, W), uint8 or floating point in [0, 1], sides of at least 16, C = 1 or 3.
        train_identities: int64 (N,), at least two people.
        test: Images of the same shape, at least one.
        test_identities: int64, people who are in `train_identities`.
        epochs: Passes over the training images.
        seed: Seed of weights and order.
        device: Where to compute.

    Raises:
        InputError: If shapes do not fit, there are fewer than two people, a tested person was not trained on, or a
            pixel is beyond [0, 1] or NaN.
    """
    _check(train, train_identities, test, test_identities, 1, 1.0)
    scores = scores_by_network(train, train_identities, test, epochs=epochs, seed=seed, device=device)
    return _scored(scores, train_identities, test_identities, None)


def scores_by_network(
    train: Tensor, identities: Tensor, test: Tensor, *, epochs: int = 40, seed: int = 0, device: str = "cpu"
) -> Tensor:
    """Return a logit of each person on each test image, (N, P), people ascending: `recognize_by_network` unchecked."""
    pictures, tested = _network_images(train), _network_images(test)
    _, channels, height, width = pictures.shape
    known, people = identities.cpu().unique(return_inverse=True)
    model = build_recognizer((channels, height, width), len(known), seed=seed).to(device)
    batch_size = max(_MIN_BATCH, len(train) // _STEPS_PER_EPOCH)
    config = FitConfig(epochs=epochs, batch_size=batch_size, learning_rate=3e-3, weight_decay=1e-2, seed=seed)
    pixels, labels = pictures.to(device), people.to(device)
    with own_random_state(pixels.device):  # dropout draws from torch's state
        torch.manual_seed(torch_seed(seed, _DROPOUT))
        fit_classifier(model, pixels, labels, config=config, held_back=(pixels, labels))
    return predict(model, tested.to(device)).cpu()


def ranks_of(scores: Tensor, truth: Tensor) -> Tensor:
    """Return the place of the right column among the scores of each row, int64 (N,), 1 for the first.

    Args:
        scores: (N, P), higher for more likely.
        truth: Index of the right column, int64 (N,); scores that equal the right one count against it.
    """
    return (scores >= scores.gather(1, truth[:, None])).sum(1)


def rank_curve(ranks: Tensor, num_people: int) -> tuple[float, ...]:
    """Return the share of ranks of at most k, for k = 1 .. `num_people`."""
    return tuple((ranks.bincount(minlength=num_people + 1)[1:].cumsum(0).double() / len(ranks)).tolist())


def _scored(scores: Tensor, train_identities: Tensor, test_identities: Tensor, components: int | None) -> Recognition:
    """Return how well the test images were recognized, from a score for each of them and each person."""
    from sklearn.metrics import precision_recall_fscore_support

    known = train_identities.cpu().unique()
    truth, predicted = torch.searchsorted(known, test_identities.cpu()), scores.argmax(1)
    # A person who is never predicted has no precision: count 0, as in the paper's low cells.
    precision, recall, f1, _ = precision_recall_fscore_support(
        truth.numpy(), predicted.numpy(), labels=truth.unique().numpy(), average="macro", zero_division=0
    )
    return Recognition(
        accuracy=float((predicted == truth).double().mean()),
        precision=float(precision),
        recall=float(recall),
        f1=float(f1),
        num_people=len(known),
        num_train=len(train_identities),
        num_test=len(truth),
        components=components,
        ranks=rank_curve(ranks_of(scores, truth), len(known)),
    )


def _network_images(images: Tensor) -> Tensor:
    """Return float32 images (N, C, H, W) in [-1, 1]."""
    unit = to_unit(images) if images.dtype == torch.uint8 else images.detach().float()
    shaped = unit[:, None] if unit.ndim == 3 else unit
    if shaped.ndim != 4 or shaped.shape[1] not in (1, 3) or min(shaped.shape[2:]) < _LEAST_SIDE:
        raise InputError(
            f"The network takes images (N, H, W) or (N, C, H, W) with sides of at least {_LEAST_SIDE} pixels, got "
            f"{tuple(images.shape)}."
        )
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise InputError(f"The network takes uint8 or floating point images, got {images.dtype}.")
    if bool((shaped < 0).any()) or bool((shaped > 1).any()):
        raise InputError("Pixels must lie in [0, 1]: clip them first (Release.to_uint8() does).")
    return shaped * 2 - 1


def place_of(inverse: Tensor, counts: Tensor) -> Tensor:
    """Return the index of each image among those of its person, int64 (N,)."""
    order = inverse.argsort(stable=True)  # by person, within a person as found
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(inverse)
    place[order] = torch.arange(len(inverse)) - starts.repeat_interleave(counts)
    return place


def people_of(identities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the people, the index of each image's person and how many images each has; at least two people."""
    if identities.ndim != 1 or identities.dtype != torch.int64:
        raise InputError(f"Identities must be int64 (N,), got {identities.dtype} {tuple(identities.shape)}.")
    people, inverse, counts = identities.cpu().unique(return_inverse=True, return_counts=True)
    if len(people) < 2:
        raise InputError(f"Recognition needs images of at least 2 people, got {len(people)}.")
    return people, inverse, counts


def _check(
    train: Tensor, train_identities: Tensor, test: Tensor, test_identities: Tensor, components: int, penalty: float
) -> None:
    for name, images, identities in (("training", train, train_identities), ("test", test, test_identities)):
        if images.ndim < 2 or len(images) == 0 or images[0].numel() == 0:
            raise InputError(f"The {name} images must be (N, ...) with N >= 1, got {tuple(images.shape)}.")
        if identities.dtype != torch.int64 or identities.shape != images.shape[:1]:
            actual = f"{identities.dtype} {tuple(identities.shape)}"
            raise InputError(f"{len(images)} {name} images need int64 identities ({len(images)},), got {actual}.")
        if images.is_floating_point() and not bool(images.isfinite().all()):
            bad = int((~images.isfinite()).flatten(1).any(dim=1).sum())
            raise InputError(f"{bad} of {len(images)} {name} images have pixels that are NaN or infinite.")
    if train.shape[1:] != test.shape[1:]:
        raise InputError(f"Training images are {tuple(train.shape[1:])}, test images {tuple(test.shape[1:])}.")
    people = people_of(train_identities)[0]
    strangers = test_identities.cpu()[~torch.isin(test_identities.cpu(), people)]
    if len(strangers):
        raise InputError(f"Person {int(strangers[0])} is tested but has no training image.")
    most = min(len(train), train[0].numel())
    if not 1 <= components <= most:
        raise InputError(
            f"components = {components} must be in [1, {most}]: there are {len(train)} training images of "
            f"{train[0].numel()} numbers. Ask for fewer components."
        )
    if not (penalty > 0 and np.isfinite(penalty)):
        raise InputError(f"penalty = {penalty} must be a positive number.")


# A measure of `idpgan evaluate`: classes in the place of people ----------------------------------------------------


def check(judging: Judging) -> None:
    """Refuse images without labels, and real images of a class that is not among those under test."""
    if judging.images.labels is None or judging.judges.labels is None:
        raise InputError("recognition needs labels on the images under test: who, or what, is on each of them.")
    if strangers := set(judging.judges.labels.tolist()) - set(judging.images.labels.tolist()):
        name = judging.split.classes[min(strangers)]
        raise InputError(f"recognition: the real images show '{name}', and no image under test does. Add some.")


def measure(judging: Judging, images: Images) -> Recognition | None:
    """Learn classes from the images under test, and ask about the real ones: `recognize`, with labels for people."""
    real, labels = judging.judges, images.labels
    if labels is None or real.labels is None:
        return None
    components = min(_COMPONENTS, len(images), images.images[0].numel())
    return recognize(images.images, labels, real.images, real.labels, components)


def table(content: Mapping[str, Any]) -> MetricTable | None:
    """Return accuracy, precision, recall and F1."""
    if not content.get("recognition"):
        return None
    result = content["recognition"]
    return MetricTable(
        f"Recognition of {result['num_people']:,} classes on {result['num_test']:,} real {content['part']} images by "
        "principal components and an SVM, trained on these images",
        ("", "accuracy", "precision", "recall", "F1"),
        (("macro averages", *(f"{result[name]:.2%}" for name in ("accuracy", "precision", "recall", "f1"))),),
    )


METRIC = Metric("recognition", measure, table, check=check)
