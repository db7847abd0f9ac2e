"""Images as one uint8 tensor, and the only functions of the package that map uint8 to float and back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable

import torch
from torch import Tensor

from idpgan.data.picture import notebook_png
from idpgan.errors import DataError


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
        for name, numbers in (("labels", self.labels), ("identities", self.identities)):
            if numbers is not None and (numbers.dtype != torch.int64 or numbers.shape != (len(self),)):
                found = f"{numbers.dtype} {tuple(numbers.shape)}"
                raise DataError(f"For {len(self)} images the {name} must be int64 ({len(self)},), got {found}.")
        if self.null is not None and (self.null.dtype != torch.bool or self.null.shape != (len(self),)):
            found = f"{self.null.dtype} {tuple(self.null.shape)}"
            raise DataError(f"For {len(self)} images the null records must be bool ({len(self)},), got {found}.")
        self._check_attributes()

    def _check_attributes(self) -> None:
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

        They are the images themselves: of a private set only the curator may look, so clear the outputs of a notebook
        before it goes to anybody else. (``repr`` gives only what is public.)
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
        """Return a copy of the images at `index`, int64 (B,) or bool (N,), on any device."""
        index = index.to(self.images.device)
        return self._each(lambda tensor: tensor[index])

    def zeroed_out(self, index: Tensor) -> Images:
        """Return a copy in which the positions at `index`, int64 (B,) or bool (N,), hold the null record.

        The copy is the set's neighbor under zero-out-one: N, the order and the people stay.
        """
        null = torch.zeros(len(self), dtype=torch.bool, device=self.images.device)
        null[index.to(null.device)] = True
        null = null if self.null is None else null | self.null

        def emptied(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor.masked_fill(null.view(-1, *[1] * (tensor.ndim - 1)), 0)

        return dataclasses.replace(
            self,
            images=self.images.masked_fill(null.view(-1, 1, 1, 1), 0),
            labels=emptied(self.labels),
            attributes=emptied(self.attributes),
            null=null,
        )

    def existing(self, least: int = 0) -> Images:
        """Return the set without null records: on the curator's side, or for a method that promises nothing.

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
        for tensor in (self.images, self.labels, self.identities, self.attributes, self.null):
            if tensor is not None:
                sha.update(tensor.cpu().contiguous().numpy().data)
        return sha.hexdigest()

    def _each(self, change: Callable[[Tensor], Tensor]) -> Images:

        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        return dataclasses.replace(
            self,
            images=change(self.images),
            labels=changed(self.labels),
            identities=changed(self.identities),
            attributes=changed(self.attributes),
            null=changed(self.null),
        )


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
    """Return a float32 copy of uint8 pixels; refuse other types, which were mapped already."""
    if images.dtype != torch.uint8:
        raise ValueError(f"Expected uint8 images in [0, 255], got {images.dtype}: are they mapped to float already?")
    return images.to(torch.float32)
