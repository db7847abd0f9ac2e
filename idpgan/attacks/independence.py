"""Are the images of two sides independent draws? Near copies on one side make every interval too narrow."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idpgan.attacks.distances import check_comparable, nearest_neighbors
from idpgan.errors import InputError

FALSE_ALARM = 0.001  # chance that independent images are refused
_NEIGHBORS = (1, 10)  # one shows pairs, ten show a large burst among many single images
_DEALS = 1_999
_MOST_SEARCHED = 4_000  # images whose neighbors are searched, among all


def own_side(members: Tensor, others: Tensor, *, seed: int = 0) -> tuple[float, float]:
    """Return the share of nearest neighbors that are on an image's own side, and a p-value of its being so large.

    Were the images of both sides independent draws from one source, or near copies dealt to the sides at random, who is
    on which side would have nothing to do with who is near to whom. So the sides are dealt to the same images 1,999
    times anew, and it is counted how often as many of the one, or of the ten, nearest neighbors are on an image's own
    side; the p-value is the smaller of the two shares, doubled. It is exact, whatever the images are (the test of
    Schilling 1986 and Henze 1988, by permutations). Near copies that lie on one side together are nearest to each
    other, and so are images of one side where the two come from different sources.

    Args:
        members: (n, ...) uint8, or floating point; no two are equal, since equal images are one draw.
        others: (m, ...) in the same form.
        seed: Seed of the deals, and of the choice of 4,000 images whose neighbors are searched where there are more.

    Raises:
        InputError: If there are no images, or shapes differ.
    """
    check_comparable(members, others)
    rng, num = np.random.default_rng(seed), len(members) + len(others)
    order = torch.from_numpy(rng.permutation(num))  # no side comes first where two neighbors are equally near
    pool = torch.cat([members, others])[order.to(members.device)]
    places = nearest_neighbors(pool[:_MOST_SEARCHED], pool, max(_NEIGHBORS) + 1)[1].cpu()
    itself = places == torch.arange(len(places))[:, None]
    near = places.gather(1, itself.int().argsort(dim=1, stable=True))[:, :-1].numpy()  # without the image itself

    def together(sides: np.ndarray) -> np.ndarray:
        own = sides[near] == sides[: len(near), None]
        return np.array([np.count_nonzero(own[:, :count]) for count in _NEIGHBORS])

    side = (order < len(members)).numpy()
    seen = together(side)
    as_many = np.sum([together(rng.permutation(side)) >= seen for _ in range(_DEALS)], axis=0)
    rarest, counts = int(np.argmin(as_many)), np.minimum(_NEIGHBORS, near.shape[1])
    chance = len(_NEIGHBORS) * float(1 + as_many[rarest]) / (1 + _DEALS)
    return float(seen[rarest] / (len(near) * counts[rarest])), min(1.0, chance)


def check_independent(members: Tensor, others: Tensor, *, seed: int = 0) -> None:
    """Refuse images of two sides, as of `own_side`, that are no independent draws by a test with 0.1 % false alarms."""
    share, chance = own_side(members, others, seed=seed)
    if chance <= FALSE_ALARM:
        raise InputError(
            f"{share:.0%} of the nearest neighbors of these images are on the same side, where independent images have "
            f"half (a test with a false alarm in {1 / FALSE_ALARM:,.0f}): there are near copies, such as bursts of a "
            "camera or several pictures of a person, or members and others come from different sources. Taken for "
            "independent they may look like a leak. Say which belong together in a column person of both folders' "
            "metadata.csv, or in Images(identities=...): one name per burst or person, or per image if you know better."
        )
