"""From folder to noise: whatever exact answers get noise, they differ by at most what is charged for.

Nothing of a method is known here: the mechanisms themselves are watched. Only what is read first is compared, from
equal states; what follows it depends on what was released.
"""

import dataclasses

import pytest

from idpgan import publish
from idpgan.data.images import to_unit
from idpgan.data.load import load
from idpgan.privacy import Noise
from idpgan.privacy.sums import CellSums
from tests.data.layouts import declared
from tests.neighbors.folders import Change, PartChange, method_of, neighbor, private_names, record
from tests.neighbors.watched import unpaid, watched

HOW = {"zero-out-one": "emptied", "replace-one": "replaced"}
SMALL = {"width": 4, "latent_dim": 4}
BUDGET = {"epsilon": 2.0, "delta": 1e-3}
OWN = {"epsilon1": 0.5, "epsilon2": 0.5, "noise": "once", "delta": 1e-3, "accept_unsound": True}
OF_PEOPLE = {
    "gaussian": {"model": {"generator": "gaussian", "latent_dim": 12}, "training": {"steps": 0}},
    "evolution": {"model": {"generator": "population", "simulator": "fonts", "codes": 6}, "training": {"steps": 2}},
}
OF_IMAGES = {
    "scattering-linear": ("zero-out-one", {"privacy": BUDGET, "training": {"steps": 2}}),
    "dp-sgd": (
        "zero-out-one",
        {"method": {"width": 4}, "privacy": BUDGET, "training": {"steps": 2, "batch_size": 87}},  # all of them
    ),
    "idp-gan-published": ("replace-one", {"model": SMALL, "privacy": OWN, "training": {"steps": 2, "batch_size": 8}}),
    "arden": (
        "replace-one",
        {
            "method": {"width": 4},
            "privacy": {"epsilon": 9.0, "label_epsilon": 2.0, "delta": 1e-3, "accept_unsound": True},
            "training": {"steps": 2},
        },
    ),
    "dssgd": (
        "replace-one",
        {
            "method": {"width": 4, "participants": 3},
            "privacy": {"epsilon": 2.0, "accept_unsound": True},
            "training": {"steps": 2},
        },
    ),
}


def reads_of(monkeypatch, data, table):
    """Return what gets noise until the first step is done, and what was charged for it."""
    with watched(monkeypatch) as seen:
        method, _ = method_of(data, table)
        method.prepare()
        if table["training"]["steps"]:
            method.step(1)
    return seen, method


def largest(pairs, charges=1):
    """How far the reads of two neighbors lie apart in units of their sensitivity, charged so many times."""
    pairs = list(pairs)
    assert pairs
    return max(left.moved(right) / left.sensitivity for left, right in pairs) / charges


@pytest.mark.parametrize("relation", HOW)
@pytest.mark.parametrize("unit", ["image", "person"])
@pytest.mark.parametrize("name", OF_PEOPLE)
def test_methods_of_people(folders, tmp_path, monkeypatch, ratio, name, unit, relation):
    data = folders[unit]
    table = {section: dict(keys) for section, keys in OF_PEOPLE[name].items()}
    table |= {"method": {"name": name}, "privacy": {**BUDGET, "unit": unit, "relation": relation}}
    table["model"]["conditional"] = unit == "image"
    if unit == "person":
        table["privacy"]["most_per_person"] = 2  # below the number of each person's images
    change = Change(record(data, person=unit == "person"), HOW[relation])
    (left, one), (right, other) = (reads_of(monkeypatch, d, table) for d in (data, neighbor(data, tmp_path, change)))
    assert one.ledger.events == other.ledger.events
    assert not unpaid(left, one.plan.events)
    assert 0.3 < ratio(name, unit, largest(zip(left, right, strict=True)), 1) <= 1


@pytest.mark.parametrize("name", OF_IMAGES)
def test_methods_of_images(folders, tmp_path, monkeypatch, ratio, name):
    relation, table = OF_IMAGES[name]
    table = {**table, "method": {**table.get("method", {}), "name": name}}
    data = folders["image"]
    change = Change(record(data), HOW[relation])
    (left, one), (right, other) = (reads_of(monkeypatch, d, table) for d in (data, neighbor(data, tmp_path, change)))
    assert one.ledger.events == other.ledger.events
    charges = one.ledger.events[0].count if name == "idp-gan-published" else 1  # each pixel is charged
    assert 0 < ratio(name, "image", largest(zip(left, right, strict=True), charges), 1) <= 1


SOUND = [(name, str(unit)) for name, info in publish.METHODS.items() if info.sound for unit in info.units]


@pytest.mark.parametrize(("name", "unit"), SOUND)
def test_publishers(folders, tmp_path, monkeypatch, ratio, name, unit):
    """Black becomes white in one unit of one image."""
    data, reads, events = folders["image"], [], []
    for root in (data, neighbor(data, tmp_path, PartChange(record(data), "replaced", unit))):
        images = to_unit(load(declared(**root)).private.images)[:, 0]
        with watched(monkeypatch) as seen:
            released = publish.release(images, name, noise=Noise.fixed(5), epsilon=1.0, unit=unit)
        reads.append(seen)
        events.append(released.events)
    assert events[0] == events[1]
    first = list(zip(*reads, strict=True))[:1]
    assert 0.1 < ratio(name, unit, largest(first, events[0][0].count), 1) <= 1


def test_noise_that_is_a_tenth_too_small_is_not_paid(folders, monkeypatch):
    """The control: a method draws from other sums than those that it charges."""
    release = CellSums.release
    table = {**OF_PEOPLE["gaussian"], "method": {"name": "gaussian"}, "privacy": BUDGET}

    def smaller(sums, *arguments, **options):
        return release(dataclasses.replace(sums, noise_multiplier=0.9 * sums.noise_multiplier), *arguments, **options)

    monkeypatch.setattr(CellSums, "release", smaller)
    seen, method = reads_of(monkeypatch, folders["image"], table)
    assert unpaid(seen, method.ledger.events)


def test_what_is_watched_can_be_too_far_apart(folders, tmp_path, monkeypatch):
    """The control: five images change, and one is charged for."""
    data = folders["image"]
    table = {**OF_PEOPLE["gaussian"], "method": {"name": "gaussian"}, "privacy": BUDGET}
    change = Change(tuple(private_names(data)[:5]), "emptied")
    reads = [reads_of(monkeypatch, d, table)[0] for d in (data, neighbor(data, tmp_path, change))]
    assert largest(zip(*reads, strict=True)) > 1
