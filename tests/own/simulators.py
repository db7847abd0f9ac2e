"""Simulators and features as a user would write them, sound and hostile, for images of 8 x 8."""

import torch
from torch import nn


def draw(z, labels):
    """Bars: the first number says where, the class how wide."""
    columns = torch.arange(8.0) - 3.5
    width = 1.0 if labels is None else 0.5 + 0.3 * labels[:, None].cpu()
    bars = torch.exp(-((columns - 2 * z[:, :1].cpu()).square()) / width) * 2 - 1
    return bars[:, None, None, :].expand(-1, 1, 8, 8)


class Painter:
    """Draws, and varies pictures; keeps a network whose weights can be hashed."""

    numbers, batch_size = 3, 7

    def __init__(self, num_classes=0):
        self.network = nn.Linear(self.numbers, 64)
        nn.init.constant_(self.network.weight, 0.5)
        nn.init.zeros_(self.network.bias)
        self.classes, self.sizes = num_classes, []

    def draw(self, z, labels):
        self.sizes.append(len(z))
        return self.network(z).tanh().view(-1, 1, 8, 8)

    def vary(self, images, strength, labels):
        assert labels is None or int(labels.max()) < self.classes
        return (images + strength * torch.randn(images.shape)).clamp(-1, 1)


class Turner:
    """Varies z by a rule of its own; draws bytes, and takes no label."""

    def draw(self, z):
        return ((draw(z, None) + 1) * 127).to(torch.uint8)

    def vary(self, z, strength):
        return -z


turner = Turner()
network = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))


def raises(z, labels):
    raise RuntimeError("the server\ndoes not answer")


def wrong_shape(z, labels):
    return draw(z, labels)[:, :, 1:]


def not_a_number(z, labels):
    return draw(z, labels) * torch.nan


def too_bright(z, labels):
    return draw(z, labels) * 3


def a_list(z, labels):
    return draw(z, labels).tolist()


class OddVary:
    def draw(self, z, labels):
        return draw(z, labels)

    def vary(self, latents, strength):
        return latents


class Features(nn.Module):
    """The mean of every row and column."""

    def forward(self, images):
        return torch.cat([images.mean(2).flatten(1), images.mean(3).flatten(1)], 1)


def mixing_features(images):
    return (images - images.mean(0)).flatten(1)


def one_number(images):
    return images.mean((1, 2, 3))


def striped(z, labels):
    """Grey ground of any brightness, 16 x 16, the second class with stripes."""
    stripes = 0.4 * (torch.arange(16) % 2 - 0.5) * labels.view(-1, 1, 1, 1).float()
    return (0.2 * z[:, :1].view(-1, 1, 1, 1).clamp(-2, 2) + stripes).expand(-1, 1, 16, 16)
