"""Public pictures that a teacher agrees with: it chooses them, they stay as they are, and no private image is read."""

import pytest
import torch

from idpgan import load_generator, trainer
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, load
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models.config import ModelConfig, Purpose
from idpgan.models.drawing import Drawing
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.private_classifier import LinearScattering
from idpgan.synthesis.move import agreed
from idpgan.training.config import build_config

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE, CLASSES = (1, 8, 8), ("left", "right")


def lit(num, side):
    """Pictures that are bright on one side, all different."""
    images = torch.randint(0, 80, (num, *SHAPE), generator=torch.Generator().manual_seed(side)).byte()
    images[..., 4 * side : 4 * side + 4] += 150
    return images


def teacher_of_sides():
    """A teacher that tells the sides apart: its weights are the difference of the features of both."""
    teacher = LinearScattering(SHAPE, CLASSES)
    means = [teacher.features(to_float(lit(50, side))).mean(0) for side in (0, 1)]
    with torch.no_grad():
        teacher.weight.copy_(1e3 * torch.stack([means[0] - means[1], means[1] - means[0]]))
    return teacher


def law(**keys):
    model = ModelConfig(generator="gaussian", latent_dim=6, drawing=Drawing(agreed=10, **keys))
    return GaussianGenerator(model, SHAPE, 2).eval()


def side_of(pictures):
    return (pictures[..., 4:].float().mean((1, 2, 3)) > pictures[..., :4].float().mean((1, 2, 3))).long()


@pytest.mark.parametrize("labeled", [True, False])
def test_a_teacher_takes_the_pictures_that_look_like_their_class(labeled):
    pictures = torch.cat([lit(15, 0), lit(15, 1)])
    wrong = torch.arange(30) % 2  # half of each class show the other side
    public = Images(pictures, wrong if labeled else None, CLASSES if labeled else ())
    found = agreed(law(), public, teacher_of_sides(), seed=0)
    for row in (0, 1):
        kept = found.pictures[row]
        assert (kept[:, None] == pictures[None]).all((2, 3, 4)).any(1).all()  # as they are
        right = side_of(kept) == row
        assert right.sum() == (min(10, int((side_of(pictures[wrong == row]) == row).sum())) if labeled else 10)


def test_what_is_drawn_is_both_for_training_and_to_look_at():
    public = Images(torch.cat([lit(15, 0), lit(15, 1)]), torch.arange(30) // 15, CLASSES)
    generator = agreed(law(plain_share=0.25), public, teacher_of_sides(), seed=0)
    for purpose in Purpose:
        drawn = generator.sample(400, seed=1, purpose=purpose)
        plain = (drawn == 0).all((1, 2, 3)).double().mean()  # the law is not set: its images are grey
        assert 0.19 < plain < 0.31


def config_of(**model):
    table = {
        "data": {"name": "digits", "public": "fonts", "public_images": 300},
        "model": {"generator": "gaussian", "latent_dim": 20, "drawing": {"agreed": 12}} | model,
        "method": {"name": "gaussian", "teacher_share": 0.5, "teacher_steps": 5, "candidates": 2},
        "privacy": {"epsilon": 10.0, "delta": 1e-5},
    }
    return build_config(table, "a test")


def test_a_run_releases_them_and_says_so(tmp_path):
    trainer.start(config_of(), tmp_path / "run")
    assert verify(tmp_path / "run" / "release").problems == ()
    assert load_generator(tmp_path / "run").pictures.shape == (10, 12, 1, 8, 8)
    card = (tmp_path / "run" / "release" / "README.md").read_text()
    assert "12 public images of each class that the teacher agreed with" in card


@pytest.mark.parametrize("labeled", [True, False])
def test_zeroing_a_record_changes_no_picture(labeled):
    """With the same released numbers the same pictures are drawn, whoever is private."""
    config = config_of()
    split = load(config.data)
    public = split.public if labeled else Images(split.public.images)
    nobody, made, numbers = split.private.select(torch.arange(0)), [], {}
    for records in (split.private, split.private.zeroed_out(torch.arange(1, 60))):
        method = trainer.train_on(config, Split(public, records, nobody, nobody))
        numbers = numbers or method._released
        assert (numbers is method._released) or not torch.equal(numbers["sums"], method._released["sums"])  # control
        method._take_released(numbers)
        made.append(method.artifact(config.release).generator.state_dict())
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"drawing": {"agreed": 31}}, "needs at least 31 public images of each class, and there are 30 of class '0'"),
        ({"drawing": {"agreed": 301}}, "and there are 300 public images"),
        ({"conditional": False}, "classes"),
    ],
)
def test_too_few_pictures_or_no_class_is_refused_before_anything_is_read(tmp_path, keys, message):
    with pytest.raises(ConfigError, match=message):
        trainer.start(config_of(**keys), tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


def test_without_a_teacher_nothing_is_chosen():
    table = config_of().model_dump(mode="json")
    table["method"]["teacher_share"] = 0.0
    with pytest.raises(ConfigError, match="that a teacher finds"):
        build_config(table, "a test")
    with pytest.raises(ConfigError, match="exclude each other"):
        config_of(moved=5)
