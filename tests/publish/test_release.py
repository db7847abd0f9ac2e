"""`release`: one way in, strict about what it is given, and the registry beside it."""

import math

import numpy as np
import pytest
import torch

from idpgan import publish
from idpgan.errors import InputError
from idpgan.methods import methods_of
from idpgan.privacy import Noise, Unit, compose_epsilon
from idpgan.publish.plan import load_publisher, offer
from idpgan.publish.publisher import release_planned
from tests.publish.pictures import pictures

IMAGES = pictures(3, 8, 9)


def test_every_method_is_registered_with_its_row():
    assert list(publish.METHODS) == list(methods_of("publisher"))
    for name, row in publish.METHODS.items():
        assert (row.name, row.family) == (name, "publisher")
        assert set(row.units) <= set(Unit)
        assert set(row.to_json()) == {
            "name", "family", "units", "relation", "sound", "claimed", "proven", "reason"
        }  # fmt: skip
        assert row.sound or row.proven == "inf"


@pytest.mark.parametrize("method", list(publish.METHODS))
def test_every_method_releases_in_its_first_unit(method):
    released = publish.release(IMAGES, method, epsilon=1.0, accept_unsound=True)
    assert released.images.shape == IMAGES.shape
    assert released.privacy.proven.unit == publish.METHODS[method].units[0]
    assert released.privacy.claimed.epsilon == 1.0
    assert released.events[0].is_private == publish.METHODS[method].sound
    assert released.method == method


@pytest.mark.parametrize("method", list(publish.METHODS))
def test_a_plan_names_its_price_before_an_image_is_read(method):
    publisher, info = load_publisher(method), publish.METHODS[method]
    for unit in map(Unit, info.units):
        plan = publisher.plan((8, 9), unit, 1.0, 0.0, publisher.options())
        assert (compose_epsilon(plan.events, 0.0) <= 1.0) == info.sound
        assert {event.unit for event in plan.events} == {unit}
        assert plan.release(IMAGES, Noise.fixed(1)).shape == IMAGES.shape
    assert set(publisher.audit.units) == set(info.units)


def test_a_plan_with_a_proof_releases_nothing_that_was_made_elsewhere():
    with pytest.raises(ValueError, match="its own noise"):
        release_planned(offer("lap", 3, (8, 9), epsilon=1.0), IMAGES, Noise.system(), IMAGES)
    changed = release_planned(offer("blur", 3, (8, 9)), IMAGES, Noise.system(), IMAGES)
    assert torch.equal(changed.images, IMAGES)
    assert not changed.privacy.private
    assert not changed.privacy.proven.finite


def test_bytes_are_clipped_and_rounded():
    report = publish.release(IMAGES, "lap", epsilon=1.0).privacy
    released = publish.Release(torch.tensor([[[-4.0, 0.0, 0.5, 1.0, 9.0]]]), report, "lap", (), {})
    assert released.to_uint8().tolist() == [[[0, 0, 128, 255, 255]]]
    assert released.to_uint8().dtype == torch.uint8


def test_fixed_noise_is_marked_and_can_be_had_again():
    one, other = (publish.release(IMAGES, "lap", epsilon=1.0, noise=Noise.fixed(7)) for _ in range(2))
    assert torch.equal(one.images, other.images)
    assert not one.privacy.private
    fresh = [publish.release(IMAGES, "lap", epsilon=1.0).images for _ in range(2)]
    assert not torch.equal(*fresh)


def test_arrays_and_strings_are_taken():
    released = publish.release(np.full((2, 3, 3), 0.5, dtype=np.float32), "lap", epsilon=1.0, unit="image")
    assert released.images.dtype == torch.float32
    assert released.privacy.proven.unit is Unit.IMAGE


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("esrra", {}, "Did you mean 'esra'"),
        ("esra", {"accept_unsound": False}, "accept_unsound=True"),
        ("lap", {"unit": "person"}, "pixel, column, image"),
        ("sra", {"unit": "pixel"}, "known: column"),
        ("lap", {"epsilon": 0.0}, "epsilon = 0.0"),
        ("lap", {"epsilon": -1.0}, "epsilon = -1.0"),
        ("sra", {"epsilon": math.inf}, "positive and finite"),
        ("sra", {"epsilon": math.nan}, "epsilon = nan must be a number"),
        ("lap", {"delta": 0.5}, "below 1/N"),
        ("lap", {"delta": -0.1}, "below 1/N"),
        ("sra", {"delta": 1e-5}, "leave delta out"),
        ("lap", {"law": "gaussian"}, "no pure guarantee"),
        ("lap", {"law": "cauchy"}, "law = 'cauchy'"),
        ("sra", {"rnak": 3}, "Did you mean 'rank'"),
        ("sra", {"rank": 0}, "rank = 0"),
        ("sra", {"rank": "3"}, "rank = '3'"),
        ("sra", {"rank": True}, "rank = True"),
        ("mm", {"rank": 3}, "Unknown key 'rank'"),
        ("lap", {"rank": 3}, "Unknown key 'rank'"),
        ("lra", {"learning_rate": 0.0}, "learning_rate"),
        ("lra", {"sweeps": 0}, "sweeps"),
        ("lrm", {"iterations": 0}, "iterations"),
    ],
)
def test_bad_arguments_are_refused(method, changes, words):
    with pytest.raises(InputError, match=words) as caught:
        publish.release(IMAGES, method, **({"epsilon": 1.0, "accept_unsound": True} | changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(1, 2, 2, dtype=torch.uint8), "divide bytes by 255"),
        (torch.zeros(1, 2, 2, dtype=torch.float16), "float32 or float64"),
        (torch.zeros(2, 2), "(N, m, n)"),
        (torch.zeros(0, 2, 2), "at least one pixel"),
        (torch.zeros(1, 0, 2), "at least one pixel"),
        (torch.zeros(1, 1, 2, 2), "(N, m, n)"),
    ],
)
@pytest.mark.parametrize("method", ["lap", "esra"])
def test_bad_images_are_refused(images, words, method):
    with pytest.raises(InputError) as caught:
        publish.release(images, method, epsilon=1.0, accept_unsound=True)
    assert words in str(caught.value)


@pytest.mark.parametrize("method", ["lap", "esra"])
def test_pixels_that_are_no_numbers_end_nothing(method, caplog):
    """One pixel that is none moves that pixel alone: neighbors in it stay neighbors."""
    odd = IMAGES.clone()
    odd[0, 1, 1], odd[1, 0, 0], odd[1, 0, 1] = math.nan, math.inf, -math.inf
    meant = IMAGES.clone()
    meant[0, 1, 1], meant[1, 0, 0], meant[1, 0, 1] = 0.0, 1.0, 0.0
    one, other = (
        publish.release(x, method, epsilon=1.0, noise=Noise.fixed(1), accept_unsound=True).images for x in (odd, meant)
    )
    assert torch.equal(one, other)
    assert "1 pixels of the images are NaN and stand as 0" in caplog.text


@pytest.mark.parametrize("method", ["lap", "sra", "lap-published"])
def test_values_outside_the_range_are_clamped_first(method):
    outside = torch.tensor([[[-2.0, 0.5], [0.25, 3.0]]])
    one, other = (
        publish.release(x, method, epsilon=1.0, noise=Noise.fixed(1), accept_unsound=True).images
        for x in (outside, outside.clamp(0, 1))
    )
    assert torch.equal(one, other)


def test_an_unknown_name_is_none():
    with pytest.raises(AttributeError, match="nonsense"):
        publish.nonsense  # noqa: B018
