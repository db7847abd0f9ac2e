"""Small substitutes for the real data sets, made of sklearn's digits and drawn faces, the same on every machine."""

from __future__ import annotations

import csv
import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

LANDMARKS = 68
EXPRESSIONS = ("neutral", "happiness", "neutral", "happiness", "neutral", "anger")


def make_all(root: Path) -> None:
    """Write every data set into folders below ``root``, the folder that IDPGAN_DATA names."""
    make_mnist(root / "mnist", 600, 200)
    for side in (32, 48):
        make_wild(root / f"wild{side}", 240, 3, side)
    make_celeba(root / "celeba", 96, 2)
    make_classes(root / "classes", 60, 28)
    make_faces(root / "faces", (16, 20), channels=1)
    make_faces(root / "colors", (16, 20), channels=3)
    make_faces(root / "wide", (8, 112), channels=1)
    make_table(root / "table", 12, 28)
    make_photos(root / "photos")


def face(person: int, smile: float, size: tuple[int, int], channels: int, seed: int = 0) -> np.ndarray:
    """Draw one face: an ellipse with two eyes and a mouth, sized for the person; uint8 (H, W) or (H, W, 3)."""
    own, rng = np.random.default_rng([1, person]), np.random.default_rng([2, seed])
    height, width = size
    y, x = np.mgrid[0:height, 0:width]
    y, x = (y + 0.5) / height - 0.5 + rng.normal(0, 0.02), (x + 0.5) / width - 0.5 + rng.normal(0, 0.02)
    skin, ground, hair = own.uniform(0.55, 0.9), own.uniform(0.1, 0.4), own.uniform(0, 0.3)
    wide, tall, apart = own.uniform(0.28, 0.36), own.uniform(0.36, 0.44), own.uniform(0.1, 0.16)
    picture = np.full(size, ground)
    picture[(x / wide) ** 2 + (y / tall) ** 2 < 1] = skin
    picture[((x / wide) ** 2 + (y / tall) ** 2 < 1.1) & (y < -0.25)] = hair
    for side in (-apart, apart):
        picture[((x - side) / 0.05) ** 2 + ((y + 0.08) / 0.04) ** 2 < 1] = 0.05
    bent = 0.2 + smile * (0.02 - 3 * x**2)
    picture[(abs(y - bent) < 0.03) & (abs(x) < 0.13)] = 0.25
    picture = np.clip(picture + rng.normal(0, 0.02, size), 0, 1)
    if channels == 3:
        tint = own.uniform(0.7, 1, 3)
        picture = picture[..., None] * tint
    return (picture * 255).round().astype(np.uint8)


def save(path: Path, pixels: np.ndarray) -> None:
    """Write one picture and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **({"quality": 90} if path.suffix == ".jpg" else {}))


def write_rows(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def make_mnist(folder: Path, train: int, test: int) -> None:
    """Write sklearn's digits, 8 x 8 made 28 x 28, in the files of MNIST."""
    digits = load_digits()
    pixels = np.pad(digits.images.repeat(3, 1).repeat(3, 2) * 255 / 16, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    folder.mkdir(parents=True)
    for name, part in (("train", slice(0, train)), ("t10k", slice(train, train + test))):
        for kind, array in (("images-idx3", pixels[part]), ("labels-idx1", digits.target[part].astype(np.uint8))):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes(), mtime=0))


def make_wild(folder: Path, num: int, each: int, side: int) -> None:
    """Write grey faces of ``num / each`` people with a metadata.csv of expression and person."""
    rows: list[tuple[str, ...]] = [("file_name", "expression", "person")]
    for index in range(num):
        expression = EXPRESSIONS[index % len(EXPRESSIONS)]
        person = index // each
        save(folder / f"{index}.png", face(person, float(expression == "happiness"), (side, side), 1, index))
        rows.append((f"{index}.png", expression, f"p{person}"))
    write_rows(folder / "metadata.csv", rows)


def make_celeba(folder: Path, num: int, each: int) -> None:
    """Write faces and lists in the layout of CelebA."""
    names = [f"{index + 1:06d}.jpg" for index in range(num)]
    attributes = ["Eyeglasses", "Smiling", *(f"Other_{number}" for number in range(38))]
    rng = np.random.default_rng(3)
    values = np.where(rng.random((num, len(attributes))) < 0.5, 1, -1)
    for index, name in enumerate(names):
        pixels = face(index // each, float(values[index, 1] > 0), (218, 178), 3, index)
        save(folder / "img_align_celeba" / name, pixels)
    lists = {
        "identity_CelebA.txt": [f"{name} {index // each + 1}" for index, name in enumerate(names)],
        "list_eval_partition.txt": [f"{name} 0" for name in names],
        "list_attr_celeba.txt": [str(num), " ".join(attributes)]
        + [f"{name} {' '.join(map(str, row))}" for name, row in zip(names, values.tolist(), strict=True)],
        "list_bbox_celeba.txt": [str(num), "image_id x_1 y_1 width height"] + [f"{name} 1 2 3 4" for name in names],
        "list_landmarks_align_celeba.txt": [str(num), "lefteye_x lefteye_y"] + [f"{name} 5 6" for name in names],
    }
    for name, lines in lists.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_classes(folder: Path, num: int, side: int) -> None:
    """Write faces in two folders of classes."""
    for index in range(num):
        label = index % 2
        save(folder / ("grave", "merry")[label] / f"{index}.png", face(index, float(label), (side, side), 1, index))


def make_faces(folder: Path, size: tuple[int, int], channels: int) -> None:
    """Write five pictures of three people, in folders, to be published."""
    for index, name in enumerate(("s1/1", "s1/2", "s1/10", "s2/a/x", "s10/only")):
        save(folder / f"{name}.png", face(index // 2, index % 2, size, channels, index))


def make_table(folder: Path, num: int, side: int) -> None:
    """Write faces of four people with mood, person and landmarks; one row has no mood."""
    rows: list[tuple[object, ...]] = [("file_name", "mood", "person")]
    marks: list[tuple[object, ...]] = [("file_name", *(f"{axis}{n + 1}" for n in range(LANDMARKS) for axis in "xy"))]
    angles = np.linspace(0, 2 * np.pi, LANDMARKS, endpoint=False)
    for index in range(num):
        smiling, person = index % 2, index % 4
        save(folder / f"{index}.png", face(person, float(smiling), (side, side), 1, index))
        rows.append((f"{index}.png", "" if index == 5 else ("smiling", "neutral")[smiling], f"p{person}"))
        radius = side * (0.25 + 0.02 * person)
        points = np.stack([side / 2 + radius * np.cos(angles), side / 2 + radius * np.sin(angles)], 1)
        marks.append((f"{index}.png", *points.round(3).flatten().tolist()))
    write_rows(folder / "metadata.csv", rows)
    write_rows(folder / "landmarks.csv", marks)


def make_photos(folder: Path) -> None:
    """Write photos of several sizes and formats, one of them damaged, in a folder for each person."""
    for index, name in enumerate(("anna/1.jpg", "anna/2.png", "bert/1.png", "bert/2.jpg", "carl/3.png")):
        save(folder / name, face(index, index % 2, (30 + 7 * index, 41 + 3 * index), 3, index))
    (folder / "carl" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n, and nothing more")
