import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idpgan.data.images import Images, to_float, to_uint8, to_unit
from idpgan.errors import DataError

LEVELS = torch.arange(256, dtype=torch.uint8)


def some_images(num=6):
    pixels = torch.arange(num * 4, dtype=torch.uint8).view(num, 1, 2, 2)
    return Images(pixels, torch.arange(num) % 2, ("a", "b"), identities=torch.arange(num) // 2)


def with_attributes(num=6):
    bits = torch.arange(num)[:, None] >> torch.arange(3) & 1
    return dataclasses.replace(some_images(num), attributes=bits.to(torch.uint8), attribute_names=("x", "y", "z"))


def test_scales_are_the_documented_ones():
    assert to_float(LEVELS).dtype == torch.float32
    assert to_float(LEVELS)[[0, 255]].tolist() == [-1.0, 1.0]
    assert to_float(LEVELS)[51].item() == pytest.approx(51 / 127.5 - 1, abs=1e-7)
    assert to_unit(LEVELS)[[0, 51, 255]].tolist() == pytest.approx([0.0, 0.2, 1.0], abs=1e-7)


def test_every_grey_level_survives_the_round_trip():
    assert torch.equal(to_uint8(to_float(LEVELS)), LEVELS)
    assert torch.equal(to_uint8(to_float(LEVELS).double()), LEVELS)
    assert not torch.equal(to_uint8(to_float(LEVELS) - 1 / 255), LEVELS)  # half a level off shows


@given(st.floats(-2, 2, width=32))
def test_to_uint8_clamps_and_takes_the_nearest_level(value):
    level = to_uint8(torch.tensor([value])).item()
    assert abs(level - min(max((value + 1) * 127.5, 0), 255)) <= 0.5 + 1e-4


def test_conversions_leave_their_input_alone_and_refuse_the_wrong_kind():
    values = torch.tensor([0.3, -0.2])
    to_uint8(values)
    assert values.tolist() == pytest.approx([0.3, -0.2])
    for convert in (to_float, to_unit):
        with pytest.raises(ValueError, match="uint8"):
            convert(values)
    with pytest.raises(ValueError, match="floating"):
        to_uint8(LEVELS)
    with pytest.raises(ValueError, match="NaN"):
        to_uint8(torch.tensor([0.0, torch.nan]))


def test_select_takes_everything_along_and_copies():
    images = with_attributes()
    for index in (torch.tensor([4, 1]), torch.tensor([True, False] * 3)):
        part = images.select(index)
        assert torch.equal(part.images, images.images[index])
        assert torch.equal(part.labels, images.labels[index])
        assert torch.equal(part.identities, images.identities[index])
        assert part.classes == images.classes
        assert torch.equal(part.attributes, images.attributes[index])
        assert part.attribute_names == images.attribute_names
        assert part.images.data_ptr() != images.images.data_ptr()
    empty = images.select(torch.tensor([], dtype=torch.int64))
    assert (len(empty), empty.image_shape) == (0, (1, 2, 2))


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.zeros(2, 1, 2, 2),),
        (torch.zeros(2, 2, 2, dtype=torch.uint8),),
        (torch.zeros(2, 4, 2, 2, dtype=torch.uint8),),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), None, ("a",)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), ("a",)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2), ("a",)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), None, (), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), None, (), None, torch.zeros(2, 1, dtype=torch.uint8)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), None, (), None, None, ("x",)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), None, (), None, torch.zeros(2, 1), ("x",)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), None, (), None, torch.zeros(3, 1, dtype=torch.uint8), ("x",)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), None, (), None, torch.zeros(2, 2, dtype=torch.uint8), ("x",)),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments):
    with pytest.raises(DataError):
        Images(*arguments)


def test_existing_leaves_null_records_out_and_may_ask_for_some():
    images = some_images()
    assert not images.is_null.any()
    emptied = images.zeroed_out(torch.arange(len(images)) > 0)
    assert emptied.is_null.tolist() == [False] + [True] * (len(images) - 1)
    assert len(emptied.existing(least=1)) == 1
    with pytest.raises(DataError, match=rf"1 of {len(images)} images can be used, 2 are needed"):
        emptied.existing(least=2)


def test_digest_sees_every_part():
    images = some_images()
    pixels = images.images.clone()
    pixels[3, 0, 1, 1] += 1
    full = with_attributes()
    different = [
        images,
        Images(pixels, images.labels, images.classes, images.identities),
        Images(images.images, 1 - images.labels, images.classes, images.identities),
        Images(images.images, images.labels, ("a", "c"), images.identities),
        Images(images.images, images.labels, images.classes, images.labels),
        Images(images.images, images.labels, images.classes),
        Images(images.images),
        Images(images.images.view(6, 1, 4, 1)),
        images.select(torch.tensor([1, 0, 2, 3, 4, 5])),
        images.select(torch.arange(5)),
        full,
        dataclasses.replace(full, attributes=1 - full.attributes),
        dataclasses.replace(full, attribute_names=("x", "y", "w")),
        images.zeroed_out(torch.tensor([2])),
        images.zeroed_out(torch.tensor([3])),
    ]
    assert len({part.digest() for part in different}) == len(different)
    assert some_images().digest() == images.digest()


def test_zeroing_out_keeps_position_and_person_and_nothing_else():
    images = with_attributes()
    zeroed = images.zeroed_out(torch.tensor([2]))
    others = torch.tensor([0, 1, 3, 4, 5])
    assert len(zeroed) == len(images)
    assert zeroed.null.tolist() == [False, False, True, False, False, False]
    assert not zeroed.images[2].any()
    assert not zeroed.attributes[2].any()
    assert zeroed.labels[2] == 0
    assert torch.equal(zeroed.identities, images.identities)
    for name in ("images", "labels", "attributes"):
        assert torch.equal(getattr(zeroed, name)[others], getattr(images, name)[others])
    assert images.null is None  # a copy was made
    assert zeroed.zeroed_out(torch.tensor([4])).null.sum() == 2
    assert torch.equal(zeroed.existing().images, images.images[others])
    assert images.existing() is images
    assert zeroed.digest() != images.digest()
    with pytest.raises(DataError, match="null records must be bool"):
        dataclasses.replace(images, null=torch.zeros(6))
