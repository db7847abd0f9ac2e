"""From a config to a release: every method's small run is paid as planned, verified, resumed, used and audited."""

import shutil
import stat

import pytest
import torch

import idpgan
from idpgan import trainer
from idpgan.commands.audit import run_case
from idpgan.data.load import load
from idpgan.kinds import verify
from idpgan.privacy import Ledger
from idpgan.run import RunFolder
from idpgan.training.plan import plan_run
from tests import small_runs

pytestmark = pytest.mark.usefixtures("any_drawing")

# These take seconds: they solve for their noise, or step on each record. Each room has quicker tests of its own method.
SLOW = {"diffusion", "dp-gan", "dp-gan-zhang", "dp-sgd", "dssgd", "edm", "idp-gan-published", "scattering-linear"}
RUNS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in (*small_runs.METHODS, *small_runs.VARIANTS)
]
BY_BUDGET = {"gaussian", "evolution", "idp-gan-aggregate", "diffusion", "dp-gan", "dp-sgd", "scattering-linear"}
AUDITED = ["gaussian", *small_runs.VARIANTS]


@pytest.fixture(params=RUNS)
def finished(small_run, request):
    """The config of a small run, and its folder."""
    return small_runs.config_of(request.param), RunFolder.open(small_run(request.param))


def test_a_run_is_paid_as_planned_and_verified(finished):
    config, run = finished
    plan = plan_run(config, load(config.data).shape)
    assert Ledger.open(run.ledger, config.identity()).events == plan.events
    assert verify(run.path).problems == ()
    proven = verify(run.path).report.proven
    if config.method.name in BY_BUDGET:
        assert 0.99 * config.privacy.epsilon < proven.epsilon <= config.privacy.epsilon


def test_a_run_that_is_resumed_when_it_has_finished_pays_and_changes_nothing(finished, tmp_path):
    config, run = finished
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    again = trainer.resume(copy.path)
    assert (again.outcome.step, again.outcome.ended, again.released) == (config.training.steps, "finished", True)
    for path in [run.ledger, *run.release.iterdir()]:
        assert (copy.path / path.relative_to(run.path)).read_bytes() == path.read_bytes()


def test_what_is_released_is_used_and_the_rest_is_the_curators_alone_and_without_a_key(finished):
    config, run = finished
    if (run.release / "generator.safetensors").exists():
        images = idpgan.load_generator(run.path).sample(20, seed=0)
        assert images.std() > (0.1 if config.model.generator in ("gaussian", "refined") else 0)
    else:
        classifier, images = idpgan.load_classifier(run.path), load(config.data).holdout.images
        assert torch.allclose(classifier.probabilities(images).sum(1), torch.ones(len(images)), atol=1e-5)
    for item in run.path.rglob("*"):
        permissions = stat.S_IMODE(item.stat().st_mode)
        if run.release in (item, *item.parents):
            assert permissions & 0o044 == 0o044, item
        else:
            assert permissions == (0o700 if item.is_dir() else 0o600), item
    names = {"samples", "log.txt", "config.toml", "environment.json"}
    of_steps = {"stats.jsonl", "tensorboard"} if config.training.steps else set()
    assert names | of_steps <= {item.name for item in run.path.iterdir()}
    if run.state.exists():
        noise = torch.load(run.state, weights_only=True)["method"].get("noise")
        assert noise is None or noise["key"] is None


@pytest.mark.parametrize("name", AUDITED)
def test_a_run_is_audited_with_its_own_settings(small_run, name):
    config, path = small_runs.config_of(name), small_run(name)
    case = run_case(path)
    assert case.method == config.method.name
    assert set(case.events) == set(plan_run(config, load(config.data).shape).events)
    assert case.proven.epsilon == pytest.approx(verify(path).report.proven.epsilon)
    if "taught" not in name:
        assert 0.5 < case.run(4000, seed=1).result.epsilon_lower <= case.proven.epsilon
