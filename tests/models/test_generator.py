import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from idpgan.config import build
from idpgan.errors import ConfigError, InputError
from idpgan.models import Critic, Generator, ModelConfig, seeded_init
from idpgan.models.checkpoint import build_generator
from idpgan.models.drawing import Drawing
from idpgan.models.generator import LATENT_BLOCK
from idpgan.models.initialize import torch_seed

SIZES = ((8, 8), (12, 12), (16, 16), (24, 24), (28, 28), (32, 32), (48, 48), (64, 64), (68, 68), (124, 124), (112, 92))


def small(conditional: bool = True, **keys) -> ModelConfig:
    return ModelConfig(latent_dim=6, width=4, conditional=conditional, **keys)


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_makes_images_of_its_shape(size, channels, conditional):
    generator = build_generator(small(conditional), (channels, *size), 3)
    labels = torch.tensor([0, 2, 1, 1, 0]) if conditional else None
    images = generator(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), labels)
    assert images.shape == (5, channels, *size)
    assert images.abs().max() <= 1
    assert generator.num_classes == (3 if conditional else 0)
    assert generator.latent_dim == 6
    images.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in generator.parameters())


def test_a_key_of_earlier_versions_is_read_at_the_value_that_is_left():
    table = {"latent_dim": 6, "generator_norm": "batch", "critic_norm": "none"}
    assert build(ModelConfig, table, "config.json") == ModelConfig(latent_dim=6)
    for key, value in {"generator_norm": "group", "critic_norm": "layer"}.items():
        with pytest.raises(ConfigError, match=f"Unknown key '{key}' in config.json"):
            build(ModelConfig, {**table, key: value}, "config.json")


@pytest.mark.parametrize("network", [build_generator, Critic])
@pytest.mark.parametrize("shape", [(1, 27, 27), (2, 28, 28), (1, 28, 32), (28, 28), (1, 132, 132), (1, 92, 112)])
def test_an_unsupported_shape_is_one_error_that_names_the_sizes(network, shape):
    with pytest.raises(ConfigError, match=r"squares of 8, 12, .* 128 .*, and 112 x 92 .* px with 1 or 3 channels"):
        network(small(), shape, 3)


@pytest.mark.parametrize("network", [build_generator, Critic])
def test_classes_need_labeled_data(network):
    with pytest.raises(ConfigError, match=r"model\.conditional = false"):
        network(small(), (1, 8, 8), 0)
    assert network(small(conditional=False), (1, 8, 8), 0).num_classes == 0


def test_label_changes_the_image_and_latent_too():
    generator = build_generator(small(), (1, 8, 8), 3).eval()
    z = torch.zeros(2, 6)
    first, second = generator(z, torch.tensor([0, 1]))
    assert not torch.allclose(first, second)
    first, second = generator(torch.eye(6)[:2], torch.tensor([1, 1]))
    assert not torch.allclose(first, second)


def test_labels_have_to_fit_the_kind_of_generator():
    with pytest.raises(InputError, match="is conditional"):
        build_generator(small(), (1, 8, 8), 3)(torch.zeros(2, 6))
    with pytest.raises(InputError, match="is unconditional"):
        build_generator(small(conditional=False), (1, 8, 8), 3)(torch.zeros(2, 6), torch.tensor([0, 1]))


# Initial weights


@pytest.mark.parametrize("network", [build_generator, Critic])
def test_weights_follow_from_the_seed_alone(network):
    torch.randn(3)  # moves the caller's state
    first = network(small(), (1, 28, 28), 3, seed=5).state_dict()
    torch.randn(7)
    again = network(small(), (1, 28, 28), 3, seed=5).state_dict()
    other = network(small(), (1, 28, 28), 3, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if first[name].is_floating_point() and first[name].ndim > 1]
    assert drawn
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_building_and_sampling_leave_the_callers_random_state_alone():
    before = torch.get_rng_state()
    generator = build_generator(small(), (1, 8, 8), 3)
    Critic(small(), (1, 8, 8), 3)
    generator.sample(4, seed=1)
    generator.sample(4)
    assert torch.equal(torch.get_rng_state(), before)
    nn.Linear(2, 2)  # negative control: a plain layer does move it
    assert not torch.equal(torch.get_rng_state(), before)


def test_random_state_is_restored_after_an_exception():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shapes"), seeded_init(1):
        torch.randn(3) @ torch.randn(2, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_beyond_32_bits_differ_although_torch_reads_32():
    assert torch.equal(  # why seeds are mixed first
        torch.randn(4, generator=torch.Generator().manual_seed(1)),
        torch.randn(4, generator=torch.Generator().manual_seed(1 + 2**32)),
    )
    assert torch_seed(1) != torch_seed(1 + 2**32)
    assert torch_seed(1, stream=0) != torch_seed(1, stream=1)
    assert 0 <= torch_seed(2**200) < 2**32


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_impossible_seeds_are_refused(seed):
    with pytest.raises(InputError, match="seed"):
        build_generator(small(), (1, 8, 8), 3).sample(1, seed=seed)


# Sampling


@pytest.fixture(scope="module")
def generator() -> Generator:
    """Fresh weights give nearly grey images; scaled up, an image says which z and label it was made from."""
    generator = build_generator(small(), (1, 8, 8), 3, seed=1)
    with torch.no_grad():
        for weight in generator.parameters():
            weight.mul_(8)
    assert generator.sample(50, seed=0).std() > 0.1
    return generator


def test_sample_is_reproducible_and_follows_the_seed(generator):
    assert torch.equal(generator.sample(9, seed=4), generator.sample(9, seed=4))
    assert not torch.allclose(generator.sample(9, seed=4), generator.sample(9, seed=5), atol=1e-3)
    assert not torch.allclose(generator.sample(9), generator.sample(9), atol=1e-3)  # fresh entropy


@given(num=st.integers(0, 40), batch_size=st.integers(1, 50), seed=st.integers(0, 2**70))
@settings(max_examples=30, deadline=None)
def test_batch_size_does_not_change_the_images(generator, num, batch_size, seed):
    images = generator.sample(num, seed=seed, batch_size=batch_size)
    assert images.shape == (num, 1, 8, 8)
    # Weights scaled by 8 in five layers amplify the rounding of another batch size.
    torch.testing.assert_close(images, generator.sample(num, seed=seed), atol=1e-3, rtol=0)
    if num > 1:  # negative control: another order is far off
        assert (images.flip(0) - generator.sample(num, seed=seed)).abs().max() > 1e-2


def test_fewer_images_are_the_first_of_more_also_across_latent_blocks(generator):
    many = generator.sample(LATENT_BLOCK + 20, seed=2, batch_size=700)
    few = generator.sample(LATENT_BLOCK + 3, seed=2, batch_size=LATENT_BLOCK)
    torch.testing.assert_close(many[: len(few)], few, atol=1e-5, rtol=0)
    assert not torch.allclose(many[:20], many[LATENT_BLOCK:], atol=1e-3)  # blocks are not repeated


def test_temperature_scales_what_is_drawn_and_not_what_chooses_the_code():
    def drawn(temperature):
        model = small(generator="warp", codes=3, warp=1.0, drawing=Drawing(temperature=temperature))
        generator = build_generator(model, (1, 28, 28), 2, seed=0).eval()
        return generator, generator.sample(6, seed=4)

    cold, frozen = drawn(0.0)
    warm, images = drawn(2.0)
    z = torch.randn(LATENT_BLOCK, warm.latent_dim, generator=torch.Generator().manual_seed(torch_seed(4)))[:6]
    hot = torch.cat([2 * z[:, :-1], z[:, -1:]], 1)  # the last number chooses the code
    with torch.no_grad():
        torch.testing.assert_close(images, warm(hot, warm.sample_labels(6)))
        assert not torch.allclose(images, warm(z, warm.sample_labels(6)))
        assert not torch.allclose(images, warm(2 * z, warm.sample_labels(6)))
    same = (3 * torch.special.ndtr(z[:, -1])).long()
    for code in set(same.tolist()):  # at 0 an image is its code, unmoved
        for label in (0, 1):
            alike = frozen[(same == code) & (cold.sample_labels(6) == label)]
            assert (alike == alike[:1]).all()


@pytest.mark.parametrize("family", ["gaussian", "warp"])
def test_what_is_looked_at_is_truncated_and_what_trains_is_not(family):
    def drawn(purpose, **keys):
        generator = build_generator(small(generator=family, drawing=Drawing(**keys)), (1, 28, 28), 2, seed=0).eval()
        if family == "gaussian":  # its factor is 0 until it is fitted
            generator.factor.data.copy_(torch.eye(generator.factor.shape[1]) / 9)
        return generator.sample(6, seed=4, purpose=purpose)

    both = {"temperature": 2.0, "truncation": 0.5}
    assert torch.equal(drawn("training", **both), drawn("training", temperature=2.0))
    assert torch.equal(drawn("looking", **both), drawn("looking", temperature=0.5))
    assert torch.equal(drawn("looking", temperature=2.0), drawn("training", temperature=2.0))  # one without the other
    assert not torch.allclose(drawn("looking", **both), drawn("training", **both))
    with pytest.raises(InputError, match="purpose"):
        drawn("selling", **both)


def test_images_to_train_on_have_temperatures_of_their_own():
    def drawn(num, purpose="training", candidates=1, **keys):
        generator = build_generator(small(generator="gaussian", drawing=Drawing(**keys)), (1, 28, 28), 2, seed=0).eval()
        generator.factor.data.copy_(torch.eye(generator.factor.shape[1]) / 200)  # nothing is clamped
        generator.candidates = candidates
        return torch.cat(list(generator._batches(num, generator.positions(num), 4, 512, purpose)))

    even, mixed = drawn(LATENT_BLOCK), drawn(LATENT_BLOCK + 9, temperature=2.0, coolest=0.2)
    factors = (mixed[:LATENT_BLOCK] / even).flatten(1).nanmedian(1).values
    torch.testing.assert_close(mixed[:LATENT_BLOCK, 0], factors[:, None, None, None] * even[:, 0], atol=1e-5, rtol=1e-3)
    spread = torch.quantile(factors, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    torch.testing.assert_close(spread, torch.tensor([0.4, 0.8, 1.2, 1.6, 2.0]), atol=0.1, rtol=0)
    torch.testing.assert_close(drawn(3, temperature=2.0, coolest=0.2), mixed[:3])
    torch.testing.assert_close(drawn(6, "looking", coolest=0.2), drawn(6, "looking"))
    ratios = (drawn(6, candidates=3, coolest=0.2) / drawn(6, candidates=3)).flatten(2).nanmedian(2).values
    torch.testing.assert_close(ratios, ratios[:, :1].expand(-1, 3))  # candidates of an image are equally warm
    assert ratios[:, 0].std() > 0.05


def test_what_chooses_is_not_cooled():
    generator = build_generator(
        small(generator="warp", codes=3, drawing=Drawing(coolest=0.2)), (1, 28, 28), 2, seed=0
    ).eval()
    assert generator._cooled("training")[list(generator.choosing)].abs().max() == 0
    assert generator._cooled("training").max() > 0.7
    assert generator._cooled("looking") is None


@pytest.mark.parametrize("temperature", [-0.1, 10.1, float("nan")])
def test_a_temperature_outside_its_range_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        Drawing(temperature=temperature)


def test_sample_of_a_batchnorm_generator_uses_running_statistics_and_restores_the_modes():
    generator = build_generator(small(), (1, 8, 8), 3)
    frozen = generator.blocks[0].eval()
    state = {name: tensor.clone() for name, tensor in generator.state_dict().items()}
    images = generator.sample(6, seed=0)
    assert generator.training
    assert generator.blocks[1].training
    assert not frozen.training
    assert not images.requires_grad
    assert all(torch.equal(state[name], tensor) for name, tensor in generator.state_dict().items())


def test_default_labels_cycle_through_the_classes(generator):
    assert generator.sample_labels(7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    explicit = generator.sample(7, labels=[0, 1, 2, 0, 1, 2, 0], seed=3)
    assert torch.equal(generator.sample(7, seed=3), explicit)
    assert build_generator(small(conditional=False), (1, 8, 8), 3).sample_labels(7) is None


def test_one_label_stands_for_all(generator):
    assert torch.equal(generator.sample(4, labels=2, seed=0), generator.sample(4, labels=torch.full((4,), 2), seed=0))
    assert not torch.equal(generator.sample(4, labels=2, seed=0), generator.sample(4, labels=1, seed=0))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 3], "3 is not a class. The classes are 0; 1; 2"),
        ([0, -1, 1], "-1 is not a class"),
        ([0, 1], "3 whole numbers or texts, one for each image"),
        ([[0], [1], [2]], "3 whole numbers or texts, one for each image"),
        ([0.0, 1.0, 2.5], "'2.5' is not a class"),
        ([0, None, 1], "'' is not a class"),
        ([[0], [1, 2]], "numbers or texts in a row"),
        (["a", "b", "c"], "'a' is not a class"),
    ],
)
def test_wrong_labels_are_refused(generator, labels, message):
    with pytest.raises(InputError, match=message):
        generator.sample(3, labels=labels)


def test_wrong_counts_are_refused(generator):
    with pytest.raises(InputError, match="num = -1"):
        generator.sample(-1)
    with pytest.raises(InputError, match="batch_size = 0"):
        generator.sample(3, batch_size=0)
    with pytest.raises(InputError, match="unconditional"):
        build_generator(small(conditional=False), (1, 8, 8), 3).sample(2, labels=[0, 1])
