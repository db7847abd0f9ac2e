"""A slice of benchmarks/redteam.py: its mutations, and that it tells what may pass from what may not."""

import pytest
import redteam

from idpgan.continual import ContinualCounter
from tests.release.forging import document_of, verdict


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream") / "release"
    counter = ContinualCounter(1.0)
    counter.write(folder, counter.release([3, 0, 5]))
    return folder


def test_every_value_is_changed_in_every_way(stream):
    table = document_of(stream)
    named = [name for name, changed in redteam.mutations(table) if changed != table]
    assert len(named) == len(set(named)) > 100
    assert {"events left out", "report.proven.epsilon halved", "report.private turned", "events doubled"} <= set(named)


def test_a_stream_lets_pass_what_may(stream, tmp_path):
    assert verdict(stream) == ""
    tried, passed = redteam.forged_by_field(stream, tmp_path)
    assert tried > 150
    assert passed
    assert redteam.unexpected(passed) == []
    assert verdict(stream) == ""


def test_what_should_not_pass_is_named():
    """The control."""
    passed = ["privacy.json: num_private halved", "privacy.json: report.proven.epsilon halved"]
    assert redteam.unexpected(passed) == passed[1:]


def test_only_ratios_are_collected():
    class Report:
        when, outcome = "call", "passed"
        user_properties = (("ratio", ("lap", "pixel", 1.5)), ("other", 1))

    found = redteam.Ratios()
    found.pytest_runtest_logreport(Report())
    assert (found.rows, dict(found.outcomes)) == ([("lap", "pixel", 1.5)], {"passed": 1})
