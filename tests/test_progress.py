"""Progress: silent when quick or unasked, a bar in a terminal, lines elsewhere."""

import re

import numpy as np

from exempla import progress, select
from exempla.progress import counter, say, showing, track
from exempla.selection import engine


def test_slow_work_shows_and_quick_work_does_not(capsys, monkeypatch):
    with showing(True):
        assert list(track(range(3), "quick")) == [0, 1, 2]
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(progress, "DELAY", 0)
        assert list(track(range(3), "slow", 3)) == [0, 1, 2]
        assert "slow" in capsys.readouterr().err
    assert list(track(range(3), "unasked")) == [0, 1, 2]
    say("unasked")
    assert capsys.readouterr().err == ""


def test_redirected_output_gets_lines_and_a_terminal_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    with showing(True):
        list(track(range(4), "counting", 4))
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("exempla: counting: 1 of 4 (25%), ")
        assert len(lines) == 4
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        list(track(range(4), "counting", 4))
        assert "\r" in capsys.readouterr().err


def test_picking_is_counted_only_where_asked(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(engine, "_MIN_PROGRESS_WORK", 0)
    rows = np.random.default_rng(0).normal(size=(50, 6))
    select(rows, rows[0], 3)
    assert capsys.readouterr().err == ""
    with showing(True):
        select(rows, rows[0], 3)
    assert "picking" in capsys.readouterr().err
    with counter("after", 1) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_uncountable_work_is_told_after_two_seconds(monkeypatch, capsys):
    import time

    monkeypatch.setattr(progress, "DELAY", 0.02)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.02)
    said = ""
    with progress.showing(True), progress.waiting("reading mail.csv"):
        for _ in range(500):  # until the teller has spoken, however busy the machine is
            time.sleep(0.02)
            said += capsys.readouterr().err
            if "so far" in said:
                break
    assert re.match(r"exempla: reading mail.csv: \d+ s so far", said)
    capsys.readouterr()
    with progress.showing(False), progress.waiting("reading mail.csv"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_long_work_is_announced_with_an_estimate(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 1.5, 12.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    with progress.showing(True):
        lines = progress.Lines("training", 40)
        lines.update()  # after one second of forty
        assert capsys.readouterr().err == "exempla: training: 1 of 40 (2%), 39 s left\n"
        lines.update()
        assert capsys.readouterr().err == ""
        lines.update()
        assert "3 of 40" in capsys.readouterr().err
