"""Landmarks lie where the drawing puts the features."""

import pytest
import torch
from torch.nn.functional import grid_sample

from idpgan.data import face_drawing
from idpgan.data.face_drawing import Picture
from idpgan.data.faces import draw, draw_landmarks, looks
from idpgan.errors import DataError

MOUTH = 48  # first of its landmarks


def test_what_the_drawing_paints_at_a_landmark_is_the_feature():
    """The drawing knows which point of the face each pixel shows; landmarks are found the other way round."""
    look, _, _ = looks(40, 40, 1, torch.Generator().manual_seed(1))
    height, width = 300, 240
    picture = Picture(look, height, width, 1)
    column = {name: numbers.flatten(1) for name, numbers in look.items() if numbers.ndim == 3}
    features = (face_drawing._brows, face_drawing._nose, face_drawing._eyes, face_drawing._mouth)
    painted = torch.cat([feature(column) for feature in features], 1)
    found = face_drawing.landmarks(look, height, width)[:, 17:]
    where = found / torch.tensor([width, height]) * 2 - 1
    shown = grid_sample(torch.stack([picture.face_x, picture.face_y], 1), where[:, None], align_corners=False)
    assert (shown[:, :, 0].transpose(1, 2) - painted).abs().max() < 2e-3  # head units; a pixel has 7e-3
    turned = {**look, "yaw": -look["yaw"]}
    assert (face_drawing.landmarks(turned, height, width)[:, 17:] - found).abs().max() > 2


def test_the_outline_is_that_of_the_head():
    look, _, _ = looks(40, 40, 1, torch.Generator().manual_seed(1))
    picture = Picture(look, 300, 240, 1)
    where = face_drawing.landmarks(look, 300, 240)[:, :17] / torch.tensor([240, 300]) * 2 - 1
    radius = grid_sample(picture.radius[:, None], where[:, None], align_corners=False)
    assert (radius - 1).abs().max() < 0.02


def test_landmarks_belong_to_the_faces_drawn_and_grow_with_them():
    one, other = (draw_landmarks(30, size, people=10, seed=4) for size in (48, 96))
    assert one.dtype == torch.float32
    assert one.shape == (30, face_drawing.NUM_LANDMARKS, 2)
    assert torch.allclose(2 * one, other, atol=1e-3)
    assert float(one.min()) > 0
    assert float(one.max()) < 48
    assert not torch.equal(one, draw_landmarks(30, 48, people=10, seed=5))
    with pytest.raises(DataError, match="Say how many"):
        draw_landmarks(size=48)


def test_landmarks_say_who_smiles_and_whose_mouth_is_open():
    images, marks = draw(500, 32, 1, seed=6), draw_landmarks(500, 32, seed=6)
    mouth = marks[:, MOUTH:]
    corners = (mouth[:, 0, 1] + mouth[:, 6, 1]) / 2
    middle = (mouth[:, 3, 1] + mouth[:, 9, 1]) / 2
    for name, sign in (
        ("smiling", (middle - corners) / 32 > 0.01),
        ("mouth_open", mouth[:, 18, 1] - mouth[:, 14, 1] > 0.1),
    ):
        truth = images.attributes[:, images.attribute_names.index(name)].bool()
        assert float((sign == truth).float().mean()) > 0.95
