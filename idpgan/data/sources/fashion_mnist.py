"""`fashion-mnist`: Zalando's clothes, 28 x 28, in the four IDX files that `mnist` has too."""

from __future__ import annotations

from idpgan.data.source import Source
from idpgan.data.sources.mnist import IdxFiles

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

SOURCE = Source(IdxFiles("fashion-mnist", "FashionMNIST", CLASSES).find)
