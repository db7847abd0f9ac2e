"""Rehearsals whose numbers were made up, for tests of their page."""

import dataclasses

import torch

from idpgan.data.images import Images
from idpgan.privacy import Event, Relation, Unit
from idpgan.report.rehearsal import TIMES, Rehearsal, Rehearsed, Repeated, rehearsal_page, some_of

CLASSES = ("neutral", '<smiling> & "co"')


def images(num=40, classes=CLASSES):
    pixels = torch.arange(num, dtype=torch.uint8)[:, None, None, None].expand(num, 1, 8, 8).contiguous()
    return Images(pixels, torch.arange(num) % len(classes) if classes else None, classes)


def row(unit, epsilon, **changed):
    read = (Event("gaussian", unit, Relation.ZERO_OUT, noise_multiplier=4 / epsilon),)
    costs = tuple(Repeated.of(read, times, 1e-5) for times in TIMES)
    made = Rehearsed(unit, Relation.ZERO_OUT, epsilon, 1e-5, 0.7, None, 0.1, costs, 3.0, some_of(images()))
    return dataclasses.replace(made, **changed)


def rehearsal(*rows):
    return Rehearsal("gaussian", "40 drawn faces, 8 x 8 grey", 40, 0.5, 0.9, rows, some_of(images()), 3.0)


def both_units():
    """The page of three epsilons and two units, that of a config at epsilon 3."""
    return rehearsal_page(rehearsal(*(row(unit, e) for unit in (Unit.IMAGE, Unit.PERSON) for e in (1.0, 3.0, 10.0))))
