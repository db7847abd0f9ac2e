import pytest
import torch
from torch.nn import functional

from idpgan.models import gabor
from idpgan.models.gabor import gabor_filters, pooled_moduli

FILTERS = gabor_filters()


def normal(*size, seed=1):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def plain(planes, filters, stride, grid, padding):
    waves = functional.conv2d(planes, filters, stride=stride, padding=padding)
    moduli = (waves[:, ::2].square() + waves[:, 1::2].square() + 1e-4).sqrt()
    return functional.adaptive_avg_pool2d(moduli, grid).flatten(1)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("size", "padding"),
    [
        *[((17, 20), 0), ((25, 28), 0), ((36, 36), 0), ((40, 39), 0), ((120, 100), 0), ((26, 25), 0), ((12, 12), 0)],
        *[((8, 8), 4), ((9, 11), 4), ((8, 10), 3), ((10, 7), 5), ((28, 27), 4), ((17, 32), 2), ((12, 12), 4)],
    ],
)
def test_values_and_gradients_are_those_of_convolution_modulus_and_pooling(size, padding, stride):
    planes, weights = normal(5, 1, *size), normal(5, 256, seed=2)
    found = []
    for way in (pooled_moduli, plain):
        of_way = planes.clone().requires_grad_()
        values = way(of_way, FILTERS, stride=stride, grid=4, padding=padding)
        values.backward(weights)
        found.append((values.detach(), of_way.grad))
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_float64_gradients_are_those_of_finite_differences():
    planes = normal(2, 1, 11, 12).double().requires_grad_()
    filters = normal(4, 1, 5, 5, seed=3).double()
    assert torch.autograd.gradcheck(lambda x: pooled_moduli(x, filters, stride=2, grid=2), planes)


@pytest.mark.parametrize(("side", "stride", "padding"), [(28, 2, 0), (8, 1, 4)])
def test_chunks_do_not_change_what_is_found(monkeypatch, side, stride, padding):
    planes = normal(7, 1, side, side).requires_grad_()
    whole = pooled_moduli(planes, FILTERS, stride=stride, grid=4, padding=padding)
    monkeypatch.setattr(gabor, "_WORKING", (1, 0))  # a plane at a time
    parts = pooled_moduli(planes, FILTERS, stride=stride, grid=4, padding=padding)
    assert torch.allclose(parts, whole, atol=1e-6)
    gradients = [torch.autograd.grad(values.square().sum(), planes)[0] for values in (whole, parts)]
    assert torch.allclose(*gradients, atol=1e-5)


def test_without_gradients_the_values_are_the_same_and_nothing_is_kept():
    planes = normal(3, 1, 28, 28).requires_grad_()
    with torch.no_grad():
        found = pooled_moduli(planes, FILTERS, stride=2, grid=4)
    assert not found.requires_grad
    assert torch.equal(found, pooled_moduli(planes, FILTERS, stride=2, grid=4).detach())
