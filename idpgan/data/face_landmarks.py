"""Landmarks of drawn faces: where `face_drawing` paints the outline, brows, nose, eyes and mouth.

68 points in the order of iBUG's 300-W (Sagonas et al. 2013), left to right as one sees the picture: 17 of the outline
from ear to ear over the chin, 5 and 5 of the brows, 4 down the ridge of the nose and 5 below it, 6 and 6 of the eyes,
12 around the lips and 8 around the mouth inside them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idpgan.data.face_drawing import Look

NUM_LANDMARKS = 68
_TURNS = 12  # of the fixed point; each is about 5 times as near, at the angles of `face_looks`


def landmarks(look: Look, height: int, width: int) -> Tensor:
    """Return the landmarks of drawn faces: float32 (B, 68, 2), x to the right and y down, in px.

    The left upper corner of the picture is (0, 0), the center of its first pixel (1/2, 1/2). A landmark may lie beyond
    the picture, and where hair, hat or glasses hide the face.

    Args:
        look: The numbers of `idpgan.data.face_looks.looks`.
        height: Of the picture, in px.
    """
    column = {name: numbers.flatten(1) for name, numbers in look.items() if numbers.ndim == 3}  # (B, 1)
    outline = torch.linspace(0.95 * math.pi, 0.05 * math.pi, 17, device=column["tilt"].device)[None]
    jaw = torch.stack([outline.cos(), outline.sin()], 2).expand(len(column["tilt"]), -1, -1)
    inside = _on_head(column, torch.cat([_brows(column), _nose(column), _eyes(column), _mouth(column)], 1))
    return _screen(column, torch.cat([jaw, inside], 1), height, width)


def _brows(look: Look) -> Tensor:
    """Return both brows, (B, 10, 2), on the face before it is turned."""
    x = torch.linspace(-1, 1, 5, device=look["tilt"].device)
    length = look["brow_length"]
    high = look["eye_y"] - look["brow_height"] - look["brow_lift"]
    y = high + look["brow_tilt"] * length * x - look["brow_arch"] * (0.3 - x.square()) * 0.1
    away = look["eye_x"] + 0.01 + length * x
    return torch.cat([torch.stack([-away, y], 2).flip(1), torch.stack([away, y], 2)], 1)


def _nose(look: Look) -> Tensor:
    """Return the ridge and what is below it, (B, 9, 2)."""
    device = look["tilt"].device
    middle = 0.10 * look["yaw"].sin()  # it stands out from the surface
    down = torch.linspace(0, 1, 4, device=device)
    ridge = look["eye_y"] + (look["nose_y"] - look["eye_y"]) * down
    below = torch.linspace(-1, 1, 5, device=device)
    bottom = look["nose_y"] + 0.42 * look["nose_width"] * (1 - below.square()).sqrt()
    return torch.cat(
        [
            torch.stack([middle.expand_as(ridge), ridge], 2),
            torch.stack([middle + look["nose_width"] * below, bottom], 2),
        ],
        1,
    )


def _eyes(look: Look) -> Tensor:
    """Return both eyes, (B, 12, 2): each a corner, the upper lid, the other corner, the lower lid."""
    turn = torch.tensor([1.0, 2 / 3, 1 / 3, 0.0, -1 / 3, -2 / 3], device=look["tilt"].device) * math.pi
    x = look["eye_width"] * turn.cos()
    lid = look["eye_height"] * look["eye_open"] * turn.sin()
    right = torch.stack([look["eye_x"] + x, look["eye_y"] - look["slant"] * x - lid], 2)
    left = torch.stack([-look["eye_x"] + x, look["eye_y"] + look["slant"] * x - lid], 2)
    return torch.cat([left, right], 1)


def _mouth(look: Look) -> Tensor:
    """Return the lips outside, (B, 12, 2), and inside, (B, 8, 2): over the upper lip to the right, and back below."""
    width = look["mouth_width"] * (1 + 0.22 * look["smile"])

    def line(across: Tensor, thickness: Tensor, side: int) -> Tensor:
        arc = 1 - across.square()
        y = look["mouth_y"] + 0.075 * look["smile"] * arc - 0.03 * look["smile"] + side * thickness * arc
        return torch.stack([width * across, y], 2)

    def ring(num: int, thickness: Tensor) -> Tensor:
        across = torch.linspace(-1, 1, num, device=width.device)[None].expand(len(width), -1)
        return torch.cat([line(across, thickness, -1), line(across.flip(1)[:, 1:-1], thickness, 1)], 1)

    return torch.cat([ring(7, look["mouth_open"] + look["lips"]), ring(5, look["mouth_open"])], 1)


def _on_head(look: Look, points: Tensor) -> Tensor:
    """Turn points of the face (B, K, 2) to where they lie on the half ellipsoid, in radii of the head.

    `face_drawing` knows which point of the face a pixel shows; this is its inverse, by a fixed point.
    """
    x, y = points[..., 0] / look["head_width"], points[..., 1] / look["head_height"]
    normal_x, normal_y = x, y
    for _ in range(_TURNS):
        normal_z = (1 - normal_x.square() - normal_y.square()).clamp(min=0).sqrt()
        normal_x = (x + normal_z * look["yaw"].sin()) / look["yaw"].cos()
        normal_y = (y + normal_z * look["nod"].sin()) / look["nod"].cos()
    return torch.stack([normal_x, normal_y], 2)


def _screen(look: Look, points: Tensor, height: int, width: int) -> Tensor:
    """Bring points of the head, (B, K, 2) in radii, to px of the picture."""
    normal_x, normal_y = points.unbind(2)
    y = look["head_height"] * normal_y
    x = look["head_width"] * (1 + look["jaw"] * normal_y.clamp(-1, 1)) * normal_x
    cos, sin = look["tilt"].cos(), look["tilt"].sin()
    across, down = x * cos - y * sin, x * sin + y * cos
    unit = min(height, 1.2 * width) / 2  # px
    return torch.stack(
        [
            (across * look["scale"] + look["shift_x"]) * unit + width / 2,
            (down * look["scale"] + look["shift_y"]) * unit + height / 2,
        ],
        2,
    )
