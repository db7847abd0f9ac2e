"""Which cell a private image belongs to, and the one place of `idp-gan-aggregate` that reads private images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.errors import ConfigError
from idpgan.models.augment import NODES, move, moves_of
from idpgan.models.features import FeatureMap
from idpgan.privacy.noise import Noise

Embedding = Callable[[Tensor], Tensor]  # (B, C, H, W) in [-1, 1] -> (B, 64)
_BATCH = 1000  # private images per call of the feature map


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
        hidden = torch.cat([embedding(batch) for batch in images.split(_BATCH)])
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

    def members(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return each image's cluster as one-hot, (B, clusters): the nearest centroid of its row."""
        if self.centroids is None or self._embedding is None:
            return images.new_ones(len(images), 1)
        nearest = (self._embedding(images)[:, None] - self.centroids[rows]).norm(dim=2).argmin(1)
        return torch.nn.functional.one_hot(nearest, self.clusters).to(images.dtype)

    def index(self, images: Tensor, rows: Tensor, noise: Noise) -> Tensor:
        """Return each image's cell, (B,): a function of that image, its row and its own coin."""
        group = noise.integers(self.groups, (len(images),)).to(images.device)
        cluster = self.members(images, rows).argmax(1)
        return (rows * self.clusters + cluster) * self.groups + group


def private_vectors(
    private: Images, features: FeatureMap, cells: Cells, noise: Noise, *, motion: float, cap: int | None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield (vectors, cells, weights) of all private images, each moved by its own secret coins.

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
    for index in kept.split(_BATCH):
        batch = private.select(index.to(private.images.device))
        images = to_float(batch.images).to(device)
        uniform = noise.uniform((len(index), 6)).float().to(device)
        normal = noise.normal((len(index), 2 * NODES**2)).float().to(device)
        images = move(images, moves_of(uniform, normal, motion))
        labels = batch.labels.to(device) if cells.rows > 1 and batch.labels is not None else None
        rows = torch.zeros(len(index), dtype=torch.int64, device=device) if labels is None else labels
        with torch.no_grad():
            vectors = features(images, labels)
        yield vectors, cells.index(images, rows, noise), None if weights is None else weights[index].to(device)


def shares(private: Images, cap: int | None) -> tuple[Tensor, Tensor | None]:
    """Return the index of the images that count, and every image's share of its person (None for unit image).

    A person's first ``cap`` images by index count, each for 1 / (number of them): a rule within the person, so that no
    person's shares depend on anybody else's images.
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
