"""The warning before training: a case that is known to end in noise gets it, those that are known to work do not."""

import json
import math
from pathlib import Path

import pytest

from idpgan import trainer
from idpgan.commands import main
from idpgan.data.load import DataShape, Sizes
from idpgan.training.plan import Signal, plan_run

CONFIGS = Path(__file__).parents[2] / "configs"
ORL = DataShape(Sizes(0, 288, 0, 0), (1, 48, 48), tuple(map(str, range(40))))  # ended in swirls
DIGITS = DataShape(Sizes(28, 1294, 0, 0), (1, 8, 8), tuple(map(str, range(10))))
METHODS = (
    "aggregate",
    "gaussian",
    "evolution",
    pytest.param("dp-gan", marks=pytest.mark.slow),  # their noise takes a search of seconds
    pytest.param("diffusion", marks=pytest.mark.slow),
)


def signal(name, shape, *overrides):
    return plan_run(trainer.load_config(CONFIGS / f"digits-{name}.toml", overrides), shape).signal


@pytest.mark.parametrize("name", METHODS)
def test_288_photos_in_40_classes_are_noise_and_the_digits_are_not(name):
    noise = signal(name, ORL)
    assert noise.figure < 1
    assert "the result will be noise: 7.2 images in each of 40 classes" in noise.warning
    assert signal(name, DIGITS).figure > 1
    assert signal(name, DIGITS).warning is None


@pytest.mark.parametrize("name", METHODS)
def test_the_figure_grows_with_the_records_of_a_class(name):
    double = DataShape(Sizes(0, 2 * 288, 0, 0), ORL.image_shape, ORL.classes)
    assert signal(name, double).figure == pytest.approx(2 * signal(name, ORL).figure, rel=0.01)


def test_what_is_advised_is_enough():
    noise = signal("gaussian", ORL)
    few = int(noise.warning.split("at most ")[1].split()[0])
    fewer = DataShape(ORL.sizes, ORL.image_shape, ORL.classes[:few])
    assert signal("gaussian", fewer).warning is None
    fewer = DataShape(ORL.sizes, ORL.image_shape, ORL.classes[: few + 1])
    assert signal("gaussian", fewer).warning is not None


def test_what_images_will_look_like_follows_from_public_numbers_alone(capsys):
    def of_photos(num, epsilon, *settings):
        shape = DataShape(Sizes(0, num, 0, 0), (1, 48, 48), ("a", "b"))
        return signal("gaussian", shape, f"privacy.epsilon={epsilon}", "privacy.delta=1e-6", *settings)

    def in_place(num, epsilon):
        return of_photos(num, epsilon, "model.drawing=faces")

    looks = [
        (each(num, epsilon).look) for num, epsilon in ((1_000, 0.1), (7_000, 10.0)) for each in (of_photos, in_place)
    ]
    assert looks == ["noise", "noise", "blobs", "pictures"]
    assert in_place(7_000, 10.0).foretold is None
    assert "or public ones of the same kind (data.public_root)" in of_photos(7_000, 10.0).foretold
    assert "times as many images" in in_place(1_000, 0.1).foretold
    numbers = [of_photos(num, 1.0).numbers for num in (1_000, 8_000)]
    assert numbers[1] == pytest.approx(4 * numbers[0], rel=0.02)  # as N^(2/3)
    assert signal("gaussian", DIGITS).foretold is None  # 8 x 8 is no picture to look at
    assert signal("evolution", ORL).foretold is None or signal("evolution", ORL).numbers is None


def test_a_person_counts_once_and_less_budget_is_more_noise():
    people = ["privacy.unit=person", "data.split_by=identity", "privacy.most_per_person=4"]
    with_people = DataShape(DIGITS.sizes, DIGITS.image_shape, DIGITS.classes, has_people=True)
    one, all_of = signal("gaussian", DIGITS), signal("gaussian", with_people, *people)
    assert all_of.figure == pytest.approx(one.figure / 4, rel=0.01)
    assert signal("gaussian", DIGITS, "privacy.epsilon=0.1").figure < 0.1 * one.figure


def test_methods_without_such_a_release_say_nothing():
    assert signal("wgan-gp", ORL) is None


def test_no_noise_is_infinite_signal():
    assert Signal(5.0, 1, 0.0, "the release").figure == math.inf
    assert Signal(5.0, 1, 0.0, "the release").to_json()["figure"] is None


def test_steps_that_are_too_few_are_noise():
    fixed = "privacy.noise_multiplier=1.0"
    many, few = (signal("dp-gan", DIGITS, fixed, f"training.steps={steps}") for steps in (4000, 40))
    assert many.figure == pytest.approx(10 * few.figure)
    assert (many.warning, few.warning is None) == (None, False)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code, *capsys.readouterr()


def test_the_dry_run_shows_it_and_train_warns(capsys, caplog, tmp_path):
    gaussian = CONFIGS / "digits-gaussian.toml"
    code, out, _ = run(capsys, "train", gaussian, "--dry-run", "privacy.epsilon=0.05", "--json")
    planned = json.loads(out)["plan"]["signal_to_noise"]
    assert code == 0
    assert planned["figure"] < planned["least"] == 1
    assert "noise" in planned["warning"]
    code, out, _ = run(capsys, "train", gaussian, "--dry-run")
    assert "# Signal to noise: 8." in out
    assert "# Warning" not in out
    code, out, _ = run(capsys, "train", gaussian, "--dry-run", "privacy.epsilon=0.05")
    assert "# Warning: the result will be noise" in out
    code, _, _ = run(capsys, "train", gaussian, "privacy.epsilon=0.05", "--out", tmp_path / "run")
    assert code == 0
    assert "the result will be noise" in caplog.text  # the command line shows it on standard error


def test_images_without_classes_are_not_counted_by_class():
    noise = Signal(29.0, 1, 40.8, "the release", "people")
    assert "29 people against the noise of the release" in noise.warning
