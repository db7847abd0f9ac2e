"""`celeba`: 202,599 aligned faces of 10,177 people with 40 attributes (Liu et al. 2015), by torchvision's loader.

The files lie in the data root or in its folder ``celeba``, as torchvision wants them, and are never downloaded:

    img_align_celeba/000001.jpg ...   list_attr_celeba.txt   identity_CelebA.txt   list_eval_partition.txt
    list_bbox_celeba.txt   list_landmarks_align_celeba.txt

Each picture (178 x 218) is center-cropped to 148 x 148 pixels and then downscaled by Pillow's antialiased bilinear
filter, to 48 x 48 or to ``data.image_size``. The IDP-GAN paper uses 48 x 48 and does not describe the crop; this one is
the usual crop of GANs on this set.

The files are not compared with the originals: torchvision's MD5 sums would reject a subset of CelebA, or drawn faces in
this layout. The content of the lists is checked instead. A picture that is missing, damaged, of another size or without
its attributes keeps its row as a null record. The official partition is not used: images are split as for every set
(`load.py`); ``data.split_by = "identity"`` keeps each person in one part. Images are unlabeled unless ``data.label``
names attributes, as in ``data.label = ["Eyeglasses", "Smiling"]``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from idpgan.data import image_files
from idpgan.data.config import DataConfig
from idpgan.data.source import DataSet, PublicFacts, Read, Refused, Source, warn_of_null
from idpgan.errors import DataError
from idpgan.progress import Progress

if TYPE_CHECKING:
    from torchvision.datasets import CelebA

SIDE = 48  # px: the side of the resized images, unless data.image_size is set
ALIGNED, CUT = (178, 218), 148  # px: width and height of the original pictures; side of the crop
EYES = (0.365, 0.628, 0.51)  # of that crop, as in `idpgan.data.eyes`: (69, 111) and (108, 111) of all original pictures
PICTURES, ATTRIBUTES, IDENTITIES = "img_align_celeba", "list_attr_celeba.txt", "identity_CelebA.txt"
LISTS = (
    ATTRIBUTES,
    IDENTITIES,
    "list_eval_partition.txt",
    "list_bbox_celeba.txt",
    "list_landmarks_align_celeba.txt",
)
FOLDERS = (".", "celeba", "CelebA")


def find(config: DataConfig) -> DataSet | None:
    """Count pictures and people by the lists; None if the files are missing."""
    place = _locate(config.data_root)
    if place is None:
        return None
    num, attribute_names = _attribute_header(place / ATTRIBUTES)
    lines = [line.split() for line in _lines(place / IDENTITIES)]
    wrong = next(
        (index for index, line in enumerate(lines) if len(line) != 2 or not line[1].isdecimal() or len(line[1]) > 18),
        None,
    )
    if wrong is not None or not lines:
        raise DataError(
            f"{place / IDENTITIES} must have a file name and a person's number in each row; row {(wrong or 0) + 1} has "
            "not. Replace the file by the original."
        )
    if len(lines) != num:
        raise DataError(f"{place / IDENTITIES} has {len(lines)} pictures, but {ATTRIBUTES} {num}. Replace the file.")
    people = np.unique([int(line[1]) for line in lines], return_counts=True)[1]  # ordered by person number
    side, channels = _side(config), config.channels or 3
    facts = PublicFacts(num, None, (channels, side, side), (), attribute_names, tuple(people.tolist()))
    return DataSet(facts, lambda progress: _load(place, channels, side, progress))


def _load(place: Path, channels: int, side: int, progress: Progress) -> Read:
    """Read every picture once, uint8 (N, C, side, side), with its person and its attributes.

    Raises:
        DataError: If a list is damaged, or the lists contradict each other.
    """
    loaded = _loaded(place)
    names = tuple(filter(None, loaded.attr_names))  # the original header ends in a blank, which is read as a name
    _check_lists(place, loaded, names)
    paths = tuple(place / PICTURES / name for name in loaded.filename)

    images, refused = image_files.read_files(
        image_files.Files(paths), (channels, side, side), lambda path: _decode(path, channels, side), progress
    )
    wrong = ((loaded.attr != 0) & (loaded.attr != 1)).any(1)  # torchvision maps 1 and -1 to 1 and 0
    unlabeled = tuple(
        Refused(paths[row], f"{place / ATTRIBUTES} has neither 1 nor -1 for an attribute of {paths[row].name}.")
        for row in wrong.nonzero()[:, 0].tolist()
    )
    warn_of_null(unlabeled, len(paths))
    images = dataclasses.replace(
        images,
        identities=loaded.identity[:, 0].to(torch.int64),
        attributes=loaded.attr.to(torch.uint8),
        attribute_names=names,
    )
    null = images.is_null | wrong
    return Read(images.zeroed_out(null) if bool(null.any()) else images, refused=refused + unlabeled)


def _decode(path: Path, channels: int, side: int) -> np.ndarray:
    """Cut and shrink one picture to uint8 (C, side, side)."""
    from PIL import Image

    pixels = image_files.decode(path, channels, ALIGNED[::-1])
    left, top = (ALIGNED[0] - CUT) // 2, (ALIGNED[1] - CUT) // 2
    cut = Image.fromarray(pixels.transpose(1, 2, 0).squeeze()).crop((left, top, left + CUT, top + CUT))
    return image_files.planes(cut.resize((side, side), Image.Resampling.BILINEAR))


def _side(config: DataConfig) -> int:
    height, width = config.sides or (SIDE, SIDE)
    if height != width or height > CUT:
        raise DataError(
            f"data.image_size = {config.image_size}, but CelebA pictures have {CUT} x {CUT} pixels to give. Take one "
            f"number, {CUT} or less."
        )
    return height


def _locate(root: Path) -> Path | None:
    """Return the folder that holds pictures and lists; None if no place has the pictures."""
    place = next((root / name for name in FOLDERS if (root / name / PICTURES).is_dir()), None)
    if place is None:
        return None
    missing = [name for name in LISTS if not (place / name).is_file()]
    if missing:
        raise DataError(f"{place} holds {PICTURES}, but not {', '.join(missing)}. Put the files of CelebA there too.")
    return place


def _loaded(place: Path) -> CelebA:
    """Let torchvision read the lists, without its comparison of MD5 sums."""
    from torchvision.datasets import CelebA

    class LocalCelebA(CelebA):
        base_folder = "."

        def _check_integrity(self) -> bool:
            return True

        def _load_csv(self, filename: str, header: int | None = None) -> Any:
            try:
                return super()._load_csv(filename, header)
            except (ValueError, IndexError) as error:
                raise DataError(
                    f"{place / filename} is not a list of CelebA: a row does not begin with a file name that numbers "
                    f"follow, equally many in each ({error}). Replace the file by the original."
                ) from error

    return LocalCelebA(str(place), split="all")


def _check_lists(place: Path, loaded: CelebA, names: tuple[str, ...]) -> None:
    """Check that the lists name the same pictures in the same order."""
    num, declared = len(loaded.filename), _attribute_header(place / ATTRIBUTES)[0]
    for file, rows in ((ATTRIBUTES, len(loaded.attr)), (IDENTITIES, len(loaded.identity))):
        if rows != num or (file == ATTRIBUTES and rows != declared):
            raise DataError(
                f"{place / file} has {rows} rows for {num} pictures of list_eval_partition.txt"
                f"{f' ({declared} declared in its first line)' if file == ATTRIBUTES else ''}. Replace the file."
            )
        order = [line.split(maxsplit=1)[0] for line in _lines(place / file)[2 if file == ATTRIBUTES else 0 :]]
        wrong = next(
            (index for index, pair in enumerate(zip(order, loaded.filename, strict=True)) if len(set(pair)) > 1), None
        )
        if wrong is not None:
            raise DataError(
                f"{place / file} has {order[wrong]} in row {wrong + 1} where list_eval_partition.txt has "
                f"{loaded.filename[wrong]}: the lists must have the same order. Replace the file."
            )
    if loaded.attr.shape[1] != len(names):
        raise DataError(
            f"{place / ATTRIBUTES} must have a value for each of its {len(names)} attributes in each row. Replace the "
            "file by the original."
        )


def _attribute_header(path: Path) -> tuple[int, tuple[str, ...]]:
    """Return the declared number of pictures and the names of the attributes."""
    number, names = "", list[str]()
    with contextlib.suppress(UnicodeDecodeError), path.open(encoding="utf-8") as file:
        number, names = file.readline(1000).strip(), file.readline(100_000).split()
    if not (number.isdecimal() and len(number) < 10) or not names:
        raise DataError(
            f"{path} must begin with the number of pictures and a line of attribute names, but begins with "
            f"'{number[:40]}'. Replace the file by the original."
        )
    return int(number), tuple(names)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file ({error}). Replace it by the original.") from error


SOURCE = Source(
    find,
    f"There is no {PICTURES} in {{root}} or its folder celeba. CelebA is not downloaded: put the pictures and "
    f"{', '.join(LISTS)} there, or say where they are: --data-root DIR, data.root or IDPGAN_DATA.",
)
