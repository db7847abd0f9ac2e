"""A head of a few hundred triangles for tests: a ball with two smaller ones as eyes, teeth and a hull behind."""

import torch

from idpgan.portraits.mesh import EYE, HULL, MASKS, SKIN, TEETH, Head

NAMES = (
    *(f"origin/{origin}-{sex}-{age}" for origin in ("african", "asian", "caucasian")
      for sex in ("female", "male") for age in ("young", "old")),
    *(f"body/{sex}-{age}-{weight}weight" for sex in ("female", "male") for age in ("young", "old")
      for weight in ("min", "average", "max")),
    "act/mouthSmileLeft", "act/mouthSmileRight", "act/jawOpen",
    "nose/nose-wide", "eyes/l-eye-large", "eyes/r-eye-large",
)  # fmt: skip


def ball(center, radius, rows, columns):
    """Points (V, 3) and triangles (T, 3), counterclockwise from outside."""
    up = torch.linspace(-1, 1, rows + 1)[:, None] * torch.pi / 2
    around = torch.arange(columns)[None] * (2 * torch.pi / columns)
    points = torch.stack([up.cos() * around.sin(), up.sin().expand(-1, columns), up.cos() * around.cos()], 2)
    row, column = (
        index.flatten() for index in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    )
    a, b = row * columns + column, row * columns + (column + 1) % columns
    triangles = torch.cat([torch.stack([a, b, b + columns], 1), torch.stack([a, b + columns, a + columns], 1)])
    return torch.tensor(center) + radius * points.reshape(-1, 3), triangles


def made_head():
    parts = [
        (SKIN, ball((0.0, -0.2, -0.9), 1.0, 12, 18)),
        (EYE, ball((0.31, 0.0, 0.0), 0.14, 6, 8)),
        (EYE, ball((-0.31, 0.0, 0.0), 0.14, 6, 8)),
        (TEETH, ball((0.0, -0.6, 0.0), 0.1, 4, 6)),
        (HULL, ball((0.0, -0.2, -1.0), 1.3, 6, 8)),
    ]
    points, triangles, kinds, starts = [], [], [], []
    for kind, (places, corners) in parts:
        start = sum(map(len, points))
        starts.append(torch.arange(start, start + len(places)))
        points.append(places)
        triangles.append(corners + start)
        kinds.append(torch.full((len(corners),), kind))
    points, triangles = torch.cat(points), torch.cat(triangles)
    rng = torch.Generator().manual_seed(3)
    shapes = torch.zeros(len(NAMES), len(points) * 3)
    shapes[-6:] = 0.02 * torch.randn(6, len(points) * 3, generator=rng)
    masks = torch.zeros(len(triangles), 3, len(MASKS))
    return Head(points, NAMES, shapes, triangles, torch.cat(kinds), masks, (starts[1], starts[2]))
