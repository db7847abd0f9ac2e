"""Moved pictures are cleaned by a denoiser of public images, as strongly as the noise of the release asks for."""

import pytest
import torch

from idpgan import load_generator, trainer
from idpgan.data.load import DataShape, Sizes
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models.config import ModelConfig
from idpgan.models.families import build_generator
from idpgan.models.gaussian import basis_of
from idpgan.origin import with_releases
from idpgan.synthesis.clean import Cleaner, check_cleaned, strength
from idpgan.synthesis.moments import NormalsNoise
from idpgan.training.config import build_config
from tests.synthesis.test_move import config_of

SHAPE, SIZE = (1, 12, 12), 20


def noise_of(std):
    return NormalsNoise(torch.tensor([[std, 0.01]]).double(), torch.zeros(1, 2).double())


@pytest.fixture(scope="module")
def normal():
    """A denoiser that knows a normal distribution of low frequencies a class, and nothing else."""
    generator = build_generator(ModelConfig(generator="diffusion", latent_dim=SIZE, width=4), SHAPE, 2)
    factor = torch.diag(torch.linspace(0.3, 1.5, SIZE)).expand(2, SIZE, SIZE)
    generator.set_moments(torch.tensor([[1.0] + [0.0] * (SIZE - 1), [-1.0] + [0.0] * (SIZE - 1)]), factor)
    return generator


def test_what_the_denoiser_never_saw_goes_and_its_own_law_stays(normal):
    """The exact flow takes N(m, S + s^2) to N(m, S); a pattern outside of its span has no part in it."""
    images, basis = normal.sample(800, labels=0, seed=1), basis_of(SHAPE, SIZE).float()
    stripes = torch.sign(torch.arange(144) % 2 - 0.5)
    stripes = 0.1 * (stripes - basis @ (basis.T @ stripes)).view(SHAPE)
    rng = torch.Generator().manual_seed(0)
    cleaned = Cleaner(normal, [0, 1])((images + stripes).clamp(-1, 1), 0, noise_of(0.5), rng)
    found, before = (each.flatten(1) @ basis for each in (cleaned, images))
    assert (found.std(0) / before.std(0) - 1).abs().max() < 0.1
    assert (found.mean(0) - before.mean(0)).abs().max() < 0.08
    assert (found - before).std(0).min() > 0.2  # each picture got noise of its own
    share = [(each * stripes).sum((1, 2, 3)).mean() / stripes.square().sum() for each in (images + stripes, cleaned)]
    assert share[0] > 0.9
    assert abs(share[1]) < 0.1


def test_the_strength_follows_from_the_noise_alone(normal):
    assert [round(strength(noise_of(std)), 6) for std in (0.05, 0.4, 3.0)] == [0.05, 0.4, 0.7]
    images = normal.sample(4, labels=1, seed=0)
    cleaner, rng = Cleaner(normal, [1, 0]), torch.Generator().manual_seed(0)
    assert cleaner(images, 0, noise_of(0.05), rng) is images  # below what the network knows
    near, far = ((cleaner(images, 0, noise_of(std), rng) - images).abs().mean() for std in (0.15, 0.7))
    assert near < 0.6 * far


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory):
    """A release of the method edm, of drawn faces."""
    table = {
        "data": {"name": "faces", "num_images": 40, "num_people": 40, "image_size": 28, "channels": 1,
                 "label": ["smiling"], "license": "CC0 1.0"},
        "model": {"generator": "diffusion", "latent_dim": 10, "width": 4},
        "method": {"name": "edm"},
        "training": {"steps": 2, "batch_size": 4},
    }  # fmt: skip
    return trainer.start(build_config(table, "the test"), tmp_path_factory.mktemp("edm") / "run").run.release


def read(denoiser, **model):
    table = config_of().to_json()
    table["model"] |= {"cleaned": True} | model
    table["data"] |= {"image_size": 28, "public_generator": str(denoiser), "public_disjoint": True}
    return build_config(with_releases(table), "the test")


def test_a_run_cleans_what_it_moves_and_its_card_names_the_denoiser(tmp_path, denoiser):
    config = read(denoiser)
    finished = trainer.start(config, tmp_path / "run")
    assert verify(finished.run.release).problems == ()
    card = (finished.run.release / "README.md").read_text()
    assert config.model.origin.weights in card
    assert f"{config.model.origin.num_private} images, license CC0 1.0" in card
    assert str(denoiser) not in card
    generator = load_generator(finished.run.release)
    assert generator.pictures.any()
    assert not generator.smear.any()


def test_a_denoiser_that_does_not_fit_is_refused(denoiser):
    config = read(denoiser)
    assert check_cleaned(config, DataShape(Sizes(300, 300, 0, 9), (1, 28, 28), ("no smiling", "smiling"))) == [0, 1]
    assert check_cleaned(config, DataShape(Sizes(300, 300, 0, 9), (1, 28, 28), ("smiling", "no smiling"))) == [1, 0]
    with pytest.raises(ConfigError, match="none of them is 'happy'"):
        check_cleaned(config, DataShape(Sizes(300, 300, 0, 9), (1, 28, 28), ("happy", "smiling")))
    with pytest.raises(ConfigError, match="draws images of 1 x 28 x 28"):
        check_cleaned(config, DataShape(Sizes(300, 300, 0, 9), (1, 20, 20), ("no smiling", "smiling")))
    with pytest.raises(ConfigError, match="set moved, and name"):
        read(denoiser, moved=0)
    with pytest.raises(ConfigError, match=r"data\.public_generator"):
        build_config(
            config_of().to_json() | {"model": {"generator": "gaussian", "moved": 5, "cleaned": True}}, "the test"
        )
