"""False alarms of `idpgan.attack` where images are no independent draws: 24 draws without a leak of each kind.

    python benchmarks/dependent_images.py [DATA ...] [KIND ...]

The synthetic images are further real ones that neither side holds, so that every LEAK FOUND is false. Members and
others are 400 images each (independent ones: fewer where the data are few): independent, exact copies (40 scenes, ten
of each), or shots of scenes that lie on one side: *bursts* differ by brightness and sensor noise of 6 grey levels,
*loose* ones by 45, *moved* ones by a pixel to some side as well, *pairs* have two shots a scene, *one* is a single
burst of 60 among different images; *dealt* bursts are dealt to both sides at random; *people* are bursts with names.
"""

from __future__ import annotations

import sys
from collections import Counter

import torch
from torch import Tensor

import idpgan
from idpgan.attacks.independence import FALSE_ALARM, own_side
from idpgan.data.faces import draw_people
from idpgan.data.images import Images
from idpgan.errors import InputError

DRAWS, SIDE = 24, 400
ATTACKS = ["nearest-sample", "nearest-sample-calibrated", "copies", "density-ratio", "neighborhood-count"]
SHOTS = {"independent": 1, "pairs": 2, "one": 1}  # of a scene; else 10


def digits() -> Tensor:
    """Return 1,797 images of 8 x 8."""
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().images * 255 / 16).to(torch.uint8)[:, None]


def faces() -> Tensor:
    """Return 1,800 drawn faces of 24 x 20, each of a person of its own."""
    return draw_people(1800, 1, 24, 20).images


def shots(scenes: Tensor, kind: str, rng: torch.Generator) -> Tensor:
    """Photograph each scene several times."""
    images = scenes.repeat_interleave(SHOTS.get(kind, 10), 0).float()
    if kind == "one":  # the last 60 images are one scene
        images[-60:] = images[-60]
    if kind in ("independent", "copies"):
        return images.to(torch.uint8)
    if kind == "moved":
        images = torch.stack(
            [image.roll(torch.randint(-1, 2, (2,), generator=rng).tolist(), (1, 2)) for image in images]
        )
    bright = 1 + 0.05 * torch.randn(len(images), 1, 1, 1, generator=rng)
    noise = torch.randn(images.shape, generator=rng) * (45 if kind == "loose" else 6)
    return (images * bright + noise).clamp(0, 255).round().to(torch.uint8)


def sides(pool: Tensor, kind: str, draw: int) -> tuple[Images, Images, Tensor]:
    """Return members, others, and images that are neither."""
    rng = torch.Generator().manual_seed(draw)
    pool = pool[torch.randperm(len(pool), generator=rng)]
    scenes = SIDE // SHOTS.get(kind, 10)
    both = shots(pool[: 2 * scenes], kind, rng)
    if kind == "one":
        both[SIDE - 60 : SIDE] = shots(pool[SIDE : SIDE + 1].expand(60, -1, -1, -1), "one", rng)
    if kind == "dealt":
        both = both[torch.randperm(len(both), generator=rng)]
    people = torch.arange(2 * SIDE) // 10 if kind == "people" else None
    halves = (torch.arange(SIDE), torch.arange(SIDE, 2 * SIDE))
    members, others = (Images(both, identities=people).select(half) for half in halves)
    return members, others, pool[2 * scenes :]


def main() -> None:
    """Print a row for each set and kind, and how often the test refuses independent images."""
    pools = {"digits": digits, "faces": faces}
    kinds = ("independent", "copies", "bursts", "loose", "moved", "pairs", "one", "dealt", "people")
    for data in [each for each in sys.argv[1:] if each in pools] or pools:
        pool = pools[data]()
        for kind in [each for each in sys.argv[1:] if each in kinds] or kinds:
            found: Counter[str] = Counter()
            for draw in range(DRAWS):
                members, others, rest = sides(pool, kind, draw)
                try:
                    leak = idpgan.attack(rest[:500], members, others, rest[500:800], attacks=ATTACKS).leak
                    found["LEAK FOUND" if leak else "no leak found"] += 1
                except InputError as error:
                    found["asked for people" if "column person" in str(error) else str(error)] += 1
            print(f"{data}, {kind}: {dict(found)} of {DRAWS}", flush=True)
        refused = 0
        for draw in range(1000):
            members, others, _ = sides(pool, "independent", 1000 + draw)
            refused += own_side(members.images[:100], others.images[:100], seed=draw)[1] <= FALSE_ALARM
        print(f"{data}: {refused} of 1,000 pairs of sides of 100 independent images refused", flush=True)


if __name__ == "__main__":
    main()
