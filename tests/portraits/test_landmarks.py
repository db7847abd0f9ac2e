"""Where the parts of a portrait lie: points that the camera shows, masks of pixels, and the files of both."""

import dataclasses
import itertools

import numpy as np
import torch

from idpgan import portraits
from idpgan.commands.people import PeopleOptions, write_people
from idpgan.data.annotations import PARTS, POINTS
from idpgan.data.eyes import HEIGHT
from idpgan.data.metadata import read_landmarks
from idpgan.portraits import COLUMNS
from idpgan.portraits.mesh import LASHES, MASKS, SKIN
from tests.portraits.made_head import made_head

SIZE = 48


def whole_head():
    """The head of these tests with red lips around the teeth, and lashes around the eyes."""
    head = made_head()
    kinds, masks, center = head.kinds.clone(), head.masks.clone(), head.points[head.triangles].mean(1)
    near = (center[:, 2] > -0.4) & (kinds == SKIN)
    kinds[near & (center[:, 1].abs() < 0.3) & (center[:, 0].abs() < 0.6)] = LASHES
    masks[near & (center[:, 1] < -0.3) & (kinds == SKIN), :, MASKS.index("lips")] = 1.0
    return dataclasses.replace(head, kinds=kinds, masks=masks)


HEAD = whole_head()


def straight(num=4, **changes):
    """Traits of heads that look into the camera, with the eyes where `prepare --align eyes` puts them."""
    traits = portraits.sample(num, 3, head=HEAD)
    still = dict.fromkeys(("yaw", "pitch", "roll", "shift_right", "shift_down", "glasses"), 0.0) | {"scale": 1.0}
    return traits | {name: torch.full((num,), float(value)) for name, value in (still | changes).items()}


def at(points, name):
    return points[:, POINTS.index(name)]


def test_the_eyes_are_where_the_camera_puts_them():
    points, _, _ = portraits.place(straight(), SIZE, 3, head=HEAD)
    middle = (at(points, "left_eye") + at(points, "right_eye")) / 2
    assert torch.allclose(middle, torch.tensor([SIZE / 2, SIZE * HEIGHT]).expand(4, 2), atol=0.3)
    assert bool((at(points, "left_eye")[:, 0] > at(points, "right_eye")[:, 0]).all())  # the person's left


def test_points_are_in_the_order_of_a_face_and_grow_with_the_picture():
    points, masks, _ = portraits.place(straight(), SIZE, 3, head=HEAD)
    down = [at(points, name)[:, 1] for name in ("left_eye", "lip_top", "lip_bottom")]
    assert all(bool((above < below).all()) for above, below in itertools.pairwise(down))
    twice, fine, _ = portraits.place(straight(), 2 * SIZE, 3, head=HEAD)
    assert torch.allclose(twice, 2 * points, atol=1e-3)
    assert (masks.shape, fine.shape) == ((4, SIZE, SIZE), (4, 2 * SIZE, 2 * SIZE))


def test_a_mask_shows_an_eye_where_its_point_is_and_the_head_where_the_picture_shows_it():
    traits = straight()
    points, masks, _ = portraits.place(traits, SIZE, 3, head=HEAD)
    for person in range(4):
        for name in ("left_eye", "right_eye"):
            x, y = at(points, name)[person].long().tolist()
            assert masks[person, y, x] == PARTS.index("eye")
    shares = torch.bincount(masks.flatten().long(), minlength=len(PARTS)) / masks.numel()
    assert shares[PARTS.index("ground or hair")] > 0.05
    assert shares[PARTS.index("skin")] > 0.2


def test_a_roll_turns_the_points_and_glasses_cover_the_eyes():
    level, _, _ = portraits.place(straight(), SIZE, 3, head=HEAD)
    rolled, masks, _ = portraits.place(straight(roll=0.2, glasses=1.0), SIZE, 3, head=HEAD)
    angles = [
        torch.atan2(*(at(points, "left_eye") - at(points, "right_eye")).flip(1).unbind(1)) for points in (level, rolled)
    ]
    assert torch.allclose((angles[1] - angles[0]).abs(), torch.full((4,), 0.2), atol=0.01)
    assert (masks == PARTS.index("glasses")).flatten(1).any(1).all()


def test_batches_change_nothing(monkeypatch):
    traits = portraits.sample(5, 2, head=HEAD)
    points, masks, _ = portraits.place(traits, 32, 2, head=HEAD)
    monkeypatch.setattr("idpgan.portraits.render._PLACED", 2)
    again, same, _ = portraits.place({name: traits[name] for name in COLUMNS}, 32, 2, head=HEAD)
    assert torch.allclose(points, again, atol=1e-4)
    assert (masks == same).float().mean() > 0.999


def test_a_folder_has_them_beside_its_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr("idpgan.portraits.render.read_head", lambda: HEAD)
    write_people(tmp_path / "people", PeopleOptions(num=3, size=32, landmarks=True))
    traits = portraits.sample(3, 0, head=HEAD)
    points, masks, pose = portraits.place(traits, 32, 0, head=HEAD)
    names = [f"000/{number:06d}.png" for number in range(3)]
    read = torch.tensor(read_landmarks(tmp_path / "people", [tmp_path / "people" / name for name in names]))
    assert torch.allclose(read.view(points.shape).float(), points, atol=0.006)
    with np.load(tmp_path / "people" / "masks.npz") as stored:
        assert (stored["masks"] == masks.numpy()).all()
        assert stored["file_name"].tolist() == names
        assert tuple(stored["parts"]) == PARTS
        assert torch.equal(torch.from_numpy(stored["pose"]), pose)
    assert torch.equal(pose[:, 0], traits["yaw"])


def test_without_being_asked_for_nothing_lies_there(tmp_path, monkeypatch):
    monkeypatch.setattr("idpgan.portraits.render.read_head", lambda: HEAD)
    write_people(tmp_path / "people", PeopleOptions(num=1, size=32))
    assert {path.name for path in (tmp_path / "people").iterdir()} == {"000", "metadata.csv", "people.json"}
