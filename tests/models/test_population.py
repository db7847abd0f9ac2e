"""The generator of a population: members by their shares, small variations of them, and the simulators that draw."""

import pytest
import torch

from idpgan.models import ModelConfig, build_generator, load_generator, save_generator
from idpgan.models.checkpoint import build_simulator
from idpgan.models.simulators import (
    FaceSimulator,
    FontSimulator,
    PhotoSimulator,
    normal_of,
    uniform_of,
)


def generator(simulator="fonts", variation=0.0, classes=2, codes=3, shape=(1, 16, 16)):
    config = ModelConfig(generator="population", simulator=simulator, codes=codes, variation=variation)
    return build_generator(config, shape, classes)


def with_members(model, shares, seed=0):
    rng = torch.Generator().manual_seed(seed)
    model.set_population(torch.randn(model.members.shape, generator=rng), torch.tensor(shares))
    return model


def test_members_are_drawn_by_their_shares():
    model = with_members(generator(), [[0.2, 0.0, 0.8], [1.0, 0.0, 0.0]])
    images = model.sample(1000, seed=1)
    alone = model.simulator(model.members.flatten(0, 1)).detach()
    found = (images[:, None] - alone).abs().amax((2, 3, 4)).argmin(1)
    counts = torch.bincount(found, minlength=6)
    assert counts[[1, 4, 5]].tolist() == [0, 0, 0]
    assert counts[3] == 500
    assert counts[0].item() == pytest.approx(100, abs=35)


def test_variation_is_small_or_large_and_choices_stay():
    exact, near, far = (
        with_members(generator(variation=v), [[1.0, 0, 0]] * 2).sample(60, seed=1) for v in (0, 0.1, 1.0)
    )
    assert len(exact.unique(dim=0)) == 2
    assert len(near.unique(dim=0)) == 60
    assert 0 < (near - exact).square().mean() < 0.5 * (far - exact).square().mean()
    simulator, z = FontSimulator((1, 16, 16)), torch.randn(50, FontSimulator.numbers)
    varied = simulator.vary(z, torch.randn_like(z), 1.0)
    assert torch.equal(varied[:, :2], z[:, :2])
    assert not torch.equal(varied[:, 2:], z[:, 2:])


def test_variations_of_the_simulators_images_are_distributed_as_they_are():
    z = torch.randn(20_000, FaceSimulator.numbers)
    varied = FaceSimulator((1, 16, 16)).vary(z, torch.randn_like(z), 0.6)
    assert varied.mean().abs() < 0.01
    assert varied.std().item() == pytest.approx(1, abs=0.01)


def test_numbers_and_uniform_ones_go_back_and_forth():
    z = torch.linspace(-3, 3, 50)
    assert torch.allclose(normal_of(uniform_of(z)), z, atol=1e-3)


@pytest.mark.parametrize("name", ["smiling", "not smiling", "glasses"])
def test_looks_are_those_that_are_drawn(name):
    simulator, z = FaceSimulator((1, 32, 32)), torch.randn(200, FaceSimulator.numbers)
    looks = simulator.has_look(z, name)
    assert 0 < looks.sum() < 200
    assert simulator.knows(name)
    assert not simulator.knows("handsome")
    digits = FontSimulator((1, 16, 16))
    assert torch.equal(sum(digits.has_look(z, str(d)).long() for d in range(10)), torch.ones(200, dtype=torch.int64))


def test_a_photo_is_itself_without_variation_and_chosen_by_the_first_number():
    simulator = PhotoSimulator((3, 12, 10), 7)
    simulator.photos.copy_(torch.randint(256, (7, 3, 12, 10), generator=torch.Generator().manual_seed(0)))
    z = torch.zeros(7, simulator.numbers)
    z[:, 0] = simulator.choosing(torch.arange(7))
    assert torch.equal(simulator.chosen(z), torch.arange(7))
    assert torch.allclose(simulator(z), simulator.photos / 127.5 - 1, atol=1e-4)


def test_the_warp_of_the_model_is_the_strength_of_a_photos_motions():
    photos = torch.randint(256, (6, 1, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    moved = {}
    for warp in (0.0, 0.1, 1.0):
        model = build_simulator(ModelConfig(generator="population", simulator="public", warp=warp), (1, 16, 16), 6)
        model.photos.copy_(photos)
        z = torch.randn(6, model.numbers, generator=torch.Generator().manual_seed(1))
        z[:, 0], z[:, -2:] = model.choosing(torch.arange(6)), 0  # no tint
        moved[warp] = (model(z) - (photos / 127.5 - 1)).abs().mean().item()
    assert moved[0.0] < 1e-3 < moved[0.1] < moved[1.0]


@pytest.mark.parametrize("simulator", ["fonts", "faces", "public"])
def test_the_file_gives_the_same_images_back(tmp_path, simulator):
    model = with_members(generator(simulator, variation=0.3), [[0.5, 0.5, 0]] * 2).eval()
    if simulator == "public":
        photos = torch.randint(256, (6, 1, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        model.set_population(model.members.detach(), model.shares.detach(), photos)
    save_generator(tmp_path, model)
    assert torch.equal(load_generator(tmp_path).sample(6, seed=2), model.sample(6, seed=2))


@pytest.mark.parametrize("simulator", ["fonts", "faces", "public"])
def test_an_attack_can_search_the_latent_numbers(simulator):
    model = with_members(generator(simulator, variation=0.3), [[1.0, 0, 0]] * 2)
    if simulator == "public":
        photos = torch.randint(256, (6, 1, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        model.set_population(model.members.detach(), model.shares.detach(), photos)
    z = torch.randn(4, model.latent_dim, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (slope,) = torch.autograd.grad(model(z, torch.tensor([0, 1, 0, 1])).square().sum(), z)
    assert slope.isfinite().all()
    assert (slope[:, 2:] != 0).double().mean() > 0.3


def test_a_row_without_shares_is_uniform():
    model = with_members(generator(), [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert len(model.sample(60, labels=0, seed=0).unique(dim=0)) == 3
