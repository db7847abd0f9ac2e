"""Faces are found by Haar cascades in drawn photos, and their eyes come to fixed places, each photo by itself."""

import math
import sys

import numpy as np
import pytest
from PIL import Image

from idpgan.data.eyes import HEIGHT, LEFT, RIGHT, Face, face_finder, registered
from idpgan.data.faces import draw, draw_landmarks
from idpgan.errors import InputError


def spots(places, width=300, height=260):
    """A dark photo with a bright round spot at each place."""
    y, x = np.mgrid[:height, :width] + 0.5
    bright = sum(np.exp(-((x - u) ** 2 + (y - v) ** 2) / 50) for u, v in places)
    return Image.fromarray((250 * bright).clip(0, 255).astype(np.uint8))


def middle(pixels):
    """The center of brightness, x and y in px."""
    y, x = np.mgrid[: pixels.shape[0], : pixels.shape[1]] + 0.5
    weights = pixels.astype(float)
    return (weights * x).sum() / weights.sum(), (weights * y).sum() / weights.sum()


@pytest.mark.parametrize("size", [(48, 48), (96, 96), (112, 92), (28, 28)])
@pytest.mark.parametrize("eyes", [((100, 90), (180, 90)), ((120, 150), (170, 120)), ((20.5, 30), (75, 45))])
def test_eyes_come_to_their_places(eyes, size):
    pixels, scale = registered(spots(eyes), Face(*eyes, True), size)
    assert pixels.shape == size
    half = pixels.shape[1] // 2
    left, right = middle(pixels[:, :half]), middle(pixels[:, half:])
    assert left == pytest.approx((LEFT * size[1], HEIGHT * size[0]), abs=0.3)
    assert (right[0] + half, right[1]) == pytest.approx((RIGHT * size[1], HEIGHT * size[0]), abs=0.3)
    assert scale == pytest.approx(math.dist(*eyes) / ((RIGHT - LEFT) * size[1]))


def test_fine_patterns_become_grey_and_edges_are_repeated():
    board = np.indices((400, 400)).sum(0) % 2 * 255
    pixels, _ = registered(Image.fromarray(board.astype(np.uint8)), Face((130, 150), (270, 158), True), (28, 28))
    assert abs(pixels.astype(int) - 127).max() < 16
    plain = Image.new("RGB", (60, 60), (10, 200, 90))
    pixels, _ = registered(plain, Face((10, 20), (50, 20), True), (48, 48))  # reaches beyond the photo
    assert (pixels == (10, 200, 90)).all()


def test_without_opencv_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(InputError, match=r'not installed: pip install "idpgan\[faces\]"$'), face_finder():
        pass


@pytest.fixture(scope="module")
def drawn():
    """Drawn faces, grey uint8, and where the middle of their eyes is painted."""
    arguments = {"num": 16, "size": 240, "people": 16, "seed": 3}
    points = draw_landmarks(**arguments).numpy()
    eyes = np.stack([points[:, 36:42].mean(1), points[:, 42:48].mean(1)], 1)
    return draw(**arguments, channels=1).images.numpy()[:, 0], eyes


def test_faces_are_found_where_they_are_drawn(drawn):
    """Cascades were made for photos; of drawn faces they find two thirds, at the right place."""
    pytest.importorskip("cv2")
    with face_finder() as find:
        found = [find(grey, 1) for grey in drawn[0]]
        assert find(np.random.default_rng(0).integers(0, 256, (240, 240), np.uint8), 1) == []
    errors = []
    for faces, eyes in zip(found, drawn[1], strict=True):
        if faces and faces[0].seen:
            apart = math.dist(*eyes)
            errors.append(max(math.dist(faces[0].left, eyes[0]), math.dist(faces[0].right, eyes[1])) / apart)
    assert len(errors) >= 5
    assert np.median(errors) < 0.15


def test_a_mirrored_photo_has_its_eyes_at_mirrored_places(drawn):
    """Over faces, what the search errs to one side stays below a hundredth of the distance of the eyes."""
    pytest.importorskip("cv2")
    with face_finder() as find:
        shifts = []
        for grey in drawn[0]:
            faces, mirrored = find(grey, 1), find(np.ascontiguousarray(grey[:, ::-1]), 1)
            if faces and mirrored and faces[0].seen and mirrored[0].seen:
                (left, right, _), (other_left, other_right, _) = faces[0], mirrored[0]
                middle, other = (left[0] + right[0]) / 2, 240 - (other_left[0] + other_right[0]) / 2
                shifts.append((middle - other) / math.dist(left, right))
    assert len(shifts) >= 5
    assert abs(np.median(shifts)) < 0.01


def test_a_small_face_is_found_where_there_is_no_large_one(drawn):
    pytest.importorskip("cv2")
    with face_finder() as find:
        grey, face = next((grey, faces[0]) for grey in drawn[0] if (faces := find(grey, 1)) and faces[0].seen)
        small = find(np.pad(grey, 200, constant_values=128), 1)[0]
    assert small.left == pytest.approx([200 + x for x in face.left], abs=8)
    assert small.right == pytest.approx([200 + x for x in face.right], abs=8)


def test_several_faces_of_one_photo(drawn):
    cv2 = pytest.importorskip("cv2")
    threads = cv2.getNumThreads()
    with face_finder() as find:
        good = [grey for grey in drawn[0] if (faces := find(grey, 1)) and faces[0].seen]
        small = np.asarray(Image.fromarray(good[1]).resize((120, 120)))
        pair = np.concatenate([good[0], np.pad(small, ((60, 60), (0, 0)), mode="edge")], 1)
        faces = find(pair, 2)
        assert [face.left[0] > 240 for face in faces] == [False, True]  # the larger face first
        assert faces[:1] == find(pair, 1)
        assert find(pair, 2) == faces
    assert cv2.getNumThreads() == threads
