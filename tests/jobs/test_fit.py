"""The front door of Python: arrays in, a release that verifies out, under the refusals of the command line."""

import io
import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

import idpgan
from idpgan import trainer
from idpgan.commands import fit as fit_module
from idpgan.commands import process_ledger
from idpgan.commands.process_ledger import charge, records_of
from idpgan.data import intake
from idpgan.data.load import load
from idpgan.data.sources import arrays
from idpgan.errors import InputError
from idpgan.kinds import verify
from idpgan.metrics.evaluation import evaluate_images
from idpgan.privacy import Event, Relation, Unit
from idpgan.trainer import load_config
from idpgan.training.loop import Outcome

NUM = 60
GREY = (np.arange(NUM * 64).reshape(NUM, 8, 8) * 7 % 251).astype(np.uint8)
LABELS = np.arange(NUM) % 2
QUICK = {"epsilon": 2.0, "method": "gaussian", "progress": False}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(process_ledger, "_DONE", [])


def test_a_release_of_arrays_in_five_lines(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    generator = idpgan.fit(digits.images, digits.target, epsilon=3, pixel_range=(0, 16), progress=False)
    generator.save(tmp_path / "release")
    assert generator.sample(7).shape == (7, 1, 8, 8)
    found = verify(tmp_path / "release")
    assert found.problems == ()
    assert (found.settings.num_private, found.report.proven.unit) == (1797, "image")
    assert 2.9 < generator.privacy.proven.epsilon <= 3
    assert generator.privacy.proven.delta == 1e-5
    again = idpgan.load_generator(tmp_path / "release")
    assert torch.equal(again.sample(7, seed=1), generator.sample(7, seed=1))
    assert "proven: epsilon = 3" in generator.report()


def test_released_moments_are_not_trained_in_memory_either():
    settings = ("training.steps=1", "model.width=4")
    generator = idpgan.fit(GREY, **{**QUICK, "method": "diffusion"}, unit="image", settings=settings)
    loaded = idpgan.load_generator(generator.release)
    flags, expected = (
        {name: weight.requires_grad for name, weight in network.named_parameters()}
        for network in (generator.generator, loaded)
    )
    assert flags == expected
    assert {name for name, flag in flags.items() if not flag} == {"mean", "factor"}


class Pairs(Dataset):
    """PIL pictures with labels and names of the classes, as torchvision's data sets have them."""

    classes, targets = ("cat", "dog"), LABELS

    def __len__(self):
        return NUM

    def __getitem__(self, index):
        if not 0 <= index < NUM:
            raise IndexError
        return Image.fromarray(GREY[index]), int(LABELS[index])


KINDS = {
    "array": lambda: (GREY, LABELS),
    "one channel last": lambda: (GREY[..., None], LABELS),
    "one channel first": lambda: (torch.from_numpy(GREY[:, None]), torch.from_numpy(LABELS)),
    "floats": lambda: (GREY / 255.0, list(LABELS)),
    "data set of floats": lambda: (
        TensorDataset(torch.from_numpy(GREY[:, None] / 255), torch.from_numpy(LABELS)),
        None,
    ),
    "data set of pictures": lambda: (Pairs(), None),
    "texts": lambda: (GREY, np.where(LABELS == 0, "cat", "dog")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_same_images(kind):
    images, labels = KINDS[kind]()
    said = {} if kind not in ("floats", "data set of floats") else {"pixel_range": "unit"}
    held = intake.gathered(images, labels, **said)
    assert torch.equal(held.images[:, 0], torch.from_numpy(GREY))
    assert held.labels.tolist() == LABELS.tolist()
    assert held.classes == (("cat", "dog") if kind in ("data set of pictures", "texts") else ("0", "1"))


def test_colors_are_found_where_they_are():
    color = np.zeros((4, 9, 10, 3), np.uint8)
    assert intake.gathered(color).image_shape == (3, 9, 10)
    assert intake.gathered(color.transpose(0, 3, 1, 2)).image_shape == (3, 9, 10)
    assert intake.gathered(torch.zeros(4, 3, 9, 3, dtype=torch.uint8)).image_shape == (3, 9, 3)
    assert intake.gathered(np.zeros((4, 3, 9, 3), np.uint8)).image_shape == (3, 3, 9)


def test_what_is_not_in_the_declared_range_is_a_null_record_and_no_error():
    floats = GREY / 255.0
    floats[3, 2, 2], floats[5, 0, 0], floats[7, 0, 0] = np.nan, 1.5, 1.0005
    held = intake.gathered(
        floats, np.where(np.arange(NUM) == 9, "bird", "cat"), classes=["cat", "dog"], pixel_range="unit"
    )
    assert torch.nonzero(held.null)[:, 0].tolist() == [3, 5, 9]
    assert held.images[3].max() == 0
    assert held.images[7, 0, 0, 0] == 255  # rounding is not a fault


def test_the_range_never_comes_from_the_images():
    """Neighbors that differ in one image give the same pixels everywhere else, whatever that image is."""
    floats = GREY / 255.0
    other = floats.copy()
    other[0] = 0.001
    one, two = (intake.gathered(values, pixel_range=(0, 2)).images[1:] for values in (floats, other))
    assert torch.equal(one, two)


REFUSED = {
    "no range": ({"images": GREY / 255.0}, "what is black and what is white"),
    "unknown range": ({"images": GREY / 255.0, "pixel_range": "percent"}, "Known: bytes, symmetric, unit"),
    "one number": ({"pixel_range": (1, 1)}, "the first below the second"),
    "rows of pixels": ({"images": GREY.reshape(NUM, 64)}, "Reshape rows of pixels"),
    "no such folder": ({"images": "photos", "labels": None}, "There is no folder photos"),
    "nothing": ({"images": None}, "got NoneType"),
    "other labels": ({"labels": LABELS[:-1]}, "must be 60 whole numbers or texts"),
    "one hot": ({"labels": np.eye(2, dtype=int)[LABELS]}, "not a row of zeros and a one"),
    "no classes": ({"labels": np.arange(NUM)}, "60 values for 60 images"),
    "epsilon": ({"epsilon": -1.0}, "privacy.epsilon = -1"),
    "epsilon as text": ({"epsilon": "1"}, "must be a number, got str"),
    "delta": ({"delta": 0.5}, "below 1/N = 0.0166667"),
    "unit": ({"unit": "pixel"}, "Known: image, person"),
    "nobody known": ({"unit": "person"}, "give people="),
    "unit of another method": ({"unit": "person", "people": LABELS, "method": "dp-gan"}, "protects one image"),
    "method": ({"method": "gausian"}, "Did you mean 'gaussian'?"),
    "classifier": ({"method": "dp-sgd"}, "not one that `fit` trains"),
    "unsound": ({"method": "idp-gan-published"}, "does not keep to the epsilon"),
    "no guarantee": ({"method": "wgan-gp"}, "trains on the raw images without noise"),
    "place": ({"out": "no/where"}, "the folder no does not exist"),
    "settings": ({"settings": "training.steps=1"}, "must be a sequence with a text each"),
    "device": ({"device": "tpu"}, "tpu"),
    "key": ({"settings": ["method.symetric=true"]}, "Did you mean 'symmetric'?"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_line_and_leaves_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, said = REFUSED[name]
    before = set(fit_module.private_folder().rglob("*.*"))
    with pytest.raises(InputError) as refused:
        idpgan.fit(**{"images": GREY, "labels": LABELS, **QUICK, **wrong})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert set(fit_module.private_folder().rglob("*.*")) == before
    assert process_ledger._DONE == []


def test_the_private_folder_is_its_owners_and_keeps_no_image_and_no_noise():
    made = idpgan.fit(GREY, LABELS, **QUICK)
    place = fit_module.private_folder()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert {path.name for path in made.release.parent.iterdir()} == {"release"}
    assert not list(place.rglob(f"*{arrays.SUFFIX}*images*"))
    assert made.run is None
    assert ".save(FOLDER)" in made.report()


def test_images_in_memory_are_written_to_no_file(monkeypatch):
    """A kill leaves no image, not even until the next call."""
    seen = []
    train = trainer.train
    monkeypatch.setattr(arrays, "write", lambda path, _: seen.append(path))

    def looking(*args, **kwargs):
        seen.extend(fit_module.private_folder().rglob(f"run.*{arrays.SUFFIX}"))
        return train(*args, **kwargs)

    monkeypatch.setattr("idpgan.trainer.train", looking)
    made = idpgan.fit(GREY, LABELS, public=(255 - GREY, LABELS), **QUICK)
    assert seen == []
    assert verify(made.release).problems == ()


@pytest.mark.parametrize("closed", [False, True])
def test_a_host_without_stderr_sees_no_progress(monkeypatch, closed):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream if closed else None)
    assert idpgan.fit(GREY, LABELS, epsilon=2.0, method="gaussian").num_private == NUM


def test_a_run_that_is_kept_goes_on_with_the_commands(tmp_path):
    made = idpgan.fit(GREY, LABELS, out=tmp_path / "run", **QUICK)
    file = tmp_path / "run.images.safetensors"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    config = load_config(made.run / "config.toml").data
    split = load(config)
    assert (split.num_private, len(split.test), len(split.holdout)) == (NUM, 0, 0)
    assert sorted(split.private.images.flatten(1).sum(1).tolist()) == sorted(GREY.reshape(NUM, -1).sum(1).tolist())
    with pytest.raises(InputError, match="Judge by images that were not trained on"):
        evaluate_images(split.private, split)
    with pytest.raises(InputError, match="exists already"):
        idpgan.fit(GREY, LABELS, out=tmp_path / "run", **QUICK)
    assert file.exists()


def test_fits_of_equal_images_add_up_and_say_so(caplog):
    first = idpgan.fit(GREY, LABELS, **QUICK)
    other = idpgan.fit(255 - GREY, LABELS, **QUICK)
    assert (first.together, other.together) == (None, None)
    some = idpgan.fit(GREY[::-1][:40], **QUICK)  # in another order, a part of them, without labels
    assert some.together.total.counted == 2
    assert 2 < some.together.total.guarantee.epsilon < 4
    assert "2 releases of these images" in caplog.text
    assert "2 releases of these images" in some.report()
    published = idpgan.publish_images(GREY[:2], epsilon=1.0, unit="pixel", progress=False)
    assert published.privacy.proven.epsilon <= 1
    assert any("2 releases" in note for note in published.notes)
    after = idpgan.fit(GREY, **QUICK)
    assert (after.together.total.counted, after.together.total.left_out, after.together.unknown) == (3, 1, 0)
    assert "4 releases of these images" in str(after.together)


def test_a_failed_fit_is_counted_where_it_charged(monkeypatch):
    def broken(*_):
        raise RuntimeError("after the charge")

    with monkeypatch.context() as patch:
        patch.setattr("idpgan.trainer.write_release", broken)
        with pytest.raises(RuntimeError):
            idpgan.fit(GREY, LABELS, **QUICK)
    assert idpgan.fit(GREY, LABELS, **QUICK).together.total.counted == 2


def photos(place, num=8):
    place.mkdir(parents=True)
    for index in range(num):
        Image.fromarray(GREY[index]).save(place / f"{index}.png")
    return place


READ = [Event("laplace", Unit.IMAGE, Relation.ZERO_OUT, noise_multiplier=1.0)]


@pytest.mark.parametrize(
    ("happens", "asked", "known", "unknown"),
    [
        (lambda at: None, "faces", 2, 0),
        (lambda at: None, "faces/s1", 2, 0),
        (lambda at: None, ".", 2, 0),
        (lambda at: (at / "faces").rename(at / "renamed"), "renamed", 2, 0),
        (lambda at: (at / "link").symlink_to(at / "faces"), "link", 2, 0),
        (lambda at: shutil.copytree(at / "faces", at / "hard", copy_function=os.link), "hard", 2, 0),
        (lambda at: shutil.copytree(at / "faces", at / "copy"), "copy", 1, 1),
        (lambda at: None, "arrays", 1, 1),
    ],
    ids=["again", "inside", "around", "renamed", "link", "hard links", "copy", "arrays"],
)
def test_a_folder_is_known_again_in_this_process_or_it_is_said(tmp_path, happens, asked, known, unknown):
    """Folders in each other, renamed ones and hard links added up to nothing, and nothing was said of the rest."""
    photos(tmp_path / "faces" / "s1")
    assert charge(records_of(tmp_path / "faces"), READ, 0.0, Unit.IMAGE, Relation.ZERO_OUT) is None
    happens(tmp_path)
    records = records_of(intake.gathered(GREY[:8]) if asked == "arrays" else tmp_path / asked)
    found = charge(records, READ, 0.0, Unit.IMAGE, Relation.ZERO_OUT)
    assert (found.total.counted, found.unknown) == (known, unknown)
    assert found.total.guarantee.epsilon == pytest.approx(known)
    assert ("2 releases of these images" in str(found)) == (known == 2)
    assert ("NOT COUNTED: other releases in this process (1)" in str(found)) == (unknown == 1)


def test_fits_and_publications_of_a_folder_add_up(tmp_path, caplog):
    """The folder's ledger knew nothing of the fit, and the fit nothing of the ledger."""
    folder = photos(tmp_path / "photos")
    call = {"epsilon": 5.0, "unit": "image", "progress": False, "method": "lap"}
    charge(records_of(folder), READ, 0.0, Unit.IMAGE, Relation.ZERO_OUT)
    idpgan.publish_images(str(folder), out=tmp_path / "out", **call)
    assert (
        "2 releases of these images, or of some of them, were made in this process. Together: epsilon = 7"
        in caplog.text
    )


def test_concurrent_releases_are_counted_by_the_later(tmp_path):
    """Of two threads at once, one sees both."""
    records = records_of(photos(tmp_path / "faces"))
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(charge, records, READ, 0.0, Unit.IMAGE, Relation.ZERO_OUT) for _ in range(8)]
    counts = sorted(1 if (found := call.result()) is None else found.total.counted for call in calls)
    assert counts == list(range(1, 9))


def test_unit_person(tmp_path):
    people = [f"person {index // 3}" for index in range(NUM)]
    made = idpgan.fit(GREY, LABELS, people=people, unit="person", **QUICK)
    assert made.privacy.proven.unit == "person"
    made.save(tmp_path / "release")
    assert verify(tmp_path / "release").problems == ()
    assert idpgan.fit(GREY, LABELS, people=people, unit="image", **QUICK).privacy.proven.unit == "image"


@pytest.mark.parametrize("call", [idpgan.fit, idpgan.fit_classifier])
def test_where_people_are_known_the_unit_must_be_said(tmp_path, call, monkeypatch):
    """`init` would take person: `fit` takes neither in silence, and neither charges nor writes."""
    monkeypatch.chdir(tmp_path)
    rows = ["file_name,mood,person"]
    (tmp_path / "photos").mkdir()
    for index in range(NUM):
        Image.fromarray(np.resize(GREY[index], (28, 28))).save(tmp_path / "photos" / f"{index}.png")
        rows.append(f"{index}.png,{'sad' if index % 2 else 'glad'},{index // 3}")
    (tmp_path / "photos" / "metadata.csv").write_text("\n".join(rows) + "\n")
    asked = {"epsilon": 2.0, "progress": False, "out": tmp_path / "run"}
    with pytest.raises(InputError, match=r'unit="person".*unit="image"'):
        call("photos", **asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
    assert process_ledger._DONE == []
    if call is idpgan.fit:
        with pytest.raises(InputError, match=r'unit="person".*unit="image"'):
            call(GREY, LABELS, people=LABELS, **asked)
    assert (
        call(
            "photos", unit="image", settings=["training.steps=1"][: call is not idpgan.fit], **asked
        ).privacy.proven.unit
        == "image"
    )


def test_public_images_in_memory():
    made = idpgan.fit(GREY, LABELS, public=(255 - GREY, LABELS), **QUICK)
    assert verify(made.release).problems == ()
    assert verify(made.release).settings.num_public == NUM


def test_a_folder_named_as_text_is_what_init_proposes(tmp_path):
    for index in range(NUM):
        (tmp_path / "photos" / str(LABELS[index])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.resize(GREY[index], (28, 28))).save(
            tmp_path / "photos" / str(LABELS[index]) / f"{index}.png"
        )
    made = idpgan.fit(str(tmp_path / "photos"), **QUICK)
    assert made.num_private < NUM  # a part is kept for judging
    assert made.generator.classes == ("0", "1")
    assert idpgan.fit(tmp_path / "photos", **QUICK).together.total.counted == 2
    assert idpgan.fit(tmp_path / "photos", "subfolders", **QUICK).generator.classes == ("0", "1")
    with pytest.raises(InputError, match="labels is for images in memory"):
        idpgan.fit(tmp_path / "photos", LABELS, **QUICK)


def test_how_many_numbers_are_kept_follows_from_the_epsilon_that_is_asked_for():
    images = np.random.default_rng(0).integers(0, 256, (300, 32, 32), dtype=np.uint8)

    def kept(epsilon):
        drawn = idpgan.fit(images, epsilon=epsilon, method="gaussian", progress=False)
        return drawn.generator.config.latent_dim

    assert kept(0.5) < kept(20.0)


def test_a_classifier_of_arrays(tmp_path):
    made = idpgan.fit_classifier(GREY, LABELS, epsilon=2.0, settings=["training.steps=2"], progress=False)
    assert made.predict(GREY[:5]).shape == (5,)
    assert made.probabilities(GREY[:5] / 255, pixel_range="unit").sum(1).allclose(torch.ones(5))
    assert verify(made.save(tmp_path / "release")).problems == ()
    with pytest.raises(InputError, match="exists already"):
        made.save(tmp_path / "release")


def test_publishing_a_folder_goes_through_the_folders_ledger(tmp_path):
    (tmp_path / "photos").mkdir()
    for index in range(3):
        Image.fromarray(GREY[index]).save(tmp_path / "photos" / f"{index}.png")
    call = {"epsilon": 5.0, "unit": "pixel", "progress": False}
    done = idpgan.publish_images(str(tmp_path / "photos"), out=tmp_path / "out", method="lap", **call)
    assert verify(done.release).problems == ()
    assert (tmp_path / "photos.ledger.json").exists()
    with pytest.raises(InputError, match="out is missing"):
        idpgan.publish_images(str(tmp_path / "photos"), **call)
    made = idpgan.publish_images(GREY[:3], out=tmp_path / "arrays", **call)
    assert verify(tmp_path / "arrays").problems == ()
    assert made.to_uint8().shape == (3, 8, 8)


def test_data_sets_go_round(tmp_path):
    """A torch data set in, a DataLoader of generated images out, and those in again."""
    made = idpgan.fit(Pairs(), **QUICK)
    drawn = [idpgan.SyntheticDataset(made.generator, num=20, seed=1)]
    drawn.append(idpgan.SyntheticDataset(made.save(tmp_path / "release"), num=20, seed=1))
    for data in drawn:
        images, labels = next(iter(DataLoader(data, batch_size=8)))
        assert (images.shape, images.dtype, labels.tolist()) == ((8, 1, 8, 8), torch.float32, [0, 1] * 4)
        assert data.classes == ("cat", "dog")
        held = intake.gathered(data, pixel_range="symmetric")
        assert (held.classes, torch.equal(held.images, data.images)) == (("cat", "dog"), True)


def test_evaluate_takes_pairs_and_names_classes_alike():
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images[:300], digits.target[:300]
    judged = {"only": "utility", "seeds": 1, "classifiers": ["logistic"], "pixel_range": (0, 16), "progress": False}
    found = idpgan.evaluate((images[:150], labels[:150]), (images[150:], labels[150:]), **judged)
    assert set(found.results) == {"utility"}
    assert "these images" in str(found)
    with pytest.raises(InputError, match="num = 5 is for generators"):
        idpgan.evaluate((images, labels), (images, labels), num=5, **judged)
    with pytest.raises(InputError, match="the class '7'"):
        idpgan.evaluate((images, labels), (images[labels < 7], labels[labels < 7]), **judged)


def test_a_tensor_dataset_without_labels_is_unlabeled_images():
    held = intake.gathered(TensorDataset(torch.zeros(3, 1, 8, 8)), pixel_range="unit")
    assert held.image_shape == (1, 8, 8)
    assert held.classes == ()


def test_digits_are_handwriting_where_somebody_says_so(monkeypatch):
    def begun(config, *_, **__):
        raise InterruptedError(config)

    def proposed(num, **said):
        with pytest.raises(InterruptedError) as stopped:
            idpgan.fit(images[:num], labels[:num], epsilon=1.0, progress=False, **said)
        (config,) = stopped.value.args
        return config.method.name, config.data.public, config.model.drawn.agreed

    asked = []
    monkeypatch.setattr("idpgan.trainer.start", begun)
    monkeypatch.setattr("idpgan.commands.fit.warn_once", asked.append)
    images, labels = np.zeros((50_000, 8, 8), np.uint8), np.arange(50_000) % 10
    assert proposed(50_000, handwriting=True) == ("idp-gan-aggregate", "fonts", 1000)
    letters = tuple("abcdefghij")
    assert proposed(50_000, handwriting=True, classes=letters) == ("idp-gan-aggregate", None, 0)
    assert proposed(50_000, classes=letters) == proposed(2_000) == ("gaussian", None, 0)
    assert not any("handwriting=True" in line for line in asked)  # of so few the proposal is the same
    assert proposed(50_000) == ("gaussian", None, 0)
    assert any("handwriting=True" in line for line in asked)


def test_errors_say_the_way_out():
    ten = np.zeros((10, 8, 8), np.uint8)
    with pytest.raises(InputError, match=r"holds no images"):
        intake.gathered(ten[:0])
    with pytest.raises(InputError, match=r"too many to be classes\. Name the classes"):
        intake.gathered(ten, np.arange(10))
    with pytest.raises(InputError, match=r"`idpgan\.fit_classifier` does"):
        idpgan.fit(ten, epsilon=1, method="dp-sgd")
    with pytest.raises(InputError, match=r"`idpgan\.fit` does"):
        idpgan.fit_classifier(ten, epsilon=1, method="gaussian")


@pytest.mark.parametrize("kept", [True, False])
def test_a_fit_that_is_stopped_names_a_run_to_go_on_with_only_where_one_is_kept(tmp_path, monkeypatch, kept):
    out = tmp_path / "run" if kept else None
    monkeypatch.setattr(
        trainer, "train", lambda *_, run, **__: Outcome(0, "interrupted", f"Go on: --resume {run.path}")
    )
    with pytest.raises(KeyboardInterrupt) as stopped:
        idpgan.fit(GREY, LABELS, out=out, **QUICK)
    assert ("--resume" in str(stopped.value)) == kept
    assert kept or "nothing of the run is kept" in str(stopped.value)


def test_public_images_without_labels_stand_beside_labeled_ones():
    made = idpgan.fit(GREY, LABELS, public=255 - GREY, **QUICK)
    assert json.loads((made.release / "config.json").read_text())["settings"]["data"]["public_labels"] == {}
