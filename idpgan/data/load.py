"""Load a data set by its name, and split it into public, private, holdout and test by fixed index, never by content.

`load` is where a run reads private images first. What opens and decodes their files is the set's own file in
`idpgan.data.sources`, most by `idpgan.data.image_files.read_files`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from idpgan.data import drawn, intake, sources
from idpgan.data.config import DataConfig
from idpgan.data.images import (
    Images,
    attribute_classes,
    check_class_names,
    check_label,
    labeled_by,
    names_people,
    numbered_by,
)
from idpgan.data.labels import NONE, positions_of
from idpgan.data.source import SILENCED, DataSet, PublicFacts, Refused, warn_once
from idpgan.data.sources import arrays, folder
from idpgan.device import check_room, free_bytes, is_gpu, take
from idpgan.errors import ConfigError, DataError
from idpgan.progress import Progress, silent

_LOG = logging.getLogger(__name__)

GPU_SHARE = 0.5  # share of the free GPU memory that data may take; the rest is for the networks
SPLIT_SEED = 20_240_117  # a constant of the package: another number gives another split and other members for attacks
TEST_SHARE = 0.2  # share of a set without test images of its own


class Sizes(NamedTuple):
    """Numbers of images of the parts; all of them are public."""

    public: int
    private: int
    holdout: int
    test: int


class Indices(NamedTuple):
    """Positions in the source's training images, int64: disjoint sets that together cover all images."""

    public: Tensor
    private: Tensor
    holdout: Tensor
    test: Tensor  # empty where the source brings its own test images


@dataclasses.dataclass(frozen=True)
class DataShape:
    """The public facts of a data set, known without reading an image."""

    sizes: Sizes
    image_shape: tuple[int, int, int]  # (C, H, W)
    classes: tuple[str, ...]  # empty: unlabeled
    has_people: bool = False  # whether each image has a person, or a photo that it was cut out of
    of_photos: bool = False  # whether it is a photo

    @property
    def num_private(self) -> int:
        """N, the declared number of private images."""
        return self.sizes.private


@dataclasses.dataclass(frozen=True)
class Split:
    """The four disjoint parts of a data set.

    Attributes:
        public: Images without any protection; empty unless the config asks for them. Contains no null records: another
            public image takes the place of each, so that their number is the declared one.
        private: Images that the guarantee covers. Every position is there, null records included.
        holdout: Images never trained on: the non-members of attacks. They are as secret as the private ones.
        test: Images for evaluating the trained model.
        refused: Files that became null records, with the reasons. Curator only.
        of_photos: Whether the identities are photos that the images were cut out of, and not people.
        positions: Where the images of each part stand in the source; None of a set that is not read from one.
    """

    public: Images
    private: Images
    holdout: Images
    test: Images
    refused: tuple[Refused, ...] = ()
    of_photos: bool = False
    positions: Indices | None = None

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
        """N, the declared number of private images: it is public, and delta and sampling rates refer to it."""
        return len(self.private)

    @property
    def shape(self) -> DataShape:
        """What is public about it."""
        parts = (self.public, self.private, self.holdout, self.test)
        has_people = self.private.identities is not None
        return DataShape(Sizes(*map(len, parts)), self.image_shape, self.classes, has_people, self.of_photos)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the private part: a run resumes only on the data that it began with. Curator only."""
        return self.private.digest()

    def to(self, device: torch.device | str) -> Split:
        """Return the split with each part on the device if it fits there, the private one first; see `place`."""
        return self.map(lambda part: place(part, device))

    def existing(self) -> Split:
        """Return the split without null records: for evaluation by the curator, never for a release."""
        return self.map(Images.existing)

    def map(self, change: Callable[[Images], Images]) -> Split:
        """Return the split with a function applied to every part, the private one first."""
        private = change(self.private)  # it goes to the GPU first
        public, holdout, test = change(self.public), change(self.holdout), change(self.test)
        return dataclasses.replace(self, private=private, public=public, holdout=holdout, test=test)


def place(images: Images, device: torch.device | str) -> Images:
    """Return the images on the device, or page-locked on the CPU if they would fill over half the free GPU memory."""
    device = torch.device(device)
    if is_gpu(device) and not is_gpu(images.images.device) and images.num_bytes > GPU_SHARE * free_bytes(device):
        return images.pin_memory()
    return images.to(device)


def load(
    config: DataConfig, progress: Progress = silent, *, data_set: DataSet | None = None, public: Images | None = None
) -> Split:
    """Read the data set that a config names, on the CPU, and split it by fixed index.

    Args:
        data_set: In the place of the one that the config names.
        public: In the place of the images of ``data.public_root``, without null records.

    Raises:
        ConfigError: If there is no source of that name.
        DataError: If files are missing, if public images differ in shape or classes from the private ones, or if a
            part would be empty. The message names the file or key. The content of a private file is never an error: a
            damaged or undeclared image becomes a null record.
    """
    with _public_root(config) as root:
        data_set = data_set or sources.needed(config)
        public = _of_file(root) if public is None else public
        if public is None and root is not None:
            public = folder.read_all(root, config.channels, progress, config)
        images, test, refused = data_set.load(progress)
    if public is not None and images.labels is None and not config.attributes:
        public = Images(public.images)  # an unlabeled set ignores class folders
    channels, _, _ = _declared_shape(images.image_shape, config)
    images = labeled_by(_colored(images, channels), config.attributes, config.name)
    check_class_names(images.classes)
    if config.public is not None:
        public = drawn.draw_public(config, images.image_shape, images.classes, progress)
    elif public is not None and config.looks is not None:
        meanings = drawn.check_public_labels(config, images.classes)
        public = _conformed(public if meanings else Images(public.images), Images(images.images), config, "public_root")
        of_root = f"images of data.public_root = '{root}'"
        public = drawn.labeled_by_looks(public, meanings, images.classes, of_root, "Give some that are.")
    elif public is not None:
        public = _conformed(public, images, config, "public_root")
    test = None if test is None else labeled_by(test, config.attributes, config.name)
    index = _indices(images, test, config)
    if public is None:
        public = _part(images, index.public)
        if public.null is not None:  # other images replace null records in turn
            existing = torch.nonzero(~public.null)[:, 0]
            if not len(existing):
                raise DataError("None of the public images can be used. Mend their files, or name others.")
            public = dataclasses.replace(public.select(existing[torch.arange(len(public)) % len(existing)]), null=None)
    facts = data_set.facts
    split = Split(
        public=public,
        private=_part(images, index.private),
        holdout=_part(images, index.holdout),
        test=_part(images, index.test) if test is None else _conformed(test, images, config, "its test part"),
        refused=refused,
        of_photos=facts.of_photos,
        positions=index,
    )
    classes = _released_classes(facts, split.classes, config)
    return split.map(lambda part: dataclasses.replace(part, classes=classes if part.classes else ()))


def load_again(config: DataConfig, progress: Progress = silent) -> Split:
    """Load the data of a run that was trained: what is wrong with them was said then, and is counted here in one line.

    Raises:
        ConfigError: As `load`.
        DataError: Likewise.
    """
    with SILENCED:
        split = load(config, progress)
    if split.refused:
        _LOG.warning("%d files stand as null records; log.txt of the run has the reasons.", len(split.refused))
    return split


def _released_classes(facts: PublicFacts, classes: tuple[str, ...], config: DataConfig) -> tuple[str, ...]:
    """Return the names that classes have in a release: numbered ones where they are people's; see `names_people`."""
    if config.keep_names or not config.classes or not names_people(classes, facts.person_names):
        return classes
    warn_once(
        f"The classes of '{config.name}' ({', '.join(classes[:3])}{', ...' * (len(classes) > 3)}) seem to be people, "
        f"so a release calls them class-0 to class-{len(classes) - 1}. If their names may be known, set "
        "data.keep_names = true."
    )
    return tuple(f"class-{number}" for number in range(len(classes)))


def _part(images: Images, index: Tensor) -> Images:
    """Return one part, without the null mask if the part holds no null record."""
    part = images.select(index)
    return part if part.null is None or bool(part.null.any()) else dataclasses.replace(part, null=None)


def _indices(images: Images, test: Images | None, config: DataConfig) -> Indices:
    """Assign images or people to the parts."""
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


def _no_people(config: DataConfig) -> DataError:
    return DataError(
        f"data.split_by = identity, but '{config.name}' does not say who is on which image. Set data.split_by = "
        '"image", or take a source with people (face-folder, celeba, faces, a metadata.csv with a column person).'
    )


def describe(config: DataConfig, data_set: DataSet | None = None, *, public: Images | None = None) -> DataShape | None:
    """Return sizes, shape and classes without reading an image; None if the files are missing.

    Args:
        config: All of [data].
        data_set: Where it was found before, so that no folder is listed again.
        public: As of `load`.

    Raises:
        ConfigError: If there is no source of that name.
        DataError: If it is already certain that `load` will fail.
    """
    with _public_root(config) as root:
        data_set = data_set or sources.find(config)
        public = _of_file(root) if public is None else public
        num_public, public_classes = (0, ()) if public is None else (len(public), public.classes)
        if public is None and root is not None:
            files = folder.scanned(root, config)
            num_public, public_classes = len(files.paths), files.classes
    if data_set is None:
        return None
    facts = data_set.facts
    check_label(config.attributes, facts.attribute_names, config.name)
    if config.split_by == "identity" and not facts.people:
        raise _no_people(config)
    sizes = (
        split_sizes(facts.num_images, facts.num_test, config)
        if config.split_by == "image"
        else people_sizes(facts.people, facts.num_test, config)
    )
    classes = attribute_classes(config.attributes) if config.attributes else facts.classes
    if root is not None:
        if config.looks is None and classes and (not public_classes or NONE in positions_of(public_classes, classes)):
            raise _mismatch(config, "the classes", classes, "public_root", public_classes)
        sizes = sizes._replace(public=num_public)
    if config.looks is not None:
        drawn.check_public_labels(config, classes)
    if config.public is not None:
        drawn.check_public_labels(config, classes)
        sizes = sizes._replace(public=drawn.count_public(config))
    check_class_names(classes)
    classes = _released_classes(facts, classes, config)
    image_shape = _declared_shape(facts.image_shape, config)
    shape = DataShape(sizes, image_shape, classes, bool(facts.people), facts.of_photos)
    num = sum(sizes)
    check_room(
        num * math.prod(shape.image_shape),
        2,  # once as read, and once more when they are split
        f"The {num:,} images of '{config.name}', {' x '.join(map(str, shape.image_shape))} bytes each,",
        "Take fewer, or make them smaller before training.",
    )
    return shape


def known_shape(config: DataConfig, data_set: DataSet | None = None, *, public: Images | None = None) -> DataShape:
    """Return what `describe` returns; raises `ConfigError` if the files are missing."""
    shape = describe(config, data_set, public=public)
    if shape is None:
        raise ConfigError(
            f"data set '{config.name}' is not there (root {config.data_root}), and what a run costs depends on its "
            "number and size of images. Give --data-root, or set data.root or IDPGAN_DATA."
        )
    return shape


@contextlib.contextmanager
def _public_root(config: DataConfig) -> Iterator[Path | None]:
    """Yield the folder of public images, which must not also hold the private images.

    An error of the system in the block (no permission, no space, gone) becomes one that names the file.
    """
    root = None if config.public_root is None else config.public_root.expanduser()
    if root and config.root is not None and config.data_root.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"data.public_root = '{root}' holds data.root = '{config.root}', so that private images would be public. "
            "Name a folder that holds public images only."
        )
    if root and config.name.endswith("folder") and root.resolve().is_relative_to(config.data_root.resolve()):
        raise ConfigError(
            f"data.public_root = '{root}' lies in data.root = '{config.root}', so that its images would be private and "
            "public at once. Move it out."
        )
    try:
        yield root
    except OSError as error:
        name = error.filename or f"the data set '{config.name}'"
        raise DataError(f"Cannot read {name}: {error.strerror or error}.") from error


def _of_file(root: Path | None) -> Images | None:
    """Return the public images of a file, an npz or one that `idpgan.fit` wrote; None for a folder."""
    if root is None or root.suffix not in (arrays.SUFFIX, ".npz"):
        return None
    return arrays.read_public(root) if root.suffix == arrays.SUFFIX else intake.gathered(root, private=False)


def _declared_shape(shape: tuple[int, int, int], config: DataConfig) -> tuple[int, int, int]:
    """Check (C, H, W) as found against the config, and return it as declared."""
    channels, height, width = shape
    if config.sides not in (None, (height, width)):
        raise DataError(
            f"data.image_size = {config.image_size}, but the images of '{config.name}' are {width} x {height}, and "
            "images are not resized. Leave image_size out to take them as they are, or resize the files."
        )
    return config.channels or channels, height, width


def _colored(images: Images, channels: int) -> Images:
    """Convert grey images to RGB by repetition if the config asks for RGB."""
    if images.image_shape[0] == 1 and channels == 3:
        colored = images.images.expand(-1, 3, -1, -1)
        return dataclasses.replace(images, images=take(colored, torch.arange(len(images))))
    return images


def _conformed(part: Images, images: Images, config: DataConfig, what: str) -> Images:
    """Return a part in the declared shape; refuse a part that does not fit the others."""
    part = _colored(part, images.image_shape[0])
    if NONE not in positions_of(part.classes, images.classes):
        part = numbered_by(part, images.classes)
    for name, actual, expected in (
        ("images of the shape (C, H, W)", part.image_shape, images.image_shape),
        ("the classes", part.classes, images.classes),
    ):
        if actual != expected:
            raise _mismatch(config, name, expected, what, actual)
    return part


def _mismatch(config: DataConfig, name: str, expected: object, what: str, actual: object) -> DataError:
    return DataError(f"'{config.name}' has {name} {expected}, but {what} has {actual}. They must be the same.")


# Which image goes where -------------------------------------------------------------------------------------------


def split_sizes(num_images: int, num_test: int | None, config: DataConfig, what: str = "images") -> Sizes:
    """Return the sizes of the parts, which are known before any image is read.

    Args:
        num_images: Images of the source, without those of `num_test`.
        num_test: The source's own test images; None takes 20 % of `num_images` instead.
        config: Its shares are shares of the images without the test images.
        what: "images" or "people", for the error.

    Raises:
        DataError: If a part that was asked for would be empty.
    """
    test = _count(TEST_SHARE, num_images) if num_test is None else num_test
    rest = num_images - (test if num_test is None else 0)
    public, holdout = _count(config.public_share, rest), _count(config.holdout_share, rest)
    sizes = Sizes(public, rest - public - holdout, holdout, test)
    testless = num_test == 0 and config.name == "arrays"  # whose images are all for training
    if (
        sizes.private == 0
        or (sizes.test == 0 and not testless)
        or (config.public_share > 0 and sizes.public == 0)
        or (config.holdout_share > 0 and sizes.holdout == 0)
    ):
        raise DataError(
            f"{num_images} {what} of '{config.name}' are too few for this split: with "
            f"public_share = {config.public_share:g}, holdout_share = {config.holdout_share:g} and "
            f"{f'the test {what} of the set' if num_test is not None else f'{TEST_SHARE:.0%} test {what}'} there would "
            f"be {sizes.public} public, {sizes.private} private, {sizes.holdout} holdout and {sizes.test} test {what}. "
            f"Give more {what}, or change data.public_share and data.holdout_share."
        )
    return sizes


def split_indices(num_images: int, sizes: Sizes) -> Indices:
    """Assign `num_images` positions to the parts by a permutation that depends only on their number.

    The order is test (unless the source has its own), public, holdout, private. The permutation sorts raw PCG64 output,
    which NumPy guarantees to keep. The output of `Generator.permutation` may change (NEP 19), and members would then
    become non-members.
    """
    test = num_images - sizes.public - sizes.holdout - sizes.private
    parts = _permutation(num_images).split([test, sizes.public, sizes.holdout, sizes.private])
    return Indices(public=parts[1], private=parts[3], holdout=parts[2], test=parts[0])


def people_sizes(people: Sequence[int], num_test: int | None, config: DataConfig) -> Sizes:
    """Return the sizes of the parts in images for a split by people; arguments and errors as for `split_sizes`.

    ``people`` holds the images of each person, in the order of their numbers, without those of `num_test`. The shares
    of the config, and the 20 % of a source without test images, are shares of people.
    """
    counts = torch.tensor(people, dtype=torch.int64)
    sizes = split_sizes(len(people), num_test, config, "people")
    images = [int(counts[part].sum()) for part in split_indices(len(people), sizes)]
    return Sizes(images[0], images[1], images[2], images[3] if num_test is None else num_test)


def people_indices(identities: Tensor, num_test: int | None, config: DataConfig) -> Indices:
    """Assign each person to one part by a permutation that depends only on the number of people.

    ``identities``, int64 (N,), is the person of each image; people are ordered by these numbers. See `people_sizes`.
    """
    numbers, person = identities.cpu().unique(return_inverse=True)
    people = split_indices(len(numbers), split_sizes(len(numbers), num_test, config, "people"))
    order = _permutation(len(identities))  # images are shuffled within a part, as in a split by images
    return Indices(*(order[torch.isin(person[order], part)] for part in people))


def _permutation(num: int) -> Tensor:
    """Return the package's permutation, int64 (num,)."""
    keys = np.random.PCG64(SPLIT_SEED).random_raw(num)
    return torch.from_numpy(np.argsort(keys, kind="stable").astype(np.int64))


def _count(share: float, num_images: int) -> int:
    """Return floor(share * num_images); float rounding just below a whole number (0.29 * 100) is corrected."""
    return math.floor(share * num_images + 1e-9)
