"""Sliding windows: as published and where they leak, and made sound with sensitivities by brute force."""

import dataclasses
import itertools
import math

import pytest
import torch
from scipy.stats import binomtest, spearmanr

from idpgan.audit.entry import Request
from idpgan.commands.audit import audit_entry
from idpgan.errors import InputError
from idpgan.privacy import Noise, Unit, compose_epsilon
from idpgan.publish import release
from idpgan.publish import sliding_windows as published
from idpgan.publish.plan import load_publisher
from idpgan.publish.sliding_windows import cut, join, reorder
from idpgan.publish.sound.sliding_windows import SwpSoundOptions, WindowRelease, plan_release
from tests.publish.pictures import pictures


def test_windows_are_cut_and_put_together_again():
    images = pictures(2, 7, 5)
    for window in (1, 4, 5, 35):
        windows = cut(images, window)
        assert windows.shape == (2, -(-35 // window), window)
        assert torch.equal(join(windows, (7, 5)), images)
        order = torch.randperm(windows.shape[1], generator=torch.Generator().manual_seed(1)).expand(2, -1)
        assert torch.equal(reorder(reorder(windows, order), order.argsort(dim=1)), windows)
    assert not cut(images, 4)[:, -1, 3:].any()


@pytest.mark.parametrize(("window", "step"), [(5, 1), (5, 3), (4, 4), (35, 1), (7, 6)])
def test_overlapping_windows_hold_every_pixel_and_the_last_one_is_shown(window, step):
    images = pictures(2, 7, 5)
    windows = cut(images, window, step)
    starts = range(0, windows.shape[1] * step, step)
    assert max(starts) < 35 <= max(starts) + window  # the last holds the last pixel, and one more would hold none
    assert max(starts) - step + window < 35
    assert torch.equal(join(windows, (7, 5), step), images)
    numbers = torch.arange(windows.shape[1]).double()[None, :, None].expand(1, -1, window)
    expected = [max(k for k, start in enumerate(starts) if start <= place < start + window) for place in range(35)]
    assert join(numbers, (7, 5), step).flatten().tolist() == expected


def test_the_similarity_by_hand():
    one, other = torch.tensor([10.0, 20.0, 20.0, 30.0]), torch.tensor([10.0, 20.0, 40.0, 30.0])
    # d = sqrt(400 / 4) = 10; {10, 20, 30} and {10, 20, 30, 40}: J = 3/4; hashes 0111 (mean 20) and 0011 (mean 25).
    assert published.similarity(one, other).item() == pytest.approx(0.95 / 11 - 0.05)
    assert published.similarity(one, one).item() == pytest.approx(1.05)
    assert published.similarity(one, torch.tensor([200.0, 210.0, 210.0, 220.0])).item() == pytest.approx(
        0.8 / 191 + 0.05
    )


def test_dynamic_allocation_spends_the_pool_and_no_more(monkeypatch):
    """Shares as the noise shows them: equal where nothing is replaced, the whole rest for a late single window."""
    scales = []

    def record(answer, scale, noise):
        scales.append(255 / scale[:, 0])
        return answer

    monkeypatch.setattr(published, "add_laplace", record)
    windows = torch.rand(2, 10, 6, dtype=torch.float64) * 255
    released = published.release_windows(windows, 1.5, 2.0, Noise.fixed(1))  # nothing is that similar
    assert torch.equal(released, windows)
    assert torch.allclose(torch.stack(scales), torch.tensor(1.5).double())
    scales.clear()
    windows[:, :9] = windows[:, :1]
    published.release_windows(windows, 1.5, 0.9, Noise.fixed(1))
    assert scales[9].tolist() == pytest.approx([13.5, 13.5])  # nine times the nominal epsilon for one window


def test_a_replaced_window_is_a_copy_and_a_low_threshold_replaces_all():
    windows = torch.rand(3, 5, 8, dtype=torch.float64) * 255
    released = published.release_windows(windows, 1.0, -1.0, Noise.fixed(2))
    assert torch.equal(released, released[:, :1].expand_as(released))
    assert not torch.equal(released[:, 0], windows[:, 0])


def test_annealing_and_the_draws_sort():
    """57 random numbers as in the paper's section 4.1: annealing sorts further than draws at a small epsilon."""
    likeness = torch.rand(20, 57, generator=torch.Generator().manual_seed(1)).double()
    order = torch.arange(57).expand(20, -1)
    annealed = published.anneal(order, likeness, Noise.fixed(1))
    assert (annealed[:, 0] == 0).all()
    assert torch.equal(annealed.sort(dim=1).values, order)

    def length(order):
        return likeness.gather(1, order).diff(dim=1).abs().sum(1).mean()

    assert length(annealed) < 0.75 * length(order)
    assert length(likeness.argsort(dim=1)) < length(annealed)


def test_draws_without_replacement_follow_the_exponential_mechanism(monkeypatch):
    monkeypatch.setattr(published, "anneal", lambda order, likeness, noise: order)
    monkeypatch.setattr(published, "add_laplace", lambda values, scale, noise: values)  # the first window as it is
    windows = torch.full((2000, 3, 4), 100.0, dtype=torch.float64)
    windows[:, 2] = torch.tensor([0.0, 0.0, 100.0, 100.0])
    order = published.sas(windows, 0.008, 1.0, Noise.fixed(3))  # 0.004 a draw
    assert (order[:, 0] == 0).all()
    near, far = published.similarity(windows[0, 1:], windows[0, :1]).clamp(0, 1).tolist()
    first = int((order[:, 1] == 1).sum())
    for epsilon, least, most in ((0.004, 1e-3, 1.0), (0.008, 0.0, 1e-6), (0.002, 0.0, 1e-6)):
        stated = 1 / (1 + math.exp(epsilon * (1 / (1.001 - far) - 1 / (1.001 - near)) / 2))
        assert least <= binomtest(first, 2000, stated).pvalue <= most


def test_the_score_of_a_draw_moves_nearly_a_thousand_times_as_far_as_the_paper_says():
    """All windows of three pixels and their neighbors beside every first window; one pixel alone does it, too."""
    levels = torch.tensor([0.0, 1.0, 128.0, 255.0]).double()
    windows = torch.cartesian_prod(levels, levels, levels)
    likeness = published.similarity(windows[:, None], windows[None]).clamp(0, 1)
    scores = published.score(likeness)  # (window, first)
    moves = (scores[:, None] - scores[None]).abs().amax(2)
    one_pixel = (windows[:, None] != windows[None]).sum(2) == 1
    for allowed in (moves, moves[one_pixel]):
        assert 998 < allowed.max() <= published.SCORE_SENSITIVITY < 1 / (0.001 * 1.001) + 1e-6


def test_draws_follow_epsilon_while_their_sensitivity_is_taken_for_one():
    """Figure 7: share of pairs in order of 57 numbers; what is left where a draw pays for its sensitivity is chance."""
    numbers = torch.rand(200, 57, generator=torch.Generator().manual_seed(1)).double()
    likeness = 1 - (numbers - numbers[:, :1]).abs()

    def sorted_share(*price):
        along = likeness.gather(1, published.draw_order(likeness, price[0], Noise.fixed(1), *price[1:]))[:, 1:]
        one, other = torch.triu_indices(56, 56, offset=1)
        return (along[:, one] >= along[:, other]).double().mean().item()

    assert 0.68 < sorted_share(0.4) < sorted_share(0.5) < sorted_share(math.log(2)) < sorted_share(1.0) < 0.83
    assert abs(sorted_share(1.0, published.SCORE_SENSITIVITY) - 0.5) < 0.03


@pytest.mark.parametrize("method", ["swp", "sort-swp"])
def test_the_published_forms_keep_shape_and_do_not_mix_images(method):
    images = pictures(3, 9, 11, dtype=torch.float32)
    released = release(images, method, epsilon=2.0, window=10, accept_unsound=True, noise=Noise.fixed(1))
    assert (released.images.shape, released.images.dtype) == (images.shape, images.dtype)
    assert (released.privacy.claimed.epsilon, released.privacy.proven.epsilon) == (2.0, math.inf)
    for step in (None, 1, 7):
        exact = release(images, method, epsilon=1e9, window=10, step=step, threshold=1.04, accept_unsound=True).images
        assert torch.allclose(exact, images, atol=1e-5)


@pytest.mark.parametrize(("method", "runs"), [("swp", 4000), pytest.param("sort-swp", 30_000, marks=pytest.mark.slow)])
def test_the_growing_share_is_found_by_the_audit(method, runs):
    audited = audit_entry(method).case(method, Request(1.0)).run(runs, seed=1)
    assert audited.exceeds_claim
    assert audited.result.epsilon_lower > 1.5


@pytest.mark.parametrize("method", ["swp", "sort-swp"])
def test_the_raw_threshold_is_found_by_the_audit(method):
    case = audit_entry(method).case(method, Request(1.0, pair=published.RAW_THRESHOLD))
    audited = case.run(12_000, seed=1)
    assert audited.exceeds_claim
    assert audited.result.epsilon_lower > 1.5
    score = case.statistics[0](case.pair.data, case.pair.neighbor)
    for image, certain in ((case.pair.data, -1), (case.pair.neighbor, 1)):
        scores = score(case.release(image.expand(4000, -1, -1), Noise.fixed(2)))
        assert set(scores.tolist()) == {0, certain}  # a replacement names the image for sure: no epsilon allows that


def test_the_raw_threshold_is_all_that_this_pair_shows(monkeypatch):
    """The second window gets no more than its nominal share, and without a decision nothing is found."""
    scales, real = [], published.add_laplace

    def record(answer, scale, noise):
        scales.append(255 / scale)
        return real(answer, scale, noise)

    def undecided(values, epsilon, options, noise):
        return published.swp(values, epsilon, options.model_copy(update={"threshold": 1 + published.ALPHA}), noise)

    monkeypatch.setattr(published, "add_laplace", record)
    audited = (
        published.published_entry("swp", undecided)
        .case("swp", Request(1.0, pair=published.RAW_THRESHOLD))
        .run(4000, seed=1)
    )
    assert torch.allclose(torch.cat(scales), torch.tensor(1.0).double())
    assert audited.result.epsilon_lower < 0.5


@pytest.mark.parametrize("method", ["swp-sound", "sort-swp-sound"])
def test_a_decision_on_noisy_numbers_is_never_caught_and_one_without_noise_is(method):
    case = audit_entry(method).case(method, Request(1.0, pair=published.RAW_THRESHOLD))
    audited = case.run(12_000, confidence=1 - 0.001 / 2, seed=2)
    assert 0.1 <= audited.result.epsilon_lower <= case.proven.epsilon <= 1.0
    made, _ = plan_release((2, 4), Unit.PIXEL, 1.0, 0.0, SwpSoundOptions(window=4))
    raw = dataclasses.replace(made, compare=lambda distances, noise: distances)
    assert dataclasses.replace(case, release=raw).run(4000, seed=2).violation
    with pytest.raises(InputError, match="differs in one pixel"):
        audit_entry(method).case(method, Request(1.0, unit=Unit.IMAGE, pair=published.RAW_THRESHOLD))


SHAPE, WINDOW = (2, 3), 4  # two windows, of 4 and 2 pixels


@pytest.mark.parametrize("unit", [Unit.PIXEL, Unit.IMAGE])
def test_no_neighbor_moves_what_is_read_of_a_window_further_than_declared(unit):
    """Keys, distances to any public center, and pixels of each window, for all replacements by extreme values."""
    made, _ = plan_release(SHAPE, unit, 1.0, 0.0, SwpSoundOptions(window=WINDOW), sort=0.2)
    base = torch.tensor([0.3, 0.0, 1.0, 0.6, 0.2, 0.9]).double()
    centers = torch.tensor([0.0, 0.31, 1.0]).double()
    reached = {"sort": 0, "compare": 0, "pixels": 0}
    for place in range(6) if unit is Unit.PIXEL else [slice(None)]:
        size = 6 if isinstance(place, slice) else 1
        changed = base.expand(3**size, 6).clone()
        changed[:, place] = torch.tensor(list(itertools.product((-1.0, 0.5, 2.0), repeat=size))).double().squeeze(1)
        images = changed.view(-1, *SHAPE).clamp(0, 1)
        windows, real = cut(images, WINDOW), cut(torch.ones_like(images), WINDOW)
        for number in range(2):
            raw, here = windows[:, number], real[:, number]
            answers = {"sort": [WindowRelease.keys(raw)], "pixels": [raw]}
            answers["compare"] = [WindowRelease.distances(raw, c.expand(len(raw)), here) for c in centers]
            for name, many in answers.items():
                noisy = getattr(made, name)
                for answer in many:
                    steps = noisy.grid.round(answer.reshape(len(raw), -1)).double()
                    move = torch.cdist(steps, steps, p=1).max().item()
                    assert move <= noisy.mechanism.sensitivity
                    reached[name] = max(reached[name], move / noisy.mechanism.sensitivity)
    assert min(reached.values()) > 0.99


@pytest.mark.parametrize("method", ["swp-sound", "sort-swp-sound"])
@pytest.mark.parametrize("unit", [Unit.PIXEL, Unit.IMAGE])
def test_a_unit_is_charged_for_every_window_that_it_touches(method, unit):
    publisher = load_publisher(method)
    plan = publisher.plan((8, 10), unit, 2.0, 0.0, publisher.options(window=16))
    assert len(plan.events) == (3 if method.startswith("sort") else 2)
    assert {event.count for event in plan.events} == {1 if unit is Unit.PIXEL else 5}
    assert 1.98 < compose_epsilon(plan.events, 0.0) <= 2.0


def test_far_windows_are_released_and_near_ones_replaced_by_a_mean():
    image = torch.zeros(1, 4, 10).double()
    image[0, 2:] = 1.0
    made, _ = plan_release((4, 10), Unit.PIXEL, 1e4, 0.0, SwpSoundOptions(window=10))
    released = made(image, Noise.fixed(1))[0]
    assert torch.allclose(released, image[0], atol=0.05)
    assert released[0].unique().numel() > 1  # released with noise
    assert released[1].unique().numel() == 1  # replaced
    assert released[2].unique().numel() > 1
    assert released[3].unique().numel() == 1


def test_sorting_by_noisy_means_sorts():
    images = pictures(1, 20, 30)
    made, _ = plan_release((20, 30), Unit.PIXEL, 500.0, 0.0, SwpSoundOptions(window=30), sort=0.2)
    keys = made.sort(made.keys(cut(images, 30)), Noise.fixed(1))[0]
    assert spearmanr(keys.numpy(), images[0].mean(1).numpy()).statistic > 0.95


@pytest.mark.parametrize("method", ["swp-sound", "sort-swp-sound"])
@pytest.mark.parametrize("unit", [Unit.PIXEL, Unit.IMAGE])
def test_the_sound_forms_are_never_caught(method, unit):
    case = audit_entry(method).case(method, Request(1.0, unit=unit))
    audited = case.run(8000, confidence=1 - 0.001 / 4, seed=2)
    least = 0.1 if unit is Unit.PIXEL else 0.0  # spread over all windows, little of it is seen at once
    assert least <= audited.result.epsilon_lower <= case.proven.epsilon <= 1.0


def test_swp_sound_beats_plain_noise():
    images = pictures(8, 56, 40)
    errors = {}
    for method in ("lap", "swp-sound"):
        told = release(images, method, epsilon=1.0, unit="pixel", noise=Noise.fixed(1)).images.clamp(0, 1)
        errors[method] = (told - images).square().mean().item()
    assert errors["swp-sound"] < 0.7 * errors["lap"]


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("swp", {"window": 81}, "window = 81 is longer than the 80 pixels"),
        ("swp-sound", {"window": 81}, "longer than the 80 pixels"),
        ("swp", {"window": 0}, "window = 0"),
        ("swp", {"window": 8, "step": 9}, "step = 9 is longer than window = 8"),
        ("sort-swp", {"step": 57}, "step = 57 is longer than window = 56"),
        ("swp", {"step": 0}, "step = 0"),
        ("swp-sound", {"step": 1}, "step"),
        ("swp", {"threshold": 1.2}, "threshold = 1.2"),
        ("swp-sound", {"threshold": 0.0}, "threshold = 0.0"),
        ("swp-sound", {"threshold": math.nan}, "threshold = nan"),
        ("swp-sound", {"compare": 1.0}, "compare = 1.0"),
        ("sort-swp-sound", {"compare": 0.5, "sort": 0.5}, "below 1"),
        ("swp", {"delta": 1e-5}, "leave delta out"),
    ],
)
def test_bad_options_are_refused(method, options, words):
    with pytest.raises(InputError, match=words) as caught:
        release(pictures(1, 8, 10), method, epsilon=1.0, accept_unsound=True, **options)
    assert "\n" not in str(caught.value)
