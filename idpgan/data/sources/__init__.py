"""The sources of images, one file each: ``face_folder.py`` is the source "face-folder", and nothing else names it.

A file defines `SOURCE`, a `source.Source`, and is imported when a config asks for it.
"""

from __future__ import annotations

import importlib
import pkgutil

from idpgan.config import nearest_hint
from idpgan.data.config import DataConfig
from idpgan.data.source import DataSet, Source
from idpgan.errors import ConfigError, DataError

NAMES = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))
OF_A_ROOT = ("arrays", "face-folder", "folder")  # these need data.root, which says which set it is
BY_NAME = tuple(name for name in NAMES if name not in OF_A_ROOT)


def find(config: DataConfig) -> DataSet | None:
    """Return the data set of a config without reading an image; None if its files are missing.

    Raises:
        ConfigError: If there is no source of that name.
        DataError: If it is already certain that its images cannot be read.
    """
    return source_of(config.name).find(config)


def needed(config: DataConfig) -> DataSet:
    """Return what `find` returns; raises `DataError` if its files are missing."""
    data_set = find(config)
    if data_set is None:
        raise DataError(source_of(config.name).missing.format(root=config.data_root))
    return data_set


def source_of(name: str) -> Source:
    """Return the source of a name; raises `ConfigError` if there is none."""
    if name not in NAMES:
        raise ConfigError(f"data.name = '{name}' is not a known data set. {nearest_hint(name, NAMES)}")
    source: Source = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").SOURCE
    return source
