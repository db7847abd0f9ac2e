"""Copies are found after innocent changes, images that are no copies are not, and equal ones are a leak however few."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import idpgan
from idpgan.attacks import copies
from idpgan.attacks.copies import FALSE_ALARMS, ORIENTATIONS, find_copies, oriented
from idpgan.attacks.gate import Limit
from idpgan.data.images import Images
from idpgan.errors import InputError

NUM, SIDE = 24, 32


def scenes(num, seed):
    """Color images with the spectrum of photographs: amplitudes fall with the frequency."""
    rng = torch.Generator().manual_seed(seed)
    fall = (torch.fft.fftfreq(SIDE)[:, None].square() + torch.fft.rfftfreq(SIDE).square()).sqrt().clamp(min=1 / SIDE)
    planes = torch.fft.irfft2(torch.fft.rfft2(torch.randn(num, 3, SIDE, SIDE, generator=rng)) / fall, s=(SIDE, SIDE))
    grey = planes.mean(1, keepdim=True)
    return rounded(128 + 45 * (grey + 0.3 * planes) / grey.std((1, 2, 3), keepdim=True))


def rounded(images):
    return images.round().clamp(0, 255).to(torch.uint8)


def jpeg(images):
    found = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=50)
        found.append(torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1))
    return torch.stack(found)


def resized(images, side):
    return rounded(functional.interpolate(images.float(), (side, side), mode="bilinear", antialias=True))


def noisy(images):
    return rounded(images + 8 * torch.randn(images.shape, generator=torch.Generator().manual_seed(5)))


CHANGES = {
    **{name: (lambda x, i=i: oriented(x, i)) for i, name in enumerate(ORIENTATIONS)},
    "cropped": lambda x: resized(x[:, :, 3:, :29], SIDE),
    "moved": lambda x: functional.pad(x[:, :, 4:, :28].float(), (4, 0, 0, 4), mode="replicate").to(torch.uint8),
    "rolled": lambda x: x.roll((4, -4), (2, 3)),
    "scaled": lambda x: functional.pad(resized(x, 29).float(), (1, 2, 2, 1), mode="replicate").to(torch.uint8),
    "JPEG": jpeg,
    "grey": lambda x: rounded(x.float().mean(1, keepdim=True)).expand_as(x).contiguous(),
    "brighter": lambda x: rounded(x.float() + 40),
    "of less contrast": lambda x: rounded((x.float() - 128) * 0.5 + 128),
    "of more contrast": lambda x: rounded((x.float() - 128) * 1.5 + 128),
    "noisy": noisy,
}
MEMBERS, OTHERS, FRESH = scenes(2 * NUM, 1), scenes(100, 2), scenes(50, 3)


@pytest.mark.parametrize("change", CHANGES)
def test_members_are_found_after_innocent_changes_and_innocents_are_not(change):
    """Half of the members stand changed among fresh images; at most 1 % of the rest may be named."""
    made = Images(torch.cat([FRESH, CHANGES[change](MEMBERS[:NUM])]).contiguous())
    copies = find_copies(Images(MEMBERS), Images(OTHERS), made)
    assert copies.found[:NUM].float().mean() >= 0.95
    assert copies.found[NUM:].float().mean() <= 0.05
    assert copies.false_alarms <= FALSE_ALARMS
    right = copies.places[:NUM] == len(FRESH) + torch.arange(NUM)
    assert right.float().mean() >= 0.95
    if change in ORIENTATIONS:
        assert bool(copies.equal[:NUM].all())
        assert set(copies.changes[:NUM]) == {change}


def test_six_members_among_fresh_images_are_a_leak_and_flat_ones_or_six_others_are_not():
    """The verdict, its JSON and the headline; nothing that is nearly constant is anybody's."""
    members, others = MEMBERS.clone(), OTHERS[:48].clone()
    members[:2] = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None]
    known = members[2:8].flip(-1)
    made = {"leak": [FRESH, known], "flat": [FRESH, members[:2]], "both": [FRESH, known, others[:6]]}
    found = {
        name: idpgan.attack(torch.cat(each), members, others, attacks=["neighborhood-count"])
        for name, each in made.items()
    }
    assert {name: (each.leak, each.to_json()["leak"]) for name, each in found.items()} == {
        "leak": (True, True),
        "flat": (False, False),
        "both": (False, False),
    }
    assert "LEAK FOUND. Who has these images can tell who was used to make them: 6 members" in str(found["leak"])
    assert found["leak"].facts["copies"]["equal_members"] == 6


def test_changed_copies_are_a_leak_where_they_are_members_only():
    """Moved and recompressed copies, of which no attack on pixels sees anything; fresh images are none."""
    moved = jpeg(CHANGES["rolled"](MEMBERS[:NUM]).flip(-1))
    attacked = [
        idpgan.attack(made, MEMBERS, OTHERS[:48], attacks=["neighborhood-count"])
        for made in (torch.cat([FRESH, moved]), FRESH)
    ]
    assert [each.leak for each in attacked] == [True, False]
    assert attacked[0].facts["copies"]["equal_members"] == 0
    assert "equal or changed" in str(attacked[0])


def test_changed_copies_of_people_are_counted_by_person():
    """Twenty images of two people are two findings, which may be chance; one image of each of twenty people is not."""
    moved = jpeg(CHANGES["rolled"](MEMBERS[:20]).flip(-1))
    leaks = []
    for people in (torch.arange(48) // 10, torch.arange(48)):
        sides = [Images(x[:48], identities=people + 100 * i) for i, x in enumerate((MEMBERS, OTHERS))]
        found = idpgan.attack(torch.cat([FRESH, moved]), *sides, attacks=["neighborhood-count"])
        counts = found.facts["copies"]
        assert counts["found_members"] >= 18
        assert counts["people"] == [len(people.unique())] * 2
        leaks.append(found.copied)
    assert leaks == [False, True]


def test_copies_are_named_as_they_were_given_and_come_first_among_the_riskiest():
    planted = [5, 30, 41]
    turned = MEMBERS[planted].rot90(1, (2, 3))
    asked = {"attacks": ["nearest-sample"], "riskiest": 4}
    found = idpgan.attack(torch.cat([FRESH, turned]), MEMBERS[:48], OTHERS[:48], **asked)
    assert {each["member"][0] for each in found.facts["copies"]["members"] if each["equal"]} == {
        f"image {place + 1}" for place in planted
    }
    assert {record.names[0] for record in found.riskiest[:3]} == {f"image {place + 1}" for place in planted}
    for record in found.riskiest[:3]:
        assert record.equal
        place = int(record.names[0].split()[1]) - 1
        assert any(torch.equal(near.rot90(-1, (1, 2)), MEMBERS[place]) for near in record.nearest)


@pytest.mark.parametrize("scale", copies._SCALES)
@pytest.mark.parametrize("width", copies._WIDTHS)
def test_no_weight_of_a_blur_is_a_subnormal_number(width, scale):
    """Two in a hundred were, and the search took twenty times as long."""
    weights = copies._blurred(round(copies._SIDE * scale), width) @ copies._scaled(scale)
    assert weights[weights != 0].abs().min() >= torch.finfo(torch.float32).tiny


def shots(scenes, seed):
    """Four pictures of each scene, with the noise of a sensor: they hang together."""
    images = scenes.repeat_interleave(4, 0).float()
    return rounded(images + 6 * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("change", ["mirrored, not turned", "cropped", "scaled", "JPEG"])
def test_copies_of_members_are_said_where_images_hang_together_and_no_statistic_holds(change):
    """The list comes first, and fails a gate; the statistics are not made, and the note says what they ask for."""
    members, others = shots(MEMBERS[:15], 6), shots(OTHERS[:15], 7)
    made = torch.cat([FRESH, CHANGES[change](members[::4])]).contiguous()
    found = idpgan.attack(made, members, others)
    assert (found.leak, found.best, found.outcomes) == (True, None, ())
    assert found.to_json()["leak"] is True
    page = str(found)
    assert re.search(r"LEAK FOUND.*\n  image \d+: synthetic image \d+, .*column person", page, re.DOTALL)
    assert found.gated(Limit.parse("leak")).code == found.gated(Limit.parse("0.5@0.01")).code == 3
    assert "and 0 of the others" in page
    named = {each["member"][0] for each in found.facts["copies"]["members"]}
    assert named >= {f"image {place:,}" for place in range(1, 60, 4)}


def test_one_equal_member_is_said_where_images_hang_together():
    members, others = shots(MEMBERS[:15], 6), shots(OTHERS[:15], 7)
    found = idpgan.attack(torch.cat([FRESH, members[5:6].flip(-1)]), members, others)
    assert found.leak
    assert [each["member"] for each in found.facts["copies"]["members"]] == [["image 6"]]


def test_without_copies_of_members_alone_images_that_hang_together_are_refused_as_ever():
    """Negative control: fresh images, copies of others, of both sides, few that look alike, near copies of others."""
    members, others = shots(MEMBERS[:15], 6), shots(OTHERS[:15], 7)
    for made, one, two in (
        (FRESH, members, others),
        (torch.cat([FRESH, others[::4]]), members, others),
        (torch.cat([FRESH, members[::4], others[:1]]), members, others),
        (torch.cat([FRESH, jpeg(members[::4]), jpeg(others[::4])]), members, others),
        (torch.cat([FRESH, jpeg(members[:12:4])]), members, others),
        (FRESH, MEMBERS, shots(OTHERS[:12], 7)),
        (shots(FRESH[:12], 8), MEMBERS, shots(OTHERS[:12], 7)),
    ):
        with pytest.raises(InputError, match="column person"):
            idpgan.attack(made, one, two)
