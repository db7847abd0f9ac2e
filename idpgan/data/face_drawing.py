"""Draw faces: soft masks of distances, painted one over the other, all images of a batch at once; and their landmarks.

Lengths are in head units: half the image height (or 0.6 of its width if that is less) at scale 1; x to the right, y
down, the head's center at 0. The head is half an ellipsoid: each pixel inside its outline shows a point of its surface,
which yaw and nod rotate. Features are painted in the turned coordinates ``(face_x, face_y)``; light falls on the
normals. A mask is 1 - distance to an outline in pixels, cut off at 0 and 1, so edges are a pixel wide at any size.

Landmarks are where the outline, brows, nose, eyes and mouth are painted: 68 points in the order of iBUG's 300-W
(Sagonas et al. 2013), left to right as the viewer sees them: 17 of the outline from ear to ear over the chin, 5 and 5
of the brows, 4 down the ridge of the nose and 5 below it, 6 and 6 of the eyes, 12 around the lips and 8 around the
mouth inside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Look = Mapping[str, Tensor]  # the numbers of each image, (B, 1, 1); colors (B, C, 1, 1)
_WHITE, _DARK, _LIP_INSIDE = (0.93, 0.92, 0.90), (0.08, 0.06, 0.06), (0.25, 0.07, 0.08)
NUM_LANDMARKS = 68
_TURNS = 12  # fixed-point iterations of `landmarks`; each divides the error by about 5 at the angles of `faces.looks`
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow converts to grey


def colored(rgb: Tensor, channels: int) -> Tensor:
    """Turn RGB (B, 3) in [0, 1] into (B, C, 1, 1); C = 1 is its luma."""
    if channels == 1:
        rgb = rgb @ torch.tensor(LUMA, device=rgb.device)[:, None]
    return rgb[:, :, None, None]


def render(look: Look, height: int, width: int, channels: int) -> Tensor:
    """Draw one image per row of ``look``: float32 (B, C, H, W), about [0, 1], not clamped and without noise.

    The look holds the numbers of `idpgan.data.faces.looks`; height and width are in px, C is 1 or 3.
    """
    picture = Picture(look, height, width, channels)
    picture.paint_body()
    picture.paint_mouth()
    picture.paint_nose()
    picture.paint_eyes()
    picture.shade()
    picture.paint_glasses()
    picture.paint_hair()
    picture.paint_hat()
    gain, offset = look["contrast"][:, None], look["exposure"][:, None]
    return picture.image.sub_(0.5).mul_(gain).add_(0.5 + offset)


class Picture:
    """A batch of pictures while they are painted; arguments as of `render`."""

    def __init__(self, look: Look, height: int, width: int, channels: int) -> None:
        self.look, self.channels = look, channels
        device = look["tilt"].device
        unit = min(height, 1.2 * width) / 2  # px
        x = ((torch.arange(width, device=device) + 0.5 - width / 2) / unit)[None, None, :]
        y = ((torch.arange(height, device=device) + 0.5 - height / 2) / unit)[None, :, None]
        self.screen_y = y
        x, y = (x - look["shift_x"]) / look["scale"], (y - look["shift_y"]) / look["scale"]
        cos, sin = look["tilt"].cos(), look["tilt"].sin()
        self.x, self.y = x * cos + y * sin, y * cos - x * sin  # (B, H, W), head frame
        self.per_px = unit * look["scale"]  # px per head unit
        self.half_width = look["head_width"] * (1 + look["jaw"] * (self.y / look["head_height"]).clamp(-1, 1))
        normal_x, normal_y = self.x / self.half_width, self.y / look["head_height"]
        square = normal_x.square() + normal_y.square()
        self.radius = square.sqrt()  # 1 on the outline
        normal_z = (1 - square).clamp_(min=0).sqrt_()
        self.normal = normal_x, normal_y, normal_z  # normals of the head's surface at the pixels
        turned_x = normal_x * look["yaw"].cos() - normal_z * look["yaw"].sin()
        turned_y = normal_y * look["nod"].cos() - normal_z * look["nod"].sin()
        self.face_x, self.face_y = turned_x * look["head_width"], turned_y * look["head_height"]
        self.side = self.face_x.abs()  # the left and right half are painted together
        self.head = self._mask((self.radius - 1) * look["head_width"])
        self.image = look["background"] * (1 + look["background_slope"] * self.screen_y)[:, None]
        self.image = self.image.expand(-1, channels, height, width).contiguous()

    def _mask(self, distance: Tensor) -> Tensor:
        """Return how much of each pixel lies inside: 1 where the distance (head units) is negative, 0 outside."""
        return (0.5 - distance * self.per_px).clamp_(0, 1)

    def _ellipse(self, x: Tensor, y: Tensor, radius_x: Tensor, radius_y: Tensor) -> Tensor:
        radius = ((x / radius_x).square() + (y / radius_y).square()).sqrt_()
        return self._mask((radius - 1) * torch.minimum(radius_x, radius_y))

    def _paint(self, mask: Tensor, color: Tensor | tuple[float, float, float]) -> None:
        """Lay a color, (B, C, 1, 1) or RGB, over the pictures; the mask is its opacity."""
        if isinstance(color, tuple):
            color = colored(torch.tensor([color], device=mask.device), self.channels)
        self.image.lerp_(color, mask[:, None])

    def paint_body(self) -> None:
        """Paint the hair behind the head, shoulders, neck, ears, skin, redder cheeks, a beard up to the temples."""
        look = self.look
        wide = look["head_width"] * (1 + look["hair_volume"])
        high = look["head_height"] * (1 + 0.6 * look["hair_volume"])
        radius = ((self.x / wide).square() + (self.y.clamp(max=0) / high).square()).sqrt_()
        behind = self._mask((radius - 1) * wide) * self._mask(self.y - look["hair_length"] + 0.4 * self.x.square())
        self._paint(behind * look["has_hair"], look["hair"] * 0.8)
        shoulders = self._ellipse(self.x, self.y - 1.42, look["shoulders"], look["shoulder_height"])
        neck = self._mask(self.x.abs() - look["neck"]) * self._mask(0.2 - self.y)
        self._paint(neck * self._mask(self.y - 0.92), look["skin"] * 0.72)
        self._paint(shoulders, look["clothes"])
        collar = self._ellipse(self.x, self.y - 0.72, look["neck"] * 1.05, look["collar"])
        self._paint(collar * shoulders, look["skin"] * 0.72)
        ears = self._ellipse(
            self.x.abs() - look["head_width"] * 0.98, self.y - look["eye_y"] - 0.06, look["ear"] * 0.6, look["ear"]
        )
        self._paint(ears, look["skin"] * 0.85)
        self._paint(self.head, look["skin"])
        away = ((self.side - 0.22) / 0.13).square() + ((self.face_y - 0.14) / 0.11).square()
        self._paint((1 - away).clamp_(min=0) * look["blush"], (0.80, 0.32, 0.28))
        top = look["beard_top"] - 0.32 * (self.side / look["head_width"]).square()
        self._paint(self._mask((top - self.face_y) * 0.4) * self.head * look["beard"], look["beard_color"])

    def paint_mouth(self) -> None:
        """Paint lips, an open mouth with teeth, and a moustache above."""
        look = self.look
        width = look["mouth_width"] * (1 + 0.22 * look["smile"])
        arc = (1 - (self.face_x / width).square()).clamp_(min=-1)  # 1 in the middle, 0 at the corners
        y = self.face_y - look["mouth_y"] - 0.075 * look["smile"] * arc + 0.03 * look["smile"]
        gap = look["mouth_open"] * arc.clamp(min=0)
        inside = self._mask(self.face_x.abs() - width) * self.head  # ends the mouth where it is thinner than a pixel
        self._paint(self._mask(y.abs() - gap - look["lips"] * arc) * inside, look["lip_color"])
        self._paint(self._mask(y.abs() - gap - 0.009) * inside, _LIP_INSIDE)
        teeth = self._mask(torch.maximum(y.abs() - gap, y - 0.1 * gap)) * (gap > 0.012)
        self._paint(teeth * look["teeth"], _WHITE)
        x = self.face_x / (look["mouth_width"] * 1.15)
        above = self.face_y - look["mouth_y"] + look["lips"] + 0.060 - 0.05 * x.square()
        hairs = self._mask(above.abs() - 0.036 * (1 - x.square())) * self._mask(x.abs() - 1) * self.head
        self._paint(hairs * look["moustache"], look["beard_color"])

    def paint_nose(self) -> None:
        """Paint the shadow side of the ridge, the tip and the nostrils."""
        look = self.look
        x = self.face_x - 0.10 * look["yaw"].sin()  # it stands out from the surface
        y = (self.face_y - look["nose_y"]) / (look["nose_y"] - look["eye_y"])  # -1 at the eyes, 0 at the tip
        wide = look["nose_width"] * (0.62 + 0.38 * (1 + y).clamp(0, 1))
        across = x / wide
        ridge = (1 - (across.abs() - 0.6).abs() / 0.6).clamp_(min=0) * self._mask(y.clamp(min=-2) * 0.25)
        ridge *= (1.15 + y).clamp_(0, 1)
        lit = -across * look["light_x"]  # above 0 on the side away from the light
        self._paint(ridge * (0.12 + 0.5 * lit).clamp_(0, 0.45), look["skin"] * 0.45)
        below = self._ellipse(x, self.face_y - look["nose_y"], look["nose_width"], look["nose_width"] * 0.42)
        self._paint(below * 0.35, look["skin"] * 0.55)
        nostrils = self._ellipse(
            x.abs() - look["nose_width"] * 0.5,
            self.face_y - look["nose_y"] - 0.012,
            look["nostril"] * 1.4,
            look["nostril"],
        )
        self._paint(nostrils * 0.75, look["skin"] * 0.25)

    def paint_eyes(self) -> None:
        """Paint sockets, eyes with iris and pupil, and brows."""
        look = self.look
        x = self.side - look["eye_x"]
        y = self.face_y - look["eye_y"] + look["slant"] * x
        self._paint(0.28 * self._ellipse(x, y, look["eye_width"] * 1.5, look["eye_width"] * 1.05), look["skin"] * 0.6)
        high = look["eye_height"] * look["eye_open"]
        self._paint(self._ellipse(x, y + 0.010, look["eye_width"] * 1.12, high + 0.016), look["skin"] * 0.22)
        eye = self._ellipse(x, y, look["eye_width"], high)
        self._paint(eye, _WHITE)
        sideways = x - look["gaze"] * self.face_x.sign()
        iris = look["iris"].expand_as(look["tilt"])
        self._paint(eye * self._ellipse(sideways, y, iris, iris), look["iris_color"])
        self._paint(eye * self._ellipse(sideways, y, iris * 0.5, iris * 0.5), _DARK)
        x = self.side - look["eye_x"] - 0.01
        y = self.face_y - look["eye_y"] + look["brow_height"] + look["brow_lift"] - look["brow_tilt"] * x
        y = y + look["brow_arch"] * (0.3 - (x / look["brow_length"]).square()) * 0.1
        thick = look["brow_thickness"] * (1.15 - 0.5 * x / look["brow_length"])
        brows = self._mask(torch.maximum(y.abs() - thick, x.abs() - look["brow_length"]))
        self._paint(brows * self.head * 0.9, look["brow_color"])

    def shade(self) -> None:
        """Darken the surfaces that face away from the light."""
        look = self.look
        normal_x, normal_y, normal_z = self.normal
        light_z = (1 - look["light_x"].square() - look["light_y"].square()).clamp(min=0.05).sqrt()
        lit = normal_x * look["light_x"] + normal_y * look["light_y"] + normal_z * light_z
        factor = look["ambient"] + (1.12 - look["ambient"]) * lit.clamp_(0, 1)
        self.image *= 1 + (factor - 1).mul_(self.head)[:, None]

    def paint_glasses(self) -> None:
        """Paint tinted lenses, rims, bridge and temples."""
        look = self.look
        x, y = self.side - look["eye_x"] - 0.01, self.face_y - look["eye_y"] - 0.015
        flat = torch.maximum(x.abs() / look["lens_width"], y.abs() / look["lens_height"])
        round_ = ((x / look["lens_width"]).square() + (y / look["lens_height"]).square()).sqrt_()
        radius = torch.lerp(round_, flat, look["lens_square"])
        distance = (radius - 1) * look["lens_height"]
        self._paint(self._mask(distance) * self.head * look["glasses"] * look["tint"], _DARK)
        bar = torch.maximum((y + 0.02).abs(), -distance)  # outside the lenses
        rims = self._mask(torch.minimum(distance.abs(), bar) - look["rim"])
        self._paint(rims * self.head * look["glasses"], look["rim_color"])

    def paint_hair(self) -> None:
        """Paint hair over forehead and temples, with strands."""
        look = self.look
        across = self.face_x / look["head_width"]
        line = look["hairline"] + look["hairline_bow"] * across.square() + look["parting"] * across
        wide = look["head_width"] * (1 + look["hair_volume"])
        high = look["head_height"] * (1 + 0.6 * look["hair_volume"])
        radius = ((self.x / wide).square() + (self.y / high).square()).sqrt_()
        inside = self._mask((radius - 1) * wide)
        front = self._mask((self.face_y - line) * 0.8) * inside
        sides = self._mask(look["hair_inner"] - self.x.abs()) * inside * self._mask(self.y - look["hair_length"])
        hair = torch.maximum(front, sides * (self.x.abs() > 0.3)) * look["has_hair"]
        strands = (self.face_x * look["strands"] + self.y * 9 + look["strand_phase"]).sin_().mul_(0.13)
        shine = strands - 0.25 * (self.normal[0] * -look["light_x"]).clamp(-1, 1) + 0.95
        self.image = torch.lerp(self.image, look["hair"] * shine[:, None], hair[:, None])

    def paint_hat(self) -> None:
        """Paint a hat with a brim."""
        look = self.look
        wide = look["head_width"] * 1.12
        crown = ((self.x / wide).square() + ((self.y - look["hat_y"]) / look["hat_height"]).square()).sqrt_()
        edge = look["hat_y"] - 0.10 * (1 - (self.x / wide).square()).clamp(min=-1) * look["nod"].sin()
        crown_mask = self._mask((crown - 1) * wide) * self._mask(self.y - edge)
        brim = self._ellipse(self.x - 0.25 * look["yaw"].sin(), self.y - edge, wide * look["brim"], wide * 0.10)
        shine = 1 - 0.35 * (self.x / wide * -look["light_x"]).clamp(-1, 1)
        self.image = torch.lerp(self.image, look["hat_color"] * shine[:, None], (crown_mask * look["hat"])[:, None])
        self._paint(brim * look["hat"], look["hat_color"] * 0.6)


# Landmarks --------------------------------------------------------------------------------------------------------


def landmarks(look: Look, height: int, width: int) -> Tensor:
    """Return the landmarks of drawn faces: float32 (B, 68, 2), x to the right and y down, in px.

    The left upper corner of the picture is (0, 0), the center of its first pixel (1/2, 1/2). A landmark may lie outside
    the picture, or where hair, hat or glasses hide the face.

    Args:
        look: The numbers of `idpgan.data.faces.looks`.
        height: Height of the picture, in px.
    """
    column = {name: numbers.flatten(1) for name, numbers in look.items() if numbers.ndim == 3}  # (B, 1)
    outline = torch.linspace(0.95 * math.pi, 0.05 * math.pi, 17, device=column["tilt"].device)[None]
    jaw = torch.stack([outline.cos(), outline.sin()], 2).expand(len(column["tilt"]), -1, -1)
    # `Picture` maps each pixel to a point of the face; this inverts that map by fixed-point iteration.
    face = torch.cat([_brows(column), _nose(column), _eyes(column), _mouth(column)], 1)  # before the rotation
    x, y = face[..., 0] / column["head_width"], face[..., 1] / column["head_height"]
    normal_x, normal_y = x, y
    for _ in range(_TURNS):
        normal_z = (1 - normal_x.square() - normal_y.square()).clamp(min=0).sqrt()
        normal_x = (x + normal_z * column["yaw"].sin()) / column["yaw"].cos()
        normal_y = (y + normal_z * column["nod"].sin()) / column["nod"].cos()
    normal_x, normal_y = torch.cat([jaw, torch.stack([normal_x, normal_y], 2)], 1).unbind(2)  # in radii of the head
    y = column["head_height"] * normal_y
    x = column["head_width"] * (1 + column["jaw"] * normal_y.clamp(-1, 1)) * normal_x
    cos, sin = column["tilt"].cos(), column["tilt"].sin()
    unit = min(height, 1.2 * width) / 2  # px
    across = ((x * cos - y * sin) * column["scale"] + column["shift_x"]) * unit + width / 2
    down = ((x * sin + y * cos) * column["scale"] + column["shift_y"]) * unit + height / 2
    return torch.stack([across, down], 2)


def _brows(look: Look) -> Tensor:
    """Return both brows, (B, 10, 2), on the face before it is turned."""
    x = torch.linspace(-1, 1, 5, device=look["tilt"].device)
    length = look["brow_length"]
    high = look["eye_y"] - look["brow_height"] - look["brow_lift"]
    y = high + look["brow_tilt"] * length * x - look["brow_arch"] * (0.3 - x.square()) * 0.1
    away = look["eye_x"] + 0.01 + length * x
    return torch.cat([torch.stack([-away, y], 2).flip(1), torch.stack([away, y], 2)], 1)


def _nose(look: Look) -> Tensor:
    """Return the ridge of the nose and the points below it, (B, 9, 2)."""
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
    """Return the outer (B, 12, 2) and inner (B, 8, 2) lips: right along the upper lip, back along the lower."""
    width = look["mouth_width"] * (1 + 0.22 * look["smile"])

    def line(across: Tensor, thickness: Tensor, side: int) -> Tensor:
        arc = 1 - across.square()
        y = look["mouth_y"] + 0.075 * look["smile"] * arc - 0.03 * look["smile"] + side * thickness * arc
        return torch.stack([width * across, y], 2)

    def ring(num: int, thickness: Tensor) -> Tensor:
        across = torch.linspace(-1, 1, num, device=width.device)[None].expand(len(width), -1)
        return torch.cat([line(across, thickness, -1), line(across.flip(1)[:, 1:-1], thickness, 1)], 1)

    return torch.cat([ring(7, look["mouth_open"] + look["lips"]), ring(5, look["mouth_open"])], 1)
