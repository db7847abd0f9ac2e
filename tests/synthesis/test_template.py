"""gaussian with registration: sensitivity by brute force, isolation, neighbors from folder to release, the price."""

import json

import pytest
import torch

from idpgan import jobs
from idpgan.data.faces import draw
from idpgan.errors import ConfigError
from idpgan.jobs.audit import run_case
from idpgan.jobs.verify import verify
from idpgan.models import load_generator
from idpgan.privacy import Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.moments import MomentMap, private_moments
from idpgan.synthesis.template import ROUNDS, TemplateMap
from idpgan.training.config import build_config
from tests.neighbors.folders import PER_PERSON, Change, data_of, method_of, neighbor, record, write_metadata

SHAPE, SIZE, COUNT = (1, 24, 20), 10, 3


def table_of(unit="image", **keys):
    """A config of drawn faces; ``keys`` are sections."""
    faces = {"name": "faces", "num_images": 60, "num_people": 20, "image_size": [24, 20], "label": ["smiling"]}
    faces |= {"split_by": "identity", "holdout_share": 0.0, "channels": 1}
    return {
        "data": faces,
        "model": {"generator": "gaussian", "latent_dim": SIZE, "shape": COUNT},
        "method": {"name": "gaussian"} | keys.pop("method", {}),
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "unit": unit, "most_per_person": 2},
        "training": {"device": "cpu"},
        "release": {"samples": 10},
    } | keys


@pytest.fixture(scope="module")
def maps():
    images = draw(12, SHAPE[1:], 1, people=4, seed=2)
    moments = MomentMap(SHAPE, SIZE, shape=COUNT)
    moments.template = images.images[:1] / 127.5 - 1
    found = TemplateMap(moments)
    found.template = moments.template
    return images, {"moments": moments, "template": found}


def sums_of(vector_map, unit=Unit.IMAGE, cap=1):
    return CellSums(1, vector_map.dimensions, "gaussian", 1.0, unit, Relation.ZERO_OUT, most_per_unit=cap)


def exact(images, vector_map, sums, cap=None):
    return sums.exact(private_moments(images, vector_map, conditional=False, cap=cap))


@pytest.mark.parametrize("name", ["moments", "template"])
def test_no_neighbor_moves_the_sums_further_than_declared(maps, name):
    images, vector_map = maps[0], maps[1][name]
    sums, worst = sums_of(vector_map), 0.0
    whole = exact(images, vector_map, sums)
    for row in range(4):
        moved = (whole - exact(images.zeroed_out(torch.tensor([row])), vector_map, sums)).double().norm().item()
        worst = max(worst, moved)
    assert 0.9 * sums.mechanism.sensitivity < worst <= sums.mechanism.sensitivity


@pytest.mark.parametrize("name", ["moments", "template"])
def test_a_person_moves_the_sums_no_further_than_one(maps, name):
    images, vector_map, cap = maps[0], maps[1][name], 2
    sums = sums_of(vector_map, Unit.PERSON, cap)
    left = exact(images, vector_map, sums, cap)
    right = exact(images.zeroed_out(images.identities == 1), vector_map, sums, cap)
    assert 0.3 * sums.mechanism.sensitivity < (left - right).double().norm().item() <= sums.mechanism.sensitivity


@pytest.mark.parametrize("name", ["moments", "template"])
def test_a_record_does_not_change_the_bits_of_another(maps, name):
    images, vector_map = maps[0], maps[1][name]
    kept = torch.ones(len(images), dtype=torch.bool)
    kept[[0, 7]] = False
    vectors = [
        torch.cat([part[0] for part in private_moments(these, vector_map, conditional=False, cap=None)])
        for these in (images, images.zeroed_out(torch.tensor([0, 7])))
    ]
    assert torch.equal(vectors[0][kept], vectors[1][kept])
    assert not vectors[1][~kept].any()
    assert vectors[0].norm(dim=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("unit", ["image", "person"])
@pytest.mark.parametrize("how", ["emptied", "unlabeled"])
def test_from_folder_to_release(tmp_path, monkeypatch, unit, how):
    """Up to the first release both folders' computations agree but for one record; given equal releases, so on."""
    data = data_of(write_metadata(tmp_path / "metadata"))
    table = table_of(unit) | {"model": {"generator": "gaussian", "latent_dim": 6, "shape": 2}}
    del table["data"]
    answers, call = [], CellSums.exact
    change = Change(record(data, person=unit == "person"), how)
    (left, _), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    assert int(after.private.null.sum()) == len(change.names) == (1 if unit == "image" else PER_PERSON)

    def equal_releases(sums, batches):  # the second run sees what the first released, as the proof assumes
        answers.append((sums, call(sums, batches)))
        rounds = ROUNDS + 1
        return answers[-1][1] if len(answers) <= rounds else answers[len(answers) - 1 - rounds][1]

    monkeypatch.setattr(CellSums, "exact", equal_releases)
    for method in (left, right):
        method.prepare()
    assert len(answers) == 2 * (ROUNDS + 1)
    assert left.ledger.events == right.ledger.events == left.plan.events
    for (sums, first), (other, second) in zip(answers[: ROUNDS + 1], answers[ROUNDS + 1 :], strict=True):
        assert sums == other
        assert 0.05 < (first - second).double().norm().item() / sums.mechanism.sensitivity <= 1


@pytest.mark.parametrize("unit", ["image", "person"])
def test_a_run_with_a_teacher_is_paid_verified_audited_and_resumed(tmp_path, unit):
    method = {"teacher_share": 0.3} if unit == "image" else {}
    config = build_config(table_of(unit, method=method), "a test")
    jobs.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    stated = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert 0.99 * 3.0 < stated["report"]["proven"]["epsilon"] <= 3.0
    assert f"a template from {ROUNDS} noisy mean images" in stated["report"]["reason"]
    ledger = [event["count"] for event in stated["events"]] if "events" in stated else None
    assert ledger is None or ROUNDS in ledger
    generator = load_generator(tmp_path / "run")
    assert generator.mean.shape == (2, SIZE + 2 * COUNT)
    first = generator.sample(3, seed=1)
    assert jobs.resume(tmp_path / "run").outcome.step == 0  # nothing is charged again
    assert torch.equal(load_generator(tmp_path / "run").sample(3, seed=1), first)
    assert run_case(tmp_path / "run").proven.epsilon == pytest.approx(stated["report"]["proven"]["epsilon"])


@pytest.mark.parametrize(
    ("section", "keys", "words"),
    [
        ("model", {"generator": "dcgan", "shape": 3}, r"shape = 3 bends what a \"gaussian\" generator draws"),
        ("method", {"name": "gaussian", "teacher_share": 0.9, "template_share": 0.2}, r"leave nothing of the budget"),
    ],
)
def test_settings_that_cannot_be_are_refused(section, keys, words):
    with pytest.raises(ConfigError, match=words):
        build_config(table_of() | {section: keys}, "a test")
