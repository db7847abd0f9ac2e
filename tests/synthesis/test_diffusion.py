"""Diffusion: the exact start at released moments, clipped steps on what it lacks, one ledger over both."""

import dataclasses
from pathlib import Path

import pytest
import torch

from idpgan import load_generator, trainer
from idpgan.commands.audit import run_case
from idpgan.data.images import to_float
from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.diffusion import DiffusionGenerator, training_levels
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import GaussianGenerator, low_spectrum
from idpgan.privacy import Ledger, Noise, Relation, Unit, compose_epsilon
from idpgan.privacy.dpsgd import SLACK, DPSGDPlan
from idpgan.run import RunFolder
from idpgan.synthesis import edm
from idpgan.synthesis.diffusion import Method
from idpgan.synthesis.template import ROUNDS
from idpgan.training.config import build_config
from idpgan.training.loop import train
from idpgan.training.plan import plan_run
from tests.privacy.clipped import clipped
from tests.release.forging import verdict
from tests.training.toy import CPU, digits, new_run, remains, terms_of

pytestmark = pytest.mark.usefixtures("any_drawing")

DELTA = 1e-5
MODEL = {"generator": "diffusion", "latent_dim": 20, "width": 4}
SHAPE = (1, 8, 8)
REGISTERED = {"model": {"drawing": {"shape": 2}}}
CONFIGS = Path(__file__).parents[2] / "configs"


def config_of(*, model=None, privacy=None, training=None, **method):
    table = {
        "model": MODEL | (model or {}),
        "method": {"name": "diffusion", "draws": 1} | method,
        "privacy": {"epsilon": 4.0, "delta": DELTA} | (privacy or {}),
        "training": {"steps": 4, "tick_steps": 2, "device": "cpu"} | (training or {}),
    }
    return build_config(table, "test")


def few():
    """Return the digits with the first 200 private ones."""
    return dataclasses.replace(digits(), private=digits().private.select(torch.arange(200)))


def method_of(config, *, kind=Method, ledger=None):
    ledger = ledger or Ledger(Unit.IMAGE, Relation.ZERO_OUT)
    return kind.of(config, few(), ledger=ledger, device=CPU, noise=Noise.fixed(1))


def loop(path, config, *, kind=Method):
    """Begin a run in the loop, or continue the one at `path`."""
    if path.exists():
        folder = RunFolder.open(path)
        ledger = Ledger.open(folder.ledger, "test")
    else:
        folder = new_run(path)
        ledger = Ledger(*terms_of(config, few().shape), folder.ledger, "test")
        ledger.flush()
    method = method_of(config, kind=kind, ledger=ledger)
    fingerprint = {"config": config.identity(), "device": "cpu"}
    return train(
        method, config=config.training, ledger=ledger, run=folder, fingerprint=fingerprint, delta=DELTA
    ), method


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=[0, 3], ids=["pixels", "registered"])
def generator(request):
    """Return a generator of three classes with random moments of rank 15, before any step."""
    shape = request.param
    made = DiffusionGenerator(ModelConfig(**MODEL, drawing=Drawing(shape=shape)), SHAPE, 3)
    scale = torch.cat([torch.ones(20), torch.full((2 * shape,), 0.05)])[:, None]
    mean, factor = torch.randn(3, len(scale), generator=rng()), torch.randn(3, len(scale), 15, generator=rng(1))
    made.set_moments(0.3 * mean * scale[:, 0], factor * scale)
    return made


def disturbed(generator):
    """Return the generator with random weights in place of the zeros."""
    for weight in (generator.network.last.weight, generator.network.kept.weight):
        torch.nn.init.normal_(weight, std=0.1, generator=rng(2))
    return generator


# The generator -----------------------------------------------------------------------------------------------------


def test_before_any_step_images_are_those_of_the_normal_distribution(generator):
    plain = GaussianGenerator(generator.config.model_copy(update={"generator": "gaussian"}), SHAPE, 3)
    units = torch.cat([torch.ones(20), torch.full((plain.latent_dim - 20,), generator.unit)])
    plain.set_moments(units * generator.mean, units[:, None] * generator.factor)
    noise, labels = torch.randn(60, generator.latent_dim, generator=rng(3)), torch.arange(60) % 3
    axes = torch.nn.functional.normalize(generator.factor, dim=1)
    basis = generator._functions()
    latent = torch.einsum(
        "bqr,bq->br", axes[labels], noise @ basis
    )  # standard normal, as axes and basis are isometries
    assert torch.allclose(generator(noise, labels), plain(latent, labels), atol=1e-5)
    assert not torch.allclose(disturbed(generator)(noise, labels), plain(latent, labels), atol=1e-2)


def test_the_factor_may_be_any_of_a_covariance(generator):
    size = generator.mean.shape[1]
    factor = torch.randn(3, size, size, generator=rng(4))
    factor[:, 20:] *= 0.05  # half image sides
    generator.set_moments(torch.zeros(3, size), factor)
    units = torch.cat([torch.ones(20), torch.full((size - 20,), generator.unit)])[:, None]
    found = units * generator.factor
    assert torch.allclose(found @ found.mT, factor @ factor.mT, atol=1e-4)
    products = generator.factor.mT @ generator.factor
    assert torch.allclose(products, torch.diag_embed(products.diagonal(dim1=1, dim2=2)), atol=1e-4)


def test_the_closed_form_is_the_conditional_mean(generator):
    generator.double()
    size = generator.latent_dim
    noisy, labels = torch.randn(5, size, generator=rng(5)).double(), torch.tensor([0, 1, 2, 0, 1])
    levels = torch.tensor([0.1, 0.5, 1.0, 3.0, 10.0]).double()
    basis = generator._functions()
    for i, found in enumerate(generator.closed_form(noisy, labels, levels)):
        half = basis @ generator.factor[labels[i]]
        center, covariance = basis @ generator.mean[labels[i]], half @ half.T
        weighed = torch.linalg.solve(covariance + levels[i] ** 2 * torch.eye(size).double(), noisy[i] - center)
        assert torch.allclose(found, center + covariance @ weighed, atol=1e-9)


def test_the_flow_ends_where_the_denoiser_points(generator):
    """All mass outside of the span at one image: the denoiser of a point is that point, whatever the noise."""
    point = 0.3 * torch.randn(1, generator.latent_dim, generator=rng(6))
    outside = point - (point @ generator._functions()) @ generator._functions().T
    generator._residual = lambda noisy, rows, level: outside.expand_as(noisy)
    generator.set_moments(0 * generator.mean, 0 * generator.factor)
    drawn = generator(torch.randn(4, generator.latent_dim, generator=rng(7)), torch.zeros(4, dtype=torch.int64))
    assert torch.allclose(drawn.flatten(1), outside[:, :64].expand(4, -1), atol=0.02)


def test_any_size_and_no_classes():
    made = DiffusionGenerator(ModelConfig(**MODEL | {"conditional": False}), (3, 33, 18), 0)
    assert made.sample(2, seed=0).shape == (2, 3, 33, 18)


# Steps -------------------------------------------------------------------------------------------------------------


def records_of(generator, num, draws=2):
    """Return what the network sees of random images, as the method makes it."""
    images = torch.rand(num * draws, generator.latent_dim, generator=rng(8)) * 2 - 1
    labels = torch.arange(num) % 3
    levels = training_levels(torch.randn(num * draws, generator=rng(9)))
    normal = torch.randn(num * draws, generator.latent_dim, generator=rng(10))
    inputs, target = generator.problem(images, labels.repeat_interleave(draws), levels, normal)
    return [part.unflatten(0, (num, draws)) if len(part) > num else part for part in (inputs, levels, labels, target)]


def test_all_weights_are_captured_and_ghost_sums_equal_those_of_single_records(generator):
    disturbed(generator)
    weights = dict(generator.network.named_parameters())
    plan, records = DPSGDPlan(0.5, 0.3, 4, 1.0), records_of(generator, 7)
    ghost, rows = (
        clipped(plan, generator.loss, weights, records, physical_batch=3, way=way) for way in ("capture", "vmap")
    )
    assert (ghost.way, rows.way) == ("capture", "vmap")
    assert torch.allclose(ghost.norms, rows.norms, rtol=1e-4)
    for name in weights:
        assert torch.allclose(ghost.sums[name], rows.sums[name], atol=1e-5), name
        assert ghost.sums[name].abs().max() > 0


def test_a_record_with_all_its_copies_moves_the_sum_by_at_most_the_clip_norm(generator):
    disturbed(generator)
    weights = dict(generator.network.named_parameters())
    plan, records = DPSGDPlan(0.5, 0.3, 4, 1.0), records_of(generator, 5)
    records[3][0] *= 1e4  # an outlier
    sums = [
        clipped(plan, generator.loss, weights, records, physical_batch=5, null=null).sums
        for null in (None, torch.tensor([True, False, False, False, False]))
    ]
    moved = torch.cat([(sums[0][name] - sums[1][name]).flatten() for name in weights]).norm()
    assert 0.3 * (1 - 2 * SLACK) < moved <= 0.3


def test_rows_of_the_problem_do_not_mix(generator):
    levels, labels = training_levels(torch.randn(6, generator=rng(9))), torch.arange(6) % 3
    images = torch.rand(6, generator.latent_dim, generator=rng(8)) * 2 - 1
    normal = torch.randn(6, generator.latent_dim, generator=rng(10))
    whole = generator.problem(images, labels, levels, normal)
    images[3], normal[3] = 0.7, 5.0
    other = generator.problem(images, labels, levels, normal)
    for before, after in zip(whole, other, strict=True):
        same = (before == after).flatten(1).all(1)
        assert same.tolist() == [True, True, True, False, True, True]


def test_an_empty_batch_is_a_step_like_any_other():
    method = method_of(config_of())
    method.prepare()
    before = [weight.clone() for weight in method.newest.network.parameters()]
    method.dpsgd = dataclasses.replace(method.dpsgd, sample_rate=1e-12)
    assert all(not value.any() for value in method.step(1).values())  # no value, and none counted
    moved = [not torch.equal(*pair) for pair in zip(before, method.newest.network.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.parametrize("keys", [{}, {**REGISTERED, "templates": "class"}], ids=["pixels", "registered"])
def test_steps_lower_the_loss_of_images_that_nobody_trained_on(keys):
    config = config_of(**keys, privacy={"epsilon": 1e3}, training={"steps": 8}, learning_rate=5e-3)
    method = method_of(config)
    method.prepare()
    others = digits().holdout
    losses = []
    for step in range(9):
        if step:
            method.step(step)
        losses.append(method.newest.denoising_loss(to_float(others.images), others.labels).mean().item())
    assert losses[-1] < 0.93 * losses[0]
    assert method.tiles.way == "capture"


# The run -----------------------------------------------------------------------------------------------------------


def test_the_plan_spends_the_shares_of_the_squared_signal():
    plan = plan_run(config_of(**REGISTERED, start_share=0.2, template_share=0.1), few().shape)
    template, release, steps = plan.events
    assert (template.kind, release.kind, steps.kind) == ("gaussian", "gaussian", "poisson-gaussian")
    assert (template.count, release.count, steps.count) == (ROUNDS, 1, 4)
    assert 0.99 * 4 <= compose_epsilon(plan.events, DELTA) <= 4
    signals = [event.count / event.noise_multiplier**2 for event in plan.events]  # every record is in every step
    assert [signal / sum(signals) for signal in signals] == pytest.approx([0.1, 0.2, 0.7], rel=0.02)


@pytest.mark.slow  # the accountant searches
def test_a_sampled_plan_stays_within_the_budget():
    plan = plan_run(config_of(training={"batch_size": 20}), few().shape)
    assert plan.dpsgd.sample_rate == pytest.approx(0.1)
    assert 0.97 * 4 <= compose_epsilon(plan.events, DELTA) <= 4
    assert compose_epsilon(plan.events[1:], DELTA) < 3.9  # negative control: the release is in the sum


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("diffusion") / "whole"
    return path, *loop(path, config_of(**REGISTERED))


def test_a_whole_run_is_charged_as_planned(whole):
    _, outcome, method = whole
    assert (outcome.ended, outcome.step) == ("finished", 4)
    assert method.ledger.events == plan_run(config_of(**REGISTERED), few().shape).events
    report = method.privacy()
    assert 0.97 * 4 <= report.proven.epsilon <= 4 == report.claimed.epsilon
    assert not report.private  # a fixed noise seed
    assert "noisy sums of moments" in report.reason
    assert "DP-SGD on the denoiser" in report.reason
    assert any("sampling rate" in text for text in report.public_assumptions)


@pytest.mark.parametrize("killed_at", [1, 4])
def test_a_resumed_run_equals_the_uninterrupted_one_and_costs_the_same(killed_at, whole, tmp_path):
    class Killed(Method):
        def step(self, step):
            if step == killed_at:
                raise KeyboardInterrupt
            return super().step(step)

    path, _, uninterrupted = whole
    with pytest.raises(KeyboardInterrupt):
        loop(tmp_path / "killed", config_of(**REGISTERED), kind=Killed)
    outcome, resumed = loop(tmp_path / "killed", config_of(**REGISTERED))
    assert outcome.step == 4
    assert remains(path) == remains(tmp_path / "killed")
    assert uninterrupted.ledger.epsilon(DELTA) == resumed.ledger.epsilon(DELTA) > 0


def test_a_teacher_is_paid_by_its_share_and_given_away_with_the_generator():
    config = config_of(teacher_share=0.3, candidates=2, teacher_steps=3, training={"steps": 1})
    method = method_of(config)
    method.prepare()
    assert [event.kind for event in method.ledger.events] == ["gaussian", "poisson-gaussian"]
    assert (method.start.teacher is not None, method.plan.candidates) == (True, 2)
    assert 0.99 * 4 <= compose_epsilon(method.plan.events, DELTA) <= 4
    assert len(method.plan.events) == 3


def test_refusals_name_what_to_change():
    with pytest.raises(ConfigError, match=r"leave nothing of the budget for the steps.*gaussian"):
        config_of(start_share=0.6, teacher_share=0.4)
    with pytest.raises(ConfigError, match=r"template_share = 0\.1 leave nothing of the budget for the steps"):
        config_of(**REGISTERED, start_share=0.9, template_share=0.1)
    with pytest.raises(ConfigError, match=r'set model\.generator = "diffusion"'):
        config_of(model={"generator": "gaussian"})
    with pytest.raises(ConfigError, match=r'drawing = "faces" brings.*Leave it out'):
        build_config({"model": MODEL | {"drawing": "faces"}, "method": {"name": "edm"}}, "test")
    with pytest.raises(ConfigError, match=r"privacy\.unit"):
        config_of(privacy={"unit": "person"})


def test_draws_and_rate_follow_public_numbers():
    shape = few().shape
    larger = dataclasses.replace(shape, sizes=shape.sizes._replace(private=48_000))
    less, more = (plan_run(config_of(draws=None, training={"batch_size": 48_000}), each) for each in (shape, larger))
    assert (less.draws, more.draws) == (4, 1)
    assert less.learning_rate < more.learning_rate == 2e-3
    assert plan_run(config_of(learning_rate=0.1), shape).learning_rate == 0.1


# The reference without noise ---------------------------------------------------------------------------------------


def test_edm_learns_and_proves_nothing():
    table = {"model": MODEL, "method": {"name": "edm"}, "training": {"steps": 60, "batch_size": 64, "device": "cpu"}}
    config = build_config(table, "test")
    plan = plan_run(config, few().shape)
    assert plan.price.epsilon == float("inf")
    method = edm.Method.of(config, digits(), device=CPU)
    others = digits().holdout
    first = method.generator.denoising_loss(to_float(others.images), others.labels).mean()
    for step in range(1, 61):
        stats = method.step(step)
    assert stats["loss"].isfinite()
    assert method.step_event().kind == "non-private"
    assert method.generator.denoising_loss(to_float(others.images), others.labels).mean() < 0.8 * first
    assert method.generator.sample(4, seed=0).shape == (4, *SHAPE)


def test_edm_starts_at_the_moments_of_its_images_in_a_charged_step():
    table = {"model": MODEL, "method": {"name": "edm", "start": "moments"}, "training": {"steps": 1, "device": "cpu"}}
    method = edm.Method.of(build_config(table, "test"), digits(), device=CPU)
    assert not method.generator.mean.any()  # nothing is read before a step
    method.step(1)
    private, law = digits().private, method.generator
    basis = low_spectrum(law.image_shape, law.config.latent_dim).basis
    found = to_float(private.images).flatten(1).double() @ basis
    for label in range(len(law.mean)):
        own = found[private.labels == label].mean(0)
        assert (law.mean[label] - own).norm() < 0.25 * own.norm()  # images longer than the clip count less


# From a config to a release ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    small = ["training.steps=2", "model.width=4", "model.drawing.shape=2", "method.draws=1", "release.samples=10"]
    config = trainer.load_config(CONFIGS / "digits-diffusion.toml", [*small, "training.device=cpu"])
    return trainer.start(config, tmp_path_factory.mktemp("release") / "run").run.path


def test_the_release_is_an_ordinary_one(released):
    assert verdict(released / "release") == ""
    generator = load_generator(released / "release")
    assert isinstance(generator, DiffusionGenerator)
    assert torch.equal(generator.sample(3, seed=1), generator.sample(3, seed=1))
    assert generator.template.std() > 0.1
    changed = generator.config.model_copy(update={"drawing": Drawing(shape=2, temperature=0.5)})
    generator.config = changed
    assert generator.sample(40, seed=1).std(0).mean() < load_generator(released).sample(40, seed=1).std(0).mean()


def test_a_run_is_audited_with_its_own_settings(released):
    case = run_case(released)
    assert [event.count for event in case.events] == [ROUNDS, 1, 2]
    assert 0.97 * 10 <= case.proven.epsilon <= 10
