"""Publishing by obfuscators: the card says that nothing is proven, and the folder's ledger knows it."""

import json

import pytest
import torch

from idpgan.data.faces import draw, draw_landmarks
from idpgan.data.images import png_bytes
from idpgan.methods import methods_of
from idpgan.privacy.folder_ledger import FolderLedger
from idpgan.publish import load_obfuscator

TINY = ("width=2", "steps=2", "batch_size=8")


@pytest.fixture
def faces(tmp_path):
    """Twelve drawn faces of four people, with their table; one row has no mood."""
    folder = tmp_path / "faces"
    folder.mkdir()
    drawn = draw(12, 16, 1, people=4, seed=3)
    rows = ["file_name,mood,person"]
    for index, image in enumerate(drawn.images):
        (folder / f"{index}.png").write_bytes(png_bytes(image))
        mood = "" if index == 5 else ("smiling", "neutral")[index % 2]
        rows.append(f"{index}.png,{mood},p{int(drawn.identities[index])}")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder


def mark(folder):
    """Write the landmarks of the drawn faces, in another order."""
    places = [f"{axis}{place + 1}" for place in range(68) for axis in "xy"]
    rows = [f"{index}.png," + ",".join(map(str, points.flatten().tolist()))
            for index, points in enumerate(draw_landmarks(12, 16, people=4, seed=3))]  # fmt: skip
    (folder / "landmarks.csv").write_text("\n".join([",".join(["file_name", *places]), *rows[::-1]]) + "\n")


@pytest.fixture
def command(run, faces, tmp_path):
    def obfuscating(method, *arguments, out="out", unsound=True):
        given = ["--method", method, "--out", tmp_path / out, *(["--accept-unsound"] if unsound else [])]
        return run("publish", faces, *given, *arguments)

    return obfuscating


@pytest.mark.parametrize("method", methods_of("obfuscator"))
def test_every_method_writes_a_release_that_verifies_and_says_that_nothing_is_proven(
    command, run, method, tmp_path, faces
):
    trained = method in ("adversarial-encoder", "pprl-vgan", "obfuscator", "censored", "gp-gan")
    if method == "gp-gan":
        mark(faces)
    code, out, err = command(method, "--json", *(("--keep", "mood", *TINY) if trained else ()))
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["report"]["proven"]["epsilon"] == "inf"
    assert (found["num_images"], found["steps"]) == (12, 2 if trained else 0)
    release = tmp_path / "out" / "release"
    card = (release / "README.md").read_text()
    assert "**NOT private.**" in card
    assert "proven by our accountant | epsilon = **infinite**" in card
    assert len(list((release / "images").iterdir())) == 12
    code, out, _ = run("verify", release, "--json")
    assert (code, json.loads(out)["consistent"]) == (0, True)
    assert load_obfuscator(tmp_path / "out" / "curator").name == method


def test_a_forged_release_does_not_verify(command, run, tmp_path):
    command("blur")
    privacy = tmp_path / "out" / "release" / "privacy.json"
    privacy.write_text(privacy.read_text().replace('"private": false', '"private": true'))
    assert run("verify", tmp_path / "out" / "release")[0] != 0


def test_the_key_of_a_disguise_is_not_given_away(command, tmp_path):
    command("disguise", "key=123456789")
    for path in (tmp_path / "out" / "release").glob("*.*"):
        assert b"123456789" not in path.read_bytes()
    assert "123456789" in (tmp_path / "out" / "curator" / "obfuscator.json").read_text()


def test_one_obfuscation_makes_the_folders_total_infinite(command, run, faces, tmp_path):
    published = ["--method", "lap", "--epsilon", 2, "--unit", "image", "--out", tmp_path / "published"]
    (faces / "metadata.csv").unlink()
    assert run("publish", faces, *published)[0] == 0
    code, out, _ = command("pixelate", "--json", "block=4")
    assert (code, json.loads(out)["total"]["epsilon"]) == (0, "inf")
    stood = FolderLedger.read(tmp_path / "faces.ledger.json", "faces").publications
    assert [(item.method, item.epsilon, item.sound) for item in stood] == [
        ("lap", 2.0, True),
        ("pixelate", None, False),
    ]
    assert run("publish", faces, *published[:-1], tmp_path / "again")[0] == 0
    assert run("report", tmp_path / "again")[0] == 0
    page = (tmp_path / "again" / "curator" / "report.html").read_text()
    assert "All publications of the folder together: epsilon ∞" in page.replace("infinite", "∞")


def test_fitted_weights_are_taken_again(command, tmp_path):
    assert command("obfuscator", "--keep", "mood", *TINY)[0] == 0
    first = tmp_path / "out" / "curator"
    code, out, _ = command("obfuscator", "--fitted", first, "--json", out="again")
    assert (code, json.loads(out)["steps"]) == (0, 2)
    images = [sorted((tmp_path / name / "release" / "images").iterdir()) for name in ("out", "again")]
    assert [a.read_bytes() for a in images[0]] == [b.read_bytes() for b in images[1]]
    state = load_obfuscator(tmp_path / "again" / "curator").state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in load_obfuscator(first).state_dict().items())


@pytest.mark.parametrize(
    ("method", "arguments", "unsound", "said"),
    [
        ("blur", (), False, "'blur' proves no privacy at all"),
        ("blurry", (), True, "Did you mean 'blur'?"),
        ("obfuscator", (), True, "name the column that is to stay readable: --keep mood"),
        ("obfuscator", ("--keep", "age"), True, "no column 'age'"),
        ("blur", ("sigma=0",), True, "sigma"),
        ("k-same", ("k=1000",), True, "changes 1000 images together"),
        ("disguise", ("block=5",), True, "block = 5 must divide both sides of 16 x 16"),
        ("blur", ("--fitted", "nowhere"), True, "nowhere holds no obfuscator"),
        ("blur", ("--ledger", "nowhere/ledger.json"), True, "the ledger nowhere/ledger.json"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_nothing_is_written(command, tmp_path, method, arguments, unsound, said):
    code, out, err = command(method, *arguments, unsound=unsound)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faces"]


def test_a_method_that_is_trained_needs_a_table(command, faces):
    (faces / "metadata.csv").unlink()
    code, _, err = command("pprl-vgan", "--keep", "mood")
    assert code == 2
    assert "needs a metadata.csv" in err
    assert command("blur")[0] == 0


def test_a_method_that_draws_from_landmarks_needs_them(command, faces, tmp_path):
    asked = ("--keep", "mood", *TINY)
    code, _, err = command("gp-gan", *asked)
    assert code == 2
    assert "which photos do not bring" in err
    assert "needs a landmarks.csv (file_name, x1, y1, x2, y2, ..., in px)" in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faces"]
    mark(faces)
    assert command("gp-gan", *asked)[0] == 0
    (faces / "metadata.csv").unlink()  # what is fitted needs no labels
    assert command("gp-gan", "--fitted", tmp_path / "out" / "curator", out="again")[0] == 0
    assert len(list((tmp_path / "again" / "release" / "images").iterdir())) == 12


def test_landmarks_and_images_that_cannot_be_used_are_null_records(command, faces, tmp_path, caplog):
    mark(faces)
    table = faces / "landmarks.csv"
    table.write_text(table.read_text().replace("7.png,", "7.png,x", 1))
    (faces / "3.png").write_bytes((faces / "3.png").read_bytes()[:-40])
    assert command("gp-gan", "--keep", "mood", *TINY)[0] == 0
    assert "1 of 12 files cannot be used as declared" in caplog.text
    assert f"A landmark of {faces}/7.png is not a number of px" in caplog.text
    assert f"{faces}/3.png cannot be decoded" in caplog.text
    assert len(list((tmp_path / "out" / "release" / "images").iterdir())) == 12
    assert command("obfuscator", "--keep", "mood", *TINY, out="again")[0] == 0
    assert len(FolderLedger.read(tmp_path / "faces.ledger.json", "faces").publications) == 2


def test_a_face_without_a_row_of_landmarks_costs_the_charge_and_writes_nothing(command, faces, tmp_path):
    mark(faces)
    table = faces / "landmarks.csv"
    table.write_text("\n".join(line for line in table.read_text().splitlines() if not line.startswith("7.")) + "\n")
    code, _, err = command("gp-gan", "--keep", "mood", *TINY)
    assert code == 2
    assert "has no row for 7.png" in err
    assert "the charge stands" in err
    assert not (tmp_path / "out").exists()
    assert len(FolderLedger.read(tmp_path / "faces.ledger.json", "faces").publications) == 1
