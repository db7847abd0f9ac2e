"""Drawn images for the publisher tests."""

import torch


def pictures(count, rows, columns, seed=0, dtype=torch.float64):
    """Smooth images in [0, 1] with a little texture, of full rank."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.linspace(0, 1, rows)[:, None], torch.linspace(0, 1, columns)
    phase = torch.rand(count, 3, 1, 1, generator=rng)
    waves = [torch.cos(6.3 * (phase[:, i] + (i + 1) * y * phase[:, 2 - i] + x * i)) for i in range(3)]
    texture = 0.1 * torch.rand(count, rows, columns, generator=rng)
    return (0.45 + 0.15 * sum(waves) + texture).clamp(0, 1).to(dtype)
