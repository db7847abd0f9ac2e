"""Images as one uint8 tensor with labels, the only map to float and back, and PNG files of images."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from idpgan.config import nearest_hint
from idpgan.data.labels import NONE, positions_of
from idpgan.device import let_go, take
from idpgan.errors import DataError
from idpgan.files import printable
from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_CLASS_NAME = 200  # characters
GAP_PX = 2
SHOWN_COLUMNS, SHOWN = 8, 64  # columns and images of a notebook's grid
_ROWS = 1000  # images at once
_TENSORS = ("images", "labels", "identities", "attributes", "null")


@dataclasses.dataclass(frozen=True)
class Images:
    """Images of one shape, with their labels.

    Attributes:
        images: uint8 (N, C, H, W), C = 1 (grey) or 3 (RGB), values [0, 255].
        labels: int64 (N,), values [0, len(classes)); None where the set has no classes.
        classes: Public class names in the order of the labels; empty where the set has none.
        identities: int64 (N,), a number per person; None where the set does not know them.
        attributes: uint8 (N, A), each 0 or 1; None where the set has none.
        attribute_names: Public names of the A attributes; empty where the set has none.
        null: bool (N,), True where the position holds the *null record*; None if none does. A null record stands for
            an absent image: it keeps its position and its person number, adds nothing to any sum, and is never shown to
            anybody. Its pixels, label and attributes are 0 and mean nothing (see `zeroed_out`).

    Raises:
        DataError: If shapes or types do not fit together. (Values are checked where they are read: a check here would
            make the CPU wait for the GPU at each batch.)
    """

    images: Tensor
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    identities: Tensor | None = None
    attributes: Tensor | None = None
    attribute_names: tuple[str, ...] = ()
    null: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] not in (1, 3):
            found = f"{self.images.dtype} {tuple(self.images.shape)}"
            raise DataError(f"Images must be uint8 (N, 1 or 3, H, W), got {found}.")
        if (self.labels is None) != (not self.classes):
            raise DataError("Labels and class names go together: give both or neither.")
        for name, numbers, dtype in (
            ("labels", self.labels, torch.int64),
            ("identities", self.identities, torch.int64),
            ("null records", self.null, torch.bool),
        ):
            if numbers is not None and (numbers.dtype != dtype or numbers.shape != (len(self),)):
                wanted = f"{str(dtype).removeprefix('torch.')} ({len(self)},)"
                found = f"{numbers.dtype} {tuple(numbers.shape)}"
                raise DataError(f"For {len(self)} images the {name} must be {wanted}, got {found}.")
        names, attributes = self.attribute_names, self.attributes
        if (attributes is None) != (not names):
            raise DataError("Attributes and their names go together: give both or neither.")
        expected = (len(self), len(names))
        if attributes is not None and (attributes.dtype != torch.uint8 or attributes.shape != expected):
            found = f"{attributes.dtype} {tuple(attributes.shape)}"
            raise DataError(f"The attributes must be uint8 (images, names) = {expected}, got {found}.")

    def __len__(self) -> int:
        return self.images.shape[0]

    def __repr__(self) -> str:
        parts = [f"{len(self):,} images of {' x '.join(map(str, self.image_shape))} (channels x height x width)"]
        parts += [f"{len(self.classes):,} classes"] if self.classes else ["unlabeled"]
        parts += [f"attributes {', '.join(self.attribute_names)}"] if self.attribute_names else []
        parts += ["with people"] if self.identities is not None else []
        return f"<Images: {', '.join(parts)}>"

    def _repr_png_(self) -> bytes | None:
        """Show the first 64 images in a notebook, null records left out.

        These are the images themselves. Only the curator may see a private set, so clear the outputs of a notebook
        before it goes to anybody else. (``repr`` shows only public facts.)
        """
        return notebook_png(self.existing().images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W), also of an empty set."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def is_null(self) -> Tensor:
        """Whether each position holds the null record: bool (N,)."""
        return torch.zeros(len(self), dtype=torch.bool, device=self.images.device) if self.null is None else self.null

    @property
    def num_bytes(self) -> int:
        """Memory that the pixels take."""
        return self.images.numel()

    def to(self, device: torch.device | str) -> Images:
        """Return the set on a device."""
        return self._each(lambda tensor: tensor.to(device))

    def pin_memory(self) -> Images:
        """Return the set in page-locked CPU memory, from where copies to a GPU are fast."""
        return self._each(lambda tensor: tensor.pin_memory())

    def select(self, index: Tensor) -> Images:
        """Return a copy of the images at `index`, int64 (B,) or bool (N,), on any device; see `memory.take`."""
        index = index.to(self.images.device)
        return self._each(lambda tensor: take(tensor, index))

    def zeroed_out(self, index: Tensor) -> Images:
        """Return a copy in which the positions at `index`, int64 (B,) or bool (N,), hold the null record.

        The copy is the set's neighbor under zero-out-one: N, the order and the people stay.
        """
        null = torch.zeros(len(self), dtype=torch.bool, device=self.images.device)
        null[index.to(null.device)] = True
        null = null if self.null is None else null | self.null
        emptied = dataclasses.replace(self.select(torch.arange(len(self), device=null.device)), null=null)
        for tensor in (emptied.images, emptied.labels, emptied.attributes):
            if tensor is not None:
                tensor[null] = 0
        return emptied

    def existing(self, least: int = 0) -> Images:
        """Return the set without null records, for use by the curator or by a method without a guarantee.

        Raises:
            DataError: If fewer than `least` are left.
        """
        left = self if self.null is None else dataclasses.replace(self.select(~self.null), null=None)
        if len(left) < least:
            raise DataError(f"{len(left)} of {len(self)} images can be used, {least} are needed. Mend their files.")
        return left

    def digest(self) -> str:
        """Return the SHA-256 (hex) of all contents, null records included, in their order."""
        header = [list(self.images.shape), self.classes, self.labels is not None, self.identities is not None]
        header += [self.attribute_names, self.null is not None]
        sha = hashlib.sha256(json.dumps(header).encode())
        for name in _TENSORS:
            if (tensor := getattr(self, name)) is not None:
                for part in tensor.split(_ROWS):  # a whole copy may be larger than memory
                    sha.update(part.cpu().contiguous().numpy().data)
                    let_go(tensor)
        return sha.hexdigest()

    def digests(self) -> list[bytes]:
        """Return the SHA-256 of the pixels of each image: equal images are found by it."""
        digests = []
        for part in self.images.split(_ROWS):
            digests += [hashlib.sha256(image).digest() for image in part.cpu().numpy()]
            let_go(self.images)
        return digests

    def distinct(self) -> Images:
        """Return the first of each group of equal images, in their order; labels are not compared."""
        first: dict[bytes, int] = {}
        for position, digest in enumerate(self.digests()):
            first.setdefault(digest, position)
        return self.select(torch.tensor(list(first.values()), dtype=torch.int64))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Images:
        tensors = {name: getattr(self, name) for name in _TENSORS}
        changed: Any = {name: change(tensor) for name, tensor in tensors.items() if tensor is not None}
        return dataclasses.replace(self, **changed)


# Between uint8 and float ------------------------------------------------------------------------------------------


def to_float(images: Tensor) -> Tensor:
    """Map uint8 [0, 255] to float32 [-1, 1], the scale of networks: x / 127.5 - 1; any shape."""
    return _pixels(images).div_(127.5).sub_(1.0)


def to_unit(images: Tensor) -> Tensor:
    """Map uint8 [0, 255] to float32 [0, 1], the scale of publishers: x / 255; any shape."""
    return _pixels(images).div_(255.0)


def to_uint8(images: Tensor) -> Tensor:
    """Map float [-1, 1] to uint8 [0, 255], the exact inverse of `to_float`; any shape.

    Values beyond [-1, 1] are clamped, halves are rounded up.

    Raises:
        ValueError: If a value is NaN, or the tensor is not floating point.
    """
    if not images.is_floating_point():
        raise ValueError(f"to_uint8 takes floating point images in [-1, 1], got {images.dtype}.")
    if bool(images.isnan().any()):
        raise ValueError("to_uint8 got NaN pixels, which no grey value stands for: the network has diverged.")
    return images.float().clamp(-1.0, 1.0).add(1.0).mul_(127.5).add_(0.5).floor_().to(torch.uint8)


def _pixels(images: Tensor) -> Tensor:
    """Return a float32 copy of uint8 pixels; refuse other types, which have been mapped already."""
    if images.dtype != torch.uint8:
        raise ValueError(f"Expected uint8 images in [0, 255], got {images.dtype}: are they mapped to float already?")
    return images.to(torch.float32)


# Pictures ---------------------------------------------------------------------------------------------------------


def make_grid(images: Tensor, columns: int) -> Tensor:
    """Arrange uint8 images (N, C, H, W), N >= 1, row by row, with white gaps and white unused cells.

    Returns:
        uint8 (C, rows * (H + 2) - 2, columns * (W + 2) - 2).
    """
    return torch.from_numpy(grid_pixels(images.cpu().numpy(), columns))


def grid_pixels(images: np.ndarray, columns: int) -> np.ndarray:
    """Return the grid of `make_grid` for images that are no tensors."""
    num, channels, height, width = images.shape
    rows = -(-num // columns)
    cells = np.full((rows * columns, channels, height + GAP_PX, width + GAP_PX), 255, dtype=np.uint8)
    cells[:num, :, :height, :width] = images
    grid = cells.reshape(rows, columns, channels, height + GAP_PX, width + GAP_PX).transpose(2, 0, 3, 1, 4)
    return grid.reshape(channels, rows * (height + GAP_PX), columns * (width + GAP_PX))[:, :-GAP_PX, :-GAP_PX]


def png_bytes(image: Tensor) -> bytes:
    """Return one uint8 image (C, H, W), C = 1 or 3, as the content of a PNG file."""
    pixels = image.cpu().permute(1, 2, 0).squeeze(2) if image.shape[0] == 1 else image.cpu().permute(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy()).save(buffer, format="PNG")
    return buffer.getvalue()


def notebook_png(images: Tensor, columns: int = SHOWN_COLUMNS) -> bytes | None:
    """Return the first 64 of uint8 images (N, C, H, W) as a PNG for a notebook; None if there are no images."""
    return png_bytes(make_grid(images[:SHOWN], min(len(images), columns))) if len(images) else None


# Labels -----------------------------------------------------------------------------------------------------------


def attribute_classes(label: Sequence[str]) -> tuple[str, ...]:
    """Return the class names of the combinations of attributes, in the order of `labeled_by`'s labels.

    Example:
        >>> attribute_classes(["glasses", "smiling"])
        ('no glasses, no smiling', 'glasses, no smiling', 'no glasses, smiling', 'glasses, smiling')
    """
    return tuple(
        ", ".join(name if number >> bit & 1 else f"no {name}" for bit, name in enumerate(label))
        for number in range(2 ** len(label))
    )


def check_label(label: Sequence[str], attribute_names: Sequence[str], source: str) -> None:
    """Raise a `DataError` if `data.label` names an attribute that the source does not have."""
    if label and not attribute_names:
        raise DataError(
            f"data.label = {', '.join(label)}, but '{source}' has no attributes. Leave data.label out, or take a "
            "source with attributes (faces, celeba, a folder with metadata.csv)."
        )
    for name in label:
        if name not in attribute_names:
            raise DataError(f"data.label: '{source}' has no attribute '{name}'. {nearest_hint(name, attribute_names)}")


def numbered_by(images: Images, classes: Sequence[str], what: str = "the set") -> Images:
    """Return labeled images renumbered for another list of classes, which contains the set's own classes.

    Raises:
        DataError: If it does not; ``what`` is the set's name there.
    """
    if images.labels is None:
        return images
    positions = positions_of(images.classes, classes)
    if NONE in positions:
        raise DataError(
            f"{what} has the class '{images.classes[positions.index(NONE)]}', which is none of the real ones "
            f"({', '.join(classes)}). Name the classes alike; or leave its images out, drawing those of the others "
            "alone (--labels, labels=[...])."
        )
    number = torch.tensor(positions, device=images.labels.device)
    return dataclasses.replace(images, labels=number[images.labels], classes=tuple(classes))


def names_people(classes: Sequence[str], person_names: Sequence[str]) -> bool:
    """Decide from declared facts whether classes are people: they share names with people, or are equally many.

    Labels are private and are not read. Who is on which image, and the list of classes, are public.
    """
    people = {name.casefold() for name in person_names}
    return bool(people & {name.casefold() for name in classes}) or 0 < len(person_names) == len(classes)


def check_class_names(classes: Sequence[str]) -> None:
    """Refuse class names that must not appear in a card: they are released, and shown to everyone who opens the card.

    Raises:
        DataError: If one is empty, longer than 200 characters, stands twice, or holds control characters, line breaks
            or bytes that are not UTF-8.
    """
    for name in classes:
        if not 0 < len(name) <= LONGEST_CLASS_NAME or not printable(name):
            shown = ascii(name) if len(name) <= 40 else f"{name[:40]!a}..."
            raise DataError(
                f"the class name {shown} ({len(name)} characters) cannot be released: a class name has 1 to "
                f"{LONGEST_CLASS_NAME} characters, all of them printable. Rename the class."
            )
    if len(set(classes)) < len(classes):
        twice = next(name for index, name in enumerate(classes) if name in classes[:index])
        raise DataError(f"the class name {twice!r} stands twice. Name each class once.")


def labeled_by(images: Images, label: Sequence[str], source: str) -> Images:
    """Return the images with combinations of attributes as classes: label = sum over j of bit_j << j.

    Args:
        label: Names of attributes, bit 0 first; empty leaves the set as it is.
        source: Name of the source, for the error.

    Raises:
        DataError: If there is no attribute of such a name.
    """
    if not label:
        return images
    check_label(label, images.attribute_names, source)
    if images.attributes is None:
        raise DataError(f"'{source}' has no attributes.")
    columns = torch.tensor([images.attribute_names.index(name) for name in label], device=images.attributes.device)
    bits = images.attributes[:, columns].long()  # (N, A)
    labels = (bits << torch.arange(len(label), device=bits.device)).sum(1)
    return dataclasses.replace(images, labels=labels, classes=attribute_classes(label))
