import io
import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from idpgan.errors import InputError
from idpgan.models import Generator, ModelConfig, load_generator, save_generator
from idpgan.models.checkpoint import build_generator


@pytest.fixture
def generator() -> Generator:
    generator = build_generator(ModelConfig(latent_dim=4, width=4), (1, 8, 8), 3, seed=3)
    generator(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3)  # moves BatchNorm
    return generator


@pytest.fixture
def release(tmp_path, generator):
    folder = tmp_path / "run" / "release"
    save_generator(folder, generator, classes=["cat", "dog", "owl"], extra={"dataset": "pets"})
    return folder


def refusal(path) -> str:
    with pytest.raises(InputError) as caught:
        load_generator(path)
    return str(caught.value)


def edit(release, **changes) -> None:
    table = json.loads((release / "config.json").read_text())
    table["generator"].update(changes)
    (release / "config.json").write_text(json.dumps(table))


@pytest.mark.parametrize("tail", ["..", ".", "generator.safetensors"])
def test_round_trip_from_run_release_and_file(release, generator, tail):
    loaded = load_generator(str(release / tail))
    assert torch.equal(loaded.sample(5, seed=1), generator.sample(5, seed=1))
    assert loaded.classes == ("cat", "dog", "owl")
    assert loaded.config == generator.config
    assert not loaded.training
    assert all(tensor.device.type == "cpu" for tensor in loaded.state_dict().values())
    assert json.loads((release / "config.json").read_text())["dataset"] == "pets"


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 48, 48), (1, 64, 64), (1, 112, 92)])
def test_round_trip_of_every_size(tmp_path, shape, conditional):
    config = ModelConfig(latent_dim=4, width=4, conditional=conditional)
    generator = build_generator(config, shape, 2, seed=1)
    save_generator(tmp_path, generator)
    assert torch.equal(load_generator(tmp_path).sample(3, seed=1), generator.sample(3, seed=1))


def test_a_loaded_generator_can_be_trained_on(release):
    loaded = load_generator(release).train()
    loaded(torch.zeros(4, 4), torch.tensor([0, 1, 2, 0])).sum().backward()
    assert all(weight.grad is not None for weight in loaded.parameters())


def test_loading_leaves_the_random_state_alone_and_keeps_no_file(release):
    before = torch.get_rng_state()
    loaded = load_generator(release)
    expected = loaded.sample(2, seed=0)
    shutil.rmtree(release)
    assert torch.equal(loaded.sample(2, seed=0), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_file_holds_the_generator_and_nothing_else(release, generator):
    with safe_open(release / "generator.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(generator.state_dict())
        assert not file.metadata()
    assert sorted(path.name for path in release.iterdir()) == ["config.json", "generator.safetensors"]
    assert set(json.loads((release / "config.json").read_text())["generator"]) == {"model", "image_shape", "classes"}


def test_saving_twice_gives_the_same_bytes(tmp_path, generator):
    for name in ("a", "b"):
        save_generator(tmp_path / name, generator)
    for file in ("generator.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_saving_refuses_what_would_not_load(tmp_path, generator):
    with pytest.raises(InputError, match="2 class names"):
        save_generator(tmp_path / "new", generator, classes=["cat", "dog"])
    with pytest.raises(InputError, match="'generator'"):
        save_generator(tmp_path / "new", generator, extra={"generator": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        save_generator(tmp_path / "new", generator, extra={"score": float("nan")})
    assert not (tmp_path / "new").exists()


def test_missing_things_are_named(release, tmp_path):
    assert "nowhere does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "neither a run nor a release" in refusal(tmp_path / "empty")
    (tmp_path / "young" / "state").mkdir(parents=True)
    assert "no generator yet" in refusal(tmp_path / "young")
    (release / "config.json").unlink()
    assert "config.json is missing" in refusal(release)


@pytest.mark.parametrize("content", [b"", b"\x08", b"not safetensors at all", b"\xff" * 100])
def test_a_damaged_file_is_named(release, content):
    (release / "generator.safetensors").write_bytes(content)
    message = refusal(release)
    assert "generator.safetensors is damaged" in message
    assert "release folder again" in message


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_named(release, keep):
    content = (release / "generator.safetensors").read_bytes()
    (release / "generator.safetensors").write_bytes(content[: int(keep * len(content))])
    assert "is damaged" in refusal(release)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


@pytest.mark.parametrize("name", ["generator.pt", "generator.pkl", "generator.safetensors"])
@pytest.mark.parametrize("with_torch", [True, False])
def test_a_pickle_is_refused_and_not_opened(release, name, with_torch):
    path = release / name
    if with_torch:
        torch.save({"weight": torch.zeros(1), "bomb": Bomb()}, path)
    else:
        path.write_bytes(pickle.dumps(Bomb()))
    content = path.read_bytes()  # torch 2.13 goes by the name and opens *.safetensors with safetensors
    with pytest.raises(SystemExit):  # negative control: it would go off
        torch.load(io.BytesIO(content), weights_only=False) if with_torch else pickle.loads(content)
    assert "damaged" in refusal(path) if name.endswith("safetensors") else "run code" in refusal(path)


def test_links_are_followed_and_pipes_do_not_hang(release, tmp_path, generator):
    cache = tmp_path / "cache"  # as that of huggingface_hub, which links to its files
    cache.mkdir()
    for name in ("generator.safetensors", "config.json"):
        (release / name).rename(tmp_path / name)
        (cache / name).symlink_to(tmp_path / name)
    assert torch.equal(load_generator(cache).sample(2, seed=1), generator.sample(2, seed=1))
    for name in ("generator.safetensors", "config.json"):
        (cache / name).unlink()
        os.mkfifo(cache / name)
        assert "not a plain file" in refusal(cache / "generator.safetensors")


def test_a_much_larger_file_is_not_read(release):
    with (release / "generator.safetensors").open("ab") as file:
        file.truncate(1 << 40)  # sparse
    assert "at most" in refusal(release)


def test_foreign_weights_are_refused(release):
    path = release / "generator.safetensors"
    good = load_file(path)
    cases = {
        "missing": {name: tensor for name, tensor in good.items() if name != "project.weight"},
        "added": {**good, "records": torch.zeros(3)},
        "shape": {**good, "project.weight": torch.zeros(2, 2)},
        "type": {**good, "project.weight": good["project.weight"].half()},
    }
    for tensors in cases.values():
        save_file(tensors, path)
        assert "does not hold the generator" in refusal(path)
    save_file({**good, "project.weight": good["project.weight"] * float("nan")}, path)
    assert "not finite in 'project.weight'" in refusal(path)
    save_file(good, path)
    load_generator(path)  # negative control


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"generator": 3}', '{"generator": {"model": {}}}', "[" * 100_000]
)
def test_a_foreign_config_is_named(release, text):
    (release / "config.json").write_text(text)
    assert "config.json does not describe a generator" in refusal(release)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_shape": [1, 9, 9]}, "squares of 8, 12, 16"),
        ({"image_shape": ["1", 8, 8]}, "whole numbers"),
        ({"image_shape": 8}, "whole numbers"),
        ({"classes": 3}, "list of names"),
        ({"classes": []}, "conditional = true needs labeled data"),
        ({"model": []}, "must be a table"),
        ({"model": {"width": 4, "wdth": 3}}, "wdth"),
        ({"model": {"width": 10**9}}, "width"),
        ({"model": {"width": 4, "latent_dim": 4, "conditional": False}}, "has no classes"),
        ({"model": {"width": 1024, "latent_dim": 4096}}, "does not hold the generator"),
        ({"classes": ["cat", "dog"]}, "does not hold the generator"),
    ],
)
def test_a_config_that_fits_not_is_refused(release, changes, message):
    edit(release, **changes)
    assert message in refusal(release)
