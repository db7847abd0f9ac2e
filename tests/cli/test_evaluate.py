"""`idpgan evaluate` as a user meets it."""

import csv
import io
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from scipy.stats import binomtest, norm
from sklearn.datasets import load_digits

from idpgan.commands import main
from idpgan.commands.evaluate import evaluate
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.metrics import features as fitting
from idpgan.metrics.dpimagebench import BenchmarkSettings
from idpgan.models.classifier import ResNet, ResNeXt, WideResNet
from tests.data.layouts import declared

app = typer.Typer()
app.command()(evaluate)


@pytest.fixture(scope="module", autouse=True)
def one_epoch():
    """Fits that take no time; what they come to is tested in tests/metrics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "MIN_STEPS_PER_EPOCH", 1)
        for name, config in fitting.RECIPES.items():
            patch.setitem(fitting.RECIPES, name, config.model_copy(update={"epochs": 1}))
        patch.setattr("idpgan.metrics.features.FEWEST_STEPS", 2)
        patch.setattr("idpgan.metrics.features.MOST_STEPS", 2)
        yield


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache folder for all tests of this file."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IDPGAN_CACHE", str(folder))
        yield folder


@pytest.fixture
def run(capsys):
    """Run the command; returns stdout. Bad input raises, as it does for the program's own `main`."""

    def command(*arguments):
        app([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out

    return command


@pytest.fixture(scope="module")
def images():
    """Real digits, as anybody might save theirs."""
    part = load(DataConfig()).private
    return {"images": part.images.numpy(), "labels": part.labels.numpy()}


@pytest.fixture
def npz(tmp_path, images):
    np.savez(tmp_path / "images.npz", **images)
    return tmp_path / "images.npz"


def test_all_of_it_as_json(run, npz, images):
    options = ("--data", "digits", "data.public_share=0.2", "data.confirm_public=true", "--ceiling", "--floor")
    told = json.loads(run(npz, *options, "--full", "--seeds", 1, "--splits", 5, "--json"))
    assert (told["kind"], told["quick"]) == ("npz", False)
    assert told["num_images"] == len(images["labels"])
    for name, num_images in (("utility", len(images["labels"])), ("ceiling", 1008), ("floor", 287)):
        assert told[name]["num_images"] == num_images
        assert [score["name"] for score in told[name]["scores"]] == ["cnn", "resnet", "logistic"]
        assert told[name]["seeds"] == [0]
        assert 0.1 <= told[name]["majority"] <= 0.15
    assert 1 < told["inception"]["mean"] <= 10
    assert len(told["inception"]["classifier_sha256"]) == 64
    assert "curator only" in told["notes"][0]
    assert not any("quick" in note for note in told["notes"])
    assert told["data"]["public_share"] == 0.2
    assert told["fidelity"]["fid"] >= 0
    assert (told["fidelity"]["part"], told["fidelity"]["num_real"], told["fidelity"]["network"]) == (
        "test", 359, "classifier",
    )  # fmt: skip
    assert told["fidelity"]["features_sha256"] == told["inception"]["classifier_sha256"]
    assert told["fidelity_ceiling"]["num_images"] == 1008
    assert {path.name for path in npz.parent.iterdir()} == {"images.npz"}


def test_a_table_for_people(run, npz):
    text = run(npz, "--data", "digits", "--full", "--seeds", 1, "--splits", 5, "--no-progress")
    scores = ("cnn", "resnet", "logistic", "these images", "majority", "inception score", "FID")
    for word in (*scores, "sha256", "curator only", "359 real test images"):
        assert word in text
    assert "ceiling" not in text


def test_the_default_is_quick_and_says_so_with_its_interval(run, npz, images, monkeypatch):
    monkeypatch.setattr("idpgan.metrics.quick.IMAGES", 200)
    told = json.loads(run(npz, "--data", "digits", "--ceiling", "--json"))
    utility = told["utility"]
    assert (told["quick"], told["num_images"], utility["num_images"], told["ceiling"]["num_images"]) == (
        True,
        *3 * [200],
    )
    assert ([score["name"] for score in utility["scores"]], utility["seeds"]) == (["cnn"], [0])
    assert utility["num_test"] == told["fidelity"]["num_real"] == 359  # all of those that judge
    right = round(utility["scores"][0]["mean"] * 359)
    low, high = binomtest(right, 359).proportion_ci(0.95, "exact")
    assert told["notes"][-1] == (
        "quick: 200 images of a kind at most; --full takes all, three classifiers and three fits of each: "
        f"cnn {right / 359:.1%}, 95% interval {low:.1%} to {high:.1%}"
    )
    assert told["notes"][-1] in run(npz, "--data", "digits", "--ceiling").replace("\n", " ")
    asked = ("--only", "utility", "--seeds", 2, "--classifier", "logistic")
    again = json.loads(run(npz, "--data", "digits", *asked, "--json"))
    assert (again["utility"]["seeds"], again["utility"]["scores"][0]["name"]) == ([0, 1], "logistic")
    full = json.loads(run(npz, "--data", "digits", "--full", "--only", "fidelity", "--json"))
    assert full["num_images"] == len(images["labels"])


def test_a_quick_evaluation_draws_no_more_than_it_takes_but_what_is_asked_for(run, finished_run, monkeypatch):
    monkeypatch.setattr("idpgan.metrics.quick.IMAGES", 50)
    options = (finished_run / "release", "--data", "digits", "--only", "inception", "--splits", 1, "--json")
    assert json.loads(run(*options))["num_images"] == 50
    assert json.loads(run(*options, "--num", 70))["num_images"] == 70


def test_a_run_is_measured_against_its_own_data_and_keeps_the_result(run, finished_run, tmp_path):
    path = shutil.copytree(finished_run, tmp_path / "run")
    before = {file.name for file in (path / "release").iterdir()}
    told = json.loads(run(path, "--only", "inception", "--num", 60, "--json"))
    assert told == json.loads((path / "evaluation.json").read_text())
    assert (told["kind"], told["num_images"], told["data"]["name"]) == ("generator", 60, "digits")
    assert told["utility"] is None
    assert 1 <= told["inception"]["mean"] <= 10
    assert {file.name for file in (path / "release").iterdir()} == before


@pytest.mark.parametrize("name", ["synthetic", "synthetic.npz"])
def test_what_sample_exports_is_read_back(run, finished_run, tmp_path, name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sample", str(finished_run), "--num", "60", "--out", str(tmp_path / name), "--seed", "0"])
    assert ended.value.code == 0
    capsys.readouterr()
    options = ("--data", "digits", "--only", "inception", "--splits", 1, "--json")
    drawn = json.loads(run(finished_run / "release", *options, "--num", 60))
    told = json.loads(run(tmp_path / name, *options))
    assert told["num_images"] == drawn["num_images"] == 60
    # A folder comes sorted by class, but one split does not mind the order.
    assert told["inception"]["mean"] == pytest.approx(drawn["inception"]["mean"])


def test_unlabeled_images_have_a_score_but_no_utility(run, tmp_path, images):
    np.savez(tmp_path / "images.npz", images=images["images"])
    told = json.loads(run(tmp_path / "images.npz", "--data", "digits", "--json"))
    assert told["utility"] is None
    assert told["inception"]["mean"] > 1
    assert "utility is not measured" in told["notes"][1]


@pytest.fixture(scope="module")
def unlabeled(tmp_path_factory):
    """A flat folder of digits, and a config that declares it."""
    from PIL import Image

    folder, part = tmp_path_factory.mktemp("photos"), load(DataConfig()).private
    for number, pixels in enumerate(part.images[:120, 0].numpy()):
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    config = folder.parent / "photos.toml"
    config.write_text(
        f"[data]\nname = 'folder'\nroot = '{folder}'\nnum_images = 120\nimage_size = 8\nchannels = 1\nclasses = []\n"
    )
    return config


def test_images_without_any_labels_get_their_fidelity_from_an_autoencoder(run, npz, unlabeled):
    told = json.loads(run(npz, "--config", unlabeled, "--ceiling", "--json"))
    assert (told["utility"], told["inception"], told["ceiling"]) == (None, None, None)
    assert (told["fidelity"]["network"], told["fidelity"]["num_real"]) == ("autoencoder", 24)
    assert told["fidelity_ceiling"]["num_images"] == 87
    assert "the data set has no labels" in told["notes"][1]
    text = run(npz, "--config", unlabeled)
    assert "FID" in text
    assert "accuracy" not in text
    with pytest.raises(InputError, match="has no labels"):
        run(npz, "--config", unlabeled, "--only", "inception")


def test_the_holdout_judges_where_settings_are_chosen(run, npz):
    options = ("--data", "digits", "--seeds", 1, "--classifier", "logistic", "--part", "holdout", "--json")
    told = json.loads(run(npz, *options))
    assert [score["name"] for score in told["utility"]["scores"]] == ["logistic"]
    assert told["part"] == told["fidelity"]["part"] == "holdout"
    assert told["utility"]["num_test"] == told["fidelity"]["num_real"] == 143
    assert told["inception"]["classifier_sha256"] == told["fidelity"]["features_sha256"]
    usual = json.loads(run(npz, "--data", "digits", "--only", "fidelity", "--json"))
    assert usual["fidelity"]["features_sha256"] != told["fidelity"]["features_sha256"]  # the holdout is left out


BENCHMARK = BenchmarkSettings(ResNet(8, 4, 4), WideResNet(10, 1, grid_px=4), ResNeXt(11, 2, 4, grid_px=4), epochs=1)


@pytest.fixture
def quick_benchmark(monkeypatch):
    monkeypatch.setattr("idpgan.metrics.dpimagebench.SMALL", BENCHMARK)


def test_the_other_protocol_states_epsilon_at_its_own_delta(run, quick_benchmark):
    release = Path(__file__).parents[1] / "release" / "checkpoints-0.1.0" / "digits-aggregate-eps10"
    told = json.loads(run(release, "--protocol", "dpimagebench", "--num", 60, "--json"))
    assert [score["name"] for score in told["dpimagebench"]["scores"]] == ["resnet", "wrn", "resnext"]
    assert (told["dpimagebench"]["num_images"], told["dpimagebench"]["seeds"]) == (60, [0])
    assert (told["utility"], told["fidelity"], told["num_images"]) == (None, None, 60)
    privacy = told["privacy"]
    assert privacy["num_private"] == 1295
    assert privacy["benchmark"]["delta"] == pytest.approx(1 / (1295 * math.log(1295)))
    assert (privacy["own"]["epsilon"], privacy["own"]["delta"]) == (pytest.approx(9.99888, abs=1e-4), 1e-5)
    # One Gaussian of noise multiplier s: delta = P(N > e s - 1/2s) - exp(e) P(N > e s + 1/2s) (Balle and Wang 2018).
    s, epsilon = 0.4999342772340647, privacy["benchmark"]["epsilon"]
    delta = norm.sf(epsilon * s - 0.5 / s) - math.exp(epsilon) * norm.sf(epsilon * s + 0.5 / s)
    assert delta == pytest.approx(privacy["benchmark"]["delta"], rel=1e-6)
    text = run(release, "--protocol", "dpimagebench", "--num", 60, "--seeds", 2)
    for word in (
        "best of three",
        "chosen on held-back",
        "1 / (n ln n)",
        "own delta 1e-05",
        "2 seed(s)",
        "--full takes",
    ):
        assert word in text


def test_a_run_without_privacy_has_no_finite_epsilon_there(run, finished_run, tmp_path, quick_benchmark):
    path = shutil.copytree(finished_run, tmp_path / "run")
    told = json.loads(run(path, "--protocol", "dpimagebench", "--num", 60, "--json"))
    assert told["privacy"]["benchmark"]["epsilon"] == told["privacy"]["own"]["epsilon"] == "inf"
    assert told == json.loads((path / "evaluation.json").read_text())


def test_images_without_a_release_have_no_epsilon_there(run, npz, unlabeled, quick_benchmark):
    told = json.loads(run(npz, "--data", "digits", "--protocol", "dpimagebench", "--json"))
    assert (told["privacy"]["own"], set(told["privacy"]["benchmark"])) == (None, {"delta"})
    assert told["dpimagebench"]["num_images"] == told["num_images"]
    assert "no epsilon is known" in run(npz, "--data", "digits", "--protocol", "dpimagebench")
    with pytest.raises(InputError, match="has no classes"):
        run(npz, "--config", unlabeled, "--protocol", "dpimagebench")


def test_a_release_says_what_is_public_about_its_data(run, finished_run, npz, tmp_path):
    release = shutil.copytree(finished_run / "release", tmp_path / "release")
    for source, options in ((release, ("--num", 20)), (npz, ("--config", release)), (npz, ("--config", finished_run))):
        told = json.loads(run(source, *options, "--only", "fidelity", "--json"))
        assert told["data"]["name"] == "digits"
        assert told["fidelity"]["fid"] > 0
    config = json.loads((release / "config.json").read_text())
    config["settings"]["data"] |= {"holdout_share": 0.3, "root": "/etc"}
    (release / "config.json").write_text(json.dumps(config))
    told = json.loads(run(npz, "--config", release, "--only", "fidelity", "--json"))  # itself it would not be opened
    assert (told["data"]["holdout_share"], told["data"]["root"]) == (0.3, None)  # a path of somebody else's is dropped


def test_the_second_time_everything_is_known(run, npz, monkeypatch):
    options = (npz, "--data", "digits", "--seeds", 1, "--json")
    first = json.loads(run(*options))
    monkeypatch.setattr("idpgan.metrics.features.fit_classifier", None)  # calling it again would fail
    again = json.loads(run(*options))
    assert {**again, "seconds": 0} == {**first, "seconds": 0}


def test_the_result_can_be_kept_but_not_in_a_release(run, npz, finished_run, tmp_path):
    options = (npz, "--data", "digits", "--only", "inception")
    run(*options, "--out", tmp_path / "scores.json")
    assert json.loads((tmp_path / "scores.json").read_text())["inception"]
    with pytest.raises(InputError, match="must not be given away"):
        run(*options, "--out", finished_run / "release" / "scores.json")
    assert not (finished_run / "release" / "scores.json").exists()
    with pytest.raises(InputError, match="missing does not exist"):
        run(*options, "--out", tmp_path / "missing" / "scores.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--data is missing"),
        (["--data", "digit"], "Did you mean 'digits'"),
        (["--data", "digits", "--only", "inceptoin"], "Known: utility, inception, fidelity"),
        (["--data", "digits", "--range", "0-1"], "pixel range '0-1' is unknown"),
        (["--data", "digits", "--device", "tpu"], "--device tpu is unknown"),
        (["--data", "digits", "--part", "private"], "--part private is unknown"),
        (["--data", "digits", "--part", "holdout", "data.holdout_share=0"], "no holdout images"),
        (["--data", "digits", "--classifier", "svm"], "--classifier svm is unknown"),
        (["--data", "digits", "--features", "vgg"], "--features vgg is unknown"),
        (["--data", "digits", "--features", "inception-v3"], "nothing is downloaded"),
        (["--data", "digits", "--weights", "w.pth"], "go together"),
        (["--data", "digits", "--protocol", "dpbench"], "--protocol dpbench is unknown. Known: idpgan, dpimagebench"),
        (["--data", "digits", "--protocol", "dpimagebench", "--ceiling"], "--ceiling is not for --protocol dpimage"),
        (["--data", "digits", "--protocol", "dpimagebench", "--classifier", "cnn"], "--classifier is not for"),
        (["--config", "/nowhere.toml"], "nowhere"),
        (["--config", "."], "has no \\[data\\] section"),
        (["--data", "digits", "--seeds", "0"], "--seeds 0"),
        (["--data", "digits", "--splits", "0"], "splits = 0"),
        (["--data", "digits", "--splits", "5000"], "inception needs 5000"),
        (["--data", "digits", "--num", "5"], "--num 5 is for generators"),
        (["--data", "digits", "--floor"], "floor needs public images"),
        (["--data", "digits", "data.holdout=0.2"], "Did you mean 'holdout_share'"),
        (["--data", "digits", "training.steps=5"], "is not for evaluate"),
        (["--data", "folder", "--data-root", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_options_are_refused_in_one_line(run, npz, options, message):
    with pytest.raises(InputError, match=message) as caught:
        run(npz, *options)
    assert "\n" not in str(caught.value)


def test_bad_images_are_refused_before_anything_is_fitted(run, npz, images, monkeypatch, tmp_path):
    monkeypatch.setattr("idpgan.metrics.features.fit_classifier", None)
    for num, words in (
        (1, "1 images under test are too few: utility needs 3, inception needs 10, fidelity needs 6"),
        (5, "5 images under test are too few: inception needs 10, fidelity needs 6"),
        (8, "8 images under test are too few: inception needs 10. Give more images, or fewer --splits"),
    ):
        np.savez(tmp_path / "few.npz", **{name: array[:num] for name, array in images.items()})
        with pytest.raises(InputError, match=words):
            run(tmp_path / "few.npz", "--data", "digits")
    np.savez(tmp_path / "bad.npz", images=images["images"], labels=images["labels"][1:])
    with pytest.raises(InputError, match=r"labels of .* must be 1,295 whole"):
        run(tmp_path / "bad.npz", "--data", "digits")
    with pytest.raises(InputError, match="does not exist"):
        run(tmp_path / "missing", "--data", "digits")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no images"):
        run(tmp_path / "empty", "--data", "digits")


@pytest.fixture
def table(tmp_path):
    """A folder of 120 images with a table: a class, glasses with three blanks, and an age a row."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng, rows = np.random.default_rng(1), ["file_name,label,glasses,age"]
    for number in range(120):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{number}.png")
        glasses = "" if number < 3 else "yes" if number % 3 else "no"
        rows.append(f"{number}.png,{'ab'[number % 2]},{glasses},{number}")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return declared(folder, classes=("a", "b"))


def settings_of(config):
    given = {"classes": json.dumps(config.classes), "image_size": 8, "channels": 1, "num_images": config.num_images}
    return ["--data", "folder", "--data-root", config.root, *(f"data.{key}={value}" for key, value in given.items())]


@pytest.fixture
def drawn(tmp_path, table):
    """Images to put under test, and the options of a quick evaluation of them."""
    arrays = {"images": np.random.default_rng(2).integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)}
    np.savez(tmp_path / "drawn.npz", **arrays, labels=np.arange(60) % 2)
    limits = ("--only", "utility", "--classifier", "logistic", "--seeds", 1)
    return tmp_path / "drawn.npz", *settings_of(table), *limits


def rows_of(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_what_a_classifier_says_of_each_real_image_is_written(run, table, drawn, tmp_path):
    told = json.loads(run(*drawn, "--predictions", tmp_path / "said.csv", "--json"))
    rows = rows_of(tmp_path / "said.csv")
    photos = rows_of(table.data_root / "metadata.csv")
    assert list(rows[0]) == ["index", "file_name", "label", "predicted"]
    assert len({row["index"] for row in rows}) == len(rows) == told["utility"]["num_test"]
    for row in rows:
        photo = photos[int(row["index"])]
        assert (row["file_name"], row["label"]) == (photo["file_name"], photo["label"])
        assert row["predicted"] in "ab"
    right = sum(row["label"] == row["predicted"] for row in rows) / len(rows)
    assert right == pytest.approx(told["utility"]["scores"][0]["accuracies"][0])
    assert (tmp_path / "said.csv").stat().st_mode & 0o777 == 0o600
    for name in ("said.csv", "said.txt"):
        with pytest.raises(InputError, match=r"must be a new file that ends with \.csv"):
            run(*drawn, "--predictions", tmp_path / name)
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "privacy.json").write_text("{}")
    with pytest.raises(InputError, match="is in a release"):
        run(*drawn, "--predictions", tmp_path / "release" / "said.csv")


def test_images_of_a_set_without_files_are_told_by_their_index(run, npz, tmp_path):
    limits = ("--data", "digits", "--only", "utility", "--classifier", "logistic", "--seeds", 1)
    run(npz, *limits, "--predictions", tmp_path / "said.csv")
    rows, digits = rows_of(tmp_path / "said.csv"), load_digits().target
    assert list(rows[0]) == ["index", "label", "predicted"]
    assert [row["label"] for row in rows] == [str(digits[int(row["index"])]) for row in rows]


@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_groups_of_the_table_stand_beside_the_whole(run, drawn, tmp_path):
    pytest.importorskip("fairlearn", reason="the extra idpgan[fairness] is not installed")
    told = json.loads(run(*drawn, "--by", "glasses", "--predictions", tmp_path / "said.csv", "--json"))
    by, rows = told["by_group"], rows_of(tmp_path / "said.csv")
    assert list(by["groups"]) == ["no", "yes"]
    assert sum(group["num_real"] for group in by["groups"].values()) == told["utility"]["num_test"] - by["unknown"]
    for value, group in by["groups"].items():
        mine = [row["label"] == row["predicted"] for row in rows if row["group"] == value]
        assert (len(mine), sum(mine) / len(mine)) == (group["num_real"], pytest.approx(group["accuracy"]))
        assert group["interval"][0] <= group["accuracy"] <= group["interval"][1]
    text = run(*drawn, "--by", "glasses")
    assert "never in release/" in text
    assert "By glasses" in text
    for column, message in (("age", "and groups are 2 to 20"), ("glases", "Did you mean 'glasses'")):
        with pytest.raises(InputError, match=message):
            run(*drawn, "--by", column)
    with pytest.raises(InputError, match="by is not for --protocol dpimagebench"):
        run(*drawn[:-6], "--by", "glasses", "--protocol", "dpimagebench")


def test_without_fairlearn_groups_are_refused_in_one_line(run, drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "fairlearn.metrics", None)
    with pytest.raises(InputError, match=r'^--by needs the package fairlearn: pip install "idpgan\[fairness\]"$'):
        run(*drawn, "--by", "glasses")
