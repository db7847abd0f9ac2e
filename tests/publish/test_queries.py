"""The contract of every sound publisher: no neighbor moves its numbers further than declared, by trying them all."""

import itertools
import math

import pytest
import torch

from idpgan.data.faces import draw_landmarks
from idpgan.errors import InputError
from idpgan.privacy import Noise, Unit, compose_epsilon
from idpgan.publish import METHODS
from idpgan.publish.plan import load_publisher
from idpgan.publish.sound.faces import face_coefficients
from idpgan.publish.sound.numbers import Query, block_sums, calibrate_numbers, haar_wavelets, low_cosines, low_waves
from idpgan.publish.sound.weighted_blocks import PARTS, face_parts, quadtree

UNITS = (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE)
SHAPES = [(2, 2), (3, 2), (2, 3), (1, 4)]


def places(shape, unit):
    """Masks of all units of an image."""
    m, n = shape
    if unit is Unit.IMAGE:
        return [torch.ones(m, n, dtype=torch.bool)]
    masks = []
    for place in range(n if unit is Unit.COLUMN else m * n):
        mask = torch.zeros(m, n, dtype=torch.bool)
        if unit is Unit.COLUMN:
            mask[:, place] = True
        else:
            mask.view(-1)[place] = True
        masks.append(mask)
    return masks


def versions(shape, mask):
    """An image with all corners of the pixel range, and values beyond it, put into one unit."""
    base = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    size = int(mask.sum())
    levels = (-2.0, 0.3, 1.0) if size < 4 else (0.0, 1.0)
    changed = base.expand(len(levels) ** size, *shape).clone()
    changed[:, mask] = torch.tensor(list(itertools.product(levels, repeat=size)), dtype=torch.float64)
    return changed


def farthest(answer, shape, unit):
    """Largest move of an answer over all pairs of neighbors, in L1, in L2, of one number, and how many moved."""
    found = [0.0, 0.0, 0.0, 0]
    for mask in places(shape, unit):
        numbers = answer(versions(shape, mask)).flatten(1)
        for i in range(len(numbers)):
            moves = (numbers - numbers[i]).double()
            here = (
                moves.abs().sum(1).max(),
                moves.norm(dim=1).max(),
                moves.abs().max(),
                (moves.abs() > 1e-12).sum(1).max(),
            )
            found = [max(old, new.item()) for old, new in zip(found, here, strict=True)]
    return found


QUERIES = {
    "blocks of 1": lambda shape: block_sums(shape, 1),
    "blocks of 2": lambda shape: block_sums(shape, 2),
    "all cosines": lambda shape: low_cosines(shape, 3),
    "two cosines": lambda shape: low_cosines(shape, 2),
    "all waves": lambda shape: low_waves(shape, 4),
    "two waves": lambda shape: low_waves(shape, 2),
    "all wavelets": lambda shape: haar_wavelets(shape, 2),
    "coarse wavelets": lambda shape: haar_wavelets(shape, 1),
    "any": lambda shape: Query(
        *(torch.randn(3, size, generator=torch.Generator().manual_seed(2)).double() for size in shape)
    ),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_neighbor_moves_a_query_further_than_declared(shape, unit, name):
    query = QUERIES[name](shape)
    declared = query.sensitivity(unit)
    l1, l2, most, count = farthest(lambda images: query(images.clamp(0, 1)), shape, unit)
    assert l1 <= declared.l1
    assert l2 <= declared.l2
    assert most <= declared.most
    assert count <= declared.numbers
    if unit is Unit.PIXEL or name == "blocks of 2":  # reached, so that half of it would be found out
        assert l1 > 0.999 * declared.l1
        assert l2 > 0.999 * declared.l2


def test_waves_are_the_coordinates_of_the_fourier_transform():
    """Half of the squared length of a product of waves is that of the coefficients of its frequency and their twins."""
    shape = (5, 8)
    query = low_waves(shape, 8)
    for lines in (query.A, query.B):
        assert torch.allclose(lines @ lines.T, torch.eye(len(lines)).double(), atol=1e-12)
    image = torch.rand(1, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    squares = query(image)[0].square()
    exact = torch.fft.fft2(image[0], norm="ortho").abs().square()
    assert float(squares[0, 0]) == pytest.approx(float(exact[0, 0]))
    assert float(squares[1:3, 3:5].sum()) == pytest.approx(float(exact[[1, 1, 4, 4], [2, 6, 2, 6]].sum()))
    assert float(squares[0, 7]) == pytest.approx(float(exact[0, 4]))  # the highest frequency of an even side: no sine


@pytest.mark.parametrize("shape", [(8, 16), (5, 12), (1, 7)])
def test_wavelets_are_privelets(shape):
    """Xiao, Wang and Gehrke 2011: full rank, and a pixel moves (1 + log2 m)(1 + log2 n) numbers by one at most."""
    query, levels = haar_wavelets(shape, 9), [math.ceil(math.log2(size)) for size in shape]
    for lines, size in ((query.A, shape[0]), (query.B, shape[1])):
        assert lines.shape == (size, size)
        assert torch.linalg.matrix_rank(lines) == size
    declared = query.sensitivity(Unit.PIXEL)
    assert declared.numbers == (1 + levels[0]) * (1 + levels[1])
    assert declared.l1 == pytest.approx(declared.numbers, rel=1e-5)
    assert haar_wavelets(shape, 0).A.tolist() == [[1.0] * shape[0]]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_neighbor_moves_weighted_sums_further_than_declared_and_one_does(shape, unit):
    for query in (quadtree(shape, 1), quadtree(shape, 3), face_parts(shape, 1, 0.3), face_parts(shape, 2, 0.3)):
        declared = query.sensitivity(unit)
        l1, l2, most, count = farthest(lambda images, query=query: query(images.clamp(0, 1)), shape, unit)
        assert (l1 <= declared.l1, l2 <= declared.l2, most <= declared.most) == (True, True, True)
        assert count == declared.numbers
        assert min(l1 / declared.l1, l2 / declared.l2, most / declared.most) > 0.999


def test_a_pixel_of_a_face_part_costs_less_than_another():
    """At unit pixel: ``inside`` times epsilon, which is what the option says."""
    query = face_parts((20, 20), 2, 0.25)
    moved = query(torch.eye(400).view(400, 20, 20).double()).abs().sum(1).view(20, 20)
    assert sorted(moved.unique().tolist()) == [0.25, 1.0]
    for left, right, height in ((0.29, 0.71, 0.38), (0.5, 0.5, 0.55), (0.5, 0.5, 0.75)):  # eyes, nose, mouth
        assert {moved[int(20 * height), int(20 * place)].item() for place in (left, right)} == {0.25}
    assert moved[0].min() == moved[-1].min() == moved[:, 0].min() == 1.0


def test_the_declared_parts_hold_the_landmarks_of_drawn_faces():
    points = draw_landmarks(100, (112, 92), people=100, seed=9) / torch.tensor([92.0, 112.0])

    def share(part, places):
        top, bottom, left, right = part
        x, y = points[:, places].unbind(-1)
        return float(((left <= x) & (x <= right) & (top <= y) & (y <= bottom)).float().mean())

    eyes, nose, mouth, outline = (list(range(*ends)) for ends in ((36, 48), (27, 36), (48, 68), (0, 17)))
    for part, places, others in zip(PARTS, (eyes, nose, mouth), (mouth, outline, eyes), strict=True):
        assert share(part, places) > 0.97
        assert share(part, others) < 0.5


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("unit", UNITS)
def test_no_neighbor_moves_the_rounded_numbers_further_than_is_charged(unit, law):
    shape = (3, 2)
    query = low_cosines(shape, 2)
    noisy = calibrate_numbers(query.sensitivity(unit), unit, law, epsilon=1.0, delta=1e-5 if law == "gaussian" else 0)
    l1, l2, *_ = farthest(lambda images: noisy.grid.round(query(images.clamp(0, 1))), shape, unit)
    assert (l2 if law == "gaussian" else l1) <= noisy.mechanism.sensitivity


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (1, 4)])
def test_no_neighbor_moves_the_coefficients_further_than_declared(shape, unit):
    for components in (1, 2, 3):
        query = face_coefficients(shape, components)
        declared, clip = query.sensitivity(unit)
        l1, l2, most, count = farthest(lambda images, query=query, clip=clip: query(images, clip), shape, unit)
        assert (l1 <= declared.l1, l2 <= declared.l2, most <= declared.most) == (True, True, True)
        assert count <= declared.numbers
        if unit is Unit.PIXEL and math.isinf(clip):
            assert l1 > 0.999 * declared.l1


def test_coefficients_of_whole_images_are_clipped_and_the_clip_binds():
    query = face_coefficients((12, 10), 5)
    declared, clip = query.sensitivity(Unit.IMAGE)
    assert declared.l1 == pytest.approx(2 * clip, rel=1e-5)
    extremes = torch.stack([torch.zeros(12, 10), torch.ones(12, 10)]).double()
    released = query(extremes, clip)
    assert released.abs().sum(1).max().item() == pytest.approx(clip)
    assert query(extremes, math.inf).abs().sum(1).max() > clip
    assert math.isinf(query.sensitivity(Unit.PIXEL)[1])


def test_a_unit_that_is_no_part_of_an_image_is_refused():
    for refuse in (block_sums((4, 4), 2).sensitivity, face_coefficients((4, 4), 2).sensitivity):
        with pytest.raises(InputError, match="not part of an image"):
            refuse(Unit.PERSON)


SOUND = [(name, unit) for name, info in METHODS.items() if info.sound for unit in info.units]


@pytest.mark.parametrize(("method", "unit"), SOUND)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (7, 2), (56, 46)])
def test_defaults_run_for_every_unit_and_shape_without_delta(method, unit, shape):
    publisher = load_publisher(method)
    for epsilon in (0.01, 1.0, 40.0):
        plan = publisher.plan(shape, Unit(unit), epsilon, 0.0, publisher.options())
        assert 0.9 * min(epsilon, 30) < compose_epsilon(plan.events, 0.0) <= epsilon
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(3))
    released = plan.release(images, Noise.fixed(1))
    assert released.shape == images.shape
    assert bool(released.isfinite().all())
