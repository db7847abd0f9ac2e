"""The gate: its verdict and exit code on constructed scores, and as a command of a pipeline."""

import json
import os
import stat
import sys

import numpy as np
import pytest
import torch

import idpgan
from idpgan.attacks.gate import CODES, Limit
from idpgan.attacks.outcome import Outcome, best_of
from idpgan.attacks.registry import ATTACKS
from idpgan.attacks.riskiest import NEAREST, most_exposed
from idpgan.data.images import Images, png_bytes
from idpgan.errors import InputError

PASSED, FAILED, UNDECIDED = CODES["passed"], CODES["failed"], CODES["undecided"]


def scores(num, found, caught=0):
    """Members and others, of which so many members score above all others, the rest as the others do.

    ``caught`` others score highest: with at most 1 % of them the rate at 1 % false alarms is still found / num.
    """
    others = torch.arange(num).float()
    members = others.clone()
    members[torch.arange(found) * num // max(found, 1)] = num + 1.0  # spread, so that the rest resembles the others
    others[num // 2 : num // 2 + caught] = num + 2.0
    return members, others


def outcomes(*sides, people=None):
    return [Outcome(ATTACKS["nearest-sample"], scores=side, people=people) for side in sides]


NOTHING, MOST = scores(1000, 0), scores(1000, 900)
TENTH = scores(1000, 100, caught=10)  # 10 % at 1 % false alarms, exactly
FEW, TINY = scores(90, 80), scores(4, 4)
PEOPLE = (torch.arange(1000) // 20, 50 + torch.arange(1000) // 20)  # 50 people a side: too few for a rate at 1 %


@pytest.mark.parametrize(
    ("limit", "sides", "further", "code"),
    [
        # leak: what the headline says
        ("leak", [NOTHING], {}, PASSED),
        ("leak", [MOST], {}, FAILED),
        ("leak", [NOTHING, MOST], {}, FAILED),  # one attack of several
        ("leak", [TENTH], {}, FAILED),  # its rate is above a guess, whatever its AUC
        ("leak", [NOTHING], {"copied": True}, FAILED),
        ("leak", [TINY], {}, UNDECIDED),  # not even a sure attack shows anything
        ("leak", [TINY], {"copied": True}, FAILED),  # a copy is one with however few
        ("leak", [FEW], {}, FAILED),
        ("leak", [], {}, UNDECIDED),  # no attack was run
        # what was measured
        ("0.05@0.01", [NOTHING], {}, PASSED),
        ("0.05@0.01", [TENTH], {}, FAILED),
        ("0.1@0.01", [TENTH], {}, PASSED),  # equal is not above; a leak below the limit passes
        ("0.0999@0.01", [TENTH], {}, FAILED),
        ("0.5@0.01", [NOTHING, MOST], {}, FAILED),
        ("0.95@0.01", [MOST], {}, PASSED),
        ("0.95@0.01", [MOST], {"copied": True}, FAILED),  # copies are above any limit
        ("0.05@0.01", [FEW], {}, UNDECIDED),  # 100 others are needed
        ("0.05@0.01", [FEW, TENTH], {}, FAILED),  # what is known to be too much needs nothing else
        ("0.05@0.01", [FEW, NOTHING], {}, UNDECIDED),  # what is not known passes nothing
        ("0.05@0.001", [NOTHING], {}, UNDECIDED),  # 10,000 others are needed
        ("0.05@0.01", [NOTHING], {"people": PEOPLE}, UNDECIDED),
        ("0.05@0.01", [], {}, UNDECIDED),
        # the upper end of the interval
        ("0.1@0.01^", [TENTH], {}, FAILED),  # measured 10 %, perhaps more
        ("0.2@0.01^", [TENTH], {}, PASSED),
        ("0.05@0.01^", [NOTHING], {}, PASSED),
        ("0.02@0.01^", [scores(150, 0)], {}, FAILED),  # so few cannot show so little
    ],
)
def test_the_exit_code_is_right_in_constructed_cases(limit, sides, further, code):
    copied, people = further.get("copied", False), further.get("people")
    found = outcomes(*sides, people=people)
    asked = Limit.parse(limit.removesuffix("^"), limit.endswith("^"))
    verdict = asked.judge(found, best_of(found, further=1), 1, copied=copied)
    assert verdict.code == code, verdict
    assert verdict.reasons
    written = json.loads(json.dumps(verdict.to_json()))
    assert (written["exit_code"], CODES[written["verdict"]]) == (code, code)
    text = "\n".join(verdict.lines())
    assert f"GATE {verdict.name.upper()} (exit code {code})" in text
    assert "not evidence of privacy" in text
    assert "for the curator only" in text


def test_a_leak_that_passes_is_named():
    found = outcomes(TENTH)
    assert "a leak was found, smaller than the limit" in str(Limit.parse("0.5@0.01").judge(found, best_of(found)))
    found = outcomes(NOTHING)
    assert "a leak was found" not in str(Limit.parse("0.5@0.01").judge(found, best_of(found)))


def test_codes_collide_with_no_other_end_of_a_command():
    """0 is what it is everywhere; 1 ends a crash, 2 bad input, from 128 on signals do."""
    assert len(set(CODES.values())) == 3
    assert not {1, 2} & set(CODES.values())
    assert CODES["passed"] == 0
    assert max(CODES.values()) < 125


@pytest.mark.parametrize(
    "text",
    ["", "lek", "0.05", "@", "0.05@", "0.05@0.02", "1@0.01", "0.005@0.01", "nan@0.01", "5@0.01", "a@b@c", "-1@0.01"],
)
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="--fail-above"):
        Limit.parse(text)


def test_the_upper_end_needs_a_rate():
    with pytest.raises(InputError, match="--upper-end"):
        Limit.parse("leak", upper_end=True)


# The command ---------------------------------------------------------------------------------------------------------


def drawn(num, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, 1, 8, 8), dtype=torch.uint8, generator=rng)


@pytest.fixture
def sides(tmp_path):
    """Members and others as PNG files, one of the members twice, and images that hold four members or none."""
    members, others, fresh = drawn(60, 1), drawn(60, 2), drawn(60, 3)
    for name, images in (("members", torch.cat([members, members[5:6]])), ("others", others)):
        (tmp_path / name).mkdir()
        for number, image in enumerate(images):
            (tmp_path / name / f"{number:02}.png").write_bytes(png_bytes(image))
    np.savez(tmp_path / "clean.npz", images=fresh.numpy())
    np.savez(tmp_path / "copies.npz", images=torch.cat([fresh, members[:20]]).numpy())
    return tmp_path


def test_a_pipeline_gets_the_code_and_the_same_in_json(sides, call):
    attacked = ["--members", sides / "members", "--others", sides / "others", "--attack", "nearest-sample"]
    code, out, _ = call(sides / "copies.npz", *attacked, "--fail-above", "leak", "--no-progress")
    assert code == FAILED
    assert "GATE FAILED (exit code 3)" in out
    code, out, _ = call(sides / "clean.npz", *attacked, "--fail-above", "leak", "--json")
    gate = json.loads(out)["gate"]
    assert (code, gate["exit_code"], gate["verdict"]) == (PASSED, PASSED, "passed")
    code, out, _ = call(
        sides / "clean.npz", *attacked, "--fail-above", "0.05@0.01", "--json", "--out", sides / "f.json"
    )
    assert code == UNDECIDED
    assert json.loads((sides / "f.json").read_text())["gate"] == json.loads(out)["gate"]
    assert call(sides / "copies.npz", *attacked, "--no-progress")[0] == 0  # no gate, no code


def test_the_help_names_the_codes(call):
    assert all(
        word in " ".join(call("--help")[1].split()) for word in ("0 passed, 3 failed, 4 undecided", "--fail-above")
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--fail-above", "7"),
        ("--upper-end",),
        ("--riskiest", "-1"),
    ],
)
def test_bad_options_are_one_line_with_code_two(options, tmp_path, call):
    code, out, err = call(tmp_path, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert options[-1].split("@")[0] in err or options[-2] in err


# The riskiest records ------------------------------------------------------------------------------------------------


def test_planted_members_come_first_with_what_they_resemble():
    members, others, fresh = drawn(50, 1), drawn(50, 2), drawn(50, 3)
    near = (members[7:8].int() + 3).clamp(0, 255).to(torch.uint8)  # a noisy copy, and an equal one
    samples = Images(torch.cat([fresh, near, members[30:31]]))
    names = [(f"image {place}",) for place in range(1, 51)]
    one = -(((members[:, None].float() - samples.images.float()).square().mean((2, 3, 4))).min(1).values)
    two = -(((others[:, None].float() - samples.images.float()).square().mean((2, 3, 4))).min(1).values)
    found = most_exposed(Images(members), samples, outcomes((one, two)), 3, names)
    assert [record.names for record in found[:2]] == [("image 31",), ("image 8",)]
    assert [record.equal for record in found] == [True, False, False]
    assert found[0].distances[0] == 0
    assert 2 < found[1].distances[0] <= 3
    assert torch.equal(found[1].nearest[:1], near)
    assert found[1].nearest.shape == (NEAREST, 1, 8, 8)
    assert found[1].levels["nearest-sample"] == pytest.approx(1 / 51, abs=1e-6)
    assert most_exposed(Images(members), samples, outcomes((one, two)), 0, names) == ()


def test_attacks_that_score_no_single_member_rank_nothing():
    """People and chosen records have other numbers of scores; members that a costly attack left out stay last."""
    rows = [
        Outcome(ATTACKS["person-set"], scores=(torch.ones(3), torch.zeros(3))),
        Outcome(ATTACKS["shadow-lira"], scores=(torch.ones(2), torch.zeros(2))),
        Outcome(ATTACKS["latent-reconstruction"], scores=(torch.tensor([0.0, 5.0]), torch.ones(2))),
    ]
    names = [(f"image {place}",) for place in range(1, 10)]
    found = most_exposed(Images(drawn(9, 1)), Images(drawn(20, 4)), rows, 9, names)
    assert found[0].names == ("image 2",)
    assert {name for record in found for name in record.levels} == {"latent-reconstruction"}
    assert found[-1].levels["latent-reconstruction"] == 1


def test_the_list_names_the_files(sides, call):
    out = sides / "found.json"
    attacked = ["--members", sides / "members", "--others", sides / "others", "--attack", "nearest-sample"]
    code, printed, _ = call(sides / "copies.npz", *attacked, "--riskiest", 20, "--out", out, "--no-progress")
    assert code == 0
    assert printed.count("equal to a generated image\n") == 20
    assert "05.png, 60.png: equal to a generated image\n" in printed
    if os.name == "posix":
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
    records = json.loads(out.read_text())["riskiest"]
    assert {record["names"][0] for record in records} == {f"{number:02}.png" for number in range(20)}
    assert all(record["equal"] for record in records)
    assert next(record["names"] for record in records if len(record["names"]) > 1) == ["05.png", "60.png"]
    assert "riskiest 2: " in call(sides / "clean.npz", *attacked, "--riskiest", 2, "--no-progress")[1]  # needs no file


def test_names_are_those_of_the_files_however_they_are_called_and_listed(sides, call):
    """With a metadata.csv its rows are the images, in its order; a name on disk need not be text."""
    files = sorted((sides / "members").iterdir())
    strange = os.fsdecode(b"\xff<b>.png") if sys.platform == "linux" else "udcff<b>.png"
    files[5].unlink()
    files[60].rename(sides / "members" / strange)
    sources = ["--members", sides / "members", "--others", sides / "others", "--attack", "nearest-sample"]
    asked = [*sources, "--riskiest", 20, "--out", sides / "found.json", "--json"]
    code, out, _ = call(sides / "copies.npz", *asked)
    assert code == 0
    assert [strange] in [record["names"] for record in json.loads(out)["riskiest"]]
    (sides / "members" / strange).unlink()
    rows = [path.name for path in files[40:5:-1]]
    for path in set((sides / "members").iterdir()) - {sides / "members" / row for row in rows}:
        path.unlink()
    table = "file_name,person\n" + "".join(f"{row},{place}\n" for place, row in enumerate(rows))
    (sides / "members" / "metadata.csv").write_text(table)
    code, out, err = call(sides / "copies.npz", *asked)
    assert code == 0, err
    found = json.loads(out)["riskiest"]
    assert {record["names"][0] for record in found if record["equal"]} == {f"{n:02}.png" for n in range(6, 20)}


def test_python_gets_the_records():
    members, others = drawn(40, 1), drawn(40, 2)
    found = idpgan.attack(members[:30], members, others, attacks=["nearest-sample"], riskiest=4)
    assert len(found.riskiest) == 4
    assert all(record.equal for record in found.riskiest)
    assert not idpgan.attack(members[:30], members, others, attacks=["nearest-sample"]).riskiest
