"""Censored images lose what is to be removed, without any pair of with and without; fairness is in test_trained.py."""

import pytest
import torch

from idpgan.errors import InputError
from idpgan.publish import make_obfuscator
from tests.publish.pictures import planted

SHAPE = (1, 8, 8)
SETTINGS = {"towards": 0, "gamma": 0.0, "learning_rate": 2e-3}


def censored(images, utilities, identities, **options):
    method = make_obfuscator(
        "censored", SHAPE, num_utilities=2, num_identities=2, width=6, batch_size=32, code=16, **{"seed": 1} | options
    )
    method.fit(images, utilities, identities)
    return method


def marked(num, seed):
    """Pictures of which every other one has a bar: pictures with bars, the same without, who has one."""
    clean, _, _ = planted(num, people=1, contrast=0.0, seed=seed)
    has = torch.randint(2, (num,), generator=torch.Generator().manual_seed(seed + 50))
    images = clean.clone()
    images[has == 1, :, 1:3, 1:7] += 0.2
    return images.clamp(0, 1), clean, has


def bar(images):
    """How much brighter the bar is than the rows around it."""
    return float(images[:, 0, 1:3, 1:7].mean() - images[:, 0, [0, 3]].mean())


@pytest.mark.slow  # quickly: against an adversary that knows, in test_trained.py
@pytest.mark.trained
def test_a_mark_is_removed_although_no_image_is_known_with_and_without_it():
    images, _, has = marked(320, 0)
    asked, clean, with_bar = marked(240, 3)
    on = with_bar == 1
    fits = [censored(images, torch.zeros_like(has), has, seed=seed, steps=150, **SETTINGS) for seed in (1, 2)]
    released = torch.stack([method.transform(asked) for method in fits]).mean(0)  # of two trainings
    error = (released - clean).square().mean((1, 2, 3))
    assert float(error[on].mean()) < float(clean.var(0).mean())  # of an answer that is the same for all
    assert float(error[~on].mean()) < float(clean.var(0).mean())
    assert bar(asked[on]) > 0.18
    assert bar(released[on]) < 0.16


@pytest.mark.slow  # quickly: against an adversary that knows, in test_trained.py
@pytest.mark.trained
def test_a_mark_stays_without_an_adversary():
    """The control of the removal."""
    images, _, has = marked(320, 0)
    asked, _, with_bar = marked(240, 3)
    method = censored(images, torch.zeros_like(has), has, beta=0.0, steps=80, **SETTINGS)
    assert bar(method.transform(asked)[with_bar == 1]) > 0.16


def test_the_value_to_be_taken_for_is_one_of_those():
    with pytest.raises(InputError, match="towards = 2 must be the number of one of 2 values"):
        make_obfuscator("censored", SHAPE, num_utilities=2, num_identities=2, towards=2)
