"""Where the parts of a rendered face lie: points of the mesh as the camera sees them, and what each pixel shows.

Left is the person's. Points are in px from the left upper corner; hidden ones lie where they would be seen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.data.annotations import PARTS
from idpgan.portraits.mesh import EYE, LASHES, MASKS, SKIN, TEETH, TONGUE, Head
from idpgan.portraits.rasterize import rasterize
from idpgan.portraits.shape import Posed

_MIDDLE = 0.03  # decimeters: points so near to the plane between left and right lie on it


def points_of(head: Head, posed: Posed) -> Tensor:
    """Return `POINTS` of posed heads, float32 (B, K, 2): x and y in px."""
    return torch.stack([posed.face.points[:, where, :2].mean(1) for where in _vertices(head)], 1)


def masks_of(head: Head, posed: Posed, side: int) -> Tensor:
    """Return which of `PARTS` each pixel shows, uint8 (B, side, side); hair is not told from the ground or the skin."""
    face, worn = posed.face, posed.glasses
    hits = rasterize(face.points, face.triangles, side, side, face.shown)
    kinds = head.kinds[face.numbers][hits.triangle]
    lips = hits.interpolate(head.masks[face.numbers][..., :1])[:, 0] > 0.5
    shown = torch.zeros_like(hits.triangle, dtype=torch.uint8)
    for part, here in (
        ("skin", (kinds == SKIN) | (kinds == LASHES)),
        ("eye", kinds == EYE),
        ("lips", (kinds == SKIN) & lips),
        ("mouth", (kinds == TEETH) | (kinds == TONGUE)),
    ):
        shown[hits.covered & here] = PARTS.index(part)
    over = rasterize(worn.points, worn.triangles, side, side, worn.shown, two_sided=True)
    shown[over.covered & (over.depth > hits.depth)] = PARTS.index("glasses")
    return shown


def _vertices(head: Head) -> tuple[Tensor, ...]:
    """Return the vertices whose mean is each of `POINTS`."""
    x, y, z = head.points.unbind(1)
    skin, lashes = (head.triangles[head.kinds == kind].unique() for kind in (SKIN, LASHES))
    red = head.masks[head.kinds == SKIN][..., MASKS.index("lips")] > 0.5
    lips = head.triangles[head.kinds == SKIN][red].unique()
    middle, profile = lips[x[lips].abs() < _MIDDLE], skin[(x[skin].abs() < _MIDDLE) & (z[skin] > 0)]

    def most(among: Tensor, value: Tensor) -> Tensor:
        return among[value[among].argmax()][None]

    left, right = lashes[x[lashes] > 0], lashes[x[lashes] < 0]
    corners = (most(left, -x), most(left, x), most(right, x), most(right, -x))
    mouth = (most(lips, x + 0.2 * z), most(lips, 0.2 * z - x), most(middle, y), most(middle, -y))
    return (*head.eyes, *corners, most(skin, z), *mouth, most(profile, z - y))
