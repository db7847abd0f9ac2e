"""The refined generator: it starts at its normal distribution, keeps it, and learns what is beyond it."""

import pytest
import torch

from idpgan.models import ModelConfig, build_generator, load_generator, save_generator
from idpgan.models.checkpoint import generator_bytes
from idpgan.models.gaussian import softly_clamped


def config(**keys):
    return ModelConfig(**{"generator": "refined", "latent_dim": 6, "width": 4} | keys)


def started(shape=(1, 12, 10), classes=2, **keys):
    model = build_generator(config(**keys), shape, classes, seed=3)
    size = model.mean.shape[1]
    rows = max(classes, 1)
    model.set_moments(0.3 * torch.ones(rows, size), 0.2 * torch.eye(size).expand(rows, size, size))
    return model


def train(model, steps=20):
    """Ask for images with an edge down the middle."""
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], 0.02)
    labels = torch.arange(16) % model.num_classes if model.num_classes else None
    wanted = torch.ones(model.image_shape)
    wanted[..., : wanted.shape[-1] // 2] = -1
    for _ in range(steps):
        loss = (model(torch.randn(16, model.latent_dim), labels) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 112, 92), (3, 128, 128), (1, 7, 9)])
def test_images_of_any_size_start_as_those_of_the_normal_distribution(shape):
    model = started(shape)
    gaussian = build_generator(config(generator="gaussian"), shape, 2)
    gaussian.set_moments(model.mean, model.factor)
    labels, z = torch.tensor([0, 1]), torch.randn(2, model.latent_dim)
    with torch.no_grad():
        images = model(z, labels)
        drawn = gaussian.unclamped(z[:, : gaussian.latent_dim], labels)
    assert images.shape == (2, *shape)
    assert torch.equal(images, softly_clamped(drawn))


def test_a_soft_clamp_leaves_the_middle_and_never_loses_its_slope():
    pixels = torch.linspace(-1.5, 1.5, 301, requires_grad=True)
    clamped = softly_clamped(pixels)
    clamped.sum().backward()
    middle = pixels.abs() <= 0.8
    assert torch.equal(clamped[middle], pixels[middle])
    assert clamped.abs().max() <= 1
    assert (pixels.grad > 0).all()
    assert (clamped.diff() > 0).all()


@pytest.mark.trained
@pytest.mark.parametrize("classes", [0, 2])
def test_training_refines_the_images_and_leaves_the_moments(classes):
    model = started(classes=classes, conditional=bool(classes))
    mean, factor = model.mean.clone(), model.factor.clone()
    first = train(model, 1)
    assert train(model, 60) < 0.3 * first
    assert torch.equal(model.mean, mean)
    assert torch.equal(model.factor, factor)


def test_noise_reaches_the_image_once_it_is_trained_and_the_class_only_by_the_moments():
    model = started()
    train(model, 5)
    z = torch.randn(1, model.latent_dim).repeat(2, 1)
    images = model(z, torch.tensor([0, 1]))
    torch.testing.assert_close(images[0], images[1])  # the moments of both classes are alike
    other = z.clone()
    other[:, model.mean.shape[1] :] += 1
    assert not torch.allclose(model(other, torch.tensor([0, 1])), images)
    model.mean.data[1] += 0.1
    images = model(z, torch.tensor([0, 1]))
    assert not torch.allclose(images[0], images[1])


@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 2), ((3, 12, 10), 0)])
def test_a_saved_one_draws_the_same_images(tmp_path, shape, classes):
    model = started(shape, classes, conditional=bool(classes))
    train(model, 3)
    save_generator(tmp_path, model)
    loaded = load_generator(tmp_path)
    assert torch.equal(loaded.sample(5, seed=1), model.eval().sample(5, seed=1))


def test_its_memory_is_known_without_building_it():
    model = build_generator(config(), (1, 28, 28), 2)
    assert generator_bytes(config(), (1, 28, 28), 2) == 16 * sum(weight.numel() for weight in model.parameters())
