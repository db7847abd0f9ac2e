"""Recognition of people: whitened principal components and a support vector machine, as Zhang, Fu and Meng judge faces.

Zhang Xiaojian, Fu Congcong, Meng Xiaofeng (2020), "Face image publication combining matrix factorization and
differential privacy", Journal of Image and Graphics 25(4), doi:10.11834/jig.190308, section 4. The numbers need the
private images' identities: for the curator only, covered by no epsilon.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError

Solver = Literal["randomized", "full"]
_NO_VARIANCE = 1e-10  # of the first component's; float32 leaves about 1e-13 where there is none


@dataclasses.dataclass(frozen=True)
class Recognition:
    """How well test images were recognized. Curator only.

    Attributes:
        accuracy: Share of test images given to the right person, in [0, 1].
        precision: Macro average over people; a person whom nobody is taken for counts as 0.
        recall: Macro average over people; equal to `accuracy` where everybody has equally many test images.
        f1: Macro average over people of the harmonic mean of precision and recall.
        num_people: People in the training images; chance is about one in that many.
        components: Principal components kept.
    """

    accuracy: float
    precision: float
    recall: float
    f1: float
    num_people: int
    num_train: int
    num_test: int
    components: int

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return dataclasses.asdict(self)


@typed
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
    people, inverse, counts = _people(identities)
    single = people[counts < 2]
    if len(single):
        raise InputError(
            f"Person {int(single[0])} has 1 image ({len(single)} of {len(people)} people have), but one to train on "
            "and one to test with are needed. Leave such people out."
        )
    order = inverse.argsort(stable=True)  # by person, within a person as found
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(inverse)  # (N,): the how-manieth image of its person
    place[order] = torch.arange(len(inverse)) - starts.repeat_interleave(counts)
    first = place < counts[inverse] // 2
    return first.nonzero().flatten(), (~first).nonzero().flatten()


@typed
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

    The randomized solver is what scikit-learn chooses by itself for images, and what this project's numbers use; its
    result depends on the seed: ORL without noise has accuracy 0.85 with seed 0, 0.845 to 0.87 with seeds 0 to 7, and
    0.86 with the exact solver ("full"). Differences of 0.02 between two cells of a table are nothing.

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
    from sklearn.decomposition import PCA
    from sklearn.metrics import precision_recall_fscore_support
    from sklearn.svm import SVC

    truth, people = test_identities.cpu().numpy(), train_identities.cpu().numpy()
    rows = _rows(train)
    if np.ptp(rows, axis=0).max() == 0:
        predicted = np.full(len(truth), people.min())  # images all alike tell nobody apart, and have no components
    else:
        pca = PCA(components, whiten=True, svd_solver=solver, random_state=seed).fit(rows)
        # Images of lower rank than `components`: whitening would blow up the rounding errors of the rest.
        kept = pca.explained_variance_ > _NO_VARIANCE * pca.explained_variance_[0]
        svm = SVC(C=penalty, kernel="rbf", gamma="scale").fit(pca.transform(rows)[:, kept], people)
        predicted = svm.predict(pca.transform(_rows(test))[:, kept])
    # A person nobody is taken for has no precision: 0, as in the paper's low cells.
    precision, recall, f1, _ = precision_recall_fscore_support(
        truth, predicted, labels=np.unique(truth), average="macro", zero_division=0
    )
    return Recognition(
        accuracy=float((predicted == truth).mean()),
        precision=float(precision),
        recall=float(recall),
        f1=float(f1),
        num_people=len(np.unique(people)),
        num_train=len(train),
        num_test=len(test),
        components=components,
    )


def _rows(images: Tensor) -> np.ndarray:
    return images.detach().cpu().flatten(1).float().numpy()


def _people(identities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
            found = f"{identities.dtype} {tuple(identities.shape)}"
            raise InputError(f"{len(images)} {name} images need int64 identities ({len(images)},), got {found}.")
        if images.is_floating_point() and not bool(images.isfinite().all()):
            bad = int((~images.isfinite()).flatten(1).any(dim=1).sum())
            raise InputError(f"{bad} of {len(images)} {name} images have pixels that are NaN or infinite.")
    if train.shape[1:] != test.shape[1:]:
        raise InputError(f"Training images are {tuple(train.shape[1:])}, test images {tuple(test.shape[1:])}.")
    people = _people(train_identities)[0]
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
