"""Which cell a private image belongs to, and the one place of `idp-gan-aggregate` that reads private images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.models.features import FeatureMap
from idpgan.models.warp import NODES, move, moves_of
from idpgan.privacy.dpsgd import full_precision
from idpgan.privacy.noise import Noise

Embedding = Callable[[Tensor], Tensor]  # (B, C, H, W) in [-1, 1] -> (B, 64)
_TILE = 1000  # private images per call of the feature map, always: fewer are padded


class Cells:
    """A fixed public list: class (or one row for all), then public cluster, then group.

    Args:
        rows: Classes, 1 for an unconditional generator.
        clusters: Public clusters per row.
        groups: Groups per cluster, by an independent coin per image.

    Attributes:
        num: Number of cells, empty ones included.
        centroids: (rows, clusters, 64) of public images; None where there is one cluster per row.
    """

    def __init__(self, rows: int, clusters: int, groups: int) -> None:
        self.rows, self.clusters, self.groups = rows, clusters, groups
        self.num = rows * clusters * groups
        self.centroids: Tensor | None = None
        self._embedding: Embedding | None = None

    def find_clusters(self, embedding: Embedding, public: Images, seed: int) -> None:
        """Cluster the embedded public images of each row by k-means; where images are few, centroids repeat."""
        from sklearn.cluster import KMeans

        images = to_float(public.images)
        hidden = torch.cat([embedding(batch) for batch in images.split(_TILE)])
        found = []
        for row in range(self.rows):
            members = hidden if self.rows == 1 or public.labels is None else hidden[public.labels == row]
            if not len(members):
                raise ConfigError(f"the public images hold none of class {row}; method.clusters needs some of each.")
            fitted = KMeans(min(self.clusters, len(members)), n_init=4, random_state=seed).fit(members.cpu().numpy())
            centers = torch.from_numpy(fitted.cluster_centers_).to(hidden)
            found.append(centers[torch.arange(self.clusters) % len(centers)])
        self.set_centroids(embedding, torch.stack(found))

    def set_centroids(self, embedding: Embedding, centroids: Tensor) -> None:
        """Take centroids (rows, clusters, 64) and the embedding that they live in."""
        self._embedding, self.centroids = embedding, centroids

    def clusters_of(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return each image's cluster, (B,): the nearest centroid of its row."""
        if self.centroids is None or self._embedding is None:
            return torch.zeros_like(rows)
        return (self._embedding(images)[:, None] - self.centroids[rows]).norm(dim=2).argmin(1)

    def members(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return each image's cluster as one-hot, (B, clusters)."""
        return torch.nn.functional.one_hot(self.clusters_of(images, rows), self.clusters).to(images.dtype)

    def index(self, cluster: Tensor, rows: Tensor, noise: Noise) -> Tensor:
        """Return each image's cell, (B,), by its cluster, its row and a coin of its own for the group."""
        group = noise.integers(self.groups, (len(rows),)).to(rows.device)
        return (rows * self.clusters + cluster) * self.groups + group


def private_vectors(
    private: Images, features: FeatureMap, cells: Cells, noise: Noise, *, motion: float, cap: int | None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield (vectors, cells, weights) of all private images, each moved by its own secret coins.

    Every call of the feature map has the same number of rows, padded where images are few, and null records keep their
    rows and coins: the arithmetic of a row, down to the last bit, is a function of that row's image, coins and place.
    (A matrix product over fewer rows may round differently, and the nearest centroid of *another* image may flip.) The
    vector of a null record is zero, its count coordinate included.

    Args:
        private: Read here, after the release was charged.
        features: phi, fixed.
        cells: The public list.
        noise: Source of the coins.
        motion: Strength of the random motion.
        cap: Images of one person that count, for unit person; None for unit image.
    """
    device = next(features.buffers()).device
    kept, weights = shares(private, cap)
    for index in kept.split(_TILE):
        batch, num = private.select(index.to(private.images.device)), len(index)
        coins = noise.uniform((num, 6)), noise.normal((num, 2 * NODES**2))
        uniform, normal = (_padded(part.float().to(device)) for part in coins)
        labels = batch.labels if cells.rows > 1 and batch.labels is not None else torch.zeros(num, dtype=torch.int64)
        rows = _padded(labels.to(device))
        with torch.no_grad(), full_precision():
            images = move(_padded(to_float(batch.images).to(device)), moves_of(uniform, normal, motion))
            vectors = features(images, rows if cells.rows > 1 else None)[:num]
            cluster = cells.clusters_of(images, rows)[:num]
        if batch.null is not None:
            vectors = vectors.masked_fill(batch.null.to(device)[:, None], 0.0)
        yield vectors, cells.index(cluster, rows[:num], noise), None if weights is None else weights[index].to(device)


def _padded(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(_TILE - len(rows), *rows.shape[1:])])


def shares(private: Images, cap: int | None) -> tuple[Tensor, Tensor | None]:
    """Return the index of the images that count, and every image's share of its person (None for unit image).

    A person's first ``cap`` positions count, each for 1 / (number of them): a rule within the person, so that no
    person's shares depend on anybody else's images. Positions and whose they are is public; null records have positions
    too, so that the shares of the others do not depend on which images are there.
    """
    everything = torch.arange(len(private))
    if cap is None or private.identities is None:
        return everything, None
    _, person, counts = private.identities.cpu().unique(return_inverse=True, return_counts=True)
    order = person.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = everything - starts[person[order]]  # 0 for a person's first image
    return everything[rank < cap], counts.clamp(max=cap).double().reciprocal()[person]


def refuse_people_in_two_parts(split: Split) -> None:
    """Raise a `ConfigError` if a person of the private part has images elsewhere; null records count as images.

    For unit person nothing would be promised to that person.
    """
    private = split.private.identities
    for name in ("public", "holdout", "test"):
        others = getattr(split, name).identities
        if private is None or others is None:
            continue
        shared = int(torch.isin(private.unique(), others.unique()).sum())
        if shared:
            raise ConfigError(
                f"privacy.unit = person, but {shared} people of the private part have images in the {name} part too, "
                'where nothing protects them. Set data.split_by = "identity".'
            )
