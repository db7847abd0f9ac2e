"""Censored images lose what is to be removed, without any pair of with and without; fairness is in test_trained.py."""

import pytest
import torch

from idpgan.errors import InputError
from idpgan.obfuscate import make_obfuscator

SHAPE = (1, 8, 8)


def censored(images, utilities, identities, **options):
    method = make_obfuscator(
        "censored", SHAPE, num_utilities=2, num_identities=2, width=6, batch_size=32, code=16, seed=1, **options
    )
    method.fit(images, utilities, identities)
    return method


def marked(num, seed):
    """Smooth pictures, every other one with a bar across: pictures with bars, the same without, who has one."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(num, 1, 2, 2, generator=rng)
    clean = 0.6 * torch.nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bilinear", align_corners=True)
    has = torch.randint(2, (num,), generator=rng)
    images = clean.clone()
    images[has == 1, :, 2:4, 1:7] += 0.4
    return images, clean, has


def bar(images):
    """How much brighter the bar is than the rows around it."""
    return float(images[:, 0, 2:4, 1:7].mean() - images[:, 0, [0, 1, 4, 5], 1:7].mean())


@pytest.mark.trained
def test_a_mark_is_removed_although_no_image_is_known_with_and_without_it():
    images, _, has = marked(320, 0)
    method = censored(images, torch.zeros_like(has), has, towards=0, gamma=0.0, steps=200, learning_rate=5e-3)
    images, clean, has = marked(200, 3)
    released, on = method.transform(images), has == 1
    assert bar(images[on]) > 0.35
    assert abs(bar(released[on])) < 0.15
    assert float((released - clean)[on].square().mean()) < 0.4 * float((images - clean)[on].square().mean())
    assert float((released - clean)[~on].square().mean()) < 0.01


def test_the_value_to_be_taken_for_is_one_of_those():
    with pytest.raises(InputError, match="towards = 2 must be the number of one of 2 values"):
        make_obfuscator("censored", SHAPE, num_utilities=2, num_identities=2, towards=2)
