"""Fidelity: the distance of generated from real images in a network's features, and how much of each the other covers.

| score | better | paper |
|---|---|---|
| FID | 0 | Heusel, Ramsauer, Unterthiner, Nessler, Hochreiter (2017), arXiv:1706.08500, eq. 6 |
| KID | 0 | Binkowski, Sutherland, Arbel, Gretton (2018), arXiv:1801.01401, section 4: unbiased, may be negative |
| precision, recall | 1 | Kynkaanniemi, Karras, Laine, Lehtinen, Aila (2019), arXiv:1904.06991, eq. 1-2, k = 3 |
| density, coverage | 1 | Naeem, Oh, Uh, Choi, Yoo (2020), arXiv:2002.09797, eq. 3-4, k = 5; density may exceed 1 |

Precision and density fall where images look like no real one (blur, noise), recall and coverage where some kinds of
real images are never generated. All depend on the feature network and on both numbers of images: compare only scores
with the same ones. Labels are not used. Everything here is computed with private images: curator only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from idpgan.data.images import Images
from idpgan.data.load import place
from idpgan.errors import InputError
from idpgan.host import unwarned
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import FeatureNetwork, Part, extract_features
from idpgan.metrics.metric import Judging, MetricResult, MetricTable
from idpgan.models.initialize import seeded_init
from idpgan.progress import Progress, silent

PROTOCOL = "fidelity/1"
MOST_NEAREST = 10_000  # images of each set in KID and nearest neighbors
FID_PER_FEATURE = 5  # images per feature from which FID's bias is small: Heusel et al. ask for 10,000 at 2,048 features
FEW_NEAREST = 1_000
_SUBSETS, _SUBSET = 100, 1_000  # of KID, as in the authors' program
_MANIFOLD_K, _DENSITY_K = 3, 5  # the authors' choices
LEAST = _DENSITY_K + 1  # images of each set: a row is no neighbor of itself
_CHUNK_NUMBERS = 1 << 24  # distances at once: 128 MiB
_SEED = 0  # a constant: two sets of images always get the same score


@dataclasses.dataclass(frozen=True)
class NearestScores:
    """Scores of nearest neighbors, each in [0, 1] but density, which is >= 0.

    Attributes:
        precision: Share of the images that lie within the k = 3 ball of a real image.
        recall: Share of the real images that lie within the k = 3 ball of an image.
        density: Mean number of k = 5 balls of real images that an image lies in, divided by 5.
        coverage: Share of the real images whose k = 5 ball holds an image.
    """

    precision: float
    recall: float
    density: float
    coverage: float


@dataclasses.dataclass(frozen=True)
class FidelityResult(NearestScores, MetricResult):
    """Fidelity of a set of images, and what it depends on. Curator only.

    Attributes:
        fid: Frechet distance of Gaussians, >= 0.
        kid: Squared maximum mean discrepancy, polynomial kernel of degree 3, mean over random subsets.
        kid_std: Standard deviation over these subsets.
        num_images: Images scored.
        num_real: Real images that they were compared with.
        num_nearest: Images of each set in KID and the four scores of nearest neighbors, drawn at random.
        part: Which real images these are: "test" or "holdout".
        num_features: F.
        features_sha256: Hash of the network's weights; scores of different hashes do not compare.
        resize: Side in pixels to which images were resized; None for none.
        standardized: Whether the features were centered on the real ones and divided by one number, such that the real
            ones have a mean variance of 1. Not so for Inception-v3, whose scale is the literature's.
        protocol: Name and version of how this was computed.
        notes: What a reader has to know.
    """

    fid: float
    kid: float
    kid_std: float
    num_images: int
    num_real: int
    num_nearest: int
    part: Part
    network: str
    num_features: int
    features_sha256: str
    resize: int | None
    standardized: bool
    images_digest: str
    real_digest: str
    protocol: str
    notes: tuple[str, ...]


def frechet_distance(features: Tensor, real: Tensor) -> float:
    """Return ``|m - m'|^2 + tr(S + S' - 2 (S S')^(1/2))`` of means and covariances, FID without a network.

    ``features`` (N, F) and ``real`` (M, F) are floating point, N, M >= 2. Computed in float64, by torchmetrics.

    Raises:
        InputError: If shapes do not fit, a set has fewer than 2 rows, or a value is not finite.
    """
    _check(features, real, 2)
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(_Given(features.shape[1])).set_dtype(torch.float64)
    center = real.cpu().double().mean(0)  # torchmetrics sums squares: far from the origin it would lose all digits
    for rows, is_real in ((real, True), (features, False)):
        for block in rows.cpu().split(max(1, _CHUNK_NUMBERS // rows.shape[1])):
            metric.update(block.double() - center, real=is_real)
    return max(0.0, float(metric.compute()))  # rounding may leave -1e-6 where both are equal


def kernel_distance(features: Tensor, real: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of the squared maximum mean discrepancy over 100 random subsets, KID's.

    Kernel ``(x . y / F + 1)^3``, unbiased estimate, subsets of 1,000 rows of each set, or of half the smaller set where
    that is less. Computed in float64, by torchmetrics. Two given sets always get the same score. The kernel depends on
    where the origin lies: at a common offset of 1e7 deviations a percent is lost to rounding, and all beyond 1e8.

    ``features`` (N, F) and ``real`` (M, F) are floating point, N, M >= 4.

    Raises:
        InputError: As `frechet_distance` raises it.
    """
    _check(features, real, 4)
    from torchmetrics.image.kid import KernelInceptionDistance

    size = min(_SUBSET, min(len(features), len(real)) // 2)
    with unwarned(UserWarning):  # torchmetrics warns that it keeps all features; they are few
        metric = KernelInceptionDistance(_Given(features.shape[1]), subsets=_SUBSETS, subset_size=size)
    metric.set_dtype(torch.float64)
    metric.update(real.cpu().double(), real=True)
    metric.update(features.cpu().double(), real=False)
    with seeded_init(_SEED):  # torchmetrics draws subsets from torch's global state
        mean, std = metric.compute()
    return float(mean), float(std)


def nearest_scores(features: Tensor, real: Tensor) -> NearestScores:
    """Return precision, recall, density and coverage; distances are Euclidean, in float64, a block of rows at a time.

    ``features`` (N, F) and ``real`` (M, F) are floating point, N, M >= 6: every row needs 5 neighbors. The four scores
    compare only at equal N and M.

    Raises:
        InputError: As `frechet_distance` raises it.
    """
    _check(features, real, LEAST)
    fake, true = features.double(), real.double().to(features.device)
    center = true.mean(0)  # cdist multiplies: far from the origin it would lose digits
    fake, true = fake - center, true - center
    true_radii = _radii(true, (_MANIFOLD_K, _DENSITY_K))  # (M, 2)
    fake_radii = _radii(fake, (_MANIFOLD_K,))[:, 0]  # (N,)
    precise, dense = [], []
    recalled = torch.zeros(len(true), dtype=torch.bool, device=fake.device)
    covered = recalled.clone()
    size = max(1, _CHUNK_NUMBERS // len(true))
    for block, radii in zip(fake.split(size), fake_radii.split(size), strict=True):
        distances = torch.cdist(block, true)  # (B, M)
        precise.append((distances <= true_radii[:, 0]).any(1))
        inside = distances <= true_radii[:, 1]
        dense.append(inside.sum(1))
        covered |= inside.any(0)
        recalled |= (distances <= radii[:, None]).any(0)
    return NearestScores(
        precision=float(torch.cat(precise).double().mean()),
        recall=float(recalled.double().mean()),
        density=float(torch.cat(dense).double().mean()) / _DENSITY_K,
        coverage=float(covered.double().mean()),
    )


def measure_fidelity(
    images: Images,
    real: Images,
    network: FeatureNetwork,
    *,
    part: Part = "test",
    cache: Cache | None = None,
    progress: Progress = silent,
) -> FidelityResult:
    """Score images against real ones that neither the generator nor the feature network was trained on.

    Both are at least 6 of one shape, null records left out; ``part`` names the real ones in the result.

    Raises:
        InputError: If there are too few images, or the shapes differ.
    """
    if min(len(images), len(real)) < LEAST:
        raise InputError(
            f"Fidelity compares {len(images)} images with {len(real)} real ones of the {part} part, and needs at least "
            f"{LEAST} of each. Give more images."
        )
    fake = extract_features(network, images, cache=cache, progress=progress)
    true = extract_features(network, real, cache=cache, progress=progress)
    if network.standardize:
        # Distances keep their order and FID only changes its unit. KID's kernel has a scale of its own, on which raw
        # features of size 30 leave nothing but the third powers of a few.
        center, spread = true.mean(0), true.var(0).mean().sqrt()
        if not float(spread) > 0:
            raise InputError(
                "All real images have the same features: this feature network tells nothing. Take another."
            )
        fake, true = (fake - center) / spread, (true - center) / spread
    num = min(len(fake), len(true), MOST_NEAREST)
    some_fake, some_true = _subset(fake, num), _subset(true, num)
    kid, kid_std = kernel_distance(some_fake, some_true)
    return FidelityResult(
        fid=frechet_distance(fake, true),
        kid=kid,
        kid_std=kid_std,
        **dataclasses.asdict(nearest_scores(some_fake, some_true)),
        num_images=len(fake),
        num_real=len(true),
        num_nearest=num,
        part=part,
        network=network.name,
        num_features=fake.shape[1],
        features_sha256=network.sha256,
        resize=network.resize,
        standardized=network.standardize,
        images_digest=images.digest(),
        real_digest=real.digest(),
        protocol=PROTOCOL,
        notes=(
            *_notes(len(fake), len(true), num, fake.shape[1]),
            *_copied(images, "images"),
            *_copied(real, "real images"),
        ),
    )


def _notes(num_images: int, num_real: int, num_nearest: int, num_features: int) -> tuple[str, ...]:
    """Warn of what too few images do to a score."""
    notes, fewest, least = [], min(num_images, num_real), FID_PER_FEATURE * num_features
    if fewest < least:
        singular = ", and below the number of features a covariance is singular" if fewest <= num_features else ""
        notes.append(
            f"too few for FID: {fewest:,} images at {num_features:,} features, where {least:,} are the least; few "
            f"images raise FID{singular}. KID is unbiased: quote that"
        )
    if num_nearest < FEW_NEAREST:
        notes.append(
            f"precision, recall, density and coverage of {num_nearest:,} images of each kind: compare only with "
            "scores of equally many"
        )
    return tuple(notes)


def _copied(images: Images, what: str) -> tuple[str, ...]:
    """Say how many images are exact copies of others, which KID's spread takes for independent draws."""
    copies = len(images) - len(images.distinct())
    note = f"{copies:,} of the {len(images):,} {what} are exact copies of others of them: KID's ± is too small"
    return (note,) if copies else ()


def check(judging: Judging | None = None) -> None:
    """Refuse where the library that computes the distances is broken, before a network is fitted for minutes."""
    try:
        import torchmetrics.image.fid
        import torchmetrics.image.kid  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:  # torchvision of another build than torch
        raise InputError(
            f"torchmetrics cannot be imported ({str(error).splitlines()[0]}), and fidelity is measured by it. Install "
            "torch, torchvision and torchmetrics of versions that fit; idpgan doctor says which were tested."
        ) from error


def measure(judging: Judging, images: Images) -> FidelityResult:
    """Compare images with the real ones that judge."""
    return measure_fidelity(
        place(images, judging.device),
        judging.judges,
        judging.network,
        part=judging.part,
        cache=judging.cache,
        progress=judging.progress,
    )


def table(content: Mapping[str, Any]) -> MetricTable | None:
    """Return the scores of the images under test beside those of the real private ones."""
    named = {"fidelity": "these images", "fidelity_ceiling": "real private images (ceiling)"}
    results = {named[name]: content[name] for name in named if content.get(name)}
    if not results:
        return None
    first = next(iter(results.values()))
    caption = (
        f"Fidelity, {first['num_images']:,} against {first['num_real']:,} real {first['part']} images, features of "
        f"{first['network']}; KID ± its standard deviation over subsets, the others have no interval"
    )
    if len(results) > 1:
        caption += "; the ceiling shows how far real images are from real ones"
    counted = [
        f"{name}: {result['num_images']:,} images, {result['num_nearest']:,} of each kind in KID and neighbors"
        for name, result in results.items()
    ]
    side = first["resize"]
    resized = "not resized" if side is None else f"resized to {side} x {side}"
    features = f"features: {first['num_features']} of {first['network']}, images {resized}"
    rows = []
    for name, result in results.items():
        spread = result.get("kid_std")
        kid = f"{result['kid']:.4f}" + ("" if spread is None else f" ± {spread:.4f}")
        nearest = (f"{result[score.name]:.3f}" for score in dataclasses.fields(NearestScores))
        rows.append((name, f"{result['fid']:.3f}", kid, *nearest))
    return MetricTable(
        caption,
        ("", "FID ↓", "KID ↓", "precision ↑", "recall ↑", "density ↑", "coverage ↑"),
        tuple(rows),
        (*counted, f"{features}, sha256 {first['features_sha256']}"),
    )


class _Given(nn.Identity):
    """A feature network for features that are already computed."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


def _subset(rows: Tensor, num: int) -> Tensor:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SEED))
    return rows[order[:num].sort().values]


def _radii(rows: Tensor, neighbors: tuple[int, ...]) -> Tensor:
    """Return the distance of each row to its k-th nearest other row, for some k: (N, len(neighbors))."""
    radii, start = [], 0
    for block in rows.split(max(1, _CHUNK_NUMBERS // len(rows))):
        distances = torch.cdist(block, rows)  # (B, N)
        own = torch.arange(len(block), device=rows.device)
        distances[own, start + own] = torch.inf  # a row is not a neighbor of itself; a copy of it is
        nearest = distances.topk(max(neighbors), largest=False).values  # ascending
        radii.append(nearest[:, [k - 1 for k in neighbors]])
        start += len(block)
    return torch.cat(radii)


def _check(features: Tensor, real: Tensor, least: int) -> None:
    for rows in (features, real):
        if rows.ndim != 2 or not rows.is_floating_point() or len(rows) < least or rows.shape[1] == 0:
            actual = f"{rows.dtype} {tuple(rows.shape)}"
            raise InputError(f"Features must be floating point (N, F) of at least {least} rows, got {actual}.")
        if not bool(rows.isfinite().all()):
            raise InputError("Features hold NaN or infinity: the feature network or its weights are broken.")
    if features.shape[1] != real.shape[1]:
        raise InputError(
            f"{features.shape[1]} features do not compare with {real.shape[1]}. Take one network for both."
        )
