"""Small calls of the maps of private images."""

import pytest

from idpgan.synthesis import feature_sums, moments


@pytest.fixture
def small_tiles(monkeypatch):
    """Calls of 48 rows in the place of 1,000, which would be padded rows of a few images: most of a test's seconds."""
    monkeypatch.setattr(feature_sums, "_TILE", 48)
    monkeypatch.setattr(moments, "_MOST_ROWS", 48)
