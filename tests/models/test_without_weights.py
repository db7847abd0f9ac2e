"""Networks that have shapes only: the same tensors as built ones, no memory, and no kernel that imports a compiler."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from idpgan.models.checkpoint import GENERATORS, build_critic, build_generator
from idpgan.models.config import ModelConfig
from idpgan.models.initialize import without_weights

# In Python on the meta device: their first call imports PyTorch's compiler or sympy, a second of every command.
SLOW_TO_IMPORT = {"normal_", "randn", "full_like", "mul", "add", "linspace", "stack", "cat", "eye", "empty_like"}
OWN = [name for name in GENERATORS if name != "pipeline"]  # whose shapes its folder says
BUILT = {name: lambda name=name: build_generator(ModelConfig(generator=name), (1, 8, 8), 3) for name in OWN}
BUILT["critic"] = lambda: build_critic(ModelConfig(), (1, 8, 8), 3)


class Asked(TorchDispatchMode):
    """Notes the name of every operation."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", BUILT)
def test_shapes_are_those_of_a_built_network(name):
    with without_weights():
        outline = BUILT[name]()
    tensors, built = outline.state_dict(), BUILT[name]().state_dict()
    assert {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()} == {
        key: (tensor.shape, tensor.dtype) for key, tensor in built.items()
    }
    assert all(tensor.is_meta for tensor in tensors.values())


@pytest.mark.parametrize("name", ["warp", "dcgan", "critic"])
def test_nothing_is_asked_that_loads_a_compiler(name):
    with Asked() as asked, without_weights():
        BUILT[name]()
    assert asked.names & SLOW_TO_IMPORT == set()
    with Asked() as asked, torch.device("meta"):  # control
        torch.randn(2) * math.pi
    assert asked.names & SLOW_TO_IMPORT == {"randn", "mul"}


def test_numbers_are_drawn_again_afterwards():
    with without_weights():
        torch.nn.Embedding(2, 3)
    assert torch.randn(3).abs().sum() > 0
    assert torch.nn.Embedding(2, 3).weight.std() > 0
