"""One way in for images that a caller holds: whatever holds them, the same pixels or one line."""

import warnings
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder

from idpgan.data.intake import gathered
from idpgan.errors import InputError

NUM = 6
GREY = np.random.default_rng(0).integers(0, 256, (NUM, 8, 10), dtype=np.uint8)
COLOR = np.random.default_rng(1).integers(0, 256, (NUM, 8, 10, 3), dtype=np.uint8)
UNIT = torch.from_numpy(GREY / 255)  # (N, H, W), float64
LABELS = [0, 1, 1, 0, 1, 0]


def pictures(images=GREY):
    return [Image.fromarray(each) for each in images]


def pixels(source, **said):
    """uint8 (N, H, W) or (N, H, W, 3), and the fault that any warning is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gathered(source, **said).images.numpy()
    return found[:, 0] if found.shape[1] == 1 else found.transpose(0, 2, 3, 1)


def refusal(source, **said):
    with pytest.raises(InputError) as caught:
        gathered(source, **said)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def unwriteable(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def memory_map(folder):
    np.save(folder / "images.npy", GREY / 255)
    return np.load(folder / "images.npy", mmap_mode="r")


def objects():
    row = np.empty(NUM, dtype=object)
    row[:] = pictures()
    return row


class Foreign:
    """An array of another library."""

    dtype, shape = "uint8", GREY.shape

    def __array__(self, dtype=None, copy=None):
        return GREY


# Memory that is not ours, and kinds of numbers ----------------------------------------------------------------------

MEMORY = {
    "one reversed float64 image": lambda _: ((GREY / 255)[:1][::-1], GREY[:1]),
    "one mirrored float64 image": lambda _: ((GREY / 255)[:1, :, ::-1], GREY[:1, :, ::-1]),
    "reversed bytes": lambda _: (GREY[::-1], GREY[::-1]),
    "a list of mirrored images": lambda _: ([each[:, ::-1] for each in GREY], GREY[:, :, ::-1]),
    "read-only floats": lambda _: (unwriteable(GREY / 255), GREY),
    "read-only bytes": lambda _: (unwriteable(GREY), GREY),
    "a memory map": lambda folder: (memory_map(folder), GREY),
    "Fortran order": lambda _: (np.asfortranarray(GREY / 255), GREY),
    "big-endian": lambda _: ((GREY / 255).astype(">f8"), GREY),
    "long double": lambda _: ((GREY / 255).astype(np.longdouble), GREY),
    "truth values": lambda _: (GREY > 99, 255 * (GREY > 99)),
    "a row of objects": lambda _: (objects(), GREY),
    "another library": lambda _: (Foreign(), GREY),
    "nested lists": lambda _: ((GREY / 255).tolist(), GREY),
    "not contiguous": lambda _: (UNIT.transpose(1, 2).contiguous().transpose(1, 2), GREY),
    "with a gradient": lambda _: (UNIT.clone().requires_grad_(), GREY),
    "a negative view": lambda _: (torch._neg_view(-UNIT), GREY),
    "sparse": lambda _: (UNIT.to_sparse(), GREY),
    "sparse bytes": lambda _: (torch.from_numpy(GREY).to_sparse(), GREY),
    "truth values of torch": lambda _: (torch.from_numpy(GREY > 99), 255 * (GREY > 99)),
    "uint16 of torch": lambda _: (torch.from_numpy(GREY.astype(np.uint16) * 257), GREY, (0, 65535)),
    "int64": lambda _: (GREY.astype(np.int64) * 2, GREY, (0, 510)),
    "int16 below zero": lambda _: (GREY.astype(np.int16) - 128, GREY, (-128, 127)),
    "float bytes": lambda _: (GREY.astype(np.float32), GREY, "bytes"),
}


@pytest.mark.parametrize("case", MEMORY)
def test_memory_of_any_kind_gives_the_same_pixels_without_a_warning(case, tmp_path):
    source, expected, *said = MEMORY[case](tmp_path)
    assert np.array_equal(pixels(source, pixel_range=None if case in NO_WORD else (*said, "unit")[0]), expected)


NO_WORD = {
    "reversed bytes", "a list of mirrored images", "read-only bytes", "truth values", "a row of objects",
    "another library", "sparse bytes", "truth values of torch",
}  # fmt: skip


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_short_floats_are_read_as_what_they_are(kind):
    short = UNIT.to(kind)
    expected = np.floor(short.to(torch.float64).numpy() * 255 + 0.5)
    assert np.array_equal(pixels(short, pixel_range="unit"), expected)
    assert np.array_equal(pixels(list(short), pixel_range="unit"), expected)


def test_quantized_numbers_are_read_as_what_they_mean():
    quantized = torch.quantize_per_tensor(UNIT.float(), 1 / 255, 0, torch.quint8)
    assert np.array_equal(pixels(quantized, pixel_range="unit"), GREY)
    assert "is not said" in refusal(quantized)


class Stream(IterableDataset):
    def __iter__(self):
        yield from GREY


MEANINGLESS = {
    "masked": (np.ma.masked_greater(GREY, 200), "masked array"),
    "masked items": ([np.ma.masked_greater(each, 200) for each in GREY], r"images[0] is a masked array"),
    "complex": (UNIT + 1j, "complex128"),
    "complex array": (GREY + 1j, "complex128"),
    "meta": (UNIT.to("meta"), "on meta"),
    "texts": (np.array(["a", "b"]), "<U1"),
    "dates": (GREY.astype("datetime64[s]"), "datetime64"),
    "records": (np.zeros(4, dtype=[("x", "u1")]), "('x', 'u1')"),
    "objects": (GREY.astype(object), "object"),
    "one number": (np.array(5), "have the shape ()"),
    "a number": (7, "got int"),
    "bytes": (b"PNG", "got bytes"),
    "nothing": (None, "got NoneType"),
    "no images": (GREY[:0], "holds no images"),
    "an empty list": ([], "holds no images"),
    "no pixels": (GREY[:, :0], "have the shape (6, 0, 10)"),
    "rows of pixels": (GREY.reshape(NUM, 80), "Reshape rows of pixels"),
    "one color image": (COLOR[0], "Give one color image in a list"),
    "one picture": (pictures(COLOR)[0], "Give one color image in a list"),
    "alpha": (np.zeros((4, 8, 8, 4), np.uint8), "[PIL.Image.fromarray(each), ...]"),
    "alpha first": (np.zeros((4, 2, 8, 8), np.uint8), "[PIL.Image.fromarray(each), ...]"),
    "batches": ([COLOR, COLOR], "have the shape (2, 6, 8, 10, 3)"),
    "two sizes": ([GREY[0], GREY[0][:7]], "images[1] is ndarray of uint8 (7, 10), and the first"),
    "two kinds": ([GREY[0], GREY[0] / 255], "all must be alike"),
    "grey and color": ([pictures()[0], pictures(COLOR)[0]], "all must be alike"),
    "a ragged list": ([[[1, 2, 3], [4]]], "holds no image that can be read"),
    "paths of nothing": (["a.png", "b.png"], "no header looked at can be read"),
    "a path and a picture": (["a.png", GREY[0]], "images[0] is a path among other things"),
    "a stream": (Stream(), "without a length"),
    "triples": ([(GREY[0], 1, 2)], "images[0] is a tuple of 3"),
    "some labels": ([(GREY[0], 1), GREY[1]], "a label for 1 of 2 images"),
    "a missing file": ("no.npz", "neither a folder nor an npz file"),
}


@pytest.mark.parametrize("case", MEANINGLESS)
def test_what_cannot_be_images_is_one_line_with_the_way_out(case):
    source, said = MEANINGLESS[case]
    assert said in refusal(source, pixel_range="unit" if case in ("complex", "meta") else None)


@pytest.mark.parametrize("labels", [np.ma.masked_equal(LABELS, 1), torch.tensor(LABELS)[:, None]])
def test_labels_that_are_not_there_are_refused(labels):
    assert "labels" in refusal(GREY, labels=labels)


# Layout -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_the_channels_are_found_whoever_holds_the_images(kind):
    for source in (kind(COLOR), list(kind(COLOR)), TensorDataset(torch.from_numpy(COLOR))):
        assert np.array_equal(pixels(source), COLOR)
    first = np.ascontiguousarray(COLOR.transpose(0, 3, 1, 2))
    for source in (kind(first), list(kind(first)), [(each, 0) for each in kind(first)]):
        assert np.array_equal(pixels(source), COLOR)
    for source in (kind(GREY), kind(GREY[:, None]), kind(GREY[..., None]), list(kind(GREY))):
        assert np.array_equal(pixels(source), GREY)


def test_ties_are_broken_alike_whatever_holds_the_images():
    """Both ends could be the channels: those of tensors come first, those of arrays last."""
    tie = np.zeros((NUM, 3, 9, 3), np.uint8)
    for source in (tie, list(tie), [(each, 0) for each in tie], {"images": tie}):
        assert gathered(source).image_shape == (3, 3, 9)
    tensor = torch.from_numpy(tie)
    for source in (tensor, list(tensor), TensorDataset(tensor), {"images": tensor}):
        assert gathered(source).image_shape == (3, 9, 3)


# Pictures of PIL ----------------------------------------------------------------------------------------------------


def test_pictures_with_an_alpha_channel_lie_on_white():
    alpha = np.zeros((8, 10), np.uint8)
    alpha[:, 5:] = 255
    hidden = np.dstack([COLOR[0], alpha])
    expected = np.where(alpha[..., None] == 255, COLOR[0], 255)
    assert np.array_equal(pixels([Image.fromarray(hidden)])[0], expected)
    grey = Image.merge("LA", (Image.fromarray(GREY[0]), Image.fromarray(alpha)))
    assert np.array_equal(pixels([grey])[0], np.where(alpha == 255, GREY[0], 255))
    palette = Image.fromarray(np.arange(80, dtype=np.uint8).reshape(8, 10) % 2).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert set(map(tuple, pixels([palette])[0].reshape(-1, 3).tolist())) == {(10, 20, 30), (40, 50, 60)}
    palette.info["transparency"] = 0
    assert set(map(tuple, pixels([palette])[0].reshape(-1, 3).tolist())) == {(255, 255, 255), (40, 50, 60)}


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "1"])
def test_pictures_of_other_modes_become_rgb_or_grey(mode):
    flat = Image.new("RGB", (10, 8), (250, 0, 0)).convert(mode)
    found = pixels([flat])[0]
    assert found.shape == ((8, 10) if mode == "1" else (8, 10, 3))
    assert np.abs(found.astype(int) - np.asarray(flat.convert("L" if mode == "1" else "RGB"))).max() <= 2


@pytest.mark.parametrize("mode", ["F", "I", "I;16"])
def test_pictures_of_other_numbers_need_a_range(mode):
    values = Image.fromarray(GREY[0].astype({"F": np.float32, "I": np.int32, "I;16": np.uint16}[mode]))
    assert values.mode == mode
    assert "is not said" in refusal([values])
    assert np.array_equal(pixels([values], pixel_range=(0, 255))[0], GREY[0])


def test_pictures_stand_upright(tmp_path):
    picture = Image.fromarray(np.linspace(0, 255, 80).reshape(8, 10).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # was taken with the camera turned
    picture.save(tmp_path / "turned.png", exif=exif)
    for opened in (Image.open(tmp_path / "turned.png"), Image.open(tmp_path / "turned.png").convert("RGB")):
        found = pixels([opened])[0]
        assert np.array_equal(found.reshape(10, 8, -1)[..., 0], np.rot90(np.asarray(picture), -1))


def test_a_damaged_picture_and_an_animation_are_one_line(tmp_path):
    picture = Image.fromarray(np.tile(GREY[0], (20, 20)))
    picture.save(tmp_path / "whole.png")
    content = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with Image.open(tmp_path / "cut.png") as cut:
        assert "images[0] cannot be decoded" in refusal([cut])
    picture.save(tmp_path / "moves.gif", save_all=True, append_images=[picture.rotate(90)])
    with Image.open(tmp_path / "moves.gif") as moves:
        assert "images[0] holds 2 pictures" in refusal([moves])


# Data sets with fields ----------------------------------------------------------------------------------------------


class ClassLabel:
    def __init__(self, names):
        self.names = names


class HuggingFace:
    """What `datasets.Dataset` shows of itself: columns, features, a shape that is none of images, rows that are dicts.

    Tried with the real class below where it is installed: it is no dependency.
    """

    def __init__(self, columns, features):
        self.columns, self.features = columns, features
        self.column_names, self.shape = list(columns), (NUM, len(columns))

    def __len__(self):
        return NUM

    def __getitem__(self, index):
        if isinstance(index, str):
            return self.columns[index]
        return {name: values[index] for name, values in self.columns.items()}


def test_a_hugging_face_data_set_is_taken_with_its_classes():
    features = {"img": object(), "label": ClassLabel(["cat", "dog"])}
    found = gathered(HuggingFace({"img": pictures(), "label": LABELS}, features))
    assert np.array_equal(found.images[:, 0].numpy(), GREY)
    assert (found.labels.tolist(), found.classes) == (LABELS, ("cat", "dog"))


def test_a_hugging_face_data_set_of_several_labels_says_how_to_choose():
    features = {"img": object(), "fine_label": ClassLabel(["a", "b"]), "coarse_label": ClassLabel(["c", "d"])}
    data = HuggingFace({"img": pictures(), "fine_label": LABELS, "coarse_label": LABELS}, features)
    assert "which one is the label is not clear. Name it: labels=FIELD. Or give images and labels" in refusal(data)
    assert gathered(data, labels=data["fine_label"]).labels.tolist() == LABELS
    assert gathered(data, labeled=False).labels is None
    two = HuggingFace({"before": pictures(), "after": pictures()}, {})
    assert "has the fields before, after, and which one is the image is not clear" in refusal(two)
    assert "which one is the image" in refusal([{"path": "a.png", "label": 1}])


def test_the_parts_of_a_hugging_face_data_set_are_named():
    data = HuggingFace({"image": pictures()}, {})
    assert "Give one of them: images['train']" in refusal({"train": data, "test": data})


@pytest.mark.filterwarnings("ignore")  # of the library's own
def test_the_real_hugging_face_data_set_is_taken(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="the extra idpgan[datasets] is not installed")
    label = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"img": datasets.Image(), "label": label, "who": datasets.Value("string")})
    who = [str(index // 2) for index in range(NUM)]
    data = datasets.Dataset.from_dict({"img": pictures(), "label": LABELS, "who": who}, features=features)
    for source in (data, datasets.DatasetDict({"train": data})):
        found = gathered(source, people="who")
        assert np.array_equal(found.images[:, 0].numpy(), GREY)
        assert (found.labels.tolist(), found.classes) == (LABELS, ("cat", "dog"))
        assert found.identities.tolist() == [0, 0, 1, 1, 2, 2]
    assert gathered(data, labels="who").classes == ("0", "1", "2")


def test_the_only_part_of_a_hugging_face_data_set_is_taken():
    assert np.array_equal(pixels({"train": HuggingFace({"image": pictures()}, {})}), GREY)


def test_columns_are_named():
    features = {"img": object(), "fine": ClassLabel(["a", "b"]), "coarse": ClassLabel(["c", "d"]), "who": object()}
    columns = {"img": pictures(), "fine": LABELS, "coarse": LABELS[::-1], "who": list(range(NUM))}
    found = gathered(HuggingFace(columns, features), "coarse", people="who")
    assert (found.labels.tolist(), found.classes) == (LABELS[::-1], ("c", "d"))
    assert found.identities.tolist() == list(range(NUM))
    found = gathered({"x": GREY, "kind": LABELS}, "kind")
    assert (found.labels.tolist(), found.classes) == (LABELS, ("0", "1"))
    with pytest.raises(InputError, match="has no column 'age': it has the columns img, fine, coarse, who"):
        gathered(HuggingFace(columns, features), "age")
    with pytest.raises(InputError, match="has no column 'age': it has no columns with names"):
        gathered(GREY, "age")


def test_the_data_set_of_a_loader_is_taken_whole_and_that_of_a_subset_in_part():
    data = TensorDataset(torch.from_numpy(GREY), torch.tensor(LABELS))
    data.classes, data.targets = ["cat", "dog"], LABELS
    found = gathered(DataLoader(data, batch_size=2, shuffle=True, drop_last=True))
    assert np.array_equal(found.images[:, 0].numpy(), GREY)
    assert (found.labels.tolist(), found.classes) == (LABELS, ("cat", "dog"))
    found = gathered(DataLoader(Subset(data, [2, 0])))
    assert np.array_equal(found.images[:, 0].numpy(), GREY[[2, 0]])
    assert (found.labels.tolist(), found.classes) == ([LABELS[2], LABELS[0]], ("cat", "dog"))


def test_a_torchvision_image_folder_is_taken_with_its_classes(tmp_path):
    for index, picture in enumerate(pictures(COLOR)):
        path = tmp_path / ("dog" if LABELS[index] else "cat") / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        picture.save(path)
    found = gathered(ImageFolder(tmp_path))
    assert (found.classes, found.image_shape) == (("cat", "dog"), (3, *COLOR.shape[1:3]))
    assert sorted(found.labels.tolist()) == sorted(LABELS)


def test_paths_are_read_and_a_file_that_cannot_be_used_is_a_null_record(tmp_path):
    paths = [str(tmp_path / f"{index}.png") for index in range(NUM)]
    for picture, path in zip(pictures(), paths, strict=True):
        picture.save(path)
    found = gathered(paths, LABELS)
    assert np.array_equal(found.images[:, 0].numpy(), GREY)
    assert found.labels.tolist() == LABELS
    Path(paths[1]).write_bytes(b"no picture")
    found = gathered(list(map(Path, paths)), LABELS)
    assert found.is_null.tolist() == [index == 1 for index in range(NUM)]
    with pytest.raises(InputError, match=r"1\.png"):
        gathered(paths, private=False)


def test_a_torch_data_set_may_call_its_inputs_features():
    class Own(TensorDataset):
        features = torch.zeros(2)

    assert np.array_equal(pixels(Own(torch.from_numpy(GREY))), GREY)


def test_lists_of_mappings_and_named_tuples_are_taken():
    row = namedtuple("row", "number image target")
    for data in (
        [{"x": each, "y": label} for each, label in zip(GREY, LABELS, strict=True)],
        [row(number, each, label) for number, (each, label) in enumerate(zip(GREY, LABELS, strict=True))],
        list(zip(pictures(), LABELS, strict=True)),
        {"image": GREY, "target": LABELS, "target_names": np.array([0, 1])},
        (GREY, LABELS),
    ):
        found = gathered(data)
        assert np.array_equal(found.images[:, 0].numpy(), GREY)
        assert (found.labels.tolist(), found.classes) == (LABELS, ("0", "1"))


def test_a_file_of_arrays_is_taken_as_the_arrays_are(tmp_path):
    np.savez(tmp_path / "made.npz", images=GREY, labels=LABELS, classes=np.array(["cat", "dog"]))
    found = gathered(tmp_path / "made.npz")
    assert np.array_equal(found.images[:, 0].numpy(), GREY)
    assert found.classes == ("cat", "dog")
    np.savez(tmp_path / "floats.npz", images=GREY / 255)
    assert "is not said" in refusal(str(tmp_path / "floats.npz"))  # private
    assert np.array_equal(pixels(tmp_path / "floats.npz", private=False), GREY)
    assert "'auto' is unknown" in refusal(GREY / 255, pixel_range="auto")


# What is measured ---------------------------------------------------------------------------------------------------


def test_what_is_released_gets_null_records_and_what_is_measured_is_refused():
    bad = GREY / 255
    bad[2, 0, 0] = np.nan
    assert torch.nonzero(gathered(bad, pixel_range="unit").null)[:, 0].tolist() == [2]
    assert "1 of 6 images, the first in position 2" in refusal(bad, pixel_range="unit", private=False)
    labels = ["cat"] * 5 + ["bird"]
    assert gathered(GREY, labels, classes=["cat", "dog"]).null.sum() == 1
    said = refusal(GREY, labels=labels, classes=["cat", "dog"], private=False)
    assert "position 5, have none of the 2 classes" in said


def test_bytes_stay_bytes_beside_floats_that_are_measured():
    assert np.array_equal(pixels(GREY, pixel_range="symmetric", private=False), GREY)
    assert np.array_equal(pixels(GREY // 16, pixel_range=(0, 15), private=False), GREY // 16 * 17)
