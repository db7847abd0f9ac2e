"""`digits`: 1,797 handwritten digits of 8 x 8 pixels, embedded in scikit-learn (UCI Optdigits, its test part).

Real handwriting without files or a network connection, for tests, examples and first runs.
"""

from __future__ import annotations

import torch

from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.source import Found, Read
from idpgan.progress import Progress, silent

CLASSES = tuple("0123456789")


def describe(config: DataConfig) -> Found:
    """Return the published constants; the set has no test images of its own."""
    return Found(num_images=1797, num_test=None, image_shape=(1, 8, 8), classes=CLASSES)


def read(config: DataConfig, progress: Progress = silent) -> Read:
    """Return all images, uint8 (1797, 1, 8, 8): the 17 grey levels 0..16 become round(255 v / 16)."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    levels = torch.from_numpy(pixels).to(torch.int64).view(-1, 1, 8, 8)
    images = (levels * 255 + 8).div(16, rounding_mode="floor").to(torch.uint8)
    return Read(Images(images, torch.from_numpy(labels).to(torch.int64), CLASSES))
