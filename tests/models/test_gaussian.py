"""The generator in closed form: its basis, its distribution, its file."""

import pytest
import torch

from idpgan.models import ModelConfig, build_generator, load_generator, save_generator
from idpgan.models.gaussian import count_coefficients, low_spectrum


def generator(shape=(1, 8, 8), classes=2, size=5):
    return build_generator(ModelConfig(generator="gaussian", latent_dim=size), shape, classes)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 7, 9), (3, 5, 4)])
@pytest.mark.parametrize("size", [1, 5, 40, 4096])
def test_the_functions_are_orthonormal_and_as_many_as_asked(shape, size):
    basis, variance = low_spectrum(shape, size)
    pixels = shape[0] * shape[1] * shape[2]
    assert basis.shape == (pixels, count_coefficients(shape, size)) == (pixels, len(variance))
    assert torch.allclose(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64), atol=1e-12)
    assert basis.shape[1] <= min(size, pixels)
    assert shape[0] == 3 or basis.shape[1] == min(size, pixels)
    assert (variance > 0).all()
    assert variance.sum() <= 1 + 1e-12
    if size == 4096:
        assert variance.sum().item() == pytest.approx(1.0)


def test_samples_have_the_moments_that_were_set():
    model, rng = generator(), torch.Generator().manual_seed(0)
    mean = 0.3 * torch.randn(2, 5, generator=rng)
    factor = 0.1 * torch.randn(2, 5, 3, generator=rng)
    model.set_moments(mean, factor)
    images, labels = model.sample(20_000, seed=1), torch.arange(20_000) % 2
    basis = low_spectrum((1, 8, 8), 5).basis.float()
    for row in range(2):
        found = images[labels == row].flatten(1) @ basis
        assert torch.allclose(found.mean(0), mean[row], atol=0.02)
        assert torch.allclose(found.T.cov(), factor[row] @ factor[row].T, atol=0.01)
    torch.testing.assert_close(model.sample(3, seed=1), images[:3])  # other batches may round otherwise


def test_it_is_differentiable_and_clamped():
    model = generator()
    model.set_moments(torch.full((2, 5), 0.1), 0.1 * torch.eye(5).expand(2, 5, 5))
    z = torch.zeros(2, 5, requires_grad=True)
    model(z, torch.tensor([0, 1])).square().sum().backward()
    assert z.grad.abs().sum() > 0
    assert model.factor.grad.shape == (2, 5, 5)
    model.set_moments(torch.full((2, 5), 99.0), torch.zeros(2, 5, 5))
    assert model.sample(2, seed=0).abs().max() == 1


@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 2), ((3, 12, 10), 0)])
def test_a_saved_one_draws_the_same_images(tmp_path, shape, classes):
    config = ModelConfig(generator="gaussian", latent_dim=6, conditional=bool(classes))
    model = build_generator(config, shape, classes)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.2)
    save_generator(tmp_path, model)
    assert torch.equal(load_generator(tmp_path).sample(4, seed=3), model.sample(4, seed=3))
