"""Adapters in a tangent space: what is clipped is the change of the weight, and its factors do not matter."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from idpgan.models.adapters import Lora, trained_weights
from idpgan.models.tangent import Tangent, factors
from idpgan.privacy import DPSGDPlan
from idpgan.privacy.tiles import Tiles, tiled

RECORDS, PLAN = 12, DPSGDPlan(1.0, 0.5, 1, 1.0)
LAYERS = {
    "linear": (lambda: nn.Linear(9, 7), (4, 9)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3, 2, 1), (2, 3, 7, 7)),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    make, shape = LAYERS[request.param]
    return make().requires_grad_(False), 3 * torch.randn(RECORDS, *shape)


def loss_of(network):
    return lambda weights, record: functional_call(network, dict(weights), (record,)).sin().sum()


def sums_of(network, records, clip_norm=PLAN.clip_norm):
    plan = DPSGDPlan(1.0, clip_norm, 1, 1.0)
    given = tiled([records], RECORDS)
    found = plan.clipped_sum(loss_of(network), trained_weights(network), given, Tiles.fixed(RECORDS))
    return {name: (total * plan.step).float() for name, total in found.sums.items()}, found.norms[: len(records)]


def change_of(network, moved):
    """The change of the layer's weight, (m, n), if the trained weights move so."""
    down, up = factors(network.left, network.right, moved["wide"], moved["tall"])
    return up.flatten(1) @ down.flatten(1)


def test_the_norm_of_a_record_is_that_of_its_gradient_projected_onto_the_tangent_space(layer):
    plain, records = layer
    _, norms = sums_of(Tangent(plain, 2), records)
    left, _, right = torch.linalg.svd(plain.weight.detach().flatten(1), full_matrices=False)
    left, right = left[:, :2] @ left[:, :2].T, right[:2].T @ right[:2]
    for record, norm in zip(records, norms, strict=True):
        weight = plain.weight.clone().requires_grad_()
        (found,) = torch.autograd.grad(loss_of(plain)({"weight": weight}, record), weight)
        gradient = found.flatten(1)
        projected = left @ gradient + gradient @ right - left @ gradient @ right
        assert norm.item() == pytest.approx(projected.norm().item(), rel=1e-4)
        assert norm.item() < gradient.norm().item()


def test_brute_force_sensitivity_a_record_more_changes_the_weight_by_at_most_the_clip_norm(layer):
    plain, records = layer
    network = Tangent(plain, 2)
    whole, norms = sums_of(network, records)
    assert bool((norms > PLAN.clip_norm).any())  # else nothing is clipped
    still, largest = change_of(network, {name: 0 * part for name, part in whole.items()}), 0.0
    for out in range(RECORDS):
        rest, _ = sums_of(network, torch.cat([records[:out], records[out + 1 :]]))
        moved = change_of(network, {name: whole[name] - rest[name] for name in whole}) - still
        largest = max(largest, moved.norm().item())
    assert 0.99 * PLAN.clip_norm < largest <= PLAN.clip_norm


def test_of_lora_the_same_change_in_other_factors_is_clipped_otherwise(layer):
    """The control: what the tangent mends."""
    plain, records = layer
    lora = Lora(plain, 2)
    nn.init.normal_(lora.up.weight)
    _, norms = sums_of(lora, records)
    lora.up.weight.data *= 2
    lora.down.weight.data /= 2
    assert not torch.allclose(sums_of(lora, records)[1], norms, rtol=0.2)


def test_the_settled_change_is_lora_of_twice_the_rank_whose_factors_are_copies(layer):
    plain, records = layer
    network = Tangent(plain, 2)
    assert torch.allclose(network(records[0]), plain(records[0]))
    for weight in trained_weights(network).values():
        nn.init.normal_(weight)
    expected = network(records[0])
    network.settle()
    parts = (network.left, network.right, network.wide, network.tall)
    down, up = (part.detach() for part in factors(*parts))
    copies = (*up.split(2, 1), *down.split(2))
    assert all(map(torch.equal, copies, (network.left, network.tall, network.wide, network.right)))
    lora = Lora(plain, 4)
    lora.down.weight.data, lora.up.weight.data = down, up
    assert torch.allclose(lora(records[0]), expected, atol=1e-4)
    assert torch.allclose(network.merged()(records[0]), expected, atol=1e-4)
