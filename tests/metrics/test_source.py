import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from idpgan.errors import InputError
from idpgan.kinds import opened
from idpgan.metrics.source import read_images
from idpgan.models import ModelConfig, build_generator, save_generator

GREY, RGB = (1, 8, 10), (3, 8, 10)
CLASSES = ("cat", "dog", "elk")


def pixels(num=6, shape=GREY, seed=0):
    """Grey values from 0 to 255 in every image."""
    values = np.random.default_rng(seed).integers(0, 256, (num, *shape), dtype=np.uint8)
    values[:, :, 0, 0], values[:, :, 0, 1] = 0, 255
    return values


@pytest.fixture
def save(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "images.npz", **arrays)
        return tmp_path / "images.npz"

    return write


def layouts(values):
    return {"NCHW": values, "NHWC": values.transpose(0, 2, 3, 1), "NHW": values[:, 0]}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NHW"])
@pytest.mark.parametrize("scale", ["uint8", "unit", "symmetric", "big-endian"])
def test_all_layouts_and_ranges_give_the_same_images(save, layout, scale):
    values = pixels()
    arrays = {
        "uint8": values,
        "unit": values / 255,
        "symmetric": (values / 127.5 - 1).astype(np.float32),
        "big-endian": (values / 255).astype(">f4"),
    }
    images = read_images(save(images=layouts(arrays[scale])[layout], labels=np.arange(6) % 3), GREY, CLASSES)
    assert np.array_equal(images.images.numpy(), values)
    assert images.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert images.classes == CLASSES


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_color_images_keep_their_channels(save, layout):
    values = pixels(shape=RGB)
    assert np.array_equal(read_images(save(images=layouts(values)[layout]), RGB, CLASSES).images.numpy(), values)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(value=st.integers(0, 255), half=st.booleans(), symmetric=st.booleans())
def test_every_grey_value_survives_its_float(save, value, half, symmetric):
    values = np.full((1, *GREY), value, dtype=np.uint8)
    floats = values / 127.5 - 1 if symmetric else values / 255
    floats = floats.astype(np.float16 if half else np.float64)
    images = read_images(save(images=floats), GREY, (), pixel_range="symmetric" if symmetric else "unit")
    assert np.array_equal(images.images.numpy(), values)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.9), (-0.1, 0.9), (0.0, 0.3)])
def test_an_ambiguous_range_is_refused_unless_it_is_declared(save, low, high):
    path = save(images=np.linspace(low, high, 80).reshape(1, 8, 10))
    with pytest.raises(InputError, match=r"black and what is white in them is not clear. Give .* \(--range\)"):
        read_images(path, GREY, ())
    declared = read_images(path, GREY, (), pixel_range="symmetric").images
    assert declared.max() == round((high + 1) * 127.5)


BAD = {
    "no images": ({"labels": np.zeros(6, int)}, "no array 'images'"),
    "empty": ({"images": pixels(0)}, "no images"),
    "NaN": ({"images": np.full((6, *GREY), np.nan)}, "none of the numbers is finite"),
    "infinity": ({"images": np.where(pixels() > 250, np.inf, pixels() / 255)}, "6 of 6 images, .* not finite"),
    "float 0 to 255": ({"images": pixels() * 1.0}, r"\[0, 255\], and what is black .* \"bytes\" for \[0, 255\]"),
    "not clipped": ({"images": pixels() / 255 * 1.5 - 0.2}, "clip what lies outside"),
    "another size": ({"images": pixels(shape=(1, 10, 8))}, r"\(1, 10, 8\), but the data set has \(1, 8, 10\)"),
    "color": ({"images": pixels(shape=RGB)}, r"\(3, 8, 10\), but the data set has"),
    "flat": ({"images": pixels().reshape(6, 80)}, "expected"),
    "16 bits": ({"images": pixels().astype(np.uint16)}, "are uint16, and what is black"),
    "text": ({"images": np.array(["a", "b"])}, "<U1"),
    "pickle": ({"images": np.array([{}, None], dtype=object)}, "Pickled objects are refused"),
    "pickled labels": ({"images": pixels(), "labels": np.array([None] * 6, dtype=object)}, "Pickled"),
    "fewer labels": ({"images": pixels(), "labels": np.zeros(5, int)}, r"must be 6 whole .* got int64 \(5,\)"),
    "one-hot labels": ({"images": pixels(), "labels": np.zeros((6, 3), int)}, r"int64 \(6, 3\)"),
    "float labels": ({"images": pixels(), "labels": np.full(6, 0.5)}, "none of the 6 labels"),
    "unknown label": ({"images": pixels(), "labels": np.arange(6) % 4}, "1 of 6 images, .* none of the 3 classes"),
    "negative label": ({"images": pixels(), "labels": np.full(6, -1)}, "none of the 6 labels"),
    "unknown class": (
        {"images": pixels(), "labels": np.zeros(6, int), "classes": np.array(["cat", "gnu"])},
        "class 'gnu', which is none of the real ones",
    ),
    "one class twice": (
        {"images": pixels(), "labels": np.zeros(6, int), "classes": np.array(["cat", "cat"])},
        "twice",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_in_one_line_that_names_the_file(save, case):
    arrays, message = BAD[case]
    path = save(**arrays)
    with pytest.raises(InputError, match=message) as caught:
        read_images(path, GREY, CLASSES)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("low", "high", "declared"), [(-0.5, 0.5, "unit"), (0.0, 1.5, "symmetric")])
def test_a_declared_range_is_checked(save, low, high, declared):
    path = save(images=np.linspace(low, high, 80).reshape(1, 8, 10))
    with pytest.raises(InputError, match=r"outside of \["):
        read_images(path, GREY, (), pixel_range=declared)
    with pytest.raises(InputError, match=r"pixel range 'units' is unknown. Did you mean 'unit'"):
        read_images(path, GREY, (), pixel_range="units")


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "images.npz").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as an npz file"):
        read_images(tmp_path / "images.npz", GREY, CLASSES)


def test_a_single_array_is_refused(tmp_path):
    with (tmp_path / "images.npz").open("wb") as file:
        np.save(file, pixels())
    with pytest.raises(InputError, match="cannot be read as an npz file"):
        read_images(tmp_path / "images.npz", GREY, CLASSES)


def test_a_pickle_is_never_run(tmp_path):
    ran = tmp_path / "ran"

    @dataclasses.dataclass
    class Bomb:
        def __reduce__(self):
            return (ran.write_text, ("boom",))

    np.savez(tmp_path / "images.npz", images=np.array([Bomb()], dtype=object))
    (tmp_path / "plain.npz").write_bytes(__import__("pickle").dumps(Bomb()))
    for name in ("images.npz", "plain.npz"):
        with pytest.raises(InputError, match="Pickled"):
            read_images(tmp_path / name, GREY, CLASSES)
    assert not ran.exists()


def test_labels_follow_the_names_of_the_classes(save):
    path = save(images=pixels(), labels=np.array([0, 0, 1, 1, 1, 0]), classes=np.array(["elk", "cat"]))
    images = read_images(path, GREY, CLASSES)
    assert images.labels.tolist() == [2, 2, 0, 0, 0, 2]
    assert images.classes == CLASSES


def test_a_data_set_without_classes_drops_labels(save):
    images = read_images(save(images=pixels(), labels=np.zeros(6, int)), GREY, ())
    assert images.labels is None


def write_folder(root, values, names):
    for index, (value, name) in enumerate(zip(values, names, strict=True)):
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(value[0]).save(root / name / f"{index}.png")


def test_a_folder_of_classes(tmp_path):
    values = pixels()
    write_folder(tmp_path, values, ["elk", "cat", "elk", "cat", "cat", "cat"])
    images = read_images(tmp_path, GREY, CLASSES)
    assert images.labels.tolist() == [0, 0, 0, 0, 2, 2]
    assert np.array_equal(images.images.numpy(), values[[1, 3, 4, 5, 0, 2]])


def test_a_folder_without_classes_is_unlabeled(tmp_path):
    write_folder(tmp_path, pixels(), [""] * 6)
    assert read_images(tmp_path, GREY, CLASSES).labels is None


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (["cat", "gnu"], GREY, "class 'gnu', which is none of the real ones"),
        (["cat", "dog"], (1, 9, 9), r"\(1, 9, 9\), but the data set has \(1, 8, 10\)"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path, names, shape, message):
    write_folder(tmp_path, pixels(2, shape), names)
    with pytest.raises(InputError, match=message):
        read_images(tmp_path, GREY, CLASSES)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="no images"):
        read_images(tmp_path, GREY, CLASSES)


def test_what_is_not_there_or_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_images(tmp_path / "missing.npz", GREY, CLASSES)
    (tmp_path / "images.npy").write_bytes(b"")
    with pytest.raises(InputError, match="not an npz file"):
        read_images(tmp_path / "images.npy", GREY, CLASSES)


@pytest.fixture
def release(tmp_path):
    def write(conditional=True, classes=CLASSES):
        generator = build_generator(
            ModelConfig(latent_dim=4, width=8, conditional=conditional), (1, 8, 8), len(classes)
        )
        save_generator(tmp_path / "release", generator, classes=classes if conditional else [])
        return tmp_path

    return write


def test_a_generator_is_sampled(release):
    path = release()
    images = read_images(opened(path), (1, 8, 8), CLASSES, num=7)
    assert images.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert images.images.dtype == torch.uint8
    assert read_images(opened(path / "release"), (1, 8, 8), CLASSES, num=7).digest() == images.digest()
    assert read_images(opened(path), (1, 8, 8), CLASSES, num=7, seed=1).digest() != images.digest()


def test_an_unconditional_generator_gives_no_labels(release):
    assert read_images(opened(release(conditional=False)), (1, 8, 8), CLASSES, num=3).labels is None


def test_a_generator_of_something_else_is_refused(release):
    with pytest.raises(InputError, match="the data set has"):
        read_images(opened(release()), (1, 28, 28), CLASSES, num=3)
    with pytest.raises(InputError, match="class 'cat'"):
        read_images(opened(release()), (1, 8, 8), ("ant", "dog", "elk"), num=3)
    with pytest.raises(InputError, match="0 images are too few"):
        read_images(opened(release()), (1, 8, 8), CLASSES, num=0)


def test_a_generator_is_loaded_where_its_release_is_checked(release):
    for like in ((), ((1, 8, 8), CLASSES)):
        with pytest.raises(InputError, match=r"load it with idpgan\.load_generator"):
            read_images(release(), *like)


def test_a_run_without_a_release_is_refused(tmp_path):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "state").mkdir()
    with pytest.raises(InputError, match="released no generator yet"):
        opened(tmp_path)
