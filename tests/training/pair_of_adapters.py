"""What two processes do together in test_adapters_on_ranks.py: steps of a network with attention and adapters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from idpgan.models.adapters import adapt, trained_weights
from idpgan.models.optimizers import SGD
from idpgan.privacy import DPSGDPlan, Noise, layer_gradients
from idpgan.privacy.precision import Precision
from idpgan.privacy.tiles import Tiles, Way
from idpgan.ranks import Ranks

NUM, CHANGED = 24, (3, 17)  # records; those that are changed, one of each rank's share
CHANGES = {"zero": 0.0, "not a number": math.nan, "huge": 1e30, "null": None}
Rows = dict[int, torch.Tensor]


class Attentive(nn.Module):
    """A convolution, attention between pixels, and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.to_q, self.to_k, self.to_v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a number for each feature of each pixel."""
        pixels = self.norm(self.conv(images)).flatten(2).mT
        heads = [layer(pixels).unflatten(2, (2, 8)).transpose(1, 2) for layer in (self.to_q, self.to_k, self.to_v)]
        return nn.functional.scaled_dot_product_attention(*heads)


def network_and_records() -> tuple[nn.Module, torch.Tensor]:
    """Return the network, whose adapters have learned something, and images."""
    torch.manual_seed(0)
    network = Attentive()
    adapt(network, ["lora:1:conv", "lora:2"])
    for weight in trained_weights(network).values():
        nn.init.normal_(weight, std=0.3)
    return network, torch.randn(NUM, 1, 6, 6)


def steps(ranks: Ranks, precision: Precision = "float32", way: Way = "capture") -> dict[str, Any]:
    """Return which rows of this rank's records another record moved, the sum of all, and the weights after a step."""
    network, records = network_and_records()
    weights = trained_weights(network)
    plan = DPSGDPlan(1.0, 0.5, NUM, 1.0, ranks=ranks)
    tiles = Tiles(8, torch.arange(8), 8, way, 1, precision)

    def loss(given: Any, image: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # as in `idpgan.models.pipelines`: vmap knows no other
            found: torch.Tensor = functional_call(network, dict(given), (image[None],))
        return found.square().sum()

    def rows_of(images: torch.Tensor, null: torch.Tensor) -> tuple[Rows, dict[str, torch.Tensor]]:
        found, inner = list[torch.Tensor](), layer_gradients.scaled

        def watched(*arguments: Any) -> Any:
            for some, parts, factors, norms in inner(*arguments):
                whole = map(layer_gradients.cut, map(torch.clone, parts), factors)
                found.extend(torch.cat([*whole], 1).double())
                yield some, parts, factors, norms

        places = plan.sample(NUM, Noise.fixed(1), tiles)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layer_gradients, "scaled", watched)
            sums = plan.clipped_sum(loss, weights, (([images[i]], null[i] | (i < 0)) for i in places), tiles).sums
        slots = [int(i) for place in places if not bool((null[place] | (place < 0)).all()) for i in place]
        return {i: row for i, row in zip(slots, found, strict=True) if i >= 0}, sums

    nobody = torch.zeros(NUM, dtype=torch.bool)
    base, sums = rows_of(records, nobody)
    moved = []
    for changed in CHANGED:
        for name, value in CHANGES.items():
            images = records.clone()
            images[changed] = 1.0 if value is None else value
            null = torch.arange(NUM) == changed if value is None else nobody
            found, _ = rows_of(images, null)
            moved += [f"{name} {changed}: {i}" for i in base if i != changed and not torch.equal(base[i], found[i])]
            moved += [] if changed not in base or not torch.equal(base[changed], found[changed]) else [f"{name}: still"]
    noise, summed = Noise.fixed(5), torch.cat([part.flatten() for part in sums.values()])
    if not ranks.first:
        noise.erase()  # it must not be asked
    plan.noisy_step(SGD(weights.values(), 1.0), weights, sums, noise)
    stepped = torch.cat([weight.detach().flatten() for weight in weights.values()])
    return {"moved": moved, "positions": sorted(base), "weights": stepped, "sum": summed}
