"""Registration: a known displacement is found and undone, and no image changes the bits of another."""

import pytest
import torch

from idpgan.data.faces import draw
from idpgan.data.images import to_float
from idpgan.models.checkpoint import build_generator
from idpgan.models.config import ModelConfig
from idpgan.models.drawing import Drawing
from idpgan.models.registration import Registration, bent_back, displaced, shape_variance

SHAPE, COUNT = (1, 32, 28), 6


@pytest.fixture(scope="module")
def faces():
    return to_float(draw(24, SHAPE[1:], 1, seed=4).images)


def shapes_of(num, seed=0, strength=1.0):
    rng = torch.Generator().manual_seed(seed)
    return strength * torch.randn(num, 2 * COUNT, generator=rng) * shape_variance(COUNT).sqrt().float()


def test_a_displacement_of_zero_leaves_an_image_as_it_is(faces):
    still = torch.zeros(len(faces), 2 * COUNT)
    assert torch.allclose(displaced(faces, still), faces, atol=1e-5)
    assert torch.allclose(bent_back(faces, still), faces, atol=1e-5)


def test_bending_back_undoes_a_displacement(faces):
    smooth = torch.nn.functional.avg_pool2d(faces, 5, 1, 2, count_include_pad=False)
    shapes, inner = shapes_of(len(faces)), (..., slice(6, -6), slice(6, -6))
    there = displaced(smooth, shapes)
    back = bent_back(there, shapes)
    moved = (there - smooth)[inner].square().mean()
    assert (back - smooth)[inner].square().mean() < 0.02 * moved
    assert (bent_back(there, -shapes) - smooth)[inner].square().mean() > moved  # control: the other way


def test_the_shape_of_a_bent_image_is_found(faces):
    registration, template, wanted = Registration(SHAPE, COUNT), faces[0], shapes_of(40, strength=0.7)
    bent = bent_back(template.expand(40, -1, -1, -1), wanted)
    found = registration(bent, template)
    before = (registration.prepare(bent) - registration.prepare(template[None])).square().mean()
    after = (registration.prepare(displaced(bent, found)) - registration.prepare(template[None])).square().mean()
    assert after < 0.3 * before
    assert torch.corrcoef(torch.stack([found.flatten(), wanted.flatten()]))[0, 1] > 0.7
    assert registration(template[None], template).abs().max() < 1e-4


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38])
def test_no_image_changes_the_bits_of_another(faces, value):
    registration, rows = Registration(SHAPE, COUNT), torch.tensor([3, 17])
    others = torch.ones(len(faces), dtype=torch.bool)
    others[rows] = False
    changed = faces.clone()
    changed[rows] = value
    before, after = (registration(images, faces[0]) for images in (faces, changed))
    assert after.isfinite().all()
    assert torch.equal(before[others], after[others])
    assert torch.equal(displaced(faces, before)[others], displaced(changed, after)[others])
    assert not torch.equal(before[rows], after[rows])  # control


def test_a_partly_damaged_image_has_no_displacement(faces):
    registration, damaged = Registration(SHAPE, COUNT), faces.clone()
    damaged[2, 0, 5, 5] = float("nan")
    assert not registration(damaged, faces[0])[2].any()


def test_a_generator_bends_what_it_draws():
    config = ModelConfig(generator="gaussian", latent_dim=12, drawing=Drawing(shape=COUNT), conditional=False)
    generator = build_generator(config, SHAPE, 0)
    rng = torch.Generator().manual_seed(1)
    mean = torch.randn(1, 12 + 2 * COUNT, generator=rng)
    mean[:, 12:] = shapes_of(1, strength=2.0)
    generator.set_moments(mean, torch.zeros(1, 12 + 2 * COUNT, 1))
    bent = generator.sample(1, seed=0)
    straight = mean.clone()
    straight[:, 12:] = 0
    generator.set_moments(straight, torch.zeros(1, 12 + 2 * COUNT, 1))
    flat = generator.sample(1, seed=0)
    assert not torch.allclose(bent, flat, atol=0.01)
    assert generator.latent_dim == 12 + 2 * COUNT


def test_a_displacement_that_folds_is_shortened_and_stays_finite(faces):
    wild = 50 * shapes_of(len(faces))
    assert bent_back(faces, wild).isfinite().all()
