"""Nothing is written among images, which it would be one of next time: by no command, and by no public call."""

import io
import shutil

import pytest
import torch

import idpgan
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes
from idpgan.errors import InputError
from idpgan.privacy.folder_ledger import FolderLedger

WRITTEN = {
    "train": "train digits-gaussian --dry-run {} --out",
    "sample": "sample RUN --num 2 --out",
    "sample to a file": "sample RUN --num 2 --out .npz",
    "publish": "publish PHOTOS --method lap --epsilon 1 --unit image --out",
    "publish of another folder": "publish OTHER --method lap --epsilon 1 --unit image --out",
    "prepare": "prepare --size 8 --folders none PHOTOS",
    "people": "people -n 1 --size 32",
    "stream": "stream --epsilon 1 --out",
    "state of a stream": "stream --epsilon 1 --state",
    "init": "init PHOTOS --out",
    "attack": "attack OTHER --members PHOTOS --others OTHER --out .json",
    "evaluate": "evaluate OTHER {} --out .json",
    "predictions": "evaluate OTHER {} --predictions .csv",
}
OWN = ("train", "sample", "sample to a file", "publish", "prepare", "init", "attack", "evaluate", "predictions")


@pytest.fixture(scope="module")
def folders(tmp_path_factory, small_run):
    """Photos of two kinds, and a run that names the first ones."""
    base = tmp_path_factory.mktemp("places")
    for number, image in enumerate(draw(60, (16, 16), 1, seed=3).images):
        place = base / ("photos", "other")[number % 2] / "a" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(png_bytes(image))
    (base / "run").mkdir()
    shutil.copytree(small_run("gaussian") / "release", base / "run" / "release")
    (base / "run" / "config.toml").write_text(f'[data]\nname = "folder"\nroot = "{base / "photos"}"\n')
    return base


def asked(base, name, place):
    """Return the words of a command that is to write to a place."""
    settings = f"data.name=folder data.root={base / 'photos'} data.num_images=30 data.image_size=16 data.channels=1"
    words = WRITTEN[name].replace("{}", settings + ' data.classes=["a"]').replace("PHOTOS", str(base / "photos"))
    words = words.replace("OTHER", str(base / "other")).replace("RUN", str(base / "run")).split()
    suffix = words.pop() if words[-1].startswith(".") else ""
    return [*words, f"{place}{suffix}"]


@pytest.mark.parametrize("known", ["by the command", "by what prepare wrote", "by its ledger", "behind a link"])
@pytest.mark.parametrize("name", WRITTEN)
def test_no_command_writes_among_images(folders, tmp_path, run, name, known):
    base = shutil.copytree(folders, tmp_path / "base")
    (base / "run" / "config.toml").write_text(
        (base / "run" / "config.toml").read_text().replace(str(folders), str(base))
    )
    place = base / "photos" / "a" / "new"
    if known == "by what prepare wrote":
        for table in ("metadata.csv", "prepared.json"):
            (base / "photos" / table).write_text("file_name\na/0.png\na/2.png\na/4.png\na/6.png\n")
    elif known == "by its ledger" or name not in OWN:
        FolderLedger(base / "photos.ledger.json", "photos").write()
    if known == "behind a link":
        (base / "link").symlink_to(base / "photos" / "a")
        place = base / "link" / "new"
    before = sorted(base.rglob("*"))
    code, out, err = run(*asked(base, name, place))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert f"lies in {base / 'photos'}, a folder of images" in err
    assert sorted(base.rglob("*")) == before


@pytest.mark.parametrize("name", ["train", "sample", "prepare", "init", "stream"])
def test_beside_images_commands_write(folders, tmp_path, run, name, monkeypatch):
    """Negative control: in the folder around them, whose name begins as theirs."""
    monkeypatch.setattr("sys.stdin", io.StringIO("3\n"))
    base = shutil.copytree(folders, tmp_path / "base")
    words = [str(word).replace("PHOTOS", str(base)) for word in asked(base, name, base / "photos-new")]
    code, _, err = run(*words, *["--no-mark"] * (name == "sample"))
    assert code == 0, err


def test_no_call_writes_among_images(folders, tmp_path):
    base = shutil.copytree(folders, tmp_path / "base")
    photos, made = (
        base / "photos",
        idpgan.publish_images(torch.zeros(2, 8, 8, dtype=torch.uint8), epsilon=1.0, unit="pixel"),
    )
    fitted = idpgan.fit(photos, epsilon=3.0, settings=["data.holdout_share=0"], progress=False)
    FolderLedger(base / "other.ledger.json", "other").write()
    before = sorted(base.rglob("*"))
    for call in (
        lambda: idpgan.fit(photos, epsilon=3.0, out=photos / "run"),
        lambda: idpgan.fit(torch.zeros(9, 1, 8, 8, dtype=torch.uint8), epsilon=3.0, public=photos, out=photos / "run"),
        lambda: idpgan.publish_images(photos, epsilon=1.0, unit="pixel", out=photos / "out"),
        lambda: idpgan.publish_images(
            torch.zeros(2, 8, 8, dtype=torch.uint8), epsilon=1.0, unit="pixel", out=base / "other" / "out"
        ),
        lambda: made.write(base / "other" / "out"),
        lambda: fitted.save(photos / "release"),
    ):
        with pytest.raises(InputError, match="a folder of images"):
            call()
    assert sorted(base.rglob("*")) == before
