"""From folder to release: two folders that differ in one record, noise and coins held equal.

What is released differs by at most the sensitivity that is charged for, and everything else is bitwise equal. The
control deletes the file instead, as before null records: positions move, and the difference is far beyond.
"""

import dataclasses

import pytest
import torch

from idpgan import publish
from idpgan.data.images import to_unit
from idpgan.data.load import load
from idpgan.privacy import DPSGDPlan, Noise
from idpgan.private import steps as private_steps
from tests.data.layouts import declared
from tests.neighbors.folders import PER_PERSON, Change, PartChange, method_of, neighbor, record, same_but

HOW = {"zero-out-one": "emptied", "replace-one": "replaced"}
MODEL = {"generator": "warp", "width": 4, "latent_dim": 4, "codes": 5}
DELTAS = {"gaussian": 1e-3, "laplace": 0.0}


# The aggregate -------------------------------------------------------------------------------------------------------


def aggregate(unit="image", relation="zero-out-one", law="gaussian", **method):
    settings = {"name": "idp-gan-aggregate", "moments": 6, "fourier": 10, "law": law, "augment": 1.0} | method
    privacy = {"epsilon": 1.0, "delta": DELTAS[law], "unit": unit, "relation": relation}
    if unit == "person":
        privacy["most_per_person"] = 2  # below the number of each person's images
    return {
        "model": MODEL | {"conditional": unit == "image"},
        "method": settings,
        "privacy": privacy,
        "training": {"steps": 3, "batch_size": 30},
    }


def distance(left, right, method):
    """How far two releases lie apart, in grid steps: the noise is the same, so that the exact sums do."""
    difference = (left._released["sums"] - right._released["sums"]) / method.plan.release.sums.grid.step
    return torch.linalg.vector_norm(difference.flatten(), ord=2 if method.config.law == "gaussian" else 1).item()


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("relation", ["zero-out-one", "replace-one"])
@pytest.mark.parametrize("unit", ["image", "person"])
def test_aggregate(folders, tmp_path, ratio, unit, relation, law):
    data, table = folders[unit], aggregate(unit, relation, law)
    change = Change(record(data, person=unit == "person"), HOW[relation])
    (left, before), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    touched = touched_positions(before, after)
    assert int(touched.sum()) == len(change.names) == (1 if unit == "image" else PER_PERSON)
    assert (after.private.null is not None) == (relation == "zero-out-one")
    for method in (left, right):
        method.prepare()
    assert (
        left.plan.release.sums == right.plan.release.sums
    )  # sensitivity, grid and noise are functions of what is declared
    assert left.ledger.events == right.ledger.events
    moved = distance(left, right, left)
    assert 0.05 < ratio("idp-gan-aggregate", unit, moved, left.plan.release.sums.mechanism.sensitivity) <= 1
    others = (left._released["sums"] == right._released["sums"]).all(1)
    assert int((~others).sum()) <= (1 if unit == "image" else 2)  # cells of other records: equal to the last bit


def touched_positions(before, after):
    """Check that two splits are bitwise equal but for some private positions, and return these."""
    for name in ("public", "holdout", "test"):
        assert getattr(before, name).digest() == getattr(after, name).digest()
    assert not before.refused
    touched = (before.private.images != after.private.images).flatten(1).any(1)
    assert same_but(before.private, after.private, touched)
    assert after.private.null is None or torch.equal(after.private.null, touched)
    return touched


@pytest.mark.parametrize(("unit", "split_by"), [("image", "image"), ("image", "identity"), ("person", "identity")])
@pytest.mark.parametrize("how", ["emptied", "unfiled", "unlabeled"])
def test_aggregate_of_a_metadata_file(folders, tmp_path, ratio, how, unit, split_by):
    data, table = {**folders["metadata"], "split_by": split_by}, aggregate(unit)
    table["model"]["conditional"] = True
    change = Change(record(data, person=unit == "person"), how)
    (left, before), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    assert torch.equal(after.private.null, touched_positions(before, after))
    assert int(after.private.null.sum()) == len(change.names) == (1 if unit == "image" else PER_PERSON)
    for method in (left, right):
        method.prepare()
    assert left.plan.release.sums == right.plan.release.sums
    assert left.ledger.events == right.ledger.events
    moved = distance(left, right, left)
    assert 0.05 < ratio("idp-gan-aggregate", unit, moved, left.plan.release.sums.mechanism.sensitivity) <= 1


@pytest.mark.parametrize("unit", ["image", "person"])
@pytest.mark.parametrize("how", ["emptied", "unlabeled"])
def test_the_teacher_of_an_aggregate(folders, tmp_path, monkeypatch, ratio, how, unit):
    """From equal weights, the clipped sums of a step differ by at most C; its noise does not enter the comparison."""
    data, table = {**folders["metadata"], "split_by": "identity"}, aggregate(unit, teacher_share=0.5)
    table["model"]["conditional"] = True
    change, seen, noisy_step = Change(record(data, person=unit == "person"), how), [], DPSGDPlan.noisy_step

    def watched(plan, optimizer, weights, sums, noise):
        seen.append(sums["weight"] * plan.step)
        noisy_step(plan, optimizer, weights, sums, noise)

    monkeypatch.setattr(DPSGDPlan, "noisy_step", watched)
    (left, _), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    for method in (left, right):
        method.prepare()
    assert left.ledger.events == right.ledger.events
    assert len(left.ledger.events) == 2
    assert int(after.private.null.sum()) == len(change.names)
    steps, plan = len(seen) // 2, left.plan.release.teacher.plan(len(after.private))
    assert plan == right.plan.release.teacher.plan(len(after.private))
    moved = (seen[0] - seen[steps]).norm().item()
    assert 0.3 < ratio("teacher", unit, moved, plan.clip_norm) <= 1


@pytest.mark.parametrize("unit", ["image", "person"])
def test_aggregate_of_a_metadata_file_control_a_deleted_row(folders, tmp_path, unit):
    """The split carries the sums away, or N is another one; a record's deletion moves no other record's coins."""
    data, table = folders["metadata"], aggregate(unit, augment=0.0)
    table["model"]["conditional"] = True
    change = Change(record(data, person=unit == "person"), "deleted")
    (left, before), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    for method in (left, right):
        method.prepare()
    moved = distance(left, right, left) / left.plan.release.sums.mechanism.sensitivity
    if unit == "person":
        assert moved > 2
    else:
        assert len(after.private) == len(before.private) - 1
        assert 0.5 < moved <= 1


@pytest.mark.parametrize("unit", ["image", "person"])
def test_aggregate_control_a_deleted_file(folders, tmp_path, unit):
    """Motion off, so that no coin of anybody enters: the split alone carries the sums away."""
    data, table = folders[unit], aggregate(unit, augment=0.0)
    change = Change(record(data, person=unit == "person"), "deleted")
    (left, before), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    assert abs(len(before.private) - len(after.private)) <= len(change.names)
    pictures = {image.tobytes() for image in before.private.images.numpy()}
    moved = sum(image.tobytes() not in pictures for image in after.private.images.numpy())
    assert moved > 5 * len(change.names)
    for method in (left, right):
        method.prepare()
    assert distance(left, right, left) > 2 * left.plan.release.sums.mechanism.sensitivity


# DP-SGD --------------------------------------------------------------------------------------------------------------

RATE, CLIP = 0.5, 0.7
DP_GAN = {
    "paired": {"fakes": "paired", "mismatch": 0.5, "augment": 1.0},
    "separate": {"fakes": "separate"},
    "wgan-gp": {"fakes": "paired", "loss": "wgan-gp"},
}


def dp_gan(**method):
    return {
        "model": {"width": 4, "latent_dim": 4},
        "method": {"name": "dp-gan", "clip_norm": CLIP, **method},
        "privacy": {"epsilon": 1e6, "delta": 1e-3, "sample_rate": RATE, "noise_multiplier": 1.0},
        "training": {"steps": 4, "batch_size": 44},
    }


@dataclasses.dataclass(frozen=True)
class Recording(DPSGDPlan):
    """Keeps the sums of each critic step as they are before the noise."""

    seen: list = dataclasses.field(default_factory=list)

    def noisy_step(self, optimizer, weights, sums, noise):
        self.seen.append(torch.cat([part.flatten() for part in sums.values()]) * self.step)
        super().noisy_step(optimizer, weights, sums, noise)


def recorded(method):
    """Return a list that gets the sums of each critic step as they are before the noise."""
    method.dpsgd = Recording(**dataclasses.asdict(method.dpsgd))
    return method.dpsgd.seen


def moved_sums(left, right, steps, first=1):
    """Take the same steps with both, from equal weights each time; return how far the sums lie apart in each."""
    sums = [recorded(method) for method in (left, right)]
    for step in range(first, first + steps):
        right.critic.load_state_dict(left.critic.state_dict())
        right.newest.load_state_dict(left.newest.state_dict())
        left.critic_step(step)
        right.critic_step(step)
        assert left.noise.state() == right.noise.state()  # every coin and every number of the noise is used alike
    return [(a - b).norm().item() for a, b in zip(*sums, strict=True)]


@pytest.mark.parametrize("variant", DP_GAN)
def test_dp_gan(folders, tmp_path, ratio, variant):
    data, table = folders["image"], dp_gan(**DP_GAN[variant])
    change = Change(record(data), "emptied")
    (left, before), (right, after) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    assert int(touched_positions(before, after).sum()) == 1
    moved = moved_sums(left, right, 6)
    assert ratio("dp-gan", "image", max(moved), CLIP) <= 1
    drawn = [distance for distance in moved if distance > 0]
    assert 0 < len(drawn) < 6  # a step that does not draw the record is bitwise the same
    assert max(drawn) > 0.05 * CLIP


def test_dp_gan_control_a_deleted_file(folders, tmp_path):
    data, table = folders["image"], dp_gan()
    change = Change(record(data), "deleted")
    (left, _), (right, _) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    sums = [recorded(method) for method in (left, right)]
    for method in (left, right):
        method.critic_step(1)
    assert (sums[0][0] - sums[1][0]).norm() > 2 * CLIP


def test_diffusion(folders, tmp_path, monkeypatch, ratio):
    monkeypatch.setattr(private_steps, "least_noise", lambda *_: 1.0)  # nothing is priced here
    data = folders["image"]
    table = {
        "model": {"generator": "diffusion", "latent_dim": 6, "width": 4},
        "method": {"name": "diffusion", "draws": 2, "clip_norm": CLIP},
        "privacy": {"epsilon": 10.0, "delta": 1e-3},
        "training": {"steps": 5, "batch_size": 44},
    }
    change = Change(record(data), "emptied")
    (left, _), (right, _) = (method_of(d, table) for d in (data, neighbor(data, tmp_path, change)))
    for method in (left, right):
        method.prepare()
    moved = torch.linalg.vector_norm(left.start._released["sums"] - right.start._released["sums"]).item()
    sums = left.plan.release.sums
    assert 0 < ratio("diffusion", "image", moved / sums.grid.step, sums.mechanism.sensitivity) <= 1
    right.load_state(left.state())  # from here on both know the same release
    seen = [recorded(method) for method in (left, right)]
    for step in range(1, 5):
        right.newest.load_state_dict(left.newest.state_dict())
        left.step(step)
        right.step(step)
        assert left.noise.state() == right.noise.state()  # every coin and every number of the noise is used alike
    moved = [(a - b).norm().item() for a, b in zip(*seen, strict=True)]
    assert 0 < ratio("diffusion", "image", max(moved), CLIP) <= 1


# Per record ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("unit", ["pixel", "column", "image"])
def test_lap(folders, tmp_path, unit, law):
    """Publishers: the file of one image changes in one unit."""
    data = folders["image"]
    change = PartChange(record(data), "replaced", unit)
    before, after = (load(declared(**d)).private for d in (data, neighbor(data, tmp_path, change)))
    options = {"epsilon": 1.0, "delta": DELTAS[law], "unit": unit, "law": law}
    left, right = (
        publish.release(to_unit(images.images)[:, 0], "lap", noise=Noise.fixed(5), **options)
        for images in (before, after)
    )
    assert left.events == right.events
    difference = (left.images - right.images).double()
    touched = difference.flatten(1).any(1)
    assert torch.equal(touched, (before.images != after.images).flatten(1).any(1))
    pixels = {"pixel": 1, "column": 8, "image": 64}[unit]
    assert 0 < int((difference != 0).sum()) <= pixels
    order, most = (1, pixels) if law == "laplace" else (2, pixels**0.5)
    assert 0.2 * most < difference.flatten().norm(p=order) <= most * 1.002  # and the rounding that is charged
