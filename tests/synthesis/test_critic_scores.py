"""How real a method's critic finds an image: what an attacker inside the curator's walls asks."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from idpgan import trainer
from idpgan.data.load import load
from idpgan.trainer import critic_of
from idpgan.training.config import load_method
from idpgan.training.method import NoCriticError

CONFIGS = Path(__file__).parents[2] / "configs"


def method_of(name, overrides, *, prepare=False):
    config = trainer.load_config(CONFIGS / f"digits-{name}.toml", overrides)
    split = load(config.data)
    module = load_method(config.method.name)
    method = module.Method.of(config, split, device=torch.device("cpu"))
    if prepare:
        method.prepare()
    return method, split


@pytest.mark.parametrize("name", ["wgan-gp", "idp-gan-published", "aggregate"])
def test_the_critic_of_every_method_scores_images(name):
    method, split = method_of(name, ["model.width=8"], prepare=name == "aggregate")  # whose critic comes from the sums
    critic = critic_of(method)
    images, labels = torch.rand(6, *split.image_shape) * 2 - 1, torch.arange(6)
    scores = critic(images, labels)
    assert scores.shape == (6,)
    assert scores.isfinite().all()
    assert scores.unique().numel() > 1


def test_the_critic_of_sums_scores_one_image_as_it_scores_its_mean():
    """A batch of one image per class is the mean of its class: the sum of the scores is half the critic's own."""
    method, split = method_of("aggregate", ["model.width=8"], prepare=True)
    labels = torch.arange(method.rows)
    images = torch.rand(method.rows, *split.image_shape) * 2 - 1
    whole = method.critic.score(method.features.means(images, labels, method.rows))
    assert 2 * critic_of(method)(images, labels).sum().item() == pytest.approx(whole.item(), rel=1e-4)


def test_a_method_that_scores_images_itself_is_taken_at_its_word():
    method = SimpleNamespace(critic_scores=lambda images, labels: images.sum((1, 2, 3)))
    assert critic_of(method) is method.critic_scores
    with pytest.raises(NoCriticError):
        critic_of(SimpleNamespace())
