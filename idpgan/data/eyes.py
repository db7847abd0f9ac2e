"""Find the faces of a photo and put their eyes on fixed places, each photo by itself.

Faces and eyes are found by the Haar cascades (Viola and Jones, Rapid object detection using a boosted cascade of simple
features, 2001) that lie inside opencv-python-headless below version 5: nothing is downloaded. Large faces are searched
first in a small picture, smaller ones only where they could still come before what was found; eyes are searched where
most are, then around that. A right eye is searched as a left one in the mirrored face, so that what a cascade errs to
one side cancels. A similarity transform (turn, scale, move) then puts the eyes at 0.29 and 0.71 of the width and at
0.38 of the height. A face whose eyes are not found is cut by its box, in which eyes lie at these places on average.

Proof that this costs no budget: what a photo becomes is a function of that photo and of public settings. No number of
another photo enters, the search has no state, and a photo is searched by one thread, so that nothing depends on an
order. Hence neighbors stay neighbors: a photo that is replaced or emptied moves its own row and no other one, whatever
is then released of the rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from idpgan.errors import InputError
from idpgan.host import Shared

LEFT, RIGHT, HEIGHT = PLACES = 0.29, 0.71, 0.38  # of the eyes, as shares of width and height
SEARCHED = (200, 600)  # px: small faces are searched in a photo with a shorter side in this range
_MOST_SIDE = 32766  # px of a picture that OpenCV searches: beyond it a photo is a stripe, which shows no face
_MARGIN = 0.1  # of the shorter side, repeated outermost pixels around the photo: finds faces that fill it
_LARGE = 1 / 3  # of the shorter side: the smallest face of the first search
_LARGE_PX = 24  # its side there, which is the cascade's window
_SMALLEST = 1 / 6  # of the shorter side: the smallest face, of several 1 / 6 of that for each, down to 1 / 24
_FACE_PX = 200  # side of a face in which eyes are searched
_APART = (55, 120)  # px between the eyes of a face
_STEEPEST = 0.4  # slope between them: 22 degrees
_USUAL = ((0.29, 0.38), (0.71, 0.38))  # where eyes are in a face's box; of several pairs the nearest is taken
_GAP = 3.0  # px of the photo that stay for each of the result when the photo is made smaller before it is turned
_UNSEEN = 0.5  # weight of a face whose eyes are not found, against others by their widths


class _Search(NamedTuple):
    """One search for a left eye in a face of `_FACE_PX`: where, in which sizes, and how finely."""

    cascade: str
    columns: tuple[int, int] = (14, 108)
    rows: tuple[int, int] = (32, 130)
    sides: tuple[int, int] = (30, 66)  # px of an eye's box
    step: float = 1.05  # between two sizes
    neighbors: int = 2  # boxes that agree


_SEARCHES = (  # the first that finds a pair ends the search; the first alone finds six of seven
    _Search("eye", (20, 100), (38, 124), (36, 62), 1.1),
    _Search("eye"),
    _Search("eye_tree_eyeglasses"),
)

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
    local = threading.local()  # a cascade keeps the picture that it searches

    def find(grey: np.ndarray, most: int) -> list[Face]:
        if not hasattr(local, "cascades"):
            names = {"frontalface_default", *(search.cascade for search in _SEARCHES)}
            paths = {name: f"{cv2.data.haarcascades}haarcascade_{name}.xml" for name in names}
            local.cascades = {name: cv2.CascadeClassifier(path) for name, path in paths.items()}
        return _faces(grey, most, local.cascades)

    with _one_thread:
        yield find


@contextmanager
def _single_thread() -> Iterator[None]:
    import cv2

    threads, open_cl = cv2.getNumThreads(), cv2.ocl.useOpenCL()
    cv2.setNumThreads(1)
    cv2.ocl.setUseOpenCL(False)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
        cv2.ocl.setUseOpenCL(open_cl)


_one_thread = Shared(_single_thread)


def _faces(grey: np.ndarray, most: int, cascades: Mapping[str, Any]) -> list[Face]:
    """Return at most ``most`` faces of a photo, by their widths; half the width counts where eyes are not found."""
    shorter = min(grey.shape)
    margin = round(_MARGIN * shorter)
    photo = Image.fromarray(np.pad(grey, margin, mode="edge"))
    first = _boxes(photo, _LARGE_PX / (_LARGE * shorter), _LARGE_PX, 1.2, 2, cascades)
    weighed = _weighed(photo, first, cascades)
    if sum(face.seen for _, face in weighed) < most:  # else no smaller face comes before these
        scale = min(max(shorter, SEARCHED[0]), SEARCHED[1]) / shorter
        least = round(scale * shorter * _SMALLEST / min(most, 4))
        weighed = _weighed(photo, _boxes(photo, scale, least, 1.1, 3, cascades), cascades) or weighed
    faces = [face for _, face in weighed[:most]]
    return [face._replace(left=_shifted(face.left, -margin), right=_shifted(face.right, -margin)) for face in faces]


def _shifted(point: Point, by: float) -> Point:
    return point[0] + by, point[1] + by


def _boxes(
    photo: Image.Image, scale: float, least: int, step: float, neighbors: int, cascades: Mapping[str, Any]
) -> np.ndarray:
    """Return (faces, 3): left, top and side, in px of the photo, of faces in it made ``scale`` times as large."""
    size = round(scale * photo.width), round(scale * photo.height)
    if max(size) > _MOST_SIDE:
        return np.empty((0, 3))
    search = np.asarray(photo.resize(size, Image.Resampling.BICUBIC, reducing_gap=_GAP))
    boxes = cascades["frontalface_default"].detectMultiScale(search, step, neighbors, minSize=(least, least))
    return np.asarray(boxes, dtype=float).reshape(-1, 4)[:, :3] / scale


def _weighed(photo: Image.Image, boxes: np.ndarray, cascades: Mapping[str, Any]) -> list[tuple[float, Face]]:
    """Return the faces of some boxes, eyes in px of the photo, with their weights; the heaviest first."""
    weighed = []
    for x, y, side in boxes.tolist():
        box = x, y, min(x + side, photo.width), min(y + side, photo.height)
        enlarged = np.asarray(photo.resize((_FACE_PX, _FACE_PX), Image.Resampling.BICUBIC, box=box))
        pairs = (pair for search in _SEARCHES if (pair := _eyes(enlarged, search, cascades[search.cascade])))
        pair = next(pairs, None)
        left, right = ((x + side * u, y + side * v) for u, v in pair or _USUAL)
        weighed.append((side * (1.0 if pair else _UNSEEN), -y, -x, Face(left, right, pair is not None)))
    return [(weight, face) for weight, *_, face in sorted(weighed, reverse=True)]


def _eyes(face: np.ndarray, search: _Search, cascade: Any) -> tuple[Point, Point] | None:
    """Return the pair of eyes nearest to the usual places, as shares of the face's side, or None."""
    lefts = _left_eyes(face, search, cascade)
    rights = [(_FACE_PX - x, y) for x, y in _left_eyes(face[:, ::-1], search, cascade)] if lefts else []
    pairs: list[tuple[float, Point, Point]] = []
    for left in lefts:
        for right in rights:
            apart, lower = right[0] - left[0], right[1] - left[1]
            if _APART[0] <= apart <= _APART[1] and abs(lower) <= _STEEPEST * apart:
                first, second = ((x / _FACE_PX, y / _FACE_PX) for x, y in (left, right))
                pairs.append((math.dist(first, _USUAL[0]) + math.dist(second, _USUAL[1]), first, second))
    return min(pairs)[1:] if pairs else None


def _left_eyes(face: np.ndarray, search: _Search, cascade: Any) -> list[Point]:
    """Return the middles, x and y in px of the face, of what may be its left eye."""
    (left, right), (top, bottom), (least, most) = search.columns, search.rows, search.sides
    part = np.ascontiguousarray(face[top:bottom, left:right])
    boxes = cascade.detectMultiScale(part, search.step, search.neighbors, minSize=(least, least), maxSize=(most, most))
    boxes = np.asarray(boxes, dtype=float).reshape(-1, 4).tolist()
    return [(left + x + width / 2, top + y + height / 2) for x, y, width, height in boxes]


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
    less = max(1, int(abs(turn) / _GAP))  # a fine photo is first made smaller by whole factors
    part = Image.fromarray(np.asarray(photo).take(rows, 0).take(columns, 1)).reduce(less)
    turn, origin = turn / less, (origin - complex(*first)) / less
    finer = max(1, math.ceil(abs(turn)))  # the turned picture is as fine as that, and made smaller then
    turn /= finer
    turned = part.transform(
        (finer * width, finer * height),
        Image.Transform.AFFINE,
        (turn.real, -turn.imag, origin.real, turn.imag, turn.real, origin.imag),
        Image.Resampling.BICUBIC,
    )
    return np.asarray(turned.resize((width, height), Image.Resampling.LANCZOS)), abs(turn) * finer * less
