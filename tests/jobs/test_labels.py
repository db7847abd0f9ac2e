"""One identity of a class through all doors: whatever takes labels or gives them means the same class by one number."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import idpgan
from idpgan.commands.fit import fit
from idpgan.data.cells import LABEL, read, spellings
from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.intake import gathered
from idpgan.data.labels import are_ambiguous, in_order, numbers, position_of, positions_of
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.metrics.source import read_images
from idpgan.models import ModelConfig, build_generator, save_generator
from idpgan.models.own import ForeignClassifier, ForeignGenerator
from idpgan.release.dataset import SyntheticDataset
from idpgan.release.export import _Drawn, _write_folder, export_samples, parse_labels
from idpgan.synthesis.facts import facts_of

EACH = 4  # images of a class
KINDS = {
    "0..9": list(range(10)),
    "1..10": list(range(1, 11)),
    "3, 7, 100": [3, 7, 100],
    "texts": ["10", "9"],
    "0..11": list(range(12)),
    "43 folders": list(range(43)),
}
KINDS_OF_FOLDERS = {"43 folders": "{:05d}"}  # as GTSRB has them


class Case:
    """Images whose grey tells the class, and all labels of them that a user may write."""

    def __init__(self, kind, tmp):
        self.kind, self.tmp, self.labels = kind, tmp, KINDS[kind]
        self.y = np.repeat(self.labels, EACH)
        self.grey = {3 + 5 * row: int(label) for row, label in enumerate(self.labels)}
        self.X = np.repeat(np.array(list(self.grey), np.uint8), EACH)[:, None, None] * np.ones((1, 8, 8), np.uint8)
        self.names = tuple(in_order(map(str, self.labels)))

    def folder(self):
        root, form = self.tmp / "folders", KINDS_OF_FOLDERS.get(self.kind, "{}")
        for row, (image, label) in enumerate(zip(self.X, self.y, strict=True)):
            (root / form.format(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / form.format(label) / f"{row}.png")
        return root

    def npz(self, **more):
        np.savez(self.tmp / "images.npz", images=self.X, labels=self.y, **more)
        return self.tmp / "images.npz"

    def classifier(self):
        """Knows a class, in the order of the names, by its grey."""
        level = {label: grey for grey, label in self.grey.items()}
        levels = torch.tensor([level[int(name)] for name in self.names]) / 127.5 - 1
        return ForeignClassifier(Nearest(levels), (1, 8, 8), self.names, (-1, 1))

    def generator(self):
        level = {label: grey for grey, label in self.grey.items()}
        levels = torch.tensor([level[int(name)] for name in self.names]) / 127.5 - 1
        return ForeignGenerator(Level(levels), (1, 8, 8), self.names, 4, (-1, 1))


class Nearest(torch.nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.levels = torch.nn.Parameter(levels)

    def forward(self, images):
        return -(images.mean((1, 2, 3))[:, None] - self.levels).abs()


class Level(Nearest):
    def forward(self, z, labels):
        return self.levels[labels][:, None, None, None].expand(len(z), 1, 8, 8)


def said(images):
    """Which number each grey is called by; null records are left out."""
    images = images.existing()
    greys, labels = images.images[:, 0, 0, 0].tolist(), images.labels.tolist()
    return {grey: int(images.classes[label]) for grey, label in zip(greys, labels, strict=True)}


def fitted(case, monkeypatch, public=None):
    """What a call of fit would train on."""

    def begun(*_, split, **__):
        raise InterruptedError(split)

    monkeypatch.setattr("idpgan.trainer.start", begun)
    with pytest.raises(InterruptedError) as stopped:
        fit(case.X, case.y, epsilon=1.0, unit="image", method="gaussian", public=public, progress=False)
    return stopped.value.args[0]


def of_fit(case, monkeypatch):
    return [said(fitted(case, monkeypatch).private)]


def of_public(case, monkeypatch):
    pairs = [(case.X, case.y), (case.X, case.y.astype(str)), str(case.folder())]
    ordered = sorted(map(str, case.labels))  # as torchvision's ImageFolder lists them
    data = Pairs(case.X, [ordered.index(str(label)) for label in case.y], ordered)
    return [said(fitted(case, monkeypatch, public=public).public) for public in (*pairs, data)]


class Pairs(TensorDataset):
    def __init__(self, images, labels, classes):
        super().__init__(torch.from_numpy(images)[:, None], torch.tensor(labels))
        self.classes, self.targets = classes, labels


def of_evaluate(case, monkeypatch):
    classes = gathered(case.X, case.y, private=False).classes
    sources = case.npz(), case.folder(), (case.X, case.y), case.generator()
    return [said(read_images(each, (1, 8, 8), classes)) for each in sources]


def of_train(case, monkeypatch):
    found = facts_of(str(case.folder()))[0].settings
    config = DataConfig.model_validate({key: setting.value for key, setting in found.items()})
    assert list(map(int, config.classes)) == sorted(map(int, case.labels))
    split = load(config)
    return [said(split.private) | said(split.test) | said(split.holdout)]


def of_sample(case, monkeypatch):
    made = case.generator()
    drawn = {
        label: [made.sample(1, label), made.sample(1, str(label)), made.sample(1, [label])] for label in case.labels
    }
    drawn = {label: torch.cat(each).add(1).mul(127.5).round()[:, 0, 0, 0] for label, each in drawn.items()}
    by_hand = [{int(each[way]): int(label) for label, each in drawn.items()} for way in range(3)]
    text = ",".join(map(str, case.labels))
    by_command = [int(case.names[place]) for place in parse_labels(text, case.names)]
    turn = made.sample_labels(len(case.names))
    images = made.sample(len(case.names), turn).add(1).mul(127.5).round()[:, 0, 0, 0]
    in_turn = dict(zip(images.int().tolist(), turn.tolist(), strict=True))
    return [*by_hand, dict(zip(case.grey, by_command, strict=True)), in_turn]


def of_npz(case, monkeypatch):
    """An export of every class in turn, read by all who read one; and a file that brings names, by value."""
    save_generator(case.tmp / "made", named(case))
    out, num = case.tmp / "drawn.npz", len(case.names)
    export_samples(case.tmp / "made", num, out, seed=0)
    with np.load(out) as file:
        assert file["labels"].tolist() == sorted(map(int, case.labels))
    order = {label: grey for grey, label in case.grey.items()}
    wanted = [order[int(name)] for name in case.names]  # the grey that the image in this turn stands for
    data = SyntheticDataset(out)
    found = [read_images(out, (1, 8, 8), case.names), read_images(out), Images(data.images, data.labels, data.classes)]
    found = [[int(each.classes[label]) for label in each.labels.tolist()] for each in found]
    own = said(read_images(case.npz(classes=np.array(case.names)), (1, 8, 8), case.names))
    return [*(dict(zip(wanted, each, strict=True)) for each in found), own]


def named(case):
    made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), len(case.names))
    made.classes = case.names
    return made


def of_attack(case, monkeypatch):
    return [said(read_images(case.npz())), said(read_images(case.folder()))]


def of_predict(case, monkeypatch):
    model = case.classifier()
    pixels = gathered(case.X).images
    greys = pixels[:, 0, 0, 0].tolist()
    names = map(int, model.predict_names(pixels))
    return [dict(zip(greys, called, strict=True)) for called in (model.predict(pixels).tolist(), names)]


def of_soft_labels(case, monkeypatch):
    pixels = gathered(case.X).images
    told, places_ = case.classifier().probabilities(pixels), case.classifier().logits(pixels).argmax(1)
    _write_folder(case.tmp / "soft", _Drawn(pixels, places_, case.names, told.detach(), b"{}", None, None))
    rows = list(csv.reader((case.tmp / "soft" / "soft_labels.csv").read_text().splitlines()))
    called = [int(rows[0][1 + int(np.argmax(np.array(row[1:], float)))]) for row in rows[1:]]
    by_folder = [int(row[0].split("/")[0]) for row in rows[1:]]
    greys = pixels[:, 0, 0, 0].tolist()
    return [dict(zip(greys, each, strict=True)) for each in (called, by_folder)]


DOORS = {name[3:]: door for name, door in list(globals().items()) if name.startswith("of_")}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_door_means_the_same_class(kind, door, tmp_path, monkeypatch):
    case = Case(kind, tmp_path)
    for found in DOORS[door](case, monkeypatch):
        assert found == case.grey


def test_numbers_are_names_and_positions_need_the_word():
    ten = tuple(map(str, range(1, 11)))
    assert positions_of([1, 10, 0, 11, "1", "01", "1.0", 1.0, np.int64(2)], ten) == [0, 9, -1, -1, 0, 0, 0, 0, 1]
    assert position_of("position 0", ten) == 0
    assert parse_labels("position 0, 10,2", ten) == [0, 9, 1]
    with pytest.raises(
        InputError, match=r"label: 0 is not a class. The classes are 1; 2; .* `position N`, N from 0 to 9"
    ):
        position_of(0, ten)
    assert positions_of([0, 1, True], ("cat", "dog")) == [0, 1, 1]
    assert positions_of(["0"], ("cat", "dog")) == [-1]  # a text is a name
    mixed = ("cat", "0", "dog")  # the name wins, and a number that is none of the names is a position
    assert positions_of([0, 2], mixed) == [1, 2]
    assert are_ambiguous(mixed)
    assert not are_ambiguous(("0", "1", "A"))
    assert numbers(("a", "b")) == [0, 1]
    assert numbers(("00007", "00010")) == [7, 10]
    assert positions_of([7, "7"], ("7", "07")) == [0, 0]
    assert in_order(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert in_order(["10", "9", "a"]) == ["10", "9", "a"]


def test_a_number_that_could_be_two_classes_is_asked_for_as_a_text():
    images, names = np.zeros((6, 8, 8), np.uint8), ["1", "cat"]
    with pytest.raises(InputError, match="could be the name of one and the position of another"):
        gathered(images, [0, 1] * 3, classes=names)
    assert gathered(images, ["cat", "1"] * 3, classes=names).labels.tolist() == [1, 0] * 3


@pytest.mark.parametrize("missing", [np.nan, None])
def test_labels_as_pandas_has_them(missing):
    images = np.zeros((6, 8, 8), np.uint8)
    held = gathered(images, [1.0, 0.0, missing] * 2)
    assert (held.classes, held.labels.tolist(), held.is_null.tolist()) == (
        ("0", "1"),
        [1, 0, 0] * 2,
        [False, False, True] * 2,
    )
    texts = gathered(images, np.array(["b", "a", missing] * 2, dtype=object))
    assert (texts.classes, texts.is_null.sum()) == (("a", "b"), 2)
    with pytest.raises(InputError, match="none of the 6 labels of images is one of the classes"):
        gathered(images, ["A", "B", "C"] * 2, classes=["a", "b"])


def test_an_old_export_is_read_by_position_where_only_that_fits(tmp_path):
    def read(labels, names):
        np.savez(tmp_path / "old.npz", images=np.zeros((len(labels), 8, 8, 1), np.uint8), labels=labels, classes=names)
        data = SyntheticDataset(tmp_path / "old.npz")
        return [data.classes[label] for label in data.labels.tolist()]

    assert read([0, 1, 2], ["3", "7", "100"]) == ["3", "7", "100"]
    assert read([0, 1], ["cat", "dog"]) == ["cat", "dog"]
    with pytest.raises(InputError, match=r"could be names or positions in classes\. Save positions="):
        read([0, 1, 2], ["0", "1", "10", "2"])  # classes in the order of texts


def test_an_export_keeps_classes_whose_names_look_like_blanks(tmp_path):
    made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), 3)
    made.classes = ("NA", "DE", "1.0")
    save_generator(tmp_path / "made", made)
    export_samples(tmp_path / "made", 6, tmp_path / "out", seed=0)
    data = SyntheticDataset(tmp_path / "out")
    assert (data.classes, sorted(data.labels.tolist())) == (made.classes, [0, 0, 1, 1, 2, 2])


def test_people_in_memory_of_several_spellings_are_said(caplog):
    held = gathered(np.zeros((4, 8, 8), np.uint8), people=["Anna", "anna", "Zoe", "None"])
    assert 'people written "Anna" = "anna"; "None" are taken as they are written' in caplog.text
    assert len(held.identities.unique()) == 4


def test_two_folders_of_one_number_are_refused(tmp_path):
    for name in ("1", "01", "2"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "0.png")
    config = DataConfig(name="folder", root=tmp_path, classes=("1", "2"), num_images=3, image_size=8, channels=1)
    assert positions_of(["01"], ("1", "2")) == [0]
    with pytest.raises(InputError, match="has the class folders 01, 1, which are one class"):
        load(config)


def test_evaluate_names_what_fewer_real_classes_lack():
    images = np.zeros((20, 8, 8), np.uint8)
    images[:, 0] = np.arange(20)[:, None]
    real, made = (images, np.arange(20) % 2), (images, np.arange(20) % 4)
    with pytest.raises(InputError, match=r"synthetic has the class '2'.*drawing those of the others alone"):
        idpgan.evaluate(made, real, only="fidelity", progress=False)
    with pytest.raises(InputError, match="train has the class '2'"):
        idpgan.evaluate(real, real, train=made, only="fidelity", progress=False)


def test_one_spelling_of_a_value():
    assert [read(each, LABEL) for each in ("1.0", " 1 ", "-2.00", "1.5", "nan", "NA", "<NA>", None, "Nana")] == [
        *("1", "1", "-2", "1.5", "", "", "", "", "Nana")
    ]
    assert read("cafe\u0301") == "caf\u00e9"
    assert spellings(["Anna", "anna", "ANNA ", "Ben"]) == [("Anna", "anna", "ANNA ")]
