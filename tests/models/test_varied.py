"""Images to train on that are moved and sharpened: each in its own way, none of it in images to look at."""

import pytest
import torch

from idpgan import load_generator, trainer
from idpgan.kinds import verify
from idpgan.models.config import ModelConfig, Purpose
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.varied import VariedGenerator
from idpgan.models.warp import MOVES
from idpgan.training.config import build_config

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, SIZE = (1, 16, 16), 30


def law_of(varied):
    """A law that draws one image a class, whatever z is."""
    law = GaussianGenerator(
        ModelConfig(generator="gaussian", latent_dim=SIZE, drawing=Drawing(varied=varied)), SHAPE, 2
    )
    mean = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(0))
    law.set_moments(mean, torch.zeros(2, SIZE, 1))
    return law.eval()


def test_without_strength_images_are_only_sharpened():
    law = law_of(0.0)
    drawn = VariedGenerator(law).sample(40, seed=1, purpose=Purpose.TRAINING)
    plain = law.sample(40, seed=1)
    assert (drawn.sign() == plain.sign()).all()
    assert (drawn.abs() >= plain.abs() - 1e-6).all()  # edges are steeper, black and white stay
    assert drawn[0::2].std(0).max() > 0.05  # each in its own way


def test_images_to_train_on_move_and_those_to_look_at_do_not():
    made = VariedGenerator(law_of(0.5))
    looked, trained = (made.sample(40, seed=1, purpose=purpose) for purpose in (Purpose.LOOKING, Purpose.TRAINING))
    assert (looked[0::2] == looked[0]).all()
    middle = [(images[0::2] > 0).double().mean(0) for images in (looked, trained)]
    assert ((middle[0] > 0.1) & (middle[0] < 0.9)).sum() == 0
    assert ((middle[1] > 0.1) & (middle[1] < 0.9)).sum() > 10


def test_candidates_vary_each_in_its_own_way_and_batches_do_not_matter():
    made = VariedGenerator(law_of(0.5))
    assert made.latent_dim == MOVES + 1 + SIZE
    many, few = (made.sample(30, seed=3, batch_size=size, purpose=Purpose.TRAINING) for size in (30, 7))
    assert torch.allclose(many, few, atol=1e-5)


def test_a_run_with_a_teacher_releases_it(tmp_path):
    table = {
        "data": {"name": "digits"},
        "model": {"generator": "gaussian", "latent_dim": 20, "drawing": {"varied": 0.5}},
        "method": {"name": "gaussian", "teacher_share": 0.5, "teacher_steps": 5, "candidates": 2},
        "privacy": {"epsilon": 10.0, "delta": 1e-5},
    }
    trainer.start(build_config(table, "a test"), tmp_path / "run")
    assert verify(tmp_path / "run" / "release").problems == ()
    assert load_generator(tmp_path / "run").latent_dim == MOVES + 1 + 20


def test_what_has_no_such_images_is_refused():
    with pytest.raises(ValueError, match=r"is for generator = 'gaussian' or 'warp', and not for 'dcgan'"):
        ModelConfig(drawing="handwriting")
    with pytest.raises(ValueError, match="exclude each other"):
        ModelConfig(generator="gaussian", moved=20, drawing=Drawing(varied=0.5))
