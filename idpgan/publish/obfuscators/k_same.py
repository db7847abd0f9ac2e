"""`k-same`: every image becomes the mean of k images that look alike.

Newton, Sweeney, Malin, "Preserving privacy by de-identifying face images", IEEE Transactions on Knowledge and Data
Engineering 17 (2005), k-Same-Pixel: an image and its k - 1 nearest by squared error give way to k copies of their mean,
then the next image that is left; of fewer than 2 k that are left one group is made. (The paper does not say which image
is next: here they are drawn.)

Their theorem: who compares a surrogate with the clear images, one of each person, names the right person with
probability 1 / k at most, since k people share it. It needs that every person is in the set once. Of a person with
several images the nearest are his own: he is averaged with himself, and every attack of `idpgan.attacks` that knows
another picture of him, clear or released (the paper's "parrot"), finds him. And it bounds no attacker who knows
the other k - 1 images, as a proof of differential privacy does: he subtracts them.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor

from idpgan.publish.obfuscators.obfuscator import Obfuscator, without_proof
from idpgan.publish.plan import Options


class KSameConfig(Options):
    """Options of `k-same`.

    Attributes:
        k: Images that share a surrogate; the last group may have up to 2 k - 1.
    """

    k: int = pydantic.Field(5, ge=2, le=1 << 20)

    @property
    def together(self) -> int:
        """The k."""
        return self.k


class KSame(Obfuscator):
    """Average each image with its k - 1 nearest."""

    Config = KSameConfig
    name = "k-same"

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        pixels, k = images.flatten(1), self.config.k
        surrogates = torch.empty_like(pixels)
        remaining = torch.randperm(len(pixels), generator=rng).to(pixels.device)
        while len(remaining):
            size = k if len(remaining) >= 2 * k else len(remaining)
            nearest = torch.cdist(pixels[remaining[:1]], pixels[remaining])[0].topk(size, largest=False).indices
            surrogates[remaining[nearest]] = pixels[remaining[nearest]].mean(0)
            remaining = remaining[torch.ones_like(remaining, dtype=torch.bool).index_fill(0, nearest, False)]
        return surrogates.view_as(images).clamp(0, 1)


PUBLISHERS = {KSame.name: without_proof(KSame)}
