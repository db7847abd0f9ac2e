"""GP-GAN draws from landmarks alone, and what they say of the attribute can be read from what it draws."""

import functools

import pytest
import torch

from idpgan.errors import InputError
from idpgan.models.classifier import build_classifier
from idpgan.publish import load_obfuscator, make_obfuscator
from idpgan.publish.obfuscators.gp_gan import heat_map
from idpgan.training.fit import FitConfig, fit_classifier, predict

SIDE = 16


def toys(num=160, seed=0):
    """Two dark eyes, and a mouth that is wide or narrow: images, widths, people (the brightness of all), landmarks."""
    rng = torch.Generator().manual_seed(seed)
    wide = torch.randint(2, (num,), generator=rng)
    people = torch.randint(4, (num,), generator=rng)
    middle = 8 + torch.rand(num, 1, generator=rng)
    eyes, mouth = torch.full((num, 1), 3.0), torch.where(wide == 1, 4.5, 1.5)[:, None]
    x = torch.cat([middle - eyes, middle + eyes, middle - mouth, middle, middle + mouth], 1)
    y = torch.tensor([5.0, 5.0, 11.0, 11.5, 11.0]).expand(num, -1)
    landmarks = torch.stack([x, y], 2)
    ground = (0.4 + 0.15 * people)[:, None, None, None]
    images = ground - 0.4 * heat_map(landmarks, (SIDE, SIDE), 1.0).clamp(max=1)
    noise = 0.03 * torch.randn(images.shape, generator=rng)
    return (images + noise).clamp(0, 1), wide, people, landmarks


@functools.cache
def fitted():
    method = make_obfuscator(
        "gp-gan", (1, SIDE, SIDE), num_utilities=2, num_identities=4,
        width=4, steps=60, batch_size=16, learning_rate=5e-3, classifier_epochs=4, seed=1,
    )  # fmt: skip
    images, wide, people, landmarks = toys()
    method.fit(images, wide, people, landmarks=landmarks)
    return method


@pytest.mark.trained
def test_a_network_that_knows_clear_images_reads_the_attribute_from_drawn_ones():
    images, wide, _, _ = toys(seed=2)
    reader = build_classifier("cnn", (1, SIDE, SIDE), 2, seed=5)
    fit_classifier(reader, images * 2 - 1, wide, config=FitConfig(epochs=4, batch_size=32))
    images, wide, _, landmarks = toys(480, seed=3)
    kept = []
    for shown in (landmarks, landmarks.flip(0)):  # those of other faces say nothing
        drawn = fitted().transform(images, landmarks=shown)
        kept.append(float((predict(reader, drawn * 2 - 1).argmax(1) == wide).float().mean()))
    assert kept[0] > 0.9
    assert abs(kept[1] - 0.5) < 0.2
    assert float((drawn - images).abs().mean()) < 0.25


def test_nothing_but_landmarks_goes_into_what_is_drawn():
    images, _, _, landmarks = toys(8, seed=4)
    drawn = fitted().transform(images, landmarks=landmarks)
    assert torch.equal(fitted().transform(torch.rand_like(images), landmarks=landmarks), drawn)
    assert not torch.allclose(fitted().transform(images, landmarks=landmarks + 1.5), drawn, atol=0.05)


def test_the_heat_of_a_landmark_is_one_at_its_place_and_moves_by_fractions_of_a_pixel():
    place = torch.tensor([[[2.5, 4.5]]])
    heat = heat_map(place, (8, 6), 0.6)[0, 0]
    assert heat.shape == (8, 6)
    assert float(heat[4, 2]) == 1
    assert float(heat[4, 3]) == pytest.approx(0.2494, abs=1e-4)  # exp(-1 / (2 * 0.6^2))
    moved = heat_map(place + 0.25, (8, 6), 0.6)[0, 0]
    across = torch.arange(6) + 0.5
    assert float((moved.sum(0) * across).sum() / moved.sum()) == pytest.approx(2.75, abs=0.01)


def test_weights_are_saved_and_loaded(tmp_path):
    fitted().save(tmp_path)
    images, _, _, landmarks = toys(8, seed=6)
    again = load_obfuscator(tmp_path)
    assert torch.equal(again.transform(images, landmarks=landmarks), fitted().transform(images, landmarks=landmarks))
    assert (again.steps, again.training_parameters) == (60, fitted().training_parameters)
    assert again.training_parameters > again.num_parameters > 0


@pytest.mark.parametrize(
    ("name", "landmarks", "said"),
    [
        ("gp-gan", None, r"draws faces from their landmarks: give them, float32 \(N, K, 2\), in px"),
        ("gp-gan", torch.zeros(4, 5, 2), r"landmarks of 8 images must be float32 \(8, K, 2\), got"),
        ("gp-gan", torch.full((8, 5, 2), torch.nan), "finite numbers"),
        ("gp-gan", torch.zeros(8, 0, 2), "at least one"),
        ("obfuscator", torch.zeros(8, 5, 2), "'obfuscator' knows no landmarks. Leave them out"),
    ],
)
def test_landmarks_are_given_to_whom_they_belong(name, landmarks, said):
    images, wide, people, _ = toys(8)
    method = make_obfuscator(name, (1, SIDE, SIDE), num_utilities=2, num_identities=4, width=4, steps=1)
    for call in (lambda: method.fit(images, wide, people, landmarks=landmarks),
                 lambda: method.transform(images, landmarks=landmarks)):  # fmt: skip
        with pytest.raises(InputError, match=said):
            call()
