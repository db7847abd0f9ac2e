"""Networks as a user would write them, sound and hostile, for digits of 8 x 8."""

import random

import torch
from torch import nn


class Generator(nn.Module):
    """Draws digits from z, and a label where there is one."""

    def __init__(self, image_shape=(1, 8, 8), num_classes=0, latent_dim=8):
        super().__init__()
        self.shape = image_shape
        self.label = nn.Embedding(num_classes, latent_dim) if num_classes else None
        self.layers = nn.Sequential(nn.Linear(latent_dim, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, z, labels=None):
        z = z if self.label is None else z * self.label(labels)
        return self.layers(z).tanh().view(-1, *self.shape)


class Critic(nn.Module):
    """Scores digits; its own scale is a weight that no known layer holds."""

    def __init__(self, num_classes=0):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LeakyReLU(0.2))
        self.heads = nn.Linear(16, max(num_classes, 1))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images, labels=None):
        scores = self.heads(self.layers(images)) * self.scale
        return scores[:, 0] if labels is None else scores.gather(1, labels[:, None])[:, 0]


class Raises(Generator):
    def forward(self, z, labels=None):
        raise KeyError("nothing\nhere")


class RaisesWhenBuilt(Generator):
    def __init__(self):
        raise RuntimeError("no weights on this machine")


class WantsMore(Generator):
    def __init__(self, depth):
        super().__init__()


class MixesRecords(Generator):
    def forward(self, z, labels=None):
        return super().forward(z - z.mean(0), labels)


class BatchStatistics(Generator):
    def __init__(self, num_classes=0):
        super().__init__(num_classes=num_classes)
        self.layers[1] = nn.BatchNorm1d(32, track_running_stats=False)


class NotANumber(Generator):
    def forward(self, z, labels=None):
        return super().forward(z, labels) / 0 * 0


class OtherShape(Generator):
    def forward(self, z, labels=None):
        return super().forward(z, labels)[:, :, 1:]


class Unit(Generator):
    def forward(self, z, labels=None):
        return (super().forward(z, labels) + 1) / 2


class Chance(Generator):
    def forward(self, z, labels=None):
        return super().forward(z + torch.randn_like(z), labels)


class Counts(Generator):
    """Keeps state: every call draws a little brighter."""

    calls = 0

    def forward(self, z, labels=None):
        self.calls += 1
        return super().forward(z, labels) + self.calls / 1000


class Remembers(Generator):
    """Keeps what it saw in a buffer, and draws nothing of it yet."""

    def __init__(self, num_classes=0):
        super().__init__(num_classes=num_classes)
        self.last = nn.Buffer(torch.zeros(()))

    def forward(self, z, labels=None):
        self.last = z.mean().detach()
        return super().forward(z, labels)


class OtherWeights(Generator):
    def __init__(self, num_classes=0):
        super().__init__(num_classes=num_classes)
        self.layers[0].weight.data.fill_(random.random())


class NoLabels(Generator):
    def forward(self, z):
        return super().forward(z)


class Weightless(nn.Module):
    def forward(self, z, labels=None):
        return z.view(-1, 1, 8, 8).tanh()


class DropsOut(Generator):
    """Draws random numbers in training, none where it is sampled."""

    def __init__(self, num_classes=0):
        super().__init__(num_classes=num_classes)
        self.layers[2] = nn.Dropout(0.5)


class MixingCritic(Critic):
    def forward(self, images, labels=None):
        return super().forward(images - images.mean(0), labels)


class BatchNormCritic(Critic):
    def __init__(self, num_classes=0):
        super().__init__(num_classes)
        self.layers.append(nn.BatchNorm1d(16))


class BranchingCritic(Critic):
    def forward(self, images, labels=None):
        return super().forward(images if images.mean() > 0 else -images, labels)


class SwitchingCritic(Critic):
    """Each score is a function of its image alone, but not one that torch can follow."""

    def forward(self, images, labels=None):
        signs = [1.0 if image.mean().item() > 0 else -1.0 for image in images]
        return super().forward(images * torch.tensor(signs)[:, None, None, None], labels)


class ChanceCritic(Critic):
    def __init__(self, num_classes=0):
        super().__init__(num_classes)
        self.layers.append(nn.Dropout(0.5))


class FrozenCritic(Critic):
    def __init__(self, num_classes=0):
        super().__init__(num_classes)
        self.scale.requires_grad_(False)


def function():
    """Makes no module."""
    return 3
