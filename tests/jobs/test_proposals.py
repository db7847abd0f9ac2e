"""Whatever `idpgan init` proposes trains, samples and verifies at every epsilon; eight lines say what it is."""

import csv
import json
import tomllib
from pathlib import Path

import pytest
import torch

from idpgan import load_generator, trainer
from idpgan.commands.init import InitOptions, config_for
from idpgan.commands.people import PeopleOptions, write_people
from idpgan.config import apply_overrides
from idpgan.data import faces, fonts
from idpgan.data.images import png_bytes
from idpgan.kinds import verify
from idpgan.models.summary_statistics import FEWEST
from idpgan.origin import with_releases
from idpgan.training.config import build_config
from tests.portraits.made_head import made_head

DENOISER = Path(__file__).parents[1] / "release" / "frozen" / "edm-base"


def write(root, images, labels):
    root.mkdir()
    for number, image in enumerate(images):
        (root / f"{number}.png").write_bytes(png_bytes(image))
    with (root / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("file_name", "label"), *((f"{number}.png", label) for number, label in enumerate(labels))]
        )
    return root


def drawn_faces(root, names, channels=1, num=120, size=16):
    return write(root, faces.draw(num, size, channels, seed=1).images, [names[n % len(names)] for n in range(num)])


def aligned_faces(root):
    drawn_faces(root, ("neutral", "happy"), size=32)
    (root / "prepared.json").write_text(json.dumps({"aligned": {"eyes": 120, "face": 0, "middle": 0, "none": 0}}))
    return root


def digits(root):
    drawn = fonts.draw(200, (12, 12), 1, seed=1)
    return write(root, drawn.images, drawn.labels.tolist())


CASES = {  # folder, options, template, settings that make it small
    "aligned faces": (aligned_faces, {}, "faces", ()),
    "aligned faces and portraits": (aligned_faces, {"base": "portraits"}, "faces", ()),
    "aligned faces and many portraits": (aligned_faces, {"base": "many"}, "portraits", ("model.codes=3",)),
    "photos": (lambda root: drawn_faces(root, ("cat", "dog")), {}, "photos", ()),
    "flowers of five classes": (lambda root: drawn_faces(root, tuple("abcde"), 3), {}, "photos", ()),
    "handwriting": (digits, {"handwriting": True}, "handwriting", (
        "training.steps=2", "training.batch_size=10", "model.width=2", "method.moments=8", "method.fourier=8",
        "data.public_images=10000", "method.teacher_share=0.5", "method.teacher_steps=5",
        "method.teacher_batch_size=50",
    )),
    "digits and much noise": (digits, {"handwriting": True}, "pen", ("model.codes=3",)),
    "many classes": (lambda root: drawn_faces(root, tuple("abcdefghijklmnopqrst"), 3, 400), {}, "many-classes", ()),
    "a denoiser": (lambda root: "digits", {"base": DENOISER}, "diffusion", (
        "training.steps=2", "method.draws=1", "training.batch_size=200",
    )),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The images of every case, and portraits, once."""
    place = tmp_path_factory.mktemp("proposals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.portraits.render.read_head", made_head)
        write_people(place / "portraits", PeopleOptions(num=60, size=32))
        write_people(place / "many", PeopleOptions(num=FEWEST, size=32))
    made = {make: make(place / str(number)) for number, make in enumerate({case[0] for case in CASES.values()})}
    return {name: made[case[0]] for name, case in CASES.items()} | {
        name: place / name for name in ("portraits", "many")
    }


# At the other epsilons the same lines choose other numbers: `test_best.py` plans those of all templates.
EPSILONS = [1.0, *(pytest.param(epsilon, marks=pytest.mark.slow) for epsilon in (0.2, 10.0))]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("case", CASES)
def test_a_proposal_trains_samples_and_verifies(folders, tmp_path, monkeypatch, case, epsilon):
    _, options, name, small = CASES[case]
    monkeypatch.setattr("idpgan.portraits.render.read_head", made_head)
    of_few = {"handwriting": {"_TAUGHT": 10, "_MANY": 10, "_FAINT_DIGITS": 0}, "pen": {"_TAUGHT": 10}}
    for threshold, few in ({"_PLACED": 10} | of_few.get(name, {})).items():  # few stand for many
        monkeypatch.setattr(f"idpgan.synthesis.starter.{threshold}", few)
    monkeypatch.setattr("idpgan.synthesis.renderer._DIGITS", 400)
    if "base" in options:
        options = {"base": Path(folders.get(options["base"], options["base"]))}
    template = config_for(str(folders[case]), InitOptions(epsilon=epsilon, **options))
    assert tomllib.loads(template.text) == template.table
    lines = (*template.notes, *template.private_notes)
    assert len(lines) <= 8
    assert not any("\n" in line for line in lines)
    assert f"Template {name}:" in lines[0]
    assert ("idpgan people portraits" in " ".join(lines)) is (case == "aligned faces")
    table = apply_overrides(template.table, [*small, "release.samples=4", "training.device=cpu"])
    finished = trainer.start(build_config(with_releases(table), case), tmp_path / "run")
    assert verify(finished.run.release).problems == ()
    assert finished.privacy.proven.epsilon <= epsilon
    generator = load_generator(finished.run.release)
    drawn = generator.sample(4, seed=1)
    assert drawn.shape[1:] == generator.image_shape
    assert bool(torch.isfinite(drawn).all())
