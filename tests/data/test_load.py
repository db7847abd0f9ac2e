import dataclasses
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan.config import build, dump_toml
from idpgan.data import sources
from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.data.load import Split, describe, load, place
from idpgan.data.source import DataSet, PublicFacts, Read, Source
from idpgan.errors import ConfigError, DataError
from tests.data.layouts import declared


def fill(root, num=20, classes=("a", "b"), size=(3, 3), shift=0):
    """Write images whose grey level says which they are."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(num):
            Image.new("L", size, shift + label * num + index).save(root / name / f"{index:03}.png")
    return root


def levels(images):
    return images.images[:, 0, 0, 0].tolist()


def all_levels(parts):
    return [level for part in parts for level in levels(part)]


def parts_of(split):
    return [split.public, split.private, split.holdout, split.test]


def test_parts_are_disjoint_and_complete_and_labels_stay(tmp_path):
    config = declared(root=fill(tmp_path), public_share=0.2, confirm_public=True, holdout_share=0.2)
    split = load(config)
    assert sorted(all_levels(parts_of(split))) == list(range(40))
    for part in parts_of(split):
        assert part.labels.tolist() == [level // 20 for level in levels(part)]
    assert describe(config).sizes == tuple(len(part) for part in parts_of(split))


def test_the_split_depends_on_position_not_on_content(tmp_path):
    config = declared(root=fill(tmp_path))
    before = load(config)
    paths = sorted(tmp_path.rglob("*.png"))
    shuffled = np.random.default_rng(3).permutation(len(paths))
    for path, level in zip(paths, shuffled, strict=True):
        Image.new("L", (3, 3), int(level)).save(path)
    after = load(config)
    for old, new in zip(parts_of(before), parts_of(after), strict=True):
        assert levels(new) == [shuffled[level] for level in levels(old)]
    assert after.digest != before.digest


def test_digest_is_that_of_the_private_part(tmp_path):
    config = declared(root=fill(tmp_path))
    split = load(config)
    assert split.digest == split.private.digest()
    for part, same in ((split.test, True), (split.holdout, True), (split.private, False)):
        level = levels(part)[0]
        Image.new("L", (3, 3), 255).save(tmp_path / "ab"[level // 20] / f"{level % 20:03}.png")
        assert (load(config).digest == split.digest) == same


def test_public_root_takes_nothing_from_the_private_folder(tmp_path):
    fill(tmp_path / "private")
    fill(tmp_path / "public", num=3, shift=200)
    config = declared(root=tmp_path / "private", public_root=tmp_path / "public")
    split = load(config)
    assert sorted(levels(split.public)) == list(range(200, 206))
    assert split.public.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert sorted(all_levels(parts_of(split)[1:])) == list(range(40))
    assert describe(config).sizes == (6, 29, 3, 8)


def test_public_root_must_be_like_the_private_images(tmp_path):
    config = declared(root=fill(tmp_path / "private"))
    for name, keys in {"size": {"size": (4, 4)}, "classes": {"classes": ("a", "c")}}.items():
        public_root = fill(tmp_path / name, **keys)
        with pytest.raises(DataError, match=r"public_root has .*must be the same"):
            load(config.model_copy(update={"public_root": public_root}))
        if name == "classes":  # seen in the names: before an image is read
            with pytest.raises(DataError, match=r"public_root has .*must be the same"):
                describe(config.model_copy(update={"public_root": public_root}))
    for ask in (load, describe):
        with pytest.raises(DataError, match=r"no folder .*nowhere"):
            ask(config.model_copy(update={"public_root": tmp_path / "nowhere"}))


def test_public_classes_may_be_declared_in_another_order(tmp_path):
    config = declared(root=fill(tmp_path / "private"), classes=("b", "a"))
    config = config.model_copy(update={"public_root": fill(tmp_path / "public", num=3)})
    assert describe(config).sizes.public == 6
    assert load(config).public.labels.tolist() == [1, 1, 1, 0, 0, 0]


def test_public_root_must_not_hold_the_private_images(tmp_path):
    root = fill(tmp_path / "all" / "private")
    for public_root in (root, root.parent, root / ".." / "private"):
        config = DataConfig(name="folder", root=root, public_root=public_root)
        for ask in (load, describe):
            with pytest.raises(ConfigError, match="private images would be public"):
                ask(config)
    for ask in (load, describe):
        with pytest.raises(ConfigError, match=r"lies in data\.root .* private and public at once"):
            ask(DataConfig(name="folder", root=root, public_root=root / "a"))


def test_public_folder_for_an_embedded_set(tmp_path):
    fill(tmp_path, num=2, classes=tuple("0123456789"), size=(8, 8))
    split = load(DataConfig(name="digits", public_root=tmp_path))
    assert len(split.public) == 20
    assert split.num_private == 1295


def test_unknown_name_is_answered_with_the_nearest():
    for ask in (load, describe):
        with pytest.raises(ConfigError, match=r"'mnits' is not a known data set\. Did you mean 'mnist'\?"):
            ask(DataConfig(name="mnits"))


def add_source(monkeypatch, name, facts, images):
    """Make a source for one test, as a file of `idpgan.data.sources` does."""
    module = ModuleType(f"idpgan.data.sources.{name}")
    module.SOURCE = Source(lambda config: DataSet(facts, lambda progress: images()))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sources, "NAMES", (*sources.NAMES, name))


def test_every_file_of_sources_is_a_source():
    assert [name for name in sources.NAMES if not isinstance(sources.source_of(name), Source)] == []
    assert {path.stem.replace("_", "-") for path in Path(sources.__file__).parent.glob("[a-z]*.py")} == {*sources.NAMES}


def test_people_keep_their_numbers_in_every_part(monkeypatch):
    numbers = torch.arange(30)
    pixels = numbers.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 2, 2)
    images = Images(pixels, numbers % 2, ("no", "yes"), identities=numbers // 3)
    add_source(monkeypatch, "mine", PublicFacts(30, None, (1, 2, 2), ("no", "yes")), lambda: Read(images))
    for part in parts_of(load(DataConfig(name="mine"))):
        assert part.identities.tolist() == [level // 3 for level in levels(part)]


def test_the_section_is_written_out_in_full_and_read_back():
    changed = DataConfig(name="faces", label=("hat",), split_by="identity", num_images=50)
    for config in (DataConfig(), changed):
        assert set(config.model_dump()) == set(DataConfig.model_fields)
        assert build(DataConfig, tomllib.loads(dump_toml(config)), "[data]") == config


def add_with_attributes(monkeypatch, name, first):
    """Add forty images of ten people, with a test set of its own that shows people from `first` on."""
    numbers = torch.arange(40)
    bits = (numbers[:, None] >> torch.arange(2) & 1).to(torch.uint8)
    images = Images(numbers.to(torch.uint8).view(-1, 1, 1, 1), None, (), numbers // 4, bits, ("hat", "beard"))
    facts = PublicFacts(40, 40, (1, 1, 1), (), ("hat", "beard"), (4,) * 10)
    test = dataclasses.replace(images, identities=numbers // 4 + first)
    add_source(monkeypatch, name, facts, lambda: Read(images, test))


def test_attributes_make_the_classes(monkeypatch):
    add_with_attributes(monkeypatch, "mine", 10)
    config = DataConfig(name="mine", label=("beard", "hat"))
    split = load(config)
    assert split.classes == ("no beard, no hat", "beard, no hat", "no beard, hat", "beard, hat")
    assert describe(config).classes == split.classes
    for part in parts_of(split):
        assert part.labels.tolist() == [(level >> 1 & 1) + 2 * (level & 1) for level in levels(part)]
    assert load(DataConfig(name="mine")).private.labels is None


def test_test_images_must_show_other_people(monkeypatch):
    add_with_attributes(monkeypatch, "mine", 10)
    add_with_attributes(monkeypatch, "same", 9)
    split = load(DataConfig(name="mine", split_by="identity"))
    assert len(split.test) == 40
    assert not set(split.private.identities.tolist()) & set(split.holdout.identities.tolist())
    with pytest.raises(DataError, match="may show people of its training images"):
        load(DataConfig(name="same", split_by="identity"))


def test_system_errors_name_the_file(monkeypatch):
    add_source(monkeypatch, "gone", PublicFacts(1, 1, (1, 1, 1), ()), lambda: Path("/nowhere/at/all").read_bytes())
    with pytest.raises(DataError, match="Cannot read /nowhere/at/all: No such file"):
        load(DataConfig(name="gone"))


def test_split_is_frozen_and_moves(tmp_path):
    split = load(declared(root=fill(tmp_path)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.private = split.test
    moved = split.to("cpu")
    assert isinstance(moved, Split)
    assert moved.digest == split.digest


@pytest.mark.parametrize(("free", "where"), [(100, "gpu"), (99, "pinned")])
def test_what_does_not_fit_stays_pinned(monkeypatch, free, where):
    """Needs no GPU: both ways out are replaced."""
    images = Images(torch.zeros(50, 1, 1, 1, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1000))
    monkeypatch.setattr(Images, "to", lambda self, device: "gpu")
    monkeypatch.setattr(Images, "pin_memory", lambda self: "pinned")
    assert place(images, "cuda") == where


@pytest.mark.gpu
def test_gpu_holds_the_same_data(monkeypatch):
    split = load(DataConfig(name="digits"))
    moved = split.to("cuda")
    assert moved.private.images.is_cuda
    assert moved.digest == split.digest
    assert moved.to("cuda").private.images.data_ptr() == moved.private.images.data_ptr()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
    kept = split.to("cuda")
    assert kept.private.images.is_pinned()
    index = torch.tensor([3, 1], device="cuda")
    assert torch.equal(kept.private.select(index).to("cuda").images, moved.private.select(index.cpu()).images)
