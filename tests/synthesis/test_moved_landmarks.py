"""Landmarks, masks and pose of portraits go with them through the move, into a release and out of it."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from idpgan import SyntheticDataset, load_generator, portraits, trainer
from idpgan.commands import main
from idpgan.commands.people import PeopleOptions, write_people
from idpgan.data.annotations import PARTS, Annotations
from idpgan.data.faces import draw
from idpgan.data.images import Images, to_float
from idpgan.data.metadata import read_landmarks
from idpgan.errors import DataError, InputError
from idpgan.kinds import verify
from idpgan.models.checkpoint import build_generator
from idpgan.models.config import ModelConfig
from idpgan.models.drawing import Drawing
from idpgan.models.registration import annotations_anew, bent_anew, low_frequencies
from idpgan.origin import with_releases
from idpgan.release.export import export_samples
from idpgan.synthesis.moments import NormalsNoise
from idpgan.synthesis.move import Coordinates, move
from idpgan.training.config import build_config
from tests.portraits.test_landmarks import HEAD
from tests.release.forging import put_file, verdict
from tests.synthesis.test_move import config_of

pytestmark = pytest.mark.usefixtures("any_drawing")

SIDE, NUM, MOVED = 32, 300, 40
WHERE = "does not say where the parts of all 300 public portraits lie. Draw the folder anew"
BY_PORTRAIT = ("file_name", "masks", "landmarks", "pose")


@pytest.fixture(scope="module", autouse=True)
def _head():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.portraits.render.read_head", lambda: HEAD)
        yield


# The bend -------------------------------------------------------------------------------------------------------------


def spots(points, side=48, wide=1.2):
    """Black images with one bright spot each, at points (B, 2) in px."""
    line = torch.arange(side) + 0.5
    across, down = line - points[:, :1], line - points[:, 1:]
    squared = across.square()[:, None] + down.square()[:, :, None]
    return (2 * torch.exp(-squared / 2 / wide**2) - 1)[:, None]


def test_a_bright_point_is_where_the_table_says_after_a_picture_is_bent():
    rng, num, count = torch.Generator().manual_seed(0), 200, 12
    std = torch.tensor([0.05 / (1 + u * u + v * v) for u, v in low_frequencies(count)] * 2)
    before, after = (std * torch.randn(num, 2 * count, generator=rng) for _ in range(2))
    points = 12 + 24 * torch.rand(num, 2, generator=rng)
    discs = (spots(points, wide=4) > 0).to(torch.uint8)[:, 0]
    found, shown, _ = annotations_anew(Annotations(points[:, None], discs, torch.zeros(num, 3)), before, after)
    bent = bent_anew(spots(points), before, after)[:, 0] + 1
    line = torch.arange(48) + 0.5
    center = torch.stack([bent.sum(1) @ line, bent.sum(2) @ line], 1) / bent.sum((1, 2))[:, None]
    assert (found[:, 0] - center).norm(dim=1).max() < 0.5
    assert (points - center).norm(dim=1).max() > 1.5  # control: they moved
    assert (shown == (bent_anew(discs[:, None].float(), before, after)[:, 0] > 0.5)).float().mean() > 0.99
    assert (shown == discs).float().mean() < 0.98  # control


def law_of(public, shape):
    model = ModelConfig(generator="gaussian", latent_dim=12, moved=MOVED, drawing=Drawing(plain_share=0.5, shape=shape))
    law = build_generator(model, (1, SIDE, SIDE), 2).eval()
    size = 12 + 2 * shape
    template = to_float(public.images).mean(0, keepdim=True) if shape else None
    numbers = Coordinates(law, template).of(to_float(public.images)) * Coordinates(law, template).units
    mean = torch.stack([numbers.mean(0)] * 2) + 0.4 * numbers.std(0)
    law.set_moments(mean, torch.linalg.cholesky(1.2 * numbers.T.cov() + 1e-6 * torch.eye(size)).expand(2, -1, -1))
    noise = NormalsNoise(torch.full((2, size), 1e-4).double(), torch.full((2, size), 1e-5).double())
    return law, noise, template


def spotted(num=200):
    """Pictures of one bright spot each, in two classes, with its place, a mask that holds its number, and a pose."""
    rng = torch.Generator().manual_seed(1)
    points = SIDE / 2 + 4 * torch.randn(num, 2, generator=rng).clamp(-2, 2)
    images = Images(((spots(points, SIDE, 2.0) + 1) * 100).byte(), torch.arange(num) % 2, ("a", "b"))
    masks = torch.arange(num, dtype=torch.uint8)[:, None, None].expand(-1, SIDE, SIDE).contiguous()
    return images, Annotations(points[:, None].expand(-1, 12, -1), masks, torch.arange(3 * num).view(num, 3).float())


@pytest.mark.parametrize("shape", [0, 6], ids=["as they lie", "registered"])
def test_each_moved_picture_has_the_landmarks_of_its_portrait_moved_with_it(shape):
    public, places = spotted()
    law, noise, template = law_of(public, shape)
    moved = move(law, public, noise, template, seed=0, annotations=places)
    line = torch.arange(SIDE) + 0.5
    for row in range(2):
        landmarks, masks, pose = (moved.get_buffer(f"annotations_{name}")[row] for name in Annotations._fields)
        number = masks[:, 0, 0].long()  # of the portrait
        assert (masks == masks[:, :1, :1]).all()
        assert (number % 2 == row).all()
        assert torch.equal(pose, places.pose[number])
        own = places.landmarks[number]
        assert torch.equal(landmarks, own) == (shape == 0)
        if shape:
            bright = (moved.pictures[row][:, 0].float() - 100).clamp(min=0)  # the spot, and nothing of low frequency
            center = torch.stack([bright.sum(1) @ line, bright.sum(2) @ line], 1) / bright.sum((1, 2))[:, None]
            assert (landmarks[:, 0] - center).norm(dim=1).max() < 1
            assert (own[:, 0] - center).norm(dim=1).max() > 1  # control


def test_without_annotations_a_release_holds_none():
    public, _ = spotted()
    law, noise, template = law_of(public, 0)
    assert not [name for name in move(law, public, noise, template, seed=0).state_dict() if "annotations" in name]


# A run ----------------------------------------------------------------------------------------------------------------


def config_with(root, **model):
    config = config_of(moved=MOVED, **model)
    keys = {"public": None, "public_images": None, "image_size": SIDE, "public_root": root}
    return config.model_copy(update={"data": config.data.model_copy(update=keys)})


@pytest.fixture(scope="module")
def portraits_folder(tmp_path_factory, _head):
    """What `people --landmarks` writes, but with faces that are drawn faster: whose they are is of no matter."""
    root = tmp_path_factory.mktemp("portraits") / "people"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.portraits.batches", lambda *_, **__: [(0, draw(NUM, SIDE, 1, people=NUM, seed=7).images)])
        write_people(root, PeopleOptions(num=NUM, size=SIDE, landmarks=True))
    return root


@pytest.fixture(scope="module")
def release(portraits_folder, tmp_path_factory):
    config = config_with(portraits_folder, drawing={"shape": 4, "plain_share": 0.5})
    return trainer.start(config, tmp_path_factory.mktemp("moved") / "run").run.release


def read(path):
    with np.load(path) as stored:
        return dict(stored)


def test_a_release_is_verified_and_its_samples_have_what_people_writes(release, portraits_folder, tmp_path):
    assert verify(release).problems == ()
    assert "Of each picture it holds where its parts lie" in (release / "README.md").read_text()
    plain, folder = tmp_path / "plain", tmp_path / "out"
    for out, landmarks in ((plain, False), (folder, True)):
        export_samples(release, 60, out, seed=1, landmarks=landmarks)
    first, written = read(portraits_folder / "masks.npz"), read(folder / "masks.npz")
    assert {name: array.dtype for name, array in first.items() if name != "file_name"} == {
        name: array.dtype for name, array in written.items() if name != "file_name"
    }
    names, landmarks = written["file_name"], written["landmarks"]
    own = [np.flatnonzero((first["pose"] == row).all(1)).item() for row in written["pose"]]  # the portrait of each
    assert 0.005 < np.abs(landmarks - first["landmarks"][own]).mean() < 3
    agreeing = (written["masks"] == first["masks"][own]).mean()
    assert 0.8 < agreeing < 1
    assert agreeing > (written["masks"] == first["masks"][own[::-1]]).mean() + 0.05  # control
    table = torch.tensor(read_landmarks(folder, [folder / name for name in names]))
    assert np.abs(table.numpy() - landmarks).max() < 0.006
    assert {path.name for path in folder.iterdir()} - {path.name for path in plain.iterdir()} == {
        "landmarks.csv",
        "masks.npz",
    }
    drawn = [SyntheticDataset(out) for out in (plain, folder)]
    assert torch.equal(drawn[0].images, drawn[1].images)  # the same pictures, and a folder that is read as before
    assert torch.equal(drawn[0].labels, drawn[1].labels)


def test_of_images_of_the_law_nothing_is_known(release, tmp_path):
    config = ModelConfig.model_validate(load_generator(release).config.to_json())
    assert config.drawn.plain_share == 0.5
    export_samples(release, 100, tmp_path / "out.npz", seed=1, landmarks=True, purpose="training")
    stored = read(tmp_path / "out.npz")
    by_law = np.isnan(stored["landmarks"]).all((1, 2))
    assert 25 < by_law.sum() < 75
    assert ((stored["masks"] == 255).all((1, 2)) == by_law).all()
    assert (np.isnan(stored["pose"]).all(1) == by_law).all()
    assert len(stored["points"]) == stored["landmarks"].shape[1]


def test_a_release_without_landmarks_refuses_them_and_a_command_writes_them(release, tmp_path, capsys):
    with pytest.raises(
        InputError, match=r"--landmarks: .* holds none. Train with portraits of idpgan people --landmarks"
    ):
        export_samples(Path("checkpoints/digits-aggregate-eps10"), 3, tmp_path / "out", landmarks=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["sample", str(release), "--num", "3", "--out", str(tmp_path / "out"), "--landmarks"])
    assert not ended.value.code
    assert (tmp_path / "out" / "landmarks.csv").is_file()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("landmarks", lambda tensor: tensor[:, :, :11], "annotations_landmarks"),
        ("masks", lambda tensor: tensor[..., 1:], "annotations_masks"),
        ("masks", lambda tensor: tensor.float(), "annotations_masks"),
        ("pose", lambda tensor: tensor * math.nan, "not finite in 'annotations_pose'"),
        ("pose", None, "annotations_pose"),
        ("landmarks", 13, "'annotations_landmarks' is missing, not expected"),
        ("landmarks", None, ""),
    ],
)
def test_a_forged_shape_is_refused(release, tmp_path, name, change, message):
    folder = tmp_path / "forged"
    shutil.copytree(release, folder)
    if isinstance(change, int):
        config = json.loads((folder / "config.json").read_text())
        config["generator"]["landmarks"] = change
        put_file(folder, "config.json", json.dumps(config, indent=2) + "\n")
    else:
        tensors, key = load_file(folder / "generator.safetensors"), f"annotations_{name}"
        tensors = (
            tensors | {key: change(tensors[key]).contiguous()}
            if change
            else {k: tensors[k] for k in {*tensors} - {key}}
        )
        put_file(folder, "generator.safetensors", save(tensors))
    assert message in verdict(folder) != ""


def test_an_entry_without_its_tensors_is_refused(release, tmp_path):
    folder = tmp_path / "forged"
    shutil.copytree(release, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["generator"]["landmarks"]
    put_file(folder, "config.json", json.dumps(config, indent=2) + "\n")
    assert "'annotations_landmarks' is missing, not expected" in verdict(folder)


def changed(folder, **arrays):
    stored = read(folder / "masks.npz")
    np.savez(
        folder / "masks.npz", **{name: arrays.get(name, lambda array: array)(array) for name, array in stored.items()}
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "masks.npz").write_bytes(b"PK"), "cannot be read as an npz file"),
        (lambda root: changed(root, masks=lambda masks: masks[:, 1:]), WHERE),
        (lambda root: changed(root, pose=lambda pose: pose / 0), WHERE),
        (lambda root: changed(root, file_name=lambda names: names[::-1].copy()), None),
        (lambda root: changed(root, **dict.fromkeys(BY_PORTRAIT, lambda array: array[1:])),
         WHERE),
        (lambda root: (root / "000" / "000003.png").unlink(), WHERE),
    ],
    ids=["damaged", "another size", "not finite", "another order", "one is missing", "no picture"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_lies_beside_portraits_is_checked_before_anything_is_released(portraits_folder, tmp_path, spoil, message):
    root = tmp_path / "people"
    shutil.copytree(portraits_folder, root)
    public, _ = portraits.read(root, (1, SIDE, SIDE))
    spoil(root)
    if message is None:  # names say whose they are
        pose = torch.from_numpy(read(root / "masks.npz")["pose"])
        assert torch.equal(portraits.annotated(root, public).pose, pose.flip(0))
        assert torch.equal(portraits.annotated(root, public.flip(0)).pose, pose)
        return
    with pytest.raises(DataError, match=message):
        portraits.annotated(root, public)


# Portraits that are drawn anew ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn_anew(portraits_folder, tmp_path_factory):
    """A run of traits, with what it drew its pictures by."""
    calls, render = [], portraits.draw

    def noted(traits, *arguments, **options):
        calls.append((traits, render(traits, *arguments, **options)))
        return calls[-1][1]

    data = {"name": "faces", "num_images": 100, "num_people": 100, "image_size": SIDE, "channels": 1,
            "label": ["smiling"], "public_root": str(portraits_folder),
            "public_labels": {"no smiling": "not smiling", "smiling": "smiling"}}  # fmt: skip
    table = {"data": data, "model": {"generator": "pictures", "codes": 6}, "method": {"name": "traits"}}
    table |= {"privacy": {"epsilon": 3.0, "delta": 1e-3}, "training": {"device": "cpu"}, "release": {"samples": 4}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.portraits.draw", noted)
        run = trainer.start(build_config(table, "a test"), tmp_path_factory.mktemp("anew") / "run").run
    return table, run, *calls[-1]


def test_portraits_that_are_drawn_anew_have_their_own(drawn_anew, tmp_path):
    _, run, traits, images = drawn_anew
    assert verify(run.release).problems == ()
    generator = load_generator(run.release)
    held, there = (part.flatten(1).float() for part in (generator.pictures.flatten(0, 1), images))
    alike = torch.corrcoef(torch.cat([held, there]))[: len(held), len(held) :]  # but for light and sharpness
    assert torch.equal(alike.argmax(1), torch.arange(len(held)))
    turned = torch.stack([traits[name] for name in ("yaw", "pitch", "roll")], 1)
    assert torch.equal(generator.annotations_pose.flatten(0, 1), turned)
    export_samples(run.release, 8, tmp_path / "out.npz", seed=1, landmarks=True)
    stored = read(tmp_path / "out.npz")
    for image, pose, mask in zip(stored["images"], stored["pose"], stored["masks"], strict=True):
        same = torch.nonzero((generator.pictures == torch.from_numpy(image).permute(2, 0, 1)).flatten(2).all(2))[0]
        assert torch.equal(generator.annotations_pose[tuple(same)], torch.from_numpy(pose))
        assert 0.05 < (mask == PARTS.index("skin")).mean() < 1


def test_a_law_on_top_of_them_takes_their_pictures_alone(drawn_anew, tmp_path):
    table, run, *_ = drawn_anew
    data = {key: value for key, value in table["data"].items() if not key.startswith("public")}
    table = table | {
        "data": data | {"public_generator": str(run.path)},
        "model": {"generator": "gaussian", "latent_dim": 10, "simulator": "generator", "moved": 20},
        "method": {"name": "gaussian"},
    }
    made = trainer.start(build_config(with_releases(table), "a test"), tmp_path / "run")
    assert verify(made.run.release).problems == ()
    with pytest.raises(InputError, match=r"--landmarks: .* holds none"):
        export_samples(made.run.release, 2, tmp_path / "out", landmarks=True)
