"""`stripes`: 200 drawn images of 8 x 8 pixels, horizontal or vertical stripes."""

import torch

from idpgan.data.images import Images
from idpgan.data.source import DataSet, PublicFacts, Read, Source

FACTS = PublicFacts(num_images=200, num_test=None, image_shape=(1, 8, 8), classes=("horizontal", "vertical"))


def load(progress):
    """Draw all images, uint8 (200, 1, 8, 8)."""
    rows = torch.randint(2, (200, 8, 1), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pixels, labels = (255 * rows).expand(-1, -1, 8), torch.arange(200) % 2
    pixels = torch.where(labels[:, None, None] == 1, pixels.mT, pixels)
    return Read(Images(pixels[:, None].contiguous(), labels, FACTS.classes))


SOURCE = Source(lambda config: DataSet(FACTS, load))
