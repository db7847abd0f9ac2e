"""What only `make papers` runs: the tests of what went out of the package to benchmarks/papers/."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.papers)
