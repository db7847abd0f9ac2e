"""What a receiver does with a release: generators that say what protects them, data sets, names that stay at home."""

import io
import json
import shutil
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import idpgan
from idpgan.data.images import Images, to_float, to_uint8
from idpgan.errors import InputError
from idpgan.kinds import verify
from idpgan.models import ModelConfig, build_generator
from idpgan.models.checkpoint import load_generator, save_generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Ledger, Relation, Unit
from idpgan.publish import release as publish
from idpgan.release.export import export_samples
from idpgan.release.statement import read_privacy
from tests.release.conftest import AGGREGATE, train


def test_a_loaded_generator_says_what_protects_its_training_images(release, tmp_path):
    generator = idpgan.load_generator(release)
    assert generator.privacy == read_privacy(release / "privacy.json").report
    assert "proven epsilon = 10" in repr(generator)
    assert str(generator.privacy).startswith("claimed: epsilon = 10")
    save_generator(tmp_path / "bare", generator)
    assert idpgan.load_generator(tmp_path / "bare").privacy is None
    (release / "privacy.json").write_text("{}")
    with pytest.raises(InputError, match=r"privacy\.json is not of the format"):
        idpgan.load_generator(release)


class MadeDatasets:
    """What `SyntheticDataset.to_dataset` asks of the package datasets."""

    Image, Features, ClassLabel = dict, dict, dict

    class Dataset:
        @classmethod
        def from_dict(cls, columns, features, split):
            made = cls()
            made.columns, made.features, made.split, made.info = columns, features, split, types.SimpleNamespace()
            return made


def test_a_hugging_face_data_set_is_made_of_a_generator(release, monkeypatch):
    data = idpgan.SyntheticDataset(release, num=20, seed=1)
    monkeypatch.setitem(sys.modules, "datasets", MadeDatasets)
    made = data.to_dataset()
    assert (made.split, made.features["label"]["names"]) == ("train", list(data.classes))
    assert made.columns["label"] == data.labels.tolist()
    first = np.asarray(Image.open(io.BytesIO(made.columns["image"][0]["bytes"])))
    assert np.array_equal(first, data.images[0, 0].numpy())
    assert "trainedAlgorithmicMedia" in made.info.description
    assert "proven epsilon = 10" in made.info.description
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'pip install "idpgan\[datasets\]"'):
        data.to_dataset()


@pytest.mark.filterwarnings("ignore")  # of the library's own
def test_the_real_hugging_face_data_set_has_its_classes(release, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="the extra idpgan[datasets] is not installed")
    data = idpgan.SyntheticDataset(release, num=20, seed=1)
    made = data.to_dataset()
    assert (str(made.split), made.features["label"].names) == ("train", list(data.classes))
    assert np.array_equal(np.asarray(made[3]["image"]), data.images[3, 0].numpy())
    assert "proven epsilon = 10" in made.info.description


@pytest.mark.filterwarnings("ignore")
def test_the_hub_reads_card_and_labels(release, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="the extra idpgan[datasets] is not installed")
    hub = pytest.importorskip("huggingface_hub", reason="the extra idpgan[datasets] is not installed")
    export_samples(release, 20, tmp_path / "drawn", seed=1)
    read = datasets.load_dataset(str(tmp_path / "drawn"), split="train", cache_dir=str(tmp_path / "cache"))
    assert read.features["label"].names == [str(digit) for digit in range(10)]
    assert hub.DatasetCard.load(str(tmp_path / "drawn" / "README.md")).data.task_categories == ["image-classification"]


def test_a_report_does_not_speak_for_a_teacher_from_elsewhere(release):
    generator = idpgan.load_generator(release)
    teacher = LinearScattering(generator.image_shape, generator.classes)
    assert generator.taught_by(teacher, 2).privacy is None
    assert generator.privacy is not None


def test_labels_are_names_or_numbers(release):
    generator = idpgan.load_generator(release)
    generator.classes = tuple("jihgfedcba")
    wanted = generator.sample(3, [0, 9, 5], seed=1)
    assert torch.equal(generator.sample(3, ["j", "a", "e"], seed=1), wanted)
    assert torch.equal(generator.sample(3, "e", seed=1), generator.sample(3, 5, seed=1))
    with pytest.raises(InputError, match="'5' is not a class"):
        generator.sample(3, "5")


@pytest.fixture
def sources(release, tmp_path):
    """One set of images thrice: drawn, and exported in both forms."""
    export_samples(release, 25, tmp_path / "folder", seed=4)
    export_samples(release, 25, tmp_path / "images.npz", seed=4)
    return {
        "folder": (tmp_path / "folder", {}),
        "npz": (tmp_path / "images.npz", {}),
        "release": (release, {"num": 25}),
    }


@pytest.mark.parametrize("kind", ["folder", "npz", "release"])
def test_exports_and_releases_are_torch_data_sets(sources, release, kind):
    path, options = sources[kind]
    data = idpgan.SyntheticDataset(path, **options, **({"seed": 4} if options else {}))
    generator = load_generator(release)
    pixels, labels = to_uint8(generator.sample(25, seed=4)), generator.sample_labels(25)
    order = {image.numpy().tobytes(): index for index, image in enumerate(pixels)}
    found = [order[image.numpy().tobytes()] for image in data.images]
    assert sorted(found) == list(range(25))
    assert data.labels.tolist() == labels[found].tolist()
    assert data.classes == generator.classes
    assert data.privacy == read_privacy(release / "privacy.json").report
    image, label = data[3]
    assert torch.equal(image, to_float(data.images[3]))
    assert label == int(data.labels[3])
    images, numbers = next(iter(DataLoader(data, batch_size=10)))
    assert (images.shape, numbers.dtype) == ((10, 1, 8, 8), torch.int64)
    raw = idpgan.SyntheticDataset(path, transform=lambda image: image.sum(), **options)
    assert raw[0][0].dtype == torch.int64


def test_an_export_of_some_classes_keeps_their_numbers_and_their_order(release, tmp_path):
    export_samples(release, 6, tmp_path / "out", labels="7,2", seed=1)
    data = idpgan.SyntheticDataset(tmp_path / "out")
    assert sorted(data.labels.tolist()) == [2, 2, 2, 7, 7, 7]
    assert len(data.classes) == 10
    assert (tmp_path / "out" / "metadata.csv").read_text().splitlines()[:2] == ["file_name,label", "7/0.png,7"]


def test_an_unlabeled_export_has_images_alone(tmp_path):
    model = ModelConfig(width=4, latent_dim=4, conditional=False)
    save_generator(tmp_path / "bare", build_generator(model, (1, 8, 8), 0))
    export_samples(tmp_path / "bare", 3, tmp_path / "plain", seed=1)
    assert (tmp_path / "plain" / "metadata.csv").read_text() == "file_name\n0.png\n1.png\n2.png\n"
    data = idpgan.SyntheticDataset(tmp_path / "plain")
    assert (len(data), data.labels, data.classes, data.privacy) == (3, None, (), None)
    assert data[0].shape == (1, 8, 8)
    assert "privacy unknown" in repr(data)
    np.savez(tmp_path / "plain.npz", images=np.zeros((2, 4, 5, 3), np.uint8))
    assert idpgan.SyntheticDataset(tmp_path / "plain.npz")[1].shape == (3, 4, 5)


def test_what_is_no_such_data_set_is_refused_in_one_line(release, tmp_path):
    export_samples(release, 3, tmp_path / "out", seed=1)
    export_samples(release, 3, tmp_path / "out.npz", seed=1)
    with pytest.raises(InputError, match="num and seed are for a generator"):
        idpgan.SyntheticDataset(tmp_path / "out", num=3)
    with pytest.raises(InputError, match="does not exist"):
        idpgan.SyntheticDataset(tmp_path / "nowhere")
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 4, 5), np.float32))
    with pytest.raises(InputError, match="is not clear"):
        idpgan.SyntheticDataset(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", images=np.zeros((2, 4, 5, 1), np.uint8), labels=np.array([0, 2]), classes=["a", "b"])
    with pytest.raises(InputError, match=r"1 of 2 images, .* none of the 2 classes"):
        idpgan.SyntheticDataset(tmp_path / "y.npz")
    manifest = tmp_path / "out" / "manifest.json"
    good = json.loads(manifest.read_text())
    for bad, said in (
        ("{", "is damaged"),
        ("{}", "is not a manifest of the format"),
        (json.dumps({**good, "classes": {"1": 3}}), "does not name all classes"),
        (json.dumps({**good, "privacy": {"proven": 1}}), "Missing key"),
        (json.dumps({**good, "privacy": {**good["privacy"], "private": True, "reason": "a\nb"}}), "line breaks"),
    ):
        manifest.write_text(bad)
        with pytest.raises(InputError, match=said):
            idpgan.SyntheticDataset(tmp_path / "out")


# In a notebook -----------------------------------------------------------------------------------------------------


def shown(thing):
    png = thing._repr_png_()
    assert png.startswith(b"\x89PNG")
    return png


def test_what_has_images_shows_them_in_a_notebook(release, tmp_path):
    generator = idpgan.load_generator(release)
    assert shown(generator) == shown(generator)
    export_samples(release, 9, tmp_path / "out", seed=1)
    assert shown(idpgan.SyntheticDataset(tmp_path / "out")) != shown(generator)
    pictures = torch.rand(3, 8, 9)
    published = publish(pictures, "lap", epsilon=5.0, unit="pixel")
    shown(published)
    shown(publish(pictures[None].repeat(2, 1, 1, 1), "lap", epsilon=5.0, unit="pixel"))
    assert "3 images of 8 x 9 by 'lap', proven epsilon = 5 (unit pixel" in repr(published)


def test_images_show_no_null_record_and_print_no_pixel(tmp_path):
    images = Images(torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8), torch.arange(5) % 2, ("a", "b"))
    less = images.zeroed_out(torch.tensor([1, 3]))
    assert shown(less) == shown(images.select(torch.tensor([0, 2, 4]))) != shown(images)
    assert repr(less) == repr(images) == "<Images: 5 images of 1 x 8 x 8 (channels x height x width), 2 classes>"
    assert images.select(torch.tensor([], dtype=torch.int64))._repr_png_() is None


def test_a_ledger_says_what_it_is_for():
    assert repr(Ledger(Unit.PERSON, Relation.ZERO_OUT)) == "<Ledger of unit person, zero-out-one: 0 charges>"


# Names of people ---------------------------------------------------------------------------------------------------


def test_names_of_people_do_not_leave_the_house(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["file_name,who,person"]
    photos = tmp_path / "photos"
    photos.mkdir()
    for index in range(60):
        name = ("Anna Meier", "Bo Chen")[index % 2]
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(photos / f"{index}.png")
        lines.append(f"{index}.png,{name},{name}")
    (photos / "metadata.csv").write_text("\n".join(lines) + "\n")
    table = {
        "data": {
            "name": "folder", "root": str(photos), "num_images": 60, "num_people": 2, "image_size": 8, "channels": 1,
            "label": "who", "classes": ["Anna Meier", "Bo Chen"],
        },
        "method": {"name": "idp-gan-aggregate"},
        "model": {"generator": "dcgan"},
        "privacy": {"epsilon": 10.0, "delta": 1e-5},
    }  # fmt: skip
    run = train(tmp_path / "run", AGGREGATE, table)
    assert idpgan.load_generator(run).classes == ("class-0", "class-1")
    assert verify(run / "release").consistent
    export_samples(run, 4, tmp_path / "out", seed=1)
    given = [path for folder in (run / "release", tmp_path / "out") for path in folder.rglob("*")]
    assert [path for path in given if path.is_file() and (b"Anna" in path.read_bytes() or "Anna" in path.name)] == []
    shutil.rmtree(tmp_path / "run")
    kept = train(tmp_path / "run", [*AGGREGATE, "data.keep_names=true"], table)
    assert idpgan.load_generator(kept).classes == ("Anna Meier", "Bo Chen")
    assert verify(kept / "release").consistent
    assert "Anna Meier" in (kept / "release" / "config.json").read_text()  # negative control
