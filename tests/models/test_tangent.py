"""Adapters in a tangent space, which a release of 0.3 may have: they compute what its LoRA of twice the rank does."""

import pytest
import torch
from torch import nn

from idpgan.models.adapters import Lora, adapt, adapter_weights
from idpgan.models.tangent import factors


@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(9, 7), (4, 9)), (nn.Conv2d(3, 8, 3, 2, 1), (2, 3, 7, 7))])
def test_a_tangent_computes_what_lora_of_its_factors_does(layer, shape):
    network, inputs = nn.Sequential(layer), torch.randn(*shape)
    adapt(network, ["tangent:2"])
    assert torch.equal(network(inputs), layer(inputs))
    parts = adapter_weights(network)
    assert {name.rsplit(".", 1)[1] for name in parts} == {"left", "right", "wide", "tall"}
    for part in parts.values():
        nn.init.normal_(part)
    tangent, lora = network[0], Lora(layer, 4)
    left, tall = (part.data.flatten(1) for part in (tangent.left, tangent.tall))
    left = torch.linalg.qr(left).Q
    tall = tall - left @ (left.T @ tall)  # as it is released
    tangent.left.data, tangent.tall.data = left.view_as(tangent.left), tall.view_as(tangent.tall)
    lora.down.weight.data, lora.up.weight.data = factors(tangent.left, tangent.right, tangent.wide, tangent.tall)
    assert torch.allclose(network(inputs), lora(inputs), atol=1e-4)
    assert not torch.allclose(network(inputs), layer(inputs), atol=0.1)
