import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from idpgan.errors import ConfigError
from idpgan.models import Critic, ModelConfig, validate_private_critic


class MeanSubtracted(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class MinibatchStddev(nn.Module):
    """As in StyleGAN: one more channel with the standard deviation over groups of records."""

    def forward(self, x):
        groups = x.view(4, -1, *x.shape[1:]) if len(x) % 4 == 0 else x[None]
        spread = groups.std(0, correction=0).mean((1, 2, 3), keepdim=True)
        return torch.cat([x, spread.repeat(len(x) // len(spread), 1, *x.shape[2:])], dim=1)


class DetachedMaximum(nn.Module):
    """Carries no gradient from one record to another, and mixes them all the same."""

    def forward(self, x):
        return x / x.detach().abs().max().clamp(min=1)


class EvalOnly(nn.Module):
    def forward(self, x):
        return x if self.training else x - x.mean(0)


class RunningMean(nn.Module):
    """Record-wise output, but the state keeps what passed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()
        return x


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x


class FunctionalDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


class DividedByBatch(nn.Module):
    def forward(self, x):
        return x / len(x)


class OverRecords(nn.Module):
    """A recurrent layer that takes the records for a sequence; one-sided mixing."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(32, 32)

    def forward(self, x):
        return self.rnn(x)[0]


def critic(*middle: nn.Module, extra_channels: int = 0) -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    layers = [
        nn.Conv2d(1, 8, 4, 2, 1),
        nn.LeakyReLU(0.2),
        *middle,
        nn.Flatten(),
        nn.Linear((8 + extra_channels) * 16, 1),
    ]
    model = nn.Sequential(*layers, nn.Flatten(0))
    model.image_shape = (1, 8, 8)
    return model


@pytest.fixture(autouse=True)
def _own_random_state():
    with torch.random.fork_rng(devices=[]):
        yield


def refusal(model: nn.Module, **keys) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_private_critic(model, **keys)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("size", [8, 28, 32, 48, 64, 100])
def test_our_critics_pass(size, conditional):
    config = ModelConfig(width=4, conditional=conditional)
    validate_private_critic(Critic(config, (3, size, size), 4))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.Dropout2d(0.5),
        FunctionalDropout(),
        nn.GroupNorm(2, 8),
        nn.LayerNorm([8, 4, 4]),
        nn.InstanceNorm2d(8),
        Counter(),
        nn.Conv2d(8, 8, 1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_act_within_one_record_pass(layer):
    validate_private_critic(critic(layer))
    validate_private_critic(critic(layer).eval())


@pytest.mark.parametrize(
    ("layer", "kind", "reason"),
    [
        (nn.BatchNorm2d(8), "BatchNorm2d", "mean and variance of the whole batch"),
        (nn.BatchNorm2d(8, track_running_stats=False), "BatchNorm2d", "mean and variance"),
        (nn.SyncBatchNorm(8), "SyncBatchNorm", "mean and variance of the whole batch"),
        (nn.LazyBatchNorm2d(), "LazyBatchNorm2d", "mean and variance of the whole batch"),
        (nn.InstanceNorm2d(8, track_running_stats=True), "InstanceNorm2d", "track_running_stats"),
        (MeanSubtracted(), "MeanSubtracted", "changes with the other records"),
        (DetachedMaximum(), "DetachedMaximum", "changes with the other records"),
        (EvalOnly(), "EvalOnly", "changes with the other records"),
        (RunningMean(), "RunningMean", "would keep private statistics"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_each_offender_is_named_with_its_reason(layer, kind, reason):
    message = refusal(critic(layer))
    assert f"2 ({kind}): " in message
    assert reason in message
    assert message.count("): ") == 1  # it alone


@pytest.mark.parametrize("norm", [spectral_norm, parametrizations.spectral_norm])
def test_both_spectral_norms_are_refused(norm):
    message = refusal(critic(norm(nn.Conv2d(8, 8, 1))))
    assert "2 (spectral_norm of Conv2d): " in message
    assert "power iteration" in message
    validate_private_critic(critic(parametrizations.weight_norm(nn.Conv2d(8, 8, 1))))  # not every parametrization


def test_minibatch_standard_deviation_is_caught_by_behavior():
    assert "2 (MinibatchStddev): " in refusal(critic(MinibatchStddev(), extra_channels=1))


def test_one_sided_mixing_is_caught():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), OverRecords(), nn.Linear(32, 1), nn.Flatten(0))
    message = refusal(model, image_shape=(1, 8, 8))
    assert "2.rnn (RNN): " in message


def test_every_offender_is_listed_in_one_error():
    message = refusal(critic(nn.BatchNorm2d(8), MeanSubtracted(), nn.ReLU(), DetachedMaximum()))
    for name in ("2 (BatchNorm2d)", "3 (MeanSubtracted)", "5 (DetachedMaximum)"):
        assert name in message
    assert "(ReLU)" not in message


def test_mixing_in_the_forward_of_the_critic_itself_is_not_blamed_on_a_part():
    class Mixing(Critic):
        def forward(self, images, labels=None):
            phi = self.features(images)
            return self.head(phi - phi.mean(0)).squeeze(1)

    message = refusal(Mixing(ModelConfig(width=4, conditional=False), (1, 8, 8), 0))
    assert "the critic itself (Mixing): " in message
    assert "head" not in message


def test_a_score_that_depends_on_the_batch_size_is_refused():
    assert "a record alone" in refusal(critic(DividedByBatch()))


def test_mixing_by_labels_is_caught():
    class ByLabels(Critic):
        def forward(self, images, labels=None):
            return super().forward(images, labels) * (labels == 0).float().mean()

    assert "ByLabels" in refusal(ByLabels(ModelConfig(width=4), (1, 8, 8), 3))


def test_the_critic_is_left_as_it_was():
    model = critic(Counter(), nn.Dropout(0.5)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    validate_private_critic(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert not any(part._forward_hooks for part in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_tried_is_refused():
    model = critic()
    del model.image_shape
    assert "does not say what it scores" in refusal(model)
    assert "could not be tried" in refusal(model, image_shape=(3, 8, 8))
    one_score = nn.Sequential(nn.Flatten(0), nn.Linear(8 * 64, 1))
    assert "(1,), not one score each" in refusal(one_score, image_shape=(1, 8, 8))


def test_a_batchnorm_is_refused_whole():
    assert "the critic itself (BatchNorm1d): " in refusal(nn.BatchNorm1d(5), image_shape=(5,))
