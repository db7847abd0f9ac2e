r"""The template that private images are registered to: a noisy mean image, released in rounds.

Round by round, every image is brought into place on the template of the round before (in the first round it stays as it
is), and the noisy sum of what was found gives the next template. A template is a function of released numbers alone, so
that the registration of an image to it (`models.registration`) depends on that image and on what was released.

Sensitivity of a round, L2: 1. The vector of an image is ``z = (sqrt(t), sqrt(1 - t) y)`` of the registered image, with
y of norm at most 1 (`MomentMap`), hence ``|z| <= 1``, whatever its displacement; a null record adds z = 0. The template
is fixed when a round begins and is the same for both neighbors, as in every adaptive composition, and no other record's
vector depends on the record that is zeroed out (`private_moments`). The rounds are Gaussian releases of one noise
multiplier, and ``template_share`` is their share of the squared signal; the ledger charges their events.
"""

from __future__ import annotations

import math

from torch import Tensor

from idpgan.data.images import Images
from idpgan.models.registration import Registration, displaced
from idpgan.privacy import Noise
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.moments import MomentMap, private_moments
from idpgan.synthesis.people import AggregatePrivacy

ROUNDS = 3


def template_sums(size: int, share: float, multiplier: float, privacy: AggregatePrivacy) -> CellSums:
    """Return the release of one round.

    Args:
        size: Coefficients of a registered image.
        share: Of the budget, for all rounds together.
        multiplier: Noise multiplier of all that is released together.
    """
    terms = {key: value for key, value in privacy.terms.items() if key not in ("epsilon", "delta")}
    return CellSums(1, size + 1, "gaussian", multiplier * math.sqrt(ROUNDS / share), **terms)


class TemplateMap:
    """The vector z(x) of an image on its way to a template.

    Args:
        texture: Of images without displacement; its center and scale are fixed.
        registration: Brings an image into place.

    Attributes:
        dimensions: Length of a vector.
        template: The template of the round before, (C, H, W) float32; None = images stay as they are.
    """

    def __init__(self, texture: MomentMap, registration: Registration) -> None:
        self._texture, self._registration = texture, registration
        self.dimensions = texture.size + 1
        self.template: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] to vectors (B, dimensions) float64 of norm at most 1."""
        if self.template is not None:
            images = displaced(images, self._registration(images, self.template.to(images.device)))
        return self._texture.parts(images)[0]

    def read(self, sums: Tensor) -> Tensor:
        """Return the mean image (C, H, W) float32 of noisy sums (1, dimensions), symmetric where images are."""
        constant, texture = self._texture.constant, self._texture
        mean = sums[0, 1:] / (sums[0, 0] / constant).clamp(min=1) / texture.weight
        mean = mean.masked_fill(texture.odd, 0.0)
        image = texture.basis @ (texture.center + texture.scale * mean)
        return image.view(texture.image_shape).clamp(-1, 1).float()


def release_template(sums: CellSums, found: TemplateMap, private: Images, cap: int | None, noise: Noise) -> Tensor:
    """Release the template of the last round, (C, H, W) float32; the release that this is part of pays all rounds."""
    template = Tensor()
    for _ in range(ROUNDS):
        vectors = private_moments(private, found, conditional=False, cap=cap)
        found.template = template = found.read(sums(vectors, noise))
    return template
