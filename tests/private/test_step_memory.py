"""The forecast of a step's memory: right for gradients that are held at once, and what it chooses."""

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call

from idpgan import trainer
from idpgan.data.load import DataShape, Sizes
from idpgan.errors import InputError
from idpgan.privacy import DPSGDPlan, layer_gradients
from idpgan.privacy.tiles import Tiles, tiled
from idpgan.private import memory
from idpgan.private.memory import fitting, most_bytes
from idpgan.training.plan import plan_run

CPU = torch.device("cpu")


def step_of(way):
    network = nn.Sequential(nn.Conv2d(1, 20, 3), nn.SiLU(), nn.Conv2d(20, 20, 3), nn.SiLU())
    weights, plan = dict(network.named_parameters()), DPSGDPlan(0.1, 1.0, 1, 1.0)

    def loss(given, image):
        return functional_call(network, dict(given), (image[None],)).square().mean()

    def step(num):
        plan.clipped_sum(loss, weights, tiled([torch.randn(num, 1, 12, 12)], num), Tiles.fixed(num, way))

    return step


def test_bytes_are_those_that_live_at_once():
    assert most_bytes(lambda: [torch.ones(1000) for _ in range(5)]) == 20_000  # one after the other is kept

    def one_by_one():
        for _ in range(5):
            torch.ones(1000)

    assert most_bytes(one_by_one) == 4_000


@pytest.mark.parametrize(("way", "least"), [("vmap", 0.98), ("capture", 0.3)])  # a captured block of rows is shared
def test_the_forecast_holds_for_many_records(way, least):
    step = step_of(way)
    one, two, many = (most_bytes(lambda num=num: step(num)) for num in (1, 2, 64))
    assert least < many / (one + 63 * (two - one)) <= 1.02


@pytest.mark.parametrize(("free", "expected"), [(10**12, 64), (64 * 10**6 / 1.6, 32), (10**6, 1), (None, 64)])
def test_records_are_halved_until_the_forecast_fits(free, expected, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda _: free)
    assert fitting(64, lambda num: torch.zeros(num, 10**6, dtype=torch.uint8), CPU) == expected


# Before a run on a GPU, by sizes alone -------------------------------------------------------------------------------


SHAPE = DataShape(Sizes(0, 900, 10, 10), (1, 16, 16), ("a", "b"))
RUNS = {
    "dp-gan": {"method.critic_width": 24, "training.batch_size": 300, "privacy.sample_rate": 1 / 3},
    "dp-sgd": {"method.width": 12, "training.batch_size": 300},
    "diffusion": {"model.width": 8, "training.batch_size": 300, "method.draws": 2},
}


def plan_of(name, **more):
    keys = [f"{key}={value}" for key, value in {**RUNS[name], **more}.items()]
    return plan_run(trainer.load_config(Path(f"digits-{name}"), keys), SHAPE)


@pytest.mark.parametrize("name", RUNS)
def test_a_step_without_numbers_takes_the_bytes_of_one_with_them(name, monkeypatch):
    """On a processor, with a GPU's sizes of blocks; within a tenth."""
    plan = plan_of(name)
    forecast, few = memory.step_bytes(plan, 64), memory.step_bytes(plan, 8)
    monkeypatch.setattr(layer_gradients, "by_device", lambda device, cpu, gpu: gpu)
    monkeypatch.setattr(memory, "without_weights", contextlib.nullcontext)
    monkeypatch.setattr(memory, "_META", CPU)
    measured = memory.step_bytes(plan, 64)
    assert 0.9 < forecast / measured < 1.1
    assert forecast > 1.5 * few  # negative control: it hangs on the records


@pytest.mark.parametrize("name", RUNS)
def test_a_run_says_how_many_records_fit_and_refuses_where_not_one_does(name):
    plan = plan_of(name)
    forecast = memory.forecast_in(plan, 80 * 2**30)
    assert forecast.at_once == forecast.asked >= 256
    assert 0.85 < forecast.needed / memory.step_bytes(plan, forecast.asked) < 1.3
    assert "and not" not in str(forecast)
    free = int(forecast.needed / 2)
    fewer = memory.forecast_in(plan, free)
    assert 1 <= fewer.at_once < forecast.at_once
    assert fewer.needed <= 0.8 * free
    assert f"{fewer.at_once:,} records are in memory at once, and not {fewer.asked:,}" in str(fewer)
    with pytest.raises(InputError, match=r"a single record.* GiB are free.*smaller network"):
        memory.forecast_in(plan, 10**5)


@pytest.mark.slow
def test_sizes_of_100_million_weights_fit_80_gb():
    """At 64 and 128 px, by sizes alone: no number is computed, and no machine here has the memory."""
    for side, width in ((64, 384), (128, 192)):
        plan = plan_run(
            trainer.load_config(
                Path("digits-dp-gan"),
                [f"method.critic_width={width}", "training.batch_size=1024", "privacy.sample_rate=1.0"],
            ),
            DataShape(Sizes(0, 1024, 10, 10), (1, side, side), ("a", "b")),
        )
        assert sum(plan.critic_sizes) > 90 * 10**6
        assert memory.forecast_in(plan, 80 * 10**9).at_once >= 128


def test_on_a_processor_nothing_is_foretold():
    assert memory.forecast(plan_of("dp-sgd", **{"training.device": "cpu"})) is None
