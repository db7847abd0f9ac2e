import re

import pytest
import torch
from PIL import Image

from idpgan.config import build
from idpgan.data.config import DataConfig
from idpgan.data.faces import draw
from idpgan.data.load import describe, load
from idpgan.data.sources import face_folder, folder
from idpgan.errors import ConfigError, DataError
from tests.data import layouts

WRITERS = {
    "orl": layouts.write_orl,
    "yale": layouts.write_yale,
    "yale-b": layouts.write_yale_b,
    "faces94": layouts.write_faces94,
    "faces95": layouts.write_faces95,
    "people": layouts.write_people,
}


@pytest.fixture(scope="module")
def faces():
    """Twelve people with eleven pictures each, so that 2 comes before 10 in numbers only."""
    return draw(size=(20, 18), channels=1, people=12, per_person=11, seed=1)


def config(root, **keys):
    return layouts.declared(root, "face-folder", **keys)


def by_name(images, names):
    """Return images and people in the order of the people's names, numbers counted."""
    order = sorted(range(len(names)), key=lambda person: face_folder._natural(names[person]))
    index = torch.cat([torch.nonzero(images.identities == person)[:, 0] for person in order])
    return images.images[index], torch.arange(len(names)).repeat_interleave(11)


@pytest.mark.parametrize("layout", WRITERS)
def test_each_layout_is_recognized_with_its_people(tmp_path, faces, layout):
    WRITERS[layout](tmp_path, faces)
    assert face_folder.recognize(tmp_path) == layout
    images, test, _ = layouts.read(config(tmp_path))
    assert test is None
    assert images.labels is None  # people are not classes
    people = range(1, 13)
    names = [f"{('female', 'male', 'malestaff')[p % 3]}/{p}" if layout == "faces94" else str(p) for p in people]
    pixels, identities = by_name(faces, names)
    assert torch.equal(images.identities, identities)
    error = (images.images.float() - pixels.float()).abs().mean()
    assert error < (3 if "faces9" in layout else 1e-6)  # JPEG
    assert (images.images.float() - pixels.roll(11, 0).float()).abs().mean() > 10  # another person's would show
    shape = describe(config(tmp_path))
    assert (sum(shape.sizes), shape.image_shape, shape.classes) == (132, (1, 20, 18), ())


@pytest.mark.parametrize("extension", ["", ".gif", ".pgm"])
def test_yale_with_or_without_extension(tmp_path, faces, extension):
    layouts.write_yale(tmp_path, faces, extension, "PPM" if extension == ".pgm" else "GIF")
    images, *_ = layouts.read(config(tmp_path, channels=1))
    assert torch.equal(images.images, faces.images)


def test_a_folder_that_only_holds_the_database_is_passed_through(tmp_path, faces):
    layouts.write_orl(tmp_path / "data" / "att_faces", faces)
    assert len(layouts.read(config(tmp_path))[0]) == 132
    layouts.write_faces94(tmp_path / "faces94", faces.select(torch.arange(11)))  # one person, so only one sex
    assert list(face_folder.scan(tmp_path / "faces94")) == ["male/person1"]


def test_the_layout_can_be_named(tmp_path, faces):
    layouts.write_orl(tmp_path, faces)
    assert torch.equal(layouts.read(config(tmp_path, layout="people"))[0].images, faces.images)
    with pytest.raises(DataError, match=r"s1 has no place in this layout.*yaleB01"):
        layouts.read(config(tmp_path, layout="yale-b"))
    with pytest.raises(ConfigError, match=r"data.layout = 'olr' is not a known layout. Did you mean 'orl'"):
        layouts.read(config(tmp_path, layout="olr"))
    with pytest.raises(ConfigError, match="layout = orl is a key of name = 'face-folder', not of 'mnist'"):
        build(DataConfig, {"name": "mnist", "layout": "orl"}, "[data]")


def test_grey_is_made_where_declared(tmp_path, faces):
    layouts.write_yale(tmp_path / "yale", faces)
    assert load(config(tmp_path / "yale")).image_shape == (1, 20, 18)  # a palette of greys is no color
    assert load(config(tmp_path / "yale", channels=3)).image_shape == (3, 20, 18)
    tmp_path = tmp_path / "people"
    colors = draw(size=20, people=2, per_person=6)
    layouts.write_people(tmp_path, colors)
    assert describe(config(tmp_path)).image_shape == (3, 20, 20)
    images, *_ = layouts.read(config(tmp_path, channels=1))
    expected = Image.fromarray(colors.images[0].permute(1, 2, 0).numpy()).convert("L")
    assert images.images[0, 0].flatten().tolist() == list(expected.tobytes())


def test_nobody_is_in_two_parts_where_people_are_dealt_out(tmp_path, faces):
    layouts.write_orl(tmp_path, faces)
    settings = config(tmp_path, split_by="identity", public_share=0.2, confirm_public=True, holdout_share=0.2)
    split = load(settings)
    parts = [split.public, split.private, split.holdout, split.test]
    people = [set(part.identities.tolist()) for part in parts]
    assert [len(part) for part in people] == [2, 6, 2, 2]
    assert set.union(*people) == set(range(12))
    assert describe(settings).sizes == tuple(map(len, parts)) == (22, 66, 22, 22)
    mixed = load(config(tmp_path))
    assert set(mixed.private.identities.tolist()) & set(
        mixed.test.identities.tolist()
    )  # the control: by image they are


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-40])


def gone(place):
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


BAD = {
    "person missing": ("orl", lambda root: gone(root / "s7"), r"s1 to s12, but no s7\. Put"),
    "person missing, flat": ("yale", lambda root: [p.unlink() for p in root.glob("subject03.*")], "no subject03"),
    "person without images": ("orl", lambda root: (root / "s13").mkdir(), r"s13 holds no images of this person"),
    "one image less": (
        "orl",
        lambda root: (root / "s3" / "2.pgm").unlink(),
        r"data.num_images = 132, but .* holds 131",
    ),
    "a person more": (
        "faces95",
        lambda root: layouts.save(root / "new" / "new.1.jpg", Image.new("L", (18, 20))),
        r"data.num_images = 132, but .* holds 133",
    ),
    "a person moved into another": (
        "people",
        lambda root: (root / "00002").rename(root / "00001" / "00002"),
        r"data.num_people = 12, but .* holds 11",
    ),
    "no image": ("people", lambda root: (root / "00001" / "notes.doc").write_text("x"), r"notes\.doc is not an image"),
    "file beside people": ("orl", lambda root: layouts.save(root / "x.pgm", Image.new("L", (18, 20))), r"holds x\.pgm"),
    "same picture twice": (
        "yale",
        lambda root: (root / "subject01.look1.gif").write_bytes((root / "subject01.look1").read_bytes()),
        r"subject01\.look1 and .*subject01\.look1\.gif are the same",
    ),
    "stray file of yale": ("yale", lambda root: (root / "subject01.gif").write_text("x"), r"holds subject01\.gif"),
    "named after somebody else": (
        "yale-b",
        lambda root: layouts.save(root / "yaleB13" / "yaleB15_P00A+000E+00.pgm", Image.new("L", (18, 20))),
        r"yaleB15_P00A.* is not named after its person",
    ),
    "same number twice": (
        "orl",
        lambda root: layouts.save(root / "s01" / "1.pgm", Image.new("L", (18, 20))),
        "person 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(tmp_path, faces, case):
    layout, spoil, message = BAD[case]
    WRITERS[layout](tmp_path, faces)
    settings = config(tmp_path)
    load(settings)  # fine so far
    spoil(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        load(settings)
    assert "\n" not in str(caught.value)


REFUSED_FILES = {
    "truncated": ("orl", lambda root: cut_short(root / "s3" / "2.pgm"), 2, r"s3/2\.pgm.*truncated"),
    "empty": ("yale-b", lambda root: (root / "yaleB13/yaleB13_P00A+001E+00.pgm").write_bytes(b""), 0, "yaleB13_P00A"),
    "other size": (
        "faces95",
        lambda root: layouts.save(root / "person2" / "person2.3.jpg", Image.new("L", (30, 31))),
        None,
        r"person2\.3\.jpg is 30 x 31, expected 18 x 20",
    ),
}


@pytest.mark.parametrize("case", REFUSED_FILES)
def test_a_file_that_cannot_be_used_keeps_its_position_and_its_person(tmp_path, faces, case):
    layout, spoil, person, reason = REFUSED_FILES[case]
    WRITERS[layout](tmp_path, faces)
    settings = config(tmp_path)
    before, *_ = layouts.read(settings)
    spoil(tmp_path)
    after, _, refused = layouts.read(settings)
    assert re.search(reason, refused[0].reason)
    assert torch.equal(after.identities, before.identities)
    assert int(after.null.sum()) == len(refused) == 1
    assert torch.equal(after.images[~after.null], before.images[~after.null])
    assert person is None or after.identities[after.null].tolist() == [person]


@pytest.mark.parametrize("split_by", ["image", "identity"])
def test_the_split_stays_where_a_person_is_emptied(tmp_path, faces, split_by):
    """Failed before null records: a person who went moved others from one part to another."""
    layouts.write_people(tmp_path, faces)
    settings = config(tmp_path, split_by=split_by, holdout_share=0.2)
    before = load(settings)
    for path in (tmp_path / "00004").rglob("*.png"):
        path.write_bytes(b"")
    after = load(settings)
    for name in ("private", "holdout", "test"):
        old, new = getattr(before, name), getattr(after, name)
        gone = old.identities == 3
        assert torch.equal(new.identities, old.identities)
        assert torch.equal(new.images[~gone], old.images[~gone])
        assert gone.tolist() == ([False] * len(gone) if new.null is None else new.null.tolist())
    gone_from(tmp_path / "00004")
    deleted = load(config(tmp_path, split_by=split_by, holdout_share=0.2))  # the control: a deleted one moves others
    pictures = {image.tobytes() for image in before.private.images.numpy()}
    moved = sum(image.tobytes() not in pictures for image in deleted.private.images.numpy())
    assert moved > 11


def gone_from(place):
    for path in place.rglob("*.png"):
        path.unlink()
    (place / "talking").rmdir()
    place.rmdir()


def test_no_folder_no_layout_no_root(tmp_path):
    missing = config(tmp_path / "nowhere")
    assert describe(missing) is None
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        load(missing)
    with pytest.raises(DataError, match=re.escape(f"{tmp_path} is empty, and so has no known layout")):
        load(config(tmp_path))
    layouts.save(tmp_path / "a.png", Image.new("L", (18, 20)))
    with pytest.raises(DataError, match=r"holds a\.png, and so has no known layout of faces \(orl, yale"):
        describe(config(tmp_path))
    with pytest.raises(ConfigError, match=r"data\.root is missing"):
        describe(DataConfig(name="face-folder"))
    (tmp_path / "one").mkdir()
    layouts.save(tmp_path / "one" / "s1" / "1.pgm", Image.new("L", (18, 20)))
    with pytest.raises(DataError, match=r"data\.num_images = 1, data\.num_people = 1, data\.image_size = \[20, 18\]"):
        describe(DataConfig(name="face-folder", root=tmp_path / "one"))


def test_public_class_folders_serve_an_unlabeled_set(tmp_path, faces):
    layouts.write_orl(tmp_path / "private", faces)
    layouts.write_people(tmp_path / "public", faces.select(torch.arange(22)))
    split = load(config(tmp_path / "private", public_root=tmp_path / "public"))
    assert (len(split.public), split.public.labels, split.classes) == (22, None, ())
    assert folder.read_all(tmp_path / "public", None).classes  # they had classes


@pytest.mark.data
def test_orl_itself():
    images, *_ = layouts.read(config(DataConfig().data_root / "orl_faces"))
    assert images.image_shape == (1, 112, 92)
    assert torch.equal(images.identities, torch.arange(40).repeat_interleave(10))
