"""Released images with names, folders and colors: what is written verifies, and no name leads out of the folder."""

import pytest
import torch

from idpgan.errors import InputError
from idpgan.kinds import verify
from idpgan.privacy import Unit
from idpgan.publish import METHODS, release
from idpgan.publish.plan import offer
from idpgan.release.images import ImagesArtifact
from tests.publish.pictures import pictures
from tests.release.forging import config

NAMES = ("b.png", "s1/1.png", "s1/a b/ä.png")
FAST = {"lra": {"sweeps": 2}, "lrm": {"iterations": 1}}
COLOR = pictures(9, 6, 5).unflatten(0, (3, 3))


@pytest.mark.parametrize("method", list(METHODS))
def test_every_publisher_releases_color_within_its_epsilon(tmp_path, method):
    for unit in METHODS[method].units:
        released = release(COLOR, method, epsilon=1.0, unit=unit, accept_unsound=True, **FAST.get(method, {}))
        assert released.images.shape == COLOR.shape
        assert released.events[0].count >= 3
        assert (0.98 < released.privacy.proven.epsilon <= 1) == METHODS[method].sound
        released.write(tmp_path / unit, names=NAMES)
        found = verify(tmp_path / unit)
        assert found.problems == ()
        assert torch.equal(found.artifact.images, released.to_uint8())


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 0.7, 1.0, 3.3, 10.0, 123.4])
@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_three_channels_never_cost_more_than_asked(epsilon, delta):
    for law in ("laplace", "gaussian")[: 1 + (delta > 0)]:
        for unit in (Unit.PIXEL, Unit.IMAGE):
            made = offer("lap", 10, (3, 6, 5), epsilon=epsilon, delta=delta, unit=unit, options={"law": law})
            assert 0 < made.price.epsilon <= epsilon


def test_channels_get_noise_of_their_own():
    grey = torch.full((2, 3, 6, 5), 0.5)
    images = release(grey, "lap", epsilon=1.0).images
    assert not torch.equal(images[:, 0], images[:, 1])


@pytest.fixture
def named(tmp_path):
    folder = tmp_path / "release"
    release(pictures(3, 6, 5), "lap", epsilon=2.0, unit="column").write(folder, names=NAMES)
    return folder


def test_names_and_folders_are_written_verified_and_said_to_be_public(named):
    assert verify(named).problems == ()
    assert {path.relative_to(named / "images").as_posix() for path in named.rglob("images/**/*.png")} == set(NAMES)
    assert "the names of the files and folders" in (named / "README.md").read_text()


def test_other_names_are_found_out(named):
    config(lambda content: content["images"].update(names=[NAMES[1], NAMES[0], NAMES[2]]))(named)
    assert any("does not show the images" in problem for problem in verify(named).problems)


def test_what_is_left_of_a_release_with_folders_is_replaced(named):
    (named / "privacy.json").unlink()
    release(pictures(3, 6, 5), "lap", epsilon=2.0, unit="column").write(named, names=NAMES)
    assert verify(named).problems == ()


@pytest.mark.parametrize(
    "name",
    ["../x.png", "/x.png", "a//x.png", "./x.png", ".x.png", "a/.b/x.png", "x.jpg", "", ".png", "a\\x.png", "a\nb.png",
     "\ud800.png", "\u202ex.png", "a/" * 8 + "x.png", "x" * 300 + ".png", "s1/1.png", "b.png/x.png", 3],
)  # fmt: skip
def test_no_name_is_taken_that_leads_elsewhere_or_stands_for_two(name):
    described = {"num": 3, "image_shape": [1, 6, 5]}
    assert ImagesArtifact.from_description({**described, "names": list(NAMES)}).names == NAMES
    with pytest.raises(InputError) as caught:
        ImagesArtifact.from_description({**described, "names": [*NAMES[:2], name]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [[], list(NAMES[:2]), [*NAMES, "c.png"]])
def test_there_is_one_name_for_each_image(names):
    with pytest.raises(InputError, match="different names"):
        ImagesArtifact.from_description({"num": 3, "image_shape": [1, 6, 5], "names": names})
