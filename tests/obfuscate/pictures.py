"""Toy pictures with two planted facts: who (a pattern in the upper half) and which mood (one in the lower half)."""

import torch


def planted(num=240, people=4, size=8, seed=0, contrast=0.6):
    """Images float32 (num, 1, size, size) in [0, 1], moods in {0, 1} and people, independent of each other."""
    rng = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(99)
    faces = torch.rand(people, 1, size // 2, size, generator=fixed)
    moods = torch.rand(2, 1, size // 2, size, generator=fixed)
    who = torch.randint(people, (num,), generator=rng)
    mood = torch.randint(2, (num,), generator=rng)
    halves = [(1 - contrast) / 2 + contrast * faces[who], 0.2 + 0.6 * moods[mood]]
    images = torch.cat(halves, dim=2)
    images = images + 0.05 * torch.randn(images.shape, generator=rng)
    return images.clamp(0, 1), mood, who
