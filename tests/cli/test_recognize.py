"""``idpgan recognize``: people are named on what `publish` made; bad input is one line."""

import json
import shutil

import pytest

from idpgan.attacks.evaluate import binomial_interval
from idpgan.commands import main
from idpgan.commands.reidentify import recognize_people
from idpgan.data.faces import draw_people
from idpgan.data.images import png_bytes
from idpgan.errors import InputError

PEOPLE, EACH, SIDE = 6, 6, 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Faces of six people, and what two methods made of them: a weak blur, and noise that hides everything."""
    root = tmp_path_factory.mktemp("made")
    faces = draw_people(PEOPLE, EACH, SIDE, SIDE, channels=1, seed=5)
    for index, image in enumerate(faces.images):
        path = root / "faces" / f"s{index // EACH + 1}" / f"{index % EACH + 1}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_bytes(image))
    source = str(root / "faces")
    lap = ["--method", "lap", "--epsilon", "0.01", "--unit", "image", "--out", str(root / "noised")]
    blur = ["--method", "blur", "sigma=0.5", "--out", str(root / "blurred"), "--accept-unsound"]
    for arguments in (["publish", source, *lap], ["publish", source, *blur]):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--no-progress"])
        assert not ended.value.code
    return root


def attacked(made, out, *attacks, **options):
    options = {"originals": made / "faces", "attacks": attacks or ("subspace", "pca-svm")} | options
    return recognize_people(made / out, **options)


@pytest.mark.trained
def test_people_are_named_on_blurred_faces_and_not_under_noise(made):
    blurred, noised = (attacked(made, out) for out in ("blurred", "noised"))
    assert blurred.leak
    assert blurred.best.ranks[0] > 0.7
    assert not noised.leak  # the control: nothing of a face is left at epsilon 0.01
    assert noised.best.ranks[0] < 0.6
    assert noised.originals[0].ranks[0] > 0.5
    assert blurred.chance == pytest.approx(1 / PEOPLE)
    for guesses in (*blurred.guesses, *noised.guesses):
        assert len(guesses.ranks) == PEOPLE
        assert guesses.ranks[-1] == 1.0
        assert list(guesses.ranks) == sorted(guesses.ranks)


@pytest.mark.trained
def test_the_interval_is_that_of_people_and_of_all_attacks_together(made):
    """Images of one person are not independent, and of several attacks one is right by chance more easily."""
    both = ("subspace", "pca-svm")
    together, alone = (attacked(made, "noised", *attacks).guesses for attacks in (both, both[1:]))
    kept = {(each.learned, each.filtered): each for each in together if each.attack == "pca-svm"}
    assert len(kept) == len(alone) > 1
    wider = []
    for one in alone:
        other = kept[one.learned, one.filtered]
        assert other.ranks == one.ranks
        low, high = binomial_interval(18 * one.ranks[0], 18, 0.05 / len(alone))  # of as many independent images
        wider.append((one.interval[1] - one.interval[0]) / (high - low))
        assert other.interval[1] - other.interval[0] > one.interval[1] - one.interval[0]
    assert max(wider) > 1.05
    assert min(wider) > 0.999


def test_names_of_other_people_name_nobody(made, tmp_path):
    """The control of a success: the same pictures, where metadata.csv deals the people out anew."""
    shutil.copytree(made / "faces", tmp_path / "faces")
    rows = [f"s{index // EACH + 1}/{index % EACH + 1}.png,p{(index + index // EACH) % PEOPLE}" for index in range(36)]
    (tmp_path / "faces" / "metadata.csv").write_text("\n".join(["file_name,person", *rows]) + "\n")
    found = attacked(made, "blurred", originals=tmp_path / "faces")
    assert not found.leak
    assert found.facts["num_people"] == PEOPLE


@pytest.mark.slow
def test_the_network_names_people_too(made):
    found = attacked(made, "blurred", "network")
    assert {each.learned for each in found.guesses} == {"clear", "released"}
    assert found.best.ranks[0] > 0.5


def test_the_command_writes_for_the_curator_alone(made, run):
    code, said, _ = run("recognize", made / "blurred", made / "faces", "--attack", "pca-svm")
    assert code == 0
    assert "RE-IDENTIFIED" in said
    assert "blur: 18 images of 6 people" in said
    written = json.loads((made / "blurred" / "curator" / "attack.json").read_text())
    assert written["curator_only"] is True
    assert written["leak"] is True
    assert (made / "blurred" / "curator" / "attack.json").stat().st_mode & 0o077 == 0
    assert (made / "blurred" / "curator" / "attack.png").read_bytes().startswith(b"\x89PNG")
    assert run("verify", made / "blurred" / "release")[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attacks": ("subspaces",)}, "no attack 'subspaces' on a publication.*subspace"),
        ({"most": 7}, "two people with two pictures each"),
    ],
)
def test_bad_options_are_refused(made, options, words):
    with pytest.raises(InputError, match=words):
        attacked(made, "blurred", **options)


def test_attack_names_the_command_that_recognizes_people(made, run):
    code, _, said = run("attack", made / "blurred")
    assert code == 2
    assert f"idpgan recognize {made / 'blurred'} ORIGINALS" in said


def test_another_folder_and_images_of_nobody_are_refused(made, tmp_path):
    with pytest.raises(InputError, match="made from another folder"):
        attacked(made, "blurred", originals=tmp_path)
    shutil.copytree(made / "faces", tmp_path / "faces")
    (tmp_path / "faces" / "metadata.csv").write_text("file_name\ns1/1.png\n")
    with pytest.raises(InputError, match="nothing says who is on"):
        attacked(made, "blurred", originals=tmp_path / "faces")
