import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from idpgan import trainer
from idpgan.data.config import DataConfig
from idpgan.data.faces import draw
from idpgan.data.load import describe, load
from idpgan.data.sources import celeba
from idpgan.errors import DataError
from tests.data import layouts

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = {  # settings that make a run of a config short
    "aggregate": ["model.codes=2", "model.width=8", "method.moments=4", "method.fourier=8", "privacy.delta=1e-4"],
    "idp-gan-published": ["model.width=4"],
    "dp-gan": ["model.codes=2", "model.width=4", "method.critic_width=4", "privacy.noise_multiplier=4"],
    "wgan-gp": ["model.width=4"],
}


@pytest.fixture(scope="module")
def faces():
    return draw(60, 48, people=12, seed=9)


@pytest.fixture
def root(tmp_path, faces):
    layouts.write_celeba(tmp_path / "celeba", faces)
    return tmp_path


def config(root, **keys):
    return DataConfig(name="celeba", root=root, **keys)


def test_pictures_people_and_attributes(root, faces):
    images, test, _ = layouts.read(config(root))
    assert test is None
    assert images.image_shape == (3, 48, 48)
    assert torch.equal(images.identities - 1, faces.identities)
    assert len(images.attribute_names) == 40
    for ours, theirs in layouts.CELEBA_NAMES.items():
        column = images.attributes[:, images.attribute_names.index(theirs)]
        assert torch.equal(column, faces.attributes[:, faces.attribute_names.index(ours)])
    error = (images.images.float() - faces.images.float()).abs().mean()  # enlarged, JPEG, made smaller again
    assert error < 8 < 20 < (images.images.roll(1, 0).float() - faces.images.float()).abs().mean()


def test_shrinking_averages(root):
    """One bright column in two: an antialiased picture is grey all over, a sampled one is striped."""
    stripes = Image.new("L", (178, 218))
    stripes.putdata([255 * (x % 2) for _ in range(218) for x in range(178)])
    stripes.save(root / "celeba" / celeba.PICTURES / "000001.jpg", quality=100)
    pixels = layouts.read(config(root, channels=1))[0].images[0].float()
    assert (pixels - 127.5).abs().max() < 25


def test_describe_reads_no_picture(root):
    settings = config(root, image_size=32, label=("Eyeglasses",), split_by="identity")
    before = describe(settings)
    assert before.sizes == tuple(map(len, parts(load(settings))))
    assert before.image_shape == (3, 32, 32)
    assert before.classes == ("no Eyeglasses", "Eyeglasses")
    for path in (root / "celeba" / celeba.PICTURES).iterdir():
        path.unlink()
    assert describe(settings) == before


def parts(split):
    return split.public, split.private, split.holdout, split.test


def test_nobody_is_in_two_parts_where_people_are_dealt_out(root):
    split = load(config(root, split_by="identity"))
    people = [set(part.identities.tolist()) for part in parts(split)]
    assert sum(map(len, people)) == len(set.union(*people)) == 12


def test_the_lists_may_lie_in_the_root_itself(root):
    assert load(config(root / "celeba")).digest == load(config(root)).digest


@pytest.mark.parametrize("name", SMALL)
def test_the_configs_run_on_drawn_faces_in_this_layout(name, root, tmp_path):
    overrides = ["training.steps=2", "training.batch_size=8", "training.tick_steps=2", "release.samples=4"]
    settings = trainer.load_config(CONFIGS / f"celeba-{name}.toml", [f'data.root="{root}"', *overrides, *SMALL[name]])
    planned = trainer.plan(settings)
    assert planned.shape.image_shape == (3, 48, 48)
    assert planned.shape.num_private == 44
    assert name == "wgan-gp" or planned.price.epsilon <= 10
    finished = trainer.start(settings, tmp_path / "run")
    assert finished.released
    assert finished.run.release.joinpath("samples.png").exists()


@pytest.mark.parametrize("name", SMALL)
def test_delta_of_the_configs_is_for_all_of_it(name):
    delta = trainer.load_config(CONFIGS / f"celeba-{name}.toml").privacy.delta
    assert delta is None or delta < 1 / 202_599


def rewrite(name, change):
    """Return a function that changes the lines of a list."""

    def spoil(root):
        path = root / "celeba" / name
        lines = path.read_text().splitlines()
        change(lines)
        path.write_text("\n".join(lines) + "\n")

    return spoil


def swap(lines):
    lines[0], lines[1] = lines[1], lines[0]


PICTURE = Path("celeba") / celeba.PICTURES
BAD = {
    "no attributes": (lambda root: (root / "celeba" / celeba.ATTRIBUTES).unlink(), "but not list_attr_celeba.txt"),
    "no boxes": (lambda root: (root / "celeba" / "list_bbox_celeba.txt").unlink(), "but not list_bbox_celeba.txt"),
    "a row too few": (
        rewrite(celeba.ATTRIBUTES, lambda lines: lines.pop()),
        r"list_attr_celeba\.txt has 59 rows for 60",
    ),
    "ragged row": (
        rewrite(celeba.ATTRIBUTES, lambda lines: lines.__setitem__(4, lines[4][:-3])),
        r"list_attr_celeba\.txt is not a list",
    ),
    "no declared number": (rewrite(celeba.ATTRIBUTES, lambda lines: lines.pop(0)), "must begin with the number"),
    "a person without number": (
        rewrite(celeba.IDENTITIES, lambda lines: lines.__setitem__(2, "000003.jpg x")),
        r"identity_CelebA\.txt must have .* row 3 has not",
    ),
    "another order": (rewrite(celeba.IDENTITIES, swap), r"has 000002\.jpg in row 1 where .* has 000001\.jpg"),
    "no numbers in a list": (
        rewrite("list_landmarks_align_celeba.txt", lambda lines: lines.append("x y")),
        r"list_landmarks_align_celeba\.txt is not a list",
    ),
}
REFUSED_PICTURES = {
    "picture missing": (lambda root: (root / PICTURE / "000007.jpg").unlink(), r"000007\.jpg"),
    "picture truncated": (
        lambda root: (root / PICTURE / "000007.jpg").write_bytes((root / PICTURE / "000007.jpg").read_bytes()[:900]),
        r"000007\.jpg cannot be decoded",
    ),
    "another size": (
        lambda root: Image.new("RGB", (48, 48)).save(root / PICTURE / "000007.jpg"),
        r"000007\.jpg is 48 x 48, expected 178 x 218",
    ),
    "an attribute of 7": (
        rewrite(celeba.ATTRIBUTES, lambda lines: lines.__setitem__(8, lines[8][:-2] + " 7")),
        r"neither 1 nor -1 for an attribute of 000007\.jpg",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(root, case):
    spoil, message = BAD[case]
    spoil(root)
    with pytest.raises(DataError, match=message) as caught:
        load(config(root))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", REFUSED_PICTURES)
def test_a_picture_that_cannot_be_used_keeps_its_row_as_a_null_record(root, case):
    spoil, reason = REFUSED_PICTURES[case]
    before, *_ = layouts.read(config(root))
    spoil(root)
    images, _, refused = layouts.read(config(root, label=("Smiling",)))
    assert re.search(reason, refused[0].reason)
    assert images.null.nonzero().tolist() == [[6]]
    assert torch.equal(images.identities, before.identities)
    assert not images.attributes[6].any()
    assert torch.equal(images.images[~images.null], before.images[~images.null])
    load(config(root, label=("Smiling",)))


def test_no_files_no_download(tmp_path):
    assert describe(config(tmp_path)) is None
    with pytest.raises(DataError, match=r"no img_align_celeba in .*CelebA is not downloaded.*--data-root"):
        load(config(tmp_path))


def test_images_are_not_enlarged(root):
    with pytest.raises(DataError, match="image_size = 160, but CelebA pictures have 148"):
        load(config(root, image_size=160))
