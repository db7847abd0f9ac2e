"""Images that are larger than memory: the commands give the same, bit for bit, and never hold all of them as floats."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from idpgan import device
from idpgan.attacks import distances, membership
from idpgan.attacks.membership import trace
from idpgan.commands.attack import AttackOptions, attack_run
from idpgan.commands.evaluate import EvaluateOptions, evaluate_source
from idpgan.data.config import DataConfig
from idpgan.data.faces import draw
from idpgan.data.images import Images
from idpgan.data.load import load
from idpgan.metrics import features
from idpgan.models import ModelConfig, build_generator, generator
from idpgan.privacy import Noise
from idpgan.trainer import start
from idpgan.training.config import build_config
from idpgan.training.method import ReleasedSums

ATTACKS = ("nearest-sample", "nearest-in-features", "neighborhood-count", "copies", "density-ratio", "trace")


@pytest.fixture
def folder(tmp_path):
    """40 drawn faces in two classes; one file is damaged, and two are the same."""
    for index, pixels in enumerate(draw(40, 16, seed=3).images):
        place = tmp_path / "faces" / "ab"[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(place / f"{index:02d}.png")
    (place / "07.png").write_bytes(b"no picture")
    (place / "39.png").write_bytes((place / "37.png").read_bytes())
    return tmp_path / "faces"


def config(folder, method, **keys):
    data = {"name": "folder", "root": str(folder), "num_images": 40, "image_size": 16, "channels": 3}
    data |= {"classes": ["a", "b"], "holdout_share": 0.3}
    return build_config(
        {"data": data, "method": {"name": method}, "privacy": {"epsilon": 5.0, "delta": 1e-3}, **keys}, "the test"
    )


def on_disk(monkeypatch, folder):
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(device, "LARGEST", 0)


def test_mapped_images_are_the_same_images(folder, tmp_path, monkeypatch):
    data = config(folder, "gaussian").data
    before = load(data)
    on_disk(monkeypatch, tmp_path / "scratch")
    after = load(data)
    assert (
        sum("scratch" in line for line in Path("/proc/self/maps").read_text().splitlines()) >= 4
    )  # the parts are on disk
    assert list((tmp_path / "scratch").iterdir()) == []
    assert after.digest == before.digest
    assert [part.digest() for part in (after.public, after.holdout, after.test)] == [
        part.digest() for part in (before.public, before.holdout, before.test)
    ]
    assert [file.reason for file in after.refused] == [file.reason for file in before.refused]
    assert len(after.refused) == 1
    grey = DataConfig(name="digits", channels=3)
    monkeypatch.undo()
    expected = load(grey)
    monkeypatch.setattr(device, "LARGEST", 0)
    assert load(grey).digest == expected.digest
    assert expected.private.images.is_contiguous()


@pytest.mark.parametrize("method", ["gaussian", "scattering-linear"])
def test_five_commands_give_the_same(folder, tmp_path, monkeypatch, method):
    monkeypatch.setattr(Noise, "system", staticmethod(lambda: Noise.fixed(5)))
    monkeypatch.setattr(features, "FEWEST_STEPS", 3)
    monkeypatch.setattr(features, "MOST_STEPS", 3)
    keys = {"training": {"steps": 3}} if method != "gaussian" else {"model": {"generator": "gaussian", "latent_dim": 8}}
    before = results(config(folder, method, **keys), tmp_path / "before", monkeypatch)
    on_disk(monkeypatch, tmp_path / "scratch")
    assert results(config(folder, method, **keys), tmp_path / "after", monkeypatch) == before


def results(settings, out, monkeypatch):
    """What a run releases, and what evaluate and attack say of it, without times and paths."""
    start(settings, out)
    judged = (
        EvaluateOptions()
        if settings.method.name != "gaussian"
        else EvaluateOptions(only="fidelity", num=60, features="autoencoder")
    )
    monkeypatch.setenv("IDPGAN_CACHE", str(out / "cache"))
    asked = AttackOptions(samples=60, attacks=ATTACKS) if settings.method.name == "gaussian" else AttackOptions()
    found = [evaluate_source(out, judged).to_json(), attack_run(out, asked).to_json()]
    for document in found:
        for name in ("seconds", "source", "run", "environment"):
            document.pop(name, None)
        for attack in document.get("attacks", {}).values():
            attack.pop("seconds")
    weights = {path.name: path.read_bytes() for path in (out / "release").glob("*.safetensors")}
    return weights, json.dumps(found, default=str).replace(str(out), "RUN")


def test_images_are_drawn_a_batch_at_a_time(monkeypatch):
    made = build_generator(ModelConfig(generator="gaussian", latent_dim=4), (1, 4, 4), 3)
    expected = generator.to_uint8(made.sample(1200, seed=7, purpose=generator.Purpose.TRAINING))
    seen, to_uint8 = [], generator.to_uint8
    monkeypatch.setattr(generator, "to_uint8", lambda pixels: seen.append(len(pixels)) or to_uint8(pixels))
    found = made.sample_images(1200, seed=7)
    assert torch.equal(found.images, expected)
    assert (found.classes, found.labels.tolist()) == (("0", "1", "2"), (torch.arange(1200) % 3).tolist())
    assert max(seen) <= 512 < sum(seen)


def test_traces_in_blocks_are_those_of_all(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(90, 12, generator=rng, dtype=torch.float64)
    pixels = torch.arange(90, dtype=torch.uint8)[:, None, None, None]
    images = Images(pixels, torch.arange(90) % 2, ("a", "b"))
    seen = []

    def vectors(images):
        seen.append(len(images))
        return rows[images.images.flatten().long()], images.labels

    released = ReleasedSums(rows.view(2, 45, 12).sum(1), 0.5, vectors)
    whole = trace(images, released, images.select(torch.arange(50, 90)))
    monkeypatch.setattr(membership, "_ROWS", 7)
    seen.clear()
    parts = trace(images, released, images.select(torch.arange(50, 90)))
    assert torch.allclose(parts, whole, atol=1e-6)
    assert seen == [40, *[7] * 12, 6]


def test_distances_of_large_images_are_in_smaller_blocks(monkeypatch):
    images, cloud = (torch.randint(256, (700, 3, 2, 2), dtype=torch.uint8) for _ in range(2))
    whole = torch.cat([found for _, found in distances.blocks(images, cloud)])
    monkeypatch.setattr(distances, "_BLOCK_NUMBERS", 12 * 300)
    found = [(rows, part) for rows, part in distances.blocks(images, cloud)]
    assert {part.shape for _, part in found} == {(300, 300), (300, 100), (100, 300), (100, 100)}
    together = torch.cat(
        [torch.cat([part for rows, part in found if rows.start == start], 1) for start in (0, 300, 600)]
    )
    assert torch.allclose(together, whole, atol=1e-3)
