"""Membership inference by the mean distance to the nearest five generated images."""

from idpgan.attacks.distances import check_comparable, nearest_neighbors
from idpgan.attacks.knowledge import Attack, of_pixels
from idpgan.progress import silent


def k_nearest(images, samples, *, count=5, progress=silent):
    """Score by minus the mean squared distance to the nearest `count` generated images: (n,)."""
    check_comparable(images, samples)
    return -nearest_neighbors(images, samples, count, progress)[0].mean(1)


PAPER = "GAN-Leaks, with five neighbors in place of one"
ATTACK = Attack("k-nearest", "black box", ("samples",), PAPER, of_pixels(k_nearest))
