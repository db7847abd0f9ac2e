"""Traits: the norm of what is summed, neighbors, the tilt, and a run from folders to a release of portraits."""

import csv
import json
import math
import shutil

import pytest
import torch
from PIL import Image

import idpgan
from idpgan import portraits, trainer
from idpgan.commands.attack import AttackOptions, attack_run
from idpgan.commands.audit import run_case
from idpgan.commands.people import PeopleOptions, write_people
from idpgan.data.config import DataConfig
from idpgan.data.images import to_float, to_uint8
from idpgan.data.load import load
from idpgan.errors import ConfigError, InputError
from idpgan.kinds import verify
from idpgan.models.checkpoint import build_described
from idpgan.models.summary_statistics import BLOCKS, SummaryStatistics
from idpgan.origin import with_releases
from idpgan.privacy import Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.run import RunFolder
from idpgan.synthesis.renderer import Pen, Portraits
from idpgan.synthesis.traits import above_noise, moves, photographed, tilted
from idpgan.training.config import build_config, load_method
from tests.neighbors.watched import unpaid, watched
from tests.portraits.made_head import made_head

SIDE, POOL, PRIVATE = 32, 320, 40
SHAPE = (1, SIDE, SIDE)
RELATIONS = {"emptied": "zero-out-one", "replaced": "replace-one"}


@pytest.fixture(scope="module", autouse=True)
def _head():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.portraits.render.read_head", made_head)
        yield


def write(root, num, seed, who="person", **columns):
    """A folder of portraits; with columns (trait -> two names) those alone, and a person, or photo, on each two."""
    write_people(root, PeopleOptions(num=num, size=SIDE, seed=seed))
    if columns:
        rows = list(csv.DictReader((root / "metadata.csv").read_text().splitlines()))
        lines = [",".join(["file_name", who, *columns])]
        for number, row in enumerate(rows):
            values = [names[int(float(row[trait]))] for trait, names in columns.items()]
            lines.append(",".join([row["file_name"], f"p{number // 2}", *values]))
        (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("traits")
    return write(place / "portraits", POOL, 1), write(place / "photos", PRIVATE, 2, smiling=("calm", "happy"))


def enlarged(folder, root, side):
    """The same folder in color, its pictures enlarged."""
    for path in folder.rglob("*.png"):
        (root / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("RGB").resize((side, side)).save(root / path.relative_to(folder), compress_level=1)
    shutil.copy(folder / "metadata.csv", root / "metadata.csv")
    return root


@pytest.fixture(scope="module")
def learned(folders):
    images, traits = portraits.read(folders[0], (1, SIDE, SIDE))
    return SummaryStatistics().learn(images), images, traits


def config(folders, **sections):
    public, private = folders
    table = {
        "data": {
            "name": "folder", "root": str(private), "num_images": PRIVATE, "num_people": PRIVATE // 2,
            "label": ["smiling"], "classes": ["calm", "happy"], "image_size": SIDE, "channels": 1,
            "split_by": "identity", "public_root": str(public), "public_disjoint": True,
            "public_labels": {"calm": "not smiling", "happy": "smiling"},
        },
        "model": {"generator": "pictures", "codes": 6},
        "method": {"name": "traits"},
        "privacy": {"epsilon": 3.0, "delta": 1e-3},
        "training": {"device": "cpu"},
        "release": {"samples": 4},
    }  # fmt: skip
    for name, keys in sections.items():
        table[name] = {key: value for key, value in (table[name] | keys).items() if value is not None}
    return build_config(table, "a test")


# What is summed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["emptied", "replaced"])
def test_folders_that_differ_in_one_photo_differ_in_what_gets_noise_by_at_most_the_charge(
    folders, tmp_path, monkeypatch, relation
):
    shutil.copytree(folders[1], tmp_path / "photos")
    changed = tmp_path / "photos" / "000" / "000003.png"
    changed.write_bytes(b"" if relation == "emptied" else (folders[1] / "000" / "000007.png").read_bytes())
    reads = []
    for private in (folders[1], tmp_path / "photos"):
        table = config((folders[0], private), privacy={"relation": RELATIONS[relation]})
        with watched(monkeypatch) as seen:
            method = load_method("traits").Method.of(table, load(table.data), device=torch.device("cpu"))
            method.prepare()
        reads.append((seen, method.ledger.events))
    (left, events), (right, others) = reads
    assert events == others
    moved = [one.moved(other) / one.sensitivity for one, other in zip(left, right, strict=True)]
    assert 0 < max(moved) <= 1
    assert len(left) == 1
    assert not unpaid(left, events)


# The tilt ------------------------------------------------------------------------------------------------------------


def test_weights_bring_the_mean_where_it_was_released_and_no_further_than_the_ridge_lets_them():
    rng = torch.Generator().manual_seed(6)
    s = torch.randn(4000, 3, generator=rng, dtype=torch.float64)
    mean = torch.tensor([0.5, -0.3, 0.0], dtype=torch.float64)
    weights = tilted(s, mean, 1e-9)
    assert float(weights.sum()) == pytest.approx(1)
    torch.testing.assert_close(weights @ s, mean, rtol=0, atol=1e-4)
    held = tilted(s, mean, 1.0) @ s
    torch.testing.assert_close(held, mean / 2, rtol=0, atol=0.03)  # of normal numbers: shrunk by 1 / (1 + ridge)
    far = tilted(s, 100 * mean, 0.3)  # out of reach of any weights
    assert bool(far.isfinite().all())
    even = tilted(s, mean, 1e9)
    torch.testing.assert_close(even, torch.full_like(even, 1 / 4000), rtol=1e-6, atol=0)


def test_the_traits_that_weights_move_are_named_with_the_noise_that_repeated_releases_show():
    rng = torch.Generator().manual_seed(7)
    s = torch.randn(3000, 4, generator=rng, dtype=torch.float64)
    traits = {
        "open": s[:, 0].float(),
        "turned": (s[:, 1] + torch.randn(3000, generator=rng)).float(),
        "still": torch.ones(3000),
    }
    traits["other"] = torch.randn(3000, generator=rng)
    mean, ridge = torch.tensor([0.8, -0.6, 0.0, 0.0], dtype=torch.float64), 0.5
    told = moves(traits, s, tilted(s, mean, ridge), ridge, 0.05)
    assert list(told) == ["open", "turned"]
    again = torch.stack([
        tilted(s, mean + 0.05 * torch.randn(4, generator=rng, dtype=torch.float64), ridge) @ s[:, 0] for _ in range(200)
    ])  # fmt: skip
    before, after, std = told["open"]
    assert before == pytest.approx(float(s[:, 0].mean()), abs=1e-3)
    assert after == pytest.approx(float(again.mean()), abs=0.01)
    assert std == pytest.approx(float(again.std()), rel=0.2)
    drowned = moves(traits, s, tilted(s, mean, ridge), ridge, 5.0)
    assert drowned == {}


# Light and sharpness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [1e-3, 1e3])
def test_pictures_get_the_light_of_their_class_and_one_sharpness_but_no_noise(learned, noise):
    """Photos are portraits that were blurred and darkened, one class more."""
    statistics, images, _ = learned
    blurred = torch.nn.functional.avg_pool2d(to_float(images[:200]), 3, 1, 1)
    photos = [to_uint8(0.8 * blurred - dark) for dark in (0.1, 0.3)]
    sums = torch.stack([statistics(to_float(part)).sum(0) for part in photos])
    pictures = torch.stack([images[200:300], images[200:300]])
    seen = photographed(pictures, statistics, statistics.estimates(sums, noise))
    if noise > 1:
        assert torch.equal(seen, pictures)
        return
    for name in ("light", "sharpness"):
        means = [torch.stack([statistics.of(name, own).mean(0) for own in part]) for part in (seen, pictures, photos)]
        if name == "sharpness":
            means = [mean.mean(0) for mean in means]
        assert float((means[0] - means[2]).norm()) < 0.4 * float((means[1] - means[2]).norm()), name


def test_what_does_not_stand_above_the_noise_is_nothing():
    """Of noise alone hardly anything is left, of what is clear all; in between less is wrong than without a change."""
    rng = torch.Generator().manual_seed(8)
    noise, one = torch.randn(300, 400, generator=rng, dtype=torch.float64), torch.tensor(1.0)
    blocks, falling = BLOCKS["light"], 6 / (1 + torch.arange(400, dtype=torch.float64) / 4)

    def error(signal):
        found = torch.stack([(signal + own) * above_noise(signal + own, one, blocks) for own in noise])
        return float((found - signal).square().sum(1).mean())

    assert error(0 * falling) < 0.02 * 400
    assert error(100 * falling) == pytest.approx(400, rel=0.05)
    assert error(falling) < min(0.3 * 400, 0.8 * float(falling.square().sum()))


# Which portraits serve a class ---------------------------------------------------------------------------------------


def test_looks_attributes_and_no_classes_choose_portraits(learned):
    traits = learned[2]
    smiling, everything = torch.nonzero(traits["smiling"] == 1)[:, 0], torch.arange(POOL)
    data = {"public_root": "here", "name": "folder"}
    looks = DataConfig(**data, classes=["sad", "glad"], public_labels={"glad": "smiling", "sad": "not smiling"})
    calm, glad = Portraits(looks, SHAPE).rows_of(traits, ("class-0", "class-1"))  # as a release calls people
    assert torch.equal(glad, smiling)
    assert len(calm) + len(glad) == POOL
    by_bits = Portraits(DataConfig(**data, label=["smiling", "male"]), SHAPE).rows_of(
        traits, ("neither", "s", "m", "both")
    )
    assert torch.equal(by_bits[3], torch.nonzero(traits["smiling"] * traits["male"])[:, 0])
    assert [
        len(rows) for rows in Portraits(DataConfig(**data, public_labels={}), SHAPE).rows_of(traits, ("a", "b"))
    ] == [POOL, POOL]
    assert torch.equal(Portraits(DataConfig(**data), SHAPE).rows_of(traits, ())[0], everything)
    with pytest.raises(ConfigError, match=r"'' is no look of portraits.*Say in data\.public_labels"):
        Portraits(DataConfig(**data, classes=["a", "b"]), SHAPE).rows_of(traits, ("a", "b"))
    nobody = traits | {"bald": torch.zeros(POOL)}
    with pytest.raises(ConfigError, match="none of the 320 portraits is 'bald'"):
        Portraits(DataConfig(**data, classes=["a"], public_labels={"a": "bald"}), SHAPE).rows_of(nobody, ("a",))


# A run ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(folders, tmp_path_factory):
    return trainer.start(config(folders), tmp_path_factory.mktemp("traits") / "run")


def test_a_run_releases_portraits_that_load_draw_and_verify(finished, monkeypatch):
    monkeypatch.setattr("idpgan.portraits.render.read_head", None)  # a receiver needs no renderer
    found = verify(finished.run.release)
    assert found.problems == ()
    assert 0.99 * 3 < found.report.proven.epsilon <= 3
    assert "one release of noisy sums of edges, light, sharpness" in found.report.reason
    generator = idpgan.load_generator(finished.run.release)
    assert generator.classes == ("calm", "happy")
    drawn = generator.sample(8, seed=1)
    held = to_float(generator.pictures.flatten(0, 1)).flatten(1)
    assert all(bool((image.flatten() == held).all(1).any()) for image in drawn)
    assert len(held.unique(dim=0)) > 6


def test_the_card_says_in_words_what_was_asked_and_another_number_is_noticed(finished, tmp_path):
    card = (finished.run.release / "README.md").read_text()
    asked = json.loads((finished.run.release / "config.json").read_text())["generator"]["asked"]
    assert len(asked) == 2
    for name, one in zip(("calm", "happy"), asked, strict=True):
        assert f"- {one['images']:,.0f} ± {one['images_std']:g} images of {name}: " in card
        assert all(
            f"`{trait}` from {numbers[0]:g} to {numbers[1]:g} ± " in card for trait, numbers in one["traits"].items()
        )
    generator = idpgan.load_generator(finished.run.release)
    assert generator.asked[1].images == asked[1]["images"]
    copy = shutil.copytree(finished.run.release, tmp_path / "copy")
    (copy / "README.md").write_text(card.replace("images of calm", "images of happy"))
    assert verify(copy).beside
    forged = json.loads((copy / "config.json").read_text())
    for odd in (
        [asked[0]],
        [asked[0], asked[1] | {"traits": {"[link](x)": [0.0, 1.0, 0.1]}}],
        [asked[0] | {"images": None}] * 2,
    ):
        forged["generator"]["asked"] = odd
        with pytest.raises(InputError, match="asked"):
            build_described(forged["generator"], copy / "config.json")


def test_portraits_of_a_release_are_moved_onto_a_law_and_the_total_counts_both(folders, finished, tmp_path):
    """What traits cannot draw is moved: a release of gaussian on top, whose total is proven of both together."""
    table = config(folders).model_dump(mode="json", exclude_unset=True)
    data = {key: value for key, value in table["data"].items() if not key.startswith("public_root")}
    data |= {"public_generator": str(finished.run.path), "public_disjoint": False, "public_labels": None}
    on_top = table | {
        "data": {key: value for key, value in data.items() if value is not None},
        "model": {"generator": "gaussian", "latent_dim": 10, "simulator": "generator", "moved": 25},
        "method": {"name": "gaussian"},
        "privacy": {"epsilon": 4.0, "delta": 1e-3},
    }
    made = trainer.start(build_config(with_releases(on_top), "a test"), tmp_path / "run")
    found = verify(made.run.release)
    assert found.problems == ()
    assert found.report.proven.epsilon <= 4 < found.report.total.epsilon <= 7
    pictures = idpgan.load_generator(made.run.release).sample(6, seed=1)
    assert pictures.shape == (6, 1, SIDE, SIDE)


def test_a_finished_run_pays_and_changes_nothing_when_it_is_resumed(finished, tmp_path):
    copy = shutil.copytree(finished.run.path, tmp_path / "run")
    trainer.resume(copy)
    for path in (finished.run.ledger, *finished.run.release.iterdir()):
        assert (copy / path.relative_to(finished.run.path)).read_bytes() == path.read_bytes()


def test_who_is_stopped_while_portraits_are_drawn_pays_once_and_gets_the_same_release(
    folders, tmp_path, monkeypatch, finished
):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("idpgan.portraits.draw", stopped)
        with pytest.raises(KeyboardInterrupt):
            trainer.start(config(folders), tmp_path / "run")
    before = RunFolder.open(tmp_path / "run").ledger.read_bytes()
    again = trainer.resume(tmp_path / "run")
    assert again.run.ledger.read_bytes() == before
    assert verify(again.run.release).problems == ()


@pytest.mark.parametrize(
    ("privacy", "conditional"), [({"unit": "person", "most_per_person": 2}, True), ({"relation": "replace-one"}, False)]
)
def test_units_relations_and_no_classes(folders, tmp_path, privacy, conditional):
    model = {"conditional": conditional, "codes": 3}
    made = trainer.start(config(folders, privacy=privacy, model=model), tmp_path / "run")
    assert verify(made.run.release).problems == ()
    assert str(verify(made.run.release).report.proven.unit) == privacy.get("unit", "image")


def test_two_faces_of_a_photo_are_one_unit(folders, tmp_path):
    photos = write(tmp_path / "photos", PRIVATE, 3, who="cut_from", smiling=("calm", "happy"))
    privacy = {"unit": "photo", "most_per_person": 2}
    made = trainer.start(config((folders[0], photos), privacy=privacy), tmp_path / "run")
    found = verify(made.run.release)
    assert found.problems == ()
    assert str(found.report.proven.unit) == "photo"
    with pytest.raises(ConfigError, match=r'Set privacy\.unit = "photo"'):
        trainer.start(config((folders[0], photos)), tmp_path / "of-images")


@pytest.mark.parametrize("side", [64, 96])
def test_larger_pictures_are_drawn_in_color(folders, tmp_path, side):
    larger = [enlarged(folder, tmp_path / folder.name, side) for folder in folders]
    data, model = {"image_size": side, "channels": 3}, {"codes": 2}
    made = trainer.start(config(larger, data=data, model=model), tmp_path / "run")
    assert verify(made.run.release).problems == ()
    pictures = idpgan.load_generator(made.run.release).pictures
    assert pictures.shape == (2, 2, 3, side, side)
    assert bool((pictures[:, :, 0] != pictures[:, :, 2]).flatten(2).any(2).all())  # the folders were grey


def digits(**sections):
    table = {
        "data": {"name": "digits"},
        "model": {"generator": "pictures", "simulator": "fonts", "codes": 30},
        "method": {"name": "traits"},
        "privacy": {"epsilon": 30.0, "delta": 1e-5},
        "training": {"device": "cpu"},
        "release": {"samples": 4},
    }
    return build_config({name: keys | sections.get(name, {}) for name, keys in table.items()}, "a test")


def test_digits_of_the_pen_are_drawn_as_the_digits_are_written(tmp_path, monkeypatch):
    """Where noise is small, what is drawn lies nearer to the private means of classes than the pen's own do."""
    monkeypatch.setattr("idpgan.synthesis.renderer._DIGITS", 600)
    run = trainer.start(digits(), tmp_path / "run").run
    assert verify(run.release).problems == ()
    pictures, private = idpgan.load_generator(run.release).pictures, load(digits().data).private
    pen = Pen(digits().data, private.image_shape)
    pool, traits = pen.pool()
    statistics = SummaryStatistics(pen.asked).learn(pool)
    left = torch.zeros(2)
    for row, own in enumerate(pen.rows_of(traits, private.classes)):
        parts = pictures[row], pool[own], private.images[private.labels == row]
        drawn, even, asked = (statistics.of("edges", part).mean(0) for part in parts)
        left += torch.stack([(one - asked).norm() for one in (drawn, even)])
    assert float(left[0]) < 0.95 * float(left[1])


def test_no_letter_is_drawn_by_the_pen_and_no_public_image_is_taken_for_nothing():
    pen = Pen(digits().data, (1, 28, 28))
    pen.check(("0", "1"))
    with pytest.raises(ConfigError, match="'a' is no digit"):
        pen.check(("a", "b"))
    with pytest.raises(ConfigError, match=r"data\.public is of no use"):
        Pen(digits(data={"public": "fonts"}).data, (1, 28, 28)).check(())


def test_the_audit_of_a_run_is_below_its_proof(finished):
    found = run_case(finished.run.path).run(2000, seed=1)
    assert 0 < found.result.epsilon_lower <= found.case.proven.epsilon


@pytest.mark.slow  # half a minute
def test_ten_attacks_run_on_a_release_and_its_sums(folders, tmp_path):
    num = 3 * PRIVATE
    photos = write(tmp_path / "photos", num, 4, smiling=("calm", "happy"))
    data = {"holdout_share": 0.2, "num_images": num, "num_people": num // 2}
    made = trainer.start(config((folders[0], photos), data=data), tmp_path / "run")
    found = attack_run(made.run.path, AttackOptions(samples=60, most=12, most_costly=6))
    judged = {one.attack.name: one.result for one in found.outcomes if one.result is not None}
    assert len(judged) == 10
    assert {"nearest-sample", "person-set", "trace"} <= set(judged)
    assert all(0 <= one.auc <= 1 for one in judged.values())


@pytest.mark.parametrize(
    ("section", "keys", "words"),
    [
        ("data", {"public_root": None, "public_labels": None, "public_disjoint": False}, "idpgan people PORTRAITS"),
        ("model", {"generator": "gaussian"}, 'model.generator = "pictures"'),
        ("data", {"public_labels": {"calm": "hat", "happy": "smiling"}}, "hat"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(folders, tmp_path, section, keys, words):
    with pytest.raises(InputError, match=words) as refused:
        trainer.start(config(folders, **{section: keys}), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "run").rglob("ledger.json"))


def test_few_portraits_are_refused_before_anything_is_written(folders, tmp_path):
    shutil.copytree(folders[0], tmp_path / "few")
    table = (tmp_path / "few" / "metadata.csv").read_text().splitlines()
    for line in table[100:]:
        (tmp_path / "few" / line.partition(",")[0]).unlink()
    (tmp_path / "few" / "metadata.csv").write_text("\n".join(table[:100]) + "\n")
    with pytest.raises(InputError, match="99 portraits are too few"):
        trainer.start(config((tmp_path / "few", folders[1])), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_traits_is_refused(folders, tmp_path):
    (tmp_path / "portraits").mkdir()
    rows = list(csv.reader((folders[0] / "metadata.csv").read_text().splitlines()))
    shutil.copytree(folders[0], tmp_path / "portraits", dirs_exist_ok=True)
    (tmp_path / "portraits" / "metadata.csv").write_text("\n".join(",".join(row[:20]) for row in rows) + "\n")
    with pytest.raises(InputError, match="is no folder of portraits with their traits"):
        portraits.read(tmp_path / "portraits", (1, SIDE, SIDE))


def test_noise_of_a_fixed_seed_gives_the_same_sums(folders, learned):
    sums = CellSums.calibrated(1, SummaryStatistics().dimensions, "gaussian", epsilon=1.0, delta=1e-5,
                               unit=Unit.IMAGE, relation=Relation.ZERO_OUT)  # fmt: skip
    batch = [(learned[0](to_float(learned[1][:10])), torch.zeros(10, dtype=torch.int64), None)]
    first, second = (sums.release(batch, Noise.fixed(seed)) for seed in (1, 2))
    assert torch.equal(first, sums.release(batch, Noise.fixed(1)))
    assert float((first - second).std()) == pytest.approx(math.sqrt(2) * sums.noise_std, rel=0.25)
