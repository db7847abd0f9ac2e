"""A quick embedding for small tests."""

import pytest

from idpgan.synthesis import votes


@pytest.fixture(autouse=True)
def few_drawn(monkeypatch):
    """Learn the embedding on fewer drawn images."""
    monkeypatch.setattr(votes, "DRAWN", 200)
