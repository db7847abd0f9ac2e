"""Toy pictures with two planted facts: who (a pattern in the upper half) and which mood (one in the lower half)."""

import torch
from scipy.linalg import hadamard


def planted(num=240, people=4, size=8, seed=0, contrast=0.6):
    """Images float32 (num, 1, size, size) in [0, 1], moods in {0, 1} and people, independent of each other."""
    rng = torch.Generator().manual_seed(seed)
    half = (1, size // 2, size)
    patterns = torch.from_numpy(hadamard(half[1] * half[2])).float().view(-1, *half)  # -1 and 1, all equally far apart
    who = torch.randint(people, (num,), generator=rng)
    mood = torch.randint(2, (num,), generator=rng)
    halves = [0.5 + 0.3 * contrast * patterns[1 + who], 0.5 + 0.18 * patterns[1 + people + mood]]
    images = torch.cat(halves, dim=2)
    images = images + 0.05 * torch.randn(images.shape, generator=rng)
    return images.clamp(0, 1), mood, who
