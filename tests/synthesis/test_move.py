"""Public pictures moved onto a released law: the map, what noise leaves of it, and a run from config to release."""

import json
import sys

import pytest
import torch

from idpgan import trainer
from idpgan.commands.people import PeopleOptions, write_people
from idpgan.data.faces import draw
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models.checkpoint import build_generator
from idpgan.models.config import ModelConfig, Purpose
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import basis_of
from idpgan.models.registration import shape_unit
from idpgan.synthesis.moments import MomentMap, NormalsNoise, estimate_normals, noise_of_normals
from idpgan.synthesis.move import Coordinates, gains, move, shifts
from idpgan.training.config import build_config
from tests.portraits.made_head import made_head

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, SIZE = (1, 16, 16), 12
SILENT = NormalsNoise(torch.zeros(2, SIZE).double(), torch.zeros(2, SIZE).double())


def generator_of(mean, factor, num=500, size=SIZE):
    model = ModelConfig(generator="gaussian", latent_dim=size, moved=num, drawing=Drawing(plain_share=0.0))
    law = build_generator(model, SHAPE, 2).eval()
    law.set_moments(mean, factor)
    return law


def public_images(num=1000, seed=0, mean=0.0):
    """Edges that no low frequency has, and low frequencies of a spread of 0.4."""
    rng = torch.Generator().manual_seed(seed)
    low = 0.4 * torch.randn(num, SIZE, generator=rng) + mean
    pixels = (low @ basis_of(SHAPE, SIZE).float().T).view(-1, *SHAPE) + 0.2 * (torch.arange(16) % 2 - 0.5)
    labels = torch.arange(num) % 2
    return Images(((pixels.clamp(-1, 1) + 1) * 127.5).round().byte(), labels, ("0", "1"))


def coefficients(pictures):
    return (pictures.flatten(1).double() / 127.5 - 1) @ basis_of(SHAPE, SIZE)


def test_moved_pictures_have_the_moments_of_the_law_and_keep_what_lies_above():
    mean = torch.tensor([[0.15, -0.15], [-0.1, 0.1]]).repeat(1, SIZE // 2)
    rng = torch.Generator().manual_seed(1)
    turn = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=rng)).Q
    factor = (turn * torch.linspace(0.33, 0.52, SIZE)).expand(2, SIZE, SIZE)
    public = public_images()
    moved = move(generator_of(mean, factor), public, SILENT, seed=0)
    for row in range(2):
        found = coefficients(moved.pictures[row])
        assert (found.mean(0) - mean[row]).abs().max() < 0.01
        assert (found.T.cov() - factor[row].double() @ factor[row].double().T).abs().max() < 0.015
        before = coefficients(public.images[public.labels == row])
        assert (before.mean(0) - mean[row]).abs().max() > 0.1  # control: they were elsewhere
    edges = moved.pictures[0].float().diff(dim=3).abs().mean() / 127.5
    assert 0.15 < edges < 0.25  # as the public ones have them
    assert (moved.smear == 0).all()


def test_what_is_black_gets_brightness_but_no_color():
    coordinates = Coordinates(
        build_generator(ModelConfig(generator="gaussian", latent_dim=6, conditional=False), (3, 8, 8), 0)
    )
    images = torch.full((1, 3, 8, 8), -1.0)
    images[..., 4:] = 0.5
    red = coordinates.of(torch.tensor([0.2, 0.0, 0.0]).view(1, 3, 1, 1).expand(1, 3, 8, 8))
    added = coordinates.moved(images, coordinates.of(images), red) - images
    dark, light = added[0, :, 0, 0], added[0, :, 0, 7]
    torch.testing.assert_close(light, torch.tensor([0.2, 0.0, 0.0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(dark, torch.full((3,), 0.2 / 3), rtol=0, atol=1e-6)


def test_directions_are_stretched_only_so_far_and_not_by_what_noise_hides():
    public, released = torch.eye(20).double(), torch.diag(torch.linspace(0.1, 9, 20).double())
    found = torch.linalg.eigvalsh(gains(public, released, torch.zeros(20).double()))
    assert found.max() == pytest.approx(1.4)
    assert found.min() == pytest.approx(1 / 1.4)
    hidden = gains(public, 1.2 * public, torch.full((20,), 0.1).double())  # edge 0.63
    assert (hidden - public).abs().max() < 0.02
    seen = gains(public, 1.2 * public, torch.full((20,), 0.001).double())
    assert (seen - public).abs().max() > 0.08  # control


def test_a_mean_is_shifted_where_it_stands_above_its_noise_and_noise_is_left_where_it_is_shifted():
    gap = torch.tensor([[1.0, 0.1, 0.0], [-1.0, -0.1, 0.0]]).double()
    std = torch.full((2, 3), 0.1).double()
    shift, left = shifts(gap, std)
    assert shift[0, 0] == pytest.approx(0.98)  # 1 - (2 * 0.1 / sqrt(2))^2
    assert shift[:, 1].abs().max() == 0
    assert left[0].tolist() == pytest.approx([0.98 * 0.1 / 2**0.5, 0, 0])
    assert torch.equal(shift[0], -shift[1])
    common, _ = shifts(torch.ones(2, 1).double(), std[:, :1])
    assert common[0, 0] == common[1, 0] == pytest.approx(0.98)


def test_pure_noise_shifts_a_twentieth_and_what_it_shifts_is_smeared_over():
    """A class mean that is noise alone, with s = 1: the trap, in which all pictures of a class get one pattern."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 10_000, generator=rng).double()
    shift, left = shifts(noise, torch.ones_like(noise))
    assert (shift[0] - shift[1] != 0).double().mean() < 0.06
    assert (shift[0] - shift[1]).square().mean() < 0.1 * (noise[0] - noise[1]).square().mean()
    assert ((left > 0) == (shift - shift.mean(0) != 0)).all()
    unaware, _ = shifts(noise, 0.1 * torch.ones_like(noise))
    assert (unaware[0] - unaware[1]).square().mean() > 0.9 * (noise[0] - noise[1]).square().mean()  # control


def test_the_known_noise_of_a_law_is_that_of_its_estimate():
    """Many releases of the same sums: their means spread as `noise_of_normals` says."""
    moments, rng, std = MomentMap((1, 8, 8), 6), torch.Generator().manual_seed(0), 0.5
    y = 0.35 * torch.randn(500, 6, generator=rng).double()
    images = (y * moments.scale @ moments.basis.T).view(-1, 1, 8, 8)
    sums = moments(images).sum(0, keepdim=True)
    drawn = [sums + std * torch.randn(sums.shape, generator=rng).double() for _ in range(400)]
    found = torch.stack([estimate_normals(each, moments, std).mean[0] for each in drawn]).std(0)
    stated = noise_of_normals(sums, moments, std).mean[0]
    assert (found / stated - 1).abs().max() < 0.2
    assert (found / (1.5 * stated) - 1).abs().max() > 0.2  # control


def registered_generator(mean, factor, shape=4):
    model = ModelConfig(generator="gaussian", latent_dim=SIZE, drawing=Drawing(shape=shape, plain_share=0.0), moved=10)
    law = build_generator(model, SHAPE, 2).eval()
    law.set_moments(mean, factor)
    return law


@pytest.mark.parametrize(
    ("number", "added", "tolerance"),
    [(0, 0.0, 0.01), (0, 0.5, 0.02), (SIZE, 0.05, 0.015)],
    ids=["its own law", "brighter", "moved aside"],
)
def test_registered_pictures_are_moved_in_texture_and_in_place(number, added, tolerance):
    """Faces brought into place on their mean; the law is their own, or with another mean of one number."""
    public, unit = smiling(200, 3), torch.cat([torch.ones(SIZE), torch.full((8,), shape_unit(4, 256))]).double()
    template = to_float(public.images).mean(0, keepdim=True)
    law = registered_generator(torch.zeros(2, 20), torch.eye(20).expand(2, 20, 20))
    coordinates = Coordinates(law, template)
    own = [coordinates.of(to_float(public.images[public.labels == row])) for row in range(2)]
    mean = torch.stack([each.mean(0) for each in own]) * unit
    mean[:, number] += added
    law.set_moments(mean, torch.stack([unit[:, None] * torch.linalg.cholesky(each.T.cov()) for each in own]))
    silent = NormalsNoise(torch.zeros(2, 20).double(), torch.zeros(2, 20).double())
    pictures = move(law, public, silent, template, seed=0).pictures[0]
    pool = public.images[public.labels == 0]
    chosen = pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))[:10]]
    found, before = (coordinates.of(to_float(some)).mean(0) * unit for some in (pictures, chosen))
    assert (found - before)[number] == pytest.approx(added, abs=tolerance)
    changed = (pictures.float() - chosen.float()).abs().mean()
    assert (changed < 0.5) == (added == 0)  # of 255: bent and bent back, they are what they were


# A run ----------------------------------------------------------------------------------------------------------------


def smiling(num, seed):
    drawn = draw(num, 16, 1, people=num, seed=seed)
    labels = drawn.attributes[:, drawn.attribute_names.index("smiling")].long()
    return Images(drawn.images, labels, ("no smiling", "smiling"))


def config_of(**model):
    data = {"name": "faces", "num_images": 300, "num_people": 300, "image_size": 16, "channels": 1}
    return build_config(
        {
            "data": data | {"label": ["smiling"], "public": "faces", "public_images": 300,
                            "public_labels": {"no smiling": "not smiling", "smiling": "smiling"}},
            "model": {"generator": "gaussian", "latent_dim": 10, "moved": 50} | model,
            "method": {"name": "gaussian"},
            "privacy": {"epsilon": 10.0, "delta": 1e-4},
        },
        "the test",
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return trainer.start(config_of(), tmp_path_factory.mktemp("moved") / "run")


def test_a_run_releases_what_a_receiver_draws_and_verify_draws_again(finished):
    from idpgan import load_generator

    release = finished.run.release
    assert verify(release).problems == ()
    generator = load_generator(release)
    assert generator.pictures.shape == (2, 50, 1, 16, 16)
    assert generator.sample_images(20, seed=1).images.float().std() > 10
    described = json.loads((release / "config.json").read_text())["generator"]["model"]
    assert described["moved"] == 50
    assert "50 public images of each class" in (release / "README.md").read_text()


def test_a_receiver_draws_in_a_process_that_has_drawn_nothing(finished):
    """A generator is built without numbers before its weights are read: none of that may be kept for the drawing."""
    from idpgan import load_generator

    expected = load_generator(finished.run.release).sample(8, seed=0, purpose=Purpose.TRAINING)
    basis_of.cache_clear()
    drawn = load_generator(finished.run.release).sample(8, seed=0, purpose=Purpose.TRAINING)
    assert torch.equal(drawn, expected)


def test_portraits_of_a_folder_bring_their_license_along(tmp_path, monkeypatch):
    """`idpgan people` writes them once; a release holds those that were moved, and says whose they are."""
    monkeypatch.setattr("idpgan.portraits.render.read_head", made_head)
    write_people(tmp_path / "portraits", PeopleOptions(num=120, size=32))
    keys = {"public_root": tmp_path / "portraits", "public_license": "CC0 1.0 (idpgan people, anny 0.6.2)"}
    data = config_of().data.model_copy(update={"public": None, "public_images": None, "image_size": 32, **keys})
    released = trainer.start(config_of().model_copy(update={"data": data}), tmp_path / "run").run.release
    for name in ("README.md", "privacy.json"):
        assert "license CC0 1.0 (idpgan people, anny 0.6.2)" in (released / name).read_text()
    assert verify(released).problems == ()


@pytest.mark.parametrize("shape", [0, 4], ids=["as they lie", "registered"])
def test_zeroing_a_record_changes_no_setting(shape):
    """With the same released numbers, pictures, strengths, places and classes are the same, whoever is private."""
    private, public = smiling(60, 1), smiling(150, 2)
    nobody, made, numbers = private.select(torch.arange(0)), [], {}
    for records in (private, private.zeroed_out(torch.arange(1, 60))):
        method = trainer.train_on(config_of(drawing={"shape": shape}), Split(public, records, nobody, nobody))
        numbers = numbers or method._released
        assert (numbers is method._released) or not torch.equal(numbers["sums"], method._released["sums"])  # control
        method._take_released(numbers)
        made.append(method.artifact(method.plan.config.release).generator.state_dict())
    first, second = made
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("num", "moved", "message"), [(0, 50, "there are 0 public images"), (60, 50, "of class")])
def test_too_few_public_pictures_are_refused_before_anything_is_read(num, moved, message):
    public, private = smiling(300, 2).select(torch.arange(num)), smiling(200, 1)
    config = config_of(moved=moved)
    config = config.model_copy(update={"data": config.data.model_copy(update={"public": None})})
    nobody = private.select(torch.arange(0))
    with pytest.raises(ConfigError, match=message):
        trainer.train_on(config, Split(public, private, nobody, nobody))


def test_what_code_of_the_user_draws_is_moved_and_a_receiver_needs_none_of_it(tmp_path, monkeypatch):
    table = config_of().to_json()
    table["data"] = {key: value for key, value in table["data"].items() if not key.startswith("public")}
    table["model"] |= {"simulator": "tests.own.simulators:striped", "license": "CC0 1.0"}
    released = trainer.start(build_config(table, "the test"), tmp_path / "run").run.release
    monkeypatch.setitem(sys.modules, "tests.own.simulators", None)  # any import of it fails from here on
    assert verify(released).problems == ()
    from idpgan import load_generator

    across = load_generator(released).pictures.float().diff(dim=4).abs().mean((1, 2, 3, 4))
    assert across[1] > 1.3 * across[0]  # the stripes of the second class
    assert "tests.own.simulators:striped (license CC0 1.0), which drew them" in (released / "README.md").read_text()
    table["model"]["simulator"] = "tests.own.simulators:missing"
    with pytest.raises(ConfigError, match="missing"):
        trainer.start(build_config(table, "the test"), tmp_path / "other")


def test_a_method_without_a_normal_distribution_moves_nothing():
    table = config_of().to_json() | {"method": {"name": "dp-gan"}}
    table["privacy"] |= {"sample_rate": 0.3}
    with pytest.raises(ConfigError, match=r"releases a normal distribution.*this is dp-gan"):
        build_config(table, "the test")


def test_training_images_are_drawn_with_the_plain_share():
    mean, factor = torch.zeros(2, SIZE), 0.5 * torch.eye(SIZE).expand(2, SIZE, SIZE)
    moved = move(generator_of(mean, factor), public_images(), SILENT, seed=0)
    looked, trained = (moved.sample(20, seed=1, purpose=purpose) for purpose in Purpose)
    assert torch.allclose(looked, trained)  # plain_share = 0 and no noise to smear over
