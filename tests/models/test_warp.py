import pytest
import torch

from idpgan.errors import ConfigError
from idpgan.models import ModelConfig, build_generator, load_generator, save_generator


def warp_generator(shape=(1, 8, 8), num_classes=3, **options):
    return build_generator(ModelConfig(generator="warp", latent_dim=4, width=4, codes=5, **options), shape, num_classes)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 48, 48), (1, 112, 92)])
@pytest.mark.parametrize("conditional", [True, False])
def test_images_have_shape_range_and_follow_the_seed(shape, conditional, tmp_path):
    generator = warp_generator(shape, conditional=conditional)
    images = generator.sample(7, seed=1)
    assert images.shape == (7, *shape)
    assert images.min() >= -1
    assert images.max() <= 1
    save_generator(tmp_path, generator)
    assert torch.equal(load_generator(tmp_path).sample(7, seed=1), images)
    assert not torch.equal(generator.sample(7, seed=2), images)


def test_no_strength_leaves_the_decoded_image_where_it_is():
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    moves = torch.randn(3, 56, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(warp_generator(warp=0.0).warped(images, moves), images, atol=1e-5)
    assert not torch.allclose(warp_generator().warped(images, moves), images, atol=1e-2)


def test_every_code_of_the_class_is_drawn_equally_often():
    generator = warp_generator(warp=0.0)
    generator.log_spread.data.fill_(-20.0)  # no spread: an image is its code
    images = generator.eval().sample(2000, labels=1, seed=3)
    codes = 2 * generator.decode(generator.means[1], torch.ones(5, dtype=torch.int64)).detach() - 1
    nearest = torch.cdist(images.flatten(1), codes.flatten(1)).argmin(1)
    counts = torch.bincount(nearest, minlength=5)
    assert (counts - 400).abs().max() < 5 * (2000 * 0.2 * 0.8) ** 0.5


def test_codes_are_the_posteriors_of_the_images_of_a_class_repeated_where_few():
    generator = warp_generator()
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2, 2])
    means = torch.arange(9.0)[:, None].expand(9, 4)
    generator.set_codes(means, torch.full((9, 4), 0.5), labels)
    assert generator.means[:, :, 0].tolist() == [[0, 0, 0, 0, 0], [1, 2, 1, 2, 1], [3, 4, 5, 6, 7]]
    assert torch.allclose(generator.log_spread.exp(), torch.tensor(0.5))


def test_gradients_reach_codes_and_decoder():
    generator = warp_generator().train()
    z = torch.randn(16, generator.latent_dim, generator=torch.Generator().manual_seed(4))
    generator(z, torch.arange(16) % 3).square().mean().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in generator.parameters())


def test_an_unsupported_size_is_refused():
    with pytest.raises(ConfigError, match="Supported"):
        warp_generator((1, 9, 9))
