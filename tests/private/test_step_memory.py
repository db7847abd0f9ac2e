"""The forecast of a step's memory: right for gradients that are held at once, and what it chooses."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from idpgan.privacy import DPSGDPlan
from idpgan.privacy.tiles import Tiles, tiled
from idpgan.private import steps
from idpgan.private.steps import fitting, most_bytes

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
    monkeypatch.setattr(steps, "free_memory", lambda _: free)
    assert fitting(64, lambda num: torch.zeros(num, 10**6, dtype=torch.uint8), CPU) == expected
