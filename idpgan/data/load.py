"""Load a data set by its name, and split it. A new source is a module like those imported here, and one row."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from idpgan.config import nearest_hint
from idpgan.data import celeba, digits, face_folder, faces, folder, fonts, mnist
from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.labels import (
    attribute_classes,
    check_class_names,
    check_label,
    labeled_by,
    names_people,
    numbered_by,
    warn_of_names,
)
from idpgan.data.public import check_public_labels, count_public, draw_public
from idpgan.data.source import Found, Refused, Source
from idpgan.data.split import Indices, Sizes, people_indices, people_sizes, split_indices, split_sizes
from idpgan.errors import ConfigError, DataError
from idpgan.memory import check_memory
from idpgan.progress import Progress, silent

SOURCES: Mapping[str, Source] = {
    "celeba": celeba,
    "digits": digits,
    "face-folder": face_folder,
    "faces": faces,
    "folder": folder,
    "fonts": fonts,
    "mnist": mnist,
}
GPU_SHARE = 0.5  # of the free GPU memory that data may take; the rest is for the networks


@dataclasses.dataclass(frozen=True)
class DataShape:
    """What is public about a data set, and known without reading an image."""

    sizes: Sizes
    image_shape: tuple[int, int, int]  # (C, H, W)
    classes: tuple[str, ...]  # empty: unlabeled
    has_people: bool = False  # whether each image has its person

    @property
    def num_private(self) -> int:
        """N, the declared number of private images."""
        return self.sizes.private


@dataclasses.dataclass(frozen=True)
class Split:
    """The four disjoint parts of a data set.

    Attributes:
        public: Images without any protection; empty unless the config asks for them. None is a null record: another
            public image stands in its place, so that their number is the declared one.
        private: Images that the guarantee covers. Every position is there, null records included.
        holdout: Images never trained on: the non-members of attacks. As secret as the private ones.
        test: Images that judge what was trained.
        label_attributes: The attributes that make the classes, if any do (`data.label`): bit j of a label is that of
            attribute j, so that ``labels[:, None] >> arange(A) & 1`` are the bits.
        refused: Files that stand as null records, with the reasons. Curator only.
    """

    public: Images
    private: Images
    holdout: Images
    test: Images
    label_attributes: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Public class names; empty where the set is unlabeled."""
        return self.private.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.private.image_shape

    @property
    def num_private(self) -> int:
        """N, the declared number of private images: public, and what delta and sampling rates refer to."""
        return len(self.private)

    @property
    def shape(self) -> DataShape:
        """What is public about it."""
        parts = (self.public, self.private, self.holdout, self.test)
        return DataShape(Sizes(*map(len, parts)), self.image_shape, self.classes, self.private.identities is not None)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the private part: a run resumes only on the data that it began with. Curator only."""
        return self.private.digest()

    def to(self, device: torch.device | str) -> Split:
        """Return the split with each part on the device if it fits there, the private one first; see `place`."""
        private = place(self.private, device)
        public, holdout, test = (place(part, device) for part in (self.public, self.holdout, self.test))
        return dataclasses.replace(self, public=public, private=private, holdout=holdout, test=test)

    def existing(self) -> Split:
        """Return the split without null records: for judging on the curator's side, never for a release."""
        parts = {name: getattr(self, name).existing() for name in ("public", "private", "holdout", "test")}
        return dataclasses.replace(self, **parts)


def place(images: Images, device: torch.device | str) -> Images:
    """Return the images on the device, or page-locked on the CPU if they would fill over half the free GPU memory."""
    device = torch.device(device)
    if device.type == "cuda" and not images.images.is_cuda:
        free, _ = torch.cuda.mem_get_info(device)
        if images.num_bytes > GPU_SHARE * free:
            return images.pin_memory()
    return images.to(device)


def load(config: DataConfig, progress: Progress = silent) -> Split:
    """Read the data set that a config names, on the CPU, and split it by fixed index.

    Raises:
        ConfigError: If there is no source of that name.
        DataError: If files are missing, if public images differ in shape or classes from the private ones, or if a
            part would be empty. The message names the file or key. What is in a private file is never an error: one
            that is damaged or not as declared stands as a null record.
    """
    source, root = _source(config), _public_root(config)
    with _naming_files(config):
        public = None if root is None else folder.read_all(root, config.channels, progress, config)
        images, test, refused = source.read(config, progress)
    if public is not None and images.labels is None and not config.attributes:
        public = Images(public.images)  # class folders of an unlabeled set mean nothing
    images = labeled_by(_declared(images, config), config.attributes, config.name)
    check_class_names(images.classes)
    if config.public is not None:
        public = draw_public(config, images.image_shape, images.classes, progress)
    test = None if test is None else labeled_by(test, config.attributes, config.name)
    index = _indices(images, test, config)
    split = Split(
        public=_filled(_part(images, index.public))
        if public is None
        else public
        if config.public is not None
        else _alike(public, images, config, "public_root"),
        private=_part(images, index.private),
        holdout=_part(images, index.holdout),
        test=_part(images, index.test) if test is None else _alike(test, images, config, "its test part"),
        label_attributes=config.attributes,
        refused=refused,
    )
    return _renamed(
        split, _released_classes(source.describe(config) if config.classes else None, split.classes, config)
    )


def _released_classes(found: Found | None, classes: tuple[str, ...], config: DataConfig) -> tuple[str, ...]:
    """Return the names that classes have in a release: numbered ones where they are people's; see `names_people`."""
    if found is None or config.keep_names or not config.classes or not names_people(classes, found.person_names):
        return classes
    warn_of_names(classes, f"'{config.name}'")
    return tuple(f"class-{number}" for number in range(len(classes)))


def _renamed(split: Split, classes: tuple[str, ...]) -> Split:
    if classes == split.classes:
        return split
    parts = {name: getattr(split, name) for name in ("public", "private", "holdout", "test")}
    named = {name: dataclasses.replace(part, classes=classes) for name, part in parts.items() if part.classes}
    return dataclasses.replace(split, **named)


def _part(images: Images, index: Tensor) -> Images:
    """Return one part, without the mask if it holds no null record."""
    part = images.select(index)
    return part if part.null is None or bool(part.null.any()) else dataclasses.replace(part, null=None)


def _filled(public: Images) -> Images:
    """Replace null records among public images by the others in turn."""
    if public.null is None:
        return public
    there = torch.nonzero(~public.null)[:, 0]
    if not len(there):
        raise DataError("None of the public images can be used. Mend their files, or name others.")
    return dataclasses.replace(public.select(there[torch.arange(len(public)) % len(there)]), null=None)


def _indices(images: Images, test: Images | None, config: DataConfig) -> Indices:
    """Deal images or people out to the parts."""
    num_test = None if test is None else len(test)
    if config.split_by == "image":
        return split_indices(len(images), split_sizes(len(images), num_test, config))
    if images.identities is None:
        raise _no_people(config)
    if test is not None and (test.identities is None or bool(torch.isin(test.identities, images.identities).any())):
        raise DataError(
            f"data.split_by = identity, but the test images of '{config.name}' may show people of its training images."
            ' Set data.split_by = "image".'
        )
    return people_indices(images.identities, num_test, config)


def _sizes(found: Found, config: DataConfig) -> Sizes:
    if config.split_by == "image":
        return split_sizes(found.num_images, found.num_test, config)
    if not found.people:
        raise _no_people(config)
    return people_sizes(found.people, found.num_test, config)


def _no_people(config: DataConfig) -> DataError:
    return DataError(
        f"data.split_by = identity, but '{config.name}' does not say who is on which image. Set data.split_by = "
        '"image", or take a source with people (face-folder, celeba, faces, a metadata.csv with a column person).'
    )


def describe(config: DataConfig) -> DataShape | None:
    """Return sizes, shape and classes without reading an image; None if the files are missing.

    Raises:
        ConfigError: If there is no source of that name.
        DataError: If it is plain already that `load` will fail.
    """
    source, root = _source(config), _public_root(config)
    with _naming_files(config):
        found = source.describe(config)
        public = None if root is None else folder.scanned(root, config)
    if found is None:
        return None
    check_label(config.attributes, found.attribute_names, config.name)
    sizes = _sizes(found, config)
    classes = attribute_classes(config.attributes) if config.attributes else found.classes
    if public is not None:
        if classes and not (public.classes and set(public.classes) <= set(classes)):
            raise _unlike(config, "the classes", classes, "public_root", public.classes)
        sizes = sizes._replace(public=len(public.paths))
    if config.public is not None:
        check_public_labels(config, classes)
        sizes = sizes._replace(public=count_public(config))
    check_class_names(classes)
    classes = _released_classes(found, classes, config)
    shape = DataShape(sizes, _declared_shape(found.image_shape, config), classes, bool(found.people))
    _check_memory(shape, config)
    return shape


def _check_memory(shape: DataShape, config: DataConfig) -> None:
    """Refuse more images than the memory holds."""
    num = sum(shape.sizes)
    check_memory(
        2 * num * math.prod(shape.image_shape),  # as they are read, and once more as they are dealt out
        f"The {num:,} images of '{config.name}', {' x '.join(map(str, shape.image_shape))} bytes each,",
        "Take fewer, or make them smaller before training.",
    )


def known_shape(config: DataConfig) -> DataShape:
    """Return what `describe` does; raises `ConfigError` if the files are missing."""
    shape = describe(config)
    if shape is None:
        raise ConfigError(
            f"data set '{config.name}' is not there (root {config.data_root}), and what a run costs depends on its "
            "number and size of images. Give --data-root, or set data.root or IDPGAN_DATA."
        )
    return shape


def _source(config: DataConfig) -> Source:
    if config.name not in SOURCES:
        raise ConfigError(f"data.name = '{config.name}' is no known data set. {nearest_hint(config.name, SOURCES)}")
    return SOURCES[config.name]


def _public_root(config: DataConfig) -> Path | None:
    """Return the folder of public images, which must not hold the private ones too."""
    if config.public_root is None:
        return None
    root = config.public_root.expanduser()
    if config.root is not None and config.data_root.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"data.public_root = '{root}' holds data.root = '{config.root}', so that private images would be public. "
            "Name a folder that holds public images only."
        )
    if config.name.endswith("folder") and root.resolve().is_relative_to(config.data_root.resolve()):
        raise ConfigError(
            f"data.public_root = '{root}' lies in data.root = '{config.root}', so that its images would be private and "
            "public at once. Move it out."
        )
    return root


@contextlib.contextmanager
def _naming_files(config: DataConfig) -> Iterator[None]:
    """Turn an error of the system (no permission, no space, gone) into one that names the file."""
    try:
        yield
    except OSError as error:
        name = error.filename or f"the data set '{config.name}'"
        raise DataError(f"Cannot read {name}: {error.strerror or error}.") from error


def _declared_shape(shape: tuple[int, int, int], config: DataConfig) -> tuple[int, int, int]:
    """Check (C, H, W) as found against the config, and return it as declared."""
    channels, height, width = shape
    if config.sides not in (None, (height, width)):
        raise DataError(
            f"data.image_size = {config.image_size}, but the images of '{config.name}' are {width} x {height}, and "
            "images are not resized. Leave image_size out to take them as they are, or resize the files."
        )
    return config.channels or channels, height, width


def _declared(images: Images, config: DataConfig) -> Images:
    return _colored(images, _declared_shape(images.image_shape, config)[0])


def _colored(images: Images, channels: int) -> Images:
    """Return grey images as RGB, by repetition, where that is wanted."""
    if images.image_shape[0] == 1 and channels == 3:
        return dataclasses.replace(images, images=images.images.repeat(1, 3, 1, 1))
    return images


def _alike(part: Images, images: Images, config: DataConfig, what: str) -> Images:
    """Return a part in the declared shape; refuse one that does not fit the others."""
    part = _colored(part, images.image_shape[0])
    if set(part.classes) <= set(images.classes):
        part = numbered_by(part, images.classes)
    for name, found, expected in (
        ("images of the shape (C, H, W)", part.image_shape, images.image_shape),
        ("the classes", part.classes, images.classes),
    ):
        if found != expected:
            raise _unlike(config, name, expected, what, found)
    return part


def _unlike(config: DataConfig, name: str, expected: object, what: str, found: object) -> DataError:
    return DataError(f"'{config.name}' has {name} {expected}, but {what} has {found}. They must be the same.")
