"""``idpgan stream``: answers line by line, the same ones after a crash, and one line for bad input."""

import dataclasses
import io
import json
import sys

import pytest

from idpgan.commands.stream import StreamOptions, answer_lines
from idpgan.continual.state import answers_of
from idpgan.errors import InputError
from idpgan.kinds import verify

TERMS = StreamOptions(1.0, 20)


def answered(lines, terms=TERMS, **options):
    shown = []
    answer_lines([f"{line}\n" for line in lines], dataclasses.replace(terms, **options), shown.extend)
    return shown


def test_every_line_is_answered_and_the_state_goes_on(tmp_path):
    state = tmp_path / "faces.state"
    first = answered([3, 0, 5], state=state)
    second = answered([1, 1], state=state, block=2)
    assert len(first) == 3
    assert len(second) == 2
    assert [int(line) for line in answers_of(state).read_text().splitlines()] == first + second
    assert state.stat().st_mode & 0o077 == 0  # it holds the true counts
    assert abs(second[-1] - 10) < 200


def test_what_was_answered_is_answered_again_by_the_same_number(tmp_path):
    state = tmp_path / "faces.state"
    first = answered([3, 0, 5], state=state)
    again = answered([9, 9, 9, 7], state=state, first=1, block=3)
    assert again[:3] == first
    assert len(again) == 4
    assert answered([7], state=state, first=4) == again[3:]


class Crash(BaseException):
    """Comes where a test wants it."""


@pytest.mark.parametrize("when", ["before the answers", "before they are shown"])
def test_a_crash_between_the_files_releases_nothing_twice(tmp_path, monkeypatch, when):
    state, shown = tmp_path / "faces.state", []

    def crash(*_):
        raise Crash

    answered([3, 0], state=state)
    with monkeypatch.context() as patch:
        if when == "before the answers":
            patch.setattr("idpgan.continual.state.StreamFile._append", crash)
        emit = crash if when == "before they are shown" else shown.extend
        with pytest.raises(Crash):
            answer_lines(["5\n", "6\n"], dataclasses.replace(TERMS, state=state, block=2), emit)
    assert shown == []
    again = answered([5, 6], state=state, first=3, block=1)
    assert answered([5, 6], state=state, first=3) == again
    assert len(answers_of(state).read_text().splitlines()) == 4


def test_an_answer_that_was_cut_by_a_crash_is_written_again(tmp_path):
    state = tmp_path / "faces.state"
    first = answered([3, 0, 5], state=state, block=3)
    path = answers_of(state)
    path.write_text(path.read_text()[:-2])
    assert answered([], state=state) == []
    assert [int(line) for line in path.read_text().splitlines()] == first


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["3\n", "x\n"], "line 2 holds 'x', which is not a whole number"),
        (["3\n", "1.5\n"], "line 2 holds '1.5'"),
        (["3\n", "\n"], "line 2 holds ''"),
        (["3\n", "12"], "line 2 \\('12'\\) has no line break"),
        (["3\n", "-1\n"], "at least"),
        (["3\n", "9" * 500 + "\n"], "line 2 holds no number"),
        (["3\n", "1" * 30 + "\n"], "Nothing"),
    ],
)
def test_a_bad_line_is_named_and_what_was_answered_before_stands(tmp_path, lines, message):
    state, shown = tmp_path / "faces.state", []
    with pytest.raises(InputError, match=message):
        answer_lines(lines, dataclasses.replace(TERMS, state=state), shown.extend)
    assert len(shown) == 1
    assert len(answered([1], state=state, first=2)) == 1


def test_more_values_than_the_horizon_release_nothing(tmp_path):
    with pytest.raises(InputError, match="horizon"):
        answered([1] * 21, block=21, state=tmp_path / "a.state")
    assert not answers_of(tmp_path / "a.state").exists()


@pytest.mark.parametrize(
    "terms", [StreamOptions(2.0, 20), StreamOptions(1.0, 21), StreamOptions(1.0, 20, real=True), StreamOptions(1.0)]
)
def test_a_state_of_other_terms_is_refused(tmp_path, terms):
    answered([3], state=tmp_path / "a.state")
    before = (tmp_path / "a.state").read_bytes()
    with pytest.raises(InputError, match=r"epsilon|horizon|integer"):
        answered([3], terms, state=tmp_path / "a.state")
    assert (tmp_path / "a.state").read_bytes() == before


def test_damaged_and_foreign_files_are_refused(tmp_path):
    state = tmp_path / "a.state"
    answered([3, 4], state=state)
    good = state.read_text()
    for content in ("", "[]", "{}", good[:-9], json.dumps({**json.loads(good), "stream": {}})):
        state.write_text(content)
        with pytest.raises(InputError):
            answered([3], state=state)
    state.unlink()
    with pytest.raises(InputError, match="without its state"):
        answered([3], state=state)


@pytest.mark.parametrize("first", [0, -1, 5])
def test_a_gap_is_refused(tmp_path, first):
    answered([3], state=tmp_path / "a.state")
    with pytest.raises(InputError, match="--first"):
        answered([3], state=tmp_path / "a.state", first=first)


def test_the_answers_of_all_calls_are_given_away_and_verify(tmp_path):
    state, out = tmp_path / "faces.state", tmp_path / "release"
    shown = answered([3, 0, 5], state=state) + answered([2, 2], state=state, out=out, data="faces enrolled")
    found = verify(out)
    assert found.consistent, found.problems
    assert found.recomputed == pytest.approx(1.0)
    assert [int(line.split(",")[1]) for line in (out / "answers.csv").read_text().splitlines()[1:]] == shown
    assert "faces enrolled" in (out / "README.md").read_text()
    (out / "answers.csv").write_text((out / "answers.csv").read_text().replace(f"1,{shown[0]}", f"1,{shown[0] + 1}"))
    assert not verify(out).consistent


def test_a_release_is_not_written_over_and_nothing_is_read_for_it(tmp_path):
    unread = iter(lambda: pytest.fail("read"), None)
    (tmp_path / "release").mkdir()
    with pytest.raises(InputError, match="exists already and is not written over"):
        answer_lines(unread, dataclasses.replace(TERMS, out=tmp_path / "release"), print)
    with pytest.raises(InputError, match="nothing to give away"):
        answered([], out=tmp_path / "other")
    with pytest.raises(InputError, match="printable"):  # else a stream without a state would be released again
        answer_lines(unread, dataclasses.replace(TERMS, out=tmp_path / "third", data="a\nb"), print)
    assert not (tmp_path / "other").exists()


def test_the_command_prints_one_answer_per_line(monkeypatch, capsys):
    from idpgan.commands import main

    monkeypatch.setattr(sys, "stdin", io.StringIO("3\n0\n5\n"))
    with pytest.raises(SystemExit) as end:
        main(["stream", "--epsilon", "1", "--horizon", "5"])
    assert end.value.code == 0
    assert len([int(line) for line in capsys.readouterr().out.splitlines()]) == 3


def test_the_command_says_bad_input_in_one_line(monkeypatch, capsys):
    from idpgan.commands import main

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"3\n\xff\n"), encoding="utf-8"))
    with pytest.raises(SystemExit) as end:
        main(["stream", "--epsilon", "1", "--json"])
    assert end.value.code == 2
    assert "UTF-8" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_the_first_value():
    assert len(answered(["\ufeff3", "4"])) == 2
