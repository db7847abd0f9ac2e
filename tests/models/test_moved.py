"""A generator of moved pictures: what is drawn for looking and for training, and what a receiver loads."""

import pytest
import torch

from idpgan.models import load_generator
from idpgan.models.checkpoint import build_generator, save_generator
from idpgan.models.config import ModelConfig, Purpose
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import basis_of
from idpgan.models.private_classifier import LinearScattering
from idpgan.models.varied import MovedGenerator

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, PICTURES = (1, 8, 8), 3
LEVELS = torch.tensor([[10, 20, 30], [210, 220, 230]], dtype=torch.uint8)  # of the pictures of each class


def moved_generator(plain_share=0.5, smear=0.0):
    drawing = Drawing(plain_share=plain_share, truncation=0.5)
    model = ModelConfig(generator="gaussian", latent_dim=6, moved=PICTURES, drawing=drawing)
    law = build_generator(model, SHAPE, 2)
    law.set_moments(torch.zeros(2, 6), 0.1 * torch.eye(6).expand(2, 6, 6))
    generator = MovedGenerator(law, PICTURES)
    generator.pictures.copy_(LEVELS[:, :, None, None, None].expand(2, PICTURES, *SHAPE))
    generator.smear.fill_(smear)
    return generator.eval()


def levels_of(images):
    return ((images + 1) * 127.5).round().flatten(1)


def test_all_images_to_look_at_are_moved_pictures_of_their_class():
    drawn = levels_of(moved_generator(smear=1.0).sample(200, seed=1))
    assert (drawn.amax(1) == drawn.amin(1)).all()  # without noise of their own
    for label in range(2):
        assert set(drawn[label::2, 0].tolist()) == set(LEVELS[label].tolist())


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_share_of_images_to_train_on_is_drawn_by_the_law(share):
    drawn = levels_of(moved_generator(share).sample(2000, seed=1, purpose=Purpose.TRAINING))
    plain = (drawn.amax(1) != drawn.amin(1)).float().mean()
    assert abs(plain - share) < 0.04  # 3.9 standard deviations
    assert abs(plain - (share + 0.1)) > 0.04  # control


def test_every_image_to_train_on_has_noise_of_its_own_on_the_low_coefficients():
    generator = moved_generator(0.0, smear=0.3)
    generator.pictures.fill_(128)
    drawn = generator.sample(2000, seed=1, purpose=Purpose.TRAINING).flatten(1)
    found = drawn @ basis_of(SHAPE, 6).float()
    assert (found.std(0) / 0.3 - 1).abs().max() < 0.07
    rest = drawn - drawn.mean() - (found - found.mean(0)) @ basis_of(SHAPE, 6).float().T
    assert rest.std() < 0.01  # nothing above them


def test_all_candidates_of_an_image_are_of_one_kind():
    teacher = LinearScattering(SHAPE, ("0", "1"))
    taught = moved_generator().taught_by(teacher, 4)
    candidates = torch.cat(list(taught._batches(300, taught.positions(300), 1, 64, Purpose.TRAINING)))
    plain = candidates.flatten(2).std(2) > 0
    assert (plain.all(1) | ~plain.any(1)).all()
    assert 0.3 < plain.float().mean() < 0.7


def test_a_receiver_draws_the_same_from_the_file_alone(tmp_path):
    generator = moved_generator(smear=0.1)
    save_generator(tmp_path, generator)
    received = load_generator(tmp_path)
    for purpose in Purpose:
        expected = generator.sample(40, seed=3, purpose=purpose)
        assert torch.equal(received.sample(40, seed=3, purpose=purpose), expected)


def test_only_laws_of_coefficients_are_moved_onto():
    with pytest.raises(ValueError, match=r'generator = "dcgan"\. Set moved = 0'):
        ModelConfig(moved=10)
