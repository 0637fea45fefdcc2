"""Progress without a terminal: nothing for quick work, lines for long work."""

import pytest

from apood.support import progress
from apood.support.progress import progress_bar, relabel, track


def test_quick_work_prints_nothing(capfd):
    assert list(track(range(3), "read")) == [0, 1, 2]
    with progress_bar(2, "fit") as shown:
        relabel(shown, "fit: first")
        shown.update()
    assert capfd.readouterr() == ("", "")


def test_long_work_prints_lines(capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "_AS_LINES", {"mininterval": 0.0, "delay": 0.0, "ncols": 60})
    with progress_bar(2, "fit") as shown:
        for name in ("first", "second"):
            relabel(shown, f"fit: {name}")
            shown.update()
    out, lines = capfd.readouterr()
    assert out == "" and "\r" not in lines
    assert [line.partition(" ")[0] for line in lines.splitlines()] == ["fit:"] * 3
    assert lines.splitlines()[-1].startswith("fit: second: 100%")


def test_nested_bars_do_not_move_the_cursor(capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "_AS_LINES", {"mininterval": 0.0, "delay": 0.0, "ncols": 60})
    with progress_bar(1, "rows") as outer:
        with progress_bar(2, "fit") as inner:
            inner.update(2)
        outer.update()
    lines = capfd.readouterr().err
    assert "\x1b" not in lines
    assert [line.partition(":")[0] for line in lines.splitlines()] == ["rows", "fit", "fit", "rows"]


def test_the_start_of_long_work_says_how_long_it_takes(capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "_SOON", 0.0)
    with progress_bar(10**9, "encoding", "rec", initial=10, forecast=True) as shown:
        shown.start_t -= 6.0
        shown.update(10)
        shown.update(10)
    sentence = capfd.readouterr().err
    assert sentence.startswith("encoding: 20 of 1,000,000,000 done, about ") and sentence.endswith(" days to go.\n")
    assert sentence.count("to go") == 1
    for total in (None, 100):  # unknown, and less than a minute
        with progress_bar(total, "encoding", "rec", forecast=True) as shown:
            shown.start_t -= 6.0
            shown.update(50)
    assert capfd.readouterr() == ("", "")
