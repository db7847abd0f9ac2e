"""Whole jobs that are stopped, continued, or whose files were edited in between."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import shutil

import pytest
import torch

from idpgan import trainer
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.models.checkpoint import load_generator
from idpgan.privacy import Ledger, Noise
from idpgan.privacy.books import checksum
from idpgan.run import RunFolder
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run
from tests.training.toy import Stopped, bits, books, stopping_at

FULL = OSError(errno.ENOSPC, "No space left on device")
MODEL = {"width": 4, "latent_dim": 4}
DATA = {"name": "digits"}
TRAINING = {"tick_steps": 1, "device": "cpu"}


def aggregate():
    return build_config(
        {
            "data": DATA,
            "model": MODEL,
            "method": {"name": "idp-gan-aggregate", "moments": 4, "fourier": 8, "metric_steps": [1]},
            "privacy": {"epsilon": 2.0, "delta": 1e-5},
            "training": {"steps": 2, "batch_size": 50, **TRAINING},
            "release": {"samples": 10},
        },
        "test",
    )


def dp_gan():
    return build_config(
        {
            "data": DATA,
            "model": MODEL,
            "method": {"name": "dp-gan", "critic_steps_per_generator_step": 1},
            "privacy": {"epsilon": 0.5, "delta": 1e-5, "sample_rate": 0.02, "noise_multiplier": 2.0},
            "training": {"steps": 3, "batch_size": 26, **TRAINING},
            "release": {"samples": 10},
        },
        "test",
    )


@pytest.fixture
def fixed_noise(monkeypatch):
    """Two runs draw alike, so that a disturbed one can be compared with one that was not."""
    monkeypatch.setattr(Noise, "system", staticmethod(lambda: Noise.fixed(1)))


def results(path):
    """Return what a run has come to: its charges, weights, and what it released at once."""
    run = RunFolder.open(path)
    weights = load_generator(run.release).state_dict()
    prepared = run.prepared.read_bytes() if run.prepared.exists() else b""
    return books(run), {name: tensor.tolist() for name, tensor in weights.items()}, prepared


def go_on(path, config):
    """Resume a run, or start it where there is none yet; as a user would."""
    return trainer.resume(path) if (path / "config.toml").exists() else trainer.start(config, path)


def stop_and_go_on(tmp_path, config, numbers, error):
    trainer.start(config, tmp_path / "whole")
    expected = results(tmp_path / "whole")
    for number in numbers:
        path = tmp_path / str(number)
        refusals = contextlib.suppress(Stopped, KeyboardInterrupt, OSError, InputError)
        with stopping_at(number, error) as calls, refusals:
            trainer.start(config, path)
        if len(calls) < number:
            return number
        finished = go_on(path, config)
        assert finished.outcome.ended == "finished"
        assert results(path) == expected, f"stopped at write {number}"
        assert not list(path.rglob("*.part"))
    return 0


@pytest.mark.parametrize(("error", "numbers"), [(KeyboardInterrupt(), (3, 7)), (FULL, (6, 8))])
def test_an_aggregate_run_stopped_while_it_is_prepared_is_paid_once(tmp_path, fixed_noise, error, numbers):
    assert stop_and_go_on(tmp_path, aggregate(), numbers, error) == 0


@pytest.mark.slow
@pytest.mark.parametrize("error", [Stopped(), KeyboardInterrupt(), FULL], ids=["kill", "ctrl-c", "disk full"])
@pytest.mark.parametrize("config", [aggregate, dp_gan])
def test_a_job_stopped_at_any_write_ends_as_if_it_had_not_been(tmp_path, fixed_noise, config, error):
    assert stop_and_go_on(tmp_path, config(), range(1, 100), error) > 20


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("jobs") / "run"
    trainer.start(dp_gan(), path)
    return RunFolder.open(path)


def test_a_finished_run_that_is_resumed_keeps_its_release_with_the_audited_value(finished):
    document = json.loads((finished.release / "privacy.json").read_text())
    (finished.release / "privacy.json").write_text(json.dumps(document | {"audited": "for a test"}))
    before = {path.name: path.read_bytes() for path in finished.release.iterdir()}
    assert trainer.resume(finished.path).outcome.ended == "finished"
    assert {path.name: path.read_bytes() for path in finished.release.iterdir()} == before
    (finished.release / "privacy.json").unlink()  # killed while it was released: the release is made again
    assert trainer.resume(finished.path).released
    assert json.loads((finished.release / "privacy.json").read_text()) == document


def test_a_finished_run_holds_no_key(finished):
    assert torch.load(finished.state, weights_only=True)["method"]["noise"]["key"] is None


EDITS = {
    "3.0 for 2.0": lambda data: data["events"][0].update(noise_multiplier=3.0),
    "ten times the noise": lambda data: data["events"][0].update(noise_multiplier=20.0),
    "fewer steps": lambda data: data["events"][0].update(count=2),
    "more steps": lambda data: data["events"][0].update(count=4),
    "no steps": lambda data: data.update(events=[]),
    "another target": lambda data: data.update(target={"epsilon": 60.0, "delta": 1e-5}),
    "no target": lambda data: data.update(target=None),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_a_run_whose_ledger_was_edited_is_not_resumed(finished, edit):
    whole = finished.ledger.read_bytes()
    data = json.loads(whole)
    edit(data)
    data["checksum"] = checksum({name: value for name, value in data.items() if name != "checksum"})
    finished.ledger.write_text(json.dumps(data))
    try:
        with pytest.raises(InputError, match=r"cannot be used|not of one run"):
            trainer.resume(finished.path)
    finally:
        finished.ledger.write_bytes(whole)


def test_a_run_is_locked_before_its_ledger_is_read(finished, monkeypatch):
    def read(*_):
        raise AssertionError("read before the lock")

    monkeypatch.setattr(Ledger, "open", read)
    with finished.locked(), pytest.raises(InputError, match="Another process"):
        trainer.resume(finished.path)


def test_a_run_without_its_state_is_refused_in_one_line(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "copy", ignore=shutil.ignore_patterns("state"))
    with pytest.raises(InputError, match=r"has no state/"):
        trainer.resume(tmp_path / "copy")


# Every method with a one-time release -------------------------------------------------------------------------------

PUBLIC = {**DATA, "public_share": 0.1, "confirm_public": True}
PUBLISHED = {"name": "idp-gan-published", "features": 4}
UNSOUND = {"epsilon1": 1.0, "epsilon2": 1.0, "delta": 1e-5, "accept_unsound": True}
SUMS = {"moments": 4, "fourier": 8, "embedding_steps": 5, "pretrain_steps": 5}
RELEASES = {
    "aggregate, public": {
        "data": PUBLIC,
        "method": {"name": "idp-gan-aggregate", "features": "public", **SUMS},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "training": {"batch_size": 50},
    },
    "published, once": {"method": PUBLISHED, "privacy": {"noise": "once", "label_epsilon": 1.0, **UNSOUND}},
    "published, per step": {"method": PUBLISHED, "privacy": {"noise": "per_step", **UNSOUND}},
    "published, by relevance": {
        "data": PUBLIC,
        "method": {**PUBLISHED, "allocation": "relevance"},
        "privacy": {"noise": "once", **UNSOUND},
    },
    "diffusion": {
        "model": {"generator": "diffusion", "latent_dim": 6, "width": 4},
        "method": {"name": "diffusion"},
        "privacy": {"epsilon": 0.2, "delta": 1e-5},
        "training": {"batch_size": 2048},
    },
}


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, id=name, marks=[pytest.mark.slow] if name == "diffusion" else [])  # solves for two noises
        for name, table in RELEASES.items()
    ],
)
def test_what_a_method_released_is_taken_and_not_read_again(tmp_path, table):
    training = {"steps": 4, **TRAINING, **table.get("training", {})}
    config = build_config({"data": DATA, "model": MODEL, **table, "training": training}, "test")
    split, path = load(config.data), tmp_path / "ledger.json"
    plan = plan_run(config, split.shape)
    price = plan.price
    Ledger(price.unit, price.relation, price.budget, path, config.identity()).flush()
    states = []
    for seed in (1, 2):
        ledger = Ledger.open(path, config.identity(), price)
        method = load_method(config.method.name).Method(
            plan, split, ledger=ledger, device=torch.device("cpu"), noise=Noise.fixed(seed)
        )
        method.prepare()
        states.append(bits(method.state()))
        for tensor in (split.private.images, split.private.labels):
            tensor.zero_()  # the second part of the run would see it
    first, second = states
    if "noise" in first:
        del first["noise"], second["noise"]  # ratcheted by the loop
    assert first == second
    assert not price.exact or ledger.events == price.events[: len(ledger.events)]
    assert len(ledger.events) == 1 or "diffusion" not in table["method"]["name"]


def test_a_run_goes_on_only_with_the_public_images_that_it_began_with(tmp_path, monkeypatch):
    """What is trained on them first decides over the sums of private steps after it, which would get the same noise."""
    config = aggregate().model_copy(update={"data": DataConfig(public_share=0.2, confirm_public=True)})
    config = config.model_copy(update={"method": config.method.model_copy(update={"metric": "public"})})
    path = trainer.start(config, tmp_path / "run").run.path
    trainer.resume(path)  # negative control
    split = load(config.data)
    other = dataclasses.replace(split.public, images=255 - split.public.images)
    monkeypatch.setattr(trainer, "load", lambda _: dataclasses.replace(split, public=other))
    with pytest.raises(InputError, match="public data"):
        trainer.resume(path)
