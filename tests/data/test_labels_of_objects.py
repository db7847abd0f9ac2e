"""Names that a data set brings, and labels that are asked for: what they mean is what the items say."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from idpgan.data.intake import gathered
from idpgan.data.photos import LabelTable, plan
from idpgan.errors import InputError
from idpgan.metrics.source import read_images
from idpgan.models import ModelConfig, build_generator
from tests.data.test_cells import NUM, PIXELS, Case, Named, proposed, said

# Names of objects ---------------------------------------------------------------------------------------------------


def test_parts_of_a_data_set_keep_the_names_of_their_own():
    half = NUM // 2
    first = Named(PIXELS[:half], [0, 1] * (half // 2), ["zero", "one"])
    second = Named(PIXELS[half:], [0, 1] * (half // 2), ["one", "two"])
    both = ConcatDataset([first, second])
    held = gathered(both)
    assert held.classes == ("zero", "one", "two")
    assert said(held) == dict(enumerate(["zero", "one"] * (half // 2) + ["one", "two"] * (half // 2)))
    part = gathered(Subset(both, [0, half + 1]))
    assert [part.classes[label] for label in part.labels.tolist()] == ["zero", "two"]


class Turned(Named):
    """Gives its items other labels than its targets say."""

    def __getitem__(self, index):
        return self.tensors[0][index], 1 - int(self.tensors[1][index])


SKEWED = [0, 1, 1, 1] * (NUM // 4)
UNTOLD = {
    "turned": Turned(PIXELS, SKEWED, ["zero", "one"]),
    "other targets": Named(PIXELS, SKEWED, ["zero", "one"], told=SKEWED[::-1]),
    "no targets": Named(PIXELS, SKEWED, ["zero", "one"], told=[]),
}


@pytest.mark.parametrize("kind", UNTOLD)
def test_names_of_an_object_whose_targets_are_not_the_labels_are_not_taken(kind, caplog):
    held = gathered(UNTOLD[kind], what=kind)
    assert held.classes == ("0", "1")
    assert [int(held.classes[label]) for label in held.labels.tolist()] == [int(item[1]) for item in UNTOLD[kind]]
    assert caplog.text.count("its targets are not the labels of all its items") == 1


def test_an_empty_class_of_an_object_is_left_out_with_a_word(caplog):
    data = Named(PIXELS, [1, 2] * (NUM // 2), ["N/A", "a", "b"])  # as EMNIST has it
    held = gathered(data)
    assert (held.classes, said(held)) == (("a", "b"), dict(enumerate(["a", "b"] * (NUM // 2))))
    assert "no item has the class N/A, left out" in caplog.text
    assert gathered(data, classes=["N/A", "a", "b"]).classes == ("N/A", "a", "b")
    assert gathered(data, private=False).classes == ("N/A", "a", "b")


# Columns of two values, and labels that are asked for ---------------------------------------------------------------


@pytest.mark.parametrize("values", [("0", "1"), ("-1", "1"), ("False", "True"), ("no", "yes"), ("0.0", "1.0")])
def test_a_column_of_two_values_makes_the_same_classes_at_every_door(values, tmp_path):
    case = Case(tmp_path, values[0])
    case.names = list(values) * (NUM // 2)
    root = case.flat("csv")
    wanted = dict(enumerate([value.removesuffix(".0") for value in values] * (NUM // 2)))
    assert proposed(root, "label") == proposed(root) == said(read_images(root, (1, 8, 8))) == wanted


LABELS = {
    "negative floats": (np.array([-1.0, 2.0]), [0, 1], ("-1", "2")),
    "truths": ([True, False], [1, 0], ("False", "True")),
    "uint64": (np.array([3, 2**63], np.uint64), [0, 1], ("3", "9223372036854775808")),
    "bfloat16": (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), [0, 1], ("1", "2")),
    "halves": ([0.5, 1.5], [0, 1], ("0.5", "1.5")),
    "tensors": ([torch.tensor(7), torch.tensor(4)], [1, 0], ("4", "7")),
    "objects": (np.array([np.int8(2), np.float32(1)], dtype=object), [1, 0], ("1", "2")),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_that_fit_takes_are_taken_by_sample(kind):
    labels, places, classes = LABELS[kind]
    held = gathered(PIXELS[:2], labels)
    assert (held.classes, held.labels.tolist()) == (classes, places)
    made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), 2)
    made.classes = classes
    assert made._checked_labels(labels, 2).tolist() == places
    assert made._checked_labels(labels[0], 3).tolist() == [places[0]] * 3


@pytest.mark.parametrize("wrong", [[[1], [2, 3]], [["a"], ["b"]], [{"a": 1}, {}], [b"a", b"b"], [1j, 2j]])
def test_labels_that_are_none_are_one_line_at_both_doors(wrong):
    made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), 2)
    for door in (lambda: gathered(PIXELS[:2], wrong), lambda: made.sample(2, wrong)):
        with pytest.raises(InputError, match="whole numbers or texts"):
            door()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_one_line_at_both_doors():
    nested = torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([2, 3])])
    made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), 2)
    for door in (lambda: gathered(PIXELS[:2], nested), lambda: made._checked_labels(nested, 2)):
        with pytest.raises(InputError, match="whole numbers or texts in a row, got Tensor"):
            door()


def test_lists_in_json_lines_are_no_labels(tmp_path):
    case = Case(tmp_path, "cat")
    root = case.flat("jsonl")
    table = root / "metadata.jsonl"
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    table.write_text("".join(json.dumps(line | {"boxes": [1, 2]}) + "\n" for line in lines))
    assert plan(root).columns == ("label",)
    with pytest.raises(InputError, match="the column 'boxes' holds lists or objects"):
        plan(root, labels=LabelTable(label_column="boxes"))
