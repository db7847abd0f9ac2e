r"""The template that private images are registered to: a noisy mean image, released in rounds; one, or one a class.

Round by round, every image is brought into place on the template of the round before (in the first round it stays as it
is), and the noisy sum of what was found gives the next template. A template is a function of released numbers alone, so
that the registration of an image to it (`models.registration`) depends on that image and on what was released.

Sensitivity of a round, L2: 1. The vector of an image is ``z = (sqrt(t), sqrt(1 - t) y)`` of the registered image, with
y of norm at most 1 (`MomentMap`), hence ``|z| <= 1``, whatever its displacement; a null record adds z = 0. The template
is fixed when a round begins and is the same for both neighbors, as in every adaptive composition, and no other record's
vector depends on the record that is zeroed out (`private_moments`). The rounds are Gaussian releases of one noise
multiplier, and ``template_share`` is their share of the squared signal; the ledger charges their events.

*A template of each class.* A round then sums z in one cell a class, and an image is brought into place on the template
of its own class. The label is a part of the record, so both the cell and z are functions of that record and of what was
released, and it is in one cell: zeroing it out moves the sums of all cells together by at most 1, as before. (Under
replace-one both its old and its new vector may count, in one cell or in two: `privacy.sums`.) So a class's template has
the noise that one template would have, on the images of that class alone.
"""

from __future__ import annotations

import functools

from torch import Tensor

from idpgan.data.images import Images
from idpgan.models.registration import displaced
from idpgan.privacy import Noise
from idpgan.privacy.sums import CellSums
from idpgan.progress import Progress, silent
from idpgan.synthesis.moments import MomentMap, of_rows, private_moments
from idpgan.synthesis.shrinkage import shared
from idpgan.training.kept_features import NOT_KEPT, KeptFeatures

ROUNDS, TEMPLATE_SHARE = 3, 0.04  # share of the budget, where a config does not say


class TemplateMap:
    """The vector z(x) of an image on its way to a template.

    Args:
        moments: What the templates are for; the center and scale of z are those of images as they lie, and fixed.

    Attributes:
        dimensions: Length of a vector.
        template: The templates of the round before, (T, C, H, W) float32; None = images stay as they are.
    """

    def __init__(self, moments: MomentMap) -> None:
        if moments.registration is None:
            raise ValueError("the moments are those of images as they lie, and need no template.")
        self._texture, self._registration = moments.unregistered(), moments.registration
        self._shared = moments.light is not None
        self.dimensions = self._texture.size + 1
        self.template: Tensor | None = None

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] of cells (B,) to vectors (B, dimensions) float64 of norm at most 1."""
        if self.template is not None:
            images = displaced(images, self._registration(images, of_rows(self.template, rows).to(images.device)))
        return self._texture.parts(images)[0]

    def read(self, sums: Tensor, noise_std: float = 0.0) -> Tensor:
        """Return mean images (T, C, H, W) float32 of noisy sums (T, dimensions), symmetric where images are.

        With light, those of classes are shrunk towards each other by their noise of standard deviation ``noise_std``.
        """
        texture = self._texture
        counts = (sums[:, :1] / texture.constant).clamp(min=1)
        mean = sums[:, 1:] / counts / texture.weight
        if self._shared:
            mean = shared(mean, noise_std / texture.weight / counts[:, 0])
        mean = mean.masked_fill(texture.odd, 0.0)
        images = (texture.center + texture.scale * mean) @ texture.basis.T
        return images.view(-1, *texture.image_shape).clamp(-1, 1).float()


def release_template(
    sums: CellSums,
    moments: MomentMap,
    private: Images,
    cap: int | None,
    noise: Noise,
    kept: KeptFeatures = NOT_KEPT,
    progress: Progress = silent,
) -> Tensor:
    """Release the templates of the last round, (T, C, H, W) float32; the release that this is part of pays all rounds.

    Args:
        sums: Of one round, a cell for each template.
        moments: What the templates are for.
        private: Read in every round.
        cap: Images of one person that count, for unit person; None for unit image.
        kept: Of the run.
        progress: Told of every round.
    """
    vector_map, template = TemplateMap(moments), Tensor()
    for number in range(ROUNDS):
        vectors = functools.partial(private_moments, private, vector_map, conditional=sums.num_cells > 1, cap=cap)
        noisy = kept.released(
            sums,
            vectors,
            len(private),
            noise,
            name=f"template-{number}",
            fixed=[template],
            progress=progress,
            what=f"round {number + 1} of the template",
        )
        vector_map.template = template = vector_map.read(noisy, sums.noise_std)
    return template
