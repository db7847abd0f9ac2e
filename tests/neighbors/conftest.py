"""Folders, written once; and ratios of difference to sensitivity, which `benchmarks/redteam.py` prints."""

import pytest

from tests.neighbors.folders import data_of, write_classes, write_metadata, write_people


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("folders")
    return {
        "image": data_of(write_classes(place / "classes")),
        "person": data_of(write_people(place / "people")),
        "metadata": data_of(write_metadata(place / "metadata")),
    }


@pytest.fixture
def ratio(record_property):
    """Return how far neighbors' answers lie apart as a share of the sensitivity, and keep it: ``name, unit, ratio``."""

    def kept(name, unit, moved, sensitivity):
        record_property("ratio", (name, unit, moved / sensitivity))
        return moved / sensitivity

    return kept
