import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from idpgan.errors import InputError
from idpgan.models import Critic, ModelConfig

SIZES = ((8, 8), (12, 12), (16, 16), (24, 24), (28, 28), (32, 32), (48, 48), (64, 64), (68, 68), (124, 124), (112, 92))


def small(conditional: bool = True) -> ModelConfig:
    return ModelConfig(latent_dim=6, width=4, conditional=conditional)


def batch(size: tuple[int, int], num: int, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(num, channels, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return images, torch.arange(num) % 3


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_gives_one_score_per_image(size, channels, conditional):
    critic = Critic(small(conditional), (channels, *size), 3)
    images, labels = batch(size, 4, channels)
    scores = critic(images, labels if conditional else None)
    assert scores.shape == (4,)
    assert scores.std() > 0.01  # the initial weights keep the signal alive
    assert critic.features(images).shape == (4, critic.num_features)
    assert not any(isinstance(part, _BatchNorm) for part in critic.modules())


@pytest.mark.parametrize("size", [(28, 28), (36, 36), (60, 60), (116, 116), (112, 92)])
def test_every_pixel_is_seen(size):
    images = batch(size, 1)[0].requires_grad_()
    Critic(small(conditional=False), (1, *size), 0)(images).sum().backward()
    assert bool((images.grad != 0).all())


def test_empty_and_single_batches_work():
    critic = Critic(small(), (1, 8, 8), 3)
    images, labels = batch((8, 8), 1)
    assert critic(images, labels).shape == (1,)
    assert critic(images[:0], labels[:0]).shape == (0,)


def test_conditional_score_is_the_projection():
    critic = Critic(small(), (1, 8, 8), 3)
    images, labels = batch((8, 8), 4)
    phi = critic.features(images)  # (4, F)
    weights = critic.head.weight + critic.projection.weight[labels]  # (4, F): w + v_y
    expected = critic.head.bias + torch.stack([weights[i] @ phi[i] for i in range(4)])
    torch.testing.assert_close(critic(images, labels), expected)
    assert not torch.allclose(critic(images, labels), critic(images, (labels + 1) % 3))


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (36, 36)])
def test_vmapped_gradients_are_those_of_single_records(size):
    critic = Critic(small(), (1, *size), 3)
    images, labels = batch(size, 3)
    weights = {name: weight.detach() for name, weight in critic.named_parameters()}

    def loss(weights, image, label):
        return functional_call(critic, weights, (image[None], label[None])).squeeze(0).sigmoid()

    together = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, labels)
    for i in range(3):
        critic.zero_grad()
        critic(images[i : i + 1], labels[i : i + 1]).sigmoid().sum().backward()
        for name, weight in critic.named_parameters():
            torch.testing.assert_close(together[name][i], weight.grad, atol=1e-6, rtol=1e-4)


def test_gradient_penalty_differentiates_twice():
    critic = Critic(small(), (1, 8, 8), 3).double()
    images, labels = batch((8, 8), 3)
    images = images.double().requires_grad_()

    def penalty() -> torch.Tensor:
        (slope,) = torch.autograd.grad(critic(images, labels).sum(), images, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()

    penalty().backward()
    weight = critic.blocks[0].weight
    analytic, step = weight.grad[0, 0, 1, 1].item(), 1e-6
    with torch.no_grad():
        weight[0, 0, 1, 1] += step
    above = penalty().item()
    with torch.no_grad():
        weight[0, 0, 1, 1] -= 2 * step
    numeric = (above - penalty().item()) / (2 * step)
    assert abs(analytic) > 1e-5
    assert analytic == pytest.approx(numeric, rel=1e-4)
    assert analytic != pytest.approx(1.01 * numeric, rel=1e-4)


def test_wrong_inputs_are_refused():
    critic = Critic(small(), (1, 8, 8), 3)
    images, labels = batch((28, 28), 2)
    with pytest.raises(InputError, match=r"\(1, 8, 8\), got \(1, 28, 28\)"):
        critic(images, labels)
    with pytest.raises(InputError, match="is conditional"):
        critic(images)
    with pytest.raises(InputError, match="is unconditional"):
        Critic(small(conditional=False), (1, 8, 8), 3)(batch((8, 8), 2)[0], labels)
