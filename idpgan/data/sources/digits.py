"""`digits`: 1,797 handwritten digits of 8 x 8 pixels, embedded in scikit-learn (UCI Optdigits, its test part).

Real handwriting without files or a network connection, for tests, examples and first runs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from idpgan.data.images import Images
from idpgan.data.source import DataSet, PublicFacts, Read, Source
from idpgan.errors import InputError
from idpgan.progress import Progress, silent

FACTS = PublicFacts(num_images=1797, num_test=None, image_shape=(1, 8, 8), classes=tuple("0123456789"))


def load(progress: Progress = silent) -> Read:
    """Return all images, uint8 (1797, 1, 8, 8): the 17 grey levels 0..16 become round(255 v / 16)."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise InputError("the digits are a file of scikit-learn, which is not installed: pip install scikit-learn.")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"  # its import would take a second
    table = torch.from_numpy(np.loadtxt(file, dtype=np.int64, delimiter=","))  # (1797, 65): 64 levels, and the class
    images = (table[:, :64] * 255 + 8).div(16, rounding_mode="floor").to(torch.uint8)
    return Read(Images(images.view(-1, 1, 8, 8), table[:, 64].clone(), FACTS.classes))


SOURCE = Source(lambda config: DataSet(FACTS, load))
