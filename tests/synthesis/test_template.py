"""Registration, on one template or on one of each class: sensitivity by brute force, isolation, folder to release."""

import dataclasses
import json

import pytest
import torch

from idpgan import trainer
from idpgan.commands.audit import run_case
from idpgan.data.faces import draw
from idpgan.data.images import to_float
from idpgan.data.load import load
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models import load_generator
from idpgan.privacy import Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.moments import MomentMap, private_moments
from idpgan.synthesis.template import ROUNDS, TemplateMap, release_template
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.neighbors.folders import PER_PERSON, Change, data_of, method_of, neighbor, record, write_metadata

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, SIZE, COUNT = (1, 24, 20), 10, 3


def table_of(unit="image", **keys):
    """A config of drawn faces; ``keys`` are sections."""
    faces = {"name": "faces", "num_images": 60, "num_people": 20, "image_size": [24, 20], "label": ["smiling"]}
    faces |= {"split_by": "identity", "holdout_share": 0.0, "channels": 1}
    return {
        "data": faces,
        "model": {"generator": "gaussian", "latent_dim": SIZE, "drawing": {"shape": COUNT}},
        "method": {"name": "gaussian"} | keys.pop("method", {}),
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "unit": unit, "most_per_person": 2},
        "training": {"device": "cpu"},
        "release": {"samples": 10},
    } | keys


@pytest.fixture(scope="module")
def maps():
    images = draw(12, SHAPE[1:], 1, people=4, seed=2)
    images = dataclasses.replace(images, labels=torch.arange(12) % 2, classes=("a", "b"))
    found = {}
    for templates in (1, 2):
        moments = MomentMap(SHAPE, SIZE, shape=COUNT)
        moments.set_template(images.images[:templates] / 127.5 - 1)
        found["moments", templates], found["template", templates] = moments, TemplateMap(moments)
        found["template", templates].template = moments.template
    return images, found


def sums_of(vector_map, cells, unit=Unit.IMAGE, cap=1):
    return CellSums(cells, vector_map.dimensions, "gaussian", 1.0, unit, Relation.ZERO_OUT, most_per_unit=cap)


def exact(images, vector_map, sums, cap=None):
    return sums.exact(private_moments(images, vector_map, conditional=sums.num_cells > 1, cap=cap))


MAPS = pytest.mark.parametrize("name", [("moments", 1), ("template", 1), ("moments", 2), ("template", 2)])


@MAPS
def test_no_neighbor_moves_the_sums_further_than_declared(small_tiles, maps, name):
    images, vector_map = maps[0], maps[1][name]
    sums, worst = sums_of(vector_map, name[1]), 0.0
    whole = exact(images, vector_map, sums)
    for row in range(4):
        moved = (whole - exact(images.zeroed_out(torch.tensor([row])), vector_map, sums)).double().norm().item()
        worst = max(worst, moved)
    assert 0.9 * sums.mechanism.sensitivity < worst <= sums.mechanism.sensitivity


@MAPS
def test_a_person_moves_the_sums_no_further_than_one(small_tiles, maps, name):
    images, vector_map, cap = maps[0], maps[1][name], 2
    sums = sums_of(vector_map, name[1], Unit.PERSON, cap)
    left = exact(images, vector_map, sums, cap)
    right = exact(images.zeroed_out(images.identities == 1), vector_map, sums, cap)
    assert 0.3 * sums.mechanism.sensitivity < (left - right).double().norm().item() <= sums.mechanism.sensitivity


@MAPS
@pytest.mark.parametrize("value", [0, 255])
def test_a_record_does_not_change_the_bits_of_another(small_tiles, maps, name, value):
    """Not when it is emptied, and not when it turns into another image of another class."""
    images, vector_map = maps[0], maps[1][name]
    changed = torch.tensor([0, 7])
    kept = torch.ones(len(images), dtype=torch.bool)
    kept[changed] = False
    other = dataclasses.replace(images, images=images.images.clone(), labels=images.labels.clone())
    other.images[changed], other.labels[changed] = value, 1 - images.labels[changed]
    vectors, emptied, turned = (
        torch.cat([part[0] for part in private_moments(these, vector_map, conditional=name[1] > 1, cap=None)])
        for these in (images, images.zeroed_out(changed), other)
    )
    assert torch.equal(vectors[kept], emptied[kept])
    assert torch.equal(vectors[kept], turned[kept])
    assert not torch.equal(vectors[~kept], turned[~kept])  # control
    assert not emptied[~kept].any()
    assert torch.cat([vectors, turned]).norm(dim=1).max() <= 1 + 1e-12


def test_an_image_is_brought_into_place_on_the_template_of_its_class(maps):
    images, moments, single = to_float(maps[0].images), maps[1]["moments", 2], maps[1]["moments", 1]
    labels = torch.arange(12) % 2
    alone = MomentMap(SHAPE, SIZE, shape=COUNT)
    for label in range(2):
        alone.set_template(moments.template[label])
        assert torch.allclose(moments(images, labels)[labels == label], alone(images)[labels == label], atol=1e-6)
    assert not torch.allclose(moments(images, labels), single(images), atol=1e-2)  # control
    with pytest.raises(RuntimeError, match="the classes of the images are not given"):
        moments(images)


def test_templates_of_classes_are_their_mean_images_and_the_centers_of_their_textures(maps):
    images, moments = maps[0], MomentMap(SHAPE, SIZE, shape=COUNT)
    sums = CellSums(2, SIZE + 1, "gaussian", 1e-6, Unit.IMAGE, Relation.ZERO_OUT)
    templates = release_template(sums, moments, images, None, Noise.fixed(1))
    moments.set_template(templates)
    assert templates.shape == (2, *SHAPE)
    for label in range(2):
        own = images.select((images.labels == label).nonzero()[:, 0])
        alone = release_template(dataclasses.replace(sums, num_cells=1), moments, own, None, Noise.fixed(1))
        assert torch.allclose(templates[label], alone[0], atol=1e-3)
        assert torch.allclose(
            moments.center[label, :SIZE].float(), templates[label].flatten() @ moments.basis.float(), atol=1e-4
        )
    assert not torch.allclose(templates[0], templates[1], atol=1e-2)


def test_public_images_set_a_center_for_each_class_that_they_show(maps):
    images, moments = maps[0], MomentMap(SHAPE, SIZE, shape=COUNT)
    moments.set_template(images.images[:2] / 127.5 - 1)
    before, first = moments.center.clone(), images.select((images.labels == 0).nonzero()[:, 0])
    moments.learn_public(first)
    found = moments.coefficients(to_float(first.images), first.labels)
    assert torch.allclose(moments.center[0], found.mean(0))
    assert torch.equal(moments.center[1], before[1])


@pytest.mark.parametrize(
    ("unit", "how", "templates"),
    [
        ("image", "emptied", "one"),
        ("person", "unlabeled", "one"),
        ("image", "unlabeled", "class"),
        ("person", "emptied", "class"),
    ],
)
def test_from_folder_to_release(small_tiles, tmp_path, monkeypatch, unit, how, templates):
    """Up to the first release both folders' computations agree but for one record; given equal releases, so on."""
    data = data_of(write_metadata(tmp_path / "metadata"))
    table = table_of(unit, method={"templates": templates})
    table["model"] = {"generator": "gaussian", "latent_dim": 6, "drawing": {"shape": 2}}
    del table["data"]
    answers, call = [], CellSums.exact
    change = Change(record(data, person=unit == "person"), how)
    (left, _), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    assert int(after.private.null.sum()) == len(change.names) == (1 if unit == "image" else PER_PERSON)

    def equal_releases(sums, *batches):  # the second run sees what the first released, as the proof assumes
        answers.append((sums, call(sums, *batches)))
        rounds = ROUNDS + 1
        return answers[-1][1] if len(answers) <= rounds else answers[len(answers) - 1 - rounds][1]

    monkeypatch.setattr(CellSums, "exact", equal_releases)
    for method in (left, right):
        method.prepare()
    assert len(answers) == 2 * (ROUNDS + 1)
    assert left.ledger.events == right.ledger.events == left.plan.events
    for (sums, first), (other, second) in zip(answers[: ROUNDS + 1], answers[ROUNDS + 1 :], strict=True):
        assert sums == other
        assert sums.num_cells == (3 if templates == "class" or sums == left.plan.release.sums else 1)
        assert 0.05 < (first - second).double().norm().item() / sums.mechanism.sensitivity <= 1


@pytest.mark.parametrize(("unit", "templates"), [("image", "one"), ("person", "one"), ("image", "class")])
def test_a_run_is_paid_verified_audited_and_resumed(small_tiles, tmp_path, unit, templates):
    teacher = {"teacher_share": 0.3} if (unit, templates) == ("image", "one") else {}
    table = table_of(unit, method={"templates": templates} | teacher)
    table["data"]["channels"] = 3 if templates == "class" else 1
    config = build_config(table, "a test")
    trainer.start(config, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    stated = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert 0.99 * 3.0 < stated["report"]["proven"]["epsilon"] <= 3.0
    each = " of each class" if templates == "class" else ""
    assert f"a template{each} from {ROUNDS} noisy mean images" in stated["report"]["reason"]
    ledger = [event["count"] for event in stated["events"]] if "events" in stated else None
    assert ledger is None or ROUNDS in ledger
    generator = load_generator(tmp_path / "run")
    assert generator.mean.shape == (2, SIZE + 2 * COUNT)
    first = generator.sample(3, seed=1)
    assert trainer.resume(tmp_path / "run").outcome.step == 0  # nothing is charged again
    assert torch.equal(load_generator(tmp_path / "run").sample(3, seed=1), first)
    assert run_case(tmp_path / "run").proven.epsilon == pytest.approx(stated["report"]["proven"]["epsilon"])


@pytest.mark.parametrize(
    ("section", "keys", "words"),
    [
        (
            "model",
            {"generator": "dcgan", "drawing": "faces"},
            r"for generator = 'gaussian' or 'refined' or 'diffusion', and not for 'dcgan'",
        ),
        ("model", {"generator": "gaussian"}, r'templates = "class" brings images into place'),
        (
            "model",
            {"generator": "gaussian", "drawing": "faces", "conditional": False},
            r'templates = "class" brings images',
        ),
        ("method", {"name": "gaussian", "teacher_share": 0.9, "template_share": 0.2}, r"leave nothing of the budget"),
    ],
)
def test_settings_that_cannot_be_are_refused(section, keys, words):
    with pytest.raises(ConfigError, match=words):
        build_config(table_of(method={"templates": "class"}) | {section: keys}, "a test")


def test_templates_of_classes_need_public_images_with_classes():
    table = table_of(method={"templates": "class"})
    table["data"] |= {"public": "faces", "public_images": 20}
    config = build_config(table, "a test")
    with pytest.raises(ConfigError, match=r'method\.templates = "class", but the public images have no labels'):
        plan_run(config, load(config.data).shape).check()
