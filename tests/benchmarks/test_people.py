"""What portraits are compared with photos by, and the colors that stand in for those of grey photos."""

import dataclasses

import people
import torch

from idpgan.data.face_drawing import LUMA
from idpgan.data.faces import draw


def faces(channels, seed=0):
    drawn = draw(300, 32, channels, people=60, seed=seed)
    names = list(drawn.attribute_names)
    smiling = drawn.attributes[:, names.index("smiling")].long()
    return dataclasses.replace(drawn, labels=smiling, classes=people.CLASSES)


def test_likeness_knows_a_smile_from_its_contrary_and_what_is_sharp():
    photos = faces(1)
    same, other = people.likeness(photos, photos), people.likeness(faces(1, seed=1), photos)
    assert same == {"smile": 1.0, "spectrum": 0.0}
    assert 0.3 < other["smile"] < 1
    swapped = people.likeness(dataclasses.replace(photos, labels=1 - photos.labels), photos)
    assert swapped == {"smile": -1.0, "spectrum": 0.0}
    noise = torch.randint(0, 40, photos.images.shape, generator=torch.Generator().manual_seed(0))
    noisy = (photos.images // 2 + noise).to(torch.uint8)
    assert people.likeness(dataclasses.replace(photos, images=noisy), photos)["spectrum"] > 0.1


def test_a_tint_keeps_luma_and_is_one_for_all_photos_of_a_person():
    flat = torch.full((3, 3, 32, 32), 120, dtype=torch.uint8)
    photos = dataclasses.replace(faces(3).select(torch.arange(3)), images=flat, identities=torch.tensor([4, 4, 5]))
    tinted = people.tinted(photos).images.float()
    luma = (tinted * torch.tensor(LUMA).view(3, 1, 1)).sum(1)
    assert (luma - 120).abs().max() < 1
    assert torch.equal(tinted[0], tinted[1])
    assert not torch.equal(tinted[0], tinted[2])
    assert (tinted[:, 0, 16, 16] > 1.2 * tinted[:, 2, 16, 16]).all()
