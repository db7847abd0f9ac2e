"""The exported charges are those that dp_accounting reads, and cost there what they cost here."""

import json
import math
from collections import namedtuple

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from typer.testing import CliRunner

from idpgan.commands import app
from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit, compose_epsilon
from idpgan.privacy.exchange import exchanged
from tests.publish.pictures import pictures

REPLACE = (Unit.IMAGE, Relation.REPLACE_ONE)
ZERO = (Unit.IMAGE, Relation.ZERO_OUT)
EVENTS = {
    "gaussian": Event("gaussian", *ZERO, 2.0, count=3),
    "steps": Event("poisson-gaussian", *ZERO, 1.1, count=40, sample_rate=0.05),
    "laplace": Event("laplace", *REPLACE, 1.5, count=2),
    "grid": Event("discrete-laplace", *REPLACE, 2.0, sensitivity=8),
    "answers": Event("randomized-response", *REPLACE, pure_epsilon=1.2, categories=4),
    "choice": Event("exponential", *REPLACE, pure_epsilon=0.5, count=2),
}


def tuples(node):
    """Make named tuples of JSON objects again: all that a reader has to do."""
    if isinstance(node, dict):
        return namedtuple(node["class_name"], list(node))(**{name: tuples(value) for name, value in node.items()})
    return [tuples(each) for each in node] if isinstance(node, list) else node


def parsed(events):
    return dp_event.DpEvent.from_named_tuple(tuples(json.loads(json.dumps(exchanged(events)["dp_event"]))))


@pytest.mark.parametrize("name", EVENTS)
def test_their_parser_takes_the_tree_and_their_price_is_ours(name):
    event = EVENTS[name]
    relation = (
        NeighboringRelation.REPLACE_SPECIAL if event.relation == Relation.ZERO_OUT else NeighboringRelation.REPLACE_ONE
    )
    accountant = PLDAccountant(relation)
    if not accountant.supports(parsed([event])):
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    theirs = accountant.compose(parsed([event])).get_epsilon(1e-5)
    ours = compose_epsilon([event], 1e-5)
    assert theirs >= ours * (1 - 1e-3)
    assert theirs <= ours * 1.02 + 1e-3


def test_rho_and_mu_add_up_and_are_null_where_nothing_bounds_them():
    both = exchanged([Event("gaussian", *ZERO, 2.0, count=4), Event("gaussian", *ZERO, 1.0)])
    assert both["rho"] == pytest.approx(4 / 8 + 1 / 2)
    assert both["mu"] == pytest.approx(math.sqrt(1 + 1))
    pure = exchanged([EVENTS["choice"]])
    assert (pure["rho"], pure["mu"]) == (2 * 0.5**2 / 2, None)
    for event in (
        EVENTS["steps"],
        Event("approximate", *REPLACE, pure_epsilon=1.0, delta=1e-6),
        Event.non_private("raw"),
    ):
        assert exchanged([event])["rho"] is None


def test_what_is_not_private_or_not_known_there_is_said():
    said = parsed([Event.non_private("raw"), Event("approximate", *REPLACE, pure_epsilon=1.0, delta=1e-6)])
    assert said.events == [dp_event.NonPrivateDpEvent(), dp_event.UnsupportedDpEvent()]
    assert parsed([EVENTS["choice"].repeated(2000)]).events == [dp_event.UnsupportedDpEvent()]  # not one of them


def test_a_mechanism_says_sensitivity_and_noise_in_one_unit():
    (mechanism,) = exchanged([EVENTS["grid"]])["mechanisms"]
    assert (mechanism["sensitivity"], mechanism["noise"]) == (8, 16.0)


def test_a_ledger_is_exported_once_with_every_charge(tmp_path):
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for index, image in enumerate(pictures(3, 12, 12)):
        Image.fromarray((image.numpy() * 255).astype("uint8")).save(tmp_path / "photos" / f"{index}.png")
    publish = ["--method", "lap", "--epsilon", "2", "--unit", "column", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, ["publish", str(tmp_path / "photos"), *publish]).exit_code == 0
    out = tmp_path / "ledger.json"
    said = CliRunner().invoke(app, ["ledger", str(tmp_path / "photos"), "--export", str(out)], catch_exceptions=False)
    assert said.exit_code == 0
    assert f"Exported: {out}" in said.output
    (row,) = json.loads(out.read_text())["spending"]
    assert (row["method"], row["unit"], row["relation"]) == ("lap", "column", "replace-one")
    tree = dp_event.DpEvent.from_named_tuple(tuples(row["dp_event"]))
    assert [type(event).__name__ for event in tree.events] == ["DiscreteLaplaceDpEvent"]
    assert row["mechanisms"][0]["noise"] == pytest.approx(row["mechanisms"][0]["sensitivity"] / 2)  # epsilon 2
    assert out.stat().st_mode & 0o077 == 0  # which methods ran on which images is the curator's


def test_nothing_of_somebody_else_is_written_over(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "ledger.json").write_text('{"format": "mine"}')
    said = CliRunner().invoke(app, ["ledger", str(tmp_path / "photos"), "--export", str(tmp_path / "ledger.json")])
    assert isinstance(said.exception, InputError)
    assert (tmp_path / "ledger.json").read_text() == '{"format": "mine"}'
