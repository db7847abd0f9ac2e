"""Feature maps phi for `idp-gan-aggregate`: fixed before any private image is read, of norm at most 1 by construction.

A map is a list of blocks, each normalized to norm 1 (L2 or L1) and multiplied by public weights. The squares (L2) or
values (L1) of the weights add up to 1, together with the constant coordinate that carries the count. Blocks may be
second moments ``h h^T`` or products ``e h^T`` of two short vectors: a sum over records then is a matrix product, and no
record's product is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data.images import to_float
from idpgan.models.gabor import gabor_filters, pooled_moduli
from idpgan.models.initialize import seeded_init, torch_seed
from idpgan.models.scattering import Scattering, scales_of, scattering_shape
from idpgan.models.warp import augment
from idpgan.numerics.dct import cosines

_COUNT = 0.5  # weight of the count coordinate, relative to a block's
_LEAST_NORM = 1e-6
_HIDDEN = 64
_MODULI = 16 * 16  # of a channel: 16 filters, pooled to 4 x 4
_COPIES = 5  # of the public images, the first as it is and the others moved
_CONSTANT = 0.7  # a constant appended to a vector, so that its second moments include its mean


class Block(NamedTuple):
    """One block of a batch: the vectors ``left`` (B, m), or the products ``left right^T`` of two of them.

    Where both are the same vector, the upper triangle holds the whole second moment.
    """

    left: Tensor
    right: Tensor | None = None


class FeatureMap(nn.Module):
    """Base of the maps.

    Attributes:
        norm: 2 for Gaussian, 1 for Laplace noise.
        dimensions: Length of a vector, the count coordinate (the last one) included.
        count: Value of the count coordinate, the same for every image.
    """

    norm: int
    dimensions: int
    count: float
    _scale: float

    def __init__(self, norm: int) -> None:
        super().__init__()
        self.norm = norm

    def blocks(self, images: Tensor, labels: Tensor | None) -> list[Block]:
        """Return the blocks of float images in [-1, 1]; every row of a vector has norm at most 1."""
        raise NotImplementedError

    def matched_blocks(self, images: Tensor, labels: Tensor | None) -> list[Block]:
        """Return the blocks that a critic compares: all, unless a map releases more than a generator has to match."""
        return self.blocks(images, labels)

    def matched_of(self, sums: Tensor) -> Tensor:
        """Return the numbers of the matched blocks from vectors (..., dimensions); never the count coordinate."""
        return sums[..., :-1]

    def matched(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Map images (B, C, H, W) and labels (B,) or None to the numbers of the matched blocks."""
        parts = [self._each(block) for block in self.matched_blocks(images, labels)]
        return self._scale * torch.cat(parts, dim=1)

    def forward(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] and labels (B,) or None to vectors (B, dimensions) of norm <= 1."""
        parts = [self._each(block) for block in self.blocks(images, labels)]
        constant = images.new_full((len(images), 1), self.count)
        return torch.cat([*(self._scale * part for part in parts), constant], dim=1)

    def means(self, images: Tensor, labels: Tensor | None, groups: int) -> Tensor:
        """Return the mean of `matched` over each of ``groups`` equal runs of consecutive images.

        Args:
            images: (B, C, H, W) in [-1, 1], B a multiple of ``groups``.
            labels: (B,) or None.

        Returns:
            (groups, matched numbers), differentiable in the images.
        """
        means = [self._mean(block, groups) for block in self.matched_blocks(images, labels)]
        return self._scale * torch.cat(means, dim=1)

    def _finish(self, image_shape: Sequence[int], num_classes: int) -> None:
        """Set scale, count and dimensions by the blocks of an example."""
        zeros = torch.zeros(1, *image_shape)
        labels = torch.zeros(1, dtype=torch.int64) if num_classes else None
        with torch.no_grad():
            blocks = self.blocks(zeros, labels)
            # num blocks * scale^p + (count * scale)^p = 1
            self._scale = (len(blocks) + _COUNT**self.norm) ** (-1 / self.norm)
            self.count = _COUNT * self._scale
            self.dimensions = 1 + sum(self._each(block).shape[1] for block in blocks)

    def _unit(self, vectors: Tensor) -> Tensor:
        """Normalize rows to norm 1; zero rows stay 0."""
        norms = torch.linalg.vector_norm(vectors, ord=self.norm, dim=1, keepdim=True)
        return vectors / norms.clamp(min=_LEAST_NORM)

    def _triangle(self, size: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, columns and weights of an upper triangle that has the norm of the whole symmetric matrix."""
        rows, columns = torch.triu_indices(size, size, device=like.device)
        return rows, columns, torch.where(rows == columns, 1.0, 2 ** (1 / self.norm)).to(like.dtype)

    def _each(self, block: Block) -> Tensor:
        """Return the block of every image, (B, block dimensions)."""
        left, right = block
        if right is None:
            return left
        if right is left:
            rows, columns, weights = self._triangle(left.shape[1], left)
            return left[:, rows] * left[:, columns] * weights
        return (left[:, :, None] * right[:, None]).flatten(1)

    def _mean(self, block: Block, groups: int) -> Tensor:
        """Return the block's mean over each group, (groups, block dimensions), by matrix products."""
        left = block.left.view(groups, -1, block.left.shape[1])  # (groups, B / groups, m)
        if block.right is None:
            return left.mean(1)
        right = block.right.view(groups, -1, block.right.shape[1])
        products = left.transpose(1, 2) @ right / left.shape[1]  # (groups, m, n)
        if block.right is block.left:
            rows, columns, weights = self._triangle(left.shape[2], left)
            return products[:, rows, columns] * weights
        return products.flatten(1)

    def _fourier(self, vectors: Tensor, directions: Tensor, phases: Tensor) -> Tensor:
        """Return random Fourier features (Rahimi and Recht 2007), norm at most 1."""
        return torch.cos(vectors @ directions + phases) * directions.shape[1] ** (-1 / self.norm)


class EmbeddingNet(nn.Module):
    """A strided CNN with smooth activations, cheap to differentiate through; fitted to *public* images only."""

    def __init__(self, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__()
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        with seeded_init(seed, 3):
            for maps in (16, 32, 32, 32):
                if min(height, width) <= 4:
                    break
                layers += [nn.Conv2d(channels, maps, 5, stride=2, padding=2), nn.GELU()]
                channels, height, width = maps, (height + 1) // 2, (width + 1) // 2
            self.convolutions = nn.Sequential(*layers)
            self.hidden = nn.Linear(channels * height * width, _HIDDEN)
            self.head = nn.Linear(_HIDDEN, num_classes)

    def activations(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last convolution, flat, (B, F), and the hidden layer, (B, 64)."""
        last = self.convolutions(images).flatten(1)
        return last, functional.gelu(self.hidden(last))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of float images in [-1, 1]."""
        return self.head(self.activations(images)[1])


class PublicFeatures(FeatureMap):
    """Features learned on public images: CNN embedding, PCA, random Fourier features.

    Blocks: second moments of the embedding; (softmax - one-hot) times embedding, the gradient of the classifier's loss,
    where there are classes; the last convolution; second moments of the public principal components; random Fourier
    features of them.

    Args:
        network: Fitted to public images; frozen here.
        public: uint8 (N, C, H, W), the public images.
        num_classes: Classes of the labels, 0 for none.
        norm: 2 or 1.
        seed: Seed of augmentation and random features.
        components: Principal components at most.
        fourier: Number of random Fourier features.
    """

    def __init__(
        self,
        network: EmbeddingNet,
        public: Tensor,
        num_classes: int,
        *,
        norm: int = 2,
        seed: int = 0,
        components: int = 40,
        fourier: int = 1000,
    ) -> None:
        from sklearn.decomposition import PCA

        super().__init__(norm)
        self.network = network.eval().requires_grad_(False)
        self.num_classes = num_classes
        rng = torch.Generator().manual_seed(torch_seed(seed, 4))
        images = to_float(public.cpu())
        images = torch.cat([images, *(augment(images, rng) for _ in range(_COPIES - 1))])
        flat = images.flatten(1)
        self.center = nn.Buffer(flat.mean(0))
        # Not all axes: a full SVD of faces takes minutes.
        fitted = PCA(min(components, *flat.shape), svd_solver="randomized", random_state=0).fit(flat.numpy())
        axes = torch.from_numpy(fitted.components_).to(flat.dtype)
        self.components = nn.Buffer(axes.T.contiguous())  # (C H W, q)
        coefficients = (flat - self.center) @ self.components
        # Typical lengths on public images, fixed before a private image is read.
        self.pixel_length = nn.Buffer(coefficients.norm(dim=1).mean())
        with torch.no_grad():
            self.hidden_length = nn.Buffer(network.activations(images)[1].norm(dim=1).mean())
        self.directions = nn.Buffer(torch.randn(len(axes), fourier, generator=rng) / 0.7)
        self.phases = nn.Buffer(torch.rand(fourier, generator=rng) * 2 * math.pi)
        self._finish(public.shape[1:], num_classes)

    @staticmethod
    def count_dimensions(
        image_shape: tuple[int, int, int], num_public: int, num_classes: int, *, components: int, fourier: int
    ) -> int:
        """Return `dimensions` of such a map, before a public image is read."""
        with torch.no_grad():
            last, hidden = EmbeddingNet(image_shape, 1).activations(torch.zeros(1, *image_shape))
        embedding = hidden.shape[1] + 1  # and a constant
        pixels = min(components, _COPIES * num_public, math.prod(image_shape)) + 1
        moments = sum(size * (size + 1) // 2 for size in (embedding, pixels))
        return moments + last.shape[1] + fourier + num_classes * embedding + 1

    def blocks(self, images: Tensor, labels: Tensor | None) -> list[Block]:
        """Return the five kinds of blocks, or four without classes."""
        constant = images.new_full((len(images), 1), _CONSTANT)
        last, hidden = self.network.activations(images)
        embedding = self._unit(torch.cat([hidden / self.hidden_length, constant], dim=1))
        pixels = (images.flatten(1) - self.center) @ self.components / self.pixel_length
        found = [
            Block(embedding, embedding),
            Block(self._unit(last)),
            Block(*[self._unit(torch.cat([pixels, constant], dim=1))] * 2),
            Block(self._fourier(pixels, self.directions, self.phases)),
        ]
        if labels is not None:
            # |softmax - one-hot| is at most 2 in L1 and sqrt(2) in L2.
            error = self.network.head(hidden).softmax(1) - functional.one_hot(labels, self.num_classes)
            found.append(Block(error / 2 ** (1 / self.norm), embedding))
        return found


class RandomFeatures(FeatureMap):
    """Features without any data: low DCT frequencies, wavelet moduli, random Fourier features.

    Blocks: second moments of low DCT coefficients; second moments of random projections of the pooled Gabor moduli
    (first-order scattering, Mallat 2012); the moduli; random Fourier features of both.

    Args:
        norm: 2 or 1.
        seed: Of the random directions.
        dimensions: DCT coefficients, and random projections of the moduli, in the second moments.
        fourier: Number of random Fourier features of each kind.
        level: Brightness that the DCT coefficients are measured from; 0 is black, 1 is white.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        *,
        norm: int = 2,
        seed: int = 0,
        dimensions: int = 48,
        fourier: int = 500,
        level: float = 0.5,
    ) -> None:
        super().__init__(norm)
        self.channels, height, width = image_shape
        self.level = level
        self.length = math.sqrt(height * width) / 4  # typical, of low DCT coefficients
        rng = torch.Generator().manual_seed(torch_seed(seed, 4))
        # The cosine functions of lowest (u / height)^2 + (v / width)^2.
        low = sorted(((u * width) ** 2 + (v * height) ** 2, u, v) for u in range(height) for v in range(width))
        frequencies = [(u, v) for _, u, v in low[:dimensions]]
        self.dct = nn.Buffer(cosines(height, width, frequencies).float())  # (H W, q)
        self._prepare_texture((self.channels, height, width))
        moduli, spectrum = self.count_texture(image_shape), self.dct.shape[1] * self.channels
        self.projection = nn.Buffer(torch.randn(moduli, dimensions, generator=rng) / math.sqrt(moduli))
        self.dct_directions = nn.Buffer(torch.randn(spectrum, fourier, generator=rng) / 0.35)
        self.moduli_directions = nn.Buffer(torch.randn(moduli, fourier, generator=rng) / 0.3)
        self.dct_phases = nn.Buffer(torch.rand(fourier, generator=rng) * 2 * math.pi)
        self.moduli_phases = nn.Buffer(torch.rand(fourier, generator=rng) * 2 * math.pi)
        self._finish(image_shape, 0)

    @classmethod
    def count_dimensions(cls, image_shape: Sequence[int], *, dimensions: int, fourier: int) -> int:
        """Return `dimensions` of such a map, without building it."""
        channels, height, width = image_shape
        spectrum = channels * min(dimensions, height * width)
        moments = sum(size * (size + 1) // 2 for size in (spectrum + 1, dimensions + 1))
        return moments + cls.count_texture(image_shape) + 2 * fourier + 1

    @classmethod
    def count_texture(cls, image_shape: Sequence[int]) -> int:
        """Return the length of `texture`."""
        return image_shape[0] * _MODULI

    def _prepare_texture(self, image_shape: tuple[int, int, int]) -> None:
        self.stride = 2 if min(image_shape[1:]) > 16 else 1  # of the Gabor filters
        self.gabor = nn.Buffer(gabor_filters())  # (32, 1, 9, 9)

    def texture(self, light: Tensor) -> Tensor:
        """Describe the edges of images (B, C, H, W) in [0, 1] by vectors (B, T) of norm at most 1."""
        planes, padding = light.flatten(0, 1)[:, None], self.gabor.shape[-1] // 2
        moduli = pooled_moduli(planes, self.gabor, stride=self.stride, padding=padding, grid=4)
        return self._unit(moduli.view(len(light), -1))  # (B, C 16 16)

    def blocks(self, images: Tensor, labels: Tensor | None) -> list[Block]:
        """Return the five blocks; the labels have no influence."""
        light = (images + 1) / 2  # [0, 1]
        constant = light.new_ones(len(light), 1)
        spectrum = ((light - self.level).flatten(2) @ self.dct).flatten(1)  # (B, C q)
        pooled = self.texture(light)
        # Projections of a texture of norm 1 are made about as long as the constant.
        size = len(self.projection)
        lift = 4.0 * math.sqrt(size / (self.channels * _MODULI)) * (1.0 if self.norm == 2 else math.sqrt(size))
        low = self._unit(torch.cat([spectrum / self.length, 0.7 * constant], dim=1))
        projected = self._unit(torch.cat([lift * pooled @ self.projection, 0.3 * constant], dim=1))
        return [
            Block(low, low),
            Block(projected, projected),
            Block(pooled),
            Block(self._fourier(self._unit(spectrum), self.dct_directions, self.dct_phases)),
            Block(self._fourier(pooled, self.moduli_directions, self.moduli_phases)),
        ]


class ScatteringFeatures(RandomFeatures):
    """`RandomFeatures` with wavelet scattering (`models.scattering`) in place of first-order moduli.

    A linear classifier on normalized scattering tells classes apart well, and its mean logits over a class are linear
    in the class's mean features: on average, images that match these means look right to the classifier. Four
    directions take a quarter of the time of the classifier's eight.
    """

    _DIRECTIONS = 4

    @classmethod
    def count_texture(cls, image_shape: Sequence[int]) -> int:
        """Return the length of `texture`."""
        shape = int(image_shape[0]), int(image_shape[1]), int(image_shape[2])
        return math.prod(scattering_shape(shape, scales_of(*shape[1:]), cls._DIRECTIONS))

    def _prepare_texture(self, image_shape: tuple[int, int, int]) -> None:
        self._scattering = [Scattering(image_shape, directions=self._DIRECTIONS)]  # no weights: not in the state

    def texture(self, light: Tensor) -> Tensor:
        """Return the normalized scattering of images (B, C, H, W) in [0, 1], (B, T) of norm at most 1."""
        self._scattering[0] = self._scattering[0].to(light.device)
        return self._unit(self._scattering[0].normalized(light))


#: Maps that are fixed without any data, by name.
DATALESS: dict[str, type[RandomFeatures]] = {"random": RandomFeatures, "scattering": ScatteringFeatures}
