"""DeepFool is exact on linear networks, PGD is the corner of the box there; both stay within their bounds."""

import pytest
import torch
from torch import nn

from idpgan.attacks.adversarial import accuracy, deepfool, pgd
from idpgan.errors import InputError
from idpgan.models.initialize import seeded_init


@pytest.fixture
def linear():
    """Ten images of 4 x 4 and a linear network of three classes."""
    rng = torch.Generator().manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).requires_grad_(False)
    network[1].weight.copy_(torch.randn(3, 16, generator=rng))
    network[1].bias.copy_(torch.randn(3, generator=rng))
    return network, torch.rand(300, 1, 4, 4, generator=rng) * 0.8 - 0.4


def test_deepfool_is_exact_on_a_linear_network(linear):
    network, images = linear
    weight, logits = network[1].weight, network(images)
    first = logits.argmax(1)
    gaps = logits.gather(1, first[:, None]) - logits
    distances = gaps / (weight[first][:, None] - weight).norm(dim=2)
    least = distances.masked_fill(gaps == 0, torch.inf).amin(1)
    found = deepfool(network, images, overshoot=0.02)
    assert bool(found.success.all())
    assert found.steps.tolist() == [1] * 300  # more than one batch
    assert torch.allclose(found.lengths, 1.02 * least / 2, rtol=1e-3, atol=1e-5)
    assert (network(found.images).argmax(1) != first).all()
    nearer = images + 0.97 / 1.02 * (found.images - images)  # not beyond the boundary yet
    assert (network(nearer).argmax(1) == first).all()
    assert found.robustness == pytest.approx(float((found.lengths / found.norms).mean()))
    assert torch.allclose(found.norms, ((images + 1) / 2).flatten(1).norm(dim=1))


@pytest.mark.trained
def test_deepfool_needs_more_steps_where_the_network_bends():
    with seeded_init(3):
        network = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).requires_grad_(False)
    network[1].weight.mul_(6)
    images = torch.rand(200, 1, 4, 4, generator=torch.Generator().manual_seed(2)) * 2 - 1
    found = deepfool(network, images)
    assert bool(found.success.all())
    assert found.steps.max() > 1
    rng, first = torch.Generator().manual_seed(4), network(images).argmax(1)
    random = torch.randn(images.shape, generator=rng)  # random changes of that length fool hardly anything
    random *= (2 * found.lengths / random.flatten(1).norm(dim=1))[:, None, None, None]
    assert (network(images + random).argmax(1) != first).float().mean() < 0.3


def test_a_network_that_cannot_be_fooled_is_said_to_be_so():
    class Constant(nn.Module):
        def forward(self, images):
            return torch.stack([1 + 0 * images.sum((1, 2, 3)), 0 * images.sum((1, 2, 3))], 1)

    found = deepfool(Constant(), torch.zeros(3, 1, 4, 4), steps=2)
    assert found.success.tolist() == [False] * 3
    assert found.robustness != found.robustness  # no number
    assert bool(found.images.isfinite().all())


def test_pgd_goes_to_the_corner_of_the_box_on_a_linear_network(linear):
    network, images = linear
    two = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).requires_grad_(False)
    two[1].weight.copy_(network[1].weight[:2])
    labels = two(images).argmax(1)
    attacked = pgd(two, images, labels, radius=0.1, steps=40)
    toward = (two[1].weight[1] - two[1].weight[0]).sign() * (1 - 2 * labels.float())[:, None]
    assert torch.allclose(attacked, images + 0.2 * toward.view_as(images), atol=1e-6)
    assert accuracy(two, images, labels) == 1.0
    assert accuracy(two, attacked, labels) < 0.5


def test_pgd_stays_within_its_bound_and_the_pixel_range(linear):
    network, _ = linear
    images = torch.randint(0, 256, (20, 1, 4, 4), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    clean = images.float() / 127.5 - 1
    labels = network(clean).argmax(1)
    for seed in (None, 0):
        attacked = pgd(network, images, labels, radius=0.25, steps=5, seed=seed)
        assert (attacked - clean).abs().max() <= 0.5 + 1e-6
        assert attacked.abs().max() <= 1
    assert torch.equal(pgd(network, images, labels, steps=3), pgd(network, images, labels, steps=3))
    assert torch.allclose(pgd(network, images, labels, radius=0.0, steps=3), clean)


def test_bad_arguments_are_refused(linear):
    network, images = linear
    labels = torch.zeros(300, dtype=torch.int64)
    for bad in (
        lambda: pgd(network, images, labels, radius=1.5),
        lambda: pgd(network, images, labels, steps=0),
        lambda: pgd(network, images, labels[:3]),
        lambda: pgd(network, images, labels, step_size=-0.1),
        lambda: deepfool(network, images, overshoot=-1.0),
        lambda: deepfool(network, images[:0]),
        lambda: deepfool(network, images[0]),
    ):
        with pytest.raises(InputError):
            bad()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_what_the_cpu_finds(linear):
    network, images = linear
    cpu = deepfool(network, images)
    gpu = deepfool(network.to("cuda"), images.to("cuda"))
    assert torch.allclose(cpu.lengths, gpu.lengths.cpu(), atol=1e-4)
    labels = torch.zeros(300, dtype=torch.int64)
    attacked = pgd(network, images.to("cuda"), labels.to("cuda"), seed=None)
    assert torch.allclose(attacked.cpu(), pgd(network.to("cpu"), images, labels, seed=None), atol=1e-4)
