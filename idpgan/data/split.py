"""The four-way split: public, private, holdout, test. By fixed index, never by content."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from idpgan.data.config import DataConfig
from idpgan.errors import DataError

SPLIT_SEED = 20_240_117  # a constant of the package: another number is another split, and other members for attacks
TEST_SHARE = 0.2  # of a set that brings no test images of its own


class Sizes(NamedTuple):
    """Numbers of images; all of them are public knowledge."""

    public: int
    private: int
    holdout: int
    test: int


class Indices(NamedTuple):
    """Positions in the source's training images, int64; disjoint, and together all of them."""

    public: Tensor
    private: Tensor
    holdout: Tensor
    test: Tensor  # empty where the source brings its own test images


def split_sizes(num_images: int, num_test: int | None, config: DataConfig, what: str = "images") -> Sizes:
    """Return the sizes of the parts; known before any image is read.

    Args:
        num_images: Images of the source, without those of `num_test`.
        num_test: The source's own test images; None takes 20 % of `num_images` instead.
        config: Its shares count of the images without the test images.
        what: "images" or "people", for the error.

    Raises:
        DataError: If a part that was asked for would be empty.
    """
    test = _part(TEST_SHARE, num_images) if num_test is None else num_test
    rest = num_images - (test if num_test is None else 0)
    public, holdout = _part(config.public_share, rest), _part(config.holdout_share, rest)
    sizes = Sizes(public, rest - public - holdout, holdout, test)
    if (
        min(sizes.private, sizes.test) == 0
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
    """Deal `num_images` positions out to the parts by a permutation that depends on their number alone.

    The order is test (unless the source has its own), public, holdout, private. The permutation sorts raw PCG64 output,
    which NumPy keeps the same for ever. That of `Generator.permutation` may change (NEP 19), and members would turn
    into non-members.
    """
    test = num_images - sizes.public - sizes.holdout - sizes.private
    parts = _permutation(num_images).split([test, sizes.public, sizes.holdout, sizes.private])
    return Indices(public=parts[1], private=parts[3], holdout=parts[2], test=parts[0])


def people_sizes(people: Sequence[int], num_test: int | None, config: DataConfig) -> Sizes:
    """Return the sizes of the parts in images, if people are dealt out; arguments and errors as of `split_sizes`.

    ``people`` holds the images of each person, in the order of their numbers, without those of `num_test`. The shares
    of the config, and the 20 % of a source without test images, are shares of people.
    """
    counts = torch.tensor(people, dtype=torch.int64)
    sizes = split_sizes(len(people), num_test, config, "people")
    images = [int(counts[part].sum()) for part in split_indices(len(people), sizes)]
    return Sizes(images[0], images[1], images[2], images[3] if num_test is None else num_test)


def people_indices(identities: Tensor, num_test: int | None, config: DataConfig) -> Indices:
    """Deal people out to the parts by a permutation that depends on their number alone; nobody is in two parts.

    ``identities``, int64 (N,), is the person of each image; people are ordered by these numbers. See `people_sizes`.
    """
    numbers, person = identities.cpu().unique(return_inverse=True)
    people = split_indices(len(numbers), split_sizes(len(numbers), num_test, config, "people"))
    order = _permutation(len(identities))  # images are mixed within a part, as where images are dealt out
    return Indices(*(order[torch.isin(person[order], part)] for part in people))


def _permutation(num: int) -> Tensor:
    """Return the package's permutation, int64 (num,)."""
    keys = np.random.PCG64(SPLIT_SEED).random_raw(num)
    return torch.from_numpy(np.argsort(keys, kind="stable").astype(np.int64))


def _part(share: float, num_images: int) -> int:
    """Return floor(share * num_images), not one less where the product is whole but for float rounding (0.29 * 100)."""
    return math.floor(share * num_images + 1e-9)
