"""The shape of a portrait: face, expression, hair and glasses as triangles, turned and put in front of the camera.

Lengths are decimeters about the middle between the eyes, as in `mesh`. Eyes are found where
`idpgan prepare --align eyes` puts them.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from idpgan.data.eyes import HEIGHT, LEFT, RIGHT
from idpgan.portraits.mesh import HULL, LASHES, PARTS, SKIN, Head
from idpgan.portraits.traits import ORIGINS, Traits

_USED = 0.35  # share of the local shapes that a person has
_STRONGEST = 0.5  # of a local shape
_HIGHEST = 0.9  # decimeters: no picture shows what is higher on a head
_LENSES = 32  # corners of a lens
_IN_FRONT = 0.27  # decimeters from the middle of the eye to the lens


class Layer(NamedTuple):
    """Triangles in front of the camera.

    Attributes:
        points: float32 (B, V, 3), x and y in px, y down, and the depth in decimeters.
        normals: float32 (B, V, 3), x right, y up, z to the camera.
        triangles: int64 (T, 3).
        shown: bool (B, T) or None, which means all.
        numbers: int64 (T,) of the triangles in the head, where they are of it.
    """

    points: Tensor
    normals: Tensor
    triangles: Tensor
    shown: Tensor | None
    numbers: Tensor


def shape_weights(head: Head, traits: Traits, local: Tensor) -> Tensor:
    """Return how much of each shape a person has, (N, S).

    Args:
        local: Numbers in [0, 1), (N, S), of the local shapes; left and right sides use those of the left one.
    """
    weights = torch.zeros(len(local), len(head.names), device=local.device)
    places, same = _local(head.names)
    weights[:, places] = (_USED - local[:, same]).clamp_min(0) * (_STRONGEST / _USED)
    for name, weight in (_large(traits) | _expression(traits)).items():
        if name in head.names:
            weights[:, head.names.index(name)] = weight
    return weights


@functools.cache
def _local(names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Return the places of the local shapes, and those whose numbers they use."""
    first: dict[str, int] = {}
    places = [place for place, name in enumerate(names) if name.split("/")[0] in PARTS]
    return places, [first.setdefault(names[place].replace("/l-", "/r-"), place) for place in places]


def _large(traits: Traits) -> Traits:
    """Return the weights of the shapes of sex, age, origin and weight, which MakeHuman multiplies."""
    strong = traits["marked"]
    male = torch.where(traits["male"] > 0, strong, 1 - strong)
    old = ((traits["age"] - 25) / 65).clamp(0, 1)
    heavy = traits["weight"]
    weights: Traits = {}
    for sex, of_sex in (("female", 1 - male), ("male", male)):
        for age, of_age in (("young", 1 - old), ("old", old)):
            both = of_sex * of_age
            for origin in ORIGINS:
                weights[f"origin/{origin}-{sex}-{age}"] = both * traits[origin]
            weights[f"body/{sex}-{age}-averageweight"] = both * (1 - heavy.abs())
            weights[f"body/{sex}-{age}-maxweight"] = both * heavy.clamp_min(0)
            weights[f"body/{sex}-{age}-minweight"] = both * (-heavy).clamp_min(0)
    return weights


def _expression(traits: Traits) -> Traits:
    """Return the weights of the facial actions."""
    smiling, opened = traits["smiling"], traits["mouth_open"]
    smile, calm = smiling * traits["smile"], 1 - smiling
    teeth = smiling * opened * traits["teeth"]
    both = {
        "cheekSquint": 0.7 * smile * traits["cheeks"],
        "mouthDimple": 0.3 * smile * traits["cheeks"],
        "mouthUpperUp": 1.7 * teeth,
        "mouthLowerDown": teeth * traits["open"],
        "mouthFrown": calm * traits["frown"].clamp_min(0),
        "mouthPress": (1 - opened) * traits["press"].clamp_min(0),
        "eyeBlink": traits["blink"],
        "eyeSquint": (0.4 + 0.6 * smiling) * traits["squint"],
        "eyeWide": calm * traits["wide"].clamp_min(0),
        "browDown": traits["brow_down"].clamp_min(0),
        "browOuterUp": traits["brow_up"].clamp_min(0),
    }
    weights = {f"act/{name}{side}": weight for name, weight in both.items() for side in ("Left", "Right")}
    weights["act/mouthSmileLeft"] = smile * (1 + traits["skew"])
    weights["act/mouthSmileRight"] = smile * (1 - traits["skew"])
    weights["act/browInnerUp"] = traits["brow_up"].clamp_min(0) * 0.6
    weights["act/jawOpen"] = opened * traits["open"] * (0.45 + 0.55 * calm)
    return weights


def dot(first: Tensor, second: Tensor, dim: int = 1) -> Tensor:
    """Return the products along a dimension of 3 numbers, summed; the dimension stays, with 1 number."""
    (a, b, c), (x, y, z) = first.split(1, dim), second.split(1, dim)
    return a * x + b * y + c * z


def unit(vectors: Tensor, dim: int = 1) -> Tensor:
    """Return vectors along a dimension with length 1."""
    return vectors * dot(vectors, vectors, dim).clamp_min(1e-12).rsqrt()


def vertex_normals(points: Tensor, triangles: Tensor) -> Tensor:
    """Return normals (B, V, 3) of length 1 of vertices (B, V, 3): those of the triangles around, by their areas."""
    batch, num, _ = points.shape
    rows = points.transpose(0, 1).reshape(num, batch * 3)  # a row of memory for each vertex
    one, two, three = (rows[triangles[:, corner]].view(-1, batch, 3) for corner in range(3))
    faces = torch.linalg.cross(two - one, three - one).reshape(len(triangles), -1)
    total = torch.zeros_like(rows)
    for corner in range(3):
        total.index_add_(0, triangles[:, corner], faces)
    return unit(total.view(num, batch, 3), 2).transpose(0, 1)


class Camera:
    """Turns points about the middle between the eyes into those of a picture.

    Args:
        eyes: (B, 2, 3), the person's left eye and right one.
        side: Of the picture, in px.
    """

    def __init__(self, traits: Traits, eyes: Tensor, side: int) -> None:
        self._middle = eyes.mean(1, keepdim=True)
        self.turn = _turned(traits)
        ends = (eyes - self._middle) @ self.turn.transpose(1, 2)
        apart = (ends[:, 0] - ends[:, 1])[:, :2].norm(dim=1)
        self.scale = traits["scale"] * (RIGHT - LEFT) * side / apart  # px a decimeter
        self._distance = traits["distance"]
        self._right = side * (0.5 + traits["shift_right"])
        self._down = side * (HEIGHT + traits["shift_down"])

    def project(self, points: Tensor) -> Tensor:
        """Return points (B, V, 3) of the head as x and y in px, y down, and the depth in decimeters."""
        x, y, z = ((points - self._middle) @ self.turn.transpose(1, 2)).unbind(2)
        far = self._distance[:, None]
        size = self.scale[:, None] * far / (far - z)
        return torch.stack([self._right[:, None] + x * size, self._down[:, None] - y * size, z], 2)


def _turned(traits: Traits) -> Tensor:
    """Return rotations (B, 3, 3) by yaw, then pitch, then roll."""
    zero, one = torch.zeros_like(traits["yaw"]), torch.ones_like(traits["yaw"])
    turns = []
    for name, order in (("roll", (2, 0, 1)), ("pitch", (0, 1, 2)), ("yaw", (1, 2, 0))):
        cos, sin = traits[name].cos(), traits[name].sin()
        turn = torch.stack([torch.stack(row, 1) for row in ((one, zero, zero), (zero, cos, -sin), (zero, sin, cos))], 1)
        order_back = [order.index(axis) for axis in range(3)]
        turns.append(turn[:, order_back][:, :, order_back])
    return turns[0] @ turns[1] @ turns[2]


class Posed(NamedTuple):
    """A batch of heads in front of the camera, and what stands around them."""

    face: Layer
    hair: Layer
    hull: Layer
    glasses: Layer
    camera: Camera


def pose(head: Head, traits: Traits, weights: Tensor, side: int) -> Posed:
    """Shape heads, and put them in front of the camera, with hair that stands off the scalp, and glasses."""
    moved = torch.addmm(head.points.reshape(1, -1), weights, head.shapes).view(len(weights), -1, 3)
    eyes = torch.stack([moved[:, places].mean(1) for places in head.eyes], 1)
    camera = Camera(traits, eyes, side)
    normals = vertex_normals(moved, head.triangles)
    turned = normals @ camera.turn.transpose(1, 2)
    hull_points = head.triangles[head.kinds == HULL].unique()
    closer = torch.stack([traits["hair_close"], torch.ones_like(traits["age"]), torch.ones_like(traits["age"])], 1)
    moved[:, hull_points] = (moved[:, hull_points] - eyes.mean(1, keepdim=True)) * closer[:, None] + eyes.mean(
        1, keepdim=True
    )
    visible, hairy, behind = _front(head), _hairy(head), _behind(head)
    shown = ~((head.kinds[visible] == LASHES)[None] & (traits["male"] > 0)[:, None])
    points = camera.project(moved)
    face = Layer(points, turned, head.triangles[visible], shown, visible)
    raised = moved + normals * hair_height(head.points, traits)[..., None]
    hair = Layer(camera.project(raised), turned, head.triangles[hairy], None, hairy)
    long_hair = (traits["long_hair"] > 0)[:, None].expand(-1, len(behind))
    hull = Layer(points, turned, head.triangles[behind], long_hair, behind)
    return Posed(face, hair, hull, _glasses(traits, eyes, camera), camera)


def _front(head: Head) -> Tensor:
    """Return the triangles that can face the camera: not the hull, not the back of the head."""
    one, two, three = head.points[head.triangles].unbind(1)
    forward = unit(torch.linalg.cross(two - one, three - one))[:, 2] > -0.35
    seen = forward & (head.points[head.triangles].amin(1)[:, 1] < _HIGHEST)
    return torch.nonzero((head.kinds != HULL) & (seen | (head.kinds != SKIN)))[:, 0]


def hair_height(rest: Tensor, traits: Traits) -> Tensor:
    """Return how far hair stands off the skin at points of rest (V, 3), in decimeters, (B, V)."""
    up = torch.sigmoid((rest[None, :, 1] - traits["hairline"][:, None] + 0.15) / 0.06)
    back = torch.sigmoid((traits["temple"][:, None] - rest[None, :, 2]) / 0.08)
    high = traits["hair_high"] * (1 + 0.8 * traits["curls"] * traits["african"]) * (1 - traits["bald"])
    return high[:, None] * torch.maximum(up, 0.6 * back) + 0.01


def _hairy(head: Head) -> Tensor:
    """Return which triangles of the skin hair may stand on: all but the middle of the face, below and in front."""
    center = head.points[head.triangles].mean(1)
    face = (center[:, 1] < 0.15) & (center[:, 2] > -0.45)
    near = (center[:, 1] > -0.9) & (center[:, 1] < _HIGHEST) & (center[:, 2] > -1.1)
    return torch.nonzero((head.kinds == SKIN) & near & ~face & (head.masks[..., 2].amax(1) < 0.5))[:, 0]


def _behind(head: Head) -> Tensor:
    """Return the triangles of the hull that are beside or behind the face."""
    center = head.points[head.triangles].mean(1)
    return torch.nonzero((head.kinds == HULL) & (center[:, 2] < 0.1))[:, 0]


def _glasses(traits: Traits, eyes: Tensor, camera: Camera) -> Layer:
    """Make rims, bridge, temples and lenses: of each lens an outer ring, an inner ring and a center."""
    batch, device = len(eyes), eyes.device
    angle = torch.arange(_LENSES, device=device) * (2 * math.pi / _LENSES)
    power = (2 / traits["lens_square"])[:, None]  # a superellipse
    cos, sin = (of(angle)[None] for of in (torch.cos, torch.sin))
    ring = torch.stack([cos.sign() * cos.abs() ** power, sin.sign() * sin.abs() ** power, 0 * cos * power], 2)
    sides = torch.stack([traits["lens_wide"], traits["lens_high"], torch.ones_like(power[:, 0])], 1)[:, None]
    rim = traits["rim"][:, None, None] * torch.tensor([1.0, 1.0, 0.0], device=device)
    parts = []
    for eye in range(2):
        center = eyes[:, eye : eye + 1] + torch.tensor([0.0, -0.03, _IN_FRONT], device=device)
        parts += [center + ring * (sides + rim), center + ring * sides, center]
    bow = _bows(parts, traits)
    points = torch.cat([*parts, bow], 1)
    points[..., 2] -= 0.12 * (points[..., 0] - eyes.mean(1)[:, None, 0]) ** 2 * (points[..., 2] > 0)
    normals = torch.zeros_like(points)
    normals[..., 2] = 1
    triangles = _glasses_triangles(device)
    shown = (traits["glasses"] > 0)[:, None].expand(batch, len(triangles))
    turned = normals @ camera.turn.transpose(1, 2)
    return Layer(camera.project(points), turned, triangles, shown, torch.arange(len(triangles), device=device))


def _bows(parts: list[Tensor], traits: Traits) -> Tensor:
    """Return the corners of the bridge and of the two temples, (B, 12, 3)."""
    thick = 0.7 * traits["rim"][:, None, None] * torch.tensor([0.0, 1.0, 0.0], device=parts[0].device)
    half = _LENSES // 2
    raise_ = 0.35 * traits["lens_high"][:, None, None] * torch.tensor([0.0, 1.0, 0.0], device=parts[0].device)
    left_in, right_in = parts[0][:, half : half + 1] + raise_, parts[3][:, :1] + raise_
    left_out, right_out = parts[0][:, :1] + raise_, parts[3][:, half : half + 1] + raise_
    back = torch.tensor([0.0, 0.05, -0.95], device=thick.device)
    ear = torch.tensor([0.22, 0.0, 0.0], device=thick.device)
    lines = ((left_in, right_in), (left_out, left_out + back + ear), (right_out, right_out + back - ear))
    return torch.cat([end + sign * thick for pair in lines for end in pair for sign in (1, -1)], 1)


def _glasses_triangles(device: torch.device) -> Tensor:
    """Return the triangles of rims, bridge, temples, and then lenses; the latter are the last 2 * `_LENSES`."""
    here = torch.arange(_LENSES)
    after = (here + 1) % _LENSES
    rims, lenses = [], []
    for start in (0, 2 * _LENSES + 1):
        inner, center = start + _LENSES, torch.full_like(here, start + 2 * _LENSES)
        rims += [torch.stack([start + here, start + after, inner + here], 1)]
        rims += [torch.stack([start + after, inner + after, inner + here], 1)]
        lenses += [torch.stack([inner + here, inner + after, center], 1)]
    first = 4 * _LENSES + 2 + 4 * torch.arange(3)
    bows = [torch.stack([first + a, first + b, first + c], 1) for a, b, c in ((0, 1, 2), (1, 3, 2))]
    return torch.cat([*rims, *bows, *lenses]).to(device)


def is_lens(layer: Layer) -> Tensor:
    """Return which triangles of the glasses are lenses, bool (T,)."""
    return torch.arange(len(layer.triangles), device=layer.triangles.device) >= len(layer.triangles) - 2 * _LENSES
