"""The optimizers are those of PyTorch to the last bit, without the second that its compiler takes to import."""

import copy
import subprocess
import sys

import pytest
import torch

from idpgan.models import optimizers

KINDS = [
    ("Adam", {"lr": 0.1, "betas": (0.0, 0.9), "weight_decay": 0.01, "fused": True}),
    ("Adam", {"lr": 0.1}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1, "fused": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
]


def trained(kind, options, steps, state=None, weights=None):
    """Weights and state after some steps at a falling rate, which may go on from others."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    optimizer = kind(network.parameters(), **options)
    if state is not None:
        network.load_state_dict(weights)
        optimizer.load_state_dict(copy.deepcopy(state))  # which it keeps and changes
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    images = torch.randn(11, 7)
    for _ in range(steps):
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()
        schedule.step()
    return network.state_dict(), optimizer.state_dict()


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_steps_are_those_of_pytorch_to_the_last_bit(name, options):
    ours, theirs = (trained(getattr(module, name), options, 6) for module in (optimizers, torch.optim))
    start, _ = trained(getattr(torch.optim, name), options, 0)
    for key, weight in ours[0].items():
        assert torch.equal(weight, theirs[0][key])
        assert not torch.equal(weight, start[key])  # control
    assert str(ours[1]) == str(theirs[1])


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_a_state_of_either_goes_on_in_the_other(name, options):
    weights, state = trained(getattr(torch.optim, name), options, 3)
    ours, theirs = (trained(getattr(module, name), options, 3, state, weights) for module in (optimizers, torch.optim))
    for key, weight in ours[0].items():
        assert torch.equal(weight, theirs[0][key])


def test_gradients_are_recorded_before_and_after_a_step_and_not_in_it():
    weight = torch.ones(3, requires_grad=True)
    optimizer = optimizers.Adam([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    assert torch.is_grad_enabled()
    assert weight.grad_fn is None


FIRST_STEPS = """
import sys
from pathlib import Path
from idpgan import trainer
from idpgan.training.config import build_config
PRIVACY = {
    "idp-gan-aggregate": {"epsilon": 1.0, "delta": 1e-5},
    "dp-gan": {"epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.03, "noise_multiplier": 2.0},
}
for name, privacy in PRIVACY.items():
    table = {"method": {"name": name}, "model": {"width": 4}, "privacy": privacy,
             "training": {"steps": 1, "batch_size": 50, "device": "cpu"}}
    trainer.start(build_config(table, "a test"), Path(sys.argv[1]) / name)
assert "torch" in sys.modules
print(*{"torch._dynamo", "sympy", "sklearn"} & set(sys.modules))
"""


def test_runs_import_no_compiler(tmp_path):
    command = [sys.executable, "-c", FIRST_STEPS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
