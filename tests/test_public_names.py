"""The names that scripts outside the package rely on can be imported, are listed by `dir`, and take what they took."""

import ast
import importlib
import inspect
import pkgutil
import typing
from pathlib import Path

import numpy as np
import pytest
import torch

import idpgan
from idpgan import attacks, continual, privacy
from idpgan.errors import InputError

NAMES = {
    "idpgan": (
        "SyntheticDataset",
        "evaluate",
        "fit",
        "fit_classifier",
        "load_classifier",
        "load_generator",
        "publish_images",
    ),
    "idpgan.publish": ("METHODS", "Release", "batched_svd", "release"),
    "idpgan.continual": ("ContinualCounter", "fast_diagonal"),
    "idpgan.privacy": ("Event", "Guarantee", "Ledger", "PrivacyReport", "Relation", "Unit"),
    "idpgan.metrics": ("inception_score",),
    "idpgan.attacks": ("evaluate_scores",),
    "idpgan.audit": ("audit",),
    "idpgan.synthesis": ("METHODS",),
}
PARAMETERS = {
    "idpgan.fit": (
        "images",
        "labels",
        "epsilon",
        "delta",
        "unit",
        "people",
        "method",
        "public",
        "out",
        "device",
        "progress",
    ),
    "idpgan.load_classifier": ("path",),
    "idpgan.load_generator": ("path",),
    "idpgan.SyntheticDataset": ("path", "transform", "num", "seed"),
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


PACKAGES = [
    "idpgan",
    *(found.name for found in pkgutil.walk_packages(idpgan.__path__, "idpgan.") if found.ispkg),
]


def told_to_type_checkers(package):
    """Names that the ``if TYPE_CHECKING`` of a package imports."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_lists_and_has_all_that_it_promises(name):
    package = importlib.import_module(name)
    promised = set(getattr(package, "__all__", ()))
    if "__getattr__" in vars(package):
        promised |= told_to_type_checkers(package)
        with pytest.raises(AttributeError, match="has no attribute 'frobnicate'"):
            package.frobnicate  # noqa: B018
    assert promised <= set(dir(package))
    assert [missing for missing in sorted(promised) if not hasattr(package, missing)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_what_checks_arguments_can_read_the_annotations(name):
    """A type that only a type checker imports is none when a public function is called."""
    package = importlib.import_module(name)
    values = [getattr(package, each, None) for each in dir(package) if not each.startswith("_")]
    functions = [inspect.unwrap(value) for value in values if inspect.isfunction(value)]
    for function in functions:
        if function.__module__.startswith("idpgan."):
            assert isinstance(typing.get_type_hints(function), dict)


def test_lazy_names_are_typed():
    lazy = [name for name in PACKAGES if "__getattr__" in vars(importlib.import_module(name))]
    assert len(lazy) > 8
    for name in lazy:
        package = importlib.import_module(name)
        if hasattr(package, "__all__"):
            defined = told_to_type_checkers(package) | {key for key in vars(package) if key in dir(package)}
            assert set(package.__all__) <= defined, name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: privacy.default_delta(-1.5), "num_images = -1.5 must be a whole number"),
        (lambda: privacy.default_delta(float("nan")), "num_images = nan"),
        (lambda: privacy.default_delta(True), "num_images = True"),
        (lambda: privacy.default_delta(0), "at least 1"),
        (lambda: privacy.check_delta("x", 10), "must be a number"),
        (lambda: privacy.check_delta(1e-5, 0), "at least 1"),
        (lambda: continual.isotonic("abc"), "answers must be numbers"),
        (lambda: continual.isotonic([1.0, float("nan")]), "finite"),
        (lambda: continual.isotonic([]), "T >= 1"),
        (lambda: continual.isotonic(5), "T >= 1"),
        (lambda: attacks.train_attacker([None]), "known must be a sequence of pairs of a tensor"),
        (lambda: attacks.train_attacker([(1, 2, 3)]), "known must be a sequence of pairs"),
        (lambda: attacks.train_attacker(["ab"]), "known must be a sequence of pairs"),
    ],
)
def test_numbers_and_pairs_that_are_none_are_refused_in_one_line(call, words):
    with pytest.raises(InputError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_numbers_and_pairs_are_taken_as_before():
    assert privacy.default_delta(np.int64(20_000)) == 5e-6
    privacy.check_delta(0, 10)
    assert continual.isotonic(np.array([[3.0, 1.0]])).tolist() == [[2.0, 2.0]]
    with pytest.raises(InputError, match="all labels are equal"):  # a list as a pair is a pair
        attacks.train_attacker([[torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)]])
