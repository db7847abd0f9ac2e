"""`fonts`: digits written by a simulated pen (`idpgan.data.fonts`), by default 10,000."""

from __future__ import annotations

from idpgan.data import fonts
from idpgan.data.config import DataConfig
from idpgan.data.source import DataSet, PublicFacts, Read, Source

NUM_IMAGES = 10_000  # value for None in the config
SEED = 7_003  # seed of the data source: a constant of the package


def find(config: DataConfig) -> DataSet:
    """Return the digits that a config asks for; raises `DataError` if a number is out of range."""
    num, channels = config.num_images or NUM_IMAGES, config.channels or 1
    size = config.sides or (fonts.SIDE, fonts.SIDE)
    fonts.check(num, *size, channels, SEED)
    return DataSet(
        PublicFacts(num, None, (channels, *size), fonts.CLASSES),
        lambda progress: Read(fonts.draw(num, size, channels, seed=SEED, progress=progress)),
    )


SOURCE = Source(find)
