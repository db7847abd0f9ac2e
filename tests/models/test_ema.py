import pytest
import torch
from torch import nn

from idpgan.errors import ConfigError, InputError
from idpgan.models import Ema, ModelConfig
from idpgan.models.checkpoint import build_generator


def linear(weight: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def test_average_equals_the_hand_computed_one():
    ema = Ema(linear(1.0), decay=0.9, ramp_up=False)
    ema.update(linear(2.0))  # 0.9 * 1 + 0.1 * 2 = 1.1
    ema.update(linear(4.0))  # 0.9 * 1.1 + 0.1 * 4 = 1.39
    assert ema.module.weight.item() == pytest.approx(1.39, abs=1e-6)
    assert ema.module.weight.item() != pytest.approx(0.1 * 1.1 + 0.9 * 4, abs=1e-2)  # decay taken for its complement


def test_ramp_up_equals_the_hand_computed_one():
    ema = Ema(linear(1.0), decay=0.2)
    ema.update(linear(2.0))  # d = 2/11: 2/11 + 18/11
    assert ema.module.weight.item() == pytest.approx(20 / 11, abs=1e-6)
    ema.update(linear(4.0))  # d = min(0.2, 3/12) = 0.2
    assert ema.module.weight.item() == pytest.approx(0.2 * 20 / 11 + 0.8 * 4, abs=1e-6)


def test_buffers_are_averaged_and_counters_copied():
    norm = nn.BatchNorm1d(1)
    ema = Ema(norm, decay=0.5, ramp_up=False)
    norm.running_mean.fill_(3.0)
    norm.num_batches_tracked.fill_(7)
    ema.update(norm)
    assert ema.module.running_mean.item() == pytest.approx(1.5)
    assert ema.module.num_batches_tracked.item() == 7


def test_average_is_a_copy_without_gradients_in_eval_mode():
    generator = build_generator(ModelConfig(latent_dim=4, width=4), (1, 8, 8), 2)
    ema = Ema(generator, decay=0.5)
    before = {name: tensor.clone() for name, tensor in generator.state_dict().items()}
    ema.update(build_generator(generator.config, (1, 8, 8), 2, seed=9))
    assert all(torch.equal(before[name], tensor) for name, tensor in generator.state_dict().items())
    assert not any(weight.requires_grad for weight in ema.module.parameters())
    assert not ema.module.training
    assert generator.training
    assert ema.module.sample(3, seed=0).shape == (3, 1, 8, 8)


def test_saved_average_continues_where_it_stopped():
    ema, resumed = Ema(linear(1.0), decay=0.99), Ema(linear(5.0), decay=0.99)
    ema.update(linear(2.0))
    resumed.load_state(ema.state())
    for each in (ema, resumed):
        each.update(linear(3.0))
    assert torch.equal(ema.module.weight, resumed.module.weight)
    assert resumed.updates == 2
    forgetful = Ema(linear(5.0), decay=0.99)  # negative control: weights alone forget the ramp
    forgetful.module.load_state_dict(ema.module.state_dict())
    forgetful.update(linear(4.0))
    ema.update(linear(4.0))
    assert not torch.equal(forgetful.module.weight, ema.module.weight)


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match=r"is 1; it must be in \[0, 1\)"):
        Ema(linear(1.0), decay=1.0)
    with pytest.raises(InputError, match="another network"):
        Ema(linear(1.0)).load_state({"module": nn.Linear(2, 1).state_dict(), "updates": 1})
