"""Find the faces of a photo and put their eyes on fixed places, each photo by itself.

Faces and eyes are found by the Haar cascades (Viola and Jones, Rapid object detection using a boosted cascade of simple
features, 2001) that lie inside opencv-python-headless below version 5: nothing is downloaded. A similarity transform
(turn, scale, move) then puts the eyes at 0.29 and 0.71 of the width and at 0.38 of the height. A face whose eyes are
not found is cut by its box, in which eyes lie at these places on average.

Proof that this costs no budget: what a photo becomes is a function of that photo and of public settings. No number of
another photo enters, the search has no state, and a photo is searched by one thread, so that nothing depends on an
order. Hence neighbors stay neighbors: a photo that is replaced or emptied moves its own row and no other one, whatever
is then released of the rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from idpgan.errors import InputError

LEFT, RIGHT, HEIGHT = PLACES = 0.29, 0.71, 0.38  # of the eyes, as shares of width and height
SEARCHED = (200, 600)  # px: a photo is searched with a shorter side in this range
_MARGIN = 0.1  # of the shorter side, repeated outermost pixels around the photo: finds faces that fill it
_SMALLEST = 1 / 6  # of the shorter side: the smallest face, of several 1 / 6 of that for each, down to 1 / 24
_FACE_PX = 200  # side of a face in which eyes are searched
_EYE_ROWS = (20, 130)  # of these rows, where eyes can be
_EYE_PX = (24, 80)  # sides of an eye's box
_APART = (55, 120)  # px between the eyes of a face
_STEEPEST = 0.4  # slope between them: 22 degrees
_USUAL = ((0.29, 0.38), (0.71, 0.38))  # where eyes are in a face's box; of several pairs the nearest is taken
_UNSEEN = 0.5  # weight of a face whose eyes are not found, against others by their widths

Point = tuple[float, float]  # x and y in px from the left upper corner of the photo


class Face(NamedTuple):
    """One face: its eyes, as the viewer sees them, and whether they were found or follow from the face's box."""

    left: Point
    right: Point
    seen: bool


Places = tuple[float, float, float]  # of the eyes of all faces of a set, as `PLACES`
Finder = Callable[[np.ndarray, int], list[Face]]  # grey uint8 (H, W) and the most faces -> faces, the clearest first


@contextmanager
def face_finder() -> Iterator[Finder]:
    """Give the function that finds faces; threads may share it. Inside the block OpenCV computes in one thread each.

    Raises:
        InputError: If OpenCV is not installed, or is version 5, which has no cascades.
    """
    try:
        import cv2.data
    except ImportError as error:
        raise InputError('--align eyes needs OpenCV, which is not installed: pip install "idpgan[faces]"') from error
    if not hasattr(cv2, "CascadeClassifier"):
        raise InputError(
            f"--align eyes needs OpenCV below version 5, and {cv2.__version__} is installed: "
            'pip install "idpgan[faces]"'
        )
    own = threading.local()  # a cascade keeps the picture that it searches
    threads, open_cl = cv2.getNumThreads(), cv2.ocl.useOpenCL()

    def find(grey: np.ndarray, most: int) -> list[Face]:
        if not hasattr(own, "cascades"):
            names = ("frontalface_default", "eye", "eye_tree_eyeglasses")
            own.cascades = [cv2.CascadeClassifier(f"{cv2.data.haarcascades}haarcascade_{name}.xml") for name in names]
        return _faces(grey, most, *own.cascades)

    cv2.setNumThreads(1)
    cv2.ocl.setUseOpenCL(False)
    try:
        yield find
    finally:
        cv2.setNumThreads(threads)
        cv2.ocl.setUseOpenCL(open_cl)


def _faces(grey: np.ndarray, most: int, face_cascade: Any, *eye_cascades: Any) -> list[Face]:
    """Return at most ``most`` faces of a photo, by their widths; half the width counts where eyes are not found."""
    margin = round(_MARGIN * min(grey.shape))
    photo = Image.fromarray(np.pad(grey, margin, mode="edge"))
    width, height = photo.size
    scale = min(max(min(grey.shape), SEARCHED[0]), SEARCHED[1]) / min(grey.shape)
    search = photo.resize((round(scale * width), round(scale * height)), Image.Resampling.BICUBIC)
    least = round(scale * min(grey.shape) * _SMALLEST / min(most, 4))
    boxes = face_cascade.detectMultiScale(np.asarray(search), 1.1, 3, minSize=(least, least))
    found = []
    for x, y, side, _ in np.asarray(boxes, dtype=float).reshape(-1, 4) / scale:
        box = x, y, min(x + side, width), min(y + side, height)
        enlarged = np.asarray(photo.resize((_FACE_PX, _FACE_PX), Image.Resampling.BICUBIC, box=box))
        pairs = (pair for cascade in eye_cascades if (pair := _eyes(enlarged, cascade)))
        pair = next(pairs, None)
        (left, right), seen = pair or _USUAL, pair is not None
        points = [(x + side * u - margin, y + side * v - margin) for u, v in (left, right)]
        found.append((-side * (1.0 if seen else _UNSEEN), y, x, Face(points[0], points[1], seen)))
    return [face for *_, face in sorted(found)[:most]]


def _eyes(face: np.ndarray, cascade: Any) -> tuple[Point, Point] | None:
    """Return the pair of eyes nearest to the usual places, as shares of the face's side, or None."""
    start, end = _EYE_ROWS
    smallest, largest = _EYE_PX
    boxes = cascade.detectMultiScale(
        np.ascontiguousarray(face[start:end]), 1.05, 3, minSize=(smallest, smallest), maxSize=(largest, largest)
    )
    eyes = [(x + width / 2, start + y + height / 2) for x, y, width, height in np.asarray(boxes, float).reshape(-1, 4)]
    pairs: list[tuple[float, Point, Point]] = []
    for left in eyes:
        for right in eyes:
            apart, lower = right[0] - left[0], right[1] - left[1]
            if _APART[0] <= apart <= _APART[1] and abs(lower) <= _STEEPEST * apart:
                first, second = ((x / _FACE_PX, y / _FACE_PX) for x, y in (left, right))
                pairs.append((math.dist(first, _USUAL[0]) + math.dist(second, _USUAL[1]), first, second))
    return min(pairs)[1:] if pairs else None


def registered(photo: Image.Image, face: Face, size: tuple[int, int]) -> tuple[np.ndarray, float]:
    """Turn, scale and cut a photo so that the eyes of a face come to their places, with antialiasing.

    Beyond the edge of the photo its outermost pixels are repeated.

    Args:
        photo: The photo, of mode L or RGB.
        size: (H, W) of the result in px.

    Returns:
        uint8 (H, W) or (H, W, 3), and how many pixels of the photo make the side of one.
    """
    height, width = size
    left, right = complex(*face.left), complex(*face.right)
    turn = (right - left) / ((RIGHT - LEFT) * width)  # from px of the result to px of the photo
    origin = left - turn * complex(LEFT * width, HEIGHT * height)
    corners = [origin + turn * complex(x, y) for x in (0, width) for y in (0, height)]
    first = [math.floor(min(getattr(corner, part) for corner in corners)) - 2 for part in ("real", "imag")]
    last = [math.ceil(max(getattr(corner, part) for corner in corners)) + 2 for part in ("real", "imag")]
    columns, rows = (np.arange(a, b).clip(0, most - 1) for a, b, most in zip(first, last, photo.size, strict=True))
    part = Image.fromarray(np.asarray(photo)[rows[:, None], columns])
    finer = max(1, math.ceil(abs(turn)))  # the turned picture is as fine as the photo, and made smaller then
    turn, origin = turn / finer, origin - complex(*first)
    turned = part.transform(
        (finer * width, finer * height),
        Image.Transform.AFFINE,
        (turn.real, -turn.imag, origin.real, turn.imag, turn.real, origin.imag),
        Image.Resampling.BICUBIC,
    )
    return np.asarray(turned.resize((width, height), Image.Resampling.LANCZOS)), abs(turn) * finer
