"""Ways of drawing by name, and the numbers that releases of earlier versions have in their place."""

import pytest
import torch

from idpgan.config import build
from idpgan.errors import ConfigError
from idpgan.models import build_generator
from idpgan.models.config import ModelConfig, Purpose, of_release
from idpgan.models.drawing import DRAWINGS, PLAIN, Drawing
from idpgan.models.private_classifier import LinearScattering

OLD = {  # what [model] of version 0.3.0 had -> the name that draws so
    "photos": {"generator": "gaussian", "light": True, "truncation": 0.7},
    "few-photos": {"generator": "gaussian", "truncation": 0.7},
    "faces": {"generator": "diffusion", "shape": 12},
    "handwriting": {"generator": "warp", "temperature": 2.5, "truncation": 1.0, "varied": 0.5},
    "pen": {"generator": "warp", "temperature": 2.5, "truncation": 1.0, "varied": 0.5, "agreed": 1000,
            "plain_share": 0.75},
    "many-classes": {"generator": "gaussian", "light": True, "detail": True, "shape": 6, "coolest": 0.4,
                     "truncation": 0.7},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(DRAWINGS.keys() - {"public-photos"}))  # no earlier version had it
def test_a_release_of_an_earlier_version_draws_as_the_name_does(name):
    old = build(ModelConfig, of_release(OLD[name]), "config.json")
    named = ModelConfig(generator=OLD[name]["generator"], drawing=name)
    assert old.drawn == named.drawn.model_copy(update={"taught": None})
    assert build(ModelConfig, of_release(old.to_json()), "config.json") == old  # as a later release states it
    assert named.to_json()["drawing"] == name


def test_the_release_that_a_run_builds_on_is_read_likewise():
    base = {"generator": "diffusion", "latent_dim": 20, "shape": 12, "temperature": 1.0}
    assert of_release({"origin": {"model": base}})["origin"]["model"]["drawing"] == {"shape": 12, "temperature": 1.0}


def test_what_no_config_and_no_proposal_had_is_refused_in_one_line():
    for old in (OLD["faces"] | {"shape": 11}, OLD["photos"] | {"coolest": 0.4}, OLD["pen"] | {"generator": "gaussian"}):
        with pytest.raises(ConfigError, match=r"^In config.json: a '\w+' generator that draws with .* 0\.3\.$"):
            build(ModelConfig, of_release(old), "config.json")
    with pytest.raises(ConfigError, match="Unknown key 'shapes' in drawing"):
        build(ModelConfig, {"generator": "gaussian", "drawing": {"shapes": 12}}, "config.json")


def test_a_run_folder_of_an_earlier_version_states_defaults_and_is_read():
    written = {key: value for key, value in Drawing().model_dump().items() if key != "taught" and value is not None}
    assert build(ModelConfig, written, "config.toml") == ModelConfig()
    assert build(ModelConfig, of_release(written), "config.json").drawing == PLAIN


@pytest.mark.parametrize("drawing", ["foto", 3, ["plain"], None, True])
def test_what_is_no_name_is_refused_with_the_names(drawing):
    with pytest.raises(ConfigError, match=r"drawing = .* is refused: it is none of plain, photos, few-photos, faces,"):
        build(ModelConfig, {"drawing": drawing}, "a.toml")


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_photos_are_drawn_more_widely_where_a_teacher_chooses(channels):
    shape = (channels, 8, 8)
    made = build_generator(ModelConfig(generator="gaussian", latent_dim=12, drawing="photos"), shape, 2)
    taught = made.taught_by(LinearScattering(shape, ("0", "1")), 4)
    assert set(made.temperatures(Purpose.TRAINING).tolist()) == {1.0}
    assert set(taught.temperatures(Purpose.TRAINING).tolist()) == {1.5 if channels == 1 else 1.0}
    assert torch.equal(taught.temperatures(Purpose.LOOKING), made.temperatures(Purpose.LOOKING))
    assert taught.temperature(Purpose.LOOKING) == 0.7
