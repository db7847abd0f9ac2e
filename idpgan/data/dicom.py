"""DICOM files as pictures for `idpgan prepare`: pixels alone, as they are meant to be seen; needs `idpgan[dicom]`.

The grey values of a file become those of its modality (Hounsfield units of a CT), then bytes: by a declared range, else
by the file's own window, else by the range that its bits can hold. All of these are public or of that file alone, never
of the other files. Where low values are white (MONOCHROME1) they are turned, and slices and radiographs are brought to
the usual view: the patient's left on the right, the head above, the front above. Mammograms stay as they are stored.

No tag is written anywhere. Text that is burnt into the pixels is not looked for.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from idpgan.data import cells
from idpgan.data.declared import warn_once
from idpgan.data.image_files import DAMAGE, MOST_PIXELS, ROOM
from idpgan.data.source import logging_only
from idpgan.errors import DataError, InputError
from idpgan.host import Shared, unwarned

if TYPE_CHECKING:
    from pydicom import Dataset

SUFFIXES = (".dcm", ".dicom", ".dic", ".ima")
_INDEX = "DICOMDIR"  # the file that lists the others of a disk
_AXES = {"L": (0, 1), "R": (0, -1), "P": (1, 1), "A": (1, -1), "F": (2, 1), "H": (2, -1)}  # usual directions are +1
# It logs tracebacks of files that are refused in one line.
_QUIET = Shared(functools.partial(logging_only, "pydicom", logging.CRITICAL))
_PATIENT = np.diag((1.0, 1.0, -1.0))  # DICOM's third axis leads to the head


class View(NamedTuple):
    """What is declared of the DICOM files.

    Attributes:
        window: Values of the modality that become black and white; None = as the file says.
        frame: Which frame of a file of several is taken, from 1; None = such a file is refused.
    """

    window: tuple[float, float] | None = None
    frame: int | None = None


AS_STORED = View()


def is_dicom(path: Path) -> bool:
    """Tell by its name whether a file is one of DICOM; one without a suffix (IM1, 1.2.840) is where others are."""
    suffix = path.suffix.lower()
    return suffix in SUFFIXES or (not any(map(str.isalpha, suffix)) and path.name.upper() != _INDEX)


def begins(path: Path) -> bool:
    """Tell by its first bytes whether a file is one of DICOM."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


@functools.cache
def _pydicom() -> Any:
    try:
        import pydicom
    except ImportError as error:
        raise InputError('DICOM files need the package pydicom: pip install "idpgan[dicom]"') from error
    return pydicom


def picture(path: Path, view: View = AS_STORED) -> Image.Image:
    """Return the picture of a file, L or RGB, without any tag.

    Raises:
        DataError: If it cannot be used; the message is the rest of a sentence that begins with the file's name.
        InputError: If pydicom is not installed.
    """
    data = _read(path)
    try:
        frames, size = int(data.get("NumberOfFrames") or 1), (int(data.Columns), int(data.Rows))
    except DAMAGE as error:
        raise DataError("holds no picture; leave it out") from error
    if size[0] * size[1] > MOST_PIXELS:
        raise DataError(f"has more than {MOST_PIXELS:,} pixels; make it smaller")
    if frames > 1 and view.frame is None:
        raise DataError(f"holds {frames} frames; say with --frame which one is taken, or save each by itself")
    if (view.frame or 1) > frames:
        raise DataError(f"holds {frames} frames, and --frame {view.frame} is none of them")
    with ROOM.taken(size), _QUIET:
        stored = _decoded(data, (view.frame or 1) - 1)
        try:
            color = stored.ndim == 3 or "PALETTE" in _kind(data)
            shown = _color(stored, data) if color else _grey(stored, data, view)
            return Image.fromarray(np.ascontiguousarray(_upright(shown, data)))
        except DAMAGE as error:
            raise DataError(f"cannot be shown ({type(error).__name__}); replace it") from error  # its text may be a tag


def patients(paths: Sequence[Path]) -> list[str]:
    """Return a name for the patient of each file: a hash of its PatientID under a key that is kept nowhere.

    Raises:
        DataError: If a file is not one of DICOM, cannot be read, or names no patient.
        InputError: If pydicom is not installed.
    """
    key, numbers = secrets.token_bytes(32), []
    for path in paths:
        try:
            tag = _read(path, tags=["PatientID"]).get("PatientID") if is_dicom(path) else None
        except DataError as error:
            raise DataError(f"{path} {error}.") from error
        numbers.append(cells.read(tag, cells.TABLE))
    nobody = [path for path, number in zip(paths, numbers, strict=True) if number in cells.BLANKS]
    if nobody:
        said = cells.blanks_of(numbers)
        raise DataError(
            f"{nobody[0]} names no patient (PatientID), {len(nobody):,} of {len(paths):,} files do not"
            f"{said and f' ({said})'}. Leave them out, or give a table with the people."
        )
    of = dict(zip(numbers, paths, strict=True))
    for group in cells.spellings(numbers):
        warn_once(
            f"The patients of {' and '.join(str(of[number]) for number in group)} are taken for different ones, but "
            "PatientID differs in nothing but capitals or blanks. If they are one, write it in one way."
        )
    return [f"patient-{hashlib.blake2b(each.encode(), digest_size=8, key=key).hexdigest()}" for each in numbers]


def _read(path: Path, tags: list[str] | None = None) -> Dataset:
    pydicom = _pydicom()
    with unwarned(), _QUIET:  # of values that the standard forbids and everybody writes
        try:
            data_set: Dataset = pydicom.dcmread(path, specific_tags=tags, stop_before_pixels=tags is not None)
        except (pydicom.errors.InvalidDicomError, *DAMAGE) as error:
            raise DataError("is not a DICOM file that can be read; replace it") from error
    return data_set


def _decoded(data: Dataset, frame: int) -> np.ndarray:
    """Return the stored values of a frame, (H, W) or (H, W, 3) as RGB."""
    from pydicom.pixels import pixel_array

    try:
        return pixel_array(data, index=frame)
    except DAMAGE as error:
        syntax = data.file_meta.TransferSyntaxUID if "TransferSyntaxUID" in data.file_meta else None
        if syntax is not None and syntax.is_compressed and isinstance(error, RuntimeError):
            raise DataError(
                f"is compressed ({syntax.name}) and cannot be decoded here; pip install pylibjpeg[all], save it "
                "uncompressed, or replace it"
            ) from error
        raise DataError(f"cannot be decoded ({type(error).__name__}); replace it") from error


def _kind(data: Dataset) -> str:
    return str(data.get("PhotometricInterpretation") or "")


def _color(stored: np.ndarray, data: Dataset) -> np.ndarray:
    """Return bytes of colors."""
    from pydicom.pixels import apply_color_lut

    if "PALETTE" in _kind(data):
        stored = apply_color_lut(stored, data)[..., :3]
        white = np.iinfo(stored.dtype).max
    else:
        white = (1 << int(data.BitsStored)) - 1
    return np.floor(stored.astype(np.float64).clip(0, white) * (255 / white) + 0.5).astype(np.uint8)


def _grey(stored: np.ndarray, data: Dataset, view: View) -> np.ndarray:
    """Return bytes of grey, low values black unless the file says that they are white."""
    from pydicom.pixels import apply_modality_lut, apply_voi

    _mend_rescale(data)
    values, width = apply_modality_lut(stored, data), _first(data.get("WindowWidth"))
    width = None if _first(data.get("WindowCenter")) is None else width
    if view.window is None and "VOILUTSequence" in data:
        values, limits = apply_voi(values, data), _of_table(data.VOILUTSequence)
    elif view.window is None and width is not None and data.get("VOILUTFunction") == "SIGMOID":
        values = 1 / (1 + np.exp((-4 * (values - _first(data.WindowCenter)) / width).clip(-500, 500)))
        limits = 0.0, 1.0
    else:
        limits = view.window or (_own_range(data) if width is None else _own_window(data, width))
    low, high = limits
    shown = np.floor((values.astype(np.float64).clip(low, high) - low) * 255 / max(high - low, 1e-9) + 0.5).astype(
        np.uint8
    )
    return 255 - shown if _kind(data) == "MONOCHROME1" else shown


def _mend_rescale(data: Dataset) -> None:
    """Give a slope or intercept that is empty or missing beside the other its usual value; take two empty ones out."""
    usual = {"RescaleSlope": 1, "RescaleIntercept": 0}
    lacking = [name for name in usual if _first(data.get(name)) is None]
    for name in lacking:
        if len(lacking) == 1:
            setattr(data, name, usual[name])
        elif name in data:
            delattr(data, name)


def _own_window(data: Dataset, width: float) -> tuple[float, float]:
    """Return what becomes black and white by the file's first window (PS3.3, C.11.2.1.2)."""
    center = _first(data.WindowCenter) or 0.0
    exact = data.get("VOILUTFunction") == "LINEAR_EXACT"
    half, center = (width / 2, center) if exact else ((width - 1) / 2, center - 0.5)
    return center - half, center + half


def _own_range(data: Dataset) -> tuple[float, float]:
    """Return the least and the largest value that the bits of a file can hold."""
    if "ModalityLUTSequence" in data:
        return _of_table(data.ModalityLUTSequence)
    signed = bool(data.get("PixelRepresentation"))
    count = 1 << int(data.BitsStored)
    ends = (-count / 2, count / 2 - 1) if signed else (0.0, count - 1.0)
    slope, intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
    low, high = sorted(end * slope + intercept for end in ends)
    return low, high


def _of_table(tables: Any) -> tuple[float, float]:
    return 0.0, float((1 << int(tables[0].LUTDescriptor[2])) - 1)


def _first(values: Any) -> float | None:
    """Return the first of one or several numbers; None where there is none."""
    several = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    return None if not len(several) or several[0] in (None, "") else float(several[0])


def _upright(shown: np.ndarray, data: Dataset) -> np.ndarray:
    """Turn and mirror a picture to the usual view; as it is stored where nothing says how it lies."""
    directions = _directions(data)
    if directions is None:
        return shown
    (across, right), (down, below) = directions
    shown = shown[:, ::right][::below]
    return shown if across < down else shown.swapaxes(0, 1)  # from left to right before from above to below


def _directions(data: Dataset) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the patient's axis and direction that the rows, and the columns, of a picture run along."""
    if data.get("Modality") == "MG":  # left and right breasts are shown back to back
        return None
    cosines = data.get("ImageOrientationPatient")
    if cosines is not None and len(cosines) == 6:
        axes = np.array(cosines, dtype=float).reshape(2, 3) @ _PATIENT
        directions = [(int(np.abs(axis).argmax()), 1 if axis[np.abs(axis).argmax()] > 0 else -1) for axis in axes]
    else:
        letters = [str(letter)[:1] for letter in data.get("PatientOrientation") or ()]
        directions = [_AXES[letter] for letter in letters if letter in _AXES]
    return (directions[0], directions[1]) if len(directions) == 2 and directions[0][0] != directions[1][0] else None
