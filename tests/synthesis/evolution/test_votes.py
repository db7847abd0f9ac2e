"""The histogram of votes: its sensitivity by brute force, its price, and what it refuses."""

import itertools

import pytest
import torch

from idpgan.audit.entry import Request
from idpgan.errors import InputError
from idpgan.privacy import Noise, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.synthesis.votes import STEPS, Votes, steps_of, votes_case

CELLS = list(itertools.product(range(2), range(3)))  # class, candidate


def votes(relation=Relation.ZERO_OUT, unit=Unit.IMAGE, most=1, multiplier=1.0):
    return Votes(2, 3, multiplier, unit, relation, most)


def counts_of(records, owners=None, null=()):
    """Exact counts of records (class, candidate); owners: images of each record's person."""
    rows, chosen = torch.tensor(records).T
    absent = torch.tensor([number in null for number in range(len(records))])
    weights = steps_of(None if owners is None else torch.tensor(owners), absent, len(records))
    kind = Unit.IMAGE if owners is None else Unit.PERSON
    return votes(unit=kind, most=max(owners or [1])).exact(chosen, rows, weights)


@pytest.mark.parametrize("relation", list(Relation))
def test_no_neighbor_moves_the_counts_further_than_declared_and_one_reaches_it(relation):
    worst = 0.0
    for others in itertools.combinations_with_replacement(CELLS, 2):
        totals = [counts_of([*others, own]) for own in CELLS]
        if relation is Relation.ZERO_OUT:
            pairs = [(counts_of([*others, own], null=(2,)), total) for own, total in zip(CELLS, totals, strict=True)]
        else:
            pairs = list(itertools.combinations(totals, 2))
        worst = max(worst, *((left - right).double().norm().item() for left, right in pairs))
    bound = votes(relation).distance
    assert worst <= bound
    assert worst > (1 - 1e-9) * bound


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("images", [1, 2, 3])  # three do not divide a vote
def test_a_person_moves_the_counts_no_further_than_one_vote(relation, images):
    stranger, bound = [(1, 2)], votes(relation, Unit.PERSON, 3).distance
    ways = list(itertools.product(CELLS, repeat=images))
    owners = [1] + [images] * images
    if relation is Relation.ZERO_OUT:
        empty = counts_of([*stranger, *ways[0]], owners, null=range(1, 1 + images))
        distances = [(counts_of([*stranger, *way], owners) - empty).double().norm().item() for way in ways]
    else:
        totals = [counts_of([*stranger, *way], owners) for way in ways[:: max(1, len(ways) // 60)]]
        distances = [(a - b).double().norm().item() for a, b in itertools.combinations(totals, 2)]
    assert max(distances) <= bound
    assert max(distances) > (0.999 if relation is Relation.ZERO_OUT else 0.7) * bound
    whole = [STEPS] * images  # control: without sharing the vote the bound is broken
    row, chosen = torch.zeros(images, dtype=torch.int64), torch.zeros(images, dtype=torch.int64)
    unshared = votes().exact(chosen, row, torch.tensor(whole)).double().norm().item()
    assert (unshared > votes().distance) == (images > 1)


def test_null_records_do_not_vote_and_nobody_else_votes_more_for_it():
    full = steps_of(torch.tensor([2, 2, 3]), None, 3)
    without = steps_of(torch.tensor([2, 2, 3]), torch.tensor([False, True, False]), 3)
    assert without.tolist() == [full[0].item(), 0, full[2].item()] == [STEPS // 2, 0, STEPS // 3]
    assert steps_of(torch.tensor([0, 1]), None, 2).tolist() == [0, STEPS]  # beyond the cap


@pytest.mark.parametrize("unit", [Unit.IMAGE, Unit.PERSON])
@pytest.mark.parametrize("relation", list(Relation))
def test_all_iterations_together_cost_what_was_asked_for(unit, relation):
    made = Votes.calibrated(
        10, 50, 7, epsilon=1.0, delta=1e-5, unit=unit, relation=relation, most_per_unit=4 if unit is Unit.PERSON else 1
    )
    assert 0.999 < compose_epsilon([made.event.repeated(7)], 1e-5) <= 1.0
    assert (made.event.unit, made.event.relation) == (unit, relation)
    assert made.noise_std == pytest.approx(made.event.noise_multiplier * made.distance / STEPS)


def test_the_noise_has_the_stated_spread_and_the_counts_are_in_votes():
    made, none = votes(multiplier=2.5), torch.zeros(0, dtype=torch.int64)
    drawn = torch.stack([made.release(none, none, none, Noise.fixed(seed)) for seed in range(400)])
    assert drawn.std().item() == pytest.approx(2.5, rel=0.06)
    ten = torch.zeros(10, dtype=torch.int64)
    quiet = votes(multiplier=1e-3).release(ten, ten, torch.full((10,), STEPS), Noise.fixed(1))
    assert quiet[0, 0].item() == pytest.approx(10, abs=0.01)


@pytest.mark.parametrize(
    ("chosen", "label", "weight"), [(3, 0, 1), (-1, 0, 1), (0, 2, 1), (0, 0, STEPS + 1), (0, 0, -1)]
)
def test_a_vote_for_what_does_not_exist_is_refused(chosen, label, weight):
    with pytest.raises(ValueError, match="does not exist"):
        votes().exact(*(torch.tensor([number]) for number in (chosen, label, weight)))


@pytest.mark.parametrize(
    "keys", [{"most": 2}, {"most": 0, "unit": Unit.PERSON}, {"most": STEPS + 1, "unit": Unit.PERSON}]
)
def test_an_impossible_number_of_images_is_refused(keys):
    with pytest.raises(InputError):
        votes(**keys)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("unit", [Unit.IMAGE, Unit.PERSON])
def test_the_audit_comes_near_the_proof_and_not_above(unit, relation):
    most = 3 if unit is Unit.PERSON else 1
    made = Votes.calibrated(2, 3, 4, epsilon=2.0, delta=1e-5, unit=unit, relation=relation, most_per_unit=most)
    audited = votes_case(made, 4, Request(2.0, 1e-5)).run(30_000, seed=3)
    assert 0.8 * audited.proven_mu < audited.result.separation.mu_lower <= audited.proven_mu
    half = Votes(2, 3, made.noise_multiplier / 2, unit, relation, most)  # control: half of the noise is found out
    broken = votes_case(half, 4, Request(2.0, 1e-5)).run(8000, seed=3)
    assert broken.result.separation.mu_lower > audited.proven_mu
