"""What is known of a portrait beside its pixels: where its parts lie, how the head is turned, and the files of that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from idpgan.data.metadata import FILE_NAME, LANDMARKS, written

MASKS = "masks.npz"
POINTS = (
    *("left_eye", "right_eye", "left_eye_inner", "left_eye_outer", "right_eye_inner", "right_eye_outer"),
    *("nose_tip", "mouth_left", "mouth_right", "lip_top", "lip_bottom", "chin"),
)
PARTS = ("ground or hair", "skin", "eye", "mouth", "lips", "glasses")  # of a mask, by value
UNKNOWN = 255  # in a mask: no part of a portrait, as far as is known
POSE = ("yaw", "pitch", "roll")  # traits that say how a head is turned


class Annotations(NamedTuple):
    """Where the parts of portraits lie, and how their heads are turned.

    Attributes:
        landmarks: `POINTS`, float32 (N, K, 2): x and y in px from the left upper corner.
        masks: Which of `PARTS` each pixel shows, or `UNKNOWN`, uint8 (N, H, W).
        pose: The traits `POSE` that a portrait was drawn by, float32 (N, 3).
    """

    landmarks: Tensor
    masks: Tensor
    pose: Tensor


def arrays_of(annotations: Annotations) -> dict[str, Any]:
    """Return what an npz file says of pictures, and what its numbers mean."""
    arrays = {name: values.numpy() for name, values in annotations._asdict().items()}
    return arrays | {"parts": np.array(PARTS), "points": np.array(POINTS), "angles": np.array(POSE)}


def write_annotations(folder: Path, names: Sequence[str], annotations: Annotations) -> None:
    """Write landmarks.csv, which `publish --method gp-gan` reads, and masks.npz, all of it, into a new folder."""
    header = [FILE_NAME, *(f"{axis}{point}" for point in range(1, len(POINTS) + 1) for axis in "xy")]
    points = zip(names, annotations.landmarks.flatten(1).tolist(), strict=True)
    rows = ([name, *(f"{value:.2f}" for value in values)] for name, values in points)
    (folder / LANDMARKS).write_bytes(written(header, rows).encode())
    np.savez_compressed(folder / MASKS, file_name=np.array(names), **arrays_of(annotations))
