"""Detail above the coefficients: as strong as the drawn contrast, and nothing within the coefficients."""

import pytest
import torch

from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import GaussianGenerator, basis_of, detail_of
from idpgan.training.config import build_config

SHAPE, SIZE = (3, 16, 16), 40


def drawn(contrast, place=0.3, shape=SHAPE, size=SIZE):
    """Images of random coefficients of a contrast, before detail and after it, and their coefficients."""
    rng = torch.Generator().manual_seed(0)
    coefficients = contrast * torch.randn(5, size, generator=rng, dtype=torch.float64)
    plain = (coefficients @ basis_of(shape, size).T).view(5, *shape).float()
    return plain, detail_of(shape, size).added(plain, coefficients, torch.full((5,), place)), coefficients


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 20, 12)])
def test_coefficients_stay_what_they_were_drawn(shape):
    plain, detailed, coefficients = drawn(0.5, shape=shape)
    assert (detailed - plain).abs().mean() > 0.01
    again = detailed.flatten(1).double() @ basis_of(shape, SIZE)
    assert torch.allclose(again, coefficients, atol=1e-5)


def test_detail_is_as_strong_as_what_was_drawn():
    of = [(detailed - plain).std() for plain, detailed, _ in map(drawn, (0.2, 0.4))]
    assert of[1] / of[0] == pytest.approx(2, rel=1e-3)
    assert (drawn(0.2)[1] != drawn(0.2, place=0.8)[1]).any()  # another number is another picture


def generator(**keys):
    made = GaussianGenerator(ModelConfig(generator="gaussian", latent_dim=SIZE, drawing=Drawing(**keys)), SHAPE, 2)
    rng = torch.Generator().manual_seed(1)
    size = made.mean.shape[1]
    made.set_moments(torch.randn(2, size, generator=rng), 0.3 * torch.randn(2, size, size, generator=rng))
    return made.eval()


@pytest.mark.parametrize("light", [False, True])
def test_a_generator_draws_detail_by_one_number_more(light):
    plain, detailed = generator(light=light), generator(light=light, detail=True)
    assert detailed.latent_dim == plain.latent_dim + 1
    z, labels = torch.randn(6, detailed.latent_dim, generator=torch.Generator().manual_seed(2)), torch.arange(6) % 2
    with torch.no_grad():
        added = detailed.unclamped(z, labels) - plain.unclamped(z[:, :-1], labels)
    assert added.abs().mean() > 0.01
    assert (added.flatten(1).double() @ basis_of(SHAPE, SIZE)).abs().max() < 1e-4


def test_the_size_of_batches_does_not_matter():
    made = generator(detail=True)
    many, few = (made.sample(30, seed=3, batch_size=size) for size in (30, 7))
    assert torch.allclose(many, few, atol=1e-5)


def test_no_teacher_chooses_by_drawn_edges():
    table = {
        "model": {"generator": "gaussian", "latent_dim": 20, "drawing": "many-classes"},
        "method": {"name": "gaussian", "teacher_share": 0.5},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
    }
    with pytest.raises(ConfigError, match="a teacher would choose by them"):
        build_config(table, "a test")


def test_it_is_for_normal_distributions_without_moved_pictures():
    with pytest.raises(ValueError, match="is for generator = 'gaussian', and not for 'warp'"):
        ModelConfig(generator="warp", drawing="many-classes")
    with pytest.raises(ValueError, match="exclude each other"):
        ModelConfig(generator="gaussian", moved=20, drawing="many-classes")
