"""`paper_tables.py`: sets are read from whoever has them, drawn only when asked, and SRA's rank is swept."""

from pathlib import Path

import pytest
import rank_sweep
import torch
from cells import load_people, parse_sets

from idpgan.data.faces import draw_people
from idpgan.data.images import png_bytes

KNOWN = ("orl", "yale", "cmu")


@pytest.fixture
def yale(tmp_path):
    """Three people with four pictures each in the layout of Yale."""
    faces = draw_people(3, 4, 24, 20, channels=1, seed=3)
    (tmp_path / "yale").mkdir()
    for index, image in enumerate(faces.images):
        (tmp_path / "yale" / f"subject{index // 4 + 1:02}.p{index % 4}.png").write_bytes(png_bytes(image))
    return tmp_path / "yale", faces


def test_a_folder_is_read_and_not_drawn(yale):
    folder, faces = yale
    assert parse_sets([f"yale={folder}"], KNOWN, False, None) == {"yale": folder}
    images, people = load_people(folder)
    assert torch.equal(images, faces.images[:, 0].float() / 255)  # the very pictures
    assert people.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_faces_are_drawn_only_when_asked():
    with pytest.raises(SystemExit, match="yale=DIR, or draw faces: --drawn"):
        parse_sets(["yale"], KNOWN, False, Path("anywhere"))  # before: --data-root was ignored, and faces drawn
    assert parse_sets(["yale"], KNOWN, True, Path("anywhere")) == {"yale": None}
    assert parse_sets(["orl"], KNOWN, False, Path("data")) == {"orl": Path("data/orl_faces")}


@pytest.mark.parametrize(("text", "words"), [("lena=DIR", "no set 'lena'"), ("yale=no-such", "no folder no-such")])
def test_unknown_sets_and_folders_are_refused(text, words):
    with pytest.raises(SystemExit, match=words):
        parse_sets([text], KNOWN, False, None)


def test_errors_over_the_rank_add_up():
    """RE falls to 0 at full rank, where LE is largest: noise on r values has r times the variance of noise on one."""
    faces = draw_people(4, 4, 24, 20, channels=1, seed=3)
    images = faces.images[:, 0].float() / 255
    found = {
        rank: rank_sweep.sweep(
            {"epsilon": 1.0, "options": {"rank": rank, "refine": False}}, images, faces.identities, 5
        )
        for rank in (1, 5, 20)
    }
    re, le = ([found[rank][name] for rank in found] for name in ("reconstruction", "laplace"))
    assert re[0] > re[1] > re[2]
    assert re[2] < 1e-10
    assert [value / le[0] for value in le] == pytest.approx([1, 5, 20], rel=0.6)
