import pytest
import torch

from idpgan.errors import InputError
from idpgan.models.classifier import CLASSIFIERS, build_classifier


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 48, 48), (3, 64, 64), (1, 112, 92)])
def test_every_size_gives_logits_from_features(name, shape):
    model = build_classifier(name, shape, 7).eval()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    logits = model(images)
    assert logits.shape == (3, 7)
    assert torch.allclose(logits, model.head(model.features(images)))
    assert logits.std(dim=0).min() > 0  # images differ, and so does what the classifier makes of them


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_resnet_has_at_most_100_000_parameters(shape):
    assert num_parameters(build_classifier("resnet", shape, 300)) <= 100_000


def test_logistic_regression_is_linear_in_the_pixels():
    model = build_classifier("logistic", (1, 8, 8), 10)
    assert num_parameters(model) == 64 * 10 + 10
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    one, other = torch.rand(2, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(model((one + other) / 2), (model(one) + model(other)) / 2, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_no_class_is_preferred_at_first(name):
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert build_classifier(name, (1, 8, 8), 5)(images).eq(0).all()


def test_weights_depend_on_the_seed_alone():
    state = torch.get_rng_state()
    one, same, other = (build_classifier("cnn", (1, 8, 8), 10, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["body.0.weight"], other["body.0.weight"])
    assert torch.equal(torch.get_rng_state(), state)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"no classifier 'resnt'. Did you mean 'resnet'"):
        build_classifier("resnt", (1, 8, 8), 10)


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 32), (20, 16), (16, 8), (64, 48)])
def test_the_grid_of_the_convolutions_is_averaged_to_four_by_four(size):
    body = build_classifier("cnn", (1, *size), 3).body.eval()
    at = next(place for place, layer in enumerate(body) if isinstance(layer, torch.nn.Flatten)) - 1
    grid = body[:at](torch.randn(5, 1, *size))
    assert torch.equal(body[at](grid), torch.nn.functional.adaptive_avg_pool2d(grid, 4))
