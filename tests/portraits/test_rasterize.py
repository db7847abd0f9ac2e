"""Rasterising triangles: against each pixel asked by itself, without cracks, and the nearest in front."""

import torch

from idpgan.portraits.rasterize import rasterize

SIDE = 20


def asked_one_by_one(points, triangles, two_sided):
    """The nearest triangle of each pixel's center, -1 where there is none: by the signs of areas, in float64."""
    center = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).flip(1).double()[:, None] + 0.5
    one, two, three = points[triangles].double().unbind(1)  # (T, 3) each
    whole = area(one, two, three)
    weights = torch.stack([area(center, two, three), area(one, center, three), area(one, two, center)], 2)
    weights = weights / whole[:, None]
    depth = (weights * torch.stack([one[:, 2], two[:, 2], three[:, 2]], 1)).sum(2)
    inside = (weights >= 0).all(2) & (two_sided | (whole < 0))
    nearest = torch.where(inside, depth, -torch.inf).max(1)
    return torch.where(inside.any(1), nearest.indices, -1).view(SIDE, SIDE)


def area(a, b, c):
    return (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])


def test_each_pixel_shows_what_it_shows_when_asked_alone():
    rng = torch.Generator().manual_seed(5)
    points = torch.rand(2, 18, 3, generator=rng) * torch.tensor([26.0, 26.0, 4.0]) - torch.tensor([3.0, 3.0, 2.0])
    triangles = torch.arange(18).view(6, 3)
    for two_sided in (False, True):
        hits = rasterize(points, triangles, SIDE, SIDE, two_sided=two_sided)
        number = torch.where(hits.covered, hits.triangle, -1)
        for image in range(2):
            assert torch.equal(number[image], asked_one_by_one(points[image], triangles, two_sided))
    assert not torch.equal(hits.covered, rasterize(points, triangles, SIDE, SIDE).covered)  # the control: sides matter


def test_neighbors_leave_no_crack():
    rng = torch.Generator().manual_seed(6)
    row, column = (index.flatten() for index in torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij"))
    a, grid = row * 9 + column, torch.cartesian_prod(torch.arange(9.0), torch.arange(9.0)).flip(1) * 3 - 2
    triangles = torch.cat([torch.stack([a, a + 9, a + 1], 1), torch.stack([a + 1, a + 9, a + 10], 1)])
    shaken = grid + 0.9 * torch.rand(4, 81, 2, generator=rng)  # every point of the picture is in one of the triangles
    points = torch.cat([shaken, torch.zeros(4, 81, 1)], 2)
    assert bool(rasterize(points, triangles, SIDE, SIDE).covered.all())
    assert not bool(rasterize(points, torch.cat([triangles[:30], triangles[31:]]), SIDE, SIDE).covered.all())


def test_values_at_corners_are_mixed_by_place():
    points = torch.tensor([[[-5.0, -5.0, 1.0], [-5.0, 50.0, 2.0], [60.0, -5.0, 3.0]]])
    triangles = torch.tensor([[0, 1, 2]])
    hits = rasterize(points, triangles, SIDE, SIDE)
    center = torch.arange(SIDE) + 0.5
    for mixed in (hits.interpolate(points[0][triangles]), hits.interpolate_moving(points, triangles)):
        torch.testing.assert_close(mixed[0, 0], center.expand(SIDE, SIDE), rtol=0, atol=1e-4)
        torch.testing.assert_close(mixed[0, 1], center[:, None].expand(SIDE, SIDE), rtol=0, atol=1e-4)
        torch.testing.assert_close(mixed[:, 2], hits.depth, rtol=0, atol=1e-4)


def test_triangles_are_left_out_image_by_image():
    points = torch.tensor([[[-5.0, -5.0, 0.0], [-5.0, 50.0, 0.0], [60.0, -5.0, 0.0]]]).expand(2, -1, -1)
    hits = rasterize(points, torch.tensor([[0, 1, 2]]), SIDE, SIDE, torch.tensor([[True], [False]]))
    assert hits.covered[0].all()
    assert not hits.covered[1].any()
