"""What either participant has when one attacks the other; the attack itself is `benchmarks/papers/gan_attack.py`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from papers import gan_attack
from PIL import Image

from idpgan.data.config import DataConfig
from idpgan.data.images import to_unit
from idpgan.data.load import load
from tests.data import layouts


def test_the_adversary_has_no_digit_of_the_victim_and_the_silent_victim_no_digit_at_all():
    images = load(DataConfig(name="digits")).private
    dealt, own = gan_attack.two_participants(images, uploads=True)
    victim, adversary = dealt.labels[0::2], dealt.labels[1::2]
    assert victim.unique().tolist() == [0, 1, 2, 3, 4]
    assert adversary.unique().tolist() == [5, 6, 7, 8, 9, 10]
    assert len(victim) == len(adversary) > 500
    assert (dealt.labels[own] == 10).all()
    assert int((dealt.labels == 10).sum()) == len(own) == gan_attack.FAKES
    silent, _ = gan_attack.two_participants(images, uploads=False)
    assert silent.is_null.nonzero()[:, 0].tolist() == list(range(0, len(dealt), 2))
    assert torch.equal(silent.images[1::2], dealt.images[1::2])


def test_real_digits_are_judged_as_drawn_well_and_other_ones_are_not():
    images = load(DataConfig(name="digits")).private
    five = torch.stack([to_unit(images.images[images.labels == digit])[:60] for digit in range(5)], 1).flatten(0, 1)
    found = gan_attack.judged(five, images)
    assert found["drawn as their class"] > 0.8
    assert (found["means as their class"], found["correlation of the means"]) == (5, pytest.approx(1.0, abs=0.02))
    wrong = gan_attack.judged(five.roll(1, 0), images)
    assert wrong["drawn as their class"] < 0.1
    assert wrong["means as their class"] == 0


def greys(pixels):
    return Image.fromarray(pixels.astype(np.uint8))


CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_attack_takes_a_config_on_a_folder_of_ones_own(tmp_path, capsys, monkeypatch):
    for place, name in enumerate("abcd"):
        for number in range(100):
            pixels = np.random.default_rng(number).integers(0, 60, (8, 8)) + 60 * place
            layouts.save(tmp_path / ("train" if number % 4 else "test") / name / f"{number}.png", greys(pixels))
    data = {"name": '"folder"', "root": f'"{tmp_path}"', "image_size": 8, "channels": 1, "num_images": 300}
    settings = [f"data.{key}={value}" for key, value in data.items()] + ['data.classes=["a", "b", "c", "d"]']
    words = [str(CONFIGS / "digits-dssgd.toml"), *settings, "training.steps=2", "--seeds", "3"]
    monkeypatch.setattr("sys.argv", ["gan_attack.py", *words])
    gan_attack.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["victim uploads"] for row in rows] == [True, False]
    assert {(row["seed"], row["rounds"], row["share"]) for row in rows} == {(3, 2, 0.1)}
    assert all(0 <= row["means as their class"] <= 2 for row in rows)


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [("digits-dp-sgd", [], "is of dp-sgd"), ("digits-dssgd", ['data.name="faces"'], "0 classes and a test part")],
)
def test_what_it_cannot_attack_is_refused_in_one_line(config, settings, words, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["gan_attack.py", str(CONFIGS / f"{config}.toml"), *settings])
    with pytest.raises(SystemExit):
        gan_attack.main()
    assert words in capsys.readouterr().err
