"""A private teacher beside released sums: its price, its sensitivity, what it chooses, and what is refused."""

import csv
import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from idpgan.commands.audit import run_case
from idpgan.data.images import png_bytes, to_uint8
from idpgan.data.load import load
from idpgan.errors import ConfigError, InputError
from idpgan.kinds import verify
from idpgan.models import load_generator
from idpgan.models.checkpoint import WEIGHTS, build_described, describe, weight_bytes
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.release.export import export_samples
from idpgan.release.generator import SAMPLES, GeneratorArtifact
from idpgan.synthesis.teacher import TeacherSteps, balanced
from idpgan.trainer import train_on
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from idpgan.training.stats import class_grid


def config_of(share=0.5, method=None, model=None, privacy=None, name="gaussian", **sections):
    table = {
        "model": {"generator": "gaussian", "latent_dim": 30} | (model or {}),
        "method": {"name": name, "teacher_share": share, "candidates": 3} | (method or {}),
        "privacy": {"epsilon": 8.0, "delta": 1e-5} | (privacy or {}),
        "training": {"device": "cpu"},
        "release": {"samples": 20},
    }
    return build_config(table | sections, "a test")


AGGREGATE = {
    "name": "idp-gan-aggregate",
    "model": {"generator": "warp", "latent_dim": 4, "codes": 4, "width": 4},
    "method": {"moments": 6, "fourier": 20, "metric": "none"},
    "training": {"device": "cpu", "steps": 4, "batch_size": 20, "tick_steps": 2},
}


# The price --------------------------------------------------------------------------------------------------------


DRAWN = {"method": {"teacher_steps": 30, "teacher_batch_size": 400}}  # of 1,294 digits


@pytest.mark.parametrize("kind", [{}, AGGREGATE, DRAWN])
def test_teacher_and_sums_together_cost_what_was_asked(kind):
    config = config_of(**kind)
    shape = load(config.data).shape
    events = plan_run(config, shape).events
    assert len(events) == 2
    assert 0.99 * 8 < compose_epsilon(events, 1e-5) <= 8
    assert compose_epsilon(events[:1], 1e-5) < 6
    assert compose_epsilon(events[1:], 1e-5) < 6  # control: each of them is a real part of it


@pytest.mark.parametrize("kind", [{}, DRAWN])
def test_every_step_of_the_teacher_has_the_noise_that_was_charged(monkeypatch, kind):
    config, taken, noisy_step = config_of(**kind), [], DPSGDPlan.noisy_step

    def watched(plan, *arguments):
        taken.append(plan)
        noisy_step(plan, *arguments)

    monkeypatch.setattr(DPSGDPlan, "noisy_step", watched)
    method = train_on(config, load(config.data))
    charged = method.ledger.events[1]
    assert len(taken) == charged.count
    assert {(plan.noise_multiplier, plan.sample_rate, plan.unit) for plan in taken} == {
        (charged.noise_multiplier, charged.sample_rate, charged.unit)
    }


def test_a_drawn_teacher_reads_what_its_coins_say(monkeypatch):
    config, rows, drawn = config_of(**DRAWN), [], DPSGDPlan.poisson_sample

    def watched(plan, num, noise):
        index = drawn(plan, num, noise)
        rows.append((plan.sample_rate, plan.divisor, len(index)))
        return index

    monkeypatch.setattr(DPSGDPlan, "poisson_sample", watched)
    split = load(config.data)
    train_on(config, split)
    rates, divisors, counts = zip(*rows, strict=True)
    num = len(split.private)
    assert (set(rates), set(divisors), len(rows)) == ({400 / num}, {400}, 30)
    assert len(set(counts)) > 5
    std = (num * rates[0] * (1 - rates[0]) / len(rows)) ** 0.5
    assert abs(sum(counts) / len(rows) - 400) < 5 * std
    assert abs(num - 400) > 5 * std  # control: not all of them


def test_drawing_costs_hardly_more_than_reading_everything():
    """The rule for the noise of drawn steps: m is nearly that of two Gaussian releases; half of that noise is not."""
    shape = load(config_of().data).shape
    whole, drawn = (plan_run(config_of(**kind), shape) for kind in ({}, DRAWN))
    assert drawn.release.teacher.multiplier == pytest.approx(whole.release.teacher.multiplier, rel=0.03)
    half = dataclasses.replace(
        drawn.release.teacher.event, noise_multiplier=drawn.release.teacher.event.noise_multiplier / 2
    )
    assert compose_epsilon([drawn.release.sums.event, half], 1e-5) > 1.2 * 8


def test_a_larger_unit_than_an_image_is_not_drawn_by_images():
    """The coins of a person's images would not be one coin of the person."""
    config = config_of(**DRAWN)
    assert TeacherSteps.of(config.method, Unit.IMAGE, 1294, 1.0).sample_rate == 400 / 1294
    assert TeacherSteps.of(config.method, Unit.PERSON, 1294, 1.0).sample_rate == 1
    assert TeacherSteps.of(config.method, Unit.PHOTO, 1294, 1.0).sample_rate == 1
    assert TeacherSteps.of(config.method, Unit.IMAGE, 399, 1.0).sample_rate == 1
    steps = TeacherSteps.of(config_of().method, Unit.IMAGE, 1294, 1.0)
    assert steps == TeacherSteps(0.5, Unit.IMAGE, 80, 1.0, 1.0)  # as old releases


def test_a_larger_share_leaves_the_sums_more_noise_and_the_teacher_less():
    split = load(config_of().data)
    noises = []
    for share in (0.0, 0.2, 0.8):
        config = config_of(share)
        plan = plan_run(config, split.shape)
        sums, teaching = plan.release.sums, plan.release.teacher
        noises.append((sums.noise_std, teaching.plan(1).noise_multiplier if teaching else float("inf")))
    assert [sums for sums, _ in noises] == sorted(sums for sums, _ in noises)
    assert [steps for _, steps in noises] == sorted((steps for _, steps in noises), reverse=True)
    assert plan_run(config_of(0.0), split.shape).release.teacher is None


@pytest.mark.parametrize("images", [1, 2, 5])
def test_a_person_moves_a_teachers_step_by_at_most_the_clip_norm(images):
    """All residuals and features of a person, each at its worst; without the weights the bound is broken."""
    rng = torch.Generator().manual_seed(images)
    plan = DPSGDPlan(1.0, 0.1, 1, 1.0, Unit.PERSON)
    worst = torch.randn(1, 3, generator=rng).expand(images, 3), torch.ones(images, 4)
    mixed = torch.randn(images, 3, generator=rng) * 50, torch.randn(images, 4, generator=rng)
    shares = torch.full((images,), 1 / images)

    def moved(residuals, features, **options):
        return plan.clipped_outer_sum(residuals, plan.features(features), **options)[0].norm() * plan.step

    for pair in (worst, mixed):
        assert moved(*pair, weights=shares) <= plan.clip_norm
    assert moved(*worst, weights=shares) > 0.999 * plan.clip_norm
    if images > 1:
        assert moved(*worst) > plan.clip_norm
    for wrong in (shares * images + 0.5, shares * torch.nan, -shares):
        with pytest.raises(ValueError, match="shares of a unit"):
            moved(*worst, weights=wrong)


# What it chooses --------------------------------------------------------------------------------------------------


TOLD = {"network": "scattering", "options": {"scales": 2, "directions": 8}, "candidates": 3}


class Prefers(LinearScattering):
    """Finds an image the more like the first class, the darker its left half is."""

    def forward(self, images):
        left = images[..., : images.shape[-1] // 2].mean((1, 2, 3))
        return torch.stack([-left, left], 1)


def taught(candidates=3):
    generator = build_config({**config_of().model_dump(mode="json", exclude_none=True)}, "a test")
    made = build_described({"model": generator.model.model_dump(mode="json"), "image_shape": [1, 8, 8],
                            "classes": ["a", "b"]}, "here")  # fmt: skip
    made = made.to_empty(device="cpu")
    size = made.mean.shape[1]
    made.set_moments(torch.zeros(2, size), torch.eye(size)[None].repeat(2, 1, 1))
    return made, made.taught_by(Prefers((1, 8, 8), ("a", "b")), candidates)


def test_the_candidate_that_the_teacher_prefers_is_returned():
    plain, generator = taught()
    everything = generator.sample_candidates(40, seed=3)
    chosen = generator.sample(40, seed=3)
    odds = generator.teacher.logits(everything.flatten(0, 1)).view(40, 3, 2)
    labels = generator.sample_labels(40)
    margin = torch.where(labels[:, None] == 0, odds[..., 0] - odds[..., 1], odds[..., 1] - odds[..., 0])
    assert torch.equal(chosen, everything[torch.arange(40), margin.argmax(1)])
    assert plain.teacher is None
    assert plain.candidates == 1  # the generator itself is left alone
    assert "teacher.weight" not in plain.state_dict()


@pytest.mark.parametrize("batch_size", [1, 2, 7, 500])
def test_a_sample_begins_with_the_images_of_a_shorter_one(batch_size):
    _, generator = taught()
    long = generator.sample(50, seed=5, batch_size=batch_size)
    assert torch.allclose(long[:13], generator.sample(13, seed=5), atol=1e-5)
    assert not torch.allclose(long[:13], generator.sample(13, seed=6), atol=1e-5)


@pytest.mark.trained
def test_a_balanced_teacher_finds_all_classes_equally_often():
    config = config_of()
    method = train_on(config, load(config.data))
    images = method.generator.sample(500, seed=1)  # not those that it was balanced on
    skewed = method.teacher.weight.clone()
    skewed[3, -1] += 100.0
    method.teacher.weight.data.copy_(skewed)
    before = method.teacher.probabilities(images).mean(0)
    after = balanced(method.teacher, method.generator).probabilities(images).mean(0)
    assert before[3] > 0.5
    assert (after - 0.1).abs().max() < 0.03


# From config to release ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian, taught", "aggregate, taught"])
def test_a_run_releases_its_teacher(small_run, name):
    generator = load_generator(small_run(name))
    assert generator.candidates == 3
    assert generator.teacher.classes == generator.classes


def test_a_grid_of_other_candidates_is_the_generators_and_any_other_picture_is_not():
    """A machine of other rounding may choose the other one of two candidates that the teacher likes as well."""
    plain, _ = taught()
    teacher = LinearScattering((1, 8, 8), plain.classes)
    torch.nn.init.normal_(teacher.weight, generator=torch.Generator().manual_seed(0))
    generator = plain.taught_by(teacher, 3)
    artifact = GeneratorArtifact(generator, 20)
    weights = weight_bytes(generator)

    def problems(images):
        copy = GeneratorArtifact(build_described({**describe(taught()[0]), "teacher": TOLD}, Path("here")), 20)
        return copy.read({WEIGHTS: weights, SAMPLES: png_bytes(class_grid(to_uint8(images), plain, 4))})

    assert artifact.describe()["teacher"] == TOLD
    others = generator.sample_candidates(20, seed=0)
    assert problems(generator.sample(20, seed=0)) == []
    assert problems(others[:, 1]) == []
    assert problems(torch.cat([others[:7, 2], others[7:, 0]])) == []
    for wrong in (generator.sample(20, seed=1), others[:, 0].flip(0)):
        assert any("not the grid" in problem for problem in problems(wrong))


@pytest.mark.parametrize("change", [{"candidates": 4}, None])
def test_a_release_with_another_teacher_than_the_settings_say_is_found(small_run, tmp_path, change):
    path = shutil.copytree(small_run("gaussian, taught"), tmp_path / "run") / "release" / "config.json"
    document = json.loads(path.read_text())
    if change is None:
        del document["generator"]["teacher"]
    else:
        document["generator"]["teacher"] |= change
    path.write_text(json.dumps(document, indent=2) + "\n")
    try:
        problems = verify(tmp_path / "run").problems
    except InputError as error:  # weights of a teacher that is not described
        problems = (str(error),)
    assert problems


@pytest.mark.parametrize(
    "teacher", [{}, {"network": "scattering"}, {"network": "x", "options": {}, "candidates": 2}, 5,
                {"network": "scattering", "options": {"scales": 99, "directions": 8}, "candidates": 2},
                {"network": "scattering", "options": {"scales": 1, "directions": 8}, "candidates": 10**9}],
)  # fmt: skip
def test_a_false_description_of_a_teacher_is_refused(tmp_path, teacher):
    plain, _ = taught()
    with pytest.raises(InputError, match=r"config\.json"):
        build_described({**describe(plain), "teacher": teacher}, tmp_path / "config.json")


@pytest.mark.trained
def test_the_teacher_tells_the_classes_of_generated_digits_apart():
    config = config_of(privacy={"epsilon": 30.0})
    split = load(config.data)
    method = train_on(config, split)
    right = method.teacher.predict(split.test.images).eq(split.test.labels).double().mean()
    assert right > 0.8
    plain = method.teacher.predict(method.generator.sample(500, seed=0)).eq(method.generator.sample_labels(500))
    chosen = method.artifact(config.release).generator.sample(500, seed=0)
    told = method.teacher.predict(chosen).eq(method.generator.sample_labels(500))
    assert told.double().mean() > plain.double().mean() + 0.05


def test_a_run_is_audited_with_teacher_and_sums_together(small_run):
    case = run_case(small_run("gaussian, taught"))
    few = dataclasses.replace(case, runs=600, rows=300).run(600, seed=1)
    assert len(case.events) == 2
    assert not few.violation
    assert 1.0 < few.result.epsilon_lower <= case.proven.epsilon


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"conditional": False}}, "the generator has 0 classes"),
        ({"privacy": {"relation": "replace-one"}}, "needs Gaussian noise and privacy"),
        (AGGREGATE | {"method": AGGREGATE["method"] | {"law": "laplace"}}, "needs Gaussian noise and privacy"),
    ],
)
def test_a_teacher_that_cannot_be_had_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        plan_run(config_of(**changes), load(config_of().data).shape).check()


def test_null_records_teach_nothing():
    """The gradients of the first step, without noise: those of the neighbor differ by one clipped term at most."""
    config = config_of()
    split = load(config.data)
    network = LinearScattering(split.image_shape, split.classes)
    features = network.features(split.private.images[:50] / 127.5 - 1)
    labels = torch.nn.functional.one_hot(split.private.labels[:50], 10).float()
    plan = plan_run(config, split.shape).release.teacher.plan(50)
    sums = []
    for absent in (None, 7, 31):
        null = torch.zeros(50, dtype=torch.bool)
        null[[] if absent is None else [absent]] = True
        sums.append(plan.clipped_outer_sum(0.1 - labels, plan.features(features), null=null)[0] * plan.step)
    for one, other in itertools.combinations(sums, 2):
        assert 0 < (one - other).norm() <= plan.clip_norm * (1 if sums[0] is one else 2)
    assert plan.relation is Relation.ZERO_OUT


def test_soft_labels_are_exported_with_the_images(small_run, tmp_path):
    run = small_run("gaussian, taught")
    export_samples(run, 12, tmp_path / "some.npz", seed=1, soft_labels=True)
    manifest = export_samples(run, 12, tmp_path / "folder", seed=1, soft_labels=True)
    with np.load(tmp_path / "some.npz") as file:
        arrays = dict(file)
    teacher = load_generator(run).teacher
    expected = teacher.probabilities(torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2))
    assert torch.allclose(torch.from_numpy(arrays["probabilities"]), expected, atol=1e-5)
    rows = list(csv.DictReader((tmp_path / "folder" / "soft_labels.csv").read_text().splitlines()))
    assert len(rows) == manifest["num"]
    for row, told in zip(rows, arrays["probabilities"], strict=True):
        assert (tmp_path / "folder" / row.pop("file_name")).is_file()
        assert [float(value) for value in row.values()] == pytest.approx(told.tolist(), rel=1e-4, abs=1e-6)
    with pytest.raises(InputError, match="no teacher"):
        export_samples(small_run("gaussian"), 2, tmp_path / "none", soft_labels=True)
    assert not (tmp_path / "none").exists()
