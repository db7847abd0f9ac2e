"""The names that scripts outside the package rely on can be imported, are listed by `dir`, and take what they took."""

import importlib
import inspect

import pytest

import idpgan

NAMES = {
    "idpgan": ("load_classifier", "load_generator"),
    "idpgan.publish": ("METHODS", "Release", "batched_svd", "release"),
    "idpgan.continual": ("ContinualCounter", "fast_diagonal"),
    "idpgan.privacy": ("Event", "Guarantee", "Ledger", "PrivacyReport", "Relation", "Unit"),
    "idpgan.metrics": ("inception_score",),
    "idpgan.attacks": ("evaluate_scores",),
    "idpgan.audit": ("audit",),
    "idpgan.synthesis": ("METHODS",),
}
PARAMETERS = {
    "idpgan.load_classifier": ("path",),
    "idpgan.load_generator": ("path",),
    "idpgan.publish.release": ("images", "method", "epsilon", "delta", "unit", "noise", "accept_unsound", "options"),
    "idpgan.publish.batched_svd": ("matrices", "rank"),
    "idpgan.continual.fast_diagonal": ("n",),
    "idpgan.continual.ContinualCounter": ("epsilon", "horizon", "integer"),
    "idpgan.metrics.inception_score": ("probabilities", "splits"),
    "idpgan.attacks.evaluate_scores": ("members", "non_members"),
    "idpgan.audit.audit": ("mechanism", "data", "neighbor", "runs", "delta", "confidence"),
}
ATTRIBUTES = {
    "idpgan.publish.Release": ("to_uint8", "images", "privacy"),
    "idpgan.continual.ContinualCounter": ("push", "release", "state", "from_state"),
}
PUBLISHERS = ("lap-published", "lra", "sra", "esra", "lrm", "mm", "lap")


def found(name):
    room, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(room), attribute)


@pytest.mark.parametrize("name", [f"{room}.{name}" for room, names in NAMES.items() for name in names])
def test_a_public_name_is_there_and_listed(name):
    room, _, attribute = name.rpartition(".")
    assert found(name) is not None
    assert attribute in dir(importlib.import_module(room))


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_public_function_takes_what_it_took(name):
    parameters = inspect.signature(found(name)).parameters
    assert [wanted for wanted in PARAMETERS[name] if wanted not in parameters] == []


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_public_class_has_what_it_had(name):
    fields = getattr(found(name), "__dataclass_fields__", {})
    assert [a for a in ATTRIBUTES[name] if not hasattr(found(name), a) and a not in fields] == []


def test_every_publisher_has_its_row():
    for name in PUBLISHERS:
        row = idpgan.publish.METHODS[name]
        assert row.units
        assert row.sound is (name == "lap")
        assert (row.family, bool(row.reason)) == ("publisher", True)


@pytest.mark.parametrize(
    "name", ["attacks", "audit", "classify", "continual", "metrics", "models", "privacy", "publish", "synthesis"]
)
def test_a_lazy_room_lists_its_names(name):
    assert name in dir(idpgan)
    room = importlib.import_module(f"idpgan.{name}")
    assert set(room.__all__) <= set(dir(room))
