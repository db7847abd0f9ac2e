import pytest
import torch

from idpgan.errors import InputError
from idpgan.models.classifier import ResNet, ResNeXt, WideBlock, WideResNet, build_residual

SMALL = (ResNet(8, 4, grid_px=16), WideResNet(10, 1, grid_px=16), ResNeXt(11, 2, 4, grid_px=16))


@pytest.mark.parametrize(
    ("network", "shape", "expected"),
    [
        # Counted with pencil and paper from DPImageBench's evaluation/classifier/{resnet,wrn,resnext}.py. The papers:
        # 1.7 million (He et al. 2016, Table 6), 8.9 million (Zagoruyko and Komodakis 2016, Table 4) and 34.4 million
        # (Xie et al. 2017, Table 7, 8 x 64d), each for RGB.
        (ResNet(), (1, 28, 28), 1_730_426),
        (ResNet(), (3, 32, 32), 1_730_714),
        (WideResNet(), (1, 28, 28), 8_948_922),
        (WideResNet(), (3, 32, 32), 8_949_210),
        (WideResNet(depth=28, widening=10), (3, 32, 32), 36_479_194),
        (ResNeXt(), (1, 28, 28), 34_425_546),
        (ResNeXt(), (3, 32, 32), 34_426_698),
    ],
    ids=str,
)
def test_the_full_networks_have_as_many_parameters_as_published(network, shape, expected):
    with torch.device("meta"):
        body, num_features = network.body(shape)
        head = torch.nn.Linear(num_features, 10)
    assert sum(parameter.numel() for module in (body, head) for parameter in module.parameters()) == expected


@pytest.mark.parametrize("network", SMALL, ids=lambda network: type(network).__name__)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 14)])
def test_every_size_gives_logits(network, shape):
    model = build_residual(network, shape, 7).train()  # batch normalization by the batch: at first it knows nothing
    images = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    logits = model(images)
    assert logits.shape == (5, 7)
    assert logits.std(dim=0).min() > 0


@pytest.mark.parametrize(("network", "blocks"), [(ResNet(), 54), (WideResNet(), 18), (ResNeXt(), 9)])
def test_depth_counts_layers(network, blocks):
    with torch.device("meta"):
        body, _ = network.body((1, 28, 28))
    assert sum(hasattr(layer, "residual") for layer in body) == blocks


@pytest.mark.parametrize("network", SMALL, ids=lambda network: type(network).__name__)
def test_the_grid_is_halved_twice_after_the_stem(network):
    body, _ = network.body((1, 28, 28))
    sides, images = [], torch.zeros(2, 1, 28, 28)
    for layer in body:
        images = layer(images)
        sides += [images.shape[2]] if images.ndim == 4 else []
    assert list(dict.fromkeys(sides)) == [14, 7, 4, 1]  # the stem's stride of 2 leaves at most grid_px = 16


def test_a_wide_block_adds_to_what_it_was_given():
    """Zagoruyko and Komodakis 2016, Figure 1: with a residual of zero the block is the identity."""
    block, images = WideBlock(4, 4, 1, 0.0).eval(), torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(block.residual[-1].weight)
    assert torch.equal(block(images), images)


def test_dropout_only_trains():
    model = build_residual(WideResNet(10, 1, dropout=0.9), (1, 8, 8), 3)
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


def test_weights_depend_on_the_seed_alone():
    state = torch.get_rng_state()
    one, same, other = (build_residual(SMALL[2], (1, 8, 8), 3, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["body.0.weight"], other["body.0.weight"])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        (ResNet(), (1, 33, 28), "33 x 28 pixels do not fit"),
        (ResNet(), (1, 28, 7), "8 to 32"),
        (ResNet(depth=9), (1, 28, 28), "6 n \\+ 2"),
        (WideResNet(depth=4), (1, 28, 28), "6 n \\+ 4"),
        (ResNeXt(depth=28), (1, 28, 28), "9 n \\+ 2"),
    ],
)
def test_what_does_not_fit_is_refused(network, shape, message):
    with pytest.raises(InputError, match=message):
        build_residual(network, shape, 10)
