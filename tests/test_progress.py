"""What a user sees of work that is being done: bars on a terminal, lines elsewhere, nothing where it is off."""

import io

import pytest
from rich.console import Console

from idpgan import progress
from idpgan.progress import Bars, Lines, renamed, shown, silent, within


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def drawn(work):
    """Return what a terminal of 100 columns gets to see while `work` is done."""
    text = io.StringIO()
    with Bars(Console(file=text, force_terminal=True, width=100)) as told:
        work(told)
    return text.getvalue()


def test_a_bar_shows_count_speed_and_note():
    def work(told):
        told("train", 2, 10)
        told("train", 4, 10, "epsilon 0.5")

    text = drawn(work)
    assert "train" in text
    assert "4/10" in text
    assert "/s epsilon 0.5" in text


def test_a_bar_stands_where_an_error_stopped_the_work_and_the_cursor_is_back():
    text = io.StringIO()

    def broken():
        with Bars(Console(file=text, force_terminal=True, width=100)) as told:
            for step in range(1, 7):
                told("train", step, 10)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        broken()
    assert "6/10" in text.getvalue()
    assert text.getvalue().endswith("\x1b[?25h")


def test_a_bar_is_drawn_at_most_five_times_a_second():
    def work(told):
        for step in range(1, 20_001):
            told("train", step, 100_000)

    text = drawn(work)
    assert "20000/100000" in text
    assert text.count("/s") < 30  # one per drawing; a second would pass unnoticed, not 20,000 drawings


def test_lines_are_written_at_notes_and_otherwise_every_ten_seconds(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    text = io.StringIO()
    told = Lines(text)
    for step in range(51):
        clock[0] = 100.0 + step / 2  # two steps a second, for 25 seconds
        told("train", 1000 + step, 5000, "epsilon 0.5" if step == 4 else "")
    assert text.getvalue().splitlines() == [
        "train: 1,004 of 5,000, 2/s, 33 min left, epsilon 0.5",  # at 2 s
        "train: 1,024 of 5,000, 2/s, 33 min left",
        "train: 1,044 of 5,000, 2/s, 33 min left",
    ]


def lines_of(times, total, monkeypatch):
    """What a file gets of work that has done 0, 1, 2, ... parts at these seconds."""
    clock, text = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    told = Lines(text)
    for done, seconds in enumerate(times):
        clock[0] = seconds
        told("steps", done, total)
    return text.getvalue().splitlines()


def test_the_start_up_is_not_taken_for_the_speed(monkeypatch):
    """A minute of start-up, then a step a second: 90 s were once told to be 17 minutes."""
    lines = lines_of([0.0, *(60.0 + step for step in range(31))], 90, monkeypatch)
    assert lines[0] == "steps: 1 of 90"  # how fast is not known yet
    assert lines[1:] == [
        "steps: 11 of 90, 1/s, 79 s left",
        "steps: 21 of 90, 1/s, 69 s left",
        "steps: 31 of 90, 1/s, 59 s left",
    ]


def test_the_time_left_follows_a_speed_that_changes(monkeypatch):
    """100 steps in 100 s, then one every 10 s: the last minute counts, not the mean since the start."""
    slow = [100.0 + 10 * step for step in range(1, 100)]
    assert lines_of([*map(float, range(101)), *slow], 1000, monkeypatch)[-1] == "steps: 199 of 1,000, 0.1/s, 2.2 h left"


def test_a_part_of_the_work_is_named_after_the_whole():
    heard = []
    within(lambda *call: heard.append(call), "nearest-sample")("distances", 3, 7)
    assert heard == [("nearest-sample, distances", 3, 7, "")]


def test_a_terminal_gets_bars_a_file_lines_and_off_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    assert isinstance(shown(), Bars)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with shown() as told:
        assert isinstance(told, Lines)
    with shown(off=True) as told:
        assert told is silent


def test_a_part_of_the_work_goes_by_the_name_of_the_whole():
    heard = []
    renamed(lambda *call: heard.append(call), "attack")("distances", 3, 7)
    assert heard == [("attack", 3, 7, "")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "1 s"), (119, "119 s"), (120, "2 min"), (150, "2.5 min"), (3000, "50 min"), (7200, "2 h"), (2e5, "2.3 d")],
)
def test_how_long_something_takes_is_written_in_a_unit_that_fits(seconds, text):
    assert progress.duration(seconds) == text


def test_parts_are_counted_as_they_are_done():
    told = []
    parts = list(progress.counted([[1, 2], [3]], lambda *call: told.append(call), "features", 3, len))
    assert parts == [[1, 2], [3]]
    assert told == [("features", 2, 3), ("features", 3, 3)]
