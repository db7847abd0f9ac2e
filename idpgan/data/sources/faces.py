"""`faces`: people drawn by the program itself (`idpgan.data.faces`), by default 10,000 pictures of 1,000 people."""

from __future__ import annotations

import math

import torch

from idpgan.data import faces
from idpgan.data.config import DataConfig
from idpgan.data.source import DataSet, PublicFacts, Read, Source
from idpgan.device import check_room

NUM_IMAGES, NUM_PEOPLE = 10_000, 1_000  # values for None in the config
SEED = 7_001  # seed of the data source: a constant of the package


def find(config: DataConfig) -> DataSet:
    """Return the faces that a config asks for; raises `DataError` if a number is out of range."""
    num, channels = config.num_images or NUM_IMAGES, config.channels or faces.CHANNELS
    size = config.sides or (faces.SIDE, faces.SIDE)
    what = f"{num:,} faces of {size[1]} x {size[0]}"
    check_room(num * channels * math.prod(size), 2, what, "Lower data.num_images.")
    people = config.num_people or min(NUM_PEOPLE, num)
    faces.validated(num, people, None, size, channels, SEED)
    counts = torch.bincount(torch.arange(num) * people // num).tolist()
    facts = PublicFacts(num, None, (channels, *size), (), faces.ATTRIBUTES, tuple(counts))
    return DataSet(
        facts,
        lambda progress: Read(faces.draw(num, size, channels, people=people, seed=SEED, progress=progress)),
    )


SOURCE = Source(find)
