"""Images for the publisher tests: drawn ones, and toys with two planted facts."""

import torch
from scipy.linalg import hadamard


def pictures(count, rows, columns, seed=0, dtype=torch.float64):
    """Smooth images in [0, 1] with a little texture, of full rank."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.linspace(0, 1, rows)[:, None], torch.linspace(0, 1, columns)
    phase = torch.rand(count, 3, 1, 1, generator=rng)
    waves = [torch.cos(6.3 * (phase[:, i] + (i + 1) * y * phase[:, 2 - i] + x * i)) for i in range(3)]
    texture = 0.1 * torch.rand(count, rows, columns, generator=rng)
    return (0.45 + 0.15 * sum(waves) + texture).clamp(0, 1).to(dtype)


def planted(num=240, people=4, size=8, seed=0, contrast=0.6):
    """Images float32 (num, 1, size, size) in [0, 1], moods in {0, 1} and people, independent of each other.

    Who it is says a pattern in the upper half, the mood one in the lower half.
    """
    rng = torch.Generator().manual_seed(seed)
    half = (1, size // 2, size)
    patterns = torch.from_numpy(hadamard(half[1] * half[2])).float().view(-1, *half)  # -1 and 1, all equally far apart
    who = torch.randint(people, (num,), generator=rng)
    mood = torch.randint(2, (num,), generator=rng)
    halves = [0.5 + 0.3 * contrast * patterns[1 + who], 0.5 + 0.18 * patterns[1 + people + mood]]
    images = torch.cat(halves, dim=2)
    images = images + 0.05 * torch.randn(images.shape, generator=rng)
    return images.clamp(0, 1), mood, who
