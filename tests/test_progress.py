"""What a user sees of work that is being done: bars on a terminal, lines elsewhere, nothing where it is off."""

import io

import pytest
from rich.console import Console

from idpgan import progress
from idpgan.progress import Bars, Lines, renamed, shown, silent


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
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (150, "2.5 min"), (3000, "50 min"), (7200, "2 h"), (2e5, "2.3 d")],
)
def test_how_long_something_takes_is_written_in_a_unit_that_fits(seconds, text):
    assert progress.duration(seconds) == text


def test_parts_are_counted_as_they_are_done():
    told = []
    parts = list(progress.counted([[1, 2], [3]], lambda *call: told.append(call), "features", 3, len))
    assert parts == [[1, 2], [3]]
    assert told == [("features", 2, 3), ("features", 3, 3)]
