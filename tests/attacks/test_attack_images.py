"""Images of any tool: copies are found, images that saw nobody are not, and every bad input is one clear line."""

import json
import re

import numpy as np
import pytest
import torch

import idpgan
from idpgan.attacks.findings import COPIES
from idpgan.attacks.independence import FALSE_ALARM, own_side
from idpgan.attacks.outcome import Outcome, best_of, judged, least_images
from idpgan.attacks.registry import ATTACKS
from idpgan.data.images import Images, png_bytes, to_uint8
from idpgan.errors import InputError

NUM = 200


def draw(num, seed, people=None):
    """Grey 8 x 8 images of a 12-dimensional distribution; those of one person share half of their numbers."""
    rng = torch.Generator().manual_seed(seed)
    basis = torch.randn(12, 64, generator=torch.Generator().manual_seed(0))
    latent = torch.randn(num, 12, generator=rng)
    if people is not None:
        latent = (latent + torch.randn(num // people, 12, generator=rng).repeat_interleave(people, 0)) / 2**0.5
    pixels = torch.tanh(latent @ basis / 6 + 0.02 * torch.randn(num, 64, generator=rng))
    return to_uint8(pixels.view(num, 1, 8, 8))


MEMBERS, OTHERS, REFERENCE, FRESH = draw(NUM, 1), draw(NUM, 2), draw(400, 3), draw(1000, 4)
PLANTED = torch.cat([FRESH[:300], MEMBERS])


@pytest.fixture(scope="module")
def found():
    return idpgan.attack(PLANTED, MEMBERS, OTHERS, REFERENCE)


def test_planted_copies_are_found_and_images_that_saw_nobody_are_not(found):
    """Positive and negative control of all attacks that need images alone, and of the corrected maximum."""
    assert found.leak
    assert found.best.auc.value > 0.99
    areas = {each.attack.name: each.result.auc for each in found.outcomes if each.result is not None}
    assert {"nearest-sample", "nearest-in-features", "copies", "density-ratio", "gen-lra"} <= set(areas)
    assert min(area for name, area in areas.items() if "neighborhood" not in name) > 0.75, areas
    nothing = idpgan.attack(FRESH, MEMBERS, OTHERS, REFERENCE, confidence=0.999)
    assert not nothing.leak
    assert {each.attack.name for each in nothing.outcomes if each.result is not None} == set(areas)


def test_scores_that_attacks_share_are_computed_once_and_are_the_same(found):
    """Calibrated attacks start from the plain ones; alone they find the same."""
    for name in ("nearest-sample-calibrated", "copies-calibrated"):
        alone = idpgan.attack(PLANTED, MEMBERS, OTHERS, REFERENCE, attacks=[name])
        one = next(each for each in found.outcomes if each.attack.name == name)
        assert all(map(torch.equal, one.scores, alone.outcomes[0].scores))


def test_it_says_before_it_starts_how_long_it_takes(monkeypatch):
    monkeypatch.setattr("idpgan.attacks.run._SECONDS", 100_000)
    notes = []
    idpgan.attack(
        FRESH[:300],
        MEMBERS,
        OTHERS,
        attacks=["copies"],
        progress=lambda what, done, total, note="": notes.append((what, done, note)) if note else None,
    )
    assert notes[0][:2] == ("attacks", 0)
    assert re.fullmatch(r"about [0-9.]+ (s|min) in all", notes[0][2])  # a busy machine takes minutes
    idpgan.attack(FRESH[:50], MEMBERS, OTHERS, attacks=["copies"], progress=lambda *said: notes.append(said))
    assert ("attacks", 0, 2, "seconds in all") in [each for each in notes if len(each) == 4]


def test_a_shifted_copy_is_found_in_features_and_hardly_in_pixels():
    fine = torch.rand(400, 1, 20, 22, generator=torch.Generator().manual_seed(5)) * 2 - 1
    real, shifted = to_uint8(fine[:, :, :, :20]), to_uint8(fine[:NUM, :, :, 2:])
    areas = {
        each.attack.name: each.result.auc
        for each in idpgan.attack(shifted, real[:NUM], real[NUM:]).outcomes
        if each.result is not None
    }
    assert areas["nearest-in-features"] > 0.9, areas
    assert areas["nearest-sample"] < 0.7, areas


def test_people_are_judged_as_sets(tmp_path):
    """One image of each member's person is planted: a person is found far more surely than a single image."""
    real, people = draw(480, 7, people=4), torch.arange(120).repeat_interleave(4)
    members = Images(real[:240], identities=people[:240])
    others = Images(real[240:], identities=people[240:])
    found = idpgan.attack(real[:240:4], members, others, attacks=["person-set", "nearest-sample"])
    areas = {each.attack.name: each.result for each in found.outcomes if each.result is not None}
    assert areas["person-set"].num_members == 60
    assert areas["person-set"].auc > areas["nearest-sample"].auc + 0.1
    nothing = idpgan.attack(FRESH, members, others, attacks=["person-set"], confidence=0.999)
    assert not nothing.leak


def test_the_page_says_it_in_words_and_never_takes_distance_for_privacy():
    leaks, nothing = (
        idpgan.attack(made, MEMBERS, OTHERS, attacks=["nearest-sample"]) for made in (PLANTED, FRESH[:300])
    )
    assert "LEAK FOUND." in str(leaks)
    assert "200 members, 0 others" in str(leaks)
    assert "NO LEAK FOUND" in str(nothing)
    assert "This is not evidence of privacy" in str(nothing)
    for found in (leaks, nothing):
        assert "It is not evidence of privacy" in str(found)
        assert json.loads(json.dumps(found.to_json()))["best"]["correction"] == "Bonferroni"


def test_a_few_exact_copies_among_many_images_are_a_leak():
    """No rate over all members shows so few; that they are members' and nobody else's does."""
    few, many = (torch.cat([FRESH[:500], MEMBERS[:copied]]) for copied in (3, 14))
    found = [idpgan.attack(made, MEMBERS, OTHERS, attacks=["neighborhood-count"]) for made in (few, many)]
    assert [(each.leak, each.best.leak, each.to_json()["leak"]) for each in found] == [(True, False, True)] * 2
    assert "3 members and 0 of the others are among the synthetic images" in str(found[0])
    nobody = idpgan.attack(torch.cat([many, OTHERS[:14]]), MEMBERS, OTHERS, attacks=["neighborhood-count"])
    assert not nobody.leak


def burst(scenes, shots, seed):
    """Shots of each scene, in order: sensor noise of 6 grey levels."""
    images = scenes.repeat_interleave(shots, 0).float()
    noise = 6 * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + noise).clamp(0, 255).round().to(torch.uint8)


def test_exact_copies_are_one_draw_and_their_number_is_said():
    """24 draws without a leak, of 30 images 8 times each: taken for 240 draws, 11 of them were called leaks."""
    leaks = 0
    for seed in range(24):
        sides = [draw(30, 100 + 2 * seed + side).repeat_interleave(8, 0) for side in (0, 1)]
        found = idpgan.attack(FRESH[:300], *sides, attacks=["nearest-sample"])
        leaks += found.leak
    assert leaks <= 2
    assert found.facts["num_members"] == 30
    assert "210 of the 240 others are exact copies of others of them" in str(found)
    copied = idpgan.attack(torch.cat([FRESH[:300], sides[0]]), *sides, attacks=["nearest-sample"])
    assert copied.leak  # and a leak is found as before


def test_bursts_on_one_side_ask_for_people_and_any_others_do_not():
    scenes = draw(60, 11)
    shots, people = burst(scenes, 6, 12), torch.arange(60).repeat_interleave(6)
    for shown in (shots, torch.cat([shots[:180:2], shots[180::2]])):  # whole bursts, then half of each
        said = refusal(FRESH, shown[: len(shown) // 2], shown[len(shown) // 2 :])
        assert "column person" in said
        assert "a false alarm in 1,000" in said
    assert "different sources" in refusal(FRESH, MEMBERS, OTHERS // 2)  # sides of different sources
    mixed = torch.cat([draw(80, 13), shots[:120]])  # twenty bursts among 80 single images
    assert "column person" in refusal(FRESH, mixed, OTHERS)
    named = [Images(shots[half], identities=people[half]) for half in (slice(180), slice(180, 360))]
    leaks = [idpgan.attack(draw(300, seed), *named, attacks=["nearest-sample"]).leak for seed in range(20, 25)]
    assert sum(leaks) <= 1
    dealt = shots[torch.randperm(360, generator=torch.Generator().manual_seed(2))]  # both sides have of each scene
    assert not idpgan.attack(FRESH, dealt[:180], dealt[180:], attacks=["nearest-sample"], confidence=0.999).leak


def test_independent_images_are_refused_as_rarely_as_said():
    """The test is exact at any size, also of few images and of a lumpy distribution."""
    chances = [own_side(draw(30, 300 + seed), draw(30, 400 + seed), seed=seed)[1] for seed in range(40)]
    assert min(chances) > FALSE_ALARM
    assert np.mean(np.array(chances) < 0.2) < 0.4
    assert own_side(MEMBERS[:3], OTHERS[:3])[1] == 1


@pytest.fixture
def folders(tmp_path):
    for name, images in (("members", MEMBERS), ("others", OTHERS)):
        (tmp_path / name).mkdir()
        for number, image in enumerate(images[40:80]):
            (tmp_path / name / f"{number}.png").write_bytes(png_bytes(image))
    np.savez(tmp_path / "made.npz", x=PLANTED[300:].numpy() / 255, y=np.zeros(NUM, dtype=np.int64))
    return tmp_path


def test_one_command_attacks_an_npz_of_another_tool(folders, call):
    """DPImageBench writes x in [0, 1] and y; the folders are plain PNG files."""
    result = folders / "found.json"
    sides = ("--members", folders / "members", "--others", folders / "others", "--out", result)
    code, out, err = call(folders / "made.npz", *sides, "--no-progress")
    assert code == 0, err
    assert "LEAK FOUND" in out
    assert json.loads(result.read_text())["best"]["auc"]["value"] > 0.99
    np.savez(folders / "made.npz", x=PLANTED[300:].numpy() * 1.0)
    code, out, err = call(folders / "made.npz", *sides[:4])
    assert (code, out, "(--range)" in err, err.count("\n")) == (2, "", True, 1)
    assert call(folders / "made.npz", *sides[:4], "--range", "bytes", "--no-progress")[0] == 0


def refusal(*arguments, **options):
    with pytest.raises(InputError) as caught:
        idpgan.attack(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_input_is_one_line():
    assert "nothing is resized" in refusal(FRESH[:, :, :7], MEMBERS, OTHERS)
    assert "members and others both" in refusal(FRESH, MEMBERS, torch.cat([OTHERS, MEMBERS[:20]]))
    assert "members and reference both" in refusal(FRESH, MEMBERS, OTHERS, torch.cat([REFERENCE, MEMBERS]))
    assert "40 are needed" in refusal(FRESH, MEMBERS, OTHERS, REFERENCE[:39])
    assert "3 are needed" in refusal(FRESH[:2], MEMBERS, OTHERS)
    assert "'nearest-sampel'" in refusal(FRESH, MEMBERS, OTHERS, attacks=["nearest-sampel"])
    assert "expected (N, H, W)" in refusal(np.zeros((4, 5)), MEMBERS, OTHERS)
    assert "expected (N, H, W)" in refusal([[1, 2]], MEMBERS, OTHERS)
    assert "must be a folder, an npz file" in refusal(7, MEMBERS, OTHERS)
    assert "does not exist" in refusal("nowhere.npz", MEMBERS, OTHERS)
    assert "is not said" in refusal(FRESH / 255, MEMBERS, OTHERS)
    assert "is not clear" in refusal(np.full((9, 8, 8), 0.2), MEMBERS, OTHERS, pixel_range="auto")
    assert "needs the person on each image" in refusal(FRESH, MEMBERS, OTHERS, attacks=["person-set"])
    assert "None of these attacks" in refusal(FRESH, MEMBERS, OTHERS, attacks=["critic-score"])


def test_the_least_that_can_show_anything_is_stated_and_right():
    said = refusal(FRESH, MEMBERS[:6], OTHERS)
    least = int(re.search(r"below (\d+) members", said)[1])
    rows = len([each for each in idpgan.attack(FRESH, MEMBERS, OTHERS).outcomes if each.result is not None])
    assert least == least_images(rows, further=COPIES)
    row = ATTACKS["nearest-sample"]
    sure = [Outcome(row, scores=(torch.ones(least - less), torch.zeros(least - less))) for less in (0, 1)]
    assert best_of([sure[0]] * rows, further=COPIES).leak
    assert not best_of([sure[1]] * rows, further=COPIES).leak


@pytest.mark.parametrize(
    "options", [("--members", "a"), ("--others", "a"), ("--out", "a.json"), ("--shadows", "3"), ("--range", "unit")]
)
def test_options_that_do_not_go_together_are_refused(options, tmp_path, call):
    code, out, err = call(tmp_path, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_the_maximum_over_attacks_that_know_nothing_is_corrected():
    """Of 40 blind attacks the best often looks good by its own interval; corrected, it does not."""
    rng, row = torch.Generator().manual_seed(3), ATTACKS["nearest-sample"]
    naive = 0
    for _ in range(15):
        blind = [Outcome(row, scores=tuple(torch.randn(2, 150, generator=rng))) for _ in range(40)]
        assert not best_of(blind, confidence=0.999).leak
        naive += max(judged(each.scores, None, 0.95).auc_interval[0] for each in blind) > 0.5
    assert naive >= 2  # 9.6 are expected, with a standard deviation of 1.9


def test_rows_without_a_file_are_left_out_with_their_people_and_counted(folders, call, caplog):
    """As `idpgan prepare` writes them for photos that it refuses; a row whose file is damaged is refused."""
    for side in ("members", "others"):
        names = sorted(path.name for path in (folders / side).iterdir())
        rows = [f"{name},{side}{number // 4}" for number, name in enumerate(["gone.png", *names, "gone too.png"])]
        (folders / side / "metadata.csv").write_text("\n".join(["file_name,person", *rows]) + "\n")
    sides = ("--members", folders / "members", "--others", folders / "others", "--no-progress")
    code, out, err = call(folders / "made.npz", *sides)
    assert code == 0, err
    assert "the brackets are those of people" in out
    assert "40 images that are said to have been used" in out
    assert f"2 of 42 rows of {folders / 'members' / 'metadata.csv'} name no file that is there" in caplog.text
    assert len(idpgan.data.sources.folder.read_all(folders / "members", None)) == 40  # as `evaluate` and public images
    (folders / "members" / "9.png").write_bytes(b"x")
    code, _, err = call(folders / "made.npz", *sides)
    assert (code, "9.png" in err) == (2, True)
